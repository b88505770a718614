"""Grow trees on rows of users or of neighbourhoods, by histograms over agreed thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.core.boosting import residuals_of
from dada.core.compiled import Array, kernel
from dada.core.graph import CollaborationGraph
from dada.data import BasePredictors, FeatureSummary, Population, Recipe, Stumps, Trees, Union
from dada.data.predictors.families import FittedUnion
from dada.data.predictors.thresholds import LEAF_STEPS, UNSPLIT, FittedTrees
from dada.task import training_predictions

# Rows of a bootstrap sample on either side of a test, at least.
LEAST_ROWS = 2
# Leaves are shrunk as if they held this weight of rows with target 0.
SHRINKAGE = 0.5
# Neighbours whose rows a tree uses at most, features whose histograms they send for a node, and bits of a number.
MOST_NEIGHBOURS, MOST_HISTOGRAMS, HISTOGRAM_BITS = 10, 8, 16


def binned(X: NDArray[np.float64], cuts: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The number of cuts below each value: ``x <= cuts[b]`` if and only if its bin is at most b."""
    bins = np.empty(X.shape, np.uint8)
    for d, own in enumerate(cuts):
        bins[:, d] = np.searchsorted(own, X[:, d], side="left")
    return bins


def residuals(
    population: Population, values: NDArray[np.float64] | None = None, most: float = 1.0
) -> NDArray[np.float64]:
    """What decision values leave to learn, of shape (rows, outputs): minus the gradient of the loss by decision value.

    Of classes, the difference between indicator and probability (of two classes, of the second); of numbers, the
    error, clipped to at most `most`. Without decision values, those of zero models.

    >>> people = Population.from_arrays([[0.0], [1.0]], [0, 1], ["ann", "ann"])
    >>> residuals(people).tolist()
    [[-0.5], [0.5]]
    """
    y, C = population.y, population.n_classes
    if values is None:
        values = np.zeros((len(y), C) if C > 2 else len(y))
    return residuals_of(y, C, values, most)


def trees_of(recipe: Any) -> tuple[Trees | None, Recipe | None]:
    """The trees of a recipe and the rest of it.

    >>> from dada.data import Constant
    >>> trees_of(Union(Constant(), Trees()))[1]
    Union(recipes=(Constant(coupling=1.0),))
    """
    parts = recipe.recipes if isinstance(recipe, Union) else (recipe,)
    trees = [part for part in parts if isinstance(part, Trees)]
    if not trees:
        return None, recipe
    if len(trees) > 1:
        raise ValueError(f"predictors must hold one Trees at most, got {len(trees)}: set its per_user and depth")
    rest = [part for part in parts if not isinstance(part, Trees)]
    return trees[0], Union(*rest) if rest else None


