"""Central rivals for labels of any kind, which know the user of each row.

Every function takes rows, labels and owners in one place: `y` has integers 0 to m - 1 for classes and floats for
numbers, `owners` has integers 0 to K - 1. It returns a function of rows and owners. That gives numbers; for two classes
the decision value of class 1; for more classes a score of each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from dada.core.compiled import Array

Predict = Callable[[Array, Array], Array]
# More steps of a problem with thousands of weights change its predictions little.
MOST_ITERATIONS = 200
# Users up to which a column per user is stored densely, which is faster.
MOST_DENSE = 300
# A user has few rows: LightGBM's own limits, 20 and 100, would ignore most users.
LEAST_IN_LEAF, LEAST_IN_CATEGORY = 5, 1
# Features drawn for each tree of LightGBM if there are more: as accurate on HARWS, and four times as fast.
MOST_FEATURES = 100


def labels_of(scores: Array, y: Array) -> Array:
    """Predicted labels of the kind of `y` from scores.

    >>> labels_of(np.array([0.5, -0.5]), np.array([0, 1])).tolist()
    [1, 0]
    """
    if y.dtype.kind == "f":
        return scores
    return (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)


def user_linear(
    X: Array, y: Array, owners: Array, *, C: float | None = None, C_own: float = 0.0, slopes: bool = False
) -> Predict:
    """Linear model with common weights and, if `C_own` > 0, an intercept per user; with `slopes`, own weights too.

    Ridge regression for numbers, logistic regression for classes. Penalties are |u|^2 / (2 C) of common weights and
    |v_k|^2 / (2 C_own) of a user's deviations, a mixed-effects model. The common intercept is not penalised. Without
    `C` there are no common weights: with `slopes` every user then learns alone.

    Examples
    --------
    >>> owners = np.repeat([0, 1], 20)
    >>> X = np.random.default_rng(0).normal(size=(40, 1))
    >>> y = np.where(owners == 0, X[:, 0], -X[:, 0]).round(2)
    >>> for slopes in (False, True):
    ...     found = user_linear(X, y, owners, C=1.0, C_own=10.0, slopes=slopes)(X, owners)
    ...     print(round(float(np.mean((found - y) ** 2) / y.var()), 1))
    1.0
    0.0
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    if not (C or C_own):
        raise ValueError(f"C or C_own must be > 0, got C={C}, C_own={C_own}")
    n_users = int(owners.max()) + 1
    scale, strength = (1.0, C_own) if C is None else (np.sqrt(C_own / C), C)

    def design(rows: Array, owners: Array) -> Any:
        common: list[Any] = [] if C is None else [rows]
        if C_own == 0.0:
            return rows
        own = sparse.csr_array((np.full(len(rows), scale), (np.arange(len(rows)), owners)), (len(rows), n_users))
        if slopes:
            common += [own.multiply(rows[:, [j]]) for j in range(rows.shape[1])]
        elif n_users <= MOST_DENSE:
            return np.column_stack([*common, own.toarray()])
        return sparse.hstack([own, *map(sparse.csr_array, common)], format="csr")

    is_number = y.dtype.kind == "f"
    model = Ridge(alpha=1.0 / strength) if is_number else LogisticRegression(C=strength, max_iter=MOST_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(design(X, owners), y)
    return lambda rows, owners: _linear_scores(model, design(rows, owners), 1 if is_number else int(y.max()) + 1)


def _linear_scores(model: Any, A: Any, n_classes: int) -> Array:
    """Scores of a fitted model, with a column for every class up to the last one even if some have no rows."""
    if n_classes <= 2:
        return model.predict(A) if n_classes == 1 else model.decision_function(A)
    known = model.decision_function(A)
    scores = np.full((len(known), n_classes), -np.inf)
    scores[:, model.classes_] = known if known.ndim == 2 else np.column_stack([-known, known])
    return scores


def _scores_of(labels: Array, y: Array) -> Array:
    """Scores that give these labels."""
    n_classes = int(y.max()) + 1
    return labels - 0.5 if n_classes <= 2 else np.eye(n_classes)[labels]


def user_constant(X: Array, y: Array, owners: Array) -> Predict:
    """The most frequent label of each user, the smallest on a tie, or the mean of its numbers.

    Examples
    --------
    >>> y, owners = np.array([0, 2, 2, 1]), np.array([0, 0, 0, 1])
    >>> labels_of(user_constant(y[:, None], y, owners)(y[:, None], owners), y).tolist()
    [2, 2, 2, 1]
    """
    rows = [y[owners == k] for k in range(int(owners.max()) + 1)]
    if y.dtype.kind == "f":
        means = np.array([own.mean() for own in rows])
        return lambda rows, owners: means[owners]
    labels = np.array([np.bincount(own).argmax() for own in rows])
    return lambda rows, owners: _scores_of(labels[owners], y)


def home_ridge_weights(X: Array, Y: Array, owners: Array, *, C: float, C_own: float) -> Array:
    """Pooled least squares, then a ridge at home: weights by user, feature (the intercept last) and column of `Y`.

    Common weights u minimise |Y - X u|^2 + |u|^2 / C over all rows, for which every user sends its X'X and X'Y, one
    message. At home a user adds v_k, which minimises |Y_k - X_k (u + v)|^2 + |v|^2 / C_own.
    """
    A, middle = np.column_stack([X, np.ones(len(X))]), Y.mean(axis=0)
    D = A.shape[1]
    common = np.linalg.solve(A.T @ A + np.eye(D) / C, A.T @ (Y - middle))
    rest = Y - middle - A @ common
    weights = np.repeat(common[None], int(owners.max()) + 1, axis=0)
    for k in range(len(weights)):
        own = A[owners == k]
        # The smaller of two equal systems.
        if len(own) < D:
            weights[k] += own.T @ np.linalg.solve(own @ own.T + np.eye(len(own)) / C_own, rest[owners == k])
        else:
            weights[k] += np.linalg.solve(own.T @ own + np.eye(D) / C_own, own.T @ rest[owners == k])
    weights[:, -1] += middle
    return weights


def home_ridge(X: Array, y: Array, owners: Array, *, C: float, C_own: float) -> Predict:
    """Predictions of :func:`home_ridge_weights`; classes are columns of zeros and ones.

    Examples
    --------
    >>> owners, X = np.repeat([0, 1], 3), np.array([[0.0], [1.0], [2.0], [0.0], [1.0], [2.0]])
    >>> y = np.array([0.0, 1.0, 2.0, 0.0, -1.0, -2.0])
    >>> home_ridge(X, y, owners, C=1.0, C_own=1e6)(X, owners).round(2).tolist()
    [0.0, 1.0, 2.0, -0.0, -1.0, -2.0]
    """
    is_number = y.dtype.kind == "f"
    Y = y[:, None] if is_number else np.eye(int(y.max()) + 1)[y]
    weights = home_ridge_weights(X, Y, owners, C=C, C_own=C_own)

    def predict(rows: Array, owners: Array) -> Array:
        values = np.einsum("ij,ijm->im", rows, weights[owners, :-1]) + weights[owners, -1]
        if is_number:
            return values[:, 0]
        return values[:, 1] - values[:, 0] if values.shape[1] == 2 else values

    return predict


def user_lightgbm(X: Array, y: Array, owners: Array, *, trees: int, rate: float, leaves: int) -> Predict:
    """Gradient boosting by LightGBM, with the user as a categorical feature.

    Examples
    --------
    >>> owners = np.repeat([0, 1], 40)
    >>> X = np.random.default_rng(0).normal(size=(80, 1))
    >>> y = ((X[:, 0] > 0) == (owners == 0)).astype(int)
    >>> scores = user_lightgbm(X, y, owners, trees=30, rate=0.3, leaves=4)(X, owners)
    >>> float(np.mean(labels_of(scores, y) == y))
    1.0
    """
    try:
        import lightgbm
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("lightgbm is not installed: pip install lightgbm") from error

    n_classes = 1 if y.dtype.kind == "f" else int(y.max()) + 1
    kind: dict[str, Any] = {"objective": "regression"} if n_classes == 1 else {"objective": "binary"}
    if n_classes > 2:
        kind = {"objective": "multiclass", "num_class": n_classes}
    options = {
        **kind,
        "learning_rate": rate,
        "num_leaves": leaves,
        "min_data_in_leaf": LEAST_IN_LEAF,
        "min_data_per_group": LEAST_IN_CATEGORY,
        "feature_fraction": min(1.0, MOST_FEATURES / X.shape[1]),
        "num_threads": 1,
        "deterministic": True,
        "force_col_wise": True,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(np.column_stack([X, owners]), y, categorical_feature=[X.shape[1]], free_raw_data=False)
    model = lightgbm.train(options, data, num_boost_round=trees)
    return lambda rows, owners: np.asarray(model.predict(np.column_stack([rows, owners]), raw_score=n_classes > 1))


def user_xgboost(X: Array, y: Array, owners: Array, *, trees: int, rate: float, leaves: int) -> Predict:
    """Gradient boosting by XGBoost, with the user as a categorical feature.

    Examples
    --------
    >>> owners = np.repeat([0, 1], 40)
    >>> X = np.random.default_rng(0).normal(size=(80, 1))
    >>> y = ((X[:, 0] > 0) == (owners == 0)).astype(int)
    >>> scores = user_xgboost(X, y, owners, trees=60, rate=0.3, leaves=4)(X, owners)
    >>> float(np.mean(labels_of(scores, y) == y)) > 0.95
    True
    """
    try:
        import xgboost
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("xgboost is not installed: pip install xgboost-cpu") from error

    n_classes = 1 if y.dtype.kind == "f" else int(y.max()) + 1
    kind: dict[str, Any] = {"objective": "reg:squarederror"} if n_classes == 1 else {"objective": "binary:logitraw"}
    if n_classes > 2:
        kind = {"objective": "multi:softprob", "num_class": n_classes}
    options = {
        **kind,
        "eta": rate,
        "max_leaves": leaves,
        "max_depth": 0,
        "grow_policy": "lossguide",
        "tree_method": "hist",
        "colsample_bytree": min(1.0, MOST_FEATURES / X.shape[1]),
        "nthread": 1,
        "seed": 0,
        "verbosity": 0,
    }
    types = ["q"] * X.shape[1] + ["c"]

    def table(rows: Array, owners: Array, **labels: Any) -> Any:
        columns = np.column_stack([rows, owners])
        return xgboost.DMatrix(columns, feature_types=types, enable_categorical=True, nthread=1, **labels)

    model = xgboost.train(options, table(X, owners, label=y), num_boost_round=trees)
    return lambda rows, owners: np.asarray(model.predict(table(rows, owners)), np.float64)


def each_alone(
    learn: Callable[..., Predict], X: Array, y: Array, owners: Array, *, least: int = 2, **settings: Any
) -> Predict:
    """A learner for every user, on the user's own rows only.

    Users with fewer than `least` rows, or with one label, get their majority or mean.

    Examples
    --------
    >>> owners = np.repeat([0, 1], 40)
    >>> X = np.random.default_rng(0).normal(size=(80, 1))
    >>> y = np.where(owners == 0, X[:, 0] > 0, 2 * (X[:, 0] > 0))
    >>> scores = each_alone(user_lightgbm, X, y, owners, trees=30, rate=0.3, leaves=4)(X, owners)
    >>> float(np.mean(labels_of(scores, y) == y))
    1.0
    """
    n_classes = 0 if y.dtype.kind == "f" else int(y.max()) + 1
    simple = user_constant(X, y, owners)
    models: dict[int, tuple[Array, Predict]] = {}
    for k in range(int(owners.max()) + 1):
        own = owners == k
        labels, codes = np.unique(y[own], return_inverse=True)
        if len(codes) >= least and len(labels) > 1:
            nobody = np.zeros(len(codes), int)
            models[k] = labels, learn(X[own], codes if n_classes else y[own], nobody, **settings)

    def predict(rows: Array, owners: Array) -> Array:
        scores = simple(rows, owners)
        for k in np.intersect1d(owners, list(models)).tolist():
            asked, (labels, model) = np.flatnonzero(owners == k), models[k]
            found = model(rows[asked], np.zeros(len(asked), int))
            if n_classes > 2:
                scores[asked] = -np.inf
                found = found if found.ndim == 2 else np.column_stack([-found, found])
                scores[asked[:, None], labels] = found
            else:
                scores[asked] = found
        return scores

    return predict


def lightgbm_alone(X: Array, y: Array, owners: Array, **settings: Any) -> Predict:
    """:func:`each_alone` of LightGBM. With fewer rows than two leaves need, its trees would have no test."""
    return each_alone(user_lightgbm, X, y, owners, least=2 * LEAST_IN_LEAF, **settings)
