"""The default steps need as few updates as the documentation says."""

import numpy as np
import pytest

from benchmarks.convergence import DELTAS, first_below, graph_wakeups, model_updates, moons_problem, smallest


def test_pairwise_comes_within_a_hundredth_in_300_updates_per_user():
    problem, oracle = moons_problem(seed=1)
    reached = model_updates(problem, oracle, seed=1, rules=("pairwise",), most=300)
    assert reached["pairwise"]["0.01"] is not None


@pytest.mark.parametrize("delta", DELTAS)
def test_exact_comes_within_a_thousandth_in_120_wakeups_per_user_whatever_delta(delta):
    problem, _ = moons_problem(seed=1, delta=delta)
    assert graph_wakeups(problem, seed=1, steps=("exact",), most=120)["exact"] is not None


def test_first_below_is_the_first_or_nothing():
    assert first_below(np.array([1.0, 0.5, 0.09, 0.2]), 0.1) == 2
    assert first_below(np.array([1.0, 0.5]), 0.1) is None


@pytest.mark.parametrize("wanted", [1, 7, 10])
def test_smallest_finds_where_something_begins_to_hold(wanted):
    assert smallest(lambda value: value >= wanted, 10) == wanted


def test_smallest_is_nothing_where_nothing_holds():
    assert smallest(lambda value: False, 10) is None
