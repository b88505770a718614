"""Neighbours by evidence: user k weighs l by how well l's model does on k's own samples.

    w_kl proportional to m_l exp(-tau sum_i log(1 + exp(-margin of l's model on k's sample i))),   the r largest kept

The distance of two models says little where both come from a handful of samples; a model that does well on my samples
is worth learning from whatever its coordinates. The rule needs nobody's reported loss or degree, and it is directed:
I may learn from someone who has nothing to learn from me.
"""

from __future__ import annotations

import math

import numpy as np

from dada.core.compiled import Array, lean_kernel
from dada.core.emphasis import emphasis_of
from dada.core.losses import HUBER, SQUARED, LossCode, logistic_value, point_value
from dada.core.model_steps import UserModel


@lean_kernel
def log_evidence(
    tau: float, loss: LossCode, judge: UserModel, alpha: Array, support: Array, n_support: int, size: int
) -> float:
    """log of the unnormalised weight of a model from `size` samples, judged on one user's samples.

    Models are judged by the logistic loss of their margins, whatever loss they were made with: it grows slowly enough
    not to let one sample decide. In regression they are judged by the loss itself. Samples count by their weights.
    """
    is_regression = loss.code == SQUARED or loss.code == HUBER
    A = judge.A
    total = 0.0
    for i in range(A.shape[0]):
        margin = np.float64(judge.offset[i])
        for p in range(n_support):
            q = support[p]
            margin += np.float64(A[i, q]) * alpha[q]
        value = point_value(loss, margin) if is_regression else logistic_value(margin)
        total += emphasis_of(judge.emphasis, i) * value
    return math.log(size) - tau * total


@lean_kernel
def keep_best(scores: Array, most: int, weights: Array) -> None:
    """Weights that sum to one over the `most` best scores (the earlier on ties), zero elsewhere."""
    for c in range(scores.size):
        better = 0
        for other in range(scores.size):
            if scores[other] > scores[c] or (scores[other] == scores[c] and other < c):
                better += 1
        weights[c] = 0.0 if better >= most else 1.0
    highest = -np.inf
    for c in range(scores.size):
        highest = max(highest, scores[c])
    total = 0.0
    for c in range(scores.size):
        if weights[c] > 0.0:
            weights[c] = math.exp(scores[c] - highest)
            total += weights[c]
    for c in range(scores.size):
        weights[c] /= total
