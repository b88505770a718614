"""One link: the handshake that opens it, then messages both ways, a heartbeat, and a bounded send queue.

*Handshake.* Both ends prove that they speak one protocol and belong to one network. The transport has authenticated
both peers. The handshake then proceeds in this order:

1. Both ends send a greeting with the protocol version and a fresh nonce.
2. The dialler proves that it knows the network secret: HMAC-SHA256 under the secret, over the ids of dialler and
   listener and both nonces. The secret is never sent, and a proof is valid on this link only.
3. The listener proves the same. A peer that cannot prove its membership never receives a proof.

With its proof each end sends its addresses and, in a network with a founder, its certificate of membership. Then both
send their `Hello`, which identifies the learning problem. A network without a secret uses an empty one. An end that
fails is sent the reason, and the failure is counted.

*Session.* One task writes, and sends everything queued since its last write at once, because a write costs far more
than the bytes in it. Another task reads; it pauses after each frame of a peer that exceeds its rate, so that a flood
costs little. If the other end is slow, the queue drops its oldest model changes first: a neighbour that misses one
requests the whole model. A silent link is pinged, and closed if it stays silent. Regular pings also measure the
round-trip time.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import struct
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from dada.net.transport import HEADER, FrameError, FrameStream, Kind, TransportError, frame, is_relay
from dada.peer.messages import (
    LARGEST_MESSAGE,
    PROTOCOL_VERSION,
    Addresses,
    Certificate,
    CodecError,
    Hello,
    PeerId,
    decode,
    encode,
)
from dada.peer.signatures import Membership

NONCE_SIZE, PROOF_SIZE = 32, 32

_GREETING = struct.Struct(f">4sB{NONCE_SIZE}s")
_MAGIC = b"dada"


class Claims(msgspec.Struct, frozen=True, array_like=True):
    """What an end sends with its proof: its addresses, and its certificate if it has one."""

    addresses: Addresses
    certificate: Certificate | None = None


_claims = msgspec.msgpack.Decoder(Claims)


class Refusal(StrEnum):
    """Reason for refusing a link or a message; nodes count them."""

    VERSION = "another protocol version"
    SECRET = "wrong network secret"
    NOT_ALLOWED = "not on the list of allowed peers"
    CERTIFICATE = "no valid certificate"
    REVOKED = "membership revoked by the founder"
    PROBLEM = "another learning problem"
    FRAME = "bytes that are not frames"
    MESSAGE = "frames that are not messages"
    RATE = "too many messages"
    IMPLAUSIBLE = "implausible messages"
    SILENCE = "no answer in time"
    BY_OTHER = "refused by the other end"


# Reasons sent to the other end; one that sends malformed frames would not understand them.
_REPORTED = (
    Refusal.VERSION, Refusal.SECRET, Refusal.NOT_ALLOWED, Refusal.CERTIFICATE, Refusal.REVOKED, Refusal.PROBLEM,
)  # fmt: skip


class HandshakeError(ValueError):
    """A failed handshake and its reason."""

    def __init__(self, refusal: Refusal, detail: str = "") -> None:
        super().__init__(f"{refusal}: {detail}" if detail else str(refusal))
        self.refusal = refusal


@dataclass(frozen=True)
class Terms:
    """Admission rules of a peer.

    Parameters
    ----------
    secret : bytes
        Secret of the network; empty if nobody needs it.
    allowed : frozenset of bytes, optional
        The only peers admitted.
    membership : Membership, optional
        Of a network with a founder: verifies certificates.
    certificate : Certificate, optional
        The own certificate.
    unix_time : callable
        Clock for epochs and for the expiry of certificates.
    """

    secret: bytes = b""
    allowed: frozenset[PeerId] | None = None
    membership: Membership | None = None
    certificate: Certificate | None = None
    unix_time: Callable[[], float] = time.time

    def refusal_of(self, peer: PeerId, revoked: Collection[PeerId]) -> Refusal | None:
        """Why a peer is refused, whatever it proves."""
        if peer in revoked:
            return Refusal.REVOKED
        return None if self.allowed is None or peer in self.allowed else Refusal.NOT_ALLOWED

    def flaw_of(self, certificate: Certificate | None, peer: PeerId) -> str | None:
        """Why a peer's certificate does not admit it now; None if it does, or if none is needed."""
        return None if self.membership is None else self.membership.flaw_of(certificate, peer, self.unix_time())


