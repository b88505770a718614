"""One user's comparison of two targets: the mean of its background neighbours, or of the peers its evidence favours.

The user splits its own rows into folds. On the rows outside a fold it weights the peers by evidence and solves its
block towards either mean; the log-likelihood of the fold's rows tells which of the two is better. The sum of these
differences over folds is the user's gain. A population goes over to evidence if the gains of its users add up to more
than two standard errors.
"""

from __future__ import annotations

import math

import numpy as np

from dada.core.block_steps import SOLVED_PART, solve_block, stay_inside
from dada.core.compiled import Array, kernel
from dada.core.graph_steps import keep_best, log_evidence
from dada.core.model_steps import ModelSettings, StepScratch, UserModel

# Standard errors by which evidence must be ahead.
CLEARLY_AHEAD = 2.0


def prefers_evidence(gains: Array) -> bool:
    """Whether the gains of users add up to more than two standard errors of their sum.

    >>> prefers_evidence(np.array([1.0, 1.2, 0.9])), prefers_evidence(np.array([1.0, -1.0, 0.5]))
    (True, False)
    """
    return bool(gains.sum() > CLEARLY_AHEAD * gains.std() * math.sqrt(gains.size))


@kernel
def evidence_weights(
    settings: ModelSettings, rows: UserModel, models: Array, sizes: Array, tau: float, most: int
) -> Array:
    """Weights of peers' models, of `sizes` samples each, by their evidence on one user's rows; `most` are positive."""
    n = models.shape[1]
    every = np.arange(n)
    scores, weights = np.empty(len(models)), np.empty(len(models))
    for c in range(len(models)):
        scores[c] = log_evidence(tau, settings.loss, rows, models[c], every, n, sizes[c])
    keep_best(scores, most, weights)
    return weights


@kernel
def rows_at(rows: UserModel, chosen: Array) -> UserModel:
    """Some rows of a user, with a model of its own at zero."""
    weights = rows.sample_weight[chosen] if rows.sample_weight.size > 0 else rows.sample_weight
    offset = rows.offset[chosen]
    zero = np.zeros_like(rows.alpha)
    return UserModel(rows.A[chosen], offset.copy(), zero, zero.copy(), np.zeros_like(rows.support), offset, weights)


@kernel
def held_out_score(
    settings: ModelSettings,
    confidence: float,
    target: Array,
    rows: UserModel,
    held_out: UserModel,
    most_moves: int,
    scratch: StepScratch,
) -> float:
    """Log-likelihood of held-out rows after solving a user's block on its other rows, from and towards a target."""
    number = target.dtype.type
    mass = np.abs(target.astype(np.float64)).sum()
    shrink = min(1.0, settings.beta / mass) if mass > 0.0 else 1.0
    n_support = 0
    for j in range(target.size):
        rows.neighbour_sum[j] = target[j]
        rows.alpha[j] = number(shrink * target[j])
        if rows.alpha[j] != 0.0:
            rows.support[n_support] = j
            n_support += 1
    for i in range(rows.margins.size):
        margin = np.float64(rows.offset[i])
        for p in range(n_support):
            margin += np.float64(rows.A[i, rows.support[p]]) * rows.alpha[rows.support[p]]
        rows.margins[i] = number(margin)
    stay_inside(settings.beta, rows, n_support)
    n_support = solve_block(settings, confidence, 1.0, rows, n_support, most_moves, SOLVED_PART, scratch)
    return log_evidence(1.0, settings.loss, held_out, rows.alpha, rows.support, n_support, 1)


@kernel
def evidence_gain(
    settings: ModelSettings,
    confidence: float,
    rows: UserModel,
    fold: Array,
    background: Array,
    models: Array,
    sizes: Array,
    tau: float,
    most: int,
    most_moves: int,
    scratch: StepScratch,
) -> float:
    """Gain of one user from evidence among peers' models over the background mean, summed over its held-out rows.

    Row i is held out in fold number ``fold[i]``, never if that is negative. `most` peers have a say, each block gets at
    most `most_moves` moves.
    """
    gain = 0.0
    target = np.empty_like(background)
    for f in range(fold.max() + 1):
        chosen = np.flatnonzero(fold != f)
        if chosen.size == 0 or chosen.size == fold.size:
            continue
        own, held_out = rows_at(rows, chosen), rows_at(rows, np.flatnonzero(fold == f))
        weights = evidence_weights(settings, own, models, sizes, tau, most)
        for j in range(target.size):
            total = 0.0
            for c in range(len(models)):
                total += weights[c] * models[c, j]
            target[j] = total
        gain += held_out_score(settings, confidence, target, own, held_out, most_moves, scratch)
        gain -= held_out_score(settings, confidence, background, own, held_out, most_moves, scratch)
    return gain
