"""What a delay of messages changes: objective and accuracy against the length of a window, on Moons.

    python benchmarks/latency.py [--seeds 5] [--json]

The settings are those of `dada demo`: 100 users, 200 updates each. A latency of 1 is the mean time between two updates
of a user. The objective is compared with that of the same users without latency.
"""

import argparse
import json
from dataclasses import replace

import numpy as np

from dada.baselines import boost
from dada.cli.demo_report import METHODS, STUMPS, demo_settings
from dada.core.graph import CollaborationGraph
from dada.data import moons
from dada.events import silent

LATENCIES = (0.0, 0.1, 0.5, 1.0, 2.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    draws = [moons(seed) for seed in range(1, options.seeds + 1)]
    oracle = [[measure(users, "dada-oracle", latency) for users in draws] for latency in LATENCIES]
    learned = [[measure(users, "dada-learned", latency) for users in draws] for latency in LATENCIES]
    reference = np.array([objective for objective, _ in oracle[0]])
    rows = [
        {
            "latency": latency,
            "objective_above_percent": 100 * float(np.mean((np.array(given)[:, 0] - reference) / np.abs(reference))),
            "accuracy_oracle": 100 * float(np.mean(given, axis=0)[1]),
            "accuracy_learned": 100 * float(np.mean(found, axis=0)[1]),
        }
        for latency, given, found in zip(LATENCIES, oracle, learned, strict=True)
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print("| latency | objective above that of no latency, oracle's graph | test accuracy, oracle's graph "
          "| test accuracy, graph learned |\n| --- | --- | --- | --- |")  # fmt: skip
    for row in rows:
        print("| {latency:g} | {objective_above_percent:.1f} % | {accuracy_oracle:.1f} % | {accuracy_learned:.1f} % |"
              .format(**row))  # fmt: skip


def measure(users, method, latency):
    """Objective and mean test accuracy of one run."""
    settings = demo_settings(method)
    settings = replace(settings, plan=replace(settings.plan, latency=latency))
    graph = METHODS[method] or CollaborationGraph.from_scipy(users.oracle_weights())
    train, test = users.train, users.test
    found = boost(train, STUMPS.fit(train.X), test, settings, np.random.default_rng(0), silent, graph=graph)
    return found.trace[-1].objective, found.test_accuracy.mean()


if __name__ == "__main__":
    main()
