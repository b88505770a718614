"""Compiled loops of model updates over a whole population, on shared arrays.

`run_models` and `run_blocks` update users one after the other, by single moves or by block steps; every change reaches
the followers at once. `moves_in_window` and `blocks_in_window` update users whose changes take effect only after the
window, so that several workers can share it.

Under block steps, neighbours hold each user's shared model, not its model (`dada.core.block_steps`): neighbour sums are
sums of shared models, and graph steps compare shared models. A message is added to the sums of the sender's followers
only, so the cost of a wake-up does not depend on the number of users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dada.core.bits import (
    FLOATS,
    INDICES,
    MESSAGES,
    OF_GRAPH,
    OF_MODELS,
    Bill,
    Cost,
    bits_of,
    coded_bits,
    move_cost,
)
from dada.core.block_steps import (
    COARSEST,
    MARGINS_EVERY,
    NEIGHBOUR_SUM_EVERY,
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
from dada.core.compiled import Array, inlined, kernel, lean_kernel, prefetch, prefetch_cell
from dada.core.graph import NeighbourLists, is_neighbour, list_degree, position
from dada.core.model_steps import (
    PAIRWISE,
    REFRESH_EVERY,
    ModelSettings,
    StepScratch,
    UserModel,
    add_change,
    add_model,
    make_scratch,
    model_step,
    refresh_margins,
    step_size,
)

if TYPE_CHECKING:
    from dada.engine.state import State

# A change of more than n / DENSE_FROM coordinates is added to a neighbour sum as a whole row.
DENSE_FROM = 12
# Total size of all models above which memory is prefetched.
BEYOND_CACHES = 1 << 15


class UserArrays(NamedTuple):
    """Data and models of all users. If `stale[k]`, user k's neighbour sum and degree must be recomputed.

    Row k of `sent` counts the messages, floats and indices that user k has sent. Align with `side_by_side`.
    """

    A: Array
    row_start: Array
    confidence: Array
    margins: Array
    alpha: Array
    neighbour_sum: Array
    support: Array
    n_support: Array
    own_updates: Array
    degree: Array
    stale: Array
    offset: Array
    sample_weight: Array
    sent: Array


# The scalars of one user, together one cache line.
NUMBERS = np.dtype(
    {
        "names": ["row_start", "confidence", "degree", "n_support", "own_updates", "sent", "stale"],
        "formats": [np.int64, np.float64, np.float64, np.int32, np.int32, (np.int64, 3), np.uint8],
        "itemsize": 64,
    }
)


def side_by_side(users: UserArrays) -> UserArrays:
    """The same users, with all scalars of one user on one cache line."""
    n_users = users.alpha.shape[0]
    memory = np.zeros((n_users + 2) * NUMBERS.itemsize, np.uint8)
    first = -memory.ctypes.data % NUMBERS.itemsize
    table = memory[first : first + (n_users + 1) * NUMBERS.itemsize].view(NUMBERS)
    columns = {name: table[name][: len(getattr(users, name))] for name in table.dtype.names or ()}
    for name, column in columns.items():
        column[...] = getattr(users, name)
    return users._replace(**columns)


class GraphLists(NamedTuple):
    """The users that each user learns from, and those that learn from it; equal in a symmetric graph."""

    lists: NeighbourLists
    followers: NeighbourLists


class LoopScratch(NamedTuple):
    """Working memory of `run_models`: of the current step, and the last change, which is not yet sent."""

    step: StepScratch
    pending: StepScratch


def loop_scratch(n: int, most_samples: int, dtype: np.dtype[np.floating]) -> LoopScratch:
    """Working memory for models of n predictors and users with at most `most_samples` samples."""
    step = make_scratch(n, most_samples, dtype)
    # A pairwise move changes at most two coordinates; larger changes are sent at once.
    return LoopScratch(step, step._replace(coordinate=np.empty(2, np.int32), delta=np.empty(2, dtype)))


@inlined
def user_model(users: UserArrays, k: int) -> UserModel:
    """User k's arrays."""
    first, last = users.row_start[k], users.row_start[k + 1]
    return UserModel(
        users.A[first:last], users.margins[first:last], users.alpha[k], users.neighbour_sum[k], users.support[k],
        users.offset[first:last], users.sample_weight[first:last], users.confidence[k], users.degree[k],
    )  # fmt: skip


