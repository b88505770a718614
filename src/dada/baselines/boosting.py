"""Boosting of base predictors: one model for all, each user alone, or collaboration over a given or learned graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dada import task
from dada.baselines.outcome import MethodResult, Scores
from dada.core.graph import CollaborationGraph
from dada.core.losses import Loss
from dada.core.regularizers import LogDegree, Regularizer
from dada.data import BasePredictors, Population
from dada.engine import Plan, decision_values, run
from dada.events import Observer, silent


@dataclass(frozen=True)
class BoostSettings:
    """Settings of a boosting method. Each method ignores those it does not need.

    Parameters
    ----------
    plan : Plan
        Updates and steps. The method decides whether the graph is learned.
    beta : float
        Bound on the l1 norm of every model.
    mu : float
        Strength of the coupling between neighbours.
    regularizer : Regularizer
        g(w), for learned graphs.
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
    train: Population,
    predictors: BasePredictors,
    test: Population,
    settings: BoostSettings,
    rng: np.random.Generator,
    observer: Observer = silent,
) -> MethodResult:
    """One model for all users, trained on all rows in one place (Global-boost).

    Parameters
    ----------
    train : Population
        Training data.
    predictors : BasePredictors
        Base predictors fitted to the training data.
    test : Population
        Test data of the same users.
    settings : BoostSettings
        `plan.n_updates` counts the updates of the single model.
    rng : numpy.random.Generator
        Source of randomness.
    observer : callable
        Receives the events of the run.

    Returns
    -------
    MethodResult

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> predictors = Stumps(n=40).fit(users.train.X)
    >>> rng = np.random.default_rng(0)
    >>> result = global_boost(users.train, predictors, users.test, BoostSettings(Plan(n_updates=50)), rng)
    >>> result.models.shape, result.bits is None
    ((1, 40), True)
    """
    return _boost("global-boost", train, predictors, test, replace(settings, mu=0.0), rng, observer, pooled=True)


def local_boost(
    train: Population,
    predictors: BasePredictors,
    test: Population,
    settings: BoostSettings,
    rng: np.random.Generator,
    observer: Observer = silent,
) -> MethodResult:
    """A model for each user, trained on its own rows only (Local-boost). Parameters as in :func:`global_boost`.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> predictors = Stumps(n=40).fit(users.train.X)
    >>> rng = np.random.default_rng(0)
    >>> result = local_boost(users.train, predictors, users.test, BoostSettings(Plan(n_updates=500)), rng)
    >>> result.models.shape, result.bits
    ((10, 40), 0.0)
    """
    return _boost("local-boost", train, predictors, test, replace(settings, mu=0.0), rng, observer)


def dada_learned(
    train: Population,
    predictors: BasePredictors,
    test: Population,
    settings: BoostSettings,
    rng: np.random.Generator,
    observer: Observer = silent,
) -> MethodResult:
    """Collaborative boosting; models and graph are learned together (Dada-Learned). Parameters: :func:`global_boost`.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> predictors = Stumps(n=40).fit(users.train.X)
    >>> rng = np.random.default_rng(0)
    >>> result = dada_learned(users.train, predictors, users.test, BoostSettings(Plan(n_updates=500)), rng)
    >>> result.graph is not None and result.bits > 0
    True
    """
    return _boost("dada-learned", train, predictors, test, settings, rng, observer, learn_graph=True)


def dada_oracle(
    train: Population,
    predictors: BasePredictors,
    test: Population,
    settings: BoostSettings,
    rng: np.random.Generator,
    observer: Observer = silent,
    *,
    graph: CollaborationGraph,
) -> MethodResult:
    """Collaborative boosting over a given graph, which stays fixed (Dada-Oracle).

    Other parameters as in :func:`global_boost`.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> predictors = Stumps(n=40).fit(users.train.X)
    >>> settings, graph = BoostSettings(Plan(n_updates=500)), CollaborationGraph.complete(10)
    >>> dada_oracle(users.train, predictors, users.test, settings, np.random.default_rng(0), graph=graph).neighbours
    9.0
    """
    return _boost("dada-oracle", train, predictors, test, settings, rng, observer, graph=graph)


def random_graph(n_users: int, neighbours: float, rng: np.random.Generator) -> CollaborationGraph:
    """A graph of uniformly drawn edges with equal weights and the given mean number of neighbours.

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


def _boost(
    name: str,
    train: Population,
    predictors: BasePredictors,
    test: Population,
    settings: BoostSettings,
    rng: np.random.Generator,
    observer: Observer,
    *,
    pooled: bool = False,
    learn_graph: bool = False,
    graph: CollaborationGraph | None = None,
) -> MethodResult:
    if not np.array_equal(train.user_ids, test.user_ids):
        raise ValueError(
            f"test must have the same users as train, each with at least one row: "
            f"train has {train.n_users} users, test has {test.n_users}"
        )
    trained, tested = (train.pooled(), test.pooled()) if pooled else (train, test)
    predictions = [predictors.predict(people.X) for people in (train, test)]
    problem = task.problem(
        trained,
        predictors,
        predictions=predictions[0],
        beta=settings.beta,
        mu1=settings.mu,
        regularizer=settings.regularizer,
        loss=settings.loss,
        graph_loss=settings.graph_loss,
    )
    result = run(
        problem,
        replace(settings.plan, learn_graph=learn_graph),
        rng,
        graph=graph,
        observer=observer,
        train=task.samples(trained, predictors, predictions[0]),
        test=task.samples(tested, predictors, predictions[1]),
    )
    models = np.ascontiguousarray(np.broadcast_to(result.models, (train.n_users, result.models.shape[1])))
    scores = [
        Scores.of(people, decision_values(known, people.row_start, models))
        for people, known in zip((train, test), predictions, strict=True)
    ]
    return MethodResult.scored(
        name,
        scores[0],
        scores[1],
        result.models,
        trace=result.trace,
        graph=result.graph if learn_graph else graph,
        bits=None if pooled else result.ledger.bits,
        status=result.status,
    )
