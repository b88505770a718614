"""Trees as peers grow them: each user alone, over thresholds that all have agreed on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dada.data import BasePredictors, FeatureSummary, Population, Stumps, Trees
from dada.data.predictors.families import FittedUnion
from dada.data.predictors.thresholds import LEAF_STEPS, UNSPLIT, FittedTrees
from dada.fitting.trees import LEAST_ROWS, Grove, binned
from dada.peer.grove import NO_SPLIT, AtomArrays, AtomTerms, Orchard, Plot, name_of
from dada.peer.inputs import TREE_COUPLING
from dada.task import user_rows


def agreed_cuts(recipe: Trees, summary: FeatureSummary) -> NDArray[np.float64]:
    """Thresholds of trees, shape (features, cuts): quantiles of merged summaries."""
    placed = Stumps(per_feature=recipe.cuts).fit_summary(summary, lambda stumps: np.zeros(0))
    return placed.threshold.reshape(-1, recipe.cuts)


def terms_of(recipe: Trees, cuts: NDArray[np.float64]) -> AtomTerms:
    """What the trees of a network have in common."""
    n_features, n_cuts = cuts.shape
    return AtomTerms(n_features, n_cuts, recipe.depth, recipe.per_user)


def grow_atoms(
    recipe: Trees, user: Population, cuts: NDArray[np.float64], rng: np.random.Generator
) -> tuple[bytes, ...]:
    """Trees of one user, on bootstrap samples of its own rows; none if they are too few, or all alike.

    Examples
    --------
    >>> user = Population.from_arrays([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1], ["ann"] * 4)
    >>> recipe, cuts = Trees(depth=1, per_user=3, cuts=3), np.array([[0.5, 1.5, 2.5]])
    >>> atoms = grow_atoms(recipe, user, cuts, np.random.default_rng(0))
    >>> 1 <= len(atoms) <= 3, {len(atom) for atom in atoms}
    (True, {5})
    """
    if user.n_rows < 2 * LEAST_ROWS or not (user.X.min(axis=0) < user.X.max(axis=0)).any():
        return ()
    grove = Grove(recipe, user, None, rng)
    grove.cuts, grove.bins = cuts, binned(user.X, cuts)
    trees = grove.proposals()[0].distinct()
    return tuple(_arrays(trees, cuts).write())


def _arrays(trees: FittedTrees, cuts: NDArray[np.float64]) -> AtomArrays:
    is_split = trees.threshold < UNSPLIT
    # A threshold is one of its feature's; of equal ones, the first.
    cut = (cuts[trees.feature] < trees.threshold[:, :, None]).sum(axis=2)
    feature = np.where(is_split, trees.feature, 0)
    leaf = np.rint(trees.leaf * LEAF_STEPS).astype(np.int8)
    return AtomArrays(feature.astype(np.uint16), np.where(is_split, cut, NO_SPLIT).astype(np.uint8), leaf)


def fitted_trees(terms: AtomTerms, cuts: NDArray[np.float64], atoms: Sequence[bytes]) -> FittedTrees:
    """Atoms as base predictors; nobody owns them.

    Examples
    --------
    >>> atom = AtomArrays(np.array([[0]]), np.array([[1]]), np.array([[127, -127]])).write()
    >>> trees = fitted_trees(AtomTerms(1, 2, depth=1, per_user=1), np.array([[0.5, 1.5]]), atom)
    >>> trees.predict([[1.5], [1.6]]).tolist()
    [[1.0], [-1.0]]
    """
    feature, cut, leaf = terms.read(atoms)
    is_split = cut != NO_SPLIT
    threshold = np.where(is_split, cuts[feature, np.where(is_split, cut, 0)], UNSPLIT)
    owner, coupling = np.full(len(atoms), -1, np.int32), np.full(len(atoms), TREE_COUPLING)
    return FittedTrees(
        feature.astype(np.int32), threshold, leaf / LEAF_STEPS, owner, n_features=terms.n_features, coupling=coupling
    )


def plot_of(user: Population, fixed: BasePredictors, cuts: NDArray[np.float64], grown: Sequence[bytes] = ()) -> Plot:
    """The samples of one user and its trees, as its peer needs them."""
    rows = user_rows(fixed.predict(user.X), user.y, user.n_classes, user.weights)
    signs = user_rows(np.ones((user.n_rows, 1), np.float32), user.y, user.n_classes).A
    return Plot(rows, signs, binned(user.X, cuts), tuple(grown))


def grown_orchard(
    recipe: Trees, fixed: BasePredictors, people: Population, rng: np.random.Generator
) -> tuple[Orchard, FittedUnion, NDArray[np.float32]]:
    """The trees of all users, all base predictors in the order of peers, and their predictions of the training rows.

    Examples
    --------
    >>> from dada.data import Linear, xor
    >>> people = xor(0, n_users=3).train
    >>> recipe, rng = Trees(per_user=2), np.random.default_rng(0)
    >>> orchard, predictors, predictions = grown_orchard(recipe, Linear().fit(people.X), people, rng)
    >>> len(orchard.plots), predictions.shape == (people.n_rows, predictors.n)
    (3, True)
    """
    cuts = agreed_cuts(recipe, FeatureSummary.of_users(people.X, people.row_start))
    users = [people.select([k]) for k in range(people.n_users)]
    grown = [grow_atoms(recipe, user, cuts, own) for user, own in zip(users, rng.spawn(len(users)), strict=True)]
    plots = tuple(plot_of(user, fixed, cuts, atoms) for user, atoms in zip(users, grown, strict=True))
    orchard = Orchard(terms_of(recipe, cuts), plots, cuts)
    by_name = {name_of(atom): atom for atoms in grown for atom in atoms}
    order = [by_name[name] for name in orchard.names]
    predictors = FittedUnion((fixed, fitted_trees(orchard.terms, cuts, order)))
    predictions = predictors.predict(people.X).astype(np.float32)
    for k, atoms in enumerate(grown):
        is_own = np.isin(np.arange(predictors.n), [fixed.n + j for j, atom in enumerate(order) if atom in atoms])
        predictions[people.user_rows(k), is_own] = 0
    return orchard, predictors, predictions
