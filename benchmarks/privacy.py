"""How much accuracy does privacy cost, for rows and for labels?

    python benchmarks/privacy.py                                     # all, a few minutes
    python benchmarks/privacy.py --data school --protects rows --epsilons 1 4 --splits 5 6 7

Shows mean accuracy over users, in per cent: home models, released models, users alone, and no privacy. No setting is
tuned here: constants of the method were chosen on School, splits 2 and 3. The noise is seeded. Real data must be in the
cache (`dada datasets fetch`). Ranges are facts about the questionnaires and sensors, not read off the rows: School has
one-hot features (norm 2 with the constant), Computer answers -1 and 1, HARWS publishes features in [-1, 1].
"""

import argparse
import json
import time
import warnings

import numpy as np

from dada import DadaClassifier, Privacy, moons
from dada.core.accuracy import mean_per_user
from dada.data.datasets import load

DATA = ("school", "computer", "harws", "moons")
# A column that is always 1 has no range.
BOUNDS = {
    "school": {"ranges": ((0,) * 16 + (1,), (1,) * 17), "norm": 2.0},
    "computer": {"ranges": ((1,) + (-1,) * 13, (1,) * 14)},
    "harws": {"ranges": (-1, 1)},
    "moons": {"ranges": (-3, 3)},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--protects", nargs="+", default=["rows", "labels"], choices=["rows", "labels"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--splits", type=int, nargs="+", default=[5, 6, 7])
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="X does not have valid feature names")
    for name in arguments.data:
        for protects in arguments.protects:
            rows = [measure(name, protects, arguments.epsilons, split) for split in arguments.splits]
            report(name, protects, rows, arguments.json)


def measure(name, protects, epsilons, split):
    """Accuracies of one split: alone, without privacy, and home and released at each epsilon."""
    train, test = people(name, split)
    scored = {}
    if protects == "rows":
        alone = private(name, train, 1e-3, protects, split)
        scored["alone"] = accuracy(alone, alone.models_, test)
    else:
        for label, settings in (("alone", {"graph": "none"}), ("no privacy", {})):
            model = DadaClassifier(random_state=split, **settings).fit_population(train)
            scored[label] = accuracy(model, model.models_, test)
    for epsilon in epsilons:
        start = time.perf_counter()
        model = private(name, train, epsilon, protects, split)
        scored[f"home, eps {epsilon:g}"] = accuracy(model, model.models_, test)
        scored[f"released, eps {epsilon:g}"] = accuracy(model, model.released_models_, test)
        scored[f"sent, eps {epsilon:g}"] = 100.0 * model.privacy_.sent
        scored[f"seconds, eps {epsilon:g}"] = time.perf_counter() - start
    return scored


def private(name, train, epsilon, protects, seed):
    bounds = BOUNDS[name] if protects == "rows" else {}
    privacy = Privacy(epsilon, protects=protects, noise="seeded", **bounds)
    return DadaClassifier(privacy=privacy, random_state=seed).fit_population(train)


def people(name, split):
    """Training and test rows: splits of the publisher for School, random ones elsewhere, new users for Moons."""
    if name == "moons":
        users = moons(split)
        return users.train, users.test
    rows = load(name)
    if name == "school":
        return rows.split(f"split{split}")
    train, test = rows.split()
    return rows.random_split(split, train.n_rows / (train.n_rows + test.n_rows))


def accuracy(model, models, test):
    kept, model.models_ = model.models_, models
    right = model.predict(test.X, users=test.users) == test.targets
    model.models_ = kept
    return 100 * float(mean_per_user(right, test.row_start)[test.sizes > 0].mean())


def report(name, protects, rows, as_json):
    mean = {key: round(float(np.mean([row[key] for row in rows])), 2) for key in rows[0]}
    if as_json:
        error = {key: round(float(np.std([row[key] for row in rows]) / np.sqrt(len(rows))), 2) for key in rows[0]}
        print(json.dumps({"data": name, "protects": protects, "mean": mean, "error": error}), flush=True)
        return
    print(f"\n{name}, {protects} protected, {len(rows)} splits")
    for key, value in mean.items():
        print(f"  {key:20} {value:6.2f}", flush=True)


if __name__ == "__main__":
    main()
