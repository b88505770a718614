"""Accuracy of simulated networks with losses and crashes, and with a tenth of simple liars.

    python benchmarks/faults.py --seeds 6
    python benchmarks/faults.py --seeds 6 --graph distance

Two claims are checked. With a fifth of the messages lost and a tenth of the peers crashing repeatedly, accuracy is
within 2 points of the network without faults. With a tenth of liars, honest users are at most 1 point below learning
alone.
"""

import argparse
import json
import multiprocessing
import sys

import numpy as np

from dada.cli.simulated_runs import make_case, synthetic_peers

FAULTS = ("none", "loss,churn", "byzantine", "all")


def measure(faults, seed, users, steps, graph):
    """Mean accuracies of the honest users of one network."""
    case = make_case(synthetic_peers("moons", users, seed), steps, seed, faults, graph, step="block")
    outcome = case.network.run()
    return {**case.accuracies(outcome), "edges": outcome.edges, "bytes": outcome.counts["bytes"]}


def summary(seeds, users, steps, graph, jobs):
    """Means over seeds, for each kind of faults."""
    cases = [(faults, seed, users, steps, graph) for faults in FAULTS for seed in seeds]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        rows = pool.starmap(measure, cases)
    means = {}
    for faults in FAULTS:
        own = [row for case, row in zip(cases, rows, strict=True) if case[0] == faults]
        means[faults] = {name: float(np.mean([row[name] for row in own])) for name in own[0]}
    return means


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--graph", choices=("evidence", "distance"), default="evidence")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on stdout")
    options = parser.parse_args()
    means = summary(range(1, options.seeds + 1), options.users, options.steps, options.graph, options.jobs)
    drop = means["none"]["test_accuracy"] - means["loss,churn"]["test_accuracy"]
    gain = means["byzantine"]["test_accuracy"] - means["byzantine"]["local_accuracy"]
    if options.json:
        print(json.dumps({"means": means, "drop": drop, "gain_among_liars": gain}, indent=2))
    else:
        print(f"{'faults':<12}{'test':>8}{'alone':>8}{'edges':>8}{'MB':>8}")
        for faults, row in means.items():
            print(
                f"{faults:<12}{100 * row['test_accuracy']:>8.1f}{100 * row['local_accuracy']:>8.1f}"
                f"{row['edges']:>8.0f}{row['bytes'] / 1e6:>8.1f}"
            )
        print(f"losses and crashes cost {100 * drop:.1f} points")
        print(f"among liars, honest users are {100 * gain:+.1f} points from learning alone")
    sys.exit(not (drop <= 0.02 and gain >= -0.01))


if __name__ == "__main__":
    main()
