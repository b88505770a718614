"""The users of `dada sim` and `dada swarm`, and the simulated networks of `dada sim`; no transport is loaded.

Users are synthetic, of a dataset or of a table. The compiled engine learns with them beside a simulated network.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dada.cli.console import GraphRule, StepRule, plan_settings
from dada.cli.fit import kept_rows
from dada.cli.new_networks import graph_of_model, network_of_model, usual_beta
from dada.cli.watching import synthetic_info
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.problem import Problem
from dada.data import (
    BasePredictors,
    Population,
    Stumps,
    Trees,
    Union,
    UserTable,
    boxes,
    moons,
    moons100,
    xor,
)
from dada.data.datasets import load
from dada.data.datasets.readers import PAPER_SPLIT
from dada.data.synthetic import SyntheticUsers
from dada.engine import Plan, run
from dada.estimators import DadaClassifier, DadaRegressor
from dada.events import Observer, Progress, RunInfo, Stopped, silent
from dada.fitting.boosted_peers import PEER_TREES, boosted_users, with_boosted
from dada.fitting.boosting import Grower
from dada.fitting.calibration import Exam
from dada.fitting.settings import LINEAR, families
from dada.peer.boosted_trees import BoostedUsers, LeafModel
from dada.peer.grove import Orchard
from dada.peer.neighbourhoods import OWN_EDGES
from dada.privacy.accounting import Privacy
from dada.sim import check_several_users, network_of, network_problem, private_problem
from dada.sim.private import PrivateUsers
from dada.sim.simulation import NetworkPoint, SimulatedNetwork, SimulationOverview, SimulationResult
from dada.sim.virtual import Faults
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
    Private users have none, and are described by `private`.
    Numbers are standardised. Users that grow trees have an `orchard`, those that boost trees have their rows in
    `boosted`; both have no model.
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
    private: PrivateUsers | None = None
    orchard: Orchard | None = None
    boosted: BoostedUsers | None = None

    @cached_property
    def exam(self) -> Exam:
        """The test rows."""
        return Exam(self.test, self.predictors)

    def with_leaves(self, models: Array, leaves: Mapping[int, LeafModel]) -> tuple[Exam, Array]:
        """The test rows, and models for them, with boosted trees beside if the users have any."""
        if self.boosted is None or not leaves:
            return self.exam, models
        terms, _, cuts = self.boosted
        predictors, models = with_boosted(self.predictors, models, terms, cuts, leaves)
        return Exam(self.test, predictors), models

    def score(self, models: Array, leaves: Mapping[int, LeafModel], honest: Array | None = None) -> float:
        """Accuracy of models on the test rows, with boosted trees beside them if the users have any."""
        exam, models = self.with_leaves(models, leaves)
        return exam.score(models, honest)


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


def with_boosting(people: NetworkUsers) -> NetworkUsers:
    """The same users, who boost trees beside linear predictors, with the settings of `DadaClassifier`."""
    recipe = Union(*families(people.train)[LINEAR].recipes)
    loss = "logistic" if people.train.n_classes else None
    predictors, joint, _ = network_problem(people.train, recipe, loss=loss)
    options = f"{people.options} --predictors boosted"
    boosted = boosted_users(PEER_TREES, people.train)
    changed: Any = {"predictors": predictors, "problem": joint, "boosted": boosted, "model": None}
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


def with_privacy(people: NetworkUsers, privacy: Privacy, seed: int, graph: GraphRule | None) -> NetworkUsers:
    """The same users, who protect their labels or rows.

    Settings are the usual ones of peers: those of a model would be chosen on exact labels.
    """
    rule: GraphRule = graph or ("evidence" if privacy.protects == "rows" else people.graph)
    predictors, joint, private = private_problem(people.train, privacy, seed=seed, graph=rule)
    options = f"{people.options} --epsilon {privacy.epsilon:g} --protects {privacy.protects}"
    if privacy.ranges is not None:
        options += f" --ranges {privacy.ranges[0]:g} {privacy.ranges[1]:g}"
    changed: Any = {"predictors": predictors, "problem": joint, "private": private, "model": None, "graph": rule}
    return replace(people, options=options, **changed)


def _like_model(name: str, options: str, train: Population, test: Population, seed: int) -> NetworkUsers:
    """Users whose peers learn with the settings that an estimator chooses for them."""
    estimator = DadaClassifier if train.n_classes else DadaRegressor
    # With a given bound no boosted trees join, which peers grow only if asked to.
    model = estimator(beta=usual_beta(train.n_classes), random_state=seed).fit_population(train)
    if isinstance(model, DadaRegressor):
        train, test = (replace(rows, y=(rows.y - model.target_mean_) / model.target_scale_) for rows in (train, test))
    settings: dict[str, Any] = {"loss": model.settings_["loss"], "beta": model.settings_["beta"]}
    joint = problem(train, model.predictors_, mu1=model.settings_["mu"], **settings)
    groups = np.zeros(train.n_users, np.int64)
    rule = graph_of_model(model) or "evidence"
    return NetworkUsers(name, options, train, test, model.predictors_, joint, groups, None, model, rule)


# Updates per user of the compiled engine to compare with: enough to converge.
UPDATES_PER_USER = 200
# Points of a simulation at which the terminal, or a page, is updated.
POINTS, WATCHED_POINTS = 20, 150


def engine_plan(n_users: int, graph: GraphRule, step: StepRule, kappa: int = 5, **more: Any) -> Plan:
    """How the compiled engine learns models and graph of the same users, for comparison."""
    options = {"kappa": min(kappa, n_users - 1), "restart": "local", **plan_settings(graph, step), **more}
    return Plan(UPDATES_PER_USER * n_users, **options)


def engine_graph(n_users: int, graph: GraphRule) -> CollaborationGraph | None:
    """The graph on which the engine learns: a background graph if peers have one; else it learns the graph."""
    if graph != "everyone":
        return None
    return CollaborationGraph.background(n_users, np.random.default_rng(0), 2 * OWN_EDGES)


def engine_models(
    problem: Problem, plan: Plan, seed: int, graph: CollaborationGraph | None = None
) -> tuple[Array, float]:
    """Models in the compiled engine, which has all data in one place, and mean neighbours."""
    result = run(problem, plan, np.random.default_rng(seed), graph=graph)
    return result.models, float(result.graph.mean_neighbours)


def engine_leaves(people: NetworkUsers, seed: int) -> dict[int, LeafModel]:
    """Boosted trees grown in one place, with the leaves of all users, for comparison; none if peers have none."""
    if people.boosted is None:
        return {}
    terms, rng = people.boosted.terms, np.random.default_rng(seed)
    grower, own = Grower(PEER_TREES, people.train, rng), []
    for _ in range(terms.rounds):
        own.append(grower.grow())
    shape = zip(grower.features, grower.tests, strict=True)
    none = np.zeros((terms.n_nodes + 1, terms.n_outputs))
    trees = tuple(terms.write(t, feature, cut, none) for t, (feature, cut) in enumerate(shape, 1))
    return {k: LeafModel(trees, tuple(values[k] for values in own)) for k in range(people.train.n_users)}


@dataclass(frozen=True, eq=False)
class SimulationCase:
    """A simulated network, and its users."""

    network: SimulatedNetwork
    people: NetworkUsers
    graph: GraphRule
    step: StepRule
    info: RunInfo

    def run(self, page: Observer, show: Callable[[NetworkPoint], None]) -> SimulationResult:
        """Run the network, and update a page and a line on the terminal."""
        if page is silent:
            return self.network.run(show, POINTS)
        overview = SimulationOverview(self.network, self.info, self.people.exam.per_user, page)
        duration_s = self.network.duration_s

        def look(point: NetworkPoint) -> None:
            overview.send(milestone=point.time_s >= duration_s)
            page(Progress(round(point.time_s), round(duration_s)))
            show(point)

        outcome = self.network.run(look, WATCHED_POINTS)
        page(Stopped(f"All {outcome.checks:,} checks held."))
        return outcome

    def _privacy(self) -> dict[str, Any]:
        """Budget and releases of private peers."""
        private = self.people.private
        if private is None:
            return {}
        return {"privacy": {"epsilon": private.ledger.epsilon, "released": private.n_released}}

    def accuracies(self, outcome: SimulationResult) -> dict[str, float]:
        """Test accuracy of the honest users: with their chosen models, with others, and alone."""
        models = {"test": outcome.models, "together": outcome.together, "local": outcome.alone}
        leaves: dict[str, dict[int, LeafModel]] = {"local": {}}
        return {
            f"{name}_accuracy": self.people.score(rows, leaves.get(name, outcome.leaves), outcome.honest)
            for name, rows in models.items()
        }

    def result(self, outcome: SimulationResult) -> dict[str, Any]:
        """The result, ready for JSON; the compiled engine learns from the same users, for comparison."""
        problem, model = self.network.problem, self.people.model
        if model is not None:
            engine = model.models_
        else:
            plan, edges = engine_plan(problem.n_users, self.graph, self.step), engine_graph(problem.n_users, self.graph)
            engine, _ = engine_models(problem, plan, 0, edges)
        counted = ("messages", "bytes", "lost", "refused", "restarts")
        return {
            "measure": self.people.exam.measure,
            **self.accuracies(outcome),
            "engine_accuracy": self.people.score(engine, engine_leaves(self.people, 0), outcome.honest),
            "honest": int(outcome.honest.sum()),
            "trusting": int(outcome.trusts.sum()),
            "edges": outcome.edges,
            **{name: outcome.counts[name] for name in counted},
            "bits": round(outcome.bits),
            "events": outcome.events,
            "invariants_checked": outcome.checks,
            **self._privacy(),
            "violations": 0,
            **self._trees(),
            **self._boosted(),
        }

    def _boosted(self) -> dict[str, Any]:
        """Boosted trees, the growers of any, and bytes that a peer sent for them on average, in its last life."""
        found = [host.member.boosting for host in self.network.joined if host.member.boosting is not None]
        if not found:
            return {}
        most = max(found, key=lambda one: len(one.trees))
        growers = sum(map(bool, most.records.counts.values()))
        sent_bytes = round(sum(one.sent_bits for one in found) / (8 * len(found)))
        return {"boosted": {"trees": len(most.trees), "growers": growers, "sent_bytes": sent_bytes}}

    def _trees(self) -> dict[str, Any]:
        """Trees alive, and bytes of trees that a peer sent on average, in its last life."""
        groves = [host.member.grove for host in self.network.joined if host.member.grove is not None]
        if not groves:
            return {}
        sent_bytes = sum(grove.sent_bits for grove in groves) / (8 * len(groves))
        return {"trees": {"alive": max(len(grove.names) for grove in groves), "sent_bytes": round(sent_bytes)}}


def make_case(
    people: NetworkUsers,
    steps: int,
    seed: int,
    faults: str,
    graph: GraphRule | None = None,
    journal: BinaryIO | None = None,
    step: StepRule = "block",
) -> SimulationCase:
    """Build the simulated network of given users; by default with their usual graph."""
    graph = people.graph if graph is None else graph
    replay = f"dada sim {people.options} --steps {steps} --seed {seed} --faults {faults} --graph {graph} --step {step}"
    options: Any = {"steps": steps, "seed": seed, "replay": replay, "journal": journal, "private": people.private}
    if people.model is None:
        options |= {"orchard": people.orchard, "n_classes": people.train.n_classes, "boosted": people.boosted}
        network = network_of(people.problem, Faults.named(faults), graph=graph, step=step, **options)
    else:
        file = network_of_model(people.model, 1.0, graph, step, vet=True, trust_largest=0.2)
        network = SimulatedNetwork(people.problem, file.config, file.rhythm, Faults.named(faults), **options)
    info = users_info(f"{people.train.n_users} simulated peers, {people.name}; faults: {faults}", people)
    honest = np.array([host.is_honest for host in network.world.hosts])
    return SimulationCase(network, people, graph, step, _with_liars(info, honest))


def users_info(title: str, people: NetworkUsers, **known: Any) -> RunInfo:
    """What a page shows about the users of a network."""
    return synthetic_info(title, people, people.predictors, **known)


def _with_liars(info: RunInfo, honest: Array) -> RunInfo:
    """The description of a run, with liars as a group."""
    if honest.all():
        return info
    groups, names = (info.groups.copy(), info.group_names) if info.group_names else (np.zeros(honest.size), ("honest",))
    groups[~honest] = len(names)
    return replace(info, groups=groups, group_names=(*names, "liars"))
