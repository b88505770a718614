"""Messages to bytes and back. Bytes from outside are bounded before they are decoded, and checked while they are."""

from __future__ import annotations

import msgspec

from dada.peer.messages import Message

PROTOCOL_VERSION = 1
# A model of a hundred thousand coordinates fits; nothing that a peer says needs more.
LARGEST_MESSAGE = 1 << 20

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class CodecError(ValueError):
    """Bytes that are not a message of this protocol."""


def encode(message: Message) -> bytes:
    """A message as bytes: the protocol version, then MessagePack.

    >>> from dada.peer.messages import StateRequest
    >>> decode(encode(StateRequest(round=3)))
    StateRequest(round=3)
    """
    return bytes([PROTOCOL_VERSION]) + _encoder.encode(message)


def decode(data: bytes) -> Message:
    """The message in some bytes, or `CodecError`."""
    if not 1 < len(data) <= LARGEST_MESSAGE:
        raise CodecError(f"a message has 2 to {LARGEST_MESSAGE} bytes, got {len(data)}")
    if data[0] != PROTOCOL_VERSION:
        raise CodecError(f"protocol version {data[0]}, this peer speaks {PROTOCOL_VERSION}")
    try:
        return _decoder.decode(data[1:])
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(str(error)) from error
