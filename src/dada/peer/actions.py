"""What a planner may ask of a peer."""

from __future__ import annotations

from dataclasses import dataclass

from dada.peer.messages import PeerId


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
