"""Who carries out the model updates of a run in windows: threads here; shards in `sharded`, on Ray in `ray`.

Whoever does, the result is the same to the last bit: it depends on the plan's latency, not on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.model_steps import ModelSettings, make_scratch
from dada.core.neighbours import NeighbourLists
from dada.core.problem import Problem, margins_of, model_gradients
from dada.engine.model_loops import (
    Changes,
    Users,
    deliver,
    follow,
    look_again,
    no_changes,
    side_by_side,
    step_in_window,
)


class Segment(NamedTuple):
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


class Workers(Protocol):
    """Carries out stretches of model updates on the users' arrays, in place."""

    def advance(self, segment: Segment) -> None:
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

    def advance(self, segment: Segment) -> None:
        """Carry out a stretch."""
        cuts = borders(segment.lists.length.size, self.n)
        blocks = [_Block(segment, first, last) for first, last in pairwise(cuts)]
        changes = no_changes(segment.window, segment.users.alpha.dtype)
        with ThreadPoolExecutor(self.n) as pool:
            for awake in segment.windows():
                now = Changes(*(part[: awake.size] for part in changes))
                list(pool.map(lambda block, awake=awake: block.prepare(awake), blocks))
                list(pool.map(lambda block, now=now: block.step(now), blocks))
                list(pool.map(lambda block, now=now: block.deliver(now), blocks))
        segment.counts[...] += sum(block.counts for block in blocks)


class _Block:
    """One thread's users and its working memory."""

    def __init__(self, segment: Segment, first: int, last: int) -> None:
        self.segment, self.first, self.last = segment, first, last
        users = segment.users
        most = int(np.diff(users.row_start).max())
        self.scratch = make_scratch(users.alpha.shape[1], most, users.alpha.dtype)
        self.counts = np.zeros_like(segment.counts)
        self.slots, self.awake = np.empty(0, np.int64), np.empty(0, np.int32)

    def prepare(self, awake: Array) -> None:
        self.slots = np.flatnonzero((awake >= self.first) & (awake < self.last))
        self.awake = awake[self.slots]
        look_again(self.segment.users, self.segment.lists, self.awake)

    def step(self, changes: Changes) -> None:
        settings, users, lists = self.segment.settings, self.segment.users, self.segment.lists
        step_in_window(settings, users, lists, self.awake, self.slots, changes, self.counts, self.scratch)

    def deliver(self, changes: Changes) -> None:
        deliver(self.segment.users, self.segment.lists, changes, self.first, self.last)


# A batch of changes from one shard to another: slot in the window, user, coordinates, deltas.
Batch = tuple[Array, Array, Array, Array]
# The arrays of the shard's users after a stretch, and what they sent.
Outcome = tuple[dict[str, Array], Array]
# Gives the margins y_i h_j(x_i) of the users first..last-1; runs where the shard is.
Read = Callable[[int, int], Array]
# What a shard keeps; all other arrays of `Users` come with every stretch, one row per user but for margins.
DATA = ("A", "row_start", "confidence", "offset", "sample_weight")


class ShardData(NamedTuple):
    """What a shard keeps: the data of the users first..last-1, or how to read their margins."""

    first: int
    last: int
    A: Array | Read
    row_start: Array
    confidence: Array
    offset: Array
    sample_weight: Array


class ShardJob(NamedTuple):
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

    part: ShardJob
    users: Users

    def __init__(self, given: ShardData) -> None:
        self.given, self.size = given, given.last - given.first

    @cached_property
    def held(self) -> ShardData:
        """The data, read when they are needed first."""
        first, last, source, *arrays = self.given
        A = np.array(source) if isinstance(source, np.ndarray) else source(first, last)
        return ShardData(first, last, A, *(np.array(array) for array in arrays))

    def begin(self, part: ShardJob, awake: Array) -> None:
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
        data = held.A, held.row_start, held.offset.astype(np.float64), held.sample_weight, held.confidence
        gradient = model_gradients(settings, *data, models, *lists)
        gaps: Array = (gradient * models[: self.size]).sum(axis=1) + settings.beta * abs(gradient).max(axis=1)
        return gaps


def refuse_addresses(parts: list[ShardJob]) -> None:
    """A loss of one's own is known to kernels by an address, which means nothing in another process."""
    if any(part.settings.loss.value for part in parts):
        raise ValueError("a loss of one's own works in this process only: take a built-in loss, or Threads")


