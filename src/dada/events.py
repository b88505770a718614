"""What a run tells those who watch it. Watching changes nothing: a run computes the same with and without observers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PhaseStarted:
    """A phase begins: `kind` is "local", "graph" or "models", `events` its number of wake-ups."""

    kind: str
    events: int


@dataclass(frozen=True)
class Progress:
    """`done` of `total` wake-ups of the whole run are over."""

    done: int
    total: int


@dataclass(frozen=True, eq=False)
class TracePoint:
    """The state of a run after `updates` model updates.

    `gap` bounds how far the model objective is from its optimum for the current graph. Accuracies are per user;
    `test_accuracy` is empty where the run was given no test data. `bits` counts all messages so far, `graph_bits` those of
    them that served the graph.
    """

    updates: int
    graph_wakeups: int
    objective: float
    gap: float
    train_accuracy: NDArray[np.float32]
    test_accuracy: NDArray[np.float32]
    edges: int
    bits: float
    graph_bits: float


@dataclass(frozen=True)
class CheckpointSaved:
    """The run can go on from `path`."""

    path: str
    updates: int


@dataclass(frozen=True)
class CheckpointFailed:
    """A checkpoint could not be written to `path`; the one before stands, and the run goes on."""

    path: str
    reason: str


@dataclass(frozen=True)
class Stopped:
    """The run is over; `status` is a sentence."""

    status: str


Event = PhaseStarted | Progress | TracePoint | CheckpointSaved | CheckpointFailed | Stopped
Observer = Callable[[Any], None]


def silent(event: Event) -> None:
    """The observer that does nothing."""
