"""The catalog of real datasets, and their files: one Parquet file per dataset in the cache folder.

Columns: user, f0, f1, ..., label, then the extra columns. The file's own metadata, under the key ``dataset``, is a
JSON object with the names of the features, K, D, the number of records and the meaning of every column.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dada import atomic
from dada.data.datasets import readers
from dada.data.datasets.readers import PAPER_SPLIT, SPLIT_COLUMN, Dataset
from dada.data.population import shorten

if TYPE_CHECKING:
    import polars

METADATA_KEY = "dataset"


@dataclass(frozen=True)
class Entry:
    """Facts about a dataset that are known before it is read, from catalog.toml."""

    name: str
    title: str
    n_users: int
    n_features: int
    # The question that the label answers, and the split of the published results.
    task: str
    split: str
    publisher: str
    terms: str
    # The article to cite.
    citation: str
    # The publisher's files by name, with the SHA-256 digest of each if known.
    files: Mapping[str, str | None]
    # Turns local copies of the files into a dataset.
    read: Callable[[Mapping[str, Path]], Dataset]
    # Metadata of the Parquet file: name, title, and the meaning of the label and of the extra columns.
    about: Mapping[str, Any]
    n_rows: int | None = None
    # Address of the folder with the files; None if there is no lasting address.
    url: str | None = None
    # `Dataset.sha256` of a conversion that was checked by hand.
    sha256: str | None = None
    # Where to find the files if they cannot be downloaded.
    local_file_hint: str = ""

    @property
    def how_to_get(self) -> str:
        """The command that fetches the dataset, with the source of a local file if one is needed."""
        command = f"run: dada datasets fetch {self.name}"
        return command if self.url else f"{command} --file {next(iter(self.files))}. {self.local_file_hint}"


def entry_of(name: str) -> Entry:
    """The catalog entry of a name."""
    if name not in CATALOG:
        raise ValueError(f"dataset must be one of {', '.join(CATALOG)}, got {name!r}")
    return CATALOG[name]


def _catalog() -> Iterator[Entry]:
    text = files("dada.data.datasets").joinpath("catalog.toml").read_text(encoding="utf-8")
    for name, facts in tomllib.loads(text).items():
        digests = {file: digest or None for file, digest in facts.pop("files").items()}
        yield Entry(name=name, files=digests, read=getattr(readers, f"read_{name}"), **facts)


CATALOG: dict[str, Entry] = {entry.name: entry for entry in _catalog()}
NAMES: tuple[str, ...] = tuple(CATALOG)


def cache_folder() -> Path:
    """Folder of the datasets: the environment variable DADA_DATA, else the user's cache folder."""
    from platformdirs import user_cache_path

    chosen = os.environ.get("DADA_DATA")
    return Path(chosen) if chosen else user_cache_path("dada", appauthor=False)


def dataset_path(name: str, folder: Path | str | None = None) -> Path:
    """Path of the Parquet file of a dataset, which need not exist."""
    return Path(folder or cache_folder()) / f"{entry_of(name).name}.parquet"


