"""How much each sample counts within its user's loss, in the form kernels take.

A user's weights are divided by their mean, so that sums and means over samples keep their scale and only ratios matter.
They stay in double precision, whatever a run keeps in single. Where all count alike there is an empty array: it costs
neither memory nor a rounding.
"""

from __future__ import annotations

import numpy as np

from dada.core.compiled import Array, lean_kernel

ALL_ALIKE = np.empty(0)
# A product with a much smaller number is zero in single precision, and the AdaBoost loss may have no other sample left.
LEAST_EMPHASIS = 1e-30


def check_weights(weights: Array, n_rows: int) -> None:
    """Refuse weights of rows that are no positive numbers, one for each row."""
    if weights.shape != (n_rows,):
        raise ValueError(f"weights must be one number per row, {n_rows} in all, got shape {weights.shape}")
    if not ((weights > 0).all() and np.isfinite(weights.sum())):
        raise ValueError(
            f"weights must be > 0 and their sum finite, got {weights.min()} to {weights.max()}: "
            "leave out rows that are to count for nothing"
        )


def relative_weights(weights: Array, row_start: Array) -> Array:
    """Weights of rows divided by the mean of their user's.

    >>> relative_weights(np.array([7.0, 1.0, 3.0]), np.array([0, 1, 3])).tolist()
    [1.0, 0.5, 1.5]
    """
    sizes = np.diff(row_start)
    means = np.add.reduceat(weights, row_start[:-1], dtype=np.float64) / sizes
    return np.maximum(weights / np.repeat(means, sizes), LEAST_EMPHASIS)


@lean_kernel
def emphasis_of(emphasis: Array, i: int) -> float:
    """How much sample i counts. One where all count alike, and a product with it is then exact."""
    return emphasis[i] if emphasis.size > 0 else 1.0