class Grove:
    """Trees of a population, next to fixed base predictors: what was grown and not forgotten.

    Parameters
    ----------
    recipe : Trees
    population : Population
    fixed : BasePredictors or None
        Base predictors that are numbered before the trees.
    rng : numpy.random.Generator
        Source of bootstrap samples, and of the features that each node may test.
    """

    def __init__(
        self, recipe: Trees, population: Population, fixed: BasePredictors | None, rng: np.random.Generator
    ) -> None:
        self.recipe, self.population, self.fixed, self.rng = recipe, population, fixed, rng
        summary = FeatureSummary.of_users(population.X, population.row_start)
        placed = Stumps(per_feature=recipe.cuts).fit_summary(summary, lambda stumps: np.zeros(0))
        self.cuts = placed.threshold.reshape(population.n_features, recipe.cuts)
        self.bins = binned(population.X, self.cuts)
        self.varying = np.flatnonzero(summary.high > summary.low)
        self.trees: FittedTrees | None = None
        self._of_fixed = np.zeros((population.n_rows, 0), np.float32)
        if fixed is not None:
            self._of_fixed = fixed.predict(population.X).astype(np.float32)
        self._of_trees = np.zeros((population.n_rows, 0), np.float32)

    @property
    def predictors(self) -> BasePredictors:
        """The fixed base predictors and the trees."""
        if self.trees is None:
            raise ValueError("no tree has been grown: call grow first")
        return self.trees if self.fixed is None else FittedUnion((self.fixed, self.trees))

    @property
    def predictions(self) -> NDArray[np.float32]:
        """Their predictions of the training rows, as `training_predictions` gives them."""
        return np.concatenate([self._of_fixed, self._of_trees], axis=1)

    def grow(self, values: NDArray[np.float64] | None = None, graph: CollaborationGraph | None = None) -> int:
        """Grow a round of trees and keep those that are new; parameters as in `proposals`.

        Returns
        -------
        Bits of the messages. Every new tree reaches every other user once. At each node of a tree for a neighbourhood,
        the neighbours send histograms of the features that the node may test.
        """
        trees, _, bits = self.proposals(values, graph)
        new = trees.distinct()
        new = new if self.trees is None else new.without(self.trees)
        if new.n:
            self._of_trees = np.concatenate([self._of_trees, training_predictions(self.population, new)], axis=1)
            self.trees = new if self.trees is None else self.trees.joined(new)
        return bits + new.n * (self.population.n_users - 1) * new.message_bits(self.recipe.cuts)

    def proposals(
        self, values: NDArray[np.float64] | None = None, graph: CollaborationGraph | None = None
    ) -> tuple[FittedTrees, NDArray[np.intp], int]:
        """Trees of a round, grouped by the user for whom they are grown, the output of each, and bits of histograms.

        Trees learn the outputs (classes, if there are more than two) in turn.

        Parameters
        ----------
        values : array, optional
            Decision values so far; by default those of zero models.
        graph : CollaborationGraph, optional
            Whose rows a user's trees use besides its own; by default nobody's.
        """
        K, recipe = self.population.n_users, self.recipe
        each = max(1, min(recipe.per_user if graph is None else recipe.per_neighbourhood, recipe.most // K))
        growers = np.arange(K) if K <= recipe.most else np.sort(self.rng.choice(K, recipe.most, replace=False))
        n_tested = min(len(self.varying), max(2, math.ceil(math.sqrt(len(self.varying)))))
        left = residuals(self.population, values)
        if graph is None:
            pools = [np.array([k]) for k in growers.tolist() for _ in range(each)]
            outputs = np.arange(len(pools)) % left.shape[1]
            return self._grown(left, outputs, pools, np.repeat(growers, each).astype(np.int32), n_tested), outputs, 0
        n_tested = min(n_tested, MOST_HISTOGRAMS)
        near = [np.append(k, graph.neighbours(k)[0][:MOST_NEIGHBOURS]).astype(np.intp) for k in growers.tolist()]
        bits = each * n_tested * sum(self._histogram_bits(users[1:]) for users in near)
        pools = [users for users in near for _ in range(each)]
        outputs = np.arange(len(pools)) % left.shape[1]
        # Nobody else's rows keep a tree of a user without neighbours from memorising.
        owners = np.repeat(np.where([len(users) > 1 for users in near], -1, growers), each).astype(np.int32)
        return self._grown(left, outputs, pools, owners, n_tested), outputs, bits

    def _histogram_bits(self, senders: NDArray[np.intp]) -> int:
        """Bits of the histograms of one feature for all nodes of a tree.

        A level has 2^level histograms of all bins, or as many filled bins as rows, with the number of each bin.
        """
        bins, rows = self.recipe.cuts + 1, self.population.sizes[senders]
        filled = rows * (2 * HISTOGRAM_BITS + (bins - 1).bit_length() + self.recipe.depth)
        dense = 2 * HISTOGRAM_BITS * bins * 2 ** np.arange(self.recipe.depth)
        return int(np.minimum(filled[:, None], dense).sum())

    def forget(self, models: NDArray[Any]) -> None:
        """Drop the trees that no model uses."""
        if self.trees is not None:
            n = self._of_fixed.shape[1] + self.trees.n
            used = (models.reshape(-1, n) != 0).any(axis=0)[-self.trees.n :]
            used[0] |= not used.any()
            self.trees, self._of_trees = self.trees.take(used), self._of_trees[:, used]

    def _grown(
        self,
        left: NDArray[np.float64],
        outputs: NDArray[np.intp],
        pools: Sequence[NDArray[np.intp]],
        owners: NDArray[np.int32],
        n_tested: int,
    ) -> FittedTrees:
        """A tree for each pool of users and its output, on a bootstrap sample of their rows."""
        T, n_nodes, rng, population = len(pools), 2**self.recipe.depth - 1, self.rng, self.population
        keys = rng.random((T, n_nodes, len(self.varying)), np.float32)
        tested = self.varying[np.argpartition(keys, n_tested - 1, axis=2)[:, :, :n_tested]].astype(np.int64)
        rows, counts = [], []
        for users in pools:
            own = np.concatenate([np.arange(population.row_start[k], population.row_start[k + 1]) for k in users])
            drawn = np.bincount(rng.integers(own.size, size=own.size), minlength=own.size)
            rows.append(own[drawn > 0])
            counts.append(drawn[drawn > 0].astype(np.float64))
        starts = np.cumsum([0, *(own.size for own in rows)])
        row, count = np.concatenate(rows), np.concatenate(counts)
        target = left[row, np.repeat(outputs, np.diff(starts))]
        given = 1.0 if population.weights is None else population.weights[row] / population.weights.mean()
        weight = count * given * (1.0 if population.n_classes == 0 else np.abs(target))
        shrinkage = SHRINKAGE * float(weight.mean()) + 1e-12
        feature, cut = np.zeros((T, n_nodes), np.int32), np.full((T, n_nodes), -1)
        leaf = np.zeros((T, n_nodes + 1))
        pull = count * given * target
        grow_trees(self.bins, row, starts, count, weight, pull, tested, shrinkage, feature, cut, leaf)
        threshold = np.where(cut >= 0, self.cuts[feature, np.maximum(cut, 0)], UNSPLIT)
        leaf = np.rint(np.clip(leaf, -1, 1) * LEAF_STEPS) / LEAF_STEPS
        coupling = np.full(T, float(self.recipe.coupling))
        return FittedTrees(feature, threshold, leaf, owners, n_features=population.n_features, coupling=coupling)


@kernel
def grow_trees(
    bins: Array,
    row: Array,
    starts: Array,
    count: Array,
    weight: Array,
    pull: Array,
    tested: Array,
    shrinkage: float,
    feature: Array,
    cut: Array,
    leaf: Array,
) -> None:
    """Write features, cuts (-1: no split) and leaves of trees that split greedily by the gain G^2 / (W + shrinkage).

    G and W are the sums of `pull` and `weight` in a node. Tree t learns from the entries starts[t]:starts[t+1].
    """
    n_nodes = feature.shape[1]
    G, W, N = np.zeros(256), np.zeros(256), np.zeros(256)
    for t in range(starts.size - 1):
        first, last = starts[t], starts[t + 1]
        at = np.zeros(last - first, np.int64)
        for node in range(n_nodes):
            g, w, m = 0.0, 0.0, 0.0
            for i in range(first, last):
                if at[i - first] == node:
                    g += pull[i]
                    w += weight[i]
                    m += count[i]
            best = 0.0
            if m >= 2 * LEAST_ROWS:
                for d in tested[t, node]:
                    G[:], W[:], N[:] = 0.0, 0.0, 0.0
                    for i in range(first, last):
                        if at[i - first] == node:
                            b = bins[row[i], d]
                            G[b] += pull[i]
                            W[b] += weight[i]
                            N[b] += count[i]
                    gl, wl, nl = 0.0, 0.0, 0.0
                    for b in range(255):
                        if N[b] == 0.0:
                            continue
                        gl += G[b]
                        wl += W[b]
                        nl += N[b]
                        if m - nl < LEAST_ROWS:
                            break
                        if nl >= LEAST_ROWS:
                            gain = gl * gl / (wl + shrinkage) + (g - gl) * (g - gl) / (w - wl + shrinkage)
                            if gain > best:
                                best = gain
                                feature[t, node] = d
                                cut[t, node] = b
            for i in range(first, last):
                if at[i - first] == node:
                    goes_right = cut[t, node] >= 0 and bins[row[i], feature[t, node]] > cut[t, node]
                    at[i - first] = 2 * node + (2 if goes_right else 1)
        leaves = np.zeros((2, n_nodes + 1))
        for i in range(first, last):
            leaves[0, at[i - first] - n_nodes] += pull[i]
            leaves[1, at[i - first] - n_nodes] += weight[i]
        for s in range(n_nodes + 1):
            leaf[t, s] = leaves[0, s] / (leaves[1, s] + shrinkage) if leaves[1, s] > 0 else 0.0
