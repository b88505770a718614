"""What must hold at every moment of every run."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dada.core.graph_steps import DegreeTarget, LogDegree
from dada.core.model_steps import REFRESH_EVERY
from dada.engine import Plan
from tests.helpers.problems import margins_in_numpy, random_graph, random_problem, rows_of
from tests.helpers.runs import watched_run

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}


def assert_consistent(problem, plan, state):
    users, graph = state.users, state.graph
    tolerance = TOLERANCE[users.alpha.dtype.type]
    alpha = users.alpha.astype(np.float64)
    weights = graph.to_scipy().toarray()
    assert (graph.weights > 0).all()
    assert (np.diag(weights) == 0).all()
    if not graph.directed:
        assert_array_equal(weights, weights.T)
    if graph.directed:
        assert graph.neighbour_counts.max() <= plan.n_neighbours
    elif plan.max_neighbours is not None:
        assert graph.neighbour_counts.max() <= plan.max_neighbours
    for k in range(problem.n_users):
        row = graph.indices[graph.indptr[k] : graph.indptr[k + 1]]
        assert (np.diff(row) > 0).all()
        support = users.support[k, : users.n_support[k]]
        assert_array_equal(np.sort(support), np.flatnonzero(alpha[k]))
        margins = users.margins[problem.row_start[k] : problem.row_start[k + 1]]
        assert_allclose(margins, margins_in_numpy(problem, k, alpha[k]), rtol=0, atol=tolerance * problem.beta)
    assert (np.abs(alpha).sum(axis=1) <= problem.beta * (1 + 1e-12)).all()
    assert_array_equal(users.sent.sum(axis=0), state.ledger.models + state.ledger.graph)
    fresh = users.stale == 0
    degree = weights.sum(axis=1)
    if not graph.directed:
        assert_allclose(users.degree, degree, rtol=1e-9, atol=1e-12 * max(1.0, degree.max(initial=0)))
    scale = max(1.0, degree.max(initial=0.0)) * problem.beta
    assert_allclose(users.neighbour_sum[fresh], (weights @ alpha)[fresh], rtol=0, atol=tolerance * scale)


plans = st.builds(
    Plan,
    n_updates=st.sampled_from([60, 200]),
    step=st.sampled_from(["pairwise", "paper", "local", "line-search"]),
    graph_step=st.sampled_from(["exact", "lipschitz"]),
    kappa=st.integers(1, 6),
    sampler=st.sampled_from(["uniform", "gossip"]),
    graph_every=st.sampled_from([7, 25, 100]),
    first_graph_wakeups=st.sampled_from([0, 3, 50]),
    graph_wakeups=st.sampled_from([1, 20]),
    restart=st.sampled_from(["zero", "local"]),
    max_neighbours=st.sampled_from([None, None, 1, 3]),
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    plan=plans,
    loss=st.sampled_from(["adaboost", "logistic", "squared-hinge", "squared", "huber"]),
    regularizer=st.sampled_from([LogDegree(0.3, 0.1), LogDegree(1e-2, 1e-4), DegreeTarget(2.0, 0.1, 0.3)]),
    mu1=st.sampled_from([0.01, 1.0, 30.0]),
)
def test_a_run_that_learns_its_graph_stays_consistent(dtype, seed, plan, loss, regularizer, mu1):
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng, 7, 8, beta=5.0, mu1=mu1, loss=loss, regularizer=regularizer, dtype=dtype, shifted=seed % 2
    )
    watched_run(problem, plan, seed, lambda state: assert_consistent(problem, plan, state), dtype=dtype)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32),
    step=st.sampled_from(["pairwise", "paper", "local", "line-search"]),
    kappa=st.integers(1, 6),
    n_neighbours=st.sampled_from([1, 3]),
)
def test_a_run_that_learns_whom_to_follow_stays_consistent(seed, step, kappa, n_neighbours):
    problem = random_problem(np.random.default_rng(seed), 7, 8, dtype=np.float32)
    plan = Plan(
        200, graph_rule="evidence", step=step, kappa=kappa, n_neighbours=n_neighbours, graph_every=30, graph_wakeups=20
    )
    watched_run(problem, plan, seed, lambda state: assert_consistent(problem, plan, state))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    step=st.sampled_from(["pairwise", "paper", "local", "line-search"]),
    shape=st.sampled_from([(1, 1, 1), (1, 5, 3), (2, 1, 1), (2, 4, 1), (6, 1, 4), (6, 8, 4)]),
    mu1=st.sampled_from([0.0, 1.0]),
)
def test_a_run_over_a_given_graph_stays_consistent(seed, step, shape, mu1):
    n_users, n, most_samples = shape
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, n_users, n, most_samples, beta=3.0, mu1=mu1, dtype=np.float32)
    plan = Plan(n_updates=300, learn_graph=False, step=step)
    graph = random_graph(rng, n_users)
    watched_run(problem, plan, seed, lambda state: assert_consistent(problem, plan, state), graph=graph)


def test_margins_are_made_anew_even_where_neighbours_change_before_every_update():
    # Two users, and a graph phase before each of their updates: whoever wakes has a changed neighbour.
    rng = np.random.default_rng(0)
    problem = random_problem(rng, 2, 6, beta=1.0, mu1=1.0, dtype=np.float32)
    plan = Plan(n_updates=8 * REFRESH_EVERY, kappa=1, graph_every=1, graph_wakeups=2, local_updates=0, step="local")
    states = []
    watched_run(problem, plan, 1, states.append)
    users = states[-1].users
    assert users.own_updates.min() > 2 * REFRESH_EVERY
    exact = np.concatenate([rows_of(problem, k) @ users.alpha[k].astype(np.float64) for k in range(2)])
    assert np.abs(users.margins - exact).max() < 40 * np.finfo(np.float32).eps


@pytest.mark.parametrize(
    ("step", "n_updates"), [("pairwise", 1_000_000), ("paper", 60_000), ("local", 60_000), ("line-search", 60_000)]
)
# 0.3 is larger in single precision than in double precision.
@pytest.mark.parametrize("beta", [0.3, 5.0])
def test_models_never_leave_the_ball_in_single_precision(step, n_updates, beta):
    rng = np.random.default_rng(1)
    problem = random_problem(rng, 2, 8, beta=beta, mu1=0.3, dtype=np.float32)
    graph = random_graph(rng, 2, density=1.0)
    plan = Plan(n_updates=n_updates, learn_graph=False, step=step, trace_every=n_updates)
    norms = []

    def look(state):
        norms.append(np.abs(state.users.alpha.astype(np.float64)).sum(axis=1).max())

    watched_run(problem, plan, 1, look, chunk=n_updates // 100, graph=graph)
    assert max(norms) <= beta * (1 + 1e-12)
    # Near the sphere, where rounding matters.
    assert norms[-1] >= 0.999 * beta


@settings(max_examples=6)
@given(seed=st.integers(0, 2**32), beta=st.floats(0.01, 100.0))
def test_a_million_steps_in_single_precision_stay_in_any_ball(seed, beta):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 2, 8, beta=beta, mu1=0.3, dtype=np.float32)
    plan = Plan(n_updates=1_000_000, learn_graph=False, step="pairwise", trace_every=1_000_000)

    def look(state):
        norms = np.abs(state.users.alpha.astype(np.float64)).sum(axis=1)
        assert norms.max() <= beta * (1 + 1e-12)

    watched_run(problem, plan, seed, look, chunk=10_000, graph=random_graph(rng, 2, density=1.0))
