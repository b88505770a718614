"""What a node tells those who watch it. Watching changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dada.peer.messages import PeerId


@dataclass(frozen=True)
class Listening:
    """The node is up; `ticket` lets others join."""

    me: PeerId
    ticket: str


@dataclass(frozen=True)
class LinkOpened:
    """A link to a peer is open."""

    me: PeerId
    peer: PeerId


@dataclass(frozen=True)
class LinkClosed:
    """The link to a peer has ended, and why."""

    me: PeerId
    peer: PeerId
    reason: str


@dataclass(frozen=True)
class LinkRefused:
    """A link was refused by this end or the other, and why."""

    me: PeerId
    peer: PeerId
    reason: str


@dataclass(frozen=True)
class MessageRefused:
    """A message was not acted upon, and why."""

    me: PeerId
    peer: PeerId
    reason: str


@dataclass(frozen=True)
class PeerGone:
    """A neighbour could not be reached for long, and its edge is dropped."""

    me: PeerId
    peer: PeerId


@dataclass(frozen=True, eq=False)
class NodeStatus:
    """How the node does, once per `status_every_s` seconds; see `Node.status`."""

    me: PeerId
    status: Mapping[str, Any]


NodeEvent = Listening | LinkOpened | LinkClosed | LinkRefused | MessageRefused | PeerGone | NodeStatus


def unwatched(event: NodeEvent) -> None:
    """The observer that does nothing."""
