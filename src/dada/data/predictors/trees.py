"""Small decision trees that users grow on rows and share as base predictors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, Self

import numpy as np

from dada.data.predictors.families import FittedFamily, check_coupling, feature_name, stored

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
