"""Established methods without a graph, for two classes: linear models, gradient boosting, the majority label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dada.baselines.central import Predict, home_ridge_weights
from dada.baselines.outcome import MethodResult
from dada.core.bits import FLOAT_BITS
from dada.core.compiled import Array, kernel
from dada.core.losses import logistic_value
from dada.data import Population

MOST_ITERATIONS = 1000
MOST_LBFGS_ITERATIONS = 500
# scikit-learn's limit on categories; with more users, the user is a numeric feature.
MOST_CATEGORIES = 255


def global_lin(train: Population, test: Population, C: float = 1.0) -> MethodResult:
    """One logistic regression for all users, trained on all rows in one place (Global-lin).

    `test` has the same users as `train`, and `C` is the inverse strength of the l2 penalty. A model is a row of one
    weight per feature, then the intercept.

    Examples
    --------
    >>> from dada.data import moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> result = global_lin(users.train, users.test, C=1.0)
    >>> result.models.shape, result.bits is None
    ((1, 21), True)
    """
    return linear_result(train, test, logistic_model(train.X, train.y, C)[None, :], bits=None)


def local_lin(train: Population, test: Population, C: float = 1.0) -> MethodResult:
    """A logistic regression for each user, trained on its own rows only (Local-lin). Parameters of :func:`global_lin`.

    A user whose rows have a single class always predicts that class.

    Examples
    --------
    >>> from dada.data import moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> result = local_lin(users.train, users.test, C=1.0)
    >>> result.models.shape, result.bits
    ((10, 21), 0.0)
    """
    rows = [train.user_rows(k) for k in range(train.n_users)]
    return linear_result(train, test, np.stack([logistic_model(train.X[own], train.y[own], C) for own in rows]))


def logistic_model(X: Array, y: Array, C: float) -> Array:
    """Weights of a logistic regression, the intercept last; constant for rows of a single class."""
    from sklearn.linear_model import LogisticRegression

    if (y == y[0]).all():
        return np.append(np.zeros(X.shape[1]), float(y[0]))
    fitted = LogisticRegression(C=C, max_iter=MOST_ITERATIONS).fit(X, y)
    return np.append(fitted.coef_[0], fitted.intercept_[0])


def linear_values(population: Population, models: Array) -> Array:
    """Decision value of every row under its user's model, or under a single shared model."""
    if len(models) == 1:
        return population.X @ models[0, :-1] + models[0, -1]
    owner = population.owners
    return np.einsum("ij,ij->i", population.X, models[owner, :-1]) + models[owner, -1]


def linear_result(train: Population, test: Population, models: Array, **rest: Any) -> MethodResult:
    """The result of linear models that sent nothing; `rest` are other attributes."""
    values = [linear_values(people, models) for people in (train, test)]
    return MethodResult.of(train, test, values, models, **({"bits": 0.0} | rest))


def constant_majority(train: Population, test: Population) -> MethodResult:
    """Predict each user's more frequent label; on a tie, that of all rows.

    Examples
    --------
    >>> users = Population.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], users=["ann", "bob", "bob"])
    >>> constant_majority(users, users).test_accuracy.tolist()
    [1.0, 1.0]
    """
    balance = np.add.reduceat(train.y.astype(np.float64), train.row_start[:-1])
    label = np.where(balance == 0, np.sign(train.y.sum()), np.sign(balance))
    models = np.zeros((train.n_users, train.n_features + 1))
    models[:, -1] = label
    return linear_result(train, test, models)


def hierarchical(train: Population, test: Population, C: float = 1.0, C_own: float = 0.1) -> MethodResult:
    """Mixed-effects logistic regression: common weights plus a deviation per user, both penalised.

    Minimises sum_i log(1 + exp(-y_i (u + v_k)'(x_i, 1))) + |u|^2 / (2 C) + sum_k |v_k|^2 / (2 C_own) over all rows; the
    common intercept is not penalised. This is the posterior mode of a hierarchical Gaussian model.

    Examples
    --------
    >>> from dada.data import moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> hierarchical(users.train, users.test).models.shape
    (10, 21)
    """
    return linear_result(train, test, hierarchical_models(train, C, C_own), bits=None)


