"""Linear base predictors, one per feature, and the constant one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import numpy as np

from dada.data.arrays import NUMERIC_KINDS, as_features
from dada.data.predictors.base import (
    FLOAT32,
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
from dada.data.summaries import FeatureSummary

__all__ = [
    "Constant",
    "FittedConstant",
    "FittedLinear",
    "FittedPretrained",
    "Linear",
    "Pretrained",
]


@dataclass(frozen=True)
class Linear:
    """One predictor per feature: its standardised value, cut off at -1 and +1.

    Parameters
    ----------
    clip : float
        Standard deviations from the mean at which the prediction reaches -1 or +1.
    coupling : float
        Coupling omega of these predictors' weights to the neighbours' weights.

    Notes
    -----
    Features that are constant in the fitting rows carry no information and get no predictor.

    Examples
    --------
    >>> linear = Linear().fit(np.array([[1.0, 4.0], [3.0, 4.0]]))
    >>> linear.predict(np.array([[2.5, 0.0]]))
    array([[0.5]], dtype=float32)
    >>> linear.describe(0, feature_names=["age", "size"])
    'age, -1 at 1 to +1 at 3'
    """

    clip: float = 1.0
    coupling: float = 1.0

    def __post_init__(self) -> None:
        check_coupling(self.coupling)
        if not (np.isfinite(self.clip) and self.clip > 0):
            raise ValueError(f"clip must be a finite number > 0 (standard deviations), got {self.clip}")

    def fit(self, X: Any) -> FittedLinear:
        """Measure mean and standard deviation of every feature."""
        rows, _ = as_features(X)
        feature = self._varying(rows.max(axis=0) > rows.min(axis=0), len(rows))
        return self._scaled(feature, rows.mean(axis=0)[feature], rows.std(axis=0)[feature], rows.shape[1])

    def fit_summary(self, summary: FeatureSummary, marks: Any = None) -> FittedLinear:
        """Take mean and standard deviation of every feature from users' merged summaries; marks are not needed."""
        feature = self._varying(summary.high > summary.low, summary.count)
        return self._scaled(feature, summary.mean[feature], summary.std[feature], summary.n_features)

    def _varying(self, varies: np.ndarray, n_rows: int) -> np.ndarray:
        if not varies.any():
            raise ValueError(
                f"all {len(varies)} features are constant in the {n_rows} rows given: "
                "linear predictors need a feature that varies"
            )
        return np.flatnonzero(varies).astype(np.int32)

    def _scaled(self, feature: np.ndarray, mean: np.ndarray, std: np.ndarray, n_features: int) -> FittedLinear:
        return FittedLinear(feature, mean, std * self.clip, n_features, np.full(len(feature), float(self.coupling)))


@dataclass(frozen=True, eq=False)
class FittedLinear:
    """Linear predictors: predictor j is ``clip((x[feature[j]] - mean[j]) / scale[j], -1, 1)``."""

    feature: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    n_features: int
    coupling: np.ndarray

    @property
    def n(self) -> int:
        """Number of predictors, one per varying feature."""
        return len(self.feature)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the predictions, float32."""
        return FLOAT32

    def predict(self, X: Any) -> np.ndarray:
        """Predictions in [-1, 1], float32 of shape (rows, n)."""
        rows = check_rows(X, self.n_features)
        out = np.empty((len(rows), self.n), dtype=FLOAT32)
        for block in row_blocks(len(rows), self.n):
            standardised = (np.take(rows[block], self.feature, axis=1) - self.mean) / self.scale
            out[block] = np.clip(standardised, -1, 1)
        return out

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Say which feature predictor j follows, and over which range."""
        low, high = self.mean[j] - self.scale[j], self.mean[j] + self.scale[j]
        return f"{feature_name(int(self.feature[j]), feature_names)}, -1 at {low:.6g} to +1 at {high:.6g}"

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-able description and the arrays that together rebuild this object."""
        arrays = {"feature": self.feature, "mean": self.mean, "scale": self.scale, "coupling": self.coupling}
        return {"kind": "linear", "n_features": self.n_features}, arrays

    @classmethod
    def from_arrays(cls, spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Rebuild the predictors from what :meth:`to_arrays` gave."""
        n_features = stored_n_features(spec)
        feature = stored_feature(arrays, n_features)
        mean = stored_array(arrays, "mean", np.float64, len(feature))
        scale = stored_array(arrays, "scale", np.float64, len(feature))
        if scale.min() <= 0:
            raise ValueError(f"stored scales must be > 0, got {scale.min()}: the file is damaged")
        return cls(feature, mean, scale, n_features, stored_coupling(arrays, len(feature)))


@dataclass(frozen=True)
class Constant:
    """One predictor that always says +1: the part of a decision that depends on the user and on no feature.

    Parameters
    ----------
    coupling : float
        Coupling omega of its weight to the neighbours' weights. Users often share what matters but not how
        often they say yes: a value near 0.1 lets them differ in that.

    Examples
    --------
    >>> Constant(coupling=0.1).fit(np.zeros((2, 3))).predict(np.zeros((2, 3)))
    array([[1],
           [1]], dtype=int8)
    """

    coupling: float = 1.0

    def __post_init__(self) -> None:
        check_coupling(self.coupling)

    def fit(self, X: Any) -> FittedConstant:
        """Note the number of features; there is nothing to measure."""
        return FittedConstant(as_features(X)[0].shape[1], np.full(1, float(self.coupling)))

    def fit_summary(self, summary: FeatureSummary, marks: Any = None) -> FittedConstant:
        """Note the number of features; there is nothing to measure, and marks are not needed."""
        return FittedConstant(summary.n_features, np.full(1, float(self.coupling)))


