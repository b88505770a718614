"""What a peer remembers of others: edges, sample counts, and the graph step that waits for replies."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from dada.core.compiled import Array
from dada.peer.copies import ModelCopy
from dada.peer.inputs import Effect, Persist, Send
from dada.peer.messages import (
    LARGEST_STORED_VERSION,
    VERSIONS_PER_LIFE,
    ImplausibleError,
    Message,
    ModelChange,
    ModelOffer,
    PeerId,
    SampleCount,
    SnapshotReply,
    SnapshotRequest,
    Statement,
    StateReply,
    StateRequest,
    Witness,
)
from dada.peer.model import OwnModel, add_models
from dada.peer.signatures import Trail, statement_of

# Times a message is repeated before the other end counts as gone.
MOST_REPEATS = 8
# Peers whose sample counts are remembered, and ended edges that are.
MOST_SIZES, MOST_ENDED_EDGES = 1024, 512
# The largest trusted sample count, in medians of all reported ones.
MOST_MEDIANS = 2
EDGE_KEY = b"edge:"


@dataclass(eq=False)
class Edge:
    """What a peer holds of the edge to one other peer.

    `acknowledged` if the other end is known to hold the same state; `size`: the number of samples it reported.
    """

    weight: float = 0.0
    version: int = 0
    author: PeerId = b""
    copy: ModelCopy | None = None
    acknowledged: bool = True
    repeats: int = 0
    snapshot_requested: float = -math.inf
    size: int = 1
    trail: Trail = field(default_factory=Trail)

    @property
    def rank(self) -> tuple[int, PeerId]:
        """The higher rank wins between two states of one edge."""
        return self.version, self.author


class _StoredEdge(msgspec.Struct, array_like=True):
    version: Annotated[int, Meta(ge=0, le=LARGEST_STORED_VERSION)]
    author: bytes
    weight: Annotated[float, Meta(ge=0)]
    size: SampleCount = 1


class Versions:
    """Version numbers for the states of a peer's edges. No number is given twice.

    Numbers rise from life to life and from edge to edge. So none repeats after a peer has forgotten an edge, or after a
    power cut has lost its last records.

    >>> versions = Versions()
    >>> versions.begin(epoch=1)
    >>> versions.after(0) < versions.after(0) < versions.after(10**9)
    True
    """

    def __init__(self) -> None:
        self._next = 0

    def begin(self, epoch: int) -> None:
        """Start a life."""
        self._next = epoch * VERSIONS_PER_LIFE

    def after(self, version: int) -> int:
        """A new version above a given one."""
        self._next += 1
        return max(version + 1, self._next)

    def latest(self, version: int) -> int:
        """A version above a given one and above all that other lives gave; it is not used up."""
        return max(version + 1, self._next)


class PeerEdges(Mapping[PeerId, Edge]):
    """The edges of one peer, including ended ones, which have weight zero.

    `describe` gives the message that reports an edge to its other end; its second argument is whether to attach the
    model. `degree` is the sum of the weights. `waiting` holds when each report that was not acknowledged is repeated.
    """

    def __init__(self, me: PeerId, own: OwnModel, describe: Callable[[Edge, bool], Message]) -> None:
        self.me, self.own = me, own
        self.degree = 0.0
        self.waiting: dict[PeerId, float] = {}
        self.versions = Versions()
        self._edges: dict[PeerId, Edge] = {}
        self._describe = describe
        self._last_reminded = b""

    def __getitem__(self, peer: PeerId) -> Edge:
        return self._edges[peer]

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._edges)

    def __len__(self) -> int:
        return len(self._edges)

    @property
    def neighbours(self) -> list[PeerId]:
        """Peers this peer learns from, in ascending order of ids."""
        return sorted(peer for peer, edge in self._edges.items() if edge.weight > 0.0)

    def has_neighbour(self, peer: PeerId) -> bool:
        """Whether this peer learns from another."""
        edge = self._edges.get(peer)
        return edge is not None and edge.weight > 0.0

    @property
    def deadline(self) -> float:
        """When the next report is repeated."""
        return min(self.waiting.values(), default=math.inf)

    def models(self) -> list[tuple[float, ModelCopy]]:
        """Weights and models of the neighbours whose models are known."""
        held = [self._edges[peer] for peer in self.neighbours]
        return [(edge.weight, edge.copy) for edge in held if edge.copy is not None]

    def neighbour_sum(self) -> tuple[float, Array]:
        """Sum of the weights of neighbours whose models are known, and the weighted sum of these models."""
        neighbour_sum = np.zeros_like(self.own.user.neighbour_sum)
        return add_models(neighbour_sum, self.models()), neighbour_sum

    # -- life ------------------------------------------------------------------------------------------------------

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take over stored edges."""
        for key, value in records.items():
            if key.startswith(EDGE_KEY):
                edge = msgspec.msgpack.decode(value, type=_StoredEdge)
                self._edges[key.removeprefix(EDGE_KEY)] = Edge(
                    edge.weight, edge.version, edge.author, acknowledged=False, size=edge.size
                )
        self.sum_degree()

    def start(self, now: float, renew: bool = False) -> list[Effect]:
        """Begin a life: report each edge, at a new version if asked, and request the neighbour's model."""
        self.versions.begin(self.own.shared.epoch)
        for peer in self.neighbours if renew else ():
            self._edges[peer].version = self.versions.after(self._edges[peer].version)
        effects: list[Effect] = []
        for peer in self.neighbours:
            effects += [Send(peer, SnapshotRequest()), self.announce(peer, now)]
        return effects

    # -- weights ---------------------------------------------------------------------------------------------------

    def set(self, peer: PeerId, edge: Edge, weight: float, version: int, author: PeerId) -> list[Effect]:
        """Give an edge a new state, and store it."""
        change = weight - edge.weight
        edge.weight, edge.version, edge.author = weight, version, author
        self._edges[peer] = edge
        if change != 0.0:
            self.own.is_stale = True
        any_left = any(other.weight > 0.0 for other in self._edges.values())
        self.degree = self.degree + change if any_left else 0.0
        if weight > 0.0:
            return [self.record(peer)]
        edge.copy, edge.trail = None, Trail()
        # Edges are forgotten in the order in which they ended.
        self._edges[peer] = self._edges.pop(peer)
        ended = [other for other, held in self._edges.items() if held.weight == 0.0]
        forgotten = ended[: max(0, len(ended) - MOST_ENDED_EDGES)]
        return [self.record(peer), *(self.forget(other) for other in forgotten)]

    def decide(self, peer: PeerId, edge: Edge, weight: float) -> list[Effect]:
        """Give an edge a new weight, in this peer's name."""
        return self.set(peer, edge, weight, self.versions.after(edge.version), self.me)

    def end(self, peer: PeerId) -> list[Effect]:
        """End the edge to a peer that is gone. It gets a report should it return."""
        edge = self._edges.get(peer)
        if edge is None:
            return []
        self.waiting.pop(peer, None)
        edge.repeats = 0
        if edge.weight == 0.0:
            return []
        edge.acknowledged = False
        return self.decide(peer, edge, 0.0)

    def forget(self, peer: PeerId) -> Persist:
        """Delete an edge."""
        del self._edges[peer]
        self.waiting.pop(peer, None)
        return Persist(EDGE_KEY + peer, b"")

    def record(self, peer: PeerId) -> Persist:
        """The edge to a peer, to be stored; raises `msgspec.ValidationError` if it could not be loaded again."""
        edge = self._edges[peer]
        value = msgspec.msgpack.encode(_StoredEdge(edge.version, edge.author, edge.weight, edge.size))
        msgspec.msgpack.decode(value, type=_StoredEdge)
        return Persist(EDGE_KEY + peer, value)

    def sum_degree(self) -> None:
        """Recompute the sum of the weights, in ascending order of ids."""
        self.degree = 0.0
        for peer in self.neighbours:
            self.degree += self._edges[peer].weight

    # -- reports and acknowledgements ------------------------------------------------------------------------------

    def report(self, peer: PeerId, edge: Edge, with_model: bool = True) -> Send:
        """The state of an edge, for its other end."""
        return Send(peer, self._describe(edge, with_model))

    def announce(self, peer: PeerId, now: float, repeats: int = 0, with_model: bool = True) -> Send:
        """Report the edge to a peer, and repeat the report until it is acknowledged."""
        edge = self._edges[peer]
        edge.repeats, edge.acknowledged = repeats, False
        self.waiting[peer] = now + self.own.config.reply_timeout_s * 2.0 ** min(repeats, 4)
        return self.report(peer, edge, with_model)

    def settle(self, peer: PeerId, edge: Edge) -> None:
        """The other end holds the same state."""
        edge.acknowledged, edge.repeats = True, 0
        self.waiting.pop(peer, None)

    def due(self, now: float) -> list[PeerId]:
        """Peers that have not acknowledged a report in time."""
        return [peer for peer, deadline in self.waiting.items() if deadline <= now]

    def repeat(self, peer: PeerId, now: float) -> list[Effect]:
        """Repeat a report; empty if it has been repeated often enough."""
        repeats = self._edges[peer].repeats
        return [] if repeats >= MOST_REPEATS else [self.announce(peer, now, repeats + 1)]

    def next_to_remind(self) -> list[PeerId]:
        """The neighbour whose turn it is to be reminded of its edge; empty without neighbours."""
        neighbours = self.neighbours
        if not neighbours:
            return []
        self._last_reminded = next((peer for peer in neighbours if peer > self._last_reminded), neighbours[0])
        return [self._last_reminded]

    # -- copies of models ------------------------------------------------------------------------------------------

    def apply_change(self, sender: PeerId, change: ModelChange, now: float) -> list[Effect]:
        """Apply a neighbour's change to the copy of its model, or request the model if changes were missed."""
        edge = self._edges[sender]
        copy = edge.copy
        if copy is not None and (change.epoch, change.sequence) <= copy.number:
            return []
        if copy is None or change.epoch != copy.epoch or change.sequence != copy.sequence + 1:
            return self.request_snapshot(sender, now)
        try:
            self.own.follow(copy, edge.weight, change)
        except ImplausibleError:
            edge.copy, self.own.is_stale = None, True
            raise
        edge.trail.note(copy)
        return []

    def receive_snapshot(self, sender: PeerId, reply: SnapshotReply) -> list[Effect]:
        """Keep a neighbour's model."""
        if self.has_neighbour(sender):
            copy = self.own.copy_of(reply.snapshot)
            self.take_copy(self._edges[sender], copy)
            self.attest(sender, statement_of(copy, reply.signature))
        return []

    def attest(self, sender: PeerId, statement: Statement) -> None:
        """Compare a neighbour's statement with the copies of its models; keep the copy if it is signed."""
        edge = self._edges[sender]
        if edge.trail.confirms(sender, statement):
            edge.trail.unanswered = 0
            if edge.copy is not None and edge.copy.number == (statement.epoch, statement.sequence):
                edge.trail.signed = Witness(sender, self.own.snapshot_of(edge.copy), statement.signature)

    def take_copy(self, edge: Edge, copy: ModelCopy) -> None:
        """Keep a model unless a newer copy is held."""
        if edge.copy is None or edge.copy.precedes(copy.number):
            edge.copy = copy
            edge.trail.note(copy)
            edge.snapshot_requested = -math.inf
            self.own.is_stale = True

    def rebase(self, origin: Array) -> None:
        """Move all copies to other coordinates (`ModelCopy.rebased`); they are renewed as neighbours do the same."""
        for edge in self._edges.values():
            edge.copy, edge.trail = None if edge.copy is None else edge.copy.rebased(origin), Trail()
            edge.snapshot_requested = -math.inf
        self.own.is_stale = True

    def request_snapshot(self, peer: PeerId, now: float) -> list[Effect]:
        """Ask for a neighbour's model, unless it was just requested."""
        edge = self._edges[peer]
        if now - edge.snapshot_requested < self.own.config.reply_timeout_s:
            return []
        edge.snapshot_requested = now
        return [Send(peer, SnapshotRequest())]

    def catch_up(self, peer: PeerId, number: tuple[int, int], now: float) -> list[Effect]:
        """Ask for a neighbour's model if the copy is older than that number."""
        copy = self._edges[peer].copy
        return self.request_snapshot(peer, now) if copy is None or copy.precedes(number) else []


