"""One user of the network, as a state machine.

Theory of operation
-------------------
A peer holds its samples (as margins of the base predictors), its model, and for every neighbour an edge: the agreed
weight, and a copy of the neighbour's model. It is driven from outside by three kinds of facts, each with the time:

- `act(action)`: make a model step, or a graph step with a given batch of peers, or leave;
- `receive(sender, message)`;
- `on_timer()`, at or after `deadline`; `on_unreachable(peer)`, when the transport has given a peer up.

Each returns effects in the order in which they must be carried out. Nothing else happens: the same facts give the same
effects and the same state, so a journal of facts replays a peer bit for bit.

*Models.* A step changes the model by one move; the move goes to all neighbours with the next sequence number. A
neighbour that has missed one asks for a snapshot; repeated and late moves are ignored. Each start of a peer has a new
epoch, so numbers never come back.

*Edges.* The weight of an edge has a version and an author, and the higher (version, author) wins at both ends. A peer
that changes a weight sends its `EdgeState` until it is acknowledged, or answered with a higher one. A peer without an
edge answers a move with the edge state it holds, which ends what the other end only believes in. At each graph step a
peer tells one neighbour in turn what it holds of their edge and the number of its model: whatever was lost for good
comes to light.

*Graph steps.* A step asks each peer of its batch for its state, waits for the replies or the time-out, and then solves
its block with those that answered.

*Strangers and liars.* What cannot be true is refused and counted; a peer that keeps saying such things
is ignored. Losses, degrees and sizes only influence the receiver's own weights, within bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np

from dada.core.compiled import Array
from dada.core.evidence import log_evidence
from dada.core.graph_steps import GRAPH_STEPS, LIPSCHITZ, exact_step, lipschitz_step, pair_cost
from dada.core.losses import GRAPH_LOSSES, loss_for_graph
from dada.core.model_steps import (
    ALL,
    LOCAL,
    REFRESH_EVERY,
    STEP_RULES,
    UserModel,
    add_change,
    add_to_pull,
    make_scratch,
    model_step,
    refresh_margins,
    squared_distance,
    step_size,
)
from dada.peer.config import PeerConfig
from dada.peer.copies import ImplausibleError, ModelCopy
from dada.peer.edges import Edge, Offences, Round, Sizes, Versions
from dada.peer.effects import Effect, Persist, Refused, Send
from dada.peer.messages import (
    EdgeAck,
    EdgeState,
    Goodbye,
    Hello,
    Message,
    ModelDelta,
    PeerId,
    Snapshot,
    SnapshotReply,
    SnapshotRequest,
    StateReply,
    StateRequest,
)

# A peer that has said this many impossible things is not listened to any more.
PATIENCE = 20
# Where the network vets, no neighbour can raise its weight above this many times that of the heaviest other one.
MOST_TIMES_OTHERS = 2.0
# Repeats of an edge state before the other end counts as gone.
MOST_REPEATS = 8
# Peers whose sample counts are remembered, whose offences, and with whom ended edges are.
MOST_SIZES, MOST_OFFENDERS, MOST_ENDED_EDGES = 1024, 1024, 512
EDGE_KEY = b"edge:"
LARGEST_DEGREE, LARGEST_SIZE, LARGEST_VERSION = 1e9, 10**9, 2**48


@dataclass(frozen=True)
class ModelStep:
    """Make one model update; `gamma` only for the rule "paper"."""

    gamma: float = -1.0


@dataclass(frozen=True)
class GraphStep:
    """Update the weights to a batch of peers."""

    batch: tuple[PeerId, ...]


@dataclass(frozen=True)
class ResetModel:
    """Start the model again from zero."""


@dataclass(frozen=True)
class Leave:
    """Say goodbye to all neighbours."""


Action = ModelStep | GraphStep | ResetModel | Leave


class _StoredModel(msgspec.Struct, array_like=True):
    snapshot: Snapshot
    own_updates: int


class _StoredEdge(msgspec.Struct, array_like=True):
    version: int
    author: bytes
    weight: float


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
    """

    def __init__(self, me: PeerId, A: Array, config: PeerConfig, largest_size: int = 1) -> None:
        if A.ndim != 2 or A.shape[0] < 1 or A.shape[1] != config.n_predictors:
            raise ValueError(f"A must have samples as rows and {config.n_predictors} columns, got shape {A.shape}")
        self.me, self.config = me, config
        self.size = int(A.shape[0])
        self.known_largest = max(largest_size, self.size)
        self.sizes = Sizes(config.trust_largest, MOST_SIZES)
        n = config.n_predictors
        self.model = ModelCopy.zero(n)
        self.user = UserModel(
            np.ascontiguousarray(A) if A.dtype == np.int8 else np.ascontiguousarray(A, np.float32),
            np.zeros(self.size, np.float32),
            self.model.alpha,
            np.zeros(n, np.float32),
            self.model.support,
            np.zeros(self.size, np.float32),
        )
        self.own_updates = 0
        self.degree = 0.0
        self._pulling_degree = 0.0
        self.stale = True
        self.edges: dict[PeerId, Edge] = {}
        self.round: Round | None = None
        self.rounds = 0
        self._looked_after = b""
        self._versions = Versions()
        self.waiting: dict[PeerId, float] = {}
        self.offences = Offences(PATIENCE, MOST_OFFENDERS)
        self.bits_counted = np.zeros(3, np.int64)
        self._settings = config.settings
        self._regularizer = config.regularizer.compiled
        self._rule = STEP_RULES[config.step]
        self._scratch = make_scratch(n, self.size, np.dtype(np.float32))
        self._heaviest = config.heaviest_weight
        self._evidence_of_nothing = self._evidence(self.model)

    # -- what can be read ------------------------------------------------------------------------------------------

    @property
    def neighbours(self) -> list[PeerId]:
        """Peers with a positive weight, in ascending order of ids."""
        return sorted(peer for peer, edge in self.edges.items() if edge.weight > 0.0)

    @property
    def reference_size(self) -> int:
        """The largest number of samples heard of, those left out that the network does not trust."""
        return max(self.known_largest, self.sizes.largest)

    @property
    def confidence(self) -> float:
        """c_k = m_k / max m_l."""
        return self.size / self.reference_size

    @property
    def loss(self) -> float:
        """The loss that this peer reports to those who ask."""
        kind = GRAPH_LOSSES[self.config.graph_loss]
        return float(loss_for_graph(kind, self._settings.loss, self.user.margins, self._scratch.eta))

    @property
    def deadline(self) -> float:
        """When `on_timer` should next be called; infinity if nothing waits."""
        repeat = min(self.waiting.values(), default=math.inf)
        return repeat if self.round is None else min(repeat, self.round.deadline)

    def neighbours_pull(self) -> tuple[float, Array]:
        """Sum of the weights of those neighbours whose models are known, and the weighted sum of these models."""
        pull = np.zeros_like(self.user.pull)
        return self._sum_models(pull), pull

    def decision_values(self, predictions: Array) -> Array:
        """The model's value for samples given as base predictions."""
        return predictions.astype(np.float64) @ self.model.alpha.astype(np.float64)

    # -- life ------------------------------------------------------------------------------------------------------

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take up what `Persist` effects have stored; call before `start`."""
        if b"model" in records:
            stored = msgspec.msgpack.decode(records[b"model"], type=_StoredModel)
            self._adopt_own(ModelCopy.from_snapshot(stored.snapshot, self.config.n_predictors, self.config.beta))
            self.own_updates = stored.own_updates
        if b"epoch" in records:
            self.model.epoch = int.from_bytes(records[b"epoch"], "big")
        for key, value in records.items():
            if key.startswith(EDGE_KEY):
                edge = msgspec.msgpack.decode(value, type=_StoredEdge)
                self.edges[key.removeprefix(EDGE_KEY)] = Edge(
                    edge.weight, edge.version, edge.author, acknowledged=False
                )
        self.degree = self._summed_degree()

    def start(self, now: float) -> list[Effect]:
        """Begin a new epoch; neighbours of an earlier life are asked for their models."""
        self.model.epoch, self.model.sequence = self.model.epoch + 1, 0
        self._versions.begin(self.model.epoch)
        effects: list[Effect] = [Persist(b"epoch", self.model.epoch.to_bytes(8, "big"))]
        for peer in self.neighbours:
            effects.append(Send(peer, SnapshotRequest()))
            effects += self._announce(peer, self.edges[peer], now)
        return effects

    def hello(self) -> Hello:
        """What this peer says first on a connection."""
        return Hello(self.config.digest, self.model.epoch)

    def act(self, action: Action, now: float) -> list[Effect]:
        """Do what the planner decided."""
        if isinstance(action, ModelStep):
            return self._model_step(action.gamma)
        if isinstance(action, GraphStep):
            return self._begin_round(action.batch, now)
        if isinstance(action, ResetModel):
            self._adopt_own(ModelCopy.zero(self.config.n_predictors))
            self.own_updates = 0
            return [self._stored_model(), *self._to_neighbours(SnapshotReply(self.model.snapshot()))]
        return list(self._to_neighbours(Goodbye()))

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
        """The transport has given a peer up: forget its edge, and say so should it come back."""
        edge = self.edges.get(peer)
        if edge is None:
            return []
        self.waiting.pop(peer, None)
        edge.repeats = 0
        if edge.weight == 0.0:
            return []
        edge.acknowledged = False
        return self._set_edge(peer, edge, 0.0, self._versions.after(edge.version), self.me)

    # -- messages --------------------------------------------------------------------------------------------------

    def receive(self, sender: PeerId, message: Message, now: float) -> list[Effect]:
        """Answer a message. What cannot be true is refused, and changes nothing."""
        if self.offences.is_ignored(sender) or sender == self.me:
            return [Refused(sender, "ignored: too many implausible messages")]
        try:
            if isinstance(message, ModelDelta):
                return self._on_delta(sender, message, now)
            if isinstance(message, StateRequest):
                return [Send(sender, self._state(message.round))]
            if isinstance(message, StateReply):
                return self._on_state(sender, message, now)
            if isinstance(message, EdgeState):
                return self._on_edge(sender, message, now)
            if isinstance(message, EdgeAck):
                return self._on_ack(sender, message, now)
            if isinstance(message, SnapshotRequest):
                return [Send(sender, SnapshotReply(self.model.snapshot()))]
            if isinstance(message, SnapshotReply):
                return self._on_snapshot(sender, message.snapshot)
            if isinstance(message, Hello):
                return self._on_hello(sender, message, now)
            if isinstance(message, Goodbye):
                return self.on_unreachable(sender, now)
        except ImplausibleError as error:
            return self._offended(sender, str(error), now)
        return [Refused(sender, f"no peer core answers a {type(message).__name__}")]

    def _offended(self, sender: PeerId, reason: str, now: float) -> list[Effect]:
        effects: list[Effect] = [Refused(sender, reason)]
        if self.offences.add(sender):
            effects += self.on_unreachable(sender, now)
        return effects

    def _on_hello(self, sender: PeerId, hello: Hello, now: float) -> list[Effect]:
        if hello.problem != self.config.digest:
            raise ImplausibleError("works on another learning problem")
        edge = self.edges.get(sender)
        if edge is None or edge.weight == 0.0:
            return []
        # The other end is new, or has come back: let both compare what they hold of the edge.
        return self._announce(sender, edge, now)

    def _on_delta(self, sender: PeerId, delta: ModelDelta, now: float) -> list[Effect]:
        edge = self.edges.get(sender)
        if edge is None or edge.weight == 0.0:
            return [self._edge_state(sender, edge if edge is not None else Edge())]
        copy = edge.copy
        if copy is not None and (delta.epoch, delta.sequence) <= copy.number:
            return []
        if copy is None or delta.epoch != copy.epoch or delta.sequence != copy.sequence + 1:
            return self._ask_snapshot(sender, edge, now)
        try:
            n_changed = copy.follow(delta, self.config.beta, self._scratch)
        except ImplausibleError:
            edge.copy, self.stale = None, True
            raise
        if not self.stale:
            add_change(self.user.pull, edge.weight, n_changed, self._scratch)
        return []

    def _on_snapshot(self, sender: PeerId, snapshot: Snapshot) -> list[Effect]:
        edge = self.edges.get(sender)
        if edge is not None and edge.weight > 0.0:
            self._take_copy(edge, ModelCopy.from_snapshot(snapshot, self.config.n_predictors, self.config.beta))
        return []

    def _on_state(self, sender: PeerId, reply: StateReply, now: float) -> list[Effect]:
        waiting = self.round
        if waiting is None or reply.round != waiting.number or sender not in waiting.batch:
            return []
        if not (-self.config.beta - 1.0 <= reply.loss < math.inf):
            raise ImplausibleError(f"a loss of {reply.loss}")
        if not 0.0 <= reply.degree <= LARGEST_DEGREE:
            raise ImplausibleError(f"a degree of {reply.degree}")
        if not 1 <= reply.size <= LARGEST_SIZE:
            raise ImplausibleError(f"{reply.size} samples")
        ModelCopy.from_snapshot(reply.snapshot, self.config.n_predictors, self.config.beta)
        waiting.replies[sender] = reply
        self.sizes.note(sender, reply.size)
        return self._finish_round(now) if len(waiting.replies) == len(waiting.batch) else []

    def _on_edge(self, sender: PeerId, state: EdgeState, now: float) -> list[Effect]:
        if not (0.0 <= state.weight <= self._heaviest and 0 <= state.version <= LARGEST_VERSION):
            raise ImplausibleError(f"an edge of weight {state.weight}, version {state.version}")
        if state.version > 0 and state.author not in (sender, self.me):
            raise ImplausibleError("an edge changed by a third party")
        edge = self.edges.get(sender, Edge())
        if (state.version, state.author) < edge.rank:
            return [self._edge_state(sender, edge)]
        if (state.version, state.author) == edge.rank:
            self._settled(sender, edge)
            return [self._ack(sender, edge)] if state.version > 0 else []
        copy = None
        if state.snapshot is not None:
            copy = ModelCopy.from_snapshot(state.snapshot, self.config.n_predictors, self.config.beta)
        if self.config.vet and state.weight > 0.0 and copy is None and edge.copy is None:
            # A model that is not known cannot be judged; the other end repeats itself, and then brings it along.
            return []
        agreed = self._agreed_weight(sender, edge, state.weight, copy if copy is not None else edge.copy)
        if agreed == 0.0 and state.weight > 0.0 and edge.weight == 0.0:
            return self._refuse_edge(sender, state)
        effects: list[Effect] = self._make_room(now) if edge.weight == 0.0 and agreed > 0.0 else []
        self.edges[sender] = edge
        if copy is not None and agreed > 0.0:
            self._take_copy(edge, copy)
        if agreed != state.weight:
            effects += self._set_edge(sender, edge, agreed, self._versions.after(state.version), self.me)
            return [*effects, *self._announce(sender, edge, now)]
        effects += self._set_edge(sender, edge, agreed, state.version, state.author)
        self._settled(sender, edge)
        effects.append(self._ack(sender, edge))
        if edge.weight > 0.0 and edge.copy is None:
            effects += self._ask_snapshot(sender, edge, now)
        return effects

    def _agreed_weight(self, peer: PeerId, edge: Edge, weight: float, copy: ModelCopy | None) -> float:
        """The part of another end's weight that this end agrees to. Whoever wants less always gets it."""
        if weight <= edge.weight:
            return weight
        if edge.weight == 0.0 and self._is_full(weight):
            return 0.0
        if not self.config.vet:
            return weight
        if copy is None or not self._passes(copy):
            return 0.0
        # One who claims more than all others must convince this peer's own steps first.
        others = [held.weight for other, held in self.edges.items() if other != peer and held.weight > 0.0]
        return min(weight, max(edge.weight, MOST_TIMES_OTHERS * max(others))) if others else weight

    def _refuse_edge(self, sender: PeerId, state: EdgeState) -> list[Effect]:
        """Answer a new edge with its end. Should the answer be lost, the other end asks again: no timer is needed."""
        edge = self.edges.setdefault(sender, Edge())
        effects = self._set_edge(sender, edge, 0.0, self._versions.after(state.version), self.me)
        edge.acknowledged = False
        return [*effects, self._edge_state(sender, edge)]

    def _on_ack(self, sender: PeerId, ack: EdgeAck, now: float) -> list[Effect]:
        edge = self.edges.get(sender, Edge())
        if (ack.version, ack.author) != edge.rank:
            # Whoever is behind learns it from the answer: the sender at once, this peer from the sender's reply to it.
            return [self._edge_state(sender, edge)]
        self._settled(sender, edge)
        if edge.weight > 0.0 and (edge.copy is None or edge.copy.number < (ack.epoch, ack.sequence)):
            return self._ask_snapshot(sender, edge, now)
        return []

    # -- models ----------------------------------------------------------------------------------------------------

    def _model_step(self, gamma: float) -> list[Effect]:
        is_due = self.own_updates % REFRESH_EVERY == REFRESH_EVERY - 1
        if is_due or self.stale:
            self._refresh_pull()
        if is_due:
            refresh_margins(self.user, self.model.n_support)
        if self._rule == LOCAL:
            gamma = step_size(LOCAL, 0, 0, self.own_updates)
        move, n_support, n_changed = model_step(
            self._rule,
            self._settings,
            self.confidence,
            self._pulling_degree,
            self.user,
            self.model.n_support,
            gamma,
            self._scratch,
        )
        self.model.n_support = n_support
        self.own_updates += 1
        if n_changed == 0:
            return []
        self.model.sequence += 1
        delta = ModelDelta(
            *self.model.number, int(move.j), move.toward > 0, int(move.away), float(move.gamma), bool(move.takes_all)
        )
        sends = self._to_neighbours(delta)
        self.bits_counted += np.array([1, 1, 1 if move.away == ALL else 2]) * len(sends)
        return [self._stored_model(), *sends]

    def _refresh_pull(self) -> None:
        self.degree = self._summed_degree()
        self.user.pull[:] = 0
        self._pulling_degree = self._sum_models(self.user.pull)
        self.stale = False

    def _sum_models(self, pull: Array) -> float:
        """Add the neighbours' weighted models to zeros; returns the sum of the weights."""
        total = 0.0
        for peer in self.neighbours:
            edge = self.edges[peer]
            # A neighbour whose model is unknown pulls nowhere; after a restart it may never come.
            if edge.copy is not None:
                copy = edge.copy
                add_to_pull(pull, edge.weight, copy.alpha, copy.support, copy.n_support)
                total += edge.weight
        return total

    def _summed_degree(self) -> float:
        total = 0.0
        for peer in self.neighbours:
            total += self.edges[peer].weight
        return total

    def _adopt_own(self, model: ModelCopy) -> None:
        """Replace the values of the own model, in place, and all that follows from them."""
        self.model.alpha[:], self.model.support[:] = model.alpha, model.support
        self.model.n_support, self.model.sequence = model.n_support, self.model.sequence + 1
        refresh_margins(self.user, self.model.n_support)
        self.stale = True

    def _take_copy(self, edge: Edge, copy: ModelCopy) -> None:
        if edge.copy is None or edge.copy.number < copy.number:
            edge.copy = copy
            edge.snapshot_asked = -math.inf
            self.stale = True

    def _ask_snapshot(self, peer: PeerId, edge: Edge, now: float) -> list[Effect]:
        if now - edge.snapshot_asked < self.config.reply_timeout_s:
            return []
        edge.snapshot_asked = now
        return [Send(peer, SnapshotRequest())]

    def _to_neighbours(self, message: Message) -> list[Effect]:
        return [Send(peer, message) for peer in self.neighbours]

    # -- graph -----------------------------------------------------------------------------------------------------

    def _state(self, number: int) -> StateReply:
        return StateReply(number, self.model.snapshot(), self.loss, self.degree, self.size)

    def _begin_round(self, batch: tuple[PeerId, ...], now: float) -> list[Effect]:
        effects = self._finish_round(now) if self.round is not None else []
        peers = tuple(peer for peer in dict.fromkeys(batch) if peer != self.me and not self.offences.is_ignored(peer))
        effects += self._end_bad_edges(now)
        effects += self._look_after_a_neighbour()
        if not peers:
            return effects
        self.rounds += 1
        self.round = Round(self.rounds, peers, now + self.config.reply_timeout_s)
        return effects + [Send(peer, StateRequest(self.rounds)) for peer in peers]

    def _end_bad_edges(self, now: float) -> list[Effect]:
        """End the edges to those whose models do harm by now; they may have been better when they were let in."""
        effects: list[Effect] = []
        for peer in self.neighbours if self.config.vet else ():
            copy = self.edges[peer].copy
            if copy is not None and not self._passes(copy):
                effects += self._propose(peer, copy, 0.0, now)
        return effects

    def _look_after_a_neighbour(self) -> list[Effect]:
        """Tell one neighbour in turn what this end holds, so that whatever was lost comes to light in the end."""
        neighbours = self.neighbours
        if not neighbours:
            return []
        self._looked_after = next((peer for peer in neighbours if peer > self._looked_after), neighbours[0])
        return [self._ack(self._looked_after, self.edges[self._looked_after])]

    def _finish_round(self, now: float) -> list[Effect]:
        """Solve the block of those who answered (Eq. 5) and tell them their new weights."""
        assert self.round is not None
        batch, replies, self.round = self.round.batch, self.round.replies, None
        peers, models, cost, rejected = [], [], [], []
        own_loss = self.confidence * self.loss
        for peer in (peer for peer in batch if peer in replies):
            reply = replies[peer]
            copy = ModelCopy.from_snapshot(reply.snapshot, self.config.n_predictors, self.config.beta)
            self.bits_counted += np.array([2, 3 + copy.n_support, copy.n_support])
            if not self._passes(copy):
                rejected.append((peer, copy))
                continue
            dist2 = squared_distance(
                self._settings.coupling, self.model.alpha, self.model.support, self.model.n_support,
                copy.alpha, copy.support, copy.n_support,
            )  # fmt: skip
            loss = min(1.0, reply.size / self.reference_size) * reply.loss
            peers.append(peer)
            models.append(copy)
            cost.append(pair_cost(own_loss, loss, self.config.mu1, dist2))
        effects: list[Effect] = []
        for peer, copy in rejected:
            effects += self._propose(peer, copy, 0.0, now)
        if not peers:
            return effects
        w = np.array([self.edges[peer].weight if peer in self.edges else 0.0 for peer in peers])
        degrees = np.array([replies[peer].degree for peer in peers])
        new = np.empty(len(peers))
        step = lipschitz_step if GRAPH_STEPS[self.config.graph_step] == LIPSCHITZ else exact_step
        step(self._regularizer, self.config.graph_mu, np.array(cost), w, degrees, self.degree, new)
        if self.config.damping < 1.0:
            new = w + self.config.damping * (new - w)
        for peer, copy, weight in zip(peers, models, new.tolist(), strict=True):
            effects += self._propose(peer, copy, weight, now)
        return effects

    def _propose(self, peer: PeerId, copy: ModelCopy, weight: float, now: float) -> list[Effect]:
        edge = self.edges.get(peer, Edge())
        if weight == edge.weight:
            return []
        effects: list[Effect] = []
        if edge.weight == 0.0:
            if self._is_full(weight):
                return []
            effects = self._make_room(now)
        self.edges[peer] = edge
        is_new = edge.weight == 0.0
        effects += self._set_edge(peer, edge, weight, self._versions.after(edge.version), self.me)
        if weight > 0.0:
            self._take_copy(edge, copy)
        return [*effects, *self._announce(peer, edge, now, with_model=is_new)]

    def _set_edge(self, peer: PeerId, edge: Edge, weight: float, version: int, author: PeerId) -> list[Effect]:
        change = weight - edge.weight
        edge.weight, edge.version, edge.author = weight, version, author
        if change != 0.0:
            self.stale = True
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
        for peer in forgotten:
            del self.edges[peer]
            self.waiting.pop(peer, None)
        return [Persist(EDGE_KEY + peer, b"") for peer in forgotten]

    def _announce(
        self, peer: PeerId, edge: Edge, now: float, repeats: int = 0, with_model: bool = True
    ) -> list[Effect]:
        """Send an edge's state, and again later unless it is acknowledged."""
        edge.repeats, edge.acknowledged = repeats, False
        self.waiting[peer] = now + self.config.reply_timeout_s * 2.0 ** min(repeats, 4)
        return [self._edge_state(peer, edge, with_model)]

    def _edge_state(self, peer: PeerId, edge: Edge, with_model: bool = True) -> Send:
        snapshot = self.model.snapshot() if with_model and edge.weight > 0.0 else None
        return Send(peer, EdgeState(edge.version, edge.author, edge.weight, snapshot))

    def _ack(self, peer: PeerId, edge: Edge) -> Send:
        return Send(peer, EdgeAck(*edge.rank, *self.model.number))

    def _settled(self, peer: PeerId, edge: Edge) -> None:
        edge.acknowledged, edge.repeats = True, 0
        self.waiting.pop(peer, None)

    def _passes(self, copy: ModelCopy) -> bool:
        """Whether a model is no worse than none on this peer's own samples, where the network vets."""
        if not self.config.vet or copy.n_support == 0:
            return True
        return self._evidence(copy) >= self._evidence_of_nothing

    def _evidence(self, copy: ModelCopy) -> float:
        return float(log_evidence(1.0, self._settings.loss, self.user, copy.alpha, copy.support, copy.n_support, 1))

    def _lightest(self) -> PeerId:
        return min(self.neighbours, key=lambda peer: self.edges[peer].weight)

    def _is_full(self, weight: float) -> bool:
        """Whether bounded lists have no place for a new edge of this weight."""
        most = self.config.max_neighbours
        if most is None or len(self.neighbours) < most:
            return False
        return self.edges[self._lightest()].weight >= weight

    def _make_room(self, now: float) -> list[Effect]:
        most = self.config.max_neighbours
        if most is None or len(self.neighbours) < most:
            return []
        peer = self._lightest()
        edge = self.edges[peer]
        effects = self._set_edge(peer, edge, 0.0, self._versions.after(edge.version), self.me)
        return [*effects, *self._announce(peer, edge, now)]

    # -- storage ---------------------------------------------------------------------------------------------------

    def _stored_model(self) -> Persist:
        return Persist(b"model", msgspec.msgpack.encode(_StoredModel(self.model.snapshot(), self.own_updates)))

    def _stored_edge(self, peer: PeerId) -> Persist:
        edge = self.edges[peer]
        return Persist(EDGE_KEY + peer, msgspec.msgpack.encode(_StoredEdge(edge.version, edge.author, edge.weight)))
