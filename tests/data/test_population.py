import datetime
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import sparse

from dada.data import Population

X = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
Y = np.array([0, 1, 1, 0])
USERS = np.array(["bob", "ann", "bob", "eve"])


def people(**changes):
    return Population.from_arrays(**{"X": X, "y": Y, "users": USERS, **changes})


@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=60))
def test_grouping_is_a_stable_permutation_of_the_rows(rows):
    users = np.array([user for user, _ in rows])
    labels = np.array([label for _, label in rows])
    original = np.arange(len(rows))
    population = Population.from_arrays(original[:, None], labels, users, classes=[False, True])
    order = population.X[:, 0].astype(int)
    assert_array_equal(np.sort(order), original)
    assert_array_equal(population.y, np.where(labels[order], 1, -1))
    assert population.row_start[0] == 0
    assert population.row_start[-1] == len(rows)
    for k, user in enumerate(population.user_ids):
        assert_array_equal(order[population.user_rows(k)], np.flatnonzero(users == user))


def test_shapes_types_and_sizes():
    population = people()
    assert population.X.dtype == np.float64
    assert population.X.flags.c_contiguous
    assert population.y.dtype == np.int8
    assert population.row_start.dtype == np.int64
    assert_array_equal(population.user_ids, ["ann", "bob", "eve"])
    assert_array_equal(population.row_start, [0, 1, 3, 4])
    assert_array_equal(population.sizes, [1, 2, 1])
    assert_array_equal(population.confidence, [0.5, 1.0, 0.5])
    assert (population.n_users, population.n_features, population.n_rows) == (3, 2, 4)
    assert population.feature_names == ("x0", "x1")


CONTAINERS = {
    "lists": lambda: (X.tolist(), Y.tolist(), USERS.tolist()),
    "fortran": lambda: (np.asfortranarray(X), Y, USERS),
    "float32": lambda: (X.astype(np.float32), Y, USERS),
    "objects": lambda: (X.astype(object), Y.astype(object), USERS.astype(object)),
    "sparse": lambda: (sparse.csr_array(X), Y, USERS),
    "pandas": lambda: (pd.DataFrame(X, index=[9, 8, 7, 6]), pd.Series(Y), pd.Series(USERS)),
    "pandas nullable": lambda: (
        pd.DataFrame(X).astype("Float64"),
        pd.Series(Y).astype("Int64"),
        pd.Series(USERS).astype("string"),
    ),
    "pandas categories": lambda: (pd.DataFrame(X), pd.Series(Y), pd.Series(USERS).astype("category")),
    "polars": lambda: (pl.DataFrame(X), pl.Series(Y), pl.Series(USERS)),
    "polars lazy": lambda: (pl.LazyFrame(X), pl.Series(Y), pl.Series(USERS, dtype=pl.Categorical)),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_gives_the_same_population(container):
    population, expected = Population.from_arrays(*CONTAINERS[container]()), people()
    assert_array_equal(population.X, expected.X)
    assert_array_equal(population.y, expected.y)
    assert_array_equal(population.row_start, expected.row_start)
    assert_array_equal(population.user_ids, expected.user_ids)
    assert population.user_ids.dtype.kind == "U"
    assert population.X.flags.c_contiguous


def test_feature_names_come_from_the_frame_unless_given():
    frame = pl.DataFrame({"age": [1.0, 2.0], "member": [True, False]})
    assert Population.from_arrays(frame, [0, 1], [1, 1]).feature_names == ("age", "member")
    renamed = Population.from_arrays(frame.to_pandas(), [0, 1], [1, 1], feature_names=["a", "b"])
    assert renamed.feature_names == ("a", "b")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["spam", "ham", "ham", "spam"], ["ham", "spam"]),
        ([True, False, False, True], [False, True]),
        ([1.5, -2.0, -2.0, 1.5], [-2.0, 1.5]),
    ],
)
def test_two_labels_of_any_type_become_minus_and_plus_one_in_sorted_order(labels, classes):
    population = people(y=labels)
    assert population.classes.tolist() == classes
    assert_array_equal(population.y, [-1, 1, -1, 1])


