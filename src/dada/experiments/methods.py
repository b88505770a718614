"""The methods of the experiments: their names, their grids, and how a plain dictionary of settings becomes a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from dada.baselines.boosting import (
    BoostSettings,
    dada_learned,
    dada_oracle,
    dada_random,
    dada_uniform,
    global_boost,
    local_boost,
)
from dada.baselines.linear import (
    HierarchicalSettings,
    LinearSettings,
    constant_majority,
    global_lin,
    hierarchical,
    local_lin,
)
from dada.baselines.outcome import Outcome, Scores
from dada.baselines.persolin import PersolinSettings, persolin_learned, persolin_oracle
from dada.baselines.trees import TreeSettings, trees_local, trees_pooled
from dada.core.graph import CollaborationGraph
from dada.core.regularizers import LogDegree
from dada.data import Population
from dada.engine import Plan
from dada.estimators import DadaClassifier, DadaClassifierCV
from dada.experiments.data import DatasetSpec
from dada.task import Task

Settings = dict[str, Any]

# The published grids, each power of ten once.
BETAS = (1.0, 10.0, 100.0, 1000.0)
POWERS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
FEWER_POWERS = (1e-2, 1e-1, 1.0, 1e1, 1e2)
GRAPH_PHASES = 10
DELTA = 0.1
GLOBAL_UPDATES = 2000
LINEAR_UPDATES = 60


@dataclass(frozen=True)
class Method:
    """A method of the tables.

    Attributes
    ----------
    name, title : str
        In files, and for people.
    grid, quick_grid : mapping of str to tuple
        Values tried for each hyper-parameter; the first of equally good settings wins.
    alone : str, optional
        The method without collaboration that its users compare themselves with.
    has_chance : bool
        Whether two runs on the same data may differ.
    published : bool
        Whether the paper compares with it.
    """

    name: str
    title: str
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    quick_grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    alone: str | None = None
    has_chance: bool = True
    published: bool = True

    def points(self, quick: bool) -> list[Settings]:
        """Every combination of hyper-parameters."""
        grid = self.quick_grid if quick else self.grid
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


Grid = dict[str, tuple[float, ...]]
_BETA: Grid = {"beta": BETAS}
_MU: Grid = {"mu": POWERS}
_LAM: Grid = {"lam": POWERS}
_C: Grid = {"C": POWERS}
_QUICK_BETA: Grid = {"beta": (1.0, 10.0, 100.0)}
_QUICK_MU: Grid = {"mu": (0.1, 1.0, 10.0)}
_QUICK_LAM: Grid = {"lam": (0.01, 1.0)}
_QUICK_C: Grid = {"C": (0.1, 1.0, 10.0)}
_TREES: Grid = {"trees": (30, 100), "depth": (1, 3)}
_QUICK_TREES: Grid = {"trees": (30, 100), "depth": (3,)}

METHODS = {
    method.name: method
    for method in (
        Method("global-lin", "Global-lin", _C, _QUICK_C, "local-lin", has_chance=False),
        Method("local-lin", "Local-lin", _C, _QUICK_C, has_chance=False),
        Method("perso-lin-oracle", "Perso-lin-Oracle", _MU, _QUICK_MU, "local-lin"),
        Method("perso-lin-learned", "Perso-lin-Learned", _MU | _LAM, _QUICK_MU | _QUICK_LAM, "local-lin"),
        Method("global-boost", "Global-boost", _BETA, _QUICK_BETA, "local-boost", has_chance=False),
        Method("local-boost", "Local-boost", _BETA, _QUICK_BETA),
        Method("dada-oracle", "Dada-Oracle", _BETA | _MU, _QUICK_BETA | _QUICK_MU, "local-boost"),
        Method(
            "dada-learned",
            "Dada-Learned",
            _BETA | _MU | _LAM,
            _QUICK_BETA | _QUICK_MU | _QUICK_LAM,
            "local-boost",
        ),
        Method("constant", "Constant (each user's majority)", has_chance=False, published=False),
        Method(
            "hierarchical",
            "Hierarchical logistic regression (central)",
            {"C": FEWER_POWERS, "C_own": FEWER_POWERS},
            {"C": (0.1, 10.0), "C_own": (0.1, 1.0)},
            "local-lin",
            has_chance=False,
            published=False,
        ),
        Method(
            "dada-uniform",
            "Dada, complete graph",
            _BETA | _MU,
            _QUICK_BETA | _QUICK_MU,
            "local-boost",
            published=False,
        ),
        Method(
            "dada-evidence",
            "Dada, evidence graph (ours)",
            _BETA | _MU,
            _QUICK_BETA | _QUICK_MU,
            "local-boost",
            published=False,
        ),
        Method(
            "dada-mixed",
            "Dada-Learned, mixed predictors (ours)",
            {"beta": (1.0, 3.0, 10.0, 30.0, 100.0), "mu": (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)},
            _QUICK_BETA | _QUICK_MU,
            "local-boost",
            published=False,
        ),
        Method(
            "dada-random",
            "Dada, random graph of equal density",
            _BETA | _MU,
            _QUICK_BETA | _QUICK_MU,
            "local-boost",
            published=False,
        ),
        Method("dada-alone", "Our defaults, each user alone", published=False),
        Method("dada-auto", "Dada, our defaults", alone="dada-alone", published=False),
        Method("dada-auto-evidence", "Dada, our defaults, evidence graph", alone="dada-alone", published=False),
        Method("dada-auto-everyone", "Dada, our defaults, complete graph", alone="dada-alone", published=False),
        Method("dada-cv", "Dada, our predictors, cross-validated", alone="dada-alone", published=False),
        Method("trees-local", "Gradient boosting, each user alone", _TREES, _QUICK_TREES, published=False),
        Method("trees-pooled", "Gradient boosting (central)", _TREES, _QUICK_TREES, "trees-local", published=False),
        Method(
            "trees-pooled-user",
            "Gradient boosting with the user as a feature (central)",
            _TREES,
            _QUICK_TREES,
            "trees-local",
            published=False,
        ),
    )
}


# These are the estimators, which know how long to run.
ESTIMATORS = ("dada-alone", "dada-auto", "dada-auto-evidence", "dada-auto-everyone", "dada-cv")


def effort(method: str, spec: DatasetSpec, quick: bool) -> Settings:
    """The settings that are never tuned: how long a method runs, and what else its name promises."""
    if method == "global-boost":
        return {"updates": 300 if quick else GLOBAL_UPDATES}
    if method.startswith("perso-lin"):
        return {"updates": 20 if quick else LINEAR_UPDATES}
    if method in ESTIMATORS:
        return {}
    if method.startswith(("dada", "local-boost")):
        updates = max(40, spec.updates // 4) if quick else spec.updates
        return {"updates": updates} | ({"rule": "mixed", "lam": 1.0} if method == "dada-mixed" else {})
    return {}


def fit(
    method: str,
    task: Task,
    test: Population,
    settings: Settings,
    rng: np.random.Generator,
    oracle: CollaborationGraph | None = None,
) -> Outcome:
    """Run a method with settings as a table or a journal holds them.

    Parameters
    ----------
    method : str
        A key of `METHODS`.
    task, test, rng
        As every baseline takes them.
    settings : dict
        Hyper-parameters of the method (`beta`, `mu`, `lam`, `C`, `C_own`, `neighbours`) and of its run: `updates` per
        user, and optionally `step`, `graph_step`, `graph_loss`, `delta`, `graph_every`, `trace_every`, `local_updates`
        (counts of the whole population).
    oracle : CollaborationGraph, optional
        The graph of the methods that are given one.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> fit("local-boost", task, users.test, {"beta": 10.0, "updates": 20}, np.random.default_rng(0)).name
    'local-boost'
    """
    return _RUNS[method](task, test, settings, rng, oracle)


def plan_of(settings: Settings, n_users: int) -> Plan:
    """The plan of a run: `updates` per user, and ten graph phases unless said otherwise."""
    n_updates = settings["updates"] * n_users
    return Plan(
        n_updates=n_updates,
        graph_rule=settings.get("graph_rule", "distance"),
        step=settings.get("step", "pairwise"),
        graph_step=settings.get("graph_step", "exact"),
        kappa=min(settings.get("kappa", 5), max(1, n_users - 1)),
        graph_every=settings.get("graph_every", max(1, n_updates // GRAPH_PHASES)),
        local_updates=settings.get("local_updates"),
        trace_every=settings.get("trace_every", max(1, n_updates)),
    )


def boost_settings(settings: Settings, n_users: int) -> BoostSettings:
    """A dictionary of settings as boosting takes them."""
    return BoostSettings(
        plan_of(settings, n_users),
        beta=settings["beta"],
        mu=settings.get("mu", 1.0),
        regularizer=LogDegree(lam=settings.get("lam", 0.1), delta=settings.get("delta", DELTA)),
        graph_loss=settings.get("graph_loss", "mean"),
    )


def _persolin_settings(settings: Settings, n_users: int) -> PersolinSettings:
    regularizer = LogDegree(lam=settings.get("lam", 0.1), delta=settings.get("delta", DELTA))
    return PersolinSettings(plan_of(settings, n_users), mu=settings["mu"], regularizer=regularizer)


def _given(graph: CollaborationGraph | None, method: str) -> CollaborationGraph:
    if graph is None:
        raise ValueError(f"{method} needs a graph that is known beforehand; only synthetic users have one")
    return graph


Run = Callable[[Task, Population, Settings, np.random.Generator, CollaborationGraph | None], Outcome]
_RUNS: dict[str, Run] = {
    "constant": lambda task, test, s, rng, _: constant_majority(task, test, None, rng),
    "global-lin": lambda task, test, s, rng, _: global_lin(task, test, LinearSettings(s["C"]), rng),
    "local-lin": lambda task, test, s, rng, _: local_lin(task, test, LinearSettings(s["C"]), rng),
    "hierarchical": lambda task, test, s, rng, _: hierarchical(
        task, test, HierarchicalSettings(s["C"], s["C_own"]), rng
    ),
    "global-boost": lambda task, test, s, rng, _: global_boost(task, test, boost_settings(s, 1), rng),
    "local-boost": lambda task, test, s, rng, _: local_boost(task, test, boost_settings(s, task.train.n_users), rng),
    "dada-learned": lambda task, test, s, rng, _: dada_learned(task, test, boost_settings(s, task.train.n_users), rng),
    "dada-evidence": lambda task, test, s, rng, _: replace(
        dada_learned(task, test, boost_settings(s | {"graph_rule": "evidence"}, task.train.n_users), rng),
        name="dada-evidence",
    ),
    "dada-mixed": lambda task, test, s, rng, _: replace(
        dada_learned(task, test, boost_settings(s, task.train.n_users), rng), name="dada-mixed"
    ),
    "dada-uniform": lambda task, test, s, rng, _: dada_uniform(task, test, boost_settings(s, task.train.n_users), rng),
    "dada-random": lambda task, test, s, rng, _: dada_random(
        task, test, boost_settings(s, task.train.n_users), rng, neighbours=s["neighbours"]
    ),
    "dada-oracle": lambda task, test, s, rng, graph: dada_oracle(
        task, test, boost_settings(s, task.train.n_users), rng, graph=_given(graph, "dada-oracle")
    ),
    "trees-local": lambda task, test, s, rng, _: trees_local(task, test, TreeSettings(**s), rng),
    "trees-pooled": lambda task, test, s, rng, _: trees_pooled(task, test, TreeSettings(**s), rng),
    "trees-pooled-user": lambda task, test, s, rng, _: trees_pooled(task, test, TreeSettings(**s), rng, with_user=True),
    "dada-alone": lambda task, test, s, rng, _: automatic(task, test, "none", rng),
    "dada-auto": lambda task, test, s, rng, _: automatic(task, test, "auto", rng),
    "dada-auto-evidence": lambda task, test, s, rng, _: automatic(task, test, "evidence", rng),
    "dada-auto-everyone": lambda task, test, s, rng, _: automatic(task, test, "everyone", rng),
    "dada-cv": lambda task, test, s, rng, _: cross_validated(task, test, rng),
    "perso-lin-learned": lambda task, test, s, rng, _: persolin_learned(
        task, test, _persolin_settings(s, task.train.n_users), rng
    ),
    "perso-lin-oracle": lambda task, test, s, rng, graph: persolin_oracle(
        task, test, _persolin_settings(s, task.train.n_users), rng, graph=_given(graph, "perso-lin-oracle")
    ),
}


def automatic(task: Task, test: Population, graph: str, rng: np.random.Generator) -> Outcome:
    """`DadaClassifier` with all settings automatic, but for the graph where it is named; "none" learns alone.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> automatic(task, users.test, "evidence", np.random.default_rng(0)).neighbours <= 9
    True
    """
    model = DadaClassifier(graph=graph, random_state=rng)
    model.fit(task.train.X, task.train.y, users=_owners(task.train))
    return _outcome("dada-auto", task, test, model, model)


def cross_validated(task: Task, test: Population, rng: np.random.Generator) -> Outcome:
    """`DadaClassifierCV`: graph, beta and mu by held-out rows, and a local model for whom that serves better."""
    search = DadaClassifierCV(random_state=rng)
    search.fit(task.train.X, task.train.y, users=_owners(task.train))
    return _outcome("dada-cv", task, test, search, search.best_estimator_)


def _owners(people: Population) -> Any:
    return np.repeat(people.user_ids, people.sizes)


def _outcome(name: str, task: Task, test: Population, model: Any, fitted: DadaClassifier) -> Outcome:
    train, tested = (
        Scores.of(people, model.decision_function(people.X, users=_owners(people))) for people in (task.train, test)
    )
    rest: Any = {"graph": fitted.graph_, "bits": fitted.bits_, "status": fitted.status_}
    return Outcome.scored(name, train, tested, fitted.models_, **rest)
