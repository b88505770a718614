"""More than two classes, numbers, and weights of rows and classes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import recall_score

from dada import DadaClassifier, DadaRegressor, Population, RandomFourier
from dada.task import problem

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 3))
USERS = np.repeat(["ann", "bob", "cid", "dan"], 60)
TURN = np.isin(USERS, ["cid", "dan"])
SCORE = np.where(TURN, -1.0, 1.0) * X[:, 0]
THREE = np.array(["low", "middle", "top"])[np.digitize(SCORE, [-0.5, 0.5])]


@pytest.mark.parametrize("loss", ["adaboost", "logistic"])
def test_three_classes(loss):
    model = DadaClassifier(loss=loss, random_state=0).fit(X, THREE, users=USERS)
    assert model.classes_.tolist() == ["low", "middle", "top"]
    assert model.score(X, THREE, users=USERS) > 0.95
    proba = model.predict_proba(X, users=USERS)
    assert proba.shape == (240, 3)
    assert_allclose(proba.sum(axis=1), 1)
    assert_array_equal(model.classes_[proba.argmax(axis=1)], model.predict(X, users=USERS))
    assert model.models_.shape[1] == 3 * model.predictors_.n


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_numbers(loss):
    y = 40 + 10 * SCORE
    model = DadaRegressor(loss=loss, random_state=0).fit(X, y, users=USERS)
    assert model.score(X, y, users=USERS) > 0.9
    alike = DadaRegressor(loss=loss, random_state=0).fit(X, y)
    assert model.score(X, y, users=USERS) > alike.score(X, y) + 0.3


def test_waves_bend_where_stumps_and_lines_do_not():
    y = np.cos(2 * X[:, 0] + 2 * X[:, 1])
    waves = DadaRegressor(RandomFourier(n=300, width=0.5), beta=300.0, n_updates=600, random_state=0).fit(X, y)
    assert waves.score(X, y) > 0.6 > DadaRegressor(random_state=0).fit(X, y).score(X, y)


def test_targets_of_text_are_refused():
    with pytest.raises(ValueError, match="y must hold numbers"):
        DadaRegressor().fit(X, THREE, users=USERS)


@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (DadaClassifier(), SCORE > 0),
        (DadaClassifier(loss="adaboost"), SCORE > 0),
        (DadaClassifier(), THREE),
        (DadaRegressor(), SCORE),
        (DadaRegressor(loss="huber"), SCORE),
    ],
    ids=["logistic", "adaboost", "classes", "squared", "huber"],
)
def test_a_weight_of_two_is_a_row_given_twice(estimator, y):
    weights = np.where(X[:, 1] > 0, 2.0, 1.0)
    twice = np.repeat(np.arange(240), weights.astype(int))
    estimator.set_params(graph="none", n_updates=20, dtype="float64", random_state=0)
    one = estimator.fit(X, y, users=USERS, sample_weight=weights)
    # Numbers are standardised as in the fit, where mean and scale ignore weights.
    if isinstance(one, DadaRegressor):
        y = (y - one.target_mean_) / one.target_scale_
    target = "numbers" if isinstance(one, DadaRegressor) else "classes"
    pieces = (X, y, USERS, weights), (X[twice], y[twice], USERS[twice], None)
    problems = [
        problem(
            Population.from_arrays(*piece, task=target, sample_weight=counts),
            one.predictors_,
            loss=one.settings_["loss"],
            beta=one.settings_["beta"],
            mu1=0.0,
        )
        for *piece, counts in pieces
    ]
    losses = [each.graph_losses(one.models_) / each.confidence for each in problems]
    assert_allclose(*losses, rtol=1e-9)
    gaps = [each.model_gaps(one.models_, one.graph_) / each.confidence for each in problems]
    assert_allclose(*gaps, rtol=1e-6, atol=1e-9)


def test_weights_leave_the_loss_as_it_is():
    model = DadaClassifier(class_weight="balanced", n_updates=20, random_state=0).fit(X, SCORE > 1, users=USERS)
    assert model.settings_["loss"] == "logistic"
    model.fit(X, SCORE > 1, users=USERS, sample_weight=np.arange(1, 241))
    assert model.settings_["loss"] == "logistic"


def test_the_scale_of_weights_changes_nothing_however_updates_are_shared():
    settings = dict(graph="learned", lam=1.0, latency=0.2, n_updates=40, random_state=0)
    weights = RNG.exponential(size=240)
    scaled = weights * np.where(USERS == "bob", 1024.0, 0.25)
    for y in (SCORE > 0, THREE):
        one, other = (
            DadaClassifier(**settings, n_jobs=jobs).fit(X, y, users=USERS, sample_weight=given)
            for jobs, given in ((1, weights), (2, scaled))
        )
        assert_array_equal(one.models_, other.models_)
        assert_array_equal(one.graph_.weights, other.graph_.weights)


def test_rows_of_weight_zero_are_left_out():
    y, weights = SCORE > 0, np.ones(240)
    y[:30], weights[:30] = ~y[:30], 0.0
    settings = dict(graph="none", random_state=0)
    one = DadaClassifier(**settings).fit(X, y, users=USERS, sample_weight=weights)
    other = DadaClassifier(**settings).fit(X[30:], y[30:], users=USERS[30:])
    assert_array_equal(one.models_, other.models_)
    with pytest.raises(ValueError, match=r"1 users have no row of a weight above 0: 'ann'"):
        DadaClassifier().fit(X, y, users=USERS, sample_weight=USERS != "ann")


@pytest.mark.parametrize("loss", ["auto", "adaboost", "squared-hinge"])
def test_rare_classes_weigh_as_much_as_frequent_ones_when_balanced(loss):
    y = SCORE + 0.8 * np.random.default_rng(7).normal(size=240) > 1.5
    plain, balanced = (
        DadaClassifier(loss=loss, beta=3.0, class_weight=weight, random_state=0).fit(X, y, users=USERS)
        for weight in (None, "balanced")
    )
    recalls = [recall_score(y, model.predict(X, users=USERS)) for model in (plain, balanced)]
    assert recalls[1] > recalls[0] + 0.1
    assert_array_equal(
        balanced.models_,
        DadaClassifier(loss=loss, beta=3.0, random_state=0, class_weight={
            False: 240 / (2 * (~y).sum()), True: 240 / (2 * y.sum())
        }).fit(X, y, users=USERS).models_,
    )  # fmt: skip


def test_the_rarest_of_several_classes_is_found_more_often_when_balanced():
    y = np.digitize(SCORE + 0.8 * np.random.default_rng(7).normal(size=240), [0.0, 1.7])
    plain, balanced = (
        DadaClassifier(beta=5.0, class_weight=weight, random_state=0).fit(X, y, users=USERS)
        for weight in (None, "balanced")
    )
    recalls = [recall_score(y, model.predict(X, users=USERS), average=None)[2] for model in (plain, balanced)]
    assert recalls[1] > recalls[0] + 0.1


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_numbers_take_weights_too(loss):
    y, weights = 5 * SCORE, np.where(TURN, 1e-3, 1.0)
    light = DadaRegressor(loss=loss, random_state=0).fit(X, y, sample_weight=weights)
    assert light.score(X[~TURN], y[~TURN]) > 0.9


@pytest.mark.parametrize("weights", [np.ones(3), np.full(240, -1.0), np.zeros(240)])
def test_weights_that_cannot_be_are_refused(weights):
    with pytest.raises(ValueError, match="sample_weight must be 240 numbers >= 0, one per row, not all zero, got"):
        DadaClassifier().fit(X, SCORE > 0, users=USERS, sample_weight=weights)
