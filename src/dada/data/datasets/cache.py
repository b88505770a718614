"""One Parquet file per dataset in the cache folder.

Columns: user, f0, f1, ..., label, then the extra columns. The file's own metadata, under the key ``dataset``, is a
JSON object with the names of the features, K, D, the number of records and the meaning of every column.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dada.data.arrays import shorten
from dada.data.datasets.catalog import Entry, SourceFile, entry_of
from dada.data.datasets.dataset import PAPER_SPLIT, SPLIT_COLUMN, Dataset

if TYPE_CHECKING:
    import polars

__all__ = [
    "DownloadError",
    "Progress",
    "Resuming",
    "cache_folder",
    "dataset_path",
    "download",
    "fetch",
    "fetch_entry",
    "load",
    "read_dataset",
    "silent",
    "write_dataset",
]

METADATA_KEY = "dataset"


def cache_folder() -> Path:
    """Folder of the datasets: the environment variable DADA_DATA, else the user's cache folder."""
    from platformdirs import user_cache_path

    chosen = os.environ.get("DADA_DATA")
    return Path(chosen) if chosen else user_cache_path("dada", appauthor=False)


def dataset_path(name: str, folder: Path | str | None = None) -> Path:
    """Where the Parquet file of a dataset is, or would be."""
    return Path(folder or cache_folder()) / f"{entry_of(name).name}.parquet"


def load(name: str, folder: Path | str | None = None) -> Dataset:
    """Read a dataset from the cache folder.

    Parameters
    ----------
    name : str
        One of ``NAMES``: harws, vehicle, vehicle_partial, computer, school.
    folder : path, optional
        Where to look, by default :func:`cache_folder`.

    Returns
    -------
    Dataset

    Raises
    ------
    FileNotFoundError
        If the dataset is not there; the message says how to get it.
    ValueError
        If there is no such dataset, or the file is damaged or of another format.

    Examples
    --------
    >>> load("school", folder="an empty folder")
    Traceback (most recent call last):
    FileNotFoundError: no dataset school at an empty folder...school.parquet. To get it, run: dada datasets fetch school
    """
    entry, path = entry_of(name), dataset_path(name, folder)
    if not path.is_file():
        raise FileNotFoundError(f"no dataset {name} at {path}. To get it, {entry.how_to_get}")
    return read_dataset(entry, path)


def read_dataset(entry: Entry, path: Path) -> Dataset:
    """Read a Parquet file and check it from its metadata to its labels."""
    try:
        about, frame = _contents(path)
        _check(entry, about, frame)
    except ValueError as error:
        raise ValueError(
            f"{path} does not hold the dataset {entry.name}: {error}. Move the file away and {entry.how_to_get}"
        ) from error
    features = [f"f{j}" for j in range(about["D"])]
    rest = [column for column in frame.columns if column not in {"user", "label", *features}]
    return Dataset(
        name=entry.name,
        X=np.ascontiguousarray(frame.select(features).to_numpy()),
        y=frame["label"].to_numpy(),
        users=frame["user"].to_numpy(),
        feature_names=tuple(about["feature_names"]),
        extras={column: frame[column].to_numpy() for column in rest},
        about=about,
    )


def write_dataset(dataset: Dataset, path: Path) -> None:
    """Write a Parquet file under a temporary name and then give it its own, so that it is there whole or not at all."""
    import polars as pl

    rows, D = dataset.X.shape
    columns = {"user": dataset.users, **{f"f{j}": dataset.X[:, j] for j in range(D)}, "label": dataset.y}
    about = {
        **dataset.about,
        "feature_names": list(dataset.feature_names),
        "K": dataset.n_users,
        "D": D,
        "records": rows,
    }
    handle, temporary = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.parent)
    os.close(handle)
    try:
        frame = pl.DataFrame({**columns, **dataset.extras})
        frame.write_parquet(temporary, metadata={METADATA_KEY: json.dumps(about)})
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _contents(path: Path) -> tuple[dict[str, Any], polars.DataFrame]:
    import polars as pl

    try:
        metadata = pl.read_parquet_metadata(path)
        frame = pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"not a complete Parquet file ({reason})") from error
    if METADATA_KEY not in metadata:
        raise ValueError(f"unknown format, the file has no metadata under the key {METADATA_KEY!r}")
    try:
        about = json.loads(metadata[METADATA_KEY])
    except json.JSONDecodeError as error:
        raise ValueError(f"its metadata are not JSON ({error})") from error
    if not isinstance(about, dict):
        raise ValueError(f"its metadata must be a JSON object, got {type(about).__name__}")
    return about, frame


