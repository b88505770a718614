"""Boosting of base predictors: one model for all, each user alone, or collaboration over a given or learned graph.

Every method, here and elsewhere, reports a `MethodResult`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dada import task
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree, Regularizer
from dada.core.losses import Loss, is_right, mean_per_user
from dada.core.plan import Status
from dada.data import BasePredictors, Population
from dada.engine import Plan, decision_values, run
from dada.events import Observer, TracePoint, silent


@dataclass(frozen=True, eq=False)
class MethodResult:
    """The result of one method on one task.

    Accuracies are fractions of each user's rows, or, pooled, of all rows. Published tables mix the two, so both are
    recorded.

    Attributes
    ----------
    models : array
        One row per user, or a single row if all users share a model.
    trace : tuple of TracePoint
        Progress of the run; empty for methods without iterations. With one shared model the accuracies of a point have
        a single entry, the pooled one.
    graph : CollaborationGraph, optional
        The graph used or learned.
    bits : float, optional
        Bits sent between users; None if the method collects the rows in one place.
    status : Status
        Why the run ended.
    """

    train_accuracy: Array
    test_accuracy: Array
    train_accuracy_pooled: float
    test_accuracy_pooled: float
    models: Array
    trace: tuple[TracePoint, ...] = ()
    graph: CollaborationGraph | None = None
    bits: float | None = None
    status: Status = Status.FINISHED

    @classmethod
    def of(
        cls, train: Population, test: Population, values: Iterable[Array], models: Array, **rest: Any
    ) -> MethodResult:
        """The result of models with these decision values on both populations; `rest` are other attributes."""
        (train_accuracy, train_pooled), (test_accuracy, test_pooled) = map(accuracies, (train, test), values)
        return cls(train_accuracy, test_accuracy, train_pooled, test_pooled, models, **rest)

    @property
    def neighbours(self) -> float | None:
        """Mean number of neighbours; None without a graph."""
        return None if self.graph is None else self.graph.mean_neighbours


def accuracies(population: Population, values: Array) -> tuple[Array, float]:
    """Accuracy of each user, NaN without rows, and of all rows; a decision value of zero predicts -1.

    Examples
    --------
    >>> import numpy as np
    >>> people = Population.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], users=["ann", "ann", "bob"])
    >>> per_user, pooled = accuracies(people, np.array([-1.0, -0.5, 2.0]))
    >>> per_user.tolist(), round(pooled, 3)
    ([0.5, 1.0], 0.667)
    """
    right = is_right(values, population.y)
    return mean_per_user(right, population.row_start), float(right.mean())


GRAPHS = ("learned", "none", "pooled")


@dataclass(frozen=True)
class BoostSettings:
    """Settings of boosting, as in `Problem`; `mu` is its `mu1`. The `learn_graph` of the plan has no effect."""

    plan: Plan
    beta: float = 10.0
    mu: float = 1.0
    regularizer: Regularizer = field(default_factory=LogDegree)
    loss: str | Loss = "adaboost"
    graph_loss: str = "mean"


def boost(
    train: Population,
    predictors: BasePredictors,
    test: Population,
    settings: BoostSettings,
    rng: np.random.Generator,
    observer: Observer = silent,
    *,
    graph: CollaborationGraph | str,
) -> MethodResult:
    """Boosting of base predictors.

    Parameters
    ----------
    train, test : Population
        Training and test data of the same users.
    predictors : BasePredictors
        Base predictors fitted to the training data.
    settings : BoostSettings
        `plan.n_updates` counts the updates of all models.
    rng : numpy.random.Generator
        Source of randomness.
    observer : callable
        Receives the events of the run.
    graph : CollaborationGraph or {"learned", "none", "pooled"}
        Collaboration over a given graph, which stays fixed (Dada-Oracle), or over one that is learned along with the
        models (Dada-Learned); a model for each user, trained on its own rows only (Local-boost); or one model, trained
        on all rows in one place (Global-boost).

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> data = users.train, Stumps(n=40).fit(users.train.X), users.test
    >>> settings, rng = BoostSettings(Plan(n_updates=500)), np.random.default_rng(0)
    >>> boost(*data, settings, rng, graph=CollaborationGraph.complete(10)).neighbours
    9.0
    >>> boost(*data, settings, rng, graph="learned").bits > 0
    True
    >>> alone, common = (boost(*data, settings, rng, graph=graph) for graph in ("none", "pooled"))
    >>> alone.models.shape, alone.bits, common.models.shape, common.bits
    ((10, 40), 0.0, (1, 40), None)
    """
    given = None if isinstance(graph, str) else graph
    if given is None and graph not in GRAPHS:
        raise ValueError(f"graph must be a CollaborationGraph or one of {', '.join(GRAPHS)}, got {graph!r}")
    pooled, learn_graph = graph == "pooled", graph == "learned"
    if not np.array_equal(train.user_ids, test.user_ids):
        raise ValueError(
            f"test must have the same users as train, each with at least one row: "
            f"train has {train.n_users} users, test has {test.n_users}"
        )
    trained, tested = (train.pooled(), test.pooled()) if pooled else (train, test)
    predictions = [predictors.predict(people.X) for people in (train, test)]
    options = {name: getattr(settings, name) for name in ("beta", "regularizer", "loss", "graph_loss")}
    mu1 = settings.mu if given is not None or learn_graph else 0.0
    problem = task.problem(trained, predictors, predictions=predictions[0], mu1=mu1, **options)
    result = run(
        problem,
        replace(settings.plan, learn_graph=learn_graph),
        rng,
        graph=given,
        observer=observer,
        train=task.samples(trained, predictors, predictions[0]),
        test=task.samples(tested, predictors, predictions[1]),
    )
    models = np.ascontiguousarray(np.broadcast_to(result.models, (train.n_users, result.models.shape[1])))
    starts = (train.row_start, test.row_start)
    return MethodResult.of(
        train,
        test,
        [decision_values(known, start, models) for known, start in zip(predictions, starts, strict=True)],
        result.models,
        trace=result.trace,
        graph=result.graph if learn_graph else given,
        bits=None if pooled else result.ledger.bits,
        status=result.status,
    )


def random_graph(n_users: int, neighbours: float, rng: np.random.Generator) -> CollaborationGraph:
    """A graph of uniformly drawn edges with equal weights and the given mean number of neighbours."""
    if not 0 <= neighbours <= n_users - 1:
        raise ValueError(f"neighbours must be in 0..{n_users - 1} (n_users - 1), got {neighbours}")
    k, l = np.triu_indices(n_users, 1)
    chosen = rng.choice(k.size, round(n_users * neighbours / 2), replace=False)
    return CollaborationGraph.from_edges(n_users, k[chosen], l[chosen], np.ones(chosen.size))
