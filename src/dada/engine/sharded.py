"""Users cut into shards, each with the data and models of its own users only, and copies of their neighbours' models.

A shard carries out the wake-ups of a whole window, then gives one batch of changes for every other shard that follows
some of its users. Shards run in this process, in processes of their own, or on Ray (`dada.engine.ray`): to them it is
the same. They keep their data for as long as a run lasts; models come with every stretch and go back at its end, so
that a stretch in which a shard was lost can be done again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from dada.core.compiled import Array
from dada.core.model_steps import ModelSettings, make_scratch
from dada.core.neighbour_lists import NeighbourLists
from dada.core.problem import margins_of, model_gradients
from dada.engine.crews import Stretch, borders
from dada.engine.loops import Users, side_by_side
from dada.engine.windows import deliver, follow, look_again, no_changes, step_in_window

# A batch of changes from one shard to another: slot in the window, user, coordinates, deltas.
Batch = tuple[Array, Array, Array, Array]
# The arrays of the shard's users after a stretch, and what they sent.
Outcome = tuple[dict[str, Array], Array]
# Gives the margins y_i h_j(x_i) of the users first..last-1; runs where the shard is.
Read = Callable[[int, int], Array]
# What a shard keeps; all other arrays of `Users` come with every stretch, one row per user but for margins.
DATA = ("A", "row_start", "confidence", "offset", "emphasis")


class Held(NamedTuple):
    """What a shard keeps: the data of the users first..last-1, or how to read their margins."""

    first: int
    last: int
    A: Array | Read
    row_start: Array
    confidence: Array
    offset: Array
    emphasis: Array


class Part(NamedTuple):
    """A shard's part of a stretch. In `others` stands whose models it copies; ids of lists are local, copies last."""

    others: Array
    state: dict[str, Array]
    lists: NeighbourLists
    followed_by: Array
    settings: ModelSettings
    window: int