@lean_kernel
def refresh_neighbour_sum(users: UserArrays, models: Array, lists: NeighbourLists, k: int) -> None:
    """Recompute user k's degree and its sum of the neighbours' models, in ascending order of neighbours."""
    users.degree[k] = list_degree(lists, k)
    users.neighbour_sum[k, :] = 0
    for p in range(lists.start[k], lists.start[k] + lists.length[k]):
        add_model(users.neighbour_sum[k], lists.weights[p], models[lists.ids[p]])
    users.stale[k] = 0


@lean_kernel
def is_refresh_due(users: UserArrays, k: int) -> bool:
    """Whether the margins and the neighbour sum must be recomputed to remove rounding errors."""
    return users.own_updates[k] % REFRESH_EVERY == REFRESH_EVERY - 1


@lean_kernel
def update_model(
    rule: int, settings: ModelSettings, users: UserArrays, k: int, user: UserModel, gamma: float, scratch: StepScratch
) -> int:
    """One model update of user k; returns the number of changed coordinates, listed in the scratch."""
    _, n_support, n_changed = model_step(rule, settings, user, users.n_support[k], gamma, scratch)
    users.n_support[k] = n_support
    users.own_updates[k] += 1
    return n_changed


@lean_kernel
def count_sent(sent: Array, counts: Array, k: int, cost: Cost, times: int) -> None:
    """Count a message that user k sends `times` times, in row k of `sent` and in total."""
    sent[k, MESSAGES] += times * cost.messages
    sent[k, FLOATS] += times * cost.floats
    sent[k, INDICES] += times * cost.indices
    counts[MESSAGES] += times * cost.messages
    counts[FLOATS] += times * cost.floats
    counts[INDICES] += times * cost.indices


@lean_kernel
def send_change(users: UserArrays, followers: NeighbourLists, k: int, n_changed: int, scratch: StepScratch) -> None:
    """Add the change of user k's model to the sums of its followers.

    Stale followers get it too, although they will recompute their sums: checking them would take longer.
    """
    if n_changed == 0:
        return
    n = users.neighbour_sum.shape[1]
    # Adding a row of mostly zeros is faster than many scattered additions, and adding zero changes no bit.
    dense = n_changed * DENSE_FROM > n
    if dense:
        scratch.gradient[:] = 0
        for c in range(n_changed):
            scratch.gradient[scratch.coordinate[c]] = scratch.delta[c]
    for p in range(followers.start[k], followers.start[k] + followers.length[k]):
        neighbour_sum = users.neighbour_sum[followers.ids[p]]
        if dense:
            add_model(neighbour_sum, followers.weights[p], scratch.gradient)
        else:
            add_change(neighbour_sum, followers.weights[p], n_changed, scratch.coordinate, scratch.delta)


@lean_kernel
def prefetch_numbers(users: UserArrays, lists: NeighbourLists, k: int) -> None:
    """Prefetch user k's scalars, which locate its arrays."""
    prefetch_cell(users.row_start, k)
    prefetch_cell(users.row_start, k + 1)
    prefetch_cell(lists.start, k)
    prefetch_cell(lists.length, k)


@lean_kernel
def prefetch_user(users: UserArrays, lists: NeighbourLists, k: int) -> None:
    """Prefetch the arrays that an update of user k reads."""
    n = users.alpha.shape[1]
    first, last = users.row_start[k], users.row_start[k + 1]
    prefetch(users.A, first * n, last * n)
    prefetch(users.margins, first, last)
    prefetch(users.alpha, k * n, (k + 1) * n)
    prefetch(users.neighbour_sum, k * n, (k + 1) * n)
    prefetch(users.support, k * n, k * n + users.n_support[k])
    start = lists.start[k]
    prefetch(lists.ids, start, start + lists.length[k])
    prefetch(lists.weights, start, start + lists.length[k])


@lean_kernel
def postpone_change(users: UserArrays, followers: NeighbourLists, k: int, n_changed: int, scratch: LoopScratch) -> None:
    """Keep a change for later, and prefetch the memory that `send_change` will write."""
    step, pending = scratch
    n = users.neighbour_sum.shape[1]
    for c in range(n_changed):
        pending.coordinate[c] = step.coordinate[c]
        pending.delta[c] = step.delta[c]
    for p in range(followers.start[k], followers.start[k] + followers.length[k]):
        l = followers.ids[p]
        for c in range(n_changed):
            prefetch_cell(users.neighbour_sum, l * n + step.coordinate[c])


