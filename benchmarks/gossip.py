"""How many graph wake-ups find the neighbours that matter: uniform batches against the gossip search, on Moons.

    python benchmarks/gossip.py [--users 100 --users 1000] [--most-uniform 1000] [--json] [--plot FILE]
    python benchmarks/gossip.py --from gossip.json --plot docs/images/gossip.png

Models are learned alone (beta = 10, mu = 1, logistic loss, 100 pairwise updates per user) and then frozen. From the
empty graph on, users wake in random order with kappa = 5, and h(w) is followed until it is near its optimum h*; lam is
100 / K. Up to 10,000 users the optimum is that of all pairs: a longer search is improved by exact steps on the pairs,
among all, whose weights want to change most, until that changes nothing. Beyond, it is the end of the longer search.
Reported are, for each K and sampler, wake-ups, models and bits per user until h - h* is 1 % of the initial h(0) - h*,
and until it is 1 % of |h*|, which is stricter where h* happens to lie near zero.
"""

import argparse
import json
import sys
import time

import numpy as np
from machine import machine_facts

from dada import task
from dada.cli.demo_report import STUMPS
from dada.core.graph import CollaborationGraph, uniform_mix
from dada.core.graph_steps import LogDegree
from dada.core.plan import GRAPH_STREAM, Plan, Schedule
from dada.data import moons
from dada.engine import run
from dada.engine.graph_loops import DistanceRule
from dada.engine.state import State

PART = 0.01
KAPPA, DELTA, BETA, MU, UPDATES = 5, 0.1, 10.0, 1.0, 100
LAM_TIMES_K = 100.0
# Wake-ups per user of the search whose end, improved, is the optimum; and of uniform batches at most.
LONG = {100: 400, 1_000: 400, 10_000: 300, 100_000: 350}
MOST_UNIFORM_WAKEUPS = {100: 400, 1_000: 2_000, 10_000: 6_000}
ALL_PAIRS_UP_TO = 10_000
ROUNDS, WIDTH, BLOCK = 30, 64, 2_000


class Search:
    """A graph phase over frozen models, wake-up by wake-up."""

    def __init__(self, problem, models, sampler, seed=3):
        self.problem, self.models = problem, models
        plan = Plan(0, sampler=sampler, kappa=KAPPA)
        empty = CollaborationGraph.empty(problem.n_users)
        self.state = State.start(problem, plan, empty, np.float32)
        self.state.use_models(problem, models)
        self.learner = DistanceRule(problem, plan, np.dtype(np.float32))
        self.learner.begin(self.state)
        self.schedule = Schedule.draw(np.random.default_rng(seed), problem.n_users, self.learner.mix.n_uniform)
        self.done = 0

    def wake_all(self):
        """Wake as many users as there are."""
        K, mix = self.problem.n_users, self.learner.mix
        start, stop = self.done * K, (self.done + 1) * K
        awake, batches = self.schedule.users(GRAPH_STREAM, start, stop), self.schedule.batches(start, stop)
        random_bits = self.schedule.random_bits(start, stop, mix.n_draws)
        self.wake(awake, batches, random_bits)
        self.done += 1

    def wake(self, awake, batches, random_bits):
        done = 0
        while done < len(awake):
            done += self.learner.wake(self.state, awake[done:], batches[done:], random_bits[done:])

    def improve(self, width=WIDTH):
        """Exact steps of every user on its own pairs, of all, whose weights want to change most."""
        K = self.problem.n_users
        self.learner.mix = self.learner.mix._replace(n_uniform=width, n_gossip=0, n_refresh=0)
        self.learner = _with_batches(self.problem, width, self.learner)
        degree = self.state.graph.degree + self.problem.regularizer.delta
        models, losses = self.models.astype(np.float64), self.learner.losses
        squares = (models**2).sum(axis=1)
        weights = self.state.graph.to_scipy()
        for first in range(0, K, BLOCK):
            rows = slice(first, min(first + BLOCK, K))
            dist2 = squares[rows, None] + squares - 2 * models[rows] @ models.T
            cost = losses[rows, None] + losses + 0.5 * self.problem.mu1 * np.maximum(dist2, 0)
            w = weights[rows].toarray()
            gradient = cost / self.problem.graph_mu + 2 * self.problem.regularizer.lam * w
            gradient -= 1 / degree[rows, None] + 1 / degree
            gradient[np.arange(w.shape[0]), np.arange(rows.start, rows.stop)] = np.inf
            urgency = np.where(w > 0, abs(gradient), np.maximum(-gradient, 0))
            chosen = np.argpartition(urgency, K - width, axis=1)[:, K - width :].astype(np.int32)
            own = np.arange(rows.start, rows.stop, dtype=np.int32)
            chosen[chosen == own[:, None]] = (own[:, None] + 1).repeat(width, 1)[chosen == own[:, None]] % K
            self.wake(own, chosen, np.empty((len(own), 0), np.int64))

    @property
    def value(self):
        return self.problem.graph_objective(self.models, self.state.graph)

    @property
    def spent(self):
        """Models sent to each user, and bits, on average."""
        messages, floats, indices = self.state.ledger.graph.tolist()
        # A peer's answer has a model, or one number more than the question where the model is known.
        new = messages / 2 if self.learner.mix.n_gossip == 0 else (floats - indices - messages) / 2
        return new / self.problem.n_users, self.state.ledger.graph_bits / self.problem.n_users


