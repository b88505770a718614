import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from dada.core.graph_steps import (
    NEGLIGIBLE,
    DegreeTarget,
    LogDegree,
    degree_value,
    edge_gradient,
    exact_step,
    lipschitz_step,
    weight_value,
)
from tests.helpers.problems import INVERSE_DEGREE

seeds = st.integers(0, 2**32)
deltas = st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 10.0])
lams = st.sampled_from([1e-3, 0.1, 1.0, 100.0])


def block(reg, mu2, cost, w, degree_l, degree_k, new):
    """What a step of user k changes in h: the part of the objective that depends on the weights to the batch."""
    change = new - w
    value = cost @ new + mu2 * degree_value(reg, max(0.0, degree_k + change.sum()))
    return value + mu2 * sum(
        weight_value(reg, b) + degree_value(reg, max(0.0, d + c)) for b, d, c in zip(new, degree_l, change, strict=True)
    )


def drawn(seed):
    """Costs of either sign, weights that are zero or not, degrees that may consist of these weights alone."""
    rng = np.random.default_rng(seed)
    kappa = int(rng.integers(1, 7))
    scale = 10.0 ** rng.uniform(-2, 2)
    cost = rng.normal(size=kappa) * scale + rng.choice([-1.0, 0.0, 1.0]) * scale
    w = rng.exponential(size=kappa) * (rng.random(kappa) < 0.6) * 10.0 ** rng.uniform(-3, 2)
    rest = rng.exponential(size=kappa + 1) * (rng.random(kappa + 1) < 0.6)
    mu2 = 10.0 ** rng.uniform(-2, 1)
    return mu2, cost, w, rest[1:] + w, rest[0] + w.sum()


def stepped(step, regularizer, mu2, cost, w, degree_l, degree_k):
    new = np.empty_like(w)
    step(regularizer.compiled, mu2, cost, w, degree_l, degree_k, new)
    return new


def assert_is_block_minimum(regularizer, mu2, cost, w, degree_l, degree_k, new):
    """First-order optimality, against the size of the terms that cancel in it."""
    change = new - w
    d_k = max(0.0, degree_k + change.sum())
    for b in range(w.size):
        d_l = max(0.0, degree_l[b] + change[b])
        slope = edge_gradient(regularizer.compiled, mu2, cost[b], new[b], d_k, d_l)
        terms = abs(cost[b]) + mu2 * abs(edge_gradient(regularizer.compiled, 1.0, 0.0, new[b], d_k, d_l))
        at = 1e-8 * (terms + abs(cost).max())
        assert slope >= -at
        if new[b] > 1e-9:
            assert slope <= at


@given(seed=seeds, lam=lams, delta=deltas)
def test_the_exact_step_attains_the_minimum_of_its_block(seed, lam, delta):
    state = drawn(seed)
    regularizer = LogDegree(lam, delta)
    new = stepped(exact_step, regularizer, *state)
    assert (new >= 0).all()
    assert_is_block_minimum(regularizer, *state, new)


@pytest.mark.parametrize("regularizer", [DegreeTarget(3.0, 0.2, 0.1), INVERSE_DEGREE], ids=["target", "own"])
@given(seed=seeds)
def test_the_exact_step_attains_the_minimum_for_other_regularizers(regularizer, seed):
    state = drawn(seed)
    new = stepped(exact_step, regularizer, *state)
    assert_is_block_minimum(regularizer, *state, new)


@pytest.mark.parametrize("seed", range(8))
def test_the_exact_step_agrees_with_a_general_optimiser(seed):
    mu2, cost, w, degree_l, degree_k = drawn(seed)
    regularizer = LogDegree(0.3, 0.5)
    new = stepped(exact_step, regularizer, mu2, cost, w, degree_l, degree_k)

    def value(trial):
        return block(regularizer.compiled, mu2, cost, w, degree_l, degree_k, trial)

    found = minimize(value, np.maximum(w, 0.1), bounds=[(0, None)] * w.size, tol=1e-12)
    assert value(new) <= found.fun + 1e-9 * max(1.0, abs(found.fun))
    assert_allclose(new, found.x, atol=1e-3 * max(1.0, new.max()))


@given(seed=seeds, lam=lams, delta=deltas)
def test_no_step_increases_the_graph_objective(seed, lam, delta):
    state = drawn(seed)
    for regularizer in (LogDegree(lam, delta), DegreeTarget(1.0, lam), INVERSE_DEGREE):
        reg = regularizer.compiled
        before = block(reg, *state, state[2])
        for step in (exact_step, lipschitz_step):
            after = block(reg, *state, stepped(step, regularizer, *state))
            assert after <= before + 1e-10 * max(1.0, abs(before))


@given(seed=seeds, lam=lams, delta=deltas)
def test_a_second_exact_step_changes_nothing(seed, lam, delta):
    mu2, cost, w, degree_l, degree_k = drawn(seed)
    regularizer = LogDegree(lam, delta)
    new = stepped(exact_step, regularizer, mu2, cost, w, degree_l, degree_k)
    degree_l, degree_k = np.maximum(degree_l + new - w, new), max(degree_k + (new - w).sum(), new.sum())
    again = stepped(exact_step, regularizer, mu2, cost, new, degree_l, degree_k)
    assert_allclose(again, new, rtol=1e-6, atol=1e-6 * max(1e-6, new.max()))


def test_a_lipschitz_step_is_a_gradient_step_cut_at_zero():
    regularizer, mu2 = LogDegree(lam=0.5, delta=0.5), 2.0
    cost, w, degree_l, degree_k = np.array([1.0, 100.0]), np.array([0.3, 0.1]), np.array([0.5, 0.1]), 0.4
    L = mu2 * (3 / 0.5**2 + 2 * 0.5)
    gradient = cost[0] + mu2 * (2 * 0.5 * 0.3 - 1 / 0.9 - 1 / 1.0)
    new = stepped(lipschitz_step, regularizer, mu2, cost, w, degree_l, degree_k)
    assert_allclose(new, [0.3 - gradient / L, 0.0], rtol=1e-14)


@pytest.mark.parametrize("step", [exact_step, lipschitz_step])
def test_weights_too_small_to_matter_are_zero(step):
    regularizer = LogDegree(lam=1.0, delta=1.0)
    # The slope at zero is -1e-14: the minimum is an edge of about that weight.
    new = stepped(step, regularizer, 1.0, np.array([2.0 - 1e-14]), np.zeros(1), np.zeros(1), 0.0)
    assert_array_equal(new, [0.0])
    assert NEGLIGIBLE < 1e-9


@pytest.mark.parametrize("step", [exact_step, lipschitz_step])
def test_an_empty_batch_is_no_work(step):
    assert stepped(step, LogDegree(), 1.0, np.zeros(0), np.zeros(0), np.zeros(0), 3.0).size == 0


def test_equal_peers_get_equal_weights():
    new = stepped(exact_step, LogDegree(0.1, 0.1), 1.0, np.full(4, 0.5), np.zeros(4), np.full(4, 0.7), 0.0)
    assert_array_equal(new, np.full(4, new[0]))
    assert new[0] > 0
