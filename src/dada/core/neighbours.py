"""Symmetric sparse weights that change while a run goes on: one sorted list of neighbours per user.

Lists live in one pool and grow by moving to its end with twice the room, so memory is O(edges) whatever the degrees.
Kernels cannot enlarge the pool: they stop when it might not suffice, and `grow` packs it anew with more room.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dada.core.compiled import Array, lean_kernel

FIRST_ROOM = 8


class NeighbourLists(NamedTuple):
    """User k's neighbours are ids[start[k] : start[k] + length[k]], ascending; the pool is free from `end[0]`."""

    start: Array
    length: Array
    room: Array
    ids: Array
    weights: Array
    end: Array


def lists_from_csr(indptr: Array, indices: Array, weights: Array, spare: int = 0) -> NeighbourLists:
    """Lists holding a symmetric CSR matrix with sorted rows, with `spare` free cells behind them."""
    count = np.diff(indptr).astype(np.int32)
    room = np.where(count == 0, 0, np.maximum(count, FIRST_ROOM)).astype(np.int32)
    start = np.concatenate([[0], np.cumsum(room, dtype=np.int64)])
    size = int(start[-1]) + spare
    ids, values = np.zeros(size, np.int32), np.zeros(size)
    rows = np.repeat(np.arange(count.size), count)
    target = start[rows] + np.arange(indices.size) - np.asarray(indptr, dtype=np.int64)[rows]
    ids[target], values[target] = indices, weights
    return NeighbourLists(start[:-1].copy(), count, room, ids, values, start[-1:].copy())


def lists_to_csr(lists: NeighbourLists) -> tuple[Array, Array, Array]:
    """The (indptr, indices, weights) of the lists, packed."""
    indptr = np.concatenate([[0], np.cumsum(lists.length, dtype=np.int64)])
    rows = np.repeat(np.arange(lists.length.size), lists.length)
    source = lists.start[rows] + np.arange(indptr[-1]) - indptr[rows]
    return indptr, lists.ids[source].copy(), lists.weights[source].copy()


def grow(lists: NeighbourLists, spare: int) -> NeighbourLists:
    """The same lists, packed, with at least `spare` free cells."""
    return lists_from_csr(*lists_to_csr(lists), spare=spare + int(lists.length.sum()))


@lean_kernel
def free_cells(lists: NeighbourLists) -> int:
    """Cells of the pool that no list owns yet."""
    return lists.ids.size - lists.end[0]


@lean_kernel
def position(lists: NeighbourLists, k: int, l: int) -> int:
    """Where l stands in k's list, or where it would be inserted: compare ids there to know which."""
    low = lists.start[k]
    high = low + lists.length[k]
    while low < high:
        middle = (low + high) // 2
        if lists.ids[middle] < l:
            low = middle + 1
        else:
            high = middle
    return low


@lean_kernel
def is_neighbour(lists: NeighbourLists, k: int, l: int, at: int) -> bool:
    """Whether `at`, found by `position`, holds l."""
    return at < lists.start[k] + lists.length[k] and lists.ids[at] == l


@lean_kernel
def weight_of(lists: NeighbourLists, k: int, l: int) -> float:
    """w_kl, zero where there is no edge."""
    at = position(lists, k, l)
    return lists.weights[at] if is_neighbour(lists, k, l, at) else 0.0


