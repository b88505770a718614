"""Expected calibration error and log-loss on test rows, with models as learned and with calibrated probabilities.

    python benchmarks/calibration.py school computer harws moons

Real datasets are split as in the published results (School: split 1), and must be in the cache folder (`dada datasets
fetch school`). Of Moons, means over three draws.
"""

import argparse

import numpy as np

from dada import DadaClassifier, moons
from dada.core.losses import Reliability
from dada.data.datasets import load
from dada.fitting.models import class_scores

DRAWS = (1, 2, 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="*", default=["moons"], help="moons, school, computer or harws")
    print(f"{'':10} {'error':>9} {'calibrated':>11} {'log-loss':>9} {'calibrated':>11}")
    for name in parser.parse_args().datasets:
        found = [scores(*data) for data in data_of(name)]
        before, after, loss, calibrated = np.mean(found, axis=0)
        print(f"{name:10} {before:9.1%} {after:11.1%} {loss:9.3f} {calibrated:11.3f}")


def data_of(name):
    """Training and test rows of the same users, once or for several draws."""
    if name != "moons":
        return [load(name).split()]
    return [(people.train, people.test) for people in map(moons, DRAWS)]


def scores(train, test):
    """Errors and log-losses of default models, as learned and calibrated."""
    model = DadaClassifier(random_state=0).fit(train.X, train.targets, users=train.users)
    labels = np.searchsorted(model.classes_, test.targets)
    learned = class_scores(model.decision_function(test.X, users=test.users))
    calibrated = model.predict_proba(test.X, users=test.users)
    own = [Reliability.of(probabilities, labels) for probabilities in (learned, calibrated)]
    return [one.error for one in own] + [one.log_loss for one in own]


if __name__ == "__main__":
    main()
