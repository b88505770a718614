"""Boosting with personal leaves: a network grows trees one after the other, and every user has its own leaf values.

At every round a random pool of users grows a small tree on what all models so far leave to learn. At each node the
users of the pool vote for a feature, each by its own rows, and send histograms of the features with most votes; the
best split serves their common leaf values and those of each. The tree and the pool's values of its leaves reach
everybody. Each user then moves these values towards its own rows,

    v_k = v + (G_k - v H_k) / (H_k + own),

with the sums G_k of residuals and H_k of their weights of its rows in the leaf, and adds a share of them to its model.
So trees are learned together, users with few rows keep the values of others, and no user sends its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dada.core.boosting import (
    LEAF_BITS,
    LEAF_UNIT,
    LEAST_OF_POOL,
    MOST_KEPT,
    MOST_OF_SUMS,
    PULL_BITS,
    ROWS_OF_POOL,
    ROWS_TO_SPLIT,
    SHRINKAGE,
    SUM_BITS,
    UNIT_BITS,
    WEIGHT_BITS,
    add_histogram,
    add_leaf_sums,
    add_own_leaves,
    add_rounded,
    best_split,
    favourite,
    leaves_of,
    most_voted,
    n_tested_of,
    pool_values,
    pull_and_weight,
)
from dada.core.compiled import Array, kernel
from dada.data import BoostedTrees, FeatureSummary, Population, Recipe, Stumps, Union
from dada.data.predictors.families import BasePredictors, FittedUnion
from dada.data.predictors.thresholds import UNSPLIT, FittedLeaves
from dada.engine.runner import ctrl_c
from dada.fitting.trees import binned
from dada.task import n_blocks

# Rounds after which the boosted models are compared on held-out rows.
ROUNDS = (25, 50, 100, 150, 200, 300, 500, 800)


def boosted_of(recipe: Any) -> tuple[BoostedTrees | None, Recipe]:
    """The boosted trees of a recipe and the rest of it.

    >>> from dada.data import Constant
    >>> boosted_of(Union(Constant(), BoostedTrees()))[1]
    Union(recipes=(Constant(coupling=1.0),))
    """
    parts = recipe.recipes if isinstance(recipe, Union) else (recipe,)
    boosted = [part for part in parts if isinstance(part, BoostedTrees)]
    if not boosted:
        return None, recipe
    rest = [part for part in parts if not isinstance(part, BoostedTrees)]
    if len(boosted) > 1 or not rest:
        raise ValueError(
            "BoostedTrees go once beside other base predictors, whose models they improve: "
            "predictors=Union(Linear(), BoostedTrees())"
        )
    return boosted[0], Union(*rest)


class Boosted(NamedTuple):
    """Leaves as base predictors, a model of their values for every user, and what it took.

    Models have a block of weights per class, if there are more than two. `values` are the decision values of the
    training rows, a column per block; `bits` those of all messages. Without `is_whole`, Ctrl-C has ended the run.
    """

    leaves: FittedLeaves
    models: NDArray[np.float32]
    values: NDArray[np.float64]
    bits: int
    is_whole: bool


def boost(recipe: BoostedTrees, population: Population, rng: np.random.Generator) -> Boosted:
    """Grow all trees. The first Ctrl-C ends it early.

    Examples
    --------
    >>> X, users = np.tile([[0.0], [1.0]], (8, 1)), np.repeat(["ann", "bob"], 8)
    >>> people = Population.from_arrays(X, (X[:, 0] > 0) == (users == "ann"), users)
    >>> found = boost(BoostedTrees(rounds=5, depth=1, cuts=1), people, np.random.default_rng(0))
    >>> np.sign(found.models[:, :2]).tolist()
    [[-1.0, 1.0], [1.0, -1.0]]
    """
    grower, is_whole = Grower(recipe, population, rng), True
    # A block of all leaves for each output.
    models = np.zeros((population.n_users, grower.n_outputs, recipe.rounds, 2**recipe.depth), np.float32)
    with ctrl_c() as interrupted:
        for t in range(recipe.rounds):
            models[:, :, t] = grower.grow().transpose(0, 2, 1)
            if interrupted():
                is_whole = False
                break
    feature, cut = np.array(grower.features), np.array(grower.tests)
    threshold = np.where(cut >= 0, grower.cuts[feature, np.maximum(cut, 0)], UNSPLIT)
    leaves = FittedLeaves.of(feature.astype(np.int32), threshold, population.n_features)
    return Boosted(leaves, models.reshape(population.n_users, -1), grower.values, grower.bits, is_whole)


def boosted_values(
    recipe: BoostedTrees, learned: Population, held_out: Population, rng: np.random.Generator
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Rounds, and decision values of held-out rows of the same users after them."""
    grower = Grower(recipe, learned, rng)
    bins, values = binned(held_out.X, grower.cuts), np.zeros((held_out.n_rows, grower.n_outputs))
    for number in range(1, recipe.rounds + 1):
        own = grower.grow()
        values += own[held_out.owners, leaves_of(bins, grower.features[-1], grower.tests[-1])]
        if number in ROUNDS:
            yield number, values[:, 0].copy() if grower.n_outputs == 1 else values.copy()


