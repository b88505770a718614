"""What a run has sent, counted exactly.

Messages carry floats and predictor indices; a float costs `float_bits`, an index log2 n bits (the paper's count). The
counts are of what was really sent in the run; the paper's closed forms are only their expectations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from dada.core.compiled import Array

MESSAGES, FLOATS, INDICES = 0, 1, 2


def _no_counts() -> Array:
    return np.zeros(3, np.int64)


@dataclass(eq=False)
class Ledger:
    """Messages, floats and indices sent in model phases and in graph phases.

    Examples
    --------
    >>> ledger = Ledger(n_predictors=256)
    >>> ledger.models += (1, 1, 1)
    >>> ledger.bits
    40.0
    """

    n_predictors: int
    float_bits: int = 32
    models: Array = field(default_factory=_no_counts)
    graph: Array = field(default_factory=_no_counts)

    @property
    def index_bits(self) -> float:
        """Bits of one predictor index: log2 n."""
        return math.log2(self.n_predictors)

    @property
    def model_bits(self) -> float:
        """Bits sent in model updates."""
        return float(self.models[FLOATS] * self.float_bits + self.models[INDICES] * self.index_bits)

    @property
    def graph_bits(self) -> float:
        """Bits sent in graph wake-ups."""
        return float(self.graph[FLOATS] * self.float_bits + self.graph[INDICES] * self.index_bits)

    @property
    def bits(self) -> float:
        """All bits sent."""
        return self.model_bits + self.graph_bits

    @property
    def messages(self) -> int:
        """All messages sent."""
        return int(self.models[MESSAGES] + self.graph[MESSAGES])


def cached_graph_bits(
    users: Array, batches: Array, model_sizes: Array, n_predictors: int, float_bits: int = 32
) -> Array:
    """Bits of each wake-up of one graph phase when users keep the models they were sent (refined analysis).

    A peer asked again sends its degree and gets its weight; only a peer asked for the first time sends model and loss.

    Parameters
    ----------
    users, batches : arrays of shape (T,) and (T, kappa)
        Who woke and whom it asked.
    model_sizes : array of shape (n_users,)
        Nonzero entries of every user's model during the phase.
    """
    n_users = model_sizes.size
    pairs = users[:, None].astype(np.int64) * n_users + batches
    _, first = np.unique(pairs.ravel(), return_index=True)
    is_new = np.zeros(pairs.shape, bool)
    is_new.flat[first] = True
    model_bits = float_bits + model_sizes[batches] * (float_bits + math.log2(n_predictors))
    return batches.shape[1] * 2.0 * float_bits + np.where(is_new, model_bits, 0.0).sum(axis=1)