@lean_kernel
def run_models(
    rule: int, settings: ModelSettings, users: UserArrays, edges: GraphLists,
    awake: Array, t: int, bill: Bill, scratch: LoopScratch,
) -> int:  # fmt: skip
    """Model updates of the given users in turn, starting with update number t of the run.

    Returns the number of updates made, fewer than given if the next one would exceed the bits allowed. In large
    populations a small change is sent only after the step of the next user, while the followers' memory is fetched;
    if that user depends on the change, it is sent before. The order changes no bit of the result.
    """
    lists, followers = edges
    cost = move_cost(2 if rule == PAIRWISE else 1)
    beyond_caches = users.alpha.size > BEYOND_CACHES
    sender, n_pending = 0, 0
    for e in range(awake.size):
        if beyond_caches and e + 4 < awake.size:
            prefetch_numbers(users, followers, awake[e + 4])
            prefetch_user(users, followers, awake[e + 2])
        k = awake[e]
        n_followers = followers.length[k]
        # The same operations as in `Ledger.bits`: the budget is exact, wherever a run is cut into chunks.
        floats = bill.counts[FLOATS] + n_followers * cost.floats
        indices = bill.counts[INDICES] + n_followers * cost.indices
        if bits_of(floats, indices, bill.float_bits, bill.index_bits) + bill.spent > bill.allowed:
            send_change(users, followers, sender, n_pending, scratch.pending)
            return e
        is_due = is_refresh_due(users, k)
        refreshes = is_due or users.stale[k] == 1
        if n_pending > 0 and (refreshes or is_neighbour(followers, sender, k, position(followers, sender, k))):
            send_change(users, followers, sender, n_pending, scratch.pending)
            n_pending = 0
        if refreshes:
            refresh_neighbour_sum(users, users.alpha, lists, k)
        user = user_model(users, k)
        if is_due:
            refresh_margins(user, users.n_support[k])
        gamma = step_size(rule, users.alpha.shape[0], t + e, users.own_updates[k])
        n_changed = update_model(rule, settings, users, k, user, gamma, scratch.step)
        send_change(users, followers, sender, n_pending, scratch.pending)
        n_pending = 0
        if n_changed > 0:
            count_sent(users.sent, bill.counts, k, cost, n_followers)
        if beyond_caches and n_changed <= scratch.pending.delta.size:
            sender, n_pending = k, n_changed
            postpone_change(users, followers, k, n_changed, scratch)
        else:
            send_change(users, followers, k, n_changed, scratch.step)
    send_change(users, followers, sender, n_pending, scratch.pending)
    return awake.size


