"""The users of `dada sim` and `dada swarm`: synthetic ones, those of a dataset, or those of a table."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dada.cli.console import GraphRule
from dada.cli.fit import kept_rows
from dada.cli.model_networks import graph_of_model
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.problem import Problem
from dada.data import BasePredictors, Population, Stumps, Trees, Union, UserTable, boxes, moons, moons100, xor
from dada.data.datasets import load
from dada.data.datasets.readers import PAPER_SPLIT
from dada.data.synthetic import SyntheticUsers
from dada.estimators import DadaClassifier, DadaRegressor
from dada.fitting.exam import Exam
from dada.fitting.settings import LINEAR, families
from dada.peer.atoms import Orchard
from dada.sim import check_several_users, network_problem
from dada.task import problem

BETA, MU = 10.0, 1.0
# Share of the rows of each user of a table that tests its model.
TESTED = 0.2
SYNTHETIC: dict[str, Callable[..., SyntheticUsers]] = {"moons": moons, "moons100": moons100, "xor": xor, "boxes": boxes}
# Targets of datasets other than their labels: the extra column, and the kind of its values.
OTHER_TARGETS = {"harws-activities": ("activity", "classes"), "school-scores": ("score", "numbers")}


@dataclass(frozen=True, eq=False)
class NetworkUsers:
    """The users of a network: rows to learn from and to test, base predictors and the joint problem.

    `options` are those of the command that names them, `graph` is their usual graph. The true graph and the groups are
    known of synthetic users. Others have a `model`, fitted to the same rows, whose settings are those of the network.
    Numbers are standardised. Users that grow trees have an `orchard` and no model.
    """

    name: str
    options: str
    train: Population
    test: Population
    predictors: BasePredictors
    problem: Problem
    groups: Array
    oracle: CollaborationGraph | None = None
    model: DadaClassifier | DadaRegressor | None = None
    graph: GraphRule = "evidence"
    orchard: Orchard | None = None

    @cached_property
    def exam(self) -> Exam:
        """The test rows."""
        return Exam(self.test, self.predictors)


def synthetic_peers(data: str, n_users: int, seed: int) -> NetworkUsers:
    """Synthetic users, whose true graph is known."""
    people = SYNTHETIC[data](seed, n_users=n_users)
    predictors, joint, _ = network_problem(people.train, Stumps(n=200, rule="feature-range"), BETA, MU)
    oracle = CollaborationGraph.from_scipy(people.oracle_weights())
    options = f"--users {n_users} --data {data}"
    return NetworkUsers(data, options, people.train, people.test, predictors, joint, people.groups, oracle)


def with_trees(people: NetworkUsers, seed: int) -> NetworkUsers:
    """The same users, who grow trees next to linear predictors, with the settings of `DadaClassifier`."""
    recipe = Union(*families(people.train)[LINEAR].recipes, Trees(rounds=0))
    loss = "logistic" if people.train.n_classes else None
    predictors, joint, orchard = network_problem(people.train, recipe, loss=loss, seed=seed)
    options = f"{people.options} --predictors trees"
    changed: Any = {"predictors": predictors, "problem": joint, "orchard": orchard, "model": None}
    return replace(people, options=options, **changed)


def dataset_peers(data: str, seed: int) -> NetworkUsers:
    """The users of a dataset, with its published split."""
    rows = load(data.partition("-")[0])
    if data not in OTHER_TARGETS:
        train, test = rows.split(rng=np.random.default_rng(seed))
        return _like_model(data, f"--data {data}", train, test, seed)
    column, kind = OTHER_TARGETS[data]
    y, is_test = rows.extras[column].astype(np.float64), rows.extras[PAPER_SPLIT[rows.name] or ""] != 0
    known: dict[str, Any] = {"feature_names": rows.feature_names, "user_ids": rows.users}
    known |= {"task": "numbers"} if kind == "numbers" else {"classes": np.unique(y)}
    train, test = (
        Population.from_arrays(rows.X[part], y[part], rows.users[part], **known) for part in (~is_test, is_test)
    )
    return _like_model(data, f"--data {data}", train, test, seed)


def table_peers(file: Path, user: str, label: str, drop: Sequence[str], seed: int) -> NetworkUsers:
    """The users of a table; a fifth of every user's rows is for tests."""
    table = UserTable.read(file, user=user, label=label, drop=tuple(drop))
    people = table.people(table.encoder())
    check_several_users(people)
    kept = kept_rows(people.sizes, TESTED, np.random.default_rng(seed))
    if kept.all():
        raise ValueError(f"{file}: no user has enough rows to hold one out for tests, which takes {round(1 / TESTED)}")
    people = table.people(table.encoder(kept))
    options = shlex.join(
        [str(file), "--user", user, "--label", label, *(part for name in drop for part in ("--drop", name))]
    )
    return _like_model(file.name, options, people.take(kept), people.take(~kept), seed)


def _like_model(name: str, options: str, train: Population, test: Population, seed: int) -> NetworkUsers:
    """Users whose peers learn with the settings that an estimator chooses for them."""
    estimator = DadaClassifier if train.n_classes else DadaRegressor
    model = estimator(random_state=seed).fit_population(train)
    if isinstance(model, DadaRegressor):
        train, test = (replace(rows, y=(rows.y - model.target_mean_) / model.target_scale_) for rows in (train, test))
    settings: dict[str, Any] = {"loss": model.settings_["loss"], "beta": model.settings_["beta"]}
    joint = problem(train, model.predictors_, mu1=model.settings_["mu"], **settings)
    groups = np.zeros(train.n_users, np.int64)
    rule = graph_of_model(model) or "evidence"
    return NetworkUsers(name, options, train, test, model.predictors_, joint, groups, None, model, rule)
