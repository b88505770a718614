"""Workers that share the model updates of a run: threads, or shards of users with their own arrays.

Updates are made in windows; changes take effect between windows. The result depends on the plan's latency, not on the
number or kind of workers, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from dada.core.accuracy import margins_of
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.model_steps import ModelSettings, make_scratch
from dada.core.neighbours import NeighbourLists
from dada.core.problem import Problem, frank_wolfe_gaps, model_gradients
from dada.engine.model_loops import (
    Changes,
    UserArrays,
    add_to_neighbours,
    apply_to_copies,
    no_changes,
    refresh_stale,
    side_by_side,
    step_in_window,
)


class Segment(NamedTuple):
    """Model updates of the users `awake`, in windows of `window` wake-ups; `counts` belongs to the ledger."""

    settings: ModelSettings
    users: UserArrays
    lists: NeighbourLists
    awake: Array
    window: int
    counts: Array

    def windows(self) -> Iterator[Array]:
        """The users that wake in each window."""
        for start in range(0, self.awake.size, self.window):
            yield self.awake[start : start + self.window]


class Workers(Protocol):
    """Makes the model updates of a segment, in place."""

    def advance(self, segment: Segment) -> None:
        """Make all updates of a segment, or none."""


def borders(n_users: int, n_parts: int) -> list[int]:
    """Borders of parts of nearly equal size, such as [0, 2, 5, 7, 10] for 10 users in 4 parts."""
    return [n_users * part // n_parts for part in range(n_parts + 1)]


@dataclass(frozen=True)
class Threads:
    """Threads of this process; each changes only its own block of users."""

    n: int = 1

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"threads must be >= 1, got {self.n}")

    def advance(self, segment: Segment) -> None:
        """Make the updates of a segment."""
        cuts = borders(segment.lists.length.size, self.n)
        blocks = [_Block(segment, first, last) for first, last in pairwise(cuts)]
        changes = no_changes(segment.window, segment.users.alpha.dtype)
        with ThreadPoolExecutor(self.n) as pool:
            for awake in segment.windows():
                now = Changes(*(part[: awake.size] for part in changes))
                list(pool.map(lambda block, awake=awake: block.prepare(awake), blocks))
                list(pool.map(lambda block, now=now: block.step(now), blocks))
                list(pool.map(lambda block, now=now: block.finish(now), blocks))
        segment.counts[...] += sum(block.counts for block in blocks)


class _Block:
    """The users and the working memory of one thread."""

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
        refresh_stale(self.segment.users, self.segment.lists, self.awake)

    def step(self, changes: Changes) -> None:
        settings, users, lists = self.segment.settings, self.segment.users, self.segment.lists
        step_in_window(settings, users, lists, self.awake, self.slots, changes, self.counts, self.scratch)

    def finish(self, changes: Changes) -> None:
        add_to_neighbours(self.segment.users, self.segment.lists, changes, self.first, self.last)


# Changes from one shard to another: slots in the window, users, coordinates, deltas.
ChangeBatch = tuple[Array, Array, Array, Array]
# The arrays of a shard's users after a segment, and the counts of what they sent.
ShardResult = tuple[dict[str, Array], Array]
# Returns the margins y_i h_j(x_i) of users first..last-1; runs in the process of the shard.
Read = Callable[[int, int], Array]
# Arrays that a shard keeps; the others of `UserArrays` come with every segment, all but margins with one row per user.
DATA = ("A", "row_start", "confidence", "offset", "sample_weight")


class ShardData(NamedTuple):
    """The data of users first..last-1; `A` may be a function that reads their margins."""

    first: int
    last: int
    A: Array | Read
    row_start: Array
    confidence: Array
    offset: Array
    sample_weight: Array


class ShardJob(NamedTuple):
    """A shard's part of a segment. It copies the models of the users `others`; its lists use local ids, copies last."""

    others: Array
    state: dict[str, Array]
    lists: NeighbourLists
    followed_by: Array
    settings: ModelSettings
    window: int


