"""What "auto" decides, and that the estimator tells."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from dada import DadaClassifier, LogDegree
from dada.core.plan import Plan
from dada.data import Population, Stumps, moons
from dada.engine import run
from dada.events import silent
from dada.fitting.boosting import boosted_of
from dada.fitting.held_out import Choice, Trials, decide, expected_answer
from dada.fitting.models import lam_for
from dada.fitting.settings import Settings, everyone, families
from dada.task import problem
from tests.helpers.people import moons_rows, opposites


def fitted(rows, **settings):
    return DadaClassifier(**{"random_state": 0, **settings}).fit(rows.X, rows.y, users=rows.users)


def test_users_of_different_kinds_get_a_graph_by_evidence():
    train, test = moons_rows(7)
    model = fitted(train)
    assert model.settings_["graph"] == "evidence"
    tried = model.settings_["held_out"]
    assert tried["stumps, everyone, whole"] > tried["linear, everyone, whole"]
    assert tried["stumps, evidence"] > tried["stumps, everyone"]
    assert model.graph_.neighbour_counts.max() <= 10
    assert model.score(test.X, test.y, users=test.users) > 0.9


def test_users_who_are_alike_learn_from_everyone():
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(240, 4)), np.repeat(np.arange(30), 8)
    y = X @ [1.0, -1.0, 0.5, 0.0] + rng.normal(size=240) > 0
    model = DadaClassifier(random_state=0, n_updates=100).fit(X, y, users=users)
    assert model.settings_["graph"] == "everyone"
    assert model.settings_["mu"] == pytest.approx(0.5 * 0.35)
    assert 5 < model.graph_.mean_neighbours <= 10


def test_evidence_that_leads_early_must_not_be_behind_at_the_end():
    # What all have in common is a small difference of correlated features, which takes long to find.
    rng = np.random.default_rng(1)
    users, habits = np.repeat(np.arange(100), 4), np.repeat(rng.integers(0, 2, 100), 4)
    y = np.where(rng.random(400) < 0.85, habits, 1 - habits)
    X = rng.normal(size=(400, 8)) + 8 * rng.normal(size=(400, 1))
    X[:, 0] += 4 * (2 * y - 1)
    used = DadaClassifier(random_state=0, predictors="linear").fit(X, y, users=users).settings_
    tried = used["held_out"]
    assert tried["linear, evidence"] > tried["linear, everyone"]
    assert tried["linear, evidence, whole"] < tried["linear, everyone, whole"]
    assert used["graph"] == "everyone"


def test_a_comparison_ends_when_further_folds_can_hardly_change_it():
    assert expected_answer(0.0, 1 / 3, 1.64) is False
    assert expected_answer(1.9, 1 / 3, 1.64) is True
    assert expected_answer(1.0, 1 / 3, 1.64) is None
    # The last fold always decides.
    assert [expected_answer(ahead, 1.0, 1.64) for ahead in (1.63, 1.65)] == [False, True]


def test_a_hopeless_family_is_tried_on_one_fold_only():
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(800, 4)), np.repeat(np.arange(40), 20)
    people = Population.from_arrays(X, X @ [1.0, -1.0, 0.5, 0.0] + rng.normal(size=800) > 0, users)
    trials = Trials(Settings(), people, families(people), np.random.default_rng(0), silent)
    usual, hopeless = Choice("linear", "everyone"), Choice("linear", "none")
    assert trials.best([usual, hopeless]) == usual
    assert [len(trials.folds), len(trials._tried[usual]), len(trials._tried[hopeless])] == [3, 1, 1]
    assert trials.best([usual, usual]) == usual
    # Few users, or few rows, have uncertain standard errors, so all their folds are used.
    for few in (people.select(np.arange(20)), people.take(np.arange(0, 800, 2))):
        trials = Trials(Settings(), few, families(few), np.random.default_rng(0), silent)
        assert trials.best([usual, hopeless]) == usual
        assert len(trials._tried[hopeless]) == 3


def test_many_rows_are_tried_on_some_users_and_one_fold():
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(24_000, 2)), np.repeat(np.arange(120), 200)
    people = Population.from_arrays(X, X[:, 0] > 0, users)
    trials = Trials(Settings(), people, families(people), np.random.default_rng(0), silent)
    assert (trials.population.n_users, len(trials.folds)) == (100, 1)
    every = Trials(Settings(step="pairwise"), people, families(people), np.random.default_rng(0), silent)
    assert every.population.n_users == 120


def test_models_of_few_weights_wake_up_less_often():
    people = moons(1, n_users=5).train
    assert [Settings().resolved(people, n).n_updates for n in (10, 1000)] == [50, 80]


def test_settings_tell_what_was_used():
    # Fewer rows do not show beyond doubt that users differ.
    rows = opposites(40, tuple(range(16)))
    used = fitted(rows).settings_
    assert (used["loss"], used["beta"], used["n_updates"]) == ("logistic", 30.0, 50)
    # Half of them want the opposite of the others, so that the least pull is best.
    assert used["mu"] == pytest.approx(0.0625 * 0.35)
    assert any(choice.endswith("mu x 0.0625") for choice in used["held_out"])
    assert used["n_predictors"] == fitted(rows).predictors_.n
    given = fitted(rows, loss="adaboost", beta=3.0, mu=0.2, graph="none", n_updates=7).settings_
    assert [given[name] for name in ("loss", "beta", "mu", "graph", "n_updates")] == ["adaboost", 3.0, 0.2, "none", 7]


def test_base_predictors_are_those_that_do_better_on_held_out_rows():
    rng = np.random.default_rng(0)
    X, users = rng.uniform(-1, 1, size=(300, 3)), np.repeat(np.arange(10), 30)
    slanted, striped = X @ [1.0, -1.0, 0.5] > 0, abs(X[:, 0]) > 0.5
    for y, family, n in ((slanted, "linear", 4), (striped, "stumps", 34)):
        used = DadaClassifier(random_state=0).fit(X, y, users=users).settings_
        simple = {c: right for c, right in used["held_out"].items() if not c.startswith(("waves", "trees"))}
        assert max(simple, key=simple.__getitem__).startswith(family)
        _, recipe = boosted_of(used["predictors"])
        assert recipe.fit(X).n == n


def test_nothing_is_tried_where_everything_is_given():
    rows = opposites()
    assert fitted(rows, predictors=Stumps(n=5), graph="none").settings_["held_out"] == {}


def test_of_many_users_some_are_enough_to_choose_by():
    train = moons(3, n_users=60).train
    decided = decide(Settings(), train, np.random.default_rng(0), most_users=40)
    assert (decided.family, decided.settings.graph) == ("waves", "evidence")


def test_lam_from_a_wanted_number_of_neighbours():
    train = moons(5, n_users=50).train
    joint = problem(train, Stumps(n=60).fit(train.X), beta=10.0, mu1=1.0)
    for wanted in (8.0, 15.0, 25.0):
        lam = lam_for(joint, Plan(50 * 60), wanted, 0.01, np.random.default_rng(0), np.float32)
        settled = replace(joint, regularizer=LogDegree(lam, 0.01))
        graph = run(settled, Plan(50 * 60), np.random.default_rng(1)).graph
        assert 0.75 * wanted < graph.mean_neighbours < 1.25 * wanted


def test_evidence_can_be_made_symmetric():
    train, _ = moons_rows(1, n_users=30)
    model = fitted(train, graph="evidence-symmetric", n_neighbours=4, n_updates=50)
    assert not model.graph_.directed
    weights = model.graph_.to_scipy()
    assert abs(weights - weights.T).max() == 0
    assert model.graph_.n_edges > 0


def test_many_users_follow_some_others():
    graph = everyone(1000, np.random.default_rng(0))
    assert 45 < graph.mean_neighbours <= 50


def test_settings_cannot_change_once_made():
    settings = Settings(mu=0.5)
    with pytest.raises(FrozenInstanceError, match="replace"):
        settings.mu = 1.0
    assert replace(settings, mu=1.0).mu == 1.0
