"""Tasks that the paper does not have: the six activities of HARWS, and the scores of School as numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dada.core.compiled import Array
from dada.data.datasets import load
from dada.estimators import DadaClassifier, DadaRegressor, PerUserKFold

SIX_ACTIVITIES, SCHOOL_SCORES = "six-activities", "school-scores"
PENALTIES = (0.01, 0.1, 1.0, 10.0)
RIDGE_PENALTIES = tuple(10.0**power for power in range(-2, 5))
N_FOLDS = 3
Fit = Callable[[Array, Array, Array], Callable[[Array, Array], Array]]


def six_activities(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Test accuracy of every user of HARWS, six classes, a fifth of the rows for training.

    `settings["who"]` is "dada" (all settings automatic), or "local" or "pooled" multinomial logistic regression, whose
    penalty is chosen by cross-validation inside users' training rows.
    """
    rows = load("harws")
    X, y, users = rows.X.astype(np.float64), rows.extras["activity"], rows.users
    train = rows.extras["split20"] == 0
    penalty = None
    if settings["who"] == "dada":
        predict = _dada_classes(seed)(X[train], y[train], users[train])
    else:
        make = {"local": _local, "pooled": _pooled}[settings["who"]]
        penalty = _best_penalty(lambda C: make(partial(_logistic, C=C)), X[train], y[train], users[train], seed)
        predict = make(partial(_logistic, C=penalty))(X[train], y[train], users[train])
    right = predict(X[~train], users[~train]) == y[~train]
    return {"test": per_user(right, users[~train]).tolist(), "penalty": penalty}


def school_scores(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Part of the variance of test scores that predictions explain, on one of the ten splits of School.

    "explained" is of the variance over all pupils, "explained_within" of that around the mean of each school.
    """
    rows = load("school")
    X, y, users = rows.X.astype(np.float64), rows.extras["score"].astype(np.float64), rows.users
    train = rows.extras[f"split{settings['split']}"] == 0
    fits = {"dada": _dada_numbers(seed), "local": _local(_ridge), "pooled": _pooled(_ridge)}
    predicted = fits[settings["who"]](X[train], y[train], users[train])(X[~train], users[~train])
    wrong = float(np.mean((y[~train] - predicted) ** 2))
    school = np.unique(users[~train], return_inverse=True)[1]
    around = y[~train] - per_user(y[~train], users[~train])[school]
    return {
        "explained": 1 - wrong / float(y[~train].var()),
        "explained_within": 1 - wrong / float(np.mean(around**2)),
        "rmse": float(np.sqrt(wrong)),
    }


TASK_STUDIES = {SIX_ACTIVITIES: six_activities, SCHOOL_SCORES: school_scores}


def per_user(right: Array, users: Array) -> Array:
    """The mean of each user's entries.

    >>> per_user(np.array([1.0, 0.0, 1.0]), np.array([4, 4, 7])).tolist()
    [0.5, 1.0]
    """
    codes = np.unique(users, return_inverse=True)[1]
    return np.asarray(np.bincount(codes, weights=right) / np.bincount(codes))


def _dada_classes(seed: int) -> Fit:
    def fit(X: Array, y: Array, users: Array) -> Callable[[Array, Array], Array]:
        return DadaClassifier(random_state=seed).fit(X, y, users=users).predict

    return fit


def _dada_numbers(seed: int) -> Fit:
    def fit(X: Array, y: Array, users: Array) -> Callable[[Array, Array], Array]:
        return DadaRegressor(random_state=seed).fit(X, y, users=users).predict

    return fit


def _logistic(X: Array, y: Array, C: float) -> Callable[[Array], Array]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if (y == y[0]).all():
        return lambda rows: np.full(len(rows), y[0])
    return make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=1000)).fit(X, y).predict


def _ridge(X: Array, y: Array) -> Callable[[Array], Array]:
    from sklearn.linear_model import RidgeCV

    return RidgeCV(RIDGE_PENALTIES).fit(X, y).predict


def _pooled(learn: Callable[[Array, Array], Callable[[Array], Array]]) -> Fit:
    def fit(X: Array, y: Array, users: Array) -> Callable[[Array, Array], Array]:
        predict = learn(X, y)
        return lambda rows, _: predict(rows)

    return fit


def _local(learn: Callable[[Array, Array], Callable[[Array], Array]]) -> Fit:
    def fit(X: Array, y: Array, users: Array) -> Callable[[Array, Array], Array]:
        each = {user: learn(X[users == user], y[users == user]) for user in np.unique(users).tolist()}

        def predict(rows: Array, owners: Array) -> Array:
            found = np.zeros(len(rows), y.dtype)
            for user in np.unique(owners).tolist():
                found[owners == user] = each[user](rows[owners == user])
            return found

        return predict

    return fit


def _best_penalty(make: Callable[[float], Fit], X: Array, y: Array, users: Array, seed: int) -> float:
    """The penalty under which most held-out rows are right."""
    folds = PerUserKFold(N_FOLDS, shuffle=True, random_state=np.random.default_rng(seed))
    parts = list(folds.split(X, y, users=users))
    right = [
        sum(
            float((make(C)(X[kept], y[kept], users[kept])(X[tested], users[tested]) == y[tested]).sum())
            for kept, tested in parts
        )
        for C in PENALTIES
    ]
    return PENALTIES[int(np.argmax(right))]
