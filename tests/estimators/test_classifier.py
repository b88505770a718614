"""What the classifier learns, predicts and tells."""

import copy
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.tree import DecisionTreeClassifier

from dada import CollaborationGraph, Constant, DadaClassifier, DegreeTarget, Pretrained, Stumps, Union
from dada.fitting.models import average_model, blockwise_decisions, positions_of
from tests.helpers.people import moons_rows, opposites


def fitted(rows, **settings):
    return DadaClassifier(**{"random_state": 0, **settings}).fit(rows.X, rows.y, users=rows.users)


def decisions(model, rows):
    return model.decision_function(rows.X, users=rows.users)


def test_users_get_models_of_their_own():
    model = fitted(opposites())
    assert model.predict([[0.9], [0.9], [-0.9], [-0.9]], users=["ann", "dan", "ann", "dan"]).tolist() == [1, 0, 0, 1]


def test_users_with_the_same_task_are_neighbours_and_others_are_not():
    model = fitted(opposites(rows_per_user=20), graph="learned", loss="adaboost", beta=10.0, mu=1.0, lam=0.1)
    assert [neighbour.user for neighbour in model.neighbours_of("ann")] == ["bob"]
    assert [neighbour.user for neighbour in model.neighbours_of("dan")] == ["cid"]


def test_learning_together_is_better_than_alone_and_than_one_model_for_all():
    scores = []
    for seed in (1, 2):
        train, test = moons_rows(seed)
        together = fitted(train)
        alone = fitted(train, graph="none")
        pooled = DadaClassifier(random_state=0).fit(train.X, train.y)
        assert together.graph_.mean_neighbours < 15
        scores.append([m.score(test.X, test.y, users=test.users) for m in (together, alone)])
        scores[-1].append(pooled.score(test.X, test.y))
    together, alone, pooled = np.mean(scores, axis=0)
    assert together > 0.91
    assert together > alone + 0.05
    assert together > pooled + 0.09


def test_decisions_are_the_users_combination_of_base_predictions():
    rows = opposites()
    model = fitted(rows, dtype="float64")
    k = np.searchsorted(model.users_, rows.users)
    by_hand = (model.predictors_.predict(rows.X) * model.models_[k]).sum(axis=1)
    np.testing.assert_allclose(decisions(model, rows), by_hand, rtol=1e-12)


def test_models_stay_within_their_bound():
    model = fitted(opposites(), beta=2.0)
    assert abs(model.models_).sum(axis=1).max() <= 2.0 * (1 + 1e-6)


def test_a_block_of_rows_gives_what_all_rows_give():
    train, test = moons_rows(3, n_users=10, n_test=20)
    model = fitted(train, unknown_user="average")
    users = test.users.copy()
    users[::7] = 999
    whole = model.decision_function(test.X, users=users)
    average, positions = average_model(model.models_, model.confidence_), positions_of(model.users_, users[:60])[0]
    blocks = blockwise_decisions(test.X[:60], positions, model.predictors_, model.models_, average, block_cells=1)
    np.testing.assert_array_equal(blocks, whole[:60])


def test_order_of_rows_at_prediction_does_not_matter():
    rows = opposites()
    model = fitted(rows)
    order = np.random.default_rng(1).permutation(len(rows.y))
    shuffled = model.decision_function(rows.X[order], users=rows.users[order])
    np.testing.assert_array_equal(shuffled, decisions(model, rows)[order])


@pytest.mark.parametrize("labels", [("no", "yes"), (False, True), (-1, 1), (2.0, 7.0), ("10", "9")])
def test_any_two_labels(labels):
    rows = opposites()
    y = np.array(labels)[rows.y]
    model = DadaClassifier(random_state=0).fit(rows.X, y, users=rows.users)
    assert model.classes_.tolist() == list(labels)
    np.testing.assert_array_equal(model.predict(rows.X, users=rows.users), y)


