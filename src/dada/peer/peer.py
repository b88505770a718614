"""One user of the network, as a state machine.

Theory of operation
-------------------
A peer holds its samples (as margins of the base predictors), its model, and for every neighbour an edge: a weight, and
a copy of the neighbour's model. It is driven from outside by three kinds of facts, each with the time:

- `act(action)`: make a model step, or a graph step with a given batch of peers, or leave;
- `receive(sender, message)`;
- `on_timer()`, at or after `deadline`; `on_unreachable(peer)`, when the transport has given a peer up.

Each returns effects in the order in which they must be carried out. Nothing else happens: the same facts give the same
effects and the same state, so a journal of facts replays a peer bit for bit.

*Models.* A step changes the model by one move; the move goes to all who learn from it with the next sequence number. A
receiver that has missed one asks for a snapshot; repeated and late moves are ignored. Each start of a peer has a new
epoch, so numbers never come back.

*Edges.* Which weights a peer has, and who must agree to them, is the business of its neighbourhood: the paper's graph
(`dada.peer.distance_graph`) or the evidence graph (`dada.peer.evidence_graph`).

*Strangers and liars.* What cannot be true is refused and counted; a peer that keeps saying such things is ignored.
"""

from __future__ import annotations

import numpy as np

from dada.core.compiled import Array
from dada.core.model_steps import ALL, UserModel
from dada.peer.config import PeerConfig
from dada.peer.distance_graph import SharedEdges
from dada.peer.edges import Edge, Neighbourhood, Offences, Round, Sizes
from dada.peer.evidence_graph import Following
from dada.peer.inputs import Action, Effect, GraphStep, ModelStep, Refused, ResetModel, Send
from dada.peer.messages import (
    Goodbye,
    Hello,
    Message,
    ModelDelta,
    PeerId,
    SnapshotReply,
    SnapshotRequest,
    StateRequest,
)
from dada.peer.model import ImplausibleError, ModelCopy, OwnModel, add_models

# A peer that has said this many impossible things is not listened to any more.
PATIENCE = 20
# Peers whose offences are remembered.
MOST_OFFENDERS = 1024

