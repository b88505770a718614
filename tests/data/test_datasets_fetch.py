"""Datasets brought from a publisher, good and bad, that listens on the loopback address."""

import hashlib
import json
import socket
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from dada.cli.app import app
from dada.data.datasets import CATALOG, DownloadError, entry_of, load, readers
from dada.data.datasets.cache import fetch, write_dataset
from tests.helpers.publisher_files import small_computer, small_school, small_vehicle
from tests.helpers.publisher_server import serving

N_PEOPLE = 2000
FILE = readers.COMPUTER_FILE


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("publisher") / FILE
    small_computer(path, N_PEOPLE)
    return path.read_bytes()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def entry_at(server, content, **changes):
    """The Computer dataset, as this server has it."""
    known = {"n_users": N_PEOPLE, "n_rows": N_PEOPLE * 20, "sha256": None}
    files = {FILE: hashlib.sha256(content).hexdigest()}
    return replace(entry_of("computer"), url=server.url, files=files, **{**known, **changes})


def school_at(server, files, **changes):
    """The School dataset with the small files of the server, whose digests are not known."""
    return replace(entry_of("school"), n_users=3, n_rows=12, url=server.url, files=dict.fromkeys(files), **changes)


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


def fetch_now(entry, folder, **options):
    return fetch(entry, folder=folder, retries=0, **options)


class TestGoodPublisher:
    def test_only_the_parquet_file_stays(self, content, folder):
        reports = []
        with serving({FILE: content}) as server:
            path = fetch_now(entry_at(server, content), folder, progress=lambda *report: reports.append(report))
        assert files_in(folder) == ["computer.parquet"]
        assert path == folder / "computer.parquet"
        assert load("computer", folder).n_users == N_PEOPLE
        assert reports[-1] == (FILE, len(content), len(content))
        assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)

    def test_a_dataset_that_is_there_is_not_asked_for(self, content, folder):
        with serving({FILE: content}) as server:
            entry = entry_at(server, content)
            path = fetch_now(entry, folder)
            written = path.stat().st_mtime_ns
            fetch_now(entry, folder)
            assert len(server.requests) == 1
        assert path.stat().st_mtime_ns == written

    def test_a_dataset_of_many_files(self, tmp_path, folder):
        (tmp_path / "made").mkdir()
        *_, files = small_school(tmp_path / "made")
        data = readers.read_school(files)
        with serving({name: path.read_bytes() for name, path in files.items()}) as server:
            fetch_now(school_at(server, files, sha256=data.sha256()), folder)
        assert load("school", folder).sha256() == data.sha256()
        assert files_in(folder) == ["school.parquet"]


class TestBrokenTransfers:
    def test_a_failed_download_is_repeated(self, content, folder):
        with serving({FILE: content}, [{"status": 503}]) as server:
            fetch(entry_at(server, content), folder=folder, retries=1)
            assert server.requests == [FILE, FILE]
        assert files_in(folder) == ["computer.parquet"]

    def test_a_download_that_is_cut_off_leaves_nothing(self, content, folder):
        with serving({FILE: content}, [{"cut": 500}]) as server:
            with pytest.raises(DownloadError, match=r"the download failed .*500 bytes read.*Try again later"):
                fetch_now(entry_at(server, content), folder)
            assert len(server.requests) == 1
        assert files_in(folder) == []

    def test_an_interrupted_download_leaves_nothing(self, content, folder):
        def interrupt(filename, done, total):
            raise KeyboardInterrupt

        with serving({FILE: content}) as server, pytest.raises(KeyboardInterrupt):
            fetch_now(entry_at(server, content), folder, progress=interrupt)
        assert files_in(folder) == []


