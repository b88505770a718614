"""Trees as base predictors: what they predict, how they are named, stored and described."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dada.data import Constant, Trees, Union, predictors_from_arrays
from dada.data.predictors.thresholds import UNSPLIT, FittedTrees


def two_trees(owner=(0, 1)):
    """A tree of two features, and one that splits at its root only."""
    return FittedTrees(
        np.array([[0, 1, 1], [1, 0, 0]], np.int32),
        np.array([[0.0, 1.0, 2.0], [0.5, UNSPLIT, UNSPLIT]]),
        np.array([[-127, 0, 64, 127], [-127, 0, 127, 0]]) / 127,
        np.array(owner, np.int32),
        n_features=2,
        coupling=np.ones(2),
    )


def test_rows_go_left_up_to_the_threshold():
    rows = np.array([[0.0, 1.0], [0.0, 1.5], [0.1, 2.0], [0.1, 2.1]])
    assert_array_equal((two_trees().predict(rows) * 127).round(), [[-127, 127], [0, 127], [64, 127], [127, 127]])


def test_a_tree_is_told_in_words_without_the_nodes_that_do_not_split():
    first, second = (two_trees().describe(j, ["age", "size"]) for j in range(2))
    assert first.endswith(
        ": -1.00 if age <= 0 and size <= 1; +0.00 if age <= 0 and size > 1; "
        "+0.50 if age > 0 and size <= 2; +1.00 if age > 0 and size > 2"
    )
    assert second.endswith(": -1.00 if size <= 0.5; +1.00 if size > 0.5")


def test_equal_trees_have_equal_names_whoever_grew_them():
    trees = two_trees()
    assert trees.names == two_trees(owner=(7, 8)).names
    assert trees.names[0] != trees.names[1]
    assert trees.joined(two_trees(owner=(7, 8))).distinct().owner.tolist() == [0, 1]
    assert trees.without(trees.take(np.array([0]))).names == trees.names[1:]


def test_stored_trees_come_back_bit_for_bit():
    trees, rows = two_trees(), np.random.default_rng(0).normal(size=(20, 2))
    again = predictors_from_arrays(*trees.to_arrays())
    assert_array_equal(again.predict(rows), trees.predict(rows))
    assert (again.names, again.owner.tolist()) == (trees.names, [0, 1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"depth": 99}, "depth of 1 to 6, got 2 and 99"),
        ({"feature": np.array([0, 1, 2, 1, 0, 0])}, "features 0..1"),
        ({"threshold": np.array([0.0, 1.0, np.nan, 0.5, 0.0, 0.0])}, "'threshold' must hold"),
        ({"leaf": np.full(8, 128)}, "leaves of at most 127"),
        ({"leaf": np.zeros(7)}, "'leaf' must hold"),
    ],
)
def test_damaged_trees_are_refused(damage, message):
    spec, arrays = two_trees().to_arrays()
    with pytest.raises(ValueError, match=message):
        predictors_from_arrays(
            {**spec, **{n: v for n, v in damage.items() if n in spec}},
            {**arrays, **{n: v for n, v in damage.items() if n in arrays}},
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"depth": 7}, "depth must be at least 1 and at most 6, got 7"), ({"per_user": 0}, "per_user must be at least 1"),
     ({"rounds": -1}, "rounds must be >= 0"), ({"cuts": 256}, "at most 255"), ({"coupling": -1.0}, "coupling must be")],
)  # fmt: skip
def test_settings_are_checked(wrong, message):
    with pytest.raises(ValueError, match=message):
        Trees(**wrong)


def test_rows_without_labels_grow_no_trees():
    with pytest.raises(TypeError, match="trees need labels and users"):
        Union(Trees(), Constant()).fit(np.zeros((2, 1)))
