"""Graphs in which the two ends of an edge agree on its weight: the paper's graph, and a background graph.

The weight of an edge has a version and an author. The higher (version, author) wins at both ends. A peer that changes a
weight sends its `EdgeState` until it is acknowledged, or answered with a higher one. A peer without an edge answers a
change of a model with the edge state it holds, which ends an edge that only the other end still has.

If the network vets, a model that does harm on this peer's samples gets no edge, and no peer can claim far more weight
than others.

*The paper's graph.* A graph step asks each peer of its batch for its state, waits for the replies or the time-out, and
then solves its block with the replies. Reported losses, degrees and sizes only influence this peer's own proposals,
within bounds.

*A background graph*, for users who do not differ in kind: edges of weight 1 to a few random peers. Each peer asks for
half of its edges itself and accepts the other half, so that a network of any size stays connected with about ten edges
per peer. At a graph step a peer that lacks edges asks peers of its view for their models and numbers of samples, and
proposes an edge to those that reply. A lost edge is replaced at the next graph step.
"""

from __future__ import annotations

import math

import numpy as np

from dada.core.bits import Ledger, evidence_reply_cost, graph_reply_cost, weight_cost
from dada.core.graph_steps import GRAPH_STEPS, LIPSCHITZ, exact_step, lipschitz_step, pair_cost
from dada.peer.copies import SLACK, ModelCopy
from dada.peer.edges import Edge, PeerEdges, Rounds, Sizes
from dada.peer.inputs import Effect, Send
from dada.peer.messages import (
    EdgeAck,
    EdgeState,
    ImplausibleError,
    Message,
    ModelChange,
    ModelOffer,
    PeerId,
    StateReply,
    StateRequest,
)
from dada.peer.model import OwnModel

# If the network vets, no neighbour can raise its weight above this many times that of the heaviest other one.
MOST_TIMES_OTHERS = 2.0
LARGEST_DEGREE = 1e9
# Of a background graph: edges that a peer asks for itself, the most that it has, and their weight.
OWN_EDGES, MOST_EDGES = 5, 12
WEIGHT = 1.0
# Multiple of the usual time in which offers for it must arrive: links may have to be opened, and an offer that comes
# too late has cost as many bits as one that becomes an edge.
OFFER_TIMEOUTS = 5.0


