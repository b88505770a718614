"""Defaults, with waves and trees where they pay, against central gradient boosting that knows the user.

    python benchmarks/trees.py [--data boxes xor] [--methods ours boosting] [--splits 10] [--json]

Every row is a mean over random splits of each user's rows (for generators, over draws): accuracy per user in per cent
with its standard error, megabits, base predictors that some model uses, and seconds of processor time (a median).

ours        the defaults
linear      linear predictors only, graph and mu as trials decide
waves       waves of two features
trees       trees, whatever held-out rows say
boosting    histogram gradient boosting of scikit-learn on all rows in one place, the user as a categorical feature
lightgbm    the same by LightGBM, tuned as in `dada reproduce beyond`
xgboost     the same by XGBoost
lightgbm-alone  LightGBM for each user by itself

Boosting is tuned inside training rows: learning rate, leaves and up to 500 iterations by three folds of each user's
rows. Set OMP_NUM_THREADS=1: otherwise its threads wait for each other. The last lines name what loses to boosting.
"""

import argparse
import json
import sys
import time
import warnings
from itertools import product

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from dada import DadaClassifier, PerUserKFold
from dada.baselines.classical import MOST_CATEGORIES, trees_with_user
from dada.core.losses import mean_per_user
from dada.data import boxes, datasets, moons, moons100, xor
from dada.experiments.rivals import RIVALS as TUNED
from dada.experiments.rivals import predicted

DRAWS = {"moons": moons, "moons100": moons100, "boxes": boxes, "xor": xor}
# Share of training rows, as in the published splits.
TRAINING = {"harws": 0.2, "vehicle_partial": 0.5, "computer": 0.37, "school": 0.75}
RATES, LEAVES, MOST_ITERATIONS, EVERY = (0.03, 0.1, 0.3), (4, 8, 31), 500, 25
OURS = {"ours": None, "linear": "linear", "waves": "waves", "trees": "trees"}
RIVALS = ("boosting", "lightgbm", "xgboost", "lightgbm-alone")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", nargs="+", default=[*TRAINING, *DRAWS], choices=[*TRAINING, *DRAWS])
    parser.add_argument("--methods", nargs="+", default=["ours", "linear", "boosting"], choices=[*OURS, *RIVALS])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    entries = []
    for name in options.data:
        per_split = [one_split(name, seed, options.methods) for seed in range(options.splits)]
        entries += averages(name, per_split)
        if not options.json:
            show(entries[-len(options.methods) :])
    if options.json:
        json.dump(entries, sys.stdout, indent=2)
        print()
    else:
        print("\n".join(losses(entries)))


def split_of(name, seed):
    """Training and test rows of one split or draw."""
    if name in DRAWS:
        users = DRAWS[name](100 + seed)
        return users.train, users.test
    return datasets.load(name).random_split(seed, TRAINING[name])


def one_split(name, seed, methods):
    """For every method: accuracy, megabits, base predictors in use, seconds."""
    train, test = split_of(name, seed)
    return {method: one_method(method, train, test, seed) for method in methods}


def one_method(method, train, test, seed):
    """Accuracy, megabits, base predictors in use, seconds; central methods have no bits and no base predictors."""
    start, megabits, alive = time.process_time(), np.nan, np.nan
    if method in OURS:
        model = DadaClassifier(OURS[method], random_state=seed).fit(train.X, train.y, users=train.users)
        megabits, alive = model.bits_ / 1e6, int((model.models_ != 0).any(axis=0).sum())
        accuracies = mean_per_user(model.predict(test.X, users=test.users) == test.y, test.row_start)
    elif method in TUNED and method != "boosting":
        y, rng = (train.y > 0).astype(int), np.random.default_rng(seed)
        found = predicted(method, train.X, y, train.users, test.X, test.users, rng)
        accuracies = mean_per_user(found.labels == (test.y > 0), test.row_start)
    else:
        accuracies = trees_with_user(train, test, **tuned(train, seed)).test_accuracy
    return 100 * float(np.nanmean(accuracies)), megabits, alive, time.process_time() - start


def tuned(train, seed):
    """Settings of boosting that are right most often on held-out training rows, over all iterations of each run."""
    counts = {}
    folds = [*PerUserKFold(3, shuffle=True, random_state=seed).split(train.X, train.y, users=train.owners)]
    rows = np.column_stack([train.X, train.owners])
    categorical = [train.n_features] if train.n_users <= MOST_CATEGORIES else None
    for rate, leaves in product(RATES, LEAVES):
        model = HistGradientBoostingClassifier(
            learning_rate=rate,
            max_leaf_nodes=leaves,
            max_iter=MOST_ITERATIONS,
            early_stopping=False,
            categorical_features=categorical,
            random_state=0,
        )
        for kept, tested in folds:
            model.fit(rows[kept], train.y[kept])
            for i, values in enumerate(model.staged_decision_function(rows[tested]), start=1):
                if i % EVERY == 0:
                    key = (rate, leaves, i)
                    counts[key] = counts.get(key, 0) + int(((values.ravel() > 0) == (train.y[tested] > 0)).sum())
    rate, leaves, trees = max(counts, key=counts.get)
    return {"rate": rate, "leaves": leaves, "trees": trees}


def averages(name, per_split):
    """Means over splits, with the standard error of the accuracy."""
    entries = []
    for method in per_split[0]:
        values = np.array([found[method] for found in per_split])
        accuracy, megabits, alive, _ = values.mean(axis=0)
        error = float(values[:, 0].std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
        entry = {"data": name, "method": method, "splits": len(values), "accuracy": accuracy, "error": error}
        # The first run of a method may include its compilation.
        entries.append(entry | {"megabits": megabits, "alive": alive, "seconds": float(np.median(values[:, 3]))})
    return entries


def show(entries):
    for entry in entries:
        print(
            "{data:<16} {method:<9} {accuracy:6.2f} % ± {error:.2f} {megabits:9.2f} Mbit {alive:7.0f} predictors "
            "{seconds:7.2f} s".format(**entry),
            flush=True,
        )


def losses(entries):
    """A line for each dataset on which boosting is ahead of the defaults."""
    of = {(entry["data"], entry["method"]): entry["accuracy"] for entry in entries}
    for (name, method), accuracy in of.items():
        if method in RIVALS and accuracy > of.get((name, "ours"), np.inf):
            yield f"{name}: {method} is ahead by {accuracy - of[name, 'ours']:.2f} points"


if __name__ == "__main__":
    main()