class Sizes:
    """Sample counts that others reported, and the largest count to rely on.

    The share `distrust` of the largest reported counts is ignored, and so is what exceeds twice the median: a minority
    of liars cannot raise the largest count beyond that. `known_largest` is the largest number of samples of
    any user, as far as it is known beforehand. Counts above `most_samples` are lowered to it, which stops a majority of
    liars too. Of more than `most_peers` counts the oldest are forgotten.

    >>> sizes = Sizes(own=6, distrust=0.3)
    >>> for peer, size in ((b"a", 10), (b"b", 12), (b"c", 8), (b"liar", 10**9)):
    ...     sizes.add(peer, size)
    >>> sizes.largest, sizes.confidence
    (12, 0.5)
    """

    def __init__(
        self,
        own: int,
        distrust: float,
        known_largest: int = 1,
        most_samples: int | None = None,
        most_peers: int = MOST_SIZES,
    ) -> None:
        self.own, self.distrust, self.most_peers = own, distrust, most_peers
        self.known_largest, self.most_samples = known_largest, most_samples
        self._reported: OrderedDict[PeerId, int] = OrderedDict()
        self._largest_reported = 1

    def __len__(self) -> int:
        return len(self._reported)

    @property
    def largest(self) -> int:
        """The largest trusted number of samples."""
        return max(self.own, self.known_largest, self._largest_reported)

    @property
    def confidence(self) -> float:
        """c_k = m_k / max m_l."""
        return self.own / self.largest

    def add(self, peer: PeerId, size: int) -> None:
        """A peer reports how many samples it has."""
        if self.most_samples is not None:
            size = min(size, self.most_samples)
        was = self._reported.get(peer)
        put_last(self._reported, peer, size, self.most_peers)
        if was != size:
            self._largest_reported = largest_trusted(self._reported.values(), self.distrust)