def with_leaves(
    predictors: BasePredictors, models: NDArray[Any], boosted: Boosted, share: float, n_outputs: int
) -> tuple[BasePredictors, NDArray[Any]]:
    """Base predictors with the leaves behind, and the weighted mean of the models on the former and on the latter.

    >>> from dada.data import Constant
    >>> leaves = FittedLeaves.of(np.array([[0]]), np.array([[0.5]]), n_features=1)
    >>> boosted = Boosted(leaves, np.array([[1.0, -1.0]]), values=np.zeros((1, 1)), bits=0, is_whole=True)
    >>> with_leaves(Constant().fit([[0.0]]), np.array([[4.0]]), boosted, 0.25, 1)[1].tolist()
    [[3.0, 0.25, -0.25]]
    """
    parts = predictors.parts if isinstance(predictors, FittedUnion) else (predictors,)
    blocks = zip(np.split(models, n_outputs, axis=1), np.split(boosted.models, n_outputs, axis=1), strict=True)
    both = [np.concatenate([(1 - share) * coupled, share * own], axis=1) for coupled, own in blocks]
    return FittedUnion((*parts, boosted.leaves)), np.concatenate(both, axis=1).astype(models.dtype)


class Grower:
    """Trees of a population so far, and what models leave to learn."""

    def __init__(self, recipe: BoostedTrees, population: Population, rng: np.random.Generator) -> None:
        self.recipe, self.population, self.rng = recipe, population, rng
        summary = FeatureSummary.of_users(population.X, population.row_start)
        placed = Stumps(per_feature=recipe.cuts).fit_summary(summary, lambda stumps: np.zeros(0))
        self.cuts = distinct_first(placed.threshold.reshape(population.n_features, recipe.cuts))
        self.bins = binned(population.X, self.cuts)
        self.varying = np.flatnonzero(summary.high > summary.low)
        self.n_outputs = n_blocks(population)
        self.values = np.zeros((population.n_rows, self.n_outputs))
        # Features and cuts of all trees, and bits of all messages.
        self.features: list[NDArray[np.int64]] = []
        self.tests: list[NDArray[np.int64]] = []
        self.bits = 0

    def grow(self) -> NDArray[np.float64]:
        """Grow a tree and add it to all models; its leaf values, of shape (users, leaves, outputs).

        Its tests suit the residuals of one class, the next in turn; its leaves have values for all.
        """
        recipe, population, n_nodes = self.recipe, self.population, 2**self.recipe.depth - 1
        pull, weight = pull_and_weight(population.y, population.n_classes, self.values, population.weights)
        n_tested = n_tested_of(self.varying.size)
        tested = np.stack([self.rng.choice(self.varying, n_tested, replace=False) for _ in range(n_nodes)])
        pool = self._pool()
        rows, starts = rows_of(population, pool)
        output, own = len(self.features) % self.n_outputs, recipe.own_of(len(self.features))
        feature, cut = np.zeros(n_nodes, np.int64), np.full(n_nodes, -1)
        bins = self.bins[rows]
        of_output = pull[rows, output], weight[rows, output]
        grow_by_votes(bins, starts, *of_output, tested, MOST_KEPT, SHRINKAGE, own, feature, cut)
        G, W = sums_of_pool(bins, starts, pull[rows], weight[rows], feature, cut)
        shared = pool_values(G, W) * LEAF_UNIT
        values = np.empty((population.n_users, n_nodes + 1, self.n_outputs))
        add_leaves(
            self.bins, population.row_start, pull, weight, feature, cut, shared, own, recipe.rate, values,
            self.values,
        )  # fmt: skip
        self.features.append(feature)
        self.tests.append(cut)
        self.bits += self._message_bits(pool, n_tested)
        return values

    def _pool(self) -> NDArray[np.intp]:
        """Random users with enough rows for a tree; the first grows it."""
        order = self.rng.permutation(self.population.n_users)
        enough = int(np.searchsorted(np.cumsum(self.population.sizes[order]), ROWS_OF_POOL)) + 1
        return order[: max(enough, LEAST_OF_POOL)]

    def _message_bits(self, pool: NDArray[np.intp], n_tested: int) -> int:
        """Bits of a tree: votes, names of kept features, histograms and sums of the pool, and the tree for everybody.

        A histogram has all bins of a node, or as many filled bins as rows, with their numbers; and two units.
        """
        n_nodes, n_leaves, bins = 2**self.recipe.depth - 1, 2**self.recipe.depth, self.recipe.cuts + 1
        name = (self.population.n_features - 1).bit_length()
        kept, votes = min(n_tested, MOST_KEPT), name if n_tested > MOST_KEPT else 0
        rows, levels = self.population.sizes[pool[1:], None], np.arange(self.recipe.depth)
        number = PULL_BITS + WEIGHT_BITS
        filled = rows * (number + (bins - 1).bit_length() + levels)
        histograms = np.minimum(filled, number * bins * 2**levels).sum() + 2 * UNIT_BITS * n_nodes * (pool.size - 1)
        sums = 2 * (SUM_BITS * n_leaves + UNIT_BITS) * self.n_outputs
        of_pool = (pool.size - 1) * (n_nodes * (votes + kept * name) + sums) + kept * int(histograms)
        tree = n_nodes * (name + self.recipe.cuts.bit_length()) + LEAF_BITS * n_leaves * self.n_outputs
        return of_pool + (self.population.n_users - 1) * tree


