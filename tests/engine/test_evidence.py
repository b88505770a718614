"""The evidence graph: who does well on my samples, directed, at most n_neighbours of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

from dada import task
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import keep_best, log_evidence
from dada.core.losses import ALL_ALIKE, loss_code
from dada.core.model_steps import UserModel
from dada.core.plan import Plan
from dada.core.problem import Problem
from dada.data import Stumps, moons
from dada.engine import run
from dada.engine.graph_loops import EvidenceRule
from dada.engine.state import State
from dada.fitting.newcomers import Candidates
from dada.fitting.newcomers import log_evidence as evidence_of_newcomer
from tests.helpers.problems import random_problem


def evidence_plan(**settings):
    return Plan(
        **({"n_updates": 300, "graph_rule": "evidence", "n_neighbours": 3, "kappa": 2, "graph_every": 60} | settings)
    )


@given(hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(-50, 50)), st.integers(1, 12))
def test_the_best_are_kept_with_weights_that_sum_to_one(scores, most):
    weights = np.empty_like(scores)
    keep_best(scores, most, weights)
    kept = np.sort(np.argsort(-scores, kind="stable")[:most])
    expected = np.zeros_like(scores)
    expected[kept] = np.exp(scores[kept] - np.logaddexp.reduce(scores[kept]))
    assert_allclose(weights, expected, rtol=1e-9, atol=1e-300)


def test_evidence_is_the_logistic_loss_of_the_other_model_on_my_samples():
    rng = np.random.default_rng(0)
    A = rng.choice(np.array([-1, 1], np.int8), size=(4, 6))
    alpha = np.array([0.5, 0.0, -1.0, 0.0, 0.25, 0.0], np.float32)
    support = np.array([4, 0, 2, 0, 0, 0], np.int16)
    expected = np.log(7) - 2.0 * np.logaddexp(0.0, -(A @ alpha)).sum()
    judge = UserModel(A, np.zeros(4, np.float32), alpha, alpha, support, np.zeros(4, np.float32), ALL_ALIKE)
    assert_allclose(log_evidence(2.0, loss_code("adaboost"), judge, alpha, support, 3, 7), expected, rtol=1e-6)
    residuals = A @ alpha - np.arange(4)
    judge = judge._replace(offset=-np.arange(4, dtype=np.float32))
    expected = np.log(7) - 2.0 * (residuals**2 / 2).sum()
    assert_allclose(log_evidence(2.0, loss_code("squared"), judge, alpha, support, 3, 7), expected, rtol=1e-6)


@pytest.mark.parametrize("loss", ["logistic", "squared", "huber"])
def test_evidence_counts_samples_by_weight_for_a_newcomer_too(loss):
    rng = np.random.default_rng(1)
    A, alpha = rng.normal(size=(4, 3)), rng.normal(size=3)
    given = dict(beta=9.0, mu1=1.0, loss=loss, offset=rng.normal(size=4))
    twice = np.array([0, 1, 1, 2, 3, 3])
    problem = Problem(A, np.array([0, 4]), weights=np.array([1.0, 2.0, 1.0, 2.0]), **given)
    repeated = Problem(A[twice], np.array([0, 6]), **(given | {"offset": given["offset"][twice]}))
    candidates = Candidates(alpha[None], np.ones(1), CollaborationGraph.empty(1))
    alone = np.array([0])
    found = evidence_of_newcomer(candidates, alone, problem, 1.5)
    # Six rows weigh as much as four of weight 1.5.
    assert_allclose(found, evidence_of_newcomer(candidates, alone, repeated, 1.5) / 1.5, rtol=1e-12)
    judge = UserModel(A, np.zeros(4), alpha, alpha, np.arange(3), problem.offsets, problem.sample_weight)
    assert_allclose(log_evidence(1.5, problem.loss_code, judge, alpha, np.arange(3), 3, 1), found[0], rtol=1e-12)


def test_followers_mirror_the_lists_and_each_user_spends_one_unit_of_weight():
    problem = random_problem(np.random.default_rng(1), n_users=9, n=8)
    result = run(problem, evidence_plan(), np.random.default_rng(2))
    assert result.graph.directed
    assert result.graph.neighbour_counts.max() <= 3
    assert_allclose(result.graph.degree[result.graph.neighbour_counts > 0], 1.0)
    assert not (result.graph.to_scipy().diagonal() != 0).any()

    state = State.start(problem, evidence_plan(), result.graph, np.float32)
    state.users.n_support[:] = 1
    rng = np.random.default_rng(3)
    awake = rng.integers(9, size=50).astype(np.int32)
    batches = np.array([rng.choice(np.delete(np.arange(9), k), 2, replace=False) for k in awake], np.int32)
    learner, done = EvidenceRule(problem, evidence_plan()), 0
    while done < 50:
        done += learner.wake(state, awake[done:], batches[done:], np.zeros((50 - done, 0), np.int64))
    followed_by = replace(state, lists=state.followers, followers=state.lists).graph
    assert_array_equal(state.graph.to_scipy().toarray(), followed_by.to_scipy().T.toarray())


@pytest.mark.parametrize("max_bits", [2_000, 9_000, 20_000])
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, max_bits):
    problem = random_problem(np.random.default_rng(4), n_users=7, n=8)
    whole = run(problem, evidence_plan(), np.random.default_rng(5))
    path = tmp_path / "run.ckpt"
    stopped = run(problem, evidence_plan(max_bits=max_bits), np.random.default_rng(5), checkpoint=path)
    assert stopped.ledger.bits <= max_bits < whole.ledger.bits
    resumed = run(problem, evidence_plan(), np.random.default_rng(5), checkpoint=path, resume=True)
    assert_array_equal(resumed.models, whole.models)
    assert_array_equal(resumed.graph.to_scipy().toarray(), whole.graph.to_scipy().toarray())
    assert resumed.ledger.bits == whole.ledger.bits


def test_on_moons_evidence_finds_the_clusters_that_distances_find_half_way():
    users = moons(np.random.default_rng(7), rule="run")
    predictors = Stumps(n=200, rule="feature-range").fit(users.train.X)
    problem, test = task.problem(users.train, predictors, beta=10.0, mu1=1.0), task.samples(users.test, predictors)
    plan = Plan(n_updates=20_000, graph_rule="evidence", tau=1.0, graph_every=1_000, trace_every=20_000)
    found = run(problem, plan, np.random.default_rng(0), test=test)
    alone = run(problem, Plan(n_updates=20_000, learn_graph=False), np.random.default_rng(0), test=test)
    k, l, w = found.graph.edges()
    inside = w[users.groups[k] == users.groups[l]].sum() / w.sum()
    assert inside > 0.75
    assert found.trace[-1].test_accuracy.mean() > alone.trace[-1].test_accuracy.mean() + 0.05
