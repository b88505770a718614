"""Linear base predictors, one per feature; the constant predictor; models fitted elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import numpy as np

from dada.data.arrays import NUMERIC_KINDS, as_features
from dada.data.predictors.family import FLOAT32, INT8, FittedFamily, check_coupling, check_rows, feature_name
from dada.data.summaries import FeatureSummary

__all__ = ["Constant", "FittedConstant", "FittedLinear", "FittedPretrained", "Linear", "Pretrained"]


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
        """Take mean and standard deviation of every feature from users' merged summaries; marks are not used."""
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
        coupling = np.full(len(feature), float(self.coupling))
        return FittedLinear(feature, mean, std * self.clip, n_features=n_features, coupling=coupling)


@dataclass(frozen=True, eq=False)
class FittedLinear(FittedFamily):
    """Linear predictors: predictor j is ``clip((x[feature[j]] - mean[j]) / scale[j], -1, 1)``."""

    kind = "linear"
    shapes = (("feature", "n"), ("mean", "n"), ("scale", "n"))

    feature: np.ndarray
    mean: np.ndarray
    scale: np.ndarray

    def _predict(self, rows: np.ndarray, out: np.ndarray) -> None:
        out[:] = np.clip((np.take(rows, self.feature, axis=1) - self.mean) / self.scale, -1, 1)

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe predictor j by its feature and its range."""
        low, high = self.mean[j] - self.scale[j], self.mean[j] + self.scale[j]
        return f"{feature_name(int(self.feature[j]), feature_names)}, -1 at {low:.6g} to +1 at {high:.6g}"

    @classmethod
    def from_arrays(cls, spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Rebuild the predictors from the result of :meth:`to_arrays`, checking each array."""
        linear = super().from_arrays(spec, arrays)
        if linear.scale.min() <= 0:
            raise ValueError(f"stored scales must be > 0, got {linear.scale.min()}: the file is damaged")
        return linear


@dataclass(frozen=True)
class Constant:
    """One predictor that is always +1: the part of a decision that depends on the user and on no feature.

    Parameters
    ----------
    coupling : float
        Coupling omega of its weight to the neighbours' weights. Users often agree on the features that matter but
        not on the share of positive labels: a value near 0.1 lets them differ in the latter.

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
        """Keep the number of features."""
        return FittedConstant(n_features=as_features(X)[0].shape[1], coupling=np.full(1, float(self.coupling)))

    def fit_summary(self, summary: FeatureSummary, marks: Any = None) -> FittedConstant:
        """Keep the number of features; marks are not used."""
        return FittedConstant(n_features=summary.n_features, coupling=np.full(1, float(self.coupling)))


@dataclass(frozen=True, eq=False)
class FittedConstant(FittedFamily):
    """The predictor that is always +1."""

    kind = "constant"
    dtype = INT8

    def _predict(self, rows: np.ndarray, out: np.ndarray) -> None:
        out[:] = 1

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe the predictor as constant."""
        return "always +1"


@dataclass(frozen=True)
class Pretrained:
    """Models that were fitted elsewhere, each used as one base predictor.

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
        dtype = INT8 if all(map(_is_binary, self.models)) else FLOAT32
        fitted = FittedPretrained(tuple(self.models), dtype, n_features=rows.shape[1], coupling=coupling)
        fitted.predict(rows[:1])
        return fitted


@dataclass(frozen=True, eq=False)
class FittedPretrained(FittedFamily):
    """Pretrained models; their predictions are int8 if every model only separates two classes."""

    models: tuple[Any, ...]
    dtype: np.dtype[Any]

    def predict(self, X: Any, **_: Any) -> np.ndarray:
        """Outputs of the models in [-1, 1], shape (rows, n); each model predicts all rows at once."""
        rows = check_rows(X, self.n_features)
        out = np.empty((len(rows), self.n), dtype=self.dtype)
        self._predict(rows, out)
        return out

    def _predict(self, rows: np.ndarray, out: np.ndarray) -> None:
        for j, model in enumerate(self.models):
            out[:, j] = np.clip(_output(model, rows, j), -1, 1)

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe model j by its class."""
        return f"pretrained {type(self.models[j]).__name__}"

    def to_arrays(self) -> NoReturn:
        """Raise TypeError: these objects can only be stored as code, which model files never hold."""
        raise TypeError(
            f"{self.n} pretrained models cannot be written to a model file: it holds numbers, never pickled "
            "objects. Store them with their own library and rebuild Pretrained(models) after loading, "
            "or use stumps, linear or constant predictors"
        )


def _is_binary(model: Any) -> bool:
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
    if _is_binary(model):
        return np.where(output == model.classes_[1], 1, -1)
    if output.dtype.kind not in NUMERIC_KINDS:
        raise ValueError(f"{who} must give numbers, or one of two classes in classes_, got {output.dtype}")
    if not np.isfinite(output).all():
        raise ValueError(f"{who} gave NaN or infinity for {int((~np.isfinite(output)).sum())} rows")
    return output
