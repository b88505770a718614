"""Private fits and their rivals on the datasets of the privacy page: what is learned and how it scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dada.baselines.classical import PrivateTask, Shared, mr_mtl, output_perturbation
from dada.core.losses import is_right, mean_per_user
from dada.data import Population
from dada.data.datasets import load
from dada.estimators import DadaClassifier, DadaRegressor
from dada.experiments.tasks import people
from dada.fitting.private import outputs, pooled_sums, public_predictors
from dada.privacy.accounting import Privacy, gaussian_mu
from dada.privacy.noise import Bits
from dada.privacy.pooling import MOST_GROUPS, Groups, Pool, find_groups, home_model, mixture, own_excluded
from dada.privacy.release import Statistics, StatisticsMechanism, read_statistics, worth_sending
from dada.privacy.secure_sum import HONEST, noise_share

Floats = NDArray[np.float64]
HALF_RANGE = 35.0


class Case(NamedTuple):
    """A dataset with the public facts that a release needs.

    `draws` are tested; rivals are tuned on `tuning`, other draws. Ranges and norms are facts about questionnaires and
    sensors, not read off the rows.
    """

    title: str
    dataset: str
    ranges: Any
    norm: float | None
    draws: tuple[int, ...]
    tuning: tuple[int, ...]
    epsilons: tuple[float, ...]
    delta: float = 1e-5
    is_class: bool = True


# Features of School are one-hot, and three of them and two constants are 1: norm 2 with one constant, which has no
# range. Those of Computer are 13 signs and a constant. Splits 2 and 3 of School chose the constants of our method, too.
_SCHOOL: tuple[Any, float] = (((0,) * 16 + (1,), (1,) * 17), 2.0)
_SPLITS, _CHOICE = (1, *range(4, 11)), (2, 3)
CASES = {
    "school": Case("School", "school", *_SCHOOL, _SPLITS, _CHOICE, (0.25, 1.0, 2.0, 4.0, 16.0)),
    "scores": Case("School scores", "school", *_SCHOOL, _SPLITS, _CHOICE, (1.0, 3.0, 6.0), delta=1e-3, is_class=False),
    "computer": Case("Computer", "computer", ((1,) + (-1,) * 13, (1,) * 14), 14**0.5, (0, 1, 2), (11, 12),
                     (0.25, 1.0, 2.0, 4.0, 16.0)),
    "moons": Case("Moons", "moons", (-3, 3), None, (0, 1, 2), (11, 12), (1.0, 4.0, 16.0)),
    "harws": Case("HARWS", "harws", (-1, 1), None, (0,), (11,), (1.0, 4.0, 16.0)),
}  # fmt: skip
# Ten uniform features and a constant have a norm of 2.1 on average.
GROUP_NORM = 2.5
# Rows of a user that count if whole users are protected, and how much the rules of generated users differ.
ROWS_PER_USER, DIFFER = 20, 0.3


class PrivateRival(NamedTuple):
    """A rival: its title, how it learns, and the settings that are tried."""

    title: str
    learn: Callable[..., Shared]
    settings: tuple[dict[str, Any], ...]


RIVALS = {
    "mr-mtl": PrivateRival(
        "MR-MTL, noisy gradients",
        mr_mtl,
        tuple(
            {"rounds": 100, "pull": pull, "clip": clip}
            for pull, clip in itertools.product((0.1, 1.0, 10.0), (0.25, 1.0, 2.0))
        ),
    ),
    "output": PrivateRival(
        "output perturbation", output_perturbation, tuple({"ridge": ridge} for ridge in (0.01, 0.1, 1.0, 10.0))
    ),
}


class RowTask(NamedTuple):
    """Training and test rows of a case as base predictions."""

    train: Population
    rows: PrivateTask
    coupling: Floats
    test_h: Floats
    test: Population

    @property
    def is_small(self) -> bool:
        """Whether home models are cheap enough for searches."""
        return self.rows.h.shape[1] <= 100

    def parts(self) -> list[slice]:
        """Training rows of each user."""
        ends = self.rows.row_start
        return [slice(a, b) for a, b in itertools.pairwise(ends.tolist())]

    def score(self, models: NDArray[Any]) -> float:
        """Mean accuracy over users in per cent; of numbers the mean squared error of score / 70."""
        values = (self.test_h * models[self.test.owners]).sum(axis=1)
        if not self.rows.is_class:
            return float(np.mean((values - self.test.y) ** 2) / 4)
        right = is_right(values, self.test.y)
        return 100 * float(mean_per_user(right, self.test.row_start)[self.test.sizes > 0].mean())

    def home_score(self, centres: Floats) -> float:
        """Score of home models around centres of shape (users, centres, predictors)."""
        h, y = self.rows.h, self.rows.y[:, None]
        found = [
            home_model(h[rows], y[rows], centres[k][:, :, None], self.coupling) for k, rows in enumerate(self.parts())
        ]
        return self.score(np.stack(found)[:, :, 0])


@lru_cache(maxsize=2)
def row_task(name: str, draw: int, seed: int) -> RowTask:
    """A draw of a case."""
    case = CASES[name]
    train, test = populations(case, draw, seed)
    predictors = public_predictors(None, case.ranges, train.n_features)
    norm = float(np.sqrt(predictors.n)) if case.norm is None else case.norm
    h, test_h = (predictors.predict(part.X).astype(np.float64) for part in (train, test))
    rows = PrivateTask(h, outputs(train)[:, 0], train.row_start.astype(np.int64), norm, case.is_class)
    return RowTask(train, rows, np.asarray(predictors.coupling, np.float64), test_h, test)


def populations(case: Case, draw: int, seed: int) -> tuple[Population, Population]:
    """Training and test rows: splits of the publisher for School, else `people`."""
    if case.dataset != "school":
        users = people(case.dataset, seed, draw)
        return users.train, users.test
    rows = load("school")
    if case.is_class:
        return rows.split(f"split{draw}")
    # Scores are 0 to 70.
    y = rows.extras["score"].astype(np.float64) / HALF_RANGE - 1
    train = rows.extras[f"split{draw}"] == 0
    first, second = (
        Population.from_arrays(rows.X[part].astype(np.float64), y[part], rows.users[part], task="numbers")
        for part in (train, ~train)
    )
    return first, second


def without_release(name: str, draw: int, seed: int) -> dict[str, float]:
    """Scores of users alone, and of home models around centres of exact statistics."""
    task = row_task(name, draw, seed)
    h, y = task.rows.h, task.rows.y[:, None]
    exact = [Statistics(h[k].T @ h[k], h[k].T @ y[k], len(h[k]), 1e-6, 1e-6) for k in task.parts()]
    pool = Pool.of(exact, task.coupling, task.rows.h.shape[1] - 1)
    groups = find_groups(pool, np.random.default_rng([seed, draw]), MOST_GROUPS if task.is_small else 1)
    centres = np.stack([own_excluded(pool, groups, k)[:, :, 0] for k in range(pool.n_users)])
    return {"alone": alone_score(name, draw, seed), "no noise": task.home_score(centres)}


@lru_cache(maxsize=1)
def alone_score(name: str, draw: int, seed: int) -> float:
    """Score of home models without centres."""
    task = row_task(name, draw, seed)
    return task.home_score(np.zeros((task.train.n_users, 0, task.rows.h.shape[1])))


def with_releases(name: str, draw: int, epsilon: float, secure_sum: bool, seed: int) -> dict[str, Any]:
    """Scores of the estimator's home models and released models, and its decision."""
    case, task = CASES[name], row_task(name, draw, seed)
    privacy = Privacy(
        epsilon,
        case.delta,
        ranges=case.ranges,
        norm=case.norm,
        targets=None if case.is_class else (-1.0, 1.0),
        noise="seeded",
        secure_sum=secure_sum,
    )
    make = DadaClassifier if case.is_class else DadaRegressor
    model = make(privacy=privacy, random_state=np.random.RandomState([seed, draw])).fit_population(task.train)
    found: dict[str, Any] = {"home": task.score(model.models_), "sent": model.privacy_.sent}
    return found | {"released": task.score(model.released_models_), "reason": model.privacy_.reason}


