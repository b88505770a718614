"""Random Fourier features: waves of random direction, the same for all who know the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dada.data.arrays import as_features
from dada.data.predictors.base import (
    FLOAT32,
    check_coupling,
    check_rows,
    row_blocks,
    stored_array,
    stored_coupling,
    stored_n_features,
)
from dada.data.summaries import FeatureSummary

__all__ = [
    "FittedFourier",
    "RandomFourier",
]


@dataclass(frozen=True)
class RandomFourier:
    """Predictors cos(w'x + b) of the standardised features, with random w and b (Rahimi and Recht 2007).

    Sums of many of them come near to any smooth function; they stand in for a Gaussian kernel. Users need to agree on
    the seed and on scales of the features, and on nothing else.

    Parameters
    ----------
    n : int
        Number of predictors.
    width : float
        Width of the kernel in standard deviations of a feature, for a single feature: larger is smoother.
    seed : int
        Where directions and phases come from; the same for all users.
    coupling : float
        Coupling omega of these predictors' weights to the neighbours' weights.

    Examples
    --------
    >>> X = np.array([[0.0], [1.0], [2.0]])
    >>> waves = RandomFourier(n=50, seed=1).fit(X)
    >>> waves.predict(X).shape, bool(abs(waves.predict(X)).max() <= 1)
    ((3, 50), True)
    """

    n: int = 200
    width: float = 1.0
    seed: int = 0
    coupling: float = 1.0

    def __post_init__(self) -> None:
        check_coupling(self.coupling)
        if self.n < 1:
            raise ValueError(f"n must be at least 1 (predictors in all), got {self.n}")
        if not (np.isfinite(self.width) and self.width > 0):
            raise ValueError(f"width must be a finite number > 0 (standard deviations), got {self.width}")
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")

    def fit(self, X: Any) -> FittedFourier:
        """Measure mean and standard deviation of every feature, and draw directions and phases."""
        rows, _ = as_features(X)
        return self._drawn(rows.mean(axis=0), rows.std(axis=0), len(rows))

    def fit_summary(self, summary: FeatureSummary, marks: Any = None) -> FittedFourier:
        """Take mean and standard deviation of every feature from users' merged summaries; marks are not needed."""
        # What rounding leaves of the spread of a constant feature would blow it up.
        spread = np.where(summary.high > summary.low, summary.std, 0.0)
        return self._drawn(summary.mean, spread, summary.count)

    def _drawn(self, mean: np.ndarray, spread: np.ndarray, n_rows: int) -> FittedFourier:
        varying = spread > 0
        if not varying.any():
            raise ValueError(f"all {len(spread)} features are constant in the {n_rows} rows given")
        rng = np.random.default_rng(self.seed)
        # Distances grow with the root of the number of features, so the width does too.
        scale = self.width * np.sqrt(varying.sum())
        directions = rng.normal(size=(len(spread), self.n)) / scale
        phases = rng.uniform(0, 2 * np.pi, self.n)
        inverse = np.divide(1.0, spread, out=np.zeros_like(spread), where=varying)
        coupling = np.full(self.n, float(self.coupling))
        return FittedFourier(directions * inverse[:, None], phases, mean, coupling)


@dataclass(frozen=True, eq=False)
class FittedFourier:
    """Waves: predictor j is ``cos((x - mean) @ directions[:, j] + phases[j])``."""

    directions: np.ndarray
    phases: np.ndarray
    mean: np.ndarray
    coupling: np.ndarray

    @property
    def n(self) -> int:
        """Number of predictors."""
        return len(self.phases)

    @property
    def n_features(self) -> int:
        """Number of features a row must have."""
        return len(self.mean)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the predictions, float32."""
        return FLOAT32

    def predict(self, X: Any) -> np.ndarray:
        """Predictions in [-1, 1], float32 of shape (rows, n)."""
        rows = check_rows(X, self.n_features)
        out = np.empty((len(rows), self.n), dtype=FLOAT32)
        for block in row_blocks(len(rows), self.n):
            out[block] = np.cos((rows[block] - self.mean) @ self.directions + self.phases)
        return out

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Say that predictor j is a wave, and how long it is."""
        return f"wave {j} of length {2 * np.pi / np.linalg.norm(self.directions[:, j]):.6g}"

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-able description and the arrays that together rebuild this object."""
        arrays = {
            "directions": self.directions.ravel(),
            "phases": self.phases,
            "mean": self.mean,
            "coupling": self.coupling,
        }
        return {"kind": "fourier", "n_features": self.n_features}, arrays

    @classmethod
    def from_arrays(cls, spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Rebuild the predictors from what :meth:`to_arrays` gave."""
        n_features, phases = stored_n_features(spec), stored_array(arrays, "phases", np.float64)
        directions = stored_array(arrays, "directions", np.float64, n_features * len(phases))
        mean = stored_array(arrays, "mean", np.float64, n_features)
        return cls(directions.reshape(n_features, -1), phases, mean, stored_coupling(arrays, len(phases)))
