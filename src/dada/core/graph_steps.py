"""Learning the graph: its regularizers, and one user's update of the weights to a batch of peers (Eq. 5).

A regularizer is g(w) = sum of g_kl(w_kl) over pairs + sum of g_k(d_k) over users. Any such function with convex, smooth
parts fits the decentralized graph step: its gradient at an edge depends only on the weight of that edge and the degrees
of its ends.

Both steps take, for each peer l of the batch, the pair cost a_l = c_k L_k + c_l L_l + (mu1/2) ||alpha_k - alpha_l||^2,
the current weight and the degree of l, and compute the new weights. They need no messages beyond the paper's.

The evidence rule weights a peer by how well its model fits the user's own samples: `log_evidence` and `keep_best`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dada.core.compiled import NO_ADDRESSES, Addresses, Array, ScalarFunction, addresses_of, call, kernel, lean_kernel
from dada.core.losses import HUBER, SQUARED, LossCode, logistic_value, normalised_sample_weight, point_value
from dada.core.model_steps import UserModel

LOG_DEGREE, DEGREE_TARGET, DEGREE_FUNCTION = 0, 1, 2


class RegularizerCode(NamedTuple):
    """A regularizer for kernels. `offset` is delta or the target degree."""

    code: int
    lam: float
    l1: float = 0.0
    offset: float = 0.0
    custom: Addresses = NO_ADDRESSES


@dataclass(frozen=True)
class LogDegree:
    """The paper's regularizer lam ||w||^2 - sum log(d_k + delta).

    Every user gets neighbours; a smaller lam gives a sparser graph.

    >>> LogDegree(lam=0.1).compiled.code == LOG_DEGREE
    True
    """

    lam: float = 0.1
    delta: float = 0.1

    def __post_init__(self) -> None:
        if not (0 < self.lam < math.inf and 0 < self.delta < math.inf):
            raise ValueError(f"lam and delta must be > 0 and finite, got lam={self.lam}, delta={self.delta}")

    @property
    def compiled(self) -> RegularizerCode:
        """The regularizer for kernels."""
        return RegularizerCode(LOG_DEGREE, float(self.lam), 0.0, float(self.delta))


@dataclass(frozen=True)
class DegreeTarget:
    """A target for all degrees: lam ||w||^2 + l1 ||w||_1 + sum (d_k - target)^2 / 2; l1 > 0 removes weak edges.

    >>> DegreeTarget(target=2.0).compiled.offset
    2.0
    """

    target: float = 1.0
    lam: float = 0.1
    l1: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.lam < math.inf and 0 < self.target < math.inf and 0 <= self.l1 < math.inf):
            raise ValueError(
                "lam and target must be > 0, l1 >= 0, all finite, "
                f"got lam={self.lam}, target={self.target}, l1={self.l1}"
            )

    @property
    def compiled(self) -> RegularizerCode:
        """The regularizer for kernels."""
        return RegularizerCode(DEGREE_TARGET, float(self.lam), float(self.l1), float(self.target))


@dataclass(frozen=True)
class DegreeFunction:
    """A custom regularizer: lam ||w||^2 + the sum of a convex function of each degree.

    Parameters
    ----------
    value, slope, curvature : functions of one float, compilable by Numba
        The function of the degree and its first and second derivatives. The graph step "lipschitz" assumes that the
        curvature is largest at degree zero; "exact" does not.
    lam : float
        Weight of ||w||^2; must be positive.

    Examples
    --------
    >>> own = DegreeFunction(lambda d: 1 / (1 + d), lambda d: -1 / (1 + d) ** 2, lambda d: 2 / (1 + d) ** 3)
    >>> own.compiled.code == DEGREE_FUNCTION
    True
    """

    value: ScalarFunction
    slope: ScalarFunction
    curvature: ScalarFunction
    lam: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.lam < math.inf:
            raise ValueError(f"lam must be > 0 and finite, got {self.lam}")

    @property
    def compiled(self) -> RegularizerCode:
        """The regularizer for kernels."""
        custom = addresses_of(self.value, self.slope, self.curvature)
        return RegularizerCode(DEGREE_FUNCTION, float(self.lam), 0.0, 0.0, custom)


Regularizer = LogDegree | DegreeTarget | DegreeFunction


@kernel
def degree_value(reg: RegularizerCode, degree: float) -> float:
    """g_k at a degree."""
    if reg.code == LOG_DEGREE:
        return -math.log(degree + reg.offset)
    if reg.code == DEGREE_TARGET:
        return 0.5 * (degree - reg.offset) ** 2
    return call(reg.custom.value, degree)


@kernel
def degree_slope(reg: RegularizerCode, degree: float) -> float:
    """Derivative of g_k. For the log it is negative; the paper's appendix has the wrong sign."""
    if reg.code == LOG_DEGREE:
        return -1.0 / (degree + reg.offset)
    if reg.code == DEGREE_TARGET:
        return degree - reg.offset
    return call(reg.custom.slope, degree)


@kernel
def degree_curvature(reg: RegularizerCode, degree: float) -> float:
    """Second derivative of g_k."""
    if reg.code == LOG_DEGREE:
        return 1.0 / (degree + reg.offset) ** 2
    if reg.code == DEGREE_TARGET:
        return 1.0
    return call(reg.custom.curvature, degree)


@kernel
def weight_value(reg: RegularizerCode, w: float) -> float:
    """g_kl at a weight."""
    return (reg.lam * w + reg.l1) * w


@kernel
def weight_slope(reg: RegularizerCode, w: float) -> float:
    """Derivative of g_kl."""
    return 2.0 * reg.lam * w + reg.l1


@kernel
def best_weight(reg: RegularizerCode, cost: float, rest: float) -> float:
    """The w >= 0 that minimises cost * w + g_kl(w) + g_l(rest + w): one coordinate of the exact block step."""
    at_zero = cost + reg.l1 + degree_slope(reg, rest)
    if at_zero >= 0.0:
        return 0.0
    if reg.code == LOG_DEGREE:
        # The root of 2 lam w^2 + linear w + rho at_zero = 0, without cancellation.
        rho = rest + reg.offset
        linear = cost + 2.0 * reg.lam * rho
        root = math.sqrt(linear * linear - 8.0 * reg.lam * rho * at_zero)
        return -2.0 * rho * at_zero / (linear + root) if linear > 0.0 else (root - linear) / (4.0 * reg.lam)
    if reg.code == DEGREE_TARGET:
        return -at_zero / (2.0 * reg.lam + 1.0)
    low, high = 0.0, -at_zero / (2.0 * reg.lam)
    w = 0.0
    for _ in range(100):
        slope = cost + weight_slope(reg, w) + degree_slope(reg, rest + w)
        if slope > 0.0:
            high = w
        else:
            low = w
        step = w - slope / (2.0 * reg.lam + degree_curvature(reg, rest + w))
        if not low < step < high:
            step = 0.5 * (low + high)
        if abs(step - w) <= 1e-14 * (1.0 + w):
            return step
        w = step
    return w


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
