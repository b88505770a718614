"""Base predictors on which a population agrees."""

from __future__ import annotations

import numpy as np

from dada.data import BasePredictors, FeatureSummary, Population, Recipe
from dada.data.predictors import takes_summary
from dada.data.stumps import FittedStumps
from dada.data.summaries import MOST, SIZE

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
