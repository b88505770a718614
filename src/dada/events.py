"""What a run tells those who watch it. Watching changes nothing: a run computes the same with and without observers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Base predictors that a snapshot names for each user.
TOP_PREDICTORS = 5


def _nothing() -> NDArray[Any]:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class RunInfo:
    """Who takes part in a run. Told before the run by whoever knows; every part may be missing.

    `groups` numbers the group of each user, where groups are known. `alone` is each user's accuracy when it learns
    alone; `baselines` the mean accuracies of other methods by name. `predictors` says what each base predictor does.
    """

    title: str = ""
    users: tuple[str, ...] = ()
    groups: NDArray[Any] = field(default_factory=_nothing)
    group_names: tuple[str, ...] = ()
    alone: NDArray[Any] = field(default_factory=_nothing)
    baselines: Mapping[str, float] = field(default_factory=dict)
    predictors: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrialStarted:
    """Before the run, `choice` among settings that were left open is tried on held-out rows."""

    choice: str


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
    `test_accuracy` is empty where the run was given no test data. `bits` counts all messages so far, `graph_bits` those
    of them that served the graph.
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
    """All users and the graph between them, as they stand.

    Edge number e is of weight `w[e]` between `k[e]` and `l[e]`; each stands once, and in a directed graph `k[e]` learns
    from `l[e]`. Everything else has one entry, or one row, per user. `accuracy` is on test data where there is any,
    else on training data, or empty. `predictors` holds the numbers of the base predictors that weigh most in a user's
    model, heaviest first, -1 where there are fewer, and `predictor_weights` their weights. `messages` and `bits` count
    what each user has sent.
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
    """The run stands still and can be looked at: an observer that wants a `Snapshot` calls `take` before it returns.

    A snapshot costs time, an offer none, so runs make an offer at every occasion. At a `milestone`, such as the end, a
    snapshot is worth its cost.
    """

    take: Callable[[], Snapshot]
    milestone: bool = False


@dataclass(frozen=True, eq=False)
class PeerStatus:
    """How the peers of a network do: one entry per user.

    `up` says who answers, `restarts` how often each was started again, `rtt_ms` the round-trip time to it (NaN where
    unknown), `refused` how many messages were refused at it.
    """

    up: NDArray[Any]
    restarts: NDArray[Any]
    rtt_ms: NDArray[Any]
    refused: NDArray[Any]


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


Event = (
    RunInfo
    | TrialStarted
    | PhaseStarted
    | Progress
    | TracePoint
    | SnapshotOffer
    | PeerStatus
    | CheckpointSaved
    | CheckpointFailed
    | Stopped
)
Observer = Callable[[Any], None]


def silent(event: Event) -> None:
    """The observer that does nothing."""


def everyone(*observers: Observer) -> Observer:
    """One observer that tells all the given ones, in turn.

    >>> heard = []
    >>> everyone(heard.append, silent, heard.append)(Progress(1, 2))
    >>> heard
    [Progress(done=1, total=2), Progress(done=1, total=2)]
    """

    def tell(event: Event) -> None:
        for observer in observers:
            observer(event)

    return tell


def heaviest_predictors(alpha: NDArray[Any], most: int = TOP_PREDICTORS) -> tuple[NDArray[Any], NDArray[Any]]:
    """The base predictors that weigh most in each model, heaviest first, and their weights; -1 where a model has fewer.

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


def edges_said(
    said: Iterable[tuple[int, int, float]], directed: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Edges as a snapshot holds them, from what users say of whom they learn from and how much.

    In an undirected graph both ends may speak of the same edge: it stands once, with the mean of what they say.

    >>> said = [(1, 0, 0.5), (0, 1, 0.75), (2, 1, 1.0)]
    >>> [column.tolist() for column in edges_said(said, directed=False)]
    [[0, 1], [1, 2], [0.625, 1.0]]
    >>> [column.tolist() for column in edges_said(said, directed=True)]
    [[0, 1, 2], [1, 0, 1], [0.75, 0.5, 1.0]]
    """
    weights: dict[tuple[int, int], list[float]] = {}
    for k, l, w in said:
        weights.setdefault((k, l) if directed else (min(k, l), max(k, l)), []).append(w)
    pairs = sorted(weights)
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1], np.array([np.mean(weights[pair]) for pair in pairs])
