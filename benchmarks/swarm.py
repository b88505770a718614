"""Real peers on this machine against the estimator that chose their settings, as a Markdown table.

    DADA_DATA=folder python benchmarks/swarm.py
    DADA_DATA=folder python benchmarks/swarm.py --only school

School has two classes and 139 peers in one process, with real sockets; "school-scores" are its exam scores as numbers.
"harws-activities" has six classes and 30 processes. Two claims are checked: scores are within 0.005 (0.01 for numbers)
of the estimator's, and messages about models have at most twice the bytes that the ledger counts.
"""

import argparse
import json
import subprocess
import sys

# Seconds and wake-ups per second: about a hundred wake-ups per peer, on two processors.
CASES = {
    "school": ("--in-process", "--seconds", "330", "--rate", "0.3"),
    "school-scores": ("--in-process", "--seconds", "330", "--rate", "0.3"),
    "harws-activities": ("--seconds", "330", "--rate", "0.3"),
}
HEAD = "| users | alone | peers | estimator | Mbit by the ledger | messages about models, Mbit | edges |"
MOST_BEHIND = {"accuracy": 0.005, "R2": 0.01}


def measure(data):
    """The result of one swarm."""
    program = "from dada.cli.app import main; main()"
    call = [sys.executable, "-c", program, "swarm", "--data", data, *CASES[data], "--json"]
    return json.loads(subprocess.run(call, check=True, stdout=subprocess.PIPE).stdout)


def row(data, found):
    """A line of the table."""
    scores = " | ".join(f"{100 * found[f'{name}_accuracy']:.1f}" for name in ("local", "test", "engine"))
    bits = f"{found['paper_bits'] / 1e6:.2f} | {8 * found['model_bytes'] / 1e6:.2f}"
    return f"| {data}, {found['peers']} peers | {scores} | {bits} | {found['edges']} |"


def failures(data, found):
    """The claims that do not hold."""
    behind = found["engine_accuracy"] - found["test_accuracy"]
    if behind > MOST_BEHIND[found["measure"]]:
        yield f"{data}: {behind:.4f} behind the estimator"
    if 8 * found["model_bytes"] > 2 * found["paper_bits"]:
        yield f"{data}: {8 * found['model_bytes'] / found['paper_bits']:.2f} times the bits of the ledger"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=CASES)
    options = parser.parse_args()
    print(HEAD, "| --- | --- | --- | --- | --- | --- | --- |", sep="\n")
    failed = []
    for data in [options.only] if options.only else CASES:
        found = measure(data)
        print(row(data, found), flush=True)
        failed += failures(data, found)
    sys.exit("\n".join(failed) if failed else 0)


if __name__ == "__main__":
    main()
