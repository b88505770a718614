"""Events of a run. Observers do not change its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Base predictors per user in a snapshot.
TOP_PREDICTORS = 5


def _nothing() -> NDArray[Any]:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class RunInfo:
    """Names of users and base predictors, for display; sent before the run. Every field is optional.

    `groups` holds the group number of each user. `alone` is each user's accuracy when it learns alone, `baselines` the
    mean accuracies of other methods by name. `predictors` describes each base predictor.
    """

    title: str = ""
    users: tuple[str, ...] = ()
    groups: NDArray[Any] = field(default_factory=_nothing)
    group_names: tuple[str, ...] = ()
    alone: NDArray[Any] = field(default_factory=_nothing)
    baselines: Mapping[str, float] = field(default_factory=dict)
    predictors: tuple[str, ...] = ()


class TrialStarted(NamedTuple):
    """A trial of one choice of open settings on held-out rows begins, before the run."""

    choice: str


class PhaseStarted(NamedTuple):
    """A phase begins: `kind` is "local", "graph" or "models", `events` its number of wake-ups."""

    kind: str
    events: int


class Progress(NamedTuple):
    """`done` of `total` wake-ups of the run are complete."""

    done: int
    total: int


@dataclass(frozen=True, eq=False)
class TracePoint:
    """The state of a run after `updates` model updates.

    `gap` certifies the models for the current graph. On a symmetric graph it is the duality gap: the model objective is
    at most this far from its optimum. On a directed graph it is the equilibrium gap: all users together could gain at
    most this much if each changed its own model alone. Accuracies are per user; `test_accuracy` is empty without test
    data. `bits` counts all messages so far, `graph_bits` those of graph wake-ups.
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


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The current state of all users and of the graph.

    Edge e has weight `w[e]` and joins `k[e]` and `l[e]`; each edge occurs once. In a directed graph `k[e]` learns from
    `l[e]`. All other arrays have one entry or row per user. `accuracy` is on test data if available, else on training
    data, or empty. `predictors` holds the base predictors of largest weight in each model, heaviest first, padded with
    -1, and `predictor_weights` their weights. `messages` and `bits` count what each user has sent.
    """

    phase: str
    updates: int
    k: NDArray[Any]
    l: NDArray[Any]
    w: NDArray[Any]
    directed: bool
    confidence: NDArray[Any]
    loss: NDArray[Any]
    accuracy: NDArray[Any]
    predictors: NDArray[Any]
    predictor_weights: NDArray[Any]
    messages: NDArray[Any]
    bits: NDArray[Any]


@dataclass(frozen=True, eq=False)
class SnapshotOffer:
    """An opportunity to take a `Snapshot`: an observer may call `take` before it returns.

    A snapshot costs time, an offer does not. A `milestone`, such as the end of the run, is worth a snapshot.
    """

    take: Callable[[], Snapshot]
    milestone: bool = False


@dataclass(frozen=True, eq=False)
class PeerStatus:
    """Status of the peers of a network, one entry per user.

    `up` is whether a peer answers, `restarts` its number of restarts, `rtt_ms` the round-trip time to it (NaN if
    unknown), `refused` the number of messages it has rejected.
    """

    up: NDArray[Any]
    restarts: NDArray[Any]
    rtt_ms: NDArray[Any]
    refused: NDArray[Any]


class CheckpointSaved(NamedTuple):
    """A checkpoint was written to `path`."""

    path: str
    updates: int


class CheckpointFailed(NamedTuple):
    """A checkpoint could not be written to `path`; the previous one is intact, and the run continues."""

    path: str
    reason: str


class Stopped(NamedTuple):
    """The run has ended; `status` is a sentence."""

    status: str


Event = (
    RunInfo | TrialStarted | PhaseStarted | Progress | TracePoint | SnapshotOffer | PeerStatus
    | CheckpointSaved | CheckpointFailed | Stopped
)  # fmt: skip
Observer = Callable[[Any], None]


def silent(event: Event) -> None:
    """The observer that does nothing."""


def fan_out(*observers: Observer) -> Observer:
    """An observer that forwards every event to the given observers, in order.

    >>> received = []
    >>> fan_out(received.append, silent, received.append)(Progress(1, 2))
    >>> received
    [Progress(done=1, total=2), Progress(done=1, total=2)]
    """

    def forward(event: Event) -> None:
        for observer in observers:
            observer(event)

    return forward


def heaviest_predictors(alpha: NDArray[Any], most: int = TOP_PREDICTORS) -> tuple[NDArray[Any], NDArray[Any]]:
    """The base predictors of largest weight in each model, heaviest first, padded with -1; and their weights.

    >>> numbers, weights = heaviest_predictors(np.array([[0.0, -3.0, 1.0], [0.0, 0.0, 2.0]]), 2)
    >>> numbers.tolist(), weights.tolist()
    ([[1, 2], [2, -1]], [[-3.0, 1.0], [2.0, 0.0]])
    """
    most = min(most, alpha.shape[1])
    size = np.abs(alpha)
    some = np.argpartition(size, alpha.shape[1] - most, axis=1)[:, alpha.shape[1] - most :]
    order = np.argsort(-np.take_along_axis(size, some, axis=1), axis=1, kind="stable")
    numbers = np.take_along_axis(some, order, axis=1)
    weights = np.take_along_axis(alpha, numbers, axis=1)
    return np.where(weights != 0, numbers, -1), weights


def edges_reported(
    reports: Iterable[tuple[int, int, float]], directed: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The edges of a snapshot, from reports (k, l, w) of users k that learn from l with weight w.

    In an undirected graph both ends may report the same edge; its weight is the mean of the reports.

    >>> reports = [(1, 0, 0.5), (0, 1, 0.75), (2, 1, 1.0)]
    >>> [column.tolist() for column in edges_reported(reports, directed=False)]
    [[0, 1], [1, 2], [0.625, 1.0]]
    >>> [column.tolist() for column in edges_reported(reports, directed=True)]
    [[0, 1, 2], [1, 0, 1], [0.75, 0.5, 1.0]]
    """
    weights: dict[tuple[int, int], list[float]] = {}
    for k, l, w in reports:
        weights.setdefault((k, l) if directed else (min(k, l), max(k, l)), []).append(w)
    pairs = sorted(weights)
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1], np.array([np.mean(weights[pair]) for pair in pairs])
