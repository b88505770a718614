"""Noise without floating-point numbers: exact discrete Gaussians, and randomised response.

The sampler is that of Canonne, Kamath and Steinke (2020). It works on integers, so that the low bits of a release do
not reveal the exact value, as those of rounded normal numbers do (Mironov 2012). Its running time depends on the
noise drawn, never on the data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

BUFFER = 4096


class Bits:
    """A source of uniform random bits.

    By default they come from the operating system, the only source for a release that leaves the machine. A generator's
    `bytes` are for tests and simulations: whoever knows the seed removes the noise.
    """

    def __init__(self, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._random_bytes = random_bytes
        self._buffer, self._used = b"", 0

    def bits(self, count: int) -> int:
        """An integer of `count` uniform bits."""
        size = (count + 7) // 8
        if self._used + size > len(self._buffer):
            self._buffer, self._used = self._random_bytes(max(BUFFER, size)), 0
        taken = self._buffer[self._used : self._used + size]
        self._used += size
        return int.from_bytes(taken, "little") >> (8 * size - count)


def below(source: Bits, limit: int) -> int:
    """A uniform integer in 0..limit - 1."""
    count = (limit - 1).bit_length()
    while True:
        value = source.bits(count)
        if value < limit:
            return value


def exp_coin(source: Bits, numerator: int, denominator: int) -> bool:
    """True with probability exp(-numerator / denominator), exactly."""
    while numerator > denominator:
        if not _small_exp_coin(source, 1, 1):
            return False
        numerator -= denominator
    return _small_exp_coin(source, numerator, denominator)


def _small_exp_coin(source: Bits, numerator: int, denominator: int) -> bool:
    """Von Neumann's coin for exponents up to 1: the parity of the first failure."""
    k = 1
    while below(source, denominator * k) < numerator:
        k += 1
    return k % 2 == 1


def discrete_laplace(source: Bits, scale: int) -> int:
    """An integer with probability proportional to exp(-|x| / scale)."""
    while True:
        rest = below(source, scale)
        if not exp_coin(source, rest, scale):
            continue
        whole = 0
        while exp_coin(source, 1, 1):
            whole += 1
        size = rest + scale * whole
        is_negative = source.bits(1)
        if size or not is_negative:
            return -size if is_negative else size


def discrete_gaussian(source: Bits, steps: int) -> int:
    """An integer with probability proportional to exp(-x^2 / (2 steps^2))."""
    if steps < 1:
        raise ValueError(f"steps must be an integer >= 1 (grid steps per standard deviation), got {steps}")
    scale, variance = steps + 1, steps * steps
    while True:
        found = discrete_laplace(source, scale)
        if exp_coin(source, (abs(found) * scale - variance) ** 2, 2 * variance * scale * scale):
            return found


def gaussian_vector(source: Bits, steps: int, size: int) -> NDArray[np.int64]:
    """Independent discrete Gaussians."""
    return np.array([discrete_gaussian(source, steps) for _ in range(size)], np.int64)


def randomised_response(source: Bits, labels: NDArray[np.integer], n_classes: int, epsilon: float) -> NDArray[np.int64]:
    """Class numbers, each kept with probability e^eps / (e^eps + C - 1), else replaced by another at random.

    The probability is rounded down to a multiple of 2^-53: the result is epsilon-private.
    """
    if n_classes < 2 or not ((labels >= 0) & (labels < n_classes)).all():
        raise ValueError(f"labels must be class numbers in 0..{n_classes - 1} of at least two classes")
    denominator = 1 << 53
    # Two steps below the rounded value, whose error is less than that.
    kept = max(1, math.floor(denominator * (1 - flip_probability(epsilon, n_classes))) - 2)
    given = np.empty(len(labels), np.int64)
    for i, label in enumerate(labels.tolist()):
        if below(source, denominator) < kept:
            given[i] = label
        else:
            given[i] = (label + 1 + below(source, n_classes - 1)) % n_classes
    return given


def flip_probability(epsilon: float, n_classes: int = 2) -> float:
    """Probability that randomised response replaces a label."""
    return (n_classes - 1) / (math.exp(epsilon) + n_classes - 1)


def label_correlation(epsilon: float, n_classes: int = 2) -> float:
    """Correlation of labels after randomised response with the exact ones: 1 - 2p for two classes.

    >>> round(label_correlation(1.0), 3)
    0.462
    """
    return 1 - flip_probability(epsilon, n_classes) * n_classes / (n_classes - 1)
