"""Boosting methods: what each trains on, and what it reports."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dada import task
from dada.baselines import BoostSettings, accuracies, boost
from dada.baselines.boosting import random_graph
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.plan import Plan, Status
from dada.data import Population, Stumps, moons
from dada.engine import run

PLAN = Plan(n_updates=2000, graph_every=400)
SETTINGS = BoostSettings(PLAN, beta=5.0, mu=1.0, regularizer=LogDegree(lam=0.1))


@pytest.fixture(scope="module")
def users():
    return moons(3, n_users=20, n_test=20)


@pytest.fixture(scope="module")
def predictors(users):
    return Stumps(n=40, rule="feature-range").fit(users.train.X)


def chance():
    return np.random.default_rng(0)


def accuracy_of(models, predictors, population):
    values = (predictors.predict(population.X) * np.repeat(models, population.sizes, axis=0)).sum(axis=1)
    return accuracies(population, values)


def test_local_boost_is_a_run_without_graph(predictors, users):
    result = boost(users.train, predictors, users.test, SETTINGS, chance(), graph="none")
    alone = run(
        task.problem(users.train, predictors, beta=5.0, mu1=0.0), Plan(n_updates=2000, learn_graph=False), chance()
    )
    np.testing.assert_array_equal(result.models, alone.models)
    assert result.graph is None
    assert result.bits == 0.0


def test_global_boost_is_one_model_that_every_user_is_scored_with(predictors, users):
    result = boost(users.train, predictors, users.test, SETTINGS, chance(), graph="pooled")
    per_user, pooled = accuracy_of(np.repeat(result.models, 20, axis=0), predictors, users.test)
    assert result.models.shape == (1, 40)
    np.testing.assert_allclose(result.test_accuracy, per_user)
    assert result.test_accuracy_pooled == pytest.approx(pooled)
    assert result.bits is None


def test_oracle_keeps_the_graph_it_was_given(predictors, users):
    graph = CollaborationGraph.from_scipy(users.oracle_weights())
    result = boost(users.train, predictors, users.test, SETTINGS, chance(), graph=graph)
    assert result.graph is graph
    assert result.bits > 0


def test_learned_reports_models_graph_and_bits_of_the_engine(predictors, users):
    result = boost(users.train, predictors, users.test, SETTINGS, chance(), graph="learned")
    problem = task.problem(users.train, predictors, beta=5.0, mu1=1.0, regularizer=LogDegree(lam=0.1))
    direct = run(problem, PLAN, chance())
    np.testing.assert_array_equal(result.models, direct.models)
    assert result.bits == direct.ledger.bits
    assert result.neighbours == direct.graph.mean_neighbours
    assert result.status is Status.FINISHED


def test_trace_ends_with_the_reported_accuracy(predictors, users):
    result = boost(users.train, predictors, users.test, SETTINGS, chance(), graph="learned")
    np.testing.assert_allclose(result.trace[-1].test_accuracy, result.test_accuracy, rtol=1e-6)
    np.testing.assert_allclose(result.trace[-1].train_accuracy, result.train_accuracy, rtol=1e-6)


@pytest.mark.parametrize("graph", ["pooled", "none", "learned"])
def test_same_seed_same_models_and_watching_changes_nothing(graph, predictors, users):
    seen = []
    first = boost(users.train, predictors, users.test, SETTINGS, chance(), seen.append, graph=graph)
    second = boost(users.train, predictors, users.test, SETTINGS, chance(), graph=graph)
    np.testing.assert_array_equal(first.models, second.models)
    assert seen


def test_other_users_in_the_test_data_are_refused(predictors, users):
    fewer = users.test.select(range(19))
    with pytest.raises(ValueError, match="train has 20 users, test has 19"):
        boost(users.train, predictors, fewer, SETTINGS, chance(), graph="none")


def test_pooled_accuracy_weights_rows_equally_and_the_mean_users():
    people = Population.from_arrays(np.zeros((4, 1)), [1, 1, 0, 1], ["ann", "bob", "bob", "bob"])
    per_user, pooled = accuracies(people, np.array([1.0, -1.0, -1.0, 0.0]))
    np.testing.assert_allclose(per_user, [1.0, 1 / 3])
    assert pooled == 0.5


def test_an_unknown_graph_is_refused(predictors, users):
    with pytest.raises(ValueError, match="one of learned, none, pooled, got 'full'"):
        boost(users.train, predictors, users.test, SETTINGS, chance(), graph="full")


@given(n_users=st.integers(2, 40), share=st.floats(0, 1), seed=st.integers(0, 100))
def test_a_random_graph_has_the_requested_number_of_edges(n_users, share, seed):
    neighbours = share * (n_users - 1)
    graph = random_graph(n_users, neighbours, np.random.default_rng(seed))
    assert graph.n_edges == round(n_users * neighbours / 2)
    assert set(graph.weights) <= {1.0}


def test_more_neighbours_than_users_are_refused():
    with pytest.raises(ValueError, match=r"neighbours must be in 0..4 \(n_users - 1\), got 5"):
        random_graph(5, 5, np.random.default_rng(0))
