"""One user of the network, as a state machine.

Theory of operation
-------------------
A peer holds its samples (as margins of the base predictors), its model, and an edge to every neighbour: a weight and a
copy of the neighbour's model. A driver hands it facts (see `dada.peer.inputs`), each with its time: the peer's planner
decided on a step, a message arrived, the deadline passed, another peer is unreachable. `Peer.handle` returns effects in
the order in which they must be carried out. Nothing else happens: the same facts give the same effects and the same
state, so a journal of facts replays a peer bit for bit.

*Models.* A step changes the model by one move; the move goes to all followers with the next sequence number. A receiver
that has missed one asks for a snapshot; repeated and late moves are ignored. Each start of a peer has a new epoch, so
numbers never repeat.

*Lives.* A peer that returns with an old epoch learns the highest one from its neighbours and takes a larger one. Two
processes with one identity are noticed in the same way, by themselves and by their neighbours.

*Edges.* The neighbourhood decides on weights, and on who must agree to them: the paper's graph
(`dada.peer.distance_graph`) or the evidence graph (`dada.peer.evidence_graph`).

*Strangers and liars.* Implausible messages are refused and counted; a peer that keeps sending them is ignored. An error
while one message is handled costs that message and counts as an offence of its sender: `Peer.handle` never raises for a
`Received`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from dada.core.bits import move_cost
from dada.core.compiled import Array
from dada.core.model_steps import ALL
from dada.peer.config import PeerConfig
from dada.peer.distance_graph import DistanceGraph
from dada.peer.edges import Lives, Offences, PeerEdges, Rounds, Sizes
from dada.peer.evidence_graph import EvidenceGraph
from dada.peer.inputs import (
    Effect,
    Fact,
    Failed,
    GraphStep,
    Leave,
    ModelStep,
    Received,
    Refused,
    ResetModel,
    Restored,
    Send,
    Started,
    TimerFired,
    Warned,
)
from dada.peer.messages import (
    EpochSeen,
    Goodbye,
    Hello,
    Message,
    ModelDelta,
    PeerId,
    SnapshotReply,
    SnapshotRequest,
    epoch_of,
)
from dada.peer.model import ImplausibleError, OwnModel

# Implausible messages after which a peer is ignored.
PATIENCE = 20
# Peers whose offences are remembered, and peers whose epochs are.
MOST_OFFENDERS, MOST_EPOCHS = 1024, 4096


class Neighbourhood(Protocol):
    """The rule by which a peer chooses its neighbours.

    Attributes
    ----------
    bits_counted : array of shape (3,)
        Messages, floats and indices sent, in the paper's count.
    """

    edges: PeerEdges
    rounds: Rounds
    sizes: Sizes
    bits_counted: Array

    @property
    def followers(self) -> list[PeerId]:
        """Peers that learn from this one, in ascending order of ids: they are sent its moves."""

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take over what an earlier life stored."""

    def start(self, now: float) -> list[Effect]:
        """Begin a life, whose epoch the model has."""

    def begin_round(self, batch: tuple[PeerId, ...], now: float) -> list[Effect]:
        """Begin a graph step."""

    def on_timer(self, now: float) -> list[Effect]:
        """End a graph step that waited long enough; repeat what was not acknowledged."""

    def on_hello(self, sender: PeerId, now: float) -> list[Effect]:
        """A peer is new, or has come back."""

    def on_unreachable(self, peer: PeerId) -> list[Effect]:
        """A peer is gone."""

    def receive(self, sender: PeerId, message: Message, now: float) -> list[Effect] | None:
        """Answer a message about edges, or a move of a peer that is no neighbour; None for messages of another rule."""


NEIGHBOURHOODS: dict[str, Callable[[PeerId, OwnModel, int], Neighbourhood]] = {
    "distance": DistanceGraph,
    "evidence": EvidenceGraph,
}


