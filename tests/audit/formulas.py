"""The formulas of the paper in plain NumPy, and optima by a general convex solver.

Nothing here calls the mathematical functions of the package: `Case` holds the data, and a run of the package on the
same data must agree with what these functions compute. Graphs are dense weight matrices; row k holds the users that k
learns from.
"""

import warnings
from dataclasses import dataclass

import cvxpy as cp
import numpy as np


@dataclass(frozen=True)
class Case:
    """One learning problem: margins, offsets and weights of the rows, a list per user; then its settings.

    `target` is the degree target of the graph regularizer with the l1 weight `l1`; without one the regularizer is the
    paper's logarithm with `delta`.
    """

    A: list
    offset: list
    weights: list
    loss: str
    beta: float
    mu1: float
    mu2: float
    coupling: np.ndarray
    lam: float
    delta: float
    target: float | None
    l1: float
    graph_loss: str

    @property
    def confidence(self):
        sizes = np.array([len(rows) for rows in self.A])
        return sizes / sizes.max()


POINTWISE = {
    "logistic": (lambda z: np.logaddexp(0, -z), lambda z: -1 / (1 + np.exp(z))),
    "squared-hinge": (lambda z: np.maximum(0, 1 - z) ** 2 / 2, lambda z: -np.maximum(0, 1 - z)),
    "squared": (lambda z: z**2 / 2, lambda z: z),
    "huber": (lambda z: np.where(abs(z) <= 1, z**2 / 2, abs(z) - 1 / 2), lambda z: np.clip(z, -1, 1)),
}


def margins(case, k, own):
    return case.offset[k] + case.A[k] @ own


def local_loss(case, k, own, kind="paper"):
    """L_k: Eq. (2) for adaboost, else a weighted mean; `kind` selects the loss of the graph problem."""
    z, share = margins(case, k, own), case.weights[k] / case.weights[k].sum()
    if kind == "logistic":
        return share @ POINTWISE["logistic"][0](z)
    if case.loss == "adaboost":
        size = 1 if kind == "mean" else len(z)
        return np.log(size * (share @ np.exp(-z)))
    return share @ POINTWISE[case.loss][0](z)


def loss_slope(case, k, own):
    """Gradient of L_k in the model."""
    z, share = margins(case, k, own), case.weights[k] / case.weights[k].sum()
    if case.loss == "adaboost":
        return -case.A[k].T @ (share * np.exp(-z)) / (share @ np.exp(-z))
    return case.A[k].T @ (share * POINTWISE[case.loss][1](z))


def disagreement(case, alpha, W, *, directed):
    """sum of w_kl ||alpha_k - alpha_l||^2 over edges, or over arcs."""
    square = np.einsum("klj,j->kl", (alpha[:, None] - alpha[None]) ** 2, case.coupling)
    return (W * square).sum() / (1 if directed else 2)


def model_objective(case, alpha, W, *, directed=False):
    """f: the terms of Eq. (1) that depend on the models."""
    kind = "paper" if case.graph_loss == "paper" else "mean"
    losses = np.array([local_loss(case, k, alpha[k], kind) for k in range(len(alpha))])
    own = W.sum(axis=1) @ (case.confidence * losses)
    return own + case.mu1 / 2 * disagreement(case, alpha, W, directed=directed)


def regularizer(case, W):
    degree = W.sum(axis=1)
    on_weights = case.lam * (W**2).sum() / 2
    if case.target is None:
        return on_weights - np.log(degree + case.delta).sum()
    return on_weights + case.l1 * W.sum() / 2 + ((degree - case.target) ** 2).sum() / 2


def block_gradient(case, alpha, W, k):
    """Eq. (4) divided by the degree of k; of the local problem without neighbours."""
    gradient = case.confidence[k] * loss_slope(case, k, alpha[k])
    if W[k].any():
        gradient = gradient + case.mu1 * case.coupling * (alpha[k] - W[k] @ alpha / W[k].sum())
    return gradient


def block_gaps(case, alpha, W):
    """max over the l1 ball of <gradient, alpha_k - s>: at a vertex beta s e_j."""
    gradients = np.array([block_gradient(case, alpha, W, k) for k in range(len(alpha))])
    return (gradients * alpha).sum(axis=1) + case.beta * abs(gradients).max(axis=1)


