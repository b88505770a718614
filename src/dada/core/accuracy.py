"""Margins and predictions of personal models, the share of right rows, and how reliable probabilities are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dada.core.compiled import Array, kernel


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
