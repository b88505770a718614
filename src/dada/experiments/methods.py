"""The methods of the experiments: one table of what each is, how it is tuned and how it runs; and one run as a job."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dada import task
from dada.baselines.boosting import BoostSettings, MethodResult, boost, random_graph
from dada.baselines.central import each_alone, lightgbm_alone, user_lightgbm, user_linear, user_xgboost
from dada.baselines.classical import (
    central_result,
    constant_majority,
    global_lin,
    hierarchical,
    home_ridge,
    local_lin,
    trees_with_user,
)
from dada.baselines.persolin import PersolinSettings, persolin
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.data import BasePredictors, Population
from dada.engine import Plan
from dada.experiments.lab import Job
from dada.experiments.ladders import Grid, Settings
from dada.experiments.tasks import SPECS, DatasetSpec, data_digest, people, validation_draw, validation_task, whole_task

ALL_DATA = -1
DIGITS = 6
GRAPH_PHASES = 10
DELTA = 0.1
# The published grids, and the coarse ones of quick runs. Searches go on from the best of either, see `ladders`.
POWERS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
FULL: Grid = {"beta": (1.0, 10.0, 100.0, 1000.0), "mu": POWERS, "lam": POWERS, "C": POWERS, "C_own": POWERS[1:-1:2],
              "trees": (100, 350), "rate": (0.1,), "leaves": (4, 16)}  # fmt: skip
COARSE: Grid = {"beta": (1.0, 10.0, 100.0), "mu": (0.1, 1.0, 10.0), "lam": (0.01, 1.0), "C": (0.1, 1.0, 10.0),
                "C_own": (0.1, 1.0), "trees": (30, 100), "rate": (0.1,), "leaves": (4,)}  # fmt: skip
# The module of our estimators is loaded by name, so that the pages of the paper do not depend on it.
OURS = "dada.experiments.ours"
# Optional settings of a run, with the meaning they have in `Plan`.
PLANNED = ("graph_rule", "step", "graph_step", "kappa", "graph_every", "local_updates", "trace_every")


class RunInput(NamedTuple):
    """Training data with base predictors, test data, settings of a method, and the true graph of synthetic users."""

    train: Population
    predictors: BasePredictors
    test: Population
    settings: Settings
    rng: np.random.Generator
    oracle: CollaborationGraph | None = None


@dataclass(frozen=True)
class Method:
    """A method of the tables.

    `grid` has the values from which a search for hyper-parameters starts, `coarse` those of quick runs, by default of
    `COARSE`. `updates` are those of full and of quick runs, (0, 0) takes those of the
    dataset, None is for methods without updates; `fixed` holds other settings that are not tuned. `alone` is the method
    without collaboration that its users are compared with, and `has_chance` is whether two runs on the same data may
    differ.
    """

    name: str
    title: str
    run: Callable[[RunInput], MethodResult]
    grid: Grid = field(default_factory=dict)
    coarse: Grid | None = None
    updates: tuple[int, int] | None = None
    fixed: Settings = field(default_factory=dict)
    alone: str | None = None
    has_chance: bool = True

    def points(self, coarse: bool) -> list[Settings]:
        """Every combination of hyper-parameters from which a search starts."""
        grid = self.grid
        if coarse:
            grid = {name: COARSE[name] for name in grid} if self.coarse is None else self.coarse
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]

    def effort(self, spec: DatasetSpec, quick: bool) -> Settings:
        """The settings that are not tuned."""
        if self.updates is None:
            return self.fixed
        full, short = self.updates if any(self.updates) else (spec.updates, max(40, spec.updates // 4))
        return {"updates": short if quick else full, **self.fixed}


def train(
    dataset: str,
    method: str,
    settings: Settings,
    seed: int,
    run: int,
    fold: int = ALL_DATA,
    detail: str = "",
    split: int = 0,
) -> dict[str, Any]:
    """Train and test a method once; JSON can hold the result.

    Parameters
    ----------
    dataset, method : str
        Key of `SPECS`, and name of a method.
    settings : dict
        Hyper-parameters of the method (`beta`, `mu`, `lam`, `C`, `C_own`, `neighbours`) and of its run: `updates` per
        user, and optionally `graph_loss`, `delta` and those of `PLANNED`. `stumps` and `rule` replace the base
        predictors of the dataset.
    seed, run, split : int
        Seed of the experiment and number of the run, each with its own randomness and folds; for real users 0 is the
        published split, other numbers are random splits.
    fold : int
        The fold of the training data to test on; `ALL_DATA` trains on all of them and tests on the test data.
    detail : {"", "trace", "graph"}
        What to return besides accuracies: the trace, or the trace, the graph and every user's loss. Cross-validation
        returns the rows held out, those classified correctly, and the bits sent.
    """
    spec, settings, run_method = SPECS[dataset], dict(settings), method_of(method).run
    stumps, rule = settings.pop("stumps", spec.stumps), settings.pop("rule", spec.rule)
    rng = np.random.default_rng([seed, run, zlib.crc32(method.encode())])
    draw = split
    if spec.synthetic:
        draw = run if fold == ALL_DATA else validation_draw(run, fold)
    users = people(dataset, seed, draw)
    if fold != ALL_DATA:
        train, predictors, held_out = validation_task(dataset, seed, run, fold, stumps, rule, split)
        result = run_method(RunInput(train, predictors, held_out, settings, rng, users.oracle))
        right = np.rint(np.nan_to_num(result.test_accuracy) * held_out.sizes).astype(int)
        return {"right": right.tolist(), "rows": held_out.sizes.tolist(), "bits": result.bits}
    given = RunInput(*whole_task(dataset, seed, draw, stumps, rule), users.test, settings, rng, users.oracle)
    result = run_method(given)
    found = {
        "test": rounded(result.test_accuracy),
        "test_pooled": result.test_accuracy_pooled,
        "train": rounded(result.train_accuracy),
        "train_pooled": result.train_accuracy_pooled,
        "bits": result.bits,
        "neighbours": result.neighbours,
    }
    if detail:
        found["trace"] = _trace(result)
    return found | (_graph(result, given) if detail == "graph" else {})


def train_job(dataset: str, method: str, settings: Settings, **arguments: Any) -> Job:
    """A job that calls :func:`train`."""
    loads = () if method in METHODS else (OURS,)
    named = {"dataset": dataset, "method": method, "settings": settings}
    return Job(train, named | arguments, data_digest(dataset), loads)


def rounded(values: Array | Sequence[Any]) -> list[float]:
    """Numbers rounded for a file."""
    return [round(float(value), DIGITS) for value in values]


def _trace(result: MethodResult) -> dict[str, Any]:
    points = result.trace
    return {
        "train": rounded([point.train_accuracy.mean() for point in points]),
        "test": rounded([point.test_accuracy.mean() for point in points]),
        **{name: [getattr(point, name) for point in points] for name in ("updates", "edges", "bits", "graph_bits")},
    }


def _graph(result: MethodResult, given: RunInput) -> dict[str, Any]:
    assert result.graph is not None
    k, l, w = result.graph.edges()
    problem = task.problem(given.train, given.predictors, beta=given.settings["beta"], mu1=given.settings["mu"])
    losses = problem.graph_losses(result.models) / problem.confidence
    return {"edges": [k.tolist(), l.tolist(), rounded(w)], "losses": rounded(losses)}


def plan_of(settings: Settings, n_users: int) -> Plan:
    """The plan of a run: `updates` per user, and ten graph phases by default."""
    n_updates = settings["updates"] * n_users
    plan: Settings = {"kappa": 5, "graph_every": max(1, n_updates // GRAPH_PHASES), "trace_every": max(1, n_updates)}
    plan |= {name: settings[name] for name in PLANNED if name in settings}
    plan["kappa"] = min(plan["kappa"], max(1, n_users - 1))
    return Plan(n_updates, **plan)


def _regularizer(settings: Settings) -> LogDegree:
    return LogDegree(lam=settings.get("lam", 0.1), delta=settings.get("delta", DELTA))


def boosted(given: RunInput, graph: str | CollaborationGraph, graph_rule: str = "distance") -> MethodResult:
    """Boosting over a graph, as of `boost`."""
    settings, n_users = given.settings, 1 if graph == "pooled" else given.train.n_users
    options = {name: settings[name] for name in ("beta", "mu", "graph_loss") if name in settings}
    plan = plan_of({"graph_rule": graph_rule} | settings, n_users)
    chosen = BoostSettings(plan, regularizer=_regularizer(settings), **options)
    return boost(given.train, given.predictors, given.test, chosen, given.rng, graph=graph)


def _persolin(given: RunInput, graph: CollaborationGraph | None) -> MethodResult:
    settings, plan = given.settings, plan_of(given.settings, given.train.n_users)
    chosen = PersolinSettings(plan, mu=settings["mu"], regularizer=_regularizer(settings))
    return persolin(given.train, given.test, chosen, given.rng, graph=graph)


def _oracle(given: RunInput) -> CollaborationGraph:
    if given.oracle is None:
        raise ValueError("the oracle methods need the true graph of the users; only synthetic users have one")
    return given.oracle


def _tuned(*names: str) -> Grid:
    return {name: FULL[name] for name in names}


def _table() -> list[Method]:
    lin = partial(Method, grid=_tuned("C"), has_chance=False)
    linear = partial(Method, updates=(60, 20), alone="local-lin")
    boosting = partial(Method, grid=_tuned("beta", "mu"), updates=(0, 0), alone="local-boost")
    central = partial(Method, grid=_tuned("C", "C_own"), has_chance=False, alone="local-lin")
    trees = partial(Method, grid=_tuned("trees", "rate", "leaves"), has_chance=False, alone="local-boost")
    mixed: Any = {"grid": {"beta": (1.0, 3.0, 10.0, 30.0, 100.0), "mu": (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)},
                  "fixed": {"rule": "mixed", "lam": 1.0}}  # fmt: skip
    pooled: Any = {"grid": _tuned("beta"), "updates": (2000, 300), "has_chance": False}

    return [
        lin("global-lin", "Global-lin", lambda g: global_lin(g.train, g.test, **g.settings), alone="local-lin"),
        lin("local-lin", "Local-lin", lambda g: local_lin(g.train, g.test, **g.settings)),
        linear("perso-lin-oracle", "Perso-lin-Oracle", lambda g: _persolin(g, _oracle(g)), grid=_tuned("mu")),
        linear("perso-lin-learned", "Perso-lin-Learned", lambda g: _persolin(g, None), grid=_tuned("mu", "lam")),
        boosting("global-boost", "Global-boost", lambda g: boosted(g, "pooled"), **pooled),
        boosting("local-boost", "Local-boost", lambda g: boosted(g, "none"), grid=_tuned("beta"), alone=None),
        boosting("dada-oracle", "Dada-Oracle", lambda g: boosted(g, _oracle(g))),
        boosting("dada-learned", "Dada-Learned", lambda g: boosted(g, "learned"), grid=_tuned("beta", "mu", "lam")),
        boosting("dada-uniform", "Dada, complete graph",
                 lambda g: boosted(g, CollaborationGraph.complete(g.train.n_users))),
        boosting("dada-random", "Dada, random graph of equal density",
                 lambda g: boosted(g, random_graph(g.train.n_users, g.settings["neighbours"], g.rng))),
        boosting("dada-evidence", "Dada, evidence graph (ours)", lambda g: boosted(g, "learned", "evidence")),
        boosting("dada-mixed", "Dada-Learned, mixed predictors (ours)", lambda g: boosted(g, "learned"), **mixed),
        Method("constant", "Constant (each user's majority)", lambda g: constant_majority(g.train, g.test),
               has_chance=False),
        central("dummies", "Logistic regression with user intercepts (central)",
                lambda g: central_result(g.train, g.test, user_linear, **g.settings)),
        central("hierarchical", "Hierarchical logistic regression (central)",
                lambda g: hierarchical(g.train, g.test, **g.settings)),
        central("home-ridge", "Pooled least squares and home ridge (one message per user)",
                lambda g: home_ridge(g.train, g.test, **g.settings)),
        trees("trees-user", "Gradient boosting with the user as a feature (central)",
              lambda g: trees_with_user(g.train, g.test, **g.settings)),
        trees("lightgbm-user", "LightGBM with the user as a feature (central)",
              lambda g: central_result(g.train, g.test, user_lightgbm, **g.settings)),
        trees("xgboost-user", "XGBoost with the user as a feature (central)",
              lambda g: central_result(g.train, g.test, user_xgboost, **g.settings)),
        trees("lightgbm-alone", "LightGBM, each user alone",
              lambda g: central_result(g.train, g.test, lightgbm_alone, **g.settings)),
        trees("xgboost-alone", "XGBoost, each user alone",
              lambda g: central_result(g.train, g.test, partial(each_alone, user_xgboost), **g.settings)),
    ]  # fmt: skip


METHODS = {method.name: method for method in _table()}


def method_of(name: str) -> Method:
    """The method of a name: of this table, or one of our estimators."""
    found: Method = METHODS[name] if name in METHODS else import_module(OURS).METHODS[name]
    return found
