"""Linear models: one for all, and each user alone (logistic regression with an l2 penalty)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dada.baselines.outcome import Outcome, Scores
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.data import Population
from dada.events import Observer, TracePoint, silent
from dada.task import Task

MOST_ITERATIONS = 1000


@dataclass(frozen=True)
class LinearSettings:
    """Strength of the penalty, as in scikit-learn: the larger `C`, the weaker the penalty."""

    C: float = 1.0

    def __post_init__(self) -> None:
        if not self.C > 0:
            raise ValueError(f"C must be > 0 (inverse strength of the penalty), got {self.C}")


def global_lin(
    task: Task, test: Population, settings: LinearSettings, rng: np.random.Generator, observer: Observer = silent
) -> Outcome:
    """One linear model for everybody, from all data in one place (Global-lin).

    Parameters
    ----------
    task : Task
        Training data; the base predictors are not used.
    test : Population
        The same users' test data.
    settings : LinearSettings
        Strength of the penalty.
    rng, observer
        Not used: there is neither chance nor a run to watch.

    Returns
    -------
    Outcome
        Models are rows of one weight per feature and, last, the intercept.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> outcome = global_lin(task, users.test, LinearSettings(C=1.0), np.random.default_rng(0))
    >>> outcome.models.shape, outcome.bits is None
    ((1, 21), True)
    """
    model = logistic_model(task.train.X, task.train.y, settings.C)
    return linear_outcome("global-lin", task, test, model[None, :], bits=None)


def local_lin(
    task: Task, test: Population, settings: LinearSettings, rng: np.random.Generator, observer: Observer = silent
) -> Outcome:
    """A linear model for each user, from its own data only (Local-lin). Parameters as in :func:`global_lin`.

    A user who has seen one class only predicts that class.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> outcome = local_lin(task, users.test, LinearSettings(C=1.0), np.random.default_rng(0))
    >>> outcome.models.shape, outcome.bits
    ((10, 21), 0.0)
    """
    return linear_outcome("local-lin", task, test, local_models(task.train, settings.C), bits=0.0)


def local_models(train: Population, C: float) -> Array:
    """Each user's own logistic regression, one row per user, the intercept last."""
    rows = [train.user_rows(k) for k in range(train.n_users)]
    return np.stack([logistic_model(train.X[row], train.y[row], C) for row in rows])


def logistic_model(X: Array, y: Array, C: float) -> Array:
    """Weights and, last, the intercept of a logistic regression; of a single class, that class for ever."""
    from sklearn.linear_model import LogisticRegression

    if (y == y[0]).all():
        return np.append(np.zeros(X.shape[1]), float(y[0]))
    fitted = LogisticRegression(C=C, max_iter=MOST_ITERATIONS).fit(X, y)
    return np.append(fitted.coef_[0], fitted.intercept_[0])


def linear_values(population: Population, models: Array) -> Array:
    """Decision values of every row with the model of its user; a single model serves all users.

    Examples
    --------
    >>> people = Population.from_arrays([[1.0], [2.0]], [0, 1], users=["ann", "bob"])
    >>> linear_values(people, np.array([[1.0, 0.5], [-1.0, 0.0]])).tolist()
    [1.5, -2.0]
    """
    if len(models) == 1:
        return population.X @ models[0, :-1] + models[0, -1]
    owner = np.repeat(np.arange(population.n_users), population.sizes)
    return np.einsum("ij,ij->i", population.X, models[owner, :-1]) + models[owner, -1]


def linear_outcome(
    name: str,
    task: Task,
    test: Population,
    models: Array,
    *,
    bits: float | None,
    trace: tuple[TracePoint, ...] = (),
    graph: CollaborationGraph | None = None,
) -> Outcome:
    """The outcome of linear models, however they were found."""
    train_scores = Scores.of(task.train, linear_values(task.train, models))
    test_scores = Scores.of(test, linear_values(test, models))
    return Outcome.scored(name, train_scores, test_scores, models, trace=trace, graph=graph, bits=bits)
