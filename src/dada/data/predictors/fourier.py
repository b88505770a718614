"""Random Fourier features: waves of random direction that a shared seed determines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dada.data.arrays import as_features
from dada.data.predictors.families import FittedFamily, check_coupling
from dada.data.summaries import FeatureSummary


@dataclass(frozen=True)
class RandomFourier:
    """Predictors cos(w'x + b) of the standardised features, with random w and b (Rahimi and Recht 2007).

    Weighted sums of many of them approximate any smooth function, as a Gaussian kernel does. Users only have to agree
    on the seed and on the scales of the features.

    Parameters
    ----------
    n : int
        Number of predictors.
    width : float
        Width of the kernel in standard deviations of a feature, for a single feature: larger is smoother.
    seed : int
        Seed of directions and phases; the same for all users.
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
        """Take mean and standard deviation of every feature from users' merged summaries; marks are not used."""
        # The spread of a constant feature may differ from 0 by rounding, and its inverse would be huge.
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
        return FittedFourier(directions * inverse[:, None], phases, mean, n_features=len(mean), coupling=coupling)


@dataclass(frozen=True, eq=False)
class FittedFourier(FittedFamily):
    """Waves: predictor j is ``cos((x - mean) @ directions[:, j] + phases[j])``."""

    kind = "fourier"
    shapes = (("directions", "Dn"), ("phases", "n"), ("mean", "D"))

    directions: np.ndarray
    phases: np.ndarray
    mean: np.ndarray

    def _predict(self, rows: np.ndarray, out: np.ndarray) -> None:
        out[:] = np.cos((rows - self.mean) @ self.directions + self.phases)

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe predictor j by its wavelength."""
        return f"wave {j} of length {2 * np.pi / np.linalg.norm(self.directions[:, j]):.6g}"
