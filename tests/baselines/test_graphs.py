"""Complete and random graphs, and graph learning over frozen models."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dada.baselines.boosting import BoostSettings, dada_oracle, dada_random, dada_uniform, random_graph
from dada.baselines.persolin import wake_graph
from dada.core.graph import CollaborationGraph
from dada.core.plan import Schedule
from dada.core.regularizers import LogDegree
from dada.data import Stumps, moons
from dada.engine import Plan, run
from dada.engine.graph_loops import DistanceLearner
from dada.engine.state import State
from dada.task import Task


@given(n_users=st.integers(2, 40), share=st.floats(0, 1), seed=st.integers(0, 100))
def test_a_random_graph_has_the_requested_number_of_edges(n_users, share, seed):
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
    complete = CollaborationGraph.complete(10)
    oracle = dada_oracle(task, users.test, settings, np.random.default_rng(1), graph=complete)
    assert_array_equal(uniform.models, oracle.models)
    assert uniform.name == "dada-uniform"
    assert dada_random(task, users.test, settings, np.random.default_rng(1), neighbours=9).graph.n_edges == 45


def test_wake_ups_over_frozen_models_are_those_of_a_run():
    users = moons(0, n_users=12, n_test=5)
    task = Task.of(users.train, Stumps(n=40))
    problem = task.problem(beta=5.0, mu1=1.0, regularizer=LogDegree(lam=0.3, delta=0.1))
    plan = Plan(n_updates=0, local_updates=300, first_graph_wakeups=100)
    result = run(problem, plan, np.random.default_rng(4))
    schedule = Schedule.draw(np.random.default_rng(4), 12, plan.kappa)
    state = State.start(problem, plan, CollaborationGraph.empty(12), np.float32)
    state.use_models(problem, result.models)
    learner = DistanceLearner(problem, plan, np.dtype(np.float32))
    learner.losses = problem.graph_losses(result.models)
    for count in (30, 70):
        wake_graph(learner, state, schedule, count)
    assert_array_equal(state.graph.indices, result.graph.indices)
    np.testing.assert_allclose(state.graph.weights, result.graph.weights, rtol=1e-4)
    assert state.ledger.bits == result.ledger.bits
