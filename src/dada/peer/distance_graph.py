"""The paper's graph between real peers: every edge has one weight, on which its two ends agree.

*Graph steps.* A step asks each peer of its batch for its state, waits for the replies or the time-out, and then solves
its block with the replies.

*Liars.* Reported losses, degrees and sizes only influence this peer's own proposals, within bounds.
"""

from __future__ import annotations

import math

import numpy as np

from dada.core.bits import graph_reply_cost, weight_cost
from dada.core.graph_steps import GRAPH_STEPS, LIPSCHITZ, exact_step, lipschitz_step, pair_cost
from dada.peer.agreed_graph import AgreedGraph
from dada.peer.copies import SLACK
from dada.peer.edges import Edge
from dada.peer.inputs import Effect, Send
from dada.peer.messages import ImplausibleError, Message, PeerId, StateReply, StateRequest
from dada.peer.model import OwnModel

LARGEST_DEGREE = 1e9


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
