"""Small random problems, graphs and models, losses of a user's own, and the objective written out in NumPy."""

import numpy as np
from numpy.testing import assert_allclose

from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import DegreeFunction
from dada.core.losses import Loss
from dada.core.problem import Problem


def steep_value(z):
    return np.log1p(np.exp(-2.0 * z)) if z > 0 else np.log1p(np.exp(2.0 * z)) - 2.0 * z


def steep_slope(z):
    return -2.0 / (1.0 + np.exp(2.0 * z))


def forty(z):
    return 40.0


def exponential(z):
    return np.exp(-z)


def exponential_slope(z):
    return -np.exp(-z)


# log(1 + exp(-2 z)), with 40 as the bound of a second derivative that never exceeds 1: true, but loose.
STEEP = Loss("steep-logistic", steep_value, steep_slope, forty)
# Each derivative is as large as the one before, so the growth is one.
EXPONENTIAL = Loss("exponential", exponential, exponential_slope, exponential, growth=1.0)

LOSSES = ("adaboost", "logistic", "squared-hinge", "squared", "huber", STEEP, EXPONENTIAL)


def loss_in_numpy(loss, margins, weights=None):
    """The loss of one user whose samples have the given weights; those of Eq. (2) are one on average."""
    weights = np.ones(len(margins)) if weights is None else weights
    if loss == "adaboost":
        return np.logaddexp.reduce(np.log(weights / weights.mean()) - margins)
    pointwise = {
        "logistic": lambda z: np.logaddexp(0.0, -z),
        "squared-hinge": lambda z: 0.5 * np.maximum(0.0, 1.0 - z) ** 2,
        "squared": lambda z: 0.5 * z**2,
        "huber": lambda z: np.where(np.abs(z) <= 1, 0.5 * z**2, np.abs(z) - 0.5),
        STEEP: lambda z: np.logaddexp(0.0, -2.0 * z),
        EXPONENTIAL: lambda z: np.exp(-z),
    }
    return np.average(pointwise[loss](margins), weights=weights)


def random_problem(
    rng,
    n_users=5,
    n=6,
    most_samples=5,
    beta=2.0,
    mu1=0.7,
    dtype=np.float64,
    shifted=False,
    weighted=False,
    **settings,
):
    """Users of at least one sample each, for runs in the given precision.

    `shifted` gives margins an offset, `weighted` gives samples weights.

    Kernels take long to compile, so tests keep to two kinds: in single precision margins are -1, 0 or 1 as int8, in
    double precision they are real numbers, half of them -1 or 1.
    """
    sizes = rng.integers(1, most_samples + 1, n_users)
    shape = sizes.sum(), n
    A = rng.choice(np.array([-1, 0, 1], np.int8), size=shape, p=[0.35, 0.05, 0.6])
    if dtype == np.float64:
        A = A * np.where(rng.random(shape) < 0.5, 1.0, rng.normal(size=shape))
    if shifted:
        settings["offset"] = rng.normal(size=shape[0]).astype(np.float32).astype(np.float64)
    if weighted:
        settings["weights"] = rng.exponential(size=shape[0])
    return Problem(A, np.concatenate([[0], np.cumsum(sizes)]), beta=beta, mu1=mu1, **settings)


def random_graph(rng, n_users, density=0.6):
    k, l = np.triu_indices(n_users, 1)
    kept = rng.random(k.size) < density
    return CollaborationGraph.from_edges(n_users, k[kept], l[kept], rng.exponential(size=kept.sum()))


def random_models(rng, problem, density=0.5):
    """Models of the l1 ball, some on its surface, some of them zero."""
    shape = problem.n_users, problem.n_predictors
    alpha = rng.normal(size=shape) * (rng.random(shape) < density)
    norm = np.maximum(np.abs(alpha).sum(axis=1, keepdims=True), 1e-12)
    return alpha * (problem.beta * np.minimum(1.0, rng.uniform(0.3, 1.5, (shape[0], 1))) / norm)


def rows_of(problem, k):
    return problem.A[problem.row_start[k] : problem.row_start[k + 1]].astype(np.float64)


def margins_in_numpy(problem, k, own):
    offset = 0.0 if problem.offset is None else problem.offset[problem.row_start[k] : problem.row_start[k + 1]]
    return offset + rows_of(problem, k) @ own


def weights_of(problem, k):
    return None if problem.weights is None else problem.weights[problem.row_start[k] : problem.row_start[k + 1]]


def block_in_numpy(problem, graph, alpha, k, own):
    """User k's block of the model problem, divided by its degree, at the model `own`."""
    local = loss_in_numpy(problem.loss, margins_in_numpy(problem, k, own), weights_of(problem, k))
    value = problem.confidence[k] * local
    neighbours, weights = graph.neighbours(k)
    if neighbours.size == 0:
        return value
    mean = weights @ alpha[neighbours] / weights.sum()
    coupling = np.ones(own.size) if problem.coupling is None else problem.coupling
    return value + 0.5 * problem.mu1 * (coupling @ (own - mean) ** 2)


def inverse(degree):
    return 1.0 / (0.5 + degree)


def inverse_slope(degree):
    return -1.0 / (0.5 + degree) ** 2


def inverse_curvature(degree):
    return 2.0 / (0.5 + degree) ** 3


INVERSE_DEGREE = DegreeFunction(inverse, inverse_slope, inverse_curvature, lam=0.2)


def check_model_gradient(problem, graph, alpha):
    """Assert that the gradient of the models is that of their objective, by central differences."""
    gradient = graph.degree[:, None] * problem.model_gradient(alpha, graph)
    for k in range(problem.n_users):
        for j in range(problem.n_predictors):
            step = np.zeros_like(alpha)
            step[k, j] = 1e-5
            ahead, behind = (problem.model_objective(alpha + sign * step, graph) for sign in (1, -1))
            assert_allclose(gradient[k, j], (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-7)
