"""The numbers of boosting with personal leaves, for the users of a pool, who grow a tree, and for each by itself.

A pool of users grows a small tree on what all models so far leave to learn. At each node every user names its favourite
feature (`favourite`) and sends rounded histograms of the features with most votes (`add_histogram`); the split is the
best by the histograms of all (`best_split`). Then each sends the sums of residuals and weights in its leaves
(`add_leaf_sums`), which give the pool's values (`pool_values`). A user's own values are between these and those of its
rows (`add_own_leaves`).

`pull` are residuals and `weight` the weights that they have in the curvature of the loss; `bins` are numbers of
thresholds below each value. `dada.fitting.boosting` runs this for a whole population,
`dada.peer.boosting` for one user.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dada.core.compiled import Array, kernel, lean_kernel

# Rows and users of a pool, if the network has as many, and the fewest rows of a node that is split.
ROWS_OF_POOL, LEAST_OF_POOL, ROWS_TO_SPLIT = 1000, 8, 4
# Share of the features that a node may test, the fewest that it tests, and how many of these get histograms.
SHARE_TESTED, LEAST_TESTED, MOST_KEPT = 0.25, 8, 2
# Weight of rows with residual 0 that shrinks the pool's values and gains, and least weight on either side of a test.
SHRINKAGE, LEAST_WEIGHT = 0.1, 0.1
# The pool's leaf values are bytes in this unit.
LEAF_UNIT, LEAF_BITS = 1 / 32, 8
# Numbers of a message are whole numbers of a unit, a power of two, up to a largest: of histograms three bits with sign,
# of which weights need two; of sums in leaves bytes. The exponent of a unit is a byte.
MOST_OF_HISTOGRAM, PULL_BITS, WEIGHT_BITS = 3.0, 3, 2
MOST_OF_SUMS, SUM_BITS, UNIT_BITS = 127.0, 8, 8
# Least weight of a row of classes.
LEAST_ROW_WEIGHT = 1e-6


def n_tested_of(n_varying: int) -> int:
    """How many of the features that vary a node may test."""
    return min(n_varying, max(LEAST_TESTED, int(SHARE_TESTED * n_varying)))


def residuals_of(y: Array, n_classes: int, values: Array, most: float = math.inf) -> NDArray[np.float64]:
    """What decision values leave to learn, of shape (rows, outputs): minus the gradient of the loss by decision value.

    Of classes, the difference between indicator and probability (of two classes, of the second); of numbers, the
    error, clipped to at most `most`.
    """
    if n_classes == 0:
        return np.clip(y - values, -most, most)[:, None]
    if n_classes == 2:
        return ((y > 0) - expit(values))[:, None]
    return np.eye(n_classes)[y] - softmax(values, axis=1)


def pull_and_weight(
    y: Array, n_classes: int, values: NDArray[np.float64], row_weights: Array | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Residual and weight of each row for each output: minus the gradient of the loss, and its curvature.

    >>> pull, weight = pull_and_weight(np.array([1.0, -1.0]), 2, np.zeros((2, 1)))
    >>> pull.tolist(), weight.tolist()
    ([[0.5], [-0.5]], [[0.25], [0.25]])
    """
    left = residuals_of(y, n_classes, values if n_classes > 2 else values[:, 0])
    if n_classes == 0:
        weight = np.ones_like(left)
    else:
        shares = softmax(values, axis=1) if n_classes > 2 else expit(values)
        weight = np.maximum(shares * (1 - shares), LEAST_ROW_WEIGHT)
    if row_weights is not None:
        left, weight = left * row_weights[:, None], weight * row_weights[:, None]
    return left, weight


def pool_values(G: Array, W: Array) -> NDArray[np.float64]:
    """The pool's values of leaves with these sums, in `LEAF_UNIT`: whole numbers of a byte, from -4 to almost 4.

    >>> pool_values(np.array([[0.5], [-90.0]]), np.array([[0.9], [0.0]])).tolist()
    [[16.0], [-128.0]]
    """
    return np.clip(np.rint(G / (W + SHRINKAGE) / LEAF_UNIT), -128, 127)


@kernel
def leaves_of(bins: Array, feature: Array, cut: Array) -> Array:
    """The leaf of a complete tree that each row reaches."""
    reached = np.empty(bins.shape[0], np.int64)
    for i in range(bins.shape[0]):
        node = 0
        while node < feature.size:
            goes_right = cut[node] >= 0 and bins[i, feature[node]] > cut[node]
            node = 2 * node + (2 if goes_right else 1)
        reached[i] = node - feature.size
    return reached


@lean_kernel
def best_gain(G: Array, W: Array, first: int, last: int, g: float, w: float, shrinkage: float) -> tuple[float, int]:
    """The largest gain of splitting a node with these histograms of residuals and weights, and the cut.

    `g` and `w` are their sums; bins outside first:last + 1 are empty.
    """
    base, best, at, gl, wl = g * g / (w + shrinkage), 0.0, -1, 0.0, 0.0
    for b in range(first, last):
        if W[b] == 0.0:
            continue
        gl += G[b]
        wl += W[b]
        if wl < LEAST_WEIGHT or w - wl < LEAST_WEIGHT:
            continue
        gain = gl * gl / (wl + shrinkage) + (g - gl) * (g - gl) / (w - wl + shrinkage) - base
        if gain > best + 1e-12:
            best, at = gain, b
    return best, at


