"""Gradient boosting of trees: per user, or on all rows in one place, with and without the user as a feature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dada.baselines.outcome import MethodResult, Scores
from dada.core.compiled import Array
from dada.data import BasePredictors, Population

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


def trees_local(
    train: Population, predictors: BasePredictors, test: Population, settings: TreeSettings, rng: np.random.Generator
) -> MethodResult:
    """Gradient boosting on each user's rows; a user whose rows have a single class always predicts that class.

    Parameters as in :func:`dada.baselines.linear.global_lin`.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=5, n_test=5)
    >>> predictors = Stumps(n=40).fit(users.train.X)
    >>> trees_local(users.train, predictors, users.test, TreeSettings(trees=5), np.random.default_rng(0)).bits
    0.0
    """
    from sklearn.ensemble import GradientBoostingClassifier

    seed = int(rng.integers(2**31))
    values = [np.zeros(train.n_rows), np.zeros(test.n_rows)]
    for k in range(train.n_users):
        own = train.user_rows(k)
        y = train.y[own]
        fitted = None
        if not (y == y[0]).all():
            fitted = GradientBoostingClassifier(
                n_estimators=int(settings.trees), max_depth=int(settings.depth), random_state=seed
            ).fit(train.X[own], y)
        for into, people in zip(values, (train, test), strict=True):
            rows = people.user_rows(k)
            if rows.stop > rows.start:
                into[rows] = y[0] if fitted is None else fitted.decision_function(people.X[rows])
    return _result("trees-local", train, test, values, bits=0.0)


def trees_pooled(
    train: Population,
    predictors: BasePredictors,
    test: Population,
    settings: TreeSettings,
    rng: np.random.Generator,
    *,
    with_user: bool = False,
) -> MethodResult:
    """Gradient boosting on all rows in one place; `with_user` adds the user as a categorical feature.

    Other parameters as in :func:`dada.baselines.linear.global_lin`.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=5, n_test=5)
    >>> predictors = Stumps(n=40).fit(users.train.X)
    >>> rng = np.random.default_rng(0)
    >>> result = trees_pooled(users.train, predictors, users.test, TreeSettings(trees=5), rng, with_user=True)
    >>> result.name, result.bits is None
    ('trees-pooled-user', True)
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
    values = [model.decision_function(_features(people, with_user)) for people in (train, test)]
    return _result("trees-pooled-user" if with_user else "trees-pooled", train, test, values, bits=None)


def _features(people: Population, with_user: bool) -> Array:
    if not with_user:
        return people.X
    return np.column_stack([people.X, people.owners])


def _result(name: str, train: Population, test: Population, values: list[Array], *, bits: float | None) -> MethodResult:
    train_scores, test_scores = Scores.of(train, values[0]), Scores.of(test, values[1])
    return MethodResult.scored(name, train_scores, test_scores, np.empty((0, 0)), bits=bits)