class Peer:
    """The state machine of one user; see the top of this file.

    Parameters
    ----------
    me : bytes
        This peer's id. Ids are ordered: neighbours' models are summed in ascending order of ids.
    A : array of shape (samples, n_predictors)
        Margins y_i h_j(x_i) of the user's own samples.
    config : PeerConfig
        What the network agreed on.
    largest_size : int
        The largest number of samples of any user, if it is known beforehand.

    Attributes
    ----------
    own : OwnModel
        The model and the samples.
    neighbourhood : Neighbourhood
        The rule for neighbours, and the graph step under way.
    edges : PeerEdges
        Those of the neighbourhood.

    Examples
    --------
    >>> peer = Peer(b"me", np.array([[1, -1], [1, 1]], np.int8), PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> [type(effect).__name__ for effect in peer.handle(GraphStep(0.0, batch=(b"you",)))]
    ['Send']
    >>> peer.deadline
    2.0
    """

    def __init__(self, me: PeerId, A: Array, config: PeerConfig, largest_size: int = 1) -> None:
        self.me, self.config = me, config
        self.own = OwnModel(A, config)
        self.neighbourhood = NEIGHBOURHOODS[config.graph](me, self.own, largest_size)
        self.edges = self.neighbourhood.edges
        self.offences = Offences(PATIENCE, MOST_OFFENDERS)
        self.lives = Lives(MOST_EPOCHS)

    @property
    def deadline(self) -> float:
        """When `TimerFired` is due; infinity if nothing waits."""
        return min(self.edges.deadline, self.neighbourhood.rounds.deadline)

    def hello(self) -> Hello:
        """The first message on a connection."""
        return Hello(self.config.digest, self.own.model.epoch, self.lives.life)

    def handle(self, fact: Fact) -> list[Effect]:
        """Respond to a fact."""
        if isinstance(fact, Received):
            return self._receive(fact.sender, fact.message, fact.now)
        if isinstance(fact, ModelStep):
            return self._step_model(fact.gamma)
        if isinstance(fact, GraphStep):
            batch = [peer for peer in fact.batch if peer != self.me and not self.offences.is_ignored(peer)]
            return self.neighbourhood.begin_round(tuple(dict.fromkeys(batch)), fact.now)
        if isinstance(fact, TimerFired):
            return self.neighbourhood.on_timer(fact.now)
        if isinstance(fact, Started):
            self.lives.begin(fact.life)
            return [self.own.begin_epoch(), *self.neighbourhood.start(fact.now)]
        if isinstance(fact, Restored):
            self.own.restore(fact.records)
            self.neighbourhood.restore(fact.records)
            return []
        if isinstance(fact, ResetModel):
            self.own.reset()
            return [self.own.record(), *self._to_followers(SnapshotReply(self.own.model.snapshot()))]
        if isinstance(fact, Leave):
            linked = sorted({*self.edges.neighbours, *self.neighbourhood.followers})
            return [Send(peer, Goodbye()) for peer in linked]
        return self.neighbourhood.on_unreachable(fact.peer)

    def _step_model(self, gamma: float) -> list[Effect]:
        if self.own.is_refresh_due:
            self.edges.sum_degree()
            self.own.refresh(self.edges.models())
        delta = self.own.step(gamma, self.neighbourhood.sizes.confidence)
        if delta is None:
            return []
        sends = self._to_followers(delta)
        self.neighbourhood.bits_counted += np.multiply(move_cost(1 if delta.away == ALL else 2), len(sends))
        return [self.own.record(), *sends]

    def _to_followers(self, message: Message) -> list[Effect]:
        return [Send(peer, message) for peer in self.neighbourhood.followers]

    # -- messages --------------------------------------------------------------------------------------------------

    def _receive(self, sender: PeerId, message: Message, now: float) -> list[Effect]:
        """Answer a message. An implausible one is refused, and changes nothing."""
        if self.offences.is_ignored(sender) or sender == self.me:
            return [Refused(sender, "ignored: too many implausible messages")]
        try:
            effects = self._answer(sender, message, now)
        except ImplausibleError as error:
            return [Refused(sender, str(error)), *self.offend(sender)]
        except Exception as error:
            reason = f"{type(message).__name__} raised {type(error).__name__}: {error}"
            return [Failed(sender, reason), *self.offend(sender)]
        if effects is None:
            return [Refused(sender, f"no peer of this network answers a {type(message).__name__}")]
        return effects

    def offend(self, sender: PeerId) -> list[Effect]:
        """Count an offence of a peer; after too many, its edge ends and it is ignored."""
        return self.neighbourhood.on_unreachable(sender) if self.offences.add(sender) else []

    def _answer(self, sender: PeerId, message: Message, now: float) -> list[Effect] | None:
        epoch = epoch_of(message)
        if epoch is not None:
            seen = self.lives.older(sender, epoch, message.life if isinstance(message, Hello) else b"")
            if seen is not None:
                reason = (
                    f"epoch {epoch} after epoch {seen}: an old state of this peer, or two processes with its identity"
                )
                return [Refused(sender, reason), Send(sender, EpochSeen(seen, self.lives.life_of(sender)))]
        if isinstance(message, EpochSeen):
            return self._on_epoch(sender, message, now)
        if isinstance(message, ModelDelta) and self.edges.has_neighbour(sender):
            return self.edges.apply_delta(sender, message, now)
        if isinstance(message, SnapshotRequest):
            return [Send(sender, SnapshotReply(self.own.model.snapshot()))]
        if isinstance(message, SnapshotReply):
            return self.edges.receive_snapshot(sender, message.snapshot)
        if isinstance(message, Goodbye):
            return self.neighbourhood.on_unreachable(sender)
        if isinstance(message, Hello):
            if message.problem != self.config.digest:
                raise ImplausibleError("works on another learning problem")
            return self.neighbourhood.on_hello(sender, now)
        return self.neighbourhood.receive(sender, message, now)

    def _on_epoch(self, sender: PeerId, seen: EpochSeen, now: float) -> list[Effect]:
        """Another life of this peer was seen with a higher epoch, or with the same one."""
        own = self.own.model.epoch
        is_other_life = seen.epoch == own and seen.life and seen.life != self.lives.life
        if seen.epoch < own or not (seen.epoch > own or is_other_life):
            return []
        if not self.lives.is_rollback(sender, seen.epoch, own):
            text = (
                f"epoch {seen.epoch} of this peer was seen, it has {own}: another process uses its identity. Stop one."
            )
            return [Warned(text)]
        text = f"epoch {seen.epoch} of this peer was seen, it had {own}: an old state was restored, or another process"
        effects: list[Effect] = [Warned(f"{text} uses its identity"), self.own.begin_epoch(seen.epoch)]
        effects += self.neighbourhood.start(now)
        return [*effects, *self._to_followers(SnapshotReply(self.own.model.snapshot()))]
