"""Links to authenticated peers: which addresses may be dialled, the interface of a transport, and frames on a link.

*Frames.* A transport knows nothing of frames or messages; `dada.net.iroh_transport` is the one for real networks. A
frame is four bytes of length, one byte of kind, then the content. The announced length is checked before any content is
buffered: an unknown peer can make this one hold at most 1 KB before the handshake, and one message after it. The number
of tasks that wait is bounded, too.

*Addresses.* An address is proven if the peer was reached there by a link of this node, or if the operator gave it with
a ticket. Any other address may be that of a victim: a peer claims it for itself, or passes it on for another. A dial
sends about 7 KB to an address that never answers, so that many dials would be an attack. Therefore:

- an unproven address is dialled alone, and once in ten minutes;
- the peer that named it pays: unanswered dials cost at most three times the bytes received from that peer;
- at most thirty dials per minute stay unanswered, whoever named the addresses.

An answered dial costs nothing. Peers pass on proven addresses only (`dada.peer.sampling`), so that a false one goes no
further than to those that its author pays for. Relays are no victims: a TCP connection proves itself.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from dada.peer.edges import put_last
from dada.peer.messages import LARGEST_MESSAGE, PeerId

# Bytes to an address that does not answer: six packets within the six seconds of a dial, as measured.
DIAL_BYTES = 6 * 1200
LARGEST_RATIO = 3
AGAIN_AFTER_S, MINUTE_S = 600.0, 60.0
MOST_ADDRESSES_KNOWN = 4096


@dataclass(frozen=True)
class Hearsay:
    """Addresses of a peer as another one named them; its source is None if it was read from disk."""

    addresses: tuple[str, ...]
    source: PeerId | None


@dataclass(eq=False)
class Guess:
    """A dial to an unproven address, and who pays for it."""

    address: str
    source: PeerId | None
    at: float


@dataclass(frozen=True)
class DialChoice:
    """Addresses for one dial, none if nothing may be dialled now; `guess` is set if the address is unproven."""

    addresses: tuple[str, ...]
    guess: Guess | None = None


class AddressBook:
    """Addresses of other peers.

    Parameters
    ----------
    hearsay_of : callable
        Addresses of a peer that another one passed on.
    received_from : callable
        Number of bytes received from a peer.
    clock : callable
    most_unanswered : int
        Most unanswered dials to unproven addresses per minute.

    Examples
    --------
    >>> times = iter((0.0, 1.0, 2.0, 700.0, 700.0))
    >>> told = Hearsay(("10.0.0.1:4", "10.0.0.2:4"), source=b"bob")
    >>> book = AddressBook(lambda peer: told, lambda peer: 5000, lambda: next(times), most_unanswered=30)
    >>> [book.choose(b"ann").addresses for _ in range(4)]
    [('10.0.0.1:4',), ('10.0.0.2:4',), (), ()]
    >>> book.prove(b"ann", ("10.0.0.3:4",))
    >>> book.choose(b"ann").addresses
    ('10.0.0.3:4',)
    """

    def __init__(
        self,
        hearsay_of: Callable[[PeerId], Hearsay],
        received_from: Callable[[PeerId], int],
        clock: Callable[[], float],
        most_unanswered: int,
    ) -> None:
        self._hearsay_of, self._received_from, self._clock = hearsay_of, received_from, clock
        self._most_unanswered = most_unanswered
        self._proven: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        self._claims: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        self._tried: OrderedDict[tuple[PeerId, str], float] = OrderedDict()
        self._spent: OrderedDict[PeerId, int] = OrderedDict()
        self._unanswered: list[Guess] = []
        self._under_way = 0
        self._settled = asyncio.Event()

    def prove(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """A peer was reached at these addresses, or the operator gave them."""
        if addresses:
            put_last(self._proven, peer, addresses, MOST_ADDRESSES_KNOWN)

    def claim(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """A peer claims addresses as its own."""
        if addresses:
            put_last(self._claims, peer, addresses, MOST_ADDRESSES_KNOWN)

    def proven(self, peer: PeerId) -> tuple[str, ...]:
        """Proven addresses of a peer."""
        return self._proven.get(peer, ())

    def choose(self, peer: PeerId, prefer_new: bool = False) -> DialChoice:
        """Addresses for the next dial: the safe ones, or a single one that is unproven and is paid for at once.

        A peer that does not answer at its proven addresses may have a new one: `prefer_new`.
        """
        now = self._clock()
        told = (Hearsay(self._claims.get(peer, ()), peer), self._hearsay_of(peer))
        relays = (address for one in told for address in one.addresses if is_relay(address))
        safe = tuple(dict.fromkeys((*self.proven(peer), *relays)))
        if not safe or prefer_new:
            for one in told:
                for address in one.addresses:
                    is_fresh = now - self._tried.get((peer, address), -math.inf) >= AGAIN_AFTER_S
                    if address not in safe and is_fresh and self._can_pay(one.source, now):
                        return DialChoice((address,), self._pay(peer, address, one.source, now))
        return DialChoice(safe)

    def knows(self, peer: PeerId) -> bool:
        """Whether any address of a peer is known."""
        return bool(self.proven(peer) or self._claims.get(peer) or self._hearsay_of(peer).addresses)

    async def wait(self, peer: PeerId, prefer_new: bool = False) -> DialChoice:
        """As `choose`, but waits while other guesses are under way: an answer to one of them pays for the next."""
        while not (choice := self.choose(peer, prefer_new)).addresses and self._under_way:
            self._settled.clear()
            await self._settled.wait()
        return choice

    def settle(self, guess: Guess | None, answered_at: tuple[str, ...] = ()) -> None:
        """A dial has ended; a guess costs nothing if the peer answered there."""
        if guess is None:
            return
        self._under_way -= 1
        if guess.address in answered_at:
            self._unanswered = [one for one in self._unanswered if one is not guess]
            self._charge(guess.source, -DIAL_BYTES)
        self._settled.set()

    def _can_pay(self, source: PeerId | None, now: float) -> bool:
        self._unanswered = [one for one in self._unanswered if now - one.at < MINUTE_S]
        if len(self._unanswered) >= self._most_unanswered:
            return False
        return source is None or self._spent.get(source, 0) + DIAL_BYTES <= LARGEST_RATIO * self._received_from(source)

    def _pay(self, peer: PeerId, address: str, source: PeerId | None, now: float) -> Guess:
        guess = Guess(address, source, now)
        self._unanswered.append(guess)
        self._under_way += 1
        put_last(self._tried, (peer, address), now, MOST_ADDRESSES_KNOWN)
        self._charge(source, DIAL_BYTES)
        return guess

    def _charge(self, source: PeerId | None, n_bytes: int) -> None:
        if source is not None:
            put_last(self._spent, source, max(0, self._spent.get(source, 0) + n_bytes), MOST_ADDRESSES_KNOWN)


def is_relay(address: str) -> bool:
    """Whether an address is that of a relay."""
    return "://" in address


# Most bytes returned by one `recv`.
CHUNK = 1 << 16


class TransportError(OSError):
    """A link broke or could not be opened."""


class Link(Protocol):
    """A two-way stream of bytes to one peer, whose identity the transport has verified."""

    peer: PeerId

    async def send(self, data: bytes) -> None:
        """Send bytes; waits if the other end is slow."""

    async def recv(self) -> bytes:
        """Receive some bytes; none at the end of the stream."""

    def close(self) -> None:
        """Close the link; a pending `recv` ends at both ends."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses at which the other end has answered, without relays."""

    @property
    def wire_bytes(self) -> int:
        """Bytes sent on the wire, with all overhead."""

    @property
    def received_bytes(self) -> int:
        """Bytes received on the wire, with all overhead."""


