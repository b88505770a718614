"""Run the method over a whole population: phases, stops, trace, checkpoints.

Wake-ups are made in chunks. Between two chunks the run checks the time limit and Ctrl-C, records its trace and saves
its checkpoint. The size of the chunks does not change the result.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dada.core.bits import FLOATS, Ledger
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.losses import Samples, accuracy_per_user
from dada.core.model_steps import STEP_RULES
from dada.core.plan import BLOCK_STEP, GRAPH_STREAM, LOCAL_STREAM, MODEL_STREAM, Phase, Plan, Schedule, Status
from dada.core.problem import Problem
from dada.engine.graph_loops import EvidenceRule, graph_rule
from dada.engine.model_loops import (
    GraphLists,
    SharedModels,
    advance_blocks,
    count_snapshots,
    loop_scratch,
    run_models,
    snapshot_bits,
)
from dada.engine.shards import Segment, Threads, Workers
from dada.engine.state import Checkpoints, State, fingerprint, lists_of, resume_from, snapshot_of
from dada.events import Observer, PhaseStarted, Progress, SnapshotOffer, Stopped, TracePoint, silent

# Multiplications in a chunk: about 20 ms, the delay until Ctrl-C takes effect.
CHUNK_WORK = 1e8
LEAST_CHUNK = 16
# Fewest chunks of a run with an observer, so that short runs show progress too.
OBSERVED_CHUNKS = 200
# Gaps above this share of the gap of zero models are far from the optimum.
SETTLED = 0.1
# Beyond these limits weighted sums may overflow or underflow in single precision.
SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-12, 1e12


@dataclass(frozen=True, eq=False)
class RunResult:
    """The result of a run.

    Attributes
    ----------
    models : array of shape (n_users, n_predictors)
    graph : CollaborationGraph
    trace : tuple of TracePoint
    ledger : Ledger
        Messages and bits, by kind of phase.
    status : Status
        Why the run stopped; its value is a sentence.
    updates : int
        Model updates made.
    shared : SharedModels
        The models that neighbours hold under block steps; empty under other steps.
    relative_gap : float
        The gap at the end (see `Problem.model_gap`) divided by the gap of zero models on the same graph.
    """

    models: Array
    graph: CollaborationGraph
    trace: tuple[TracePoint, ...]
    ledger: Ledger
    status: Status
    updates: int
    shared: SharedModels
    relative_gap: float

    @property
    def is_settled(self) -> bool:
        """Whether the models are near their optimum: the gap is at most a tenth of that of zero models."""
        return self.relative_gap <= SETTLED


def run(
    problem: Problem,
    plan: Plan,
    rng: np.random.Generator,
    *,
    graph: CollaborationGraph | None = None,
    models: Array | None = None,
    shared: SharedModels | None = None,
    train: Samples | None = None,
    test: Samples | None = None,
    observer: Observer = silent,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float = 60.0,
    resume: bool = False,
    dtype: type = np.float32,
    workers: Workers | None = None,
    chunk: int | None = None,
) -> RunResult:
    """Learn models, and the graph if the plan requires it.

    Parameters
    ----------
    problem : Problem
        Data and objective.
    plan : Plan
        Steps, phases and stops.
    rng : numpy.random.Generator
        Source of the schedule of wake-ups.
    graph : CollaborationGraph, optional
        The graph to use if the plan learns none; without one, users learn independently. Only the ratios of its
        weights matter. A plan that learns by evidence may start from a directed graph.
    models : array of shape (n_users, n_predictors), optional
        Initial models; zero by default. A plan that learns a graph keeps them only with ``restart="local"``.
    shared : SharedModels, optional
        The models that neighbours hold at the start: the result of an earlier run of block steps with these `models`.
    train, test : Samples, optional
        Data for the accuracies in the trace.
    observer : callable
        Receives every event of `dada.events`.
    checkpoint : path, optional
        File for the state of the run, saved every `checkpoint_every_s` seconds and at the end. If it cannot be
        written, the observer receives a `CheckpointFailed` and the run continues; at the end there is also a warning.
    resume : bool
        Continue from `checkpoint` if it exists. The result is the same, bit for bit, as without the interruption.
        Limits (bits, time, gap) may differ from those before.
    dtype : float32 or float64
        Precision of the models.
    workers : Workers, optional
        Workers that share the model updates if the plan has a latency: `Threads(n)` or `Sharded`. They do not change
        the result. One thread by default.
    chunk : int, optional
        Wake-ups between two checks of the time limit and Ctrl-C; by default about 20 ms of work.

    Examples
    --------
    >>> A = np.array([[1, -1], [1, 1], [-1, 1]], np.int8)
    >>> problem = Problem(A, np.array([0, 2, 3]), beta=1.0, mu1=0.5)
    >>> pair = CollaborationGraph.from_edges(2, [0], [1], [1.0])
    >>> result = run(problem, Plan(n_updates=40, learn_graph=False), np.random.default_rng(0), graph=pair)
    >>> result.status
    <Status.FINISHED: 'All planned updates were made.'>
    """
    _check(problem, plan, graph, models, workers)
    _check_samples(problem, train=train, test=test)
    n_asked = plan.batch_mix(problem.n_users).n_uniform if plan.learn_graph else 1
    schedule = Schedule.draw(rng, problem.n_users, n_asked, plan.span)
    if graph is None:
        graph = CollaborationGraph.empty(problem.n_users)
        graph = replace(graph, directed=plan.learn_graph and plan.graph_rule == "evidence")
    state = State.start(problem, plan, graph, dtype)
    if models is not None:
        state.use_models(problem, models)
    if shared is not None:
        state.use_shared(shared)
    saver = None
    if checkpoint is not None:
        run_id = fingerprint(problem, plan, schedule, graph, dtype, models, shared)
        saver = Checkpoints(state, Path(checkpoint), run_id, checkpoint_every_s, observer)
        if resume:
            resume_from(saver.path, state, run_id)
    elif resume:
        raise ValueError("resume=True needs a checkpoint: set checkpoint=")
    runner = Runner(problem, plan, schedule, state, train, test, observer, workers, chunk)
    with ctrl_c() as interrupted:
        status = runner.go(interrupted, saver)
    trace = runner.full_trace()
    runner.offer("models", milestone=True)
    failure = None if saver is None else saver.save()
    if failure is not None:
        warnings.warn(f"this run cannot be resumed from its end: {failure}", RuntimeWarning, stacklevel=2)
    observer(Stopped(status.value))
    learned, at_end = state.users.alpha.copy(), runner.relative(trace[-1].gap)
    return RunResult(learned, state.graph, trace, state.ledger, status, state.updates, state.shared, at_end)


def _check(
    problem: Problem, plan: Plan, graph: CollaborationGraph | None, models: Array | None, workers: Workers | None
) -> None:
    """Reject inputs that do not fit together, before any work."""
    K = problem.n_users
    if plan.learn_graph and K > 1 and not 1 <= plan.kappa < K:
        raise ValueError(f"kappa must be in 1..{K - 1} (n_users - 1), got {plan.kappa}")
    if plan.learn_graph and graph is not None and not (graph.directed and plan.graph_rule == "evidence"):
        raise ValueError("the plan learns the graph, but one was given: set learn_graph=False or graph=None")
    if plan.learn_graph and plan.graph_rule == "distance" and K > 1 and not problem.graph_mu > 0:
        raise ValueError(f"learning a graph from distances needs mu2 > 0, got mu1={problem.mu1}, mu2={problem.mu2}")
    if graph is not None and graph.n_users != K:
        raise ValueError(f"the graph has {graph.n_users} users, the problem {K}")
    if graph is not None and graph.n_edges:
        lightest, heaviest = graph.weights.min(), graph.weights.max()
        if not SMALLEST_WEIGHT <= lightest <= heaviest <= LARGEST_WEIGHT:
            raise ValueError(
                f"weights must be in {SMALLEST_WEIGHT}..{LARGEST_WEIGHT}, got {lightest}..{heaviest}; "
                "only their ratios matter, so divide them by the largest and drop the smallest"
            )
    if workers is not None and plan.latency == 0:
        raise ValueError("workers need a plan with latency > 0, got 0.0: set latency=0.1, for example")
    holder: object = problem.remote
    if holder is not None and holder is not workers:
        raise ValueError("the rows of this problem are in shards: pass these shards as workers=")
    if models is None:
        return
    wanted = (problem.n_users, problem.n_predictors)
    if models.shape != wanted or not np.isfinite(models).all():
        raise ValueError(f"models must be finite and of shape {wanted}, got shape {models.shape}")
    largest = float(abs(models).sum(axis=1).max())
    if largest > problem.beta * (1 + 1e-5):
        raise ValueError(f"models must have absolute sums of at most beta = {problem.beta}, got {largest}: scale them")


def _check_samples(problem: Problem, **samples: Samples | None) -> None:
    """Reject samples of other users or base predictors."""
    K, n = problem.n_users, problem.n_predictors
    for name, given in samples.items():
        if given is not None and (given.row_start.size - 1, given.predictions.shape[1]) != (K, n):
            found = f"{given.row_start.size - 1} users and {given.predictions.shape[1]} base predictors"
            raise ValueError(f"{name} has {found}, the problem {K} and {n}")


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag; a second one interrupts at once.

    Only the main thread can handle signals, and a process that ignores Ctrl-C goes on ignoring it.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    hit = False

    def on_signal(*_: object) -> None:
        nonlocal hit
        hit = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: hit
    finally:
        signal.signal(signal.SIGINT, before)


class Runner:
    """Executes a plan on a state."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        schedule: Schedule,
        state: State,
        train: Samples | None,
        test: Samples | None,
        observer: Observer,
        workers: Workers | None = None,
        chunk: int | None = None,
    ) -> None:
        self.problem, self.plan, self.schedule, self.state = problem, plan, schedule, state
        self.train, self.test, self.observer = train, test, observer
        dtype = state.users.alpha.dtype
        self.settings = problem.settings(dtype)
        self.scratch = loop_scratch(problem.n_predictors, int(problem.sizes.max()), dtype)
        self.rule = graph_rule(problem, plan, dtype)
        self.workers: Workers = workers or Threads()
        self.allowed_bits = math.inf if plan.max_bits is None else plan.max_bits
        self.window = plan.window(problem.n_users)
        self.phases = list(plan.phases(problem.n_users))
        self.chunk = self._default_chunk() if chunk is None else max(chunk, self.window)
        self.no_lists, _ = lists_of(CollaborationGraph.empty(problem.n_users))

    def _default_chunk(self) -> int:
        problem, window = self.problem, self.window
        if window > 0:
            return max(window, self.plan.trace_interval() // window * window)
        chunk = int(CHUNK_WORK / (problem.sizes.mean() * problem.n_predictors + 2000))
        if self.observer is not silent:
            chunk = min(chunk, sum(phase.events for phase in self.phases) // OBSERVED_CHUNKS)
        return max(LEAST_CHUNK, chunk)

    def go(self, interrupted: Callable[[], bool] = lambda: False, saver: Checkpoints | None = None) -> Status:
        """Make all phases that are left; returns why the run stopped."""
        phases, max_time_s = self.phases, self.plan.max_time_s
        deadline = math.inf if max_time_s is None else time.monotonic() + max_time_s
        total = sum(phase.events for phase in phases)
        before = sum(phase.events for phase in phases[: self.state.phase])
        if not self.state.trace:
            self.record()
        self.offer(phases[min(self.state.phase, len(phases) - 1)].kind, milestone=True)
        while self.state.phase < len(phases):
            phase = phases[self.state.phase]
            if self.state.done == 0:
                self.enter(phase, self.state.phase)
            if phase.kind == "graph":
                self.rule.begin(self.state)
            while self.state.done < phase.events:
                if self.is_converged():
                    return Status.CONVERGED
                done, wanted = self.advance(phase)
                self.observer(Progress(before + self.state.done, total))
                # The independent models and the first graph are milestones.
                self.offer(phase.kind, milestone=self.state.phase < 2 and self.state.done == phase.events)
                if done < wanted:
                    return Status.OUT_OF_BITS
                if interrupted():
                    return Status.INTERRUPTED
                if time.monotonic() >= deadline and before + self.state.done < total:
                    return Status.OUT_OF_TIME
                if saver is not None:
                    saver.tick()
            before += phase.events
            self.state.phase, self.state.done = self.state.phase + 1, 0
        return Status.CONVERGED if self.is_converged() else Status.FINISHED

    def enter(self, phase: Phase, number: int) -> None:
        """Begin a phase."""
        self.observer(PhaseStarted(phase.kind, phase.events))
        if phase.kind == "models" and self.state.followers is not self.state.lists:
            self.state.followers = lists_of(self.state.graph)[1]
        if phase.kind == "models" and number == 2 and self.plan.restart == "zero":
            self.state.reset_models()
        if phase.kind == "graph":
            # Models have moved since the distances to candidates were measured.
            self.state.nearest.dist2[...] = np.inf

    def advance(self, phase: Phase) -> tuple[int, int]:
        """Make the next chunk of a phase; returns the numbers of wake-ups made and planned."""
        state = self.state
        wanted = min(self.chunk, phase.events - state.done)
        if phase.kind == "graph" and self.window > 0 and isinstance(self.rule, EvidenceRule):
            wanted = min(self.problem.n_users, phase.events - state.done)
            self.graph_round(self.rule, wanted)
            return wanted, wanted
        if phase.kind == "graph":
            return self.graph_chunk(wanted), wanted
        if phase.kind == "local":
            done = self.model_chunk(LOCAL_STREAM, state.local_updates, wanted, local=True)
            state.local_updates += done
        else:
            every, before = self.plan.trace_interval(), state.updates
            if self.window == 0:
                wanted = min(wanted, every - before % every)
            done = self.model_chunk(MODEL_STREAM, before, wanted, local=False)
            state.updates += done
            if state.updates // every > before // every:
                self.record()
        state.done += done
        return done, wanted

    def model_chunk(self, stream: int, start: int, wanted: int, local: bool) -> int:
        """Make model updates, over no graph if `local`; returns how many the budget allowed."""
        state = self.state
        awake = self.schedule.users(stream, start, start + wanted)
        edges = GraphLists(self.no_lists, self.no_lists) if local else GraphLists(state.lists, state.followers)
        if self.window > 0:
            block = self.plan.block if self.plan.step == BLOCK_STEP else None
            events = awake, self.window, state.ledger
            self.workers.advance(Segment(self.settings, block, state.users, state.shared, edges, *events))
            return wanted
        if self.plan.step == BLOCK_STEP:
            allowed, scratch = self.allowed_bits - state.ledger.graph_bits, self.scratch.step
            return advance_blocks(self.settings, self.plan.block, state, edges, awake, allowed, scratch)
        # If models continue from the local ones, a decreasing step size must continue too, or it would erase them.
        t = start + (state.local_updates if self.plan.restart == "local" and not local else 0)
        rule, bill = STEP_RULES[self.plan.step], state.ledger.model_bill(self.allowed_bits)
        return int(run_models(rule, self.settings, state.users, edges, awake, t, bill, self.scratch))

    def graph_chunk(self, wanted: int) -> int:
        """Make graph wake-ups; returns how many the budget allowed."""
        state = self.state
        start = state.graph_wakeups
        awake = self.schedule.users(GRAPH_STREAM, start, start + wanted)
        batches = self.schedule.batches(start, start + wanted)
        random_bits = self.schedule.random_bits(start, start + wanted, self.rule.mix.n_draws)
        done = 0
        while (allowed := done + self.affordable(batches[done:])) > done:
            chosen = slice(done, allowed)
            sent = state.users.sent.copy()
            done += self.rule.wake(state, awake[chosen], batches[chosen], random_bits[chosen])
            if self.plan.step == BLOCK_STEP:
                count_snapshots(state, sent)
        state.graph_wakeups += done
        state.done += done
        return done

    def graph_round(self, rule: EvidenceRule, wanted: int) -> None:
        """Let the workers make a round of evidence wake-ups."""
        state = self.state
        start, stop = state.graph_wakeups, state.graph_wakeups + wanted
        awake, batches = self.schedule.users(GRAPH_STREAM, start, stop), self.schedule.batches(start, stop)
        events = rule.round(state, awake, batches, self.schedule.random_bits(start, stop, rule.mix.n_draws))
        sent = state.users.sent.copy()
        found = self.workers.judge(events, state.users, state.graph)
        state.users.stale[...] |= np.concatenate([part.stale for part in found])
        for part in found:
            state.users.sent[...] += part.sent
            state.ledger.graph[...] += part.counts
        if self.plan.step == BLOCK_STEP:
            count_snapshots(state, sent)
        state.use_lists([(part.indptr, part.indices, part.weights) for part in found])
        state.graph_wakeups = stop
        state.done += wanted

    def affordable(self, batches: Array) -> int:
        """Number of these graph wake-ups that certainly fit the budget of bits."""
        if math.isinf(self.allowed_bits):
            return len(batches)
        ledger = self.state.ledger
        if self.plan.step == BLOCK_STEP:
            models = self.model_sizes(batches, snapshot_bits(self.state.shared))
            after = np.cumsum((self.rule.floats_per_peer * ledger.float_bits + models).sum(axis=1))
            return int(np.searchsorted(ledger.bits + after, self.allowed_bits, side="right"))
        sizes = self.model_sizes(batches, self.state.users.n_support)
        floats = self.rule.floats_per_peer + sizes
        after = np.tile(ledger.graph, (len(batches), 1))
        after[:, FLOATS:] += np.cumsum(np.stack([floats.sum(axis=1), sizes.sum(axis=1)], axis=1), axis=0)
        bits = ledger.price(after) + ledger.model_bits
        return int(np.searchsorted(bits, self.allowed_bits, side="right"))

    def model_sizes(self, batches: Array, sizes: Array) -> Array:
        """Sizes of the models that each wake-up may receive, one column per peer."""
        mix = self.rule.mix
        if mix.size == mix.n_uniform:
            return sizes[batches].astype(np.int64)
        # A gossip search chooses its peers only later: assume the largest model.
        return np.full((len(batches), mix.size), sizes.max(), np.int64)

    def is_converged(self) -> bool:
        """Whether the gap at the last trace point is small enough."""
        return self.plan.gap_tolerance is not None and self.state.relative_gap <= self.plan.gap_tolerance

    def point(self) -> TracePoint:
        """The current state as a trace point."""
        state = self.state
        graph, alpha = state.graph, state.users.alpha
        return TracePoint(
            updates=state.updates,
            graph_wakeups=state.graph_wakeups,
            objective=self.problem.objective(alpha, graph),
            gap=self.problem.model_gap(alpha, graph),
            train_accuracy=accuracy_per_user(self.train, alpha),
            test_accuracy=accuracy_per_user(self.test, alpha),
            edges=graph.n_edges,
            bits=state.ledger.bits,
            graph_bits=state.ledger.graph_bits,
        )

    def offer(self, phase: str, milestone: bool) -> None:
        """Offer observers a snapshot."""
        samples = self.train if self.test is None else self.test
        self.observer(SnapshotOffer(lambda: snapshot_of(self.problem, self.state, phase, samples), milestone))

    def record(self) -> None:
        """Append a trace point."""
        state, point = self.state, self.point()
        state.trace.append(point)
        if self.plan.gap_tolerance is not None:
            state.relative_gap = self.relative(point.gap)
        self.observer(point)

    def relative(self, gap: float) -> float:
        """A gap on the current graph divided by the gap of zero models."""
        at_zero = self.problem.model_gap(np.zeros_like(self.state.users.alpha), self.state.graph)
        return gap / at_zero if at_zero > 0 else 0.0

    def full_trace(self) -> tuple[TracePoint, ...]:
        """The regular points, and the end of the run if it is later."""
        state, last = self.state, self.state.trace[-1]
        only_local = state.updates == 0 and state.local_updates > 0
        if (last.updates, last.graph_wakeups) == (state.updates, state.graph_wakeups) and not only_local:
            return tuple(state.trace)
        end = self.point()
        self.observer(end)
        return (*state.trace, end)
