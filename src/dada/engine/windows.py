"""Model updates in windows of time, so that several workers can share them and still agree to the last bit.

Messages take time. If each takes at least the time that a window lasts, what is sent in a window is read only after
it, and users who wake in the same window cannot influence each other: any number of workers, each with some of the
users, compute what one would. At the end of a window its changes are told in the order of the wake-ups.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dada.core.compiled import Array, lean_kernel, prefetch, prefetch_cell
from dada.core.model_steps import PAIRWISE, REFRESH_EVERY, ModelSettings, StepScratch, model_step, refresh_margins
from dada.core.neighbour_lists import NeighbourLists, list_degree
from dada.engine.loops import Users, count_sent, prefetch_numbers, prefetch_user, user_model


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
        users.pull[k, :] = 0
        for p in range(lists.start[k], lists.start[k] + lists.length[k]):
            l, w = lists.ids[p], users.pull.dtype.type(lists.weights[p])
            for j in range(n):
                users.pull[k, j] += w * users.alpha[l, j]
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
    n = users.pull.shape[1]
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
                        prefetch_cell(users.pull, lists.ids[p] * n + max(changes.coordinate[s + 1, c], 0))
        k = changes.user[s]
        if k < 0:
            continue
        for p in range(lists.start[k], lists.start[k] + lists.length[k]):
            l = lists.ids[p]
            if not first <= l < last:
                continue
            w = users.pull.dtype.type(lists.weights[p])
            for c in range(2):
                if changes.coordinate[s, c] >= 0:
                    users.pull[l, changes.coordinate[s, c]] += w * changes.delta[s, c]


@lean_kernel
def follow(users: Users, changes: Changes, first: int) -> None:
    """Carry out the changes of others, numbered from `first` on, on the copies of their models."""
    for s in range(changes.user.size):
        k = changes.user[s]
        if k >= first:
            for c in range(2):
                if changes.coordinate[s, c] >= 0:
                    users.alpha[k, changes.coordinate[s, c]] += changes.delta[s, c]
