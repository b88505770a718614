"""A population seen through base predictors: what every learner, ours or a baseline, starts from.

One set of kernels serves all targets. It knows rows of margins, and a loss of each margin:

- two classes: the margins of a row are y h_j(x);
- C classes: a row of class y becomes C - 1 rows, one for each wrong class c, with margin F_y - F_c. A model has C
  blocks of n weights, one block for the score F_c of each class;
- numbers: margins are residuals F - y, with minus the target as the offset.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dada.core.model_steps import UserRows, rows_per_sample
from dada.core.model_steps import n_blocks as blocks_of_classes
from dada.core.problem import Problem, margins_of_labels
from dada.data import BasePredictors, FeatureSummary, Population, Recipe
from dada.data.predictors.families import MOST, SIZE, parts_of, takes_summary
from dada.data.predictors.thresholds import FittedStumps, FittedTrees
from dada.engine import Samples
from dada.events import RunInfo

# What base predictors were fitted to.
FROM_ROWS = "rows"
FROM_SUMMARIES = "merged summaries of users"
FROM_CUT_SUMMARIES = f"merged summaries of users, of features with more than {MOST} values cut to {SIZE}"


def shared_predictors(recipe: Recipe, population: Population) -> tuple[BasePredictors, str]:
    """Fit base predictors to merged summaries of users, or to rows if the recipe needs rows.

    Summaries, and sums of users' fingerprints of stumps, are all that users of a network exchange for the same result.

    Returns
    -------
    The base predictors, and what they were fitted to.

    Examples
    --------
    >>> from dada.data import Stumps
    >>> people = Population.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], ["ann", "ann", "bob"])
    >>> predictors, source = shared_predictors(Stumps(n=2), people)
    >>> predictors.threshold.tolist(), source
    ([0.5, 1.5], 'merged summaries of users')
    """
    if not takes_summary(recipe):
        return recipe.fit(population.X), FROM_ROWS

    def marks(stumps: FittedStumps) -> np.ndarray:
        return stumps.marks(population.X, np.random.default_rng(population.n_rows))

    summary = FeatureSummary.of_users(population.X, population.row_start)
    return recipe.fit_summary(summary, marks), FROM_SUMMARIES if summary.is_exact else FROM_CUT_SUMMARIES


def training_predictions(
    population: Population, predictors: BasePredictors, positions: np.ndarray | None = None
) -> np.ndarray:
    """Base predictions of training rows: 0 where a tree meets rows of the user who grew it.

    Such a tree has memorised labels of these rows, so they must not give it a weight.

    Parameters
    ----------
    population : Population
    predictors : BasePredictors
    positions : array of shape (n_users,), optional
        Positions of the users at the fit of the predictors, -1 for others; by default they are the same users.

    Examples
    --------
    >>> from dada.data import Stumps
    >>> people = Population.from_arrays([[0.0], [1.0]], [0, 1], users=["ann", "bob"])
    >>> training_predictions(people, Stumps(n=1).fit(people.X)).tolist()
    [[1], [-1]]
    """
    h = predictors.predict(population.X)
    growers, start = population.owners if positions is None else positions[population.owners], 0
    for part in parts_of(predictors):
        if isinstance(part, FittedTrees):
            h[:, start : start + part.n][(part.owner == growers[:, None]) & (part.owner >= 0)] = 0
        start += part.n
    return h


def problem(
    population: Population, predictors: BasePredictors, *, predictions: np.ndarray | None = None, **settings: Any
) -> Problem:
    """The joint problem of a population.

    Parameters
    ----------
    population : Population
    predictors : BasePredictors
    predictions : array of shape (rows, n), optional
        Of `training_predictions`, if they are known already.
    **settings
        Of `Problem`.

    Examples
    --------
    >>> from dada.data import Stumps
    >>> users = Population.from_arrays([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], users=[1, 1, 2, 2])
    >>> problem(users, Stumps(n=3).fit(users.X), beta=1.0, mu1=0.1).n_users
    2
    """
    h = training_predictions(population, predictors) if predictions is None else predictions
    rows = user_rows(h, population.y, population.n_classes, population.weights)
    row_start = population.row_start * rows_per_sample(population.n_classes)
    coupling = np.tile(np.asarray(predictors.coupling, np.float64), n_blocks(population))
    return Problem(row_start=row_start, coupling=coupling, **rows._asdict(), **settings)


def user_rows(predictions: np.ndarray, y: np.ndarray, n_classes: int, weights: np.ndarray | None = None) -> UserRows:
    """Base predictions and targets as rows of margins.

    Parameters
    ----------
    predictions : array of shape (samples, n)
    y : array of shape (samples,)
        -1 and 1 for two classes, numbers from 0 for more, standardised targets for numbers.
    n_classes : int
        0 for numbers.
    weights : array of shape (samples,), optional

    Examples
    --------
    >>> user_rows(np.array([[1, -1]], np.int8), np.array([-1]), n_classes=2).A.tolist()
    [[-1, 1]]
    >>> user_rows(np.array([[0.5]]), np.array([2.0]), n_classes=0).offset.tolist()
    [-2.0]
    """
    if n_classes == 0:
        return UserRows(predictions.astype(np.float32), -y, weights)
    if n_classes == 2:
        return UserRows(margins_of_labels(predictions, y), None, weights)
    each = None if weights is None else np.repeat(weights, rows_per_sample(n_classes))
    return UserRows(class_margins(predictions, y, n_classes), None, each)


def samples(population: Population, predictors: BasePredictors, predictions: np.ndarray | None = None) -> Samples:
    """The rows of two classes as base predictions, for the accuracy of models on them.

    Examples
    --------
    >>> from dada.data import Stumps
    >>> users = Population.from_arrays([[0.0], [1.0]], [0, 1], users=["ann", "bob"])
    >>> samples(users, Stumps(n=1).fit(users.X)).predictions.tolist()
    [[1], [-1]]
    """
    h = predictors.predict(population.X) if predictions is None else predictions
    return Samples(h, population.y, population.row_start)


def info(population: Population, predictors: BasePredictors, title: str = "", **known: Any) -> RunInfo:
    """Names of the users and base predictors of a run, for its observers, and what else is known."""
    each = [predictors.describe(j, population.feature_names) for j in range(predictors.n)]
    of_class = [f" (class {c})" for c in range(population.n_classes)] if n_blocks(population) > 1 else [""]
    names = tuple(text + which for which in of_class for text in each)
    return RunInfo(title=title, users=tuple(map(str, population.user_ids.tolist())), predictors=names, **known)


def n_blocks(population: Any) -> int:
    """Blocks of n weights in the models of a population."""
    return blocks_of_classes(int(population.n_classes))


def class_margins(predictions: np.ndarray, y: np.ndarray, n_classes: int) -> np.ndarray:
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
