"""The first words on a link: both ends show that they speak one protocol and belong to one network.

The transport has proved who the two peers are. What remains to be shown, in this order:

1. both greet with the protocol version and a fresh nonce;
2. the dialler proves that it knows the network secret: HMAC-SHA256 under the secret, over who dials whom and both
   nonces. The secret itself is never sent, and a proof is of no use on any other link;
3. the other end proves the same. Nobody who cannot prove anything ever receives a proof.

With its proof each end says where it listens. Then both send their `Hello`, with the learning problem they work on.
A network without a secret goes through the same steps with an empty one. Whoever fails is told why, and counted.
"""

from __future__ import annotations

import asyncio
import hmac
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from dada.net.framing import FrameError, FrameStream, Kind, frame
from dada.net.transport import TransportError
from dada.peer.messages import PROTOCOL_VERSION, CodecError, Hello, PeerId, decode, encode

NONCE_SIZE, PROOF_SIZE = 32, 32
HANDSHAKE_TIMEOUT_S = 8.0
MOST_ADDRESSES, LONGEST_ADDRESS = 8, 256

_GREETING = struct.Struct(f">4sB{NONCE_SIZE}s")
_MAGIC = b"dada"
_addresses = msgspec.msgpack.Decoder(tuple[str, ...])


class Refusal(StrEnum):
    """Why a link or a message was not accepted; nodes count these."""

    VERSION = "another protocol version"
    SECRET = "wrong network secret"
    NOT_ALLOWED = "not on the list of allowed peers"
    PROBLEM = "another learning problem"
    FRAME = "bytes that are not frames"
    MESSAGE = "frames that are not messages"
    RATE = "too many messages"
    IMPLAUSIBLE = "implausible messages"
    SILENCE = "no answer in time"
    BY_OTHER = "refused by the other end"


# Whoever sends nonsense would not understand the reason either.
_WORTH_TELLING = (Refusal.VERSION, Refusal.SECRET, Refusal.NOT_ALLOWED, Refusal.PROBLEM)


class HandshakeError(ValueError):
    """A link that is not to be used, and why."""

    def __init__(self, refusal: Refusal, detail: str = "") -> None:
        super().__init__(f"{refusal}: {detail}" if detail else str(refusal))
        self.refusal = refusal


@dataclass(frozen=True)
class Terms:
    """Whom a peer talks to.

    Parameters
    ----------
    secret : bytes
        Known to all peers of the network; empty where anybody may join.
    allowed : frozenset of bytes, optional
        Ids of the only peers to talk to.
    """

    secret: bytes = b""
    allowed: frozenset[PeerId] | None = None

    def admits(self, peer: PeerId) -> bool:
        """Whether the list of allowed peers lets a peer in."""
        return self.allowed is None or peer in self.allowed


@dataclass(frozen=True)
class Introduction:
    """What the handshake taught about the other end."""

    hello: Hello
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Party:
    """One end of a handshake."""

    me: PeerId
    is_dialler: bool
    terms: Terms
    hello: Hello
    addresses: tuple[str, ...]
    nonce: bytes


async def shake_hands(stream: FrameStream, party: Party) -> Introduction:
    """Introduce both ends to each other, or raise `HandshakeError`; an honest other end is told why."""
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            return await _shake_hands(stream, party)
    except TimeoutError as error:
        raise HandshakeError(Refusal.SILENCE, f"no handshake within {HANDSHAKE_TIMEOUT_S:g} s") from error
    except HandshakeError as error:
        if error.refusal in _WORTH_TELLING:
            await _tell(stream, error.refusal)
        raise


