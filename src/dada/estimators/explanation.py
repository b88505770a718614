"""What models use: the part of every feature in decision values, summed back to the columns of the table.

A model is a weighted sum of base predictors. If these use one feature each, a decision value is a sum of one function
per feature. Trees and waves of two features make it depend on features together: there the part of a feature is how
decision values vary with it in typical rows. Functions are evaluated at quantiles of the features, as base predictors
know them: from thresholds, or from mean and standard deviation. This needs no rows, so models from files are explained
as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dada.data.predictors.families import BasePredictors, FittedFamily, parts_of
from dada.data.predictors.linear import FEW_FEATURES, FittedConstant, FittedFourier, FittedLinear
from dada.data.predictors.thresholds import UNSPLIT, FittedLeaves, FittedStumps, FittedTrees

Floats = NDArray[np.float64]
# Quantiles at which importances are measured, and the two between which effects are.
SHARES = (np.arange(20) + 0.5) / 20
LOW, HIGH = 0.1, 0.9


class FeatureEffect(NamedTuple):
    """How a decision value changes when one feature rises from `low` to `high`.

    `column` is the column of the table and `feature` the number made of it: itself, or for text one of its levels,
    which rises from 0 (another level) to 1. `label` is the class whose decision value changes, None for numbers, whose
    `effect` is in units of the target. Of several users, `effect` is the mean and `agreement` the share whose effect
    has the same sign.
    """

    column: str
    feature: str
    label: Any
    low: float
    high: float
    effect: float
    agreement: float


class Part(NamedTuple):
    """Base predictors of one kind: how many there are (of boosted trees, trees), and their share in decision values."""

    kind: str
    number: int
    share: float


class Node(NamedTuple):
    """A test of a tree: the feature, its threshold, and what follows for rows up to it and above it.

    A leaf is a number: how much it adds to the decision value.
    """

    feature: int
    threshold: float
    below: Node | float
    above: Node | float


class PersonalTree(NamedTuple):
    """A boosted tree with the leaf values of one model, and the block of decision values that it adds to."""

    root: Node | float
    block: int


class References(NamedTuple):
    """Values of every feature at `SHARES`, of shape (20, D), and its low and high value, of shape (2, D)."""

    values: Floats
    ends: Floats


def uses_of(predictors: BasePredictors) -> NDArray[np.bool_]:
    """Which features each base predictor uses, shape (n, features).

    >>> from dada.data import Constant, Linear, Union
    >>> uses_of(Union(Linear(), Constant()).fit(np.array([[0.0, 5.0], [1.0, 7.0]]))).tolist()
    [[True, False], [False, True], [False, False]]
    """
    return np.concatenate([_uses(part) for part in parts_of(predictors)])


def _uses(part: BasePredictors) -> NDArray[np.bool_]:
    uses, each = np.zeros((part.n, part.n_features), bool), np.arange(part.n)
    if isinstance(part, FittedLinear | FittedStumps):
        uses[each, part.feature] = True
    elif isinstance(part, FittedTrees):
        tree, node = np.nonzero(part.threshold < UNSPLIT)
        uses[tree, part.feature[tree, node]] = True
    elif isinstance(part, FittedLeaves):
        for j in range(part.n):
            uses[j, [d for d, _, _ in part.tests_of(j)]] = True
    elif isinstance(part, FittedFourier) and np.count_nonzero(part.directions, axis=0).max() <= FEW_FEATURES:
        uses = part.directions.T != 0
    elif not isinstance(part, FittedConstant):
        raise AttributeError(
            f"effects of features need base predictors of few features each (linear, stumps, constant, trees, waves of "
            f"two features), got {type(part).__name__}: use sklearn.inspection.permutation_importance"
        )
    return uses


def references(predictors: BasePredictors) -> References:
    """Typical values of the features, as the base predictors know them."""
    values, ends = np.zeros((SHARES.size, predictors.n_features)), np.zeros((2, predictors.n_features))
    moments: dict[int, tuple[float, float]] = {}
    cuts: dict[int, set[float]] = {}
    of_trees: dict[int, set[float]] = {}
    for part in parts_of(predictors):
        if isinstance(part, FittedLinear):
            each = zip(part.feature.tolist(), part.mean.tolist(), part.std.tolist(), strict=True)
            moments |= {d: (mean, std) for d, mean, std in each}
        if isinstance(part, FittedStumps | FittedTrees | FittedLeaves):
            found = cuts if isinstance(part, FittedStumps) else of_trees
            for d, threshold in zip(part.feature.ravel().tolist(), part.threshold.ravel().tolist(), strict=True):
                if threshold < UNSPLIT:
                    found.setdefault(d, set()).add(threshold)
    cuts |= {d: own for d, own in of_trees.items() if d not in moments and d not in cuts}
    unknown = np.flatnonzero(uses_of(predictors).any(axis=0) & ~np.isin(np.arange(values.shape[1]), [*moments, *cuts]))
    if unknown.size:
        raise AttributeError(
            f"waves do not know typical values of feature {unknown[0]}: fit them next to Linear(), or use "
            "sklearn.inspection.permutation_importance"
        )
    for d in sorted({*moments, *cuts}):
        mean, std = moments.get(d, (np.nan, np.nan))
        if abs(std**2 - mean * (1 - mean)) < 1e-9:
            # Only values 0 and 1, such as levels, have this variance.
            values[:, d], ends[:, d] = 1 - mean < SHARES, (0, 1)
        elif d in cuts:
            values[:, d], ends[:, d] = (_between(sorted(cuts[d]), at) for at in (SHARES, np.array([LOW, HIGH])))
        else:
            values[:, d], ends[:, d] = (mean + std * ndtri(at) for at in (SHARES, np.array([LOW, HIGH])))
    return References(values, ends)


def _between(cuts: list[float], shares: Floats) -> Floats:
    """Quantiles of a feature whose thresholds divide its rows into equal parts."""
    steps = np.diff(cuts) if len(cuts) > 1 else np.ones(1)
    knots = [cuts[0] - steps[0], *cuts, cuts[-1] + steps[-1]]
    return np.interp(shares, np.linspace(0, 1, len(knots)), knots)


def contributions(predictors: BasePredictors, models: NDArray[Any]) -> Floats:
    """Mean absolute deviation of decision values as one feature varies, over typical rows and the models.

    Of models without interactions, that of each feature's part of the decision values.
    """
    typical, blocks = references(predictors).values, _blocks(predictors, models)
    found = np.zeros(predictors.n_features)
    for d, own, h in _varied(predictors, typical, typical):
        # Only what varies matters.
        h -= h.mean(axis=1, keepdims=True)
        found[d] = sum(np.abs(h @ block[:, own].T).mean() for block in blocks)
    return found


def parts(predictors: BasePredictors, models: NDArray[Any]) -> list[Part]:
    """The kinds of base predictors, the largest share first: how much decision values vary with each.

    A share is the mean absolute deviation over typical rows and the models, relative to the sum over all kinds.
    """
    rows, start = _mixed(references(predictors).values), 0
    count, part_of = dict[str, int](), dict[str, float]()
    for part in parts_of(predictors):
        own = np.arange(start, start + part.n)
        start += part.n
        h = _predictions(predictors, own, rows)
        h -= h.mean(axis=0)
        varies = sum(float(np.abs(h @ block[:, own].T).mean()) for block in _blocks(predictors, models))
        kind = str(getattr(part, "kind", type(part).__name__))
        count[kind] = count.get(kind, 0) + (np.unique(part.tree).size if isinstance(part, FittedLeaves) else part.n)
        part_of[kind] = part_of.get(kind, 0.0) + varies
    total = sum(part_of.values()) or 1.0
    return sorted((Part(kind, count[kind], part_of[kind] / total) for kind in count), key=lambda one: -one.share)


def typical_values(predictors: BasePredictors, models: NDArray[Any]) -> Floats:
    """Decision values of every model on typical rows, of shape (blocks of classes, rows, users)."""
    h = _predictions(predictors, np.arange(predictors.n), _mixed(references(predictors).values))
    return np.stack([h @ block.T for block in _blocks(predictors, models)])


def strongest_tree(predictors: BasePredictors, model: NDArray[Any]) -> PersonalTree | None:
    """The boosted tree whose leaves differ most in one model; None without boosted trees.

    >>> leaves = FittedLeaves.of(np.array([[0], [1]]), np.array([[0.5], [2.0]]), n_features=2)
    >>> strongest_tree(leaves, np.array([0.1, 0.2, -1.0, 0.3])).root
    Node(feature=1, threshold=2.0, below=-1.0, above=0.3)
    """
    start, best, spread = 0, None, 0.0
    for part in parts_of(predictors):
        if isinstance(part, FittedLeaves):
            for number, block in enumerate(_blocks(predictors, model[None])):
                own = block[0, start : start + part.n]
                n_trees = int(part.tree.max()) + 1
                high, low = np.full(n_trees, -np.inf), np.full(n_trees, np.inf)
                np.maximum.at(high, part.tree, own)
                np.minimum.at(low, part.tree, own)
                t = int(np.argmax(high - low))
                if high[t] - low[t] > spread:
                    values = np.zeros(part.feature.shape[1] + 1)
                    values[part.place[part.tree == t]] = own[part.tree == t]
                    best, spread = PersonalTree(_node(part, t, 0, values), number), float(high[t] - low[t])
        start += part.n
    return best


def _node(leaves: FittedLeaves, t: int, at: int, values: Floats) -> Node | float:
    """A node of a tree and what follows; nodes without a test are left out."""
    n_nodes = leaves.feature.shape[1]
    if at >= n_nodes:
        return float(values[at - n_nodes])
    below = _node(leaves, t, 2 * at + 1, values)
    threshold = float(leaves.threshold[t, at])
    if threshold >= UNSPLIT:
        return below
    return Node(int(leaves.feature[t, at]), threshold, below, _node(leaves, t, 2 * at + 2, values))


def effects(predictors: BasePredictors, models: NDArray[Any]) -> Floats:
    """Change of decision values, of shape (blocks of classes, users, features), as features rise from low to high.

    Of interactions, the mean over typical rows.
    """
    rises = np.zeros((predictors.n, predictors.n_features))
    for d, own, h in _varied(predictors, *references(predictors)):
        rises[own, d] = (h[:, 1] - h[:, 0]).mean(axis=0)
    return np.stack([block @ rises for block in _blocks(predictors, models)])


def _varied(
    predictors: BasePredictors, typical: Floats, values: Floats
) -> Iterator[tuple[int, NDArray[np.intp], Floats]]:
    """Each feature in use, the base predictors that use it, and their predictions, shape (rows, values, predictors).

    A row takes all values of the feature in turn. Its other features have typical values, combined at random; a single
    row is enough where no other feature matters.
    """
    uses, mixed = uses_of(predictors), _mixed(typical)
    for d in np.flatnonzero(uses.any(axis=0)).tolist():
        own = np.flatnonzero(uses[:, d])
        rows = mixed if uses[own].sum() > own.size else mixed[:1]
        rows = np.repeat(rows[:, None], len(values), axis=1)
        rows[:, :, d] = values[:, d]
        h = _predictions(predictors, own, rows.reshape(-1, rows.shape[2]))
        yield d, own, h.reshape(*rows.shape[:2], own.size)


def _mixed(typical: Floats) -> Floats:
    """Typical rows: typical values of the features, combined at random."""
    return np.column_stack([np.random.default_rng(d).permutation(column) for d, column in enumerate(typical.T)])


def _predictions(predictors: BasePredictors, chosen: NDArray[np.intp], rows: Floats) -> Floats:
    """Predictions of some base predictors, in ascending order."""
    found, start = [], 0
    for part in parts_of(predictors):
        own = chosen[(chosen >= start) & (chosen < start + part.n)] - start
        if own.size and isinstance(part, FittedFamily):
            found.append(part.take(own).predict(rows).astype(np.float64))
        start += part.n
    return np.concatenate(found, axis=1)


def _blocks(predictors: BasePredictors, models: NDArray[Any]) -> list[Floats]:
    n_blocks = models.shape[1] // predictors.n
    return [np.asarray(block, np.float64) for block in np.split(models, n_blocks, axis=1)]
