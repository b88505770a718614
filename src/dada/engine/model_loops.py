"""The compiled loops: wake-ups of a whole population, one after the other, on shared arrays.

Each loop returns how many of the given wake-ups it carried out; it stops early when the bits allowed would be exceeded
(model loop) or when the pool of neighbour lists may not suffice (graph loop, see `neighbour_lists`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dada.core.compiled import Array, inlined, lean_kernel, prefetch, prefetch_cell
from dada.core.graph_steps import EXACT, exact_step, lipschitz_step, pair_cost
from dada.core.model_steps import (
    PAIRWISE,
    REFRESH_EVERY,
    ModelSettings,
    StepScratch,
    UserModel,
    add_change,
    add_to_neighbour_sum,
    model_step,
    refresh_margins,
    squared_distance,
    step_size,
)
from dada.core.neighbours import (
    FIRST_ROOM,
    BatchMix,
    Nearest,
    NeighbourLists,
    free_cells,
    gather_peers,
    is_neighbour,
    lightest,
    list_degree,
    may_be_near,
    position,
    set_weight,
    weight_of,
)
from dada.core.regularizers import RegularizerCode

# A change of more than n / DENSE_FROM coordinates is added to a neighbour's pull as a whole row.
DENSE_FROM = 12
# Entries of all models from which on users' memory is asked for ahead.
BEYOND_CACHES = 1 << 15


class Users(NamedTuple):
    """All users' data and models. `stale[k]` says that k's pull and degree must be made anew from its list.

    Row k of `sent` counts the messages, floats and indices that user k has sent. Make one with `side_by_side`.
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


# A user's numbers, a line of the caches in all.
NUMBERS = np.dtype(
    {
        "names": ["row_start", "confidence", "degree", "n_support", "own_updates", "sent", "stale"],
        "formats": [np.int64, np.float64, np.float64, np.int32, np.int32, (np.int64, 3), np.uint8],
        "itemsize": 64,
    }
)


def side_by_side(users: Users) -> Users:
    """The same users, with all numbers of one user in one place: waiting for one then brings all."""
    n_users = users.alpha.shape[0]
    memory = np.zeros((n_users + 2) * NUMBERS.itemsize, np.uint8)
    first = -memory.ctypes.data % NUMBERS.itemsize
    table = memory[first : first + (n_users + 1) * NUMBERS.itemsize].view(NUMBERS)
    columns = {name: table[name][: len(getattr(users, name))] for name in table.dtype.names or ()}
    for name, column in columns.items():
        column[...] = getattr(users, name)
    return users._replace(**columns)


class GraphSettings(NamedTuple):
    """What all users share when they update weights. `max_neighbours` = 0 sets no bound.

    `prunes` says that only the nearest peers met may become neighbours.
    """

    step: int
    regularizer: RegularizerCode
    mu1: float
    mu2: float
    max_neighbours: int
    mix: BatchMix
    prunes: bool


class Batch(NamedTuple):
    """Working memory of a graph wake-up: who is asked, and the block that those make up who may become neighbours."""

    asked: Array
    peers: Array
    cost: Array
    w: Array
    degree: Array
    new: Array


class BitPrices(NamedTuple):
    """What a message costs, how many bits may be spent in all (infinity: any), and how many went to the graph."""

    float_bits: float
    index_bits: float
    allowed: float
    graph_bits: float


@inlined
def user_model(users: Users, k: int) -> UserModel:
    """User k's arrays."""
    first, last = users.row_start[k], users.row_start[k + 1]
    return UserModel(
        users.A[first:last], users.margins[first:last], users.alpha[k], users.neighbour_sum[k], users.support[k],
        users.offset[first:last], users.sample_weight[first:last],
    )  # fmt: skip


@lean_kernel
def refresh_neighbour_sum(users: Users, lists: NeighbourLists, k: int) -> None:
    """Make user k's degree and pull anew from its list, in ascending order of neighbours."""
    users.degree[k] = list_degree(lists, k)
    users.neighbour_sum[k, :] = 0
    for p in range(lists.start[k], lists.start[k] + lists.length[k]):
        l = lists.ids[p]
        add_to_neighbour_sum(
            users.neighbour_sum[k], lists.weights[p], users.alpha[l], users.support[l], users.n_support[l]
        )
    users.stale[k] = 0


