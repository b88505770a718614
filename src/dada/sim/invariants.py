"""Invariants of a simulated network, checked after every event for the hosts it involved.

- A model stays in its l1 ball, a shared model within four times its radius.
- Weights, losses and degrees are finite, and weights are not negative.
- The two ends of a settled edge hold the same weight. An edge is settled if both ends are running and honest, no
  message is under way between them, and each believes the other to be informed. At the end of a run this holds for
  every edge. In an evidence graph, a peer follows another exactly if the other has it among its followers.
- A copy of a model equals, bit for bit, the model that its owner had at that number. It never returns to a lower
  number. In an evidence graph, when all activity ends, it is the owner's present model.
- A peer has one model per number, and no number repeats in a later life.
- Margins, degrees and the sum of the neighbours' models are what models, weights and copies give.
- Whatever a message states about its sender is stored before: epoch, model, edges, followers. Stored counters and edges
  are those in memory. Changes of models go to followers only.
- All memory is bounded.
- Every peer has a fallback model.
- No message raises an error.
- No honest peer is taken for a liar that sends its followers different models.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict

import msgspec
import numpy as np

from dada.core.compiled import Array
from dada.core.neighbours import gossip_mix
from dada.peer.copies import MOST_SHARED, SLACK
from dada.peer.edges import EDGE_KEY, MOST_ENDED_EDGES, MOST_SIZES, Edge
from dada.peer.everyone_graph import MOST_EDGES
from dada.peer.evidence_graph import FOLLOWER_KEY, MOST_FOLLOWERS, EvidenceGraph
from dada.peer.inputs import Send
from dada.peer.messages import EdgeState, Follow, FollowAck, ModelChange, epoch_of
from dada.peer.model import EPOCH_KEY, MODEL_KEY
from dada.peer.peer import MOST_EPOCHS, MOST_OFFENDERS
from dada.peer.sampling import MOST_CANDIDATES, MOST_KNOWN_ADDRESSES, STORED_EVERY
from dada.peer.sampling import RECORD_KEY as VIEW_KEY
from dada.peer.witnesses import MOST_EXPOSED, Trail
from dada.sim.world import MOST_LOST_RECORDS, Host, World

# Models of each owner kept for comparison; copies of older ones are not compared.
MODELS_KEPT = 128
# Running honest peers from which on some must learn from each other at the end.
MOST_APART = 8
# Records of a member other than edges.
OTHER_RECORDS = 8


class InvariantError(AssertionError):
    """An invariant is violated."""


class Invariants:
    """Watches a world, and raises `InvariantError` after the first event that violates an invariant.

    The error contains `replay`, the command that repeats the run.
    """

    def __init__(self, replay: str) -> None:
        self.replay = replay
        self.checked = 0
        self.compared = 0
        self._history: defaultdict[int, OrderedDict[tuple[int, int], Array]] = defaultdict(OrderedDict)
        self._seen: dict[tuple[int, int], tuple[Trail, tuple[int, int]]] = {}

    def before_sending(self, world: World, host: Host, send: Send) -> None:
        """Check that a message states nothing that a crash could undo."""
        message, peer, records = send.message, host.member.peer, host.records
        epoch = epoch_of(message)
        stored_epoch = int.from_bytes(records.get(EPOCH_KEY, b""), "big")
        self._require(epoch in (None, stored_epoch), world, host, f"epoch {epoch} is sent, {stored_epoch} is stored")
        if isinstance(message, ModelChange):
            is_follower = send.to in peer.neighbourhood.followers
            self._require(is_follower, world, host, "a change goes to a peer that does not follow")
            is_stored = records.get(MODEL_KEY) == peer.own.record().value
            self._require(is_stored, world, host, "a change is sent before the model is stored")
        elif isinstance(message, Follow | EdgeState) and (message.version > 0 and send.to in peer.edges):
            edge = peer.edges[send.to]
            is_stored = EDGE_KEY + send.to in records or edge.version == 0
            self._require(is_stored, world, host, f"an edge at version {message.version} is sent before it is stored")
        elif isinstance(message, FollowAck) and message.follows:
            is_stored = FOLLOWER_KEY + send.to in records
            self._require(is_stored, world, host, "a follower is acknowledged before it is stored")

    def after(self, world: World, host: Host, other: Host | None) -> None:
        """Check the host of an event, and its edge to the other."""
        self._require(not world.failures, world, host, "; ".join(world.failures))
        if not host.is_honest:
            return
        self._note_model(world, host)
        if host.is_up:
            self._check_bounds(world, host)
            self._check_sums(world, host)
            self._check_records(world, host)
            if other is not None:
                self._check_edge(world, host, other)

    def check_all(self, world: World) -> None:
        """Check every host and every edge, settled or not, at the end of a run."""
        running = [host for host in world.hosts if host.is_honest and host.is_up]
        n_edges = 0
        for host in running:
            self._check_bounds(world, host)
            self._check_records(world, host)
            for other in running:
                if other is not host:
                    self._check_copy(world, host, other)
                    self._check_agreement(world, host, other)
                    n_edges += self._check_present(world, host, other)
        is_enough = n_edges > 0 or len(running) < MOST_APART
        self._require(is_enough, world, world.hosts[0], "no two peers learn from each other")

    # -- one peer --------------------------------------------------------------------------------------------------

    def _note_model(self, world: World, host: Host) -> None:
        own, config = host.member.peer.own, host.member.peer.config
        history = self._history[host.number]
        is_new = own.shared.number not in history
        if is_new or config.sends_codes:
            norm = float(np.abs(own.model.alpha.astype(np.float64)).sum())
            self._require(norm <= config.beta * (1 + SLACK), world, host, f"model of l1 norm {norm}")
        if not is_new:
            is_same = np.array_equal(history[own.shared.number], own.shared.alpha)
            self._require(is_same, world, host, f"a second model with the number {own.shared.number}")
            return
        if config.sends_codes:
            norm = float(np.abs(own.shared.alpha.astype(np.float64)).sum())
            self._require(norm <= MOST_SHARED * config.beta, world, host, f"shared model of l1 norm {norm}")
        history[own.shared.number] = own.shared.alpha.copy()
        if len(history) > MODELS_KEPT:
            history.popitem(last=False)

    def _check_bounds(self, world: World, host: Host) -> None:
        member = host.member
        peer, sampling, neighbourhood = member.peer, member.sampling, member.peer.neighbourhood
        round_ = neighbourhood.rounds.current
        most_edges = (peer.config.max_neighbours or len(world.hosts)) + MOST_ENDED_EDGES
        most_followers = len(world.hosts) if isinstance(neighbourhood, EvidenceGraph) else 0
        most_neighbours = {"everyone": MOST_EDGES, "evidence": peer.config.n_neighbours}
        bounds = (
            ("neighbours", len(peer.edges.neighbours), most_neighbours.get(peer.config.graph, most_edges)),
            ("edges", len(peer.edges), most_edges + MOST_LOST_RECORDS),
            (
                "records",
                len(host.records),
                most_edges + 2 * MOST_LOST_RECORDS + OTHER_RECORDS + most_followers + len(peer.exposed),
            ),
            ("waiting edges", len(peer.edges.waiting), len(peer.edges)),
            ("offenders", len(peer.offences), MOST_OFFENDERS),
            ("epochs", len(peer.lives), MOST_EPOCHS),
            ("sizes", len(neighbourhood.sizes), MOST_SIZES),
            ("view", len(sampling.view), sampling.view_size),
            ("reserve", len(sampling.reserve), sampling.view_size),
            ("proven addresses", len(sampling.proven), MOST_KNOWN_ADDRESSES),
            ("senders", len(member.limit), member.limit.most_senders),
            ("replies", len(round_.replies) if round_ else 0, gossip_mix(member.planner.rhythm.kappa).size),
            ("candidates", len(member.search.candidates), MOST_CANDIDATES),
            ("followers", len(neighbourhood.followers), MOST_FOLLOWERS),
            ("exposed liars", len(peer.exposed), MOST_EXPOSED),
        )
        excess = [f"{size} {name}, at most {most} are allowed" for name, size, most in bounds if size > most]
        self.checked += len(bounds) - 1
        self._require(not excess, world, host, "; ".join(excess))
        self._require(host.me not in sampling.view, world, host, "its view contains itself")
        self._require(0.0 <= peer.edges.degree < math.inf, world, host, f"a degree of {peer.edges.degree}")
        self._require(member.fallback.alpha.size > 0, world, host, "no fallback model")
        slandered = [other for other in peer.exposed if world.hosts[world.numbers[other]].is_honest]
        self._require(not slandered, world, host, f"honest peers taken for liars: {slandered}")

    def _check_sums(self, world: World, host: Host) -> None:
        own, edges, config = host.member.peer.own, host.member.peer.edges, host.member.peer.config
        slack = SLACK * max(1.0, config.beta)
        weights = sum(edges[peer].weight for peer in edges.neighbours)
        is_sum = abs(weights - edges.degree) <= slack
        self._require(is_sum, world, host, f"a degree of {edges.degree}, weights of {weights}")
        if not own.is_stale:
            _, expected = edges.neighbour_sum()
            difference = float(np.abs(own.user.neighbour_sum - expected).max())
            self._require(difference <= slack * max(1.0, weights), world, host, f"a sum of models off by {difference}")
        margins = own.user.offset + own.rows.A.astype(np.float64) @ own.model.alpha
        difference = float(np.abs(margins - own.user.margins).max())
        self._require(difference <= slack * config.largest_prediction, world, host, f"margins off by {difference}")
        confidence = host.member.peer.neighbourhood.sizes.confidence
        self._require(0.0 < confidence <= 1.0, world, host, f"a confidence of {confidence}")

    def _check_records(self, world: World, host: Host) -> None:
        """Stored counters are those in memory."""
        member, records = host.member, host.records
        own, planner = member.peer.own, member.planner.record()
        self._require(records.get(planner.key) == planner.value, world, host, "counters of wake-ups are not stored")
        if MODEL_KEY in records:
            updates = msgspec.msgpack.decode(records[MODEL_KEY])[1]
            self._require(updates <= own.updates, world, host, f"{own.updates} updates, {updates} are stored")
        is_view_stored = VIEW_KEY in records or member.sampling.exchanges <= STORED_EVERY + 1
        self._require(is_view_stored or not member.sampling.view, world, host, "the view is never stored")
        n_stored = sum(key.startswith(EDGE_KEY) for key in records)
        self._require(n_stored == len(member.peer.edges), world, host, f"{n_stored} edges stored")

    # -- two peers -------------------------------------------------------------------------------------------------

    def _check_edge(self, world: World, host: Host, other: Host) -> None:
        edge = host.member.peer.edges.get(other.me)
        if edge is not None:
            self._require(0.0 <= edge.weight < math.inf, world, host, f"weight {edge.weight} to {other.number}")
            self._check_plausible(world, host, edge)
        if not (other.is_honest and other.is_up):
            return
        self._check_copy(world, host, other)
        if world.is_message_under_way(host, other):
            return
        if isinstance(host.member.peer.neighbourhood, EvidenceGraph):
            for follower, followed in ((host, other), (other, host)):
                if _is_informed(follower, followed) and _is_sure(followed, follower):
                    self._check_agreement(world, follower, followed)
        elif _is_informed(host, other) and _is_informed(other, host):
            self._check_agreement(world, host, other)

    def _check_plausible(self, world: World, host: Host, edge: Edge) -> None:
        """No peer takes a model outside the ball or a weight beyond all bounds, not even from a liar."""
        config = host.member.peer.config
        if config.graph == "distance":
            is_bounded = edge.weight <= config.heaviest_weight * (1 + SLACK)
            self._require(is_bounded, world, host, f"a weight of {edge.weight}")
        if edge.copy is not None:
            norm, most = edge.copy.norm, MOST_SHARED if config.sends_codes else 1 + SLACK
            self._require(norm <= most * config.beta, world, host, f"a copy of l1 norm {norm}")

    def _check_present(self, world: World, host: Host, other: Host) -> bool:
        """Whether a peer learns from another; in an evidence graph, its copy is then the other's present model."""
        edge = host.member.peer.edges.get(other.me, Edge())
        if edge.weight == 0.0:
            return False
        if isinstance(host.member.peer.neighbourhood, EvidenceGraph):
            number, present = None if edge.copy is None else edge.copy.number, other.member.peer.own.shared.number
            what = f"its copy of the model of {other.number} has the number {number}, the original {present}"
            self._require(number == present, world, host, what)
        return True

    def _check_copy(self, world: World, host: Host, other: Host) -> None:
        edge = host.member.peer.edges.get(other.me)
        if edge is None or edge.copy is None:
            return
        pair = (host.number, other.number)
        trail, number = self._seen.get(pair, (None, (0, 0)))
        if trail is edge.trail and number == edge.copy.number:
            return
        is_older = trail is edge.trail and edge.copy.number < number
        self._require(not is_older, world, host, f"its copy of the model of {other.number} is older than before")
        self._seen[pair] = edge.trail, edge.copy.number
        original = self._history[other.number].get(edge.copy.number)
        if original is not None:
            self.compared += 1
            what = f"its copy of the model of {other.number}, number {edge.copy.number}, differs from the original"
            self._require(np.array_equal(edge.copy.alpha, original), world, host, what)

    def _check_agreement(self, world: World, host: Host, other: Host) -> None:
        here, there = host.member.peer, other.member.peer
        if isinstance(there.neighbourhood, EvidenceGraph):
            follows, is_follower = here.edges.has_neighbour(there.me), here.me in there.neighbourhood.followers
            what = f"edge to {other.number}: followed is {follows} here, {is_follower} there"
            self._require(follows == is_follower, world, host, what)
            return
        edge, back = here.edges.get(there.me, Edge()), there.edges.get(here.me, Edge())
        what = f"edge to {other.number}: {edge.weight} at {edge.rank} here, {back.weight} at {back.rank} there"
        self._require(edge.weight == back.weight, world, host, what)

    def _require(self, holds: bool, world: World, host: Host, what: str) -> None:
        self.checked += 1
        if not holds:
            raise InvariantError(
                f"at {world.now:.3f} s, event {world.events}, host {host.number}: {what}\nreplay: {self.replay}"
            )


def _is_informed(host: Host, other: Host) -> bool:
    """Whether a host believes the other end of their edge to be informed. After lost records it believes nothing."""
    edge = host.member.peer.edges.get(other.me)
    return host.life == 1 if edge is None else edge.acknowledged


def _is_sure(host: Host, other: Host) -> bool:
    """Whether a host of an evidence graph was informed in its present life whether the other follows it."""
    neighbourhood = host.member.peer.neighbourhood
    state = neighbourhood.follow_states.get(other.me) if isinstance(neighbourhood, EvidenceGraph) else None
    return host.life == 1 if state is None else state.is_sure
