"""Results of a method on a task, in the same terms for every method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dada.core.accuracy import is_right, mean_per_user
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.plan import Status
from dada.data import Population
from dada.events import TracePoint


@dataclass(frozen=True, eq=False)
class MethodResult:
    """The result of one method on one task.

    Accuracies are fractions. Per-user accuracies weight users equally, pooled ones weight rows equally. Published
    tables mix the two, so both are recorded.

    Attributes
    ----------
    name : str
        The method, as in tables and files: "dada-learned".
    train_accuracy, test_accuracy : arrays of shape (n_users,)
        Fraction of each user's rows classified correctly.
    train_accuracy_pooled, test_accuracy_pooled : float
        Fraction of all rows classified correctly.
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
    def scored(cls, name: str, train: Scores, test: Scores, models: Array, **rest: Any) -> MethodResult:
        """The result of models with the given scores; `rest` are further attributes."""
        return cls(name, train.per_user, test.per_user, train.pooled, test.pooled, models, **rest)

    @property
    def neighbours(self) -> float | None:
        """Mean number of neighbours; None without a graph."""
        return None if self.graph is None else self.graph.mean_neighbours


@dataclass(frozen=True, eq=False)
class Scores:
    """Accuracy on a population, from decision values.

    Examples
    --------
    >>> import numpy as np
    >>> people = Population.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], users=["ann", "ann", "bob"])
    >>> scores = Scores.of(people, np.array([-1.0, -0.5, 2.0]))
    >>> scores.per_user.tolist(), round(scores.pooled, 3)
    ([0.5, 1.0], 0.667)
    """

    per_user: Array
    pooled: float

    @classmethod
    def of(cls, population: Population, values: Array) -> Scores:
        """Compare the signs of decision values with the labels; zero predicts -1. NaN for users without rows."""
        right = is_right(values, population.y)
        return cls(mean_per_user(right, population.row_start), float(right.mean()))
