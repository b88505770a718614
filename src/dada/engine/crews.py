"""Who carries out the model updates of a run in windows: threads here; shards in `sharded`, on Ray in `ray`.

Whoever does, the result is the same to the last bit: it depends on the plan's latency, not on the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from dada.core.compiled import Array
from dada.core.model_steps import ModelSettings, make_scratch
from dada.core.neighbour_lists import NeighbourLists
from dada.engine.loops import Users
from dada.engine.windows import Changes, deliver, look_again, no_changes, step_in_window


class Stretch(NamedTuple):
    """Model updates to carry out: the users `awake`, in windows of so many wake-ups; `counts` is the ledger's."""

    settings: ModelSettings
    users: Users
    lists: NeighbourLists
    awake: Array
    window: int
    counts: Array

    def windows(self) -> Iterator[Array]:
        """The users that wake in each window."""
        for start in range(0, self.awake.size, self.window):
            yield self.awake[start : start + self.window]


class Crew(Protocol):
    """Carries out stretches of model updates on the users' arrays, in place."""

    def advance(self, stretch: Stretch) -> None:
        """Carry out a stretch; the arrays are changed when it is over, or not at all."""


def borders(n_users: int, n_parts: int) -> list[int]:
    """Where to cut users into parts of nearly equal size.

    >>> borders(10, 4)
    [0, 2, 5, 7, 10]
    """
    return [n_users * part // n_parts for part in range(n_parts + 1)]


@dataclass(frozen=True)
class Threads:
    """Threads of this process, each with a block of users that only it changes.

    >>> Threads(2).n
    2
    """

    n: int = 1

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"threads must be >= 1, got {self.n}")

    def advance(self, stretch: Stretch) -> None:
        """Carry out a stretch."""
        cuts = borders(stretch.lists.length.size, self.n)
        blocks = [_Block(stretch, first, last) for first, last in pairwise(cuts)]
        changes = no_changes(stretch.window, stretch.users.alpha.dtype)
        with ThreadPoolExecutor(self.n) as pool:
            for awake in stretch.windows():
                now = Changes(*(part[: awake.size] for part in changes))
                list(pool.map(lambda block, awake=awake: block.prepare(awake), blocks))
                list(pool.map(lambda block, now=now: block.step(now), blocks))
                list(pool.map(lambda block, now=now: block.deliver(now), blocks))
        stretch.counts[...] += sum(block.counts for block in blocks)


class _Block:
    """One thread's users and its working memory."""

    def __init__(self, stretch: Stretch, first: int, last: int) -> None:
        self.stretch, self.first, self.last = stretch, first, last
        users = stretch.users
        most = int(np.diff(users.row_start).max())
        self.scratch = make_scratch(users.alpha.shape[1], most, users.alpha.dtype)
        self.counts = np.zeros_like(stretch.counts)
        self.slots, self.awake = np.empty(0, np.int64), np.empty(0, np.int32)

    def prepare(self, awake: Array) -> None:
        self.slots = np.flatnonzero((awake >= self.first) & (awake < self.last))
        self.awake = awake[self.slots]
        look_again(self.stretch.users, self.stretch.lists, self.awake)

    def step(self, changes: Changes) -> None:
        settings, users, lists = self.stretch.settings, self.stretch.users, self.stretch.lists
        step_in_window(settings, users, lists, self.awake, self.slots, changes, self.counts, self.scratch)

    def deliver(self, changes: Changes) -> None:
        deliver(self.stretch.users, self.stretch.lists, changes, self.first, self.last)
