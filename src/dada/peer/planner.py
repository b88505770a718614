"""When a peer wakes, and what it then does: by its own counters, and by no clock but its own.

A life has three parts, each counted in the peer's own steps: some model steps with nobody (`local_steps`), then graph
steps to find first neighbours (`first_graph_steps`), then model steps with one graph step after every `graph_every` of
them. The first part asks nothing of others and need not wait for the clock. Waits between wake-ups are exponential, so
the peers of a network wake like independent Poisson clocks, in no agreed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from dada.peer.actions import Action, GraphStep, ModelStep, ResetModel
from dada.peer.effects import Persist
from dada.peer.messages import PeerId

RECORD_KEY = b"planner"


@dataclass(frozen=True)
class Rhythm:
    """How a peer divides its wake-ups.

    Parameters
    ----------
    local_steps : int
        Model steps before the first graph step.
    first_graph_steps : int
        Graph steps before the next model step.
    graph_every : int
        Model steps between two later graph steps.
    kappa : int
        Peers asked at a graph step.
    wakeups_per_s : float
        Mean rate of the peer's clock.
    restart : bool
        Start the model again from zero after the first graph steps, as in the paper.

    Examples
    --------
    >>> Rhythm(local_steps=10).kappa
    5
    """

    local_steps: int = 100
    first_graph_steps: int = 30
    graph_every: int = 5
    kappa: int = 5
    wakeups_per_s: float = 1.0
    restart: bool = False

    def __post_init__(self) -> None:
        for name, least in (("local_steps", 0), ("first_graph_steps", 0), ("graph_every", 1), ("kappa", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.wakeups_per_s < float("inf"):
            raise ValueError(f"wakeups_per_s must be > 0 and finite, got {self.wakeups_per_s}")


class Source(Protocol):
    """Knows whom to ask."""

    def sample(self, kappa: int) -> tuple[PeerId, ...]:
        """About so many distinct peers."""


class _Counters(msgspec.Struct, array_like=True):
    wakeups: int = 0
    model_steps: int = 0
    graph_steps: int = 0
    is_restarted: bool = False
    is_graph_next: bool = False


class Planner:
    """Decides what each wake-up of one peer is.

    Examples
    --------
    >>> from dada.peer.sampling import PeerSampling
    >>> rng = np.random.default_rng(0)
    >>> planner = Planner(Rhythm(local_steps=1, first_graph_steps=0, graph_every=2), rng)
    >>> nobody = PeerSampling(b"me", rng)
    >>> [type(planner.next_action(nobody)).__name__ for _ in range(5)]
    ['ModelStep', 'ModelStep', 'ModelStep', 'GraphStep', 'ModelStep']
    """

    def __init__(self, rhythm: Rhythm, rng: np.random.Generator) -> None:
        self.rhythm = rhythm
        self.rng = rng
        self._done = _Counters()

    @property
    def wakeups(self) -> int:
        """Wake-ups so far, in all lives of the peer."""
        return self._done.wakeups

    @property
    def is_alone(self) -> bool:
        """Whether the next step is one of the first, which have nothing to do with others."""
        return self._done.model_steps < self.rhythm.local_steps

    def wait_s(self) -> float:
        """The time until the next wake-up, drawn anew at each call."""
        return float(self.rng.exponential(1.0 / self.rhythm.wakeups_per_s))

    def jitter(self) -> float:
        """A factor around 1 that keeps what many peers do at steady times from happening all at once."""
        return float(self.rng.uniform(0.5, 1.5))

    def next_action(self, source: Source) -> Action:
        """What this wake-up is; graph steps ask the peers that the source names."""
        done, rhythm = self._done, self.rhythm
        done.wakeups += 1
        if not self.is_alone:
            if done.graph_steps < rhythm.first_graph_steps:
                done.graph_steps += 1
                return GraphStep(source.sample(rhythm.kappa))
            if rhythm.restart and not done.is_restarted:
                done.is_restarted = True
                return ResetModel()
            if done.is_graph_next:
                done.is_graph_next = False
                done.graph_steps += 1
                return GraphStep(source.sample(rhythm.kappa))
        done.model_steps += 1
        since_first = done.model_steps - rhythm.local_steps
        done.is_graph_next = since_first > 0 and since_first % rhythm.graph_every == 0
        return ModelStep()

    def record(self) -> Persist:
        """The counters, to be stored together with what the last action changed."""
        return Persist(RECORD_KEY, msgspec.msgpack.encode(self._done))

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Go on from stored counters, where there are any."""
        if RECORD_KEY in records:
            self._done = msgspec.msgpack.decode(records[RECORD_KEY], type=_Counters)
