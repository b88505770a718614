"""What one would take instead, side by side: gossipy, Flower, and scikit-learn's AdaBoost.

    python benchmarks/alternatives.py [--users 100 1000] [--json FILE] [--gossipy PYTHON] [--flower PYTHON]

All methods get the same Moons users (few training rows each, two moons rotated by one of four angles) and, except for
AdaBoost, which finds its own, the same 200 decision stumps as features. gossipy and Flower have other requirements, so
each may have its own environment, named by its Python; missing ones are skipped. docs/alternatives.md describes the
comparison. Seconds are processor time of all processes of a method.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from sklearn.ensemble import AdaBoostClassifier

from dada import DadaClassifier, task
from dada.cli.demo_report import STUMPS, demo_settings
from dada.data import moons
from dada.engine import accuracy_per_user, run

HERE = Path(__file__).parent
INSTALL = {
    "gossipy": 'pip install gossipy-dfl torchvision "scikit-learn<1.6"',
    "flower": 'pip install "flwr[simulation]"',
}
MODULES = {"gossipy": "gossipy", "flower": "flwr"}
BOOSTING_ROUNDS = 50


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--users", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--gossip-updates", type=int, default=10_000, help="in all, and at least 20 rounds")
    parser.add_argument("--flower-updates", type=int, default=3_000, help="in all, and at least 5 rounds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gossipy", default=sys.executable, help="Python that has gossipy-dfl")
    parser.add_argument("--flower", default=sys.executable, help="Python that has flwr")
    parser.add_argument("--json", type=Path, help="result file; what it has of other numbers of users stays")
    options = parser.parse_args()
    absent = [name for name in MODULES if not has(getattr(options, name), MODULES[name])]
    for name in absent:
        print(f"{name} is left out; it takes: {INSTALL[name]}", file=sys.stderr)
    entries = []
    for n_users in options.users:
        users = moons(options.seed, n_users=n_users)
        predictors = STUMPS.fit(users.train.X)
        entries += ours(users, predictors, options.seed) + boosted(users)
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder, "data.npz")
            np.savez(data, **rows_of(predictors, users.train, "train"), **rows_of(predictors, users.test, "test"))
            if "gossipy" not in absent:
                rounds = max(20, options.gossip_updates // n_users)
                for node in ("plain", "pens"):
                    found = elsewhere(options.gossipy, "gossipy", data, rounds, "--node", node)
                    entries.append({"what": f"gossipy, {node}", "users": n_users, **found})
            if "flower" not in absent:
                found = elsewhere(options.flower, "flower", data, max(5, options.flower_updates // n_users))
                entries.append({"what": "Flower, FedAvg", "users": n_users, **found})
    for entry in entries:
        entry["updates_per_s"] = entry["updates"] / entry["seconds"]
    result = {"entries": entries, "left_out": absent, "machine": machine(options, absent)}
    if options.json:
        before = json.loads(options.json.read_text())["entries"] if options.json.exists() else []
        result["entries"] = [old for old in before if old["users"] not in options.users] + entries
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    show(entries)


def ours(users, predictors, seed):
    """Graph and models learned together, and models learned alone; without compilation."""
    entries = []
    for what, method in (("dada, graph learned", "dada-learned"), ("dada, everybody alone", "local-boost")):
        settings = demo_settings(method, users.train.n_users)
        learns = method == "dada-learned"
        plan = replace(settings.plan, learn_graph=learns, trace_every=settings.plan.n_updates)
        problem = task.problem(
            users.train, predictors, beta=settings.beta, mu1=settings.mu, regularizer=settings.regularizer
        )
        run(problem, replace(plan, n_updates=1, local_updates=1), np.random.default_rng(seed))
        began = time.process_time()
        result = run(problem, plan, np.random.default_rng(seed))
        seconds = time.process_time() - began
        accuracy = accuracy_per_user(task.samples(users.test, predictors), result.models).mean()
        # Models that the first graph comes from are learned alone, with as many updates again.
        updates = result.updates * (2 if learns else 1)
        entries.append(entry(what, users, seconds, updates, accuracy))
    return [*entries, defaults(users, seed)]


def defaults(users, seed):
    """The classifier as it comes, which also decides for itself on settings and graph; compiled beforehand."""
    train, test = users.train, users.test
    owner = train.users
    few = owner <= train.user_ids[9]
    DadaClassifier(random_state=seed).fit(train.X[few], train.y[few], users=owner[few])
    began = time.process_time()
    model = DadaClassifier(random_state=seed).fit(train.X, train.y, users=owner)
    seconds = time.process_time() - began
    right = model.predict(test.X, users=test.users) == test.y
    accuracy = np.mean(np.add.reduceat(right.astype(float), test.row_start[:-1]) / test.sizes)
    return entry("DadaClassifier()", users, seconds, model.n_iter_, accuracy)


def boosted(users):
    """scikit-learn's AdaBoost with its stumps: one ensemble per user, and one for all."""
    train, test = users.train, users.test
    began, models = time.process_time(), []
    for k in range(train.n_users):
        rows = train.user_rows(k)
        models.append(
            AdaBoostClassifier(n_estimators=BOOSTING_ROUNDS, random_state=0).fit(train.X[rows], train.y[rows])
        )
    alone = time.process_time() - began
    began = time.process_time()
    pooled = AdaBoostClassifier(n_estimators=BOOSTING_ROUNDS, random_state=0).fit(train.X, train.y)
    together = time.process_time() - began
    owns = [models[k].score(test.X[test.user_rows(k)], test.y[test.user_rows(k)]) for k in range(test.n_users)]
    alls = [pooled.score(test.X[test.user_rows(k)], test.y[test.user_rows(k)]) for k in range(test.n_users)]
    return [
        entry("AdaBoost for each user", users, alone, BOOSTING_ROUNDS * train.n_users, np.mean(owns)),
        entry("AdaBoost for all", users, together, BOOSTING_ROUNDS, np.mean(alls)),
    ]


