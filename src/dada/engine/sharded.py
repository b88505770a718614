"""Users cut into shards, each with the data and models of its own users only, and copies of their neighbours' models.

A shard carries out the wake-ups of a whole window, then gives one batch of changes for every other shard that follows
some of its users. Shards run in this process, in processes of their own, or on Ray (`dada.engine.ray`): to them it is
the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np

from dada.core.compiled import Array
from dada.core.model_steps import ModelSettings, make_scratch
from dada.core.neighbour_lists import NeighbourLists
from dada.engine.crews import Stretch, borders
from dada.engine.loops import Users
from dada.engine.windows import deliver, follow, look_again, no_changes, step_in_window

# A batch of changes from one shard to another: slot in the window, user, coordinates, deltas.
Batch = tuple[Array, Array, Array, Array]
# Arrays of a run's users that a shard changes, one row (or, for margins, some rows) per user.
_CHANGED = ("alpha", "pull", "support", "n_support", "own_updates", "degree", "stale", "sent")


class Part(NamedTuple):
    """What a shard needs: its users first..last-1 and, in `others`, whose models it copies; ids of lists are local."""

    first: int
    last: int
    others: Array
    users: Users
    lists: NeighbourLists
    followed_by: Array
    settings: ModelSettings
    awake: Array
    window: int


class Shard:
    """The users of one part."""

    def __init__(self, part: Part) -> None:
        self.part = part
        # Arrays that came from another process may be shared memory that nobody may write to.
        self.users = Users(*(np.array(array) for array in part.users))
        self.changes = no_changes(part.window, self.users.alpha.dtype)
        most = int(np.diff(self.users.row_start).max())
        self.scratch = make_scratch(self.users.alpha.shape[1], most, self.users.alpha.dtype)
        self.counts = np.zeros(3, np.int64)
        self.window = 0

    def step(self, *arrived: Batch) -> list[Batch]:
        """End the last window with what arrived from every shard, and carry out the next; returns what goes to each."""
        part = self.part
        if self.window > 0:
            self._end(arrived)
        awake = part.awake[self.window * part.window : (self.window + 1) * part.window]
        self.window += 1
        if awake.size == 0:
            return []
        slots = np.flatnonzero((awake >= part.first) & (awake < part.last))
        own = (awake[slots] - part.first).astype(np.int32)
        look_again(self.users, part.lists, own)
        self.changes.user[...] = -1
        step_in_window(part.settings, self.users, part.lists, own, slots, self.changes, self.counts, self.scratch)
        moved = slots[self.changes.user[slots] >= 0]
        batches: list[Batch] = []
        for there in range(part.followed_by.shape[1]):
            chosen = moved[part.followed_by[self.changes.user[moved], there]]
            senders = self.changes.user[chosen] + part.first
            batches.append((chosen, senders, self.changes.coordinate[chosen], self.changes.delta[chosen]))
        return batches

    def _end(self, arrived: Sequence[Batch]) -> None:
        size = self.part.last - self.part.first
        for slots, senders, coordinate, delta in arrived:
            self.changes.user[slots] = size + np.searchsorted(self.part.others, senders)
            self.changes.coordinate[slots], self.changes.delta[slots] = coordinate, delta
        follow(self.users, self.changes, size)
        deliver(self.users, self.part.lists, self.changes, 0, size)

    def result(self, *arrived: Batch) -> tuple[dict[str, Array], Array]:
        """The arrays of the shard's own users after the last window, and what they sent."""
        self._end(arrived)
        size = self.part.last - self.part.first
        arrays = {name: getattr(self.users, name)[:size] for name in _CHANGED}
        return {**arrays, "margins": self.users.margins}, self.counts


class Hands(Protocol):
    """Runs shards: one call is one window of all of them."""

    def run(self, parts: list[Part], n_windows: int) -> list[tuple[dict[str, Array], Array]]:
        """Carry out the windows; returns the result of every shard."""


