import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dada.core.graph import CollaborationGraph
from dada.core.model_steps import ALL, PAPER, largest_entry, squared_distance, step_size
from dada.core.problem import Problem
from tests.helpers.problems import (
    EXPONENTIAL,
    LOSSES,
    block_in_numpy,
    margins_in_numpy,
    random_graph,
    random_models,
    random_problem,
)
from tests.helpers.steps import one_step

seeds = st.integers(0, 2**32)
losses = st.sampled_from(LOSSES)
mus = st.sampled_from([0.0, 1e-6, 1e-2, 1.0, 100.0])


def drawn(seed, loss, beta=2.0, mu1=1.0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    n_users, n = int(rng.integers(1, 5)), int(rng.integers(1, 8))
    coupling = rng.choice([0.0, 0.5, 1.0, 3.0], size=n)
    kind = dict(dtype=dtype, shifted=seed % 2, weighted=seed % 3 == 0)
    problem = random_problem(rng, n_users, n, beta=beta, mu1=mu1, loss=loss, coupling=coupling, **kind)
    return problem, random_graph(rng, n_users), random_models(rng, problem)


@pytest.mark.parametrize("rule", ["pairwise", "line-search"])
@given(seed=seeds, loss=losses, mu1=mus, beta=st.sampled_from([1e-3, 1.0, 10.0, 100.0, 1e4]))
def test_a_step_never_increases_its_block(rule, seed, loss, mu1, beta):
    if loss is EXPONENTIAL:
        beta = min(beta, 20.0)
    problem, graph, alpha = drawn(seed, loss, beta, mu1)
    before = block_in_numpy(problem, graph, alpha, 0, alpha[0])
    user, *_ = one_step(problem, graph, alpha, 0, rule)
    after = block_in_numpy(problem, graph, alpha, 0, user.alpha)
    assert after <= before + 1e-10 * max(1.0, abs(before))


@pytest.mark.parametrize("rule", ["pairwise", "line-search"])
@given(seed=seeds, loss=losses, mu1=mus, beta=st.sampled_from([1.0, 10.0, 100.0]))
def test_a_step_in_single_precision_increases_its_block_by_rounding_at_most(rule, seed, loss, mu1, beta):
    if loss is EXPONENTIAL:
        beta = min(beta, 10.0)
    problem, graph, alpha = drawn(seed, loss, beta, mu1, np.float32)
    alpha = alpha.astype(np.float32).astype(np.float64)
    before = block_in_numpy(problem, graph, alpha, 0, alpha[0])
    user, *_ = one_step(problem, graph, alpha, 0, rule, dtype=np.float32)
    after = block_in_numpy(problem, graph, alpha, 0, user.alpha.astype(np.float64))
    scale = max(1.0, abs(before), 0.5 * mu1 * beta**2 * graph.neighbour_counts[0])
    assert after <= before + 1e-5 * scale


@pytest.mark.parametrize("loss", ["adaboost", "logistic"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_where_weights_of_samples_underflow_a_pairwise_step_is_not_too_long(loss, dtype):
    graph = CollaborationGraph.empty(1)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, 1, beta=rng.choice([30.0, 100.0, 300.0]), loss=loss, dtype=dtype)
        alpha = random_models(rng, problem).astype(dtype).astype(np.float64)
        before = block_in_numpy(problem, graph, alpha, 0, alpha[0])
        user, *_ = one_step(problem, graph, alpha, 0, "pairwise", dtype=dtype)
        after = block_in_numpy(problem, graph, alpha, 0, user.alpha.astype(np.float64))
        assert after <= before + 10 * np.finfo(dtype).eps * problem.beta


@given(seed=seeds, loss=losses, mu1=mus)
def test_line_search_finds_the_best_point_of_its_segment(seed, loss, mu1):
    problem, graph, alpha = drawn(seed, loss, mu1=mu1)
    user, _, _, move = one_step(problem, graph, alpha, 0, "line-search")
    vertex = np.zeros_like(user.alpha)
    vertex[move.j] = move.toward
    others = [(1 - g) * alpha[0] + g * vertex for g in np.linspace(0, 1, 41)]
    best = min(block_in_numpy(problem, graph, alpha, 0, other) for other in others)
    assert block_in_numpy(problem, graph, alpha, 0, user.alpha) <= best + 1e-12 * max(1.0, abs(best))


@pytest.mark.parametrize("rule", ["pairwise", "line-search", "paper"])
@given(seed=seeds, loss=losses, gamma=st.sampled_from([1.0, 0.5, 1e-3]))
def test_a_step_keeps_norm_support_and_margins(rule, seed, loss, gamma):
    problem, graph, alpha = drawn(seed, loss)
    user, support, _, _ = one_step(problem, graph, alpha, 0, rule, gamma=gamma if rule == "paper" else -1.0)
    assert np.abs(user.alpha).sum() <= problem.beta * (1 + 1e-12)
    assert_array_equal(np.sort(support), np.flatnonzero(user.alpha))
    assert_allclose(user.margins, margins_in_numpy(problem, 0, user.alpha), atol=1e-12 * problem.beta)


@given(seed=seeds, loss=losses)
def test_the_list_of_changes_is_the_difference_of_the_models(seed, loss):
    problem, graph, alpha = drawn(seed, loss)
    for rule in ("pairwise", "line-search"):
        user, _, n_changed, _ = one_step(problem, graph, alpha, 0, rule)
        moved = np.flatnonzero(user.alpha != alpha[0])
        assert moved.size <= n_changed
        if rule == "pairwise":
            assert n_changed <= 2


def test_a_fixed_step_goes_its_share_of_the_way_to_the_vertex():
    problem = Problem(np.array([[1.0, -1.0, 1.0]]), np.array([0, 1]), beta=3.0, mu1=0.0)
    alpha = np.array([[0.0, 0.5, 1.0]])
    user, _, n_changed, move = one_step(problem, CollaborationGraph.empty(1), alpha, 0, "paper", gamma=0.25)
    # All three predictors gain alike, and the first is taken.
    assert (move.j, move.toward, move.away) == (0, 3.0, ALL)
    assert_array_equal(user.alpha, [0.75, 0.375, 0.75])
    assert n_changed == 3


def test_a_whole_step_leaves_one_coordinate():
    problem = Problem(np.array([[1.0, -1.0, 1.0]]), np.array([0, 1]), beta=3.0, mu1=0.0)
    user, support, _, _ = one_step(
        problem, CollaborationGraph.empty(1), np.array([[0.0, 0.5, 1.0]]), 0, "paper", gamma=1.0
    )
    assert_array_equal(user.alpha, [3.0, 0.0, 0.0])
    assert_array_equal(support, [0])


@pytest.mark.parametrize("rule", ["pairwise", "line-search"])
def test_nothing_is_sent_where_nothing_can_be_gained(rule):
    problem = Problem(np.zeros((2, 3)), np.array([0, 2]), beta=3.0, mu1=1.0)
    for alpha in (np.zeros((1, 3)), np.array([[0.0, 1.0, -2.0]])):
        user, _, n_changed, _ = one_step(problem, CollaborationGraph.empty(1), alpha, 0, rule)
        assert n_changed == 0
        assert_array_equal(user.alpha, alpha[0])


def test_pairwise_takes_all_mass_of_a_vertex_and_forgets_it():
    problem = Problem(np.array([[1.0, -1.0]]), np.array([0, 1]), beta=1.0, mu1=0.0)
    # The full mass sits on the worst vertex, and the loss is linear in the model of a user with one sample.
    user, support, n_changed, _ = one_step(problem, CollaborationGraph.empty(1), np.array([[0.0, 1.0]]), 0, "pairwise")
    assert_array_equal(user.alpha, [1.0, 0.0])
    assert_array_equal(support, [0])
    assert n_changed == 2


def test_two_coordinates_that_cancel_at_once_both_leave_the_support():
    # Two equal predictors, both with the wrong sign and the same mass: what one gives up brings the other to zero.
    problem = Problem(np.array([[1.0, 1.0]]), np.array([0, 1]), beta=1.0, mu1=0.0)
    alpha, graph = np.array([[-0.5, -0.5]]), CollaborationGraph.empty(1)
    for _ in range(4):
        user, support, _, _ = one_step(problem, graph, alpha, 0, "pairwise")
        assert_array_equal(np.sort(support), np.flatnonzero(user.alpha))
        alpha = user.alpha[None].copy()
    assert np.abs(alpha).sum() <= 1.0
    assert alpha.sum() == 1.0


def test_ties_go_to_the_lowest_coordinate():
    assert largest_entry(np.array([0.0, -2.0, 2.0, 1.0])) == 1
    assert largest_entry(np.zeros(3)) == 0


def test_step_sizes_of_the_rules():
    assert step_size(PAPER, 10, 0, 7) == 1.0
    assert step_size(PAPER, 10, 20, 7) == 0.5
    assert step_size(1, 10, 20, 0) == 1.0
    assert step_size(1, 10, 20, 2) == 0.5


@given(seed=seeds)
def test_squared_distance_over_supports_is_the_distance(seed):
    rng = np.random.default_rng(seed)
    alpha = rng.normal(size=(2, 7)) * (rng.random((2, 7)) < 0.5)
    coupling = rng.uniform(0, 2, 7)
    used = [np.flatnonzero(row).astype(np.int16) for row in alpha]
    got = squared_distance(coupling, alpha[0], used[0], used[0].size, alpha[1], used[1], used[1].size)
    assert_allclose(got, coupling @ (alpha[0] - alpha[1]) ** 2, rtol=1e-14)