class Introduction(NamedTuple):
    """What the other end sent in the handshake."""

    hello: Hello
    addresses: tuple[str, ...]
    certificate: Certificate | None = None


class Party(NamedTuple):
    """One end of a handshake."""

    me: PeerId
    is_dialler: bool
    terms: Terms
    hello: Hello
    addresses: tuple[str, ...]
    nonce: bytes
    revoked: Collection[PeerId] = frozenset()


async def shake_hands(stream: FrameStream, party: Party, timeout_s: float = 8.0) -> Introduction:
    """Perform the handshake, or raise `HandshakeError`; the reason is also sent to the other end."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _shake_hands(stream, party)
    except TimeoutError as error:
        raise HandshakeError(Refusal.SILENCE, f"no handshake within {timeout_s:g} s") from error
    except HandshakeError as error:
        if error.refusal in _REPORTED:
            # Only the way to a certificate helps the other end.
            await _report(stream, str(error) if error.refusal is Refusal.CERTIFICATE else error.refusal)
        raise


async def _shake_hands(stream: FrameStream, party: Party) -> Introduction:
    peer = stream.link.peer
    refusal = party.terms.refusal_of(peer, party.revoked)
    if refusal is not None:
        raise HandshakeError(refusal, peer.hex()[:10])
    await stream.link.send(frame(Kind.GREETING, _GREETING.pack(_MAGIC, PROTOCOL_VERSION, party.nonce)))
    other_nonce = read_greeting(await _expect(stream, Kind.GREETING))
    roles = (party.me, peer) if party.is_dialler else (peer, party.me)
    nonces = (party.nonce, other_nonce) if party.is_dialler else (other_nonce, party.nonce)

    def proof(of_dialler: bool) -> bytes:
        parts = b"".join(len(part).to_bytes(4, "big") + part for part in (*roles, *nonces))
        return hmac.digest(party.terms.secret, b"dada proof" + bytes([of_dialler]) + parts, "sha256")

    async def prove() -> None:
        claims = Claims(party.addresses, party.terms.certificate)
        await stream.link.send(frame(Kind.PROOF, proof(party.is_dialler) + msgspec.msgpack.encode(claims)))

    async def verify() -> Claims:
        content = await _expect(stream, Kind.PROOF)
        if not hmac.compare_digest(content[:PROOF_SIZE], proof(not party.is_dialler)):
            raise HandshakeError(Refusal.SECRET, "the other end failed to prove that it knows the secret")
        claims = read_claims(content[PROOF_SIZE:])
        flaw = party.terms.flaw_of(claims.certificate, peer)
        if flaw is not None:
            raise HandshakeError(Refusal.CERTIFICATE, f"{flaw}; the founder makes one with `dada peer admit`")
        return claims

    if party.is_dialler:
        await prove()
        claims = await verify()
    else:
        claims = await verify()
        await prove()
    await stream.link.send(frame(Kind.MESSAGE, encode(party.hello)))
    hello = read_hello(await _expect(stream, Kind.MESSAGE), party.hello.problem)
    return Introduction(hello, claims.addresses, claims.certificate)


async def _expect(stream: FrameStream, wanted: Kind) -> bytes:
    try:
        received = await stream.receive()
    except FrameError as error:
        raise HandshakeError(Refusal.FRAME, str(error)) from error
    if received is None:
        raise HandshakeError(Refusal.SILENCE, "the other end closed the link")
    kind, content = received
    if kind == Kind.REFUSAL:
        raise HandshakeError(Refusal.BY_OTHER, _printable(content))
    if kind != wanted:
        raise HandshakeError(Refusal.FRAME, f"a {kind.name} where a {wanted.name} was expected")
    return content


def read_greeting(content: bytes) -> bytes:
    """The nonce in a greeting."""
    if len(content) < 5 or content[:4] != _MAGIC:
        raise HandshakeError(Refusal.FRAME, "not a greeting")
    if content[4] != PROTOCOL_VERSION:
        versions = f"the other end uses version {content[4]}, this peer {PROTOCOL_VERSION}"
        raise HandshakeError(Refusal.VERSION, f"{versions}: update the older one")
    if len(content) != _GREETING.size:
        raise HandshakeError(Refusal.FRAME, "not a greeting")
    return content[5:]


def read_claims(content: bytes) -> Claims:
    """The addresses and the certificate sent with a proof."""
    try:
        return _claims.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HandshakeError(Refusal.FRAME, f"addresses or a certificate that cannot be read: {error}") from error


def read_hello(content: bytes, problem: bytes) -> Hello:
    """The `Hello` in a message, if its sender works on this learning problem."""
    try:
        hello = decode(content)
    except CodecError as error:
        raise HandshakeError(Refusal.MESSAGE, str(error)) from error
    if not isinstance(hello, Hello):
        raise HandshakeError(Refusal.MESSAGE, f"a {type(hello).__name__} where a Hello was expected")
    if hello.problem != problem:
        raise HandshakeError(Refusal.PROBLEM, "its settings or base predictors differ from this peer's")
    return hello


async def _report(stream: FrameStream, reason: str) -> None:
    try:
        async with asyncio.timeout(1.0):
            await stream.link.send(frame(Kind.REFUSAL, reason.encode()))
            await stream.drain()
    except (TransportError, TimeoutError):
        return


def _printable(content: bytes) -> str:
    """Text of an untrusted peer without control characters."""
    text = content[:120].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "?" for char in text)


MOST_QUEUED_FRAMES, MOST_QUEUED_BYTES = 1024, 4 * LARGEST_MESSAGE

# Pause after a frame of a peer that exceeds its rate.
PAUSE_S = 0.02

_PING, _PONG = frame(Kind.PING), frame(Kind.PONG)


@dataclass(frozen=True)
class LinkOptions:
    """Limits and times of a node's links.

    Parameters
    ----------
    most_links : int
        Links kept open in addition to those to neighbours.
    most_unanswered : int
        Dials to unproven addresses that may stay unanswered per minute; see `dada.net.transport`.
    most_greeting, most_greeting_each : int
        Most incoming links without a completed handshake, in all and of one key.
    dial_timeout_s : float
        Longest duration of a dial.
    retry_after_s, retry_at_most_s : float
        Wait after the first failed dial, and the longest wait.
    give_up_after_s : float
        How long a neighbour may be unreachable before it is dropped.
    dialling : asyncio.Semaphore, optional
        Limits concurrent dials. Nodes of one process share it: if hundreds dial at the same time, all time out.
    beat_every_s : float
        Interval between two checks of all links.
    ping_after_s, dead_after_s : float
        Silence after which a link is pinged, and after which it is closed.
    measure_after_s, measure_every_s : float
        When the round-trip time is first measured, and how often.
    token_bytes : callable
        Source of nonces and of ids of lives. They must be unpredictable, except in a simulation.
    """

    most_links: int = 48
    most_unanswered: int = 30
    most_greeting: int = 256
    most_greeting_each: int = 2
    dial_timeout_s: float = 6.0
    retry_after_s: float = 0.5
    retry_at_most_s: float = 30.0
    give_up_after_s: float = 60.0
    dialling: asyncio.Semaphore | None = None
    beat_every_s: float = 1.0
    ping_after_s: float = 5.0
    dead_after_s: float = 10.0
    measure_after_s: float = 1.0
    measure_every_s: float = 10.0
    token_bytes: Callable[[int], bytes] = secrets.token_bytes


class Outbox:
    """Bounded first-in first-out queue of frames to send; expendable frames are dropped first.

    Examples
    --------
    >>> box = Outbox(most_frames=2)
    >>> for number in range(3):
    ...     box.put(b"%d" % number, expendable=number == 1)
    >>> box.take()
    b'02'
    """

    def __init__(self, most_frames: int = MOST_QUEUED_FRAMES, most_bytes: int = MOST_QUEUED_BYTES) -> None:
        self._frames: OrderedDict[int, bytes] = OrderedDict()
        self._expendable: deque[int] = deque()
        self._most_frames, self._most_bytes = most_frames, most_bytes
        self._size = self._count = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, data: bytes, expendable: bool = False) -> None:
        """Queue a frame; if the queue is full, an older one is dropped."""
        self._count += 1
        self._frames[self._count] = data
        if expendable:
            self._expendable.append(self._count)
        self._size += len(data)
        while len(self._frames) > self._most_frames or self._size > self._most_bytes:
            if self._expendable:
                gone = self._frames.pop(self._expendable.popleft())
            else:
                _, gone = self._frames.popitem(last=False)
            self._size -= len(gone)
            self.dropped += 1

    def take(self) -> bytes:
        """Remove and concatenate all queued frames."""
        data = b"".join(self._frames.values())
        self._frames.clear()
        self._expendable.clear()
        self._size = 0
        return data


class SessionUser(Protocol):
    """The owner of sessions, which receives their frames."""

    def on_message(self, session: Session, content: bytes) -> None:
        """A message arrived; a `FrameError` that is raised here ends the session."""

    def admits(self, session: Session) -> bool:
        """Charge a frame without content to the other end's rate limit; returns whether it is within the limit."""

    def is_over_rate(self, session: Session) -> bool:
        """Whether the other end sends too much."""