@dataclass(frozen=True)
class Sharded:
    """A crew of shards.

    Parameters
    ----------
    n_shards : int
    hands : Hands
        Where the shards run.
    """

    n_shards: int
    hands: Hands

    def __post_init__(self) -> None:
        if self.n_shards < 1:
            raise ValueError(f"shards must be >= 1, got {self.n_shards}")

    def advance(self, stretch: Stretch) -> None:
        """Carry out a stretch."""
        cuts = borders(stretch.lists.length.size, min(self.n_shards, stretch.lists.length.size))
        parts = [cut_out(stretch, cuts, number) for number in range(len(cuts) - 1)]
        results = self.hands.run(parts, -(-stretch.awake.size // stretch.window))
        for part, (arrays, counts) in zip(parts, results, strict=True):
            rows = stretch.users.row_start
            for name, values in arrays.items():
                first, last = (rows[part.first], rows[part.last]) if name == "margins" else (part.first, part.last)
                getattr(stretch.users, name)[first:last] = values
            stretch.counts[...] += counts


def cut_out(stretch: Stretch, cuts: list[int], number: int) -> Part:
    """One shard's part of a stretch."""
    users, lists = stretch.users, stretch.lists
    first, last = cuts[number], cuts[number + 1]
    size = last - first
    count = lists.length[first:last].astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(count)])
    cells = np.repeat(lists.start[first:last], count) + np.arange(indptr[-1]) - np.repeat(indptr[:-1], count)
    ids, weights = lists.ids[cells], lists.weights[cells]
    outside = (ids < first) | (ids >= last)
    others = np.unique(ids[outside])
    local = np.where(outside, size + np.searchsorted(others, ids), ids - first).astype(np.int32)
    owners = np.repeat(np.arange(size, dtype=np.int32), count)
    followed_by = np.zeros((size, len(cuts) - 1), bool)
    followed_by[owners[outside], np.searchsorted(cuts, ids[outside], side="right") - 1] = True
    # A copied user's list holds those of the shard's own users that follow it, in their order.
    order = np.argsort(local[outside], kind="stable")
    copies = np.bincount(local[outside] - size, minlength=others.size)
    length = np.concatenate([count, copies]).astype(np.int32)
    start = np.concatenate([[0], np.cumsum(length, dtype=np.int64)])
    mine = NeighbourLists(
        start[:-1].copy(), length, length,
        np.concatenate([local, owners[outside][order]]), np.concatenate([weights, weights[outside][order]]),
        start[-1:].copy(),
    )  # fmt: skip
    rows = slice(users.row_start[first], users.row_start[last])
    by_row = {"A": users.A[rows], "margins": users.margins[rows], "offset": users.offset[rows]}
    by_user = {name: getattr(users, name)[first:last] for name in ("confidence", *_CHANGED)}
    alpha = np.concatenate([users.alpha[first:last], users.alpha[others]])
    row_start = users.row_start[first : last + 1] - users.row_start[first]
    own = Users(**{**by_row, **by_user, "alpha": alpha, "row_start": row_start})
    settings, awake, window = stretch.settings, stretch.awake, stretch.window
    return Part(first, last, others, own, mine, followed_by, settings, awake, window)


def exchanged(outgoing: list[list[Any]]) -> list[list[Any]]:
    """What arrives at each shard, given what each sends to every other."""
    n = len(outgoing)
    return [[outgoing[there][here] for there in range(n) if there != here] for here in range(n)]


class ThisProcess:
    """Runs shards one after the other."""

    def run(self, parts: list[Part], n_windows: int) -> list[tuple[dict[str, Array], Array]]:
        """Carry out the windows."""
        shards = [Shard(part) for part in parts]
        arrived: list[list[Batch]] = [[] for _ in shards]
        for _ in range(n_windows):
            arrived = exchanged([shard.step(*batches) for shard, batches in zip(shards, arrived, strict=True)])
        return [shard.result(*batches) for shard, batches in zip(shards, arrived, strict=True)]


class Processes:
    """Runs every shard in a process of its own."""

    def run(self, parts: list[Part], n_windows: int) -> list[tuple[dict[str, Array], Array]]:
        """Carry out the windows."""
        context = get_context("spawn")
        pipes = [context.Pipe() for _ in parts]
        workers = [context.Process(target=serve, args=(there,), daemon=True) for _, there in pipes]
        for worker in workers:
            worker.start()
        try:
            for (here, _), part in zip(pipes, parts, strict=True):
                here.send(part)
            arrived: list[list[Batch]] = [[] for _ in parts]
            for _ in range(n_windows):
                arrived = exchanged(self._call(pipes, "step", arrived))
            return self._call(pipes, "result", arrived)
        finally:
            for here, there in pipes:
                here.close()
                there.close()
            for worker in workers:
                worker.terminate()
                worker.join()

    def _call(self, pipes: list[tuple[Connection, Connection]], name: str, arrived: list[list[Batch]]) -> list[Any]:
        for (here, _), batches in zip(pipes, arrived, strict=True):
            here.send((name, batches))
        return [here.recv() for here, _ in pipes]


def serve(pipe: Connection) -> None:
    """Keep one shard, and do with it what comes through the pipe."""
    shard = Shard(pipe.recv())
    while True:
        name, batches = pipe.recv()
        pipe.send(getattr(shard, name)(*batches))
        if name == "result":
            return
