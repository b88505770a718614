"""Handshake on a new link: both ends prove that they speak one protocol and belong to one network.

The transport has authenticated both peers. The handshake then proceeds in this order:

1. Both ends send a greeting with the protocol version and a fresh nonce.
2. The dialler proves that it knows the network secret: HMAC-SHA256 under the secret, over the ids of dialler and
   listener and both nonces. The secret is never sent, and a proof is valid on this link only.
3. The listener proves the same. A peer that cannot prove its membership never receives a proof.

With its proof each end sends its addresses and, in a network with a founder, its certificate of membership. Then both
send their `Hello`, which identifies the learning problem. A network without a secret uses an empty one. An end that
fails is sent the reason, and the failure is counted.
"""

from __future__ import annotations

import asyncio
import hmac
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec

from dada.net.transport import FrameError, FrameStream, Kind, TransportError, frame
from dada.peer.membership import Membership
from dada.peer.messages import PROTOCOL_VERSION, Addresses, Certificate, CodecError, Hello, PeerId, decode, encode

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
