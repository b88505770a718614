"""Run the method over a whole population, compiled: phases, stops, trace, checkpoints.

Wake-ups are carried out in chunks. Between two chunks the run looks at the clock, at Ctrl-C, at its trace and its
checkpoint; where the chunks are cut has no influence on any result.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.model_steps import STEP_RULES, make_scratch
from dada.core.plan import Phase, Plan
from dada.core.problem import Problem
from dada.core.schedule import GRAPH_STREAM, LOCAL_STREAM, MODEL_STREAM, Schedule
from dada.core.status import Status
from dada.engine.evaluate import Samples, accuracy_per_user
from dada.engine.learners import graph_learner
from dada.engine.ledger import Ledger
from dada.engine.loops import BitPrices, run_models
from dada.engine.state import State, fingerprint
from dada.events import CheckpointSaved, Observer, PhaseStarted, Progress, Stopped, TracePoint, silent


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
    train: Samples | None = None,
    test: Samples | None = None,
    observer: Observer = silent,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float = 60.0,
    resume: bool = False,
    dtype: type = np.float32,
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
        The graph to use, where the plan learns none. No graph is learning alone.
    train, test : Samples, optional
        Data on which the trace reports every user's accuracy.
    observer : callable
        Gets every event of `dada.events`.
    checkpoint : path, optional
        File that keeps the state of the run, rewritten every `checkpoint_every_s` seconds and at the end.
    resume : bool
        Go on from `checkpoint`, where it exists; the result is the same, bit for bit, as without the interruption.
    dtype : float32 or float64
        Precision of the models.

    Examples
    --------
    >>> A = np.array([[1, -1], [1, 1], [-1, 1]], np.int8)
    >>> problem = Problem(A, np.array([0, 2, 3]), beta=1.0, mu1=0.5)
    >>> pair = CollaborationGraph.from_edges(2, [0], [1], [1.0])
    >>> result = run(problem, Plan(n_updates=40, learn_graph=False), np.random.default_rng(0), graph=pair)
    >>> result.status
    <Status.FINISHED: 'All planned updates were made.'>
    """
    schedule = Schedule.draw(rng, problem.n_users, plan.kappa if plan.learn_graph else 1)
    if graph is None:
        graph = CollaborationGraph.empty(problem.n_users)
        graph = replace(graph, directed=plan.learn_graph and plan.graph_rule == "evidence")
    if graph.n_users != problem.n_users:
        raise ValueError(f"the graph has {graph.n_users} users, the problem {problem.n_users}")
    state = State.start(problem, plan, graph, dtype)
    run_id = fingerprint(problem, plan, schedule, graph, dtype)
    if resume and checkpoint is not None and os.path.exists(checkpoint):
        state.load(checkpoint, run_id)
    save = None if checkpoint is None else (lambda: state.save(checkpoint, run_id))
    clock = _Clock(time.monotonic, plan.max_time_s, save, checkpoint_every_s, str(checkpoint), observer)
    runner = _Runner(problem, plan, schedule, state, train, test, observer, clock)
    with _ctrl_c() as interrupted:
        status = runner.go(interrupted)
    trace = runner.full_trace()
    if save is not None:
        save()
        observer(CheckpointSaved(str(checkpoint), state.updates))
    observer(Stopped(status.value))
    return RunResult(state.users.alpha.copy(), state.graph, trace, state.ledger, status, state.updates)


@dataclass
class _Clock:
    """Time limit and checkpoint times of a run."""

    now: Callable[[], float]
    limit_s: float | None
    save: Callable[[], None] | None
    save_every_s: float
    path: str
    observer: Observer

    def __post_init__(self) -> None:
        self.started = self.saved = self.now()

    def is_over(self) -> bool:
        return self.limit_s is not None and self.now() - self.started >= self.limit_s

    def tick(self, updates: int) -> None:
        if self.save is not None and self.now() - self.saved >= self.save_every_s:
            self.save()
            self.saved = self.now()
            self.observer(CheckpointSaved(self.path, updates))


