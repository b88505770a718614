"""How well do users do who join later with five rows, and how well do models follow tasks that change?

    python benchmarks/newcomers.py                      # seeds 1 to 5, a table
    python benchmarks/newcomers.py --json --seeds 101 102
    python benchmarks/newcomers.py --large 4000         # newcomers to a population of that size, too

Newcomers: a `DadaClassifier` with default settings is fitted to the Moons users. Users of another draw, of all four
groups, then join one by one with five training rows each; every one meets the population as it was fitted.

Drift: the tasks of all users turn by the same angle from one step to the next, and every user gets a few rows at each
step. Models are judged on the step's test rows; what is shown is the mean over all steps but the first.
"""

import argparse
import copy
import json
import time

import numpy as np

from dada import DadaClassifier
from dada.baselines import BoostSettings, boost
from dada.core.graph import CollaborationGraph
from dada.core.plan import Plan
from dada.data import Stumps, moons, moons100

FIVE = 5
STEPS, TURN_DEG = 10, 8.0
HALF_LIVES = (0.5, 1.0, 2.0, 4.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--json", action="store_true", help="write JSON instead of a table")
    parser.add_argument("--large", type=int, metavar="USERS", help="let newcomers join a population of this size, too")
    arguments = parser.parse_args()
    parts = {"newcomers": newcomers, "drift": drift}
    if arguments.large:
        parts["large"] = lambda seed: large(seed, arguments.large)
    found = {name: {seed: part(seed) for seed in arguments.seeds} for name, part in parts.items()}
    print(json.dumps(found, indent=2) if arguments.json else "\n\n".join(map(table, found.items())))


def newcomers(seed):
    """Accuracies, in per cent, of the oracle, the fitted population and those who join it."""
    users = moons(seed)
    model = fitted(users.train)
    alone = DadaClassifier(graph="none", random_state=0).fit(*rows(users.train))
    others = moons(10_000 + seed, n_users=400)
    joined, by_itself = join(model, others, FIVE), join(alone, others, FIVE)
    exactly = [k for k in joined if others.train.sizes[k] == FIVE]
    return {
        "Dada-Oracle": oracle(users),
        "population": 100 * model.score(*rows(users.test)),
        "newcomers": percent(joined.values()),
        "worst tenth below": 100 * float(np.quantile(list(joined.values()), 0.1)),
        "drawn with five": percent(joined[k] for k in exactly),
        "alone": percent(by_itself.values()),
        "how many": len(joined),
    }


def large(seed, n_users):
    """Newcomers to many users: four kinds of tasks (Moons), or all different ones (Moons100)."""
    result = {}
    for name, draw in (("Moons", moons), ("Moons100", moons100)):
        model = DadaClassifier(graph="evidence", random_state=0).fit(*rows(draw(seed, n_users=n_users, n_test=1).train))
        start = time.perf_counter()
        joined = join(model, draw(10_000 + seed, n_users=200), FIVE)
        result[name] = percent(joined.values())
        result[f"{name}, ms each"] = 1000 * (time.perf_counter() - start) / len(joined)
    return result


def drift(seed):
    """Accuracies over all steps but the first, of models that go on learning or not."""
    ways = {"no update": None, "no ageing": DadaClassifier(random_state=0)}
    ways |= {f"half-life {h:g}": DadaClassifier(random_state=0, half_life=h) for h in HALF_LIVES}
    scores = {name: [] for name in (*ways, "fit to new rows")}
    for step in range(STEPS):
        train, test = turned(seed, step)
        for name, model in ways.items():
            if step == 0 and model is None:
                ways[name] = model = fitted(train)
            elif name != "no update":
                model.partial_fit(*rows(train))
            scores[name].append(model.score(*rows(test)))
        scores["fit to new rows"].append(fitted(train).score(*rows(test)))
    return {name: percent(values[1:]) for name, values in scores.items()}


def turned(seed, step):
    """New rows of the same users after this number of rotations of their tasks."""
    users, first = moons(1000 * seed + step), moons(1000 * seed)
    turn = first.angles + step * np.deg2rad(TURN_DEG) - users.angles
    for part in (users.train, users.test):
        angle = np.repeat(turn, part.sizes)
        x, y = part.X[:, 0].copy(), part.X[:, 1].copy()
        part.X[:, 0], part.X[:, 1] = np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y
    return users.train, users.test


def join(model, users, n_rows):
    """Accuracy of every user with enough rows after joining, each for itself, with the first of its rows."""
    scores = {}
    for k in np.flatnonzero(users.train.sizes >= n_rows).tolist():
        own, tested = users.train.user_rows(k), users.test.user_rows(k)
        few = slice(own.start, own.start + n_rows)
        grown = copy.copy(model).add_user(users.train.X[few], users.train.y[few], f"newcomer {k}")
        scores[k] = grown.score(users.test.X[tested], users.test.y[tested], users=f"newcomer {k}")
    return scores


def oracle(users):
    predictors = Stumps(n=200, rule="feature-range").fit(users.train.X)
    graph = CollaborationGraph.from_scipy(users.oracle_weights())
    settings = BoostSettings(Plan(20_000), beta=10.0, mu=1.0)
    result = boost(users.train, predictors, users.test, settings, np.random.default_rng(0), graph=graph)
    return 100 * float(result.test_accuracy.mean())


def fitted(people):
    return DadaClassifier(random_state=0).fit(*rows(people))


def rows(people):
    names = np.char.add("user ", people.user_ids.astype(str))
    return people.X, people.y, names.repeat(people.sizes)


def percent(scores):
    return 100 * float(np.mean(list(scores)))


def table(named):
    name, found = named
    columns = list(next(iter(found.values())))
    means = [float(np.mean([line[column] for line in found.values()])) for column in columns]
    lines = [[str(seed), *(f"{line[c]:.1f}" for c in columns)] for seed, line in found.items()]
    lines += [["mean", *(f"{mean:.1f}" for mean in means)]]
    shown = [f"{name}", "| seed | " + " | ".join(columns) + " |", "| --- " + "| ---: " * len(columns) + "|"]
    return "\n".join(shown + ["| " + " | ".join(line) + " |" for line in lines])


if __name__ == "__main__":
    main()
