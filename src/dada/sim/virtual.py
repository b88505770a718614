"""Virtual time, links and faults: an event loop that never waits, and links and transports that fail as real ones do.

Faults are shares by name. For messages between members there are links that lose, repeat and delay them, and cuts
between hosts. For the code of real nodes there are a loop and a transport. The loop moves its clock to the next timer
whenever nothing is ready, so that minutes of a network take seconds. Links carry bytes with a latency and deliver them
in pieces of any size. They break, end at one side only, refuse to be written to, or stop in one direction for a time or
for good; some are slow. Dials fail, get no answer, or open a second link that nobody uses. All of it is drawn from one
generator. Hosts sign with seals that need no keys.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import selectors
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from dada.net.transport import CHUNK, TransportError
from dada.peer.messages import SIGNATURE_SIZE, PeerId


@dataclass(frozen=True)
class Faults:
    """Shares of the messages and of the peers that each fault affects.

    Parameters
    ----------
    lost, repeated, held_up : float
        Shares of the messages.
    churning : float
        Share of the peers that crash repeatedly, and restart from their stored records.
    late, leaving : float
        Shares of the peers that join late, or leave for good during the run, half of them without a goodbye.
    lying : float
        Share of the peers that are liars, of all kinds in turn.
    apart : float
        Share of the peers that a partition cuts off for a fifth of the run.
    unheard : float
        Share of the peers whose messages reach no other peer for a third of the run, though they receive others'.
    dropping : float
        Share of the messages with which a link breaks: all that is under way on it is lost, and greetings begin again.
    drifting : float
        Share of the peers whose clocks run up to a tenth too fast or too slow, and begin anew with every life.
    slow : float
        Share of the peers that take up to a twentieth of a second to handle a message.
    restored : float
        Share of the peers that restart from the records of an earlier life. Half of their clocks are set back too.
    doubled : float
        Share of the peers that run as two processes for a quarter of the run.
    damaged : float
        Share of the peers whose disks change a byte before a restart.

    Examples
    --------
    >>> both = Faults.named("loss,churn")
    >>> both.lost, both.churning, both.lying
    (0.2, 0.1, 0.0)
    """

    lost: float = 0.0
    repeated: float = 0.0
    held_up: float = 0.0
    churning: float = 0.0
    late: float = 0.0
    leaving: float = 0.0
    lying: float = 0.0
    apart: float = 0.0
    unheard: float = 0.0
    dropping: float = 0.0
    drifting: float = 0.0
    slow: float = 0.0
    restored: float = 0.0
    doubled: float = 0.0
    damaged: float = 0.0

    def __post_init__(self) -> None:
        for share in fields(self):
            if not 0.0 <= getattr(self, share.name) <= 1.0:
                raise ValueError(f"{share.name} must be in 0..1 (a share), got {getattr(self, share.name)}")

    @classmethod
    def named(cls, names: str) -> Faults:
        """The faults with a name, or with several names separated by commas."""
        known = {"none": cls(), "loss": LOSS, "churn": CHURN, "byzantine": BYZANTINE, "all": ALL}
        chosen = []
        for name in names.split(","):
            if name not in known:
                raise ValueError(f"faults must be among {', '.join(known)}, or several with commas, got {name!r}")
            chosen.append(known[name])
        return cls(*(max(getattr(one, field.name) for one in chosen) for field in fields(cls)))

    def link(self) -> LinkModel:
        """The links of a network with these faults."""
        link = varying_link(MEDIAN_LATENCY_S)
        if self.held_up:
            link = reordering_link(link, self.held_up, LONGEST_HOLD_S)
        if self.repeated:
            link = repeating_link(link, self.repeated)
        if self.lost:
            link = lossy_link(link, self.lost)
        return link


LOSS = Faults(lost=0.2, repeated=0.05, held_up=0.1)
CHURN = Faults(churning=0.1, late=0.04, leaving=0.04)
BYZANTINE = Faults(lying=0.1)
ALL = Faults(
    lost=0.2, repeated=0.05, held_up=0.1, churning=0.1, late=0.04, leaving=0.04, lying=0.1, apart=0.3, unheard=0.1,
    dropping=0.01, drifting=0.2, slow=0.1, restored=0.04, doubled=0.04, damaged=0.04,
)  # fmt: skip


class Cut(NamedTuple):
    """From start to stop, no message of some hosts reaches the others; and none of the others them, unless one-way.

    >>> Cut(frozenset({1, 2}), start=5.0, stop=9.0, is_one_way=True).stops(1, 7, now=6.0)
    True
    """

    inside: frozenset[int]
    start: float
    stop: float
    is_one_way: bool = False

    def stops(self, sender: int, receiver: int, now: float) -> bool:
        """Whether a message does not arrive."""
        if not self.start <= now < self.stop or (sender in self.inside) == (receiver in self.inside):
            return False
        return sender in self.inside or not self.is_one_way


MEDIAN_LATENCY_S = 0.05
# The longest time for which a message is held up.
LONGEST_HOLD_S = 3.0
# From sender and receiver (by number), time and randomness to the delay of each copy of a message that arrives. No copy
# arrives if the message is lost.
LinkModel = Callable[[int, int, float, np.random.Generator], tuple[float, ...]]


def steady_link(latency_s: float) -> LinkModel:
    """All messages take the same time, so they stay in order."""
    return lambda sender, receiver, now, rng: (latency_s,)


def varying_link(median_s: float, spread: float = 0.5) -> LinkModel:
    """Log-normal latencies, as between distant machines: some messages overtake others."""
    return lambda sender, receiver, now, rng: (median_s * float(np.exp(spread * rng.standard_normal())),)


def lossy_link(link: LinkModel, share: float) -> LinkModel:
    """A share of the messages never arrives."""

    def delays(sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        return () if rng.random() < share else link(sender, receiver, now, rng)

    return delays


def repeating_link(link: LinkModel, share: float) -> LinkModel:
    """A share of the messages arrives twice."""

    def delays(sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        first = link(sender, receiver, now, rng)
        return first + link(sender, receiver, now, rng) if rng.random() < share else first

    return delays


def reordering_link(link: LinkModel, share: float, longest_s: float) -> LinkModel:
    """A share of the messages is held up, so that later messages arrive first."""

    def delays(sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        held = float(rng.uniform(0.0, longest_s)) if rng.random() < share else 0.0
        return tuple(delay + held for delay in link(sender, receiver, now, rng))

    return delays


# A real connection takes this much before its first message.
SETUP_BYTES = 15_000
# Unread bytes of a link for which its sender waits.
WINDOW = 8192
# Bytes per second of a slow link, and the longest stop of a link that continues.
SLOW, LONGEST_STOP_S = 3000.0, 20.0


class _Skipping(selectors.SelectSelector):
    """Watches no file; it moves a clock instead of waiting."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen: all tasks wait for each other")
        self._advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which begins at zero.

    >>> with asyncio.Runner(loop_factory=VirtualLoop) as runner:
    ...     runner.run(asyncio.sleep(3600.0))
    ...     runner.get_loop().time()
    3600.0
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Skipping(self._advance))

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._now

    def _advance(self, seconds: float) -> None:
        self._now += seconds


