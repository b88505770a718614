"""Decision stumps: +1 up to a threshold of one feature, -1 above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from dada.data._inputs import as_features
from dada.data._predictor_base import (
    INT8,
    check_coupling,
    check_rows,
    feature_name,
    row_blocks,
    stored_array,
    stored_coupling,
    stored_feature,
    stored_n_features,
)

__all__ = ["FittedStumps", "Stumps", "ThresholdRule"]

ThresholdRule = Literal["quantile", "feature-range", "global-range"]
RULES = ("quantile", "feature-range", "global-range")


@dataclass(frozen=True)
class Stumps:
    """Decision stumps spread evenly over the features.

    Parameters
    ----------
    n : int, optional
        Stumps in all, spread over the features as evenly as possible; the first features get one more. By
        default `per_feature` for every feature.
    per_feature : int
        Stumps per feature when `n` is not given.
    rule : {"quantile", "feature-range", "global-range"}
        Where the T thresholds of a feature lie. ``"quantile"``: at its quantiles (t + 1) / (T + 1), between
        two data values. ``"feature-range"``: at lo + (t + 1) (hi - lo) / T of its own range, so the last
        stump is always +1. ``"global-range"``: the same with one range over all features, as the authors of
        the method did.
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
        counts = self._counts(rows.shape[1])
        thresholds = [self._thresholds(rows[:, d], low, high, d, T) for d, T in enumerate(counts) if T]
        feature = np.repeat(np.arange(rows.shape[1], dtype=np.int32), counts)
        threshold = np.concatenate(thresholds)
        if not np.any((low[feature] <= threshold) & (threshold < high[feature])):
            raise ValueError(
                f"none of the {len(threshold)} stumps tells two of the {len(rows)} rows apart: features are "
                f"constant, or have too few thresholds each for rule {self.rule!r}. "
                "Give features that vary, or a larger n"
            )
        if self.drop_duplicates:
            kept = _first_of_each(rows, feature, threshold)
            feature, threshold = feature[kept], threshold[kept]
        return FittedStumps(feature, threshold, rows.shape[1], np.full(len(threshold), float(self.coupling)))

    def _counts(self, n_features: int) -> list[int]:
        if self.n is None:
            return [self.per_feature] * n_features
        each, rest = divmod(self.n, n_features)
        return [each + (d < rest) for d in range(n_features)]

    def _thresholds(self, values: np.ndarray, low: np.ndarray, high: np.ndarray, d: int, T: int) -> np.ndarray:
        if self.rule == "quantile":
            return _quantile_cuts(values, T)
        lo, hi = (low[d], high[d]) if self.rule == "feature-range" else (low.min(), high.max())
        return np.linspace(lo, hi, T + 1)[1:]


@dataclass(frozen=True, eq=False)
class FittedStumps:
    """Stumps with their thresholds: predictor j is +1 where ``x[feature[j]] <= threshold[j]``, else -1."""

    feature: np.ndarray
    threshold: np.ndarray
    n_features: int
    coupling: np.ndarray

    @property
    def n(self) -> int:
        """Number of stumps."""
        return len(self.threshold)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the predictions, int8."""
        return INT8

    def predict(self, X: Any) -> np.ndarray:
        """Predictions of all stumps, int8 of shape (rows, n), each -1 or +1."""
        rows = check_rows(X, self.n_features)
        out = np.empty((len(rows), self.n), dtype=INT8)
        for block in row_blocks(len(rows), self.n):
            below = np.take(rows[block], self.feature, axis=1) <= self.threshold
            np.multiply(below.view(np.int8), 2, out=out[block])
            out[block] -= 1
        return out

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Say what stump j tests, as in ``"age <= 30"``."""
        return f"{feature_name(int(self.feature[j]), feature_names)} <= {self.threshold[j]:.6g}"

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-able description and the arrays that together rebuild this object."""
        arrays = {"feature": self.feature, "threshold": self.threshold, "coupling": self.coupling}
        return {"kind": "stumps", "n_features": self.n_features}, arrays

    @classmethod
    def from_arrays(cls, spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Rebuild the stumps from what :meth:`to_arrays` gave."""
        n_features = stored_n_features(spec)
        feature = stored_feature(arrays, n_features)
        threshold = stored_array(arrays, "threshold", np.float64, len(feature))
        return cls(feature, threshold, n_features, stored_coupling(arrays, len(feature)))


def _quantile_cuts(values: np.ndarray, T: int) -> np.ndarray:
    """Thresholds nearest to the T interior quantiles that fall between two distinct values."""
    ordered = np.sort(values).astype(np.float64)
    gaps = np.flatnonzero(ordered[1:] > ordered[:-1]) + 1
    if not len(gaps):
        return np.full(T, ordered[0])
    wanted = np.arange(1, T + 1) * len(ordered) / (T + 1)
    right = np.clip(np.searchsorted(gaps, wanted), 1, max(1, len(gaps) - 1))
    left_gap, right_gap = gaps[right - 1], gaps[np.minimum(right, len(gaps) - 1)]
    cut = np.where(wanted - left_gap <= right_gap - wanted, left_gap, right_gap)
    below, above = ordered[cut - 1], ordered[cut]
    middle = below / 2 + above / 2
    # Between neighbouring floats there is no middle; the lower value still separates the two.
    return np.where((middle >= below) & (middle < above), middle, below)


def _first_of_each(rows: np.ndarray, feature: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """Positions of the stumps that neither repeat nor exactly oppose an earlier one on these rows."""
    seen: set[bytes] = set()
    kept: list[int] = []
    for j, (d, t) in enumerate(zip(feature, threshold, strict=True)):
        below = rows[:, d] <= t
        # A stump and its opposite get one key: the pattern is turned so that the first row is always False.
        key = np.packbits(below ^ below[0]).tobytes()
        if key not in seen:
            seen.add(key)
            kept.append(j)
    return np.array(kept, dtype=np.int64)
