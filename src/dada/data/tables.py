"""Users from a CSV or Parquet file, or from a frame in memory, with a column that names the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dada.data._inputs import collected, shorten
from dada.data.population import Population

if TYPE_CHECKING:
    import polars

__all__ = ["population_from_table", "read_table", "write_users"]


def read_table(path: str | Path) -> polars.DataFrame:
    r"""Read a CSV or Parquet file into a frame.

    Parameters
    ----------
    path : str or Path
        A file whose name ends in ``.csv`` or ``.parquet``. A CSV file has a header line; the type of each
        column is taken from all of its values.

    Returns
    -------
    polars.DataFrame

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the name ends otherwise, or the content is empty or damaged.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "visits.csv")
    ...     _ = file.write_text("who,age,came\nann,31,yes\nbob,64,no\n")
    ...     read_table(file).columns
    ['who', 'age', 'came']
    """
    import polars as pl

    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise ValueError(f"{path}: can read files ending in .csv or .parquet, got {suffix or 'no ending'!r}")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty")
    try:
        if suffix == ".csv":
            frame = pl.read_csv(path, infer_schema_length=None)
        else:
            frame = pl.read_parquet(path)
    except pl.exceptions.PolarsError as error:
        hint = "does every line have as many fields as the header?" if suffix == ".csv" else "is it complete?"
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path}: not a readable {suffix} file, {hint} ({reason})") from error
    if frame.height == 0:
        raise ValueError(f"{path}: the file has no rows, only the columns {shorten(frame.columns)}")
    return frame


def population_from_table(
    frame_or_path: Any,
    *,
    user: str,
    label: str,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> Population:
    """Group the rows of a table by the user named in one of its columns.

    Parameters
    ----------
    frame_or_path : polars or pandas frame, or path of a CSV or Parquet file
        One row per labelled example.
    user, label : str
        Columns with the user and with the label (two distinct values).
    features : sequence of str, optional
        Columns to learn from, all numeric; by default all but `user`, `label` and `drop`.
    drop : sequence of str
        Columns to leave out.

    Returns
    -------
    Population

    Examples
    --------
    >>> import polars as pl
    >>> visits = pl.DataFrame({"who": ["ann", "bob"], "age": [31, 64], "came": ["yes", "no"]})
    >>> people = population_from_table(visits, user="who", label="came")
    >>> people.feature_names, people.classes.tolist()
    (('age',), ['no', 'yes'])
    """
    is_path = isinstance(frame_or_path, str | Path)
    frame = read_table(frame_or_path) if is_path else collected(frame_or_path)
    columns = feature_columns([str(name) for name in frame.columns], user, label, features, drop)
    return Population.from_arrays(frame[columns], frame[label], frame[user])


def feature_columns(
    columns: list[str], user: str, label: str, features: Sequence[str] | None, drop: Sequence[str]
) -> list[str]:
    """The columns to learn from, of all that a table has; refuses names that it has not."""
    absent = [name for name in (user, label, *(features or ()), *drop) if name not in columns]
    if absent:
        raise ValueError(f"the table has no column {shorten(absent)}; it has {len(columns)}: {shorten(columns, 20)}")
    if user == label:
        raise ValueError(f"user and label must be two columns, got {user!r} for both")
    left_out = {user, label, *drop}
    chosen = list(features) if features is not None else [name for name in columns if name not in left_out]
    both = sorted(left_out.intersection(chosen))
    if both:
        raise ValueError(f"features must not hold the user, the label or a dropped column, got {shorten(both)}")
    if not chosen:
        raise ValueError(f"no feature column is left beside {shorten(sorted(left_out))}")
    return chosen


def write_users(people: Population, path: str | Path, **of_users: Any) -> None:
    """Write a population as a Parquet file with the columns ``user``, ``label`` and its features.

    Parameters
    ----------
    people : Population
    path : str or Path
    **of_users : arrays of shape (n_users,)
        Further columns, with one value for each user.

    Examples
    --------
    >>> import tempfile
    >>> people = Population.from_arrays([[0.5], [1.0]], ["no", "yes"], ["ann", "bob"], feature_names=["age"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_users(people, Path(folder, "people.parquet"), town=["Rome", "Oslo"])
    ...     read_table(Path(folder, "people.parquet")).columns
    ['user', 'label', 'age', 'town']
    """
    import numpy as np
    import polars as pl

    columns = {"user": people.user_ids.repeat(people.sizes), "label": people.classes[(people.y > 0).astype(int)]}
    columns |= {name: people.X[:, j] for j, name in enumerate(people.feature_names)}
    columns |= {name: np.repeat(values, people.sizes) for name, values in of_users.items()}
    pl.DataFrame(columns).write_parquet(path)
