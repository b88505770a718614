"""Random splits, verdicts, and tasks that the paper does not have."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dada.baselines.trees import TreeSettings, trees_local, trees_pooled
from dada.data import Population, Stumps
from dada.experiments import task_studies
from dada.experiments.beyond import JUDGED, RIVALS, _losses, _mean_of, _verdict, _worse_off
from dada.experiments.lab import Lab
from dada.experiments.protocol import FAR, final_jobs, summarise
from dada.task import Task
from tests.helpers.datasets import load_or_skip


def summary(mean):
    return summarise([{"test": [mean / 100], "test_pooled": mean / 100, "neighbours": None, "bits": None}])


def test_random_splits_keep_sizes_and_change_rows():
    from dada.experiments.data import people

    load_or_skip("computer")
    published, first, second = (people("computer", 0, draw) for draw in (0, 1, 2))
    assert first.train.n_rows == pytest.approx(published.train.n_rows, abs=first.train.n_users)
    assert first.train.n_rows + first.test.n_rows == 3800
    assert {tuple(row) for row in first.train.X[first.train.user_rows(0)]} != {
        tuple(row) for row in second.train.X[second.train.user_rows(0)]
    }


def test_a_random_split_has_one_run_of_each_method(tmp_path):
    load_or_skip("school")
    with Lab(tmp_path, n_jobs=1) as lab:
        jobs = final_jobs(lab, ("school", "dada-learned"), {}, split=3)
    assert [(job.run, job.split) for job in jobs] == [(0, 3)]
    assert jobs[0].key != final_jobs(lab, ("school", "dada-learned"), {}, split=4)[0].key


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (1.0, [1.0, 1.2, 0.9], "survives"),
        (1.0, [-1.0, -1.2, -0.9], "does not survive"),
        (1.0, [-1.0, 1.2, 0.9], "no clear difference"),
    ],
)
def test_a_claim_survives_if_random_splits_say_so_beyond_chance(before, now, verdict):
    pair, other = ("school", "dada-auto"), ("school", "hierarchical")
    published = {pair: summary(70.0 + before), other: summary(70.0)}
    means = {pair: 70.0 + np.array(now), other: np.full(3, 70.0)}
    assert _verdict("school", *(method for _, method in (pair, other)), published, means).endswith(f"{verdict}.")


def test_who_is_worse_off_is_judged_by_means_over_splits():
    users = {("school", "dada-alone"): np.array([[70.0, 70.0], [70.0, 70.0]])}
    users["school", "dada-auto"] = np.array([[60.0, 66.0], [80.0, 69.0]])
    assert _worse_off(users, "school", "dada-auto") == 50.0
    assert FAR == 2.0


def test_who_does_better_is_named():
    means = {"dada-auto": 70.0, "dada-cv": 71.0, "hierarchical": 71.5, "local-boost": 60.0}
    summaries = {("school", method): summary(means.get(method, 50.0)) for method in _all_methods()}
    assert _losses("school", summaries).endswith("above it: Hierarchical logistic regression (central) 71.50.")
    summaries["school", "hierarchical"] = summary(50.0)
    assert _losses("school", summaries).endswith("nothing here is above it.")


def _all_methods():
    from dada.experiments.beyond import LINEUP

    assert set(JUDGED) | set(RIVALS) <= set(LINEUP)
    return LINEUP


def test_means_of_tables_are_means_of_their_cells():
    assert _mean_of([{"a": 1, "b": {"c": 2.0}}, {"a": 3, "b": {"c": 6.0}}]) == {"a": 2.0, "b": {"c": 4.0}}


@pytest.fixture
def opposed():
    """Two users with opposite labels of the same feature: only trees that know the user can tell."""
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(80, 1)), np.repeat([0, 1], 40)
    y = np.where((X[:, 0] > 0) == (users == 0), 1, -1)
    people = Population.from_arrays(X, y, users)
    return Task.of(people, Stumps(n=5)), people


def test_trees_that_know_the_user_tell_users_apart(opposed):
    task, people = opposed
    settings, rng = TreeSettings(trees=30, depth=3), np.random.default_rng(0)
    assert trees_pooled(task, people, settings, rng, with_user=True).test_accuracy_pooled > 0.95
    assert trees_pooled(task, people, settings, rng).test_accuracy_pooled < 0.8
    assert trees_local(task, people, settings, rng).test_accuracy_pooled > 0.95


def test_trees_of_a_user_with_one_class_say_that_class():
    people = Population.from_arrays(np.arange(4.0)[:, None], [1, 1, -1, 1], [0, 0, 1, 1])
    outcome = trees_local(Task.of(people, Stumps(n=2)), people, TreeSettings(trees=3), np.random.default_rng(0))
    assert outcome.test_accuracy[0] == 1.0


def test_trees_refuse_settings_that_make_none():
    with pytest.raises(ValueError, match="trees and depth must be >= 1, got trees=0, depth=3"):
        TreeSettings(trees=0)


def test_variance_inside_schools_is_less_than_over_all(monkeypatch):
    rows = load_or_skip("school")
    found = task_studies.school_scores({"who": "local", "split": 1}, 0)
    assert 0 < found["explained_within"] < found["explained"] < 1
    scores = rows.extras["score"][rows.extras["split1"] == 1].astype(float)
    assert_allclose(found["rmse"] ** 2, (1 - found["explained"]) * scores.var())
