"""Run the method over a whole population, compiled: phases, stops, trace, checkpoints.

Wake-ups are carried out in chunks. Between two chunks the run looks at the clock, at Ctrl-C, at its trace and its
checkpoint; where the chunks are cut has no influence on any result.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dada.core.bits import Ledger
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.model_steps import STEP_RULES, make_scratch
from dada.core.neighbours import lists_from_csr
from dada.core.plan import GRAPH_STREAM, LOCAL_STREAM, MODEL_STREAM, Phase, Plan, Schedule, Status
from dada.core.problem import Problem
from dada.engine.accuracy import Samples, accuracy_per_user
from dada.engine.checkpoint import Checkpoints, TimeLimit, ctrl_c
from dada.engine.graph_loops import graph_learner
from dada.engine.model_loops import BitPrices, run_models
from dada.engine.shards import Segment, Threads, Workers
from dada.engine.state import State, fingerprint, snapshot_of
from dada.events import Observer, PhaseStarted, Progress, SnapshotOffer, Stopped, TracePoint, silent

# Multiplications in a chunk: about 20 ms, so that Ctrl-C and the clock are answered at once.
CHUNK_WORK = 1e8
LEAST_CHUNK = 16
# And so many chunks at least where somebody watches, who shall see a short run move too.
WATCHED_CHUNKS = 200
# Outside of these a weight, or what it multiplies, may leave the range of single precision.
SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-12, 1e12


@dataclass(frozen=True, eq=False)
class RunResult:
    """What a run gives back.

    Attributes
    ----------
    models : array of shape (n_users, n_predictors)
    graph : CollaborationGraph
    trace : tuple of TracePoint
    ledger : Ledger
        Messages and bits, by kind of phase.
    status : Status
        Why the run ended; its value is a sentence.
    updates : int
        Model updates made.
    """

    models: Array
    graph: CollaborationGraph
    trace: tuple[TracePoint, ...]
    ledger: Ledger
    status: Status
    updates: int


def run(
    problem: Problem,
    plan: Plan,
    rng: np.random.Generator,
    *,
    graph: CollaborationGraph | None = None,
    models: Array | None = None,
    train: Samples | None = None,
    test: Samples | None = None,
    observer: Observer = silent,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float = 60.0,
    resume: bool = False,
    dtype: type = np.float32,
    workers: Workers | None = None,
) -> RunResult:
    """Learn models, and the graph where the plan says so, on one machine.

    Parameters
    ----------
    problem : Problem
        Data and objective.
    plan : Plan
        Steps, phases and stops.
    rng : numpy.random.Generator
        Where the schedule of wake-ups comes from.
    graph : CollaborationGraph, optional
        The graph to use, where the plan learns none. No graph is learning alone. Models depend on the ratios of its
        weights only.
    models : array of shape (n_users, n_predictors), optional
        Where models start; else at zero. A plan that learns a graph keeps them with ``restart="local"`` only.
    train, test : Samples, optional
        Data on which the trace reports every user's accuracy.
    observer : callable
        Gets every event of `dada.events`.
    checkpoint : path, optional
        File that keeps the state of the run, rewritten every `checkpoint_every_s` seconds and at the end. Where it
        cannot be written, the observer gets a `CheckpointFailed`, and the run goes on and gives its result; for the
        last one there is a warning too.
    resume : bool
        Go on from `checkpoint`, where it exists; the result is the same, bit for bit, as without the interruption.
        Limits (bits, time, gap) may be others than before.
    dtype : float32 or float64
        Precision of the models.
    crew : Crew, optional
        Who carries out model updates where the plan has a latency: `Threads(n)`, or `Sharded`. The result is the same
        whoever does. One thread where not given.

    Examples
    --------
    >>> A = np.array([[1, -1], [1, 1], [-1, 1]], np.int8)
    >>> problem = Problem(A, np.array([0, 2, 3]), beta=1.0, mu1=0.5)
    >>> pair = CollaborationGraph.from_edges(2, [0], [1], [1.0])
    >>> result = run(problem, Plan(n_updates=40, learn_graph=False), np.random.default_rng(0), graph=pair)
    >>> result.status
    <Status.FINISHED: 'All planned updates were made.'>
    """
    _check(problem, plan, graph, {"train": train, "test": test})
    if workers is not None and plan.latency == 0:
        raise ValueError("several workers need a plan with latency > 0, as 0.1: within it they need not wait")
    if plan.latency > 0 and graph is not None and graph.directed:
        raise ValueError("latency > 0 works with symmetric graphs only: set latency=0")
    if problem.A.shape[0] < problem.row_start[-1] and getattr(workers, "read", None) is None:
        raise ValueError("the rows of this problem are with shards: give the crew that reads them")
    _check_models(problem, models)
    n_asked = plan.batch_mix(problem.n_users).n_uniform if plan.learn_graph else 1
    schedule = Schedule.draw(rng, problem.n_users, n_asked, plan.span)
    if graph is None:
        graph = CollaborationGraph.empty(problem.n_users)
        graph = replace(graph, directed=plan.learn_graph and plan.graph_rule == "evidence")
    state = State.start(problem, plan, graph, dtype)
    if models is not None:
        state.use_models(problem, models)
    keeper = None
    if checkpoint is not None:
        run_id = fingerprint(problem, plan, schedule, graph, dtype, models)
        keeper = Checkpoints(state, Path(checkpoint), run_id, checkpoint_every_s, observer, time.monotonic)
        if resume:
            keeper.resume()
    elif resume:
        raise ValueError("resume needs the checkpoint to go on from")
    limit = TimeLimit(time.monotonic, plan.max_time_s)
    runner = _Runner(problem, plan, schedule, state, train, test, observer)
    runner.workers = Threads() if workers is None else workers
    with ctrl_c() as interrupted:
        status = runner.go(interrupted, limit, keeper)
    trace = runner.full_trace()
    runner.offer("models", milestone=True)
    failure = None if keeper is None else keeper.save()
    if failure is not None:
        warnings.warn(f"this run cannot be resumed from its end: {failure}", RuntimeWarning, stacklevel=2)
    observer(Stopped(status.value))
    return RunResult(state.users.alpha.copy(), state.graph, trace, state.ledger, status, state.updates)


def _check(problem: Problem, plan: Plan, graph: CollaborationGraph | None, samples: dict[str, Samples | None]) -> None:
    """Refuse what does not fit together, before any work is done."""
    K, n = problem.n_users, problem.n_predictors
    if plan.learn_graph and K > 1 and not 1 <= plan.kappa < K:
        raise ValueError(f"kappa must be in 1..{K - 1} (n_users - 1), got {plan.kappa}")
    if plan.learn_graph and graph is not None:
        raise ValueError("the plan learns the graph, and one was given: set learn_graph=False, or give none")
    if plan.learn_graph and plan.graph_rule == "distance" and K > 1 and not problem.graph_mu > 0:
        raise ValueError(f"learning a graph from distances needs mu2 > 0, got mu1={problem.mu1}, mu2={problem.mu2}")
    if graph is not None and graph.n_users != K:
        raise ValueError(f"the graph has {graph.n_users} users, the problem {K}")
    if graph is not None and graph.n_edges:
        lightest, heaviest = graph.weights.min(), graph.weights.max()
        if not SMALLEST_WEIGHT <= lightest <= heaviest <= LARGEST_WEIGHT:
            raise ValueError(
                f"weights must be in {SMALLEST_WEIGHT}..{LARGEST_WEIGHT}, got {lightest}..{heaviest}; "
                "only their ratios matter to models, so divide them by the largest and drop the smallest"
            )
    for name, given in samples.items():
        if given is not None and not (given.row_start.size == K + 1 and given.predictions.shape[1] == n):
            raise ValueError(
                f"{name} has {given.row_start.size - 1} users and {given.predictions.shape[1]} base predictors, "
                f"the problem {K} and {n}"
            )


def _check_models(problem: Problem, models: Array | None) -> None:
    """Refuse models that do not fit the problem or leave its ball."""
    if models is None:
        return
    wanted = (problem.n_users, problem.n_predictors)
    if models.shape != wanted or not np.isfinite(models).all():
        raise ValueError(f"models must be finite and of shape {wanted}, got shape {models.shape}")
    largest = float(abs(models).sum(axis=1).max())
    if largest > problem.beta * (1 + 1e-5):
        raise ValueError(f"models must have absolute sums of at most beta = {problem.beta}, got {largest}: scale them")


class _Runner:
    """Carries out a plan on a state."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        schedule: Schedule,
        state: State,
        train: Samples | None,
        test: Samples | None,
        observer: Observer,
    ) -> None:
        self.problem, self.plan, self.schedule, self.state = problem, plan, schedule, state
        self.train, self.test, self.observer = train, test, observer
        dtype = state.users.alpha.dtype
        self.settings = problem.settings(dtype)
        self.scratch = make_scratch(problem.n_predictors, int(problem.sizes.max()), dtype)
        # A pairwise move changes two coordinates at most.
        self.late = self.scratch._replace(coordinate=np.empty(2, np.int32), delta=np.empty(2, dtype))
        self.learner = graph_learner(problem, plan, dtype)
        self.allowed_bits = math.inf if plan.max_bits is None else plan.max_bits
        self.chunk = max(LEAST_CHUNK, int(CHUNK_WORK / (problem.sizes.mean() * problem.n_predictors + 2000)))
        self.window = plan.window(problem.n_users)
        if self.window > 0:
            self.chunk = max(self.window, plan.trace_interval() // self.window * self.window)
        self.workers: Workers = Threads()
        nobody = CollaborationGraph.empty(problem.n_users)
        self.no_lists = lists_from_csr(nobody.indptr, nobody.indices, nobody.weights)

    def go(self, interrupted: Callable[[], bool], limit: TimeLimit, keeper: Checkpoints | None) -> Status:
        phases = list(self.plan.phases(self.problem.n_users))
        total = sum(phase.events for phase in phases)
        before = sum(phase.events for phase in phases[: self.state.phase])
        if self.observer is not silent and self.window == 0:
            self.chunk = max(LEAST_CHUNK, min(self.chunk, total // WATCHED_CHUNKS))
        if not self.state.trace:
            self.record()
        self.offer(phases[min(self.state.phase, len(phases) - 1)].kind, milestone=True)
        while self.state.phase < len(phases):
            phase = phases[self.state.phase]
            if self.state.done == 0:
                self.enter(phase, self.state.phase)
            if phase.kind == "graph":
                self.learner.begin(self.state)
            while self.state.done < phase.events:
                if self.is_converged():
                    return Status.CONVERGED
                done, wanted = self.advance(phase)
                self.observer(Progress(before + self.state.done, total))
                # What everybody learned alone, and the graph that came of it.
                self.offer(phase.kind, milestone=self.state.phase < 2 and self.state.done == phase.events)
                if done < wanted:
                    return Status.OUT_OF_BITS
                if interrupted():
                    return Status.INTERRUPTED
                if limit.is_over() and before + self.state.done < total:
                    return Status.OUT_OF_TIME
                if keeper is not None:
                    keeper.tick()
            before += phase.events
            self.state.phase, self.state.done = self.state.phase + 1, 0
        return Status.CONVERGED if self.is_converged() else Status.FINISHED

    def enter(self, phase: Phase, number: int) -> None:
        self.observer(PhaseStarted(phase.kind, phase.events))
        if phase.kind == "models" and number == 2 and self.plan.restart == "zero":
            self.state.reset_models()
        if phase.kind == "graph":
            self.state.forget_nearest(all_of_them=self.plan.keep_nearest is not None)

    def advance(self, phase: Phase) -> tuple[int, int]:
        """Carry out the next chunk of a phase; returns wake-ups made and wanted."""
        state = self.state
        wanted = min(self.chunk, phase.events - state.done)
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
        state, ledger = self.state, self.state.ledger
        awake = self.schedule.users(stream, start, start + wanted)
        lists, followers = (self.no_lists, self.no_lists) if local else (state.lists, state.followers)
        # A step size that falls with time must go on falling where models go on, or it would wipe them out.
        t = start + (state.local_updates if self.plan.restart == "local" and not local else 0)
        if self.window > 0:
            self.workers.advance(Segment(self.settings, state.users, lists, awake, self.window, ledger.models))
            return wanted
        prices = BitPrices(ledger.float_bits, ledger.index_bits, self.allowed_bits, ledger.graph_bits)
        rule, counts = STEP_RULES[self.plan.step], ledger.models
        done = run_models(
            rule, self.settings, state.users, lists, followers, awake, t, prices, counts, self.scratch, self.late
        )
        return int(done)

    def graph_chunk(self, wanted: int) -> int:
        state = self.state
        start = state.graph_wakeups
        awake = self.schedule.users(GRAPH_STREAM, start, start + wanted)
        batches = self.schedule.batches(start, start + wanted)
        words = self.schedule.words(start, start + wanted, self.learner.mix.n_words)
        done = 0
        while (allowed := done + self.affordable(batches[done:])) > done:
            done += self.learner.wake(state, awake[done:allowed], batches[done:allowed], words[done:allowed])
        state.graph_wakeups += done
        state.done += done
        return done

    def affordable(self, batches: Array) -> int:
        """How many of these graph wake-ups the budget of bits allows for certain."""
        if math.isinf(self.allowed_bits):
            return len(batches)
        ledger = self.state.ledger
        sizes = self.model_sizes(batches)
        floats = self.learner.floats_per_peer + sizes
        after = ledger.graph[1:, None] + np.cumsum([floats.sum(axis=1), sizes.sum(axis=1)], axis=1)
        bits = after[0] * ledger.float_bits + after[1] * ledger.index_bits + ledger.model_bits
        return int(np.searchsorted(bits, self.allowed_bits, side="right"))

    def model_sizes(self, batches: Array) -> Array:
        """Nonzero entries of the models that each wake-up may be sent, one column per peer asked."""
        n_support, mix = self.state.users.n_support, self.learner.mix
        if mix.size == mix.n_uniform:
            return n_support[batches].astype(np.int64)
        # Whom a gossip search asks is known only when it does: reckon with the largest model.
        return np.full((len(batches), mix.size), n_support.max(), np.int64)

    def is_converged(self) -> bool:
        return self.plan.gap_tolerance is not None and self.state.relative_gap <= self.plan.gap_tolerance

    def point(self) -> TracePoint:
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
        """Let observers look at all users."""
        samples = self.train if self.test is None else self.test
        self.observer(SnapshotOffer(lambda: snapshot_of(self.problem, self.state, phase, samples), milestone))

    def record(self) -> None:
        state, point = self.state, self.point()
        state.trace.append(point)
        if self.plan.gap_tolerance is not None:
            at_zero = self.problem.model_gap(np.zeros_like(state.users.alpha), state.graph)
            state.relative_gap = point.gap / at_zero if at_zero > 0 else 0.0
        self.observer(point)

    def full_trace(self) -> tuple[TracePoint, ...]:
        """The regular points, and the end where anything has happened since the last of them."""
        state, last = self.state, self.state.trace[-1]
        only_local = state.updates == 0 and state.local_updates > 0
        if (last.updates, last.graph_wakeups) == (state.updates, state.graph_wakeups) and not only_local:
            return tuple(state.trace)
        end = self.point()
        self.observer(end)
        return (*state.trace, end)
