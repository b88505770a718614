"""The paper's graph between real peers: every edge has one weight, which its two ends agree on.

*Agreement.* The weight of an edge has a version and an author, and the higher (version, author) wins at both ends. A
peer that changes a weight sends its `EdgeState` until it is acknowledged, or answered with a higher one. A peer without
an edge answers a move with the edge state it holds, which ends what the other end only believes in.

*Graph steps.* A step asks each peer of its batch for its state, waits for the replies or the time-out, and then solves
its block with those that answered.

*Liars.* Losses, degrees and sizes that others report only influence this peer's own proposals, within bounds. Where the
network vets, a model that does harm on one's own samples gets no edge, and nobody claims far more weight than others.
"""

from __future__ import annotations

import math

import numpy as np

from dada.core.graph_steps import GRAPH_STEPS, LIPSCHITZ, exact_step, lipschitz_step, pair_cost
from dada.peer.edges import LARGEST_VERSION, Edge, Neighbourhood, weights_of
from dada.peer.inputs import Effect, Send
from dada.peer.messages import EdgeAck, EdgeState, Message, PeerId, StateReply
from dada.peer.model import ImplausibleError, ModelCopy, OwnModel

# Where the network vets, no neighbour can raise its weight above this many times that of the heaviest other one.
MOST_TIMES_OTHERS = 2.0
LARGEST_DEGREE = 1e9


class SharedEdges(Neighbourhood):
    """Edges whose weights come from losses, degrees and distances of models; see the top of this file."""

    def __init__(self, me: PeerId, own: OwnModel, largest_size: int) -> None:
        super().__init__(me, own, largest_size)
        self._regularizer = self.config.regularizer.compiled
        self._heaviest = self.config.heaviest_weight

    @property
    def listeners(self) -> list[PeerId]:
        """See `Neighbourhood`: whoever I learn from learns from me."""
        return self.neighbours

    def hear(self, sender: PeerId, message: Message, now: float) -> list[Effect] | None:
        """See `Neighbourhood`."""
        if isinstance(message, StateReply):
            return self._on_state(sender, message, now)
        if isinstance(message, EdgeState):
            return self._on_edge(sender, message, now)
        if isinstance(message, EdgeAck):
            return self._on_ack(sender, message, now)
        return None

    # -- agreement -------------------------------------------------------------------------------------------------

    def _on_edge(self, sender: PeerId, state: EdgeState, now: float) -> list[Effect]:
        if not (0.0 <= state.weight <= self._heaviest and 0 <= state.version <= LARGEST_VERSION):
            raise ImplausibleError(f"an edge of weight {state.weight}, version {state.version}")
        if state.version > 0 and state.author not in (sender, self.me):
            raise ImplausibleError("an edge changed by a third party")
        edge = self.edges.get(sender, Edge())
        if (state.version, state.author) < edge.rank:
            return [self._word(sender, edge)]
        if (state.version, state.author) == edge.rank:
            self._settled(sender, edge)
            return [self._reminder(sender, edge)] if state.version > 0 else []
        copy = None if state.snapshot is None else self._copy_of(state.snapshot)
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
        effects.append(self._reminder(sender, edge))
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
        if copy is None or not self.own.accepts(copy):
            return 0.0
        # One who claims more than all others must convince this peer's own steps first.
        others = [held.weight for other, held in self.edges.items() if other != peer and held.weight > 0.0]
        return min(weight, max(edge.weight, MOST_TIMES_OTHERS * max(others))) if others else weight

    def _refuse_edge(self, sender: PeerId, state: EdgeState) -> list[Effect]:
        """Answer a new edge with its end. Should the answer be lost, the other end asks again: no timer is needed."""
        edge = self.edges.setdefault(sender, Edge())
        effects = self._set_edge(sender, edge, 0.0, self._versions.after(state.version), self.me)
        edge.acknowledged = False
        return [*effects, self._word(sender, edge)]

    def _on_ack(self, sender: PeerId, ack: EdgeAck, now: float) -> list[Effect]:
        edge = self.edges.get(sender, Edge())
        if (ack.version, ack.author) != edge.rank:
            # Whoever is behind learns it from the answer: the sender at once, this peer from the sender's reply to it.
            return [self._word(sender, edge)]
        self._settled(sender, edge)
        if edge.weight > 0.0 and (edge.copy is None or edge.copy.number < (ack.epoch, ack.sequence)):
            return self._ask_snapshot(sender, edge, now)
        return []

    def _word(self, peer: PeerId, edge: Edge, with_model: bool = True) -> Send:
        snapshot = self.own.model.snapshot() if with_model and edge.weight > 0.0 else None
        return Send(peer, EdgeState(edge.version, edge.author, edge.weight, snapshot))

    def _reminder(self, peer: PeerId, edge: Edge) -> Send:
        return Send(peer, EdgeAck(*edge.rank, *self.own.model.number))

    def _disown(self, sender: PeerId) -> list[Effect]:
        return [self._word(sender, self.edges.get(sender, Edge()))]

    # -- graph steps -----------------------------------------------------------------------------------------------

    def state(self, number: int) -> StateReply:
        """See `Neighbourhood`."""
        return StateReply(number, self.own.model.snapshot(), self.own.loss, self.degree, self.own.size)

    def _on_state(self, sender: PeerId, reply: StateReply, now: float) -> list[Effect]:
        if not (-self.config.beta - 1.0 <= reply.loss < math.inf):
            raise ImplausibleError(f"a loss of {reply.loss}")
        if not 0.0 <= reply.degree <= LARGEST_DEGREE:
            raise ImplausibleError(f"a degree of {reply.degree}")
        return self._on_reply(sender, reply, now)

    def _prepare_round(self, now: float) -> list[Effect]:
        """End the edges to those whose models do harm by now; they may have been better when they were let in."""
        effects: list[Effect] = []
        for peer in self.neighbours if self.config.vet else ():
            copy = self.edges[peer].copy
            if copy is not None and not self.own.accepts(copy):
                effects += self._propose(peer, copy, 0.0, now)
        return effects

    def _finish_round(self, now: float) -> list[Effect]:
        """Solve the block of those who answered (Eq. 5) and tell them their new weights."""
        peers, models, cost, degrees = [], [], [], []
        effects: list[Effect] = []
        own_loss = self.confidence * self.own.loss
        for peer, reply, copy in self._end_round():
            self.bits_counted += np.array([2, 3 + copy.n_support, copy.n_support])
            if not self.own.accepts(copy):
                effects += self._propose(peer, copy, 0.0, now)
                continue
            loss = min(1.0, reply.size / self.reference_size) * reply.loss
            peers.append(peer)
            models.append(copy)
            degrees.append(reply.degree)
            cost.append(pair_cost(own_loss, loss, self.config.mu1, self.own.squared_distance(copy)))
        if not peers:
            return effects
        w, new = weights_of(self.edges, peers), np.empty(len(peers))
        step = lipschitz_step if GRAPH_STEPS[self.config.graph_step] == LIPSCHITZ else exact_step
        step(self._regularizer, self.config.graph_mu, np.array(cost), w, np.array(degrees), self.degree, new)
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

    # -- bounded lists ---------------------------------------------------------------------------------------------

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