class SharedModels(NamedTuple):
    """The models that neighbours hold, and the rest of the state of block steps; a row or an entry per user.

    `previous` is the mean of the neighbours' shared models at the user's last wake-up, `wakeups` the number of its
    block steps, `exponent` that of the finest unit sent, `bits` the length of the coded messages sent.
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
    """Working memory of a block step: the model to share, the message, and the moves."""

    target: Array
    message: CodedChange
    step: StepScratch


def block_scratch(step: StepScratch) -> BlockScratch:
    """Working memory of block steps around that of single moves."""
    return BlockScratch(np.empty_like(step.gradient), make_message(step.gradient.size), step)


class BlockSettings(NamedTuple):
    """The block step as kernels take it: its settings, and the exponent of the finest unit of shared models."""

    step: BlockStep
    finest: int


def block_settings(step: BlockStep, beta: float, dtype: np.dtype[np.floating]) -> BlockSettings:
    """The settings of block steps for models of this size and precision."""
    return BlockSettings(step.checked(), finest_exponent(beta, dtype))


@lean_kernel
def update_block(
    settings: ModelSettings, block: BlockSettings, users: UserArrays, shared: SharedModels, k: int, n_followers: int,
    counts: Array, coded: Array, scratch: BlockScratch,
) -> int:  # fmt: skip
    """One block step of user k on its neighbour sum, and the change of its shared model.

    Counts the message, and returns its number of entries; `scratch.step` lists the change.
    """
    step, wakeups, n = block.step, shared.wakeups[k], users.alpha.shape[1]
    user = user_model(users, k)
    if wakeups % MARGINS_EVERY == MARGINS_EVERY - 1:
        refresh_margins(user, users.n_support[k])
    users.n_support[k] = block_step(
        settings, step, wakeups, user, users.n_support[k], shared.previous[k], scratch.target, scratch.step
    )
    shared.wakeups[k] += 1
    loudest = largest_weight(user.alpha, user.support, users.n_support[k])
    n_entries, exponent = encode_change(step, block.finest, scratch.target, shared.model[k], loudest, scratch.message)
    if n_entries == 0:
        return 0
    decode_change(scratch.message, n_entries, exponent, scratch.step)
    shared.n_support[k] = add_to_model(shared.model[k], shared.support[k], shared.n_support[k], n_entries, scratch.step)
    shared.exponent[k] = min(shared.exponent[k], exponent)
    bits = n_followers * coded_bits(n, n_entries, step.quantise_bits)
    coded[OF_MODELS] += bits
    counts[MESSAGES] += n_followers
    shared.bits[k] += bits
    users.sent[k, MESSAGES] += n_followers
    return n_entries


@lean_kernel
def run_blocks(
    settings: ModelSettings, block: BlockSettings, users: UserArrays, shared: SharedModels, edges: GraphLists,
    awake: Array, allowed: float, counts: Array, coded: Array, scratch: BlockScratch,
) -> int:  # fmt: skip
    """Block steps of the given users in turn.

    Returns the number of wake-ups made, fewer than given if the longest possible message of the next one would exceed
    the bits allowed.
    """
    lists, followers = edges
    n = users.alpha.shape[1]
    longest = coded_bits(n, n, block.step.quantise_bits)
    for e in range(awake.size):
        k = awake[e]
        n_followers = followers.length[k]
        if coded[OF_MODELS] + n_followers * longest > allowed:
            return e
        is_stale = users.stale[k] == 1
        if is_stale or shared.wakeups[k] % NEIGHBOUR_SUM_EVERY == NEIGHBOUR_SUM_EVERY - 1:
            refresh_neighbour_sum(users, shared.model, lists, k)
        if is_stale:
            # The neighbours have changed: the mean of the former ones says nothing about the trend of the new.
            mean_of_neighbours(users.degree[k], users.neighbour_sum[k], shared.previous[k])
        n_entries = update_block(settings, block, users, shared, k, n_followers, counts, coded, scratch)
        send_change(users, followers, k, n_entries, scratch.step)
    return awake.size


def advance_blocks(
    settings: ModelSettings, step: BlockStep, state: State, edges: GraphLists,
    awake: Array, allowed: float, scratch: StepScratch,
) -> int:  # fmt: skip
    """Block steps of the given users in turn; returns how many fit the bits allowed."""
    block = block_settings(step, settings.beta, state.users.alpha.dtype)
    done = run_blocks(
        settings, block, state.users, state.shared, edges, awake, allowed,
        state.ledger.models, state.ledger.coded, block_scratch(scratch),
    )  # fmt: skip
    return int(done)


class Changes(NamedTuple):
    """Changes of a window: the model of `user[s]` (-1: none) moved at `coordinate[s]` by `delta[s]`.

    The first `length[s]` entries of both count.
    """

    user: Array
    length: Array
    coordinate: Array
    delta: Array


def no_changes(size: int, most: int, dtype: np.dtype[np.floating]) -> Changes:
    """Memory for a window of `size` wake-ups that change at most `most` coordinates each."""
    user, length = np.full(size, -1, np.int32), np.zeros(size, np.int32)
    return Changes(user, length, np.empty((size, most), np.int32), np.empty((size, most), dtype))


@lean_kernel
def keep_change(changes: Changes, s: int, k: int, n_changed: int, scratch: StepScratch) -> None:
    """Store the change of user k's model, listed in the scratch, in slot s."""
    changes.user[s] = k if n_changed > 0 else -1
    changes.length[s] = n_changed
    for c in range(n_changed):
        changes.coordinate[s, c] = scratch.coordinate[c]
        changes.delta[s, c] = scratch.delta[c]


@lean_kernel
def refresh_stale(users: UserArrays, models: Array, previous: Array, lists: NeighbourLists, awake: Array) -> None:
    """Recompute the neighbour sums of stale users before a window; lists must be in the order of all users.

    `previous` are the means that block steps extrapolate; without rows for other steps.
    """
    for e in range(awake.size):
        k = awake[e]
        if users.stale[k] == 1:
            refresh_neighbour_sum(users, models, lists, k)
            if previous.size > 0:
                mean_of_neighbours(users.degree[k], users.neighbour_sum[k], previous[k])


