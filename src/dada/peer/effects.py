"""What a peer asks its driver to do, in this order: persist, then send, then report."""

from __future__ import annotations

from dataclasses import dataclass

from dada.peer.messages import Message, PeerId


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
