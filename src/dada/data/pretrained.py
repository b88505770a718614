"""Models fitted elsewhere, for example on public data, as base predictors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from dada.data._inputs import NUMERIC_KINDS, as_features
from dada.data._predictor_base import FLOAT32, INT8, check_coupling, check_rows

__all__ = ["FittedPretrained", "Pretrained"]


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
