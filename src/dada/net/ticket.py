"""A ticket: who a peer is and where it listens, as text that fits a line of chat. Any one is enough to join."""

from __future__ import annotations

import base64
import binascii
import zlib

import msgspec

from dada.peer.messages import Descriptor

PREFIX = "dada1"


class TicketError(ValueError):
    """Text that is not a ticket."""


def write_ticket(peer: Descriptor) -> str:
    """A peer's id and addresses as text.

    >>> ticket = write_ticket(Descriptor(bytes(32), 0, ("127.0.0.1:4040",)))
    >>> read_ticket(ticket).addresses
    ('127.0.0.1:4040',)
    """
    content = msgspec.msgpack.encode((peer.peer, peer.addresses))
    checked = content + zlib.crc32(content).to_bytes(4, "big")
    return PREFIX + base64.b32encode(checked).decode().rstrip("=").lower()


def read_ticket(ticket: str) -> Descriptor:
    """The peer that a ticket names."""
    text = ticket.strip()
    if not text.startswith(PREFIX):
        raise TicketError(f"a ticket begins with {PREFIX!r}, got {text[:20]!r}: copy the whole line a peer printed")
    body = text[len(PREFIX) :].upper()
    try:
        checked = base64.b32decode(body + "=" * (-len(body) % 8))
        content, checksum = checked[:-4], checked[-4:]
        if zlib.crc32(content).to_bytes(4, "big") != checksum:
            raise ValueError("its checksum does not fit")
        peer, addresses = msgspec.msgpack.decode(content, type=tuple[bytes, tuple[str, ...]])
    except (binascii.Error, msgspec.DecodeError, ValueError) as error:
        raise TicketError(f"the ticket {text[:20]}... is damaged ({error}): copy it again") from error
    return Descriptor(peer, 0, addresses)