CONTAINERS = {
    "list": np.ndarray.tolist,
    "pandas": lambda X: pd.DataFrame(X, columns=["a", "b"]),
    "polars": lambda X: pl.DataFrame(X, schema=["a", "b"]),
    "polars, lazy": lambda X: pl.LazyFrame(X, schema=["a", "b"]),
    "csr_array": sparse.csr_array,
    "csc_matrix": sparse.csc_matrix,
    "float32": lambda X: X.astype(np.float32),
    "Fortran order": np.asfortranarray,
}


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_any_container_gives_the_same_model(container):
    X = np.random.default_rng(0).integers(-3, 3, (40, 2)).astype(float)
    y, users = (X[:, 0] > X[:, 1]).astype(int), np.arange(40) % 3
    plain = DadaClassifier(random_state=0).fit(X, y, users=users)
    other = DadaClassifier(random_state=0).fit(container(X), y, users=users)
    np.testing.assert_array_equal(
        plain.decision_function(X, users=users), other.decision_function(container(X), users=users)
    )


@pytest.mark.parametrize(
    "container", [list, pd.Series, pd.Categorical, pl.Series, lambda users: np.array(users, object)]
)
def test_any_container_of_users(container):
    rows = opposites()
    model = DadaClassifier(random_state=0).fit(rows.X, rows.y, users=container(rows.users))
    assert model.users_.tolist() == ["ann", "bob", "cid", "dan"]
    np.testing.assert_array_equal(
        model.decision_function(rows.X, users=container(rows.users)), decisions(fitted(rows), rows)
    )


def test_names_of_features_are_kept_and_checked():
    rows = opposites()
    model = DadaClassifier().fit(pd.DataFrame(rows.X, columns=["height"]), rows.y, users=rows.users)
    assert model.feature_names_in_.tolist() == ["height"]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(pd.DataFrame(rows.X, columns=["weight"]), users=rows.users)


def test_without_users_all_rows_are_one_users():
    rows = opposites(ids=("ann", "bob"))
    model = DadaClassifier(random_state=0).fit(rows.X[:8], rows.y[:8])
    assert model.users_.tolist() == ["all"]
    assert model.n_users_ == 1
    assert model.neighbours_of("all") == []
    assert model.score(rows.X[:8], rows.y[:8]) == 1.0


def test_one_user_id_serves_all_rows():
    rows = opposites()
    model = fitted(rows)
    np.testing.assert_array_equal(
        model.decision_function(rows.X, users="cid"), model.decision_function(rows.X, users=["cid"] * len(rows.y))
    )


def test_scores_are_between_0_and_1_and_ordered_as_decisions():
    rows = opposites()
    model = fitted(rows)
    proba, values = model.predict_proba(rows.X, users=rows.users), decisions(model, rows)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    # Users have temperatures of their own.
    for user in np.unique(rows.users):
        own = np.flatnonzero(rows.users == user)
        assert (np.diff(proba[own[np.argsort(values[own])], 1]) >= 0).all()
    np.testing.assert_array_equal(proba[:, 1] > 0.5, values > 0)


def test_score_is_accuracy_with_weights():
    rows = opposites()
    model = fitted(rows, n_updates=1)
    weights = np.arange(len(rows.y), dtype=float)
    expected = accuracy_score(rows.y, model.predict(rows.X, users=rows.users), sample_weight=weights)
    assert model.score(rows.X, rows.y, users=rows.users, sample_weight=weights) == expected


def test_same_seed_same_bits_and_another_seed_another_run():
    train, _ = moons_rows(1, n_users=12)
    first, second, other = fitted(train), fitted(train), fitted(train, random_state=1)
    np.testing.assert_array_equal(first.models_, second.models_)
    np.testing.assert_array_equal(first.graph_.weights, second.graph_.weights)
    assert not np.array_equal(first.models_, other.models_)


@pytest.mark.parametrize("state", [np.random.default_rng(3), np.random.RandomState(3), None, np.int64(3)])
def test_every_kind_of_random_state(state):
    assert fitted(opposites(), graph="everyone", n_updates=80, random_state=state).n_iter_ == 320


def test_precision_is_the_one_asked_for():
    assert fitted(opposites()).models_.dtype == np.float32
    assert fitted(opposites(), dtype=np.float64).models_.dtype == np.float64


def test_no_graph_and_no_coupling_are_both_learning_alone():
    rows = opposites()
    without, uncoupled = fitted(rows, predictors=Stumps(), graph="none"), fitted(rows, predictors=Stumps(), mu=0)
    np.testing.assert_array_equal(without.models_, uncoupled.models_)
    assert without.graph_.n_edges == uncoupled.graph_.n_edges == 0
    assert without.bits_ == 0


