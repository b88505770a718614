"""Collaboration over graphs that know nothing of the users: the test of whether learning the graph pays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dada.baselines.outcome import Outcome, Scores
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.losses import Loss
from dada.core.regularizers import LogDegree, Regularizer
from dada.data import Population
from dada.engine import Plan, RunResult, decision_values, run
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


@dataclass(frozen=True)
class BoostSettings:
    """The numbers of one boosting method. A method ignores those that do not concern it.

    Parameters
    ----------
    plan : Plan
        Updates and steps. Whether the graph is learned is the method's to say.
    beta : float
        Bound on the l1 norm of every model.
    mu : float
        How much models are drawn to their neighbours'; only where there is a graph.
    regularizer : Regularizer
        g(w); only where the graph is learned.
    loss, graph_loss : str
        As in `Problem`.
    """

    plan: Plan
    beta: float = 10.0
    mu: float = 1.0
    regularizer: Regularizer = field(default_factory=LogDegree)
    loss: str | Loss = "adaboost"
    graph_loss: str = "mean"


def global_boost(
    task: Task, test: Population, settings: BoostSettings, rng: np.random.Generator, observer: Observer = silent
) -> Outcome:
    """One model for everybody, from all data in one place (Global-boost).

    Parameters
    ----------
    task : Task
        Training data and base predictors.
    test : Population
        The same users' test data.
    settings : BoostSettings
        Of its plan, `n_updates` counts the updates of the one model.
    rng : numpy.random.Generator
        Chance of the run.
    observer : callable
        Gets the events of the run.

    Returns
    -------
    Outcome

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> outcome = global_boost(task, users.test, BoostSettings(Plan(n_updates=50)), np.random.default_rng(0))
    >>> outcome.models.shape, outcome.bits is None
    ((1, 40), True)
    """
    _check_users(task, test)
    result = _run(task.pooled(), test.pooled(), replace(settings, mu=0.0), rng, observer)
    return _outcome("global-boost", task, test, result, graph=None, bits=None)


def local_boost(
    task: Task, test: Population, settings: BoostSettings, rng: np.random.Generator, observer: Observer = silent
) -> Outcome:
    """Everybody alone, from its own data only (Local-boost). Parameters as in :func:`global_boost`.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> outcome = local_boost(task, users.test, BoostSettings(Plan(n_updates=500)), np.random.default_rng(0))
    >>> outcome.models.shape, outcome.bits
    ((10, 40), 0.0)
    """
    _check_users(task, test)
    result = _run(task, test, replace(settings, mu=0.0), rng, observer)
    return _outcome("local-boost", task, test, result, graph=None, bits=0.0)


def dada_oracle(
    task: Task,
    test: Population,
    settings: BoostSettings,
    rng: np.random.Generator,
    observer: Observer = silent,
    *,
    graph: CollaborationGraph,
) -> Outcome:
    """Collaborative boosting over a graph that is given and stays (Dada-Oracle).

    Parameters as in :func:`global_boost`; `graph` says who learns from whom.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> everyone = CollaborationGraph.complete(10)
    >>> plan = Plan(n_updates=500)
    >>> outcome = dada_oracle(task, users.test, BoostSettings(plan), np.random.default_rng(0), graph=everyone)
    >>> outcome.neighbours
    9.0
    """
    _check_users(task, test)
    result = _run(task, test, settings, rng, observer, graph=graph)
    return _outcome("dada-oracle", task, test, result, graph=graph, bits=result.ledger.bits)


def dada_learned(
    task: Task, test: Population, settings: BoostSettings, rng: np.random.Generator, observer: Observer = silent
) -> Outcome:
    """Collaborative boosting over a graph learned along with the models (Dada-Learned).

    Parameters as in :func:`global_boost`.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> outcome = dada_learned(task, users.test, BoostSettings(Plan(n_updates=500)), np.random.default_rng(0))
    >>> outcome.graph is not None and outcome.bits > 0
    True
    """
    _check_users(task, test)
    result = _run(task, test, settings, rng, observer, learn_graph=True)
    return _outcome("dada-learned", task, test, result, graph=result.graph, bits=result.ledger.bits)


def _check_users(task: Task, test: Population) -> None:
    if not np.array_equal(task.train.user_ids, test.user_ids):
        raise ValueError(
            f"test must have the same users as the task, each with a row or more: "
            f"the task has {task.train.n_users} users, test has {test.n_users}"
        )


def _run(
    task: Task,
    test: Population,
    settings: BoostSettings,
    rng: np.random.Generator,
    observer: Observer,
    *,
    learn_graph: bool = False,
    graph: CollaborationGraph | None = None,
) -> RunResult:
    problem = task.problem(
        beta=settings.beta,
        mu1=settings.mu,
        regularizer=settings.regularizer,
        loss=settings.loss,
        graph_loss=settings.graph_loss,
    )
    plan = replace(settings.plan, learn_graph=learn_graph)
    samples: Any = dict(train=task.samples, test=task.samples_of(test))
    return run(problem, plan, rng, graph=graph, observer=observer, **samples)


def _outcome(
    name: str,
    task: Task,
    test: Population,
    result: RunResult,
    graph: CollaborationGraph | None,
    bits: float | None,
) -> Outcome:
    models = np.ascontiguousarray(np.broadcast_to(result.models, (task.train.n_users, result.models.shape[1])))
    train_scores = Scores.of(task.train, _values(task, task.train, models))
    test_scores = Scores.of(test, _values(task, test, models))
    return Outcome.scored(
        name,
        train_scores,
        test_scores,
        result.models,
        trace=result.trace,
        graph=graph,
        bits=bits,
        status=result.status,
    )


def _values(task: Task, population: Population, models: Array) -> Array:
    samples = task.samples_of(population)
    return decision_values(samples.predictions, samples.row_start, models)
