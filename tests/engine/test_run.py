"""What runs learn: alone, together, over given and learned graphs, with custom losses and regularizers."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dada import task
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import DegreeFunction, LogDegree
from dada.core.losses import Loss
from dada.core.plan import BLOCK
from dada.core.problem import Problem
from dada.data import Stumps, moons
from dada.engine import Plan, Samples, accuracy_per_user, decision_values, run
from tests.helpers.problems import random_graph, random_problem

STEPS = ("pairwise", "paper", "local", "line-search")


@pytest.fixture(scope="module")
def users():
    return moons(np.random.default_rng(1), rule="run")


@pytest.fixture(scope="module")
def predictors(users):
    return Stumps(n=200, rule="feature-range").fit(users.train.X)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("density", [0.2, 1.0])
def test_without_any_pull_a_graph_changes_no_bit_of_the_models(step, density):
    rng = np.random.default_rng(1)
    problem = random_problem(rng, 8, 7, mu1=0.0, dtype=np.float32)
    plan = Plan(3_000, learn_graph=False, step=step)
    graph = random_graph(rng, 8, density)
    alone = run(problem, plan, np.random.default_rng(2))
    together = run(problem, plan, np.random.default_rng(2), graph=graph)
    assert alone.models.tobytes() == together.models.tobytes()
    assert together.ledger.bits > 0


def test_without_any_pull_a_learned_graph_changes_no_bit_of_the_models():
    problem = random_problem(np.random.default_rng(1), 8, 7, mu1=0.0, mu2=0.5, dtype=np.float32)
    plan = Plan(3_000, kappa=3, graph_every=100)
    learned = run(problem, plan, np.random.default_rng(2))
    alone = run(problem, replace(plan, learn_graph=False), np.random.default_rng(2))
    assert learned.graph.n_edges > 0
    assert alone.models.tobytes() == learned.models.tobytes()


def test_on_the_complete_graph_a_strong_pull_gives_everybody_one_model():
    problem = random_problem(np.random.default_rng(3), 6, 7, dtype=np.float32)
    everyone, spreads = CollaborationGraph.complete(6), []
    for mu1 in (0.1, 10.0, 1_000.0):
        pulled = replace(problem, mu1=mu1)
        models = run(pulled, Plan(60_000, learn_graph=False), np.random.default_rng(4), graph=everyone).models
        spreads.append(np.abs(models - models.mean(axis=0)).sum(axis=1).max())
    assert spreads[0] > 0.3
    assert spreads[0] > spreads[1] > spreads[2]
    assert spreads[2] < 0.01


def test_a_user_without_neighbours_solves_its_local_problem():
    problem = random_problem(np.random.default_rng(5), 5, 7, mu1=2.0)
    pair = CollaborationGraph.from_edges(5, [1], [3], [2.0])
    result = run(problem, Plan(20_000, learn_graph=False), np.random.default_rng(6), graph=pair, dtype=np.float64)
    alone = run(problem, Plan(20_000, learn_graph=False), np.random.default_rng(6), dtype=np.float64)
    for k in (0, 2, 4):
        assert_array_equal(result.models[k], alone.models[k])
    for k in (1, 3):
        assert np.abs(result.models[k] - alone.models[k]).max() > 1e-3
    assert problem.model_gaps(alone.models, CollaborationGraph.empty(5)).max() < 1e-6


def test_only_the_ratios_of_the_weights_matter_to_the_models():
    rng = np.random.default_rng(7)
    problem, graph = random_problem(rng, 8, 7, dtype=np.float32), random_graph(rng, 8)
    plan = Plan(400, learn_graph=False)
    plain = run(problem, plan, np.random.default_rng(8), graph=graph).models
    for scale in (2.0**-30, 2.0**30):
        scaled = replace(graph, weights=graph.weights * scale)
        assert_array_equal(run(problem, plan, np.random.default_rng(8), graph=scaled).models, plain)


def test_a_smaller_lam_gives_fewer_neighbours_on_moons(predictors, users):
    neighbours = []
    for lam in (0.03, 3.0, 30.0):
        problem = task.problem(users.train, predictors, beta=10.0, mu1=1.0, regularizer=LogDegree(lam, 0.1))
        neighbours.append(run(problem, Plan(10_000), np.random.default_rng(0)).graph.mean_neighbours)
    assert 5 < neighbours[0] < 0.7 * neighbours[1] < 0.7 * neighbours[2]


def test_a_plan_of_defaults_learns_better_together_than_alone_on_moons(predictors, users):
    problem = task.problem(users.train, predictors, beta=10.0, mu1=1.0, regularizer=LogDegree(0.3, 0.1))
    accuracy = {}
    for learn_graph in (False, True):
        plan = Plan(20_000, learn_graph=learn_graph)
        result = run(problem, plan, np.random.default_rng(0), test=task.samples(users.test, predictors))
        accuracy[learn_graph] = result.trace[-1].test_accuracy.mean()
    assert accuracy[True] > accuracy[False] + 0.05


def test_wakeups_in_spans_come_to_the_same_optimum(predictors):
    people = moons(np.random.default_rng(1), rule="run", n_users=30).train
    problem = task.problem(people, predictors, beta=10.0, mu1=1.0)
    graph = CollaborationGraph.complete(problem.n_users)
    ends = [
        run(problem, Plan(120 * BLOCK, learn_graph=False, span=span), np.random.default_rng(0), graph=graph)
        for span in (None, 10)
    ]
    assert not np.array_equal(ends[0].models, ends[1].models)
    at_zero = ends[0].trace[0].objective
    assert_allclose(*((at_zero - end.trace[-1].objective) for end in ends), rtol=0.01)


def test_precision_hardly_changes_the_objective():
    A = random_problem(np.random.default_rng(9), 8, 7, dtype=np.float32).A.astype(np.float64)
    problem = replace(random_problem(np.random.default_rng(9), 8, 7, dtype=np.float32), regularizer=LogDegree(0.5, 0.5))
    rng, graph = np.random.default_rng, random_graph(np.random.default_rng(10), 8)
    for step in STEPS:
        plan = Plan(4_000, learn_graph=False, step=step)
        single = run(problem, plan, rng(1), graph=graph)
        double = run(replace(problem, A=A), plan, rng(1), graph=graph, dtype=np.float64)
        assert single.models.dtype == np.float32
        assert_allclose(single.trace[-1].objective, double.trace[-1].objective, rtol=1e-3)
    single = run(problem, Plan(4_000, kappa=3), rng(1))
    double = run(replace(problem, A=A), Plan(4_000, kappa=3), rng(1), dtype=np.float64)
    assert_allclose(single.trace[-1].objective, double.trace[-1].objective, rtol=1e-3)


def test_a_custom_loss_and_regularizer_work_from_end_to_end():
    loss = Loss(
        "smooth-ramp",
        lambda z: ((1 - z) ** 2 + 1) ** 0.5 + 1 - z,
        lambda z: (z - 1) / ((1 - z) ** 2 + 1) ** 0.5 - 1,
        lambda z: 1.0,
    )
    regularizer = DegreeFunction(
        lambda d: 1 / (0.1 + d), lambda d: -1 / (0.1 + d) ** 2, lambda d: 2 / (0.1 + d) ** 3, lam=0.05
    )
    problem = random_problem(np.random.default_rng(12), 8, 7, loss=loss, regularizer=regularizer, dtype=np.float32)
    for step in STEPS:
        for graph_step in ("exact", "lipschitz"):
            plan = Plan(4_000, kappa=3, step=step, graph_step=graph_step, restart="local", trace_every=400)
            result = run(problem, plan, np.random.default_rng(1))
            assert result.graph.n_edges > 0
            assert result.trace[-1].objective < result.trace[1].objective
            zero = problem.model_gap(np.zeros_like(result.models), result.graph)
            assert result.trace[-1].gap < 0.1 * zero


def test_duplicate_and_useless_predictors_do_no_harm():
    rng = np.random.default_rng(13)
    column = rng.choice(np.array([-1, 1], np.int8), size=(12, 1))
    A = np.concatenate([column, column, -column, np.zeros((12, 2), np.int8)], axis=1)
    problem = Problem(A, np.array([0, 3, 4, 8, 12]), beta=2.0, mu1=0.5)
    for step in STEPS:
        result = run(problem, Plan(2_000, learn_graph=False, step=step), rng, graph=CollaborationGraph.complete(4))
        assert np.isfinite(result.models).all()
        assert not result.models[:, 3:].any()
        zero = problem.model_gap(np.zeros_like(result.models), result.graph)
        assert problem.model_gap(result.models, result.graph) < 0.05 * zero


def test_accuracy_is_the_share_of_right_signs_and_a_zero_is_negative():
    samples = Samples(
        np.array([[1, 0], [0, 0], [-1, 1], [1, 1]], np.int8), np.array([1, -1, -1, -1]), np.array([0, 2, 2, 4])
    )
    alpha = np.array([[0.5, 0.0], [1.0, 0.0], [1.0, -1.0]])
    assert_array_equal(decision_values(samples.predictions, samples.row_start, alpha), [0.5, 0.0, -2.0, 0.0])
    assert_array_equal(accuracy_per_user(samples, alpha), [1.0, np.nan, 1.0])
    none = Samples(np.zeros((0, 2), np.int8), np.zeros(0), np.zeros(4, np.int64))
    assert np.isnan(accuracy_per_user(none, alpha)).all()
    assert accuracy_per_user(None, alpha).size == 0
