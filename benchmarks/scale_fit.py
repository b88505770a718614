"""`dada fit` of generated users, from a file to models: time, memory, accuracy, and whether it finds the groups.

    python benchmarks/scale_fit.py [--users 10000] [--users 100000] [--lam 30] [--rule printed] [--stream] [--json FILE]

Users are those of `dada datasets generate --seed 1`: four groups, 3 to 15 rows for learning and ten for testing, 20
features of which two are informative; the others are 0, or with `--rule printed` noise. The column with the true group
is left out. The fit has its default settings, or with `--lam` the paper's graph. "inside" is the share of the edges'
weight that joins users of one group; random peers give 30 %. Time and memory are those of the process of `dada fit`,
with its reading and writing of files. "alone" is the test accuracy of the same fit without a graph (to 100,000 users).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from machine import machine_facts

from dada import load_model

DADA = [sys.executable, "-c", "from dada.cli.app import main; main()"]
ROWS_AT_ONCE = 500_000
MOST_ALONE = 100_000


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--users", type=int, action="append")
    parser.add_argument("--lam", type=float, help="learn the paper's graph with this lam")
    parser.add_argument("--rule", default="run", choices=("run", "printed"))
    parser.add_argument("--stream", action="store_true", help="never read the file as a whole")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    fits = []
    # Not in the system's temporary folder, which may be memory; git ignores this one.
    scratch = Path("build")
    scratch.mkdir(exist_ok=True)
    for n_users in options.users or [10_000, 100_000]:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            fits.append(measure(Path(folder), n_users, options))
        print(as_text(fits[-1]), flush=True)
    if options.json:
        result = {"fits": fits, "machine": machine_facts()}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def as_text(fit):
    shares = ", ".join(
        f"{name} {fit[key]:.1%}"
        for name, key in (("test", "test_accuracy"), ("alone", "alone"), ("inside", "inside"))
        if key in fit
    )
    cost = f"{fit['processor_s']:.0f} s of processor, {fit['elapsed_s'] / 60:.1f} min, {fit['peak_gb']:.2f} GB"
    return f"{fit['users']:>9,} users: {shares}, {fit['neighbours']:.0f} neighbours, {cost}, load {fit['load']:.1f}"


def measure(folder, n_users, options):
    users, test = folder / "users.parquet", folder / "test.parquet"
    drawn = ["--rule", options.rule, "--seed", "1"]
    run(["datasets", "generate", str(users), "--users", str(n_users), "--test", str(test), *drawn])
    load = os.getloadavg()[0]
    fit = ["fit", str(users), "--user", "user", "--label", "label", "--drop", "group", "--holdout", "0", "--json"]
    fit += ["--stream"] * options.stream
    graph = [] if options.lam is None else ["--graph", "learned", "--lam", str(options.lam)]
    together, cost = run([*fit, *graph, "-o", str(folder / "together.dada")])
    model = load_model(folder / "together.dada")
    setting = {"rule": options.rule, "streamed": options.stream, "lam": options.lam, "load": load}
    entry = {"users": n_users, **setting, **cost, "graph": together["graph"], "neighbours": together["neighbours"]}
    entry |= {"inside": inside(model, users), "test_accuracy": accuracy(model, test)}
    del model
    if n_users <= MOST_ALONE:
        run([*fit, "--graph", "none", "-o", str(folder / "alone.dada")])
        entry["alone"] = accuracy(load_model(folder / "alone.dada"), test)
    return entry


def run(arguments):
    """What a command prints as JSON where it does, and what it cost."""
    began = time.perf_counter()
    with subprocess.Popen([*DADA, *arguments], stdout=subprocess.PIPE) as process:
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"dada {' '.join(arguments)} ended with {process.returncode}")
    spent = {"processor_s": usage.ru_utime + usage.ru_stime, "elapsed_s": time.perf_counter() - began}
    # Kilobytes on Linux.
    return json.loads(printed) if "--json" in arguments else {}, spent | {"peak_gb": usage.ru_maxrss * 1024 / 1e9}


def inside(model, users):
    """Share of the edges' weight between users of the same group."""
    known = pl.scan_parquet(users).group_by("user").agg(pl.col("group").first()).sort("user").collect()
    if known["user"].to_list() != model.users_.tolist():
        raise AssertionError("the model has other users than the table")
    group = known["group"].to_numpy()
    k, l, w = model.graph_.edges()
    return float(w[group[k] == group[l]].sum() / w.sum())


def accuracy(model, test):
    """Mean over users of the share of their test rows that are right."""
    table = pl.scan_parquet(test)
    # `dada fit` leaves constant columns out.
    columns = list(model.feature_names_in_)
    right, rows = np.zeros(model.n_users_), np.zeros(model.n_users_)
    for start in range(0, table.select(pl.len()).collect().item(), ROWS_AT_ONCE):
        block = table.slice(start, ROWS_AT_ONCE).collect()
        predicted = model.predict(block.select(columns), users=block["user"])
        at = np.searchsorted(model.users_, block["user"].to_numpy())
        right += np.bincount(at, weights=predicted == block["label"].to_numpy(), minlength=model.n_users_)
        rows += np.bincount(at, minlength=model.n_users_)
    return float((right / rows).mean())


if __name__ == "__main__":
    main()