@lean_kernel
def send_change(users: Users, followers: NeighbourLists, k: int, n_changed: int, scratch: StepScratch) -> None:
    """Tell user k's followers which coordinates of its model moved.

    Those who are stale are told too, though they will look for themselves: to ask each whether it is takes longer.
    """
    if n_changed == 0:
        return
    number = users.neighbour_sum.dtype.type
    n = users.neighbour_sum.shape[1]
    # Adding a row of mostly zeros is faster than many scattered additions, and adding zero changes no bit.
    dense = n_changed * DENSE_FROM > n
    if dense:
        scratch.gradient[:] = 0
        for c in range(n_changed):
            scratch.gradient[scratch.coordinate[c]] = scratch.delta[c]
    for p in range(followers.start[k], followers.start[k] + followers.length[k]):
        l = followers.ids[p]
        if dense:
            w = number(followers.weights[p])
            for j in range(n):
                users.neighbour_sum[l, j] += w * scratch.gradient[j]
        else:
            add_change(users.neighbour_sum[l], followers.weights[p], n_changed, scratch)


@lean_kernel
def count_sent(users: Users, counts: Array, k: int, messages: int, floats: int, indices: int) -> None:
    """Count what user k sends, in its own row and in all."""
    users.sent[k, 0] += messages
    users.sent[k, 1] += floats
    users.sent[k, 2] += indices
    counts[0] += messages
    counts[1] += floats
    counts[2] += indices


@lean_kernel
def prefetch_numbers(users: Users, lists: NeighbourLists, k: int) -> None:
    """Ask for user k's numbers, which say where its arrays lie."""
    prefetch_cell(users.row_start, k)
    prefetch_cell(users.row_start, k + 1)
    prefetch_cell(lists.start, k)
    prefetch_cell(lists.length, k)


@lean_kernel
def prefetch_user(users: Users, lists: NeighbourLists, k: int) -> None:
    """Ask for the arrays that an update of user k reads."""
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
def prepare_change(
    users: Users, followers: NeighbourLists, k: int, n_changed: int, scratch: StepScratch, late: StepScratch
) -> None:
    """Keep a change for later, and ask for the memory that `send_change` will touch."""
    n = users.neighbour_sum.shape[1]
    for c in range(n_changed):
        late.coordinate[c] = scratch.coordinate[c]
        late.delta[c] = scratch.delta[c]
    for p in range(followers.start[k], followers.start[k] + followers.length[k]):
        l = followers.ids[p]
        for c in range(n_changed):
            prefetch_cell(users.neighbour_sum, l * n + scratch.coordinate[c])


@lean_kernel
def run_models(
    rule: int,
    settings: ModelSettings,
    users: Users,
    lists: NeighbourLists,
    followers: NeighbourLists,
    awake: Array,
    t: int,
    prices: BitPrices,
    counts: Array,
    scratch: StepScratch,
    late: StepScratch,
) -> int:
    """Model updates of the given users in turn, the first being update number t of the run.

    `followers` lists who learns from each user; in a symmetric graph they are its neighbours, the lists themselves.
    A small change is kept in `late` until the next user has taken its step, while the followers' memory is on its way;
    if that user depends on it, it is told before. Results are the same, to the last bit, as telling it at once.
    """
    n_indices = 2 if rule == PAIRWISE else 1
    beyond_caches = users.alpha.size > BEYOND_CACHES
    sender, n_late = 0, 0
    for e in range(awake.size):
        if beyond_caches and e + 4 < awake.size:
            prefetch_numbers(users, followers, awake[e + 4])
            prefetch_user(users, followers, awake[e + 2])
        k = awake[e]
        n_told = followers.length[k]
        # In the operations of `Ledger.bits`: the budget holds to the last bit, and wherever a run is cut in chunks.
        floats, indices = counts[1] + n_told, counts[2] + n_told * n_indices
        if floats * prices.float_bits + indices * prices.index_bits + prices.graph_bits > prices.allowed:
            send_change(users, followers, sender, n_late, late)
            return e
        is_due = users.own_updates[k] % REFRESH_EVERY == REFRESH_EVERY - 1
        refreshes = is_due or users.stale[k] == 1
        if n_late > 0 and (refreshes or is_neighbour(followers, sender, k, position(followers, sender, k))):
            send_change(users, followers, sender, n_late, late)
            n_late = 0
        user = user_model(users, k)
        if refreshes:
            refresh_neighbour_sum(users, lists, k)
        if is_due:
            refresh_margins(user, users.n_support[k])
        gamma = step_size(rule, users.alpha.shape[0], t + e, users.own_updates[k])
        _, n_support, n_changed = model_step(
            rule, settings, users.confidence[k], users.degree[k], user, users.n_support[k], gamma, scratch
        )
        users.n_support[k] = n_support
        users.own_updates[k] += 1
        send_change(users, followers, sender, n_late, late)
        n_late = 0
        if n_changed > 0:
            count_sent(users, counts, k, n_told, n_told, n_told * n_indices)
        if beyond_caches and n_changed <= late.delta.size:
            sender, n_late = k, n_changed
            prepare_change(users, followers, k, n_changed, scratch, late)
        else:
            send_change(users, followers, k, n_changed, scratch)
    send_change(users, followers, sender, n_late, late)
    return awake.size


