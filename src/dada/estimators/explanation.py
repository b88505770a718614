"""What models use: the part of every feature in decision values, summed back to the columns of the table.

A model is a weighted sum of base predictors of one feature each, so a decision value is a sum of one function per
feature. The functions are evaluated at quantiles of the features, as base predictors know them: from the thresholds of
stumps, or from mean and standard deviation. This needs no rows, so models from files are explained as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dada.data.predictors.families import BasePredictors, FittedUnion
from dada.data.predictors.linear import FittedConstant, FittedLinear
from dada.data.predictors.stumps import FittedStumps

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


class References(NamedTuple):
    """Values of every feature at `SHARES`, of shape (20, D), and its low and high value, of shape (2, D)."""

    values: Floats
    ends: Floats


def features_of(predictors: BasePredictors) -> NDArray[np.int64]:
    """The feature of each base predictor; -1 for a constant.

    >>> from dada.data import Constant, Linear, Union
    >>> features_of(Union(Linear(), Constant()).fit(np.array([[0.0, 5.0], [1.0, 7.0]]))).tolist()
    [0, 1, -1]
    """
    found = []
    for part in _parts(predictors):
        if isinstance(part, FittedLinear | FittedStumps):
            found.append(part.feature.astype(np.int64))
        elif isinstance(part, FittedConstant):
            found.append(np.full(part.n, -1))
        else:
            raise AttributeError(
                f"effects of features need base predictors of one feature each (stumps, linear, constant), got "
                f"{type(part).__name__}: use sklearn.inspection.permutation_importance"
            )
    return np.concatenate(found)


def _parts(predictors: BasePredictors) -> Iterator[BasePredictors]:
    if isinstance(predictors, FittedUnion):
        for part in predictors.parts:
            yield from _parts(part)
    else:
        yield predictors


def references(predictors: BasePredictors) -> References:
    """Typical values of the features, as the base predictors know them."""
    values, ends = np.zeros((SHARES.size, predictors.n_features)), np.zeros((2, predictors.n_features))
    moments: dict[int, tuple[float, float]] = {}
    cuts: dict[int, set[float]] = {}
    for part in _parts(predictors):
        if isinstance(part, FittedLinear):
            each = zip(part.feature.tolist(), part.mean.tolist(), part.std.tolist(), strict=True)
            moments |= {d: (mean, std) for d, mean, std in each}
        if isinstance(part, FittedStumps):
            for d, threshold in zip(part.feature.tolist(), part.threshold.tolist(), strict=True):
                cuts.setdefault(d, set()).add(threshold)
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
    """Mean absolute deviation of each feature's part of the decision values, over its typical values and the models."""
    feature, h = features_of(predictors), predictors.predict(references(predictors).values).astype(np.float64)
    # Only what varies matters.
    h -= h.mean(axis=0)
    found = np.zeros(predictors.n_features)
    for block in _blocks(predictors, models):
        for d in np.unique(feature[feature >= 0]).tolist():
            own = feature == d
            found[d] += np.abs(h[:, own] @ block[:, own].T).mean()
    return found


def effects(predictors: BasePredictors, models: NDArray[Any]) -> Floats:
    """Change of decision values, of shape (blocks of classes, users, features), as features rise from low to high."""
    feature, (low, high) = features_of(predictors), predictors.predict(references(predictors).ends).astype(np.float64)
    rises = np.zeros((predictors.n, predictors.n_features))
    varying = np.flatnonzero(feature >= 0)
    rises[varying, feature[varying]] = (high - low)[varying]
    return np.stack([block @ rises for block in _blocks(predictors, models)])


def _blocks(predictors: BasePredictors, models: NDArray[Any]) -> list[Floats]:
    n_blocks = models.shape[1] // predictors.n
    return [np.asarray(block, np.float64) for block in np.split(models, n_blocks, axis=1)]
