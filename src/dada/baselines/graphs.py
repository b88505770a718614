"""Collaboration over graphs that know nothing of the users: the test of whether learning the graph pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dada.baselines.boosting import BoostSettings, dada_oracle
from dada.baselines.outcome import Outcome
from dada.core.graph import CollaborationGraph
from dada.data import Population
from dada.events import Observer, silent
from dada.task import Task


def dada_uniform(
    task: Task, test: Population, settings: BoostSettings, rng: np.random.Generator, observer: Observer = silent
) -> Outcome:
    """Collaborative boosting in which everybody is drawn to everybody alike (the complete graph, equal weights).

    Parameters as in :func:`dada.baselines.boosting.global_boost`.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> from dada.engine import Plan
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> dada_uniform(task, users.test, BoostSettings(Plan(n_updates=500)), np.random.default_rng(0)).neighbours
    9.0
    """
    everyone = CollaborationGraph.complete(task.train.n_users)
    return replace(dada_oracle(task, test, settings, rng, observer, graph=everyone), name="dada-uniform")


def dada_random(
    task: Task,
    test: Population,
    settings: BoostSettings,
    rng: np.random.Generator,
    observer: Observer = silent,
    *,
    neighbours: float,
) -> Outcome:
    """Collaborative boosting over a random graph with a given number of neighbours per user on average.

    Other parameters as in :func:`dada.baselines.boosting.global_boost`. Give it a learned graph's `mean_neighbours`
    to see what that graph knows beyond its density.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> from dada.engine import Plan
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> settings = BoostSettings(Plan(n_updates=500))
    >>> dada_random(task, users.test, settings, np.random.default_rng(0), neighbours=3).neighbours
    3.0
    """
    graph = random_graph(task.train.n_users, neighbours, rng)
    return replace(dada_oracle(task, test, settings, rng, observer, graph=graph), name="dada-random")


def random_graph(n_users: int, neighbours: float, rng: np.random.Generator) -> CollaborationGraph:
    """Edges drawn uniformly among all pairs, so many that a user has `neighbours` of them on average; equal weights.

    Examples
    --------
    >>> random_graph(20, 4.0, np.random.default_rng(0)).mean_neighbours
    4.0
    """
    if not 0 <= neighbours <= n_users - 1:
        raise ValueError(f"neighbours must be in 0..{n_users - 1} (n_users - 1), got {neighbours}")
    k, l = np.triu_indices(n_users, 1)
    chosen = rng.choice(k.size, round(n_users * neighbours / 2), replace=False)
    return CollaborationGraph.from_edges(n_users, k[chosen], l[chosen], np.ones(chosen.size))