@lean_kernel
def change_weight(users: Users, lists: NeighbourLists, k: int, l: int, old: float, new: float) -> None:
    """Store w_kl at both ends and move both degrees."""
    set_weight(lists, k, l, new)
    users.degree[k] = users.degree[k] + (new - old) if lists.length[k] > 0 else 0.0
    users.degree[l] = users.degree[l] + (new - old) if lists.length[l] > 0 else 0.0
    users.stale[k] = 1
    users.stale[l] = 1


@lean_kernel
def make_room(users: Users, lists: NeighbourLists, k: int, l: int, w: float, most: int, counts: Array) -> bool:
    """Whether a new edge of weight w fits bounded lists: a full end gives up its lightest edge, unless w is lighter.

    Giving up an edge is one more message: the other end is told its new weight.
    """
    for x in (k, l):
        if lists.length[x] >= most and lists.weights[lightest(lists, x)] >= w:
            return False
    for x in (k, l):
        if lists.length[x] >= most:
            p = lightest(lists, x)
            change_weight(users, lists, x, lists.ids[p], lists.weights[p], 0.0)
            count_sent(users, counts, x, 1, 1, 0)
    return True


@lean_kernel
def count_peer(mix: BatchMix, users: Users, counts: Array, k: int, l: int, weight: float) -> None:
    """Count what it takes that user k asks peer l: the peer's model, loss and degree, and k's word of the new weight.

    In a gossip search, whose wake-ups return to present neighbours all the time, these do not send the model and loss
    that they have sent before; the id that led to a new peer counts as one float of that peer.
    """
    n_support = users.n_support[l]
    count_sent(users, counts, k, 1, 1, 0)
    if mix.n_gossip == 0:
        count_sent(users, counts, l, 1, 2 + n_support, n_support)
    elif weight > 0.0:
        count_sent(users, counts, l, 1, 1, 0)
    else:
        count_sent(users, counts, l, 1, 3 + n_support, n_support)


@lean_kernel
def run_graph(
    settings: GraphSettings,
    coupling: Array,
    losses: Array,
    users: Users,
    lists: NeighbourLists,
    awake: Array,
    batches: Array,
    words: Array,
    nearest: Nearest,
    batch: Batch,
    counts: Array,
) -> int:
    """Graph wake-ups of the given users in turn, each with its batch of peers; models stand still meanwhile."""
    for e in range(awake.size):
        k = awake[e]
        asked = gather_peers(settings.mix, lists, nearest, k, batches[e], words[e], batch.asked)
        cells = 4 * (lists.room[k] + asked + FIRST_ROOM)
        for b in range(asked):
            cells += 2 * (lists.room[batch.asked[b]] + FIRST_ROOM)
        if free_cells(lists) < cells:
            return e
        size = 0
        for b in range(asked):
            l = batch.asked[b]
            weight = weight_of(lists, k, l)
            count_peer(settings.mix, users, counts, k, l, weight)
            dist2 = squared_distance(
                coupling, users.alpha[k], users.support[k], users.n_support[k],
                users.alpha[l], users.support[l], users.n_support[l],
            )  # fmt: skip
            if not may_be_near(nearest, k, l, dist2) and settings.prunes and weight == 0.0:
                continue
            batch.peers[size] = l
            batch.w[size] = weight
            batch.degree[size] = users.degree[l]
            batch.cost[size] = pair_cost(losses[k], losses[l], settings.mu1, dist2)
            size += 1
        cost, w, degree, new = batch.cost[:size], batch.w[:size], batch.degree[:size], batch.new[:size]
        if settings.step == EXACT:
            exact_step(settings.regularizer, settings.mu2, cost, w, degree, users.degree[k], new)
        else:
            lipschitz_step(settings.regularizer, settings.mu2, cost, w, degree, users.degree[k], new)
        for b in range(size):
            l = batch.peers[b]
            if settings.max_neighbours > 0:
                # An eviction for an earlier peer of this batch may have taken this very edge.
                w[b] = weight_of(lists, k, l)
                is_new = w[b] == 0.0 and new[b] > 0.0
                if is_new and not make_room(users, lists, k, l, new[b], settings.max_neighbours, counts):
                    continue
            if new[b] != w[b]:
                change_weight(users, lists, k, l, w[b], new[b])
    return awake.size


