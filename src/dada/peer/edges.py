"""What a peer remembers of others: the edge to each, a graph step under way, and who has lied to it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from dada.core.compiled import Array
from dada.peer.config import PeerConfig
from dada.peer.inputs import Effect, Persist, Send
from dada.peer.messages import (
    Message,
    ModelDelta,
    ModelOffer,
    PeerId,
    Snapshot,
    SnapshotRequest,
    StateReply,
    StateRequest,
)
from dada.peer.model import ImplausibleError, ModelCopy, OwnModel

# More versions than a peer gives in one life.
VERSIONS_PER_LIFE = 1 << 20


@dataclass(eq=False)
class Edge:
    """What a peer holds of the edge to one other peer.

    `acknowledged` if the other end is known to hold the same; `size`: the number of samples it said it has.
    """

    weight: float = 0.0
    version: int = 0
    author: PeerId = b""
    copy: ModelCopy | None = None
    acknowledged: bool = True
    repeats: int = 0
    snapshot_asked: float = -math.inf
    size: int = 1

    @property
    def rank(self) -> tuple[int, PeerId]:
        """What decides between two states of one edge."""
        return self.version, self.author


class Versions:
    """Numbers for the states that one peer gives its edges, none of which it has ever given before.

    They go on rising from life to life and from edge to edge, so that none comes back where a peer has forgotten an
    edge, or where a power cut has lost its last records.

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


@dataclass(eq=False)
class Round:
    """A graph step that waits for replies."""

    number: int
    batch: tuple[PeerId, ...]
    deadline: float
    replies: dict[PeerId, StateReply | ModelOffer] = field(default_factory=dict)


class Offences:
    """How often each peer said what cannot be true; those who did so longest ago are forgotten first.

    >>> offences = Offences(patience=2, most_peers=10)
    >>> [offences.add(b"liar") for _ in range(2)]
    [False, True]
    """

    def __init__(self, patience: int, most_peers: int) -> None:
        self.patience, self.most_peers = patience, most_peers
        self._counts: OrderedDict[PeerId, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, peer: PeerId) -> bool:
        """Count one more; whether the patience with this peer is now at an end."""
        self._counts[peer] = self._counts.get(peer, 0) + 1
        self._counts.move_to_end(peer)
        if len(self._counts) > self.most_peers:
            self._counts.popitem(last=False)
        return self.is_ignored(peer)

    def is_ignored(self, peer: PeerId) -> bool:
        """Whether a peer is not listened to any more."""
        return self._counts.get(peer, 0) >= self.patience


class Sizes:
    """How many samples others say they have, and the largest number one can rely on.

    Parameters
    ----------
    distrust : float
        Part of the largest numbers that is ignored.
    most_peers : int
        Numbers remembered; those heard of longest ago are forgotten first.

    Examples
    --------
    >>> sizes = Sizes(distrust=0.3, most_peers=100)
    >>> for peer, size in ((b"a", 10), (b"b", 12), (b"c", 8), (b"liar", 10**9)):
    ...     sizes.note(peer, size)
    >>> sizes.largest
    12
    """

    def __init__(self, distrust: float, most_peers: int) -> None:
        self.distrust, self.most_peers = distrust, most_peers
        self.largest = 1
        self._sizes: OrderedDict[PeerId, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sizes)

    def note(self, peer: PeerId, size: int) -> None:
        """A peer says how many samples it has."""
        was = self._sizes.get(peer)
        self._sizes[peer] = size
        self._sizes.move_to_end(peer)
        if len(self._sizes) > self.most_peers:
            self._sizes.popitem(last=False)
        if was != size:
            ordered = sorted(self._sizes.values(), reverse=True)
            self.largest = ordered[int(self.distrust * len(ordered))]


# Repeats of a word before the other end counts as gone.
MOST_REPEATS = 8
# Peers whose sample counts are remembered, and with whom ended edges are.
MOST_SIZES, MOST_ENDED_EDGES = 1024, 512
EDGE_KEY = b"edge:"
LARGEST_SIZE, LARGEST_VERSION = 10**9, 2**48