class TestBadPublisher:
    def test_a_wrong_checksum_is_refused(self, content, folder):
        with serving({FILE: content[:-1] + b"\x00"}) as server:
            with pytest.raises(ValueError, match=r"hash of downloaded file .* does not match the known hash") as caught:
                fetch_now(entry_at(server, content), folder)
            assert f"{server.url}/{FILE}" in str(caught.value)
            assert len(server.requests) == 1
        assert files_in(folder) == []

    @pytest.mark.parametrize("status", [403, 404, 500])
    def test_an_error_of_the_server_is_reported(self, content, folder, status):
        with (
            serving({FILE: content}, [{"status": status}]) as server,
            pytest.raises(DownloadError, match=rf"the server answered {status} .*--file"),
        ):
            fetch_now(entry_at(server, content), folder)
        assert files_in(folder) == []

    def test_no_server_at_all(self, content, folder):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        entry = replace(entry_of("computer"), url=f"http://127.0.0.1:{port}")
        with pytest.raises(DownloadError, match=r"the download failed .*refused"):
            fetch_now(entry, folder)
        assert files_in(folder) == []

    def test_the_last_of_many_files_fails(self, tmp_path, folder):
        (tmp_path / "made").mkdir()
        *_, files = small_school(tmp_path / "made")
        served = {name: path.read_bytes() for name, path in files.items() if "_10_" not in name}
        with (
            serving(served) as server,
            pytest.raises(DownloadError, match=r"school_10_indexes\.mat: the server answered 404"),
        ):
            fetch_now(school_at(server, files), folder)
        assert files_in(folder) == []

    def test_files_without_a_known_checksum_must_give_the_known_rows(self, tmp_path, folder):
        (tmp_path / "made").mkdir()
        *_, files = small_school(tmp_path / "made")
        with (
            serving({name: path.read_bytes() for name, path in files.items()}) as server,
            pytest.raises(ValueError, match="other values than the known ones"),
        ):
            fetch_now(school_at(server, files), folder)
        assert files_in(folder) == []

    @pytest.mark.parametrize("wrong", [{"n_users": 7}, {"n_features": 15}, {"n_rows": 11}])
    def test_data_of_another_size_are_refused(self, content, folder, wrong):
        with (
            serving({FILE: content}) as server,
            pytest.raises(ValueError, match="not the publisher's complete data"),
        ):
            fetch_now(entry_at(server, content, **wrong), folder)
        assert files_in(folder) == []

    def test_a_file_of_unknown_format_is_refused(self, folder):
        page = b"<html>The dataset has moved</html>"
        with serving({FILE: page}) as server, pytest.raises(ValueError, match="not a readable MATLAB file"):
            fetch_now(entry_at(server, page), folder)
        assert files_in(folder) == []

    def test_a_damaged_parquet_file_is_not_overwritten(self, content, folder):
        folder.mkdir()
        (folder / "computer.parquet").write_text("mine")
        with serving({FILE: content}) as server:
            with pytest.raises(ValueError, match="Move the file away"):
                fetch_now(entry_at(server, content), folder)
            assert server.requests == []
        assert (folder / "computer.parquet").read_text() == "mine"

    def test_a_folder_that_cannot_be_made(self, content, tmp_path):
        (tmp_path / "taken").write_text("a file")
        with serving({FILE: content}) as server, pytest.raises(OSError, match="set DADA_DATA to another one"):
            fetch_now(entry_at(server, content), tmp_path / "taken" / "cache")

    def test_a_full_disk_is_no_reason_to_ask_again(self, content, folder):
        def fail(filename, done, total):
            raise OSError(28, "No space left on device")

        with serving({FILE: content}) as server:
            with pytest.raises(OSError, match="No space left"):
                fetch_now(entry_at(server, content), folder, progress=fail)
            assert len(server.requests) == 1
        assert files_in(folder) == []


class TestLocalFiles:
    def test_vehicle_comes_from_a_local_file_only(self, tmp_path, folder):
        with pytest.raises(ValueError, match=r"cannot be downloaded.*--file vehicle\.mat"):
            fetch("vehicle", folder=folder)
        small_vehicle(tmp_path / "mine.mat")
        entry = replace(entry_of("vehicle"), n_users=2, n_features=4)
        fetch_now(entry, folder, file=tmp_path / "mine.mat")
        assert files_in(folder) == ["vehicle.parquet"]

    def test_a_vehicle_file_with_too_few_sensors_is_refused(self, tmp_path, folder):
        small_vehicle(tmp_path / "vehicle.mat")
        with pytest.raises(ValueError, match="23 users, 100 features and 12 records, got 2, 4 and 12"):
            fetch("vehicle", folder=folder, file=tmp_path / "vehicle.mat")
        assert files_in(folder) == []

    def test_a_folder_with_all_files_of_a_dataset(self, tmp_path, folder):
        *_, files = small_school(tmp_path)
        data = readers.read_school(files)
        files = dict.fromkeys(files)
        entry = replace(entry_of("school"), n_users=3, n_rows=12, files=files, sha256=data.sha256())
        fetch_now(entry, folder, file=tmp_path)
        assert load("school", folder).sha256() == data.sha256()

    def test_a_local_file_with_a_wrong_checksum_is_refused(self, tmp_path, folder):
        small_computer(tmp_path / FILE)
        with pytest.raises(ValueError, match=r"is not the publisher's file: sha256 6e6b5f98\w+ expected, got"):
            fetch("computer", folder=folder, file=tmp_path / FILE)
        assert files_in(folder) == []

    def test_a_local_file_that_is_not_there(self, tmp_path, folder):
        with pytest.raises(FileNotFoundError, match="there is no file"):
            fetch("computer", folder=folder, file=tmp_path / "none.mat")


