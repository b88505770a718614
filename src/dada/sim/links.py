"""What goes wrong in a simulated network, in numbers and by name."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Faults:
    """Shares of messages and of peers to which something happens.

    Parameters
    ----------
    lost, repeated, held_up : float
        Shares of the messages.
    churning : float
        Share of the peers that crash again and again, and come back from what they have stored.
    late, leaving : float
        Shares of the peers that join late, or leave for good in the middle of the run, half of them without a word.
    lying : float
        Share of the peers that are liars, of all kinds in turn.
    apart : float
        Share of the peers that a partition cuts off for a fifth of the run.

    Examples
    --------
    >>> Faults.named("loss,churn")
    Faults(lost=0.2, repeated=0.05, held_up=0.1, churning=0.1, late=0.04, leaving=0.04, lying=0.0, apart=0.0)
    """

    lost: float = 0.0
    repeated: float = 0.0
    held_up: float = 0.0
    churning: float = 0.0
    late: float = 0.0
    leaving: float = 0.0
    lying: float = 0.0
    apart: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0.0 <= getattr(self, field.name) <= 1.0:
                raise ValueError(f"{field.name} must be in 0..1 (a share), got {getattr(self, field.name)}")

    @classmethod
    def named(cls, names: str) -> Faults:
        """The faults of one name, or of several separated by commas."""
        known = {"none": cls(), "loss": LOSS, "churn": CHURN, "byzantine": BYZANTINE, "all": ALL}
        chosen = []
        for name in names.split(","):
            if name not in known:
                raise ValueError(f"faults must be among {', '.join(known)}, or several with commas, got {name!r}")
            chosen.append(known[name])
        return cls(*(max(getattr(one, field.name) for one in chosen) for field in fields(cls)))


LOSS = Faults(lost=0.2, repeated=0.05, held_up=0.1)
CHURN = Faults(churning=0.1, late=0.04, leaving=0.04)
BYZANTINE = Faults(lying=0.1)
ALL = Faults(lost=0.2, repeated=0.05, held_up=0.1, churning=0.1, late=0.04, leaving=0.04, lying=0.1, apart=0.3)


class Link(Protocol):
    """What happens to a message between two hosts, given by number."""

    def delays(self, sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        """How long each copy that arrives is under way; none if the message is lost."""


@dataclass(frozen=True)
class SteadyLink:
    """Every message takes the same time, so order is kept."""

    latency_s: float

    def delays(self, sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        """See `Link`."""
        return (self.latency_s,)


@dataclass(frozen=True)
class VaryingLink:
    """Log-normal latencies, as between machines that are far apart: some messages overtake others."""

    median_s: float
    spread: float = 0.5

    def delays(self, sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        """See `Link`."""
        return (self.median_s * float(np.exp(self.spread * rng.standard_normal())),)


@dataclass(frozen=True)
class LossyLink:
    """A share of the messages never arrives."""

    link: Link
    share: float

    def delays(self, sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        """See `Link`."""
        return () if rng.random() < self.share else self.link.delays(sender, receiver, now, rng)


@dataclass(frozen=True)
class RepeatingLink:
    """A share of the messages arrives twice."""

    link: Link
    share: float

    def delays(self, sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        """See `Link`."""
        first = self.link.delays(sender, receiver, now, rng)
        return first + self.link.delays(sender, receiver, now, rng) if rng.random() < self.share else first


@dataclass(frozen=True)
class ReorderingLink:
    """A share of the messages is held up, so that later ones arrive first."""

    link: Link
    share: float
    longest_s: float

    def delays(self, sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        """See `Link`."""
        held = float(rng.uniform(0.0, self.longest_s)) if rng.random() < self.share else 0.0
        return tuple(delay + held for delay in self.link.delays(sender, receiver, now, rng))


@dataclass(frozen=True)
class PartitionedLink:
    """Between two moments nothing passes between a set of hosts and the others."""

    link: Link
    apart: frozenset[int]
    start: float
    stop: float

    def delays(self, sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        """See `Link`."""
        if self.start <= now < self.stop and (sender in self.apart) != (receiver in self.apart):
            return ()
        return self.link.delays(sender, receiver, now, rng)