def gap(case, alpha, W):
    """The printed certificate: blocks by degree; users without neighbours count once."""
    degree = W.sum(axis=1)
    return np.where(degree > 0, degree, 1) @ block_gaps(case, alpha, W)


def graph_objective(case, alpha, W):
    """h: Eq. (1) as a function of the graph."""
    losses = np.array([local_loss(case, k, alpha[k], case.graph_loss) for k in range(len(alpha))])
    own = W.sum(axis=1) @ (case.confidence * losses) + case.mu1 / 2 * disagreement(case, alpha, W, directed=False)
    return own + case.mu2 * regularizer(case, W)


def convex_loss(case, k, own):
    """L_k up to a constant, for the solver."""
    z, share = case.offset[k] + case.A[k] @ own, case.weights[k] / case.weights[k].sum()
    if case.loss == "adaboost":
        return cp.log_sum_exp(np.log(share) - z)
    losses = {
        "logistic": lambda: cp.logistic(-z),
        "squared-hinge": lambda: cp.square(cp.pos(1 - z)) / 2,
        "squared": lambda: cp.square(z) / 2,
        "huber": lambda: cp.huber(z) / 2,
    }
    return share @ losses[case.loss]()


def solve(task):
    """Solve a convex problem. Any feasible point is a valid reference, so an inaccurate one only weakens a check."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Solution may be inaccurate")
        task.solve(solver=cp.CLARABEL)


def inside(case, models):
    """The models, scaled into the ball."""
    norms = abs(models).sum(axis=-1, keepdims=True)
    return models * np.minimum(1, case.beta / np.maximum(norms, 1e-300))


def best_models(case, W):
    """Minimise f over all models; returns models of the ball."""
    K, n = len(case.A), len(case.coupling)
    alpha, root = cp.Variable((K, n)), np.sqrt(case.coupling)
    value = sum(W[k].sum() * case.confidence[k] * convex_loss(case, k, alpha[k]) for k in range(K))
    for k, l in zip(*np.nonzero(np.triu(W)), strict=True):
        value += case.mu1 / 2 * W[k, l] * cp.sum_squares(cp.multiply(root, alpha[k] - alpha[l]))
    solve(cp.Problem(cp.Minimize(value), [cp.norm1(alpha[k]) <= case.beta for k in range(K)]))
    return inside(case, alpha.value)


def own_objective(case, alpha, W, k, own):
    """User k's block at the model `own`, divided by its degree."""
    value = case.confidence[k] * local_loss(case, k, own)
    if W[k].any():
        value += case.mu1 / 2 * (case.coupling @ (own - W[k] @ alpha / W[k].sum()) ** 2)
    return value


def best_response(case, alpha, W, k):
    """Minimise user k's block; the other models stay fixed."""
    own = cp.Variable(len(case.coupling))
    value = case.confidence[k] * convex_loss(case, k, own)
    if W[k].any():
        mean = W[k] @ alpha / W[k].sum()
        value += case.mu1 / 2 * cp.sum_squares(cp.multiply(np.sqrt(case.coupling), own - mean))
    solve(cp.Problem(cp.Minimize(value), [cp.norm1(own) <= case.beta]))
    return inside(case, own.value)


def best_graph(case, alpha):
    """Minimise h over all graphs; returns weights >= 0."""
    K = len(alpha)
    k, l = np.triu_indices(K, 1)
    w = cp.Variable(k.size, nonneg=True)
    ends = np.zeros((K, k.size))
    ends[k, np.arange(k.size)] = ends[l, np.arange(k.size)] = 1
    losses = case.confidence * [local_loss(case, user, alpha[user], case.graph_loss) for user in range(K)]
    cost = losses[k] + losses[l] + case.mu1 / 2 * ((alpha[k] - alpha[l]) ** 2 @ case.coupling)
    penalty = case.lam * cp.sum_squares(w)
    if case.target is None:
        penalty -= cp.sum(cp.log(ends @ w + case.delta))
    else:
        penalty += case.l1 * cp.sum(w) + cp.sum_squares(ends @ w - case.target) / 2
    solve(cp.Problem(cp.Minimize(cost @ w + case.mu2 * penalty)))
    W = np.zeros((K, K))
    W[k, l] = W[l, k] = np.maximum(w.value, 0)
    return W
