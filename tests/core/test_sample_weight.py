"""Weights of rows: a user's loss is the weighted mean over its rows, and only ratios within a user matter."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dada.core.graph import CollaborationGraph
from dada.core.losses import (
    ALL_ALIKE,
    LEAST_SAMPLE_WEIGHT,
    curvature_along,
    loss_and_weights,
    loss_code,
    relative_weights,
)
from dada.core.problem import Problem
from dada.engine import Plan, run
from tests.helpers.problems import LOSSES, check_model_gradient, random_graph, random_models, random_problem

seeds = st.integers(0, 2**32)
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: getattr(loss, "name", loss))


def drawn(seed, **settings):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, weighted=True, shifted=seed % 2, coupling=rng.uniform(0, 2, 6), **settings)
    return problem, random_graph(rng, problem.n_users), random_models(rng, problem)


def repeated(problem, times):
    """The problem with rows repeated instead of weighted."""
    owners = np.repeat(np.arange(problem.n_users), problem.sizes)
    row_start = np.concatenate([[0], np.cumsum(np.bincount(owners, weights=times))]).astype(np.int64)
    return replace(problem, weights=None).of_rows(np.repeat(np.arange(len(times)), times), row_start)


@given(seed=seeds)
def test_a_users_weights_are_one_on_average_and_keep_their_ratios(seed):
    problem, _, _ = drawn(seed)
    for first, last in zip(problem.row_start[:-1], problem.row_start[1:], strict=True):
        own, given_weights = problem.sample_weight[first:last], problem.weights[first:last]
        assert_allclose(own.mean(), 1.0, rtol=1e-12)
        assert_allclose(own / own[0], given_weights / given_weights[0], rtol=1e-12)


def test_rows_that_count_alike_cost_no_memory():
    problem = random_problem(np.random.default_rng(0))
    assert problem.sample_weight is ALL_ALIKE
    assert problem.sample_weight.nbytes == 0


@each_loss
@given(seed=seeds)
def test_whole_weights_are_rows_given_again(loss, seed):
    problem, _, alpha = drawn(seed, loss=loss)
    times = np.random.default_rng(seed).integers(1, 5, len(problem.A))
    problem = replace(problem, weights=times)
    again = repeated(problem, times)
    nobody = CollaborationGraph.empty(problem.n_users)
    # Confidences differ, as they count rows; what they multiply does not.
    for quantity in (Problem.graph_losses, lambda each, models: each.model_gradient(models, nobody)):
        found, expected = (quantity(each, alpha).T / each.confidence for each in (problem, again))
        assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("graph_loss", ["mean", "paper", "logistic"])
def test_losses_for_the_graph_count_rows_by_weight(graph_loss):
    problem, _, alpha = drawn(4, graph_loss=graph_loss)
    times = np.random.default_rng(4).integers(1, 5, len(problem.A))
    problem = replace(problem, weights=times)
    again = repeated(problem, times)
    # The sum of Eq. (2) is over as many rows as there are, the mean over as many as they stand for.
    more = np.log(again.sizes / problem.sizes) if graph_loss == "paper" else 0.0
    losses = problem.graph_losses(alpha) / problem.confidence
    assert_allclose(losses, again.graph_losses(alpha) / again.confidence - more, rtol=1e-12, atol=1e-14)


@each_loss
@given(seed=seeds, factor=st.sampled_from([2.0**-40, 0.5, 2.0**60]))
def test_the_scale_of_a_users_weights_changes_no_bit(loss, seed, factor):
    problem, graph, alpha = drawn(seed, loss=loss)
    scaled = problem.weights.copy()
    scaled[: problem.row_start[1]] *= factor
    other = replace(problem, weights=scaled)
    assert_array_equal(other.sample_weight, problem.sample_weight)
    assert other.objective(alpha, graph) == problem.objective(alpha, graph)
    assert_array_equal(other.model_gradient(alpha, graph), problem.model_gradient(alpha, graph))


@given(seed=seeds, factor=st.floats(1e-9, 1e9))
def test_any_scale_is_the_same_up_to_rounding(seed, factor):
    problem, _, _ = drawn(seed)
    assert_allclose(relative_weights(factor * problem.weights, problem.row_start), problem.sample_weight, rtol=1e-12)


@pytest.mark.parametrize("rule", ["distance", "evidence"])
def test_equal_weights_are_none(rule):
    problem = random_problem(np.random.default_rng(2), n_users=8, loss="logistic")
    plan = Plan(400, graph_rule=rule, graph_every=100, kappa=3)
    plain, weighted = (
        run(each, plan, np.random.default_rng(3), dtype=np.float64)
        for each in (problem, replace(problem, weights=np.full(len(problem.A), 4.0)))
    )
    assert_array_equal(plain.models, weighted.models)
    assert_array_equal(plain.graph.weights, weighted.graph.weights)


@each_loss
def test_gradients_are_those_of_the_weighted_objective(loss):
    problem, graph, alpha = drawn(5, loss=loss)
    check_model_gradient(problem, graph, alpha)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_row_of_next_to_no_weight_leaves_nothing_undefined(dtype):
    """The row of the smallest margin, from which exponents are taken, is the one that hardly counts."""
    sample_weight = relative_weights(np.array([1e-300, 1.0]), np.array([0, 2]))
    assert sample_weight[0] == LEAST_SAMPLE_WEIGHT
    margins, eta = np.array([-600.0, 600.0], dtype), np.empty(2, dtype)
    value = loss_and_weights(loss_code("adaboost"), margins, sample_weight, eta)
    assert_allclose(value, 600.0 + np.log(LEAST_SAMPLE_WEIGHT))
    assert_array_equal(eta, [1.0, 0.0])
    assert np.isfinite(curvature_along(loss_code("adaboost"), margins, sample_weight, eta, margins)).all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 2.0], r"weights must be one number per row, 3 in all, got shape \(2,\)"),
        ([1.0, 0.0, 2.0], r"weights must be > 0 and their sum finite, got 0.0 to 2.0: drop rows"),
        ([1.0, -1.0, 2.0], r"weights must be > 0 .*, got -1.0 to 2.0"),
        ([1.0, np.inf, 2.0], r"weights must be > 0 .*, got 1.0 to inf"),
        ([1.0, np.nan, 2.0], r"weights must be > 0 .*, got nan to nan"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        Problem(np.ones((3, 1)), np.array([0, 1, 3]), beta=1.0, mu1=1.0, weights=np.array(weights))
