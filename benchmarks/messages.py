"""Bits that collaborations send, and how right their models are, on real datasets and Moons.

    python benchmarks/messages.py [--data school computer] [--splits 3] [--gaps] [--json]

Every row of the table is the mean over random splits of each user's rows (for Moons, over draws), of the accuracy per
user in per cent, the megabits sent, the wake-ups per user and the seconds of processor time:

pairwise    one pairwise move per wake-up on the complete graph (Moons: on evidence): today's defaults
complete    block steps on the complete graph
background  block steps on the union of five random cycles
switch      background first; on evidence as soon as users prefer it
cheap       as switch, with six neighbours, 6 bits a value and fewer, rarer entries

Base predictors are linear, on Moons stumps or waves. Real datasets are read from the cache of `dada datasets`.
With --gaps, also the wake-ups per user to a relative gap of 1e-2 and 1e-3 on the complete graph.
"""

import argparse
import json
import sys
import time
from dataclasses import replace

import numpy as np

from dada import task
from dada.core.accuracy import accuracy_per_user
from dada.core.block_steps import BlockStep
from dada.core.graph import CollaborationGraph
from dada.core.plan import Plan
from dada.data import Constant, Linear, RandomFourier, Stumps, Union, datasets, moons, moons100
from dada.engine import run
from dada.fitting.collaboration import DEFAULT, ON_BACKGROUND, collaborate

