"""What a recipe and a fitted family of base predictors offer, and the checks they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

__all__ = ["BasePredictors", "Recipe", "check_coupling", "check_rows", "feature_name", "same_coupling"]


class BasePredictors(Protocol):
    """A fitted family of n base predictors h_j, ready to be applied to rows."""

    @property
    def n(self) -> int:
        """Number of base predictors."""
        ...

    @property
    def coupling(self) -> np.ndarray:
        """Coupling omega_j >= 0 of each predictor's weight to the neighbours' weights, shape (n,)."""
        ...

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Predictions h_j(x_i) in [-1, 1], shape (R, n): int8 if only -1, 0 and 1 occur, else float32."""
        ...

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Say in words what predictor j does."""
        ...

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-able description and the arrays that together rebuild this object."""
        ...


class Recipe(Protocol):
    """Hyper-parameters of a family of base predictors; fitting it does not change it."""

    def fit(self, X: np.ndarray) -> BasePredictors:
        """Fit the family to the rows of X, without labels."""
        ...


def check_rows(X: Any, n_features: int | None = None) -> np.ndarray:
    """Return X as a two-dimensional float array with the expected number of columns."""
    rows = np.asarray(X)
    if rows.dtype.kind != "f":
        rows = rows.astype(np.float64)
    if rows.ndim != 2:
        raise ValueError(f"X must be two-dimensional (rows, features), got shape {rows.shape}")
    if n_features is None and 0 in rows.shape:
        raise ValueError(
            f"X must have at least one row and one feature to fit base predictors, got shape {rows.shape}"
        )
    if n_features is not None and rows.shape[1] != n_features:
        raise ValueError(
            f"X must have the {n_features} features the base predictors were fitted on, got {rows.shape[1]}"
        )
    return rows


def check_coupling(coupling: float) -> None:
    """Refuse a coupling that is negative or not finite."""
    if not (np.isfinite(coupling) and coupling >= 0):
        raise ValueError(
            f"coupling must be a finite number >= 0 (1 is the paper's, less couples weakly), got {coupling}"
        )


def same_coupling(coupling: float, n: int) -> np.ndarray:
    """One coupling for n predictors."""
    return np.full(n, float(coupling))


def feature_name(d: int, feature_names: Sequence[str] | None) -> str:
    """Name of feature d, or ``x{d}`` when names are not known."""
    return f"x{d}" if feature_names is None else str(feature_names[d])
