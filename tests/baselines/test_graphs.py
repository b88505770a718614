"""Graphs that know nothing of the users."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dada.baselines.boosting import BoostSettings, dada_oracle, dada_random, dada_uniform, random_graph
from dada.baselines.graph_learner import GraphLearner
from dada.core.graph import CollaborationGraph
from dada.core.plan import Schedule
from dada.core.problem import Problem
from dada.core.regularizers import LogDegree
from dada.data import Stumps, moons
from dada.engine import Ledger, Plan, run
from dada.task import Task


@given(n_users=st.integers(2, 40), share=st.floats(0, 1), seed=st.integers(0, 100))
def test_a_random_graph_has_the_edges_asked_for(n_users, share, seed):
    neighbours = share * (n_users - 1)
    graph = random_graph(n_users, neighbours, np.random.default_rng(seed))
    assert graph.n_edges == round(n_users * neighbours / 2)
    assert set(graph.weights) <= {1.0}


def test_more_neighbours_than_users_are_refused():
    with pytest.raises(ValueError, match=r"neighbours must be in 0..4 \(n_users - 1\), got 5"):
        random_graph(5, 5, np.random.default_rng(0))


def test_uniform_is_the_oracle_on_the_complete_graph():
    users = moons(0, n_users=10, n_test=5)
    task, settings = Task.of(users.train, Stumps(n=40)), BoostSettings(Plan(n_updates=200))
    uniform = dada_uniform(task, users.test, settings, np.random.default_rng(1))
    everyone = CollaborationGraph.complete(10)
    oracle = dada_oracle(task, users.test, settings, np.random.default_rng(1), graph=everyone)
    assert_array_equal(uniform.models, oracle.models)
    assert uniform.name == "dada-uniform"
    assert dada_random(task, users.test, settings, np.random.default_rng(1), neighbours=9).graph.n_edges == 45


def test_the_learner_does_what_the_engine_does():
    users = moons(0, n_users=12, n_test=5)
    task = Task.of(users.train, Stumps(n=40))
    problem = task.problem(beta=5.0, mu1=1.0, regularizer=LogDegree(lam=0.3, delta=0.1))
    plan = Plan(n_updates=0, local_updates=300, first_graph_wakeups=100)
    result = run(problem, plan, np.random.default_rng(4))
    schedule, ledger = Schedule.draw(np.random.default_rng(4), 12, plan.kappa), Ledger(40)
    learner = GraphLearner(result.models, schedule, mu=1.0, regularizer=problem.regularizer, ledger=ledger)
    losses = losses_of(problem, result.models)
    for count in (30, 70):
        learner.wake(count, losses)
    assert_array_equal(learner.graph.indices, result.graph.indices)
    np.testing.assert_allclose(learner.graph.weights, result.graph.weights, rtol=1e-4)
    assert ledger.bits == result.ledger.bits


def losses_of(problem: Problem, models):
    return problem.graph_losses(models)
