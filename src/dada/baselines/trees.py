"""Gradient boosting of trees: per user, or on all rows in one place, with and without the user as a feature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dada.baselines.outcome import MethodResult
from dada.core.compiled import Array
from dada.data import Population

# scikit-learn's limit on categories; with more users, the user is a numeric feature.
MOST_CATEGORIES = 255


@dataclass(frozen=True)
class TreeSettings:
    """Number of trees and their depth."""

    trees: int = 100
    depth: int = 3

    def __post_init__(self) -> None:
        if not (self.trees >= 1 and self.depth >= 1):
            raise ValueError(f"trees and depth must be >= 1, got trees={self.trees}, depth={self.depth}")


def trees_local(train: Population, test: Population, settings: TreeSettings, rng: np.random.Generator) -> MethodResult:
    """Gradient boosting on each user's rows; a user whose rows have a single class always predicts that class.

    Parameters as in :func:`dada.baselines.linear.global_lin`.

    Examples
    --------
    >>> from dada.data import moons
    >>> users = moons(0, n_users=5, n_test=5)
    >>> trees_local(users.train, users.test, TreeSettings(trees=5), np.random.default_rng(0)).bits
    0.0
    """
    from sklearn.ensemble import GradientBoostingClassifier

    options = {"n_estimators": int(settings.trees), "max_depth": int(settings.depth)}
    seed = int(rng.integers(2**31))
    fitted = []
    for own in map(train.user_rows, range(train.n_users)):
        X, y = train.X[own], train.y[own]
        single = (y == y[0]).all()
        fitted.append(None if single else GradientBoostingClassifier(**options, random_state=seed).fit(X, y))

    def values(people: Population) -> Array:
        found = np.zeros(people.n_rows)
        for k, trees in enumerate(fitted):
            rows = people.user_rows(k)
            if rows.stop > rows.start:
                found[rows] = train.y[train.row_start[k]] if trees is None else trees.decision_function(people.X[rows])
        return found

    return MethodResult.of(train, test, map(values, (train, test)), np.empty((0, 0)), bits=0.0)


def trees_pooled(
    train: Population, test: Population, settings: TreeSettings, rng: np.random.Generator, *, with_user: bool = False
) -> MethodResult:
    """Gradient boosting on all rows in one place; `with_user` adds the user as a categorical feature.

    Other parameters as in :func:`dada.baselines.linear.global_lin`.

    Examples
    --------
    >>> from dada.data import moons
    >>> users = moons(0, n_users=5, n_test=5)
    >>> result = trees_pooled(users.train, users.test, TreeSettings(trees=5), np.random.default_rng(0), with_user=True)
    >>> result.bits is None
    True
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    is_category = with_user and train.n_users <= MOST_CATEGORIES
    model = HistGradientBoostingClassifier(
        max_iter=int(settings.trees),
        max_depth=int(settings.depth),
        early_stopping=False,
        categorical_features=[train.n_features] if is_category else None,
        random_state=int(rng.integers(2**31)),
    ).fit(_features(train, with_user), train.y)

    def values(people: Population) -> Array:
        return model.decision_function(_features(people, with_user))

    return MethodResult.of(train, test, map(values, (train, test)), np.empty((0, 0)))


def _features(people: Population, with_user: bool) -> Array:
    if not with_user:
        return people.X
    return np.column_stack([people.X, people.owners])
