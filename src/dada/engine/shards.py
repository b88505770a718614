"""Workers that share the updates of a run: threads, or shards of users with their own arrays.

Model updates are made in windows; changes take effect between windows. Evidence wake-ups are made in rounds; they ask
peers by the lists at the start of the round. The result depends on the plan's latency, not on the number or kind of
workers, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from dada.core.bits import Ledger
from dada.core.block_steps import BlockStep
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph, NeighbourLists, lists_from_csr
from dada.core.losses import margins_of
from dada.core.model_steps import ModelSettings, make_scratch
from dada.core.problem import Problem, frank_wolfe_gaps, model_gradients
from dada.engine.graph_loops import EvidenceRound, JudgeRows, RoundResult, make_round
from dada.engine.model_loops import (
    Changes,
    GraphLists,
    SharedModels,
    UserArrays,
    add_to_neighbours,
    apply_to_copies,
    block_scratch,
    block_settings,
    blocks_in_window,
    moves_in_window,
    no_changes,
    refresh_stale,
    side_by_side,
)

# Coordinates that a pairwise move changes at most.
MOST_MOVED = 2


class Segment(NamedTuple):
    """Model updates of the users `awake`, in windows of `window` wake-ups.

    `block` are the settings of block steps; without them, users make pairwise moves, and `shared` is empty.
    """

    settings: ModelSettings
    block: BlockStep | None
    users: UserArrays
    shared: SharedModels
    edges: GraphLists
    awake: Array
    window: int
    ledger: Ledger

    def windows(self) -> Iterator[Array]:
        """The users that wake in each window."""
        for start in range(0, self.awake.size, self.window):
            yield self.awake[start : start + self.window]


class Workers(Protocol):
    """Makes the model updates of a segment, in place, and the evidence wake-ups of a round."""

    def advance(self, segment: Segment) -> None:
        """Make all updates of a segment, or none."""

    def judge(self, events: EvidenceRound, users: UserArrays, graph: CollaborationGraph) -> list[RoundResult]:
        """Make the wake-ups of a round from the neighbours in the graph; returns the results of consecutive users."""


def borders(n_users: int, n_parts: int) -> list[int]:
    """Borders of parts of nearly equal size, such as [0, 2, 5, 7, 10] for 10 users in 4 parts."""
    return [n_users * part // n_parts for part in range(n_parts + 1)]


class WindowSteps:
    """The updates that one worker makes in the windows of a segment, its working memory, and the counts of messages.

    `n_followers` are the followers of each user in the whole population, `edges` those known to the worker.
    """

    def __init__(
        self,
        settings: ModelSettings,
        block: BlockStep | None,
        users: UserArrays,
        shared: SharedModels,
        edges: GraphLists,
        n_followers: Array,
    ) -> None:
        self.settings, self.users, self.shared, self.edges, self.n_followers = (
            settings,
            users,
            shared,
            edges,
            n_followers,
        )
        n, number = users.alpha.shape[1], users.alpha.dtype
        self.scratch = make_scratch(n, int(np.diff(users.row_start).max()), number)
        self.block = None if block is None else block_settings(block, settings.beta, number)
        self.blocks = block_scratch(self.scratch)
        self.counts, self.coded = np.zeros(3, np.int64), np.zeros(2, np.int64)

    def no_changes(self, window: int) -> Changes:
        """Memory for the changes of a window."""
        n, number = self.users.alpha.shape[1], self.users.alpha.dtype
        return no_changes(window, MOST_MOVED if self.block is None else n, number)

    @property
    def models(self) -> Array:
        """The models that neighbours hold."""
        return self.users.alpha if self.block is None else self.shared.model

    def prepare(self, awake: Array) -> None:
        """Refresh the neighbour sums of the users that wake next."""
        refresh_stale(self.users, self.models, self.shared.previous, self.edges.lists, awake)

    def step(self, awake: Array, slots: Array, changes: Changes) -> None:
        """Update the given users; the change of each goes to its slot."""
        settings, users, followers, n_followers = self.settings, self.users, self.edges.followers, self.n_followers
        events = followers, n_followers, awake, slots, changes, self.counts
        if self.block is None:
            moves_in_window(settings, users, *events, self.scratch)
        else:
            blocks_in_window(settings, self.block, users, self.shared, *events, self.coded, self.blocks)


@dataclass(frozen=True)
class Threads:
    """Threads of this process; each changes only its own block of users."""

    n: int = 1

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"threads must be >= 1, got {self.n}")

    def advance(self, segment: Segment) -> None:
        """Make the updates of a segment."""
        cuts = borders(segment.users.degree.size, self.n)
        parts = [_Part(segment, first, last) for first, last in pairwise(cuts)]
        changes = parts[0].steps.no_changes(segment.window)
        with ThreadPoolExecutor(self.n) as pool:
            for awake in segment.windows():
                now = Changes(*(part[: awake.size] for part in changes))
                list(pool.map(lambda part, awake=awake: part.prepare(awake), parts))
                list(pool.map(lambda part, now=now: part.step(now), parts))
                list(pool.map(lambda part, now=now: part.finish(now), parts))
        for part in parts:
            segment.ledger.models[...] += part.steps.counts
            segment.ledger.coded[...] += part.steps.coded

    def judge(self, events: EvidenceRound, users: UserArrays, graph: CollaborationGraph) -> list[RoundResult]:
        """Make the wake-ups of a round."""
        jobs = []
        for first, last in pairwise(borders(users.degree.size, self.n)):
            rows = slice(users.row_start[first], users.row_start[last])
            row_start = users.row_start[first : last + 1] - users.row_start[first]
            own = JudgeRows(users.A[rows], row_start, users.offset[rows], users.sample_weight[rows])
            jobs.append((events, own, first, rows_of(graph, first, last)))
        with ThreadPoolExecutor(self.n) as pool:
            return list(pool.map(lambda job: make_round(*job), jobs))


class _Part:
    """The users of one thread."""

    def __init__(self, segment: Segment, first: int, last: int) -> None:
        self.first, self.last = first, last
        followers = segment.edges.followers
        self.steps = WindowSteps(*segment[:5], followers.length)
        self.slots, self.awake = np.empty(0, np.int64), np.empty(0, np.int32)

    def prepare(self, awake: Array) -> None:
        self.slots = np.flatnonzero((awake >= self.first) & (awake < self.last))
        self.awake = awake[self.slots]
        self.steps.prepare(self.awake)

    def step(self, changes: Changes) -> None:
        self.steps.step(self.awake, self.slots, changes)

    def finish(self, changes: Changes) -> None:
        add_to_neighbours(self.steps.users, self.steps.edges.followers, changes, self.first, self.last)


# Changes from one shard to another: slots in the window, users, numbers of entries; then all coordinates and deltas.
ChangeBatch = tuple[Array, Array, Array, Array, Array]
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
    """A shard's part of a segment. It copies the models of the users `others`, whose local ids follow its own users'.

    `lists` are the neighbours of its own users; `followers`, of own users and copies, its own users only. Own user k
    has `n_followers[k]` followers in all, of whom some are in the shards `followed_by[k]`.
    """

    others: Array
    users: dict[str, Array]
    shared: dict[str, Array]
    lists: NeighbourLists
    followers: NeighbourLists
    n_followers: Array
    followed_by: Array
    settings: ModelSettings
    block: BlockStep | None
    window: int


class ShardResult(NamedTuple):
    """The arrays of a shard's users after a segment, and the counts of what they sent."""

    users: dict[str, Array]
    shared: dict[str, Array]
    counts: Array
    coded: Array


