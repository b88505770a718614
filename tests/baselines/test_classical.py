"""Methods without a graph: what each learns from, and what it predicts."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from dada.baselines.boosting import accuracies
from dada.baselines.central import user_lightgbm
from dada.baselines.classical import (
    central_result,
    constant_majority,
    global_lin,
    hierarchical,
    hierarchical_models,
    home_ridge,
    joint_loss,
    linear_values,
    local_lin,
    trees_with_user,
)
from dada.data import Population


@pytest.fixture(scope="module")
def opposite():
    """Two users of opposite opinion and one who has seen one class only."""
    chance = np.random.default_rng(3)
    X = chance.normal(size=(90, 2))
    owner = np.repeat([0, 1, 2], 30)
    y = np.sign(X[:, 0] * np.where(owner == 1, -1, 1)).astype(int)
    y[owner == 2] = -1
    return Population.from_arrays(X, y, owner)


def test_local_models_see_only_their_own_rows(opposite):
    local = local_lin(opposite, opposite)
    assert local.train_accuracy.min() > 0.95
    assert local.models[0, 0] > 0 > local.models[1, 0]
    common = global_lin(opposite, opposite)
    assert common.train_accuracy[:2].mean() < 0.7
    assert common.models.shape == (1, 3)


def test_a_user_of_one_class_predicts_it_everywhere(opposite):
    local = local_lin(opposite, opposite)
    assert_array_equal(local.models[2], [0, 0, -1])
    far = Population.from_arrays([[50.0, 50.0], [-50.0, 0.0], [0, 0]], [-1, -1, -1], [0, 1, 2], classes=(-1, 1))
    assert linear_values(far, local.models)[2] == -1


def test_majority_counts_each_users_labels():
    users = Population.from_arrays(np.arange(7.0)[:, None], [1, 1, -1, -1, -1, 1, -1], [0, 0, 0, 1, 1, 2, 2])
    result = constant_majority(users, users)
    # User 2 is tied and takes the more frequent label of all rows, -1.
    assert_array_equal(np.sign(result.models[:, -1]), [1, -1, -1])
    assert_allclose(result.train_accuracy, [2 / 3, 1, 0.5])
    assert result.bits == 0


def test_gradient_of_the_hierarchical_loss(opposite):
    train = opposite
    X, y = np.column_stack([train.X, np.ones(train.n_rows)]), train.y.astype(float)
    weights = np.random.default_rng(1).normal(size=(train.n_users + 1, 3))
    _, gradient = joint_loss(X, y, train.row_start, weights)
    for at in [(0, 0), (0, 2), (2, 1)]:
        step = np.zeros_like(weights)
        step[at] = 1e-6
        slope = (joint_loss(X, y, train.row_start, weights + step)[0]
                 - joint_loss(X, y, train.row_start, weights - step)[0]) / 2e-6  # fmt: skip
        assert_allclose(gradient[at], slope, rtol=1e-5)


def test_hierarchical_lies_between_one_model_and_many(opposite):
    def models(C_own):
        return hierarchical_models(opposite, C=1.0, C_own=C_own)

    tied, free = models(1e-9), models(10.0)
    assert np.ptp(tied, axis=0).max() < 1e-6
    assert free[0, 0] > 0 > free[1, 0]
    common = global_lin(opposite, opposite).models[0]
    assert_allclose(tied[0], common, atol=1e-3)


def test_hierarchical_reaches_the_optimum_of_its_problem(opposite):
    train = opposite
    found = hierarchical_models(train, C=0.5, C_own=0.2)
    X, y = np.column_stack([train.X, np.ones(train.n_rows)]), train.y.astype(float)

    def objective(flat):
        weights = flat.reshape(4, 3)
        penalty = (weights[0, :-1] ** 2).sum() / 0.5 + (weights[1:] ** 2).sum() / 0.2
        return joint_loss(X, y, train.row_start, weights)[0] + 0.5 * penalty

    generic = minimize(
        objective, np.zeros(12), method="Powell", options={"maxiter": 20000, "ftol": 1e-12, "xtol": 1e-9}
    )
    weights = generic.x.reshape(4, 3)
    assert_allclose(found, weights[0] + weights[1:], atol=5e-3)


def test_hierarchical_data_leave_the_users(opposite):
    assert hierarchical(opposite, opposite).bits is None


def test_a_user_without_test_rows_has_no_accuracy():
    some = Population.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], [0, 1, 1])
    held_out = Population(some.X, some.y, np.array([0, 1, 1, 3]), np.arange(3), some.classes, some.feature_names)
    per_user, pooled = accuracies(held_out, np.array([-1.0, 1.0, -1.0]))
    assert_array_equal(per_user, [1.0, np.nan, 0.5])
    assert pooled == pytest.approx(2 / 3)


def test_penalties_must_be_positive(opposite):
    with pytest.raises(ValueError, match=r"must be > 0, got C=1.0, C_own=-1.0"):
        hierarchical(opposite, opposite, C_own=-1.0)
    with pytest.raises(ValueError, match="'C' parameter"):
        global_lin(opposite, opposite, C=-1.0)


@pytest.fixture
def opposed():
    """Two users with opposite labels of the same feature: only trees that know the user can separate them."""
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(80, 1)), np.repeat([0, 1], 40)
    y = np.where((X[:, 0] > 0) == (users == 0), 1, -1)
    return Population.from_arrays(X, y, users)


@pytest.mark.parametrize(
    "learn", [trees_with_user, partial(central_result, learn=user_lightgbm, trees=30, rate=0.3, leaves=4)]
)
def test_trees_that_know_the_user_separate_users(opposed, learn):
    assert learn(opposed, opposed).test_accuracy_pooled > 0.95


def test_one_message_per_user_has_half_a_matrix(opposed):
    # Two weights: three numbers of X'X and two of X'y.
    assert home_ridge(opposed, opposed).bits == 2 * 32 * (3 + 2)
