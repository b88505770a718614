"""Cross-validation folds that leave every user training rows."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import BaseCrossValidator

from dada.data.arrays import as_values
from dada.fitting.settings import generator


class PerUserKFold(BaseCrossValidator):
    """K-fold cross-validation inside every user's rows.

    The rows of each user are assigned to the folds in turn, so that its numbers of rows in any two folds differ by at
    most one. Each row of a user with two rows or more is tested once, and at least one row remains for training. The
    only row of a user is never tested. With labels, a user's rows are assigned label by label, so that all folds have a
    similar mix of labels.

    Parameters
    ----------
    n_splits : int
        Number of folds, at least 2.
    shuffle : bool
        Assign each user's rows in random order instead of the order given.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        Source of the random order; only used with `shuffle`.

    Examples
    --------
    >>> users = ["ann", "ann", "ann", "bob", "bob", "eve"]
    >>> for train, test in PerUserKFold(n_splits=2).split(users, users=users):
    ...     print(train, test)
    [1 3 5] [0 2 4]
    [0 2 4 5] [1 3]
    """

    # With scikit-learn's metadata routing, users (or groups) given to a search reach `split`.
    __metadata_request__split: ClassVar[dict[str, bool]] = {"users": True, "groups": True}

    def __init__(self, n_splits: int = 3, *, shuffle: bool = False, random_state: Any = None) -> None:
        self.n_splits = n_splits
        self.shuffle = shuffle
        self.random_state = random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None, *, users: Any = None) -> int:
        """Number of folds."""
        return int(self.n_splits)

    def split(
        self, X: Any, y: Any = None, groups: Any = None, *, users: Any = None
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Yield the training and the test rows of every fold.

        Parameters
        ----------
        X : array
            Not used.
        y : array of shape (rows,), optional
            Labels.
        groups, users : array of shape (rows,)
            The user of each row, under either name.
        """
        fold = self._folds(users if users is not None else groups, y)
        for i in range(self.n_splits):
            yield np.flatnonzero(fold != i), np.flatnonzero(fold == i)

    def _folds(self, users: Any, y: Any) -> NDArray[np.intp]:
        """The fold in which each row is tested, or -1."""
        if not isinstance(self.n_splits, Integral) or self.n_splits < 2:
            raise ValueError(f"n_splits must be an integer >= 2, got {self.n_splits!r}")
        if users is None:
            raise ValueError("PerUserKFold needs the user of each row: give users=, one entry per row")
        codes, counts = np.unique(as_values(users, "users"), return_inverse=True, return_counts=True)[1:]
        labels = np.zeros(codes.size) if y is None else np.unique(as_values(y, "y"), return_inverse=True)[1]
        if labels.size != codes.size:
            raise ValueError(f"y and users must have one entry per row, got {labels.size} and {codes.size}")
        turn = generator(self.random_state).random(codes.size) if self.shuffle else np.arange(codes.size)
        order = np.lexsort((turn, labels, codes))
        dealt = order[counts[codes[order]] > 1]
        if dealt.size < self.n_splits:
            raise ValueError(
                f"n_splits must be at most {dealt.size}, the number of rows of users with two rows or more, "
                f"got {self.n_splits}"
            )
        fold = np.full(codes.size, -1)
        fold[dealt] = np.arange(dealt.size) % self.n_splits
        return fold