@kernel
def best_split(G: Array, W: Array, shrinkage: float, own: float) -> tuple[float, int]:
    """The largest gain of splitting a node with these histograms, one of each user, and the cut.

    A leaf has a value for all users, and each user's deviates from it: gains are those of both.
    """
    n_users, n_bins = G.shape
    g_of, w_of, left_g, left_w = G.sum(axis=1), W.sum(axis=1), np.zeros(n_users), np.zeros(n_users)
    g, w = g_of.sum(), w_of.sum()
    value = g / (w + shrinkage)
    base = value * g
    for u in range(n_users):
        rest = g_of[u] - value * w_of[u]
        base += rest * rest / (w_of[u] + own)
    best, at, gl, wl = 0.0, -1, 0.0, 0.0
    for b in range(n_bins - 1):
        before = wl
        for u in range(n_users):
            left_g[u] += G[u, b]
            left_w[u] += W[u, b]
            gl += G[u, b]
            wl += W[u, b]
        if wl == before or wl < LEAST_WEIGHT or w - wl < LEAST_WEIGHT:
            continue
        left, right = gl / (wl + shrinkage), (g - gl) / (w - wl + shrinkage)
        gain = left * gl + right * (g - gl) - base
        for u in range(n_users):
            right_w = w_of[u] - left_w[u]
            rest_left, rest_right = left_g[u] - left * left_w[u], g_of[u] - left_g[u] - right * right_w
            gain += rest_left * rest_left / (left_w[u] + own) + rest_right * rest_right / (right_w + own)
        if gain > best + 1e-12:
            best, at = gain, b
    return best, at


@lean_kernel
def fill(bins: Array, rows: Array, d: int, pull: Array, weight: Array, G: Array, W: Array) -> tuple[int, int]:
    """Write the histograms of some rows by feature d between their first and last bin, which are returned."""
    G[:], W[:] = 0.0, 0.0
    first, last = 255, 0
    for i in rows:
        b = int(bins[i, d])
        first, last = min(first, b), max(last, b)
        G[b] += pull[i]
        W[b] += weight[i]
    return first, last


@lean_kernel
def unit_of(numbers: Array, first: int, last: int, most: float) -> float:
    """The least power of two of which all numbers are at most `most` times, and 0 if all are 0."""
    largest = 0.0
    for b in range(first, last + 1):
        largest = max(largest, abs(numbers[b]))
    if largest == 0.0:
        return 0.0
    part, exponent = math.frexp(largest / most)
    return math.ldexp(1.0, exponent - 1 if part == 0.5 else exponent)


@lean_kernel
def add_rounded(numbers: Array, first: int, last: int, most: float, total: Array) -> None:
    """Add numbers, rounded to multiples of a power of two, of which none is more than `most`."""
    unit = unit_of(numbers, first, last, most)
    if unit > 0.0:
        for b in range(first, last + 1):
            total[b] += np.floor(numbers[b] / unit + 0.5) * unit


@lean_kernel
def favourite(
    bins: Array, rows: Array, pull: Array, weight: Array, tested: Array, shrinkage: float, G: Array, W: Array
) -> int:
    """The place among the tested features of the one that a user votes for, by its rows in a node; -1 for none.

    It has the largest gain on these rows. `G` and `W` are room for a histogram.
    """
    if rows.size < 2:
        return -1
    g, w, best, place = 0.0, 0.0, 0.0, -1
    for i in rows:
        g += pull[i]
        w += weight[i]
    for q in range(tested.size):
        first, last = fill(bins, rows, tested[q], pull, weight, G, W)
        gain, _ = best_gain(G, W, first, last, g, w, shrinkage)
        if gain > best:
            best, place = gain, q
    return place


@lean_kernel
def most_voted(votes: Array, tested: Array, kept: Array) -> None:
    """Write the tested features with most votes; of equal ones those that come first. `votes` are used up."""
    for p in range(kept.size):
        top = 0
        for q in range(tested.size):
            if votes[q] > votes[top]:
                top = q
        kept[p] = tested[top]
        votes[top] = -1


@lean_kernel
def add_histogram(
    bins: Array,
    rows: Array,
    d: int,
    pull: Array,
    weight: Array,
    own_G: Array,
    own_W: Array,
    G: Array,
    W: Array,
) -> None:
    """Add the rounded histograms of a user's rows in a node by feature d; `own_G`, `own_W` are room for exact ones."""
    first, last = fill(bins, rows, d, pull, weight, own_G, own_W)
    add_rounded(own_G, first, last, MOST_OF_HISTOGRAM, G)
    add_rounded(own_W, first, last, MOST_OF_HISTOGRAM, W)


@lean_kernel
def add_leaf_sums(reached: Array, pull: Array, weight: Array, G: Array, W: Array) -> None:
    """Add residuals and weights of a user's rows to the sums of the leaves that they reach."""
    for i in range(reached.size):
        for c in range(pull.shape[1]):
            G[reached[i], c] += pull[i, c]
            W[reached[i], c] += weight[i, c]


@lean_kernel
def add_own_leaves(
    reached: Array,
    pull: Array,
    weight: Array,
    shared: Array,
    own: float,
    rate: float,
    G: Array,
    W: Array,
    values: Array,
    margins: Array,
) -> None:
    """Write a user's leaf values, times the rate, and add them to the decision values of its rows.

    `shared` are the pool's values; `G` and `W` are room for the sums of leaves.
    """
    n_leaves, n_outputs = shared.shape
    G[:], W[:] = 0.0, 0.0
    add_leaf_sums(reached, pull, weight, G, W)
    for s in range(n_leaves):
        for c in range(n_outputs):
            v = shared[s, c]
            values[s, c] = rate * (v + (G[s, c] - v * W[s, c]) / (W[s, c] + own))
    for i in range(reached.size):
        for c in range(n_outputs):
            margins[i, c] += values[reached[i], c]
