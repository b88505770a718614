"""The populations of the experiments: data, base predictors, splits and folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.data import BasePredictors, Constant, Linear, Population, Recipe, Stumps, Union, moons, moons100
from dada.data.datasets import dataset_path, load
from dada.fitting.held_out import PerUserKFold

N_FOLDS = 3
QUANTILES = 4
WEAK = 0.1


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset as the experiments use it.

    `stumps` is the published number of base predictors. The `rule` of their thresholds is "global-range", as in the
    authors' program, or "feature-range", as in the paper's text; "mixed" selects other predictors, see `predictors`.
    `updates` per user let boosting converge. `column` is that of the published tables, None if they have none. Every
    run on a `synthetic` dataset draws new users.
    """

    name: str
    title: str
    stumps: int
    rule: str
    updates: int
    column: str | None = None
    synthetic: bool = False


SPECS = {
    spec.name: spec
    for spec in (
        DatasetSpec("harws", "HARWS", 1122, "global-range", 400, "harws"),
        DatasetSpec("vehicle", "VEHICLE", 1000, "feature-range", 200, "vehicle"),
        DatasetSpec("vehicle_partial", "VEHICLE (partial)", 1000, "feature-range", 200),
        DatasetSpec("computer", "COMPUTER", 28, "global-range", 100, "computer"),
        DatasetSpec("school", "SCHOOL", 34, "global-range", 100, "school"),
        DatasetSpec("moons", "MOONS", 200, "feature-range", 200, synthetic=True),
        DatasetSpec("moons-printed", "MOONS, as printed", 200, "feature-range", 200, synthetic=True),
        DatasetSpec("moons100", "MOONS100", 200, "feature-range", 150, synthetic=True),
    )
}
REAL = ("harws", "vehicle", "vehicle_partial", "computer", "school")


def present(wanted: Sequence[str]) -> list[str]:
    """The real datasets in the cache folder; the part of Vehicle Sensor only if the whole is missing."""
    found = [name for name in wanted if dataset_path(name).is_file()]
    return [name for name in found if not (name == "vehicle_partial" and "vehicle" in found)]


@lru_cache
def data_digest(dataset: str) -> str:
    """Digest of the rows of a real dataset; empty for synthetic ones, which depend on the seed only."""
    return "" if SPECS[dataset].synthetic else load(dataset).sha256()[:16]


@dataclass(frozen=True, eq=False)
class People:
    """Training and test data of one population; for synthetic users also the true graph of their tasks."""

    train: Population
    test: Population
    oracle: CollaborationGraph | None = None
    groups: Array | None = None
    angles: Array | None = None


@lru_cache(maxsize=4)
def people(dataset: str, seed: int, draw: int) -> People:
    """A draw of synthetic users, or a split of real ones: 0 is the published split, others are random of equal size."""
    if not SPECS[dataset].synthetic:
        rows = load(dataset)
        train, test = rows.split(rng=np.random.default_rng([seed, 1]))
        if draw == 0:
            return People(train, test)
        share = train.n_rows / (train.n_rows + test.n_rows)
        return People(*rows.random_split(np.random.default_rng([seed, draw, 4]), share))
    make = moons100 if dataset == "moons100" else moons
    rng = np.random.default_rng([seed, draw, 2])
    users = make(rng, rule="printed" if dataset == "moons-printed" else "run")
    oracle = CollaborationGraph.from_scipy(users.oracle_weights())
    return People(users.train, users.test, oracle, users.groups, users.angles)


def predictors(stumps: int, rule: str) -> Recipe:
    """The paper's stumps; for "mixed", stumps at quantiles, linear predictors and a weakly coupled constant."""
    if rule == "mixed":
        stump = Stumps(per_feature=QUANTILES, rule="quantile", drop_duplicates=True)
        return Union(stump, Linear(), Constant(coupling=WEAK))
    return Stumps(n=stumps, rule=rule)  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def whole_task(dataset: str, seed: int, draw: int, stumps: int, rule: str) -> tuple[Population, BasePredictors]:
    """All training data, with base predictors."""
    train = people(dataset, seed, draw).train
    return train, predictors(stumps, rule).fit(train.X)


@lru_cache(maxsize=4)
def validation_task(
    dataset: str, seed: int, repeat: int, fold: int, stumps: int, rule: str, draw: int = 0
) -> tuple[Population, BasePredictors, Population]:
    """Data to train a setting on, with base predictors, and data to score it on; never the test data of that draw.

    Real users: their training rows without one fold, and that fold; every repeat shuffles the rows. Synthetic users:
    training and test rows of another draw of the population. Folds of their few rows would mislead: classes are
    balanced, so a held-out row leaves more rows of the other class, and local models score below chance.
    """
    if SPECS[dataset].synthetic:
        users = people(dataset, seed, validation_draw(repeat, fold))
        return users.train, predictors(stumps, rule).fit(users.train.X), users.test
    kept, held_out = split_off(people(dataset, seed, draw).train, seed, repeat, fold)
    return kept, predictors(stumps, rule).fit(kept.X), held_out


def split_off(train: Population, seed: int, repeat: int, fold: int) -> tuple[Population, Population]:
    """A population without one fold of each user's rows, and that fold; every repeat shuffles the rows."""
    folds = PerUserKFold(N_FOLDS, shuffle=True, random_state=np.random.default_rng([seed, repeat, 3]))
    kept, held_out = list(folds.split(train.owners, users=train.owners))[fold]
    return train.take(kept), train.take(held_out)


def validation_draw(repeat: int, fold: int) -> int:
    """The draw of synthetic users that serves as a fold; no run uses it."""
    return 1000 + N_FOLDS * repeat + fold
