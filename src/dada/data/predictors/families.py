"""Base predictors: their protocols, what all families share and are made from, unions of families, and storage.

Families are made from mergeable summaries of features, without rows. Thresholds of stumps and scales of linear
predictors are the same for all users, so users must agree on them. Each user summarises its own rows; summaries merge
in any order, as gossip requires. A summary has count, mean, sum of squares, smallest and largest value and at most
`MOST` weighted values per feature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeGuard

import numpy as np

from dada.data.population import as_features

if TYPE_CHECKING:
    from dada.data.predictors.thresholds import FittedStumps


# A sketch of more than MOST points is cut to SIZE; cutting rarely limits the accumulated error.
SIZE, MOST = 512, 2048
# Rows summarised at a time, at least, if all rows are in memory.
CHUNK = 1 << 16
Points = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class FeatureSummary:
    """Moments, range and a sketch of the distribution of every feature.

    Attributes
    ----------
    count : int
        Rows summarised.
    mean, squares : arrays of shape (D,)
        Mean, and sum of squared distances from it.
    low, high : arrays of shape (D,)
        Smallest and largest value.
    points : tuple of D pairs of arrays
        Ascending values of a feature and the number of rows that each represents. Up to 2048 different values are kept
        as they are, more are cut into 512 equal parts.
    is_exact : bool
        Whether the values of all features were kept as they are.

    Examples
    --------
    >>> ann, bob = FeatureSummary.of([[1.0], [3.0]]), FeatureSummary.of([[5.0]])
    >>> both = ann.merged(bob)
    >>> both.count, both.mean.tolist(), both.std.round(3).tolist()
    (3, [3.0], [1.633])
    """

    count: int
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    points: tuple[Points, ...]
    is_exact: bool = True

    @classmethod
    def of(cls, X: Any) -> FeatureSummary:
        """The summary of one user's rows."""
        rows, _ = as_features(X)
        mean = rows.mean(axis=0)
        whole = [np.unique(column, return_counts=True) for column in rows.T]
        low, high = np.array([values[[0, -1]] for values, _ in whole]).T
        points = tuple(_shortened(values, counts.astype(np.float64)) for values, counts in whole)
        squares = ((rows - mean) ** 2).sum(axis=0)
        return cls(len(rows), mean, squares, low, high, points, max(len(values) for values, _ in whole) <= MOST)

    @classmethod
    def of_all(cls, summaries: Iterable[FeatureSummary]) -> FeatureSummary:
        """Many summaries merged into one."""
        return reduce(FeatureSummary.merged, summaries)

    @classmethod
    def of_users(cls, X: Any, row_start: np.ndarray, chunk: int = CHUNK) -> FeatureSummary:
        """The merged summaries of users whose rows are in memory, grouped by user.

        Many small users are summarised at a time. While no feature has more than 2048 values, that is the same as
        merging them one by one, to the last bit but for the mean and the squares.

        Examples
        --------
        >>> FeatureSummary.of_users(np.array([[1.0], [3.0], [5.0]]), np.array([0, 2, 3])).count
        3
        """
        return cls.of_all(cls.of(X[first:last]) for first, last in _chunks(row_start, chunk))

    def merged(self, other: FeatureSummary) -> FeatureSummary:
        """The summary of both users' rows."""
        if len(self.points) != len(other.points):
            raise ValueError(
                f"summaries must be of the same features, got {len(self.points)} and {len(other.points)} of them"
            )
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        squares = self.squares + other.squares + apart**2 * (self.count * other.count / count)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        whole = [_merged(*pair) for pair in zip(self.points, other.points, strict=True)]
        is_exact = self.is_exact and other.is_exact and max(len(values) for values, _ in whole) <= MOST
        points = tuple(_shortened(*own) for own in whole)
        return FeatureSummary(count, mean, squares, low, high, points, is_exact)

    def coarse(self, most: int) -> FeatureSummary:
        """The summary with at most `most` values per feature, and the range of these values.

        Each remaining value represents the same number of rows, so that rare values disappear.

        Examples
        --------
        >>> FeatureSummary.of(np.arange(100.0)[:, None]).coarse(2).points[0][0].tolist()
        [24.0, 74.0]
        """
        points = tuple(_cut(*own, most) for own in self.points)
        low, high = np.array([values[[0, -1]] for values, _ in points]).T
        return FeatureSummary(self.count, self.mean, self.squares, low, high, points, is_exact=False)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of every feature."""
        return np.sqrt(self.squares / self.count)

    @property
    def n_features(self) -> int:
        """Number of features, D."""
        return len(self.points)

    def rows(self, n: int = SIZE) -> np.ndarray:
        """Rows whose columns have the distribution of the features, for recipes that need rows.

        What stands side by side in a row means nothing: a recipe may look at one feature at a time only. Stumps, linear
        and constant predictors and random waves need no rows: see their `fit_summary`.

        Examples
        --------
        >>> from dada.data import Stumps
        >>> summary = FeatureSummary.of(np.arange(100.0)[:, None])
        >>> Stumps(n=1).fit(summary.rows()).threshold.round().tolist()
        [50.0]
        """
        quantiles = (np.arange(n) + 0.5) / n
        columns = [_quantiles(values, weights, quantiles) for values, weights in self.points]
        # Each column is permuted independently, or stumps on different features would look like duplicates.
        return np.column_stack([np.random.default_rng(d).permutation(column) for d, column in enumerate(columns)])


def _chunks(row_start: np.ndarray, chunk: int) -> Iterator[tuple[int, int]]:
    """First and last row of groups of users with at least `chunk` rows each, but for the last group."""
    first, end = 0, int(row_start[-1])
    while first < end:
        last = int(row_start[min(int(np.searchsorted(row_start, first + chunk)), len(row_start) - 1)])
        yield first, last
        first = last


def _merged(first: Points, second: Points) -> Points:
    values = np.concatenate([first[0], second[0]])
    different, place = np.unique(values, return_inverse=True)
    return different, np.bincount(place, weights=np.concatenate([first[1], second[1]]))


def _shortened(values: np.ndarray, weights: np.ndarray) -> Points:
    """The points, or the medians of `SIZE` equal parts if there are too many."""
    return (values, weights) if len(values) <= MOST else _cut(values, weights, SIZE)


def _cut(values: np.ndarray, weights: np.ndarray, parts: int) -> Points:
    """The medians of equal parts."""
    quantiles = (np.arange(parts) + 0.5) / parts
    kept, counts = np.unique(_quantiles(values, weights, quantiles), return_counts=True)
    return kept, counts * (weights.sum() / parts)


def _quantiles(values: np.ndarray, weights: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """The values below which these parts of the weight lie."""
    below = np.cumsum(weights)
    # Rounding must not put the last quantile beyond the last value.
    return values[np.minimum(np.searchsorted(below, quantiles * below[-1]), len(values) - 1)]


INT8: np.dtype[Any] = np.dtype(np.int8)
FLOAT32: np.dtype[Any] = np.dtype(np.float32)

# Predictions computed at a time: enough to amortise the call, few enough that the scratch stays in the cache.
BLOCK_CELLS = 1 << 17


class BasePredictors(Protocol):
    """A fitted family of n base predictors h_j, ready to be applied to rows."""

    @property
    def n(self) -> int:
        """Number of base predictors."""

    @property
    def n_features(self) -> int:
        """Number of features a row must have."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the predictions: int8 if only -1, 0 and 1 can occur, else float32."""

    @property
    def coupling(self) -> np.ndarray:
        """Coupling omega_j >= 0 of each predictor's weight to the neighbours' weights, shape (n,)."""

    def predict(self, X: Any) -> np.ndarray:
        """Predictions h_j(x_i) in [-1, 1], C-contiguous of shape (rows, n) and type `dtype`."""

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe predictor j in words."""

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-able description and the arrays that together rebuild this object."""