def rival_trials(name: str, draw: int, epsilon: float, who: str, seed: int) -> dict[str, list[float]]:
    """Scores of all settings of a rival on a draw for tuning; of home models only if they are small."""
    task, found = row_task(name, draw, seed), dict[str, list[float]](home=[], released=[])
    for place in range(len(RIVALS[who].settings)):
        shared = learned(task, name, draw, epsilon, who, place, seed)
        found["released"].append(task.score(shared.models))
        found["home"].append(task.home_score(shared.centres[:, None, :]) if task.is_small else found["released"][-1])
    return found


def rival_scores(name: str, draw: int, epsilon: float, who: str, best: dict[str, int], seed: int) -> dict[str, float]:
    """Scores of a rival with the settings that are best for home models, and for released ones."""
    task = row_task(name, draw, seed)
    home, released = (learned(task, name, draw, epsilon, who, best[key], seed) for key in ("home", "released"))
    return {"home": task.home_score(home.centres[:, None, :]), "released": task.score(released.models)}


def learned(task: RowTask, name: str, draw: int, epsilon: float, who: str, place: int, seed: int) -> Shared:
    """What a rival shares at an epsilon."""
    mu = gaussian_mu(epsilon, CASES[name].delta)
    return RIVALS[who].learn(task.rows, mu, np.random.default_rng([seed, draw, place]), **RIVALS[who].settings[place])


