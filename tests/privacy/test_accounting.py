"""The accountant is exact, and agrees with an independent one."""

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from dada.privacy.accounting import (
    Privacy,
    PrivacyCost,
    gaussian_delta,
    gaussian_mu,
    grid_delta,
    total,
)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 16.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_calibration_spends_the_budget_and_not_more(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_delta(mu * (1 + 1e-6), epsilon) > delta


@pytest.mark.parametrize("ratios", [(0.3,), (0.5, 0.5, 0.2)])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_dp_accounting_agrees(ratios, epsilon):
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=1e-4)
    for ratio in ratios:
        accountant.compose(dp.GaussianDpEvent(1 / ratio))
    ours = total(PrivacyCost(mu=ratio) for ratio in ratios).delta_at(epsilon)
    theirs = accountant.get_delta(epsilon)
    assert ours == pytest.approx(theirs, rel=2e-3)
    # Theirs is an upper bound.
    assert ours <= theirs * (1 + 1e-9)


def test_pure_costs_add_and_leave_less_for_gaussian_ones():
    assert PrivacyCost(epsilon=1.0).delta_at(1.0) == 0.0
    assert (PrivacyCost(epsilon=0.6) + PrivacyCost(epsilon=0.6)).delta_at(1.0) == 1.0
    both = PrivacyCost(mu=0.268, epsilon=0.5)
    assert both.delta_at(1.5) == gaussian_delta(0.268, 1.0)


@pytest.mark.parametrize("steps", [2, 5, 30])
def test_the_grid_costs_no_more_than_it_is_charged(steps):
    """Total variation between a discrete Gaussian and a rounded continuous one."""
    from scipy.special import ndtr

    x = np.arange(-12 * steps, 12 * steps + 1)
    discrete = np.exp(-(x**2) / (2 * steps**2))
    discrete /= discrete.sum()
    rounded = ndtr((x + 0.5) / steps) - ndtr((x - 0.5) / steps)
    apart = abs(discrete - rounded).sum() / 2
    assert 0 < apart <= grid_delta(0.0, [steps], [1]) / 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a finite number > 0, got 0.0"),
        ({"delta": 1.0}, "delta must be between 0 and 1"),
        ({"protects": "users"}, "protects must be one of"),
        ({"ranges": None}, "ranges must be given to protect rows"),
        ({"norm": -1.0}, "norm must be a finite number > 0"),
        ({"noise": "none"}, "noise must be one of"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Privacy(**({"epsilon": 1.0, "ranges": (0, 1)} | changes))
