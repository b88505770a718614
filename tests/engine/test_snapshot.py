import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dada.core.graph_steps import LogDegree
from dada.engine import Plan, run
from dada.events import SnapshotOffer, heaviest_predictors
from tests.helpers.problems import random_problem
from tests.helpers.runs import bits_of

PLANS = {
    "distance": Plan(600, graph_every=200, local_updates=100),
    "bounded": Plan(600, graph_every=200, local_updates=100, max_neighbours=2),
    "evidence": Plan(600, graph_every=200, local_updates=100, graph_rule="evidence", n_neighbours=3),
}


class Taker:
    """Takes every snapshot it is offered."""

    def __init__(self):
        self.snapshots, self.milestones = [], 0

    def __call__(self, event):
        if isinstance(event, SnapshotOffer):
            self.snapshots.append(event.take())
            self.milestones += event.milestone


@pytest.fixture
def problem():
    return random_problem(np.random.default_rng(5), 12, 8, dtype=np.float32, regularizer=LogDegree(0.3, 0.1))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_watched_run_computes_the_same(problem, plan):
    taker = Taker()
    watched = run(problem, plan, np.random.default_rng(0), observer=taker)
    assert bits_of(watched) == bits_of(run(problem, plan, np.random.default_rng(0)))
    assert len(taker.snapshots) > 20
    assert taker.milestones == 4


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_last_snapshot_is_the_result(problem, plan):
    taker = Taker()
    result = run(problem, plan, np.random.default_rng(0), observer=taker)
    last = taker.snapshots[-1]
    for seen, true in zip((last.k, last.l, last.w), result.graph.edges(), strict=True):
        assert_array_equal(seen, true)
    assert (last.updates, last.directed) == (600, result.graph.directed)
    assert_array_equal(last.predictor_weights[:, 0], [row[np.abs(row).argmax()] for row in result.models])


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_what_users_have_sent_adds_up_to_the_ledger(problem, plan):
    taker = Taker()
    ledger = run(problem, plan, np.random.default_rng(0), observer=taker).ledger
    last = taker.snapshots[-1]
    assert last.messages.sum() == ledger.messages > 0
    assert_allclose(last.bits.sum(), ledger.bits)


def test_snapshots_stay_as_they_were_taken(problem):
    taker = Taker()
    run(problem, PLANS["distance"], np.random.default_rng(0), observer=taker)
    first = taker.snapshots[0]
    assert (first.phase, first.w.size, first.messages.sum()) == ("local", 0, 0)
    assert (first.predictors == -1).all()


def test_a_loss_of_a_snapshot_is_that_of_the_own_samples(problem):
    taker = Taker()
    result = run(problem, PLANS["distance"], np.random.default_rng(0), observer=taker)
    margins = np.einsum("ij,ij->i", problem.A, np.repeat(result.models, problem.sizes, axis=0))
    rows = np.split(np.exp(-margins.astype(float)), problem.row_start[1:-1])
    assert_allclose(taker.snapshots[-1].loss, [np.log(row.mean()) for row in rows], rtol=1e-3, atol=1e-4)


def test_fewer_predictors_than_asked_for():
    numbers, weights = heaviest_predictors(np.array([[0.5, 0.0]]), 5)
    assert_array_equal(numbers, [[0, -1]])
    assert_array_equal(weights, [[0.5, 0.0]])
