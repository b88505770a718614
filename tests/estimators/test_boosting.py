"""Boosted trees with personal leaves: what they learn, what they cost, and that they are chosen where they pay."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dada import Constant, DadaClassifier, DadaRegressor, Linear, Privacy, Union, load_model, save_model
from dada.core.plan import Status
from dada.data import BoostedTrees, Population, RandomFourier, moons, predictors_from_arrays
from dada.data.predictors.thresholds import UNSPLIT, FittedLeaves
from dada.fitting import boosting
from dada.fitting.boosting import Grower, add_leaves, boost, boosted_values, grow_by_votes, leaves_of

FEW = Union(Linear(clip=2.0), Constant(coupling=0.1), BoostedTrees(rounds=30, rate=0.3, share=0.75))


def squares(n_users=6, n_rows=50, kind="classes", seed=0):
    """Labels inside and outside of a square, with a shift of each user."""
    rng = np.random.default_rng(seed)
    X, users = rng.uniform(-1, 1, (n_users * n_rows, 3)), np.repeat(np.arange(n_users), n_rows)
    score = abs(X[:, 0]) + abs(X[:, 1]) - 1 + 0.1 * (users - n_users / 2) / n_users
    return X, {"classes": score > 0, "three": np.digitize(score, [-0.2, 0.2]), "numbers": score}[kind], users


def fitted(X, y, users, predictors=FEW, **settings):
    kind = DadaRegressor if y.dtype.kind == "f" else DadaClassifier
    return kind(predictors, **{"graph": "everyone", "n_updates": 20, "random_state": 0, **settings}).fit(
        X, y, users=users
    )


def people_of(X, y, users):
    return Population.from_arrays(X, y, users)


@pytest.mark.parametrize("kind", ["classes", "three", "numbers"])
def test_more_than_sums_is_learned(kind):
    X, y, users = squares(kind=kind)
    linear, trees = (fitted(X, y, users, predictors) for predictors in (Union(*FEW.recipes[:2]), FEW))
    assert trees.score(X, y, users=users) > linear.score(X, y, users=users) + 0.2


def test_trees_are_chosen_where_lines_do_not_fit_and_not_where_they_do():
    X, y, users = squares(n_users=10)
    # Waves would do, but they are left out where there are many features.
    X = np.column_stack([X, np.random.default_rng(1).uniform(-1, 1, (len(X), 20))])
    chosen = DadaClassifier(random_state=0).fit(X, y, users=users)
    assert any("boosted" in choice for choice in chosen.settings_["held_out"])
    assert chosen.score(X, y, users=users) > 0.9
    simple = DadaRegressor(random_state=0).fit(X, X[:, 0] - X[:, 1], users=users)
    assert not any(isinstance(part, BoostedTrees) for part in simple.settings_["predictors"].recipes)


def test_trees_come_when_asked_for_by_name():
    X, y, users = squares(n_users=4, n_rows=20)
    model = fitted(X, y, users, "boosted")
    assert isinstance(model.predictors_.parts[-1], FittedLeaves)
    assert isinstance(model.settings_["predictors"].recipes[-1], BoostedTrees)
    assert model.calibration_ is not None


@given(st.integers(0, 1000), st.integers(1, 3), st.sampled_from([0.5, 3.0, np.inf]))
def test_values_of_leaves_lie_between_those_of_the_pool_and_of_own_rows(seed, n_outputs, own):
    rng = np.random.default_rng(seed)
    starts, n_leaves = np.array([0, 4, 4, 9]), 2
    bins, feature, cut = rng.integers(0, 3, (9, 1)).astype(np.uint8), np.zeros(1, np.int64), np.ones(1, np.int64)
    pull, weight = rng.normal(size=(9, n_outputs)), rng.uniform(0.1, 1, (9, n_outputs))
    shared, values = rng.normal(size=(n_leaves, n_outputs)), np.empty((3, n_leaves, n_outputs))
    margins = np.zeros((9, n_outputs))
    add_leaves(bins, starts, pull, weight, feature, cut, shared, own, 0.5, values, margins)
    reached = leaves_of(bins, feature, cut)
    assert_array_equal(reached, bins[:, 0] > 1)
    for k in range(3):
        rows = np.arange(starts[k], starts[k + 1])
        for leaf in range(n_leaves):
            here = rows[reached[rows] == leaf]
            G, W = pull[here].sum(axis=0), weight[here].sum(axis=0)
            assert_allclose(values[k, leaf], 0.5 * (shared[leaf] + (G - shared[leaf] * W) / (W + own)), atol=1e-12)
            assert_allclose(margins[here], np.broadcast_to(values[k, leaf], (here.size, n_outputs)))


@given(st.integers(0, 10_000))
def test_a_split_is_the_best_of_all_cuts(seed):
    """With one feature and residuals that need no rounding, by brute force."""
    rng = np.random.default_rng(seed)
    bins = rng.integers(0, 6, (20, 1)).astype(np.uint8)
    pull, weight, starts = rng.integers(-1, 2, 20).astype(float), np.ones(20), np.append(np.arange(0, 20, 3), 20)
    feature, cut = np.zeros(1, np.int64), np.full(1, -1)
    grow_by_votes(bins, starts, pull, weight, np.zeros((1, 1), np.int64), 2, 0.5, np.inf, feature, cut)

    def gain(left):
        parts = [(pull[rows].sum(), weight[rows].sum()) for rows in (left, ~left)]
        return sum(g * g / (w + 0.5) for g, w in parts) - pull.sum() ** 2 / (20 + 0.5)

    possible = {c: gain(bins[:, 0] <= c) for c in range(bins.max()) if (bins <= c).any()}
    best = max(possible.values(), default=0.0)
    if best <= 1e-9:
        assert cut[0] == -1
    else:
        assert possible[cut[0]] == pytest.approx(best)


def test_a_split_serves_users_of_opposite_tastes():
    """All users together have nothing to gain, each by itself has."""
    bins = np.tile(np.array([[0], [1]], np.uint8), (10, 1))
    pull, starts = np.where(np.arange(20) < 10, 1.0, -1.0) * np.where(bins[:, 0] > 0, 1.0, -1.0), np.array([0, 10, 20])
    for own, expected in ((1.0, 0), (np.inf, -1)):
        feature, cut = np.zeros(1, np.int64), np.full(1, -1)
        grow_by_votes(bins, starts, pull, np.ones(20), np.zeros((1, 1), np.int64), 2, 0.1, own, feature, cut)
        assert cut[0] == expected


def test_users_vote_for_the_feature_that_helps_them():
    rng = np.random.default_rng(0)
    bins = rng.integers(0, 8, (60, 5)).astype(np.uint8)
    pull = np.where(bins[:, 3] > 3, 1.0, -1.0)
    feature, cut = np.zeros(1, np.int64), np.full(1, -1)
    tested = np.array([[4, 3, 1, 0, 2]])
    grow_by_votes(bins, np.arange(0, 61, 10), pull, np.ones(60), tested, 1, 0.1, np.inf, feature, cut)
    assert (feature[0], cut[0]) == (3, 3)


def test_all_users_have_the_same_leaves_if_own_rows_do_not_count():
    people = people_of(*squares())
    same = boost(BoostedTrees(rounds=5, own=np.inf), people, np.random.default_rng(0)).models
    assert_array_equal(same, np.broadcast_to(same[0], same.shape))
    own = boost(BoostedTrees(rounds=5, own=0.5), people, np.random.default_rng(0)).models
    assert not np.array_equal(own[0], own[-1])


@pytest.mark.parametrize("kind", ["classes", "three", "numbers"])
def test_models_of_leaves_give_the_decision_values_of_the_run(kind):
    people, recipe = people_of(*squares(kind=kind)), BoostedTrees(rounds=25)
    found, grower = boost(recipe, people, np.random.default_rng(3)), Grower(recipe, people, np.random.default_rng(3))
    for _ in range(25):
        grower.grow()
    predictions, n = found.leaves.predict(people.X), found.leaves.n
    for c in range(grower.n_outputs):
        own = found.models[people.owners, c * n : (c + 1) * n]
        assert_allclose((predictions * own).sum(axis=1), grower.values[:, c], atol=1e-5)
    ((rounds, values),) = boosted_values(recipe, people, people, np.random.default_rng(3))
    assert rounds == 25
    assert_allclose(values.reshape(grower.values.shape), grower.values, atol=1e-12)


def test_decision_values_are_the_weighted_mean_of_both_parts():
    X, y, users = squares()
    both, without = fitted(X, y, users), fitted(X, y, users, Union(*FEW.recipes[:2]))
    trees = both.predictors_.parts[-1]
    values = (trees.predict(X) * both.models_[:, -trees.n :][users]).sum(axis=1)
    expected = 0.25 * without.decision_function(X, users=users) + values
    assert_allclose(both.decision_function(X, users=users), expected, atol=1e-5)


def test_the_ledger_has_the_bits_of_trees():
    X, y, users = squares()
    both, without = fitted(X, y, users), fitted(X, y, users, Union(*FEW.recipes[:2]))
    sent = both.bits_ - without.bits_
    # A tree for five others takes three tests of seven bits and four bytes at least; histograms come on top.
    assert sent > 30 * 5 * (3 * 7 + 4 * 8)
    assert sent == boost(FEW.recipes[-1], people_of(X, y, users), np.random.default_rng(0)).bits


def test_the_same_seed_grows_the_same_trees():
    X, y, users = squares()
    one, two = (fitted(X, y, users) for _ in range(2))
    assert_array_equal(one.models_, two.models_)
    assert_array_equal(one.predictors_.parts[-1].threshold, two.predictors_.parts[-1].threshold)


def test_users_alone_have_no_trees_of_others():
    X, y, users = squares()
    for settings in ({"graph": "none"}, {"mu": 0.0}):
        assert not any(isinstance(part, FittedLeaves) for part in fitted(X, y, users, **settings).predictors_.parts)


def test_a_model_with_leaves_is_stored_and_explained(tmp_path):
    X, y, users = squares()
    model = fitted(X, y, users)
    save_model(model, tmp_path / "leaves.dada")
    again = load_model(tmp_path / "leaves.dada")
    assert_array_equal(again.decision_function(X, users=users), model.decision_function(X, users=users))
    assert again.predictors == model.predictors
    shares = model.feature_importances_
    assert_array_equal(again.feature_importances_, shares)
    assert shares[:2].min() > 2 * shares[2]


def test_newcomers_and_new_rows_use_the_same_leaves():
    X, y, users = squares()
    model = fitted(X, y, users)
    before = model.score(X, y, users=users)
    model.add_user(X[:20], y[:20], 99)
    assert np.mean(model.predict(X[:20], users=99) == y[:20]) > 0.8
    model.partial_fit(X[:5], y[:5], users=users[:5])
    assert model.score(X, y, users=users) > before - 0.1


def test_ctrl_c_leaves_the_models_without_trees(monkeypatch):
    from contextlib import contextmanager

    @contextmanager
    def at_once():
        yield lambda: True

    monkeypatch.setattr(boosting, "ctrl_c", at_once)
    X, y, users = squares()
    with pytest.warns(UserWarning, match="interrupted"):
        model = fitted(X, y, users)
    assert model.status_ is Status.INTERRUPTED
    assert len(model.predictors_.parts) == 2


def test_leaves_are_described_and_survive_storage():
    leaves = FittedLeaves.of(np.array([[1, 0, 0]]), np.array([[0.5, UNSPLIT, 2.0]]), n_features=2)
    assert [leaves.describe(j, ["a", "b"]) for j in (0, 2, 3)] == [
        "b <= 0.5",
        "b > 0.5 and a <= 2",
        "b > 0.5 and a > 2",
    ]
    rows = np.array([[0.0, 0.0], [3.0, 1.0]])
    assert_array_equal(leaves.predict(rows), [[1, 0, 0, 0], [0, 0, 0, 1]])
    assert_array_equal(predictors_from_arrays(*leaves.to_arrays()).predict(rows), leaves.predict(rows))
    assert_array_equal(leaves.take(np.array([3])).predict(rows), [[0], [1]])
    spec, arrays = leaves.to_arrays()
    with pytest.raises(ValueError, match="the file is damaged"):
        predictors_from_arrays(spec, {**arrays, "place": np.full(4, 4)})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"depth": 7}, "depth must be at least 1 and at most 6, got 7"),
        ({"own": 0.0}, "own must be > 0"),
        ({"spread": 0.5}, "spread must be at least 1 and finite, got 0.5"),
        ({"rate": 1.5}, "rate must be > 0 and <= 1, got 1.5"),
        ({"share": 1.0}, "share must be > 0 and < 1, got 1.0"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        BoostedTrees(**wrong)


def test_trees_stand_beside_other_predictors_and_not_with_privacy():
    X, y, users = squares(n_users=3, n_rows=10)
    with pytest.raises(ValueError, match="go once beside other base predictors"):
        fitted(X, y, users, BoostedTrees())
    with pytest.raises(ValueError, match="trees reveal rows"):
        fitted(X, y, users, FEW, privacy=Privacy(epsilon=1.0, protects="labels"))


def test_trees_take_turns_in_how_much_weight_own_rows_have():
    """With a spread the trees are those of a network whose weight changes from tree to tree."""
    people, recipe = people_of(*squares()), BoostedTrees(rounds=7, own=2.0, spread=3.0)
    turns = Grower(recipe, people, np.random.default_rng(0))
    by_hand = Grower(replace(recipe, spread=1.0), people, np.random.default_rng(0))
    for number in range(7):
        by_hand.recipe = replace(recipe, own=2.0 * 3.0 ** (number % 5 - 2), spread=1.0)
        assert_array_equal(turns.grow(), by_hand.grow())
    same = boost(BoostedTrees(rounds=6, own=np.inf, spread=3.0), people, np.random.default_rng(0)).models
    assert (same == same[0]).all()


def test_thresholds_that_are_equal_change_no_tree(monkeypatch):
    """Features of few values repeat thresholds: with each once, trees and models are the same."""
    X, y, users = squares()
    people = people_of(np.round(X, 0), y, users)
    recipe = BoostedTrees(rounds=10)
    once = boost(recipe, people, np.random.default_rng(0))
    monkeypatch.setattr("dada.fitting.boosting.distinct_first", lambda cuts: cuts)
    again = boost(recipe, people, np.random.default_rng(0))
    assert_array_equal(once.models, again.models)
    assert_array_equal(once.leaves.threshold, again.leaves.threshold)


def test_waves_are_tried_where_boosted_trees_find_interactions_that_the_test_missed():
    """With users in this order, folds are dealt so that the test of interactions fails."""
    people = moons(1)
    names = np.char.add("user ", people.train.users.astype(str))
    model = DadaClassifier(random_state=0).fit(people.train.X, people.train.y, users=names)
    assert any("boosted" in name for name in model.settings_["held_out"])
    assert any(isinstance(recipe, RandomFourier) for recipe in model.settings_["predictors"].recipes)