def distinct_first(cuts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The different thresholds of each feature, and infinity in place of the others: few values then fill few bins.

    >>> distinct_first(np.array([[0.0, 1.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0]])).tolist()
    [[0.0, 1.0, 2.0, inf], [1.0, inf, inf, inf]]
    """
    repeated = np.diff(cuts, axis=1, prepend=-np.inf) == 0
    return np.sort(np.where(repeated, np.inf, cuts), axis=1)


def rows_of(population: Population, users: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """The rows of some users, and where each user's begin among them, with the end of the last."""
    starts = np.append(0, np.cumsum(population.sizes[users]))
    rows = np.arange(starts[-1]) + np.repeat(population.row_start[users] - starts[:-1], np.diff(starts))
    return rows, starts


@kernel
def add_leaves(
    bins: Array,
    row_start: Array,
    pull: Array,
    weight: Array,
    feature: Array,
    cut: Array,
    shared: Array,
    own: float,
    rate: float,
    values: Array,
    margins: Array,
) -> None:
    """Write every user's leaf values, times the rate, and add them to the decision values of its rows."""
    G, W = np.zeros(shared.shape), np.zeros(shared.shape)
    for k in range(row_start.size - 1):
        first, last = row_start[k], row_start[k + 1]
        reached = leaves_of(bins[first:last], feature, cut)
        of_user = pull[first:last], weight[first:last]
        add_own_leaves(reached, *of_user, shared, own, rate, G, W, values[k], margins[first:last])


@kernel
def sums_of_pool(bins: Array, starts: Array, pull: Array, weight: Array, feature: Array, cut: Array) -> Array:
    """Sums of residuals and of weights in each leaf, of shape (2, leaves, outputs): users' rounded sums."""
    sums = np.zeros((2, feature.size + 1, pull.shape[1]))
    of_user = np.empty_like(sums)
    for u in range(starts.size - 1):
        first, last = starts[u], starts[u + 1]
        of_user[:] = 0.0
        reached = leaves_of(bins[first:last], feature, cut)
        add_leaf_sums(reached, pull[first:last], weight[first:last], of_user[0], of_user[1])
        for part in range(2):
            for c in range(pull.shape[1]):
                add_rounded(of_user[part, :, c], 0, feature.size, MOST_OF_SUMS, sums[part, :, c])
    return sums


@kernel
def grow_by_votes(
    bins: Array,
    starts: Array,
    pull: Array,
    weight: Array,
    tested: Array,
    most_kept: int,
    shrinkage: float,
    own: float,
    feature: Array,
    cut: Array,
) -> None:
    """Write features and cuts (-1: no split) of a tree that a pool of users grows.

    User u has the rows starts[u]:starts[u+1]. At every node each votes for the feature with the largest gain on its
    rows; the split is the best of the features with most votes, by all users' rounded histograms.
    """
    n_rows, n_users, n_tested = bins.shape[0], starts.size - 1, tested.shape[1]
    at, rows, ends = np.zeros(n_rows, np.int64), np.empty(n_rows, np.int64), np.zeros(n_users + 1, np.int64)
    n_bins = int(bins.max()) + 1
    own_G, own_W = np.zeros(n_bins), np.zeros(n_bins)
    G, W = np.zeros((n_users, n_bins)), np.zeros((n_users, n_bins))
    n_kept = min(n_tested, most_kept)
    votes, kept = np.zeros(n_tested, np.int64), np.zeros(n_kept, np.int64)
    for node in range(feature.size):
        # The rows in the node, user by user.
        m = 0
        for u in range(n_users):
            for i in range(starts[u], starts[u + 1]):
                if at[i] == node:
                    rows[m] = i
                    m += 1
            ends[u + 1] = m
        if m >= ROWS_TO_SPLIT:
            if n_tested > n_kept:
                votes[:] = 0
                for u in range(n_users):
                    of_user = rows[ends[u] : ends[u + 1]]
                    place = favourite(bins, of_user, pull, weight, tested[node], shrinkage, own_G, own_W)
                    if place >= 0:
                        votes[place] += 1
                most_voted(votes, tested[node], kept)
            else:
                kept[:] = tested[node]
            best = 0.0
            for p in range(n_kept):
                G[:], W[:] = 0.0, 0.0
                for u in range(n_users):
                    of_user = rows[ends[u] : ends[u + 1]]
                    add_histogram(bins, of_user, kept[p], pull, weight, own_G, own_W, G[u], W[u])
                gain, where = best_split(G, W, shrinkage, own)
                if gain > best:
                    best, feature[node], cut[node] = gain, kept[p], where
        for i in rows[:m]:
            goes_right = cut[node] >= 0 and bins[i, feature[node]] > cut[node]
            at[i] = 2 * node + (2 if goes_right else 1)
