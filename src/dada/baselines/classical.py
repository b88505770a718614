"""Established methods without a graph: linear models, gradient boosting, the majority label; and two private ones.

The private ones are mean-regularised multi-task learning with noisy gradients, and output perturbation. Both give a
model per user that others may see, (epsilon, delta)-private for each user's rows by Gaussian noise of the mu of our
releases. The centre of all others' models is what a user's home model is pulled to. Noise is drawn from the generator:
these are for comparisons, not for use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dada.baselines.boosting import MethodResult
from dada.baselines.central import Predict, home_ridge_weights
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


Floats = NDArray[np.float64]
NEWTON_STEPS = 30


class PrivateTask(NamedTuple):
    """Rows of all users: base predictions no longer than `norm`, targets in [-1, 1], which are classes or numbers."""

    h: Floats
    y: Floats
    row_start: NDArray[np.int64]
    norm: float
    is_class: bool

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each user."""
        return np.diff(self.row_start)


class Shared(NamedTuple):
    """Models that all users see, and for each user the centre of all others' models."""

    models: Floats
    centres: Floats


def mr_mtl(task: PrivateTask, mu: float, rng: np.random.Generator, *, rounds: int, pull: float, clip: float) -> Shared:
    """Mean-regularised multi-task learning with noisy gradients (Liu et al., NeurIPS 2022).

    In each round a user adds up its rows' gradients of the squared loss, each clipped, with Gaussian noise, and its
    model is pulled to the mean of all models. The mean of the last half of the rounds is taken.

    Parameters
    ----------
    task : PrivateTask
    mu : float
        Of all rounds together; infinite for no noise.
    rng : numpy.random.Generator
    rounds : int
        Rounds; the noise of each grows with their square root.
    pull : float
        Strength of the pull to the mean.
    clip : float
        Largest norm of a row's gradient.
    """
    h, sizes = task.h, task.sizes
    owner = np.repeat(np.arange(sizes.size), sizes)
    length = np.maximum(np.sqrt((h**2).sum(axis=1)), 1e-12)
    sigma = 2 * clip * np.sqrt(rounds) / mu
    rate = 1.0 / (task.norm**2 + pull)
    share = sizes / sizes.sum()
    models = np.zeros((sizes.size, h.shape[1]))
    last = np.zeros_like(models)
    for step in range(rounds):
        residual = task.y - (h * models[owner]).sum(axis=1)
        residual *= np.minimum(1.0, clip / np.maximum(abs(residual) * length, 1e-12))
        gradient = -np.add.reduceat(h * residual[:, None], task.row_start[:-1], axis=0)
        gradient += sigma * rng.normal(size=models.shape)
        models = models - rate * (gradient / sizes[:, None] + pull * (models - share @ models))
        if step >= rounds // 2:
            last += models
    return _shared(last / (rounds - rounds // 2), sizes.astype(np.float64))


def output_perturbation(task: PrivateTask, mu: float, rng: np.random.Generator, *, ridge: float) -> Shared:
    """Each user's regularised local model plus Gaussian noise (Chaudhuri et al., 2011).

    The mean loss with the penalty ridge/2 ||w||^2 is strongly convex, so replacing a row moves its minimum by at most
    2 L / (m ridge), where L bounds the gradient of a row: norm for the logistic loss. For the squared loss the minimum
    is no longer than ridge^-1/2, so that L = (1 + norm / sqrt(ridge)) norm.
    """
    sizes = task.sizes.astype(np.float64)
    parts = [slice(*ends) for ends in zip(task.row_start[:-1], task.row_start[1:], strict=True)]
    models = np.stack([_local(task.h[rows], task.y[rows], ridge, task.is_class) for rows in parts])
    slope = task.norm * (1.0 if task.is_class else 1.0 + task.norm / np.sqrt(ridge))
    sigma = 2 * slope / (sizes * ridge * mu)
    models += sigma[:, None] * rng.normal(size=models.shape)
    if task.is_class:
        # Half of the log odds: E y = tanh(w h / 2) is close to w h / 2.
        models, sigma = models / 2, sigma / 2
    # The variance of a model is that of its noise and of its rows.
    return _shared(models, 1.0 / (sigma**2 + 1.0 / sizes))


def _local(h: Floats, y: Floats, ridge: float, is_class: bool) -> Floats:
    """Minimum of a user's mean loss with a penalty, by Newton steps in the span of its rows."""
    basis = np.linalg.qr(h.T)[0]
    z = h @ basis
    found, penalty = np.zeros(z.shape[1]), ridge * np.eye(z.shape[1])
    for _ in range(NEWTON_STEPS if is_class else 1):
        mean = np.tanh(z @ found / 2) if is_class else z @ found
        slope = (1 - mean**2) / 4 if is_class else np.ones(len(z))
        gradient = z.T @ (y - mean) / len(z) / (2 if is_class else 1) - ridge * found
        step = np.linalg.solve((z.T * slope) @ z / len(z) + penalty, gradient)
        found = found + step
        if abs(step).max() < 1e-9:
            break
    return np.asarray(basis @ found)


def _shared(models: Floats, weights: Floats) -> Shared:
    """Models and the weighted mean of all others'."""
    total = weights @ models
    own = weights[:, None] * models
    return Shared(models, (total - own) / np.maximum(weights.sum() - weights, 1e-300)[:, None])
