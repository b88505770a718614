"""The price of every message, and the ledger of what a run has sent.

Messages carry floats and predictor indices. A float costs `FLOAT_BITS`, an index log2(n_predictors) bits; user ids,
signs, versions and framing are free. This is the paper's count, applied to the messages that a run really sends.
Coded messages (see `dada.core.block_steps`) hold integers of a few bits instead; `coded_bits` is their full length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dada.core.compiled import Array, inlined, lean_kernel

MESSAGES, FLOATS, INDICES = 0, 1, 2
FLOAT_BITS = 32
# Header of a coded message: exponent of the unit (8 bits) and form of the coordinates (1).
HEADER_BITS = 9
# Places in `Ledger.coded`.
OF_MODELS, OF_GRAPH = 0, 1


class Cost(NamedTuple):
    """What one or several messages carry."""

    messages: int
    floats: int
    indices: int


@inlined
def move_cost(n_indices: int) -> Cost:
    """A model update: the step size, and the predictors it concerns (two for a pairwise step, else one)."""
    return Cost(1, 1, n_indices)


@inlined
def dense_model_cost(n_weights: int) -> Cost:
    """A whole model without indices, as a linear method sends it."""
    return Cost(1, n_weights, 0)


@inlined
def weight_cost() -> Cost:
    """The new weight of an edge, or the degree of a neighbour whose model is known."""
    return Cost(1, 1, 0)


@inlined
def graph_reply_cost(n_support: int, is_gossip: bool) -> Cost:
    """A peer's model, loss and degree; in a gossip search also the id that led to it, counted as a float."""
    return Cost(1, (3 if is_gossip else 2) + n_support, n_support)


@inlined
def evidence_reply_cost(n_support: int) -> Cost:
    """A peer's model and its number of samples."""
    return Cost(1, 1 + n_support, n_support)


@inlined
def follow_cost() -> Cost:
    """The notice that a user now learns from a peer, or no longer does."""
    return Cost(1, 0, 0)


@lean_kernel
def coded_bits(n_predictors: int, n_entries: int, value_bits: int) -> int:
    """Bits of a coded message with this many entries.

    Coordinates are their number and indices, or a bitmap of all predictors if that is shorter.
    """
    index_bits = 0
    while (1 << index_bits) < n_predictors:
        index_bits += 1
    count_bits = index_bits + (1 if n_predictors == 1 << index_bits else 0)
    return HEADER_BITS + min(n_predictors, count_bits + n_entries * index_bits) + n_entries * value_bits


@inlined
def bits_of(floats: Any, indices: Any, float_bits: float, index_bits: float) -> Any:
    """Bits of messages with these counts of floats and indices; numbers or arrays."""
    return floats * float_bits + indices * index_bits


def bits_per_index(n_predictors: int) -> float:
    """Bits of one predictor index: log2 n."""
    return math.log2(n_predictors)


class Bill(NamedTuple):
    """A ledger in the form kernels take: the counts to increase, prices, the budget and the bits spent elsewhere."""

    counts: Array
    float_bits: float
    index_bits: float
    allowed: float
    spent: float


def _no_counts() -> Array:
    return np.zeros(3, np.int64)


@dataclass(eq=False)
class Ledger:
    """Messages, floats and indices sent in model phases and in graph phases, and bits of coded messages in both.

    Like the paper's count, it leaves out the model that a waking user sends to a new neighbour, and requests.

    Examples
    --------
    >>> ledger = Ledger(n_predictors=256)
    >>> ledger.models += move_cost(n_indices=1)
    >>> ledger
    Ledger(1 messages, 40 bits)
    """

    n_predictors: int
    float_bits: int = FLOAT_BITS
    models: Array = field(default_factory=_no_counts)
    graph: Array = field(default_factory=_no_counts)
    coded: Array = field(default_factory=lambda: np.zeros(2, np.int64))

    def __repr__(self) -> str:
        return f"Ledger({self.messages} messages, {self.bits:.3g} bits)"

    def price(self, counts: Array) -> Any:
        """Bits of counted messages; the last axis of `counts` holds messages, floats and indices."""
        index_bits = bits_per_index(self.n_predictors)
        return bits_of(counts[..., FLOATS], counts[..., INDICES], self.float_bits, index_bits)

    def model_bill(self, allowed: float = math.inf) -> Bill:
        """The bill of model updates, with a budget for all phases together."""
        index_bits = bits_per_index(self.n_predictors)
        return Bill(self.models, float(self.float_bits), index_bits, float(allowed), self.graph_bits)

    @property
    def model_bits(self) -> float:
        """Bits sent in model updates."""
        return float(self.price(self.models) + self.coded[OF_MODELS])

    @property
    def graph_bits(self) -> float:
        """Bits sent in graph wake-ups."""
        return float(self.price(self.graph) + self.coded[OF_GRAPH])

    @property
    def bits(self) -> float:
        """All bits sent."""
        return self.model_bits + self.graph_bits

    @property
    def messages(self) -> int:
        """All messages sent."""
        return int(self.models[MESSAGES] + self.graph[MESSAGES])


def cached_graph_bits(users: Array, batches: Array, model_sizes: Array, n_predictors: int) -> Array:
    """Bits of each wake-up of one graph phase if users cache the models they receive (the paper's refined analysis).

    A peer that is asked again sends only its degree and receives its weight.

    Parameters
    ----------
    users, batches : arrays of shape (T,) and (T, kappa)
        The user that wakes, and the peers it asks.
    model_sizes : array of shape (n_users,)
        Nonzero entries of each model during the phase.
    """
    n_users = model_sizes.size
    pairs = users[:, None].astype(np.int64) * n_users + batches
    _, first = np.unique(pairs.ravel(), return_index=True)
    is_new = np.zeros(pairs.shape, bool)
    is_new.flat[first] = True
    index_bits = bits_per_index(n_predictors)
    known, loss = bits_of(2, 0, FLOAT_BITS, index_bits), bits_of(1, 0, FLOAT_BITS, index_bits)
    model_bits = loss + model_sizes[batches] * bits_of(1, 1, FLOAT_BITS, index_bits)
    return batches.shape[1] * known + np.where(is_new, model_bits, 0.0).sum(axis=1)
