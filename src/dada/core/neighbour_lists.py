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
