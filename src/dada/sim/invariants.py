"""Invariants of a simulated network: of two hosts after each message, of a whole host whenever it wakes up.

- A model stays in its l1 ball, a shared model within four times its radius.
- Weights, losses and degrees are finite, and weights are not negative.
- The two ends of a settled edge hold the same weight. An edge is settled if both ends are running and honest, no
  message is under way between them, and each believes the other to be informed. At the end of a run this holds for
  every edge. In an evidence graph, a peer follows another exactly if the other has it among its followers.
- The state of an edge only changes to a higher (version, author), and what a peer holds of a follower only to a higher
  version. The versions of a peer rise from life to life.
- A copy of a model equals, bit for bit, the model that its owner had at that number. It never returns to a lower
  number. In an evidence graph, when all activity ends, it is the owner's present model.
- A peer has one model per number, and no number repeats in a later life.
- No peer holds or judges a model outside the ball, whoever sent it.
- Margins, degrees and the sum of the neighbours' models are what models, weights and copies give.
- Whatever a message states about its sender is stored before: epoch, model, edges, followers. No power cut can undo an
  epoch. Stored counters, edges and views are those in memory. Changes of models go to followers only.
- A peer loads what it stored, or finds the damage.
- All memory is bounded.
- Every peer has a fallback model.
- No message raises an error.
- No honest peer is taken for a liar that sends its followers different models.
- Of a peer that protects its rows, one release is sent in all its lives, whoever passes it on.
- With trees, a dictionary is stored before a model refers to it. No tree is lost that the model of a peer uses. When
  all activity ends, all peers have the same dictionary.
- With boosted trees, the records of a peer are stored, and it loses no tree of an honest peer, in this life or in the
  next, unless the power is cut. When all activity ends, all peers hold the same trees, and the values of their leaves
  are those that these trees give a peer that begins anew, bit for bit.

Numbers may repeat only if two processes have one identity, or if a clock was set back together with the records. Such
peers are exempt from what follows from numbers, and from the agreement of edges before the end.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from dada.core.compiled import Array
from dada.core.graph import gossip_mix
from dada.peer.boosted_trees import OwnLeaves
from dada.peer.copies import MOST_SHARED, SLACK, ModelCopy
from dada.peer.edges import EDGE_KEY, MOST_ENDED_EDGES, MOST_SIZES, Edge
from dada.peer.grove import DICTIONARY_KEY
from dada.peer.inputs import PeerConfig, Send
from dada.peer.messages import (
    EdgeState,
    Follow,
    FollowAck,
    Message,
    ModelChange,
    PeerId,
    Release,
    ViewRequest,
    epoch_of,
)
from dada.peer.model import EPOCH_KEY, MODEL_KEY
from dada.peer.neighbourhoods import FOLLOWER_KEY, MOST_EDGES, MOST_FOLLOWERS, AgreedGraph, EvidenceGraph
from dada.peer.peer import MOST_EPOCHS, MOST_OFFENDERS
from dada.peer.sampling import MOST_CANDIDATES, MOST_KNOWN_ADDRESSES, STORED_EVERY
from dada.peer.sampling import RECORD_KEY as VIEW_KEY
from dada.peer.signatures import MOST_EXPOSED, Trail
from dada.peer.signed_trees import BOOSTED_KEY
from dada.sim.world import MOST_LOST_RECORDS, Host, VirtualDisk

# Models of each owner kept for comparison; copies of older ones are not compared.
MODELS_KEPT = 128
# Running honest peers from which on some must learn from each other at the end.
MOST_APART = 8
# Records of a member other than edges.
OTHER_RECORDS = 8


class InvariantError(AssertionError):
    """An invariant is violated."""


class Watched(Protocol):
    """A network whose invariants are checked."""

    @property
    def hosts(self) -> Sequence[Host]:
        """All hosts, by number."""

    @property
    def numbers(self) -> Mapping[PeerId, int]:
        """The number of each host, by its id."""

    @property
    def now(self) -> float:
        """Virtual time."""

    @property
    def events(self) -> int:
        """Events so far."""

    @property
    def failures(self) -> Sequence[str]:
        """Messages that raised an error."""

    def is_message_under_way(self, host: Host, other: Host) -> bool:
        """Whether a message between two hosts has not arrived yet."""


class Invariants:
    """Watches a network, and raises `InvariantError` after the first event that violates an invariant.

    The error contains `replay`, the command that repeats the run.
    """

    def __init__(self, replay: str) -> None:
        self.replay = replay
        self.checked = 0
        self.compared = 0
        self._history: defaultdict[int, OrderedDict[tuple[int, int], Array]] = defaultdict(OrderedDict)
        self._seen: dict[tuple[int, int], tuple[Trail, tuple[int, int]]] = {}
        self._held: dict[tuple[int, PeerId], tuple[int, tuple[int, PeerId], float]] = {}
        self._followed: dict[tuple[int, PeerId], tuple[int, int]] = {}
        self._versions: dict[int, tuple[int, int]] = {}
        self._noted: dict[int, tuple[int, int, tuple[int, int]]] = {}
        self._trees_used: dict[int, tuple[int, set[bytes]]] = {}
        self._released: dict[PeerId, bytes] = {}
        self._trees_held: dict[int, tuple[tuple[VirtualDisk | None, int], dict[PeerId, set[bytes]]]] = {}
        # The last change that was sent, the followers at that time, and whether the model was stored.
        self._sent: tuple[Message | None, list[PeerId] | None, bool] = None, None, False

    def before_sending(self, world: Watched, host: Host, send: Send) -> None:
        """Check that a message states nothing that a crash could undo."""
        message, peer, records = send.message, host.member.peer, host.records
        epoch = epoch_of(message)
        stored_epoch = int.from_bytes(records.get(EPOCH_KEY, b""), "big")
        self._require(epoch in (None, stored_epoch), world, host, "epoch {} is sent, {} is stored", epoch, stored_epoch)
        is_synced = not host.disk.may_lose(EPOCH_KEY)
        self._require(is_synced, world, host, "a power cut can undo epoch {}", stored_epoch)
        dictionary = getattr(getattr(message, "snapshot", None), "coordinates", b"")
        if host.member.grove is not None and dictionary:
            is_stored = DICTIONARY_KEY + dictionary in records
            self._require(is_stored, world, host, "a model over trees is sent before these are stored")
        if isinstance(message, ModelChange):
            followers, is_stored = self._sent[1:] if self._sent[0] is message else (None, False)
            if followers is None:
                followers, is_stored = peer.neighbourhood.followers, records.get(MODEL_KEY) == peer.own.record().value
                self._sent = message, followers, is_stored
            self._require(send.to in followers, world, host, "a change goes to a peer that does not follow")
            self._require(is_stored, world, host, "a change is sent before the model is stored")
        elif isinstance(message, Follow | EdgeState) and (message.version > 0 and send.to in peer.edges):
            edge = peer.edges[send.to]
            is_stored = EDGE_KEY + send.to in records or edge.version == 0
            self._require(is_stored, world, host, "an edge at version {} is sent before it is stored", message.version)
        elif isinstance(message, Release):
            first = self._released.setdefault(message.owner, message.body)
            self._require(message.body == first, world, host, "another release is sent than the first of its owner")
        elif isinstance(message, FollowAck) and message.follows:
            is_stored = FOLLOWER_KEY + send.to in records
            self._require(is_stored, world, host, "a follower is acknowledged before it is stored")
        elif isinstance(message, ViewRequest) and host.member.sampling.exchanges % STORED_EVERY == 1:
            is_stored = records.get(VIEW_KEY) == host.member.sampling.record().value
            self._require(is_stored, world, host, "an exchange of views begins before the view is stored")

    def after(self, world: Watched, host: Host, other: Host | None) -> None:
        """Check the host of an event: all of it when it starts or wakes up, otherwise what it holds of the other."""
        self._require(not world.failures, world, host, "{}", world.failures)
        if not host.is_honest:
            return
        self._note_model(world, host)
        if host.is_up and other is None:
            self._check_bounds(world, host)
            self._check_degree(world, host)
            self._check_sum(world, host)
            self._check_records(world, host)
            self._check_versions(world, host)
            self._check_trees(world, host)
            self._check_boosted(world, host)
        elif host.is_up and other is not None:
            if host.member.peer.edges.has_neighbour(other.me):
                self._check_sum(world, host)
            self._check_held(world, host, other.me)
            self._check_edge(world, host, other)

    def check_all(self, world: Watched) -> None:
        """Check every host and every edge, settled or not, at the end of a run."""
        running = [host for host in world.hosts if host.is_honest and host.is_up]
        n_edges = 0
        for host in running:
            self._check_dictionary(world, host, running[0])
            self._check_leaves(world, host, running[0])
            self._check_bounds(world, host)
            self._check_records(world, host)
            for other in running:
                if other is not host and not _is_ignored(host, other):
                    self._check_copy(world, host, other)
                    self._check_agreement(world, host, other)
                    n_edges += self._check_present(world, host, other)
        # Peers that protect their rows have releases instead of edges.
        is_enough = n_edges > 0 or len(running) < MOST_APART or running[0].member.releases is not None
        self._require(is_enough, world, world.hosts[0], "no two peers learn from each other")

    # -- one peer --------------------------------------------------------------------------------------------------

    def _note_model(self, world: Watched, host: Host) -> None:
        """Check the model after each step, and keep it by its number."""
        own, config = host.member.peer.own, host.member.peer.config
        state = host.life, own.updates, own.shared.number
        if self._noted.get(host.number) == state:
            return
        self._noted[host.number] = state
        norm = float(np.abs(own.model.alpha.astype(np.float64)).sum())
        self._require(norm <= config.beta * (1 + SLACK), world, host, "model of l1 norm {}", norm)
        margins = own.user.offset + own.rows.A.astype(np.float64) @ own.model.alpha
        difference, most = float(np.abs(margins - own.user.margins).max()), _slack(config) * config.largest_prediction
        self._require(difference <= most, world, host, "margins off by {}", difference)
        history = self._history[host.number]
        if own.shared.number in history:
            is_same = np.array_equal(history[own.shared.number], own.shared.alpha) or host.may_repeat
            self._require(is_same, world, host, "a second model with the number {}", own.shared.number)
            return
        if config.sends_codes:
            norm = float(np.abs(own.shared.alpha.astype(np.float64)).sum())
            self._require(norm <= MOST_SHARED * config.beta, world, host, "shared model of l1 norm {}", norm)
        history[own.shared.number] = own.shared.alpha.copy()
        if len(history) > MODELS_KEPT:
            history.popitem(last=False)

    def _check_bounds(self, world: Watched, host: Host) -> None:
        member = host.member
        peer, sampling, neighbourhood = member.peer, member.sampling, member.peer.neighbourhood
        round_ = neighbourhood.rounds.current
        most_edges = (peer.config.max_neighbours or len(world.hosts)) + MOST_ENDED_EDGES
        most_followers = len(world.hosts) if isinstance(neighbourhood, EvidenceGraph) else 0
        n_records = 0 if member.grove is None else len(member.grove.records) + OTHER_RECORDS
        n_records += 0 if member.boosting is None else len(member.boosting.records) + 1
        most_neighbours = {"everyone": MOST_EDGES, "evidence": peer.config.n_neighbours}
        bounds = (
            ("neighbours", len(peer.edges.neighbours), most_neighbours.get(peer.config.graph, most_edges)),
            ("edges", len(peer.edges), most_edges + MOST_LOST_RECORDS),
            (
                "records",
                len(host.records),
                most_edges + 2 * MOST_LOST_RECORDS + OTHER_RECORDS + most_followers + len(peer.exposed) + n_records,
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
        self._require(not excess, world, host, "{}", excess)
        self._require(host.me not in sampling.view, world, host, "its view contains itself")
        self._require(member.fallback.alpha.size > 0, world, host, "no fallback model")
        confidence = neighbourhood.sizes.confidence
        self._require(0.0 < confidence <= 1.0, world, host, "a confidence of {}", confidence)
        exposed = [world.hosts[world.numbers[other]] for other in peer.exposed]
        slandered = [other.number for other in exposed if other.is_honest and not other.may_repeat]
        self._require(not slandered, world, host, "honest peers taken for liars: {}", slandered)

    def _check_degree(self, world: Watched, host: Host) -> None:
        edges = host.member.peer.edges
        weights = sum(edge.weight for edge in edges.values())
        self._require(0.0 <= edges.degree < math.inf, world, host, "a degree of {}", edges.degree)
        is_sum = abs(weights - edges.degree) <= _slack(host.member.peer.config)
        self._require(is_sum, world, host, "a degree of {}, weights of {}", edges.degree, weights)

    def _check_sum(self, world: Watched, host: Host) -> None:
        """The sum of the neighbours' models, which changes update, is that of the copies."""
        own, edges = host.member.peer.own, host.member.peer.edges
        if not own.is_stale:
            weights, expected = edges.neighbour_sum()
            difference = float(np.abs(own.user.neighbour_sum - expected).max())
            is_sum = difference <= _slack(own.config) * max(1.0, weights)
            self._require(is_sum, world, host, "a sum of models off by {}", difference)

    def _check_records(self, world: Watched, host: Host) -> None:
        """Stored counters are those in memory, and the store loads what it stored."""
        self._require(host.is_loaded, world, host, "records differ from those that were stored")
        member, records = host.member, host.records
        own, planner = member.peer.own, member.planner.record()
        # A member that protects its rows makes no steps.
        is_stored = records.get(planner.key) == planner.value or member.releases is not None
        self._require(is_stored, world, host, "counters of wake-ups are not stored")
        if MODEL_KEY in records:
            updates = msgspec.msgpack.decode(records[MODEL_KEY])[1]
            self._require(updates <= own.updates, world, host, "{} updates, {} are stored", own.updates, updates)
        n_stored = sum(key.startswith(EDGE_KEY) for key in records)
        self._require(n_stored == len(member.peer.edges), world, host, "{} edges stored", n_stored)

    def _check_versions(self, world: Watched, host: Host) -> None:
        """Versions rise from life to life."""
        latest = host.member.peer.edges.versions.latest(0)
        life, before = self._versions.get(host.number, (0, 0))
        rises = life == host.life or latest > before or host.may_repeat
        self._require(rises, world, host, "versions from {} on after {} in another life", latest, before)
        self._versions[host.number] = host.life, latest

    def _check_trees(self, world: Watched, host: Host) -> None:
        """The dictionary is stored, and has all trees that the model uses, in this life or stored by an earlier one."""
        grove, own = host.member.grove, host.member.peer.own
        if grove is None:
            return
        is_stored = not grove.names or host.records.get(DICTIONARY_KEY + grove.name) == b"".join(grove.atoms)
        self._require(is_stored, world, host, "{} trees are not stored", len(grove.names))
        life, used = self._trees_used.get(host.number, (0, set()))
        lost = used - set(grove.names) if life == host.life else ()
        self._require(not lost, world, host, "{} trees in use are lost", len(lost))
        self._trees_used[host.number] = host.life, grove.used_by([own.model.alpha, own.shared.alpha])

    def _check_boosted(self, world: Watched, host: Host) -> None:
        """All records of boosted trees are stored; none loses a tree, in this life or between two."""
        boosting = host.member.boosting
        if boosting is None:
            return
        own = {record.peer: record for record in boosting.records}
        n_stored = sum(key.startswith(BOOSTED_KEY) for key in host.records)
        is_same = all(host.records.get(one.key) == one.value for one in boosting.records.stored([host.me]))
        self._require(is_same and n_stored == len(own), world, host, "{} of {} records stored", n_stored, len(own))
        disk, before = self._trees_held.get(host.number, ((None, 0), {}))
        present = host.disk, host.disk.power_cuts
        now = {peer: {one.tree for one in record.trees} for peer, record in own.items()}
        lost = {
            world.numbers[peer]: len(trees - now.get(peer, set()))
            for peer, trees in (before.items() if disk == present else ())
            if world.hosts[world.numbers[peer]].is_honest and not trees <= now.get(peer, set())
        }
        self._require(not lost, world, host, "boosted trees are lost, by their growers: {}", lost)
        self._trees_held[host.number] = present, now

    # -- two peers -------------------------------------------------------------------------------------------------

    def _check_edge(self, world: Watched, host: Host, other: Host) -> None:
        edge = host.member.peer.edges.get(other.me)
        if edge is not None:
            self._require(0.0 <= edge.weight < math.inf, world, host, "weight {} to {}", edge.weight, other.number)
        if not (other.is_honest and other.is_up):
            return
        self._check_copy(world, host, other)
        if world.is_message_under_way(host, other) or host.may_repeat or other.may_repeat:
            return
        if isinstance(host.member.peer.neighbourhood, EvidenceGraph):
            for follower, followed in ((host, other), (other, host)):
                if _is_informed(follower, followed) and _is_sure(followed, follower):
                    self._check_agreement(world, follower, followed)
        elif _is_informed(host, other) and _is_informed(other, host):
            self._check_agreement(world, host, other)

    def _check_held(self, world: Watched, host: Host, other: PeerId) -> None:
        """States of an edge only change to higher ones, and no liar's model or weight is beyond its bounds."""
        peer = host.member.peer
        config, neighbourhood, edge = peer.config, peer.neighbourhood, peer.edges.get(other)
        replies = neighbourhood.rounds.current.replies if neighbourhood.rounds.current else {}
        if other in replies:
            self._check_model(world, host, replies[other][1])
        if isinstance(neighbourhood, EvidenceGraph):
            state = neighbourhood.follow_states.get(other)
            if state is not None:
                life, version = self._followed.get((host.number, other), (0, 0))
                is_newer = life != host.life or version <= state.version
                self._require(is_newer, world, host, "a follower at version {} after {}", state.version, version)
                self._followed[host.number, other] = host.life, state.version
        if edge is None:
            return
        if edge.copy is not None:
            self._check_model(world, host, edge.copy)
        if config.graph == "distance":
            is_bounded = edge.weight <= config.heaviest_weight * (1 + SLACK)
            self._require(is_bounded, world, host, "a weight of {}", edge.weight)
        if isinstance(neighbourhood, AgreedGraph):
            life, rank, weight = self._held.get((host.number, other), (0, (0, b""), 0.0))
            is_newer = life != host.life or rank < edge.rank or (rank, weight) == (edge.rank, edge.weight)
            what = "an edge of weight {} at {} after {} at {}"
            self._require(is_newer, world, host, what, edge.weight, edge.rank, weight, rank)
            self._held[host.number, other] = host.life, edge.rank, edge.weight

    def _check_model(self, world: Watched, host: Host, copy: ModelCopy) -> None:
        config = host.member.peer.config
        norm, most = copy.norm, MOST_SHARED if config.sends_codes else 1 + SLACK
        self._require(norm <= most * config.beta, world, host, "a copy of l1 norm {}", norm)

    def _check_present(self, world: Watched, host: Host, other: Host) -> bool:
        """Whether a peer learns from another; in an evidence graph, its copy is then the other's present model."""
        edge = host.member.peer.edges.get(other.me, Edge())
        if edge.weight == 0.0:
            return False
        if isinstance(host.member.peer.neighbourhood, EvidenceGraph):
            number, present = None if edge.copy is None else edge.copy.number, other.member.peer.own.shared.number
            what = "its copy of the model of {} has the number {}, the original {}"
            self._require(number == present, world, host, what, other.number, number, present)
        return True

    def _check_dictionary(self, world: Watched, host: Host, other: Host) -> None:
        here, there = host.member.grove, other.member.grove
        if here is not None and there is not None and not _is_ignored(host, other):
            is_same = here.names == there.names and here.name == host.member.peer.config.dictionary
            self._require(is_same, world, host, "{} trees, {} has {}", len(here.names), other.number, len(there.names))

    def _check_leaves(self, world: Watched, host: Host, other: Host) -> None:
        here, there = host.member.boosting, other.member.boosting
        if here is None or there is None or _is_ignored(host, other):
            return
        is_same = here.trees == there.trees
        self._require(
            is_same, world, host, "{} boosted trees, {} has {}", len(here.trees), other.number, len(there.trees)
        )
        anew = OwnLeaves(here.terms, here.rows)
        anew.take(here.trees)
        own = here.leaves()
        is_same = all(np.array_equal(one, two) for one, two in zip(own.values, anew.values, strict=True))
        is_same = is_same and np.array_equal(own.margins, anew.margins)
        self._require(is_same, world, host, "other values of leaves than its trees give")

    def _check_copy(self, world: Watched, host: Host, other: Host) -> None:
        edge = host.member.peer.edges.get(other.me)
        if edge is None or edge.copy is None or edge.copy.is_rebased or other.may_repeat:
            return
        pair = (host.number, other.number)
        trail, number = self._seen.get(pair, (None, (0, 0)))
        is_older = trail is edge.trail and edge.copy.number < number
        self._require(not is_older, world, host, "its copy of the model of {} is older than before", other.number)
        self._seen[pair] = edge.trail, edge.copy.number
        original = self._history[other.number].get(edge.copy.number)
        if original is not None:
            self.compared += 1
            what, is_same = (
                "its copy of the model of {} differs from the original",
                np.array_equal(edge.copy.alpha, original),
            )
            self._require(is_same, world, host, what, other.number)

    def _check_agreement(self, world: Watched, host: Host, other: Host) -> None:
        here, there = host.member.peer, other.member.peer
        if isinstance(there.neighbourhood, EvidenceGraph):
            follows, is_follower = here.edges.has_neighbour(there.me), here.me in there.neighbourhood.followers
            what = "edge to {}: followed is {} here, {} there"
            self._require(follows == is_follower, world, host, what, other.number, follows, is_follower)
            return
        edge, back = here.edges.get(there.me, Edge()), there.edges.get(here.me, Edge())
        what, is_same = "edge to {}: {} at {} here, {} at {} there", edge.weight == back.weight
        self._require(is_same, world, host, what, other.number, edge.weight, edge.rank, back.weight, back.rank)

    def _require(self, holds: bool, world: Watched, host: Host, what: str, *values: object) -> None:
        self.checked += 1
        if not holds:
            where = f"at {world.now:.3f} s, event {world.events}, host {host.number}"
            raise InvariantError(f"{where}: {what.format(*values)}\nreplay: {self.replay}")


def _slack(config: PeerConfig) -> float:
    return SLACK * max(1.0, config.beta)


def _is_informed(host: Host, other: Host) -> bool:
    """Whether a host believes the other end of their edge to be informed. After lost records it believes nothing."""
    edge = host.member.peer.edges.get(other.me)
    return host.life == 1 if edge is None else edge.acknowledged


def _is_sure(host: Host, other: Host) -> bool:
    """Whether a host of an evidence graph was informed in its present life whether the other follows it."""
    neighbourhood = host.member.peer.neighbourhood
    state = neighbourhood.follow_states.get(other.me) if isinstance(neighbourhood, EvidenceGraph) else None
    return host.life == 1 if state is None else state.is_sure


def _is_ignored(host: Host, other: Host) -> bool:
    """Whether one of two hosts ignores the other, which may happen if numbers repeat."""
    here, there = host.member.peer, other.member.peer
    return (host.may_repeat or other.may_repeat) and (here.ignores(there.me) or there.ignores(here.me))
