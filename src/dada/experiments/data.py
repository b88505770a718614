"""The populations of the experiments: which data, which base predictors, which folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.data import Constant, Linear, Population, Recipe, Stumps, Union, moons, moons100
from dada.data.datasets import dataset_path, load
from dada.estimators import PerUserKFold
from dada.task import Task

N_FOLDS = 3
QUANTILES = 4
WEAK = 0.1


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset as the experiments use it.

    Attributes
    ----------
    name, title : str
        On the command line, and for people.
    stumps : int
        Number of base predictors, as published.
    rule : str
        Where their thresholds lie: "global-range" is the authors' program, "feature-range" its text. "mixed" are not
        the paper's stumps but ours, see `predictors`.
    updates : int
        Model updates per user of a boosting run; enough for the models to settle.
    column : str, optional
        The column of the published tables the results compare with; None for the part of Vehicle Sensor.
    synthetic : bool
        Drawn anew for every run.
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
    """The real datasets that are in the cache folder; the part of Vehicle Sensor only where the whole is not."""
    found = [name for name in wanted if dataset_path(name).is_file()]
    return [name for name in found if not (name == "vehicle_partial" and "vehicle" in found)]


@dataclass(frozen=True, eq=False)
class People:
    """Training and test data of one population, and for synthetic users the graph that knows their tasks."""

    train: Population
    test: Population
    oracle: CollaborationGraph | None = None
    groups: Array | None = None
    angles: Array | None = None


@lru_cache(maxsize=4)
def people(dataset: str, seed: int, draw: int) -> People:
    """Of real users, draw 0 is the published split, and any other a random split of as many rows.

    Synthetic users are drawn anew each time.
    """
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
    """The paper's stumps; by the rule "mixed", stumps at quantiles, linear predictors, a weakly coupled constant.

    Examples
    --------
    >>> predictors(34, "global-range").n
    34
    """
    if rule == "mixed":
        stump = Stumps(per_feature=QUANTILES, rule="quantile", drop_duplicates=True)
        return Union(stump, Linear(), Constant(coupling=WEAK))
    return Stumps(n=stumps, rule=rule)  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def whole_task(dataset: str, seed: int, draw: int, stumps: int, rule: str) -> Task:
    """All training data seen through base predictors."""
    return Task.of(people(dataset, seed, draw).train, predictors(stumps, rule))


@lru_cache(maxsize=4)
def validation_task(
    dataset: str, seed: int, repeat: int, fold: int, stumps: int, rule: str, draw: int = 0
) -> tuple[Task, Population]:
    """What a setting is tried on: data to learn from and data to score it with, never the test data of that draw.

    Real users: their training rows without one fold, and that fold; every repeat deals the rows out anew. Synthetic
    users: another draw of the population, and fresh rows of it. Their own few rows would mislead: classes are balanced,
    so a row held out leaves more rows of the other class, and learning alone scores below chance.
    """
    if SPECS[dataset].synthetic:
        users = people(dataset, seed, validation_draw(repeat, fold))
        return Task.of(users.train, predictors(stumps, rule)), users.test
    train = people(dataset, seed, draw).train
    owner = np.repeat(np.arange(train.n_users), train.sizes)
    folds = PerUserKFold(N_FOLDS, shuffle=True, random_state=np.random.default_rng([seed, repeat, 3]))
    kept, held_out = list(folds.split(owner, users=owner))[fold]
    return Task.of(rows_of(train, kept), predictors(stumps, rule)), rows_of(train, held_out)


def validation_draw(repeat: int, fold: int) -> int:
    """The number of the draw of synthetic users that serves as a fold; no run is on such a draw."""
    return 1000 + N_FOLDS * repeat + fold


def rows_of(population: Population, rows: Array) -> Population:
    """Some rows with all users, of whom some may then have none.

    Examples
    --------
    >>> users = Population.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], ["ann", "bob", "bob"])
    >>> rows_of(users, np.array([1])).sizes.tolist()
    [0, 1]
    """
    chosen = np.zeros(population.n_rows, dtype=bool)
    chosen[rows] = True
    before = np.concatenate(([0], np.cumsum(chosen)))
    return Population(
        population.X[chosen],
        population.y[chosen],
        before[population.row_start],
        population.user_ids,
        population.classes,
        population.feature_names,
    )