@lean_kernel
def set_one_side(lists: NeighbourLists, k: int, l: int, w: float) -> None:
    """Store w_kl in k's list; a zero removes the entry. The caller has made sure of free cells."""
    at = position(lists, k, l)
    last = lists.start[k] + lists.length[k]
    if is_neighbour(lists, k, l, at):
        if w > 0.0:
            lists.weights[at] = w
            return
        for p in range(at, last - 1):
            lists.ids[p] = lists.ids[p + 1]
            lists.weights[p] = lists.weights[p + 1]
        lists.length[k] -= 1
        return
    if w <= 0.0:
        return
    if lists.length[k] == lists.room[k]:
        fresh = lists.end[0]
        lists.room[k] = max(FIRST_ROOM, 2 * lists.room[k])
        lists.end[0] += lists.room[k]
        for p in range(lists.length[k]):
            lists.ids[fresh + p] = lists.ids[lists.start[k] + p]
            lists.weights[fresh + p] = lists.weights[lists.start[k] + p]
        at += fresh - lists.start[k]
        last += fresh - lists.start[k]
        lists.start[k] = fresh
    for p in range(last, at, -1):
        lists.ids[p] = lists.ids[p - 1]
        lists.weights[p] = lists.weights[p - 1]
    lists.ids[at] = l
    lists.weights[at] = w
    lists.length[k] += 1


@lean_kernel
def set_weight(lists: NeighbourLists, k: int, l: int, w: float) -> None:
    """Store w_kl at both ends."""
    set_one_side(lists, k, l, w)
    set_one_side(lists, l, k, w)


@lean_kernel
def lightest(lists: NeighbourLists, k: int) -> int:
    """Where the smallest weight of k's list stands (the first on ties)."""
    best = lists.start[k]
    for p in range(lists.start[k], lists.start[k] + lists.length[k]):
        if lists.weights[p] < lists.weights[best]:
            best = p
    return best


@lean_kernel
def list_degree(lists: NeighbourLists, k: int) -> float:
    """d_k, summed over the list in ascending order of neighbours."""
    total = 0.0
    for p in range(lists.start[k], lists.start[k] + lists.length[k]):
        total += lists.weights[p]
    return total


N_CANDIDATES, N_GUESTS = 16, 8
# How often a draw is repeated that led to somebody known.
ATTEMPTS = 8


class BatchMix(NamedTuple):
    """How many peers of each kind a wake-up asks: uniform, neighbours of neighbours, present neighbours."""

    n_uniform: int
    n_gossip: int
    n_refresh: int

    @property
    def size(self) -> int:
        """Peers asked at most."""
        return self.n_uniform + self.n_gossip + self.n_refresh

    @property
    def n_words(self) -> int:
        """Random words that one wake-up uses."""
        return 2 * self.n_gossip + self.n_refresh


def uniform_mix(kappa: int) -> BatchMix:
    """The paper's batches: kappa peers drawn from everybody."""
    return BatchMix(kappa, 0, 0)


