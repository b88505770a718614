"""Invariants of a simulated network, checked after every event for the hosts it involved.

- A model stays in its l1 ball, a shared model within four times its radius.
- Weights, losses and degrees are finite, and weights are not negative.
- The two ends of a settled edge hold the same weight. An edge is settled if both ends are running and honest, no
  message is under way between them, and each believes the other to be informed. At the end of a run this holds for
  every edge. In an evidence graph, a peer follows another exactly if the other has it among its followers.
- A copy of a model equals, bit for bit, the model that its owner had at that number.
- All memory is bounded.
- Every peer has a fallback model.
- No message raises an error.
- No honest peer is taken for a liar that sends its followers different models.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict

import numpy as np

from dada.core.compiled import Array
from dada.core.neighbours import gossip_mix
from dada.peer.copies import MOST_SHARED, SLACK
from dada.peer.edges import MOST_ENDED_EDGES, MOST_SIZES, Edge
from dada.peer.everyone_graph import MOST_EDGES
from dada.peer.evidence_graph import MOST_FOLLOWERS, EvidenceGraph
from dada.peer.peer import MOST_EPOCHS, MOST_OFFENDERS
from dada.peer.sampling import MOST_CANDIDATES, MOST_KNOWN_ADDRESSES
from dada.peer.witnesses import MOST_EXPOSED
from dada.sim.world import MOST_LOST_RECORDS, Host, World

# Models of each owner kept for comparison; copies of older ones are not compared.
MODELS_KEPT = 128
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
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}

    def after(self, world: World, host: Host, other: Host | None) -> None:
        """Check the host of an event, and its edge to the other."""
        self._require(not world.failures, world, host, "; ".join(world.failures))
        if not host.is_honest:
            return
        self._note_model(world, host)
        if host.is_up:
            self._check_bounds(world, host)
            if other is not None:
                self._check_edge(world, host, other)

    def check_all(self, world: World) -> None:
        """Check every host and every edge, settled or not, at the end of a run."""
        running = [host for host in world.hosts if host.is_honest and host.is_up]
        for host in running:
            self._check_bounds(world, host)
            for other in running:
                if other is not host:
                    self._check_copy(world, host, other)
                    self._check_agreement(world, host, other)

    # -- one peer --------------------------------------------------------------------------------------------------

    def _note_model(self, world: World, host: Host) -> None:
        own, config = host.member.peer.own, host.member.peer.config
        history = self._history[host.number]
        is_new = own.shared.number not in history
        if is_new or config.sends_codes:
            norm = float(np.abs(own.model.alpha.astype(np.float64)).sum())
            self._require(norm <= config.beta * (1 + SLACK), world, host, f"model of l1 norm {norm}")
        if not is_new:
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
        background = [("neighbours", len(peer.edges.neighbours), MOST_EDGES)] if peer.config.graph == "everyone" else []
        bounds = (
            *background,
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
        self._require(0.0 <= peer.edges.degree < math.inf, world, host, f"a degree of {peer.edges.degree}")
        self._require(member.fallback.alpha.size > 0, world, host, "no fallback model")
        slandered = [peer for peer in peer.exposed if world.hosts[world.numbers[peer]].is_honest]
        self._require(not slandered, world, host, f"honest peers taken for liars: {slandered}")

    # -- two peers -------------------------------------------------------------------------------------------------

    def _check_edge(self, world: World, host: Host, other: Host) -> None:
        edge = host.member.peer.edges.get(other.me)
        if edge is not None:
            self._require(0.0 <= edge.weight < math.inf, world, host, f"weight {edge.weight} to {other.number}")
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

    def _check_copy(self, world: World, host: Host, other: Host) -> None:
        edge = host.member.peer.edges.get(other.me)
        if edge is None or edge.copy is None:
            return
        pair = (host.number, other.number)
        if self._seen.get(pair) == edge.copy.number:
            return
        self._seen[pair] = edge.copy.number
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
