"""Rows of many users with their targets, and the margins that make one problem of each kind of target.

All kinds run on the same kernels, which know rows of margins and a loss of each margin:

- two classes: a row's margins are y h_j(x);
- C classes: a row of class y gives C - 1 rows, one for each wrong class c, whose margin is F_y - F_c. The weights of a
  model are C blocks of n, one block for the scores F_c of each class;
- numbers: margins are residuals F - y, with the targets as an offset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, log_softmax

from dada.core.memory import bytes_of_run, check_memory
from dada.core.problem import Problem
from dada.data import BasePredictors, Population
from dada.engine import Samples
from dada.events import RunInfo

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows grouped by user.

    Attributes
    ----------
    people : Population
        Its `y` holds -1 and +1, class numbers, or standardised targets.
    n_classes : int
        2 or more; 0 where targets are numbers.
    weights : array of shape (rows,), optional
        How much each row counts within its user's loss, above 0; all alike where not given.
    """

    people: Population
    n_classes: int
    weights: NDArray[np.float64] | None = None

    @property
    def n_blocks(self) -> int:
        """Blocks of n weights in a model."""
        return self.n_classes if self.n_classes > 2 else 1

    @property
    def owners(self) -> NDArray[np.intp]:
        """The position of each row's user."""
        return np.repeat(np.arange(self.people.n_users), self.people.sizes)

    def take(self, chosen: NDArray[np.intp]) -> Rows:
        """Some of the rows, with all users, of whom some may then have none."""
        mask = np.zeros(self.people.n_rows, bool)
        mask[chosen] = True
        before = np.concatenate(([0], np.cumsum(mask)))
        people = replace(
            self.people, X=self.people.X[mask], y=self.people.y[mask], row_start=before[self.people.row_start]
        )
        return replace(self, people=people, weights=None if self.weights is None else self.weights[mask])

    def check_memory(self, predictors: BasePredictors, neighbours: float) -> None:
        """Refuse a run that would not fit into memory, before its tables are made."""
        blocks, cell_bytes = self.n_blocks, 1 if predictors.dtype == np.int8 and self.n_classes == 2 else 4
        n_rows = self.people.n_rows * max(1, self.n_classes - 1)
        sizes = (self.people.n_users, n_rows, predictors.n * blocks)
        # Margins, and the predictions they are made of, which then serve to tell accuracies.
        needed = bytes_of_run(
            *sizes,
            neighbours=max(20.0, neighbours),
            cell_bytes=cell_bytes,
            copies=2,
            weighted=self.weights is not None,
        )
        what = f"a fit of {sizes[0]:,} users with {n_rows:,} rows and {sizes[2]:,} base predictors"
        check_memory(needed, what, "take fewer base predictors (predictors=), a sample of users, or a larger machine")

    def problem(self, predictors: BasePredictors, loss: Any, **settings: Any) -> Problem:
        """The joint problem of these rows seen through base predictors."""
        predictions, y = predictors.predict(self.people.X), self.people.y
        row_start, offset = self.people.row_start, None
        weights = self.weights
        if self.n_classes > 2:
            A = class_margins(predictions, y, self.n_classes)
            row_start = row_start * (self.n_classes - 1)
            weights = None if weights is None else np.repeat(weights, self.n_classes - 1)
        elif self.n_classes == 2:
            A = predictions * y[:, None].astype(predictions.dtype)
        else:
            A, offset = predictions.astype(np.float32), -y
        coupling = np.tile(np.asarray(predictors.coupling, np.float64), self.n_blocks)
        return Problem(A, row_start, loss=loss, coupling=coupling, offset=offset, weights=weights, **settings)

    def samples(self, predictors: BasePredictors) -> Samples | None:
        """The rows as a trace judges them; only two classes have an accuracy of signs."""
        if self.n_classes != 2:
            return None
        return Samples(predictors.predict(self.people.X), self.people.y, self.people.row_start)

    def info(self, predictors: BasePredictors) -> RunInfo:
        """Who takes part in a fit, for those who watch it."""
        people = self.people
        each = [predictors.describe(j, people.feature_names) for j in range(predictors.n)]
        of_class = [f" (class {c})" for c in range(self.n_classes)] if self.n_blocks > 1 else [""]
        return RunInfo(
            title=f"{people.n_users} users, {people.n_rows} rows",
            users=tuple(map(str, people.user_ids.tolist())),
            predictors=tuple(text + which for which in of_class for text in each),
        )

    def right(self, values: Floats) -> Floats:
        """How good decision values are, row by row: 1 or 0 for a class, minus the squared error for a number."""
        y = self.people.y
        if self.n_classes > 2:
            return np.asarray(values.argmax(axis=1) == y, np.float64)
        if self.n_classes == 2:
            return np.asarray((values > 0) == (y > 0), np.float64)
        return np.asarray(-((values - y) ** 2), np.float64)

    def log_score(self, values: Floats) -> Floats:
        """The logarithm of the probability that decision values give to each row's class; of numbers as `right`.

        It tells by how much a row was right or wrong, so that few rows say more than by counting those that were right.
        """
        y = self.people.y
        if self.n_classes > 2:
            return np.asarray(log_softmax(values, axis=1)[np.arange(len(y)), y], np.float64)
        if self.n_classes == 2:
            return np.asarray(log_expit(values * y), np.float64)
        return self.right(values)

    def per_user(self, quality: Floats) -> NDArray[np.float64]:
        """Sum of a quality over each user's rows."""
        sums = np.bincount(self.owners, weights=quality, minlength=self.people.n_users)
        return sums.astype(np.float64)


def class_margins(predictions: NDArray[Any], y: NDArray[Any], n_classes: int) -> NDArray[np.float32]:
    """A[(i, c), (c', j)] = h_j(x_i) (1[c' = y_i] - 1[c' = c]) for every wrong class c of every row i.

    >>> class_margins(np.array([[2.0]]), np.array([1]), 3)
    array([[-2.,  2.,  0.],
           [ 0.,  2., -2.]], dtype=float32)
    """
    m, n = predictions.shape
    A = np.zeros((m, n_classes - 1, n_classes, n), np.float32)
    every = np.arange(n_classes)
    for c in every:
        rows = np.flatnonzero(y == c)
        for place, wrong in enumerate(every[every != c]):
            A[rows, place, c] = predictions[rows]
            A[rows, place, wrong] = -predictions[rows]
    return A.reshape(m * (n_classes - 1), n_classes * n)
