import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_moons

from dada.data import SyntheticUsers, moons, moons100

GENERATORS = (moons, moons100)


def turned_back(users, population):
    """Undo every user's rotation, so that all users share one cloud of points."""
    angle = np.repeat(users.angles, population.sizes)
    x, y = population.X[:, 0], population.X[:, 1]
    return np.column_stack((np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x))


@pytest.mark.parametrize("generator", GENERATORS)
def test_the_same_seed_gives_the_same_users_and_another_seed_others(generator):
    first, again = generator(4), generator(np.random.default_rng(4))
    assert_array_equal(first.train.X, again.train.X)
    assert_array_equal(first.test.y, again.test.y)
    assert not np.array_equal(first.angles, generator(5).angles)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("rule", ["run", "printed"])
def test_train_and_test_hold_the_same_users_in_the_same_order(generator, rule):
    users = generator(0, rule=rule, n_users=30, n_test=7, dimensions=5)
    assert_array_equal(users.train.user_ids, np.arange(30))
    assert_array_equal(users.test.user_ids, users.train.user_ids)
    assert_array_equal(users.test.sizes, np.full(30, 7))
    assert users.train.n_features == users.test.n_features == 5
    assert_array_equal(users.train.classes, [-1, 1])
    assert len(users.groups) == len(users.angles) == 30


@pytest.mark.parametrize(("generator", "most"), [(moons, 15), (moons100, 20)])
def test_training_sizes_cover_the_published_range(generator, most):
    sizes = generator(0, n_users=2000, n_test=1).train.sizes
    assert_array_equal(np.unique(sizes), np.arange(3, most + 1))


@pytest.mark.parametrize("generator", GENERATORS)
def test_what_is_learned_from_does_not_depend_on_the_number_of_test_rows(generator):
    assert_array_equal(generator(0, n_test=1).train.X, generator(0, n_test=50).train.X)


def test_moons_has_four_groups_of_the_published_sizes_and_rotations():
    users = moons(0)
    assert np.bincount(users.groups).tolist() == [10, 20, 30, 40]
    many = moons(0, n_users=10_000, n_test=1)
    assert np.bincount(many.groups).tolist() == [1000, 2000, 3000, 4000]
    degrees = np.rad2deg(many.angles)
    for group, centre in enumerate((45, 135, 225, 315)):
        inside = degrees[many.groups == group]
        assert inside.mean() == pytest.approx(centre, abs=0.6)
        assert inside.std() == pytest.approx(5, abs=0.4)


def test_points_are_those_of_scikit_learn_turned_about_the_origin():
    users = moons(0, n_users=50, n_test=40)
    points, clean = make_moons(40, noise=0, shuffle=False)
    rows = turned_back(users, users.test).reshape(50, 40, 2)
    for own, labels in zip(rows, users.test.y.reshape(50, 40), strict=True):
        distance = np.linalg.norm(own[:, None] - points[None], axis=2)
        # Noise of 0.1 is far smaller than the gap between the moons, so the nearest point identifies the moon.
        flipped = (np.where(clean[distance.argmin(axis=1)] == 1, 1, -1) != labels).mean()
        assert distance.min(axis=1).max() < 0.5
        assert flipped <= 0.25
    assert_allclose(rows.mean(axis=(0, 1)), points.mean(axis=0), atol=0.02)


def test_training_rows_are_balanced_between_the_moons():
    users = moons(0, n_users=200, n_test=1)
    for k, size in enumerate(users.train.sizes):
        assert (users.train.y[users.train.user_rows(k)] == -1).sum() == size // 2


def test_rows_of_a_user_come_in_random_order():
    users = moons(0, n_users=400, n_test=100)
    first = users.test.y[users.test.row_start[:-1]]
    assert 0.4 < (first == 1).mean() < 0.6


def disagreement(rule, which):
    """Share of labels that contradict the moon on which the point lies, judged where moons are well apart."""
    users = moons(0, rule=rule, n_users=400)
    population = getattr(users, which)
    x, y = turned_back(users, population).T
    outer = (np.abs(np.hypot(x, y) - 1) < 0.25) & (y > 0.8)
    inner = (np.abs(np.hypot(x - 1, y - 0.5) - 1) < 0.25) & (y < -0.3)
    return ((population.y[outer] == 1).sum() + (population.y[inner] == -1).sum()) / (outer.sum() + inner.sum())