class Changes(NamedTuple):
    """What the wake-ups of a window did: user[s] (-1: nobody) moved two coordinates by `delta`; -1 is no coordinate."""

    user: Array
    coordinate: Array
    delta: Array


def no_changes(size: int, dtype: np.dtype[np.floating]) -> Changes:
    """Room for a window of so many wake-ups."""
    return Changes(np.full(size, -1, np.int32), np.empty((size, 2), np.int32), np.empty((size, 2), dtype))


@lean_kernel
def look_again(users: Users, lists: NeighbourLists, awake: Array) -> None:
    """Make the pulls of stale users anew, before anybody's model moves; lists stand in the order of all users."""
    n = users.alpha.shape[1]
    for e in range(awake.size):
        k = awake[e]
        if users.stale[k] == 0:
            continue
        users.degree[k] = list_degree(lists, k)
        users.neighbour_sum[k, :] = 0
        for p in range(lists.start[k], lists.start[k] + lists.length[k]):
            l, w = lists.ids[p], users.neighbour_sum.dtype.type(lists.weights[p])
            for j in range(n):
                users.neighbour_sum[k, j] += w * users.alpha[l, j]
        users.stale[k] = 0


@lean_kernel
def step_in_window(
    settings: ModelSettings,
    users: Users,
    lists: NeighbourLists,
    awake: Array,
    slots: Array,
    changes: Changes,
    counts: Array,
    scratch: StepScratch,
) -> None:
    """Pairwise updates of the given users; the change of wake-up e is left in slot slots[e]."""
    for e in range(awake.size):
        if e + 4 < awake.size:
            prefetch_numbers(users, lists, awake[e + 4])
            prefetch_user(users, lists, awake[e + 2])
        k, s = awake[e], slots[e]
        user = user_model(users, k)
        if users.own_updates[k] % REFRESH_EVERY == REFRESH_EVERY - 1:
            refresh_margins(user, users.n_support[k])
            # What others have is known only between windows.
            users.stale[k] = 1
        _, n_support, n_changed = model_step(
            PAIRWISE, settings, users.confidence[k], users.degree[k], user, users.n_support[k], -1.0, scratch
        )
        users.n_support[k] = n_support
        users.own_updates[k] += 1
        changes.user[s] = -1
        if n_changed > 0:
            n_told = lists.length[k]
            count_sent(users, counts, k, n_told, n_told, 2 * n_told)
            changes.user[s] = k
            changes.coordinate[s, 1] = -1
            for c in range(n_changed):
                changes.coordinate[s, c] = scratch.coordinate[c]
                changes.delta[s, c] = scratch.delta[c]


@lean_kernel
def deliver(users: Users, lists: NeighbourLists, changes: Changes, first: int, last: int) -> None:
    """Add a window's changes to the pulls of the users first..last-1, in the order of the wake-ups."""
    n = users.neighbour_sum.shape[1]
    size = changes.user.size
    for s in range(size):
        if s + 6 < size and changes.user[s + 6] >= 0:
            prefetch_cell(lists.start, changes.user[s + 6])
            prefetch_cell(lists.length, changes.user[s + 6])
        if s + 3 < size and changes.user[s + 3] >= 0:
            at, length = lists.start[changes.user[s + 3]], lists.length[changes.user[s + 3]]
            prefetch(lists.ids, at, at + length)
            prefetch(lists.weights, at, at + length)
        if s + 1 < size and changes.user[s + 1] >= 0:
            k = changes.user[s + 1]
            for p in range(lists.start[k], lists.start[k] + lists.length[k]):
                if first <= lists.ids[p] < last:
                    for c in range(2):
                        prefetch_cell(users.neighbour_sum, lists.ids[p] * n + max(changes.coordinate[s + 1, c], 0))
        k = changes.user[s]
        if k < 0:
            continue
        for p in range(lists.start[k], lists.start[k] + lists.length[k]):
            l = lists.ids[p]
            if not first <= l < last:
                continue
            w = users.neighbour_sum.dtype.type(lists.weights[p])
            for c in range(2):
                if changes.coordinate[s, c] >= 0:
                    users.neighbour_sum[l, changes.coordinate[s, c]] += w * changes.delta[s, c]


@lean_kernel
def follow(users: Users, changes: Changes, first: int) -> None:
    """Carry out the changes of others, numbered from `first` on, on the copies of their models."""
    for s in range(changes.user.size):
        k = changes.user[s]
        if k >= first:
            for c in range(2):
                if changes.coordinate[s, c] >= 0:
                    users.alpha[k, changes.coordinate[s, c]] += changes.delta[s, c]