@dataclass(frozen=True, eq=False)
class FittedConstant:
    """The predictor that always says +1."""

    n_features: int
    coupling: np.ndarray

    @property
    def n(self) -> int:
        """Number of predictors, 1."""
        return 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the predictions, int8."""
        return INT8

    def predict(self, X: Any) -> np.ndarray:
        """A column of ones, int8 of shape (rows, 1)."""
        return np.ones((len(check_rows(X, self.n_features)), 1), dtype=INT8)

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Say that the predictor is constant."""
        return "always +1"

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-able description and the arrays that together rebuild this object."""
        return {"kind": "constant", "n_features": self.n_features}, {"coupling": self.coupling}

    @classmethod
    def from_arrays(cls, spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Rebuild the predictor from what :meth:`to_arrays` gave."""
        return cls(stored_n_features(spec), stored_coupling(arrays, 1))


@dataclass(frozen=True)
class Pretrained:
    """Models that were fitted before, each used as one base predictor.

    Parameters
    ----------
    models : sequence of fitted objects
        Each has ``decision_function`` (used if present, its numbers cut off at -1 and +1) or ``predict``.
        Two classes become -1 and +1 in the order of ``classes_``; other outputs must be numbers, cut off
        likewise.
    coupling : float
        Coupling omega of the models' weights to the neighbours' weights.

    Notes
    -----
    A model file holds numbers and no code, so a result that uses pretrained models cannot be written to one.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> X = np.array([[0.0], [1.0], [2.0]])
    >>> tree = DecisionTreeClassifier(max_depth=1).fit(X, ["no", "yes", "yes"])
    >>> Pretrained([tree]).fit(X).predict(X).T
    array([[-1,  1,  1]], dtype=int8)
    """

    models: Sequence[Any]
    coupling: float = 1.0

    def __post_init__(self) -> None:
        check_coupling(self.coupling)
        if not len(self.models):
            raise ValueError("models must hold at least one fitted model, got none")
        for i, model in enumerate(self.models):
            if not (hasattr(model, "decision_function") or hasattr(model, "predict")):
                raise TypeError(f"models[{i}] must have decision_function or predict, got {type(model).__name__}")

    def fit(self, X: Any) -> FittedPretrained:
        """Try every model on a row of X; none of them is changed."""
        rows, _ = as_features(X)
        coupling = np.full(len(self.models), float(self.coupling))
        fitted = FittedPretrained(tuple(self.models), rows.shape[1], coupling)
        fitted.predict(rows[:1])
        return fitted


@dataclass(frozen=True, eq=False)
class FittedPretrained:
    """Pretrained models bound to a number of features."""

    models: tuple[Any, ...]
    n_features: int
    coupling: np.ndarray

    @property
    def n(self) -> int:
        """Number of models."""
        return len(self.models)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the predictions: int8 if every model only tells two classes apart, else float32."""
        return INT8 if all(_tells_two_classes(model) for model in self.models) else FLOAT32

    def predict(self, X: Any) -> np.ndarray:
        """Outputs of the models in [-1, 1], shape (rows, n)."""
        rows = check_rows(X, self.n_features)
        out = np.empty((len(rows), self.n), dtype=self.dtype)
        for j, model in enumerate(self.models):
            out[:, j] = np.clip(_output(model, rows, j), -1, 1)
        return out

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Name the kind of model j."""
        return f"pretrained {type(self.models[j]).__name__}"

    def to_arrays(self) -> NoReturn:
        """Refuse: foreign objects can only be stored as code, which model files never hold."""
        raise TypeError(
            f"{self.n} pretrained models cannot be written to a model file: it holds numbers, never pickled "
            "objects. Store them with their own library and rebuild Pretrained(models) after loading, "
            "or use stumps, linear or constant predictors"
        )


def _tells_two_classes(model: Any) -> bool:
    return not hasattr(model, "decision_function") and len(getattr(model, "classes_", ())) == 2


def _output(model: Any, rows: np.ndarray, j: int) -> np.ndarray:
    decides = hasattr(model, "decision_function")
    output = np.asarray(model.decision_function(rows) if decides else model.predict(rows))
    who = f"models[{j}] ({type(model).__name__})"
    if output.shape != (len(rows),):
        raise ValueError(
            f"{who} must give one number per row, got shape {output.shape} for {len(rows)} rows: "
            "use one model per class"
        )
    if _tells_two_classes(model):
        return np.where(output == model.classes_[1], 1, -1)
    if output.dtype.kind not in NUMERIC_KINDS:
        raise ValueError(f"{who} must give numbers, or one of two classes in classes_, got {output.dtype}")
    if not np.isfinite(output).all():
        raise ValueError(f"{who} gave NaN or infinity for {int((~np.isfinite(output)).sum())} rows")
    return output
