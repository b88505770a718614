"""The state of a run: arrays, neighbour lists, ledger, position; and its snapshots."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from dada.core.accuracy import Samples, accuracy_per_user
from dada.core.bits import MESSAGES, Ledger
from dada.core.block_steps import COARSEST
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.losses import GRAPH_LOSSES
from dada.core.neighbours import Nearest, NeighbourLists, lists_from_csr, lists_to_csr, no_nearest
from dada.core.plan import BLOCK_STEP, Plan
from dada.core.problem import Problem, losses_for_graph
from dada.engine.model_loops import SharedModels, UserArrays, nothing_shared, side_by_side
from dada.events import Snapshot, TracePoint, heaviest_predictors

TRACE_FIELDS = tuple(item.name for item in fields(TracePoint))


@dataclass(eq=False)
class State:
    """The state of a run after `done` wake-ups of phase number `phase`.

    `relative_gap` is the gap at the last trace point divided by the gap of zero models, if the plan has a tolerance.
    """

    users: UserArrays
    lists: NeighbourLists
    followers: NeighbourLists
    nearest: Nearest
    ledger: Ledger
    shared: SharedModels
    phase: int = 0
    done: int = 0
    local_updates: int = 0
    updates: int = 0
    graph_wakeups: int = 0
    relative_gap: float = math.inf
    trace: list[TracePoint] = field(default_factory=list)

    @classmethod
    def start(cls, problem: Problem, plan: Plan, graph: CollaborationGraph, dtype: type) -> State:
        """Zero models on the given graph."""
        K, n = problem.n_users, problem.n_predictors
        number = as_float(dtype)
        users = side_by_side(
            UserArrays(
                A=np.ascontiguousarray(problem.A, np.int8 if problem.A.dtype == np.int8 else number),
                row_start=np.asarray(problem.row_start, np.int64),
                confidence=problem.confidence,
                margins=problem.offsets.astype(number),
                alpha=np.zeros((K, n), number),
                neighbour_sum=np.zeros((K, n), number),
                support=np.zeros((K, n), np.int16 if n < 2**15 else np.int32),
                n_support=np.zeros(K, np.int32),
                own_updates=np.zeros(K, np.int32),
                degree=graph.degree,
                stale=np.ones(K, np.uint8),
                offset=problem.offsets.astype(number),
                sample_weight=problem.sample_weight,
                sent=np.zeros((K, 3), np.int64),
            )
        )
        nearest = no_nearest(K, *plan.n_remembered(K))
        lists, followers = lists_of(graph)
        # Other steps share the models themselves.
        shared = nothing_shared(*((K, n) if plan.step == BLOCK_STEP else (0, 0)), number)
        return cls(users, lists, followers, nearest, Ledger(n), shared)

    @property
    def known(self) -> UserArrays:
        """The users with the models that their neighbours hold: under block steps, the shared models."""
        shared = self.shared
        if shared.wakeups.size == 0:
            return self.users
        return self.users._replace(alpha=shared.model, support=shared.support, n_support=shared.n_support)

    @property
    def graph(self) -> CollaborationGraph:
        """The current collaboration graph."""
        return CollaborationGraph(*lists_to_csr(self.lists), directed=self.followers is not self.lists)

    def use_lists(self, parts: list[tuple[Array, Array, Array]]) -> None:
        """Replace all neighbour lists by compressed rows of consecutive users; followers stay as they are."""
        indptr, indices, weights = zip(*parts, strict=True)
        count = np.concatenate([np.diff(part) for part in indptr])
        ends = np.concatenate([[0], np.cumsum(count)])
        self.lists = lists_from_csr(ends, np.concatenate(indices), np.concatenate(weights))

    def use_models(self, problem: Problem, models: Array) -> None:
        """Replace all models."""
        users = self.users
        self.reset_models()
        users.alpha[...] = models
        for k, model in enumerate(users.alpha):
            support = np.flatnonzero(model)
            users.support[k, : support.size], users.n_support[k] = support, support.size
        users.margins[...] = problem.margins(users.alpha)

    def use_shared(self, shared: SharedModels) -> None:
        """Replace all shared models."""
        if shared.model.shape != self.shared.model.shape:
            raise ValueError(
                f"shared models must have shape {self.shared.model.shape} under this plan, got {shared.model.shape}: "
                "use them with step='block' and the same users"
            )
        for name, values in shared._asdict().items():
            getattr(self.shared, name)[...] = 0 if name == "bits" else values

    def reset_models(self) -> None:
        """Set all models to zero."""
        users = self.users
        for array in (users.alpha, users.neighbour_sum, users.n_support, users.own_updates):
            array[...] = 0
        users.margins[...] = users.offset
        users.stale[...] = 1
        for array in (self.shared.model, self.shared.n_support, self.shared.previous, self.shared.wakeups):
            array[...] = 0
        self.shared.exponent[...] = COARSEST


def lists_of(graph: CollaborationGraph) -> tuple[NeighbourLists, NeighbourLists]:
    """Neighbours and followers of each user; the same object if the graph is symmetric."""
    lists = lists_from_csr(graph.indptr, graph.indices, graph.weights)
    if not graph.directed:
        return lists, lists
    transposed = graph.to_scipy().T.tocsr()
    transposed.sort_indices()
    return lists, lists_from_csr(transposed.indptr, transposed.indices, transposed.data)


def as_float(dtype: np.dtype[Any] | type) -> np.dtype[Any]:
    """The dtype of a run's models: float32 or float64, nothing else."""
    result = np.dtype(dtype)
    if result not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"dtype must be float32 or float64, got {result}")
    return result


def trace_columns(trace: Iterable[TracePoint]) -> dict[str, Array]:
    """A trace as one array per field, to be stored."""
    return {name: np.array([getattr(point, name) for point in trace]) for name in TRACE_FIELDS}


def trace_of(columns: Iterable[Array]) -> list[TracePoint]:
    """A trace from its stored columns, in the order of the fields, with Python numbers."""
    rows = zip(*columns, strict=True)
    return [TracePoint(*(value if np.ndim(value) else value.item() for value in row)) for row in rows]


def graph_losses(problem: Problem, users: UserArrays, kind: str) -> Array:
    """The loss of every user at its current margins, by kind of graph loss."""
    code = GRAPH_LOSSES[kind]
    return losses_for_graph(code, problem.loss_code, users.margins, users.sample_weight, users.row_start)


def snapshot_of(problem: Problem, state: State, phase: str, samples: Samples | None) -> Snapshot:
    """A snapshot of a run, with every user's accuracy on the given samples."""
    users, graph, ledger = state.users, state.graph, state.ledger
    k, l, w = graph.edges()
    predictors, weights = heaviest_predictors(users.alpha)
    return Snapshot(
        phase=phase,
        updates=state.updates,
        k=k,
        l=l,
        w=w,
        directed=graph.directed,
        confidence=problem.confidence,
        loss=graph_losses(problem, users, "mean"),
        accuracy=accuracy_per_user(samples, users.alpha),
        predictors=predictors,
        predictor_weights=weights,
        messages=users.sent[:, MESSAGES].copy(),
        bits=ledger.price(users.sent) + (state.shared.bits if state.shared.bits.size else 0),
    )
