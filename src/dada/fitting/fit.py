"""From rows and settings to models: every ``"auto"`` is decided here, then the engine runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dada.data import BasePredictors, Recipe
from dada.engine import RunResult
from dada.events import silent
from dada.fitting.execution import UNWATCHED, Watched, carry_out, problem_of
from dada.fitting.held_out import decide
from dada.fitting.lam import AUTO, LEAST_UPDATES, graph_every, lam_for, numbers
from dada.fitting.rows import Rows, agreed
from dada.fitting.settings import latency_of, plan_of

# Settings that `settings_` tells.
TOLD = ("loss", "beta", "mu", "lam", "graph", "n_neighbours", "tau", "n_updates", "graph_every")


@dataclass(frozen=True, eq=False)
class Learned:
    """What a fit found: predictors, the settings used, and the run."""

    predictors: BasePredictors
    settings: dict[str, Any]
    result: RunResult


def learn(params: dict[str, Any], rows: Rows, rng: np.random.Generator, watched: Watched = UNWATCHED) -> Learned:
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
        Observer of the fit, who hears of trials before it too, and the fit's checkpoint.
    """
    recipe, family, params, held_out = decide(params, rows, rng.spawn(1)[0], watched.observer)
    predictors, source = agreed(recipe, rows.people)
    used = numbers(params, rows, predictors.n * rows.n_blocks, family)
    used["lam"] = lam_of(used, rows, predictors, rng.spawn(1)[0]) if used["lam"] == AUTO else used["lam"]
    if watched.observer is not silent:
        watched.observer(rows.info(predictors))
    result = carry_out(used, rows, predictors, rng, watched)
    told = {"predictors_from": source, "held_out": held_out} | told_of(used, predictors, recipe)
    return Learned(predictors, told, result)


def told_of(used: dict[str, Any], predictors: BasePredictors, recipe: Recipe) -> dict[str, Any]:
    """What `settings_` tells of settings that are all decided."""
    told = {name: used[name] for name in TOLD if name != "graph_every"}
    told |= {"graph_every": graph_every(used), "latency": latency_of(used)}
    told |= {"n_predictors": predictors.n, "predictors": recipe}
    if not isinstance(used["graph"], str):
        told["graph"] = "given"
    return told


def lam_of(used: dict[str, Any], rows: Rows, predictors: BasePredictors, rng: np.random.Generator) -> float | None:
    """lam for the wanted number of neighbours, where a graph is learned from distances; None where lam is not used."""
    plan = plan_of(used, rows.people.n_users)
    if not plan.learn_graph or plan.graph_rule != "distance" or used["regularizer"] is not None:
        return None
    quick = replace(plan, n_updates=min(plan.n_updates, LEAST_UPDATES * rows.people.n_users))
    quick = replace(quick, max_bits=None, max_time_s=None, gap_tolerance=None)
    return lam_for(problem_of(used, rows, predictors), quick, used["n_neighbours"], used["delta"], rng, used["dtype"])
