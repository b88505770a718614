"""What peers say to each other.

Nothing here is data: a message carries model coordinates, edge weights, a loss, a degree, a number of samples, whether
one follows another, or who else is about. Models are numbered by (epoch, sequence): the epoch grows by one each time a
peer starts, the sequence by one with each move, so a receiver knows whether it has missed any.
"""

from __future__ import annotations

import msgspec

PeerId = bytes


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """A whole model: little-endian uint32 coordinates and float32 values, in the owner's order."""

    epoch: int
    sequence: int
    coordinates: bytes
    values: bytes


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """First on every connection: which learning problem the sender works on, and its epoch."""

    problem: bytes
    epoch: int


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The sender leaves for good; its edges may be dropped."""


class ModelDelta(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Move number `sequence` of the sender's model (see `dada.core.model_steps.Move`)."""

    epoch: int
    sequence: int
    j: int
    positive: bool
    away: int
    gamma: float
    takes_all: bool


class SnapshotRequest(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Send me your whole model."""


class SnapshotReply(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The sender's whole model."""

    snapshot: Snapshot


class StateRequest(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Asked at a graph wake-up; `round` is returned with the reply."""

    round: int


class StateReply(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """What a graph step needs of a peer: model, loss per sample set, degree, number of samples."""

    round: int
    snapshot: Snapshot
    loss: float
    degree: float
    size: int


class EdgeState(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """What the sender holds of the edge between us. The higher (version, author) wins at both ends.

    A sender that proposes a new weight attaches its model where the receiver may not have it yet.
    """

    version: int
    author: bytes
    weight: float
    snapshot: Snapshot | None = None


class EdgeAck(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The sender holds that version of our edge, and its model stands at (epoch, sequence)."""

    version: int
    author: bytes
    epoch: int
    sequence: int


class Descriptor(msgspec.Struct, frozen=True, array_like=True):
    """A peer that somebody knows of: its id, how many exchanges ago it was heard of, and where to dial it."""

    peer: bytes
    age: int
    addresses: tuple[str, ...] = ()


class ViewRequest(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Peer sampling: half of the sender's view; the receiver answers with half of its own."""

    view: tuple[Descriptor, ...]


class ViewReply(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Peer sampling: the answer to a `ViewRequest`."""

    view: tuple[Descriptor, ...]


class Follow(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Evidence graph: whether the sender follows the receiver's model, from this version of its word on."""

    version: int
    follows: bool


class FollowAck(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Evidence graph: what the sender holds of the receiver's word, and its model stands at (epoch, sequence)."""

    version: int
    follows: bool
    epoch: int
    sequence: int


class ModelOffer(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Evidence graph: the answer to a `StateRequest`: a model, and from how many samples; no loss, no degree."""

    round: int
    snapshot: Snapshot
    size: int


class FriendsRequest(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Neighbour search: whom do you learn from? Answered to those who learn from the receiver."""


class FriendsReply(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Neighbour search: a few of those whom the sender learns from."""

    friends: tuple[Descriptor, ...]


Message = (
    Hello
    | Goodbye
    | ModelDelta
    | SnapshotRequest
    | SnapshotReply
    | StateRequest
    | StateReply
    | EdgeState
    | EdgeAck
    | ViewRequest
    | ViewReply
    | Follow
    | FollowAck
    | ModelOffer
    | FriendsRequest
    | FriendsReply
)


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
