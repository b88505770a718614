"""Mergeable summaries of features: all that base predictors need, without rows.

Thresholds of stumps and scales of linear predictors are the same for all users, so users must agree on them. Each user
summarises its own rows; summaries merge in any order, as gossip requires. A summary has count, mean, sum of squares,
smallest and largest value and at most `MOST` weighted values per feature.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dada.data.arrays import as_features

# A sketch of more than MOST points is cut to SIZE; cutting rarely limits the accumulated error.
SIZE, MOST = 512, 2048
# Rows summarised at a time, at least, if all rows are in memory.
CHUNK = 1 << 16
Points = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class FeatureSummary:
    """Moments, range and a sketch of the distribution of every feature.

    Attributes
    ----------
    count : int
        Rows summarised.
    mean, squares : arrays of shape (D,)
        Mean, and sum of squared distances from it.
    low, high : arrays of shape (D,)
        Smallest and largest value.
    points : tuple of D pairs of arrays
        Ascending values of a feature and the number of rows that each represents. Up to 2048 different values are kept
        as they are, more are cut into 512 equal parts.
    is_exact : bool
        Whether the values of all features were kept as they are.

    Examples
    --------
    >>> ann, bob = FeatureSummary.of([[1.0], [3.0]]), FeatureSummary.of([[5.0]])
    >>> both = ann.merged(bob)
    >>> both.count, both.mean.tolist(), both.std.round(3).tolist()
    (3, [3.0], [1.633])
    """

    count: int
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    points: tuple[Points, ...]
    is_exact: bool = True

    @classmethod
    def of(cls, X: Any) -> FeatureSummary:
        """The summary of one user's rows."""
        rows, _ = as_features(X)
        mean = rows.mean(axis=0)
        whole = [np.unique(column, return_counts=True) for column in rows.T]
        low, high = np.array([values[[0, -1]] for values, _ in whole]).T
        points = tuple(_shortened(values, counts.astype(np.float64)) for values, counts in whole)
        squares = ((rows - mean) ** 2).sum(axis=0)
        return cls(len(rows), mean, squares, low, high, points, max(len(values) for values, _ in whole) <= MOST)

    @classmethod
    def of_all(cls, summaries: Iterable[FeatureSummary]) -> FeatureSummary:
        """Many summaries merged into one."""
        return reduce(FeatureSummary.merged, summaries)

    @classmethod
    def of_users(cls, X: Any, row_start: np.ndarray, chunk: int = CHUNK) -> FeatureSummary:
        """The merged summaries of users whose rows are in memory, grouped by user.

        Many small users are summarised at a time. While no feature has more than 2048 values, that is the same as
        merging them one by one, to the last bit but for the mean and the squares.

        Examples
        --------
        >>> FeatureSummary.of_users(np.array([[1.0], [3.0], [5.0]]), np.array([0, 2, 3])).count
        3
        """
        return cls.of_all(cls.of(X[first:last]) for first, last in _chunks(row_start, chunk))

    def merged(self, other: FeatureSummary) -> FeatureSummary:
        """The summary of both users' rows."""
        if len(self.points) != len(other.points):
            raise ValueError(
                f"summaries must be of the same features, got {len(self.points)} and {len(other.points)} of them"
            )
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        squares = self.squares + other.squares + apart**2 * (self.count * other.count / count)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        whole = [_merged(*pair) for pair in zip(self.points, other.points, strict=True)]
        is_exact = self.is_exact and other.is_exact and max(len(values) for values, _ in whole) <= MOST
        points = tuple(_shortened(*own) for own in whole)
        return FeatureSummary(count, mean, squares, low, high, points, is_exact)

    def coarse(self, most: int) -> FeatureSummary:
        """The summary with at most `most` values per feature, and the range of these values.

        Each remaining value represents the same number of rows, so that rare values disappear.

        Examples
        --------
        >>> FeatureSummary.of(np.arange(100.0)[:, None]).coarse(2).points[0][0].tolist()
        [24.0, 74.0]
        """
        points = tuple(_cut(*own, most) for own in self.points)
        low, high = np.array([values[[0, -1]] for values, _ in points]).T
        return FeatureSummary(self.count, self.mean, self.squares, low, high, points, is_exact=False)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of every feature."""
        return np.sqrt(self.squares / self.count)

    @property
    def n_features(self) -> int:
        """Number of features, D."""
        return len(self.points)

    def rows(self, n: int = SIZE) -> np.ndarray:
        """Rows whose columns have the distribution of the features, for recipes that need rows.

        What stands side by side in a row means nothing: a recipe may look at one feature at a time only. Stumps, linear
        and constant predictors and random waves need no rows: see their `fit_summary`.

        Examples
        --------
        >>> from dada.data import Stumps
        >>> summary = FeatureSummary.of(np.arange(100.0)[:, None])
        >>> Stumps(n=1).fit(summary.rows()).threshold.round().tolist()
        [50.0]
        """
        quantiles = (np.arange(n) + 0.5) / n
        columns = [_quantiles(values, weights, quantiles) for values, weights in self.points]
        # Each column is permuted independently, or stumps on different features would look like duplicates.
        return np.column_stack([np.random.default_rng(d).permutation(column) for d, column in enumerate(columns)])


def _chunks(row_start: np.ndarray, chunk: int) -> Iterator[tuple[int, int]]:
    """First and last row of groups of users with at least `chunk` rows each, but for the last group."""
    first, end = 0, int(row_start[-1])
    while first < end:
        last = int(row_start[min(int(np.searchsorted(row_start, first + chunk)), len(row_start) - 1)])
        yield first, last
        first = last


def _merged(first: Points, second: Points) -> Points:
    values = np.concatenate([first[0], second[0]])
    different, place = np.unique(values, return_inverse=True)
    return different, np.bincount(place, weights=np.concatenate([first[1], second[1]]))


def _shortened(values: np.ndarray, weights: np.ndarray) -> Points:
    """The points, or the medians of `SIZE` equal parts if there are too many."""
    return (values, weights) if len(values) <= MOST else _cut(values, weights, SIZE)


def _cut(values: np.ndarray, weights: np.ndarray, parts: int) -> Points:
    """The medians of equal parts."""
    quantiles = (np.arange(parts) + 0.5) / parts
    kept, counts = np.unique(_quantiles(values, weights, quantiles), return_counts=True)
    return kept, counts * (weights.sum() / parts)


def _quantiles(values: np.ndarray, weights: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """The values below which these parts of the weight lie."""
    below = np.cumsum(weights)
    # Rounding must not put the last quantile beyond the last value.
    return values[np.minimum(np.searchsorted(below, quantiles * below[-1]), len(values) - 1)]
