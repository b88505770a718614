"""Users in Parquet files that no process reads as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dada.data._inputs import as_values, shorten
from dada.data.population import Population
from dada.data.summaries import FeatureSummary
from dada.data.tables import feature_columns

if TYPE_CHECKING:
    import polars

__all__ = ["ParquetUsers"]

# Rows that are summarised at once, and bytes from the end of a file, where Parquet says what it holds.
BLOCK = 200_000
FOOTER = 1 << 16


@dataclass(frozen=True, eq=False)
class ParquetUsers:
    """Users whose rows lie in one or more Parquet files, read a range of users at a time.

    Files in which every user's rows lie together, in the order of users, are read quickest: of all others only the row
    groups that may hold a wanted user are looked at. Any order gives the same users.

    Attributes
    ----------
    files : tuple of str
        The files; whoever reads must find them under these names.
    user, label : str
        Columns with the user and with the label.
    feature_names : tuple of str
        Columns to learn from.
    classes : array of shape (2,)
        The two labels, sorted.
    user_ids, sizes : arrays of shape (n_users,)
        The users, sorted, and how many rows each has.

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
    classes: np.ndarray
    user_ids: np.ndarray
    sizes: np.ndarray

    @classmethod
    def open(cls, path: str | Path, *, user: str, label: str, drop: Sequence[str] = ()) -> Self:
        """Look through a file, or all ``.parquet`` files of a folder, for who is there.

        Parameters
        ----------
        path : str or Path
            A Parquet file, or a folder that holds some, also in folders of its own.
        user, label : str
            Columns with the user and with the label (two distinct values).
        drop : sequence of str
            Columns to leave out.
        """
        import polars as pl

        files = _files(Path(path))
        table = pl.scan_parquet(list(files))
        try:
            columns = table.collect_schema().names()
            features = feature_columns(columns, user, label, None, drop)
            counts = table.group_by(user).len("rows").collect(engine="streaming").sort(user)
            labels = table.select(pl.col(label).unique()).collect(engine="streaming")
        except pl.exceptions.PolarsError as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"{path}: not readable Parquet files of the same columns ({reason})") from error
        found = np.unique(as_values(labels[label], label))
        if found.size != 2:
            raise ValueError(f"{path}: column {label!r} must hold two values, got {found.size}: {shorten(found)}")
        ids = as_values(counts[user], user)
        return cls(files, user, label, tuple(features), found, ids, counts["rows"].to_numpy().astype(np.int64))

    @property
    def n_users(self) -> int:
        """Number of users, K."""
        return len(self.user_ids)

    @property
    def n_rows(self) -> int:
        """Number of rows of all users together, R."""
        return int(self.sizes.sum())

    @property
    def n_features(self) -> int:
        """Number of features, D."""
        return len(self.feature_names)

    @property
    def name(self) -> str:
        """Short name of what the files hold, from their names, sizes and tables of contents."""
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
        """At most so many users, spread evenly over all."""
        import polars as pl

        chosen = self.user_ids[np.unique(np.linspace(0, self.n_users - 1, min(most, self.n_users)).astype(np.intp))]
        return self._read(pl.col(self.user).is_in(chosen.tolist()), chosen)

    def summary_of(self, number: int) -> FeatureSummary:
        """The summary of the features in one of the files."""
        return FeatureSummary.of_all(FeatureSummary.of(block) for block in self._blocks(self.files[number]))

    def _blocks(self, file: str) -> Iterator[polars.DataFrame]:
        import polars as pl

        table = pl.scan_parquet(file).select(self.feature_names)
        rows = int(pl.scan_parquet(file).select(pl.len()).collect().item())
        for start in range(0, rows, BLOCK):
            yield table.slice(start, BLOCK).collect()

    def _read(self, wanted: Any, ids: np.ndarray) -> Population:
        import polars as pl

        columns = [*self.feature_names, self.label, self.user]
        frame = pl.scan_parquet(list(self.files)).filter(wanted).select(columns).collect()
        features = frame.select(self.feature_names)
        return Population.from_arrays(features, frame[self.label], frame[self.user], classes=self.classes, user_ids=ids)


def _files(path: Path) -> tuple[str, ...]:
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    absent = [str(file) for file in files if not file.is_file()]
    if absent or not files:
        raise FileNotFoundError(f"{path}: there is no such file" if absent else f"{path}: no .parquet file in there")
    return tuple(str(file.resolve()) for file in files)