class Shard:
    """The users of one shard.

    Arrays that come from another process may be shared memory that nobody may write to: they are copied.
    """

    part: Part
    users: Users

    def __init__(self, given: Held) -> None:
        self.given, self.size = given, given.last - given.first

    @cached_property
    def held(self) -> Held:
        """The data, read when they are needed first."""
        first, last, source, *arrays = self.given
        A = np.array(source) if isinstance(source, np.ndarray) else source(first, last)
        return Held(first, last, A, *(np.array(array) for array in arrays))

    def begin(self, part: Part, awake: Array) -> None:
        """Take up the models and lists of a new stretch."""
        held = self.held
        state = {name: np.array(values) for name, values in part.state.items()}
        number = state["alpha"].dtype
        assert isinstance(held.A, np.ndarray)
        A = held.A if held.A.dtype == np.int8 else held.A.astype(number, copy=False)
        offset = held.offset.astype(number, copy=False)
        data = {name: getattr(held, name) for name in DATA} | {"A": A, "offset": offset}
        self.users = side_by_side(Users(**data, **state))
        lists = NeighbourLists(*(np.array(array) for array in part.lists))
        settings = part.settings._replace(coupling=np.array(part.settings.coupling))
        self.part = part._replace(lists=lists, settings=settings, state={})
        self.awake = awake
        self.changes = no_changes(part.window, number)
        self.scratch = make_scratch(state["alpha"].shape[1], int(np.diff(held.row_start).max()), number)
        self.counts = np.zeros(3, np.int64)
        self.window = 0

    def step(self, *arrived: Batch) -> list[Batch]:
        """End the last window with what arrived from every shard, and carry out the next; returns what goes to each."""
        part, first = self.part, self.held.first
        if self.window > 0:
            self._end(arrived)
        awake = self.awake[self.window * part.window : (self.window + 1) * part.window]
        self.window += 1
        slots = np.flatnonzero((awake >= first) & (awake < self.held.last))
        own = (awake[slots] - first).astype(np.int32)
        look_again(self.users, part.lists, own)
        self.changes.user[...] = -1
        step_in_window(part.settings, self.users, part.lists, own, slots, self.changes, self.counts, self.scratch)
        moved = slots[self.changes.user[slots] >= 0]
        batches: list[Batch] = []
        for there in range(part.followed_by.shape[1]):
            chosen = moved[part.followed_by[self.changes.user[moved], there]]
            senders = self.changes.user[chosen] + first
            batches.append((chosen, senders, self.changes.coordinate[chosen], self.changes.delta[chosen]))
        return batches

    def _end(self, arrived: Sequence[Batch]) -> None:
        for slots, senders, coordinate, delta in arrived:
            self.changes.user[slots] = self.size + np.searchsorted(self.part.others, senders)
            self.changes.coordinate[slots], self.changes.delta[slots] = coordinate, delta
        follow(self.users, self.changes, self.size)
        deliver(self.users, self.part.lists, self.changes, 0, self.size)

    def result(self, *arrived: Batch) -> Outcome:
        """The arrays of the shard's own users after the last window, and what they sent."""
        self._end(arrived)
        names = [name for name in Users._fields if name not in (*DATA, "margins")]
        arrays = {name: getattr(self.users, name)[: self.size] for name in names}
        return {**arrays, "margins": self.users.margins}, self.counts

    def margins(self, alpha: Array) -> Array:
        """Margins of the shard's rows under given models of its users."""
        held = self.held
        return margins_of(held.A, held.row_start, held.offset.astype(np.float64), np.array(alpha))

    def gaps(self, settings: ModelSettings, alpha: Array, indptr: Array, indices: Array, weights: Array) -> Array:
        """Frank-Wolfe gap of each user's block, divided by its degree; the models of others stand behind its own."""
        held, models = self.held, np.array(alpha, np.float64)
        settings = settings._replace(coupling=np.array(settings.coupling))
        lists = (np.array(array) for array in (indptr, indices, weights))
        data = held.A, held.row_start, held.offset.astype(np.float64), held.emphasis, held.confidence
        gradient = model_gradients(settings, *data, models, *lists)
        gaps: Array = (gradient * models[: self.size]).sum(axis=1) + settings.beta * abs(gradient).max(axis=1)
        return gaps


def refuse_addresses(parts: list[Part]) -> None:
    """A loss of one's own is known to kernels by an address, which means nothing in another process."""
    if any(part.settings.loss.value for part in parts):
        raise ValueError("a loss of one's own works in this process only: take a built-in loss, or Threads")


class Hands(Protocol):
    """Keeps shards, and has them do what a crew wants."""

    def hold(self, held: list[Held]) -> None:
        """Make a shard of each; those before are given up."""

    def run(self, parts: list[Part], awake: Array, n_windows: int) -> list[Outcome]:
        """Carry out the windows of a stretch; returns the outcome of every shard."""

    def ask(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Array]:
        """What a method of every shard answers to its own arguments."""

    def close(self) -> None:
        """Give up the shards."""


