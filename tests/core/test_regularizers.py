import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dada.core.graph_steps import (
    DegreeFunction,
    DegreeTarget,
    LogDegree,
    best_weight,
    degree_curvature,
    degree_slope,
    degree_value,
    weight_slope,
    weight_value,
)
from tests.helpers.problems import INVERSE_DEGREE

REGULARIZERS = {
    "log": LogDegree(0.3, 0.2),
    "steep-log": LogDegree(1e-3, 1e-6),
    "target": DegreeTarget(2.0, 0.4, 0.1),
    "own": INVERSE_DEGREE,
}
each_regularizer = pytest.mark.parametrize("regularizer", REGULARIZERS.values(), ids=REGULARIZERS)


@each_regularizer
@pytest.mark.parametrize("degree", [1e-3, 0.5, 7.0])
def test_derivatives_are_those_of_the_value(regularizer, degree):
    reg, step = regularizer.compiled, 1e-6 * degree
    slope = (degree_value(reg, degree + step) - degree_value(reg, degree - step)) / (2 * step)
    curvature = (degree_slope(reg, degree + step) - degree_slope(reg, degree - step)) / (2 * step)
    assert_allclose(degree_slope(reg, degree), slope, rtol=1e-6)
    assert_allclose(degree_curvature(reg, degree), curvature, rtol=1e-6)
    slope = (weight_value(reg, degree + step) - weight_value(reg, degree - step)) / (2 * step)
    assert_allclose(weight_slope(reg, degree), slope, rtol=1e-6)


@each_regularizer
@given(cost=st.floats(-1e3, 1e3), rest=st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 50.0, 1e6]))
def test_the_best_weight_is_where_the_slope_changes_sign(regularizer, cost, rest):
    reg = regularizer.compiled

    def slope(w):
        return cost + weight_slope(reg, w) + degree_slope(reg, rest + w)

    w = best_weight(reg, cost, rest)
    assert w >= 0.0
    # The slope itself is known up to the rounding of its largest term.
    rounding = 1e-13 * (abs(cost) + weight_slope(reg, w) + abs(degree_slope(reg, rest)))
    if w == 0.0:
        assert slope(0.0) >= -rounding
    else:
        assert slope(w * (1 - 1e-9) - 2e-14) <= rounding
        assert slope(w * (1 + 1e-9) + 2e-14) >= -rounding


def test_a_small_weight_at_a_large_degree_keeps_all_its_digits():
    reg = LogDegree(lam=0.5, delta=1.0).compiled
    # cost - 1/(1e8 + 1) is -1e-9 to first order, and the parabola of the weight is almost a line.
    cost, rest = 1 / (1e8 + 1.0) - 1e-9, 1e8
    assert_allclose(best_weight(reg, cost, rest), 1e-9, rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_parameters_that_make_no_problem_are_refused_by_name(value):
    with pytest.raises(ValueError, match=f"lam={value}"):
        LogDegree(lam=value)
    with pytest.raises(ValueError, match=f"delta={value}"):
        LogDegree(delta=value)
    with pytest.raises(ValueError, match=f"target={value}"):
        DegreeTarget(target=value)
    with pytest.raises(ValueError, match=f"lam must be > 0 and finite, got {value}"):
        DegreeFunction(np.exp, np.exp, np.exp, lam=value)


def test_an_l1_weight_may_be_zero_but_not_negative():
    assert DegreeTarget(l1=0.0).l1 == 0.0
    with pytest.raises(ValueError, match=r"l1=-0\.5"):
        DegreeTarget(l1=-0.5)