class Shard:
    """The users of one shard.

    Arrays from another process may be read-only shared memory, so they are copied.
    """

    part: ShardJob
    users: UserArrays

    def __init__(self, given: ShardData) -> None:
        self.given, self.size = given, given.last - given.first

    @cached_property
    def held(self) -> ShardData:
        """The data, read at first use."""
        first, last, source, *arrays = self.given
        A = np.array(source) if isinstance(source, np.ndarray) else source(first, last)
        return ShardData(first, last, A, *(np.array(array) for array in arrays))

    def begin(self, part: ShardJob, awake: Array) -> None:
        """Begin a segment with its models and lists."""
        held = self.held
        state = {name: np.array(values) for name, values in part.state.items()}
        number = state["alpha"].dtype
        assert isinstance(held.A, np.ndarray)
        A = held.A if held.A.dtype == np.int8 else held.A.astype(number, copy=False)
        offset = held.offset.astype(number, copy=False)
        data = {name: getattr(held, name) for name in DATA} | {"A": A, "offset": offset}
        self.users = side_by_side(UserArrays(**data, **state))
        lists = NeighbourLists(*(np.array(array) for array in part.lists))
        settings = part.settings._replace(coupling=np.array(part.settings.coupling))
        self.part = part._replace(lists=lists, settings=settings, state={})
        self.awake = awake
        self.changes = no_changes(part.window, number)
        self.scratch = make_scratch(state["alpha"].shape[1], int(np.diff(held.row_start).max()), number)
        self.counts = np.zeros(3, np.int64)
        self.window = 0

    def step(self, *arrived: ChangeBatch) -> list[ChangeBatch]:
        """Finish the last window with the changes received, and make the next; returns the changes for each shard."""
        part, first = self.part, self.held.first
        if self.window > 0:
            self._finish_window(arrived)
        awake = self.awake[self.window * part.window : (self.window + 1) * part.window]
        self.window += 1
        slots = np.flatnonzero((awake >= first) & (awake < self.held.last))
        own = (awake[slots] - first).astype(np.int32)
        refresh_stale(self.users, part.lists, own)
        self.changes.user[...] = -1
        step_in_window(part.settings, self.users, part.lists, own, slots, self.changes, self.counts, self.scratch)
        moved = slots[self.changes.user[slots] >= 0]
        batches: list[ChangeBatch] = []
        for there in range(part.followed_by.shape[1]):
            chosen = moved[part.followed_by[self.changes.user[moved], there]]
            senders = self.changes.user[chosen] + first
            batches.append((chosen, senders, self.changes.coordinate[chosen], self.changes.delta[chosen]))
        return batches

    def _finish_window(self, arrived: Sequence[ChangeBatch]) -> None:
        for slots, senders, coordinate, delta in arrived:
            self.changes.user[slots] = self.size + np.searchsorted(self.part.others, senders)
            self.changes.coordinate[slots], self.changes.delta[slots] = coordinate, delta
        apply_to_copies(self.users, self.changes, self.size)
        add_to_neighbours(self.users, self.part.lists, self.changes, 0, self.size)

    def result(self, *arrived: ChangeBatch) -> ShardResult:
        """The arrays of the shard's own users after the last window, and the counts of what they sent."""
        self._finish_window(arrived)
        names = [name for name in UserArrays._fields if name not in (*DATA, "margins")]
        arrays = {name: getattr(self.users, name)[: self.size] for name in names}
        return {**arrays, "margins": self.users.margins}, self.counts

    def margins(self, alpha: Array) -> Array:
        """Margins of the shard's rows under the given models."""
        held = self.held
        return margins_of(held.A, held.row_start, held.offset.astype(np.float64), np.array(alpha))

    def gaps(self, settings: ModelSettings, alpha: Array, indptr: Array, indices: Array, weights: Array) -> Array:
        """Frank-Wolfe gap of each user's block, divided by its degree; models of other shards come last."""
        held, models = self.held, np.array(alpha, np.float64)
        settings = settings._replace(coupling=np.array(settings.coupling))
        lists = (np.array(array) for array in (indptr, indices, weights))
        data = held.A, held.row_start, held.offset.astype(np.float64), held.sample_weight, held.confidence
        gradient = model_gradients(settings, *data, models, *lists)
        return frank_wolfe_gaps(gradient, models[: self.size], settings.beta)


def refuse_addresses(parts: list[ShardJob]) -> None:
    """Reject custom losses: kernels call them by an address, which is invalid in another process."""
    if any(part.settings.loss.custom.value for part in parts):
        raise ValueError("custom losses cannot run in other processes: use a built-in loss, or workers=Threads(n)")


class Backend(Protocol):
    """Runs shards, somewhere."""

    def hold(self, held: list[ShardData]) -> None:
        """Make one shard of each; earlier shards are dropped."""

    def run(self, parts: list[ShardJob], awake: Array, n_windows: int) -> list[ShardResult]:
        """Make the windows of a segment; returns the result of every shard."""

    def ask(self, name: str, arguments: list[Any]) -> list[Any]:
        """Call a method of every shard, each with its own arguments; returns the results."""

    def close(self) -> None:
        """Drop the shards."""


