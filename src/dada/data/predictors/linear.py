"""Linear and constant predictors, random waves, and models that were fitted elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, Self

import numpy as np

from dada.data.population import NUMERIC_KINDS, as_features
from dada.data.predictors.families import (
    FLOAT32,
    INT8,
    FeatureSummary,
    FittedFamily,
    check_coupling,
    feature_name,
    stored,
)


def _moments(source: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every feature of rows or of users' merged summaries; zero if it is constant."""
    if isinstance(source, FeatureSummary):
        n_rows, mean, std, varies = source.count, source.mean, source.std, source.high > source.low
    else:
        rows, _ = as_features(source)
        n_rows, mean, std, varies = len(rows), rows.mean(axis=0), rows.std(axis=0), rows.max(axis=0) > rows.min(axis=0)
    if not varies.any():
        raise ValueError(
            f"all {len(varies)} features are constant in the {n_rows} rows given: give a feature that varies"
        )
    # Rounding may leave a constant feature with a tiny standard deviation.
    return mean, np.where(varies, std, 0.0)


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
        return self._scaled(*_moments(X))

    def fit_summary(self, summary: FeatureSummary, marks: Any = None) -> FittedLinear:
        """Take mean and standard deviation of every feature from users' merged summaries; marks are not used."""
        return self._scaled(*_moments(summary))

    def _scaled(self, mean: np.ndarray, std: np.ndarray) -> FittedLinear:
        feature = np.flatnonzero(std).astype(np.int32)
        coupling = np.full(len(feature), float(self.coupling))
        clip = np.full(len(feature), float(self.clip))
        return FittedLinear(feature, mean[feature], std[feature], clip, n_features=len(mean), coupling=coupling)