class Session:
    """One open link after its handshake; `traffic` counts its messages, and its bytes before encryption."""

    def __init__(
        self,
        stream: FrameStream,
        introduction: Introduction,
        is_dialler: bool,
        user: SessionUser,
        clock: Callable[[], float],
        options: LinkOptions,
    ) -> None:
        self.peer: PeerId = stream.link.peer
        self.introduction, self.is_dialler = introduction, is_dialler
        self.traffic: Counter[str] = Counter()
        self.last_used = self.last_received = clock()
        self._stream, self._user, self._clock, self._options = stream, user, clock, options
        self._outbox = Outbox()
        self._waiting = asyncio.Event()
        self._pinged_at: float | None = None
        self._measure_at = self.last_received + options.measure_after_s
        self.round_trip_ms: float | None = None
        self.is_closed = False
        stream.largest = LARGEST_MESSAGE

    @property
    def wire_bytes(self) -> int:
        """Bytes sent on the wire by this end."""
        return self._stream.link.wire_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes that the other end sent on the wire."""
        return self._stream.link.received_bytes

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses at which the other end has answered, and its relays."""
        return (*self._stream.link.addresses, *filter(is_relay, self.introduction.addresses))

    def send(self, message: bytes, expendable: bool = False) -> None:
        """Queue a message; it is lost if the link breaks first."""
        self.traffic["messages_sent"] += 1
        self.last_used = self._clock()
        self._queue(frame(Kind.MESSAGE, message), expendable)

    def beat(self, now: float) -> bool:
        """Ping a silent link; returns False if it has been silent for too long."""
        silence = now - self.last_received
        if silence >= self._options.dead_after_s:
            return False
        if self._pinged_at is None and (silence >= self._options.ping_after_s or now >= self._measure_at):
            self._pinged_at = now
            self._queue(_PING)
        return True

    async def run(self) -> str:
        """Read and write until the link ends; returns the reason."""
        writer = asyncio.create_task(self._write())
        reader = asyncio.create_task(self._read())
        try:
            done, _ = await asyncio.wait((writer, reader), return_when=asyncio.FIRST_COMPLETED)
            # If both ended, the reader has the reason.
            return (reader if reader in done else writer).result()
        finally:
            self.close()
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)

    def close(self) -> None:
        """Close the link."""
        if not self.is_closed:
            self.is_closed = True
            self._stream.link.close()

    def _queue(self, data: bytes, expendable: bool = False) -> None:
        self._outbox.put(data, expendable)
        self.traffic["dropped"] = self._outbox.dropped
        self._waiting.set()

    async def _write(self) -> str:
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            data = self._outbox.take()
            try:
                await self._stream.link.send(data)
            except TransportError:
                return "the link broke"
            self.traffic["bytes_sent"] += len(data)

    async def _read(self) -> str:
        while True:
            received = await self._stream.receive()
            if received is None:
                return "the other end closed the link"
            kind, content = received
            self.last_received = self._clock()
            self.traffic["bytes_received"] += HEADER.size + len(content)
            if kind == Kind.MESSAGE:
                self.traffic["messages_received"] += 1
                self._user.on_message(self, content)
            elif kind == Kind.PING:
                if self._user.admits(self):
                    self._queue(_PONG)
            elif kind == Kind.PONG:
                if self._pinged_at is None:
                    self._user.admits(self)
                else:
                    self._record_round_trip(self._pinged_at)
            else:
                raise FrameError(f"a {kind.name} after the handshake")
            if self._user.is_over_rate(self):
                await asyncio.sleep(PAUSE_S)

    def _record_round_trip(self, pinged_at: float) -> None:
        self.round_trip_ms = round(1000 * (self.last_received - pinged_at), 3)
        self._measure_at, self._pinged_at = self.last_received + self._options.measure_every_s, None