class Recipe(Protocol):
    """Hyper-parameters of a family of base predictors; fitting it does not change it."""

    def fit(self, X: Any) -> BasePredictors:
        """Fit the family to the rows of X, without labels."""


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


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedFamily(ABC):
    """Base of the fitted families: the prediction loop, and storage as plain arrays.

    `kind` names the family in a model file, and `shapes` lists its arrays other than the coupling: ``"n"`` for one
    number per predictor, ``"D"`` for one per feature, ``"Dn"`` for a matrix of them.
    """

    kind: ClassVar[str]
    shapes: ClassVar[tuple[tuple[str, Literal["n", "D", "Dn"]], ...]] = ()
    dtype = FLOAT32

    n_features: int
    coupling: np.ndarray

    @property
    def n(self) -> int:
        """Number of base predictors."""
        return len(self.coupling)

    def predict(self, X: Any, *, block_cells: int = BLOCK_CELLS) -> np.ndarray:
        """Predictions in [-1, 1], of shape (rows, n) and type `dtype`, computed in blocks of `block_cells`."""
        rows = check_rows(X, self.n_features)
        out = np.empty((len(rows), self.n), dtype=self.dtype)
        size = max(1, block_cells // self.n)
        for start in range(0, len(rows), size):
            self._predict(rows[start : start + size], out[start : start + size])
        return out

    @abstractmethod
    def _predict(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the predictions for some rows to `out`."""

    @abstractmethod
    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe predictor j in words."""

    def take(self, kept: np.ndarray) -> Self:
        """The predictors at some positions."""
        index = {"n": (kept,), "D": (...,), "Dn": (slice(None), kept)}
        chosen = {name: getattr(self, name)[index[shape]] for name, shape in self.shapes}
        return replace(self, **chosen, coupling=self.coupling[kept])

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-able description and the arrays that together rebuild this object."""
        arrays = {name: getattr(self, name).ravel() for name, _ in self.shapes}
        return {"kind": self.kind, "n_features": self.n_features}, {**arrays, "coupling": self.coupling}

    @classmethod
    def from_arrays(cls, spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Rebuild the predictors from the result of `to_arrays`, checking each array."""
        D = spec.get("n_features")
        if not isinstance(D, int) or D < 1:
            raise ValueError(
                f"n_features of stored base predictors must be an integer >= 1, got {D!r}: the file is damaged"
            )
        coupling = stored(arrays, "coupling")
        if coupling.min() < 0:
            raise ValueError(f"stored couplings must be >= 0, got {coupling.min()}: the file is damaged")
        sizes = {"n": (len(coupling),), "D": (D,), "Dn": (D, len(coupling))}
        found = {name: stored(arrays, name, sizes[shape]) for name, shape in cls.shapes}
        feature = found.get("feature")
        if feature is not None and not (feature.min() >= 0 and feature.max() < D):
            raise ValueError(
                f"stored base predictors must use features 0..{D - 1}, "
                f"got {feature.min()}..{feature.max()}: the file is damaged"
            )
        return cls(**found, n_features=D, coupling=coupling)


def stored(arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Take one stored vector and reshape it; raise if a damaged file holds something else."""
    if name not in arrays:
        raise ValueError(f"the stored base predictors lack the array {name!r}: the file is damaged")
    array = np.asarray(arrays[name])
    n = None if shape is None else int(np.prod(shape))
    numeric = array.ndim == 1 and array.dtype.kind in "iuf" and bool(np.isfinite(array).all())
    if not numeric or len(array) == 0 or (n is not None and len(array) != n):
        raise ValueError(
            f"the stored array {name!r} must hold {n if n is not None else 'one or more'} finite numbers, "
            f"got shape {array.shape} and type {array.dtype}: the file is damaged"
        )
    dtype = np.int32 if name == "feature" else np.float64
    return np.ascontiguousarray(array, dtype=dtype).reshape(shape or -1)


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


def takes_summary(recipe: Any) -> TypeGuard[SummaryRecipe]:
    """Whether a recipe can be fitted to merged summaries instead of rows."""
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


def parts_of(predictors: BasePredictors) -> Iterator[BasePredictors]:
    """The families of a union, of unions inside it, or the only family."""
    if isinstance(predictors, FittedUnion):
        for part in predictors.parts:
            yield from parts_of(part)
    else:
        yield predictors


def predictors_from_arrays(spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> BasePredictors:
    """Rebuild fitted base predictors from the result of their ``to_arrays``.

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
    from dada.data.predictors.linear import FittedConstant, FittedFourier, FittedLinear
    from dada.data.predictors.thresholds import FittedLeaves, FittedStumps, FittedTrees

    families: dict[str, Any] = {
        "constant": FittedConstant,
        "fourier": FittedFourier,
        "leaves": FittedLeaves,
        "linear": FittedLinear,
        "stumps": FittedStumps,
        "trees": FittedTrees,
        "union": FittedUnion,
    }
    families |= REGISTERED
    kind = spec.get("kind")
    if kind not in families:
        raise ValueError(
            f"the family of stored base predictors must be one of {', '.join(families)}, got {kind!r}: the file is "
            "damaged, written by a newer version, or the code that calls register_predictors was not imported"
        )
    return families[kind].from_arrays(spec, arrays)


# Families and recipes of other packages, by their names in model files.
REGISTERED: dict[str, Any] = {}
REGISTERED_RECIPES: dict[str, Any] = {}


def register_predictors(fitted: type[Any], recipe: type[Any]) -> None:
    """Let model files hold your own base predictors, under their names.

    A model file holds arrays and no code: before it is read, the code that calls this function must be imported.

    Parameters
    ----------
    fitted : class
        A fitted family: `BasePredictors`, with a class attribute `kind`, its name in model files, and a class method
        ``from_arrays(spec, arrays)`` that undoes ``to_arrays()``. A subclass of `FittedFamily` has both methods.
    recipe : class
        Its recipe: a dataclass whose fields are numbers, text, booleans or None.

    Examples
    --------
    >>> @dataclass(frozen=True, eq=False, kw_only=True)
    ... class FittedSines(FittedFamily):
    ...     kind = "sines"
    ...
    ...     def _predict(self, rows, out):
    ...         out[...] = np.sin(rows)
    ...
    ...     def describe(self, j, feature_names=None):
    ...         return f"sin({feature_name(j, feature_names)})"
    >>> @dataclass(frozen=True)
    ... class Sines:
    ...     coupling: float = 1.0
    ...
    ...     def fit(self, X):
    ...         D = np.shape(X)[1]
    ...         return FittedSines(n_features=D, coupling=np.full(D, self.coupling))
    >>> register_predictors(FittedSines, Sines)
    >>> predictors_from_arrays(*Sines().fit([[1.0, 2.0]]).to_arrays()).describe(1)
    'sin(x1)'
    """
    kind = getattr(fitted, "kind", None)
    if not isinstance(kind, str) or not hasattr(fitted, "from_arrays"):
        raise TypeError(f"{fitted.__name__} must have a name for files, `kind`, and a class method `from_arrays`")
    if not is_dataclass(recipe):
        raise TypeError(f"{recipe.__name__} must be a dataclass: its fields are stored")
    REGISTERED[kind] = fitted
    REGISTERED_RECIPES[recipe.__name__] = recipe