class _StoredEdge(msgspec.Struct, array_like=True):
    version: int
    author: bytes
    weight: float
    size: int = 1


class Neighbourhood(ABC):
    """The edges of one peer.

    Parameters
    ----------
    me : bytes
        This peer's id.
    own : OwnModel
        Its model.
    largest_size : int
        The largest number of samples of any user, where it is known beforehand.
    """

    def __init__(self, me: PeerId, own: OwnModel, largest_size: int) -> None:
        self.me, self.own = me, own
        self.config: PeerConfig = own.config
        self.known_largest = max(largest_size, own.size)
        self.sizes = Sizes(self.config.trust_largest, MOST_SIZES)
        self.edges: dict[PeerId, Edge] = {}
        self.degree = 0.0
        self.waiting: dict[PeerId, float] = {}
        self.round: Round | None = None
        self.rounds = 0
        self.bits_counted = np.zeros(3, np.int64)
        self._versions = Versions()
        self._looked_after = b""

    # -- what can be read ------------------------------------------------------------------------------------------

    @property
    def neighbours(self) -> list[PeerId]:
        """Those this peer learns from, in ascending order of ids."""
        return sorted(peer for peer, edge in self.edges.items() if edge.weight > 0.0)

    @property
    @abstractmethod
    def listeners(self) -> list[PeerId]:
        """Those who learn from this peer, in ascending order of ids: they are told its moves."""

    @property
    def reference_size(self) -> int:
        """The largest number of samples heard of, those left out that the network does not trust."""
        return max(self.known_largest, self.sizes.largest)

    @property
    def confidence(self) -> float:
        """c_k = m_k / max m_l."""
        return self.own.size / self.reference_size

    @property
    def deadline(self) -> float:
        """When `on_timer` should next be called; infinity if nothing waits."""
        repeat = min(self.waiting.values(), default=math.inf)
        return repeat if self.round is None else min(repeat, self.round.deadline)

    def models(self) -> list[tuple[float, ModelCopy]]:
        """Weights and models of neighbours. One whose model is unknown pulls nowhere; it may never come."""
        held = [self.edges[peer] for peer in self.neighbours]
        return [(edge.weight, edge.copy) for edge in held if edge.copy is not None]

    # -- life ------------------------------------------------------------------------------------------------------

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take up stored edges."""
        for key, value in records.items():
            if key.startswith(EDGE_KEY):
                edge = msgspec.msgpack.decode(value, type=_StoredEdge)
                self.edges[key.removeprefix(EDGE_KEY)] = Edge(
                    edge.weight, edge.version, edge.author, acknowledged=False, size=edge.size
                )
        self.sum_degree()

    def start(self, now: float) -> list[Effect]:
        """Begin a life, whose epoch the model has: neighbours of an earlier one are asked for their models."""
        self._versions.begin(self.own.model.epoch)
        effects: list[Effect] = []
        for peer in self.neighbours:
            effects.append(Send(peer, SnapshotRequest()))
            effects += self._announce(peer, self.edges[peer], now)
        return effects

    def on_timer(self, now: float) -> list[Effect]:
        """Close a round that waited long enough; repeat what was not acknowledged."""
        effects: list[Effect] = []
        if self.round is not None and self.round.deadline <= now:
            effects += self._finish_round(now)
        for peer in [peer for peer, repeat in self.waiting.items() if repeat <= now]:
            if self.edges[peer].repeats >= MOST_REPEATS:
                effects += self.on_unreachable(peer, now)
            else:
                effects += self._announce(peer, self.edges[peer], now, self.edges[peer].repeats + 1)
        return effects

    def on_unreachable(self, peer: PeerId, now: float) -> list[Effect]:
        """A peer is gone: forget its edge, and say so should it come back."""
        edge = self.edges.get(peer)
        if edge is None:
            return []
        self.waiting.pop(peer, None)
        edge.repeats = 0
        if edge.weight == 0.0:
            return []
        edge.acknowledged = False
        return self._set_edge(peer, edge, 0.0, self._versions.after(edge.version), self.me)

    def on_hello(self, sender: PeerId, now: float) -> list[Effect]:
        """The other end is new, or has come back: let both compare what they hold."""
        edge = self.edges.get(sender)
        return [] if edge is None or edge.weight == 0.0 else self._announce(sender, edge, now)

    @abstractmethod
    def hear(self, sender: PeerId, message: Message, now: float) -> list[Effect] | None:
        """Answer a message about edges; None if this rule does not know its kind."""

    # -- models ----------------------------------------------------------------------------------------------------

    def on_delta(self, sender: PeerId, delta: ModelDelta, now: float) -> list[Effect]:
        """A neighbour's model has moved."""
        edge = self.edges.get(sender)
        if edge is None or edge.weight == 0.0:
            return self._disown(sender)
        copy = edge.copy
        if copy is not None and (delta.epoch, delta.sequence) <= copy.number:
            return []
        if copy is None or delta.epoch != copy.epoch or delta.sequence != copy.sequence + 1:
            return self._ask_snapshot(sender, edge, now)
        try:
            self.own.follow(copy, edge.weight, delta)
        except ImplausibleError:
            edge.copy, self.own.is_stale = None, True
            raise
        return []

    def on_snapshot(self, sender: PeerId, snapshot: Snapshot) -> list[Effect]:
        """A whole model has come."""
        edge = self.edges.get(sender)
        if edge is not None and edge.weight > 0.0:
            self._take_copy(edge, self._copy_of(snapshot))
        return []

    def _copy_of(self, snapshot: Snapshot) -> ModelCopy:
        return ModelCopy.from_snapshot(snapshot, self.config.n_predictors, self.config.beta)

    def _take_copy(self, edge: Edge, copy: ModelCopy) -> None:
        if edge.copy is None or edge.copy.number < copy.number:
            edge.copy = copy
            edge.snapshot_asked = -math.inf
            self.own.is_stale = True

    def _ask_snapshot(self, peer: PeerId, edge: Edge, now: float) -> list[Effect]:
        if now - edge.snapshot_asked < self.config.reply_timeout_s:
            return []
        edge.snapshot_asked = now
        return [Send(peer, SnapshotRequest())]

    @abstractmethod
    def _disown(self, sender: PeerId) -> list[Effect]:
        """Answer the move of a peer that is no neighbour, so that it stops telling its moves."""

    # -- graph steps -----------------------------------------------------------------------------------------------

    def begin_round(self, batch: tuple[PeerId, ...], now: float) -> list[Effect]:
        """Ask the peers of a batch for what a graph step needs."""
        effects = self._finish_round(now) if self.round is not None else []
        peers = tuple(peer for peer in dict.fromkeys(batch) if peer != self.me and self._must_ask(peer))
        effects += self._prepare_round(now)
        effects += self._look_after_a_neighbour()
        self.rounds += 1
        self.round = Round(self.rounds, peers, now + self.config.reply_timeout_s)
        if not peers:
            return [*effects, *self._finish_round(now)]
        return effects + [Send(peer, StateRequest(self.rounds)) for peer in peers]

    def _must_ask(self, peer: PeerId) -> bool:
        """Whether a graph step needs to hear from a peer."""
        return True

    def _prepare_round(self, now: float) -> list[Effect]:
        """What comes before the questions of a graph step."""
        return []

    def _look_after_a_neighbour(self) -> list[Effect]:
        neighbours = self.neighbours
        if not neighbours:
            return []
        self._looked_after = next((peer for peer in neighbours if peer > self._looked_after), neighbours[0])
        return [self._reminder(self._looked_after, self.edges[self._looked_after])]

    @abstractmethod
    def _reminder(self, peer: PeerId, edge: Edge) -> Send:
        """What this end holds, in few bytes."""

    @abstractmethod
    def state(self, number: int) -> StateReply | ModelOffer:
        """The answer to a question of round `number`."""

    def _on_reply(self, sender: PeerId, reply: StateReply | ModelOffer, now: float) -> list[Effect]:
        waiting = self.round
        if waiting is None or reply.round != waiting.number or sender not in waiting.batch:
            return []
        if not 1 <= reply.size <= LARGEST_SIZE:
            raise ImplausibleError(f"{reply.size} samples")
        self._copy_of(reply.snapshot)
        waiting.replies[sender] = reply
        self.sizes.note(sender, reply.size)
        return self._finish_round(now) if len(waiting.replies) == len(waiting.batch) else []

    def _end_round(self) -> list[tuple[PeerId, Any, ModelCopy]]:
        """Those who answered, in the order of the batch, with their answers and models."""
        assert self.round is not None
        batch, replies, self.round = self.round.batch, self.round.replies, None
        answered = [(peer, replies[peer]) for peer in batch if peer in replies]
        return [(peer, reply, self._copy_of(reply.snapshot)) for peer, reply in answered]

    @abstractmethod
    def _finish_round(self, now: float) -> list[Effect]:
        """Set weights by the answers that have come."""

    # -- edges -----------------------------------------------------------------------------------------------------

    def sum_degree(self) -> None:
        """Sum the weights anew, in ascending order of ids."""
        self.degree = 0.0
        for peer in self.neighbours:
            self.degree += self.edges[peer].weight

    def _set_edge(self, peer: PeerId, edge: Edge, weight: float, version: int, author: PeerId) -> list[Effect]:
        change = weight - edge.weight
        edge.weight, edge.version, edge.author = weight, version, author
        if change != 0.0:
            self.own.is_stale = True
        any_left = any(other.weight > 0.0 for other in self.edges.values())
        self.degree = self.degree + change if any_left else 0.0
        if weight > 0.0:
            return [self._stored_edge(peer)]
        edge.copy = None
        # What ended last stands last, and is forgotten last.
        self.edges[peer] = self.edges.pop(peer)
        return [self._stored_edge(peer), *self._forget_ended_edges()]

    def _forget_ended_edges(self) -> list[Effect]:
        ended = [peer for peer, edge in self.edges.items() if edge.weight == 0.0]
        forgotten = ended[: max(0, len(ended) - MOST_ENDED_EDGES)]
        return [self._forget_edge(peer) for peer in forgotten]

    def _forget_edge(self, peer: PeerId) -> Persist:
        del self.edges[peer]
        self.waiting.pop(peer, None)
        return Persist(EDGE_KEY + peer, b"")

    def _announce(
        self, peer: PeerId, edge: Edge, now: float, repeats: int = 0, with_model: bool = True
    ) -> list[Effect]:
        """Say what this end holds of an edge, and again later unless it is acknowledged."""
        edge.repeats, edge.acknowledged = repeats, False
        self.waiting[peer] = now + self.config.reply_timeout_s * 2.0 ** min(repeats, 4)
        return [self._word(peer, edge, with_model)]

    @abstractmethod
    def _word(self, peer: PeerId, edge: Edge, with_model: bool = True) -> Send:
        """What this end says about an edge."""

    def _settled(self, peer: PeerId, edge: Edge) -> None:
        edge.acknowledged, edge.repeats = True, 0
        self.waiting.pop(peer, None)

    def _stored_edge(self, peer: PeerId) -> Persist:
        edge = self.edges[peer]
        stored = _StoredEdge(edge.version, edge.author, edge.weight, edge.size)
        return Persist(EDGE_KEY + peer, msgspec.msgpack.encode(stored))


def weights_of(edges: dict[PeerId, Edge], peers: list[PeerId]) -> Array:
    """The present weights to some peers, zero where there is no edge."""
    return np.array([edges[peer].weight if peer in edges else 0.0 for peer in peers])