@lean_kernel
def moves_in_window(
    settings: ModelSettings, users: UserArrays, followers: NeighbourLists, n_followers: Array,
    awake: Array, slots: Array, changes: Changes, counts: Array, scratch: StepScratch,
) -> None:  # fmt: skip
    """Pairwise updates of the given users; the change of wake-up e goes to slot slots[e]."""
    cost = move_cost(2)
    for e in range(awake.size):
        if e + 4 < awake.size:
            prefetch_numbers(users, followers, awake[e + 4])
            prefetch_user(users, followers, awake[e + 2])
        k = awake[e]
        user = user_model(users, k)
        if is_refresh_due(users, k):
            refresh_margins(user, users.n_support[k])
            # Other models are consistent only between windows.
            users.stale[k] = 1
        n_changed = update_model(PAIRWISE, settings, users, k, user, -1.0, scratch)
        if n_changed > 0:
            count_sent(users.sent, counts, k, cost, n_followers[k])
        keep_change(changes, slots[e], k, n_changed, scratch)


@lean_kernel
def blocks_in_window(
    settings: ModelSettings, block: BlockSettings, users: UserArrays, shared: SharedModels,
    followers: NeighbourLists, n_followers: Array,
    awake: Array, slots: Array, changes: Changes, counts: Array, coded: Array, scratch: BlockScratch,
) -> None:  # fmt: skip
    """Block steps of the given users; the message of wake-up e goes to slot slots[e]."""
    n = users.alpha.shape[1]
    for e in range(awake.size):
        if e + 4 < awake.size:
            prefetch_numbers(users, followers, awake[e + 4])
            prefetch_user(users, followers, awake[e + 2])
            prefetch(shared.model, awake[e + 2] * n, (awake[e + 2] + 1) * n)
            prefetch(shared.previous, awake[e + 2] * n, (awake[e + 2] + 1) * n)
        k = awake[e]
        n_entries = update_block(settings, block, users, shared, k, n_followers[k], counts, coded, scratch)
        if shared.wakeups[k] % NEIGHBOUR_SUM_EVERY == NEIGHBOUR_SUM_EVERY - 1:
            # Other models are consistent only between windows.
            users.stale[k] = 1
        keep_change(changes, slots[e], k, n_entries, scratch.step)


@lean_kernel
def add_to_neighbours(users: UserArrays, followers: NeighbourLists, changes: Changes, first: int, last: int) -> None:
    """Add the changes of a window to the neighbour sums of users first..last-1, in the order of the wake-ups."""
    n = users.neighbour_sum.shape[1]
    size = changes.user.size
    for s in range(size):
        if s + 6 < size and changes.user[s + 6] >= 0:
            prefetch_cell(followers.start, changes.user[s + 6])
            prefetch_cell(followers.length, changes.user[s + 6])
        if s + 3 < size and changes.user[s + 3] >= 0:
            at, length = followers.start[changes.user[s + 3]], followers.length[changes.user[s + 3]]
            prefetch(followers.ids, at, at + length)
            prefetch(followers.weights, at, at + length)
        if s + 1 < size and changes.user[s + 1] >= 0:
            k = changes.user[s + 1]
            for p in range(followers.start[k], followers.start[k] + followers.length[k]):
                if first <= followers.ids[p] < last:
                    for c in range(changes.length[s + 1]):
                        prefetch_cell(users.neighbour_sum, followers.ids[p] * n + changes.coordinate[s + 1, c])
        k = changes.user[s]
        if k < 0:
            continue
        coordinate, delta = changes.coordinate[s], changes.delta[s]
        for p in range(followers.start[k], followers.start[k] + followers.length[k]):
            l = followers.ids[p]
            if first <= l < last:
                add_change(users.neighbour_sum[l], followers.weights[p], changes.length[s], coordinate, delta)


@lean_kernel
def apply_to_copies(models: Array, changes: Changes, first: int) -> None:
    """Apply the changes of other shards' users, numbered from `first`, to the copies of their models."""
    for s in range(changes.user.size):
        k = changes.user[s]
        if k >= first:
            add_change(models[k], 1.0, changes.length[s], changes.coordinate[s], changes.delta[s])


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
