"""The rows of a table that a command was given, and what is to be predicted of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dada import Population

# A column of more different numbers than this is taken for numbers rather than classes.
MOST_CLASSES = 20


@dataclass(frozen=True, eq=False)
class Given:
    """The rows of a table, grouped by user, and what is to be predicted of them."""

    people: Population
    targets: Any
    are_numbers: bool

    @classmethod
    def read(cls, file: Path, *, task: str, user: str, label: str, drop: tuple[str, ...]) -> Given:
        """Read a CSV or Parquet file."""
        import polars as pl

        from dada.data import population_from_table, read_table

        frame = read_table(file)
        if label not in frame.columns or frame[label].null_count() or frame[label].n_unique() == 2:
            people = population_from_table(frame, user=user, label=label, drop=drop)
            return cls(people, people.classes[(people.y > 0).astype(np.intp)], are_numbers=False)
        is_numeric = frame[label].dtype.is_numeric()
        if task == "numbers" and not is_numeric:
            raise ValueError(f"column {label!r} must hold numbers to be predicted as such, got {frame[label].dtype}")
        are_numbers = task == "numbers" or (task == "auto" and is_numeric and frame[label].n_unique() > MOST_CLASSES)
        # A population is of two classes: its labels stand for nothing here, and the targets go beside it.
        blank = frame.with_columns(pl.Series(label, np.arange(frame.height) % 2))
        people = population_from_table(blank, user=user, label=label, drop=drop)
        owners = np.unique(frame[user].to_numpy(), return_inverse=True)[1]
        return cls(people, frame[label].to_numpy()[np.argsort(owners, kind="stable")], are_numbers)

    @property
    def n_users(self) -> int:
        """Number of users."""
        return self.people.n_users

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.people.n_rows

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.people.n_features

    @property
    def users(self) -> Any:
        """Whose each row is."""
        return self.people.user_ids.repeat(self.people.sizes)

    def features(self, rows: Any = slice(None)) -> Any:
        """Some rows, with the names of the columns."""
        import polars as pl

        return pl.DataFrame(self.people.X[rows], schema=list(self.people.feature_names))
