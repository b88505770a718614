"""What a recipe and a fitted family of base predictors offer, and what the families share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

__all__ = [
    "FLOAT32",
    "INT8",
    "BasePredictors",
    "Recipe",
    "check_coupling",
    "check_rows",
    "feature_name",
    "row_blocks",
    "stored_array",
    "stored_coupling",
    "stored_feature",
    "stored_n_features",
]

INT8 = np.dtype(np.int8)
FLOAT32 = np.dtype(np.float32)

# Cells computed at a time: enough to amortise the call, few enough that the scratch stays in the cache.
BLOCK_CELLS = 1 << 17


class BasePredictors(Protocol):
    """A fitted family of n base predictors h_j, ready to be applied to rows."""

    @property
    def n(self) -> int:
        """Number of base predictors."""
        ...

    @property
    def n_features(self) -> int:
        """Number of features a row must have."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the predictions: int8 if only -1, 0 and 1 can occur, else float32."""
        ...

    @property
    def coupling(self) -> np.ndarray:
        """Coupling omega_j >= 0 of each predictor's weight to the neighbours' weights, shape (n,)."""
        ...

    def predict(self, X: Any) -> np.ndarray:
        """Predictions h_j(x_i) in [-1, 1], C-contiguous of shape (rows, n) and type `dtype`."""
        ...

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Say in words what predictor j does."""
        ...

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-able description and the arrays that together rebuild this object."""
        ...


class Recipe(Protocol):
    """Hyper-parameters of a family of base predictors; fitting it does not change it."""

    def fit(self, X: Any) -> BasePredictors:
        """Fit the family to the rows of X, without labels."""
        ...


def check_rows(X: Any, n_features: int) -> np.ndarray:
    """Return X as a two-dimensional float array with the expected number of columns."""
    rows = np.asarray(X)
    if rows.dtype.kind != "f":
        rows = rows.astype(np.float64)
    if rows.ndim != 2 or rows.shape[1] != n_features:
        raise ValueError(f"X must have the {n_features} features the base predictors were fitted on, got {rows.shape}")
    return rows


def check_coupling(coupling: float) -> None:
    """Refuse a coupling that is negative or not finite."""
    if not (np.isfinite(coupling) and coupling >= 0):
        raise ValueError(
            f"coupling must be a finite number >= 0 (1 is the paper's, less couples weakly), got {coupling}"
        )


def feature_name(d: int, feature_names: Sequence[str] | None) -> str:
    """Name of feature d, or ``x{d}`` when names are not known."""
    return f"x{d}" if feature_names is None else str(feature_names[d])


def row_blocks(n_rows: int, n: int) -> Iterator[slice]:
    """Cut the rows into blocks of about `BLOCK_CELLS` predictions each."""
    size = max(1, BLOCK_CELLS // n)
    return (slice(start, start + size) for start in range(0, n_rows, size))


def stored_array(arrays: Mapping[str, np.ndarray], name: str, dtype: Any, n: int | None = None) -> np.ndarray:
    """Take one stored vector, refusing what a damaged file may hold."""
    if name not in arrays:
        raise ValueError(f"the stored base predictors lack the array {name!r}: the file is damaged")
    array = np.asarray(arrays[name])
    numeric = array.ndim == 1 and array.dtype.kind in "iuf" and bool(np.isfinite(array).all())
    if not numeric or len(array) == 0 or (n is not None and len(array) != n):
        raise ValueError(
            f"the stored array {name!r} must hold {n if n is not None else 'one or more'} finite numbers, "
            f"got shape {array.shape} and type {array.dtype}: the file is damaged"
        )
    return np.ascontiguousarray(array, dtype=dtype)


def stored_n_features(spec: Mapping[str, Any]) -> int:
    """Take the number of features from a stored description."""
    n_features = spec.get("n_features")
    if not isinstance(n_features, int) or n_features < 1:
        raise ValueError(
            f"n_features of stored base predictors must be an integer >= 1, got {n_features!r}: the file is damaged"
        )
    return n_features


def stored_feature(arrays: Mapping[str, np.ndarray], n_features: int) -> np.ndarray:
    """Take the feature each stored predictor looks at."""
    feature = stored_array(arrays, "feature", np.int32)
    if feature.min() < 0 or feature.max() >= n_features:
        raise ValueError(
            f"stored base predictors must use features 0..{n_features - 1}, "
            f"got {feature.min()}..{feature.max()}: the file is damaged"
        )
    return feature


def stored_coupling(arrays: Mapping[str, np.ndarray], n: int) -> np.ndarray:
    """Take the couplings of n stored predictors."""
    coupling = stored_array(arrays, "coupling", np.float64, n)
    if coupling.min() < 0:
        raise ValueError(f"stored couplings must be >= 0, got {coupling.min()}: the file is damaged")
    return coupling
