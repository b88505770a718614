"""Accuracy of honest users among liars, against the same users without liars, and alone.

    python benchmarks/liars.py --seeds 5
    python benchmarks/liars.py --only Mirror Shadow --shares 0.3 --seeds 2
    python benchmarks/liars.py --parts build/liars.jsonl --seeds 5
    python benchmarks/liars.py --liars unseen_liars --seeds 5

Fifty users of Moons, evidence graph, block steps, 150 wake-ups each. A tenth of liars must cost at most 1 point, and a
fifth at most 2. With three tenths, honest users must not be more than half a point below learning alone, and with
thirty identities of one attacker among eighty peers not below it at all. Differences are between the same honest users,
with liars and without.

`--parts` names a file to which every finished network is appended; networks that it holds are not run again.
`--liars` names a module with a tuple `KINDS` of other kinds: subclasses of `dada.sim.liars.Liar`, which override
`lie_to(peer, message)`, `attack()` and `overhear(sender, message)`. The attacker of many identities shares `source`,
`model` and `models`, if its kind has them: the member whose model it misuses, the model that it sends, and the models
of its victims.
"""

import argparse
import importlib
import json
import multiprocessing
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from dada.cli.simulated_runs import synthetic_peers
from dada.sim import network_of
from dada.sim.liars import ADAPTIVE_KINDS, KINDS, Liar
from dada.sim.virtual import Faults

USERS, SYBILS = 50, 30
SHARES = (0.1, 0.2, 0.3)
# Kinds of which one attacker has many identities.
COLLUDING = ("Attractor", "Poisoner", "Mirror", "Shadow")
SHARED = ("source", "model", "models")
# Points that liars may cost against honest users, or below learning alone, by share; None stands for sybils.
MOST_LOST = {0.1: 1.0, 0.2: 2.0}
MOST_BELOW_ALONE = {0.3: 0.5, None: 0.0}


def kinds_of(module):
    """The kinds of liars of a module, by name; those of the simulator by default."""
    kinds = KINDS + ADAPTIVE_KINDS if module is None else importlib.import_module(module).KINDS
    return {kind.__name__: kind for kind in kinds}


def colluding(kind):
    """A kind whose liars are identities of one attacker: all send what the first of them knows."""
    first: list[Liar] = []

    class Identity(kind):
        def __init__(self, member, rng, gang=()):
            super().__init__(member, rng, gang)
            first.append(self)
            for name in SHARED:
                if hasattr(self, name):
                    setattr(self, name, getattr(first[0], name))

    return Identity


def measure(module, liar, share, seed, steps):
    """Accuracy of each user of one network, learned together and alone; without liars if `liar` is None."""
    n_users = USERS + (SYBILS if share is None else 0)
    people = synthetic_peers("moons", n_users, seed)
    options = {"graph": "evidence", "step": "block", "steps": steps, "seed": seed}
    if liar is not None:
        kind = kinds_of(module)[liar]
        options["liar_kinds"] = (colluding(kind) if share is None else kind,)
    lying = 0.0 if liar is None else SYBILS / n_users if share is None else share
    network = network_of(people.problem, Faults(lying=lying), **options)
    # Tests check the invariants; without them a network takes half the time.
    network.world.watch = network.world.before_sending = lambda *_: None
    network.world.run(network.duration_s)
    models = {"together": network.models(lambda member: member.model)}
    models["alone"] = network.models(lambda member: member.fallback.alpha)
    each = {name: people.exam.per_user(rows).round(5).tolist() for name, rows in models.items()}
    part = {"liar": liar, "share": share, "seed": seed, "steps": steps, **each}
    return part | {"honest": [host.is_honest for host in network.world.hosts], "weight": weight_of_liars(network)}


def weight_of_liars(network):
    """Mean share of liars in the weights of honest peers."""
    honest = {host.me for host in network.joined}
    edges = [(edge.weight, peer in honest) for host in network.joined for peer, edge in host.member.peer.edges.items()]
    return sum(weight for weight, is_honest in edges if not is_honest) / max(1e-9, sum(weight for weight, _ in edges))


