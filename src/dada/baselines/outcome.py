"""What a method achieved on a task, in the same terms for every method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.plan import Status
from dada.data import Population
from dada.events import TracePoint


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one method on one task.

    Accuracies are fractions. Per-user means weigh every user alike; pooled accuracies weigh every row alike. Published
    tables mix the two, so both are always here.

    Attributes
    ----------
    name : str
        The method, as in tables and files: "dada-learned".
    train_accuracy, test_accuracy : arrays of shape (n_users,)
        Share of each user's rows that are right.
    train_accuracy_pooled, test_accuracy_pooled : float
        Share of all rows that are right.
    models : array
        One row per user, or a single row where all users share a model.
    trace : tuple of TracePoint
        How the run went; empty for methods that have no run. Of a method with one shared model the accuracies of the
        trace have one entry, the pooled one.
    graph : CollaborationGraph, optional
        The graph used or learned, for methods that have one.
    bits : float, optional
        What users sent each other. None where data leave the users, so that a count of messages would say nothing.
    status : Status
        Why the run ended.
    """

    name: str
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
    def scored(cls, name: str, train: Scores, test: Scores, models: Array, **rest: Any) -> Outcome:
        """The outcome of a method whose rows have been counted; the rest is as of the class."""
        return cls(name, train.per_user, test.per_user, train.pooled, test.pooled, models, **rest)

    @property
    def neighbours(self) -> float | None:
        """Neighbours per user on average, where there is a graph."""
        return None if self.graph is None else self.graph.mean_neighbours


@dataclass(frozen=True, eq=False)
class Scores:
    """How many of a population's rows a method gets right, given its decision values.

    Examples
    --------
    >>> people = Population.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], users=["ann", "ann", "bob"])
    >>> scores = Scores.of(people, np.array([-1.0, -0.5, 2.0]))
    >>> scores.per_user.tolist(), round(scores.pooled, 3)
    ([0.5, 1.0], 0.667)
    """

    per_user: Array
    pooled: float

    @classmethod
    def of(cls, population: Population, values: Array) -> Scores:
        """Compare the signs of decision values with the labels; zero predicts -1. NaN for a user without a row."""
        right = ((values > 0) == (population.y > 0)).astype(np.float64)
        sums = np.diff(np.concatenate(([0.0], np.cumsum(right)))[population.row_start])
        sizes = population.sizes
        per_user = np.divide(sums, sizes, out=np.full(sizes.size, np.nan), where=sizes > 0)
        return cls(per_user, float(right.mean()))