async def _shake_hands(stream: FrameStream, party: Party) -> Introduction:
    peer = stream.link.peer
    if not party.terms.admits(peer):
        raise HandshakeError(Refusal.NOT_ALLOWED, peer.hex()[:10])
    await stream.send(frame(Kind.GREETING, _GREETING.pack(_MAGIC, PROTOCOL_VERSION, party.nonce)))
    other_nonce = _read_greeting(await _expect(stream, Kind.GREETING))
    roles = (party.me, peer) if party.is_dialler else (peer, party.me)
    nonces = (party.nonce, other_nonce) if party.is_dialler else (other_nonce, party.nonce)

    def proof(of_dialler: bool) -> bytes:
        context = b"dada proof" + bytes([of_dialler]) + b"".join(_sized(part) for part in (*roles, *nonces))
        return hmac.digest(party.terms.secret, context, "sha256")

    async def prove() -> None:
        await stream.send(frame(Kind.PROOF, proof(party.is_dialler) + msgspec.msgpack.encode(party.addresses)))

    async def verify() -> tuple[str, ...]:
        content = await _expect(stream, Kind.PROOF)
        if not hmac.compare_digest(content[:PROOF_SIZE], proof(not party.is_dialler)):
            raise HandshakeError(Refusal.SECRET, "the other end could not prove that it knows the secret")
        return _read_addresses(content[PROOF_SIZE:])

    addresses = await _in_turn(party.is_dialler, prove, verify)
    await stream.send(frame(Kind.MESSAGE, encode(party.hello)))
    hello = _read_hello(await _expect(stream, Kind.MESSAGE), party.hello.problem)
    return Introduction(hello, addresses)


async def _in_turn(
    first: bool, prove: Callable[[], Awaitable[None]], verify: Callable[[], Awaitable[tuple[str, ...]]]
) -> tuple[str, ...]:
    if first:
        await prove()
        return await verify()
    addresses = await verify()
    await prove()
    return addresses


async def _expect(stream: FrameStream, wanted: Kind) -> bytes:
    try:
        received = await stream.next()
    except FrameError as error:
        raise HandshakeError(Refusal.FRAME, str(error)) from error
    if received is None:
        raise HandshakeError(Refusal.SILENCE, "the other end hung up")
    kind, content = received
    if kind == Kind.REFUSAL:
        raise HandshakeError(Refusal.BY_OTHER, _printable(content))
    if kind != wanted:
        raise HandshakeError(Refusal.FRAME, f"a {kind.name} where a {wanted.name} was expected")
    return content


def _read_greeting(content: bytes) -> bytes:
    if len(content) < 5 or content[:4] != _MAGIC:
        raise HandshakeError(Refusal.FRAME, "not a greeting")
    if content[4] != PROTOCOL_VERSION:
        raise HandshakeError(Refusal.VERSION, f"the other end speaks {content[4]}, this peer {PROTOCOL_VERSION}")
    if len(content) != _GREETING.size:
        raise HandshakeError(Refusal.FRAME, "not a greeting")
    return content[5:]


def _read_addresses(content: bytes) -> tuple[str, ...]:
    try:
        addresses = _addresses.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HandshakeError(Refusal.FRAME, "addresses that cannot be read") from error
    if len(addresses) > MOST_ADDRESSES or any(len(address) > LONGEST_ADDRESS for address in addresses):
        raise HandshakeError(Refusal.FRAME, f"more than {MOST_ADDRESSES} addresses, or a very long one")
    return addresses


def _read_hello(content: bytes, problem: bytes) -> Hello:
    try:
        hello = decode(content)
    except CodecError as error:
        raise HandshakeError(Refusal.MESSAGE, str(error)) from error
    if not isinstance(hello, Hello):
        raise HandshakeError(Refusal.MESSAGE, f"a {type(hello).__name__} where a Hello was expected")
    if hello.problem != problem:
        raise HandshakeError(Refusal.PROBLEM, "its settings or base predictors differ from this peer's")
    return hello


async def _tell(stream: FrameStream, refusal: Refusal) -> None:
    try:
        async with asyncio.timeout(1.0):
            await stream.send(frame(Kind.REFUSAL, refusal.encode()))
            await stream.finish()
    except (TransportError, TimeoutError):
        return


def _sized(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


def _printable(content: bytes) -> str:
    """What a stranger says is shown without anything that could disturb a terminal."""
    text = content[:100].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "?" for char in text)
