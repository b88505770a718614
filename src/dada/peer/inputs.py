"""Inputs and outputs of a peer: facts go in, effects come out.

A fact is something that happened, with its time. An action is a fact that the peer's own planner decides on. Facts are
also the records of a journal, so a peer can be replayed from what it was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from dada.peer.messages import Message, PeerId


class Restored(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The records that an earlier life stored were read; comes before `Started`."""

    records: dict[bytes, bytes]


class Started(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A life begins; `life` is a random id, by which two processes with one identity are told apart."""

    now: float
    life: bytes = b""


class ModelStep(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Action: make one model update; only the rule "paper" needs `gamma`."""

    now: float
    gamma: float = -1.0


class GraphStep(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Action: update the weights to a batch of peers."""

    now: float
    batch: tuple[PeerId, ...]


class ResetModel(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Action: start the model again from zero."""

    now: float


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Action: send a goodbye to all neighbours."""

    now: float


class Received(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A message arrived."""

    now: float
    sender: PeerId
    message: Message


class TimerFired(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The peer's deadline has passed."""

    now: float


class Unreachable(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The transport has stopped trying to reach a peer."""

    now: float
    peer: PeerId


Action = ModelStep | GraphStep | ResetModel | Leave
Fact = Restored | Started | Action | Received | TimerFired | Unreachable


@dataclass(frozen=True)
class Persist:
    """Store a record durably before any later effect is carried out; an empty value deletes the key."""

    key: bytes
    value: bytes


def stored(key: bytes, record: Any) -> Persist:
    """A record to be stored; raises `msgspec.ValidationError` if it could not be loaded again.

    >>> stored(b"key", TimerFired(0.5)).value.hex()
    '9207cb3fe0000000000000'
    """
    value = msgspec.msgpack.encode(record)
    msgspec.msgpack.decode(value, type=type(record))
    return Persist(key, value)


@dataclass(frozen=True)
class Send:
    """Send a message to a peer; it may be lost."""

    to: PeerId
    message: Message


@dataclass(frozen=True)
class Refused:
    """A message was ignored, and why; drivers count these."""

    sender: PeerId
    reason: str


@dataclass(frozen=True)
class Failed(Refused):
    """A message was ignored because handling it raised an error: a flaw of this program, not of the sender."""


@dataclass(frozen=True)
class Warned:
    """Something that the operator of this peer must know."""

    text: str


Effect = Persist | Send | Refused | Warned
