"""Scores of users' models on test rows, for classes and for numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.core.losses import mean_per_user
from dada.data import BasePredictors, Population
from dada.fitting.held_out import HeldOutScores
from dada.fitting.models import decisions


class Exam:
    """Test rows of some users.

    Parameters
    ----------
    test : Population
        Targets as models learn them: numbers are standardised.
    predictors : BasePredictors

    Examples
    --------
    >>> from dada.data import Stumps
    >>> people = Population.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], ["ann", "ann", "bob"])
    >>> exam = Exam(people, Stumps(n=1).fit([[0.0], [2.0]]))
    >>> models = np.array([[-1.0], [1.0]])
    >>> exam.per_user(models).tolist(), exam.score(models), exam.measure
    ([0.5, 0.0], 0.25, 'accuracy')
    """

    def __init__(self, test: Population, predictors: BasePredictors) -> None:
        self._test, self._predictions = test, predictors.predict(test.X)

    @property
    def measure(self) -> str:
        """What scores are: the accuracy, or the share of variance explained."""
        return "accuracy" if self._test.n_classes else "R2"

    def per_user(self, models: NDArray[Any]) -> NDArray[np.float32]:
        """Score of each user's model: the share of rows that are right, or of the variance explained.

        The variance of numbers is that of all users together. NaN for a user without rows.
        """
        test = self._test
        right = HeldOutScores.of(test, decisions(self._predictions, test.row_start, models)).right
        means = mean_per_user(right, test.row_start)
        return (means if test.n_classes else 1.0 + means / test.y.var()).astype(np.float32)

    def score(self, models: NDArray[Any], users: NDArray[np.bool_] | None = None) -> float:
        """Mean accuracy of some users, or the variance of all their rows that is explained; of all users by default."""
        each, sizes = self.per_user(models), self._test.sizes
        counted = sizes > 0 if users is None else users & (sizes > 0)
        if self._test.n_classes:
            return float(each[counted].mean())
        return float(np.average(each[counted], weights=sizes[counted]))