@dataclass(frozen=True)
class LinkFaults:
    """Faults of virtual links.

    Parameters
    ----------
    latency_s : float
        Median latency.
    failing, doubled, slow : float
        Shares of dials that fail, that open a second link which stays silent, and that open a slow link.
    lasting_s : float
        Mean time until a link fails.
    """

    latency_s: float = 0.03
    failing: float = 0.1
    doubled: float = 0.1
    slow: float = 0.1
    lasting_s: float = 30.0


CALM = LinkFaults(failing=0.0, doubled=0.0, slow=0.0, lasting_s=math.inf)


class VirtualInternet:
    """All virtual links. During `cuts`, bytes wait and dials get no answer; transports are known by their numbers."""

    def __init__(self, rng: np.random.Generator, faults: LinkFaults = CALM, cuts: Sequence[Cut] = ()) -> None:
        self.rng, self.faults, self.cuts = rng, faults, cuts
        self.listeners: dict[str, VirtualTransport] = {}
        self.wires: dict[_Wire, None] = {}
        self.counts: Counter[str] = Counter()

    def latency(self) -> float:
        """Latency of the next bytes."""
        return self.faults.latency_s * float(np.exp(0.5 * self.rng.standard_normal()))

    def cut_until(self, sender: int, receiver: int) -> float:
        """End of the cut that stops bytes now, or zero."""
        now = asyncio.get_running_loop().time()
        return max((cut.stop for cut in self.cuts if cut.stops(sender, receiver, now)), default=0.0)

    def break_all(self) -> None:
        """Break all links."""
        for wire in list(self.wires):
            wire.end()


