"""The estimators with their defaults, as methods of the experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

from dada.baselines.outcome import Outcome, Scores
from dada.data import Population
from dada.estimators import DadaClassifier, DadaClassifierCV
from dada.task import Task


def automatic(task: Task, test: Population, graph: str, rng: np.random.Generator) -> Outcome:
    """`DadaClassifier` with all settings automatic, but for the graph where it is named; "none" learns alone.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> automatic(task, users.test, "evidence", np.random.default_rng(0)).neighbours <= 9
    True
    """
    model = DadaClassifier(graph=graph, random_state=rng)
    model.fit(task.train.X, task.train.y, users=_owners(task.train))
    return _outcome("dada-auto", task, test, model, model)


def cross_validated(task: Task, test: Population, rng: np.random.Generator) -> Outcome:
    """`DadaClassifierCV`: graph, beta and mu by held-out rows, and a local model for whom that serves better."""
    search = DadaClassifierCV(random_state=rng)
    search.fit(task.train.X, task.train.y, users=_owners(task.train))
    return _outcome("dada-cv", task, test, search, search.best_estimator_)


def _owners(people: Population) -> Any:
    return np.repeat(people.user_ids, people.sizes)


def _outcome(name: str, task: Task, test: Population, model: Any, fitted: DadaClassifier) -> Outcome:
    train, tested = (
        Scores.of(people, model.decision_function(people.X, users=_owners(people))) for people in (task.train, test)
    )
    rest: Any = {"graph": fitted.graph_, "bits": fitted.bits_, "status": fitted.status_}
    return Outcome.scored(name, train, tested, fitted.models_, **rest)