@dataclass(frozen=True, eq=False)
class FittedLinear(FittedFamily):
    """Linear predictors: predictor j is ``clip((x[feature[j]] - mean[j]) / (std[j] * clip[j]), -1, 1)``."""

    kind = "linear"
    shapes = (("feature", "n"), ("mean", "n"), ("std", "n"), ("clip", "n"))

    feature: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    clip: np.ndarray

    def __post_init__(self) -> None:
        least = min(self.std.min(), self.clip.min())
        if least <= 0:
            raise ValueError(f"std and clip of linear predictors must be > 0, got {least}: the file is damaged")

    @property
    def scale(self) -> np.ndarray:
        """Distance from the mean at which each prediction reaches -1 or +1."""
        return self.std * self.clip

    def _predict(self, rows: np.ndarray, out: np.ndarray) -> None:
        out[:] = np.clip((np.take(rows, self.feature, axis=1) - self.mean) / self.scale, -1, 1)

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe predictor j by its feature and its range."""
        low, high = self.mean[j] - self.scale[j], self.mean[j] + self.scale[j]
        return f"{feature_name(int(self.feature[j]), feature_names)}, -1 at {low:.6g} to +1 at {high:.6g}"


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
class RandomFourier:
    """Predictors cos(w'x + b) of the standardised features, with random w and b (Rahimi and Recht 2007).

    Weighted sums of many of them approximate any smooth function, as a Gaussian kernel does. Waves of two features each
    approximate sums of smooth functions of pairs: enough for most interactions, and they ignore irrelevant features.
    Users only have to agree on the seed and on the scales of the features.

    Parameters
    ----------
    n : int
        Number of predictors.
    per_feature : int, optional
        Bound on the number of predictors per feature that varies.
    features : int, optional
        Features of each wave, drawn at random; by default all.
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
    >>> pairs = RandomFourier(n=50, features=2).fit(np.random.default_rng(0).normal(size=(9, 4)))
    >>> pairs.describe(0)
    'wave 0 of x2 and x3, of length 11.5465'
    """

    n: int = 200
    per_feature: int | None = None
    features: int | None = None
    width: float = 1.0
    seed: int = 0
    coupling: float = 1.0

    def __post_init__(self) -> None:
        check_coupling(self.coupling)
        if self.n < 1:
            raise ValueError(f"n must be at least 1 (predictors in all), got {self.n}")
        for name in ("per_feature", "features"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 or None, got {value}")
        if not (np.isfinite(self.width) and self.width > 0):
            raise ValueError(f"width must be a finite number > 0 (standard deviations), got {self.width}")
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")

    def fit(self, X: Any) -> FittedFourier:
        """Measure mean and standard deviation of every feature, and draw directions and phases."""
        return self._drawn(*_moments(X))

    def fit_summary(self, summary: FeatureSummary, marks: Any = None) -> FittedFourier:
        """Take mean and standard deviation of every feature from users' merged summaries; marks are not used."""
        return self._drawn(*_moments(summary))

    def _drawn(self, mean: np.ndarray, std: np.ndarray) -> FittedFourier:
        varying = np.flatnonzero(std)
        rng = np.random.default_rng(self.seed)
        n = self.n if self.per_feature is None else min(self.n, self.per_feature * len(varying))
        used = len(varying) if self.features is None else min(self.features, len(varying))
        # Distances grow with the root of the number of features, so the width does too.
        directions = rng.normal(size=(len(std), n)) / (self.width * np.sqrt(used))
        phases = rng.uniform(0, 2 * np.pi, n)
        if used < len(varying):
            order = rng.random((len(varying), n)).argsort(axis=0)
            np.put_along_axis(directions, varying[order[used:]], 0.0, axis=0)
        inverse = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
        coupling = np.full(n, float(self.coupling))
        return FittedFourier(directions * inverse[:, None], phases, mean, n_features=len(mean), coupling=coupling)


# Waves of at most this many features are evaluated and stored feature by feature.
FEW_FEATURES = 4


@dataclass(frozen=True, eq=False)
class FittedFourier(FittedFamily):
    """Waves: predictor j is ``cos((x - mean) @ directions[:, j] + phases[j])``."""

    directions: np.ndarray
    phases: np.ndarray
    mean: np.ndarray

    kind = "fourier"
    shapes = (("directions", "Dn"), ("phases", "n"), ("mean", "D"))

    @cached_property
    def features(self) -> np.ndarray | None:
        """Features of each wave, shape (features per wave, n), if these are few of all; else None."""
        used = int(np.count_nonzero(self.directions, axis=0).max())
        if used > FEW_FEATURES or 2 * used > self.n_features:
            return None
        return np.argsort(self.directions == 0, axis=0, kind="stable")[: max(1, used)].astype(np.int32)

    def _predict(self, rows: np.ndarray, out: np.ndarray) -> None:
        centred = rows - self.mean
        if self.features is None:
            angles = centred @ self.directions
        else:
            weights = np.take_along_axis(self.directions, self.features, axis=0)
            angles = sum(np.take(centred, d, axis=1) * own for d, own in zip(self.features, weights, strict=True))
        out[:] = np.cos(angles + self.phases)

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe predictor j by its wavelength and, if they are few, its features."""
        length = f"of length {2 * np.pi / np.linalg.norm(self.directions[:, j]):.6g}"
        if self.features is None:
            return f"wave {j} {length}"
        used = np.flatnonzero(self.directions[:, j])
        return f"wave {j} of {' and '.join(feature_name(int(d), feature_names) for d in used)}, {length}"

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-able description and the arrays that together rebuild this object; few features per wave by number."""
        spec, arrays = super().to_arrays()
        if self.features is not None:
            arrays["feature"] = self.features.ravel()
            arrays["directions"] = np.take_along_axis(self.directions, self.features, axis=0).ravel()
        return spec, arrays

    @classmethod
    def from_arrays(cls, spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Rebuild the waves from the result of `to_arrays`."""
        if "feature" not in arrays:
            return super().from_arrays(spec, arrays)
        n, feature, D = len(stored(arrays, "coupling")), stored(arrays, "feature"), spec.get("n_features")
        weights = stored(arrays, "directions", feature.shape)
        if len(feature) % n or not isinstance(D, int) or feature.min() < 0 or feature.max() >= D:
            raise ValueError(f"stored waves must have as many features each, all below {D}: the file is damaged")
        directions = np.zeros((D, n))
        np.put_along_axis(directions, feature.reshape(-1, n), weights.reshape(-1, n), axis=0)
        return super().from_arrays(spec, {**arrays, "directions": directions.ravel()})


@dataclass(frozen=True)
class Pretrained:
    """Models that were fitted elsewhere, each used as one base predictor.

    Parameters
    ----------
    models : sequence of fitted objects
        Each has ``decision_function`` (used if present, its numbers cut off at -1 and +1) or ``predict``. Two classes
        become -1 and +1 in the order of ``classes_``; other outputs must be numbers, also cut off at -1 and +1.
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
        return super().predict(X, block_cells=len(X) * self.n)

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