DRAWS = {"moons": moons, "moons100": moons100}
# Share of training rows, as in the published splits.
TRAINING = {"school": 0.75, "computer": 0.37, "harws": 0.2, "vehicle_partial": 0.5}
BETA = 30.0
LINEAR = (Linear(), Constant(coupling=0.1))
FAMILIES = {
    "linear": (Union(*LINEAR), 0.175, 2000),
    "stumps": (Union(Stumps(per_feature=10, drop_duplicates=True), *LINEAR), 0.35, 200),
    "waves": (Union(RandomFourier(n=1000, width=0.5), *LINEAR), 0.35, 500),
}
CHEAP = {"quantise_bits": 6, "keep": 0.3, "silence": 0.06}
WAKEUPS = 80
GAPS = (1e-2, 1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", nargs="+", default=[*TRAINING, *DRAWS], choices=[*TRAINING, *DRAWS])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--gaps", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    entries = []
    for name in options.data:
        for family in ("stumps", "waves") if name in DRAWS else ("linear",):
            per_split = [one_split(name, family, seed) for seed in range(options.splits)]
            entries += averages(name, family, per_split)
            if not options.json:
                show(entries[-len(METHODS) :])
    result = {"entries": entries}
    if options.gaps:
        result["wakeups_to_gap"] = {name: wakeups_to_gap(name) for name in options.data if name in TRAINING}
    if options.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    elif options.gaps:
        for name, reached in result["wakeups_to_gap"].items():
            print(f"{name:<16}" + "".join(f"  {step} {wakeups}" for step, wakeups in reached.items()))


def task_of(name, family, seed):
    """The problem of one split, its test rows, and the default number of pairwise updates per user."""
    if name in DRAWS:
        users = DRAWS[name](100 + seed)
        train, test = users.train, users.test
    else:
        train, test = datasets.load(name).random_split(seed, TRAINING[name])
    recipe, pull, n_updates = FAMILIES[family]
    predictors, _ = task.shared_predictors(recipe, train)
    mu = pull * float(train.confidence.mean())
    problem = task.problem(train, predictors, beta=BETA, mu1=mu, loss="logistic")
    return problem, task.samples(test, predictors), n_updates


def pairwise(problem, n_updates, seed, on_evidence):
    if on_evidence:
        plan = Plan(n_updates * problem.n_users, graph_rule="evidence", tau=1.0, graph_every=10 * problem.n_users)
        return run(problem, plan, np.random.default_rng(seed))
    plan = Plan(n_updates * problem.n_users, learn_graph=False)
    return run(problem, plan, np.random.default_rng(seed), graph=CollaborationGraph.complete(problem.n_users))


def blocks(problem, graph, step, seed):
    plan = Plan(WAKEUPS * problem.n_users, learn_graph=False, step="block", block=step)
    return run(problem, plan, np.random.default_rng(seed), graph=graph)


def complete(problem, n_updates, seed, on_evidence):
    return blocks(problem, CollaborationGraph.complete(problem.n_users), BlockStep(), seed)


def background(problem, n_updates, seed, on_evidence):
    graph = CollaborationGraph.background(problem.n_users, np.random.default_rng(seed))
    return blocks(problem, graph, ON_BACKGROUND, seed)


def switch(problem, n_updates, seed, on_evidence):
    return collaborate(problem, np.random.default_rng(seed))


def cheap(problem, n_updates, seed, on_evidence):
    steps = {name: getattr(DEFAULT, name)._replace(**CHEAP) for name in ("on_background", "on_evidence")}
    return collaborate(problem, np.random.default_rng(seed), replace(DEFAULT, n_neighbours=6, **steps))


METHODS = {"pairwise": pairwise, "complete": complete, "background": background, "switch": switch, "cheap": cheap}


def one_split(name, family, seed):
    """For every method: accuracy, megabits, wake-ups per user, seconds."""
    problem, test, n_updates = task_of(name, family, seed)
    found = {}
    for method, learn in METHODS.items():
        start = time.process_time()
        result = learn(problem, n_updates, seed, name in DRAWS)
        seconds = time.process_time() - start
        accuracy = 100 * float(np.nanmean(accuracy_per_user(test, result.models)))
        wakeups = result.trace[-1].updates / problem.n_users
        found[method] = accuracy, result.ledger.bits / 1e6, wakeups, seconds
    return found


def averages(name, family, per_split):
    """Means over splits, and the difference of accuracy from pairwise with its standard error."""
    entries = []
    for method in METHODS:
        values = np.array([found[method] for found in per_split])
        ahead = values[:, 0] - [found["pairwise"][0] for found in per_split]
        error = float(ahead.std(ddof=1) / np.sqrt(len(ahead))) if len(ahead) > 1 else float("nan")
        accuracy, megabits, wakeups, _ = values.mean(axis=0)
        # The first run of a method may include its compilation.
        seconds = np.median(values[:, 3])
        entries.append(
            dict(
                data=name, family=family, method=method, splits=len(ahead), accuracy=accuracy,
                ahead=float(ahead.mean()),
                error=error, megabits=megabits, wakeups=wakeups, seconds=float(seconds),
            )
        )  # fmt: skip
    return entries


def wakeups_to_gap(name, seed=0, most=3000):
    """Wake-ups per user until the gap is a part of that of zero models, for three steps; None beyond `most`."""
    problem, _, _ = task_of(name, "linear", seed)
    K, graph = problem.n_users, CollaborationGraph.complete(problem.n_users)
    steps = {
        "paper": Plan(most * K, learn_graph=False, step="paper", trace_every=10 * K),
        "pairwise": Plan(most * K, learn_graph=False, trace_every=10 * K),
        "block": Plan(most // 10 * K, learn_graph=False, step="block", block=BlockStep(silence=0.0), trace_every=K),
    }
    reached = {}
    for step, plan in steps.items():
        plan = replace(plan, gap_tolerance=min(GAPS))
        trace = run(problem, plan, np.random.default_rng(seed), graph=graph).trace
        below = [[point.updates // K for point in trace if point.gap <= part * trace[0].gap] for part in GAPS]
        reached[step] = [found[0] if found else None for found in below]
    return reached


def show(entries):
    for entry in entries:
        print(
            "{data:<16} {family:<7} {method:<11} {accuracy:6.2f} % ({ahead:+.2f} ± {error:.2f}) {megabits:9.2f} Mbit "
            "{wakeups:6.0f} wake-ups {seconds:6.2f} s".format(**entry),
            flush=True,
        )


if __name__ == "__main__":
    main()