def _check(entry: Entry, about: dict[str, Any], frame: polars.DataFrame) -> None:
    if about.get("name") != entry.stored_name:
        raise ValueError(f"its metadata name it {about.get('name')!r}, not {entry.stored_name!r}")
    D, names = about.get("D"), about.get("feature_names")
    if D != entry.n_features or not isinstance(names, list) or len(names) != D:
        raise ValueError(f"its metadata must list {entry.n_features} features, got D = {D!r}")
    features = [f"f{j}" for j in range(D)]
    split = PAPER_SPLIT[entry.name]
    needed = ["user", *features, "label", *([split] if split else [])]
    absent = [column for column in needed if column not in frame.columns]
    if absent:
        raise ValueError(f"column {shorten(absent)} is missing")
    _check_types(frame, features)
    for column in frame.columns:
        if SPLIT_COLUMN.fullmatch(column) and not frame[column].is_in([0, 1]).all():
            raise ValueError(f"column {column!r} must hold 0 (train) and 1 (test) only")
    if not frame["label"].is_in([-1, 1]).all():
        raise ValueError("column 'label' must hold -1 and +1 only")
    found = (frame["user"].n_unique(), frame.height)
    said = (about.get("K"), about.get("records"))
    if found != said:
        raise ValueError(f"it has {found[1]} records of {found[0]} users, its metadata say {said[1]} of {said[0]}")


def _check_types(frame: polars.DataFrame, features: list[str]) -> None:
    for name, kind in frame.schema.items():
        wanted = "floats" if name in features else "integers" if name in ("user", "label") else "numbers"
        fits = (
            kind.is_float() if wanted == "floats" else kind.is_integer() if wanted == "integers" else kind.is_numeric()
        )
        if not fits:
            raise ValueError(f"column {name!r} must hold {wanted}, got {kind}")
        if frame[name].null_count() or (kind.is_float() and not frame[name].is_finite().all()):
            raise ValueError(f"column {name!r} has missing or infinite values")


# Called with the file's name, the bytes so far and, if the server says, the bytes in all.
Progress = Callable[[str, int, int | None], None]

ATTEMPTS = 4
CHUNK_BYTES = 1 << 16


class DownloadError(OSError):
    """A file could not be downloaded."""


# Not every OSError: a full disk is no reason to try again.
NETWORK_FAULTS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
    DownloadError,
)


def silent(filename: str, done: int, total: int | None) -> None:
    """Report nothing."""


def download(source: SourceFile, folder: Path, progress: Progress = silent, pause_s: float = 1.0) -> Path:
    """Bring a file into a folder, where it appears complete and checked or not at all.

    Parameters
    ----------
    source : SourceFile
        Name, address and digest.
    folder : Path
        Where the file goes. A ``.part`` file an interrupted download left there is continued.
    progress : callable
        Told how far the download is.
    pause_s : float
        Wait before a second attempt, twice as long before the third, and so on.

    Returns
    -------
    Path

    Raises
    ------
    DownloadError
        If the server cannot be reached, refuses, or never sends the whole file.
    ValueError
        If the file is not the expected one.
    """
    import pooch

    part = folder / f"{source.filename}.part"
    continued = part.exists()
    known = None if source.sha256 is None else f"sha256:{source.sha256}"
    try:
        with _quiet(pooch.get_logger()):
            resuming = Resuming(part, progress, pause_s)
            return Path(pooch.retrieve(source.url, known, source.filename, folder, downloader=resuming))
    except ValueError as error:
        # The part may have come from a file that has changed at the server since.
        if continued:
            return download(source, folder, progress, pause_s)
        raise ValueError(f"{source.url}: {error}") from error


class Resuming:
    """A downloader for pooch that keeps what it has in a file of its own until all of it is there."""

    def __init__(self, part: Path, progress: Progress = silent, pause_s: float = 1.0, timeout_s: float = 30.0) -> None:
        self.part = part
        self.progress = progress
        self.pause_s = pause_s
        self.timeout_s = timeout_s

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        """Bring the whole content of `url` to `output_file`."""
        most, fruitless = self._have(), 0
        while True:
            try:
                self._transfer(url)
                break
            except NETWORK_FAULTS as error:
                fruitless = 1 if self._have() > most else fruitless + 1
                most = max(most, self._have())
                if fruitless >= ATTEMPTS or _is_final(error):
                    self.part.unlink(missing_ok=True)
                    raise DownloadError(
                        f"{url}: {_reason(error)}. Nothing was kept. Try again later, "
                        "or download the file by other means and give it with --file"
                    ) from error
            time.sleep(self.pause_s * fruitless)
        os.replace(self.part, output_file)

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _transfer(self, url: str) -> None:
        """Ask once for what is missing, and fail if it does not come to its end."""
        have = self._have()
        # A compressed transfer could not be continued in the middle.
        request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "dada"})
        if have:
            request.add_header("Range", f"bytes={have}-")
        try:
            reply = urllib.request.urlopen(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                self.part.unlink(missing_ok=True)
            raise
        with reply:
            continues = reply.status == http.client.PARTIAL_CONTENT
            if continues and not reply.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                self.part.unlink(missing_ok=True)
                raise DownloadError("the server sent another part of the file than it was asked for")
            done = have if continues else 0
            total = None if reply.length is None else done + reply.length
            with self.part.open("ab" if continues else "wb") as out:
                while chunk := reply.read(CHUNK_BYTES):
                    out.write(chunk)
                    done += len(chunk)
                    self.progress(self.part.stem, done, total)
        if total is not None and done < total:
            raise DownloadError(f"the download was cut off after {done} of {total} bytes")


def _is_final(error: Exception) -> bool:
    """Tell whether the server refused for good: the address or the right to it is wrong."""
    passing = (
        http.client.REQUEST_TIMEOUT,
        http.client.REQUESTED_RANGE_NOT_SATISFIABLE,
        http.client.TOO_MANY_REQUESTS,
    )
    return isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500 and error.code not in passing


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"the server could not be reached ({error.reason})"
    return str(error) or type(error).__name__


@contextmanager
def _quiet(logger: Any) -> Iterator[None]:
    """Keep pooch from printing addresses and digests while a progress bar is on the screen."""
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)


