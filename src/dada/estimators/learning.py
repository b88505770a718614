"""From rows and settings to models: every ``"auto"`` is decided here, then the engine runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.core.status import Status
from dada.data import BasePredictors, Recipe
from dada.engine import RunResult, run
from dada.estimators.agreement import agreed
from dada.estimators.auto import AUTO, LEAST_UPDATES, graph_every, lam_for, numbers, winner
from dada.estimators.rows import Rows
from dada.estimators.settings import graph_of, plan_of, recipe_of, regularizer_of
from dada.estimators.workers import crew_of, latency_of
from dada.events import Observer, silent

CANDIDATES = ("everyone", "evidence")
# Settings that `settings_` tells.
TOLD = ("loss", "beta", "mu", "lam", "graph", "n_neighbours", "tau", "n_updates", "graph_every")


@dataclass(frozen=True, eq=False)
class Learned:
    """What a fit found: predictors, the settings used, and the run."""

    predictors: BasePredictors
    settings: dict[str, Any]
    result: RunResult


@dataclass(frozen=True)
class Watched:
    """Who hears of a fit, and the file that keeps its state, from which it goes on where there is one."""

    observer: Observer = silent
    checkpoint: str | os.PathLike[str] | None = None

    def options(self, part: str = "") -> dict[str, Any]:
        """What the engine takes; a fit of two runs keeps them in files of their own."""
        path = None if self.checkpoint is None else os.fspath(self.checkpoint) + part
        return {"observer": self.observer, "checkpoint": path, "resume": path is not None}


UNWATCHED = Watched()


def learn(
    params: dict[str, Any],
    rows: Rows,
    rng: np.random.Generator,
    watched: Watched = UNWATCHED,
    *,
    predictors: BasePredictors | None = None,
    models: NDArray[Any] | None = None,
) -> Learned:
    """Decide what is left to decide, and learn models and graph.

    Parameters
    ----------
    params : dict
        Hyper-parameters of an estimator, checked.
    rows : Rows
        Training rows.
    rng : numpy.random.Generator
        Chance of the fit.
    watched : Watched
        Observer and checkpoint of the fit itself, not of the trials before it.
    predictors : BasePredictors, optional
        Already fitted ones.
    models : array, optional
        Where models start.
    """
    recipe = recipe_of(params["predictors"], rows)
    told: dict[str, Any] = {}
    if predictors is None:
        predictors, told["predictors_from"] = agreed(recipe, rows.people)
    used = numbers(params, rows, predictors.n * rows.n_blocks)
    if isinstance(used["graph"], str) and used["graph"] == AUTO:
        used["graph"], told["held_out"] = choose_graph(used, rows, recipe, rng.spawn(1)[0])
    used["lam"] = lam_of(used, rows, predictors, rng.spawn(1)[0]) if used["lam"] == AUTO else used["lam"]
    if watched.observer is not silent:
        watched.observer(rows.info(predictors))
    result = carry_out(used, rows, predictors, rng, watched, models)
    return Learned(predictors, told | told_of(used, predictors, recipe), result)


def told_of(used: dict[str, Any], predictors: BasePredictors, recipe: Recipe) -> dict[str, Any]:
    """What `settings_` tells of settings that are all decided."""
    told = {name: used[name] for name in TOLD if name != "graph_every"}
    told |= {"graph_every": graph_every(used), "latency": latency_of(used)}
    told |= {"n_predictors": predictors.n, "predictors": recipe}
    if not isinstance(used["graph"], str):
        told["graph"] = "given"
    return told


def choose_graph(
    used: dict[str, Any], rows: Rows, recipe: Recipe, rng: np.random.Generator
) -> tuple[str, dict[str, float]]:
    """The graph for ``"auto"``: everyone alike, or by evidence where that does better on held-out rows.

    Evidence makes directed graphs, along which updates cannot take time.
    """
    if rows.people.n_users < 3 or used["mu"] == 0 or latency_of(used) > 0:
        return ("everyone" if rows.people.n_users > 1 else "none"), {}
    seed = int(rng.integers(2**31))

    def fit(learned: Rows, predictors: BasePredictors, graph: str) -> NDArray[Any]:
        quick = used | {"graph": graph, "n_updates": min(used["n_updates"], LEAST_UPDATES // 2), "tol": None}
        quick |= {"max_bits": None, "max_time_s": None}
        result = carry_out(quick, learned, predictors, np.random.default_rng(seed))
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        return result.models

    return winner(CANDIDATES, rows, recipe, fit, rng)


def carry_out(
    used: dict[str, Any],
    rows: Rows,
    predictors: BasePredictors,
    rng: np.random.Generator,
    watched: Watched = UNWATCHED,
    models: NDArray[Any] | None = None,
) -> RunResult:
    """Run the engine with settings that are all decided."""
    n_users = rows.people.n_users
    rows.check_memory(predictors, used["n_neighbours"])
    problem = _problem(used, rows, predictors)
    plan = plan_of(used, n_users)
    if models is not None and plan.learn_graph:
        plan = replace(plan, local_updates=0, restart="local")
    shown: Any = dict(train=rows.samples(predictors), dtype=used["dtype"])
    # A graph is drawn from chance of its own: the run's schedule must not depend on whether there is one.
    given = graph_of(used["graph"], n_users, np.random.default_rng(n_users)) if used["mu"] > 0 else None
    is_symmetric = isinstance(used["graph"], str) and used["graph"] == "evidence-symmetric"
    if not (is_symmetric and plan.learn_graph):
        with crew_of(used) as crew:
            return run(problem, plan, rng, graph=given, models=models, crew=crew, **shown, **watched.options())
    first = run(problem, plan, rng, models=models, **shown, **watched.options())
    both = first.graph.symmetrised()
    # Weights that single precision cannot tell from nothing would only be refused.
    light = both.weights.max(initial=0.0) * 1e-6
    k, l, w = both.edges()
    both = type(both).from_edges(n_users, k[w > light], l[w > light], w[w > light])
    fixed = replace(plan, learn_graph=False)
    return run(problem, fixed, rng, graph=both, models=first.models, **shown, **watched.options(".symmetric"))


def _problem(used: dict[str, Any], rows: Rows, predictors: BasePredictors) -> Any:
    return rows.problem(
        predictors,
        used["loss"],
        beta=used["beta"],
        mu1=used["mu"],
        regularizer=regularizer_of(used),
        graph_loss=used["graph_loss"],
    )


def lam_of(used: dict[str, Any], rows: Rows, predictors: BasePredictors, rng: np.random.Generator) -> float | None:
    """lam for the wanted number of neighbours, where a graph is learned from distances; None where lam is not used."""
    plan = plan_of(used, rows.people.n_users)
    if not plan.learn_graph or plan.graph_rule != "distance" or used["regularizer"] is not None:
        return None
    quick = replace(plan, n_updates=min(plan.n_updates, LEAST_UPDATES * rows.people.n_users))
    quick = replace(quick, max_bits=None, max_time_s=None, gap_tolerance=None)
    return lam_for(_problem(used, rows, predictors), quick, used["n_neighbours"], used["delta"], rng, used["dtype"])