def _with_batches(problem, width, before):
    plan = Plan(0, sampler="uniform", kappa=width)
    learner = DistanceRule(problem, plan, np.dtype(np.float32))
    learner.mix, learner.losses = uniform_mix(width), before.losses
    return learner


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--users", type=int, action="append")
    parser.add_argument("--most-uniform", type=int, default=1_000, help="largest population for uniform batches")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", help="file for a picture of what --json has printed before, given with --from")
    parser.add_argument("--from", dest="source", help="JSON of an earlier run to draw")
    options = parser.parse_args()
    if options.source:
        with open(options.source) as file:
            plot(json.load(file), options.plot)
        return
    entries = []
    for n_users in options.users or sorted(LONG):
        entries.append(measure(n_users, n_users <= options.most_uniform))
        print(row(entries[-1]), file=sys.stderr, flush=True)
    setting = {
        "data": "moons, seed 1",
        "kappa": KAPPA,
        "delta": DELTA,
        "beta": BETA,
        "mu": MU,
        "lam_times_K": LAM_TIMES_K,
    }
    result = {"gossip": entries, "setting": setting | {"loss": "logistic", "part": PART}, "machine": machine_facts()}
    if options.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    if options.plot:
        plot(result, options.plot)


def measure(n_users, with_uniform, long=None, most_uniform=None):
    """All that is reported of one population size."""
    problem, models = learned_alone(n_users)
    at_zero = problem.graph_objective(models, CollaborationGraph.empty(n_users))
    long = LONG.get(n_users, 400) if long is None else long
    gossip, curve = follow(Search(problem, models, "gossip"), long)
    for _ in range(ROUNDS if n_users <= ALL_PAIRS_UP_TO else 0):
        before = gossip.value
        gossip.improve(min(WIDTH, n_users - 1))
        if before - gossip.value <= 1e-5 * abs(gossip.value):
            break
    optimum = gossip.value
    entry = {
        "users": n_users, "h0": at_zero, "optimum": optimum, "all_pairs": n_users <= ALL_PAIRS_UP_TO,
        "neighbours": gossip.state.graph.mean_neighbours, "long_run_above": curve[-1]["h"] - optimum,
        "gossip": reached(curve, at_zero, optimum),
    }  # fmt: skip
    if with_uniform:
        most = MOST_UNIFORM_WAKEUPS.get(n_users, 2_000) if most_uniform is None else most_uniform
        enough = optimum + PART * min(at_zero - optimum, abs(optimum))
        _, curve = follow(Search(problem, models, "uniform"), most, enough)
        entry["uniform"] = reached(curve, at_zero, optimum)
    return entry


def learned_alone(n_users):
    """The graph problem of Moons users and the models that each learned alone."""
    users = moons(1, n_users=n_users, n_test=1)
    regularizer = LogDegree(lam=LAM_TIMES_K / n_users, delta=DELTA)
    predictors = STUMPS.fit(users.train.X)
    problem = task.problem(users.train, predictors, beta=BETA, mu1=MU, loss="logistic", regularizer=regularizer)
    plan = Plan(UPDATES * n_users, learn_graph=False, trace_every=UPDATES * n_users)
    return problem, run(problem, plan, np.random.default_rng(0)).models


def follow(search, most, enough=-np.inf):
    """Wake users up to a number of wake-ups per user, or until h is low enough; returns the search and its curve."""
    curve, steps = [], 25 if search.problem.n_users <= ALL_PAIRS_UP_TO else 10
    started = time.process_time()
    while search.done < most and (not curve or curve[-1]["h"] > enough):
        for _ in range(max(1, search.done // steps)):
            search.wake_all()
        models, bits = search.spent
        seconds = time.process_time() - started
        curve.append({"wakeups": search.done, "h": search.value, "models": models, "bits": bits, "seconds": seconds})
    return search, curve


def reached(curve, at_zero, optimum):
    """The first point of a curve within each tolerance, and the curve itself, as parts of the initial distance."""

    def first(tolerance):
        return next((point for point in curve if point["h"] - optimum <= tolerance), None)

    parts = [[point["wakeups"], (point["h"] - optimum) / (at_zero - optimum)] for point in curve]
    near = {"of_initial": first(PART * (at_zero - optimum)), "of_optimum": first(PART * abs(optimum))}
    return {**near, "curve": parts}


def row(entry):
    def cell(sampler, kind):
        point = entry.get(sampler, {}).get(kind)
        return (
            "-"
            if point is None
            else f"{point['wakeups']} ({point['models']:.0f} models, {point['bits'] / 1e3:.0f} kbit)"
        )

    cells = [
        f"{name} {kind}: {cell(name, kind)}" for name in ("gossip", "uniform") for kind in ("of_initial", "of_optimum")
    ]
    return f"{entry['users']:>7} users, {entry['neighbours']:.1f} neighbours; " + "; ".join(cells)


def plot(result, file):
    """Distance to the optimum against wake-ups per user, a line for each size and sampler."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(result["gossip"])))
    for entry, colour in zip(result["gossip"], colours, strict=True):
        for sampler, style in (("gossip", "-"), ("uniform", "--")):
            if sampler in entry:
                curve = np.array(entry[sampler]["curve"])
                axes.plot(*curve.T, style, color=colour, label=f"{entry['users']:,} users, {sampler}")
    axes.axhline(PART, color="grey", linewidth=0.8)
    axes.set(
        xscale="log", yscale="log", xlabel="graph wake-ups per user", ylabel="(h - h*) / (h(0) - h*)", ylim=(1e-4, 1)
    )
    axes.legend(fontsize=8)
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
