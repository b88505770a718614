"""Check the invariants of many simulated networks with every fault.

    python benchmarks/soak.py --seeds 200 --jobs 2
    python benchmarks/soak.py --seeds 1000 --out build/soak.jsonl
    python benchmarks/soak.py --trees --seeds 100
    python benchmarks/soak.py --nodes --seeds 20

Peers of odd seeds choose neighbours by evidence, those of even seeds as in the paper; half of the networks make block
steps. Each violated invariant is printed with the command that repeats the run.

`--out` names a file to which each finished network is appended, as a line of JSON with a hash of its models, counts and
events. Networks that it holds are not run again, unless the code has changed. The hash of all networks does not depend
on the process: runs with two values of PYTHONHASHSEED print the same one.

`--trees` runs networks on Xor whose dictionaries grow: peers of odd seeds boost trees together, those of even seeds
share trees of their own.

`--nodes` runs ten real nodes per network instead, with their sessions, links and stores, on virtual links and disks.
Two of them are liars, of other kinds in each network.
"""

import argparse
import hashlib
import json
import multiprocessing
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import dada
from dada.cli.simulated_runs import make_case, synthetic_peers, with_boosting, with_trees
from dada.sim.invariants import InvariantError
from dada.sim.liars import ADAPTIVE_KINDS, KINDS
from dada.sim.nodes import NodeNetwork

USERS, STEPS = 50, 20
TREE_USERS, TREE_STEPS = 20, 40
NODES, NODE_STEPS, NODE_LIARS = 10, 120, 2
LIAR_KINDS = (*KINDS, *ADAPTIVE_KINDS)
PACKAGE = Path(dada.__file__).parent


def soak(seed, users=USERS, steps=STEPS, faults="all"):
    """Run one network; see `outcome`."""
    network = _case(seed, users, steps, faults)
    return outcome(seed, network.world, network.invariants, lambda: network.check().tobytes())


def soak_trees(seed, users=TREE_USERS, steps=TREE_STEPS, faults="all"):
    """As `soak`, for networks that grow trees."""
    people = synthetic_peers("xor", users, seed)
    people = with_boosting(people) if seed % 2 else with_trees(people, seed)
    network = make_case(people, steps, seed, faults, "evidence", step="block").network
    return outcome(seed, network.world, network.invariants, lambda: network.check().tobytes())


def soak_nodes(seed, users=NODES, steps=NODE_STEPS):
    """As `soak`, for real nodes on virtual links and disks; nodes wake up once a second."""
    case = _case(seed, users, steps, "none")
    config = replace(case.config, n_neighbours=3)
    replay = f"python benchmarks/soak.py --nodes --first {seed} --seeds 1 --users {users} --steps {steps}"
    kinds = [LIAR_KINDS[(NODE_LIARS * seed + p) % len(LIAR_KINDS)] for p in range(NODE_LIARS)]
    network = NodeNetwork(
        case.problem, config, case.rhythm, duration_s=float(steps), seed=seed, replay=replay, liar_kinds=kinds
    )
    return outcome(seed, network, network.invariants, lambda: network.run().hash.encode())


def _case(seed, users, steps, faults):
    graph, step = ("distance", "evidence")[seed % 2], ("pairwise", "block")[seed // 2 % 2]
    return make_case(synthetic_peers("moons", users, seed), steps, seed, faults, graph, step=step).network


def outcome(seed, world, invariants, run):
    """The numbers of events, messages and checks of a run, the violation, if any, and a hash of all and of the end."""
    violation, end = None, b""
    try:
        end = run()
    except InvariantError as error:
        violation = str(error)
    end += repr((world.events, sorted(world.counts.items()), invariants.checked)).encode()
    return {
        "seed": seed,
        "events": world.events,
        "messages": world.counts["messages"],
        "checks": invariants.checked,
        "violation": violation,
        "hash": hashlib.sha256(end).hexdigest()[:16],
    }


def code_of(*details):
    """Digest of all that decides on a network."""
    digest = hashlib.sha256(repr(details).encode())
    for path in sorted(path for package in ("core", "peer", "sim", "net") for path in (PACKAGE / package).glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def soak_all(seeds, users=USERS, steps=STEPS, jobs=1, file=None, report=lambda text: None, run=soak):
    """Run networks in several processes, except those that a file holds; returns the totals."""
    started, code = time.monotonic(), code_of(users, steps, run.__name__)
    lines = file.read_text().splitlines() if file is not None and file.exists() else ()
    rows = {row["seed"]: row for row in map(json.loads, lines) if row["code"] == code and row["seed"] in seeds}
    missing = [seed for seed in seeds if seed not in rows]
    # A forked process would share the compiler's locks.
    with multiprocessing.get_context("spawn").Pool(jobs) if jobs > 1 else nullcontext() as pool:
        for row in (map if pool is None else pool.imap_unordered)(partial(run, users=users, steps=steps), missing):
            rows[row["seed"]] = row
            if file is not None:
                with file.open("a") as out:
                    out.write(json.dumps(row | {"code": code}) + "\n")
            if row["violation"] is not None:
                report(row["violation"])
            report(f"{len(rows)} seeds, {sum(one['events'] for one in rows.values()):,} events")
    ordered = [rows[seed] for seed in seeds]
    return {
        "seeds": len(seeds),
        "users": users,
        **{name: sum(row[name] for row in ordered) for name in ("events", "messages", "checks")},
        "violations": [row["violation"] for row in ordered if row["violation"] is not None],
        "hash": hashlib.sha256("".join(row["hash"] for row in ordered).encode()).hexdigest()[:16],
        "seconds": round(time.monotonic() - started, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="number of networks")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--trees", action="store_true", help="networks that grow trees")
    kinds.add_argument("--nodes", action="store_true", help="run real nodes on virtual links")
    parser.add_argument("--users", type=int, help=f"peers of each network ({USERS}, {TREE_USERS}, or {NODES} nodes)")
    parser.add_argument(
        "--steps", type=int, help=f"wake-ups per peer ({STEPS}, {TREE_STEPS}, or {NODE_STEPS} of a node)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="file for the result of each network, to continue from")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on stdout")
    options = parser.parse_args()

    def report(text):
        if sys.stderr.isatty() or "\n" in text:
            print(text, file=sys.stderr)

    seeds = range(options.first, options.first + options.seeds)
    run, users, steps = soak, USERS, STEPS
    if options.trees:
        run, users, steps = soak_trees, TREE_USERS, TREE_STEPS
    elif options.nodes:
        run, users, steps = soak_nodes, NODES, NODE_STEPS
    users, steps = options.users or users, options.steps or steps
    result = soak_all(seeds, users, steps, options.jobs, options.out, report, run)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"{result['seeds']} networks of {result['users']} peers with every fault: {result['events']:,} events "
            f"({result['messages']:,} messages), {result['checks']:,} checks, {len(result['violations'])} violations, "
            f"{result['seconds']} s, hash {result['hash']}"
        )
    sys.exit(bool(result["violations"]))


if __name__ == "__main__":
    main()
