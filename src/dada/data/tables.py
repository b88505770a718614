"""Populations from CSV or Parquet files, or from frames in memory, with a column for the user of each row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from dada.data.encoding import TableEncoder, needs_encoding, read_column, telling_columns, useless_columns
from dada.data.population import (
    NUMERIC_KINDS,
    Population,
    Users,
    as_values,
    collected,
    did_you_mean,
    frame_columns,
    shorten,
)
from dada.data.predictors.families import FeatureSummary

if TYPE_CHECKING:
    import polars

Task = Literal["auto", "classes", "numbers"]

# With more different numbers than this, a column holds numbers rather than classes.
MOST_CLASSES = 20
# How CSV files write that a value is missing.
MISSING_MARKS = ["NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?", "."]


def read_table(path: str | Path) -> polars.DataFrame:
    r"""Read a CSV or Parquet file into a frame.

    Parameters
    ----------
    path : str or Path
        A file whose name ends in ``.csv`` or ``.parquet``. A CSV file has a header line; the type of each
        column is taken from all of its values, and fields are separated by commas, semicolons or tabs. Empty fields,
        and fields such as ``NA``, ``null`` or ``?``, are missing values. Columns of dates become dates.

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
            how: Any = {"separator": _separator(path), "null_values": MISSING_MARKS, "try_parse_dates": True}
            frame = pl.read_csv(path, infer_schema_length=None, **how)
        else:
            frame = pl.read_parquet(path)
    except pl.exceptions.PolarsError as error:
        hint = "does every line have as many fields as the header?" if suffix == ".csv" else "is it complete?"
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path}: not a readable {suffix} file, {hint} ({reason})") from error
    if frame.height == 0:
        raise ValueError(f"{path}: the file has no rows, only the columns {shorten(frame.columns)}")
    return frame.with_columns(pl.selectors.decimal().cast(pl.Float64))


def _separator(path: Path) -> str:
    """What separates the fields of a CSV file: a comma, unless its header has none but semicolons or tabs."""
    with path.open("rb") as file:
        header = file.readline(1 << 20)
    others = [mark for mark in (";", "\t") if mark.encode() in header]
    return others[0] if others and b"," not in header else ","


