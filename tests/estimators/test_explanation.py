"""Importances and effects of features agree with the decision values of the models."""

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose

from dada import (
    BoostedTrees,
    Constant,
    DadaClassifier,
    DadaRegressor,
    Linear,
    RandomFourier,
    Stumps,
    Union,
    load_model,
    save_model,
)
from dada.estimators.explanation import Node, parts, strongest_tree, typical_values

TOWNS = np.array(["Bonn", "Oslo", "Rome"])
RECIPES = [Linear(), Stumps(per_feature=4), Union(Stumps(per_feature=3), Linear(), Constant(coupling=0.1))]


def table(n_rows=90):
    """The target rises with age, falls from Rome to Oslo, and does not depend on noise."""
    rng = np.random.default_rng(0)
    age, town, noise = rng.normal(40, 10, n_rows), rng.integers(3, size=n_rows), rng.normal(size=n_rows)
    frame = pl.DataFrame({"age": age, "town": TOWNS[town], "noise": noise})
    return frame, (age - 40) / 10 + np.array([0.0, -1.0, 1.0])[town], np.tile(["ann", "bob", "cid"], n_rows // 3)


def fitted(predictors, task="two"):
    frame, target, users = table()
    cheap = {"predictors": predictors, "graph": "everyone", "mu": 0.1, "n_updates": 20, "random_state": 0}
    if task == "numbers":
        return DadaRegressor(**cheap).fit(frame, 10 * target, users=users)
    y = target > 0 if task == "two" else np.digitize(target, [-0.7, 0.7])
    return DadaClassifier(**cheap).fit(frame, y, users=users)


def values(model, frame, user):
    return model.predict(frame, user) if isinstance(model, DadaRegressor) else model.decision_function(frame, user)


def rise(model, user, effect, column):
    """The difference of two decision values; of a level, against a level that was not in the training rows."""
    ends = ("Lima", effect.feature.split('"')[1]) if column == "town" else (effect.low, effect.high)
    rows = [{"age": 41.0, "town": "Rome", "noise": 0.3} | {column: end} for end in ends]
    found = np.diff(values(model, pl.DataFrame(rows), user), axis=0)[0]
    if np.ndim(found):
        return found[model.classes_.tolist().index(effect.label)]
    return found


@pytest.mark.parametrize("task", ["two", "several", "numbers"])
@pytest.mark.parametrize("predictors", RECIPES, ids=["linear", "stumps", "union"])
def test_effects_are_differences_of_decision_values(predictors, task):
    model = fitted(predictors, task)
    of_bob = model.feature_effects("bob")
    for effect in of_bob:
        assert_allclose(effect.effect, rise(model, "bob", effect, effect.column), rtol=1e-4, atol=1e-4)
    n_labels = 3 if task == "several" else 1
    assert len(of_bob) == n_labels * len(model.used_features_)
    every = {(each.feature, each.label): each.effect for each in model.feature_effects()}
    own = [{(e.feature, e.label): e.effect for e in model.feature_effects(user)} for user in model.users_.tolist()]
    assert_allclose(list(every.values()), [np.mean([effects[key] for effects in own]) for key in every], atol=1e-9)


@pytest.mark.parametrize("task", ["two", "several", "numbers"])
@pytest.mark.parametrize("predictors", RECIPES, ids=["linear", "stumps", "union"])
def test_importances_sum_to_one_and_rank_columns_by_use(predictors, task):
    model = fitted(predictors, task)
    shares = dict(zip(model.feature_names_in_, model.feature_importances_, strict=True))
    assert_allclose(sum(shares.values()), 1)
    assert min(shares.values()) >= 0
    assert shares["noise"] < min(shares["age"], shares["town"])
    assert_allclose(sum(model.importances_of("ann").values()), 1)


def test_effects_have_the_sign_of_the_column_and_levels_their_order():
    effects = {each.feature: each for each in fitted(None).feature_effects()}
    assert effects["age"].effect > 0
    assert effects["age"].agreement == 1
    assert (effects["age"].label, effects["age"].low < effects["age"].high) == (True, True)
    assert effects['town = "Rome"'].effect > effects['town = "Oslo"'].effect
    assert (effects['town = "Rome"'].low, effects['town = "Rome"'].high) == (0, 1)


def test_a_model_from_a_file_is_explained_the_same(tmp_path):
    model = fitted(Linear())
    save_model(model, tmp_path / "m.dada")
    again = load_model(tmp_path / "m.dada")
    assert again.feature_effects() == model.feature_effects()
    assert_allclose(again.feature_importances_, model.feature_importances_)
    assert again.users_frame().equals(model.users_frame())


def test_users_in_a_column_of_an_array_have_no_importance():
    frame, target, _ = table()
    X = np.column_stack([frame["noise"], np.tile([7.0, 8.0, 9.0], 30), frame["age"]])
    model = DadaClassifier(Linear(), user_column=1, graph="none", n_updates=10, random_state=0).fit(X, target > 0)
    assert model.feature_importances_[1] == 0
    assert model.feature_effects(8.0)[0].column == "x2"


def test_constant_models_have_no_importances_and_waves_none_at_all():
    frame, target, users = table()
    cheap = {"graph": "none", "n_updates": 5, "random_state": 0}
    constant = DadaClassifier(Constant(), **cheap).fit(frame, target > 0, users=users)
    assert constant.feature_importances_.tolist() == [0, 0, 0]
    assert constant.feature_effects() == []
    waves = DadaClassifier(RandomFourier(n=5), **cheap).fit(frame, target > 0, users=users)
    with pytest.raises(AttributeError, match="permutation_importance"):
        waves.feature_effects()
    assert not hasattr(waves, "feature_importances_")


@pytest.mark.parametrize("task", ["two", "several", "numbers"])
def test_a_frame_of_users_counts_rows_and_neighbours_and_scores_training_rows(task):
    model = fitted(Linear(), task)
    frame, target, users = table()
    found = model.users_frame()
    assert found["user"].to_list() == ["ann", "bob", "cid"]
    assert found["rows"].to_list() == [30, 30, 30]
    assert found["neighbours"].to_list() == found["followers"].to_list() == [2, 2, 2]
    mine = users == "bob"
    if task == "numbers":
        error = np.abs(model.predict(frame.filter(mine), "bob") - 10 * target[mine]).mean()
        assert_allclose(found["train_error"][1], error, rtol=1e-5)
    else:
        y = target > 0 if task == "two" else np.digitize(target, [-0.7, 0.7])
        assert_allclose(found["train_accuracy"][1], model.score(frame.filter(mine), y[mine], "bob"), rtol=1e-5)


def test_followers_are_the_users_who_have_a_user_as_neighbour():
    frame, target, users = table()
    model = DadaClassifier(Linear(), graph="evidence", mu=0.1, n_neighbours=1, n_updates=10, random_state=0)
    model.fit(frame, target > 0, users=users)
    for user in model.users_.tolist():
        followed = [other for other in model.users_.tolist() if user in [n.user for n in model.neighbours_of(other)]]
        assert sorted(follower.user for follower in model.followers_of(user)) == followed
        assert all(follower.share == 1 for follower in model.followers_of(user))


BOOSTED = Union(Linear(), Constant(coupling=0.1), BoostedTrees(rounds=20, rate=0.3, share=0.6))


@pytest.mark.parametrize("task", ["two", "several", "numbers"])
def test_effects_of_models_with_boosted_trees_are_mean_differences_over_typical_rows(task):
    model = fitted(BOOSTED, task)
    of_bob = {(each.feature, each.label): each for each in model.feature_effects("bob")}
    age = [effect for (feature, _), effect in of_bob.items() if feature == "age"]
    rng, rows = np.random.default_rng(0), 400
    around = pl.DataFrame({"town": rng.choice(TOWNS, rows), "noise": rng.normal(size=rows)})
    for effect in age:
        low, high = (values(model, around.with_columns(age=pl.lit(end)), "bob") for end in (effect.low, effect.high))
        rises = (high - low) if task != "several" else (high - low)[:, model.classes_.tolist().index(effect.label)]
        assert_allclose(effect.effect, rises.mean(), rtol=0.15, atol=0.1)
    shares = dict(zip(model.feature_names_in_, model.feature_importances_, strict=True))
    assert_allclose(sum(shares.values()), 1)
    assert shares["noise"] < min(shares["age"], shares["town"])
    town = 'town = "Rome"', 'town = "Oslo"'
    if task != "several":
        assert of_bob[town[0], age[0].label].effect > of_bob[town[1], age[0].label].effect


@pytest.mark.parametrize("task", ["two", "several", "numbers"])
def test_parts_of_models_share_what_varies(task):
    model = fitted(BOOSTED, task)
    found = {part.kind: part for part in parts(model.predictors_, model.models_)}
    assert found["leaves"].number == 20
    assert found["constant"].share == 0
    assert_allclose(sum(part.share for part in found.values()), 1)
    weights, n = model.models_.copy(), model.predictors_.n
    first = model.predictors_.parts[0].n
    for block in range(weights.shape[1] // n):
        weights[:, block * n : block * n + first] = 0
    assert parts(model.predictors_, weights)[0] == ("leaves", 20, 1.0)


@pytest.mark.parametrize("task", ["two", "several", "numbers"])
def test_the_strongest_tree_has_the_weights_of_a_users_leaves(task):
    model = fitted(BOOSTED, task)
    found = strongest_tree(model.predictors_, model.models_[1])
    leaves = model.predictors_.parts[-1]
    n, start = model.predictors_.n, model.predictors_.n - leaves.n
    of_block = model.models_[1, found.block * n + start : (found.block + 1) * n].reshape(20, -1)
    spreads = [
        np.ptp(model.models_[1, block * n + start : (block + 1) * n].reshape(20, -1), axis=1).max()
        for block in range(model.models_.shape[1] // n)
    ]
    t = int(np.ptp(of_block, axis=1).argmax())
    assert found.block == int(np.argmax(spreads))
    rows = np.random.default_rng(0).normal(size=(50, leaves.n_features)) * 3

    def value(node, row):
        while isinstance(node, Node):
            node = node.above if row[node.feature] > node.threshold else node.below
        return node

    own = leaves.take(np.flatnonzero(leaves.tree == t)).predict(rows) @ of_block[t]
    assert_allclose([value(found.root, row) for row in rows], own, rtol=1e-6)
    assert strongest_tree(fitted(Linear(), task).predictors_, model.models_[1, :3]) is None


def test_typical_values_of_linear_models_have_those_of_mean_rows_in_the_middle():
    frame, target, users = table()
    settings = {"graph": "everyone", "mu": 0.1, "n_updates": 20, "random_state": 0}
    model = DadaClassifier(Linear(), **settings).fit(frame[["age", "noise"]], np.digitize(target, [-1, 1]), users=users)
    found = typical_values(model.predictors_, model.models_)
    assert found.shape == (3, 20, 3)
    at_means = model.predictors_.predict(model.predictors_.mean[None])[0]
    blocks = np.split(model.models_, 3, axis=1)
    # Quantiles of a symmetric distribution.
    assert_allclose(found.mean(axis=1), [block @ at_means for block in blocks], atol=1e-4)
    assert found.std(axis=1).min() > 0.01


def test_a_frame_of_users_has_the_accuracy_of_rows_that_trials_held_out():
    frame, target, users = table()
    model = DadaClassifier(Linear(), mu=0.1, n_updates=20, random_state=0).fit(frame, target > 0, users=users)
    found, held_out = model.users_frame(), model.decision_.values
    for k, user in enumerate(["ann", "bob", "cid"]):
        right = (held_out.values > 0) == (held_out.labels > 0)
        assert_allclose(found["held_out_accuracy"][k], right[held_out.users == user].mean(), rtol=1e-6)
    given = DadaClassifier(Linear(), graph="everyone", mu=0.1, n_updates=20, random_state=0)
    assert given.fit(frame, target > 0, users=users).users_frame()["held_out_accuracy"].to_list() == [None] * 3
    assert "held_out_accuracy" not in fitted(Linear(), "numbers").users_frame().columns
