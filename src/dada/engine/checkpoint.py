"""The checkpoint file of a run: the state from which a run with the same data, settings and seed resumes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dada import atomic
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.losses import Loss, point_curvature, point_slope, point_value
from dada.core.neighbours import lists_to_csr
from dada.core.plan import Plan, Schedule
from dada.core.problem import Problem
from dada.core.regularizers import Regularizer, degree_curvature, degree_slope, degree_value
from dada.engine.model_loops import SharedModels
from dada.engine.state import TRACE_FIELDS, State, lists_of, trace_columns, trace_of
from dada.events import CheckpointFailed, CheckpointSaved, Observer

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