def population_from_table(
    frame_or_path: Any,
    *,
    user: str,
    label: str,
    task: Task = "auto",
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> Population:
    """Group the rows of a table by the user named in one of its columns.

    Parameters
    ----------
    frame_or_path : polars or pandas frame, or path of a CSV or Parquet file
        One row per example.
    user, label : str
        Columns with the user and with the target.
    task : {"auto", "classes", "numbers"}
        What the targets are; "auto": numbers if the column has more than 20 different ones, else classes.
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
    frame = _frame(frame_or_path)
    columns = feature_columns([str(name) for name in frame.columns], user, label, features, drop)
    targets = as_values(frame[label], "y")
    return Population.from_arrays(frame[columns], targets, frame[user], task=kind_of(targets, task, label))


def _frame(frame_or_path: Any) -> Any:
    return read_table(frame_or_path) if isinstance(frame_or_path, str | Path) else collected(frame_or_path)


def kind_of(targets: np.ndarray, task: Task, label: str) -> Literal["classes", "numbers"]:
    """Whether targets are classes or numbers; two different values are always classes."""
    n_values, is_numeric = len(np.unique(targets)), targets.dtype.kind in NUMERIC_KINDS
    if task == "numbers" and n_values != 2 and not is_numeric:
        raise ValueError(f"column {label!r} must hold numbers for task='numbers', got {targets.dtype}")
    are_numbers = n_values != 2 and (task == "numbers" or (task == "auto" and is_numeric and n_values > MOST_CLASSES))
    return "numbers" if are_numbers else "classes"


@dataclass(frozen=True, eq=False)
class UserTable:
    """Rows of a table with columns of any kind, grouped by user.

    Attributes
    ----------
    features : frame
        The columns to learn from.
    targets, users : arrays of shape (rows,)
        The target and the user of each row.
    task : {"classes", "numbers"}
        What the targets are.
    left_out : dict of str to str
        Columns that hold nothing to learn from, and why.
    n_dropped : int
        Rows that were dropped because they have no user or no target.

    Examples
    --------
    >>> import polars as pl
    >>> visits = pl.DataFrame({"": [1, 2, 3, 4], "who": ["bob", "ann", "ann", "bob"], "town": ["Rome", "Oslo"] * 2})
    >>> table = UserTable.read(visits.with_columns(came=pl.Series([1, 0, 1, 0])), user="who", label="came")
    >>> table.users.tolist(), table.left_out
    (['ann', 'ann', 'bob', 'bob'], {'': 'row numbers'})
    >>> table.people(table.encoder()).feature_names
    ('town = "Oslo"', 'town = "Rome"')
    """

    features: Any
    targets: np.ndarray
    users: np.ndarray
    task: Literal["classes", "numbers"]
    left_out: dict[str, str]
    n_dropped: int = 0

    @classmethod
    def read(
        cls,
        frame_or_path: Any,
        *,
        user: str,
        label: str,
        task: Task = "auto",
        drop: Sequence[str] = (),
        drop_missing: bool = False,
    ) -> Self:
        """Read a table, as in `population_from_table`, and leave out columns that hold nothing to learn from.

        With `drop_missing`, rows without a user or a target are dropped; else they are refused.
        """
        frame = _frame(frame_or_path)
        columns = feature_columns([str(name) for name in frame.columns], user, label, None, drop)
        frame, n_dropped = _complete(frame, user, label, drop_missing)
        useless = useless_columns({name: read_column(column) for name, column in frame_columns(frame[columns]).items()})
        used = [name for name in columns if name not in useless]
        if not used:
            reasons = "; ".join(f"{name!r}: {reason}" for name, reason in list(useless.items())[:5])
            raise ValueError(f"no column is left to learn from beside {user!r} and {label!r} ({reasons})")
        owners = as_values(frame[user], "users")
        order = np.argsort(np.unique(owners, return_inverse=True)[1], kind="stable")
        targets = as_values(frame[label], "y")
        features = _taken(frame[used], order)
        return cls(features, targets[order], owners[order], kind_of(targets, task, label), useless, n_dropped)

    @cached_property
    def telling(self) -> list[str]:
        """Columns that determine the target exactly."""
        return telling_columns(self.features, self.targets)

    def rows(self, kept: np.ndarray) -> Any:
        """The features of the rows under a mask."""
        return _taken(self.features, np.flatnonzero(kept))

    def encoder(self, kept: np.ndarray | None = None) -> TableEncoder | None:
        """The encoder of all rows or of those under a mask; None if all columns are numbers."""
        if not needs_encoding(self.features):
            return None
        encoder = TableEncoder.fit(self.features if kept is None else self.rows(kept), keep_all=True)
        return replace(encoder, left_out=self.left_out)

    def people(self, encoder: TableEncoder | None = None) -> Population:
        """All rows as a population."""
        X = self.features if encoder is None else encoder.transform(self.features)
        names = None if encoder is None else encoder.feature_names
        return Population.from_arrays(X, self.targets, self.users, task=self.task, feature_names=names)


def _complete(frame: Any, user: str, label: str, drop_missing: bool) -> tuple[Any, int]:
    """The rows with a user and a target, and the number of others."""
    missing = {name: read_column(frame[name]).missing for name in (user, label)}
    lacking = missing[user] | missing[label]
    n_lacking = int(lacking.sum())
    if n_lacking and not drop_missing:
        counts = " and ".join(f"{int(mask.sum())} in column {name!r}" for name, mask in missing.items() if mask.any())
        raise ValueError(
            f"{n_lacking} of {len(lacking)} rows have no user or no label ({counts} missing): fill them in, or leave "
            "these rows out with drop_missing=True (--drop-missing on the command line)"
        )
    if n_lacking == len(lacking):
        raise ValueError(f"no row has both a user (column {user!r}) and a label (column {label!r})")
    return (_taken(frame, np.flatnonzero(~lacking)) if n_lacking else frame), n_lacking


def _taken(frame: Any, rows: np.ndarray) -> Any:
    return frame.iloc[rows] if hasattr(frame, "iloc") else frame[rows]


def feature_columns(
    columns: list[str], user: str, label: str, features: Sequence[str] | None, drop: Sequence[str]
) -> list[str]:
    """The feature columns of a table; refuses names that it does not have."""
    absent = [name for name in (user, label, *(features or ()), *drop) if name not in columns]
    if absent:
        hint = did_you_mean(absent, columns)
        raise ValueError(
            f"the table has no column {shorten(absent)}{hint}; it has {len(columns)}: {shorten(columns, 20)}"
        )
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
    import polars as pl

    columns = {"user": people.users, "label": people.targets}
    columns |= {name: people.X[:, j] for j, name in enumerate(people.feature_names)}
    columns |= {name: np.repeat(values, people.sizes) for name, values in of_users.items()}
    pl.DataFrame(columns).write_parquet(path)


# Rows summarised at a time, and bytes at the end of a file that hold the Parquet footer.
BLOCK = 200_000
FOOTER = 1 << 16
# Users whose rows show the levels and medians of all.
SAMPLED_USERS = 2000


@dataclass(frozen=True, eq=False)
class ParquetUsers(Users):
    """Users whose rows are in one or more Parquet files, read a range of users at a time.

    Files with rows sorted by user are read fastest, since only row groups that may hold a wanted user are read. Any
    order gives the same users.

    Attributes
    ----------
    files : tuple of str
        Absolute paths of the files; every process that reads must see them.
    user, label : str
        Columns with the user and with the label.
    feature_names : tuple of str
        Columns to learn from, or the features that `encoder` makes of them.
    classes : array of shape (C,) or None
        The labels, sorted; None if they are numbers.
    user_ids, sizes : arrays of shape (n_users,)
        The users, sorted, and the number of rows of each.
    encoder : TableEncoder or None
        How columns become features if some hold text or dates; learned from a sample of users.

    Examples
    --------
    >>> import polars as pl, tempfile
    >>> visits = {"who": ["bob", "ann", "ann"], "age": [64, 31, 32], "came": ["no", "yes", "no"]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pl.DataFrame(visits).write_parquet(Path(folder, "visits.parquet"))
    ...     people = ParquetUsers.open(folder, user="who", label="came")
    ...     people.user_ids.tolist(), people.sizes.tolist(), people.read(0, 1).X.tolist()
    (['ann', 'bob'], [2, 1], [[31.0], [32.0]])
    """

    files: tuple[str, ...]
    user: str
    label: str
    feature_names: tuple[str, ...]
    classes: np.ndarray | None
    user_ids: np.ndarray
    sizes: np.ndarray
    encoder: TableEncoder | None = None

    @classmethod
    def open(cls, path: str | Path, *, user: str, label: str, task: Task = "auto", drop: Sequence[str] = ()) -> Self:
        """List the users of a file, or of all ``.parquet`` files of a folder.

        Parameters
        ----------
        path : str or Path
            A Parquet file, or a folder, which is searched recursively.
        user, label : str
            Columns with the user and with the label.
        task : {"auto", "classes", "numbers"}
            What the labels are; "auto": numbers if the column has more than 20 different ones, else classes.
        drop : sequence of str
            Columns to leave out.
        """
        import polars as pl

        files = _files(Path(path))
        table = pl.scan_parquet(list(files))
        try:
            schema = table.collect_schema()
            features = feature_columns(schema.names(), user, label, None, drop)
            counts = table.group_by(user).len("rows").collect(engine="streaming").sort(user)
            labels = table.select(pl.col(label).unique()).collect(engine="streaming")
        except pl.exceptions.PolarsError as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"{path}: not readable Parquet files of the same columns ({reason})") from error
        found = np.unique(as_values(labels[label], label))
        if found.size < 2:
            raise ValueError(f"{path}: column {label!r} must hold two values or more, got {shorten(found)} only")
        classes = found if kind_of(found, task, label) == "classes" else None
        ids = as_values(counts[user], user)
        users = cls(files, user, label, tuple(features), classes, ids, counts["rows"].to_numpy().astype(np.int64))
        if all(schema[name].is_numeric() or schema[name] == pl.Boolean for name in features):
            return users
        frame = users._frame(pl.col(user).is_in(users._spread(SAMPLED_USERS).tolist()))
        encoder = TableEncoder.fit(frame.select(features))
        return replace(users, encoder=encoder, feature_names=encoder.feature_names)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns to learn from."""
        return self.feature_names if self.encoder is None else self.encoder.inputs

    @property
    def name(self) -> str:
        """Fingerprint of the files: a hash of their names, sizes and footers."""
        digest = hashlib.sha256()
        for file in map(Path, self.files):
            with file.open("rb") as content:
                size = content.seek(0, 2)
                content.seek(max(0, size - FOOTER))
                digest.update(f"{file.name} {size} ".encode() + content.read())
        return digest.hexdigest()[:16]

    def read(self, first: int, last: int) -> Population:
        """The users at positions first..last-1."""
        import polars as pl

        low, high = self.user_ids[first].item(), self.user_ids[last - 1].item()
        return self._read(pl.col(self.user).is_between(pl.lit(low), pl.lit(high)), self.user_ids[first:last])

    def sample(self, most: int) -> Population:
        """At most `most` users, spread evenly over all."""
        import polars as pl

        chosen = self._spread(most)
        return self._read(pl.col(self.user).is_in(chosen.tolist()), chosen)

    def labels(self) -> Population:
        """The labels of all users, without features: a few bytes per row."""
        import polars as pl

        frame = pl.scan_parquet(list(self.files)).select(self.label, self.user).collect()
        people = self._population(np.zeros((frame.height, 1)), frame, self.user_ids, ("none",))
        return replace(people, X=people.X[:, :0], feature_names=())

    def summary_of(self, number: int) -> FeatureSummary:
        """Summary of the features in one file."""
        return FeatureSummary.of_all(
            FeatureSummary.of(self._features(block)) for block in self._blocks(self.files[number])
        )

    def _blocks(self, file: str) -> Iterator[polars.DataFrame]:
        import polars as pl

        table = pl.scan_parquet(file).select(self.inputs)
        rows = int(pl.scan_parquet(file).select(pl.len()).collect().item())
        for start in range(0, rows, BLOCK):
            yield table.slice(start, BLOCK).collect()

    def _read(self, wanted: Any, ids: np.ndarray) -> Population:
        frame = self._frame(wanted)
        return self._population(self._features(frame.select(self.inputs)), frame, ids, self.feature_names)

    def _population(self, X: Any, frame: polars.DataFrame, ids: np.ndarray, names: tuple[str, ...]) -> Population:
        kind: Any = {"task": "numbers"} if self.classes is None else {"classes": self.classes}
        targets, owners = frame[self.label], frame[self.user]
        return Population.from_arrays(X, targets, owners, user_ids=ids, feature_names=names, **kind)

    def _frame(self, wanted: Any) -> polars.DataFrame:
        import polars as pl

        columns = [*self.inputs, self.label, self.user]
        return pl.scan_parquet(list(self.files)).filter(wanted).select(columns).collect()

    def _features(self, frame: polars.DataFrame) -> Any:
        return frame if self.encoder is None else self.encoder.transform(frame)

    def _spread(self, most: int) -> np.ndarray:
        """Ids of at most `most` users, spread evenly over all."""
        return self.user_ids[np.unique(np.linspace(0, self.n_users - 1, min(most, self.n_users)).astype(np.intp))]


def _files(path: Path) -> tuple[str, ...]:
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    absent = [str(file) for file in files if not file.is_file()]
    if absent or not files:
        raise FileNotFoundError(f"{path}: there is no such file" if absent else f"{path}: no .parquet file in there")
    return tuple(str(file.resolve()) for file in files)