def test_several_classes_become_their_positions_and_numbers_stay():
    several = people(y=["b", "c", "a", "b"])
    assert_array_equal(several.y, [2, 1, 0, 1])
    assert (several.classes.tolist(), several.n_classes) == (["a", "b", "c"], 3)
    assert_array_equal(several.targets, ["c", "b", "a", "b"])
    numbers = people(y=[1, 2, 3, 4], task="numbers")
    assert_array_equal(numbers.y, [2.0, 1.0, 3.0, 4.0])
    assert (numbers.classes, numbers.n_classes) == (None, 0)


def test_users_owners_and_weights_follow_the_rows():
    population = people(sample_weight=[1, 2, 3, 4])
    assert_array_equal(population.users, ["ann", "bob", "bob", "eve"])
    assert_array_equal(population.owners, [0, 1, 1, 2])
    assert_array_equal(population.weights, [2, 1, 3, 4])
    assert_array_equal(population.take([0, 2]).weights, [2, 3])
    assert_array_equal(population.take([0, 2]).sizes, [1, 1, 0])
    assert_array_equal(population.select([1, 2]).weights, [1, 3, 4])
    assert_array_equal(people().joined(population).weights, [1, 2, 1, 1, 1, 3, 1, 4])


def test_classes_choose_the_sign_and_allow_rows_of_one_class():
    assert_array_equal(people(classes=[1, 0]).y, [-1, 1, -1, 1])
    assert_array_equal(people(y=[1, 1, 1, 1], classes=[0, 1]).y, [1, 1, 1, 1])


def test_a_user_with_one_class_only_is_accepted():
    assert_array_equal(people(y=[1, 1, 1, 0]).y, [1, 1, 1, -1])


def test_users_may_be_dates():
    days = [datetime.date(2024, 1, 2), datetime.date(2024, 1, 1)]
    population = Population.from_arrays([[1.0], [2.0]], [0, 1], days)
    assert population.user_ids.tolist() == days[::-1]


