"""Choose the settings of `dada demo`, method by method, without any test row.

    python benchmarks/choose_demo_settings.py [--seeds 101 ... 110] [--folds 10]

The Moons users of each seed are cross-validated within their training rows: rows of every user are dealt to the folds
(`PerUserKFold`, stratified), each fold is predicted by models learned from the others, and a setting's score is the
share of held-out rows that are right, averaged over folds and seeds. The best setting of each method is what
`dada.cli.demo_report` holds, and the output shows whether it still does. Takes about ten minutes.
"""

import argparse
import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dada.cli.demo_report import METHODS, STUMPS, demo_settings, run_method
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.data import Population, moons
from dada.estimators import PerUserKFold
from dada.events import silent

BETAS = (1.0, 3.0, 10.0, 30.0, 100.0)
GRIDS = {
    "global-boost": {"beta": BETAS},
    "local-boost": {"beta": BETAS},
    "dada-oracle": {"beta": (3.0, 10.0, 30.0), "mu": (0.3, 1.0, 3.0, 10.0)},
    "dada-learned": {"beta": (2.0, 3.0, 5.0, 10.0), "mu": (1.0, 2.0, 3.0, 5.0), "lam": (0.003, 0.01, 0.03, 0.1)},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=range(101, 111))
    parser.add_argument("--folds", type=int, default=10)
    options = parser.parse_args()
    folds = [fold for seed in options.seeds for fold in folds_of(seed, options.folds)]
    for method in METHODS:
        choose(method, folds)


def folds_of(seed, n_folds):
    """(rows to train on, held-out rows, their labels, their users, oracle graph) of every fold."""
    users = moons(seed)
    train, oracle = users.train, CollaborationGraph.from_scipy(users.oracle_weights())
    owner = train.owners
    splitter = PerUserKFold(n_folds, shuffle=True, random_state=seed)
    for kept, held_out in splitter.split(train.X, train.y, users=owner):
        part = Population.from_arrays(train.X[kept], train.y[kept], owner[kept])
        yield part, train.X[held_out], train.y[held_out], owner[held_out], oracle


def choose(method, folds):
    grid = GRIDS[method]
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    scores = [score(method, settings_at(method, point), folds) for point in points]
    best = max(scores)
    chosen = scores.index(best)
    print(f"\n{method}: held-out accuracy, neighbours per user")
    for p in sorted(range(len(points)), key=scores.__getitem__, reverse=True)[:15]:
        values = "  ".join(f"{name} {value:<5g}" for name, value in points[p].items())
        mark = "  chosen" * (p == chosen) + "  in the code" * (settings_at(method, points[p]) == in_code(method))
        print(
            f"  {values}  {scores[p].mean:.4f} +- {scores[p].error:.4f}  {scores[p].neighbours:5.1f}{mark}", flush=True
        )


def in_code(method):
    settings = demo_settings(method)
    return replace(settings, plan=replace(settings.plan, trace_every=settings.plan.n_updates))


def settings_at(method, point):
    settings, numbers = in_code(method), dict(point)
    if "lam" in numbers:
        numbers["regularizer"] = LogDegree(lam=numbers.pop("lam"), delta=settings.regularizer.delta)
    return replace(settings, **numbers)


class Score(NamedTuple):
    mean: float
    error: float
    neighbours: float


def score(method, settings, folds):
    accuracies, neighbours = [], []
    for number, (part, X, y, owner, oracle) in enumerate(folds):
        outcome = run_method(method, part, part, oracle, settings, np.random.default_rng(number), silent)
        predictors = STUMPS.fit(part.X)
        models = np.broadcast_to(outcome.models, (part.n_users, predictors.n))
        values = (predictors.predict(X) * models[owner]).sum(axis=1)
        accuracies.append(((values > 0) == (y > 0)).mean())
        neighbours.append(outcome.neighbours or 0.0)
    return Score(np.mean(accuracies), np.std(accuracies) / len(folds) ** 0.5, np.mean(neighbours))


if __name__ == "__main__":
    main()
