"""How right models are about held-out rows, and when one is clearly better than another."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dada.estimators.rows import Floats, Rows


class Judged(NamedTuple):
    """Rows, one by one, by both measures of `Rows`.

    Between kinds of models only `right` tells which is better: some are bolder than others, and `log_score` would take
    that for knowledge or for folly. Within one kind it tells more, since it is no matter of yes or no.
    """

    right: NDArray[np.float32]
    log_score: NDArray[np.float32]

    @classmethod
    def none_yet(cls, n_rows: int) -> Self:
        """What to add to."""
        return cls(*np.zeros((2, n_rows), np.float32))

    @classmethod
    def of(cls, rows: Rows, values: Floats) -> Self:
        """Decision values of rows."""
        return cls(rows.right(values).astype(np.float32), rows.log_score(values).astype(np.float32))

    def add(self, places: NDArray[np.intp], found: Judged, share: float = 1.0) -> None:
        """Add what was found about the rows at these places."""
        for mine, theirs in zip(self, found, strict=True):
            mine[places] += np.float32(share) * theirs

    @property
    def likelihood(self) -> float:
        """Sum of the log scores."""
        return float(self.log_score.sum(dtype=np.float64))


def share_right(rows: Rows, judged: Judged) -> float:
    """Share of right rows, or minus the squared error: the mean over users who had rows to hold out."""
    sizes = rows.people.sizes
    return float((rows.per_user(judged.right) / sizes)[sizes > 1].mean())


def is_ahead(rows: Rows, one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Whether the first measure of rows is above the second beyond chance; users with a single row have no say."""
    return is_clear(rows.per_user(one - other)[rows.people.sizes > 1])


def is_clear(gains: NDArray[np.float64]) -> bool:
    """Whether the sum of users' gains is above its standard error.

    >>> is_clear(np.array([3.0, 2.0, -1.0])), is_clear(np.array([3.0, -2.0, 0.0]))
    (True, False)
    """
    return bool(gains.sum() > gains.std() * np.sqrt(gains.size))
