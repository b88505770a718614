"""Settings chosen on held-out rows, and who keeps its local model."""

import numpy as np
import pytest

from dada import DadaClassifier, DadaClassifierCV, DadaRegressor, DadaRegressorCV
from dada.data import Population, moons
from dada.estimators.cv import Setting, best_setting, better_alone
from dada.fitting.held_out import HeldOutScores


def people(part):
    return part.X, part.y, part.users


def test_cross_validation_chooses_and_tells():
    users = moons(4, n_users=30)
    X, y, owner = people(users.train)
    search = DadaClassifierCV(DadaClassifier(n_updates=60), betas=(10.0,), mu_scales=(2.0, 0.5), random_state=0)
    search.fit(X, y, users=owner)
    tried = {each.setting: each for each in search.cv_results_}
    assert len(tried) == 1 + 2
    best = search.best_setting_
    assert best.family == "waves"
    together = [each for setting, each in tried.items() if setting.graph == best.graph]
    assert best.mu_scale == 2.0 or tried[best].log_score == max(each.log_score for each in together)
    assert all(0 < each.score < 1 and each.log_score < 0 for each in search.cv_results_)
    assert search.best_estimator_.settings_["graph"] == search.best_setting_.graph
    Xt, yt, ownert = people(users.test)
    assert search.score(Xt, yt, users=ownert) == search.best_estimator_.score(Xt, yt, users=ownert)


def test_a_user_whom_nobody_resembles_keeps_its_local_model():
    rng = np.random.default_rng(0)
    X, owner = rng.normal(size=(12 * 40, 1)), np.repeat(np.arange(12), 40)
    y = (X[:, 0] > 0) != (owner == 5)
    search = DadaClassifierCV(
        DadaClassifier(graph="everyone", n_updates=60), betas=(10.0,), mu_scales=(50.0,), random_state=0
    ).fit(X, y, users=owner)
    assert search.alone_.tolist() == [k == 5 for k in range(12)]
    assert search.score(X[owner == 5], y[owner == 5], users=5) > 0.9


def test_numbers_are_compared_by_their_squared_error():
    rng = np.random.default_rng(0)
    X, owner = rng.normal(size=(12 * 20, 1)), np.repeat(np.arange(12), 20)
    y = 100 + 10 * np.where(owner == 5, -X[:, 0], X[:, 0]) + rng.normal(size=240)
    search = DadaRegressorCV(
        DadaRegressor(graph="everyone", n_updates=40), betas=(10.0,), mu_scales=(20.0, 0.01), random_state=0
    ).fit(X, y, users=owner)
    tried = {each.setting.mu_scale: each for each in search.cv_results_}
    assert search.best_setting_.mu_scale == 0.01
    # In units of y: close to the variance of the noise, and to that of y if all must agree with user 5.
    assert -3 < tried[0.01].score < -0.9
    assert tried[20.0].score < -15
    assert search.score(X, y, users=owner) > 0.95
    assert not search.alone_.any()
    same = DadaRegressorCV(search.estimator, betas=(10.0,), mu_scales=(20.0,), random_state=0).fit(X, y, users=owner)
    assert same.alone_[5]
    assert same.score(X[owner == 5], y[owner == 5], users=5) > 0.95


def judged(right, log_score):
    return HeldOutScores(np.repeat(np.float32(right), 3), np.repeat(np.float32(log_score), 3))


def test_the_usual_setting_stays_unless_another_is_likelier_and_right_as_often():
    rows = Population.from_arrays(np.zeros((12, 1)), np.tile([0, 1], 6), np.repeat([0, 1, 2, 3], 3))
    usual, other, third = (
        Setting("everyone", beta, mu_scale, "linear") for beta, mu_scale in ((30, 1), (30, 4), (10, 4))
    )
    plain, worse = [1, 1, 0, 1], [0, 1, 0, 0]
    for likelier, right, best in (
        ([-0.2, -0.3, -0.2, -0.1], plain, other),  # likelier for everybody
        ([-0.9, -0.1, -0.4, -0.2], plain, usual),  # likelier by chance
        ([-0.2, -0.3, -0.2, -0.1], worse, usual),  # likelier, and less often right
    ):
        found = {other: judged(right, likelier), usual: judged(plain, [-0.5, -0.4, -0.6, -0.3])}
        assert best_setting(found, rows, beta=30.0) == best
        assert best_setting(found | {third: judged(worse, [0.0] * 4)}, rows, beta=30.0) == best


@pytest.mark.parametrize("grid", [{"betas": ()}, {"mu_scales": (1.0, 0.0)}, {"betas": (10.0, "auto")}])
def test_grids_that_are_none_are_refused(grid):
    X, owner = np.zeros((12, 1)), np.repeat([0, 1, 2, 3], 3)
    with pytest.raises(ValueError, match="must be numbers > 0 to choose from"):
        DadaClassifierCV(**grid).fit(X, np.tile([0, 1], 6), users=owner)


def test_weights_reach_trials_and_the_last_fit():
    rng = np.random.default_rng(0)
    X, owner = rng.normal(size=(8 * 30, 1)), np.repeat(np.arange(8), 30)
    y = X[:, 0] + rng.normal(size=240) > 1.5
    search = DadaClassifierCV(
        DadaClassifier(graph="everyone", n_updates=60), betas=(10.0,), mu_scales=(1.0,), random_state=0
    )
    plain = search.fit(X, y, users=owner).predict(X, users=owner)
    heavy = search.fit(X, y, users=owner, sample_weight=np.where(y, 50.0, 1.0))
    assert heavy.predict(X, users=owner).sum() > plain.sum()
    light = np.where(owner == 3, 0.0, 1.0)
    with pytest.raises(ValueError, match="no row of a weight above 0"):
        search.fit(X, y, users=owner, sample_weight=light)


def test_a_local_model_is_kept_only_beyond_chance():
    X, owner = np.zeros((24, 1)), np.repeat([0, 1, 2, 3], 6)
    rows = Population.from_arrays(X, np.tile([0, 1], 12), owner)
    # Rows that only the local model got right: five, four, six and none.
    gains = np.zeros((4, 6), np.float32)
    gains[0, :5] = gains[1, :4] = gains[2, :6] = 1.0
    assert better_alone(gains.ravel(), rows, doubt=1.64).tolist() == [True, False, True, False]
    assert not better_alone(gains.ravel(), rows, doubt=np.inf).any()


def test_a_local_model_of_numbers_is_kept_beyond_chance_in_any_unit():
    rows = Population.from_arrays(np.zeros((12, 1)), np.linspace(0, 1, 12), np.repeat([0, 1], 6), task="numbers")
    gains = np.array([1, 2, 1, 2, 1, 2, 5, -4, 3, -2, 1, 0], np.float32)
    for unit in (1e-3, 1.0, 1e3):
        assert better_alone(np.float32(unit) * gains, rows, doubt=1.64).tolist() == [True, False]