NEIGHBOURHOODS: dict[str, type[Neighbourhood]] = {"distance": SharedEdges, "evidence": Following}


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
        The largest number of samples of any user, where it is known beforehand.

    Examples
    --------
    >>> peer = Peer(b"me", np.array([[1, -1], [1, 1]], np.int8), PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> [type(effect).__name__ for effect in peer.act(GraphStep((b"you",)), now=0.0)]
    ['Send']
    >>> peer.deadline
    2.0
    """

    def __init__(self, me: PeerId, A: Array, config: PeerConfig, largest_size: int = 1) -> None:
        self.me, self.config = me, config
        self.own = OwnModel(A, config)
        self.neighbourhood = NEIGHBOURHOODS[config.graph](me, self.own, largest_size)
        self.offences = Offences(PATIENCE, MOST_OFFENDERS)

    # -- what can be read ------------------------------------------------------------------------------------------

    @property
    def model(self) -> ModelCopy:
        """The model, and its number."""
        return self.own.model

    @property
    def user(self) -> UserModel:
        """Samples, margins and pull, as the kernels take them."""
        return self.own.user

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.own.size

    @property
    def own_updates(self) -> int:
        """Model steps since the model was zero."""
        return self.own.updates

    @property
    def loss(self) -> float:
        """The loss on the own samples."""
        return self.own.loss

    @property
    def edges(self) -> dict[PeerId, Edge]:
        """What is held of others, ended edges among them."""
        return self.neighbourhood.edges

    @property
    def neighbours(self) -> list[PeerId]:
        """Those this peer learns from, in ascending order of ids."""
        return self.neighbourhood.neighbours

    @property
    def listeners(self) -> list[PeerId]:
        """Those who learn from this peer, in ascending order of ids."""
        return self.neighbourhood.listeners

    @property
    def degree(self) -> float:
        """Sum of the weights."""
        return self.neighbourhood.degree

    @property
    def confidence(self) -> float:
        """c_k = m_k / max m_l."""
        return self.neighbourhood.confidence

    @property
    def known_largest(self) -> int:
        """The largest number of samples known beforehand."""
        return self.neighbourhood.known_largest

    @property
    def sizes(self) -> Sizes:
        """How many samples others say they have."""
        return self.neighbourhood.sizes

    @property
    def waiting(self) -> dict[PeerId, float]:
        """When what was said about an edge will be repeated."""
        return self.neighbourhood.waiting

    @property
    def round(self) -> Round | None:
        """The graph step that waits for replies."""
        return self.neighbourhood.round

    @property
    def rounds(self) -> int:
        """Graph steps so far in this life."""
        return self.neighbourhood.rounds

    @property
    def bits_counted(self) -> Array:
        """Messages, floats and indices sent, in the paper's count."""
        return self.neighbourhood.bits_counted

    @property
    def deadline(self) -> float:
        """When `on_timer` should next be called; infinity if nothing waits."""
        return self.neighbourhood.deadline

    def neighbour_sum(self) -> tuple[float, Array]:
        """Sum of the weights of those neighbours whose models are known, and the weighted sum of these models."""
        neighbour_sum = np.zeros_like(self.user.neighbour_sum)
        return add_models(neighbour_sum, self.neighbourhood.models()), neighbour_sum

    # -- life ------------------------------------------------------------------------------------------------------

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take up what `Persist` effects have stored; call before `start`."""
        self.own.restore(records)
        self.neighbourhood.restore(records)

    def start(self, now: float) -> list[Effect]:
        """Begin a new epoch; neighbours of an earlier life are asked for their models."""
        return [self.own.begin_epoch(), *self.neighbourhood.start(now)]

    def hello(self) -> Hello:
        """What this peer says first on a connection."""
        return Hello(self.config.digest, self.model.epoch)

    def act(self, action: Action, now: float) -> list[Effect]:
        """Do what the planner decided."""
        if isinstance(action, ModelStep):
            return self._model_step(action.gamma)
        if isinstance(action, GraphStep):
            batch = tuple(peer for peer in action.batch if not self.offences.is_ignored(peer))
            return self.neighbourhood.begin_round(batch, now)
        if isinstance(action, ResetModel):
            self.own.reset()
            return [self.own.record(), *self._to_listeners(SnapshotReply(self.model.snapshot()))]
        return [Send(peer, Goodbye()) for peer in sorted({*self.neighbours, *self.listeners})]

    def _model_step(self, gamma: float) -> list[Effect]:
        if self.own.is_refresh_due:
            self.neighbourhood.sum_degree()
            self.own.refresh(self.neighbourhood.models())
        delta = self.own.step(gamma, self.confidence)
        if delta is None:
            return []
        sends = self._to_listeners(delta)
        self.neighbourhood.bits_counted += np.array([1, 1, 1 if delta.away == ALL else 2]) * len(sends)
        return [self.own.record(), *sends]

    def _to_listeners(self, message: Message) -> list[Effect]:
        return [Send(peer, message) for peer in self.listeners]

    def on_timer(self, now: float) -> list[Effect]:
        """Close a round that waited long enough; repeat what was not acknowledged."""
        return self.neighbourhood.on_timer(now)

    def on_unreachable(self, peer: PeerId, now: float) -> list[Effect]:
        """The transport has given a peer up: forget its edge, and say so should it come back."""
        return self.neighbourhood.on_unreachable(peer, now)

    # -- messages --------------------------------------------------------------------------------------------------

    def receive(self, sender: PeerId, message: Message, now: float) -> list[Effect]:
        """Answer a message. What cannot be true is refused, and changes nothing."""
        if self.offences.is_ignored(sender) or sender == self.me:
            return [Refused(sender, "ignored: too many implausible messages")]
        try:
            effects = self._answer(sender, message, now)
        except ImplausibleError as error:
            return self._offended(sender, str(error), now)
        if effects is None:
            return [Refused(sender, f"no peer of this network answers a {type(message).__name__}")]
        return effects

    def _answer(self, sender: PeerId, message: Message, now: float) -> list[Effect] | None:
        if isinstance(message, ModelDelta):
            return self.neighbourhood.on_delta(sender, message, now)
        if isinstance(message, StateRequest):
            return [Send(sender, self.neighbourhood.state(message.round))]
        if isinstance(message, SnapshotRequest):
            return [Send(sender, SnapshotReply(self.model.snapshot()))]
        if isinstance(message, SnapshotReply):
            return self.neighbourhood.on_snapshot(sender, message.snapshot)
        if isinstance(message, Goodbye):
            return self.neighbourhood.on_unreachable(sender, now)
        if isinstance(message, Hello):
            if message.problem != self.config.digest:
                raise ImplausibleError("works on another learning problem")
            return self.neighbourhood.on_hello(sender, now)
        return self.neighbourhood.hear(sender, message, now)

    def _offended(self, sender: PeerId, reason: str, now: float) -> list[Effect]:
        effects: list[Effect] = [Refused(sender, reason)]
        if self.offences.add(sender):
            effects += self.neighbourhood.on_unreachable(sender, now)
        return effects
