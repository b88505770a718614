"""One Parquet file per dataset in the cache folder.

Columns: user, f0, f1, ..., label, then the extra columns. The file's own metadata, under the key ``dataset``, is a
JSON object with the names of the features, K, D, the number of records and the meaning of every column.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dada.data._inputs import shorten
from dada.data.datasets.catalog import Entry, entry_of
from dada.data.datasets.dataset import PAPER_SPLIT, SPLIT_COLUMN, Dataset

if TYPE_CHECKING:
    import polars

__all__ = ["cache_folder", "dataset_path", "load", "read_dataset", "write_dataset"]

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
