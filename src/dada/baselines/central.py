"""What a server with all data could do without a graph: a hierarchical model, and the least anyone should beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dada.baselines.linear import linear_outcome
from dada.baselines.outcome import Outcome
from dada.core.compiled import Array, kernel
from dada.core.losses import logistic_value
from dada.data import Population
from dada.events import Observer, silent
from dada.task import Task

MOST_ITERATIONS = 500


def constant_majority(
    task: Task, test: Population, settings: None, rng: np.random.Generator, observer: Observer = silent
) -> Outcome:
    """Each user's more frequent label, whatever the features; on a tie, everybody's.

    Parameters as in :func:`dada.baselines.linear.global_lin`; there are no settings.

    Examples
    --------
    >>> from dada.data import Stumps
    >>> users = Population.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], users=["ann", "bob", "bob"])
    >>> task = Task.of(users, Stumps(n=2))
    >>> constant_majority(task, users, None, np.random.default_rng(0)).test_accuracy.tolist()
    [1.0, 1.0]
    """
    train = task.train
    balance = np.add.reduceat(train.y.astype(np.float64), train.row_start[:-1])
    label = np.where(balance == 0, np.sign(train.y.sum()), np.sign(balance))
    models = np.zeros((train.n_users, train.n_features + 1))
    models[:, -1] = label
    return linear_outcome("constant", task, test, models, bits=0.0)


@dataclass(frozen=True)
class HierarchicalSettings:
    """Freedom of the common weights (`C`) and of what each user adds to them (`C_own`): inverse penalties."""

    C: float = 1.0
    C_own: float = 0.1

    def __post_init__(self) -> None:
        if not (self.C > 0 and self.C_own > 0):
            raise ValueError(f"C and C_own must be > 0, got C={self.C}, C_own={self.C_own}")


def hierarchical(
    task: Task, test: Population, settings: HierarchicalSettings, rng: np.random.Generator, observer: Observer = silent
) -> Outcome:
    """Mixed-effects logistic regression: common weights plus a deviation of each user, both under an l2 penalty.

    Minimises sum_i log(1 + exp(-y_i (u + v_k)'(x_i, 1))) + |u|^2 / (2 C) + sum_k |v_k|^2 / (2 C_own) over the rows of
    all users together; the common intercept is free. These are the most probable weights of a hierarchical Gaussian
    model. Other parameters as in :func:`dada.baselines.linear.global_lin`.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> hierarchical(task, users.test, HierarchicalSettings(), np.random.default_rng(0)).models.shape
    (10, 21)
    """
    return linear_outcome("hierarchical", task, test, hierarchical_models(task.train, settings), bits=None)


def hierarchical_models(train: Population, settings: HierarchicalSettings) -> Array:
    """u + v_k for every user, the intercept last."""
    from scipy.optimize import minimize

    K, D = train.n_users, train.n_features + 1
    X = np.column_stack([train.X, np.ones(train.n_rows)])
    y = train.y.astype(np.float64)
    penalty = np.full((K + 1, D), 1.0 / settings.C_own)
    penalty[0] = 1.0 / settings.C
    penalty[0, -1] = 0.0

    def objective(flat: Array) -> tuple[float, Array]:
        weights = flat.reshape(K + 1, D)
        loss, gradient = joint_loss(X, y, train.row_start, weights)
        return loss + 0.5 * float((penalty * weights**2).sum()), (gradient + penalty * weights).ravel()

    start = np.zeros((K + 1) * D)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": MOST_ITERATIONS})
    weights = found.x.reshape(K + 1, D)
    return weights[0] + weights[1:]


@kernel
def joint_loss(X: Array, y: Array, row_start: Array, weights: Array) -> tuple[float, Array]:
    """Sum of the logistic losses and its gradient; row 0 of `weights` is common, row k + 1 user k's own."""
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
