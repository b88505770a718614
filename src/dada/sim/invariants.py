"""What must hold at every moment of a simulated network, checked after every event for those it had to do with.

- A model stays in its l1 ball; weights, losses and degrees are numbers, and weights are not negative.
- The two ends of a settled edge hold the same weight. Settled: both ends are up and honest, nothing is under way
  between them, and each believes the other to know. When all has come to rest, this holds for every edge. In an
  evidence graph, where a weight is its owner's alone, a peer is followed by those who it believes follow it.
- A copy of a model is, bit for bit, the model that its owner had at that number.
- Nothing grows without bound.
- Every peer has a model of its own to fall back on.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict

import numpy as np

from dada.core.compiled import Array
from dada.core.neighbours import gossip_mix
from dada.peer.edges import MOST_ENDED_EDGES, MOST_SIZES, Edge
from dada.peer.evidence_graph import MOST_LISTENERS, Following
from dada.peer.model import SLACK
from dada.peer.peer import MOST_OFFENDERS
from dada.peer.sampling import MOST_CANDIDATES
from dada.sim.world import MOST_LOST_RECORDS, Host, World

# Models of each owner that are kept for comparison; copies of older ones are too late to compare.
MODELS_KEPT = 128
# Records of a member besides those of its edges.
OTHER_RECORDS = 8


class InvariantError(AssertionError):
    """Something happened that never should."""


class Invariants:
    """Watches a world, and raises `InvariantError` at the first event after which something is wrong.

    Parameters
    ----------
    replay : str
        The command that repeats the run.
    """

    def __init__(self, replay: str) -> None:
        self.replay = replay
        self.checked = 0
        self.compared = 0
        self._history: defaultdict[int, OrderedDict[tuple[int, int], Array]] = defaultdict(OrderedDict)
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}

    def after(self, world: World, host: Host, other: Host | None) -> None:
        """Check the host of an event, and its edge to the other."""
        if not host.is_honest:
            return
        self._note_model(world, host)
        if host.is_up:
            self._check_bounds(world, host)
            if other is not None:
                self._check_edge(world, host, other)

    def check_all(self, world: World) -> None:
        """Check every host and every edge, settled or not: call when all has come to rest."""
        living = [host for host in world.hosts if host.is_honest and host.is_up]
        for host in living:
            self._check_bounds(world, host)
            for other in living:
                if other is not host:
                    self._check_copy(world, host, other)
                    self._check_agreement(world, host, other)

    # -- one peer --------------------------------------------------------------------------------------------------

    def _note_model(self, world: World, host: Host) -> None:
        model = host.member.peer.model
        history = self._history[host.number]
        if model.number in history:
            return
        norm = float(np.abs(model.alpha.astype(np.float64)).sum())
        self._require(norm <= host.member.peer.config.beta * (1 + SLACK), world, host, f"model of l1 norm {norm}")
        history[model.number] = model.alpha.copy()
        if len(history) > MODELS_KEPT:
            history.popitem(last=False)

    def _check_bounds(self, world: World, host: Host) -> None:
        member = host.member
        peer, sampling = member.peer, member.sampling
        most_edges = (peer.config.max_neighbours or len(world.hosts)) + MOST_ENDED_EDGES
        most_listeners = len(world.hosts) if isinstance(peer.neighbourhood, Following) else 0
        bounds = (
            ("edges", len(peer.edges), most_edges + MOST_LOST_RECORDS),
            ("records", len(host.records), most_edges + 2 * MOST_LOST_RECORDS + OTHER_RECORDS + most_listeners),
            ("waiting edges", len(peer.waiting), len(peer.edges)),
            ("offenders", len(peer.offences), MOST_OFFENDERS),
            ("sizes", len(peer.sizes), MOST_SIZES),
            ("view", len(sampling.view), sampling.view_size),
            ("reserve", len(sampling.reserve), sampling.view_size),
            ("senders", len(member.limit), member.limit.most_senders),
            ("replies", len(peer.round.replies) if peer.round else 0, gossip_mix(member.planner.rhythm.kappa).size),
            ("candidates", len(member.search.candidates), MOST_CANDIDATES),
            ("listeners", len(peer.listeners), MOST_LISTENERS),
        )
        for name, size, most in bounds:
            self._require(size <= most, world, host, f"{size} {name}, at most {most} are allowed")
        self._require(0.0 <= peer.degree < math.inf, world, host, f"a degree of {peer.degree}")
        self._require(member.fallback.alpha.size > 0, world, host, "no model of its own to fall back on")

    # -- two peers -------------------------------------------------------------------------------------------------

    def _check_edge(self, world: World, host: Host, other: Host) -> None:
        edge = host.member.peer.edges.get(other.me)
        if edge is not None:
            self._require(0.0 <= edge.weight < math.inf, world, host, f"weight {edge.weight} to {other.number}")
        if not (other.is_honest and other.is_up):
            return
        self._check_copy(world, host, other)
        pair = (host.number, other.number) if host.number < other.number else (other.number, host.number)
        back = other.member.peer.edges.get(host.me)
        if world.under_way[pair]:
            return
        if isinstance(host.member.peer.neighbourhood, Following):
            for follower, followed in ((host, other), (other, host)):
                if _is_told(follower, follower.member.peer.edges.get(followed.me)) and _is_sure(followed, follower):
                    self._check_agreement(world, follower, followed)
        elif _is_told(host, edge) and _is_told(other, back):
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
        if isinstance(other.member.peer.neighbourhood, Following):
            follows, is_heard = other.me in host.member.peer.neighbours, host.me in other.member.peer.listeners
            what = f"edge to {other.number}: followed is {follows} here, {is_heard} there"
            self._require(follows == is_heard, world, host, what)
            return
        here = host.member.peer.edges.get(other.me, Edge())
        there = other.member.peer.edges.get(host.me, Edge())
        what = f"edge to {other.number}: {here.weight} at {here.rank} here, {there.weight} at {there.rank} there"
        self._require(here.weight == there.weight, world, host, what)

    def _require(self, holds: bool, world: World, host: Host, what: str) -> None:
        self.checked += 1
        if not holds:
            raise InvariantError(
                f"at {world.now:.3f} s, event {world.events}, host {host.number}: {what}\nreplay: {self.replay}"
            )


def _is_told(host: Host, edge: Edge | None) -> bool:
    """Whether an end of an edge believes the other to know; one that may have lost its records believes nothing."""
    return host.life == 1 if edge is None else edge.acknowledged


def _is_sure(host: Host, other: Host) -> bool:
    """Whether a host of an evidence graph has heard in its present life whether the other follows it."""
    neighbourhood = host.member.peer.neighbourhood
    listener = neighbourhood.heard.get(other.me) if isinstance(neighbourhood, Following) else None
    return host.life == 1 if listener is None else listener.is_sure