def store_computer(file, folder):
    dataset = replace(readers.read_computer({FILE: file}), about=entry_of("computer").about)
    write_dataset(dataset, folder / "computer.parquet")


class TestCommands:
    @pytest.fixture(autouse=True)
    def cache(self, folder, monkeypatch):
        monkeypatch.setenv("DADA_DATA", str(folder))
        return folder

    def run(self, *arguments):
        return CliRunner().invoke(app, ["datasets", *arguments])

    def test_list_names_all_and_marks_those_present(self, tmp_path, folder):
        small_computer(tmp_path / "c.mat")
        folder.mkdir()
        store_computer(tmp_path / "c.mat", folder)
        rows = json.loads(self.run("list", "--json").stdout)
        assert [row["name"] for row in rows] == list(CATALOG)
        assert [row["name"] for row in rows if row["present"]] == ["computer"]
        table = self.run("list")
        assert table.exit_code == 0
        assert all(name in table.stdout for name in CATALOG)

    def test_info_of_an_absent_dataset_names_the_command(self):
        facts = json.loads(self.run("info", "harws", "--json").stdout)
        assert (facts["users"], facts["features"], facts["records"], facts["present"]) == (30, 561, 10299, False)
        assert "no commercial use" in facts["terms"]
        assert "ESANN 2013" in facts["cite"]
        assert facts["to_get_it"] == "run: dada datasets fetch harws"
        assert "dada datasets fetch harws" in self.run("info", "harws").stdout

    def test_info_of_a_present_dataset_describes_the_file(self, tmp_path, folder):
        small_computer(tmp_path / "c.mat")
        folder.mkdir()
        store_computer(tmp_path / "c.mat", folder)
        facts = json.loads(self.run("info", "computer", "--json").stdout)
        assert facts["path"] == str(folder / "computer.parquet")
        assert facts["records"] == 80
        assert facts["records_per_user"] == [20, 20]
        assert facts["splits"] == ["paper", "paper_split"]
        assert facts["rows_match_reference"] is False
        assert "20 to 20" in self.run("info", "computer").stdout

    def test_fetch_brings_a_dataset_and_describes_it(self, content, folder, monkeypatch):
        with serving({FILE: content}) as server:
            monkeypatch.setitem(CATALOG, "computer", entry_at(server, content))
            result = self.run("fetch", "computer")
            again = self.run("fetch", "computer")
            as_json = self.run("fetch", "computer", "--json")
            assert len(server.requests) == 1
        assert result.exit_code == 0
        assert "Terms: None stated" in result.stderr
        assert "Already there" in again.stderr
        assert json.loads(as_json.stdout)["present"] is True
        assert files_in(folder) == ["computer.parquet"]

    def test_fetch_takes_a_local_file(self, tmp_path, folder, monkeypatch):
        small_vehicle(tmp_path / readers.VEHICLE_FILE)
        monkeypatch.setitem(CATALOG, "vehicle", replace(entry_of("vehicle"), n_users=2, n_features=4))
        result = self.run("fetch", "vehicle", "--file", str(tmp_path / readers.VEHICLE_FILE))
        assert result.exit_code == 0
        assert files_in(folder) == ["vehicle.parquet"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("info", "nothing"), "dataset must be one of harws"),
            (("fetch", "nothing"), "dataset must be one of harws"),
            (("fetch", "vehicle"), "cannot be downloaded"),
            (("fetch", "vehicle", "--file", "none.mat"), "there is no file none.mat"),
        ],
    )
    def test_errors_are_one_line_and_an_exit_status(self, arguments, message):
        result = self.run(*arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert "Traceback" not in result.output
        assert result.stdout == ""
