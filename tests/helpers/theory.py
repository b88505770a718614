"""The gradient of the graph problem and the constants of the paper's theorems."""

import numpy as np

from dada.core.graph_steps import edge_gradient, pair_cost


def graph_gradient(problem, alpha, graph, k, l):
    """dh/dw_kl for the given pairs, Eq. (5)."""
    losses, degree = problem.graph_losses(alpha), graph.degree
    coupling, weights = problem.settings().coupling, graph.to_scipy()
    gradient = []
    for a, b in zip(k, l, strict=True):
        cost = pair_cost(losses[a], losses[b], problem.mu1, float(coupling @ (alpha[a] - alpha[b]) ** 2))
        degrees = degree[a], degree[b]
        gradient.append(edge_gradient(problem.regularizer_code, problem.graph_mu, cost, weights[a, b], *degrees))
    return np.array(gradient)


def curvature_bound(problem, graph):
    """C of Theorem 1 in the l1 geometry: 4 beta^2 sum_k d_k (c_k max|A_k|^2 + mu1 max omega).

    Tighter than the printed bound, which has the squared l1 norm of A_k. It holds for losses whose second derivative
    is at most one, as that of the built-in ones.
    """
    rows = zip(problem.row_start[:-1], problem.row_start[1:], strict=True)
    largest = np.array([abs(problem.A[first:last].astype(float)).max() for first, last in rows])
    per_user = problem.confidence * largest**2 + problem.mu1 * problem.settings().coupling.max()
    return float(4 * problem.beta**2 * (graph.degree @ per_user))


def primal_bound(curvature, initial_gap, n_users, t):
    """Theorem 1: the expected f - f* after t steps of the rule `paper` is at most this."""
    return 2.0 * n_users * (curvature + initial_gap) / (t + 2.0 * n_users)


def graph_rate(regularizer, mu, n_users, kappa):
    """Theorem 2: rho, by which the expected h - h* shrinks per `lipschitz` step."""
    lipschitz = mu * ((kappa + 1) / regularizer.delta**2 + 2 * regularizer.lam)
    return 1.0 - 2.0 * kappa * (2.0 * mu * regularizer.lam) / (n_users * (n_users - 1) * lipschitz)


def expected_new_peers(n_users, kappa, step):
    """Expected number of peers that graph step `step` (1, 2, ...) asks for the first time."""
    return kappa * (1.0 - kappa / (n_users * (n_users - 1))) ** (step - 1)
