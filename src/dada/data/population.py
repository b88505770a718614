"""Many users, each with a few labelled rows: the data every part of the package works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dada.data.arrays import as_features, as_values, shorten

__all__ = ["Population"]


@dataclass(frozen=True, eq=False)
class Population:
    """Labelled rows grouped by the user they belong to.

    Build one with :meth:`from_arrays`, which checks everything; the constructor checks nothing.

    Attributes
    ----------
    X : (R, D) float64 array
        Features, rows grouped by user in the order of `user_ids`, in the caller's order within a user.
    y : (R,) int8 array
        Labels, -1 for ``classes[0]`` and +1 for ``classes[1]``.
    row_start : (K + 1,) int64 array
        The rows of user k are ``row_start[k]:row_start[k + 1]``; every user has at least one.
    user_ids : (K,) array
        The caller's user ids, sorted, each once.
    classes : (2,) array
        The caller's two labels.
    feature_names : tuple of str
        One name per column of X.

    Examples
    --------
    >>> people = Population.from_arrays([[0.1], [0.2], [0.9]], ["no", "yes", "no"], ["ann", "bob", "ann"])
    >>> people.user_ids.tolist(), people.sizes.tolist(), people.y.tolist()
    (['ann', 'bob'], [2, 1], [-1, -1, 1])
    """

    X: np.ndarray
    y: np.ndarray
    row_start: np.ndarray
    user_ids: np.ndarray
    classes: np.ndarray
    feature_names: tuple[str, ...]

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any,
        users: Any,
        *,
        feature_names: Sequence[str] | None = None,
        classes: Any = None,
        user_ids: Any = None,
    ) -> Self:
        """Group labelled rows by user, after checking all of the input.

        Parameters
        ----------
        X : array, pandas or polars frame, or scipy.sparse matrix of shape (R, D)
            Finite numbers. A sparse matrix is made dense: it must fit in memory at 8 bytes per cell. An array
            that is already float64, C-contiguous and grouped by user is used as it is, without a copy.
        y : array of shape (R,)
            Labels with two distinct values: strings, numbers or booleans.
        users : array of shape (R,)
            Which user each row belongs to: strings, numbers or dates.
        feature_names : sequence of str, optional
            Names of the columns; taken from a frame, else ``x0, x1, ...``.
        classes : pair of labels, optional
            The labels that mean -1 and +1. By default the two found in `y`, sorted. With `classes` given,
            rows of a single class are accepted, as a small test set may hold.
        user_ids : array, optional
            The users expected. A user without a row, or a row of another user, is then an error.

        Returns
        -------
        Population

        Examples
        --------
        >>> Population.from_arrays([[1.0], [2.0]], [True, False], [7, 7]).confidence.tolist()
        [1.0]
        """
        features, names = as_features(X, feature_names)
        labels, owners = as_values(y, "y"), as_values(users, "users")
        if not len(features) == len(labels) == len(owners):
            raise ValueError(
                "X, y and users must have one entry per row, "
                f"got {len(features)} rows in X, {len(labels)} in y and {len(owners)} in users"
            )
        signs, pair = _signs(labels, classes)
        ids, codes = np.unique(owners, return_inverse=True)
        if user_ids is not None:
            _refuse_other_users(ids, np.unique(as_values(user_ids, "user_ids")))
        row_start = np.concatenate(([0], np.cumsum(np.bincount(codes)))).astype(np.int64)
        if np.any(codes[1:] < codes[:-1]):
            order = np.argsort(codes, kind="stable")
            features, signs = features[order], signs[order]
        return cls(features, signs, row_start, ids, pair, names)

    @property
    def n_users(self) -> int:
        """Number of users, K."""
        return len(self.user_ids)

    @property
    def n_features(self) -> int:
        """Number of features, D."""
        return int(self.X.shape[1])

    @property
    def n_rows(self) -> int:
        """Number of rows of all users together, R."""
        return int(self.X.shape[0])

    @property
    def sizes(self) -> np.ndarray:
        """Number of rows of each user, m_k."""
        return np.diff(self.row_start)

    @property
    def confidence(self) -> np.ndarray:
        """Confidence of each user, c_k = m_k / max_l m_l."""
        return self.sizes / self.sizes.max()

    def user_rows(self, k: int) -> slice:
        """Rows of X and y that belong to the user at position k."""
        if not 0 <= k < self.n_users:
            raise IndexError(f"k must be in 0..{self.n_users - 1} (n_users - 1), got {k}")
        return slice(int(self.row_start[k]), int(self.row_start[k + 1]))

    def index_of(self, users: Any) -> np.ndarray:
        """Positions of users, given by their ids.

        Examples
        --------
        >>> people = Population.from_arrays([[0.1], [0.2]], [0, 1], ["ann", "bob"])
        >>> people.index_of(["bob", "ann", "bob"]).tolist()
        [1, 0, 1]
        """
        wanted = as_values([users] if np.ndim(users) == 0 else users, "users")
        if wanted.size == 0:
            return np.empty(0, dtype=np.int64)
        if not _comparable(self.user_ids, wanted):
            raise _unknown_users(np.unique(wanted), self.user_ids)
        position = np.searchsorted(self.user_ids, wanted)
        known = self.user_ids[np.minimum(position, self.n_users - 1)] == wanted
        if not np.all(known):
            raise _unknown_users(np.unique(wanted[~known]), self.user_ids)
        return position.astype(np.int64)

    def pooled(self) -> Population:
        """All rows as the data of one user, named ``"all"``."""
        whole = np.array([0, self.n_rows], dtype=np.int64)
        return Population(self.X, self.y, whole, np.array(["all"]), self.classes, self.feature_names)

    def select(self, users_positions: Any) -> Population:
        """Only the users at these positions, which must increase so that users stay sorted.

        Examples
        --------
        >>> people = Population.from_arrays([[0.1], [0.2], [0.3]], [0, 1, 1], ["ann", "bob", "eve"])
        >>> people.select([0, 2]).user_ids.tolist()
        ['ann', 'eve']
        """
        positions = np.asarray(users_positions)
        integers = positions.ndim == 1 and positions.size > 0 and positions.dtype.kind in "iu"
        increasing = integers and bool(np.all(np.diff(positions) > 0))
        if not increasing or positions[0] < 0 or positions[-1] >= self.n_users:
            raise ValueError(
                f"users_positions must be increasing integers in 0..{self.n_users - 1} (n_users - 1), "
                f"got {shorten(np.atleast_1d(positions))}"
            )
        chosen = np.zeros(self.n_users, dtype=bool)
        chosen[positions] = True
        rows = np.repeat(chosen, self.sizes)
        row_start = np.concatenate(([0], np.cumsum(self.sizes[positions]))).astype(np.int64)
        return Population(
            self.X[rows], self.y[rows], row_start, self.user_ids[positions], self.classes, self.feature_names
        )


def _signs(labels: np.ndarray, classes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Map two labels to -1 and +1, and return the pair of labels."""
    found = np.unique(labels)
    if classes is not None:
        pair = as_values(classes, "classes")
        if len(pair) != 2 or pair[0] == pair[1]:
            raise ValueError(f"classes must be two different labels, got {shorten(pair)}")
        outside = found[~np.isin(found, pair)] if _comparable(pair, found) else found
        if len(outside):
            raise ValueError(f"y has labels that are not in classes ({shorten(pair)}): {shorten(outside)}")
    elif len(found) == 1:
        raise ValueError(
            f"y holds one class only, {shorten(found)}, in all {len(labels)} rows: "
            "learning needs two. A single user may have one class, all users together may not"
        )
    elif len(found) > 2:
        raise ValueError(
            f"y must have two classes (binary classification only), got {len(found)}: {shorten(found)}. "
            "Select two of them, or learn one class against the rest"
        )
    else:
        pair = found
    return np.where(labels == pair[1], 1, -1).astype(np.int8), pair


def _comparable(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether values of both arrays can be equal; numpy would compare 1 with "1" as text."""
    families = {"b": "number", "i": "number", "u": "number", "f": "number", "U": "text"}
    return families.get(a.dtype.kind, a.dtype.kind) == families.get(b.dtype.kind, b.dtype.kind)


def _unknown_users(unknown: np.ndarray, known: np.ndarray) -> ValueError:
    return ValueError(
        f"{len(unknown)} users have no data here: {shorten(unknown)} (type {unknown.dtype}). "
        f"Known are {len(known)} users such as {shorten(known, 3)} (type {known.dtype}). "
        "Give each of them at least one training row, or leave these users out"
    )


def _refuse_other_users(found: np.ndarray, expected: np.ndarray) -> None:
    comparable = _comparable(found, expected)
    empty = expected[~np.isin(expected, found)] if comparable else expected
    if len(empty):
        raise ValueError(
            f"{len(empty)} users in user_ids have no row: {shorten(empty)}. "
            "Every user needs at least one row: add rows, or leave these users out of user_ids"
        )
    extra = found[~np.isin(found, expected)]
    if len(extra):
        raise ValueError(f"users holds {len(extra)} users that are not in user_ids: {shorten(extra)}")