def test_a_given_graph_is_used_as_it_is_whatever_its_form():
    rows, weights = opposites(), np.zeros((4, 4))
    weights[0, 1] = weights[1, 0] = 2.0
    weights[2, 3] = weights[3, 2] = 0.5
    models = [fitted(rows, graph=form) for form in (weights, sparse.csr_array(weights), weights.tolist())]
    models.append(fitted(rows, graph=CollaborationGraph.from_scipy(weights)))
    for model in models:
        np.testing.assert_array_equal(model.graph_.to_scipy().toarray(), weights)
        np.testing.assert_array_equal(model.models_, models[0].models_)


def test_a_graph_by_evidence_is_directed_and_bounded():
    train, test = moons_rows(1)
    model = fitted(train, graph="evidence", max_neighbours=6)
    assert model.graph_.directed
    assert model.graph_.neighbour_counts.max() <= 6
    assert model.score(test.X, test.y, users=test.users) > 0.87


def test_lists_of_neighbours_can_be_bounded():
    train, _ = moons_rows(1, n_users=20)
    assert fitted(train, graph="learned", max_neighbours=4, n_updates=50).graph_.neighbour_counts.max() == 4


def test_neighbours_come_strongest_first_with_their_shares():
    train, _ = moons_rows(1, n_users=20)
    model = fitted(train, graph="learned", n_updates=50)
    neighbours = model.neighbours_of(7)
    weights = [neighbour.weight for neighbour in neighbours]
    assert weights == sorted(weights, reverse=True)
    assert sum(neighbour.share for neighbour in neighbours) == pytest.approx(1)
    assert sum(weights) == pytest.approx(model.graph_.degree[7])
    assert all(7 in [back.user for back in model.neighbours_of(neighbour.user)] for neighbour in neighbours)


def test_unknown_users_get_the_average_weighted_by_confidence():
    rows = opposites()
    rows = type(rows)(rows.X[5:], rows.y[5:], rows.users[5:])
    model = fitted(rows, unknown_user="average", dtype="float64")
    assert model.confidence_.tolist() == [3 / 8, 1, 1, 1]
    mean = (model.confidence_[:, None] * model.models_).sum(axis=0) / model.confidence_.sum()
    expected = model.predictors_.predict(rows.X) @ mean
    np.testing.assert_allclose(model.decision_function(rows.X, users="zoe"), expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="fitted for 4 users: give users="):
        model.decision_function(rows.X)
    mixed = model.decision_function(rows.X[:2], users=["ann", "zoe"])
    assert mixed[0] == model.decision_function(rows.X[:1], users="ann")[0]
    assert mixed[1] == pytest.approx(expected[1])


@pytest.mark.parametrize("loss", ["logistic", "squared-hinge"])
@pytest.mark.parametrize("step", ["paper", "local", "line-search"])
def test_other_losses_and_steps_learn_too(loss, step):
    rows = opposites()
    model = fitted(rows, loss=loss, step=step, graph_step="lipschitz", graph_loss="logistic", restart="local")
    assert model.score(rows.X, rows.y, users=rows.users) > 0.9


def test_another_regularizer_shapes_another_graph():
    train, _ = moons_rows(1, n_users=20)
    common = dict(graph="learned", graph_loss="logistic", mu=0.1, n_updates=50)
    model = fitted(train, regularizer=DegreeTarget(target=1.0, lam=1.0), **common)
    assert not np.array_equal(model.graph_.degree, fitted(train, **common).graph_.degree)


def test_any_recipe_of_base_predictors():
    # Fewer rows do not show beyond doubt that users differ.
    rows = opposites(rows_per_user=20)
    tree = DecisionTreeClassifier(max_depth=1).fit(rows.X[:20], rows.y[:20])
    for recipe in (Stumps(n=3), Union(Stumps(n=3), Constant(coupling=0.1)), Pretrained([tree])):
        assert fitted(rows, predictors=recipe).score(rows.X, rows.y, users=rows.users) > 0.9


def test_fit_leaves_its_settings_alone_and_the_estimator_can_be_cloned_and_pickled():
    rows = opposites()
    model = DadaClassifier(Stumps(n=5), random_state=4)
    before = copy.deepcopy(model.get_params())
    model.fit(rows.X, rows.y, users=rows.users)
    assert model.get_params() == before == clone(model).get_params()
    with pytest.raises(NotFittedError):
        clone(model).predict(rows.X, users=rows.users)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(decisions(again, rows), decisions(model, rows))
