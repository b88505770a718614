"""Every number of a trace, recomputed from the paper's formulas on fifty random problems."""

from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.audit import formulas
from tests.audit.runs import audited_run, plan_of, random_case, random_weights

KINDS = ("given graph", "learned graph", "given graph", "learned graph", "evidence graph")


@cache
def run_of(seed):
    """Case, plan and run of a seed."""
    case, kind = random_case(seed), KINDS[seed // 5 % 5]
    if kind == "given graph":
        plan = plan_of(seed, learn_graph=False)
        W = random_weights(np.random.default_rng([seed, 2]), len(case.A))
        return case, plan, audited_run(case, plan, seed, W)
    rule = "evidence" if kind == "evidence graph" else "distance"
    plan = plan_of(seed, graph_rule=rule, n_neighbours=2)
    return case, plan, audited_run(case, plan, seed)


@pytest.fixture(scope="module", params=range(50))
def audited(request):
    return run_of(request.param)


def test_objective_and_gap(audited):
    case, plan, run = audited
    directed = plan.learn_graph and plan.graph_rule == "evidence"
    for point, moment in run.points:
        expected = formulas.model_objective(case, moment.alpha, moment.W, directed=directed)
        if not directed:
            expected += case.mu2 * formulas.regularizer(case, moment.W)
        assert_allclose(point.objective, expected, rtol=1e-9, atol=1e-9)
        assert_allclose(point.gap, formulas.gap(case, moment.alpha, moment.W), rtol=1e-9, atol=1e-9)
        assert point.edges == np.count_nonzero(moment.W) / (1 if directed else 2)


def test_the_gap_bounds_what_is_left_to_gain(audited):
    case, plan, run = audited
    directed = plan.learn_graph and plan.graph_rule == "evidence"
    solved = {}
    for point, moment in run.points:
        alpha, W = moment.alpha, moment.W
        if directed:
            # Users have objectives of their own: the gap bounds the sum of what each could gain alone.
            best = [formulas.best_response(case, alpha, W, k) for k in range(len(alpha))]
            left = sum(
                max(W[k].sum(), float(not W[k].any()))
                * (formulas.own_objective(case, alpha, W, k, alpha[k]) - formulas.own_objective(case, alpha, W, k, own))
                for k, own in enumerate(best)
            )
        else:
            if W.tobytes() not in solved:
                solved[W.tobytes()] = formulas.best_models(case, W)
            best = formulas.model_objective(case, solved[W.tobytes()], W)
            left = formulas.model_objective(case, alpha, W) - best
        assert left <= point.gap * (1 + 1e-9) + 1e-9


def test_accuracies(audited):
    _, _, run = audited
    for point, moment in run.points:
        for samples, found in ((run.train, point.train_accuracy), (run.test, point.test_accuracy)):
            for k, own in enumerate(moment.alpha):
                rows = slice(samples.row_start[k], samples.row_start[k + 1])
                y, values = samples.y[rows], samples.predictions[rows] @ own
                if y.size == 0:
                    assert np.isnan(found[k])
                    continue
                # A value that rounding may turn either way counts as right or wrong.
                sure = abs(values) > 1e-6
                right = (values > 0) == (y > 0)
                assert (right & sure).mean() - 1e-6 <= found[k] <= (right | ~sure).mean() + 1e-6


def test_models_stay_in_the_ball(audited):
    case, _, run = audited
    for moment in run.moments:
        assert abs(moment.alpha).sum(axis=1).max() <= case.beta * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(3, 60, 6))
def test_the_learned_graph_is_the_optimum_for_its_models(seed):
    case = random_case(seed)
    plan = plan_of(seed, n_updates=0, graph_step="exact", kappa=2, max_neighbours=None, first_graph_wakeups=600)
    state = audited_run(case, plan, seed).state
    alpha, W = state.users.alpha.astype(float), state.graph.to_scipy().toarray()
    best = formulas.best_graph(case, alpha)
    at_best = formulas.graph_objective(case, alpha, best)
    assert_allclose(formulas.graph_objective(case, alpha, W), at_best, rtol=1e-6, atol=1e-6)
    assert_allclose(W, best, atol=5e-3)
