"""Check the invariants of many simulated networks with every fault.

    python benchmarks/soak.py --seeds 200 --jobs 2

Peers of odd seeds choose neighbours by evidence, those of even seeds as in the paper; half of the networks make block
steps. Each violated invariant is printed with the command that repeats the run.
"""

import argparse
import json
import multiprocessing
import sys
import time

from dada.cli.network_users import synthetic_peers
from dada.cli.simulated_runs import make_case
from dada.sim.invariants import InvariantError


def soak(seed, users=50, steps=20, faults="all"):
    """Run one network; returns the numbers of events, messages and checks, and the violation, if any."""
    graph, step = ("distance", "evidence")[seed % 2], ("pairwise", "block")[seed // 2 % 2]
    try:
        outcome = make_case(synthetic_peers("moons", users, seed), steps, seed, faults, graph, step=step).network.run()
    except InvariantError as error:
        return 0, 0, 0, str(error)
    return outcome.events, outcome.counts["messages"], outcome.checks, None


def soak_all(seeds, jobs=1, report=lambda text: None):
    """Run networks in several processes; returns the totals."""
    started, done = time.monotonic(), [0, 0, 0]
    violations = []
    # A forked process would share the compiler's locks.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for n, (*counts, violation) in enumerate(pool.imap_unordered(soak, seeds), 1):
            done = [total + count for total, count in zip(done, counts, strict=True)]
            if violation is not None:
                violations.append(violation)
                report(violation)
            report(f"{n} seeds, {done[0]:,} events, {len(violations)} violations")
    events, messages, checks = done
    return {
        "seeds": len(seeds),
        "events": events,
        "messages": messages,
        "checks": checks,
        "violations": violations,
        "seconds": round(time.monotonic() - started, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="number of networks")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on stdout")
    options = parser.parse_args()

    def report(text):
        if sys.stderr.isatty() or "\n" in text:
            print(text, file=sys.stderr)

    result = soak_all(range(options.first, options.first + options.seeds), options.jobs, report)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"{result['seeds']} networks of 50 peers with every fault: {result['events']:,} events "
            f"({result['messages']:,} messages), {result['checks']:,} checks, "
            f"{len(result['violations'])} violations, {result['seconds']} s"
        )
    sys.exit(bool(result["violations"]))


if __name__ == "__main__":
    main()
