"""Decision stumps: +1 up to a threshold of one feature, -1 above."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dada.data.arrays import as_features
from dada.data.predictors.families import INT8, FittedFamily, check_coupling, check_rows, feature_name
from dada.data.summaries import FeatureSummary

ThresholdRule = Literal["quantile", "feature-range", "global-range"]
RULES = ("quantile", "feature-range", "global-range")


@dataclass(frozen=True)
class Stumps:
    """Decision stumps spread evenly over the features.

    Parameters
    ----------
    n : int, optional
        Number of stumps, spread over the features as evenly as possible; the first features get one more. By default
        `per_feature` for every feature.
    per_feature : int
        Stumps per feature when `n` is not given.
    rule : {"quantile", "feature-range", "global-range"}
        Where the T thresholds of a feature lie. ``"quantile"``: at its quantiles (t + 1) / (T + 1), between two data
        values. ``"feature-range"``: at lo + (t + 1) (hi - lo) / T of its own range, so the last stump is always +1.
        ``"global-range"``: the same with one range over all features, as the authors of the method did.
    drop_duplicates : bool
        Leave out stumps that predict the same as an earlier one, or the exact opposite, on every fitting row.
    coupling : float
        Coupling omega of the stumps' weights to the neighbours' weights.

    Examples
    --------
    >>> stumps = Stumps(n=3, rule="quantile").fit(np.array([[0.0, 5.0], [1.0, 7.0], [2.0, 9.0]]))
    >>> [stumps.describe(j) for j in range(stumps.n)]
    ['x0 <= 0.5', 'x0 <= 1.5', 'x1 <= 6']
    >>> stumps.predict(np.array([[1.0, 9.0]]))
    array([[-1,  1, -1]], dtype=int8)
    """

    n: int | None = None
    per_feature: int = 10
    rule: ThresholdRule = "quantile"
    drop_duplicates: bool = False
    coupling: float = 1.0

    def __post_init__(self) -> None:
        check_coupling(self.coupling)
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        if self.n is not None and self.n < 1:
            raise ValueError(f"n must be at least 1 (stumps in all), got {self.n}")
        if self.per_feature < 1:
            raise ValueError(f"per_feature must be at least 1, got {self.per_feature}")

    def fit(self, X: Any) -> FittedStumps:
        """Place the thresholds on the rows of X."""
        rows, _ = as_features(X)
        low, high = rows.min(axis=0), rows.max(axis=0)
        points = (np.unique(column, return_counts=True) for column in rows.T)
        rng = np.random.default_rng(len(rows))
        return self._placed(len(rows), low, high, points, lambda stumps: stumps.marks(rows, rng))

    def fit_summary(self, summary: FeatureSummary, marks: Callable[[FittedStumps], np.ndarray]) -> FittedStumps:
        """Place the thresholds by users' merged summaries: as `fit` to all rows does, if the summary is exact.

        With ``drop_duplicates=True``, `marks` must return the sum of all users' `FittedStumps.marks`, which identifies
        duplicate stumps.

        Examples
        --------
        >>> ann, bob = np.array([[0.0], [1.0]]), np.array([[2.0]])
        >>> summary = FeatureSummary.of(ann).merged(FeatureSummary.of(bob))
        >>> Stumps(n=2).fit_summary(summary, marks=lambda stumps: np.zeros(0)).threshold.tolist()
        [0.5, 1.5]
        """
        return self._placed(summary.count, summary.low, summary.high, summary.points, marks)

    def _placed(
        self,
        n_rows: int,
        low: np.ndarray,
        high: np.ndarray,
        points: Iterable[tuple[np.ndarray, np.ndarray]],
        marks: Callable[[FittedStumps], np.ndarray],
    ) -> FittedStumps:
        """Stumps on features with these ranges and points."""
        D, counts = len(low), self._counts(len(low))
        if self.rule == "quantile":
            thresholds = [_quantile_cuts(*own, T) for own, T in zip(points, counts, strict=True) if T]
        else:
            lows, highs = (low, high) if self.rule == "feature-range" else ([low.min()] * D, [high.max()] * D)
            thresholds = [np.linspace(lows[d], highs[d], T + 1)[1:] for d, T in enumerate(counts) if T]
        feature = np.repeat(np.arange(D, dtype=np.int32), counts)
        threshold = np.concatenate(thresholds)
        if not np.any((low[feature] <= threshold) & (threshold < high[feature])):
            raise ValueError(
                f"none of the {len(threshold)} stumps separates two of the {n_rows} rows: features are "
                f"constant, or have too few thresholds each for rule {self.rule!r}. "
                "Give features that vary, or a larger n"
            )
        coupling = np.full(len(threshold), float(self.coupling))
        fitted = FittedStumps(feature, threshold, n_features=D, coupling=coupling)
        return fitted.without_repeats(marks(fitted)) if self.drop_duplicates else fitted

    def _counts(self, n_features: int) -> list[int]:
        if self.n is None:
            return [self.per_feature] * n_features
        each, rest = divmod(self.n, n_features)
        return [each + (d < rest) for d in range(n_features)]


@dataclass(frozen=True, eq=False)
class FittedStumps(FittedFamily):
    """Stumps with their thresholds: predictor j is +1 where ``x[feature[j]] <= threshold[j]``, else -1."""

    kind = "stumps"
    shapes = (("feature", "n"), ("threshold", "n"))
    dtype = INT8

    feature: np.ndarray
    threshold: np.ndarray

    def _predict(self, rows: np.ndarray, out: np.ndarray) -> None:
        below = np.take(rows, self.feature, axis=1) <= self.threshold
        np.multiply(below.view(np.int8), 2, out=out)
        out -= 1

    def marks(self, X: Any, rng: np.random.Generator) -> np.ndarray:
        """Additive fingerprint of each stump's predictions, which identifies duplicates without access to rows.

        Each row draws random bits; the mark of a stump is their sum with the signs of its predictions, modulo 2**64.
        Stumps that agree on all rows of all users have equal sums of marks, and opposite stumps have negated sums.
        """
        rows = check_rows(X, self.n_features)
        bits = rng.integers(2**63, size=len(rows), dtype=np.uint64)
        below = np.empty(self.n, np.uint64)
        for d in np.unique(self.feature):
            column = np.ascontiguousarray(rows[:, d])
            for j in np.flatnonzero(self.feature == d):
                below[j] = (bits * (column <= self.threshold[j])).sum(dtype=np.uint64)
        return below + below - bits[:, None].sum(axis=0, dtype=np.uint64)

    def without_repeats(self, marks: np.ndarray) -> FittedStumps:
        """The stumps that neither duplicate nor negate an earlier one, by the sum of all users' marks."""
        # A stump and its opposite get one key.
        _, first = np.unique(np.minimum(marks, -marks), return_index=True)
        return self.take(np.sort(first))

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe the test of stump j, as in ``"age <= 30"``."""
        return f"{feature_name(int(self.feature[j]), feature_names)} <= {self.threshold[j]:.6g}"


def _quantile_cuts(values: np.ndarray, counts: np.ndarray, T: int) -> np.ndarray:
    """Thresholds nearest to the T interior quantiles that fall between two distinct values, given ascending."""
    if len(values) == 1:
        return np.full(T, values[0])
    gaps = np.cumsum(counts)
    wanted = np.arange(1, T + 1) * gaps[-1] / (T + 1)
    gaps = gaps[:-1]
    right = np.clip(np.searchsorted(gaps, wanted), 1, max(1, len(gaps) - 1))
    left, right = right - 1, np.minimum(right, len(gaps) - 1)
    cut = np.where(wanted - gaps[left] <= gaps[right] - wanted, left, right)
    below, above = values[cut], values[cut + 1]
    middle = below / 2 + above / 2
    # Between neighbouring floats there is no middle; the lower value still separates the two.
    return np.where((middle >= below) & (middle < above), middle, below)