def test_rule_run_flips_five_percent_of_the_test_labels_only():
    assert disagreement("run", "train") < 0.005
    assert disagreement("run", "test") == pytest.approx(0.05, abs=0.006)


def test_rule_printed_flips_five_percent_of_the_training_labels_only():
    assert disagreement("printed", "train") == pytest.approx(0.05, abs=0.015)
    assert disagreement("printed", "test") < 0.005


def test_further_features_are_zero_as_run_and_standard_normal_as_printed():
    assert not moons(0, rule="run").test.X[:, 2:].any()
    further = moons(0, rule="printed").test.X[:, 2:]
    assert further.mean() == pytest.approx(0, abs=0.02)
    assert further.std() == pytest.approx(1, abs=0.02)


def test_users_draw_their_points_independently():
    users = moons(0, n_users=2, n_test=100)
    noise = turned_back(users, users.test).reshape(2, 100, 2)
    ordered = np.sort(noise[..., 0], axis=1)
    assert not np.allclose(ordered[0], ordered[1], atol=1e-6)


def dense_oracle(users):
    weights = np.exp((np.cos(users.angles[:, None] - users.angles) - 1) / 0.1)
    np.fill_diagonal(weights, 0)
    return np.where(weights >= users.negligible, weights, 0)


@given(
    st.lists(st.floats(-10, 10), min_size=1, max_size=30),
    st.sampled_from([0.5, 1e-2, 1e-6, 1e-8]),
)
def test_the_oracle_equals_the_formula_over_all_pairs(angles, negligible):
    few = moons(0, n_users=1)
    users = SyntheticUsers(few.train, few.test, few.groups, np.array(angles), negligible)
    weights = users.oracle_weights()
    assert_array_equal(weights.toarray(), weights.toarray().T)
    assert not weights.diagonal().any()
    expected = dense_oracle(users)
    borderline = np.isclose(expected, negligible, rtol=1e-9) | np.isclose(weights.toarray(), negligible, rtol=1e-9)
    assert_allclose(np.where(borderline, 0, weights.toarray()), np.where(borderline, 0, expected), rtol=1e-9)


def test_opposite_users_are_one_pair():
    few = moons(0, n_users=1)
    users = SyntheticUsers(few.train, few.test, few.groups, np.array([0.0, np.pi / 2, np.pi]), 1e-30)
    assert users.oracle_weights().toarray().max() == pytest.approx(np.exp(-10))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_oracle_of_moons_joins_the_groups_and_nothing_else(seed):
    users = moons(seed)
    same_group = (users.groups[:, None] == users.groups) & ~np.eye(100, dtype=bool)
    assert_array_equal(users.oracle_weights().toarray() > 0, same_group)


def test_the_limit_chosen_for_moons100_leaves_about_the_published_number_of_neighbours():
    neighbours = [moons100(seed, n_test=1).oracle_weights().nnz / 100 for seed in range(20)]
    assert np.mean(neighbours) == pytest.approx(60.86, abs=1.5)


def test_bounded_oracles_keep_the_nearest_users_and_stay_symmetric():
    users = moons(0, n_users=3000, n_test=1)
    weights = users.oracle_weights(max_neighbours=10)
    assert (weights - weights.T).count_nonzero() == 0
    assert np.diff(weights.indptr).max() <= 10
    assert np.diff(weights.indptr).mean() > 9
    rank = np.argsort(np.argsort(users.angles))
    apart = np.abs(rank[weights.nonzero()[0]] - rank[weights.nonzero()[1]])
    assert np.minimum(apart, 3000 - apart).max() == 5


def test_an_oracle_too_large_for_memory_is_refused_with_the_way_out():
    users = moons(0, n_users=20_000, n_test=1)
    with pytest.raises(ValueError, match=r"oracle graph of 20000 users has \d+ edges, .* max_neighbours=20"):
        users.oracle_weights()
    assert users.oracle_weights(max_neighbours=20).nnz <= 400_000
    with pytest.raises(ValueError, match=r"max_neighbours must be at least 2 \(one on either side\), got 1"):
        users.oracle_weights(max_neighbours=1)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rule": "paper"}, "rule must be one of run, printed, got 'paper'"),
        ({"n_users": 0}, "n_users must be at least 1, got 0"),
        ({"n_test": 0}, "n_test must be at least 1, got 0"),
        ({"dimensions": 1}, "dimensions must be at least 2, got 1"),
    ],
)
def test_bad_parameters_are_refused(generator, parameters, message):
    with pytest.raises(ValueError, match=message):
        generator(0, **parameters)