class Backend(Protocol):
    """Keeps shards, and has them do what a crew wants."""

    def hold(self, held: list[ShardData]) -> None:
        """Make a shard of each; those before are given up."""

    def run(self, parts: list[ShardJob], awake: Array, n_windows: int) -> list[Outcome]:
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

    def __init__(self, n_shards: int, backend: Backend, read: Read | None = None) -> None:
        if n_shards < 1:
            raise ValueError(f"shards must be >= 1, got {n_shards}")
        self.n_shards, self.backend, self.read = n_shards, backend, read
        self.cuts: list[int] = []
        self._held: Array | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.backend.close()

    def hold(self, A: Array, row_start: Array, confidence: Array, offset: Array, sample_weight: Array) -> None:
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
            held.append(
                ShardData(first, last, margins, local, confidence[first:last], offset[rows], sample_weight[rows])
            )
        self.backend.hold(held)
        self._held = row_start

    def advance(self, segment: Segment) -> None:
        """Carry out a stretch."""
        users = segment.users
        self.hold(users.A, users.row_start, users.confidence, users.offset, users.sample_weight)
        parts = [cut_out(segment, self.cuts, number) for number in range(len(self.cuts) - 1)]
        outcomes = self.backend.run(parts, segment.awake, -(-segment.awake.size // segment.window))
        for (first, last), (arrays, counts) in zip(pairwise(self.cuts), outcomes, strict=True):
            rows = slice(users.row_start[first], users.row_start[last])
            for name, values in arrays.items():
                getattr(users, name)[rows if name == "margins" else slice(first, last)] = values
            segment.counts[...] += counts


def cut_out(segment: Segment, cuts: list[int], number: int) -> ShardJob:
    """One shard's part of a stretch."""
    users, lists = segment.users, segment.lists
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
    return ShardJob(others, state, mine, followed_by, segment.settings, segment.window)


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

    def hold(self, held: list[ShardData]) -> None:
        """Make a shard of each."""
        self.shards = [Shard(one) for one in held]

    def run(self, parts: list[ShardJob], awake: Array, n_windows: int) -> list[Outcome]:
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


@dataclass(frozen=True, eq=False)
class RemoteProblem(Problem):
    """A problem over the rows that the shards of a crew read. Here are only the number of rows of each user.

    Make one with `of`; give `run` the same crew. Models and graph stay with the process that runs it.
    """

    workers: Sharded | None = None
    name: str = ""

    @classmethod
    def of(cls, workers: Sharded, sizes: Array, n_predictors: int, *, name: str = "", **settings: Any) -> Self:
        """The problem of users with these numbers of rows, whose margins `crew.read` gives as -1, 0 and 1 or floats.

        `name` tells these rows from others when a checkpoint is taken up; other settings are those of `Problem`.
        """
        row_start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        offset = np.zeros(row_start[-1], np.float32)
        A = np.empty((0, n_predictors), np.int8)
        problem = cls(A, row_start, offset=offset, workers=workers, name=name, **settings)
        workers.hold(A, row_start, problem.confidence, offset, problem.sample_weight)
        return problem

    def _check_rows(self) -> None:
        if self.workers is None or self.workers.read is None:
            raise ValueError("a FarProblem needs a crew whose shards read their rows: Sharded(n, hands, read)")
        if self.row_start.size < 2 or (np.diff(self.row_start) < 1).any() or self.n_predictors < 1:
            raise ValueError("every user must have at least one sample, and there must be base predictors")

    @property
    def rows_name(self) -> str:
        """What tells these rows from others."""
        return self.name

    def margins(self, alpha: Array) -> Array:
        """Margins of all users' rows under given models."""
        return np.concatenate(self._ask("margins", [(alpha[first:last],) for first, last in self._shards()]))

    def model_gaps(self, alpha: Array, graph: CollaborationGraph) -> Array:
        """Frank-Wolfe gap of every user's block, divided by d_k."""
        settings, questions = self.settings(), []
        for first, last in self._shards():
            cells = slice(graph.indptr[first], graph.indptr[last])
            ids, others = renumbered(graph.indices[cells], first, last)
            models = np.concatenate([alpha[first:last], alpha[others]])
            indptr = graph.indptr[first : last + 1] - graph.indptr[first]
            questions.append((settings, models, indptr, ids, graph.weights[cells]))
        return np.concatenate(self._ask("gaps", questions))

    def model_gradient(self, alpha: Array, graph: CollaborationGraph) -> Array:
        """Refused: as large as all models, and only its gaps are ever needed."""
        raise ValueError("the gradient of a FarProblem stays with its shards: ask for model_gaps")

    def curvature_bound(self, graph: CollaborationGraph) -> float:
        """Refused: it depends on all rows."""
        raise ValueError("the curvature of a FarProblem is not known here")

    def _shards(self) -> list[tuple[int, int]]:
        assert self.workers is not None
        return list(pairwise(self.workers.cuts))

    def _ask(self, name: str, questions: list[tuple[Any, ...]]) -> list[Array]:
        assert self.workers is not None
        return self.workers.backend.ask(name, questions)
