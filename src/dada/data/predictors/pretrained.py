"""Models that were fitted elsewhere, as base predictors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from dada.data.arrays import NUMERIC_KINDS, as_features
from dada.data.predictors.families import FLOAT32, INT8, FittedFamily, check_coupling, check_rows


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
