"""Rivals that have all rows in one place: what each can and cannot learn."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dada.baselines.central import home_ridge, home_ridge_weights, labels_of, user_constant, user_lightgbm, user_linear
from dada.baselines.classical import hierarchical_models
from dada.data import Population


@pytest.fixture(scope="module")
def rows():
    """Three users whose labels depend on the same features in different ways."""
    rng = np.random.default_rng(0)
    owners = np.repeat([0, 1, 2], [20, 30, 25])
    X = rng.normal(size=(75, 4))
    weights = rng.normal(size=(3, 4))
    return X, np.einsum("ij,ij->i", X, weights[owners]) + owners + 0.1 * rng.normal(size=75), owners


def test_mixed_effects_equal_the_hierarchical_model(rows):
    X, values, owners = rows
    labels = (values > 1).astype(int)
    predict = user_linear(X, labels, owners, C=2.0, C_own=0.5, slopes=True)
    people = Population.from_arrays(X, 2 * labels - 1, owners)
    models = hierarchical_models(people, C=2.0, C_own=0.5)
    expected = np.einsum("ij,ij->i", X, models[owners, :-1]) + models[owners, -1]
    assert_allclose(predict(X, owners), expected, atol=0.02)


def test_user_intercepts_shift_a_common_slope(rows):
    X, values, owners = rows
    predict = user_linear(X, values, owners, C=1.0, C_own=1e4)
    moved = [predict(X, np.full(75, k)) - predict(X, np.zeros(75, int)) for k in (1, 2)]
    assert_allclose(np.ptp(moved, axis=1), 0, atol=1e-6)
    assert_allclose(np.mean(moved, axis=1), [1, 2], atol=1.0)


@pytest.mark.parametrize("C_own", [1e-9, 1.0])
def test_both_systems_of_the_home_ridge_agree(rows, C_own):
    X, values, owners = rows
    wide = np.column_stack([X, np.zeros((75, 40))])
    narrow = home_ridge_weights(X, values[:, None], owners, C=1.0, C_own=C_own)
    found = home_ridge_weights(wide, values[:, None], owners, C=1.0, C_own=C_own)
    assert_allclose(found[:, [0, 1, 2, 3, -1]], narrow, atol=1e-8)
    if C_own < 1e-6:
        assert_allclose(np.ptp(narrow, axis=0), 0, atol=1e-6)


@pytest.mark.parametrize(
    "learn",
    [
        partial(home_ridge, C=1.0, C_own=100.0),
        partial(user_linear, C_own=100.0, slopes=True),
        partial(user_linear, C=1.0, C_own=100.0, slopes=True),
        partial(user_lightgbm, trees=30, rate=0.1, leaves=4),
    ],
)
def test_three_classes_are_separated(learn):
    rng = np.random.default_rng(0)
    owners, X = np.repeat([0, 1], 90), rng.normal(size=(180, 2))
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    y = np.where(owners == 0, y, 2 - y)
    assert np.mean(labels_of(learn(X, y, owners)(X, owners), y) == y) > 0.75


def test_without_common_weights_every_user_learns_alone(rows):
    X, values, owners = rows
    predict = user_linear(X, values, owners, C_own=2.0, slopes=True)
    other = np.where(owners == 2, -values, values)
    moved = user_linear(X, other, owners, C_own=2.0, slopes=True)
    first = owners == 0
    # Only the common intercept connects users.
    assert_allclose(np.ptp((predict(X, owners) - moved(X, owners))[first]), 0, atol=0.2)
    assert np.ptp((predict(X, owners) - moved(X, owners))[owners == 2]) > 1


def test_a_model_without_weights_is_refused(rows):
    with pytest.raises(ValueError, match="must be > 0, got C=None, C_own=0"):
        user_linear(*rows)


def test_a_class_without_rows_keeps_its_number():
    X, owners = np.array([[0.0], [1.0], [0.1], [0.9]]), np.array([0, 0, 1, 1])
    y = np.array([0, 2, 0, 2])
    assert labels_of(user_linear(X, y, owners, C=100.0)(X, owners), y).tolist() == [0, 2, 0, 2]


def test_constants_of_users_are_means_of_numbers():
    y, owners = np.array([1.0, 2.0, 6.0]), np.array([0, 0, 1])
    assert user_constant(y[:, None], y, owners)(y[:, None], owners).tolist() == [1.5, 1.5, 6.0]