@contextmanager
def _ctrl_c() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag; a second one interrupts at once."""
    hit = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)

    def note(*_: object) -> None:
        nonlocal hit
        hit = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: hit
    finally:
        signal.signal(signal.SIGINT, before)


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
        clock: _Clock,
    ) -> None:
        self.problem, self.plan, self.schedule, self.state = problem, plan, schedule, state
        self.train, self.test, self.observer, self.clock = train, test, observer, clock
        dtype = state.users.alpha.dtype
        self.settings = problem.settings(dtype)
        self.scratch = make_scratch(problem.n_predictors, int(problem.sizes.max()), dtype)
        self.learner = graph_learner(problem, plan, dtype)
        allowed = math.inf if plan.max_bits is None else plan.max_bits
        self.allowed_bits = allowed
        # About 20 ms of work, so that Ctrl-C and the clock are answered at once.
        self.chunk = max(16, int(1e8 / (problem.sizes.mean() * problem.n_predictors + 2000)))
        self.no_lists = State.start(problem, plan, CollaborationGraph.empty(problem.n_users), dtype.type).lists

    def go(self, interrupted: Callable[[], bool]) -> Status:
        phases = list(self.plan.phases(self.problem.n_users))
        total = sum(phase.events for phase in phases)
        before = sum(phase.events for phase in phases[: self.state.phase])
        if not self.state.trace:
            self.record()
        while self.state.phase < len(phases):
            phase = phases[self.state.phase]
            if self.state.done == 0:
                self.enter(phase, self.state.phase)
            if phase.kind == "graph":
                self.learner.begin(self.state)
            while self.state.done < phase.events:
                done, wanted = self.advance(phase)
                self.observer(Progress(before + self.state.done, total))
                status = self.reason_to_stop(done < wanted, interrupted)
                if status is not None:
                    return status
                self.clock.tick(self.state.updates)
            before += phase.events
            self.state.phase, self.state.done = self.state.phase + 1, 0
        return Status.FINISHED

    def enter(self, phase: Phase, number: int) -> None:
        self.observer(PhaseStarted(phase.kind, phase.events))
        if phase.kind == "models" and number == 2 and self.plan.restart == "zero":
            self.state.reset_models()
        if phase.kind == "graph":
            self.state.forget_nearest()

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
            every = self.plan.trace_interval()
            wanted = min(wanted, every - state.updates % every)
            done = self.model_chunk(MODEL_STREAM, state.updates, wanted, local=False)
            state.updates += done
            if done and state.updates % every == 0:
                self.record()
        state.done += done
        return done, wanted

    def model_chunk(self, stream: int, t: int, wanted: int, local: bool) -> int:
        state = self.state
        awake = self.schedule.users(stream, t, t + wanted)
        lists, followers = (self.no_lists, self.no_lists) if local else (state.lists, state.followers)
        ledger = state.ledger
        prices = BitPrices(ledger.float_bits, ledger.index_bits, self.allowed_bits, ledger.graph_bits)
        rule = STEP_RULES[self.plan.step]
        return int(
            run_models(
                rule, self.settings, state.users, lists, followers, awake, t, prices, ledger.models, self.scratch
            )
        )

    def graph_chunk(self, wanted: int) -> int:
        state = self.state
        start = state.graph_wakeups
        awake = self.schedule.users(GRAPH_STREAM, start, start + wanted)
        batches = self.schedule.batches(start, start + wanted)
        done = 0
        while (allowed := done + self.affordable(batches[done:])) > done:
            done += self.learner.wake(state, awake[done:allowed], batches[done:allowed])
        state.graph_wakeups += done
        state.done += done
        return done

    def affordable(self, batches: Array) -> int:
        """How many of these graph wake-ups the budget of bits allows for certain."""
        if math.isinf(self.allowed_bits):
            return len(batches)
        ledger = self.state.ledger
        sizes = self.state.users.n_support[batches].astype(np.int64)
        floats = self.learner.floats_per_peer + sizes
        after = ledger.graph[1:, None] + np.cumsum([floats.sum(axis=1), sizes.sum(axis=1)], axis=1)
        bits = after[0] * ledger.float_bits + after[1] * ledger.index_bits + ledger.model_bits
        return int(np.searchsorted(bits, self.allowed_bits, side="right"))

    def reason_to_stop(self, ran_short: bool, interrupted: Callable[[], bool]) -> Status | None:
        if ran_short:
            return Status.OUT_OF_BITS
        if self.converged():
            return Status.CONVERGED
        if self.clock.is_over():
            return Status.OUT_OF_TIME
        return Status.INTERRUPTED if interrupted() else None

    def converged(self) -> bool:
        tolerance, last = self.plan.gap_tolerance, self.state.trace[-1]
        if tolerance is None or last.updates == 0 or last.updates != self.state.updates:
            return False
        at_zero = self.problem.model_gap(np.zeros_like(self.state.users.alpha), self.state.graph)
        return last.gap <= tolerance * at_zero

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
        )

    def record(self) -> None:
        self.state.trace.append(self.point())
        self.observer(self.state.trace[-1])

    def full_trace(self) -> tuple[TracePoint, ...]:
        """The regular points, and the end where the run stopped between two of them."""
        trace = self.state.trace
        if trace[-1].updates == self.state.updates:
            return tuple(trace)
        last = self.point()
        self.observer(last)
        return (*trace, last)