def hierarchical_models(train: Population, C: float, C_own: float) -> Array:
    """u + v_k for every user, the intercept last."""
    from scipy.optimize import minimize

    if not (C > 0 and C_own > 0):
        raise ValueError(f"C and C_own must be > 0, got C={C}, C_own={C_own}")
    K, D = train.n_users, train.n_features + 1
    X = np.column_stack([train.X, np.ones(train.n_rows)])
    y = train.y.astype(np.float64)
    penalty = np.full((K + 1, D), 1.0 / C_own)
    penalty[0] = 1.0 / C
    penalty[0, -1] = 0.0

    def objective(flat: Array) -> tuple[float, Array]:
        weights = flat.reshape(K + 1, D)
        loss, gradient = joint_loss(X, y, train.row_start, weights)
        return loss + 0.5 * float((penalty * weights**2).sum()), (gradient + penalty * weights).ravel()

    start = np.zeros((K + 1) * D)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": MOST_LBFGS_ITERATIONS})
    weights = found.x.reshape(K + 1, D)
    return weights[0] + weights[1:]


@kernel
def joint_loss(X: Array, y: Array, row_start: Array, weights: Array) -> tuple[float, Array]:
    """Sum of the logistic losses, and its gradient; row 0 of `weights` is common, row k + 1 is user k's deviation."""
    gradient = np.zeros_like(weights)
    D = X.shape[1]
    total = 0.0
    model = np.empty(D)
    for k in range(row_start.size - 1):
        for j in range(D):
            model[j] = weights[0, j] + weights[k + 1, j]
        for i in range(row_start[k], row_start[k + 1]):
            margin = 0.0
            for j in range(D):
                margin += X[i, j] * model[j]
            margin *= y[i]
            total += logistic_value(margin)
            slope = -y[i] / (1.0 + np.exp(margin))
            for j in range(D):
                gradient[k + 1, j] += slope * X[i, j]
    for k in range(row_start.size - 1):
        for j in range(D):
            gradient[0, j] += gradient[k + 1, j]
    return total, gradient


def trees_with_user(
    train: Population, test: Population, *, trees: int = 100, rate: float = 0.1, leaves: int = 8
) -> MethodResult:
    """Gradient boosting on all rows in one place, by scikit-learn, with the user as a categorical feature.

    Examples
    --------
    >>> from dada.data import moons
    >>> users = moons(0, n_users=5, n_test=5)
    >>> trees_with_user(users.train, users.test, trees=5).bits is None
    True
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    def features(people: Population) -> Array:
        return np.column_stack([people.X, people.owners])

    model = HistGradientBoostingClassifier(
        max_iter=trees,
        learning_rate=rate,
        max_leaf_nodes=leaves,
        early_stopping=False,
        categorical_features=[train.n_features] if train.n_users <= MOST_CATEGORIES else None,
        random_state=0,
    ).fit(features(train), train.y)
    values = [model.decision_function(features(people)) for people in (train, test)]
    return MethodResult.of(train, test, values, np.empty((0, 0)))


def central_result(train: Population, test: Population, learn: Callable[..., Predict], **settings: Any) -> MethodResult:
    """The result of a rival of :mod:`dada.baselines.central` on two classes.

    Examples
    --------
    >>> from dada.baselines.central import user_linear
    >>> from dada.data import moons
    >>> users = moons(0, n_users=5, n_test=5)
    >>> central_result(users.train, users.test, user_linear, C=1.0, C_own=1.0).bits is None
    True
    """
    predict = learn(train.X, (train.y > 0).astype(int), train.owners, **settings)
    values = [predict(people.X, people.owners) for people in (train, test)]
    return MethodResult.of(train, test, values, np.empty((0, 0)))


def home_ridge(train: Population, test: Population, C: float = 1.0, C_own: float = 0.1) -> MethodResult:
    """Pooled least squares and a ridge at home, see :func:`dada.baselines.central.home_ridge_weights`.

    Every user sends one message, its X'X and X'y; `bits` counts them.

    Examples
    --------
    >>> from dada.data import moons
    >>> users = moons(0, n_users=5, n_test=5)
    >>> home_ridge(users.train, users.test).models.shape
    (5, 21)
    """
    y = train.y.astype(np.float64)[:, None]
    models = home_ridge_weights(train.X, y, train.owners, C=C, C_own=C_own)[:, :, 0]
    D = models.shape[1]
    # X'X is symmetric: half of it, the diagonal, and X'y.
    return linear_result(train, test, models, bits=float(train.n_users * FLOAT_BITS * (D * (D + 1) // 2 + D)))
