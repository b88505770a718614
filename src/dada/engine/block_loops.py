"""Compiled loop of block steps over a whole population, on shared arrays.

Neighbours hold each user's shared model, not its model (see `dada.core.block_steps`). Neighbour sums are sums of
shared models, and graph steps compare shared models. A message is added to the sums of the sender's followers only, so
the cost of a wake-up does not depend on the number of users.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dada.core.bits import FLOATS, INDICES, MESSAGES, OF_GRAPH, OF_MODELS, coded_bits
from dada.core.block_steps import (
    BlockStep,
    CodedChange,
    add_to_model,
    block_step,
    decode_change,
    encode_change,
    make_message,
    mean_of_neighbours,
    value_bits,
)
from dada.core.compiled import Array, kernel, lean_kernel
from dada.core.model_steps import ModelSettings, StepScratch, add_model, refresh_margins
from dada.core.neighbours import NeighbourLists, list_degree
from dada.engine.model_loops import GraphLists, UserArrays, send_change, user_model

# Wake-ups after which a user recomputes its margins and its neighbour sum, to remove rounding errors.
MARGINS_EVERY, NEIGHBOUR_SUM_EVERY = 8, 256
# Exponent of users who have sent nothing: above that of any unit.
COARSEST = 127


class SharedModels(NamedTuple):
    """The models that neighbours hold, and the rest of the state of block steps.

    Attributes
    ----------
    model, support, n_support : arrays of shape (n_users, n), (n_users, n) and (n_users,)
        The shared models.
    previous : array of shape (n_users, n)
        Mean of the neighbours' shared models at the user's last wake-up.
    wakeups : array of shape (n_users,)
        Block steps made.
    exponent : array of shape (n_users,)
        Exponent of the finest unit sent.
    bits : array of shape (n_users,)
        Bits of coded messages sent.
    """

    model: Array
    support: Array
    n_support: Array
    previous: Array
    wakeups: Array
    exponent: Array
    bits: Array


def nothing_shared(n_users: int, n: int, dtype: np.dtype[np.floating]) -> SharedModels:
    """The shared models of users that have sent nothing."""
    return SharedModels(
        model=np.zeros((n_users, n), dtype),
        support=np.zeros((n_users, n), np.int16 if n < 2**15 else np.int32),
        n_support=np.zeros(n_users, np.int32),
        previous=np.zeros((n_users, n), dtype),
        wakeups=np.zeros(n_users, np.int32),
        exponent=np.full(n_users, COARSEST, np.int8),
        bits=np.zeros(n_users, np.int64),
    )


class BlockScratch(NamedTuple):
    """Working memory of `run_blocks`."""

    step: StepScratch
    target: Array
    message: CodedChange


def block_scratch(step: StepScratch) -> BlockScratch:
    """Working memory around that of the inner moves."""
    return BlockScratch(step, np.empty_like(step.gradient), make_message(step.gradient.size))


@lean_kernel
def refresh_shared_sum(users: UserArrays, shared: SharedModels, lists: NeighbourLists, k: int) -> None:
    """Recompute user k's degree and its sum of shared models, in ascending order of neighbours.

    If the neighbours have changed, the mean of the former ones says nothing about the trend of the new: drop it.
    """
    users.degree[k] = list_degree(lists, k)
    users.neighbour_sum[k, :] = 0
    for p in range(lists.start[k], lists.start[k] + lists.length[k]):
        add_model(users.neighbour_sum[k], lists.weights[p], shared.model[lists.ids[p]])
    if users.stale[k] == 1:
        mean_of_neighbours(users.degree[k], users.neighbour_sum[k], shared.previous[k])
    users.stale[k] = 0


@lean_kernel
def run_blocks(
    settings: ModelSettings,
    step: BlockStep,
    finest: int,
    users: UserArrays,
    shared: SharedModels,
    edges: GraphLists,
    awake: Array,
    allowed: float,
    counts: Array,
    coded: Array,
    scratch: BlockScratch,
) -> int:
    """Block steps of the given users in turn.

    Returns the number of wake-ups made, fewer than given if the longest possible message of the next one would exceed
    the bits allowed.
    """
    lists, followers = edges
    target, message = scratch.target, scratch.message
    n = users.alpha.shape[1]
    longest = coded_bits(n, n, step.quantise_bits)
    for e in range(awake.size):
        k = awake[e]
        n_followers = followers.length[k]
        if coded[OF_MODELS] + n_followers * longest > allowed:
            return e
        user, wakeups = user_model(users, k), shared.wakeups[k]
        if users.stale[k] == 1 or wakeups % NEIGHBOUR_SUM_EVERY == NEIGHBOUR_SUM_EVERY - 1:
            refresh_shared_sum(users, shared, lists, k)
        if wakeups % MARGINS_EVERY == MARGINS_EVERY - 1:
            refresh_margins(user, users.n_support[k])
        users.n_support[k] = block_step(
            settings, step, users.confidence[k], users.degree[k], wakeups,
            user, users.n_support[k], shared.previous[k], target, scratch.step,
        )  # fmt: skip
        shared.wakeups[k] += 1
        loudest = 0.0
        for p in range(users.n_support[k]):
            loudest = max(loudest, abs(np.float64(user.alpha[user.support[p]])))
        n_entries, exponent = encode_change(step, finest, target, shared.model[k], loudest, message)
        if n_entries == 0:
            continue
        decode_change(message, n_entries, exponent, scratch.step)
        shared.n_support[k] = add_to_model(
            shared.model[k], shared.support[k], shared.n_support[k], n_entries, scratch.step
        )
        shared.exponent[k] = min(shared.exponent[k], exponent)
        send_change(users, followers, k, n_entries, scratch.step)
        bits = n_followers * coded_bits(n, n_entries, step.quantise_bits)
        coded[OF_MODELS] += bits
        counts[MESSAGES] += n_followers
        shared.bits[k] += bits
        users.sent[k, MESSAGES] += n_followers
    return awake.size


@kernel
def snapshot_bits(shared: SharedModels) -> Array:
    """Bits of a snapshot of each shared model: a coded message with all its entries, exact to the last bit."""
    bits = np.empty(shared.n_support.size, np.int64)
    for k in range(bits.size):
        largest = 0.0
        for p in range(shared.n_support[k]):
            largest = max(largest, abs(np.float64(shared.model[k, shared.support[k, p]])))
        per_value = value_bits(largest, shared.exponent[k])
        bits[k] = coded_bits(shared.model.shape[1], shared.n_support[k], per_value)
    return bits


def count_snapshots(counts: Array, sent: Array, before: Array, coded: Array, shared: SharedModels) -> None:
    """Price the models that users sent since `before` as snapshots instead of as floats and indices.

    `counts` are those of a graph phase; `sent` and `before` hold the counts of every user, now and then.
    """
    entries = sent[:, INDICES] - before[:, INDICES]
    bits = entries // np.maximum(shared.n_support, 1) * snapshot_bits(shared)
    for part in (FLOATS, INDICES):
        sent[:, part] -= entries
        counts[part] -= entries.sum()
    shared.bits[...] += bits
    coded[OF_GRAPH] += bits.sum()
