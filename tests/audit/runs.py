"""Random cases, and runs of the package on them whose state is recorded after every wake-up."""

from dataclasses import dataclass, replace

import numpy as np

from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import DegreeTarget, LogDegree
from dada.core.plan import Plan, Schedule
from dada.core.problem import Problem
from dada.engine import Samples
from dada.engine.runner import Runner
from dada.engine.state import State
from dada.events import PhaseStarted, Progress, TracePoint
from tests.audit.formulas import Case

LOSSES = ("adaboost", "logistic", "squared-hinge", "squared", "huber")


@dataclass(frozen=True)
class Moment:
    """The state of a run after one wake-up: models, weights, and the messages, floats and indices counted so far."""

    phase: str
    alpha: np.ndarray
    W: np.ndarray
    counts: np.ndarray


def random_case(seed):
    """A small problem; the seed decides about loss, weights, offsets, coupling and regularizer."""
    rng = np.random.default_rng(seed)
    K, n = int(rng.integers(3, 7)), int(rng.integers(2, 9))
    sizes = rng.integers(1, 6, K)
    loss = LOSSES[seed % len(LOSSES)]
    kinds = ("mean", "paper") if loss in ("squared", "huber") else ("mean", "paper", "logistic")

    def split(values):
        return np.split(values, np.cumsum(sizes)[:-1])

    rows = int(sizes.sum())
    # Runs in single precision have margins of -1, 0 and 1 as int8, the others real numbers.
    A = rng.choice([-1.0, 0.0, 1.0], size=(rows, n), p=[0.35, 0.05, 0.6])
    if is_double(seed):
        A *= rng.normal(size=A.shape)
    has_offset = loss in ("squared", "huber") or rng.random() < 0.3
    return Case(
        A=split(A),
        offset=split(rng.normal(size=rows).astype(np.float32).astype(float) if has_offset else np.zeros(rows)),
        weights=split(rng.exponential(size=rows) + 0.05 if rng.random() < 0.5 else np.ones(rows)),
        loss=loss,
        beta=float(rng.choice([0.3, 1.0, 4.0])),
        mu1=float(rng.choice([0.0, 0.05, 0.5, 5.0])),
        mu2=float(rng.choice([0.1, 1.0])),
        coupling=rng.uniform(0, 2, n) if rng.random() < 0.5 else np.ones(n),
        lam=float(rng.choice([0.05, 0.5])),
        delta=float(rng.choice([0.05, 1.0])),
        target=float(rng.choice([0.5, 2.0])) if rng.random() < 0.3 else None,
        l1=float(rng.choice([0.0, 0.1])),
        graph_loss=str(rng.choice(kinds)),
    )


def is_double(seed):
    return seed % 2 == 1


def problem_of(case, seed):
    """The case as the package takes it."""
    A = np.concatenate(case.A)
    ones = all((weights == 1).all() for weights in case.weights)
    by_target = case.target is not None
    return Problem(
        A if is_double(seed) else A.astype(np.int8),
        np.concatenate([[0], np.cumsum([len(rows) for rows in case.A])]),
        beta=case.beta,
        mu1=case.mu1,
        mu2=case.mu2,
        loss=case.loss,
        regularizer=DegreeTarget(case.target, case.lam, case.l1) if by_target else LogDegree(case.lam, case.delta),
        graph_loss=case.graph_loss,
        coupling=None if (case.coupling == 1).all() else case.coupling,
        offset=np.concatenate(case.offset) if any(part.any() for part in case.offset) else None,
        weights=None if ones else np.concatenate(case.weights),
    )


def random_weights(rng, K):
    """A graph of a few edges; some users may have none."""
    W = np.triu(rng.exponential(size=(K, K)) * (rng.random((K, K)) < 0.5), 1)
    return W + W.T


def graph_of(W):
    k, l = np.nonzero(np.triu(W))
    return CollaborationGraph.from_edges(len(W), k, l, W[k, l])


def random_samples(rng, K, n):
    """Labelled rows; one user has none."""
    sizes = rng.integers(1, 9, K)
    sizes[rng.integers(K)] = 0
    predictions = rng.choice(np.array([-1, 1], np.int8), size=(sizes.sum(), n))
    y = rng.choice(np.array([-1, 1], np.int8), size=sizes.sum())
    return Samples(predictions, y, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def audited_run(case, plan, seed, W=None):
    """A run with one wake-up per chunk: its schedule, the trace with the moment of each point, and all moments."""
    problem, rng = problem_of(case, seed), np.random.default_rng(seed)
    K, n = problem.n_users, problem.n_predictors
    train, test = random_samples(rng, K, n), random_samples(rng, K, n)
    start = CollaborationGraph.empty(K) if W is None else graph_of(W)
    start = replace(start, directed=plan.learn_graph and plan.graph_rule == "evidence")
    state = State.start(problem, plan, start, np.float64 if is_double(seed) else np.float32)
    schedule = Schedule.draw(rng, K, plan.kappa if plan.learn_graph else 1)
    phase, moments, points = "start", [], []

    def moment():
        counts = np.stack([state.ledger.models, state.ledger.graph])
        return Moment(phase, state.users.alpha.astype(float), state.graph.to_scipy().toarray(), counts)

    def observer(event):
        nonlocal phase
        if isinstance(event, PhaseStarted):
            phase = event.kind
        elif isinstance(event, TracePoint):
            points.append((event, moment()))
        elif isinstance(event, Progress):
            moments.append(moment())

    runner = Runner(problem, plan, schedule, state, train, test, observer, chunk=1)
    runner.go()
    return Audited(schedule, train, test, points, moments, state)


@dataclass(frozen=True)
class Audited:
    """What `audited_run` returns."""

    schedule: Schedule
    train: Samples
    test: Samples
    points: list
    moments: list
    state: State


def plan_of(seed, **settings):
    """A short plan; the seed decides about rules and sizes."""
    rng = np.random.default_rng([seed, 1])
    max_neighbours = (None, None, 2)[rng.integers(3)]
    steps = ("pairwise", "pairwise", "paper", "local", "line-search")
    given = {
        "n_updates": 120,
        "step": steps[rng.integers(len(steps))],
        "graph_step": ("exact", "lipschitz")[rng.integers(2)],
        # With one peer per wake-up, an edge to another user ends only because a list was full.
        "kappa": int(rng.integers(1, 3)) if max_neighbours is None else 1,
        "sampler": "uniform",
        "graph_every": 40,
        "local_updates": 30,
        "first_graph_wakeups": 25,
        "graph_wakeups": 5,
        "restart": ("zero", "local")[rng.integers(2)],
        "max_neighbours": max_neighbours,
        "trace_every": 40,
    }
    return Plan(**(given | settings))
