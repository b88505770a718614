"""Collaborative linear models: the problem they solve, and what they send."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from dada.baselines.persolin import (
    LinearStep,
    PersolinSettings,
    _linear_data,
    linear_losses,
    newton_step,
    persolin_learned,
    persolin_oracle,
)
from dada.core.graph import CollaborationGraph
from dada.core.regularizers import LogDegree
from dada.data import Population, Stumps
from dada.engine import Plan
from dada.task import Task


def people(seed, n_users, rows, D, turn=0.0):
    """Users with labels along directions that turn from one user to the next."""
    chance = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n_users), rows)
    X = chance.normal(size=(owner.size, D))
    side = np.cos(turn * owner) * X[:, 0] + np.sin(turn * owner) * X[:, 1]
    return Population.from_arrays(X, np.sign(side + 0.3 * chance.normal(size=owner.size)).astype(int), owner)


def block_objective(data, k, theta, mu, mean, ridge):
    models = np.tile(theta, (data.row_start.size - 1, 1))
    return data.confidence[k] * linear_losses(data, ridge, models)[k] + 0.5 * mu * ((theta - mean) ** 2).sum()


@given(seed=st.integers(0, 1000), D=st.sampled_from([2, 12]), mu=st.sampled_from([0.0, 0.01, 1.0, 100.0]))
def test_a_step_never_increases_its_block(seed, D, mu):
    data = _linear_data(people(seed, 3, 6, D))
    chance = np.random.default_rng(seed)
    mean, model = chance.normal(size=(2, D + 1)) * 3
    before = block_objective(data, 1, model, mu, mean, 1e-3)
    newton_step(LinearStep(mu, 1e-3), data, 1, mu, mean, model)
    assert block_objective(data, 1, model, mu, mean, 1e-3) <= before * (1 + 1e-12)


@pytest.mark.parametrize("D", [2, 12])
def test_steps_reach_the_optimum_of_the_block(D):
    data = _linear_data(people(5, 2, 8, D))
    mean, model = np.linspace(-1, 1, D + 1), np.zeros(D + 1)
    for _ in range(30):
        newton_step(LinearStep(0.3, 0.1), data, 0, 0.3, mean, model)
    generic = minimize(lambda theta: block_objective(data, 0, theta, 0.3, mean, 0.1), np.zeros(D + 1), tol=1e-10)
    assert_allclose(model, generic.x, atol=1e-4)


def test_strong_coupling_over_everybody_gives_one_model():
    users = people(1, 6, 12, 3, turn=0.3)
    task = Task.of(users, Stumps(n=4))
    settings = PersolinSettings(Plan(n_updates=3000), mu=100.0)
    everyone = CollaborationGraph.complete(6)
    outcome = persolin_oracle(task, users, settings, np.random.default_rng(0), graph=everyone)
    alone = persolin_oracle(task, users, settings, np.random.default_rng(0), graph=CollaborationGraph.empty(6))
    assert np.ptp(outcome.models, axis=0).max() < 0.1
    assert np.ptp(alone.models, axis=0).max() > 1.0


def test_every_update_sends_one_dense_model_to_each_neighbour():
    users = people(2, 5, 6, 3)
    path = CollaborationGraph.from_edges(5, [0, 1], [1, 2], [1.0, 1.0])
    settings = PersolinSettings(Plan(n_updates=400))
    task = Task.of(users, Stumps(n=4))
    outcome = persolin_oracle(task, users, settings, np.random.default_rng(0), graph=path)
    updates_times_neighbours = outcome.bits / (4 * 32)
    assert updates_times_neighbours == int(updates_times_neighbours)
    assert 0.6 < updates_times_neighbours / (400 * 4 / 5) < 1.4


def test_the_learned_graph_joins_users_of_one_kind():
    users = people(3, 10, 25, 4, turn=0.0)
    flipped = users.y.copy()
    flipped[users.row_start[5] :] *= -1
    users = Population(users.X, flipped, users.row_start, users.user_ids, users.classes, users.feature_names)
    settings = PersolinSettings(Plan(n_updates=400, kappa=4), mu=0.3, regularizer=LogDegree(lam=0.5, delta=0.1))
    task = Task.of(users, Stumps(n=4))
    outcome = persolin_learned(task, users, settings, np.random.default_rng(0))
    k, l, w = outcome.graph.edges()
    assert w[(k < 5) == (l < 5)].sum() > 0.95 * w.sum()


def test_bits_of_the_first_graph_are_those_of_its_messages():
    users = people(4, 8, 5, 3)
    plan = Plan(n_updates=0, local_updates=50, first_graph_wakeups=20, kappa=3)
    task = Task.of(users, Stumps(n=4))
    outcome = persolin_learned(task, users, PersolinSettings(plan), np.random.default_rng(0))
    # Twenty wake-ups, three peers each: degree, loss, the weight in return, and a model of four floats.
    assert outcome.bits == 20 * 3 * (3 + 4) * 32


def test_the_same_seed_gives_the_same_models_and_trace():
    users = people(6, 6, 8, 3, turn=0.2)
    task = Task.of(users, Stumps(n=4))
    settings = PersolinSettings(Plan(n_updates=120, trace_every=50))
    first, second = (persolin_learned(task, users, settings, np.random.default_rng(9)) for _ in range(2))
    assert_array_equal(first.models, second.models)
    assert [point.updates for point in first.trace] == [0, 50, 100, 120]
    assert [point.bits for point in first.trace] == [point.bits for point in second.trace]
    assert first.trace[-1].bits == first.bits


def test_stops_that_concern_boosting_are_refused():
    with pytest.raises(ValueError, match="max_bits is not for linear models, got 5"):
        PersolinSettings(Plan(n_updates=1, max_bits=5))