def label_scores(name: str, draw: int, epsilon: float | None, seed: int) -> dict[str, float]:
    """Accuracies of users alone and without privacy, or of home and released models at an epsilon."""
    train, test = populations(CASES[name], draw, seed)
    rng = np.random.RandomState([seed, draw])

    def fitted(**settings: Any) -> DadaClassifier:
        # Arrays, because features of HARWS share names.
        model = DadaClassifier(random_state=rng, **settings)
        return model.fit(train.X, train.targets, users=train.users)

    def accuracy(model: DadaClassifier) -> float:
        right = model.predict(test.X, users=test.users) == test.targets
        return 100 * float(mean_per_user(right, test.row_start)[test.sizes > 0].mean())

    if epsilon is None:
        return {"alone": accuracy(fitted(graph="none")), "no privacy": accuracy(fitted())}
    privacy = Privacy(epsilon, protects="labels", noise="seeded")
    model = fitted(privacy=privacy)
    home = accuracy(model)
    model.models_ = model.released_models_
    return {"home": home, "released": accuracy(model)}


def generated(n_users: int, n_groups: int, differ: float, rng: np.random.Generator) -> RowTask:
    """Synthetic users with 80 to 120 training rows and 50 test rows each; a group shares a linear rule.

    Rules of users differ from that of their group with this standard deviation.
    """
    n_features = 10
    sizes = rng.integers(80, 121, n_users)
    owners = np.repeat(np.arange(n_users), sizes + 50)
    X = rng.uniform(-1, 1, (owners.size, n_features))
    rules = rng.normal(size=(n_groups, n_features))[np.arange(n_users) % n_groups]
    noise = rng.logistic(size=owners.size) * 0.5
    if differ:
        rules = rules + differ * rng.normal(size=rules.shape)
    y = np.where((X * rules[owners]).sum(axis=1) + noise > 0, 1.0, -1.0)
    tested = np.concatenate([np.arange(size + 50) >= size for size in sizes])
    users = Population.from_arrays(X, y, owners)
    train, test = users.take(np.flatnonzero(~tested)), users.take(np.flatnonzero(tested))
    predictors = public_predictors(None, (-1, 1), n_features)
    h, test_h = (predictors.predict(part.X).astype(np.float64) for part in (train, test))
    rows = PrivateTask(h, outputs(train)[:, 0], train.row_start.astype(np.int64), GROUP_NORM, True)
    return RowTask(train, rows, np.asarray(predictors.coupling, np.float64), test_h, test)


def whole_users(n_users: int, epsilon: float, seed: int) -> dict[str, Any]:
    """Accuracy of home models if a secure sum hides all rows of a user: of School (0), or of that many drawn users."""
    rng = np.random.default_rng([seed, n_users, 10])
    task = generated(n_users, 1, DIFFER, rng) if n_users else row_task("school", 1, seed)
    h, y, many = task.rows.h, task.rows.y[:, None], task.train.n_users
    mechanism = StatisticsMechanism.calibrated(
        epsilon, Privacy.delta, n_predictors=h.shape[1], n_outputs=1, norm=task.rows.norm
    )
    steps = {name: ROWS_PER_USER * getattr(mechanism, name) for name in ("gram_steps", "moment_steps")}
    noise = replace(mechanism, **steps)
    found = {"users": many, "alone": task.home_score(np.zeros((many, 0, h.shape[1])))}
    counted = [rng.permutation(np.arange(part.start, part.stop))[:ROWS_PER_USER] for part in task.parts()]
    if not worth_sending(noise, 1, ROWS_PER_USER * many).send:
        return found | {"home": found["alone"], "sent": False}
    share, source = noise_share(noise, int(HONEST * many)), Bits(rng.bytes)
    bodies = [share.release(h[some], y[some], source) for some in counted]
    pooled = pooled_sums(bodies, np.zeros(many, np.intp), task.coupling, None, rng)
    return found | {"home": task.home_score(pooled.centres[:, :, :, 0]), "sent": True}


def groups_scores(epsilon: float, draw: int, seed: int) -> dict[str, float]:
    """Accuracies of 200 synthetic users in four groups: alone, one group, groups found in releases, the true groups."""
    rng = np.random.default_rng([seed + draw, 9])
    n_users, n_groups = 200, 4
    task = generated(n_users, n_groups, 0.0, rng)
    h, rows, test = task.rows.h, task.rows, task.test
    mechanism = StatisticsMechanism.calibrated(
        epsilon, Privacy.delta, n_predictors=h.shape[1], n_outputs=1, norm=GROUP_NORM
    )
    source = Bits(rng.bytes)
    bodies = [mechanism.release(h[k], rows.y[k][:, None], source) for k in task.parts()]
    pool = Pool.of([read_statistics(body)[0] for body in bodies], task.coupling, h.shape[1] - 1)
    share = np.eye(n_groups)[np.arange(n_users) % n_groups]
    true = Groups(share, np.stack([pool.centre(share[:, j]) for j in range(n_groups)]), 0.0, pool.residuals)
    ways = {"one group": mixture(pool, 1, rng), "found groups": find_groups(pool, rng), "true groups": true}
    found = {"alone": task.home_score(np.zeros((n_users, 0, h.shape[1])))}
    for way, groups in ways.items():
        centres = np.stack([own_excluded(pool, groups, k)[:, :, 0] for k in range(n_users)])
        found[way] = task.home_score(centres)
    return found | {"groups": float(ways["found groups"].n), "test rows": float(test.n_rows)}
