"""How many updates the step rules need, on Moons.

    python benchmarks/convergence.py [--json] [--seed 1]

Models: updates per user until f(alpha) - f* is a given part of f(0) - f*, over the oracle graph, with beta = 10 and
mu = 1. Graph: wake-ups per user (kappa = 5, from the empty graph) until h(w) - h* is 1e-3 of h(0) - h*, with models
learned alone. The paper's steps, `paper` and `lipschitz`, are among those compared. Optima come from runs far longer
than any that is reported.
"""

import argparse
import json
import sys
from dataclasses import replace

import numpy as np

from dada import task
from dada.cli.demo_report import STUMPS
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.plan import Plan
from dada.data import moons
from dada.engine import run

RULES = ("paper", "local", "line-search", "pairwise")
PARTS = (1e-1, 1e-2, 1e-3)
MOST_UPDATES = 3000
GRAPH_STEPS = ("lipschitz", "exact")
DELTAS = (1.0, 0.1, 0.01)
MOST_WAKEUPS = 4000
LAM = 0.1


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    problem, oracle = moons_problem(options.seed)
    result = {
        "updates_per_user": model_updates(problem, oracle, options.seed),
        "graph_wakeups_per_user": {
            str(delta): graph_wakeups(moons_problem(options.seed, delta)[0], options.seed) for delta in DELTAS
        },
    }
    if options.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        show(result)


def moons_problem(seed, delta=0.1):
    """The Moons users with beta = 10 and mu = 1, and their oracle graph."""
    users = moons(seed, n_test=1)
    regularizer, predictors = LogDegree(lam=LAM, delta=delta), STUMPS.fit(users.train.X)
    problem = task.problem(users.train, predictors, beta=10.0, mu1=1.0, regularizer=regularizer)
    return problem, CollaborationGraph.from_scipy(users.oracle_weights())


def model_updates(problem, graph, seed, rules=RULES, most=MOST_UPDATES):
    """Updates per user to each part of the initial distance, for every rule; None beyond `most`."""
    K = problem.n_users
    exact = replace(problem, A=problem.A.astype(np.float64))
    best = run(exact, Plan(3_000 * K, learn_graph=False), np.random.default_rng(seed), graph=graph, dtype=np.float64)
    optimum = problem.model_objective(best.models, graph)
    initial = problem.model_objective(np.zeros_like(best.models), graph)
    certified = problem.model_gap(best.models, graph) / (initial - optimum)
    assert certified < 1e-5, f"the optimum is known to {certified:.1e} of the initial distance only"
    regularizer = problem.graph_mu * problem.regularizer_value(graph)
    reached = {}
    for rule in rules:
        plan = Plan(most * K, learn_graph=False, step=rule, trace_every=K)
        trace = run(problem, plan, np.random.default_rng(seed), graph=graph).trace
        distance = np.array([point.objective - regularizer - optimum for point in trace]) / (initial - optimum)
        reached[rule] = {str(part): first_below(distance, part) for part in PARTS}
    return reached


def first_below(distance, part):
    below = np.flatnonzero(distance <= part)
    return int(below[0]) if below.size else None


def graph_wakeups(problem, seed, steps=GRAPH_STEPS, most=MOST_WAKEUPS):
    """Wake-ups per user until the graph objective is within 1e-3, for every step; None beyond `most`."""

    def objective(step, wakeups_per_user):
        plan = Plan(
            0,
            graph_step=step,
            local_updates=200 * problem.n_users,
            first_graph_wakeups=wakeups_per_user * problem.n_users,
        )
        result = run(problem, plan, np.random.default_rng(seed))
        return problem.graph_objective(result.models, result.graph)

    initial, optimum = objective("exact", 0), objective("exact", 2000)
    settled = (objective("exact", 1000) - optimum) / (initial - optimum)
    assert settled < 1e-6, f"the optimum is known to {settled:.1e} of the initial distance only"

    def is_near(step, wakeups):
        return (objective(step, wakeups) - optimum) / (initial - optimum) <= 1e-3

    return {step: smallest(lambda wakeups, step=step: is_near(step, wakeups), most) for step in steps}


def smallest(holds, most):
    """The smallest number in 1..most from which on something holds, or None."""
    if not holds(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def show(result):
    def cell(value, most):
        return f"> {most}" if value is None else str(value)

    print("Model updates per user to a part of the initial distance (Moons, oracle graph, beta = 10, mu = 1)")
    print(f"  {'step':<12}" + "".join(f"{part:>10g}" for part in PARTS))
    for rule, reached in result["updates_per_user"].items():
        print(f"  {rule:<12}" + "".join(f"{cell(reached[str(part)], MOST_UPDATES):>10}" for part in PARTS))
    print("\nGraph wake-ups per user to 1e-3 of the initial distance (Moons, kappa = 5)")
    print(f"  {'delta':<12}" + "".join(f"{step:>12}" for step in GRAPH_STEPS))
    for delta, reached in result["graph_wakeups_per_user"].items():
        print(f"  {delta:<12}" + "".join(f"{cell(reached[step], MOST_WAKEUPS):>12}" for step in GRAPH_STEPS))


if __name__ == "__main__":
    main()