@dataclass(eq=False)
class _Way:
    """One direction of a link: bytes that are under way in order, and those that have arrived."""

    sender: int
    receiver: int
    bytes_per_s: float = math.inf
    arrived: bytearray = field(default_factory=bytearray)
    under_way: deque[bytes] = field(default_factory=deque)
    is_ended: bool = False
    is_lost: bool = False
    is_refused: bool = False
    stopped_until: float = 0.0
    last_at: float = 0.0

    @property
    def unread(self) -> int:
        return len(self.arrived) + sum(map(len, self.under_way))


class _Wire:
    """Both directions of a link, and its faults."""

    def __init__(self, internet: VirtualInternet, dialler: int, listener: int) -> None:
        self.internet, self._changed = internet, asyncio.Event()
        self.ways = _Way(dialler, listener), _Way(listener, dialler)
        rng, faults = internet.rng, internet.faults
        if rng.random() < faults.slow:
            self.ways[int(rng.integers(2))].bytes_per_s = SLOW
        internet.wires[self] = None
        self._fail_later()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def change(self) -> None:
        self._changed.set()
        if all(way.is_ended for way in self.ways):
            self.internet.wires.pop(self, None)

    def put(self, way: _Way, data: bytes) -> None:
        """Send bytes; none are the end of the stream."""
        loop = asyncio.get_running_loop()
        way.last_at = max(way.last_at, loop.time() + self.internet.latency()) + len(data) / way.bytes_per_s
        way.under_way.append(data)
        loop.call_at(way.last_at, self._arrive, way)

    def _arrive(self, way: _Way) -> None:
        loop = asyncio.get_running_loop()
        held_until = max(way.stopped_until, self.internet.cut_until(way.sender, way.receiver))
        if way.is_lost or way.is_ended:
            return
        if held_until > loop.time():
            loop.call_at(held_until, self._arrive, way)
            return
        data = way.under_way.popleft()
        way.arrived += data
        way.is_ended = not data
        self.change()

    def end(self) -> None:
        """Break the link: most of what is under way is lost. An end that receives nothing does not notice."""
        for way in self.ways:
            if not (way.is_lost or way.is_ended):
                part = way.under_way[0] if way.under_way else b""
                way.arrived += part[: int(self.internet.rng.integers(len(part) + 1))]
                way.is_ended = True
        self.change()

    def _fail_later(self) -> None:
        if self.internet.faults.lasting_s < math.inf:
            loop = asyncio.get_running_loop()
            loop.call_later(float(self.internet.rng.exponential(self.internet.faults.lasting_s)), self._fail)

    def _fail(self) -> None:
        if self not in self.internet.wires or self.internet.faults is CALM:
            return
        rng = self.internet.rng
        one, other = self.ways if rng.integers(2) else self.ways[::-1]
        kind = ("broken", "half-open", "deaf", "refusing", "stopped")[int(rng.integers(5))]
        self.internet.counts[kind] += 1
        if kind == "broken":
            self.end()
        elif kind == "stopped":
            one.stopped_until = asyncio.get_running_loop().time() + float(rng.uniform(1.0, LONGEST_STOP_S))
            self._fail_later()
        elif kind == "refusing":
            one.is_refused = True
        else:
            one.is_lost = True
            if kind == "half-open":
                other.is_ended = True
            self.change()


