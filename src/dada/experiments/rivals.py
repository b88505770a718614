"""Central rivals of our estimators for labels of any kind, tuned by cross-validation inside users' training rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dada.baselines.central import (
    Predict,
    home_ridge,
    labels_of,
    lightgbm_alone,
    user_constant,
    user_lightgbm,
    user_linear,
    user_xgboost,
)
from dada.baselines.classical import MOST_CATEGORIES
from dada.core.compiled import Array
from dada.experiments.ladders import Settings, climb
from dada.experiments.tasks import N_FOLDS
from dada.fitting.held_out import PerUserKFold

_TREES: tuple[Settings, ...] = tuple({"trees": 100, "rate": 0.1, "leaves": leaves} for leaves in (4, 16))
# Boosting of numbers gains a little by every further tree: a step that lowers the squared error by less does not count.
SLACK = 0.005
_BOTH: tuple[Settings, ...] = ({"C": 1.0, "C_own": 0.1}, {"C": 1.0, "C_own": 10.0})


def user_boosting(X: Array, y: Array, owners: Array, *, trees: int, rate: float, leaves: int) -> Predict:
    """Gradient boosting by scikit-learn, with the user as a categorical feature, or as a number if there are too many.

    Examples
    --------
    >>> owners = np.repeat([0, 1], 60)
    >>> X = np.random.default_rng(0).normal(size=(120, 1))
    >>> y = ((X[:, 0] > 0) == (owners == 0)).astype(int)
    >>> scores = user_boosting(X, y, owners, trees=50, rate=0.3, leaves=4)(X, owners)
    >>> float(np.mean(labels_of(scores, y) == y))
    1.0
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    is_number = y.dtype.kind == "f"
    model = (HistGradientBoostingRegressor if is_number else HistGradientBoostingClassifier)(
        max_iter=trees,
        learning_rate=rate,
        max_leaf_nodes=leaves,
        early_stopping=False,
        categorical_features=[X.shape[1]] if owners.max() < MOST_CATEGORIES else None,
        random_state=0,
    ).fit(np.column_stack([X, owners]), y)
    n_classes = 0 if is_number else int(y.max()) + 1

    def predict(rows: Array, owners: Array) -> Array:
        found = model.predict(np.column_stack([rows, owners]))
        return found if is_number else found - 0.5 if n_classes <= 2 else np.eye(n_classes)[found]

    return predict


class Rival(NamedTuple):
    """A rival: its title, how it learns, and the settings from which its search starts."""

    title: str
    learn: Callable[..., Predict]
    start: tuple[Settings, ...]


RIVALS = {
    "constant": Rival("each user's majority or mean", user_constant, ({},)),
    "linear": Rival("one linear model for all", user_linear, ({"C": 0.1}, {"C": 10.0})),
    "linear-alone": Rival(
        "a linear model per user", partial(user_linear, slopes=True), ({"C_own": 0.1}, {"C_own": 10.0})
    ),
    "lightgbm-alone": Rival("LightGBM per user", lightgbm_alone, _TREES),
    "dummies": Rival("linear, user intercepts", user_linear, _BOTH),
    "mixed": Rival("linear, mixed effects", partial(user_linear, slopes=True), _BOTH),
    "home-ridge": Rival("least squares and home ridge", home_ridge, _BOTH),
    "lightgbm": Rival("LightGBM with the user", user_lightgbm, _TREES),
    "xgboost": Rival("XGBoost with the user", user_xgboost, _TREES),
    "boosting": Rival("gradient boosting with the user", user_boosting, _TREES),
}


class Prediction(NamedTuple):
    """Predicted labels, and the chosen settings."""

    labels: Array
    settings: Settings


def predicted(
    name: str, X: Array, y: Array, users: Array, rows: Array, row_users: Array, rng: np.random.Generator
) -> Prediction:
    """Tune a rival inside training rows, train it on all of them, and predict the labels of other rows.

    Parameters
    ----------
    name : str
        Key of `RIVALS`.
    X, y, users : array
        Features, labels and user of the training rows. Labels that are floats are numbers, all others are classes.
    rows, row_users : array
        Features and user of the rows to predict; every user has training rows.
    rng : numpy.random.Generator
        Shuffles the folds.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, users = rng.normal(size=(60, 1)), np.repeat(["ann", "bob"], 30)
    >>> y = np.where(users == "ann", X[:, 0], -X[:, 0])
    >>> found = predicted("mixed", X, y, users, X, users, rng)
    >>> bool(np.abs(found.labels - y).max() < 0.01)
    True
    """
    names, owners = np.unique(users, return_inverse=True)
    asked = np.searchsorted(names, row_users)
    if not np.array_equal(names[asked.clip(max=len(names) - 1)], row_users):
        raise ValueError("every user of the rows to predict must have training rows")
    center, scale = X.mean(axis=0), X.std(axis=0)
    scale[scale == 0.0] = 1.0
    X, rows = (X - center) / scale, (rows - center) / scale
    labels, codes = (None, y) if y.dtype.kind == "f" else np.unique(y, return_inverse=True)
    learn, start = RIVALS[name].learn, RIVALS[name].start
    folds = list(PerUserKFold(N_FOLDS, shuffle=True, random_state=rng).split(owners, users=owners))

    def score(settings: Settings) -> float:
        """Held-out rows predicted correctly, or minus the sum of squared errors."""
        total = 0.0
        for kept, held_out in folds:
            predict = learn(X[kept], codes[kept], owners[kept], **settings)
            found = labels_of(predict(X[held_out], owners[held_out]), codes)
            total += _right(found, codes[held_out])
        return total

    chosen = _best(climb(start, list(start[0]), SLACK if labels is None else 0.0), score)
    found = labels_of(learn(X, codes, owners, **chosen)(rows, asked), codes)
    return Prediction(found if labels is None else labels[found], chosen)


def _right(found: Array, y: Array) -> float:
    return -float(np.sum((found - y) ** 2)) if y.dtype.kind == "f" else float(np.sum(found == y))


def _best(search: Any, score: Callable[[Settings], float]) -> Settings:
    wanted: Iterable[Settings] = next(search)
    while True:
        try:
            wanted = search.send([score(settings) for settings in wanted])
        except StopIteration as end:
            best: Settings = end.value
            return best
