"""Cross-validation folds that leave every user something to learn from."""

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

    The rows of each user are dealt out to the folds in turn, so that a user's share of any two folds differs by one row
    at most, also where it has fewer rows than there are folds. A user with two rows or more is tested on each of them
    once and always keeps at least one for training. The row of a user who has no other is never tested. Where labels
    are given, a user's rows are dealt out label after label, so that all folds see much the same mix of labels.

    Parameters
    ----------
    n_splits : int
        Number of folds, at least 2.
    shuffle : bool
        Deal out each user's rows in random order rather than in the order given.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        Where the random order comes from. Only used with `shuffle`.

    Examples
    --------
    >>> users = ["ann", "ann", "ann", "bob", "bob", "eve"]
    >>> for train, test in PerUserKFold(n_splits=2).split(users, users=users):
    ...     print(train, test)
    [1 3 5] [0 2 4]
    [0 2 4 5] [1 3]
    """

    # With scikit-learn's metadata routing on, users (or groups) given to a search reach `split` unasked.
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
        """Give the training and the test rows of every fold.

        Parameters
        ----------
        X : array
            Not looked at.
        y : array of shape (rows,), optional
            Labels.
        groups, users : array of shape (rows,)
            Which user each row belongs to; give it under either name.
        """
        fold = self._folds(users if users is not None else groups, y)
        for i in range(self.n_splits):
            yield np.flatnonzero(fold != i), np.flatnonzero(fold == i)

    def _folds(self, users: Any, y: Any) -> NDArray[np.intp]:
        """The fold in which each row is tested, -1 for a row that never is."""
        if not isinstance(self.n_splits, Integral) or self.n_splits < 2:
            raise ValueError(f"n_splits must be an integer >= 2, got {self.n_splits!r}")
        if users is None:
            raise ValueError("PerUserKFold must know whose row each is: give users=, one entry per row")
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
