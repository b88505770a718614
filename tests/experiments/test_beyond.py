"""Random splits, verdicts, and tasks that the paper does not have."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dada.experiments.beyond import LINEUP, ON_SPLITS, better_methods, far_below, school_scores, short_table, verdict
from dada.experiments.lab import Lab
from dada.experiments.protocol import final_jobs, summarise
from dada.experiments.tasks import people
from tests.helpers.datasets import load_or_skip


def summary(mean):
    return summarise([{"test": [mean / 100], "test_pooled": mean / 100, "neighbours": None, "bits": None}])


def test_random_splits_keep_sizes_and_change_rows():
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
    assert [(job.arguments["run"], job.arguments["split"]) for job in jobs] == [(0, 3)]
    assert jobs[0].key != final_jobs(lab, ("school", "dada-learned"), {}, split=4)[0].key


@pytest.mark.parametrize(
    ("before", "now", "finding"),
    [
        (1.0, [1.0, 1.2, 0.9], "confirmed"),
        (1.0, [-1.0, -1.2, -0.9], "not confirmed"),
        (1.0, [-1.0, 1.2, 0.9], "no clear difference"),
    ],
)
def test_random_splits_confirm_a_difference_beyond_two_standard_errors(before, now, finding):
    pair, other = ("school", "dada-auto"), ("school", "hierarchical")
    published = {pair: summary(70.0 + before), other: summary(70.0)}
    means = {pair: 70.0 + np.array(now), other: np.full(3, 70.0)}
    assert verdict(pair, other, published, means).endswith(f": {finding}.")


@pytest.mark.parametrize(("points", "share"), [(0.0, 50.0), (2.0, 50.0), (2.6, 0.0)])
def test_users_are_compared_by_their_means_over_splits(points, share):
    alone = np.array([[70.0, 70.0], [70.0, 70.0]])
    ours = np.array([[60.0, 66.0], [80.0, 69.0]])
    assert far_below(alone, ours, points) == share


def test_better_methods_are_named():
    means = {"dada-auto": 70.0, "dada-cv": 71.0, "hierarchical": 71.5, "local-boost": 60.0}
    summaries = {("school", method): summary(means.get(method, 50.0)) for method in LINEUP}
    assert better_methods("school", summaries).endswith("above it: Hierarchical logistic regression (central) 71.50.")
    summaries["school", "hierarchical"] = summary(50.0)
    assert better_methods("school", summaries).endswith("above it: none.")


def test_the_short_table_has_published_numbers_in_brackets():
    summaries = {("school", method): summary(70.0) for method in LINEUP}
    rows = {row[0]: row[1] for row in short_table(["school"], summaries).rows}
    assert rows["the paper's method (Dada-Learned)"] == "70.0 (72.5)"
    assert rows["**`DadaClassifier()`**"] == "**70.0**"


def test_methods_on_random_splits_are_also_on_the_published_one():
    assert set(ON_SPLITS) <= set(LINEUP)


def test_variance_inside_schools_is_less_than_over_all():
    rows = load_or_skip("school")
    found = school_scores("home-ridge", split=1, seed=0)
    assert 0 < found["explained_within"] < found["explained"] < 1
    scores = rows.extras["score"][rows.extras["split1"] == 1].astype(float)
    assert_allclose(found["rmse"] ** 2, (1 - found["explained"]) * scores.var())
