"""Bring a dataset into the cache folder: download, check, read the publisher's format, write one Parquet file."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from dada.data.datasets.catalog import Entry, SourceFile, entry_of
from dada.data.datasets.dataset import Dataset
from dada.data.datasets.download import Progress, download, silent
from dada.data.datasets.store import cache_folder, read_dataset, write_dataset

__all__ = ["fetch", "fetch_entry"]

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