REFUSED = {
    "NaN": ({"X": [[0, 1], [0, np.nan], [0, 1], [0, 1]]}, "NaN at row 1, column 1 ('x1'); 1 values"),
    "infinity": ({"X": [[0, 1], [0, 1], [-np.inf, 1], [0, np.nan]]}, "infinity at row 2, column 0 ('x0'); 2 val"),
    "null": ({"X": pl.DataFrame({"a": [1, 2, 3, None]})}, "NaN at row 3, column 0 ('a')"),
    "pandas NA": ({"X": pd.DataFrame({"a": pd.array([1, 2, None, 4], "Int64")})}, "NaN at row 2, column 0 ('a')"),
    "lengths": ({"y": [0, 1, 1]}, "4 rows in X, 3 in y and 4 in users"),
    "user without rows": ({"user_ids": ["ann", "bob", "eve", "zoe"]}, "1 users in user_ids have no row: 'zoe'"),
    "row of another user": ({"user_ids": ["ann", "bob"]}, "1 users that are not in user_ids: 'eve'"),
    "one class": ({"y": [1, 1, 1, 1]}, "one class only, 1, in all 4 rows"),
    "text as numbers": ({"y": list("abcd"), "task": "numbers"}, "y must hold numbers, got an array of type"),
    "weights": ({"sample_weight": [1, 2, -1, 0]}, "sample_weight must be 4 numbers >= 0, one per row, not all zero"),
    "label outside": ({"classes": [0, 2]}, "labels that are not in classes (0, 2): 1"),
    "label of another type": ({"classes": ["0", "1"]}, "labels that are not in classes ('0', '1'): 0, 1"),
    "equal classes": ({"classes": [1, 1]}, "classes must be two or more different labels, got 1, 1"),
    "no rows": ({"X": np.empty((0, 2)), "y": [], "users": []}, "X is empty (shape (0, 2))"),
    "nothing": ({"X": [], "y": [], "users": []}, "X is empty (shape (0,))"),
    "no features": ({"X": pd.DataFrame(index=range(4))}, "X is empty (shape (4, 0))"),
    "one dimension": ({"X": [1.0, 2.0, 3.0, 4.0]}, "two-dimensional (rows, features), got shape (4,)"),
    "complex": ({"X": X + 1j}, "Complex data not supported"),
    "text columns": (
        {"X": pd.DataFrame({"a": range(4), "b": list("wxyz"), "c": pd.Categorical(list("wxyz"))})},
        "2 of 3 feature columns are not numeric: 'b', 'c'",
    ),
    "polars text": ({"X": pl.DataFrame({"a": range(4), "b": list("1234")})}, "not numeric: 'b'"),
    "object text": ({"X": np.array([[1, "a"]] * 4, dtype=object)}, "1 of 2 feature columns are not numeric: 'x1'"),
    "missing y": ({"y": [0, None, 1, 0]}, "y has 1 missing values, the first at row 1"),
    "NaN among strings": ({"y": ["a", "b", np.nan, "a"]}, "y has 1 missing values, the first at row 2"),
    "missing user": ({"users": pl.Series(["a", "b", None, None])}, "users has 2 missing values, the first at row 2"),
    "pandas missing user": ({"users": pd.Series([1, pd.NA, 2, 2], dtype="Int64")}, "users has 1 missing values"),
    "NA among objects": ({"users": np.array([1, pd.NA, 2, 2], dtype=object)}, "users has 1 missing values"),
    "missing date": ({"users": np.array(["2024-01-01", "NaT"] * 2, "M8[D]")}, "users has 2 missing values"),
    "infinite user": ({"users": [0.0, 1.0, np.inf, 2.0]}, "users must hold finite numbers or strings"),
    "names": ({"feature_names": ["a"]}, "one name per column of X (2), got 1"),
    "wide y": ({"y": np.zeros((4, 2))}, "y must be one-dimensional (one value per row), got shape (4, 2)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_a_message_that_says_where(case):
    changes, message = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        people(**changes)


def test_values_of_mixed_types_are_refused():
    with pytest.raises(TypeError, match=r"users mixes values that cannot be compared \(int, str\)"):
        people(users=[1, "a", 2, 3])


def test_large_finite_numbers_are_accepted():
    assert people(X=np.full((4, 2), 1e308)).n_rows == 4


def test_pooled_keeps_all_rows_for_one_user():
    pooled = people().pooled()
    assert_array_equal(pooled.row_start, [0, 4])
    assert_array_equal(pooled.X, people().X)
    assert pooled.n_users == 1


def test_select_keeps_the_rows_of_the_chosen_users():
    chosen = people().select([1, 2])
    assert_array_equal(chosen.user_ids, ["bob", "eve"])
    assert_array_equal(chosen.X, [[0, 1], [4, 5], [6, 7]])
    assert_array_equal(chosen.y, [-1, 1, -1])
    assert_array_equal(chosen.row_start, [0, 2, 3])


@pytest.mark.parametrize("positions", [[], [2, 1], [1, 1], [0, 3], [-1, 0], [[0, 1]], [True, False, True], [0.0]])
def test_select_refuses_positions_that_do_not_increase_within_range(positions):
    with pytest.raises(ValueError, match=r"increasing integers in 0\.\.2 \(n_users - 1\)"):
        people().select(positions)


@pytest.mark.parametrize("k", [-1, 3])
def test_user_rows_refuses_a_position_outside(k):
    with pytest.raises(IndexError, match=rf"k must be in 0\.\.2 \(n_users - 1\), got {k}"):
        people().user_rows(k)


def test_a_notebook_shows_users_rows_and_labels():
    X, users = [[1.0, 2.0]] * 4, ["ann", "ann", "ann", "bob"]
    of_classes = Population.from_arrays(X, ["<no>", "yes", "yes", "yes"], users, feature_names=["age", "a<b"])
    html = of_classes._repr_html_()
    for fact in ("1 to 3, median 2", "&lt;no&gt; (25%), yes (75%)", "a&lt;b"):
        assert fact in html
    of_numbers = Population.from_arrays(X, [1.5, 2.0, 3.0, 0.5], users, task="numbers")
    assert "numbers from 0.5 to 3, mean 1.75" in of_numbers._repr_html_()
