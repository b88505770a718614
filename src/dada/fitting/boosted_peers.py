"""Boosted trees as peers grow them: users' rows for peers, and peers' leaves as base predictors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.data import BasePredictors, BoostedTrees, FeatureSummary, Population, Trees
from dada.data.predictors.thresholds import UNSPLIT, FittedLeaves
from dada.fitting.atoms import agreed_cuts
from dada.fitting.boosting import Boosted, with_leaves
from dada.fitting.trees import binned
from dada.peer.boosted_trees import BoostedRows, BoostedTerms, BoostedUsers, LeafModel

# Boosted trees of peers: fewer than those of a fit, which take a larger step each.
PEER_TREES = BoostedTrees(rounds=100, rate=0.3)


def boosted_terms(recipe: BoostedTrees, cuts: NDArray[np.float64], n_classes: int) -> BoostedTerms:
    """What the boosted trees of a network have in common."""
    if recipe.spread != 1.0:
        raise ValueError(
            f"peers grow boosted trees out of order, so `own` cannot change from tree to tree: set spread=1, "
            f"got {recipe.spread}"
        )
    n_features, n_cuts = cuts.shape
    return BoostedTerms(
        n_features, n_cuts, n_classes, recipe.rounds, recipe.depth, recipe.own, recipe.rate, recipe.share
    )


def boosted_rows(user: Population, cuts: NDArray[np.float64]) -> BoostedRows:
    """The samples of one user, as its peer needs them."""
    return BoostedRows(binned(user.X, cuts), user.y, user.weights)


def boosted_users(recipe: BoostedTrees, people: Population) -> BoostedUsers:
    """The samples of all users, with thresholds at quantiles of their merged summaries.

    Examples
    --------
    >>> from dada.data import xor
    >>> users = boosted_users(BoostedTrees(cuts=7), xor(0, n_users=3).train)
    >>> len(users.rows), users.cuts.shape[1]
    (3, 7)
    """
    cuts = agreed_cuts(Trees(cuts=recipe.cuts), FeatureSummary.of_users(people.X, people.row_start))
    rows = tuple(boosted_rows(people.select([k]), cuts) for k in range(people.n_users))
    return BoostedUsers(boosted_terms(recipe, cuts, people.n_classes), rows, cuts)


def fitted_leaves(terms: BoostedTerms, cuts: NDArray[np.float64], trees: Sequence[bytes]) -> FittedLeaves:
    """The leaves of some trees as base predictors."""
    arrays = [terms.read(tree) for tree in trees]
    feature, cut = (np.stack(parts) for parts in ([one.feature for one in arrays], [one.cut for one in arrays]))
    threshold = np.where(cut >= 0, cuts[feature, np.maximum(cut, 0)], UNSPLIT)
    return FittedLeaves.of(feature.astype(np.int32), threshold, terms.n_features)


def with_boosted(
    predictors: BasePredictors,
    models: NDArray[Any],
    terms: BoostedTerms,
    cuts: NDArray[np.float64],
    leaves: Mapping[int, LeafModel],
) -> tuple[BasePredictors, NDArray[Any]]:
    """Base predictors with the leaves of all trees behind, and each user's weighted mean of both models.

    Users who hold no trees, and of those who hold some the trees that they lack, have values of 0.

    Examples
    --------
    >>> from dada.data import Constant
    >>> terms = BoostedTerms(n_features=1, n_cuts=1, n_classes=2, depth=1, share=0.25)
    >>> tree = terms.write(1, np.array([0]), np.array([0]), np.array([[0], [0]]))
    >>> own = LeafModel((tree,), (np.array([[1.0], [-1.0]]),))
    >>> with_boosted(Constant().fit([[0.0]]), np.array([[4.0]]), terms, np.array([[0.5]]), {0: own})[1].tolist()
    [[3.0, 0.25, -0.25]]
    """
    order = terms.in_order([tree for own in leaves.values() for tree in own.trees])
    if not order:
        return predictors, models
    place = {tree: t for t, tree in enumerate(order)}
    values = np.zeros((len(models), terms.n_outputs, len(order), terms.n_nodes + 1), np.float32)
    for k, own in leaves.items():
        for tree, of_tree in zip(own.trees, own.values, strict=True):
            values[k, :, place[tree]] = of_tree.T
    found = Boosted(
        fitted_leaves(terms, cuts, order), values.reshape(len(models), -1), np.zeros((0, terms.n_outputs)), 0, True
    )
    return with_leaves(predictors, models, found, terms.share, terms.n_outputs)