class Transport(Protocol):
    """One peer's access to the network."""

    me: PeerId

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses at which others can dial this peer."""

    async def accept(self) -> Link:
        """Wait for the next link that another peer opens."""

    async def dial(self, peer: PeerId, addresses: Sequence[str]) -> Link:
        """Open a link to a peer, or raise `TransportError`; fails if another peer answers."""

    async def close(self) -> None:
        """Close all links and stop listening."""


HEADER = struct.Struct(">IB")

# Enough for every frame of a handshake.
LARGEST_GREETING = 1024


class Kind(IntEnum):
    """Type of a frame."""

    GREETING = 0
    PROOF = 1
    MESSAGE = 2
    PING = 3
    PONG = 4
    REFUSAL = 5


class FrameError(ValueError):
    """Malformed, oversized or truncated frame."""


def frame(kind: Kind, content: bytes = b"") -> bytes:
    r"""The bytes of one frame.

    >>> frame(Kind.PING)
    b'\x00\x00\x00\x00\x03'
    """
    if len(content) > LARGEST_MESSAGE:
        raise FrameError(f"a frame holds at most {LARGEST_MESSAGE} bytes, got {len(content)}")
    return HEADER.pack(len(content), kind) + content


class FrameReader:
    """Incremental parser of frames with at most `largest` bytes of content, which may change between two frames.

    Examples
    --------
    >>> reader = FrameReader(largest=100)
    >>> reader.feed(frame(Kind.MESSAGE, b"abc")[:6])
    >>> reader.next() is None
    True
    >>> reader.feed(b"bc")
    >>> reader.next()
    (<Kind.MESSAGE: 2>, b'abc')
    """

    def __init__(self, largest: int = LARGEST_GREETING) -> None:
        self.largest = largest
        self._bytes = bytearray()
        self._start = 0

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        if self._start:
            del self._bytes[: self._start]
            self._start = 0
        self._bytes += data

    def next(self) -> tuple[Kind, bytes] | None:
        """The next complete frame, or None if more bytes are needed."""
        if len(self._bytes) - self._start < HEADER.size:
            return None
        length, kind = HEADER.unpack_from(self._bytes, self._start)
        if length > self.largest:
            raise FrameError(f"a frame announces {length} bytes, at most {self.largest} are allowed here")
        if kind >= len(Kind):
            raise FrameError(f"a frame of kind {kind}, known are 0..{len(Kind) - 1}")
        begin = self._start + HEADER.size
        if len(self._bytes) < begin + length:
            return None
        self._start = begin + length
        return Kind(kind), bytes(self._bytes[begin : self._start])

    def end(self) -> None:
        """Raise `FrameError` if the stream ended inside a frame."""
        left = len(self._bytes) - self._start
        if left:
            raise FrameError(f"the stream ended inside a frame, {left} bytes after its start")


class FrameStream(FrameReader):
    """The frames that arrive on a link; `largest` bounds what the other end may send."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link

    async def receive(self) -> tuple[Kind, bytes] | None:
        """The next frame, or None at the end of the stream."""
        while (received := self.next()) is None:
            data = await self.link.recv()
            if not data:
                self.end()
                return None
            self.feed(data)
        return received

    async def drain(self) -> None:
        """Discard input until the other end closes the link, so that everything sent before reaches it."""
        try:
            while await self.link.recv():
                pass
        except TransportError:
            return


