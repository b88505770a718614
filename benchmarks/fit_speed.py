"""Processor time of default fits against gradient boosting that knows the user, in one run.

    OMP_NUM_THREADS=1 python benchmarks/fit_speed.py [--repeats 3] [--json]

Boosting is scikit-learn's histogram gradient boosting, 200 iterations, the user as a categorical feature, all rows in
one place. `DadaClassifier()` makes its choices by trials on held-out rows, boosting uses its defaults. A limit of bits,
here one that is never reached, leaves boosted trees out of these choices. Times are medians; everything is fitted once
before, so that nothing is compiled while it is measured.
"""

import argparse
import json
import sys
import time

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from dada import DadaClassifier
from dada.cli.demo import times_s
from dada.data.datasets import dataset_path, load

# More users than this do not fit into a categorical feature: they are one number then.
MOST_CATEGORIES = 255
# More bits than any of these fits sends.
NO_LIMIT = 1e15
RATIOS = {"": "boosting", "trees_": "without_trees"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    entries = [compared(name, *rows, options.repeats) for name, rows in tables().items()]
    if options.json:
        json.dump(entries, sys.stdout, indent=2)
        print()
        return
    for entry in entries:
        print("{data:<16} {rows:>6} rows {users:>4} users  ours {ours:6.2f} s  without trees {without_trees:6.2f} s  "
              "ratio {trees_ratio:5.1f}  boosting {boosting:6.2f} s  ratio {ratio:5.1f}".format(**entry))  # fmt: skip


def tables():
    """Rows, labels and users of each table; datasets that are not in the cache folder are left out."""
    found = {}
    for name in ("school", "computer", "vehicle_partial", "harws"):
        if dataset_path(name).is_file():
            train, _ = load(name).split()
            found[name] = train.X, train.y, train.owners
    rng = np.random.default_rng(0)
    users, X = np.repeat(np.arange(300), 10), rng.normal(size=(3000, 8))
    weights = rng.normal(size=(3, 8, 4))[np.arange(300) % 3]
    y = (np.einsum("if,ifc->ic", X, weights[users]) + rng.gumbel(size=(3000, 4))).argmax(axis=1)
    return found | {"four classes": (X, y, users)}


def compared(name, X, y, users, repeats):
    def boosting():
        n_users = users.max() + 1
        category = [X.shape[1]] if n_users <= MOST_CATEGORIES else None
        model = HistGradientBoostingClassifier(max_iter=200, categorical_features=category, random_state=0)
        model.fit(np.column_stack([X, users]), y)

    def ours(max_bits=None):
        DadaClassifier(random_state=0, max_bits=max_bits).fit(X, y, users=users)

    seconds = {"ours": median_time(ours, repeats), "without_trees": median_time(lambda: ours(NO_LIMIT), repeats)}
    seconds["boosting"] = median_time(boosting, repeats)
    ratios = {f"{kind}ratio": seconds["ours"] / seconds[of] for kind, of in RATIOS.items()}
    return {"data": name, "rows": len(X), "users": int(users.max()) + 1} | seconds | ratios


def median_time(call, repeats):
    return float(np.median(times_s(call, repeats, time.process_time)))


if __name__ == "__main__":
    main()