def largest_trusted(sizes: Iterable[int], distrust: float) -> int:
    """The largest of some sample counts, without the share `distrust` of the largest, and what exceeds two medians.

    >>> largest_trusted([3, 4, 5, 1000], distrust=0.0), largest_trusted([3, 4, 5, 1000], distrust=0.1)
    (1000, 8)
    """
    ordered = sorted(sizes, reverse=True)
    largest = ordered[int(distrust * len(ordered))]
    return min(largest, MOST_MEDIANS * ordered[len(ordered) // 2]) if distrust > 0.0 else largest


@dataclass(eq=False)
class Round:
    """A graph step that waits for replies; each is kept with the model in it."""

    number: int
    batch: tuple[PeerId, ...]
    deadline: float
    replies: dict[PeerId, tuple[StateReply | ModelOffer, ModelCopy]] = field(default_factory=dict)


class Rounds:
    """The graph steps of one peer, of which at most one waits for replies."""

    def __init__(self, own: OwnModel, sizes: Sizes) -> None:
        self._own, self._sizes = own, sizes
        self.current: Round | None = None
        self.count = 0

    @property
    def deadline(self) -> float:
        """When the current graph step stops waiting."""
        return math.inf if self.current is None else self.current.deadline

    def begin(self, batch: tuple[PeerId, ...], now: float, timeouts: float = 1.0) -> list[Effect]:
        """Ask the peers of a batch for their state, and wait this multiple of the usual time."""
        self.count += 1
        self.current = Round(self.count, batch, now + timeouts * self._own.config.reply_timeout_s)
        return [Send(peer, StateRequest(self.count)) for peer in batch]

    def receive(self, sender: PeerId, reply: StateReply | ModelOffer) -> bool:
        """Keep a reply that was asked for; returns whether it was the last one missing."""
        waiting = self.current
        if waiting is None or reply.round != waiting.number or sender not in waiting.batch:
            return False
        waiting.replies[sender] = reply, self._own.copy_of(reply.snapshot)
        self._sizes.add(sender, reply.size)
        return len(waiting.replies) == len(waiting.batch)

    def ignore(self, peer: PeerId) -> None:
        """Drop the reply of a peer."""
        if self.current is not None:
            self.current.replies.pop(peer, None)

    def end(self) -> list[tuple[PeerId, Any, ModelCopy]]:
        """Stop waiting; returns the peers that replied, in the order of the batch, with their replies and models."""
        assert self.current is not None
        batch, replies, self.current = self.current.batch, self.current.replies, None
        return [(peer, *replies[peer]) for peer in batch if peer in replies]


def put_last(held: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Hold a value, of a peer for example, as the newest one, and drop the oldest if there are too many."""
    held[key] = value
    held.move_to_end(key)
    if len(held) > most:
        held.popitem(last=False)