class Pending:
    """Tasks that wait for strangers.

    Beyond the limit of one key its oldest task is cancelled; beyond the limit in all a random one, so that no order of
    arrival excludes the others.

    Parameters
    ----------
    most, most_per_key : int
        Tasks in all, and with one key.
    rng : numpy Generator
        Chooses the task to cancel.

    Examples
    --------
    >>> async def storm():
    ...     pending = Pending(3, 2, np.random.default_rng(0))
    ...     dropped = [pending.start(key, asyncio.sleep(60)) for key in (b"a", b"b", b"b", b"b", b"c")]
    ...     await pending.close()
    ...     return dropped
    >>> asyncio.run(storm())
    [False, False, False, True, True]
    """

    def __init__(self, most: int, most_per_key: int, rng: np.random.Generator) -> None:
        self._most, self._most_per_key, self._rng = most, most_per_key, rng
        self._keys: dict[asyncio.Task[None], Hashable] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def start(self, key: Hashable, work: Coroutine[Any, Any, None]) -> bool:
        """Start a task; returns whether another one was cancelled."""
        same = [task for task, its_key in self._keys.items() if its_key == key]
        dropped = None
        if len(same) >= self._most_per_key:
            dropped = same[0]
        elif len(self._keys) >= self._most:
            dropped = list(self._keys)[self._rng.integers(len(self._keys))]
        if dropped is not None:
            del self._keys[dropped]
            dropped.cancel()
        task = asyncio.create_task(work)
        self._keys[task] = key
        task.add_done_callback(lambda done: self._keys.pop(done, None))
        return dropped is not None

    async def close(self) -> None:
        """Cancel all tasks."""
        tasks = list(self._keys)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
