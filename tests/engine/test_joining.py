"""Runs that start from given models, and users who learn while all other models stay frozen."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dada.core.graph import CollaborationGraph
from dada.core.problem import Problem
from dada.engine import Plan, run
from dada.fitting.newcomers import join
from tests.helpers.problems import random_problem

ALONE = Plan(4_000, learn_graph=False)


def test_a_run_that_starts_at_its_own_end_stays_there():
    problem = random_problem(np.random.default_rng(0), 6, 7, mu1=0.5)
    graph = CollaborationGraph.complete(6)
    end = run(problem, Plan(40_000, learn_graph=False), np.random.default_rng(1), graph=graph, dtype=np.float64).models
    on = run(
        problem, replace(ALONE, n_updates=300), np.random.default_rng(2), graph=graph, models=end, dtype=np.float64
    )
    assert_allclose(on.models, end, atol=1e-3)
    assert on.trace[0].objective == pytest.approx(problem.objective(end, graph))


def test_no_update_leaves_given_models_as_they_are():
    problem = random_problem(np.random.default_rng(0), 4, 5, mu1=0.5)
    models = run(problem, ALONE, np.random.default_rng(1), dtype=np.float64).models
    still = run(problem, replace(ALONE, n_updates=0), np.random.default_rng(2), models=models, dtype=np.float64)
    assert_array_equal(still.models, models)


def test_models_that_do_not_fit_are_refused():
    problem = random_problem(np.random.default_rng(0), 4, 5, mu1=0.5)
    with pytest.raises(ValueError, match=r"models must be finite and of shape \(4, 5\), got shape \(4, 3\)"):
        run(problem, ALONE, np.random.default_rng(1), models=np.zeros((4, 3)))
    with pytest.raises(ValueError, match="absolute sums of at most beta"):
        run(problem, ALONE, np.random.default_rng(1), models=np.full((4, 5), problem.beta))


def test_a_newcomer_finds_the_optimum_next_to_fixed_neighbours():
    whole = random_problem(np.random.default_rng(3), 1, 6, mu1=0.5)
    mean = np.random.default_rng(4).normal(size=6) / 20
    found = join(whole, mean, confidence=0.5, n_updates=3_000, dtype=np.float64)
    # The same optimum from a population in which one other user holds the mean.
    step = join(whole, mean, start=np.zeros(6), confidence=0.5, n_updates=3_000, dtype=np.float64)
    assert_allclose(found, step, atol=2e-3)


def test_a_newcomer_without_pull_learns_as_a_user_alone():
    problem = random_problem(np.random.default_rng(5), 1, 6, mu1=0.0, dtype=np.float32)
    alone = run(problem, ALONE, np.random.default_rng(0)).models[0]
    joined = join(problem, np.zeros(6), n_updates=4_000)
    empty = CollaborationGraph.empty(1)
    values = [problem.model_gap(model[None], empty) for model in (alone, joined)]
    assert_allclose(values, 0, atol=1e-2)


def test_only_one_user_can_join():
    problem = Problem(np.ones((2, 3), np.int8), np.array([0, 1, 2]), beta=1.0, mu1=1.0)
    with pytest.raises(ValueError, match="one user and the mean 3 weights, got 2 users"):
        join(problem, np.zeros(3))
