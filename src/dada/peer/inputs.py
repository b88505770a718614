"""What a planner may ask of a peer."""

from __future__ import annotations

from dataclasses import dataclass

from dada.peer.messages import Message, PeerId


@dataclass(frozen=True)
class ModelStep:
    """Make one model update; `gamma` only for the rule "paper"."""

    gamma: float = -1.0


@dataclass(frozen=True)
class GraphStep:
    """Update the weights to a batch of peers."""

    batch: tuple[PeerId, ...]


@dataclass(frozen=True)
class ResetModel:
    """Start the model again from zero."""


@dataclass(frozen=True)
class Leave:
    """Say goodbye to all neighbours."""


Action = ModelStep | GraphStep | ResetModel | Leave


@dataclass(frozen=True)
class Persist:
    """Store a record durably before anything later in the list is done; an empty value forgets the key."""

    key: bytes
    value: bytes


@dataclass(frozen=True)
class Send:
    """Send a message to a peer; it may be lost."""

    to: PeerId
    message: Message


@dataclass(frozen=True)
class Refused:
    """A message was not acted upon, and why; drivers count these."""

    sender: PeerId
    reason: str


Effect = Persist | Send | Refused
