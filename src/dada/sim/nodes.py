"""A network of real nodes in virtual time: sessions, links, handshakes, address books and stores of `dada.net`.

Nodes crash without closing their links, stop with or without a goodbye, and restart, some at a new address. Power cuts
lose records that were not synced, disks change a byte or are full, and strangers open links and send garbage. Some
nodes may be liars of `dada.sim.liars`, which leave when the faults end. The invariants of `dada.sim.invariants` apply
to honest nodes, and these to all:

- No task ends with an error.
- A session that is closed leaves the table of sessions.
- A node that cannot store stops, and a stopped node has no open link.
- After all faults, every open end of a link belongs to a session, both ends have that session, neighbours have one, no
  session ends, and no task is left.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dada.core.problem import Problem
from dada.net.links import Links
from dada.net.node import MessageRefused, Node, NodeEvent
from dada.net.session import LinkOptions, Session, Terms
from dada.net.store import START_OF_EPOCHS, CorruptStoreError, StoreError
from dada.net.transport import HEADER, Kind, TransportError, frame
from dada.peer.inputs import PeerConfig, Send
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.messages import Descriptor, PeerId, decode, encode
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from dada.sim.invariants import InvariantError, Invariants
from dada.sim.liars import Liar, SendBytes
from dada.sim.simulation import WAKEUPS_PER_EXCHANGE, peer_id
from dada.sim.virtual import CALM, Cut, LinkFaults, VirtualInternet, VirtualLoop, VirtualSeal, VirtualTransport
from dada.sim.world import MOST_LOST_RECORDS, Host

# Mean time for which a node runs, longest time until it restarts, and mean time between two strangers.
UPTIME_S, DOWNTIME_S, STRANGER_EVERY_S = 40.0, 15.0, 3.0
# Longest time in which a node with a full disk stops.
STOP_WITHIN_S = 30.0
# Time for links and edges to recover after the faults, and for the last messages after the last step.
RECOVERY_S, SETTLING_S = 40.0, 20.0
# A network with a secret, which strangers do not know.
SECRET = b"secret of the network"


@dataclass(frozen=True)
class NodesResult:
    """The end of a run: counts by kind, numbers of events and checks, and a hash of everything."""

    counts: dict[str, int]
    events: int
    checks: int
    hash: str


class _WatchedLinks(Links):
    """Links that report each message before it is sent, and after."""

    watch: Callable[[PeerId, bytes, bool], None]

    def send(self, peer: PeerId, message: bytes, expendable: bool = False) -> None:
        self.watch(peer, message, False)
        super().send(peer, message, expendable)
        self.watch(peer, message, True)


class LyingLinks(Links):
    """Links on which a liar changes every message of its node, and sends others whenever the links are checked."""

    liar: Liar

    def send(self, peer: PeerId, message: bytes, expendable: bool = False) -> None:
        """See `Links`."""
        super().send(peer, encode(self.liar.lie_to(peer, decode(message))), expendable)

    def on_message(self, session: Session, content: bytes) -> None:
        """See `Links`."""
        with suppress(ValueError):
            self.liar.overhear(session.peer, decode(content))
        super().on_message(session, content)

    def beat(self) -> None:
        """See `Links`."""
        super().beat()
        for deed in self.liar.attack():
            if isinstance(deed, SendBytes):
                super().send(deed.to, deed.data)
            elif isinstance(deed, Send):
                super().send(deed.to, encode(deed.message))


class NodeNetwork:
    """Real nodes that learn in one process in virtual time, with faults from a seed.

    Parameters
    ----------
    problem : Problem
        One node for each of its users.
    config, rhythm : PeerConfig, Rhythm
    duration_s : float
        Time with faults; a quiet time follows.
    seed : int
    replay : str
        The command that repeats the run, for error messages.
    liar_kinds : sequence of classes
        The last nodes are liars of these kinds.
    """

    def __init__(
        self,
        problem: Problem,
        config: PeerConfig,
        rhythm: Rhythm,
        *,
        duration_s: float,
        seed: int,
        replay: str = "",
        liar_kinds: Sequence[type[Liar]] = (),
    ) -> None:
        self.config, self.rhythm, self.duration_s, self.seed = config, rhythm, duration_s, seed
        self._problem = problem
        n_honest = problem.n_users - len(liar_kinds)
        self._liars = {n_honest + p: kind for p, kind in enumerate(liar_kinds)}
        self.hosts = [Host(k, peer_id(k), self._maker(k), k < n_honest) for k in range(problem.n_users)]
        self.numbers = {host.me: host.number for host in self.hosts}
        self.events = 0
        self.failures: list[str] = []
        self.invariants = Invariants(replay)
        self.counts: Counter[str] = Counter()
        self._nodes: dict[int, Node] = {}
        self._transports: dict[int, VirtualTransport] = {}
        self._closed: dict[Session, None] = {}
        self._is_calm = self._is_over = False
        self._n_addresses = 0

    def run(self) -> NodesResult:
        """Run all nodes; raises `InvariantError` at the first violation."""
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(self._run())

    @property
    def now(self) -> float:
        """Virtual time."""
        return asyncio.get_running_loop().time()

    def is_message_under_way(self, host: Host, other: Host) -> bool:
        """Whether a message may be under way between two hosts; the edges of all are compared at the end."""
        return True

    async def _run(self) -> NodesResult:
        loop = asyncio.get_running_loop()
        self._violated: asyncio.Future[None] = loop.create_future()
        loop.set_exception_handler(lambda _, context: self._violate(_described(context)))
        third, n = self.duration_s / 3, len(self.hosts)
        order = self._generator(0).permutation(n).tolist()
        cuts = [
            Cut(frozenset(order[: n // 3]), third, 1.5 * third),
            Cut(frozenset(order[-n // 5 :]), 2.0 * third, 2.5 * third, is_one_way=True),
        ]
        self._internet = VirtualInternet(self._generator(1), LinkFaults(), cuts)
        tasks = [asyncio.create_task(self._live(host, self._generator(3, host.number))) for host in self.hosts]
        tasks += [asyncio.create_task(self._disturb(self._generator(4))), asyncio.create_task(self._check_often())]
        await self._wait(self.duration_s)
        self._is_calm = True
        for k, node in self._nodes.items():
            if k in self._liars:
                node.stop()
        self._internet.faults, self._internet.cuts = CALM, ()
        await self._wait(RECOVERY_S)
        for host in self.hosts:
            host.member.rest()
        await self._wait(SETTLING_S)
        self._check_links()
        # New links begin with greetings, after which both ends of an edge compare what they hold.
        self._internet.break_all()
        await self._wait(SETTLING_S)
        n_closed = self.counts["LinkClosed"]
        await self._wait(SETTLING_S)
        self._require(self.counts["LinkClosed"] == n_closed, "links without faults end")
        self._check_links()
        self._check(self.invariants.check_all)
        if self._violated.done():
            self._violated.result()
        self._is_over = True
        for node in self._nodes.values():
            node.stop()
        await self._wait(STOP_WITHIN_S)
        gc.collect()
        self._require(all(task.done() for task in tasks), "nodes that do not stop")
        if self._violated.done():
            self._violated.result()
        return self._result()

    # -- lives -----------------------------------------------------------------------------------------------------

    def _generator(self, *path: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *path])

    def _maker(self, k: int) -> Callable[[int], tuple[Member, Liar | None]]:
        gang, kind = tuple(map(peer_id, self._liars)), self._liars.get(k)

        def make(life: int) -> tuple[Member, Liar | None]:
            rng, me = self._generator(2, k, life), peer_id(k)
            every_s = WAKEUPS_PER_EXCHANGE / self.rhythm.wakeups_per_s
            peer = Peer(me, self._problem.rows_of(k), self.config)
            sampling = PeerSampling(me, rng, self._transports[k].addresses, seal=VirtualSeal(me))
            member = Member(peer, sampling, Planner(self.rhythm, rng), every_s)
            return member, None if kind is None else kind(member, rng, gang)

        return make

    def _begin(self, host: Host, rng: np.random.Generator) -> Node:
        """The node of the next life of a host; half of them have a new address."""
        k = host.number
        if k not in self._transports or rng.random() < 0.5:
            self._n_addresses += 1
            address = f"10.0.0.{self._n_addresses}:4040"
        else:
            address = self._transports[k].address
        transport = self._transports[k] = VirtualTransport(self._internet, host.me, k, address)
        with suppress(CorruptStoreError):
            host.is_loaded = host.disk.records() == host.records
        host.make_member()
        options = LinkOptions(most_links=4, give_up_after_s=20.0, token_bytes=rng.bytes)
        terms = Terms(SECRET, unix_time=lambda: START_OF_EPOCHS + self.now)
        node = Node(host.member, transport, host.disk, terms, rng, self._observe, options)
        details = transport, terms, node, rng, asyncio.get_running_loop().time, options
        if host.liar is None:
            node.links = watched = _WatchedLinks(*details)
            watched.watch = lambda to, message, is_sent: self._on_message(host, to, message, is_sent)
        else:
            node.links = lying = LyingLinks(*details)
            lying.liar = host.liar
        self._nodes[k] = node
        return node

    async def _live(self, host: Host, rng: np.random.Generator) -> None:
        """Run the node of a host in all its lives; that of host 0 never ends before the quiet time, liars then."""
        await asyncio.sleep(host.number)
        while host.is_honest or not self._is_calm:
            node = self._begin(host, rng)
            first = self._transports[0]
            known = [Descriptor(first.me, 0, first.addresses)] if host.number else []
            running = asyncio.create_task(node.run(known, leave=bool(rng.integers(2)) and not self._is_calm))
            uptime_s = float(rng.exponential(UPTIME_S)) if host.number else self.duration_s
            await asyncio.wait([running], timeout=uptime_s)
            if not running.done():
                await (asyncio.wait([running]) if self._is_calm else self._end(host, node, running, rng))
            host.is_up = False
            self._require(not self._transports[host.number].ends, "open links of a node that has stopped", host)
            self._check_reason(host, running)
            if self._is_over:
                return
            del self._nodes[host.number]
            await asyncio.sleep(float(rng.uniform(0.5, DOWNTIME_S)))

    async def _end(self, host: Host, node: Node, running: asyncio.Task[None], rng: np.random.Generator) -> None:
        way = ("stop", "full", "crash", "crash", "power cut", "damage")[int(rng.integers(6))]
        self.counts[way] += 1
        if way == "stop":
            node.stop()
            await asyncio.wait([running])
        elif way == "full":
            host.disk.is_full = True
            await asyncio.wait([running], timeout=STOP_WITHIN_S)
            self._require(running.done(), "it runs with a full disk", host)
        if not running.done():
            self._transports[host.number].vanish()
            running.cancel()
            await asyncio.wait([running])
        if way == "power cut":
            host.disk.cut_power(int(rng.integers(1, MOST_LOST_RECORDS)))
        elif way == "damage":
            host.disk.damage(rng)

    def _check_reason(self, host: Host, running: asyncio.Task[None]) -> None:
        error = None if running.cancelled() else running.exception()
        if isinstance(error, CorruptStoreError):
            # As by `dada peer init --recover`.
            host.replace_disk({}, self.now)
        elif isinstance(error, StoreError):
            self._require(host.disk.is_full, f"a disk with room is full: {error}", host)
        elif error is not None:
            self._violate(f"host {host.number} ended: {error!r}")
        host.disk.is_full = False

    async def _disturb(self, rng: np.random.Generator) -> None:
        """Let strangers open links, send garbage, and wait or close."""
        names = (b"stranger 1", b"stranger 2")
        transports = [VirtualTransport(self._internet, name, -1, f"{name!r}") for name in names]
        while not self._is_calm:
            await asyncio.sleep(float(rng.exponential(STRANGER_EVERY_S)))
            victim = self._transports[int(rng.integers(len(self._transports)))]
            garbage = (
                rng.bytes(50), frame(Kind.GREETING, rng.bytes(37)), HEADER.pack(1 << 31, Kind.GREETING), b"\0\0\0", b"",
            )[int(rng.integers(5))]  # fmt: skip
            with suppress(TransportError, TimeoutError):
                async with asyncio.timeout(2.0):
                    link = await transports[int(rng.integers(2))].dial(victim.me, victim.addresses)
                    await link.send(garbage)
                    if rng.integers(2):
                        link.close()

    # -- checks ----------------------------------------------------------------------------------------------------

    async def _wait(self, seconds: float) -> None:
        await asyncio.wait([self._violated], timeout=seconds)
        if self._violated.done():
            self._violated.result()

    def _violate(self, what: str) -> None:
        if not self._violated.done():
            replay = self.invariants.replay
            self._violated.set_exception(InvariantError(f"at {self.now:.3f} s: {what}\nreplay: {replay}"))

    def _require(self, holds: bool, what: str, host: Host | None = None) -> None:
        self.invariants.checked += 1
        if not holds:
            self._violate(what if host is None else f"host {host.number}: {what}")

    def _check(self, check: Callable[..., None], *details: Any) -> None:
        try:
            check(self, *details)
        except InvariantError as error:
            if not self._violated.done():
                self._violated.set_exception(error)

    def _on_message(self, host: Host, to: PeerId, data: bytes, is_sent: bool) -> None:
        if is_sent:
            # Liars invent peers.
            number = self.numbers.get(to)
            self._check(self.invariants.after, host, None if number is None else self.hosts[number])
        else:
            self.events += 1
            self.counts["messages"] += 1
            self._check(self.invariants.before_sending, host, Send(to, decode(data)))

    def _observe(self, event: NodeEvent) -> None:
        self.events += 1
        self.counts[type(event).__name__] += 1
        if isinstance(event, MessageRefused):
            self._require(" raised " not in event.reason, event.reason)

    async def _check_often(self) -> None:
        while not self._is_calm:
            await asyncio.sleep(1.0)
            closed: dict[Session, None] = {}
            for k, node in self._nodes.items():
                if node.is_up and self.hosts[k].is_up:
                    self._check(self.invariants.after, self.hosts[k], None)
                closed |= {session: None for session in node.links.sessions.values() if session.is_closed}
            self._require(not any(session in self._closed for session in closed), "a closed session is in the table")
            self._closed = closed

    def _check_links(self) -> None:
        """After the faults: sessions, open links, neighbours and tasks belong together."""
        honest = [host for host in self.hosts if host.is_honest]
        n_tasks = 1 + len(honest)
        for host in honest:
            links, n_ends = self._nodes[host.number].links, len(self._transports[host.number].ends)
            self._require(n_ends == len(links.sessions), f"{n_ends} open links, {len(links.sessions)} sessions", host)
            for peer in links.sessions:
                other = self._nodes.get(self.numbers[peer])
                is_mutual = other is not None and host.me in other.links.sessions
                self._require(is_mutual, f"a session with {self.numbers[peer]}, which has none", host)
            alone = [self.numbers[peer] for peer in links.neighbours if peer not in links.sessions]
            self._require(not alone, f"no session with the neighbours {alone}", host)
            # A node has a task to run and one to accept links, and each session three.
            n_tasks += 2 + 3 * len(links.sessions)
        n_running = len(asyncio.all_tasks())
        self._require(n_running == n_tasks, f"{n_running} tasks, {n_tasks} are needed")

    def _result(self) -> NodesResult:
        counts = dict(sorted((self.counts + self._internet.counts).items()))
        models = [host.member.peer.own.model.alpha.tobytes() for host in self.hosts]
        state = b"".join(models) + repr((counts, self.events, self.invariants.checked)).encode()
        return NodesResult(counts, self.events, self.invariants.checked, hashlib.sha256(state).hexdigest()[:16])


def _described(context: dict[str, Any]) -> str:
    return f"{context['message']}: {context.get('exception')!r}"