def writable(array: Array) -> Array:
    """The array, or a copy if it is read-only shared memory, for which kernels are not compiled."""
    return np.require(array, requirements=["C", "W"])


class Shard:
    """The users of one shard."""

    part: ShardJob
    steps: WindowSteps

    def __init__(self, given: ShardData) -> None:
        self.given, self.size = given, given.last - given.first

    @cached_property
    def held(self) -> ShardData:
        """The data, read at first use."""
        first, last, source, *arrays = self.given
        A = writable(source) if isinstance(source, np.ndarray) else source(first, last)
        return ShardData(first, last, A, *map(writable, arrays))

    def data(self, number: np.dtype[np.floating]) -> dict[str, Array]:
        """The data in the precision of the models."""
        held = self.held
        assert isinstance(held.A, np.ndarray)
        A = held.A if held.A.dtype == np.int8 else held.A.astype(number, copy=False)
        offset = held.offset.astype(number, copy=False)
        return {name: getattr(held, name) for name in DATA} | {"A": A, "offset": offset}

    def begin(self, part: ShardJob, awake: Array) -> None:
        """Begin a segment with its models and lists."""
        users, shared = ({name: writable(values) for name, values in own.items()} for own in (part.users, part.shared))
        edges = GraphLists(*(NeighbourLists(*map(writable, lists)) for lists in (part.lists, part.followers)))
        settings = part.settings._replace(coupling=writable(part.settings.coupling))
        arrays = side_by_side(UserArrays(**self.data(users["alpha"].dtype), **users))
        n_followers = writable(part.n_followers)
        self.steps = WindowSteps(settings, part.block, arrays, SharedModels(**shared), edges, n_followers)
        self.part = part._replace(users={}, shared={})
        self.awake = awake
        self.changes = self.steps.no_changes(part.window)
        self.window = 0

    def step(self, *arrived: ChangeBatch) -> list[ChangeBatch]:
        """Finish the last window with the changes received, and make the next; returns the changes for each shard."""
        part, first, changes = self.part, self.held.first, self.changes
        if self.window > 0:
            self._finish_window(arrived)
        awake = self.awake[self.window * part.window : (self.window + 1) * part.window]
        self.window += 1
        slots = np.flatnonzero((awake >= first) & (awake < self.held.last))
        own = (awake[slots] - first).astype(np.int32)
        self.steps.prepare(own)
        changes.user[...] = -1
        self.steps.step(own, slots, changes)
        moved = slots[changes.user[slots] >= 0]
        batches: list[ChangeBatch] = []
        for there in range(part.followed_by.shape[1]):
            chosen = moved[part.followed_by[changes.user[moved], there]]
            length = changes.length[chosen]
            used = np.arange(changes.delta.shape[1]) < length[:, None]
            entries = changes.coordinate[chosen][used], changes.delta[chosen][used]
            batches.append((chosen, changes.user[chosen] + first, length, *entries))
        return batches

    def _finish_window(self, arrived: Sequence[ChangeBatch]) -> None:
        changes = self.changes
        for slots, senders, length, coordinate, delta in arrived:
            changes.user[slots] = self.size + np.searchsorted(self.part.others, senders)
            changes.length[slots] = length
            used = np.repeat(slots, length), np.arange(delta.size) - np.repeat(np.cumsum(length) - length, length)
            changes.coordinate[used], changes.delta[used] = coordinate, delta
        apply_to_copies(self.steps.models, changes, self.size)
        add_to_neighbours(self.steps.users, self.steps.edges.followers, changes, 0, self.size)

    def result(self, *arrived: ChangeBatch) -> ShardResult:
        """The arrays of the shard's own users after the last window, and the counts of what they sent."""
        self._finish_window(arrived)
        users, shared = self.steps.users, self.steps.shared
        names = [name for name in UserArrays._fields if name not in (*DATA, "margins")]
        arrays = {name: getattr(users, name)[: self.size] for name in names} | {"margins": users.margins}
        known = {name: values[: self.size] for name, values in shared._asdict().items()}
        return ShardResult(arrays, known, self.steps.counts, self.steps.coded)

    def judge(self, csr: tuple[Array, Array, Array], events: EvidenceRound) -> RoundResult:
        """Make the wake-ups of the shard's users in a round, from their neighbours."""
        known = type(events.known)(*map(writable, events.known))
        awake, asked = writable(events.awake), writable(events.asked)
        data = self.data(known.alpha.dtype)
        rows = JudgeRows(*(data[name] for name in JudgeRows._fields))
        events = events._replace(known=known, awake=awake, asked=asked)
        return make_round(events, rows, self.held.first, csr)

    def margins(self, alpha: Array) -> Array:
        """Margins of the shard's rows under the given models."""
        held = self.held
        return margins_of(held.A, held.row_start, held.offset.astype(np.float64), writable(alpha))

    def gaps(self, settings: ModelSettings, alpha: Array, indptr: Array, indices: Array, weights: Array) -> Array:
        """Frank-Wolfe gap of each user's block, divided by its degree; models of other shards come last."""
        held, models = self.held, np.array(alpha, np.float64)
        settings = settings._replace(coupling=writable(settings.coupling))
        lists = map(writable, (indptr, indices, weights))
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

    def ask(self, name: str, arguments: list[Any], common: Any = ()) -> list[Any]:
        """Call a method of every shard, with its own arguments, then with common ones; returns the results."""

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

    def _hold_rows_of(self, users: UserArrays) -> None:
        # The rows of a remote problem are in the shards already.
        if self.read is None or not self.cuts:
            self.hold(users.A, users.row_start, users.confidence, users.offset, users.sample_weight)

    def advance(self, segment: Segment) -> None:
        """Make the updates of a segment."""
        users, shared = segment.users, segment.shared
        self._hold_rows_of(users)
        parts = [cut_out(segment, self.cuts, number) for number in range(len(self.cuts) - 1)]
        outcomes = self.backend.run(parts, segment.awake, -(-segment.awake.size // segment.window))
        for (first, last), found in zip(pairwise(self.cuts), outcomes, strict=True):
            rows = slice(users.row_start[first], users.row_start[last])
            for name, values in found.users.items():
                getattr(users, name)[rows if name == "margins" else slice(first, last)] = values
            for name, values in found.shared.items():
                getattr(shared, name)[first:last] = values
            segment.ledger.models[...] += found.counts
            segment.ledger.coded[...] += found.coded

    def judge(self, events: EvidenceRound, users: UserArrays, graph: CollaborationGraph) -> list[RoundResult]:
        """Make the wake-ups of a round."""
        self._hold_rows_of(users)
        lists = [(rows_of(graph, first, last),) for first, last in pairwise(self.cuts)]
        return self.backend.ask("judge", lists, (events,))

    def margins(self, alpha: Array) -> Array:
        """Margins of all users' rows under the given models."""
        return np.concatenate(self.backend.ask("margins", [(alpha[a:b],) for a, b in pairwise(self.cuts)]))

    def model_gaps(self, settings: ModelSettings, alpha: Array, graph: CollaborationGraph) -> Array:
        """Frank-Wolfe gap of every user's block, divided by d_k."""
        arguments = []
        for first, last in pairwise(self.cuts):
            indptr, indices, weights = rows_of(graph, first, last)
            ids, others = renumbered(indices, first, last)
            models = np.concatenate([alpha[first:last], alpha[others]])
            arguments.append((settings, models, indptr, ids, weights))
        return np.concatenate(self.backend.ask("gaps", arguments))


def rows_of(graph: CollaborationGraph, first: int, last: int) -> tuple[Array, Array, Array]:
    """The neighbours of users first..last-1, as compressed rows."""
    cells = slice(graph.indptr[first], graph.indptr[last])
    return graph.indptr[first : last + 1] - graph.indptr[first], graph.indices[cells], graph.weights[cells]


def packed(lists: NeighbourLists, first: int, last: int) -> tuple[Array, Array, Array]:
    """The lists of users first..last-1 as compressed rows."""
    count = lists.length[first:last].astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(count)])
    cells = np.repeat(lists.start[first:last] - indptr[:-1], count) + np.arange(indptr[-1])
    return indptr, lists.ids[cells], lists.weights[cells]


