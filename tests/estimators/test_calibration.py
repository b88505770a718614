"""Temperatures make probabilities reliable and change no label."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, softmax

from dada import DadaClassifier, DadaClassifierCV, Linear, Privacy, load_model, save_model
from dada.core.losses import Reliability
from dada.fitting.calibration import calibrate
from dada.fitting.models import HeldOutValues, best_class

N_USERS = 30


def drawn(rng, n_rows, temperatures, n_classes=2):
    """Rows of users whose decision values are too large by their temperature."""
    owners = np.repeat(np.arange(len(temperatures)), n_rows)
    scores = rng.normal(size=(len(owners), n_classes)) * 1.5
    labels = np.array([rng.choice(n_classes, p=softmax(row)) for row in scores])
    values = scores * temperatures[owners][:, None]
    return HeldOutValues(owners, labels, values[:, 1] - values[:, 0] if n_classes == 2 else values)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_common_temperature_is_found_and_makes_probabilities_reliable(n_classes):
    rng, wanted = np.random.default_rng(0), np.full(N_USERS, 2.5)
    found = calibrate(drawn(rng, 100, wanted, n_classes), np.arange(N_USERS))
    assert_allclose(found.common, 2.5, rtol=0.1)
    assert_allclose(found.temperatures, 2.5, rtol=0.35)
    assert found.before.error > 0.08
    assert found.after.error < 0.025
    assert found.after.log_loss < found.before.log_loss - 0.1


def test_a_user_has_its_own_temperature_if_its_rows_are_many():
    rng, wanted = np.random.default_rng(1), np.repeat([1.0, 3.0], N_USERS // 2)
    many, few = (calibrate(drawn(rng, n, wanted), np.arange(N_USERS)).temperatures for n in (2000, 10))
    assert_allclose(many, wanted, rtol=0.3)
    spread = [np.log(found[wanted == 3]).mean() - np.log(found[wanted == 1]).mean() for found in (many, few)]
    assert spread[0] > 0.8
    assert 0 < spread[1] < 0.4


def test_reliable_values_are_left_alone():
    found = calibrate(drawn(np.random.default_rng(2), 10, np.ones(N_USERS)), np.arange(N_USERS))
    assert found.common == 1.0 or found.after.log_loss < found.before.log_loss
    assert_allclose(found.temperatures, 1.0, atol=0.3)


def test_too_few_rows_have_no_calibration():
    assert calibrate(drawn(np.random.default_rng(0), 1, np.ones(3)), np.arange(3)) is None
    one_class = HeldOutValues(np.zeros(50, int), np.zeros(50, int), np.ones(50))
    assert calibrate(one_class, np.arange(1)) is None


def noisy_users(rng, n_rows, n_classes=2):
    """Rows of users with more features than matter, a third of whose labels are random."""
    X, users = rng.normal(size=(N_USERS * n_rows, 10)), np.repeat(np.arange(N_USERS), n_rows)
    y = np.digitize(X[:, 0] + 0.3 * X[:, 1], np.linspace(-0.7, 0.7, n_classes - 1) if n_classes > 2 else [0.0])
    return X, np.where(rng.random(len(y)) < 0.3, rng.integers(n_classes, size=len(y)), y), users


@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_are_reliable_on_new_rows_and_labels_stay(n_classes, tmp_path):
    rng = np.random.default_rng(3)
    X, y, users = noisy_users(rng, 15, n_classes)
    # Weakly coupled users fit noise, and their models are too sure. With a limit of bits, no trees correct them.
    given = {"graph": "everyone", "mu": 0.01, "n_updates": 40, "max_bits": 1e12}
    model = DadaClassifier(**given, random_state=0).fit(X, y, users=users)
    Xn, yn, un = noisy_users(rng, 60, n_classes)
    values, chances = model.decision_function(Xn, users=un), model.predict_proba(Xn, users=un)
    assert_allclose(chances.sum(axis=1), 1.0)
    assert_array_equal(chances.argmax(axis=1), best_class(values))
    assert_array_equal(model.predict(Xn, users=un), chances.argmax(axis=1))
    raw = softmax(values, axis=1) if n_classes > 2 else np.column_stack([1 - expit(values), expit(values)])
    before, after = Reliability.of(raw, yn), Reliability.of(chances, yn)
    assert after.log_loss < before.log_loss - 0.1
    assert after.error < before.error / 2
    save_model(model, tmp_path / "model.dada")
    loaded = load_model(tmp_path / "model.dada")
    assert_array_equal(loaded.predict_proba(Xn, users=un), chances)
    assert loaded.calibration_.after.error == model.calibration_.after.error


def test_newcomers_and_unknown_users_have_the_common_temperature():
    X, y, users = noisy_users(np.random.default_rng(4), 10)
    model = DadaClassifier(graph="everyone", n_updates=20, unknown_user="average", random_state=0)
    model.fit(X, y, users=users)
    model.add_user(X[:10], y[:10], 99)
    for user in (99, 12345):
        values = model.decision_function(X[:5], users=user)
        assert_allclose(model.predict_proba(X[:5], users=user)[:, 1], expit(values / model.calibration_.common))


def test_without_trials_probabilities_are_those_of_the_model():
    X, y, users = noisy_users(np.random.default_rng(5), 5)
    given = DadaClassifier(Linear(), graph="everyone", mu=0.1, n_updates=5, random_state=0).fit(X, y, users=users)
    private = DadaClassifier(n_updates=5, privacy=Privacy(4.0, protects="labels", noise="seeded"), random_state=0)
    private.fit(X, y, users=users)
    for model in (given, private):
        assert model.calibration_ is None
        values = model.decision_function(X, users=users)
        assert_allclose(model.predict_proba(X, users=users)[:, 1], expit(values))


def test_a_search_calibrates_with_its_own_held_out_rows():
    X, y, users = noisy_users(np.random.default_rng(6), 12)
    base = DadaClassifier(Linear(), graph="everyone", n_updates=15)
    search = DadaClassifierCV(base, betas=(30.0,), mu_scales=(0.1,), random_state=0).fit(X, y, users=users)
    found = search.best_estimator_.calibration_
    assert found.after.log_loss < found.before.log_loss
    scores = {each.setting: each.log_score for each in search.cv_results_}
    assert found.before.log_loss == pytest.approx(-scores[search.best_setting_], rel=1e-5)
