"""Rows of many users with their targets, and the margins that make one problem of each kind of target.

All kinds run on the same kernels, which know rows of margins and a loss of each margin:

- two classes: a row's margins are y h_j(x);
- C classes: a row of class y gives C - 1 rows, one for each wrong class c, whose margin is F_y - F_c. The weights of a
  model are C blocks of n, one block for the scores F_c of each class;
- numbers: margins are residuals F - y, with the targets as an offset.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, log_softmax

from dada.core.memory import bytes_of_run, check_memory
from dada.core.problem import Problem
from dada.data import BasePredictors, FeatureSummary, Population, Recipe
from dada.data.arrays import as_values
from dada.data.predictors.stumps import FittedStumps
from dada.data.predictors.union import takes_summary
from dada.data.summaries import MOST, SIZE
from dada.engine import Samples, decision_values
from dada.events import Event, Observer, RunInfo, TracePoint, TrialStarted

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


AVERAGE = -1
# Base predictions held at a time: a few megabytes, whatever the number of rows.
BLOCK_CELLS = 1 << 22


def positions_of(user_ids: NDArray[Any], users: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """Where the given users stand in `user_ids`, -1 for those who do not, and the list of those.

    >>> positions_of(np.array(["ann", "bob"]), ["bob", "zoe", "bob"])
    (array([ 1, -1,  1]), ['zoe'])
    """
    ids, row = np.unique(as_values(users, "users"), return_inverse=True)
    known = {user: k for k, user in enumerate(user_ids.tolist())}
    names = ids.tolist()
    where = np.array([known.get(name, AVERAGE) for name in names], dtype=np.int64)
    return where[row], [name for name in names if name not in known]


def average_model(models: NDArray[Any], confidence: NDArray[np.float64]) -> NDArray[Any]:
    """The mean of all models, each weighted by its user's confidence."""
    return (confidence @ models / confidence.sum()).astype(models.dtype)


def blockwise_decisions(
    X: Any, positions: NDArray[np.int64], predictors: BasePredictors, models: NDArray[Any], average: NDArray[Any] | None
) -> NDArray[np.float64]:
    """Decision value of each row of X under the model at its position, `average` where that is -1.

    A model of several blocks of weights, one for each class, gives a row of as many values.
    """
    n_blocks = models.shape[1] // predictors.n
    values = np.empty((len(positions), n_blocks))
    order = np.argsort(positions, kind="stable")
    size = max(1, BLOCK_CELLS // predictors.n)
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        present, first = np.unique(positions[rows], return_index=True)
        used = models[present]
        if present[0] == AVERAGE:
            used[0] = average
        block = X[rows].toarray() if hasattr(X, "toarray") else X[rows]
        predictions, row_start = predictors.predict(block), np.append(first, len(rows))
        for c in range(n_blocks):
            own = np.ascontiguousarray(used[:, c * predictors.n : (c + 1) * predictors.n])
            values[rows, c] = decision_values(predictions, row_start, own)
    return values[:, 0] if n_blocks == 1 else values


def decisions_of(rows: Rows, predictors: BasePredictors, models: NDArray[Any]) -> NDArray[np.float64]:
    """Decision values of rows under their users' models."""
    return blockwise_decisions(rows.people.X, rows.owners, predictors, models, None)


def also(first: Observer, second: Observer) -> Observer:
    """An observer that tells two others."""

    def observer(event: Event) -> None:
        first(event)
        second(event)

    return observer


def write_line(event: Event) -> None:
    """Write a line to the standard error stream at every trial of a setting and every point of the trace."""
    if isinstance(event, TrialStarted):
        sys.stderr.write(f"trying on held-out rows: {event.choice}\n")
    if isinstance(event, TracePoint):
        sys.stderr.write(
            f"{event.updates} updates: objective {event.objective:.6g}, gap {event.gap:.3g}, "
            f"training accuracy {np.mean(event.train_accuracy):.3f}, {event.edges} edges, {event.bits:.3g} bits\n"
        )


def of_users(rows: Rows, positions: NDArray[np.intp]) -> Rows:
    """The rows of the users at increasing positions."""
    mine = np.isin(rows.owners, positions)
    weights = None if rows.weights is None else rows.weights[mine]
    return replace(rows, people=rows.people.select(positions), weights=weights)


def both(old: Rows, new: Rows) -> Rows:
    """Old and new rows together, grouped by user, the older first. Where some have weights, the others weigh 1."""
    X, y = np.concatenate([old.people.X, new.people.X]), np.concatenate([old.people.y, new.people.y])
    owners = np.concatenate([part.people.user_ids[part.owners] for part in (old, new)])
    weights = None
    if old.weights is not None or new.weights is not None:
        each = [np.ones(part.people.n_rows) if part.weights is None else part.weights for part in (old, new)]
        weights = np.concatenate(each)
    return _grouped(old, X, y, owners, weights)


def aged(rows: Rows, older: NDArray[np.bool_], half_life: float | None, rng: np.random.Generator) -> Rows | None:
    """The rows left when some users have come once more: each of theirs stays with chance 0.5 ** (1 / half_life)."""
    if half_life is None:
        return rows
    kept = ~older[rows.owners] | (rng.random(rows.people.n_rows) < 0.5 ** (1.0 / half_life))
    if not kept.any():
        return None
    owners = rows.people.user_ids[rows.owners]
    weights = None if rows.weights is None else rows.weights[kept]
    return _grouped(rows, rows.people.X[kept], rows.people.y[kept], owners[kept], weights)


def _grouped(
    like: Rows, X: NDArray[Any], y: NDArray[Any], owners: NDArray[Any], weights: NDArray[np.float64] | None
) -> Rows:
    ids, codes = np.unique(owners, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    row_start = np.concatenate(([0], np.cumsum(np.bincount(codes)))).astype(np.int64)
    people = replace(like.people, X=X[order], y=y[order], row_start=row_start, user_ids=ids)
    return replace(like, people=people, weights=None if weights is None else weights[order])


# What predictors were fitted to.
FROM_ROWS = "rows"
FROM_SUMMARIES = "merged summaries of users"
FROM_CUT_SUMMARIES = f"merged summaries of users, of features with more than {MOST} values cut to {SIZE}"


def agreed(recipe: Recipe, people: Population) -> tuple[BasePredictors, str]:
    """Base predictors, and what they were fitted to: merged summaries of users, or rows where these do not do.

    Summaries, and sums of users' marks, are all that users of a network would have to exchange for the same result.

    Examples
    --------
    >>> from dada.data import Stumps
    >>> people = Population.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], ["ann", "ann", "bob"])
    >>> predictors, source = agreed(Stumps(n=2), people)
    >>> predictors.threshold.tolist(), source
    ([0.5, 1.5], 'merged summaries of users')
    """
    if not takes_summary(recipe):
        return recipe.fit(people.X), FROM_ROWS

    def marks(stumps: FittedStumps) -> np.ndarray:
        return stumps.marks(people.X, np.random.default_rng(people.n_rows))

    summary = FeatureSummary.of_users(people.X, people.row_start)
    return recipe.fit_summary(summary, marks), FROM_SUMMARIES if summary.is_exact else FROM_CUT_SUMMARIES