DOWNLOADS = "downloads"


def fetch(
    name: str,
    *,
    file: Path | str | None = None,
    folder: Path | str | None = None,
    progress: Progress = silent,
) -> Path:
    """Bring a dataset into the cache folder, unless it is there already.

    Parameters
    ----------
    name : str
        One of ``NAMES``: harws, vehicle, vehicle_partial, computer, school.
    file : path, optional
        A local copy of the publisher's file, or a folder with all of them, instead of a download. The dataset
        vehicle cannot be had otherwise.
    folder : path, optional
        Where the Parquet file goes, by default :func:`dada.data.datasets.cache_folder`.
    progress : callable
        Told the name of the file on its way, the bytes so far and, if known, the bytes in all.

    Returns
    -------
    Path
        The Parquet file.

    Raises
    ------
    OSError
        If a download fails for good, or a file cannot be read or written.
    ValueError
        If a file is not the one expected. Nothing half-written is left behind.

    Examples
    --------
    >>> fetch("vehicle", folder="data")
    Traceback (most recent call last):
    ValueError: vehicle cannot be downloaded. To get it, run: dada datasets fetch vehicle --file vehicle.mat. ...
    """
    return fetch_entry(entry_of(name), file=file, folder=folder, progress=progress)


def fetch_entry(
    entry: Entry,
    *,
    file: Path | str | None = None,
    folder: Path | str | None = None,
    progress: Progress = silent,
    pause_s: float = 1.0,
) -> Path:
    """Do the work of :func:`fetch` for an entry of the catalog, or one made by hand."""
    folder = Path(folder or cache_folder())
    path = folder / f"{entry.name}.parquet"
    if path.exists():
        read_dataset(entry, path)
        return path
    if file is not None:
        dataset = _read(entry, _local_files(entry, Path(file)))
        _make(folder)
    elif entry.is_downloadable:
        _make(folder)
        dataset = _downloaded(entry, folder / DOWNLOADS / entry.name, progress, pause_s)
    else:
        raise ValueError(f"{entry.name} cannot be downloaded. To get it, {entry.how_to_get}")
    write_dataset(dataset, path)
    return path


def _downloaded(entry: Entry, downloads: Path, progress: Progress, pause_s: float) -> Dataset:
    try:
        downloads.mkdir(parents=True, exist_ok=True)
        dataset = _read(entry, {file.filename: download(file, downloads, progress, pause_s) for file in entry.files})
    except Exception:
        _remove(downloads)
        raise
    # Only an interruption (Ctrl-C, a kill) comes past here without cleaning up: the next fetch goes on from there.
    _remove(downloads)
    return dataset


def _read(entry: Entry, files: dict[str, Path]) -> Dataset:
    dataset = entry.read(files)
    found = (dataset.n_users, dataset.X.shape[1], len(dataset.y))
    expected = (entry.n_users, entry.n_features, entry.n_rows or len(dataset.y))
    if found != expected:
        raise ValueError(
            f"{entry.name} must have {expected[0]} users, {expected[1]} features and {expected[2]} records, "
            f"got {found[0]}, {found[1]} and {found[2]}: this is not the publisher's complete data"
        )
    # Files of known digests give known rows, up to the last bit of a decimal fraction; other files must prove it.
    all_known = all(file.sha256 is not None for file in entry.files)
    if not all_known and entry.sha256 is not None and dataset.sha256() != entry.sha256:
        raise ValueError(
            f"{entry.name}: the files give other values than the known ones (sha256 {entry.sha256} expected, "
            f"got {dataset.sha256()}): one of them has changed or is damaged"
        )
    return dataset


def _local_files(entry: Entry, given: Path) -> dict[str, Path]:
    if len(entry.files) == 1 and not given.is_dir():
        paths = {entry.files[0].filename: given}
    else:
        paths = {file.filename: given / file.filename for file in entry.files}
    for file in entry.files:
        _check_local(file, paths[file.filename])
    return paths


def _check_local(file: SourceFile, path: Path) -> None:
    import pooch

    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    found = pooch.file_hash(str(path), alg="sha256")
    if file.sha256 is not None and found != file.sha256:
        raise ValueError(f"{path} is not the publisher's file: sha256 {file.sha256} expected, got {found}")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the folder {folder} ({error.strerror}): set DADA_DATA to another one") from error
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write to the folder {folder}: set DADA_DATA to another one")


def _remove(downloads: Path) -> None:
    shutil.rmtree(downloads, ignore_errors=True)
    with suppress(OSError):  # another dataset may be on its way
        downloads.parent.rmdir()
