"""The numbers that one user sends of its rows: rounded histograms, votes, sums in leaves."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dada.core.boosting import (
    MOST_OF_HISTOGRAM,
    add_histogram,
    add_leaf_sums,
    add_own_leaves,
    favourite,
    leaves_of,
    unit_of,
)

SIZES = st.lists(
    st.floats(-1e6, 1e6, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-6), min_size=1, max_size=8
)


@given(SIZES)
def test_a_unit_is_the_least_power_of_two_that_fits(numbers):
    histogram = np.array(numbers)
    unit = unit_of(histogram, 0, len(numbers) - 1, MOST_OF_HISTOGRAM)
    largest = np.abs(histogram).max()
    if largest == 0:
        assert unit == 0
    else:
        assert np.frexp(unit)[0] == 0.5
        assert largest <= MOST_OF_HISTOGRAM * unit
        assert largest > MOST_OF_HISTOGRAM * unit / 2


@given(SIZES)
def test_a_rounded_histogram_is_bytes_times_its_own_unit(numbers):
    """So the receiver of bytes and unit has the very numbers that a fit computes with."""
    pull, bins = np.array(numbers), np.arange(len(numbers), dtype=np.uint8)[:, None]
    G, W, room = np.zeros((3, len(numbers))), np.zeros(len(numbers)), np.zeros(len(numbers))
    add_histogram(bins, np.arange(len(numbers)), 0, pull, np.abs(pull), G[1], room, G[0], W)
    unit = unit_of(pull, 0, len(numbers) - 1, MOST_OF_HISTOGRAM)
    assert unit_of(G[0], 0, len(numbers) - 1, MOST_OF_HISTOGRAM) == unit
    if unit:
        units = G[0] / unit
        assert_array_equal(units, np.rint(units))
        assert np.abs(units).max() <= MOST_OF_HISTOGRAM
        assert np.abs(G[0] - pull).max() <= unit / 2


def test_rows_without_a_gain_vote_for_nothing():
    room, rows = np.zeros((2, 4)), np.arange(6)
    bins = np.array([[0, 0], [1, 0], [2, 1], [0, 2], [1, 3], [2, 3]], np.uint8)
    weight = np.ones(6)
    for pull, expected in ((np.ones(6), -1), (np.where(bins[:, 1] > 1, 1.0, -1.0), 1)):
        assert favourite(bins, rows, pull, weight, np.array([0, 1]), 0.1, room[0], room[1]) == expected
    assert favourite(bins, rows[:1], np.ones(6), weight, np.array([0, 1]), 0.1, room[0], room[1]) == -1


def test_values_of_leaves_are_the_pool_s_without_rows_and_follow_rows_where_they_are():
    bins, feature, cut = np.array([[0], [0], [2]], np.uint8), np.zeros(1, np.int64), np.ones(1, np.int64)
    pull, weight = np.array([[1.0], [1.0], [0.0]]), np.ones((3, 1))
    shared, margins = np.array([[0.5], [-0.5]]), np.zeros((3, 1))
    G, W, values = np.zeros((2, 1)), np.zeros((2, 1)), np.zeros((2, 1))
    reached = leaves_of(bins, feature, cut)
    assert_array_equal(reached, [0, 0, 1])
    add_leaf_sums(reached, pull, weight, G, W)
    assert_array_equal(np.column_stack([G, W]), [[2, 2], [0, 1]])
    add_own_leaves(reached[:0], pull[:0], weight[:0], shared, 1.0, 1.0, G, W, values, margins[:0])
    assert_array_equal(values, shared)
    add_own_leaves(reached, pull, weight, shared, 2.0, 1.0, G, W, values, margins)
    assert_array_equal(values, [[0.75], [-0.5 + 0.5 / 3]])
    assert_array_equal(margins, values[reached])
