"""The state of a run: arrays, neighbour lists, ledger, position; its checkpoint file and its snapshots."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from dada import atomic
from dada.core.accuracy import Samples, accuracy_per_user
from dada.core.bits import MESSAGES, Ledger
from dada.core.compiled import Array, as_float
from dada.core.graph import CollaborationGraph
from dada.core.losses import GRAPH_LOSSES, Loss, point_curvature, point_slope, point_value
from dada.core.neighbours import Nearest, NeighbourLists, lists_from_csr, lists_to_csr, no_nearest
from dada.core.plan import BLOCK_STEP, Plan, Schedule
from dada.core.problem import Problem, losses_for_graph
from dada.core.regularizers import Regularizer, degree_curvature, degree_slope, degree_value
from dada.engine.block_loops import COARSEST, SharedModels, nothing_shared
from dada.engine.model_loops import UserArrays, side_by_side
from dada.events import Snapshot, TracePoint, heaviest_predictors

CHECKPOINT_VERSION = 3
_MODEL_ARRAYS = ("margins", "alpha", "neighbour_sum", "support", "n_support", "own_updates", "degree", "stale", "sent")
_POSITION = ("phase", "done", "local_updates", "updates", "graph_wakeups", "relative_gap")
_LEDGER = ("models", "graph", "coded")
_TRACE_FIELDS = tuple(item.name for item in fields(TracePoint))


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
        lists, followers = _lists(graph)
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

    def use_graph(self, graph: CollaborationGraph) -> None:
        """Replace the graph."""
        self.lists, self.followers = _lists(graph)

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

    def forget_distances(self) -> None:
        """Forget the distances to candidates: models have moved since."""
        self.nearest.dist2[...] = np.inf

    def save(self, path: str | os.PathLike[str], run_id: str) -> None:
        """Write a checkpoint. The previous file stays intact until the new one is complete."""
        indptr, indices, weights = lists_to_csr(self.lists)
        position = {name: getattr(self, name) for name in _POSITION}
        header = {"format": "dada-checkpoint", "version": CHECKPOINT_VERSION, "run": run_id, **position}
        arrays = {name: getattr(self.users, name) for name in _MODEL_ARRAYS}
        arrays |= {"indptr": indptr, "indices": indices, "weights": weights}
        arrays |= {f"nearest_{name}": values for name, values in self.nearest._asdict().items()}
        arrays |= {f"shared_{name}": values for name, values in self.shared._asdict().items()}
        arrays |= {f"ledger_{name}": getattr(self.ledger, name) for name in _LEDGER}
        arrays |= {f"trace_{name}": np.array([getattr(point, name) for point in self.trace]) for name in _TRACE_FIELDS}
        try:
            with atomic.replacing(path, private=True) as file:
                np.savez(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
        except OSError as error:
            reason = f"checkpoint not written ({error.strerror}); the previous one is intact"
            raise OSError(error.errno, reason, str(path)) from error

    def load(self, path: str | os.PathLike[str], run_id: str) -> None:
        """Load a checkpoint of the same run."""
        header, stored = _read(path)
        if header["run"] != run_id:
            raise ValueError(
                f"{path} belongs to another run: data, settings or seed differ; use those of that run, or resume=False"
            )
        parts = {"nearest": Nearest._fields, "shared": SharedModels._fields, "ledger": _LEDGER, "trace": _TRACE_FIELDS}
        named = (f"{part}_{name}" for part, names in parts.items() for name in names)
        needed = (*_MODEL_ARRAYS, "indptr", "indices", "weights", *named)
        missing = [name for name in needed if name not in stored]
        if missing:
            raise ValueError(f"{path} is not a readable dada checkpoint: it has no {missing[0]}")
        for name in _MODEL_ARRAYS:
            getattr(self.users, name)[...] = stored[name]
        directed = self.followers is not self.lists
        self.use_graph(CollaborationGraph(stored["indptr"], stored["indices"], stored["weights"], directed))
        self.nearest = Nearest(*(stored[f"nearest_{name}"] for name in Nearest._fields))
        self.shared = SharedModels(*(stored[f"shared_{name}"] for name in SharedModels._fields))
        for name in _LEDGER:
            setattr(self.ledger, name, stored[f"ledger_{name}"])
        for name in _POSITION:
            setattr(self, name, header[name])
        columns = [stored[f"trace_{name}"] for name in _TRACE_FIELDS]
        self.trace = [_trace_point(values) for values in zip(*columns, strict=True)]


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Array]]:
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
    if (kind, version) != ("dada-checkpoint", CHECKPOINT_VERSION):
        raise ValueError(
            f"{path} is a {kind} of version {version}, expected dada-checkpoint {CHECKPOINT_VERSION}: start a new run"
        )
    return header, arrays


def _lists(graph: CollaborationGraph) -> tuple[NeighbourLists, NeighbourLists]:
    """Neighbours and followers of each user; the same object if the graph is symmetric."""
    lists = lists_from_csr(graph.indptr, graph.indices, graph.weights)
    if not graph.directed:
        return lists, lists
    transposed = graph.to_scipy().T.tocsr()
    transposed.sort_indices()
    return lists, lists_from_csr(transposed.indptr, transposed.indices, transposed.data)


def fingerprint(
    problem: Problem,
    plan: Plan,
    schedule: Schedule,
    graph: CollaborationGraph,
    dtype: type,
    models: Array | None = None,
    shared: SharedModels | None = None,
) -> str:
    """A short id of a run: equal for equal data, settings, seed and precision."""
    digest = hashlib.sha256()
    arrays: list[Array] = [
        problem.A,
        problem.row_start,
        problem.offsets,
        *([] if problem.weights is None else [problem.sample_weight]),
        graph.indptr,
        graph.indices,
        graph.weights,
        problem.settings().coupling,
        *([] if models is None else [models]),
        *([] if shared is None else shared),
    ]
    for array in arrays:
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


def _trace_point(values: tuple[Any, ...]) -> TracePoint:
    """A trace point from one row of each stored column, with Python numbers."""
    return TracePoint(*(value if np.ndim(value) else value.item() for value in values))


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
        loss=losses_for_graph(
            GRAPH_LOSSES["mean"], problem.loss_code, users.margins, users.sample_weight, users.row_start
        ),
        accuracy=accuracy_per_user(samples, users.alpha),
        predictors=predictors,
        predictor_weights=weights,
        messages=users.sent[:, MESSAGES].copy(),
        bits=ledger.price(users.sent) + (state.shared.bits if state.shared.bits.size else 0),
    )
