"""The optima of the two convex problems, by a general solver."""

import cvxpy as cp
import numpy as np

from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import DegreeTarget, LogDegree
from tests.helpers.problems import margins_in_numpy, weights_of


def best_models(problem, graph):
    """(f*, models) of the model problem on a given graph; the loss is that of Eq. (2) for adaboost."""
    K, n = problem.n_users, problem.n_predictors
    alpha = cp.Variable((K, n))
    coupling = np.ones(n) if problem.coupling is None else problem.coupling
    losses = {
        "adaboost": lambda z, share: cp.log_sum_exp(np.log(share * z.size) - z),
        "logistic": lambda z, share: share @ cp.logistic(-z),
        "squared-hinge": lambda z, share: share @ cp.square(cp.pos(1 - z)) / 2,
        "huber": lambda z, share: share @ cp.huber(z) / 2,
    }
    value = 0.0
    for k in range(K):
        weights = np.ones(problem.sizes[k]) if problem.weights is None else weights_of(problem, k)
        local = losses[problem.loss](margins_in_numpy(problem, k, alpha[k]), weights / weights.sum())
        value += graph.degree[k] * problem.confidence[k] * local
    for k, l, w in zip(*graph.edges(), strict=True):
        value += problem.mu1 / 2 * w * cp.sum_squares(cp.multiply(np.sqrt(coupling), alpha[k] - alpha[l]))
    ball = [cp.norm1(alpha[k]) <= problem.beta for k in range(K)]
    task = cp.Problem(cp.Minimize(value), ball)
    task.solve(solver=cp.CLARABEL)
    return task.value, alpha.value


def best_graph(problem, alpha):
    """(h*, graph) of the graph problem for given models."""
    K = problem.n_users
    k, l = np.triu_indices(K, 1)
    w = cp.Variable(k.size, nonneg=True)
    ends = np.zeros((K, k.size))
    ends[k, np.arange(k.size)] = ends[l, np.arange(k.size)] = 1
    degree, reg = ends @ w, problem.regularizer
    losses = problem.graph_losses(alpha)
    coupling = np.ones(alpha.shape[1]) if problem.coupling is None else problem.coupling
    cost = losses[k] + losses[l] + problem.mu1 / 2 * ((alpha[k] - alpha[l]) ** 2 @ coupling)
    if isinstance(reg, LogDegree):
        value = -cp.sum(cp.log(degree + reg.delta))
    elif isinstance(reg, DegreeTarget):
        value = cp.sum_squares(degree - reg.target) / 2 + reg.l1 * cp.sum(w)
    else:
        value = cp.sum(cp.inv_pos(degree + 0.5))
    value += reg.lam * cp.sum_squares(w)
    task = cp.Problem(cp.Minimize(cost @ w + problem.graph_mu * value))
    task.solve(solver=cp.CLARABEL)
    kept = w.value > 1e-7
    return task.value, CollaborationGraph.from_edges(K, k[kept], l[kept], w.value[kept])