class Sharded:
    """A crew of shards.

    Parameters
    ----------
    n_shards : int
    hands : Hands
        Where the shards run: `ThisProcess`, `Processes` or `OnRay`.
    read : callable, optional
        Gives the margins of the users first..last-1. Every shard then reads its own, and this process has none.
    """

    def __init__(self, n_shards: int, hands: Hands, read: Read | None = None) -> None:
        if n_shards < 1:
            raise ValueError(f"shards must be >= 1, got {n_shards}")
        self.n_shards, self.hands, self.read = n_shards, hands, read
        self.cuts: list[int] = []
        self._held: Array | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hands.close()

    def hold(self, A: Array, row_start: Array, confidence: Array, offset: Array, emphasis: Array) -> None:
        """Hand out data to the shards, unless they have these already."""
        if self._held is row_start:
            return
        n_users = row_start.size - 1
        self.cuts = borders(n_users, min(self.n_shards, n_users))
        held = []
        for first, last in pairwise(self.cuts):
            rows = slice(row_start[first], row_start[last])
            local = row_start[first : last + 1] - row_start[first]
            margins = A[rows] if self.read is None else self.read
            held.append(Held(first, last, margins, local, confidence[first:last], offset[rows], emphasis[rows]))
        self.hands.hold(held)
        self._held = row_start

    def advance(self, stretch: Stretch) -> None:
        """Carry out a stretch."""
        users = stretch.users
        self.hold(users.A, users.row_start, users.confidence, users.offset, users.emphasis)
        parts = [cut_out(stretch, self.cuts, number) for number in range(len(self.cuts) - 1)]
        outcomes = self.hands.run(parts, stretch.awake, -(-stretch.awake.size // stretch.window))
        for (first, last), (arrays, counts) in zip(pairwise(self.cuts), outcomes, strict=True):
            rows = slice(users.row_start[first], users.row_start[last])
            for name, values in arrays.items():
                getattr(users, name)[rows if name == "margins" else slice(first, last)] = values
            stretch.counts[...] += counts


def cut_out(stretch: Stretch, cuts: list[int], number: int) -> Part:
    """One shard's part of a stretch."""
    users, lists = stretch.users, stretch.lists
    first, last = cuts[number], cuts[number + 1]
    size = last - first
    count = lists.length[first:last].astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(count)])
    cells = np.repeat(lists.start[first:last], count) + np.arange(indptr[-1]) - np.repeat(indptr[:-1], count)
    weights = lists.weights[cells]
    local, others = renumbered(lists.ids[cells], first, last)
    outside = local >= size
    owners = np.repeat(np.arange(size, dtype=np.int32), count)
    followed_by = np.zeros((size, len(cuts) - 1), bool)
    followed_by[owners[outside], np.searchsorted(cuts, others[local[outside] - size], side="right") - 1] = True
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
    names = [name for name in Users._fields if name not in DATA]
    state = {name: getattr(users, name)[first:last] for name in names}
    state["margins"] = users.margins[users.row_start[first] : users.row_start[last]]
    state["alpha"] = np.concatenate([users.alpha[first:last], users.alpha[others]])
    return Part(others, state, mine, followed_by, stretch.settings, stretch.window)


def renumbered(ids: Array, first: int, last: int) -> tuple[Array, Array]:
    """Ids as a shard of the users first..last-1 numbers them, its own first; and who the others are.

    >>> [part.tolist() for part in renumbered(np.array([9, 4, 5, 2]), 4, 6)]
    [[3, 0, 1, 2], [2, 9]]
    """
    outside = (ids < first) | (ids >= last)
    others = np.unique(ids[outside])
    local = np.where(outside, last - first + np.searchsorted(others, ids), ids - first)
    return local.astype(np.int32), others


def exchanged(outgoing: list[list[Any]]) -> list[list[Any]]:
    """What arrives at each shard, given what each sends to every other."""
    n = len(outgoing)
    return [[outgoing[there][here] for there in range(n) if there != here] for here in range(n)]


class ThisProcess:
    """Keeps shards here, and runs them one after the other."""

    def __init__(self) -> None:
        self.shards: list[Shard] = []

    def hold(self, held: list[Held]) -> None:
        """Make a shard of each."""
        self.shards = [Shard(one) for one in held]

    def run(self, parts: list[Part], awake: Array, n_windows: int) -> list[Outcome]:
        """Carry out the windows."""
        for shard, part in zip(self.shards, parts, strict=True):
            shard.begin(part, awake)
        arrived: list[list[Batch]] = [[] for _ in parts]
        for _ in range(n_windows):
            arrived = exchanged([shard.step(*batches) for shard, batches in zip(self.shards, arrived, strict=True)])
        return [shard.result(*batches) for shard, batches in zip(self.shards, arrived, strict=True)]

    def ask(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Array]:
        """What a method of every shard answers."""
        return [getattr(shard, name)(*given) for shard, given in zip(self.shards, arguments, strict=True)]

    def close(self) -> None:
        """Give up the shards."""
        self.shards = []