class AgreedGraph:
    """Edges of at most `heaviest` weight and, if there is a bound, to at most `most_neighbours` peers."""

    def __init__(self, me: PeerId, own: OwnModel, heaviest: float, most_neighbours: int | None) -> None:
        self.me, self.own, self.config = me, own, own.config
        self.edges = PeerEdges(me, own, self._edge_state)
        bounds = self.config.known_largest, self.config.most_samples
        self.sizes = Sizes(own.size, self.config.trust_largest, *bounds)
        self.rounds = Rounds(own, self.sizes)
        self.ledger = Ledger(self.config.n_predictors)
        self._heaviest, self._most_neighbours = heaviest, most_neighbours

    @property
    def followers(self) -> list[PeerId]:
        """The neighbours: an edge works in both directions."""
        return self.edges.neighbours

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take over stored edges."""
        self.edges.restore(records)

    def start(self, now: float) -> list[Effect]:
        """Report stored edges to their other ends."""
        return self.edges.start(now)

    def on_hello(self, sender: PeerId, now: float) -> list[Effect]:
        """Report the edge, so that both ends can compare."""
        return [self.edges.announce(sender, now)] if self.edges.has_neighbour(sender) else []

    def on_unreachable(self, peer: PeerId) -> list[Effect]:
        """End the edge to a peer that is gone."""
        return self.edges.end(peer)

    def receive_edge(self, sender: PeerId, message: Message, now: float) -> list[Effect] | None:
        """Answer a message about edges."""
        if isinstance(message, EdgeState):
            return self._on_edge(sender, message, now)
        if isinstance(message, EdgeAck):
            return self._on_ack(sender, message, now)
        if isinstance(message, ModelChange):
            return [self.edges.report(sender, self.edges.get(sender, Edge()))]
        return None

    # -- agreement -------------------------------------------------------------------------------------------------

    def _on_edge(self, sender: PeerId, state: EdgeState, now: float) -> list[Effect]:
        if not 0.0 <= state.weight <= self._heaviest:
            raise ImplausibleError(f"an edge of weight {state.weight}, version {state.version}")
        if state.version > 0 and state.author not in (sender, self.me):
            raise ImplausibleError("an edge changed by a third party")
        edge = self.edges.get(sender, Edge())
        if (state.version, state.author) < edge.rank:
            return [self.edges.report(sender, edge)]
        if (state.version, state.author) == edge.rank:
            if state.weight != edge.weight:
                # Two processes with one identity gave two weights one version: a new version settles it.
                effects = self.edges.decide(sender, edge, min(state.weight, edge.weight))
                return [*effects, self.edges.announce(sender, now)]
            self.edges.settle(sender, edge)
            return [self._acknowledgement(sender, edge)] if state.version > 0 else []
        copy = None if state.snapshot is None else self.own.copy_of(state.snapshot)
        if self.config.vet and state.weight > 0.0 and copy is None and edge.copy is None:
            # An unknown model cannot be vetted; the other end repeats its message, then with the model.
            return []
        agreed = self._agreed_weight(sender, edge, state.weight, copy if copy is not None else edge.copy)
        if agreed == 0.0 and state.weight > 0.0 and edge.weight == 0.0:
            # Should this answer be lost, the other end asks again: no timer is needed.
            effects = self.edges.set(sender, edge, 0.0, self.edges.versions.after(state.version), self.me)
            edge.acknowledged = False
            return [*effects, self.edges.report(sender, edge)]
        effects = self._make_room(now) if edge.weight == 0.0 and agreed > 0.0 else []
        if copy is not None and agreed > 0.0:
            self.edges.take_copy(edge, copy)
        if agreed != state.weight:
            effects += self.edges.set(sender, edge, agreed, self.edges.versions.after(state.version), self.me)
            return [*effects, self.edges.announce(sender, now)]
        effects += self.edges.set(sender, edge, agreed, state.version, state.author)
        self.edges.settle(sender, edge)
        effects.append(self._acknowledgement(sender, edge))
        if edge.weight > 0.0 and edge.copy is None:
            effects += self.edges.request_snapshot(sender, now)
        return effects

    def _agreed_weight(self, peer: PeerId, edge: Edge, weight: float, copy: ModelCopy | None) -> float:
        """The part of a proposed weight that this end agrees to. It always agrees to a lower weight."""
        if weight <= edge.weight:
            return weight
        if edge.weight == 0.0 and self._is_full(weight):
            return 0.0
        if not self.config.vet:
            return weight
        if copy is None or not self.own.accepts(copy):
            return 0.0
        # A claim far above all other weights must first follow from this peer's own steps.
        others = [held.weight for other, held in self.edges.items() if other != peer and held.weight > 0.0]
        return min(weight, max(edge.weight, MOST_TIMES_OTHERS * max(others))) if others else weight

    def _on_ack(self, sender: PeerId, ack: EdgeAck, now: float) -> list[Effect]:
        edge = self.edges.get(sender, Edge())
        if (ack.version, ack.author) != edge.rank:
            # The end that is behind learns it from the answer: the sender now, this peer from the reply to it.
            return [self.edges.report(sender, edge)]
        self.edges.settle(sender, edge)
        self.sizes.add(sender, ack.size)
        return self.edges.catch_up(sender, (ack.epoch, ack.sequence), now) if edge.weight > 0.0 else []

    def _edge_state(self, edge: Edge, with_model: bool) -> EdgeState:
        snapshot = self.own.snapshot() if with_model and edge.weight > 0.0 else None
        return EdgeState(edge.version, edge.author, edge.weight, snapshot)

    def _acknowledgement(self, peer: PeerId, edge: Edge) -> Send:
        return Send(peer, EdgeAck(*edge.rank, *self.own.shared.number, self.own.size))

    def propose(self, peer: PeerId, copy: ModelCopy, weight: float, now: float) -> list[Effect]:
        """Give an edge a new weight, and send it to the other end."""
        edge = self.edges.get(peer, Edge())
        is_new = edge.weight == 0.0
        if weight == edge.weight or (is_new and self._is_full(weight)):
            return []
        effects = self._make_room(now) if is_new else []
        effects += self.edges.decide(peer, edge, weight)
        if weight > 0.0:
            self.edges.take_copy(edge, copy)
        return [*effects, self.edges.announce(peer, now, with_model=is_new)]

    def report_size(self) -> list[Effect]:
        """Send this peer's new number of samples to its neighbours."""
        return [self._acknowledgement(peer, self.edges[peer]) for peer in self.edges.neighbours]

    def remind(self, now: float) -> list[Effect]:
        """End edges to models that have become harmful, and remind the next neighbour of its edge."""
        effects: list[Effect] = []
        for peer in self.edges.neighbours if self.config.vet else ():
            copy = self.edges[peer].copy
            if copy is not None and not self.own.accepts(copy):
                effects += self.propose(peer, copy, 0.0, now)
        return [*effects, *(self._acknowledgement(peer, self.edges[peer]) for peer in self.edges.next_to_remind())]

    # -- bounded lists ---------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether there is a place for one more edge."""
        return self._most_neighbours is None or len(self.edges.neighbours) < self._most_neighbours

    def _lightest(self) -> PeerId:
        return min(self.edges.neighbours, key=lambda peer: self.edges[peer].weight)

    def _is_full(self, weight: float) -> bool:
        """Whether there is no place for a new edge of this weight."""
        return not self.has_room and self.edges[self._lightest()].weight >= weight

    def _make_room(self, now: float) -> list[Effect]:
        if self.has_room:
            return []
        peer = self._lightest()
        return [*self.edges.decide(peer, self.edges[peer], 0.0), self.edges.announce(peer, now)]


