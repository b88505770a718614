"""A simulated network: from users' samples, faults and a seed to models, counts and checked invariants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import numpy as np

from dada.core.compiled import Array
from dada.core.model_steps import UserRows
from dada.core.problem import Problem
from dada.events import Observer, PeerStatus, RunInfo, Snapshot, SnapshotOffer, edges_reported, heaviest_predictors
from dada.peer.boosted_trees import BoostedUsers, LeafModel, varying_in
from dada.peer.boosting import SharedBoosting
from dada.peer.grove import Orchard, SharedGrove
from dada.peer.inputs import PeerConfig
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.messages import PeerId
from dada.peer.peer import Peer, PeerJournal
from dada.peer.sampling import PeerSampling
from dada.peer.signatures import Membership
from dada.sim.invariants import Invariants
from dada.sim.liars import KINDS, Liar
from dada.sim.private import PrivateUsers, alone, together, trusts
from dada.sim.virtual import MEDIAN_LATENCY_S, Cut, Faults, VirtualSeal, steady_link
from dada.sim.world import Host, World

WAKEUPS_PER_EXCHANGE = 5.0
# The key that excludes members of a simulated network.
FOUNDER = b"founder"
# Mean time between two crashes of a churning peer, and until it restarts, as shares of the run.
UPTIME, DOWNTIME = 1 / 5, 1 / 15
# Largest error of the rate of a clock, and longest time in which a slow peer handles a message.
MOST_DRIFT, SLOWEST_S = 0.1, 0.05
# Time for the last messages and repeats after the run.
SETTLING_S = 300.0


def peer_id(k: int) -> PeerId:
    """The id of the peer of user k; ids have the order of the users."""
    return k.to_bytes(8, "big")


@dataclass(frozen=True)
class NetworkPoint:
    """The state of a simulated network at a time: peers that run, and edges between honest ones."""

    time_s: float
    up: int
    edges: int


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """The end of a simulation. Rows of liars are zero in all models.

    Attributes
    ----------
    together, alone : arrays of shape (n_users, n_predictors)
        The models learned with others, and the fallback models.
    trusts : array of bool
        Users who predict with the model learned with others.
    honest : array of bool
    edges : int
        Edges between honest members that are running.
    counts : dict
        Messages and bytes delivered; messages sent, lost and refused; restarts of members.
    bits : float
        Bits of honest members' messages about models, in the count of `dada.core.bits`.
    events, checks : int
        Number of events, and of checked invariants.
    leaves : dict
        Of users of a network with boosted trees, those that they hold, and their own values of the leaves.
    """

    together: Array
    alone: Array
    trusts: Array
    honest: Array
    edges: int
    counts: dict[str, int]
    bits: float
    events: int
    checks: int
    leaves: dict[int, LeafModel] = field(default_factory=dict)

    @property
    def models(self) -> Array:
        """The models that users predict with."""
        return np.where(self.trusts[:, None], self.together, self.alone)


class SimulatedNetwork:
    """A virtual network of the users of a problem.

    Parameters
    ----------
    problem : Problem
        Its rows are the users' samples.
    config : PeerConfig
        Settings of all peers.
    rhythm : Rhythm
        Order of their model steps and graph steps.
    faults : Faults
        Shares of messages and peers that faults affect.
    steps : int
        Wake-ups per user, on average.
    seed : int
        Source of all randomness.
    replay : str
        The command that repeats the run, for the error message of a violated invariant.
    journal : binary file, optional
        Records the facts of the first peer.
    private : PrivateUsers, optional
        What private peers learn from instead of the problem's rows, which stay at home.
    liar_kinds : sequence of classes
        Kinds of liars, in turn.
    liars_join_s : float
        When liars join; until then there are only honest peers.
    orchard : Orchard, optional
        Samples and trees of the users of a network with trees. The problem then has all trees, in the order of their
        names, after the fixed base predictors, and the settings have the fixed ones only.
    boosted : BoostedUsers, optional
        Samples of the users of a network with boosted trees, for these.

    Examples
    --------
    >>> problem = Problem(np.array([[1, -1], [1, 1], [-1, 1]], np.int8), np.array([0, 2, 3]), beta=1.0, mu1=0.5)
    >>> config = PeerConfig(n_predictors=2, beta=1.0, mu1=0.5)
    >>> rhythm = Rhythm(local_steps=2, first_graph_steps=1)
    >>> result = SimulatedNetwork(problem, config, rhythm, Faults(lost=0.2), steps=10, seed=0).run()
    >>> result.models.shape, result.edges, result.checks > 100
    ((2, 2), 1, True)
    """

    def __init__(
        self,
        problem: Problem,
        config: PeerConfig,
        rhythm: Rhythm,
        faults: Faults,
        *,
        steps: int,
        seed: int,
        replay: str = "",
        journal: BinaryIO | None = None,
        private: PrivateUsers | None = None,
        liar_kinds: Sequence[type[Liar]] = KINDS,
        liars_join_s: float = 0.0,
        orchard: Orchard | None = None,
        boosted: BoostedUsers | None = None,
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        self.problem, self.config, self.rhythm, self.faults = problem, config, rhythm, faults
        self.duration_s = steps / rhythm.wakeups_per_s
        self.seed = seed
        self._journal_file = journal
        self._journal: PeerJournal | None = None
        self.invariants = Invariants(replay)
        self._rows = {k: problem.rows_of(k) for k in range(problem.n_users)}
        self.orchard, self.boosted = orchard, boosted
        self._plots = {} if orchard is None else dict(enumerate(orchard.plots))
        rng = self._generator(0)
        self._roles = _Roles.draw(rng, self._generator(3), problem.n_users, faults, liar_kinds)
        self._gang = tuple(peer_id(k) for k in self._roles.liars)
        self.private = private
        if private is not None:
            self._rows = dict(enumerate(private.learned))
        hosts = [self._host(k) for k in range(problem.n_users)]
        twins = {k: self._host(k, problem.n_users + p) for p, k in enumerate(self._roles.doubled)}
        cuts = [
            Cut(self._roles.apart, self.duration_s * 1 / 3, self.duration_s * (1 / 3 + 1 / 5)),
            Cut(self._roles.unheard, self.duration_s * 3 / 5, self.duration_s * (3 / 5 + 1 / 3), is_one_way=True),
        ]
        self.world = World(
            hosts,
            faults.link(),
            self._generator(1),
            self._after,
            self.invariants.before_sending,
            [cut for cut in cuts if cut.inside],
            faults.dropping,
            twins,
        )
        self._plan_lives(rng, liars_join_s)
        self._plan_machines(self._generator(4))

    def run(self, observe: Callable[[NetworkPoint], None] | None = None, n_points: int = 20) -> SimulationResult:
        """Run for the whole time, then check that all ends agree; `observe` is called `n_points` times."""
        if observe is not None:
            for p in range(1, n_points + 1):
                self.world.at(p * self.duration_s / n_points, lambda: observe(self._point()))
        self.world.run(self.duration_s)
        result = self._result()
        self._settle()
        if self._journal is not None:
            self._journal.close()
        return result

    def change_rows(self, k: int, rows: UserRows, time_s: float) -> None:
        """Let user k have these samples from a time on, in this life of its peer and in later ones."""

        def change() -> None:
            self._rows[k] = rows
            self.world.change_rows(k, rows)

        self.world.at(time_s, change)

    def replant(self, k: int, grown: Sequence[bytes], time_s: float) -> None:
        """Let user k have grown other trees, from a time on at which its peer starts again."""

        def change() -> None:
            self._plots[k] = self._plots[k]._replace(grown=tuple(grown))
            self.world.restart(k)

        self.world.at(time_s, change)

    def check(self) -> Array:
        """Run as `run` does, without the choice between models, which takes most of the time; returns all models."""
        self.world.run(self.duration_s)
        models = self.models(together)
        self._settle()
        return models

    # -- making ----------------------------------------------------------------------------------------------------

    def _after(self, world: World, host: Host, other: Host | None) -> None:
        """Check the invariants after an event; a private peer may then make its release."""
        if self.private is not None and host.is_up:
            self.private.release_once(host.member)
        self.invariants.after(world, host, other)

    def _generator(self, *path: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *path])

    def _host(self, k: int, number: int | None = None) -> Host:
        """The machine of user k; with a number of its own, a second one."""
        is_honest, names_lives = k not in self._roles.liars, self.faults.doubled + self.faults.restored > 0.0
        if number is None:
            return Host(k, peer_id(k), self._maker(k), is_honest, names_lives=names_lives)
        return Host(number, peer_id(k), self._maker(k, number), is_honest, names_lives=True, may_repeat=True)

    def _maker(self, k: int, *twin: int) -> Callable[[int], tuple[Member, Liar | None]]:
        kind = self._roles.liars.get(k)

        def make(life: int) -> tuple[Member, Liar | None]:
            rng = self._generator(2, k, life, *twin)
            plot, seal = self._plots.get(k), VirtualSeal(peer_id(k))
            peer = Peer(peer_id(k), self._rows[k] if plot is None else plot.fixed, self.config)
            grove = None
            if plot is not None and self.orchard is not None:
                grove = SharedGrove(peer.me, self.orchard.terms, plot, self.config.digest, seal)
            if k == 0 and self._journal_file is not None:
                self._journal = PeerJournal(self._journal_file, peer)
            member = Member(
                peer,
                PeerSampling(peer.me, rng, seal=seal),
                Planner(self.rhythm, rng),
                WAKEUPS_PER_EXCHANGE / self.rhythm.wakeups_per_s,
                **({} if self.private is None else self.private.options(k, peer.me, self.config, seal)),
                journal=self._journal if k == 0 else None,
                membership=Membership(b"", FOUNDER, seal),
                grove=grove,
                boosting=self._boosting(k, seal),
            )
            return member, None if kind is None else kind(member, rng, self._gang)

        return make

    def _boosting(self, k: int, seal: VirtualSeal) -> SharedBoosting | None:
        """The boosted trees of user k, if the network has any."""
        if self.boosted is None:
            return None
        terms, rows, cuts = self.boosted
        patience_s = self.config.reply_timeout_s
        return SharedBoosting(peer_id(k), terms, rows[k], varying_in(cuts), self.config.digest, seal, patience_s)

    def _plan_lives(self, rng: np.random.Generator, liars_join_s: float) -> None:
        world, roles = self.world, self._roles
        for k in range(self.problem.n_users):
            begin = float(rng.uniform(0.1, 0.6)) * self.duration_s if k in roles.late else 0.01 * k
            begin += liars_join_s if k in roles.liars else 0.0
            # Host 0 runs from beginning to end, and all others start with its address.
            world.at(begin, world.start, k, (0,) if k > 0 else ())
            if k in roles.leaving:
                end = float(rng.uniform(0.3, 0.9)) * self.duration_s
                world.at(end, world.leave, k, bool(rng.integers(2)))
            if k in roles.churning:
                now = begin + float(rng.exponential(UPTIME)) * self.duration_s
                while now < self.duration_s:
                    world.at(now, world.crash, k)
                    now += float(rng.exponential(DOWNTIME)) * self.duration_s
                    world.at(now, world.start, k)
                    now += float(rng.exponential(UPTIME)) * self.duration_s

    def _plan_machines(self, rng: np.random.Generator) -> None:
        """Faults of machines: clocks, slow processors, restored and damaged disks, second processes."""
        world, roles, duration_s = self.world, self._roles, self.duration_s
        for k in roles.drifting:
            world.hosts[k].rate = float(rng.uniform(1.0 - MOST_DRIFT, 1.0 + MOST_DRIFT))
        for k in roles.slow:
            world.hosts[k].handling_s = float(rng.uniform(0.1, 1.0)) * SLOWEST_S
        for k in roles.restored:
            copied, restored = float(rng.uniform(0.1, 0.5)) * duration_s, float(rng.uniform(0.6, 0.9)) * duration_s
            world.at(copied, self._copy_records, k, restored, bool(rng.integers(2)))
        for k in roles.damaged:
            world.at(float(rng.uniform(0.5, 0.9)) * duration_s, world.damage_disk, k)
        for k in roles.doubled:
            begin = float(rng.uniform(0.2, 0.6)) * duration_s
            world.at(begin, world.double, k)
            world.at(begin + duration_s / 4, world.end_twin, k)

    def _copy_records(self, k: int, restored: float, has_clock: bool) -> None:
        """Copy the records of a peer, and begin its next life: the copy is of an earlier one."""
        world = self.world
        world.at(world.now + 0.01 * self.duration_s, world.restart, k)
        world.at(restored, world.restore_copy, k, dict(world.hosts[k].records), has_clock)

    # -- ending ----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """End all faults, let every two members exchange greetings, and check that all ends agree."""
        world = self.world
        world.link, world.cuts, world.dropping = steady_link(MEDIAN_LATENCY_S), (), 0.0
        for host in world.hosts:
            host.handling_s = 0.0
            if not host.is_honest:
                world.leave(host.number, with_goodbye=True)
            elif not host.has_left:
                world.revive(host.number)
        # Requests that were lost before may then be repeated.
        world.run(world.now + 2.0 * self.config.reply_timeout_s)
        world.rest()
        world.run(world.now + SETTLING_S)
        self.invariants.check_all(world)

    @property
    def joined(self) -> list[Host]:
        """Honest hosts that have joined."""
        return [host for host in self.world.hosts if host.is_honest and host.life > 0]

    def models(self, model_of: Callable[[Member], Array]) -> Array:
        """A model of each user; zero for liars and for users that have not joined."""
        rows = np.zeros((self.problem.n_users, self.problem.n_predictors), np.float32)
        for host in self.joined:
            alpha, grove = model_of(host.member), host.member.grove
            in_order = alpha if self.orchard is None or grove is None else self.orchard.in_order(alpha, grove.atoms)
            rows[host.number] = in_order
        return rows

    def _edges(self) -> int:
        """Number of pairs in which at least one learns from the other."""
        up = [host for host in self.joined if host.is_up]
        ids = {host.me for host in up}
        pairs = ((host.me, peer) for host in up for peer in host.member.peer.edges.neighbours if peer in ids)
        return len({frozenset(pair) for pair in pairs})

    def _point(self) -> NetworkPoint:
        return NetworkPoint(self.world.now, sum(host.is_up for host in self.world.hosts), self._edges())

    def _result(self) -> SimulationResult:
        trusting = np.zeros(self.problem.n_users, bool)
        for host in self.joined:
            trusting[host.number] = trusts(host.member)
        honest = np.array([host.is_honest for host in self.world.hosts])
        return SimulationResult(
            self.models(together),
            self.models(alone),
            trusting,
            honest,
            self._edges(),
            dict(self.world.counts),
            sum(host.bits for host in self.joined),
            self.world.events,
            self.invariants.checked,
            self.leaves(),
        )

    def leaves(self) -> dict[int, LeafModel]:
        """The boosted trees that honest users hold, and their own values of the leaves."""
        boosting = {host.number: host.member.boosting for host in self.joined}
        return {k: one.leaves().model for k, one in boosting.items() if one is not None}


@dataclass(frozen=True)
class _Roles:
    """The hosts that each fault affects. Host 0 is spared: the others need one to join."""

    liars: dict[int, type[Liar]]
    churning: Sequence[int]
    late: Sequence[int]
    leaving: Sequence[int]
    restored: Sequence[int]
    doubled: Sequence[int]
    damaged: Sequence[int]
    drifting: Sequence[int]
    slow: Sequence[int]
    apart: frozenset[int]
    unheard: frozenset[int]

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        machines: np.random.Generator,
        n_users: int,
        faults: Faults,
        kinds: Sequence[type[Liar]],
    ) -> _Roles:
        order = iter((1 + rng.permutation(n_users - 1)).tolist())

        def some(share: float) -> list[int]:
            return [k for k, _ in zip(order, range(round(share * n_users)), strict=False)]

        def any_of(generator: np.random.Generator, share: float) -> list[int]:
            return generator.permutation(n_users)[: round(share * n_users)].tolist()

        first = int(rng.integers(len(kinds)))
        liars = {k: kinds[(first + p) % len(kinds)] for p, k in enumerate(some(faults.lying))}
        churning, late, leaving = (some(share) for share in (faults.churning, faults.late, faults.leaving))
        restored, doubled, damaged = (some(share) for share in (faults.restored, faults.doubled, faults.damaged))
        apart = frozenset(any_of(rng, faults.apart))
        drifting, slow, unheard = (any_of(machines, share) for share in (faults.drifting, faults.slow, faults.unheard))
        return cls(
            liars, churning, late, leaving, restored, doubled, damaged, drifting, slow, apart, frozenset(unheard)
        )  # fmt: skip


@dataclass(eq=False)
class SimulationOverview:
    """Sends the state of a simulated network to an observer: which peers run, the graph, and accuracies.

    `info` describes the run, and `accuracy` computes the accuracy of every user from the models, one row each.
    """

    network: SimulatedNetwork
    info: RunInfo
    accuracy: Callable[[Array], Array]
    observer: Observer
    n_joined: int = -1

    def send(self, milestone: bool = False) -> None:
        """Send the present state."""
        hosts, n_joined = self.network.world.hosts, len(self.network.joined)
        # The first snapshot is always taken, even if kernels must be compiled for it.
        milestone = milestone or self.n_joined < 0
        if n_joined != self.n_joined:
            # The accuracy of a fallback model is known once its user has joined.
            self.n_joined = n_joined
            self.observer(replace(self.info, alone=self._accuracies(self.network.models(alone))))
        status = PeerStatus(
            up=np.array([host.is_up for host in hosts]),
            restarts=np.array([max(host.life - 1, 0) for host in hosts]),
            rtt_ms=np.full(len(hosts), np.nan),
            refused=np.array([host.refused for host in hosts]),
        )
        self.observer(status)
        self.observer(SnapshotOffer(self._snapshot, milestone))

    def _snapshot(self) -> Snapshot:
        hosts, joined, numbers = self.network.world.hosts, self.network.joined, self.network.world.numbers
        directed = self.network.config.graph == "evidence"
        # Ids that a liar invented belong to no host.
        reported = [
            (host.number, numbers[peer], host.member.peer.edges[peer].weight)
            for host in joined
            if host.is_up
            for peer in host.member.peer.edges.neighbours
            if peer in numbers
        ]
        k, l, w = edges_reported(reported, directed)
        models, loss = self.network.models(together), np.full(len(hosts), np.nan)
        for host in joined:
            loss[host.number] = host.member.peer.own.loss
        predictors, weights = heaviest_predictors(models)
        return Snapshot(
            phase="peers",
            updates=sum(host.member.peer.own.updates for host in joined),
            k=k,
            l=l,
            w=w,
            directed=directed,
            confidence=self.network.problem.confidence,
            loss=loss,
            accuracy=self._accuracies(models),
            predictors=predictors,
            predictor_weights=weights,
            messages=np.array([host.sent for host in hosts]),
            bits=np.array([8.0 * host.sent_bytes for host in hosts]),
        )

    def _accuracies(self, models: Array) -> Array:
        """Accuracies of honest users that have joined; NaN for others."""
        known = np.zeros(len(models), bool)
        known[[host.number for host in self.network.joined]] = True
        return np.where(known, self.accuracy(models), np.nan)
