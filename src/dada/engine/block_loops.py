"""Compiled loop of block steps over a whole population, on shared arrays.

Neighbours hold each user's shared model, not its model (see `dada.core.block_steps`). Neighbour sums are sums of
shared models, and graph steps compare shared models. A message is added to the sums of the sender's followers only, so
the cost of a wake-up does not depend on the number of users.
"""

from __future__ import annotations

import numpy as np

from dada.core.bits import FLOATS, INDICES, MESSAGES, OF_GRAPH, OF_MODELS, coded_bits
from dada.core.block_steps import (
    BlockStep,
    CodedChange,
    add_to_model,
    block_step,
    decode_change,
    encode_change,
    finest_exponent,
    largest_weight,
    make_message,
    mean_of_neighbours,
    value_bits,
)
from dada.core.compiled import Array, kernel, lean_kernel
from dada.core.model_steps import ModelSettings, StepScratch, refresh_margins
from dada.engine.model_loops import GraphLists, UserArrays, refresh_neighbour_sum, send_change, user_model
from dada.engine.state import SharedModels, State

# Wake-ups after which a user recomputes its margins and its neighbour sum, to remove rounding errors.
MARGINS_EVERY, NEIGHBOUR_SUM_EVERY = 8, 256


@lean_kernel
def run_blocks(
    settings: ModelSettings, step: BlockStep, finest: int, users: UserArrays, shared: SharedModels, edges: GraphLists,
    awake: Array, allowed: float, counts: Array, coded: Array,
    target: Array, message: CodedChange, scratch: StepScratch,
) -> int:  # fmt: skip
    """Block steps of the given users in turn.

    Returns the number of wake-ups made, fewer than given if the longest possible message of the next one would exceed
    the bits allowed.
    """
    lists, followers = edges
    n = users.alpha.shape[1]
    longest = coded_bits(n, n, step.quantise_bits)
    for e in range(awake.size):
        k = awake[e]
        n_followers = followers.length[k]
        if coded[OF_MODELS] + n_followers * longest > allowed:
            return e
        wakeups = shared.wakeups[k]
        is_stale = users.stale[k] == 1
        if is_stale or wakeups % NEIGHBOUR_SUM_EVERY == NEIGHBOUR_SUM_EVERY - 1:
            refresh_neighbour_sum(users, shared.model, lists, k)
        if is_stale:
            # The neighbours have changed: the mean of the former ones says nothing about the trend of the new.
            mean_of_neighbours(users.degree[k], users.neighbour_sum[k], shared.previous[k])
        user = user_model(users, k)
        if wakeups % MARGINS_EVERY == MARGINS_EVERY - 1:
            refresh_margins(user, users.n_support[k])
        users.n_support[k] = block_step(
            settings, step, wakeups, user, users.n_support[k], shared.previous[k], target, scratch
        )
        shared.wakeups[k] += 1
        loudest = largest_weight(user.alpha, user.support, users.n_support[k])
        n_entries, exponent = encode_change(step, finest, target, shared.model[k], loudest, message)
        if n_entries == 0:
            continue
        decode_change(message, n_entries, exponent, scratch)
        shared.n_support[k] = add_to_model(shared.model[k], shared.support[k], shared.n_support[k], n_entries, scratch)
        shared.exponent[k] = min(shared.exponent[k], exponent)
        send_change(users, followers, k, n_entries, scratch)
        bits = n_followers * coded_bits(n, n_entries, step.quantise_bits)
        coded[OF_MODELS] += bits
        counts[MESSAGES] += n_followers
        shared.bits[k] += bits
        users.sent[k, MESSAGES] += n_followers
    return awake.size


def advance(
    settings: ModelSettings, step: BlockStep, state: State, edges: GraphLists,
    awake: Array, allowed: float, scratch: StepScratch,
) -> int:  # fmt: skip
    """Block steps of the given users in turn; returns how many fit the bits allowed."""
    finest = finest_exponent(settings.beta, state.users.alpha.dtype)
    target, message = np.empty_like(scratch.gradient), make_message(scratch.gradient.size)
    done = run_blocks(
        settings, step.checked(), finest, state.users, state.shared, edges, awake, allowed,
        state.ledger.models, state.ledger.coded, target, message, scratch,
    )  # fmt: skip
    return int(done)


@kernel
def snapshot_bits(shared: SharedModels) -> Array:
    """Bits of a snapshot of each shared model: a coded message with all its entries, exact to the last bit."""
    bits = np.empty(shared.n_support.size, np.int64)
    for k in range(bits.size):
        largest = largest_weight(shared.model[k], shared.support[k], shared.n_support[k])
        per_value = value_bits(largest, shared.exponent[k])
        bits[k] = coded_bits(shared.model.shape[1], shared.n_support[k], per_value)
    return bits


def count_snapshots(state: State, before: Array) -> None:
    """Price the models sent in graph wake-ups as snapshots; `before` are the users' counts before these wake-ups."""
    ledger, shared, sent = state.ledger, state.shared, state.users.sent
    entries = sent[:, INDICES] - before[:, INDICES]
    bits = entries // np.maximum(shared.n_support, 1) * snapshot_bits(shared)
    for part in (FLOATS, INDICES):
        sent[:, part] -= entries
        ledger.graph[part] -= entries.sum()
    shared.bits[...] += bits
    ledger.coded[OF_GRAPH] += bits.sum()
