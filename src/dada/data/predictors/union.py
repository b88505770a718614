"""All families of base predictors, unions of them, and their storage without pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np

from dada.data.arrays import as_features
from dada.data.predictors.family import BasePredictors, Recipe
from dada.data.predictors.fourier import FittedFourier
from dada.data.predictors.simple import FittedConstant, FittedLinear
from dada.data.predictors.stumps import FittedStumps
from dada.data.summaries import FeatureSummary

__all__ = ["BasePredictors", "FittedUnion", "Recipe", "Union", "predictors_from_arrays", "takes_summary"]


@dataclass(frozen=True, init=False)
class Union:
    """Several families of base predictors side by side.

    Parameters
    ----------
    *recipes : Recipe
        The families, in the order in which their predictors are numbered.

    Examples
    --------
    >>> from dada.data import Constant, Linear, Stumps
    >>> recipe = Union(Stumps(per_feature=1), Linear(), Constant(coupling=0.1))
    >>> both = recipe.fit(np.array([[1.0], [3.0]]))
    >>> [both.describe(j) for j in range(both.n)]
    ['x0 <= 2', 'x0, -1 at 1 to +1 at 3', 'always +1']
    >>> both.coupling.tolist()
    [1.0, 1.0, 0.1]
    """

    recipes: tuple[Recipe, ...]

    def __init__(self, *recipes: Recipe) -> None:
        if not recipes:
            raise ValueError("a union needs at least one recipe, got none")
        for i, recipe in enumerate(recipes):
            if not hasattr(recipe, "fit"):
                raise TypeError(f"recipe {i} of a union must have fit, as Stumps(), got {type(recipe).__name__}")
        object.__setattr__(self, "recipes", recipes)

    def fit(self, X: Any) -> FittedUnion:
        """Fit every family to the rows of X."""
        rows, _ = as_features(X)
        return FittedUnion(tuple(recipe.fit(rows) for recipe in self.recipes))

    def fit_summary(self, summary: FeatureSummary, marks: Callable[[FittedStumps], np.ndarray]) -> FittedUnion:
        """Fit every family to users' merged summaries and the marks of their stumps: see `Stumps.fit_summary`."""
        parts = []
        for recipe in self.recipes:
            if not takes_summary(recipe):
                raise TypeError(f"{type(recipe).__name__} needs rows and cannot use summaries: use fit")
            parts.append(recipe.fit_summary(summary, marks))
        return FittedUnion(tuple(parts))


class SummaryRecipe(Protocol):
    """A recipe that can be fitted to merged summaries."""

    def fit_summary(self, summary: FeatureSummary, marks: Callable[[FittedStumps], np.ndarray]) -> BasePredictors:
        """Fit the family to users' merged summaries and the summed marks of the resulting stumps."""
        ...


def takes_summary(recipe: Any) -> TypeGuard[SummaryRecipe]:
    """Whether a recipe can be fitted to merged summaries instead of rows.

    >>> from dada.data import Constant, Stumps
    >>> takes_summary(Union(Stumps(), Constant())), takes_summary(object())
    (True, False)
    """
    if isinstance(recipe, Union):
        return all(map(takes_summary, recipe.recipes))
    return hasattr(recipe, "fit_summary")


@dataclass(frozen=True, eq=False)
class FittedUnion:
    """Fitted families side by side: the predictors of ``parts[0]`` come first."""

    parts: tuple[BasePredictors, ...]

    @property
    def n(self) -> int:
        """Number of predictors of all families together."""
        return sum(part.n for part in self.parts)

    @property
    def n_features(self) -> int:
        """Number of features a row must have."""
        return self.parts[0].n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the predictions: int8 if every family has int8, else float32."""
        return np.result_type(*(part.dtype for part in self.parts))

    @property
    def coupling(self) -> np.ndarray:
        """Coupling of each predictor's weight to the neighbours' weights."""
        return np.concatenate([part.coupling for part in self.parts])

    def predict(self, X: Any) -> np.ndarray:
        """Predictions of all families, shape (rows, n)."""
        out = np.empty((len(X), self.n), dtype=self.dtype)
        for start, part in zip(self._starts(), self.parts, strict=True):
            out[:, start : start + part.n] = part.predict(X)
        return out

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe predictor j in words."""
        i = int(np.searchsorted(self._starts(), j, side="right")) - 1
        return self.parts[i].describe(j - self._starts()[i], feature_names)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-able description and the arrays that together rebuild this object."""
        specs, arrays = [], {}
        for i, part in enumerate(self.parts):
            spec, own = part.to_arrays()
            specs.append(spec)
            arrays.update({f"{i}.{name}": array for name, array in own.items()})
        return {"kind": "union", "parts": specs}, arrays

    @classmethod
    def from_arrays(cls, spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> FittedUnion:
        """Rebuild the union from the result of :meth:`to_arrays`."""
        specs = spec.get("parts")
        if not isinstance(specs, list) or not specs or not all(isinstance(part, dict) for part in specs):
            raise ValueError(f"parts of a stored union must be a list of families, got {specs!r}")
        parts = []
        for i, part_spec in enumerate(specs):
            own = {n.removeprefix(f"{i}."): a for n, a in arrays.items() if n.startswith(f"{i}.")}
            parts.append(predictors_from_arrays(part_spec, own))
        widths = {part.n_features for part in parts}
        if len(widths) > 1:
            raise ValueError(f"parts of a stored union must agree on n_features, got {sorted(widths)}")
        return cls(tuple(parts))

    def _starts(self) -> list[int]:
        return [sum(part.n for part in self.parts[:i]) for i in range(len(self.parts))]


def predictors_from_arrays(spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> BasePredictors:
    """Rebuild fitted base predictors from the result of their ``to_arrays``.

    Parameters
    ----------
    spec : mapping
        The JSON-able description; its ``"kind"`` names the family.
    arrays : mapping of str to array
        The arrays that belong to it.

    Returns
    -------
    BasePredictors

    Raises
    ------
    ValueError
        If the family is unknown, or the description and the arrays do not fit together.

    Examples
    --------
    >>> from dada.data import Stumps
    >>> stumps = Stumps(n=2).fit(np.array([[1.0], [2.0], [3.0]]))
    >>> predictors_from_arrays(*stumps.to_arrays()).threshold.tolist()
    [1.5, 2.5]
    """
    families: dict[str, Any] = {
        "constant": FittedConstant,
        "fourier": FittedFourier,
        "linear": FittedLinear,
        "stumps": FittedStumps,
        "union": FittedUnion,
    }
    kind = spec.get("kind")
    if kind not in families:
        raise ValueError(
            f"the family of stored base predictors must be one of {', '.join(families)}, got {kind!r}: "
            "the file is damaged, or written by a newer version"
        )
    return families[kind].from_arrays(spec, arrays)
