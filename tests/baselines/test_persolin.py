"""Collaborative linear models: the problem they solve, and what they send."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from dada import task
from dada.baselines.persolin import (
    LinearData,
    PersolinSettings,
    newton_step,
    persolin,
    wake_graph,
)
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.plan import Schedule
from dada.data import Population, Stumps, moons
from dada.engine import Plan, run
from dada.engine.graph_loops import DistanceRule
from dada.engine.state import State


def people(seed, n_users, rows, D, turn=0.0):
    """Users with labels along directions that turn from one user to the next."""
    chance = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n_users), rows)
    X = chance.normal(size=(owner.size, D))
    side = np.cos(turn * owner) * X[:, 0] + np.sin(turn * owner) * X[:, 1]
    return Population.from_arrays(X, np.sign(side + 0.3 * chance.normal(size=owner.size)).astype(int), owner)


def losses(data, models, ridge):
    """L_k of every user, by its definition."""
    rows = zip(data.row_start[:-1], data.row_start[1:], models.astype(float), strict=True)
    return np.array(
        [np.logaddexp(0, -data.y[i:j] * (data.X[i:j] @ m)).mean() + 0.5 * ridge * (m @ m) for i, j, m in rows]
    )


def block_objective(data, k, theta, mu, mean, ridge):
    models = np.tile(theta, (data.row_start.size - 1, 1))
    return data.confidence[k] * losses(data, models, ridge)[k] + 0.5 * mu * ((theta - mean) ** 2).sum()


@given(seed=st.integers(0, 1000), D=st.sampled_from([2, 12]), mu=st.sampled_from([0.0, 0.01, 1.0, 100.0]))
def test_a_step_never_increases_its_block(seed, D, mu):
    data = LinearData.of(people(seed, 3, 6, D))
    chance = np.random.default_rng(seed)
    mean, model = chance.normal(size=(2, D + 1)) * 3
    before = block_objective(data, 1, model, mu, mean, 1e-3)
    newton_step(data, 1, mu, 1e-3, mean, model)
    assert block_objective(data, 1, model, mu, mean, 1e-3) <= before * (1 + 1e-12)


@pytest.mark.parametrize("D", [2, 12])
def test_steps_reach_the_optimum_of_the_block(D):
    data = LinearData.of(people(5, 2, 8, D))
    mean, model = np.linspace(-1, 1, D + 1), np.zeros(D + 1)
    for _ in range(30):
        newton_step(data, 0, 0.3, 0.1, mean, model)
    generic = minimize(lambda theta: block_objective(data, 0, theta, 0.3, mean, 0.1), np.zeros(D + 1), tol=1e-10)
    assert_allclose(model, generic.x, atol=1e-4)


def test_strong_coupling_of_all_users_gives_one_model():
    users = people(1, 6, 12, 3, turn=0.3)
    settings = PersolinSettings(Plan(n_updates=3000), mu=100.0)
    complete = CollaborationGraph.complete(6)
    result = persolin(users, users, settings, np.random.default_rng(0), graph=complete)
    alone = persolin(users, users, settings, np.random.default_rng(0), graph=CollaborationGraph.empty(6))
    assert np.ptp(result.models, axis=0).max() < 0.1
    assert np.ptp(alone.models, axis=0).max() > 1.0


def test_every_update_sends_one_dense_model_to_each_neighbour():
    users = people(2, 5, 6, 3)
    path = CollaborationGraph.from_edges(5, [0, 1], [1, 2], [1.0, 1.0])
    settings = PersolinSettings(Plan(n_updates=400))
    result = persolin(users, users, settings, np.random.default_rng(0), graph=path)
    updates_times_neighbours = result.bits / (4 * 32)
    assert updates_times_neighbours == int(updates_times_neighbours)
    assert 0.6 < updates_times_neighbours / (400 * 4 / 5) < 1.4


def test_the_learned_graph_joins_users_of_one_kind():
    users = people(3, 10, 25, 4, turn=0.0)
    flipped = users.y.copy()
    flipped[users.row_start[5] :] *= -1
    users = Population(users.X, flipped, users.row_start, users.user_ids, users.classes, users.feature_names)
    settings = PersolinSettings(Plan(n_updates=400, kappa=4), mu=0.3, regularizer=LogDegree(lam=0.5, delta=0.1))
    result = persolin(users, users, settings, np.random.default_rng(0))
    k, l, w = result.graph.edges()
    assert w[(k < 5) == (l < 5)].sum() > 0.95 * w.sum()


def test_the_traced_objective_is_that_of_the_problem():
    users = people(7, 8, 10, 3, turn=0.2)
    regularizer = LogDegree(lam=0.5, delta=0.1)
    settings = PersolinSettings(Plan(n_updates=160, kappa=4), mu=0.3, regularizer=regularizer)
    result = persolin(users, users, settings, np.random.default_rng(0))
    data, graph, theta = LinearData.of(users), result.graph, result.models
    k, l, w = graph.edges()
    fit = graph.degree @ (data.confidence * losses(data, theta, settings.ridge))
    distances = w @ ((theta[k] - theta[l]) ** 2).sum(axis=1)
    penalty = 0.5 * np.sum(w**2) * 2 * regularizer.lam - np.log(graph.degree + regularizer.delta).sum()
    assert graph.n_edges > 0
    assert_allclose(result.trace[-1].objective, fit + 0.15 * distances + 0.3 * penalty, rtol=1e-12)


def test_bits_of_the_first_graph_are_those_of_its_messages():
    users = people(4, 8, 5, 3)
    plan = Plan(n_updates=0, local_updates=50, first_graph_wakeups=20, kappa=3)
    result = persolin(users, users, PersolinSettings(plan), np.random.default_rng(0))
    # Twenty wake-ups, three peers each: degree, loss, new weight, and a model of four floats.
    assert result.bits == 20 * 3 * (3 + 4) * 32


def test_the_same_seed_gives_the_same_models_and_trace():
    users = people(6, 6, 8, 3, turn=0.2)
    settings = PersolinSettings(Plan(n_updates=120, trace_every=50))
    first, second = (persolin(users, users, settings, np.random.default_rng(9)) for _ in range(2))
    assert_array_equal(first.models, second.models)
    assert [point.updates for point in first.trace] == [0, 50, 100, 120]
    assert [point.bits for point in first.trace] == [point.bits for point in second.trace]
    assert first.trace[-1].bits == first.bits


def test_stops_that_concern_boosting_are_refused():
    with pytest.raises(ValueError, match="max_bits is not for linear models, got 5"):
        PersolinSettings(Plan(n_updates=1, max_bits=5))


def test_wake_ups_over_frozen_models_are_those_of_a_run():
    users = moons(0, n_users=12, n_test=5)
    problem = task.problem(
        users.train, Stumps(n=40).fit(users.train.X), beta=5.0, mu1=1.0, regularizer=LogDegree(lam=0.3, delta=0.1)
    )
    plan = Plan(n_updates=0, local_updates=300, first_graph_wakeups=100)
    result = run(problem, plan, np.random.default_rng(4))
    schedule = Schedule.draw(np.random.default_rng(4), 12, plan.kappa)
    state = State.start(problem, plan, CollaborationGraph.empty(12), np.float32)
    state.use_models(problem, result.models)
    learner = DistanceRule(problem, plan, np.dtype(np.float32))
    learner.losses = problem.graph_losses(result.models)
    for count in (30, 70):
        wake_graph(learner, state, schedule, count)
    assert_array_equal(state.graph.indices, result.graph.indices)
    assert_allclose(state.graph.weights, result.graph.weights, rtol=1e-4)
    assert state.ledger.bits == result.ledger.bits