def key_of(part):
    """What makes two networks the same."""
    return part["liar"], part["share"], part["seed"], part["steps"]


def run_all(wanted, jobs, module, file):
    """The networks that are wanted, by key; those in the file are not run again."""
    text = file.read_text().splitlines() if file is not None and file.exists() else ()
    known = {key_of(part): part for part in map(json.loads, text)}
    missing = [(module, *key) for key in wanted if key not in known]
    with multiprocessing.get_context("spawn").Pool(jobs) if jobs > 1 else nullcontext() as pool:
        parts = map(_measure, missing) if pool is None else pool.imap_unordered(_measure, missing)
        for number, part in enumerate(parts, 1):
            known[key_of(part)] = part
            print(f"{number} of {len(missing)} networks: {key_of(part)}", file=sys.stderr, flush=True)
            if file is not None:
                with file.open("a") as lines:
                    lines.write(json.dumps(part) + "\n")
    return known


def _measure(arguments):
    return measure(*arguments)


def summary(known, liar, share, seeds, steps):
    """Means of the honest users over seeds, in percent, and whether the bound holds."""
    rows = []
    for seed in seeds:
        lied, calm = known[liar, share, seed, steps], known[None, 0.0 if share else None, seed, steps]
        each = np.array([lied["together"], calm["together"], calm["alone"]])
        rows.append([*each[:, lied["honest"]].mean(axis=1), lied["weight"]])
    rows = 100 * np.array(rows)
    among, without, alone, weight = rows.mean(axis=0).tolist()
    is_to_honest = share in MOST_LOST
    least = without - MOST_LOST[share] if is_to_honest else alone - MOST_BELOW_ALONE[share]
    return {
        "liar": liar, "share": share, "seeds": len(rows), "weight": weight, "among_liars": among, "all_honest": without,
        "alone": alone, "difference": among - (without if is_to_honest else alone), "least": least,
        "worst_difference": float(np.min(rows[:, 0] - rows[:, 1 if is_to_honest else 2])), "holds": among >= least,
    }  # fmt: skip


COLUMNS = {
    "weight": "their weight", "among_liars": "among liars", "all_honest": "all honest", "alone": "alone",
    "least": "at least", "difference": "difference", "worst_difference": "worst seed",
}  # fmt: skip


def table(rows):
    """The summaries as a Markdown table; differences are to all honest up to a fifth of liars, then to alone."""
    lines = [f"| liars | share | seeds | {' | '.join(COLUMNS.values())} | holds |", "| --- " * (len(COLUMNS) + 4) + "|"]
    for row in rows:
        share = f"{SYBILS} of {USERS + SYBILS}" if row["share"] is None else f"{row['share']:.0%}"
        values = " | ".join(f"{row[name]:.1f}" for name in COLUMNS)
        lines.append(f"| {row['liar']} | {share} | {row['seeds']} | {values} | {'yes' if row['holds'] else 'no'} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="KIND", help="kinds of liars; all by default")
    parser.add_argument("--shares", nargs="*", type=float, choices=SHARES, default=SHARES)
    parser.add_argument("--no-sybils", action="store_true", help="leave out the attacker of many identities")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--liars", metavar="MODULE", help="module with other kinds of liars")
    parser.add_argument("--parts", type=Path, help="file of finished networks")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on stdout")
    options = parser.parse_args()
    names = options.only or list(kinds_of(options.liars))
    cells = [(name, share) for share in options.shares for name in names]
    if not options.no_sybils:
        cells += [(name, None) for name in names if options.liars or name in COLLUDING]
    seeds = range(1, options.seeds + 1)
    calm = dict.fromkeys((None, 0.0 if share else None) for _, share in cells)
    wanted = [(*cell, seed, options.steps) for seed in seeds for cell in (*calm, *cells)]
    known = run_all(wanted, options.jobs, options.liars, options.parts)
    rows = [summary(known, *cell, seeds, options.steps) for cell in cells]
    print(json.dumps(rows, indent=2) if options.json else table(rows))
    sys.exit(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    main()