class Sharded:
    """Workers that each hold the data of a block of users. They are the `RemoteRows` of a `remote_problem`.

    The backend decides where the shards run: `ThisProcess`, `Processes` or `OnRay`. With `read`, which returns the
    margins of users first..last-1, each shard reads its own rows, and this process has none.
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
        """Distribute data to the shards, unless they have it."""
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
        """Make the updates of a segment."""
        users = segment.users
        self.hold(users.A, users.row_start, users.confidence, users.offset, users.sample_weight)
        parts = [cut_out(segment, self.cuts, number) for number in range(len(self.cuts) - 1)]
        outcomes = self.backend.run(parts, segment.awake, -(-segment.awake.size // segment.window))
        for (first, last), (arrays, counts) in zip(pairwise(self.cuts), outcomes, strict=True):
            rows = slice(users.row_start[first], users.row_start[last])
            for name, values in arrays.items():
                getattr(users, name)[rows if name == "margins" else slice(first, last)] = values
            segment.counts[...] += counts

    def margins(self, alpha: Array) -> Array:
        """Margins of all users' rows under the given models."""
        return np.concatenate(self.backend.ask("margins", [(alpha[a:b],) for a, b in pairwise(self.cuts)]))

    def model_gaps(self, settings: ModelSettings, alpha: Array, graph: CollaborationGraph) -> Array:
        """Frank-Wolfe gap of every user's block, divided by d_k."""
        arguments = []
        for first, last in pairwise(self.cuts):
            cells = slice(graph.indptr[first], graph.indptr[last])
            ids, others = renumbered(graph.indices[cells], first, last)
            models = np.concatenate([alpha[first:last], alpha[others]])
            indptr = graph.indptr[first : last + 1] - graph.indptr[first]
            arguments.append((settings, models, indptr, ids, graph.weights[cells]))
        return np.concatenate(self.backend.ask("gaps", arguments))


def cut_out(segment: Segment, cuts: list[int], number: int) -> ShardJob:
    """One shard's part of a segment."""
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
    # The list of a copied user holds its neighbours among the shard's own users, in ascending order.
    order = np.argsort(local[outside], kind="stable")
    copies = np.bincount(local[outside] - size, minlength=others.size)
    length = np.concatenate([count, copies]).astype(np.int32)
    start = np.concatenate([[0], np.cumsum(length, dtype=np.int64)])
    mine = NeighbourLists(
        start[:-1].copy(), length, length,
        np.concatenate([local, owners[outside][order]]), np.concatenate([weights, weights[outside][order]]),
        start[-1:].copy(),
    )  # fmt: skip
    names = [name for name in UserArrays._fields if name not in DATA]
    state = {name: getattr(users, name)[first:last] for name in names}
    state["margins"] = users.margins[users.row_start[first] : users.row_start[last]]
    state["alpha"] = np.concatenate([users.alpha[first:last], users.alpha[others]])
    return ShardJob(others, state, mine, followed_by, segment.settings, segment.window)


def renumbered(ids: Array, first: int, last: int) -> tuple[Array, Array]:
    """Local ids in a shard of users first..last-1, own users first; and the ids of the other users."""
    outside = (ids < first) | (ids >= last)
    others = np.unique(ids[outside])
    local = np.where(outside, last - first + np.searchsorted(others, ids), ids - first)
    return local.astype(np.int32), others


def exchanged(outgoing: list[list[Any]]) -> list[list[Any]]:
    """What each shard receives, given what each sends to every shard."""
    n = len(outgoing)
    return [[outgoing[there][here] for there in range(n) if there != here] for here in range(n)]


def run_windows(
    call: Callable[[str, list[Any]], list[Any]], parts: list[ShardJob], awake: Array, n_windows: int
) -> list[ShardResult]:
    """Make the windows of a segment by calls to all shards; returns their results."""
    call("begin", [(part, awake) for part in parts])
    arrived: list[list[ChangeBatch]] = [[] for _ in parts]
    for _ in range(n_windows):
        arrived = exchanged(call("step", arrived))
    return call("result", arrived)


class ThisProcess:
    """Runs shards in this process, one after the other."""

    def __init__(self) -> None:
        self.shards: list[Shard] = []

    def hold(self, held: list[ShardData]) -> None:
        """Make one shard of each."""
        self.shards = [Shard(one) for one in held]

    def run(self, parts: list[ShardJob], awake: Array, n_windows: int) -> list[ShardResult]:
        """Make the windows of a segment."""
        return run_windows(self.ask, parts, awake, n_windows)

    def ask(self, name: str, arguments: list[Any]) -> list[Any]:
        """Call a method of every shard."""
        return [getattr(shard, name)(*given) for shard, given in zip(self.shards, arguments, strict=True)]

    def close(self) -> None:
        """Drop the shards."""
        self.shards = []


def remote_problem(workers: Sharded, sizes: Array, n_predictors: int, *, name: str = "", **settings: Any) -> Problem:
    """A problem with `sizes` rows per user that only the shards hold; models and graph stay in this process.

    The shards read their own rows; pass them to `run` too. The name distinguishes these rows from others when a
    checkpoint is resumed.
    """
    if workers.read is None:
        raise ValueError("a remote problem needs shards that read their rows: use Sharded(n, backend, read)")
    row_start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    offset = np.zeros(row_start[-1], np.float32)
    A = np.empty((0, n_predictors), np.int8)
    problem = Problem(A, row_start, offset=offset, remote=workers, rows_name=name, **settings)
    workers.hold(A, row_start, problem.confidence, offset, problem.sample_weight)
    return problem
