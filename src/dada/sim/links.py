"""Links of the virtual network: when, if ever, the copies of a message arrive. Faults wrap a better link.

>>> rng = np.random.default_rng(0)
>>> LossyLink(SteadyLink(0.1), share=1.0).delays(0, 1, 5.0, rng)
()
>>> RepeatingLink(SteadyLink(0.1), share=1.0).delays(0, 1, 5.0, rng)
(0.1, 0.1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


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