def load(name: str, folder: Path | str | None = None) -> Dataset:
    """Read a dataset from the cache folder.

    Parameters
    ----------
    name : str
        One of ``NAMES``: harws, vehicle, vehicle_partial, computer, school.
    folder : path, optional
        Folder of the Parquet files, by default :func:`cache_folder`.

    Raises
    ------
    FileNotFoundError
        If the dataset is not in the folder; the message names the command that fetches it.
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
    """Read a Parquet file and check its metadata, columns and values."""
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
    """Write a Parquet file, whole or not at all."""
    import polars as pl

    rows, D = dataset.X.shape
    columns = {"user": dataset.users, **{f"f{j}": dataset.X[:, j] for j in range(D)}, "label": dataset.y}
    about = {**dataset.about, "feature_names": list(dataset.feature_names)}
    about |= {"K": dataset.n_users, "D": D, "records": rows}
    frame = pl.DataFrame({**columns, **dataset.extras})
    with atomic.replacing(path) as file:
        frame.write_parquet(file, metadata={METADATA_KEY: json.dumps(about)})


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
    if about.get("name") != entry.about["name"]:
        raise ValueError(f"its metadata name it {about.get('name')!r}, not {entry.about['name']!r}")
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
    found = (frame.height, frame["user"].n_unique())
    stated = (about.get("records"), about.get("K"))
    if found != stated:
        raise ValueError("it has {} records of {} users, its metadata state {} of {}".format(*found, *stated))


def _check_types(frame: polars.DataFrame, features: list[str]) -> None:
    for name, kind in frame.schema.items():
        wanted, fits = "numbers", kind.is_numeric()
        if name in features:
            wanted, fits = "floats", kind.is_float()
        elif name in ("user", "label"):
            wanted, fits = "integers", kind.is_integer()
        if not fits:
            raise ValueError(f"column {name!r} must hold {wanted}, got {kind}")
        if frame[name].null_count() or (kind.is_float() and not frame[name].is_finite().all()):
            raise ValueError(f"column {name!r} has missing or infinite values")


# Called with the file's name, the bytes received and, if known, the size of the file.
DownloadObserver = Callable[[str, int, int | None], None]


class DownloadError(OSError):
    """A file could not be downloaded."""


def fetch(
    dataset: str | Entry,
    *,
    file: Path | str | None = None,
    folder: Path | str | None = None,
    progress: DownloadObserver = lambda filename, done, total: None,
    retries: int = 3,
) -> Path:
    """Fetch a dataset into the cache folder, unless it is already there.

    Parameters
    ----------
    dataset : str or Entry
        One of ``NAMES`` (harws, vehicle, vehicle_partial, computer, school), or a catalog entry.
    file : path, optional
        A local copy of the publisher's file, or a folder with all of them, instead of a download. The dataset
        vehicle is available this way only.
    folder : path, optional
        Folder for the Parquet file, by default :func:`dada.data.datasets.cache_folder`.
    progress : callable
        Called with the name of the current file, the bytes received and, if known, the size of the file.
    retries : int
        How often a failed download is repeated.

    Returns
    -------
    Path of the Parquet file.

    Raises
    ------
    OSError
        If a download fails, or a file cannot be read or written.
    ValueError
        If a file is not the expected one. No partial file is left behind.

    Examples
    --------
    >>> fetch("vehicle", folder="data")
    Traceback (most recent call last):
    ValueError: vehicle cannot be downloaded. To get it, run: dada datasets fetch vehicle --file vehicle.mat. ...
    """
    entry = entry_of(dataset) if isinstance(dataset, str) else dataset
    folder = Path(folder or cache_folder())
    path = folder / f"{entry.name}.parquet"
    if path.exists():
        read_dataset(entry, path)
        return path
    if file is not None:
        rows = _read(entry, _local_files(entry, Path(file)))
        _make(folder)
    elif entry.url is not None:
        _make(folder)
        with tempfile.TemporaryDirectory(prefix=f".{entry.name}-", dir=folder) as downloads:
            rows = _read(entry, _download(entry, Path(downloads), progress, retries))
    else:
        raise ValueError(f"{entry.name} cannot be downloaded. To get it, {entry.how_to_get}")
    write_dataset(rows, path)
    return path


def _download(entry: Entry, folder: Path, progress: DownloadObserver, retries: int) -> dict[str, Path]:
    import pooch
    import requests

    digests = {name: digest and f"sha256:{digest}" for name, digest in entry.files.items()}
    source = pooch.create(folder, f"{entry.url}/", registry=digests, retry_if_failed=retries)
    paths = {}
    for name in entry.files:
        # An encoded transfer would report more bytes than the announced size.
        downloader = pooch.HTTPDownloader(
            progressbar=_ProgressBar(name, progress), chunk_size=1 << 16, headers={"Accept-Encoding": "identity"}
        )
        try:
            with _quiet(pooch.get_logger()):
                paths[name] = Path(source.fetch(name, downloader=downloader))
        except requests.RequestException as error:
            raise DownloadError(
                f"{entry.url}/{name}: {_reason(error)}. Try again later, "
                "or download the file by other means and pass it with --file"
            ) from error
        except ValueError as error:
            raise ValueError(f"{entry.url}/{name}: {error}") from error
    return paths


class _ProgressBar:
    """Reports to an observer what pooch reports to a progress bar."""

    total = 0

    def __init__(self, filename: str, progress: DownloadObserver) -> None:
        self.filename, self.progress, self.done = filename, progress, 0

    def update(self, n: int) -> None:
        # Pooch counts whole chunks, also for a shorter last one.
        self.done = min(self.done + n, self.total) if self.total else self.done + n
        self.progress(self.filename, self.done, self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _reason(error: Any) -> str:
    if error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    return f"the download failed ({error})"


@contextmanager
def _quiet(logger: Any) -> Iterator[None]:
    """Keep pooch from printing addresses and digests over a progress bar."""
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)


def _read(entry: Entry, files: dict[str, Path]) -> Dataset:
    dataset = replace(entry.read(files), about=entry.about)
    found = (dataset.n_users, dataset.X.shape[1], len(dataset.y))
    expected = (entry.n_users, entry.n_features, entry.n_rows or len(dataset.y))
    if found != expected:
        raise ValueError(
            f"{entry.name} must have {expected[0]} users, {expected[1]} features and {expected[2]} records, "
            f"got {found[0]}, {found[1]} and {found[2]}: this is not the publisher's complete data"
        )
    # Files with known digests give known rows up to rounding; the rows of other files are compared bit for bit.
    if entry.sha256 is not None and None in entry.files.values() and dataset.sha256() != entry.sha256:
        raise ValueError(
            f"{entry.name}: the files give other values than the known ones (sha256 {entry.sha256} expected, "
            f"got {dataset.sha256()}): one of them has changed or is damaged"
        )
    return dataset


def _local_files(entry: Entry, given: Path) -> dict[str, Path]:
    import pooch

    single = len(entry.files) == 1 and not given.is_dir()
    paths = {name: given if single else given / name for name in entry.files}
    for name, digest in entry.files.items():
        if not paths[name].is_file():
            raise FileNotFoundError(f"there is no file {paths[name]}")
        found = pooch.file_hash(str(paths[name]), alg="sha256")
        if digest is not None and found != digest:
            raise ValueError(f"{paths[name]} is not the publisher's file: sha256 {digest} expected, got {found}")
    return paths


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the folder {folder} ({error.strerror}): set DADA_DATA to another one") from error
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write to the folder {folder}: set DADA_DATA to another one")