def cut_out(segment: Segment, cuts: list[int], number: int) -> ShardJob:
    """One shard's part of a segment."""
    users, (all_lists, all_followers) = segment.users, segment.edges
    first, last = cuts[number], cuts[number + 1]
    size = last - first
    indptr, ids, weights = packed(all_lists, first, last)
    local, others = renumbered(ids, first, last)
    owners = np.repeat(np.arange(size, dtype=np.int32), np.diff(indptr))
    # Own followers of each user, in ascending order.
    order = np.argsort(local, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(local, minlength=size + others.size))])
    followers = lists_from_csr(ends, owners[order], weights[order])
    followed_by = np.zeros((size, len(cuts) - 1), bool)
    starts, follower, _ = packed(all_followers, first, last)
    shards = np.searchsorted(cuts, follower, side="right") - 1
    followed_by[np.repeat(np.arange(size), np.diff(starts)), shards] = True
    followed_by[:, number] = False
    names = [name for name in UserArrays._fields if name not in DATA]
    state = {name: getattr(users, name)[first:last] for name in names}
    state["margins"] = users.margins[users.row_start[first] : users.row_start[last]]
    shared = {name: values[first:last] for name, values in segment.shared._asdict().items()}
    if others.size:
        known, of_all = (state, users.alpha) if segment.block is None else (shared, segment.shared.model)
        known["alpha" if segment.block is None else "model"] = np.concatenate([of_all[first:last], of_all[others]])
    return ShardJob(
        others, state, shared, lists_from_csr(indptr, local, weights), followers, all_followers.length[first:last],
        followed_by, segment.settings, segment.block, segment.window,
    )  # fmt: skip


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

    def ask(self, name: str, arguments: list[Any], common: Any = ()) -> list[Any]:
        """Call a method of every shard."""
        return [getattr(shard, name)(*given, *common) for shard, given in zip(self.shards, arguments, strict=True)]

    def close(self) -> None:
        """Drop the shards."""
        self.shards = []


def remote_problem(
    workers: Sharded,
    sizes: Array,
    n_predictors: int,
    *,
    offset: Array | None = None,
    name: str = "",
    **settings: Any,
) -> Problem:
    """A problem with `sizes` rows per user that only the shards hold; models and graph stay in this process.

    The shards read their own rows; pass them to `run` too. Offsets and weights of the rows, if any, are known here. The
    name distinguishes these rows from others when a checkpoint is resumed.
    """
    if workers.read is None:
        raise ValueError("a remote problem needs shards that read their rows: use Sharded(n, backend, read)")
    row_start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    offset = np.zeros(row_start[-1], np.float32) if offset is None else offset
    A = np.empty((0, n_predictors), np.int8)
    problem = Problem(A, row_start, offset=offset, remote=workers, rows_name=name, **settings)
    workers.hold(A, row_start, problem.confidence, offset, problem.sample_weight)
    return problem