def gossip_mix(kappa: int) -> BatchMix:
    """kappa candidates, a quarter of them (at least one) uniform, and two present neighbours.

    >>> gossip_mix(5)
    BatchMix(n_uniform=1, n_gossip=4, n_refresh=2)
    """
    n_uniform = max(1, kappa // 4)
    return BatchMix(n_uniform, kappa - n_uniform, 2)


@lean_kernel
def pick(word: int, size: int) -> int:
    """A number below `size` from a random word of 32 bits."""
    return (word * size) >> 32


@lean_kernel
def append_new(peers: Array, size: int, k: int, l: int) -> int:
    """Append l to the peers unless it is k itself or there already; returns the new size."""
    if l == k:
        return size
    for b in range(size):
        if peers[b] == l:
            return size
    peers[size] = l
    return size + 1


@lean_kernel
def again(word: int) -> int:
    """Another random word of 32 bits, made of one."""
    mixed = ((word ^ (word >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 12)) * 0x297A2D39 + 0x9E3779B9) & 0xFFFFFFFF


class Nearest(NamedTuple):
    """The nearest peers each user has met, and its guests; no columns: nobody is remembered.

    Distances are of the present graph phase, infinite for those met before only. Free places hold -1 and come last.
    """

    ids: Array
    dist2: Array
    guests: Array


def nobody_met(n_users: int, n_candidates: int, n_guests: int) -> Nearest:
    """Room for so many peers of each user."""
    ids = np.full((n_users, n_candidates), -1, np.int32)
    return Nearest(ids, np.full(ids.shape, np.inf), np.full((n_users, n_guests), -1, np.int32))


@lean_kernel
def welcome(guests: Array, l: int, k: int) -> None:
    """Make user k a guest of l's; where there are too many, in the place of another."""
    n_guests = guests.shape[1]
    place = 0
    while place < n_guests and guests[l, place] >= 0 and guests[l, place] != k:
        place += 1
    if n_guests > 0:
        guests[l, place if place < n_guests else k % n_guests] = k


@lean_kernel
def may_be_near(nearest: Nearest, k: int, l: int, dist2: float) -> bool:
    """Whether l is among the nearest peers that k has met so far, recording it if so."""
    if nearest.ids.shape[1] == 0:
        return False
    farthest = 0
    for p in range(nearest.ids.shape[1]):
        if nearest.ids[k, p] == l:
            nearest.dist2[k, p] = dist2
            return True
        if nearest.dist2[k, p] > nearest.dist2[k, farthest]:
            farthest = p
    if dist2 >= nearest.dist2[k, farthest]:
        return False
    nearest.ids[k, farthest] = l
    nearest.dist2[k, farthest] = dist2
    welcome(nearest.guests, l, k)
    return True


@lean_kernel
def is_candidate(nearest: Nearest, k: int, l: int) -> bool:
    """Whether l is a candidate of user k."""
    found = False
    for p in range(nearest.ids.shape[1]):
        found |= nearest.ids[k, p] == l
    return found


@lean_kernel
def n_filled(ids: Array, k: int) -> int:
    """How many places of row k are taken."""
    size = 0
    while size < ids.shape[1] and ids[k, size] >= 0:
        size += 1
    return size


@lean_kernel
def listed(lists: NeighbourLists, nearest: Nearest, k: int, word: int) -> int:
    """One in user k's list, -1 where it is empty: a guest one time in four, else a neighbour or a candidate."""
    length, n_candidates, n_guests = lists.length[k], n_filled(nearest.ids, k), n_filled(nearest.guests, k)
    # The first bits say from which part, the others whom.
    part, rest = word >> 30, (word << 2) & 0xFFFFFFFF
    if n_guests > 0 and (part == 0 or n_candidates + length == 0):
        return nearest.guests[k, pick(rest, n_guests)]
    if n_candidates > 0 and (part & 1 == 1 or length == 0):
        return nearest.ids[k, pick(rest, n_candidates)]
    return lists.ids[lists.start[k] + pick(rest, length)] if length > 0 else -1


@lean_kernel
def friend_of_friend(lists: NeighbourLists, nearest: Nearest, k: int, first: int, second: int) -> int:
    """Somebody in the list of one in user k's list, and new to it, by two random words; -1 where none is found."""
    for _ in range(ATTEMPTS):
        a = listed(lists, nearest, k, first)
        if a < 0:
            return -1
        l = listed(lists, nearest, a, second)
        known = l < 0 or l == k or is_candidate(nearest, k, l) or is_neighbour(lists, k, l, position(lists, k, l))
        if not known:
            return l
        first, second = again(first), again(second)
    return -1


@lean_kernel
def gather_peers(
    mix: BatchMix, lists: NeighbourLists, nearest: Nearest, k: int, uniform: Array, words: Array, peers: Array
) -> int:
    """Fill `peers` with user k's batch, without repeats; returns its size."""
    size = 0
    for b in range(mix.n_uniform):
        size = append_new(peers, size, k, uniform[b])
    for g in range(mix.n_gossip):
        l = friend_of_friend(lists, nearest, k, words[2 * g], words[2 * g + 1])
        if l >= 0:
            size = append_new(peers, size, k, l)
    length = lists.length[k]
    for r in range(mix.n_refresh if length > 0 else 0):
        size = append_new(peers, size, k, lists.ids[lists.start[k] + pick(words[2 * mix.n_gossip + r], length)])
    return size
