"""Functions of the margins: local losses L_k, predictions, the share of right rows, how reliable probabilities are.

A loss is the log-sum of exponentials of Eq. (2), or the mean over samples of a smooth convex function of one margin.
A model step needs its value, the weight eta_i = -dL/dmargin_i of every sample, and its curvature along a direction,
as (curvature, growth): along the step the second derivative phi'' starts at `curvature` and satisfies
|phi'''| <= growth * phi''. If growth is zero, `curvature` bounds phi'' everywhere.

Sample weights are normalised to a mean of one per user; an empty array stands for equal weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dada.core.compiled import NO_ADDRESSES, Addresses, Array, ScalarFunction, addresses_of, call, kernel, lean_kernel

ADABOOST, LOGISTIC, SQUARED_HINGE, POINTWISE, SQUARED, HUBER = 0, 1, 2, 3, 4, 5
GRAPH_LOSS_MEAN, GRAPH_LOSS_PAPER, GRAPH_LOSS_LOGISTIC = 0, 1, 2
GRAPH_LOSSES = {"mean": GRAPH_LOSS_MEAN, "paper": GRAPH_LOSS_PAPER, "logistic": GRAPH_LOSS_LOGISTIC}


class LossCode(NamedTuple):
    """A loss for kernels: the code of a built-in loss, or the addresses of a custom one."""

    code: int
    growth: float
    custom: Addresses = NO_ADDRESSES


@dataclass(frozen=True)
class Loss:
    """A smooth convex loss: the mean over samples of a function of one margin.

    Parameters
    ----------
    name : str
        Shown in results.
    value, slope, curvature : functions of one float, compilable by Numba
        The loss at a margin, its derivative, and its second derivative or an upper bound of it.
    growth : float
        A constant with |third derivative| <= growth * curvature; 0 when `curvature` is an upper bound everywhere.

    Examples
    --------
    >>> def value(z): return (z * z + 1) ** 0.5 - z
    >>> def slope(z): return z / (z * z + 1) ** 0.5 - 1
    >>> def curvature(z): return 1.0
    >>> smooth = Loss("smooth-ramp", value, slope, curvature)
    >>> point_value(smooth.compiled, 0.0)
    1.0
    """

    name: str
    value: ScalarFunction
    slope: ScalarFunction
    curvature: ScalarFunction
    growth: float = 0.0

    @property
    def compiled(self) -> LossCode:
        """The loss for kernels."""
        return LossCode(POINTWISE, self.growth, addresses_of(self.value, self.slope, self.curvature))


# Losses of residuals.
REGRESSION = ("squared", "huber")

BUILT_IN = {
    "adaboost": LossCode(ADABOOST, 1.0),
    "logistic": LossCode(LOGISTIC, 1.0),
    "squared-hinge": LossCode(SQUARED_HINGE, 0.0),
    "squared": LossCode(SQUARED, 0.0),
    "huber": LossCode(HUBER, 0.0),
}


def loss_code(loss: str | Loss) -> LossCode:
    """A built-in loss, by name, or a custom `Loss`, for kernels."""
    if isinstance(loss, Loss):
        return loss.compiled
    if loss not in BUILT_IN:
        raise ValueError(f"loss must be one of {sorted(BUILT_IN)} or a dada.Loss, got {loss!r}")
    return BUILT_IN[loss]


@lean_kernel
def logistic_value(z: float) -> float:
    """log(1 + exp(-z)) without overflow."""
    return math.log1p(math.exp(-z)) if z > 0 else math.log1p(math.exp(z)) - z


@lean_kernel
def point_slope(loss: LossCode, z: float) -> float:
    """Derivative of a pointwise loss at one margin."""
    if loss.code == LOGISTIC:
        return -1.0 / (1.0 + math.exp(z))
    if loss.code == SQUARED_HINGE:
        return min(0.0, z - 1.0)
    if loss.code == SQUARED:
        return z
    if loss.code == HUBER:
        return min(1.0, max(-1.0, z))
    return call(loss.custom.slope, z)


@lean_kernel
def point_curvature(loss: LossCode, z: float) -> float:
    """Second derivative of a pointwise loss at one margin, or its bound."""
    if loss.code == LOGISTIC:
        decay = math.exp(-abs(z))
        return decay / (1.0 + decay) ** 2
    if loss.code == SQUARED_HINGE or loss.code == SQUARED or loss.code == HUBER:
        return 1.0
    return call(loss.custom.curvature, z)


@lean_kernel
def point_value(loss: LossCode, z: float) -> float:
    """Pointwise loss of one margin."""
    if loss.code == LOGISTIC:
        return logistic_value(z)
    if loss.code == SQUARED_HINGE:
        return 0.5 * min(0.0, z - 1.0) ** 2
    if loss.code == SQUARED:
        return 0.5 * z * z
    if loss.code == HUBER:
        return 0.5 * z * z if abs(z) <= 1.0 else abs(z) - 0.5
    return call(loss.custom.value, z)


@lean_kernel
def loss_and_weights(loss: LossCode, margins: Array, sample_weight: Array, eta: Array) -> float:
    """L at the margins, Eq. (2); fills eta_i = -dL/dmargin_i, the sample weights below Eq. (4)."""
    m = margins.size
    total = 0.0
    if loss.code == ADABOOST:
        smallest = margins[0]
        for i in range(1, m):
            smallest = min(smallest, margins[i])
        for i in range(m):
            eta[i] = normalised_sample_weight(sample_weight, i) * math.exp(smallest - margins[i])
            total += eta[i]
        inverse = 1.0 / total
        for i in range(m):
            eta[i] *= inverse
        return math.log(total) - smallest
    inverse = 1.0 / m
    for i in range(m):
        counts = normalised_sample_weight(sample_weight, i)
        total += counts * point_value(loss, margins[i])
        eta[i] = -inverse * (counts * point_slope(loss, margins[i]))
    return total * inverse


@lean_kernel
def curvature_along(loss: LossCode, margins: Array, sample_weight: Array, eta: Array, h: Array) -> tuple[float, float]:
    """(phi''(0), growth) of phi(gamma) = L(margins + gamma h), given eta at the margins."""
    m = margins.size
    if loss.code == ADABOOST:
        lowest = highest = h[0]
        mean = variance = 0.0
        for i in range(m):
            lowest = min(lowest, h[i])
            highest = max(highest, h[i])
            mean += np.float64(eta[i]) * h[i]
        # Around the mean: the difference of two moments would cancel for a confident model.
        for i in range(m):
            variance += eta[i] * (h[i] - mean) ** 2
        return variance, np.float64(highest - lowest)
    largest = total = 0.0
    for i in range(m):
        largest = max(largest, abs(h[i]))
        total += normalised_sample_weight(sample_weight, i) * point_curvature(loss, margins[i]) * h[i] * h[i]
    return total / m, loss.growth * largest


@lean_kernel
def slope_along(loss: LossCode, margins: Array, sample_weight: Array, h: Array, gamma: float) -> tuple[float, float]:
    """(phi'(gamma), phi''(gamma)) of phi(gamma) = L(margins + gamma h), in double precision."""
    m = margins.size
    first = second = 0.0
    if loss.code == ADABOOST:
        smallest = np.inf
        for i in range(m):
            smallest = min(smallest, margins[i] + gamma * h[i])
        total = square = 0.0
        for i in range(m):
            weight = normalised_sample_weight(sample_weight, i) * math.exp(smallest - (margins[i] + gamma * h[i]))
            total += weight
            first += weight * h[i]
            square += weight * h[i] * h[i]
        mean = first / total
        return -mean, max(square / total - mean * mean, 0.0)
    for i in range(m):
        z = margins[i] + gamma * h[i]
        along = normalised_sample_weight(sample_weight, i) * h[i]
        first += point_slope(loss, z) * along
        second += point_curvature(loss, z) * along * h[i]
    return first / m, second / m


@lean_kernel
def loss_for_graph(kind: int, loss: LossCode, margins: Array, sample_weight: Array, scratch: Array) -> float:
    """The loss in the graph problem, by `graph_loss`: mean, paper (Eq. 2) or logistic."""
    m = margins.size
    if kind == GRAPH_LOSS_LOGISTIC:
        total = 0.0
        for i in range(m):
            total += normalised_sample_weight(sample_weight, i) * logistic_value(margins[i])
        return total / m
    value = loss_and_weights(loss, margins, sample_weight, scratch)
    if kind == GRAPH_LOSS_MEAN and loss.code == ADABOOST:
        value -= math.log(m)
    return value


ALL_ALIKE = np.empty(0)
# Smaller weights underflow in single precision, which could leave the AdaBoost loss without any sample.
LEAST_SAMPLE_WEIGHT = 1e-30


def check_weights(weights: Array, n_rows: int) -> None:
    """Reject row weights that are not one positive number per row."""
    if weights.shape != (n_rows,):
        raise ValueError(f"weights must be one number per row, {n_rows} in all, got shape {weights.shape}")
    if not ((weights > 0).all() and np.isfinite(weights.sum())):
        raise ValueError(
            f"weights must be > 0 and their sum finite, got {weights.min()} to {weights.max()}: "
            "drop rows of weight zero"
        )


def relative_weights(weights: Array, row_start: Array) -> Array:
    """Row weights divided by their mean for each user."""
    sizes = np.diff(row_start)
    means = np.add.reduceat(weights, row_start[:-1], dtype=np.float64) / sizes
    return np.maximum(weights / np.repeat(means, sizes), LEAST_SAMPLE_WEIGHT)


@lean_kernel
def normalised_sample_weight(sample_weight: Array, i: int) -> float:
    """Weight of sample i; one if the array is empty, which makes products exact."""
    return sample_weight[i] if sample_weight.size > 0 else 1.0


@dataclass(frozen=True, eq=False)
class Samples:
    """Labelled samples as base predictions: (rows, n) predictions, labels -1/+1, rows grouped by user."""

    predictions: Array
    y: Array
    row_start: Array


@kernel
def margins_of(A: Array, row_start: Array, offset: Array, alpha: Array) -> Array:
    """offset_i + sum_j alpha_kj A_ij for every row i, with the model of the row's user k."""
    n = alpha.shape[1]
    margins = np.empty(A.shape[0])
    used = np.empty(n, np.int64)
    for k in range(row_start.size - 1):
        n_used = 0
        for j in range(n):
            if alpha[k, j] != 0.0:
                used[n_used] = j
                n_used += 1
        for i in range(row_start[k], row_start[k + 1]):
            total = np.float64(offset[i])
            for p in range(n_used):
                total += np.float64(A[i, used[p]]) * alpha[k, used[p]]
            margins[i] = total
    return margins


def decision_values(predictions: Array, row_start: Array, alpha: Array) -> Array:
    """sum_j alpha_kj h_j(x_i) for every row i, with the model of the row's user k."""
    values: Array = margins_of(predictions, row_start, np.zeros(len(predictions)), alpha)
    return values


def is_right(values: Array, y: Array) -> Array:
    """Whether the sign of each decision value is that of the label; zero predicts -1."""
    right: Array = (values > 0) == (y > 0)
    return right


def mean_per_user(values: Array, row_start: Array) -> Array:
    """Mean of each user's rows: of right and wrong rows, the user's accuracy. NaN for a user without rows."""
    means: Array = _means(np.ascontiguousarray(values, np.float64), row_start)
    return means


def mean_by_owner(values: Array, owners: Array) -> Array:
    """Mean of the rows of each owner, for rows in any order; owners are sorted."""
    codes = np.unique(owners, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    row_start = np.concatenate([[0], np.cumsum(np.bincount(codes))]).astype(np.int64)
    return mean_per_user(np.asarray(values)[order], row_start)


def accuracy_per_user(samples: Samples | None, alpha: Array) -> Array:
    """Share of each user's samples that its model gets right; empty without samples."""
    if samples is None:
        return np.zeros(0, np.float32)
    values = decision_values(samples.predictions, samples.row_start, alpha)
    return mean_per_user(is_right(values, samples.y), samples.row_start).astype(np.float32)


@kernel
def _means(values: Array, row_start: Array) -> Array:
    means = np.empty(row_start.size - 1)
    for k in range(means.size):
        total = 0.0
        for i in range(row_start[k], row_start[k + 1]):
            total += values[i]
        size = row_start[k + 1] - row_start[k]
        means[k] = total / size if size > 0 else np.nan
    return means


@dataclass(frozen=True, eq=False)
class Reliability:
    """How often predictions are right, by the probability that the model gives them.

    Attributes
    ----------
    confidence, accuracy, share : arrays of shape (n_bins,)
        Mean probability of the predicted class, share of right rows, and share of all rows, in bins of equal width of
        that probability; 0 in a bin without rows.
    log_loss : float
        Mean negative log-probability of the labels.

    Examples
    --------
    >>> found = Reliability.of(np.array([[0.1, 0.9], [0.1, 0.9], [0.7, 0.3]]), np.array([1, 0, 0]))
    >>> found.accuracy[found.share > 0].tolist(), round(found.error, 3)
    ([1.0, 0.5], 0.367)
    """

    confidence: Array
    accuracy: Array
    share: Array
    log_loss: float

    @classmethod
    def of(cls, probabilities: Array, labels: Array, n_bins: int = 15) -> Reliability:
        """From probabilities of all classes, one row each, and the number of each row's class."""
        chances, rows = probabilities.max(axis=1), np.arange(len(labels))
        right = probabilities.argmax(axis=1) == labels
        bins = np.minimum((chances * n_bins).astype(np.int64), n_bins - 1)
        counts, total = np.bincount(bins, minlength=n_bins), np.maximum(np.bincount(bins, minlength=n_bins), 1)
        confidence, accuracy = (np.bincount(bins, each, n_bins) / total for each in (chances, right))
        given = np.maximum(probabilities[rows, labels], np.finfo(np.float64).tiny)
        return cls(confidence, accuracy, counts / len(labels), float(-np.log(given).mean()))

    @property
    def error(self) -> float:
        """Expected calibration error: mean distance of probability and share of right rows."""
        return float((self.share * abs(self.accuracy - self.confidence)).sum())
