"""Base predictors that compare features with thresholds: stumps, trees that users grow and share, and their leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NoReturn, Self

import numpy as np

from dada.data.population import as_features
from dada.data.predictors.families import (
    INT8,
    FeatureSummary,
    FittedFamily,
    check_coupling,
    check_rows,
    feature_name,
    stored,
)

ThresholdRule = Literal["quantile", "feature-range", "global-range"]
RULES = ("quantile", "feature-range", "global-range")


@dataclass(frozen=True)
class Stumps:
    """Decision stumps spread evenly over the features.

    Parameters
    ----------
    n : int, optional
        Number of stumps, spread over the features as evenly as possible; the first features get one more. By default
        `per_feature` for every feature.
    per_feature : int
        Stumps per feature when `n` is not given.
    rule : {"quantile", "feature-range", "global-range"}
        Where the T thresholds of a feature lie. ``"quantile"``: at its quantiles (t + 1) / (T + 1), between two data
        values. ``"feature-range"``: at lo + (t + 1) (hi - lo) / T of its own range, so the last stump is always +1.
        ``"global-range"``: the same with one range over all features, as the authors of the method did.
    drop_duplicates : bool
        Leave out stumps that predict the same as an earlier one, or the exact opposite, on every fitting row.
    coupling : float
        Coupling omega of the stumps' weights to the neighbours' weights.

    Examples
    --------
    >>> stumps = Stumps(n=3, rule="quantile").fit(np.array([[0.0, 5.0], [1.0, 7.0], [2.0, 9.0]]))
    >>> [stumps.describe(j) for j in range(stumps.n)]
    ['x0 <= 0.5', 'x0 <= 1.5', 'x1 <= 6']
    >>> stumps.predict(np.array([[1.0, 9.0]]))
    array([[-1,  1, -1]], dtype=int8)
    """

    n: int | None = None
    per_feature: int = 10
    rule: ThresholdRule = "quantile"
    drop_duplicates: bool = False
    coupling: float = 1.0

    def __post_init__(self) -> None:
        check_coupling(self.coupling)
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        if self.n is not None and self.n < 1:
            raise ValueError(f"n must be at least 1 (stumps in all), got {self.n}")
        if self.per_feature < 1:
            raise ValueError(f"per_feature must be at least 1, got {self.per_feature}")

    def fit(self, X: Any) -> FittedStumps:
        """Place the thresholds on the rows of X."""
        rows, _ = as_features(X)
        low, high = rows.min(axis=0), rows.max(axis=0)
        points = (np.unique(column, return_counts=True) for column in rows.T)
        rng = np.random.default_rng(len(rows))
        return self._placed(len(rows), low, high, points, lambda stumps: stumps.marks(rows, rng))

    def fit_summary(self, summary: FeatureSummary, marks: Callable[[FittedStumps], np.ndarray]) -> FittedStumps:
        """Place the thresholds by users' merged summaries: as `fit` to all rows does, if the summary is exact.

        With ``drop_duplicates=True``, `marks` must return the sum of all users' `FittedStumps.marks`, which identifies
        duplicate stumps.

        Examples
        --------
        >>> ann, bob = np.array([[0.0], [1.0]]), np.array([[2.0]])
        >>> summary = FeatureSummary.of(ann).merged(FeatureSummary.of(bob))
        >>> Stumps(n=2).fit_summary(summary, marks=lambda stumps: np.zeros(0)).threshold.tolist()
        [0.5, 1.5]
        """
        return self._placed(summary.count, summary.low, summary.high, summary.points, marks)

    def _placed(
        self,
        n_rows: int,
        low: np.ndarray,
        high: np.ndarray,
        points: Iterable[tuple[np.ndarray, np.ndarray]],
        marks: Callable[[FittedStumps], np.ndarray],
    ) -> FittedStumps:
        """Stumps on features with these ranges and points."""
        D, counts = len(low), self._counts(len(low))
        if self.rule == "quantile":
            thresholds = [_quantile_cuts(*own, T) for own, T in zip(points, counts, strict=True) if T]
        else:
            lows, highs = (low, high) if self.rule == "feature-range" else ([low.min()] * D, [high.max()] * D)
            thresholds = [np.linspace(lows[d], highs[d], T + 1)[1:] for d, T in enumerate(counts) if T]
        feature = np.repeat(np.arange(D, dtype=np.int32), counts)
        threshold = np.concatenate(thresholds)
        if not np.any((low[feature] <= threshold) & (threshold < high[feature])):
            raise ValueError(
                f"none of the {len(threshold)} stumps separates two of the {n_rows} rows: features are "
                f"constant, or have too few thresholds each for rule {self.rule!r}. "
                "Give features that vary, or a larger n"
            )
        coupling = np.full(len(threshold), float(self.coupling))
        fitted = FittedStumps(feature, threshold, n_features=D, coupling=coupling)
        return fitted.without_repeats(marks(fitted)) if self.drop_duplicates else fitted

    def _counts(self, n_features: int) -> list[int]:
        if self.n is None:
            return [self.per_feature] * n_features
        each, rest = divmod(self.n, n_features)
        return [each + (d < rest) for d in range(n_features)]


@dataclass(frozen=True, eq=False)
class FittedStumps(FittedFamily):
    """Stumps with their thresholds: predictor j is +1 where ``x[feature[j]] <= threshold[j]``, else -1."""

    kind = "stumps"
    shapes = (("feature", "n"), ("threshold", "n"))
    dtype = INT8

    feature: np.ndarray
    threshold: np.ndarray

    def _predict(self, rows: np.ndarray, out: np.ndarray) -> None:
        below = np.take(rows, self.feature, axis=1) <= self.threshold
        np.multiply(below.view(np.int8), 2, out=out)
        out -= 1

    def marks(self, X: Any, rng: np.random.Generator) -> np.ndarray:
        """Additive fingerprint of each stump's predictions, which identifies duplicates without access to rows.

        Each row draws random bits; the mark of a stump is their sum with the signs of its predictions, modulo 2**64.
        Stumps that agree on all rows of all users have equal sums of marks, and opposite stumps have negated sums.
        """
        rows = check_rows(X, self.n_features)
        bits = rng.integers(2**63, size=len(rows), dtype=np.uint64)
        below = np.empty(self.n, np.uint64)
        for d in np.unique(self.feature):
            column = np.ascontiguousarray(rows[:, d])
            for j in np.flatnonzero(self.feature == d):
                below[j] = (bits * (column <= self.threshold[j])).sum(dtype=np.uint64)
        return below + below - bits[:, None].sum(axis=0, dtype=np.uint64)

    def without_repeats(self, marks: np.ndarray) -> FittedStumps:
        """The stumps that neither duplicate nor negate an earlier one, by the sum of all users' marks."""
        # A stump and its opposite get one key.
        _, first = np.unique(np.minimum(marks, -marks), return_index=True)
        return self.take(np.sort(first))

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe the test of stump j, as in ``"age <= 30"``."""
        return f"{feature_name(int(self.feature[j]), feature_names)} <= {self.threshold[j]:.6g}"


def _quantile_cuts(values: np.ndarray, counts: np.ndarray, T: int) -> np.ndarray:
    """Thresholds nearest to the T interior quantiles that fall between two distinct values, given ascending."""
    if len(values) == 1:
        return np.full(T, values[0])
    gaps = np.cumsum(counts)
    wanted = np.arange(1, T + 1) * gaps[-1] / (T + 1)
    gaps = gaps[:-1]
    right = np.clip(np.searchsorted(gaps, wanted), 1, max(1, len(gaps) - 1))
    left, right = right - 1, np.minimum(right, len(gaps) - 1)
    cut = np.where(wanted - gaps[left] <= gaps[right] - wanted, left, right)
    below, above = values[cut], values[cut + 1]
    middle = below / 2 + above / 2
    # Between neighbouring floats there is no middle; the lower value still separates the two.
    return np.where((middle >= below) & (middle < above), middle, below)


DEEPEST = 6
# Values of leaves are whole multiples of 1 / LEAF_STEPS, so that a leaf is a byte.
LEAF_STEPS = 127
# Threshold of a node that does not split: every row goes left.
UNSPLIT = float(np.finfo(np.float64).max)
PARTS = ("feature", "threshold", "leaf", "owner", "coupling")


@dataclass(frozen=True)
class Trees:
    """Small trees grown by the users themselves, each a base predictor of everybody.

    At first every user grows trees on bootstrap samples of its own rows. A tree predicts 0 on the training rows of its
    owner, which would otherwise recognise the labels it has memorised: only other users' rows give it a weight. In
    later rounds trees are grown for the neighbourhoods of the graph, on what the models so far get wrong.

    Parameters
    ----------
    per_user : int
        Trees that each user grows on its own rows.
    depth : int
        Tests on the way to a leaf, at most 6.
    rounds : int
        Rounds of trees for neighbourhoods.
    per_neighbourhood : int
        Trees that each neighbourhood grows in a round.
    most : int
        Bound on the trees of a round; beyond it every user grows fewer, and in a large population a sample of users.
    cuts : int
        Thresholds per feature to choose from: quantiles from the merged summaries of all users, at most 255.
    coupling : float
        Coupling omega of the trees' weights to the neighbours' weights.

    Examples
    --------
    >>> from dada import DadaClassifier, Union, Linear
    >>> X = np.random.default_rng(0).uniform(-1, 1, (80, 2))
    >>> users, y = np.repeat(["ann", "bob"], 40), X[:, 0] * X[:, 1] > 0
    >>> model = DadaClassifier(Union(Trees(per_user=20), Linear()), random_state=0).fit(X, y, users=users)
    >>> model.score(X, y, users=users) > 0.9
    True
    """

    per_user: int = 30
    depth: int = 3
    rounds: int = 1
    per_neighbourhood: int = 5
    most: int = 1000
    cuts: int = 31
    coupling: float = 1.0

    def __post_init__(self) -> None:
        check_coupling(self.coupling)
        for name, most in (("per_user", 0), ("depth", DEEPEST), ("per_neighbourhood", 0), ("most", 0), ("cuts", 255)):
            value = getattr(self, name)
            if value < 1 or (most and value > most):
                raise ValueError(f"{name} must be at least 1{f' and at most {most}' if most else ''}, got {value}")
        if self.rounds < 0:
            raise ValueError(f"rounds must be >= 0, got {self.rounds}")

    def fit(self, X: Any) -> NoReturn:
        """Raise TypeError: trees are grown on labels and users, which only a fit of an estimator has."""
        raise TypeError("trees need labels and users: give Trees to DadaClassifier or DadaRegressor as predictors")


@dataclass(frozen=True, eq=False)
class FittedTrees(FittedFamily):
    """Complete binary trees: a row goes left at node s if ``x[feature[j, s]] <= threshold[j, s]``.

    The children of node s are 2 s + 1 and 2 s + 2. `owner` is the position of the user on whose rows a tree was grown,
    or -1 if it was grown on the rows of a neighbourhood.
    """

    feature: np.ndarray
    threshold: np.ndarray
    leaf: np.ndarray
    owner: np.ndarray

    kind = "trees"

    @property
    def depth(self) -> int:
        """Tests on the way to a leaf."""
        return int(self.leaf.shape[1]).bit_length() - 1

    def _predict(self, rows: np.ndarray, out: np.ndarray) -> None:
        tree, row = np.arange(self.n), np.arange(len(rows))[:, None]
        node = np.zeros((len(rows), self.n), np.intp)
        for _ in range(self.depth):
            above = rows[row, self.feature[tree, node]] > self.threshold[tree, node]
            node = 2 * node + 1 + above
        out[:] = self.leaf[tree, node - (self.leaf.shape[1] - 1)]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Hash of each tree's content: equal trees have equal names, whoever grew them."""
        values = np.rint(self.leaf * LEAF_STEPS).astype(np.int8)
        parts = (self.feature.astype("<i4"), self.threshold.astype("<f8"), values)
        return tuple(
            hashlib.sha256(b"".join(np.ascontiguousarray(part[j]).tobytes() for part in parts)).hexdigest()[:16]
            for j in range(self.n)
        )

    def message_bits(self, cuts: int) -> int:
        """Bits of one tree in a message: a feature and one of the agreed cuts for every node, a byte for every leaf."""
        of_node = (self.n_features - 1).bit_length() + cuts.bit_length()
        return int(self.feature.shape[1] * of_node + 8 * self.leaf.shape[1])

    def take(self, kept: np.ndarray) -> Self:
        """Some of the trees."""
        parts = {name: getattr(self, name)[kept] for name in PARTS}
        return type(self)(**parts, n_features=self.n_features)

    def joined(self, other: Self) -> Self:
        """These trees and others of the same depth."""
        both = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in PARTS}
        return type(self)(**both, n_features=self.n_features)

    def distinct(self) -> Self:
        """The trees without those that equal an earlier one; equal trees of several owners belong to the first."""
        first = {name: j for j, name in reversed([*enumerate(self.names)])}
        return self.take(np.array(sorted(first.values()), np.intp))

    def without(self, known: Self) -> Self:
        """The trees that are not among the known ones."""
        names = frozenset(known.names)
        return self.take(np.array([j for j, name in enumerate(self.names) if name not in names], np.intp))

    def features_of(self, j: int) -> np.ndarray:
        """The features that tree j tests."""
        return np.unique(self.feature[j][self.threshold[j] < UNSPLIT])

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe tree j in words: its value for every combination of tests."""
        cases = [
            f"{value:+.2f} if {' and '.join(tests)}" for tests, value in self._paths(j, 0, (), feature_names) if tests
        ]
        return f"tree {self.names[j][:6]}: {'; '.join(cases) or format(self.leaf[j, 0], '+.2f')}"

    def _paths(
        self, j: int, node: int, tests: tuple[str, ...], names: Sequence[str] | None
    ) -> list[tuple[tuple[str, ...], float]]:
        n_nodes = self.feature.shape[1]
        if node >= n_nodes:
            return [(tests, float(self.leaf[j, node - n_nodes]))]
        threshold = self.threshold[j, node]
        if threshold >= UNSPLIT:
            return self._paths(j, 2 * node + 1, tests, names)
        name = feature_name(int(self.feature[j, node]), names)
        below, above = (f"{name} {sign} {threshold:.4g}" for sign in ("<=", ">"))
        left = self._paths(j, 2 * node + 1, (*tests, below), names)
        return left + self._paths(j, 2 * node + 2, (*tests, above), names)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-able description and the arrays that together rebuild this object."""
        spec, arrays = super().to_arrays()
        values = np.rint(self.leaf * LEAF_STEPS).astype(np.int8)
        parts = {"feature": self.feature, "threshold": self.threshold, "leaf": values, "owner": self.owner}
        return {**spec, "depth": self.depth}, {**arrays, **{name: part.ravel() for name, part in parts.items()}}

    @classmethod
    def from_arrays(cls, spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Rebuild the trees from the result of `to_arrays`, checking each array."""
        D, depth, coupling = spec.get("n_features"), spec.get("depth"), stored(arrays, "coupling")
        if not isinstance(D, int) or not isinstance(depth, int) or D < 1 or not 1 <= depth <= DEEPEST:
            raise ValueError(
                f"stored trees must have a feature or more and a depth of 1 to {DEEPEST}, got {D!r} and {depth!r}: "
                "the file is damaged"
            )
        n, leaves = len(coupling), 2**depth
        feature = stored(arrays, "feature", (n, leaves - 1))
        leaf, owner = stored(arrays, "leaf", (n, leaves)), stored(arrays, "owner", (n,))
        if coupling.min() < 0 or feature.min() < 0 or feature.max() >= D or abs(leaf).max() > LEAF_STEPS:
            raise ValueError(
                f"stored trees must have couplings >= 0, features 0..{D - 1} and leaves of at most {LEAF_STEPS}, got "
                f"{coupling.min()}, {feature.min()}..{feature.max()} and {abs(leaf).max()}: the file is damaged"
            )
        parts = {"feature": feature, "threshold": stored(arrays, "threshold", (n, leaves - 1))}
        return cls(**parts, leaf=leaf / LEAF_STEPS, owner=owner.astype(np.int32), n_features=D, coupling=coupling)


@dataclass(frozen=True)
class BoostedTrees:
    """Small trees that a network grows one after the other; every user has leaves of its own.

    A random pool of users grows each tree on what all models so far leave to learn. Every user then moves the value of
    each leaf from that of the pool towards what its own rows ask for. This needs no further message. The leaves are
    base predictors beside others, whose models are learned before.

    Parameters
    ----------
    rounds : int
        Number of trees.
    depth : int
        Tests on the way to a leaf, at most 6.
    own : float
        Weight of the pool's value of a leaf against the user's own rows: with as many rows a user's value lies in the
        middle. With infinity all users have the same values. A row of classes p and 1 - p counts p (1 - p).
    spread : float
        Trees take turns in this weight: own / spread^2, own / spread, own, own * spread, own * spread^2. Their sum is
        as good as with the best single weight, which then need not be found. With 1 all trees have the same weight.
    rate : float
        Share of each tree that is added to the models.
    share : float
        Share of the boosted models in decision values, in (0, 1); the rest is that of the models on the other base
        predictors.
    cuts : int
        Thresholds per feature to choose from: quantiles from the merged summaries of all users, at most 255.

    Examples
    --------
    >>> from dada import DadaClassifier, Union, Linear
    >>> X = np.random.default_rng(0).uniform(-1, 1, (80, 2))
    >>> users, y = np.repeat(["ann", "bob"], 40), X[:, 0] * X[:, 1] > 0
    >>> model = DadaClassifier(Union(Linear(), BoostedTrees(rounds=40)), random_state=0).fit(X, y, users=users)
    >>> model.score(X, y, users=users) > 0.9
    True
    """

    rounds: int = 500
    depth: int = 2
    own: float = 3.0
    spread: float = 1.0
    rate: float = 0.1
    share: float = 0.5
    cuts: int = 31

    def __post_init__(self) -> None:
        for name, most in (("rounds", 0), ("depth", DEEPEST), ("cuts", 255)):
            value = getattr(self, name)
            if value < 1 or (most and value > most):
                raise ValueError(f"{name} must be at least 1{f' and at most {most}' if most else ''}, got {value}")
        if not self.own > 0:
            raise ValueError(f"own must be > 0 (infinity: all users have the same leaves), got {self.own}")
        if not 1 <= self.spread < np.inf:
            raise ValueError(f"spread must be at least 1 and finite, got {self.spread}")
        for name, is_open in (("rate", False), ("share", True)):
            value = getattr(self, name)
            if not (0 < value < 1 or (value == 1 and not is_open)):
                raise ValueError(f"{name} must be > 0 and {'<' if is_open else '<='} 1, got {value}")

    def own_of(self, number: int) -> float:
        """The weight of the pool's values in the tree of this number.

        >>> [BoostedTrees(own=9.0, spread=3.0).own_of(number) for number in range(6)]
        [1.0, 3.0, 9.0, 27.0, 81.0, 1.0]
        """
        return float(self.own * self.spread ** (number % 5 - 2))

    def fit(self, X: Any) -> NoReturn:
        """Raise TypeError: trees are grown on labels and users, which only a fit of an estimator has."""
        raise TypeError("trees need labels and users: give BoostedTrees to DadaClassifier or DadaRegressor")


@dataclass(frozen=True, eq=False)
class FittedLeaves(FittedFamily):
    """Leaves of complete binary trees: predictor j is 1 for the rows that tree ``tree[j]`` sends to leaf ``place[j]``.

    A row goes left at node s of tree t if ``x[feature[t, s]] <= threshold[t, s]``, as in `FittedTrees`.
    """

    tree: np.ndarray
    place: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray

    kind = "leaves"
    dtype = INT8

    @classmethod
    def of(cls, feature: np.ndarray, threshold: np.ndarray, n_features: int) -> Self:
        """All leaves of some trees, tree by tree.

        >>> leaves = FittedLeaves.of(np.array([[0]]), np.array([[0.5]]), n_features=1)
        >>> leaves.predict([[0.0], [1.0]]).tolist()
        [[1, 0], [0, 1]]
        """
        T, n_leaves = len(feature), feature.shape[1] + 1
        tree, place = np.repeat(np.arange(T, dtype=np.int32), n_leaves), np.tile(np.arange(n_leaves, dtype=np.int32), T)
        return cls(tree, place, feature, threshold, n_features=n_features, coupling=np.ones(T * n_leaves))

    @property
    def depth(self) -> int:
        """Tests on the way to a leaf."""
        return int(self.feature.shape[1] + 1).bit_length() - 1

    def _predict(self, rows: np.ndarray, out: np.ndarray) -> None:
        used, own = np.unique(self.tree, return_inverse=True)
        reached = leaves_reached(rows, self.feature[used], self.threshold[used])
        out[:] = reached[:, own] == self.place

    def take(self, kept: np.ndarray) -> Self:
        """Some of the leaves."""
        return replace(self, tree=self.tree[kept], place=self.place[kept], coupling=self.coupling[kept])

    def tests_of(self, j: int) -> list[tuple[int, float, bool]]:
        """Feature, threshold, and whether the value lies above it, of each test on the way to leaf j."""
        node, tests = int(self.place[j]) + self.feature.shape[1], []
        t = int(self.tree[j])
        while node:
            parent = (node - 1) // 2
            if self.threshold[t, parent] < UNSPLIT:
                above = node == 2 * parent + 2
                tests.append((int(self.feature[t, parent]), float(self.threshold[t, parent]), above))
            node = parent
        return tests[::-1]

    def describe(self, j: int, feature_names: Sequence[str] | None = None) -> str:
        """Describe leaf j by the tests on the way to it, as in ``"age <= 30 and size > 2"``."""
        tests = [
            f"{feature_name(d, feature_names)} {'>' if above else '<='} {threshold:.4g}"
            for d, threshold, above in self.tests_of(j)
        ]
        return " and ".join(tests) or "always"

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-able description and the arrays that together rebuild this object."""
        spec, arrays = super().to_arrays()
        parts = {name: getattr(self, name).ravel() for name in ("tree", "place", "feature", "threshold")}
        return {**spec, "depth": self.depth}, {**arrays, **parts}

    @classmethod
    def from_arrays(cls, spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Rebuild the leaves from the result of `to_arrays`, checking each array."""
        D, n_nodes = depth_of(spec)
        coupling, threshold = stored(arrays, "coupling"), stored(arrays, "threshold")
        T, n = len(threshold) // n_nodes, len(coupling)
        tree, place = (stored(arrays, name, (n,)).astype(np.int32) for name in ("tree", "place"))
        feature = stored(arrays, "feature", (T, n_nodes))
        ends = ((tree, T), (place, n_nodes + 1), (feature, D))
        if coupling.min() < 0 or any(values.min() < 0 or values.max() >= end for values, end in ends):
            raise ValueError(
                f"stored leaves must have couplings >= 0, trees below {T}, places up to {n_nodes} and features below "
                f"{D}: the file is damaged"
            )
        return cls(tree, place, feature, stored(arrays, "threshold", (T, n_nodes)), n_features=D, coupling=coupling)


def leaves_reached(rows: np.ndarray, feature: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """The leaf that each row reaches in each of some complete binary trees, shape (rows, trees)."""
    n_nodes = feature.shape[1]
    tree, row = np.arange(len(feature)), np.arange(len(rows))[:, None]
    node = np.zeros((len(rows), len(feature)), np.intp)
    while n_nodes:
        above = rows[row, feature[tree, node]] > threshold[tree, node]
        node = 2 * node + 1 + above
        n_nodes //= 2
    return node - feature.shape[1]


def depth_of(spec: Mapping[str, Any]) -> tuple[int, int]:
    """Number of features and of nodes of stored trees."""
    D, depth = spec.get("n_features"), spec.get("depth")
    if not isinstance(D, int) or not isinstance(depth, int) or D < 1 or not 1 <= depth <= DEEPEST:
        raise ValueError(
            f"stored trees must have a feature or more and a depth of 1 to {DEEPEST}, got {D!r} and {depth!r}: "
            "the file is damaged"
        )
    return D, 2**depth - 1
