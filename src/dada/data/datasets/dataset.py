"""A real dataset in memory: rows of many users, and the ways to split them into training and test data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dada.data.arrays import shorten
from dada.data.population import Population

# The column with the split of the published results; None: a random fifth of each user's rows.
PAPER_SPLIT: Mapping[str, str | None] = {
    "harws": "split20",
    "vehicle": None,
    "vehicle_partial": "split50",
    "computer": "paper_split",
    "school": "split1",
}
PAPER_TRAIN_FRACTION = 0.2
SPLIT_COLUMN = re.compile(r"split\d+|paper_split")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled rows of many users, with the splits and further columns that came with them.

    Attributes
    ----------
    name : str
        Name of the dataset, such as ``"school"``.
    X : (R, D) float32 array
        Features, unscaled, in the order of the rows of the file.
    y : (R,) int8 array
        Labels, -1 or +1.
    users : (R,) int16 array
        The user each row belongs to.
    feature_names : tuple of str
        One name per column of X; publishers may use a name twice.
    extras : mapping of str to (R,) array
        Columns that are not features: splits, the score or activity behind the label, ...
    about : mapping
        Metadata of the file: title, and the meaning of the label and of the extra columns.

    Examples
    --------
    >>> rows = Dataset(
    ...     name="school",
    ...     X=np.array([[0], [1], [1], [0]], dtype=np.float32),
    ...     y=np.array([-1, 1, 1, -1], dtype=np.int8),
    ...     users=np.array([0, 0, 1, 1], dtype=np.int16),
    ...     feature_names=("gender",),
    ...     extras={"split1": np.array([0, 1, 1, 0], dtype=np.int8)},
    ...     about={},
    ... )
    >>> train, test = rows.split()
    >>> train.y.tolist(), test.y.tolist()
    ([-1, -1], [1, 1])
    """

    name: str
    X: np.ndarray
    y: np.ndarray
    users: np.ndarray
    feature_names: tuple[str, ...]
    extras: Mapping[str, np.ndarray]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_users(self) -> int:
        """Number of users, K."""
        return len(np.unique(self.users))

    @property
    def splits(self) -> tuple[str, ...]:
        """Names that :meth:`split` takes."""
        return ("paper", *(column for column in self.extras if SPLIT_COLUMN.fullmatch(column)))

    def population(self) -> Population:
        """All rows, grouped by user."""
        return self._population(np.ones(len(self.y), dtype=bool))

    def split(
        self, which: str = "paper", rng: np.random.Generator | int | None = None
    ) -> tuple[Population, Population]:
        """Training and test data of every user, by a split that is part of the dataset.

        Parameters
        ----------
        which : str
            One of `splits`. ``"paper"`` is the split of the published results; Vehicle Sensor has none on
            record, so a fifth of each sensor's rows is drawn from `rng`.
        rng : Generator or int, optional
            Needed where rows are drawn, and only there.

        Returns
        -------
        train, test : Population
        """
        if which not in self.splits:
            raise ValueError(f"split must be one of {', '.join(self.splits)} for {self.name}, got {which!r}")
        column = PAPER_SPLIT[self.name] if which == "paper" else which
        if column is not None:
            return self._parts(self.extras[column] == 0)
        if rng is None:
            raise ValueError(f"{self.name} has no published split: give rng, from which a random fifth is drawn")
        return self.random_split(rng, PAPER_TRAIN_FRACTION)

    def random_split(self, rng: np.random.Generator | int, train_fraction: float) -> tuple[Population, Population]:
        """Draw a fraction of each user's rows for training and leave the rest for testing.

        Parameters
        ----------
        rng : Generator or int
            Random generator, or a seed.
        train_fraction : float
            Between 0 and 1. Rounded to whole rows of each user, who keeps at least one row on each side.

        Returns
        -------
        train, test : Population

        Examples
        --------
        >>> rows = Dataset("vehicle", np.ones((6, 1)), np.ones(6), np.repeat([3, 8], 3), ("x",), {}, {})
        >>> train, test = rows.random_split(np.random.default_rng(0), 0.5)
        >>> train.sizes.tolist(), test.sizes.tolist()
        ([2, 2], [1, 1])
        """
        if not 0 < train_fraction < 1:
            raise ValueError(f"train_fraction must be between 0 and 1, both excluded, got {train_fraction}")
        rng = np.random.default_rng(rng)
        users, sizes = np.unique(self.users, return_counts=True)
        if sizes.min() < 2:
            raise ValueError(
                f"{int((sizes < 2).sum())} users have one row only, which cannot be on both sides of a split: "
                f"{shorten(users[sizes < 2])}. Leave these users out"
            )
        in_train = np.zeros(len(self.y), dtype=bool)
        for k, m in zip(users, sizes, strict=True):
            n_train = min(max(round(train_fraction * m), 1), m - 1)
            in_train[rng.choice(np.flatnonzero(self.users == k), n_train, replace=False)] = True
        return self._parts(in_train)

    def sha256(self) -> str:
        """Digest of every column, the same however the rows are stored in a file."""
        digest = hashlib.sha256()
        for name, values in {"user": self.users, "features": self.X, "label": self.y, **self.extras}.items():
            little_endian = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
            digest.update(f"{name} {little_endian.dtype.str} {values.shape}\n".encode())
            digest.update(little_endian.tobytes())
        return digest.hexdigest()

    def _parts(self, in_train: np.ndarray) -> tuple[Population, Population]:
        return self._population(in_train), self._population(~in_train)

    def _population(self, chosen: np.ndarray) -> Population:
        return Population.from_arrays(
            self.X[chosen],
            self.y[chosen],
            self.users[chosen],
            feature_names=self.feature_names,
            classes=(-1, 1),
            user_ids=self.users,
        )
