"""Faults of a simulated network: shares by name, links that lose, repeat and delay messages, and cuts between hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Faults:
    """Shares of the messages and of the peers that each fault affects.

    Parameters
    ----------
    lost, repeated, held_up : float
        Shares of the messages.
    churning : float
        Share of the peers that crash repeatedly, and restart from their stored records.
    late, leaving : float
        Shares of the peers that join late, or leave for good during the run, half of them without a goodbye.
    lying : float
        Share of the peers that are liars, of all kinds in turn.
    apart : float
        Share of the peers that a partition cuts off for a fifth of the run.
    unheard : float
        Share of the peers whose messages reach no other peer for a third of the run, though they receive others'.
    dropping : float
        Share of the messages with which a link breaks: all that is under way on it is lost, and greetings begin again.
    drifting : float
        Share of the peers whose clocks run up to a tenth too fast or too slow, and begin anew with every life.
    slow : float
        Share of the peers that take up to a twentieth of a second to handle a message.
    restored : float
        Share of the peers that restart from the records of an earlier life. Half of their clocks are set back too.
    doubled : float
        Share of the peers that run as two processes for a quarter of the run.
    damaged : float
        Share of the peers whose disks change a byte before a restart.

    Examples
    --------
    >>> both = Faults.named("loss,churn")
    >>> both.lost, both.churning, both.lying
    (0.2, 0.1, 0.0)
    """

    lost: float = 0.0
    repeated: float = 0.0
    held_up: float = 0.0
    churning: float = 0.0
    late: float = 0.0
    leaving: float = 0.0
    lying: float = 0.0
    apart: float = 0.0
    unheard: float = 0.0
    dropping: float = 0.0
    drifting: float = 0.0
    slow: float = 0.0
    restored: float = 0.0
    doubled: float = 0.0
    damaged: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0.0 <= getattr(self, field.name) <= 1.0:
                raise ValueError(f"{field.name} must be in 0..1 (a share), got {getattr(self, field.name)}")

    @classmethod
    def named(cls, names: str) -> Faults:
        """The faults with a name, or with several names separated by commas."""
        known = {"none": cls(), "loss": LOSS, "churn": CHURN, "byzantine": BYZANTINE, "all": ALL}
        chosen = []
        for name in names.split(","):
            if name not in known:
                raise ValueError(f"faults must be among {', '.join(known)}, or several with commas, got {name!r}")
            chosen.append(known[name])
        return cls(*(max(getattr(one, field.name) for one in chosen) for field in fields(cls)))

    def link(self) -> VirtualLink:
        """The links of a network with these faults."""
        link = varying_link(MEDIAN_LATENCY_S)
        if self.held_up:
            link = reordering_link(link, self.held_up, LONGEST_HOLD_S)
        if self.repeated:
            link = repeating_link(link, self.repeated)
        if self.lost:
            link = lossy_link(link, self.lost)
        return link


LOSS = Faults(lost=0.2, repeated=0.05, held_up=0.1)
CHURN = Faults(churning=0.1, late=0.04, leaving=0.04)
BYZANTINE = Faults(lying=0.1)
ALL = Faults(
    lost=0.2, repeated=0.05, held_up=0.1, churning=0.1, late=0.04, leaving=0.04, lying=0.1, apart=0.3, unheard=0.1,
    dropping=0.01, drifting=0.2, slow=0.1, restored=0.04, doubled=0.04, damaged=0.04,
)  # fmt: skip


class Cut(NamedTuple):
    """From start to stop, no message of some hosts reaches the others; and none of the others them, unless one-way.

    >>> Cut(frozenset({1, 2}), start=5.0, stop=9.0, is_one_way=True).stops(1, 7, now=6.0)
    True
    """

    inside: frozenset[int]
    start: float
    stop: float
    is_one_way: bool = False

    def stops(self, sender: int, receiver: int, now: float) -> bool:
        """Whether a message does not arrive."""
        if not self.start <= now < self.stop or (sender in self.inside) == (receiver in self.inside):
            return False
        return sender in self.inside or not self.is_one_way


MEDIAN_LATENCY_S = 0.05
# The longest time for which a message is held up.
LONGEST_HOLD_S = 3.0
# From sender and receiver (by number), time and randomness to the delay of each copy of a message that arrives. No copy
# arrives if the message is lost.
VirtualLink = Callable[[int, int, float, np.random.Generator], tuple[float, ...]]


def steady_link(latency_s: float) -> VirtualLink:
    """All messages take the same time, so they stay in order."""
    return lambda sender, receiver, now, rng: (latency_s,)


def varying_link(median_s: float, spread: float = 0.5) -> VirtualLink:
    """Log-normal latencies, as between distant machines: some messages overtake others."""
    return lambda sender, receiver, now, rng: (median_s * float(np.exp(spread * rng.standard_normal())),)


def lossy_link(link: VirtualLink, share: float) -> VirtualLink:
    """A share of the messages never arrives."""

    def delays(sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        return () if rng.random() < share else link(sender, receiver, now, rng)

    return delays


def repeating_link(link: VirtualLink, share: float) -> VirtualLink:
    """A share of the messages arrives twice."""

    def delays(sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        first = link(sender, receiver, now, rng)
        return first + link(sender, receiver, now, rng) if rng.random() < share else first

    return delays


def reordering_link(link: VirtualLink, share: float, longest_s: float) -> VirtualLink:
    """A share of the messages is held up, so that later messages arrive first."""

    def delays(sender: int, receiver: int, now: float, rng: np.random.Generator) -> tuple[float, ...]:
        held = float(rng.uniform(0.0, longest_s)) if rng.random() < share else 0.0
        return tuple(delay + held for delay in link(sender, receiver, now, rng))

    return delays
