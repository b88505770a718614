"""The NumPy version that benchmarks time computes what the kernels compute."""

import numpy as np
import pytest

from benchmarks.numpy_reference import NumpyPopulation
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.plan import GRAPH_STREAM, MODEL_STREAM, Plan, Schedule
from dada.core.problem import Problem
from dada.data import moons
from dada.engine import run


@pytest.fixture(scope="module")
def users():
    return moons(2, n_users=20, n_test=1)


@pytest.fixture(scope="module")
def problem(users):
    """Margins of random size: between equal ones, rounding would decide which is chosen."""
    margins = np.random.default_rng(0).uniform(-1, 1, (users.train.n_rows, 30))
    return Problem(margins, users.train.row_start, beta=4.0, mu1=0.8, regularizer=LogDegree(lam=0.2, delta=0.1))


def schedule_of(seed, kappa):
    return Schedule.draw(np.random.default_rng(seed), 20, kappa)


def test_numpy_model_updates_are_those_of_the_engine(users, problem):
    graph = CollaborationGraph.from_scipy(users.oracle_weights())
    plan = Plan(300, learn_graph=False, step="paper")
    engine = run(problem, plan, np.random.default_rng(5), graph=graph, dtype=np.float64)
    population = NumpyPopulation(problem, graph.to_scipy().toarray())
    for t, k in enumerate(schedule_of(5, 1).users(MODEL_STREAM, 0, 300)):
        population.update_model(k, t)
    np.testing.assert_allclose(population.alpha, engine.models, atol=1e-9)


def test_numpy_graph_steps_are_those_of_the_engine(problem):
    plan = Plan(0, local_updates=200, first_graph_wakeups=150, kappa=4, step="paper")
    engine = run(problem, plan, np.random.default_rng(5), dtype=np.float64)
    population = NumpyPopulation(problem, np.zeros((20, 20)))
    population.alpha = engine.models
    schedule = schedule_of(5, 4)
    users, batches = schedule.users(GRAPH_STREAM, 0, 150), schedule.batches(0, 150)
    for k, batch in zip(users, batches, strict=True):
        population.update_weights(k, batch)
    np.testing.assert_allclose(population.weights, engine.graph.to_scipy().toarray(), atol=1e-7)
