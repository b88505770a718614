"""One user's update of the weights to a batch of peers (Eq. 5).

Both steps take, for each peer l of the batch, the pair cost a_l = c_k L_k + c_l L_l + (mu1/2) ||alpha_k - alpha_l||^2,
the current weight and the degree of l, and compute the new weights. They need no messages beyond the paper's.

The evidence rule weights a peer by how well its model fits the user's own samples: `log_evidence` and `keep_best`.
"""

from __future__ import annotations

import math

import numpy as np

from dada.core.compiled import Array, kernel, lean_kernel
from dada.core.losses import HUBER, SQUARED, LossCode, logistic_value, normalised_sample_weight, point_value
from dada.core.model_steps import UserModel
from dada.core.regularizers import (
    RegularizerCode,
    best_weight,
    degree_curvature,
    degree_slope,
    weight_slope,
)

LIPSCHITZ, EXACT = 0, 1
GRAPH_STEPS = {"lipschitz": LIPSCHITZ, "exact": EXACT}

# Smaller weights become zero: they change no model but cost memory and messages.
NEGLIGIBLE = 1e-12


@lean_kernel
def pair_cost(loss_k: float, loss_l: float, mu1: float, dist2: float) -> float:
    """a_l of Eq. (5): the cost of one unit of weight between k and l; losses are confidence-weighted."""
    return loss_k + loss_l + 0.5 * mu1 * dist2


@lean_kernel
def edge_gradient(reg: RegularizerCode, mu2: float, cost: float, w: float, degree_k: float, degree_l: float) -> float:
    """dh/dw_kl, Eq. (5)."""
    return cost + mu2 * (weight_slope(reg, w) + degree_slope(reg, degree_k) + degree_slope(reg, degree_l))


@lean_kernel
def lipschitz_step(
    reg: RegularizerCode, mu2: float, cost: Array, w: Array, degree_l: Array, degree_k: float, new: Array
) -> None:
    """w <- max(0, w - grad / L) with L = mu2 ((kappa + 1) max g_k'' + 2 lam): the paper's step."""
    kappa = cost.size
    lipschitz = mu2 * ((kappa + 1.0) * degree_curvature(reg, 0.0) + 2.0 * reg.lam)
    for b in range(kappa):
        gradient = edge_gradient(reg, mu2, cost[b], w[b], degree_k, degree_l[b])
        step = w[b] - gradient / lipschitz
        new[b] = step if step >= NEGLIGIBLE else 0.0


@lean_kernel
def exact_step(
    reg: RegularizerCode, mu2: float, cost: Array, w: Array, degree_l: Array, degree_k: float, new: Array
) -> None:
    """The minimiser of h over the block.

    Given k's new degree, the weights are independent scalar problems; the degree is the root of a strictly decreasing
    function.
    """
    rest = degree_k
    for b in range(cost.size):
        rest -= w[b]
    rest = max(rest, 0.0)
    degree = max(degree_k, rest)
    low, high, low_known = rest, -1.0, False
    for _ in range(200):
        slope_k, curvature_k = degree_slope(reg, degree), degree_curvature(reg, degree)
        excess, drop = rest - degree, -1.0
        for b in range(cost.size):
            rest_l = max(degree_l[b] - w[b], 0.0)
            new[b] = best_weight(reg, cost[b] / mu2 + slope_k, rest_l)
            excess += new[b]
            if new[b] > 0.0:
                drop -= curvature_k / (2.0 * reg.lam + degree_curvature(reg, rest_l + new[b]))
        if excess >= 0.0:
            low, low_known = degree, True
        else:
            high = degree
        step = degree - excess / drop
        if step <= low and not low_known:
            step = low
        elif step <= low or (high >= 0.0 and step >= high):
            step = 0.5 * (low + high) if high >= 0.0 else low
        if abs(step - degree) <= 1e-13 * degree:
            break
        degree = step
    for b in range(cost.size):
        if new[b] < NEGLIGIBLE:
            new[b] = 0.0


@lean_kernel
def judged_loss(loss: LossCode, margin: float) -> float:
    """The loss by which a model is judged at one margin: in regression the loss itself, otherwise the logistic loss.

    The logistic loss grows slowly enough that no single sample decides, whatever loss the models minimise.
    """
    is_regression = loss.code == SQUARED or loss.code == HUBER
    return point_value(loss, margin) if is_regression else logistic_value(margin)


@kernel
def judged_losses(loss: LossCode, margins: Array) -> Array:
    """`judged_loss` of every entry."""
    losses = np.empty(margins.shape)
    for i in range(margins.size):
        losses.flat[i] = judged_loss(loss, margins.flat[i])
    return losses


@lean_kernel
def log_evidence(
    tau: float, loss: LossCode, judge: UserModel, alpha: Array, support: Array, n_support: int, size: int
) -> float:
    """log of the unnormalised weight of a model from `size` samples, judged on the samples of one user."""
    A = judge.A
    total = 0.0
    for i in range(A.shape[0]):
        margin = np.float64(judge.offset[i])
        for p in range(n_support):
            q = support[p]
            margin += np.float64(A[i, q]) * alpha[q]
        total += normalised_sample_weight(judge.sample_weight, i) * judged_loss(loss, margin)
    return math.log(size) - tau * total


@lean_kernel
def keep_best(scores: Array, most: int, weights: Array) -> None:
    """Softmax of the `most` highest scores (the earlier on ties), zero elsewhere."""
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
