"""Bits that fits send, how right their models are, and how long they take, on real datasets and Moons.

    python benchmarks/messages.py [--data school computer] [--splits 10] [--published] [--gaps] [--json]

Every row is a mean over random splits of each user's rows (for Moons, over draws): accuracy per user in per
cent, its difference from one-move steps, megabits, neighbours per user and seconds of processor time (a median).

one-move    one pairwise move and one message per wake-up, complete graph or evidence as trials decide
complete    block steps on the complete graph
everyone    block steps on a random graph with ten neighbours
evidence    block steps on a graph by evidence, eight neighbours
distance    the paper's graph, one-move steps
ours        the defaults: block steps, everyone or evidence as trials decide
cv          `DadaClassifierCV()`

With --published, runs with other seeds on the split of the published results instead of random splits.

With --gaps, also the wake-ups per user to a relative gap of 1e-2 and 1e-3 on the complete graph.
"""

import argparse
import json
import sys
import time
import warnings
from dataclasses import replace

import numpy as np

from dada import DadaClassifier, DadaClassifierCV, task
from dada.core.accuracy import mean_per_user
from dada.core.block_steps import BlockStep
from dada.core.graph import CollaborationGraph
from dada.core.plan import Plan
from dada.data import Constant, Linear, Union, datasets, moons, moons100
from dada.engine import run

DRAWS = {"moons": moons, "moons100": moons100}
# Share of training rows, as in the published splits.
TRAINING = {"school": 0.75, "computer": 0.37, "harws": 0.2, "vehicle_partial": 0.5}
GAPS = (1e-2, 1e-3)


METHODS = {
    "one-move": lambda train, seed: DadaClassifier(step="pairwise", random_state=seed),
    "complete": lambda train, seed: DadaClassifier(graph=CollaborationGraph.complete(train.n_users), random_state=seed),
    "everyone": lambda train, seed: DadaClassifier(graph="everyone", random_state=seed),
    "evidence": lambda train, seed: DadaClassifier(graph="evidence", random_state=seed),
    "distance": lambda train, seed: DadaClassifier(graph="learned", random_state=seed),
    "ours": lambda train, seed: DadaClassifier(random_state=seed),
    "cv": lambda train, seed: DadaClassifierCV(random_state=seed),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", nargs="+", default=[*TRAINING, *DRAWS], choices=[*TRAINING, *DRAWS])
    parser.add_argument("--methods", nargs="+", default=[*METHODS][:-1], choices=[*METHODS])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--gaps", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    entries = []
    for name in options.data:
        per_split = [one_split(name, seed, options) for seed in range(options.splits)]
        entries += averages(name, per_split)
        if not options.json:
            show(entries[-len(options.methods) :])
    result = {"entries": entries}
    if options.gaps:
        result["wakeups_to_gap"] = {name: wakeups_to_gap(name) for name in options.data if name in TRAINING}
    if options.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    elif options.gaps:
        for name, reached in result["wakeups_to_gap"].items():
            print(f"{name:<16}" + "".join(f"  {step} {wakeups}" for step, wakeups in reached.items()))


def split_of(name, seed, published=False):
    """Training and test rows of one split, or of one draw of Moons."""
    if published and name in TRAINING:
        data = datasets.load(name)
        return data.split("split50" if name == "vehicle_partial" else "paper")
    if name in DRAWS:
        users = DRAWS[name](100 + seed)
        return users.train, users.test
    return datasets.load(name).random_split(seed, TRAINING[name])


def one_split(name, seed, options):
    """For every method: accuracy, megabits, neighbours, seconds."""
    train, test = split_of(name, seed, options.published)
    found = {}
    for method in options.methods:
        start = time.process_time()
        model = METHODS[method](train, seed).fit(train.X, train.y, users=train.users)
        seconds = time.process_time() - start
        right = model.predict(test.X, users=test.users) == test.y
        model = getattr(model, "best_estimator_", model)
        accuracy = 100 * float(np.nanmean(mean_per_user(right, test.row_start)))
        found[method] = accuracy, model.bits_ / 1e6, model.graph_.mean_neighbours, seconds
    return found


def averages(name, per_split):
    """Means over splits, and the difference of accuracy from the first method with its standard error."""
    entries, first = [], next(iter(per_split[0]))
    for method in per_split[0]:
        values = np.array([found[method] for found in per_split])
        ahead = values[:, 0] - [found[first][0] for found in per_split]
        error = float(ahead.std(ddof=1) / np.sqrt(len(ahead))) if len(ahead) > 1 else float("nan")
        accuracy, megabits, neighbours, _ = values.mean(axis=0)
        entry = dict(data=name, method=method, splits=len(ahead), accuracy=accuracy, ahead=float(ahead.mean()))
        # The first run of a method may include its compilation.
        seconds = float(np.median(values[:, 3]))
        entries.append(entry | dict(error=error, megabits=megabits, neighbours=neighbours, seconds=seconds))
    return entries


def linear_problem(name, seed):
    """The problem of linear predictors on one split, with the default mu."""
    train, _ = split_of(name, seed)
    predictors, _ = task.shared_predictors(Union(Linear(), Constant(coupling=0.1)), train)
    return task.problem(train, predictors, beta=30.0, mu1=0.175 * float(train.confidence.mean()), loss="logistic")


def wakeups_to_gap(name, seed=0, most=3000):
    """Wake-ups per user until the gap is a part of that of zero models, for three steps; None beyond `most`."""
    problem = linear_problem(name, seed)
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
            "{data:<16} {method:<9} {accuracy:6.2f} % ({ahead:+.2f} ± {error:.2f}) {megabits:9.2f} Mbit "
            "{neighbours:6.1f} neighbours {seconds:6.2f} s".format(**entry),
            flush=True,
        )


if __name__ == "__main__":
    main()
