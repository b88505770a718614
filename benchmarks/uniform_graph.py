"""Does the learned graph earn its keep? Compare it with the complete graph of equal weights, and with no graph.

    python benchmarks/uniform_graph.py moons school computer

Test accuracy (per-user mean) of Local-boost, of collaboration over the complete graph, and over a learned graph. Each
method's settings are chosen from the same small grid by 3-fold cross-validation inside the training rows. Real datasets
must be in the cache folder (`dada datasets fetch school`).
"""

import argparse
import itertools
from dataclasses import replace
from functools import partial

import numpy as np

from dada.baselines import BoostSettings, boost
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.plan import Plan
from dada.data import Stumps, moons
from dada.data.datasets import load
from dada.estimators import PerUserKFold

BETAS, MUS, LAMS = (1.0, 3.0, 10.0), (0.1, 1.0, 3.0, 10.0), (0.01, 0.1)


def grid(mus, lams):
    return list(itertools.product(BETAS, mus, lams))


def dada_uniform(train, predictors, test, settings, rng):
    return boost(train, predictors, test, settings, rng, graph=CollaborationGraph.complete(train.n_users))


METHODS = {
    "local": (partial(boost, graph="none"), grid(mus=(0.0,), lams=(0.1,))),
    "uniform": (dada_uniform, grid(MUS, lams=(0.1,))),
    "learned": (partial(boost, graph="learned"), grid(MUS, LAMS)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="*", default=["moons"], help="moons, school, computer or harws")
    for name in parser.parse_args().datasets:
        compare(name)


def data_of(name):
    """Training and test rows of the same users, and the base predictors."""
    if name == "moons":
        users = moons(1)
        return users.train, users.test, Stumps(n=200, rule="feature-range")
    train, test = load(name).split()
    return train, test, Stumps(per_feature=5, drop_duplicates=True)


def compare(name):
    train, test, recipe = data_of(name)
    owner = train.owners
    folds = []
    for kept, held_out in PerUserKFold(3, shuffle=True, random_state=0).split(train.X, train.y, users=owner):
        part = train.take(kept)
        folds.append((part, recipe.fit(part.X), train.X[held_out], train.y[held_out], owner[held_out]))
    predictors = recipe.fit(train.X)
    for method, (fit, points) in METHODS.items():
        settings = [settings_at(*point, train.n_users) for point in points]
        scores = [held_out_score(fit, own, folds) for own in settings]
        best = settings[int(np.argmax(scores))]
        accuracy = [
            fit(train, predictors, test, best, np.random.default_rng(seed)).test_accuracy.mean() for seed in range(3)
        ]
        lam = f", lam {best.regularizer.lam:g}" if method == "learned" else ""
        print(f"{name:<9} {method:<8} {np.mean(accuracy):.4f}   (beta {best.beta:g}, mu {best.mu:g}{lam})", flush=True)


def settings_at(beta, mu, lam, n_users):
    plan = Plan(200 * n_users, graph_every=20 * n_users, trace_every=200 * n_users)
    return BoostSettings(plan, beta=beta, mu=mu, regularizer=LogDegree(lam=lam, delta=0.1))


def held_out_score(fit, settings, folds):
    right = rows = 0
    for train, predictors, X, y, owner in folds:
        plan = replace(settings.plan, n_updates=100 * train.n_users)
        models = fit(train, predictors, train, replace(settings, plan=plan), np.random.default_rng(0)).models
        values = (predictors.predict(X) * models[owner]).sum(axis=1)
        right += ((values > 0) == (y > 0)).sum()
        rows += y.size
    return right / rows


if __name__ == "__main__":
    main()
