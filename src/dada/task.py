"""A population seen through base predictors: what every learner, ours or a baseline, starts from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dada.core.problem import Problem
from dada.data import BasePredictors, Population, Recipe
from dada.engine import Samples
from dada.events import RunInfo


@dataclass(frozen=True, eq=False)
class Task:
    """Labelled users and fitted base predictors.

    Examples
    --------
    >>> from dada.data import Stumps
    >>> users = Population.from_arrays([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], users=[1, 1, 2, 2])
    >>> task = Task.of(users, Stumps(n=3))
    >>> task.problem(beta=1.0, mu1=0.1).n_users
    2
    """

    train: Population
    predictors: BasePredictors

    @classmethod
    def of(cls, train: Population, recipe: Recipe) -> Task:
        """Fit base predictors on all users' inputs (never their labels)."""
        return cls(train, recipe.fit(train.X))

    @cached_property
    def samples(self) -> Samples:
        """The training data as base predictions."""
        return self.samples_of(self.train)

    def samples_of(self, population: Population) -> Samples:
        """Any population as base predictions."""
        return Samples(self.predictors.predict(population.X), population.y, population.row_start)

    def problem(self, **settings: Any) -> Problem:
        """The joint problem with the given settings (see `Problem`)."""
        predictions = self.samples.predictions
        margins = predictions * self.train.y[:, None].astype(predictions.dtype)
        coupling = np.asarray(self.predictors.coupling, dtype=np.float64)
        return Problem(margins, self.train.row_start, coupling=coupling, **settings)

    def info(self, title: str = "", **known: Any) -> RunInfo:
        """Who takes part in a run, for those who watch: users and base predictors by name, and what else is known."""
        names, features = map(str, self.train.user_ids.tolist()), self.train.feature_names
        predictors = (self.predictors.describe(j, features) for j in range(self.predictors.n))
        return RunInfo(title=title, users=tuple(names), predictors=tuple(predictors), **known)

    def pooled(self) -> Task:
        """The same data as one user's: what a central server would see."""
        return Task(self.train.pooled(), self.predictors)
