"""A user's own graph rule and base predictors inside the estimators."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dada import (
    CollaborationGraph,
    DadaClassifier,
    DadaClassifierCV,
    DadaRegressor,
    Linear,
    Privacy,
    Union,
    load_model,
    moons,
    save_model,
)
from dada.data import FittedFamily, ParquetUsers, predictors_from_arrays, register_predictors
from dada.data.tables import write_users
from dada.estimators.stream import fit_parquet

PEOPLE = moons(1, n_users=16)
TRAIN = PEOPLE.train


def nearest(population, models):
    """Every user and the user with the most similar model."""
    similarity = models @ models.T
    np.fill_diagonal(similarity, -np.inf)
    weights = np.zeros_like(similarity)
    weights[np.arange(len(models)), similarity.argmax(axis=1)] = 1.0
    return np.maximum(weights, weights.T)


def test_a_rule_makes_the_graph_from_rows_and_local_models():
    seen = []

    def rule(population, models):
        seen.append((population, models))
        return nearest(population, models)

    model = DadaClassifier(Linear(), graph=rule, n_updates=40, random_state=0)
    model.fit(TRAIN.X, TRAIN.y, users=TRAIN.users)
    ((population, models),) = seen
    assert_array_equal(population.user_ids, model.users_)
    assert_array_equal(population.y, TRAIN.y)
    assert models.shape == model.models_.shape
    expected = CollaborationGraph.from_scipy(nearest(population, models))
    assert_array_equal(model.graph_.to_scipy().toarray(), expected.to_scipy().toarray())
    assert model.settings_["graph"] == "given"
    # The local models are those of users who learn alone.
    alone = DadaClassifier(Linear(), graph="none", mu=0.0, n_updates=400, random_state=0)
    alone.fit(TRAIN.X, TRAIN.y, users=TRAIN.users)
    assert np.median(np.abs(models - alone.models_)) < 1e-3


def test_a_rule_gives_the_models_of_the_graph_that_it_makes():
    settings = {"n_updates": 30, "random_state": 0, "predictors": Linear()}
    given = CollaborationGraph.complete(16)
    by_rule = DadaClassifier(graph=lambda population, models: given, **settings)
    by_graph = DadaClassifier(graph=given, **settings)
    for model in (by_rule, by_graph):
        model.fit(TRAIN.X, TRAIN.y, users=TRAIN.users)
    assert_array_equal(by_rule.models_, by_graph.models_)


def test_a_rule_of_numbers_in_a_file_and_with_a_newcomer(tmp_path):
    y = TRAIN.X[:, 0] * 3
    model = DadaRegressor(Linear(), graph=nearest, n_updates=20, random_state=0).fit(TRAIN.X, y, users=TRAIN.users)
    save_model(model, tmp_path / "ruled.dada")
    loaded = load_model(tmp_path / "ruled.dada")
    assert_array_equal(loaded.graph.to_scipy().toarray(), model.graph_.to_scipy().toarray())
    model.add_user(TRAIN.X[:9], y[:9], 99)
    assert model.neighbours_of(99)


def test_a_search_uses_the_rule_in_every_fold():
    sizes = []

    def rule(population, models):
        sizes.append(population.n_rows)
        return nearest(population, models)

    search = DadaClassifierCV(
        DadaClassifier(Linear(), graph=rule, n_updates=10), betas=(10.0,), mu_scales=(1.0, 0.5), n_splits=2
    ).fit(TRAIN.X, TRAIN.y, users=TRAIN.users)
    assert search.best_setting_.graph == "given"
    assert len(sizes) == 2 * 2 + 1
    assert sizes[-1] == TRAIN.n_rows > max(sizes[:-1])


def test_rules_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match="one row per user of the training data"):
        DadaClassifier(graph=lambda population, models: np.ones((2, 2)) - np.eye(2)).fit(
            TRAIN.X, TRAIN.y, users=TRAIN.users
        )
    with pytest.raises(ValueError, match="a graph rule reads exact rows"):
        DadaClassifier(graph=nearest, privacy=Privacy(1.0, ranges=(0, 1))).fit(TRAIN.X, TRAIN.y, users=TRAIN.users)
    write_users(TRAIN, tmp_path / "people.parquet")
    people = ParquetUsers.open(tmp_path / "people.parquet", user="user", label="label")
    with pytest.raises(ValueError, match="a graph rule reads all rows in one process"):
        fit_parquet(DadaClassifier(graph=nearest), people)


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedSines(FittedFamily):
    kind = "test-sines"
    shapes = (("pace", "n"),)

    pace: np.ndarray

    def _predict(self, rows, out):
        out[...] = np.sin(rows[:, :1] * self.pace)

    def describe(self, j, feature_names=None):
        return f"sin({self.pace[j]:g} x)"


@dataclass(frozen=True)
class Sines:
    n: int = 3

    def fit(self, X):
        return FittedSines(pace=1.0 + np.arange(self.n), n_features=np.shape(X)[1], coupling=np.ones(self.n))


def test_own_base_predictors_are_stored_by_name_once_they_are_registered(tmp_path):
    X, path = TRAIN.X[:, :1], tmp_path / "sines.dada"
    model = DadaClassifier(Union(Sines(n=4), Linear()), n_updates=10, random_state=0)
    model.fit(X, TRAIN.y, users=TRAIN.users)
    with pytest.raises(TypeError, match="register_predictors"):
        save_model(model, path)
    register_predictors(FittedSines, Sines)
    save_model(model, path)
    loaded = load_model(path)
    assert loaded.predictors == model.predictors
    assert loaded.predictors_.describe(1) == "sin(2 x)"
    values = [each.decision_function(X, users=TRAIN.users) for each in (model, loaded)]
    assert_array_equal(*values)


def test_unknown_base_predictors_and_classes_without_names_are_refused():
    class Plain:
        kind = "plain"

    with pytest.raises(ValueError, match=r"'waves on waves': .* register_predictors was not imported"):
        predictors_from_arrays({"kind": "waves on waves"}, {})
    for fitted, recipe, message in ((Plain, Sines, "from_arrays"), (FittedSines, Plain, "must be a dataclass")):
        with pytest.raises(TypeError, match=message):
            register_predictors(fitted, recipe)
