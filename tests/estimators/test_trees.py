"""Trees that users grow and share: what they learn, what they cost, and that owners cannot vote for them."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dada import Constant, DadaClassifier, DadaRegressor, Linear, Privacy, Trees, Union, load_model, save_model
from dada.core.graph import CollaborationGraph
from dada.data import Population, boxes, xor
from dada.fitting.held_out import decide
from dada.fitting.settings import Settings
from dada.fitting.trees import Grove, residuals
from dada.task import training_predictions

FEW = Union(Trees(per_user=6, per_neighbourhood=2), Linear(clip=2.0), Constant(coupling=0.1))


def small(draw=boxes, **sizes):
    return draw(3, **{"n_users": 12, "n_test": 20, "dimensions": 6, "n_train": 20, **sizes})


def fitted(people, predictors=FEW, **settings):
    model = DadaClassifier(predictors, **{"graph": "everyone", "mu": 0.1, "random_state": 0, **settings})
    return model.fit(people.X, people.y, users=people.users)


def test_features_that_interact_are_found_and_learned_by_default():
    people = xor(1)
    model = DadaClassifier(random_state=0).fit(people.train.X, people.train.y, users=people.train.users)
    assert model.settings_["graph"] == "evidence"
    assert any(choice.startswith("trees") for choice in model.settings_["held_out"])
    assert model.score(people.test.X, people.test.y, users=people.test.users) > 0.83


def test_features_that_add_up_are_not_tried_with_trees_or_waves():
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(300, 4)), np.repeat(np.arange(20), 15)
    people = Population.from_arrays(X, X @ [1.0, -1.0, 0.5, 0.0] + rng.normal(size=300) > 0, users)
    tried = decide(Settings(), people, np.random.default_rng(0)).held_out
    assert not any(choice.startswith(("waves", "trees")) for choice in tried)


def test_a_tree_predicts_nothing_on_the_rows_of_its_owner():
    people = small().train
    grove = Grove(Trees(per_user=2), people, None, np.random.default_rng(0))
    grove.grow()
    hidden = training_predictions(people, grove.trees) == 0
    own = people.owners[:, None] == grove.trees.owner
    assert hidden[own].all()
    assert_array_equal(grove.predictions[~own], grove.trees.predict(people.X)[~own])
    elsewhere = training_predictions(people, grove.trees, np.full(people.n_users, -1))
    assert_array_equal(elsewhere, grove.trees.predict(people.X))


def test_trees_follow_the_labels_of_their_owner_and_the_residuals_of_a_neighbourhood():
    people = small().train
    grove = Grove(Trees(per_user=5, per_neighbourhood=5), people, None, np.random.default_rng(0))
    trees, _, bits = grove.proposals()
    own = people.owners[:, None] == trees.owner
    assert bits == 0
    assert (people.y[:, None] * trees.predict(people.X))[own].mean() > 0.3
    ring = CollaborationGraph.from_edges(12, range(12), np.roll(range(12), 1), np.ones(12))
    values = np.where(people.X[:, 5] > 0, 3.0, -3.0)
    trees, _, bits = grove.proposals(values, ring)
    assert bits > 0
    assert (residuals(people, values) * trees.predict(people.X)).mean() > 0.02


def test_bits_of_trees_and_histograms_are_in_the_ledger():
    people = small().train
    alone, near = (fitted(people, Union(Trees(per_user=6, rounds=r), Linear()), n_updates=3) for r in (0, 1))
    sent = alone.predictors_.parts[1].message_bits(31) * 72 * 11
    assert alone.bits_ > sent
    assert near.bits_ > alone.bits_ + sent
    assert near.trace_[-1].bits == near.bits_


def test_the_same_seed_grows_the_same_trees():
    people = small().train
    one, two = (fitted(people, n_updates=5) for _ in range(2))
    assert one.predictors_.parts[1].names == two.predictors_.parts[1].names
    assert_array_equal(one.models_, two.models_)
    assert len(set(one.predictors_.parts[1].names)) == one.predictors_.parts[1].n


def test_a_large_population_grows_a_bounded_number_of_trees():
    grove = Grove(Trees(most=5), small().train, None, np.random.default_rng(0))
    grove.grow()
    assert grove.trees.n <= 5


def test_unused_trees_are_forgotten():
    people = small().train
    grove = Grove(Trees(per_user=2), people, None, np.random.default_rng(0))
    grove.grow()
    names, models = grove.trees.names, np.zeros((people.n_users, grove.trees.n))
    models[3, [4, 7]] = 1.0
    grove.forget(models)
    assert grove.trees.names == (names[4], names[7])
    assert grove.predictions.shape == (people.n_rows, 2)


def test_several_classes_and_numbers():
    rng = np.random.default_rng(0)
    X, users = rng.uniform(-1, 1, (240, 3)), np.tile(np.arange(8), 30)
    product = X[:, 0] * X[:, 1]
    kinds = np.digitize(product, [-0.15, 0.15])
    some = {"graph": "everyone", "mu": 0.05, "n_updates": 30, "random_state": 0}
    linear, trees = (DadaClassifier(p, **some).fit(X, kinds, users=users) for p in ("linear", FEW))
    assert trees.score(X, kinds, users=users) > linear.score(X, kinds, users=users) + 0.2
    linear, trees = (DadaRegressor(p, **some).fit(X, product, users=users) for p in ("linear", FEW))
    assert trees.score(X, product, users=users) > linear.score(X, product, users=users) + 0.4


def test_a_model_with_trees_is_stored_and_explained(tmp_path):
    people = small()
    model = fitted(people.train)
    save_model(model, tmp_path / "trees.dada")
    again = load_model(tmp_path / "trees.dada")
    X, users = people.test.X, people.test.users
    assert_array_equal(again.decision_function(X, users), model.decision_function(X, users))
    assert again.predictors == model.predictors
    assert_array_equal(again.feature_importances_, model.feature_importances_)
    assert model.feature_importances_.sum() == pytest.approx(1)


def test_importances_and_effects_see_what_trees_use():
    rng = np.random.default_rng(0)
    X, users = rng.uniform(-1, 1, (300, 4)), np.tile(np.arange(6), 50)
    model = DadaClassifier(FEW, graph="everyone", mu=0.05, random_state=0).fit(X, X[:, 1] * X[:, 2] > 0, users=users)
    shares = model.feature_importances_
    assert shares[[1, 2]].min() > 2 * shares[[0, 3]].max()
    rising = DadaClassifier(Trees(per_user=6), graph="everyone", mu=0.05, random_state=0).fit(
        X, X[:, 1] > 0, users=users
    )
    assert rising.feature_effects()[0].feature == "x1"
    assert rising.feature_effects()[0].effect > 0


def test_newcomers_and_new_rows_use_the_same_trees():
    people = small().train
    model = fitted(people, n_updates=10)
    names = model.predictors_.parts[1].names
    model.add_user(people.X[:15], people.y[:15], 99).partial_fit(people.X[:5], people.y[:5], users=people.users[:5])
    assert model.predictors_.parts[1].names == names
    assert np.isfinite(model.decision_function(people.X[:5], users=99)).all()


@pytest.mark.parametrize("name", ["linear", "clipped", "stumps", "waves", "trees"])
def test_families_go_by_name(name):
    model = fitted(small(n_users=4).train, name, n_updates=2)
    kinds = [type(part).__name__ for part in model.predictors_.parts]
    assert kinds[-1] == ("FittedConstant" if name != "trees" else "FittedTrees")


@pytest.mark.parametrize("predictors", ["trees", FEW])
def test_trees_are_refused_with_privacy(predictors):
    with pytest.raises(ValueError, match="trees reveal rows of their owners"):
        fitted(small().train, predictors, privacy=Privacy(epsilon=1.0, protects="labels"))


def test_unknown_families_are_refused():
    with pytest.raises(ValueError, match=r"must be a recipe or one of .*'trees'.*got 'forest'"):
        fitted(small().train, "forest")
