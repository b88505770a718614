"""Settings of many users are found from samples of them."""

from dataclasses import replace

import numpy as np
import pytest

from dada import task
from dada.core.plan import Plan
from dada.data import Stumps, moons
from dada.fitting.models import extrapolated, some_users


@pytest.fixture(scope="module")
def problem():
    train = moons(1, n_users=60, n_test=1).train
    return task.problem(train, Stumps(n=20).fit(train.X), beta=5.0, mu1=1.0)


def test_a_sample_has_whole_users_and_as_many_wake_ups_for_each(problem):
    fewer, plan = some_users(problem, Plan(600, local_updates=1200, graph_every=300), 20, np.random.default_rng(0))
    assert (plan.n_updates, plan.local_updates, plan.graph_every) == (200, 400, 100)
    rows = {part.tobytes() for part in np.split(problem.A, problem.row_start[1:-1])}
    drawn = np.split(fewer.A, fewer.row_start[1:-1])
    assert len(drawn) == 20
    assert all(part.tobytes() in rows for part in drawn)


def test_a_sample_keeps_what_each_row_counts(problem):
    weighted = replace(problem, weights=1.0 + np.arange(len(problem.A)))
    fewer, _ = some_users(weighted, Plan(600), 20, np.random.default_rng(0))
    assert len(fewer.weights) == len(fewer.A)
    assert np.array_equal(weighted.A[fewer.weights.astype(int) - 1], fewer.A)


def test_a_power_law_is_continued_to_all_users(problem):
    rng = np.random.default_rng(0)
    found = extrapolated(lambda some, _: 7.0 * some.n_users**-1.5, problem, Plan(60), rng, samples=(10, 40))
    assert found == pytest.approx(7.0 * 60**-1.5)
