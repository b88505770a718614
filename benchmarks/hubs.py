"""Benefit and cost of hubs: users with negative losses attract all others, on Moons.

    python benchmarks/hubs.py [--users 3000] [--json]

AdaBoost loss, beta = 5, mu = 2, lam = 3 / K, delta = 0.1, 200 updates per user, graph steps every 20: mean accuracy on
20 test rows per user, neighbours, the largest degree and the bits that each user sends.
"""

import argparse
import json

import numpy as np

from dada import task
from dada.cli.demo_report import STUMPS
from dada.core.graph_steps import LogDegree
from dada.core.plan import Plan
from dada.data import moons
from dada.engine import run

# Losses that weigh the graph, or none to learn alone, with the most neighbours of a user.
GRAPHS = (("none", None), ("mean", None), ("mean", 50), ("mean", 20), ("logistic", None))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--users", type=int, default=3_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(options.users, *graph) for graph in GRAPHS]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print("graph loss  at most  accuracy  neighbours  most  largest degree  kbit per user")
    for row in rows:
        print(
            "{graph_loss:<10}  {max_neighbours!s:>7}  {test_accuracy:8.1%}  {neighbours:10.0f}  {most:4}  "
            "{largest_degree:14,.0f}  {kbit:13,.0f}".format(**row, kbit=row["bits_per_user"] / 1000)
        )


def measure(n_users, graph_loss, max_neighbours):
    """The figures of one run."""
    users, learns = moons(1, n_users=n_users, n_test=20), graph_loss != "none"
    predictors = STUMPS.fit(users.train.X)
    settings = {"graph_loss": graph_loss} if learns else {}
    problem = task.problem(
        users.train,
        predictors,
        beta=5.0,
        mu1=2.0 if learns else 0.0,
        regularizer=LogDegree(lam=3.0 / n_users, delta=0.1),
        **settings,
    )
    plan = Plan(
        200 * n_users,
        learn_graph=learns,
        graph_every=20 * n_users,
        trace_every=200 * n_users,
        max_neighbours=max_neighbours,
    )
    result = run(problem, plan, np.random.default_rng(0), test=task.samples(users.test, predictors))
    return {
        "users": n_users,
        "graph_loss": graph_loss,
        "max_neighbours": max_neighbours,
        "test_accuracy": float(result.trace[-1].test_accuracy.mean()),
        "neighbours": result.graph.mean_neighbours,
        "most": int(np.diff(result.graph.indptr).max()),
        "largest_degree": float(result.graph.degree.max()),
        "bits_per_user": result.ledger.bits / n_users,
    }


if __name__ == "__main__":
    main()
