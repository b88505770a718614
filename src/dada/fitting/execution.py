"""Run the engine with settings that are all decided."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.core.problem import Problem
from dada.data import BasePredictors
from dada.engine import RunResult, run
from dada.events import Observer, silent
from dada.fitting.rows import Rows
from dada.fitting.settings import graph_of, plan_of, regularizer_of, workers_of


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
    problem = problem_of(used, rows, predictors)
    plan = plan_of(used, n_users)
    if models is not None and plan.learn_graph:
        plan = replace(plan, local_updates=0, restart="local")
    shown: Any = dict(train=rows.samples(predictors), dtype=used["dtype"])
    # A graph is drawn from chance of its own: the run's schedule must not depend on whether there is one.
    given = graph_of(used["graph"], n_users, np.random.default_rng(n_users)) if used["mu"] > 0 else None
    is_symmetric = isinstance(used["graph"], str) and used["graph"] == "evidence-symmetric"
    if not (is_symmetric and plan.learn_graph):
        with workers_of(used) as workers:
            return run(problem, plan, rng, graph=given, models=models, workers=workers, **shown, **watched.options())
    first = run(problem, plan, rng, models=models, **shown, **watched.options())
    both = first.graph.symmetrised()
    # Weights that single precision cannot tell from nothing would only be refused.
    light = both.weights.max(initial=0.0) * 1e-6
    k, l, w = both.edges()
    both = type(both).from_edges(n_users, k[w > light], l[w > light], w[w > light])
    fixed = replace(plan, learn_graph=False)
    return run(problem, fixed, rng, graph=both, models=first.models, **shown, **watched.options(".symmetric"))


def problem_of(used: dict[str, Any], rows: Rows, predictors: BasePredictors) -> Problem:
    """The joint problem of the rows under settings that are all decided."""
    return rows.problem(
        predictors,
        used["loss"],
        beta=used["beta"],
        mu1=used["mu"],
        regularizer=regularizer_of(used),
        graph_loss=used["graph_loss"],
    )
