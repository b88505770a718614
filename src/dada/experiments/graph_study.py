"""How fast the graph is learned from models that stand still, by the number of peers asked at a wake-up."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from dada.baselines.graph_learner import GraphLearner
from dada.core.bits import cached_graph_bits
from dada.core.compiled import Array
from dada.core.plan import GRAPH_STREAM, Schedule
from dada.core.regularizers import LogDegree
from dada.engine import Ledger, Plan, run
from dada.task import Task

GRAPH_STUDY = "graph-study"
POINTS = 150


def graph_study(task: Task, settings: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Learn a graph from local models and note the objective on the way.

    Parameters
    ----------
    task : Task
        Data and base predictors.
    settings : dict
        `beta`, `mu`, `lam`, `delta`; `updates` per user of the local models; `kappa`, `graph_step` and `wakeups` of the
        graph. The local models do not depend on the last three.
    rng : numpy.random.Generator
        Chance of the local models and of the wake-ups.

    Returns
    -------
    dict
        Lists of wake-ups, of h(w), and of bits sent: as the paper counts them, and where users keep models they were
        sent.
    """
    n_users, kappa, wakeups = task.train.n_users, settings["kappa"], settings["wakeups"]
    regularizer = LogDegree(lam=settings["lam"], delta=settings["delta"])
    problem = task.problem(beta=settings["beta"], mu1=settings["mu"], regularizer=regularizer)
    alone = Plan(n_updates=settings["updates"] * n_users, learn_graph=False)
    models = run(problem, alone, rng).models
    schedule = Schedule.draw(rng, n_users, kappa)
    ledger = Ledger(problem.n_predictors)
    learner = GraphLearner(
        models,
        schedule,
        mu=settings["mu"],
        regularizer=regularizer,
        ledger=ledger,
        step=settings["graph_step"],
    )
    losses = problem.graph_losses(models)
    marks = _marks(wakeups)
    objective, bits = [problem.graph_objective(models, learner.graph)], [0.0]
    for before, upto in pairwise(marks):
        learner.wake(int(upto - before), losses)
        objective.append(problem.graph_objective(models, learner.graph))
        bits.append(ledger.bits)
    awake, batches = schedule.users(GRAPH_STREAM, 0, wakeups), schedule.batches(0, wakeups)
    cached = np.cumsum(cached_graph_bits(awake, batches, np.count_nonzero(models, axis=1), problem.n_predictors))
    return {
        "wakeups": marks.tolist(),
        "objective": objective,
        "bits": bits,
        "cached_bits": [0.0, *cached[marks[1:] - 1].tolist()],
    }


def _marks(wakeups: int) -> Array:
    """Wake-ups at which the objective is noted: zero, then ever wider apart."""
    return np.unique(np.concatenate(([0], np.geomspace(1, wakeups, POINTS).astype(int))))