class VirtualTransport:
    """A transport of one node; see `dada.net.transport.Transport`. `ends` are the open ends of its links."""

    def __init__(self, internet: VirtualInternet, me: PeerId, number: int, address: str) -> None:
        self.me, self.number, self.address, self.internet = me, number, address, internet
        self.ends: dict[VirtualLink, None] = {}
        self._incoming: asyncio.Queue[VirtualLink] = asyncio.Queue()
        internet.listeners[address] = self

    @property
    def addresses(self) -> tuple[str, ...]:
        """See `Transport`."""
        return (self.address,)

    async def accept(self) -> VirtualLink:
        """See `Transport`."""
        return await self._incoming.get()

    async def dial(self, peer: PeerId, addresses: Sequence[str]) -> VirtualLink:
        """See `Transport`."""
        internet, listeners = self.internet, self.internet.listeners
        luck = float(internet.rng.random())
        await asyncio.sleep(2.0 * internet.latency())
        other = next((listeners[address] for address in addresses if address in listeners), None)
        pair = () if other is None else ((self.number, other.number), (other.number, self.number))
        if luck < 0.5 * internet.faults.failing or any(internet.cut_until(*ends) for ends in pair):
            internet.counts["unanswered"] += 1
            await asyncio.get_running_loop().create_future()
        if other is None or other.me != peer or luck < internet.faults.failing:
            raise TransportError(f"nobody answers at {', '.join(addresses)}")
        if internet.rng.random() < internet.faults.doubled:
            internet.counts["doubled"] += 1
            self._open(other)
        link = self._open(other)
        self.ends[link] = None
        return link

    def _open(self, other: VirtualTransport) -> VirtualLink:
        wire = _Wire(self.internet, self.number, other.number)
        there = VirtualLink(other, self.me, wire, (wire.ways[1], wire.ways[0]), self.addresses)
        other.ends[there] = None
        other._incoming.put_nowait(there)
        return VirtualLink(self, other.me, wire, wire.ways, other.addresses)

    async def close(self) -> None:
        """See `Transport`."""
        if self.internet.listeners.get(self.address) is self:
            del self.internet.listeners[self.address]
        for link in list(self.ends):
            link.close()

    def vanish(self) -> None:
        """Stop without closing any link, as a machine that loses power."""
        self.internet.listeners.pop(self.address, None)
        for link in list(self.ends):
            link.vanish()


class VirtualLink:
    """One end of a virtual link; see `dada.net.transport.Link`."""

    def __init__(
        self, owner: VirtualTransport, peer: PeerId, wire: _Wire, ways: tuple[_Way, _Way], addresses: tuple[str, ...]
    ) -> None:
        self.peer, self.addresses, self.is_closed = peer, addresses, False
        self.wire_bytes, self.received_bytes = 0, SETUP_BYTES
        self._owner, self._wire, (self._out, self._back) = owner, wire, ways

    async def send(self, data: bytes) -> None:
        """See `Link`."""
        await self._wire.until(lambda: self._is_over or self._out.unread < WINDOW)
        if self._is_over or self._out.is_refused:
            raise TransportError("the link is closed, or the other end reads no more")
        self.wire_bytes += len(data)
        middle = int(self._wire.internet.rng.integers(len(data) + 1))
        for piece in filter(None, (data[:middle], data[middle:])):
            self._wire.put(self._out, piece)

    async def recv(self) -> bytes:
        """See `Link`."""
        await self._wire.until(lambda: self._is_over or bool(self._back.arrived))
        if self.is_closed or not self._back.arrived:
            return b""
        rng = self._wire.internet.rng
        size = len(self._back.arrived) if rng.random() < 0.5 else int(rng.integers(len(self._back.arrived))) + 1
        data = bytes(self._back.arrived[: min(size, CHUNK)])
        del self._back.arrived[: len(data)]
        self.received_bytes += len(data)
        self._wire.change()
        return data

    @property
    def _is_over(self) -> bool:
        return self.is_closed or self._back.is_ended

    def close(self) -> None:
        """See `Link`."""
        if not self.is_closed:
            self.vanish()
            self._back.is_ended = True
            self._wire.put(self._out, b"")
            self._wire.change()

    def vanish(self) -> None:
        """Close this end alone."""
        self.is_closed = True
        self._owner.ends.pop(self, None)
        self._wire.change()


class VirtualSeal:
    """Signatures of one host. Only code that holds a host's seal can sign for it, so no liar forges another's.

    >>> VirtualSeal(b"ann").verify(b"bob", b"content", VirtualSeal(b"bob").sign(b"content"))
    True
    """

    def __init__(self, me: PeerId) -> None:
        self._me = me

    def sign(self, content: bytes) -> bytes:
        """See `Seal`."""
        return hashlib.blake2b(content, key=b"signed by " + self._me[-SIGNATURE_SIZE // 2 :]).digest()

    def verify(self, peer: PeerId, content: bytes, signature: bytes) -> bool:
        """See `Seal`."""
        return VirtualSeal(peer).sign(content) == signature
