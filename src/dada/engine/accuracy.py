"""Accuracy of personal models on labelled samples."""

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
def decision_values(predictions: Array, row_start: Array, alpha: Array) -> Array:
    """sum_j alpha_kj h_j(x_i) for every row, with the model of the row's user."""
    K, n = alpha.shape
    values = np.zeros(predictions.shape[0])
    used = np.empty(n, np.int64)
    for k in range(K):
        n_used = 0
        for j in range(n):
            if alpha[k, j] != 0.0:
                used[n_used] = j
                n_used += 1
        for i in range(row_start[k], row_start[k + 1]):
            total = 0.0
            for p in range(n_used):
                total += np.float64(predictions[i, used[p]]) * alpha[k, used[p]]
            values[i] = total
    return values


def accuracy_per_user(samples: Samples | None, alpha: Array) -> Array:
    """Share of each user's samples that its model gets right; a value of zero predicts -1. NaN for a user without any.

    >>> samples = Samples(np.array([[1], [1], [-1]], np.int8), np.array([1, -1, -1]), np.array([0, 2, 3]))
    >>> accuracy_per_user(samples, np.ones((2, 1))).tolist()
    [0.5, 1.0]
    """
    if samples is None:
        return np.zeros(0, np.float32)
    values = decision_values(samples.predictions, samples.row_start, alpha)
    right = ((values > 0) == (samples.y > 0)).astype(np.float64)
    sizes = np.diff(samples.row_start)
    sums = np.add.reduceat(np.append(right, 0.0), np.minimum(samples.row_start[:-1], right.size)) * (sizes > 0)
    return np.divide(sums, sizes, out=np.full(sizes.size, np.nan), where=sizes > 0).astype(np.float32)
