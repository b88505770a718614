"""A background graph, for users who do not differ in kind: edges of weight 1 to a few random peers.

Each peer asks for half of its edges itself and accepts the other half, so that a network of any size stays connected
with about ten edges per peer. At a graph step a peer that lacks edges asks peers of its view for their models and
numbers of samples, and proposes an edge to those that reply. A lost edge is replaced at the next graph step.
"""

from __future__ import annotations

from dada.core.bits import evidence_reply_cost, weight_cost
from dada.peer.agreed_graph import AgreedGraph
from dada.peer.inputs import Effect, Send
from dada.peer.messages import EdgeState, ImplausibleError, Message, ModelOffer, PeerId, StateRequest
from dada.peer.model import OwnModel

# Edges that a peer asks for itself, and the most that it has.
OWN_EDGES, MOST_EDGES = 5, 12
WEIGHT = 1.0


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
        return [*self.remind(now), *self.rounds.begin(tuple(strangers[: self._n_missing]), now)]

    def end_round(self, now: float) -> list[Effect]:
        """Propose an edge to the peers that replied."""
        effects: list[Effect] = []
        for peer, _, copy in self.rounds.end():
            self.own.count_reply(self.ledger, evidence_reply_cost(0), copy)
            if self._n_missing > 0 and self.own.accepts(copy):
                self.ledger.graph += weight_cost()
                effects += self.propose(peer, copy, WEIGHT, now)
        return effects
