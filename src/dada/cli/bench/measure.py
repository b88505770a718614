"""How long updates take.

Times are of one thread's processor, not of the wall clock, so that other work on the machine counts as little as can
be; each is the best of several runs in one process, after a run that compiles. A time per update is the time of a run
of so many updates less the time of a run of none: what one more update costs, with its share of the schedule.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dada
from dada.cli.demo_report import demo_settings, demo_task
from dada.core.graph import CollaborationGraph
from dada.core.plan import GRAPH_STREAM, MODEL_STREAM, Plan, Schedule
from dada.core.problem import Problem
from dada.data import moons
from dada.engine import run
from dada.engine.state import State

SEED = 1
N_NEIGHBOURS = 20
GRAPH_WAKEUPS = 10_000


def measure(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """All that `dada bench` reports; `say` gets what is being timed."""
    repetitions = 5 if quick else 20
    oracle, graph = moons_problem("dada-oracle", 100)
    learned, _ = moons_problem("dada-learned", 100)
    updates = demo_settings("dada-oracle").plan.n_updates
    graph_plan = demo_settings("dada-learned").plan
    reference = numpy_reference()
    models: dict[str, float | None] = {}
    for step in ("paper", "pairwise"):
        say(f"Timing model updates, step {step}")
        models[step] = model_update_us(oracle, graph, step, updates, repetitions)
    say("Timing graph steps")
    weights: dict[str, float | None] = {"exact": graph_step_us(learned, graph_plan, repetitions)}
    say("Timing plain NumPy")
    models["numpy"] = reference and numpy_model_update_us(reference, oracle, graph, 2000)
    weights["numpy"] = reference and numpy_graph_step_us(reference, learned, graph_plan.kappa, 500)
    return {
        "moons": {"model_update_us": models, "graph_step_us": weights},
        "scale": [scale_entry(n_users, say) for n_users in ((1_000, 10_000) if quick else (1_000, 10_000, 100_000))],
    }


def scale_entry(n_users: int, say: Callable[[str], None]) -> dict[str, float]:
    """Time and memory of a larger population with 20 neighbours each."""
    say(f"Timing {n_users:,} users")
    problem, graph = moons_problem("dada-oracle", n_users, max_neighbours=N_NEIGHBOURS)
    return {
        "users": n_users,
        "model_update_us": model_update_us(problem, graph, "pairwise", 20 * n_users, repetitions=3),
        "bytes_per_user": bytes_per_user(problem, graph),
    }


def best_seconds(work: Callable[[], Any], repetitions: int) -> float:
    """The shortest time that some work takes this thread's processor, after once for warming up."""
    work()
    times = []
    for _ in range(repetitions):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return min(times)


def _us(seconds: float, events: int) -> float:
    return round(1e6 * seconds / events, 4)


def moons_problem(method: str, n_users: int, **bounded: Any) -> tuple[Problem, CollaborationGraph]:
    """The Moons users as the demo's method sees them, and their oracle graph."""
    users = moons(SEED, n_users=n_users, n_test=1)
    settings = demo_settings(method, n_users)
    problem = demo_task(users.train).problem(
        beta=settings.beta, mu1=settings.mu, regularizer=settings.regularizer, graph_loss=settings.graph_loss
    )
    return problem, CollaborationGraph.from_scipy(users.oracle_weights(**bounded))


def model_update_us(problem: Problem, graph: CollaborationGraph, step: str, updates: int, repetitions: int) -> float:
    """Microseconds per model update over a given graph."""
    plan = Plan(updates, learn_graph=False, step=step, trace_every=updates)

    def work(n_updates: int) -> Callable[[], Any]:
        return lambda: run(problem, replace(plan, n_updates=n_updates), np.random.default_rng(SEED), graph=graph)

    return _us(best_seconds(work(updates), repetitions) - best_seconds(work(0), repetitions), updates)


def graph_step_us(problem: Problem, plan: Plan, repetitions: int) -> float:
    """Microseconds per graph wake-up, from the empty graph on and with models that were learned alone."""
    alone = replace(plan, n_updates=0, local_updates=plan.n_updates, trace_every=1)

    def work(wakeups: int) -> Callable[[], Any]:
        return lambda: run(problem, replace(alone, first_graph_wakeups=wakeups), np.random.default_rng(SEED))

    return _us(best_seconds(work(GRAPH_WAKEUPS), repetitions) - best_seconds(work(0), repetitions), GRAPH_WAKEUPS)


def bytes_per_user(problem: Problem, graph: CollaborationGraph) -> float:
    """Memory of a run's state for each user: data, model, neighbours' sum and neighbour list."""
    state = State.start(problem, Plan(0, learn_graph=False), graph, np.float32)
    arrays = {id(array): array for array in (*state.users, *state.lists)}
    return round(sum(array.nbytes for array in arrays.values()) / problem.n_users, 1)


def numpy_reference() -> Any:
    """The plain NumPy version kept in benchmarks/, or None where the package runs without its repository."""
    path = Path(dada.__file__).parents[2] / "benchmarks" / "numpy_reference.py"
    spec = importlib.util.spec_from_file_location("numpy_reference", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.NumpyPopulation


def numpy_model_update_us(reference: Any, problem: Problem, graph: CollaborationGraph, updates: int) -> float:
    """Microseconds per model update in plain NumPy."""
    users = Schedule(SEED, problem.n_users, 1).users(MODEL_STREAM, 0, updates)
    population = reference(problem, graph.to_scipy().toarray())

    def work() -> None:
        for t, k in enumerate(users):
            population.update_model(int(k), t)

    return _us(best_seconds(work, 2), updates)


def numpy_graph_step_us(reference: Any, problem: Problem, kappa: int, wakeups: int) -> float:
    """Microseconds per graph wake-up in plain NumPy."""
    schedule = Schedule(SEED, problem.n_users, kappa)
    users, batches = schedule.users(GRAPH_STREAM, 0, wakeups), schedule.batches(0, wakeups)
    population = reference(problem, np.zeros((problem.n_users, problem.n_users)))

    def work() -> None:
        for k, batch in zip(users, batches, strict=True):
            population.update_weights(int(k), batch)

    return _us(best_seconds(work, 2), wakeups)
