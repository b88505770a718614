"""The methods of the experiments: one table of what each is, how it is tuned and how it runs; and one run as a job."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from dada import task
from dada.baselines.boosting import BoostSettings, dada_learned, dada_oracle, global_boost, local_boost, random_graph
from dada.baselines.linear import (
    HierarchicalSettings,
    LinearSettings,
    constant_majority,
    global_lin,
    hierarchical,
    local_lin,
)
from dada.baselines.outcome import MethodResult, Scores
from dada.baselines.persolin import PersolinSettings, persolin_learned, persolin_oracle
from dada.baselines.trees import TreeSettings, trees_local, trees_pooled
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.regularizers import LogDegree
from dada.data import BasePredictors, Population
from dada.engine import Plan
from dada.estimators import DadaClassifier, DadaClassifierCV
from dada.experiments.data import SPECS, DatasetSpec, data_digest, people, validation_draw, validation_task, whole_task
from dada.experiments.lab import Job

Settings = dict[str, Any]
Grid = dict[str, tuple[float, ...]]
# A method: training data, base predictors, test data, settings, source of randomness, true graph of synthetic users.
Run = Callable[
    [Population, BasePredictors, Population, Settings, np.random.Generator, CollaborationGraph | None], MethodResult
]
# Settings that are never tuned, by dataset and whether the run is quick.
Effort = Callable[[DatasetSpec, bool], Settings]

ALL_DATA = -1
DIGITS = 6
GRAPH_PHASES = 10
DELTA = 0.1
# The published grids, and the coarse ones of quick runs and random splits.
POWERS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
FULL: Grid = {
    "beta": (1.0, 10.0, 100.0, 1000.0),
    "mu": POWERS,
    "lam": POWERS,
    "C": POWERS,
    "trees": (30, 100),
    "depth": (1, 3),
}
COARSE: Grid = {
    "beta": (1.0, 10.0, 100.0),
    "mu": (0.1, 1.0, 10.0),
    "lam": (0.01, 1.0),
    "C": (0.1, 1.0, 10.0),
    "trees": (30, 100),
    "depth": (3,),
}


def no_effort(spec: DatasetSpec, quick: bool) -> Settings:
    """No fixed settings: the method needs no number of updates."""
    return {}


@dataclass(frozen=True)
class Method:
    """A method of the tables.

    Attributes
    ----------
    name, title : str
        In files, and on pages.
    run : callable
        Trains and tests the method.
    grid, coarse : mapping of str to tuple
        Values tried for each hyper-parameter; among equally good settings the first wins. By default the coarse grid
        takes its values from `COARSE`.
    effort : callable
        The settings that are not tuned, such as the number of updates per user.
    alone : str, optional
        The method without collaboration that its users are compared with.
    has_chance : bool
        Whether two runs on the same data may differ.
    """

    name: str
    title: str
    run: Run
    grid: Grid = field(default_factory=dict)
    coarse: Grid | None = None
    effort: Effort = no_effort
    alone: str | None = None
    has_chance: bool = True

    def points(self, coarse: bool) -> list[Settings]:
        """Every combination of hyper-parameters.

        >>> METHODS["local-boost"].points(coarse=True)
        [{'beta': 1.0}, {'beta': 10.0}, {'beta': 100.0}]
        """
        grid = self.grid
        if coarse:
            grid = {name: COARSE[name] for name in grid} if self.coarse is None else self.coarse
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


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
    """Train and test a method once.

    Parameters
    ----------
    dataset, method : str
        Keys of `SPECS` and `METHODS`.
    settings : dict
        Hyper-parameters of the method (`beta`, `mu`, `lam`, `C`, `C_own`, `neighbours`) and of its run: `updates` per
        user; optionally `step`, `graph_step`, `graph_loss`, `delta`, and, as counts over all users, `graph_every`,
        `trace_every`, `local_updates`. `stumps` and `rule` replace the base predictors of the dataset.
    seed, run : int
        Seed of the experiment and number of the run. Each run has its own randomness; in cross-validation, its own
        folds.
    fold : int
        The fold of the training data to test on; `ALL_DATA` trains on all of them and tests on the test data.
    detail : {"", "trace", "graph"}
        What to return besides accuracies: the trace, or the trace, the graph and every user's loss.
    split : int
        For real users: 0 is the published split, other numbers are random splits.

    Returns
    -------
    dict
        In cross-validation the number of held-out rows of each user, the number classified correctly, and the bits
        sent. Otherwise accuracies, bits, neighbours and the requested detail. JSON can hold all values.
    """
    spec, settings = SPECS[dataset], dict(settings)
    stumps, rule = settings.pop("stumps", spec.stumps), settings.pop("rule", spec.rule)
    rng = np.random.default_rng([seed, run, zlib.crc32(method.encode())])
    draw = split
    if spec.synthetic:
        draw = run if fold == ALL_DATA else validation_draw(run, fold)
    users = people(dataset, seed, draw)
    if fold != ALL_DATA:
        train, predictors, held_out = validation_task(dataset, seed, run, fold, stumps, rule, split)
        result = METHODS[method].run(train, predictors, held_out, settings, rng, users.oracle)
        right = np.rint(np.nan_to_num(result.test_accuracy) * held_out.sizes).astype(int)
        return {"right": right.tolist(), "rows": held_out.sizes.tolist(), "bits": result.bits}
    train, predictors = whole_task(dataset, seed, draw, stumps, rule)
    result = METHODS[method].run(train, predictors, users.test, settings, rng, users.oracle)
    return (
        _accuracies(result)
        | (_trace(result) if detail else {})
        | (_graph(result, train, predictors, settings) if detail == "graph" else {})
    )


def train_job(dataset: str, method: str, settings: Settings, **arguments: Any) -> Job:
    """A job that calls :func:`train`."""
    return Job(train, {"dataset": dataset, "method": method, "settings": settings, **arguments}, data_digest(dataset))


def rounded(values: Array | Sequence[Any]) -> list[float]:
    """Numbers rounded for a file."""
    return [round(float(value), DIGITS) for value in values]


def _accuracies(result: MethodResult) -> dict[str, Any]:
    return {
        "test": rounded(result.test_accuracy),
        "test_pooled": result.test_accuracy_pooled,
        "train": rounded(result.train_accuracy),
        "train_pooled": result.train_accuracy_pooled,
        "bits": result.bits,
        "neighbours": result.neighbours,
    }


def _trace(result: MethodResult) -> dict[str, Any]:
    points = result.trace
    return {
        "trace": {
            "updates": [point.updates for point in points],
            "train": rounded([point.train_accuracy.mean() for point in points]),
            "test": rounded([point.test_accuracy.mean() for point in points]),
            "edges": [point.edges for point in points],
            "bits": [point.bits for point in points],
            "graph_bits": [point.graph_bits for point in points],
        }
    }


def _graph(result: MethodResult, train: Population, predictors: BasePredictors, settings: Settings) -> dict[str, Any]:
    assert result.graph is not None
    k, l, w = result.graph.edges()
    problem = task.problem(train, predictors, beta=settings["beta"], mu1=settings["mu"])
    losses = problem.graph_losses(result.models) / problem.confidence
    return {"edges": [k.tolist(), l.tolist(), rounded(w)], "losses": rounded(losses)}


def plan_of(settings: Settings, n_users: int) -> Plan:
    """The plan of a run: `updates` per user, and ten graph phases by default."""
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


def _regularizer(settings: Settings) -> LogDegree:
    return LogDegree(lam=settings.get("lam", 0.1), delta=settings.get("delta", DELTA))


def _boost_settings(settings: Settings, n_users: int) -> BoostSettings:
    return BoostSettings(
        plan_of(settings, n_users),
        beta=settings["beta"],
        mu=settings.get("mu", 1.0),
        regularizer=_regularizer(settings),
        graph_loss=settings.get("graph_loss", "mean"),
    )


def _persolin_settings(settings: Settings, n_users: int) -> PersolinSettings:
    return PersolinSettings(plan_of(settings, n_users), mu=settings["mu"], regularizer=_regularizer(settings))


def _runs(learn: Callable[..., MethodResult], settings_of: Callable[[Settings, int], Any]) -> Run:
    """Call a baseline with its own settings, which `settings_of` makes from a dictionary and the number of users."""
    return lambda train, predictors, test, settings, rng, _: learn(
        train, predictors, test, settings_of(settings, train.n_users), rng
    )


def _runs_on(
    learn: Callable[..., MethodResult],
    settings_of: Callable[[Settings, int], Any],
    graph_of: Callable[[Settings, int, np.random.Generator, CollaborationGraph | None], CollaborationGraph],
) -> Run:
    """The same for a baseline over a given graph."""

    def run(
        train: Population,
        predictors: BasePredictors,
        test: Population,
        settings: Settings,
        rng: np.random.Generator,
        oracle: CollaborationGraph | None,
    ) -> MethodResult:
        n_users = train.n_users
        graph = graph_of(settings, n_users, rng, oracle)
        return learn(train, predictors, test, settings_of(settings, n_users), rng, graph=graph)

    return run


def _oracle(
    settings: Settings, n_users: int, rng: np.random.Generator, oracle: CollaborationGraph | None
) -> CollaborationGraph:
    if oracle is None:
        raise ValueError("the oracle methods need the true graph of the users; only synthetic users have one")
    return oracle


def automatic(
    train: Population,
    predictors: BasePredictors,
    test: Population,
    settings: None,
    rng: np.random.Generator,
    *,
    graph: str = "auto",
) -> MethodResult:
    """`DadaClassifier` with its defaults; `graph` as of that class ("none" trains each user alone).

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> predictors = Stumps(n=40).fit(users.train.X)
    >>> automatic(users.train, predictors, users.test, None, np.random.default_rng(0), graph="evidence").neighbours <= 9
    True
    """
    return _estimated("dada-auto", DadaClassifier(graph=graph, random_state=rng), train, test)


def cross_validated(
    train: Population, predictors: BasePredictors, test: Population, settings: None, rng: np.random.Generator
) -> MethodResult:
    """`DadaClassifierCV` with its defaults."""
    return _estimated("dada-cv", DadaClassifierCV(random_state=rng), train, test)


def _estimated(
    name: str, model: DadaClassifier | DadaClassifierCV, train: Population, test: Population
) -> MethodResult:
    model.fit(train.X, train.y, users=train.users)
    scores = [Scores.of(part, model.decision_function(part.X, users=part.users)) for part in (train, test)]
    best: DadaClassifier = model.best_estimator_ if isinstance(model, DadaClassifierCV) else model
    rest: Any = {"graph": best.graph_, "bits": best.bits_, "status": best.status_}
    return MethodResult.scored(name, scores[0], scores[1], best.models_, **rest)


def _boost_effort(spec: DatasetSpec, quick: bool) -> Settings:
    return {"updates": max(40, spec.updates // 4) if quick else spec.updates}


def _mixed_effort(spec: DatasetSpec, quick: bool) -> Settings:
    return _boost_effort(spec, quick) | {"rule": "mixed", "lam": 1.0}


def _global_effort(spec: DatasetSpec, quick: bool) -> Settings:
    return {"updates": 300 if quick else 2000}


def _linear_effort(spec: DatasetSpec, quick: bool) -> Settings:
    return {"updates": 20 if quick else 60}


def _tuned(*names: str) -> Grid:
    return {name: FULL[name] for name in names}


def _table() -> list[Method]:
    lin = partial(Method, grid=_tuned("C"), has_chance=False)
    persolin = partial(Method, effort=_linear_effort, alone="local-lin")
    boost = partial(Method, grid=_tuned("beta", "mu"), effort=_boost_effort, alone="local-boost")
    trees = partial(Method, grid=_tuned("trees", "depth"))
    ours = partial(Method, alone="dada-alone")
    powers = POWERS[1:-1]
    hierarchy: Any = {"grid": {"C": powers, "C_own": powers}, "coarse": {"C": (0.1, 10.0), "C_own": (0.1, 1.0)}}
    mixed: Grid = {"beta": (1.0, 3.0, 10.0, 30.0, 100.0), "mu": (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)}

    def run_lin(learn: Callable[..., MethodResult]) -> Run:
        return _runs(learn, lambda s, _: LinearSettings(**s))

    def run_trees(learn: Callable[..., MethodResult]) -> Run:
        return _runs(learn, lambda s, _: TreeSettings(**s))

    def run_ours(learn: Callable[..., MethodResult], **options: str) -> Run:
        return _runs(partial(learn, **options), lambda *_: None)

    learned = _runs(dada_learned, _boost_settings)
    evidence = _runs(dada_learned, lambda s, n: _boost_settings(s | {"graph_rule": "evidence"}, n))
    pooled = _runs(global_boost, lambda s, _: _boost_settings(s, 1))
    uniform = _runs_on(dada_oracle, _boost_settings, lambda s, n, *_: CollaborationGraph.complete(n))
    drawn = _runs_on(dada_oracle, _boost_settings, lambda s, n, rng, _: random_graph(n, s["neighbours"], rng))
    persolin_free = _runs(persolin_learned, _persolin_settings)
    persolin_given = _runs_on(persolin_oracle, _persolin_settings, _oracle)
    central_user = partial(trees_pooled, with_user=True)
    fixed: Any = {"grid": _tuned("beta"), "effort": _global_effort, "has_chance": False}
    return [
        lin("global-lin", "Global-lin", run_lin(global_lin), alone="local-lin"),
        lin("local-lin", "Local-lin", run_lin(local_lin)),
        persolin("perso-lin-oracle", "Perso-lin-Oracle", persolin_given, grid=_tuned("mu")),
        persolin("perso-lin-learned", "Perso-lin-Learned", persolin_free, grid=_tuned("mu", "lam")),
        boost("global-boost", "Global-boost", pooled, **fixed),
        boost("local-boost", "Local-boost", _runs(local_boost, _boost_settings), grid=_tuned("beta"), alone=None),
        boost("dada-oracle", "Dada-Oracle", _runs_on(dada_oracle, _boost_settings, _oracle)),
        boost("dada-learned", "Dada-Learned", learned, grid=_tuned("beta", "mu", "lam")),
        boost("dada-uniform", "Dada, complete graph", uniform),
        boost("dada-random", "Dada, random graph of equal density", drawn),
        boost("dada-evidence", "Dada, evidence graph (ours)", evidence),
        boost("dada-mixed", "Dada-Learned, mixed predictors (ours)", learned, grid=mixed, effort=_mixed_effort),
        Method("dada-alone", "Our defaults, each user alone", run_ours(automatic, graph="none")),
        ours("dada-auto", "Dada, our defaults", run_ours(automatic)),
        ours("dada-auto-evidence", "Dada, our defaults, evidence graph", run_ours(automatic, graph="evidence")),
        ours("dada-auto-everyone", "Dada, our defaults, complete graph", run_ours(automatic, graph="everyone")),
        ours("dada-cv", "Dada, our predictors, cross-validated", run_ours(cross_validated)),
        Method("constant", "Constant (each user's majority)", run_ours(constant_majority), has_chance=False),
        lin(
            "hierarchical",
            "Hierarchical logistic regression (central)",
            _runs(hierarchical, lambda s, _: HierarchicalSettings(**s)),
            alone="local-lin",
            **hierarchy,
        ),
        trees("trees-local", "Gradient boosting, each user alone", run_trees(trees_local)),
        trees("trees-pooled", "Gradient boosting (central)", run_trees(trees_pooled), alone="trees-local"),
        trees(
            "trees-pooled-user",
            "Gradient boosting with the user as a feature (central)",
            run_trees(central_user),
            alone="trees-local",
        ),
    ]


METHODS = {method.name: method for method in _table()}