class DistanceGraph(AgreedGraph):
    """Edges whose weights come from losses, degrees and distances of models; a `Neighbourhood` of `dada.peer.peer`."""

    def __init__(self, me: PeerId, own: OwnModel) -> None:
        super().__init__(me, own, own.config.heaviest_weight, own.config.max_neighbours)
        self._regularizer = self.config.regularizer.compiled

    def receive(self, sender: PeerId, message: Message, now: float) -> list[Effect] | None:
        """Answer a message about edges or states."""
        if isinstance(message, StateRequest):
            return [Send(sender, self._state(message.round))]
        if isinstance(message, StateReply):
            return self._on_state(sender, message, now)
        return self.receive_edge(sender, message, now)

    def begin_round(self, batch: tuple[PeerId, ...], now: float) -> list[Effect]:
        """Ask the peers of a batch for their states; end edges to models that have become harmful."""
        return [*self.remind(now), *self.rounds.begin(batch, now)]

    def _state(self, number: int) -> StateReply:
        return StateReply(number, self.own.snapshot(), self.own.loss, self.edges.degree, self.own.size)

    def _on_state(self, sender: PeerId, reply: StateReply, now: float) -> list[Effect]:
        if not (self.config.least_loss * (1 + SLACK) - SLACK <= reply.loss < math.inf):
            raise ImplausibleError(f"a loss of {reply.loss}")
        if not 0.0 <= reply.degree <= LARGEST_DEGREE:
            raise ImplausibleError(f"a degree of {reply.degree}")
        return self.end_round(now) if self.rounds.receive(sender, reply) else []

    def end_round(self, now: float) -> list[Effect]:
        """Solve the block of the peers that replied (Eq. 5) and propose their new weights."""
        peers, models, cost, degrees = [], [], [], []
        effects: list[Effect] = []
        own_loss = self.sizes.confidence * self.own.loss
        for peer, reply, copy in self.rounds.end():
            self.ledger.graph += weight_cost()
            self.own.count_reply(self.ledger, graph_reply_cost(0, False), copy)
            if not self.own.accepts(copy):
                effects += self.propose(peer, copy, 0.0, now)
                continue
            loss = min(1.0, reply.size / self.sizes.largest) * reply.loss
            peers.append(peer)
            models.append(copy)
            degrees.append(reply.degree)
            cost.append(pair_cost(own_loss, loss, self.config.mu1, self.own.squared_distance(copy)))
        if not peers:
            return effects
        w = np.array([self.edges.get(peer, Edge()).weight for peer in peers])
        new = np.empty(len(peers))
        step = lipschitz_step if GRAPH_STEPS[self.config.graph_step] == LIPSCHITZ else exact_step
        step(self._regularizer, self.config.graph_mu, np.array(cost), w, np.array(degrees), self.edges.degree, new)
        if self.config.damping < 1.0:
            new = w + self.config.damping * (new - w)
        for peer, copy, weight in zip(peers, models, new.tolist(), strict=True):
            effects += self.propose(peer, copy, weight, now)
        return effects


class EveryoneGraph(AgreedGraph):
    """Edges of one weight to random peers; a `Neighbourhood` of `dada.peer.peer`."""

    def __init__(self, me: PeerId, own: OwnModel) -> None:
        super().__init__(me, own, WEIGHT, MOST_EDGES)

    def receive(self, sender: PeerId, message: Message, now: float) -> list[Effect] | None:
        """Answer a message about edges or models."""
        if isinstance(message, StateRequest):
            return [Send(sender, ModelOffer(message.round, self.own.snapshot(), self.own.size))]
        if isinstance(message, ModelOffer):
            return self.end_round(now) if self.rounds.receive(sender, message) else []
        if isinstance(message, EdgeState) and message.weight not in (0.0, WEIGHT):
            raise ImplausibleError(f"an edge of weight {message.weight}, in this network it is 0 or {WEIGHT:g}")
        return self.receive_edge(sender, message, now)

    @property
    def _n_missing(self) -> int:
        """Edges that this peer still has to ask for."""
        own = sum(self.edges[peer].author == self.me for peer in self.edges.neighbours)
        return max(0, min(OWN_EDGES - own, MOST_EDGES - len(self.edges.neighbours)))

    def begin_round(self, batch: tuple[PeerId, ...], now: float) -> list[Effect]:
        """Ask peers of the batch for their models, as many as there are edges missing."""
        strangers = [peer for peer in batch if not self.edges.has_neighbour(peer)]
        return [*self.remind(now), *self.rounds.begin(tuple(strangers[: self._n_missing]), now, OFFER_TIMEOUTS)]

    def end_round(self, now: float) -> list[Effect]:
        """Propose an edge to the peers that replied."""
        effects: list[Effect] = []
        for peer, _, copy in self.rounds.end():
            self.own.count_reply(self.ledger, evidence_reply_cost(0), copy)
            if self._n_missing > 0 and self.own.accepts(copy):
                self.ledger.graph += weight_cost()
                effects += self.propose(peer, copy, WEIGHT, now)
        return effects
