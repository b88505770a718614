"""More than two classes, numbers, and weights of rows and classes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dada import DadaClassifier, DadaRegressor, RandomFourier

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


def test_a_weight_of_two_is_a_row_given_twice():
    y, weights = SCORE > 0, np.where(X[:, 1] > 0, 2.0, 1.0)
    twice = np.repeat(np.arange(240), weights.astype(int))
    settings = dict(loss="adaboost", graph="none", n_updates=20, dtype="float64", random_state=0)
    one = DadaClassifier(**settings).fit(X, y, users=USERS, sample_weight=weights)
    problem = (
        DadaClassifier(**settings)
        ._training_rows(X, y, USERS, weights)
        .problem(one.predictors_, "adaboost", beta=30.0, mu1=0.0)
    )
    repeated = (
        DadaClassifier(**settings)
        ._training_rows(X[twice], y[twice], USERS[twice])
        .problem(one.predictors_, "adaboost", beta=30.0, mu1=0.0, graph_loss="paper")
    )
    losses = [p._losses(one.models_, "paper") / p.confidence for p in (problem, repeated)]
    assert_allclose(*losses, rtol=1e-9)


def test_rows_of_weight_zero_are_left_out():
    y, weights = SCORE > 0, np.ones(240)
    y[:30], weights[:30] = ~y[:30], 0.0
    settings = dict(loss="adaboost", graph="none", random_state=0)
    one = DadaClassifier(**settings).fit(X, y, users=USERS, sample_weight=weights)
    other = DadaClassifier(**settings).fit(X[30:], y[30:], users=USERS[30:])
    assert_array_equal(one.models_, other.models_)
    with pytest.raises(ValueError, match=r"1 users have no row of a weight above 0: 'ann'"):
        DadaClassifier().fit(X, y, users=USERS, sample_weight=USERS != "ann")


def test_rare_classes_weigh_as_much_as_frequent_ones_when_balanced():
    y = SCORE + 0.8 * RNG.normal(size=240) > 1.5
    plain, balanced = (
        DadaClassifier(loss="adaboost", beta=3.0, class_weight=weight, random_state=0).fit(X, y, users=USERS)
        for weight in (None, "balanced")
    )
    assert balanced.predict(X, users=USERS).mean() > plain.predict(X, users=USERS).mean()
    assert_array_equal(
        balanced.models_,
        DadaClassifier(loss="adaboost", beta=3.0, random_state=0, class_weight={
            False: 240 / (2 * (~y).sum()), True: 240 / (2 * y.sum())
        }).fit(X, y, users=USERS).models_,
    )  # fmt: skip


def test_squares_take_weights_too():
    y, weights = 5 * SCORE, np.where(TURN, 1e-3, 1.0)
    light = DadaRegressor(random_state=0).fit(X, y, sample_weight=weights)
    assert light.score(X[~TURN], y[~TURN]) > 0.9
    with pytest.raises(ValueError, match="weights of rows and classes need the loss"):
        DadaRegressor(loss="huber").fit(X, y, sample_weight=weights)
