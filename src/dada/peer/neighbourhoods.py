"""Who a peer learns from: graphs in which both ends of an edge agree on its weight, and the evidence graph.

*Agreed weights.* The weight of an edge has a version and an author. The higher (version, author) wins at both ends. A
peer that changes a weight sends its `EdgeState` until it is acknowledged, or answered with a higher one. A peer without
an edge answers a change of a model with the edge state it holds, which ends an edge that only the other end still has.
If the network vets, a model that does harm on this peer's samples gets no edge, and no peer can claim far more weight
than others.

*The paper's graph.* A graph step asks each peer of its batch for its state, waits for the replies or the time-out, and
then solves its block with the replies. Reported losses, degrees and sizes only influence this peer's own proposals,
within bounds.

*A background graph*, for users who do not differ in kind: edges of weight 1 to a few random peers. Each peer asks for
half of its edges itself and accepts the other half, so that a network of any size stays connected with about ten edges
per peer. At a graph step a peer that lacks edges asks peers of its view for their models and numbers of samples, and
proposes an edge to those that reply. A lost edge is replaced at the next graph step.

*The evidence graph.* Each peer follows those whose models do best on its own samples. No peer reports a loss or a
degree, and none decides on another's weights. A peer that is asked sends its model and its number of samples. The
asking peer judges the model on its own samples (see `dada.core.graph_steps`), keeps the best ones and follows them: it
sends each a `Follow` once, and from then on receives their moves. Weights are not sent.

`Follow` states whether its sender follows the receiver. Only the sender decides that, so its highest version counts,
and versions rise from life to life. It is repeated until acknowledged. The acknowledgement carries what the receiver
holds and the number of its model. A peer also sends it to a follower that comes back: one that lost its records answers
that it does not follow.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from dada.core.bits import Ledger, evidence_reply_cost, follow_cost, graph_reply_cost, weight_cost
from dada.core.graph_steps import GRAPH_STEPS, LIPSCHITZ, NEGLIGIBLE, exact_step, keep_best, lipschitz_step, pair_cost
from dada.peer.copies import SLACK, ModelCopy
from dada.peer.edges import MOST_ENDED_EDGES, Edge, PeerEdges, Rounds, Sizes, put_last
from dada.peer.inputs import Effect, Persist, Send
from dada.peer.messages import (
    EdgeAck,
    EdgeState,
    Follow,
    FollowAck,
    ImplausibleError,
    Message,
    ModelChange,
    ModelOffer,
    PeerId,
    StateReply,
    StateRequest,
    Witness,
    WitnessRequest,
)
from dada.peer.model import OwnModel
from dada.peer.signatures import (
    MOST_COMPARED,
    MOST_DOUBTED,
    MOST_EVIDENCE_LOST,
    MOST_UNANSWERED,
    Doubt,
    Trail,
    digest_of,
    entries_of,
    statement_of,
    to_compare,
)

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
            is_behind = sender in self.edges and (ack.version, ack.author) > edge.rank
            return [self.edges.announce(sender, now, edge.repeats) if is_behind else self.edges.report(sender, edge)]
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


# Followers of one peer: each of its moves goes to all of them. The last quarter is for peers that it follows itself, so
# that strangers cannot fill the list.
MOST_FOLLOWERS, MOST_STRANGERS = 1024, 768
FOLLOWER_KEY = b"follower:"


@dataclass(eq=False)
class FollowState:
    """Whether another peer follows this one; `is_sure` unless a crash or a silence came in between."""

    version: int
    follows: bool
    is_sure: bool = True


class EvidenceGraph:
    """Edges on which this peer decides alone, and the peers that follow it; a `Neighbourhood` of `dada.peer.peer`."""

    def __init__(self, me: PeerId, own: OwnModel) -> None:
        self.me, self.own, self.config = me, own, own.config
        self.edges = PeerEdges(me, own, _follow)
        bounds = self.config.known_largest, self.config.most_samples
        self.sizes = Sizes(own.size, self.config.trust_largest, *bounds)
        self.rounds = Rounds(own, self.sizes)
        self.ledger = Ledger(self.config.n_predictors)
        self.follow_states: OrderedDict[PeerId, FollowState] = OrderedDict()
        self.doubts: OrderedDict[PeerId, Doubt] = OrderedDict()

    @property
    def followers(self) -> list[PeerId]:
        """Peers that learn from this one, in ascending order of ids."""
        return sorted(peer for peer, state in self.follow_states.items() if state.follows)

    # -- life ------------------------------------------------------------------------------------------------------

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take over stored edges and followers."""
        self.edges.restore(records)
        for key, value in records.items():
            if key.startswith(FOLLOWER_KEY):
                state = FollowState(int.from_bytes(value, "big"), follows=True, is_sure=False)
                self.follow_states[key.removeprefix(FOLLOWER_KEY)] = state

    def start(self, now: float) -> list[Effect]:
        """Send `Follow` at new versions: those sent just before a power cut may exceed the stored ones."""
        return self.edges.start(now, renew=True)

    def on_hello(self, sender: PeerId, now: float) -> list[Effect]:
        """Report to a peer that is followed, or that follows this one, so that both ends can compare."""
        state = self.follow_states.get(sender)
        effects: list[Effect] = [self.edges.announce(sender, now)] if self.edges.has_neighbour(sender) else []
        return [*effects, self._acknowledgement(sender, state)] if state is not None and state.follows else effects

    def on_unreachable(self, peer: PeerId) -> list[Effect]:
        """Neither follow a peer that is gone nor send it moves."""
        effects = self.edges.end(peer)
        state = self.follow_states.get(peer)
        if state is not None and state.follows:
            effects.append(self._hold(peer, FollowState(state.version, follows=False, is_sure=False)))
        return effects

    def receive(self, sender: PeerId, message: Message, now: float) -> list[Effect] | None:
        """Answer a message about following or models."""
        if isinstance(message, StateRequest):
            return [Send(sender, ModelOffer(message.round, self.own.snapshot(), self.own.size))]
        if isinstance(message, ModelOffer):
            return self.end_round(now) if self.rounds.receive(sender, message) else []
        if isinstance(message, Follow):
            return self._on_follow(sender, message)
        if isinstance(message, FollowAck):
            return self._on_ack(sender, message, now)
        if isinstance(message, ModelChange):
            return [self._unfollow(sender)]
        if isinstance(message, WitnessRequest):
            return self._on_request(sender, message)
        if isinstance(message, Witness):
            return self._on_witness(sender, message, now)
        return None

    # -- followers -------------------------------------------------------------------------------------------------

    def _on_follow(self, sender: PeerId, follow: Follow) -> list[Effect]:
        if follow.version == 0:
            raise ImplausibleError("follows at version 0, the first is 1")
        held = self.follow_states.get(sender)
        effects: list[Effect] = []
        if held is None or follow.version > held.version or (follow.version == held.version and not held.is_sure):
            most = MOST_FOLLOWERS if self.edges.has_neighbour(sender) else MOST_STRANGERS
            if follow.follows and not (held and held.follows) and len(self.followers) >= most:
                return [self._acknowledgement(sender, FollowState(follow.version, follows=False))]
            held = FollowState(follow.version, follow.follows)
            effects.append(self._hold(sender, held))
        return [*effects, self._acknowledgement(sender, held, follow.wants_statement)]

    def _hold(self, peer: PeerId, state: FollowState) -> Persist:
        record = Persist(FOLLOWER_KEY + peer, state.version.to_bytes(8, "big") if state.follows else b"")
        self.follow_states[peer] = state
        self.follow_states.move_to_end(peer)
        ended = [other for other, held in self.follow_states.items() if not held.follows]
        for other in ended[: max(0, len(ended) - MOST_ENDED_EDGES)]:
            del self.follow_states[other]
        return record

    def _acknowledgement(self, peer: PeerId, state: FollowState, with_statement: bool = False) -> Send:
        digest = digest_of(self.own.shared) if with_statement else b""
        number, size = self.own.shared.number, self.own.size
        return Send(peer, FollowAck(state.version, state.follows, *number, digest, size=size))

    def report_size(self) -> list[Effect]:
        """Send this peer's new number of samples to its followers."""
        return [self._acknowledgement(peer, self.follow_states[peer]) for peer in self.followers]

    # -- neighbours, which this peer follows -----------------------------------------------------------------------

    def _on_ack(self, sender: PeerId, ack: FollowAck, now: float) -> list[Effect]:
        edge = self.edges.get(sender)
        if edge is None or edge.weight == 0.0:
            if ack.follows:
                return [self._unfollow(sender, ack.version)]
            return [self.edges.forget(sender)] if edge is not None and ack.version >= edge.version else []
        if ack.version != edge.version:
            if ack.version < edge.version and not edge.acknowledged:
                return []
            # One of the two ends has lost its last records: report again, above all earlier versions.
            edge.version = self.edges.versions.after(max(edge.version, ack.version))
            return [self.edges.record(sender), self.edges.announce(sender, now)]
        self.edges.settle(sender, edge)
        if not ack.follows:
            return [*self.edges.set(sender, edge, 0.0, edge.version, self.me), self.edges.forget(sender)]
        edge.size = ack.size
        self.sizes.add(sender, ack.size)
        if ack.digest:
            self.edges.attest(sender, ack.statement)
        return self.edges.catch_up(sender, (ack.epoch, ack.sequence), now)

    def _unfollow(self, peer: PeerId, above: int = 0) -> Send:
        """Correct a peer that wrongly assumes that it is followed."""
        edge = self.edges.get(peer)
        is_known = edge is not None and edge.version > above
        version = edge.version if edge and is_known else self.edges.versions.latest(above)
        return Send(peer, Follow(version, follows=False))

    # -- witnesses -------------------------------------------------------------------------------------------------

    def ask_for_witness(self, partner: PeerId) -> list[Effect]:
        """Ask a peer for its copies of the models of neighbours in common, those compared least first."""
        signed = [trail.signed for trail in sorted(self._trails(), key=lambda trail: trail.compared) if trail.signed]
        return [Send(partner, WitnessRequest(entries_of(signed, self.me, partner)))] if signed else []

    def _trails(self) -> list[Trail]:
        return [self.edges[peer].trail for peer in self.edges.neighbours]

    def _on_request(self, sender: PeerId, request: WitnessRequest) -> list[Effect]:
        """Send the copies of a few neighbours in common, where the other peer has another copy."""
        signed = {trail.signed.owner: trail.signed for trail in self._trails() if trail.signed}
        common = to_compare(request.entries, signed, sender, self.me)
        return [Send(sender, replace(one, is_answer=True)) for one in common[:MOST_COMPARED]]

    def _on_witness(self, sender: PeerId, witness: Witness, now: float) -> list[Effect]:
        """Compare the copy of another follower with those of this peer."""
        owner, edge = witness.owner, self.edges.get(witness.owner)
        if edge is None or edge.weight == 0.0 or edge.copy is None or sender == owner:
            return []
        theirs, signed = self.own.copy_of(witness.snapshot), edge.trail.signed
        edge.trail.compared += 1
        answer: list[Effect] = [Send(sender, signed)] if witness.is_answer and signed is not None else []
        if edge.trail.confirms(owner, statement_of(theirs, witness.signature)) or edge.trail.began_after(theirs.number):
            return answer
        lost = self.own.evidence(edge.copy, self.config.tau) - self.own.evidence(theirs, self.config.tau)
        if lost <= MOST_EVIDENCE_LOST:
            return [*answer, *self.edges.catch_up(owner, theirs.number, now)]
        put_last(self.doubts, owner, self.doubts.get(owner, Doubt()).again(self.rounds.count), MOST_DOUBTED)
        return [*answer, *self._weigh(owner, edge.size, None, 0.0, now)]

    # -- graph steps -----------------------------------------------------------------------------------------------

    def begin_round(self, batch: tuple[PeerId, ...], now: float) -> list[Effect]:
        """Ask the peers of a batch whose models are unknown."""
        strangers = tuple(
            peer
            for peer in batch
            if (not self.edges.has_neighbour(peer) or self.edges[peer].copy is None)
            and self.doubts.get(peer, Doubt()).until < self.rounds.count
        )
        due = self.edges.next_to_remind()
        due += [peer for peer in self.edges.neighbours if self.edges[peer].trail.unanswered and peer not in due]
        for edge in (self.edges[peer] for peer in due):
            edge.trail.unanswered += not edge.trail.is_signed(edge.copy)
        reminders = [self.edges.report(peer, self.edges[peer]) for peer in due]
        return [*reminders, *self.rounds.begin(strangers, now)]

    def end_round(self, now: float) -> list[Effect]:
        """Judge the neighbours' models and those in replies; follow the best."""
        candidates: list[tuple[PeerId, int, ModelCopy]] = []
        effects: list[Effect] = []
        for peer in self.edges.neighbours:
            edge = self.edges[peer]
            is_signed = edge.trail.unanswered <= MOST_UNANSWERED
            if edge.copy is not None and is_signed and self.own.accepts(edge.copy):
                candidates.append((peer, edge.size, edge.copy))
        for peer, reply, copy in self.rounds.end():
            self.own.count_reply(self.ledger, evidence_reply_cost(0), copy)
            if copy.n_support > 0 and self.own.accepts(copy):
                candidates.append((peer, reply.size, copy))
        # Drop neighbours whose models have become harmful, were not signed, or did not arrive after a request.
        judged = {peer for peer, _, _ in candidates}
        for peer in self.edges.neighbours:
            if peer not in judged:
                effects += self._weigh(peer, self.edges[peer].size, None, 0.0, now)
        if not candidates:
            return effects
        self.own.is_stale = True
        most = self.sizes.largest
        scores = [self.own.evidence(copy, self.config.tau, min(size, most)) for _, size, copy in candidates]
        weights = np.empty(len(candidates))
        keep_best(np.array(scores), self.config.n_neighbours, weights)
        for (peer, size, copy), weight in zip(candidates, weights.tolist(), strict=True):
            effects += self._weigh(peer, size, copy, weight if weight > NEGLIGIBLE else 0.0, now)
        return effects

    def drop_harmful(self, peer: PeerId, now: float) -> list[Effect]:
        """Drop a neighbour whose new model is not acceptable, before any step is made with it."""
        edge = self.edges.get(peer)
        if edge is None or edge.weight == 0.0 or edge.copy is None or self.own.accepts(edge.copy):
            return []
        return self._weigh(peer, edge.size, None, 0.0, now)

    def _weigh(self, peer: PeerId, size: int, copy: ModelCopy | None, weight: float, now: float) -> list[Effect]:
        """Set the weight to a peer, and report to it if it is now followed, or no longer."""
        edge = self.edges.get(peer, Edge())
        if weight == edge.weight:
            return []
        is_change = (weight > 0.0) != (edge.weight > 0.0)
        edge.size = size
        version = self.edges.versions.after(edge.version) if is_change else edge.version
        effects = self.edges.set(peer, edge, weight, version, self.me)
        if copy is not None and weight > 0.0:
            self.edges.take_copy(edge, copy)
        if is_change:
            self.ledger.graph += follow_cost()
            effects.append(self.edges.announce(peer, now))
        return effects


def _follow(edge: Edge, _: bool) -> Follow:
    follows = edge.weight > 0.0
    return Follow(edge.version, follows, wants_statement=follows and not edge.trail.is_signed(edge.copy))
