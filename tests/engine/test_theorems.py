"""The paper's theorems and expectations, as means over seeds on small problems."""

from dataclasses import replace

import numpy as np
import pytest

from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.plan import GRAPH_STREAM, Schedule
from dada.engine import Plan, run
from tests.helpers.optimum import best_graph, best_models
from tests.helpers.problems import random_graph, random_models, random_problem
from tests.helpers.runs import graph_phase
from tests.helpers.theory import curvature_bound, expected_new_peers, graph_rate, primal_bound


def test_theorem_1_bounds_the_expected_distance_from_the_optimal_models():
    rng = np.random.default_rng(21)
    problem = random_problem(rng, 4, 6, beta=1.0, mu1=0.4, graph_loss="paper")
    graph = random_graph(rng, 4)
    best, _ = best_models(problem, graph)
    regularizer = problem.graph_mu * problem.regularizer_value(graph)
    plan = Plan(4_000, learn_graph=False, step="paper", trace_every=20)
    runs = [run(problem, plan, np.random.default_rng(seed), graph=graph, dtype=np.float64) for seed in range(20)]
    distance = np.mean([[p.objective - regularizer - best for p in result.trace] for result in runs], axis=0)
    curvature = curvature_bound(problem, graph)
    bounds = [primal_bound(curvature, distance[0], 4, p.updates) for p in runs[0].trace]
    assert (distance >= -1e-7).all()
    assert (distance <= bounds).all()
    # The bound is not trivial: it ends far below where the run began.
    assert bounds[-1] < 0.2 * distance[0]


@pytest.mark.parametrize("kappa", [1, 3])
def test_theorem_2_bounds_the_expected_distance_from_the_optimal_graph(kappa):
    rng = np.random.default_rng(22)
    problem = random_problem(rng, 5, 6, beta=2.0, mu1=0.5, regularizer=LogDegree(lam=1.0, delta=1.0))
    alpha = random_models(rng, problem)
    best, _ = best_graph(problem, alpha)
    plan = Plan(0, graph_step="lipschitz", kappa=kappa)
    wakeups, values = 80, []
    for seed in range(60):
        phase = graph_phase(problem, plan, alpha, seed, wakeups)
        values.append([problem.graph_objective(alpha, state.graph) - best for state, *_ in phase])
    start = problem.graph_objective(alpha, CollaborationGraph.empty(5)) - best
    rho = graph_rate(problem.regularizer, problem.graph_mu, 5, kappa)
    bounds = start * rho ** np.arange(1, wakeups + 1)
    distance = np.mean(values, axis=0)
    # Late in a run the mean is made by the few seeds that have not yet asked an important pair: two standard errors.
    error = np.std(values, axis=0) / np.sqrt(len(values))
    assert (distance >= -1e-6).all()
    assert (distance <= bounds + 2 * error + 1e-6).all()
    assert (distance[:20] <= bounds[:20]).all()
    assert bounds[-1] < 0.2 * start


@pytest.mark.parametrize(("n_users", "kappa"), [(5, 1), (6, 2), (4, 3)])
def test_the_number_of_peers_asked_for_the_first_time_falls_as_the_proposition_says(n_users, kappa):
    steps, runs = 40, 1500
    schedule = Schedule.draw(np.random.default_rng(23), n_users, kappa)
    users = schedule.users(GRAPH_STREAM, 0, steps * runs).reshape(runs, steps)
    batches = schedule.batches(0, steps * runs).reshape(runs, steps, kappa)
    new = np.zeros((runs, steps))
    for r in range(runs):
        met = set()
        for t in range(steps):
            asked = {(int(users[r, t]), int(l)) for l in batches[r, t]}
            new[r, t] = len(asked - met)
            met |= asked
    expected = np.array([expected_new_peers(n_users, kappa, step) for step in range(1, steps + 1)])
    # Four standard errors of the mean; a number between 0 and kappa has at most the variance kappa times its mean.
    error = np.sqrt(kappa * expected / runs)
    assert (np.abs(new.mean(axis=0) - expected) <= 4 * error).all()
    assert new.mean(axis=0)[-1] < 0.6 * kappa


def test_expected_bits_of_model_updates():
    rng = np.random.default_rng(24)
    problem = random_problem(rng, 12, 6, dtype=np.float32)
    graph = random_graph(rng, 12, density=0.3)
    updates = 20_000
    plan = Plan(updates, learn_graph=False, step="paper", trace_every=updates)
    result = run(problem, plan, rng, graph=graph)
    message = 32 + np.log2(6)
    expected = 2 * updates * graph.n_edges / 12 * message
    error = np.sqrt(updates) * graph.neighbour_counts.std() * message
    assert abs(result.ledger.bits - expected) <= 4 * error
    assert error < 0.01 * expected
    # A pairwise message has one index more.
    pairwise = run(problem, replace(plan, step="pairwise", n_updates=100), rng, graph=graph).ledger
    assert pairwise.models[2] == 2 * pairwise.models[1]


def test_expected_bits_of_graph_wakeups():
    rng = np.random.default_rng(25)
    problem = random_problem(rng, 12, 6)
    alpha = random_models(rng, problem)
    plan, wakeups = Plan(0, kappa=4), 4_000
    *_, (state, _, _) = graph_phase(problem, plan, alpha, 1, wakeups)
    sizes = np.count_nonzero(alpha, axis=1)
    per_entry = 32 + np.log2(6)
    expected = wakeups * 4 * (3 * 32 + sizes.mean() * per_entry)
    error = np.sqrt(wakeups * 4) * sizes.std() * per_entry
    assert abs(state.ledger.graph_bits - expected) <= 4 * error
    assert error < 0.02 * expected