def entry(what, users, seconds, updates, accuracy):
    known = {"seconds": seconds, "updates": int(updates), "accuracy": float(accuracy)}
    return {"what": what, "users": users.train.n_users, **known}


def rows_of(predictors, people, name):
    samples = task.samples(people, predictors)
    known = {"X": samples.predictions, "y": (samples.y > 0).astype(np.int8), "start": samples.row_start}
    return {f"{name}_{part}": array for part, array in known.items()}


def has(python, module):
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0


def elsewhere(python, name, data, rounds, *more):
    """What a simulator finds, run by a Python that has it."""
    result = data.with_name(f"{name}.json")
    script = HERE / f"alternatives_{name}.py"
    subprocess.run([python, script, data, result, "--rounds", str(rounds), *more], check=True, capture_output=True)
    return json.loads(result.read_text())


def machine(options, absent):
    facts = {"cpus": os.cpu_count(), "processor": processor(), "python": platform.python_version()}
    versions = {name: version(name) for name in ("dada-learn", "scikit-learn", "numpy", "numba")}
    for name, package in (("gossipy", "gossipy-dfl"), ("flower", "flwr")):
        if name not in absent:
            code = f"from importlib.metadata import version; print(version({package!r}))"
            asked = subprocess.run([getattr(options, name), "-c", code], capture_output=True, text=True, check=True)
            versions[package] = asked.stdout.strip()
    return facts | {"versions": versions}


def processor():
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.machine()


def show(entries):
    print(f"{'':24}{'users':>7}{'updates':>10}{'seconds':>10}{'updates/s':>12}{'accuracy':>10}")
    for row in entries:
        numbers = f"{row['users']:>7}{row['updates']:>10}{row['seconds']:>10.3g}{row['updates_per_s']:>12,.0f}"
        print(f"{row['what']:24}{numbers}{row['accuracy']:>10.3f}")


if __name__ == "__main__":
    main()
