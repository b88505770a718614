"""Results of a method on a task, in the same terms for every method."""

from __future__ import annotations

from collections.abc import Iterable
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
