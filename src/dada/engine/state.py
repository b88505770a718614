"""The state of a run: arrays, neighbour lists, ledger, position; its snapshots, and the checkpoint file."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dada import atomic
from dada.core.bits import MESSAGES, Ledger
from dada.core.block_steps import COARSEST
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph, Nearest, NeighbourLists, lists_from_csr, lists_to_csr, no_nearest
from dada.core.graph_steps import Regularizer, degree_curvature, degree_slope, degree_value
from dada.core.losses import GRAPH_LOSSES, Loss, Samples, accuracy_per_user, point_curvature, point_slope, point_value
from dada.core.plan import BLOCK_STEP, Plan, Schedule
from dada.core.problem import Problem, losses_for_graph
from dada.engine.model_loops import SharedModels, UserArrays, nothing_shared, side_by_side
from dada.events import CheckpointFailed, CheckpointSaved, Observer, Snapshot, TracePoint, heaviest_predictors

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


FORMAT, VERSION = "dada-checkpoint", 3
_USER_ARRAYS = ("margins", "alpha", "neighbour_sum", "support", "n_support", "own_updates", "degree", "stale", "sent")
_POSITION = ("phase", "done", "local_updates", "updates", "graph_wakeups", "relative_gap")
_GRAPH = ("indptr", "indices", "weights")


@dataclass
class Checkpoints:
    """Saves the state of a run to a file.

    A failure to write does not stop the run, which may hold hours of work: the observer receives a `CheckpointFailed`,
    the previous file stays intact, and the next attempt may succeed.
    """

    state: State
    path: Path
    run_id: str
    every_s: float
    observer: Observer
    last_attempt: float = field(init=False)

    def __post_init__(self) -> None:
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f"checkpoint {self.path}: the folder {self.path.parent} does not exist, create it first"
            )
        if self.path.is_dir():
            raise IsADirectoryError(f"checkpoint {self.path} is a folder: give the path of a file")
        atomic.remove_leftovers(self.path)
        self.last_attempt = time.monotonic()

    def tick(self) -> None:
        """Save if the interval has passed."""
        if time.monotonic() - self.last_attempt >= self.every_s:
            self.save()

    def save(self) -> OSError | None:
        """Save, and report success or failure to the observer."""
        try:
            write(self.path, self.state, self.run_id)
        except OSError as error:
            self.observer(CheckpointFailed(str(self.path), str(error)))
            return error
        finally:
            self.last_attempt = time.monotonic()
        self.observer(CheckpointSaved(str(self.path), self.state.updates))
        return None


def write(path: Path, state: State, run_id: str) -> None:
    """Write a checkpoint. The previous file stays intact until the new one is complete."""
    position = {name: getattr(state, name) for name in _POSITION}
    header = {"format": FORMAT, "version": VERSION, "run": run_id, **position}
    arrays: dict[str, Any] = _overwritten(state) | dict(zip(_GRAPH, lists_to_csr(state.lists), strict=True))
    arrays |= {f"trace_{name}": column for name, column in trace_columns(state.trace).items()}
    try:
        with atomic.replacing(path, private=True) as file:
            np.savez(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    except OSError as error:
        reason = f"checkpoint not written ({error.strerror}); the previous one is intact"
        raise OSError(error.errno, reason, str(path)) from error


def resume_from(path: Path, state: State, run_id: str) -> None:
    """Load the checkpoint of the same run, if it exists, into a new state."""
    if not os.path.exists(path):
        return
    header, stored = _read(path)
    if header["run"] != run_id:
        raise ValueError(
            f"{path} belongs to another run: data, settings or seed differ; use those of that run, or resume=False"
        )
    trace = [f"trace_{name}" for name in TRACE_FIELDS]
    arrays = _overwritten(state)
    missing = [name for name in (*arrays, *_GRAPH, *trace) if name not in stored]
    if missing:
        raise ValueError(f"{path} is not a readable dada checkpoint: it has no {missing[0]}")
    for name, array in arrays.items():
        array[...] = stored[name]
    indptr, indices, weights = (stored[name] for name in _GRAPH)
    graph = CollaborationGraph(indptr, indices, weights, directed=state.followers is not state.lists)
    state.lists, state.followers = lists_of(graph)
    for name in _POSITION:
        setattr(state, name, header[name])
    state.trace = trace_of(stored[name] for name in trace)


def _overwritten(state: State) -> dict[str, Array]:
    """The arrays of a state whose shapes do not change during a run."""
    arrays = {name: getattr(state.users, name) for name in _USER_ARRAYS}
    arrays |= {f"nearest_{name}": values for name, values in state.nearest._asdict().items()}
    arrays |= {f"shared_{name}": values for name, values in state.shared._asdict().items()}
    return arrays | {f"ledger_{name}": getattr(state.ledger, name) for name in ("models", "graph", "coded")}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """The header and the arrays of a checkpoint file."""
    with open(path, "rb") as file:
        # Reading arbitrary bytes may raise any exception.
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            header: dict[str, Any] = json.loads(arrays.pop("header").tobytes())
            kind, version = header["format"], header["version"]
        except Exception as error:
            raise ValueError(f"{path} is not a readable dada checkpoint: {error}") from error
    if (kind, version) != (FORMAT, VERSION):
        raise ValueError(f"{path} is a {kind} of version {version}, expected {FORMAT} {VERSION}: start a new run")
    return header, arrays


def fingerprint(
    problem: Problem, plan: Plan, schedule: Schedule, graph: CollaborationGraph, dtype: type,
    models: Array | None, shared: SharedModels | None,
) -> str:  # fmt: skip
    """A short id of a run: equal for equal data, settings, seed and precision."""
    digest = hashlib.sha256()
    weights = () if problem.weights is None else (problem.sample_weight,)
    arrays = (problem.A, problem.row_start, problem.offsets, *weights, graph.indptr, graph.indices, graph.weights)
    start = () if models is None else (models,)
    for array in (*arrays, problem.settings().coupling, *start, *(shared or ())):
        digest.update(str((array.dtype, array.shape)).encode() + np.ascontiguousarray(array).tobytes())
    digest.update(problem.rows_name.encode())
    numbers = (float(problem.beta), float(problem.mu1), problem.graph_mu)
    settings = (*numbers, problem.graph_loss, _describe_loss(problem.loss), _describe_regularizer(problem.regularizer))
    # Limits do not change the results before they apply, so a resumed run may have different ones.
    steps = replace(plan, max_bits=None, max_time_s=None, gap_tolerance=None, trace_every=None)
    digest.update(repr((settings, steps, schedule, np.dtype(dtype).name)).encode())
    return digest.hexdigest()[:16]


def _describe_loss(loss: str | Loss) -> str:
    """A loss by its name, or a custom loss by some of its values."""
    if isinstance(loss, str):
        return loss
    code = loss.compiled
    values = [part(code, z) for part in (point_value, point_slope, point_curvature) for z in (-2.0, 0.25, 3.0)]
    return repr((loss.name, float(loss.growth), values))


def _describe_regularizer(regularizer: Regularizer) -> str:
    """A regularizer by its kind, its parameters and some of its values."""
    code = regularizer.compiled
    values = [part(code, d) for part in (degree_value, degree_slope, degree_curvature) for d in (0.25, 1.0, 8.0)]
    return repr((code.code, code.lam, code.l1, code.offset, values))
