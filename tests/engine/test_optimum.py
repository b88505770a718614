"""Long runs reach the optima that a general convex solver finds."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dada.core.graph_steps import DegreeTarget, LogDegree
from dada.engine import Plan, run
from tests.helpers.optimum import best_graph, best_models
from tests.helpers.problems import INVERSE_DEGREE, random_graph, random_problem


@pytest.mark.parametrize("loss", ["adaboost", "logistic", "squared-hinge", "huber"])
@pytest.mark.parametrize("weighted", [False, True])
# Plain line search zigzags between the vertices of a face, so it only comes near.
@pytest.mark.parametrize(
    ("step", "n_updates", "accuracy"), [("pairwise", 20_000, 1e-6), ("line-search", 300_000, 1e-4)]
)
def test_models_reach_the_optimum_for_their_graph(loss, weighted, step, n_updates, accuracy):
    rng = np.random.default_rng(11)
    kind = dict(loss=loss, graph_loss="paper", coupling=rng.uniform(0, 1, 6), shifted=loss == "huber")
    problem = random_problem(rng, 5, 6, beta=3.0, mu1=0.4, weighted=weighted, **kind)
    graph = random_graph(rng, 5)
    best, _ = best_models(problem, graph)
    plan = Plan(n_updates, learn_graph=False, step=step, trace_every=n_updates // 20)
    result = run(problem, plan, rng, graph=graph, dtype=np.float64)
    scale = problem.model_objective(np.zeros_like(result.models), graph) - best
    assert problem.model_objective(result.models, graph) - best <= accuracy * scale
    regularizer = problem.graph_mu * problem.regularizer_value(graph)
    for point in result.trace:
        assert -1e-6 * scale <= point.objective - regularizer - best <= point.gap + 1e-6 * scale
    if step == "pairwise":
        # The steps of `pairwise` also make the certificate small.
        assert result.trace[-1].gap <= 1e-4 * scale


def test_the_rules_of_fixed_steps_come_near_too():
    rng = np.random.default_rng(12)
    problem = random_problem(rng, 5, 6, beta=3.0, mu1=0.4, graph_loss="paper")
    graph = random_graph(rng, 5)
    best, _ = best_models(problem, graph)
    scale = problem.model_objective(np.zeros((5, 6)), graph) - best
    for step in ("paper", "local"):
        result = run(problem, Plan(50_000, learn_graph=False, step=step), rng, graph=graph, dtype=np.float64)
        assert problem.model_objective(result.models, graph) - best <= 1e-3 * scale


REGULARIZERS = {"log": LogDegree(0.3, 0.5), "target": DegreeTarget(2.0, 0.2, 0.1), "own": INVERSE_DEGREE}


@pytest.mark.parametrize("regularizer", REGULARIZERS.values(), ids=REGULARIZERS)
@pytest.mark.parametrize(("graph_step", "wakeups"), [("exact", 2_000), ("lipschitz", 60_000)])
@pytest.mark.parametrize("kappa", [1, 4])
def test_the_graph_reaches_the_optimum_for_its_models(regularizer, graph_step, wakeups, kappa):
    rng = np.random.default_rng(13)
    problem = random_problem(rng, 6, 6, beta=3.0, mu1=0.4, mu2=0.7, regularizer=regularizer)
    plan = Plan(0, graph_step=graph_step, kappa=kappa, local_updates=200, first_graph_wakeups=wakeups)
    result = run(problem, plan, rng, dtype=np.float64)
    best, graph = best_graph(problem, result.models)
    assert_allclose(problem.graph_objective(result.models, result.graph), best, rtol=1e-6, atol=1e-6)
    assert_allclose(result.graph.to_scipy().toarray(), graph.to_scipy().toarray(), atol=2e-3)


@pytest.mark.parametrize("delta", [1.0, 1e-2, 1e-4])
def test_exact_graph_steps_do_not_slow_down_with_a_small_delta(delta):
    rng = np.random.default_rng(14)
    problem = random_problem(rng, 6, 6, beta=3.0, mu1=0.4, regularizer=LogDegree(0.3, delta), graph_loss="logistic")
    plan = Plan(0, kappa=4, local_updates=200, first_graph_wakeups=400)
    result = run(problem, plan, rng, dtype=np.float64)
    best, _ = best_graph(problem, result.models)
    assert_allclose(problem.graph_objective(result.models, result.graph), best, rtol=1e-5, atol=1e-5)


def test_alternating_decreases_the_joint_objective_between_graph_phases():
    problem = random_problem(np.random.default_rng(15), 6, 6, beta=3.0, mu1=0.4, regularizer=LogDegree(0.5, 0.5))
    plan = Plan(600, kappa=3, graph_every=30, restart="local", trace_every=30)
    for step in ("pairwise", "line-search"):
        trace = run(problem, replace(plan, step=step), np.random.default_rng(1), dtype=np.float64).trace
        values = np.array([point.objective for point in trace[1:]])
        assert (np.diff(values) <= 1e-10 * np.abs(values[1:])).all()
        assert values[-1] < values[0]
