import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dada.core.losses import ALL_ALIKE, curvature_along, loss_and_weights, loss_code, slope_along
from tests.helpers.problems import EXPONENTIAL, LOSSES, STEEP, loss_in_numpy

each_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: getattr(loss, "name", loss))


def drawn(seed, scale=2.0):
    """Margins, a direction, and how much each sample counts: as kernels take it, and as weights."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 7))
    margins, h, weights = rng.normal(size=m) * scale, rng.normal(size=m), rng.exponential(size=m)
    if seed % 2:
        return margins, h, ALL_ALIKE, None
    return margins, h, weights / weights.mean(), weights


@each_loss
@given(seed=st.integers(0, 2**32))
def test_values_and_sample_weights_are_those_of_the_formula(loss, seed):
    margins, _, sample_weight, weights = drawn(seed)
    eta = np.empty_like(margins)
    value = loss_and_weights(loss_code(loss), margins, sample_weight, eta)
    assert_allclose(value, loss_in_numpy(loss, margins, weights), rtol=1e-12, atol=1e-14)
    for i in range(margins.size):
        step = np.zeros_like(margins)
        step[i] = 1e-5
        ahead, behind = (loss_in_numpy(loss, margins + sign * step, weights) for sign in (1, -1))
        slope = (ahead - behind) / 2e-5
        assert_allclose(eta[i], -slope, rtol=1e-5, atol=1e-8)


@each_loss
@given(seed=st.integers(0, 2**32), gamma=st.sampled_from([0.0, 0.3, 1.0]))
def test_slopes_along_a_direction_are_those_of_the_value(loss, seed, gamma):
    margins, h, sample_weight, weights = drawn(seed)
    first, second = slope_along(loss_code(loss), margins, sample_weight, h, gamma)
    at = margins + gamma * h
    ahead, behind = (loss_in_numpy(loss, at + step * h, weights) for step in (1e-6, -1e-6))
    assert_allclose(first, (ahead - behind) / 2e-6, rtol=1e-5, atol=1e-5)
    if loss not in ("squared-hinge", "huber", STEEP):
        ahead, here, behind = (loss_in_numpy(loss, at + step * h, weights) for step in (1e-4, 0.0, -1e-4))
        assert_allclose(second, (ahead - 2 * here + behind) / 1e-8, rtol=1e-3, atol=1e-5)


@each_loss
@given(seed=st.integers(0, 2**32))
def test_curvature_and_growth_bound_the_loss_along_a_direction(loss, seed):
    """The bound on which pairwise steps rest: phi is below its parabola, or below the growing one."""
    margins, h, sample_weight, weights = drawn(seed)
    code, eta = loss_code(loss), np.empty_like(margins)
    value = loss_and_weights(code, margins, sample_weight, eta)
    curvature, growth = curvature_along(code, margins, sample_weight, eta, h)
    slope = -eta @ h
    for gamma in (0.01, 0.3, 1.0, 3.0):
        reach = growth * gamma
        grown = gamma**2 / 2 if reach < 1e-6 else (np.expm1(reach) - reach) / growth**2
        bound = value + gamma * slope + curvature * grown
        assert loss_in_numpy(loss, margins + gamma * h, weights) <= bound + 1e-9 * max(1.0, abs(bound))


@pytest.mark.parametrize("loss", ["adaboost", "logistic", "squared-hinge"])
@pytest.mark.parametrize("scale", [50.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_huge_margins_overflow_nothing(loss, scale, dtype):
    margins = np.array([-scale, 0.0, scale], dtype)
    eta = np.empty_like(margins)
    value = loss_and_weights(loss_code(loss), margins, ALL_ALIKE, eta)
    assert_allclose(value, loss_in_numpy(loss, margins.astype(np.float64)), rtol=1e-5)
    assert np.isfinite(eta).all()
    assert (eta >= 0).all()


def test_equal_margins_weigh_alike():
    eta = np.empty(4)
    loss_and_weights(loss_code("adaboost"), np.full(4, -700.0), ALL_ALIKE, eta)
    assert_allclose(eta, 0.25)


def test_a_custom_loss_is_called_by_its_functions():
    margins, eta = np.array([0.0, 1.0]), np.empty(2)
    assert_allclose(loss_and_weights(loss_code(EXPONENTIAL), margins, ALL_ALIKE, eta), (1 + np.exp(-1)) / 2)
    assert_allclose(loss_and_weights(loss_code(STEEP), np.array([0.5]), ALL_ALIKE, eta), np.log(1 + np.exp(-1)))


def test_the_error_of_an_unknown_loss_names_the_known_ones():
    with pytest.raises(ValueError, match=r"one of \['adaboost', .*\] .* got 'hinge'"):
        loss_code("hinge")
