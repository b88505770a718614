"""The model update and the graph step in plain NumPy, to compare the times of `dada bench` with.

    python benchmarks/numpy_reference.py

Every quantity is recomputed from the formulas, in double precision, with dense arrays. Tests compare its models and
weights with those of the kernels.
"""

import json

import numpy as np

from dada.cli.demo import SEED, best_us, moons_problem
from dada.cli.demo_report import demo_settings
from dada.core.plan import GRAPH_STREAM, MODEL_STREAM, Schedule


class NumpyPopulation:
    """Users with dense models and weights.

    Parameters
    ----------
    problem : dada.core.problem.Problem
        With the loss "adaboost", graph_loss "mean" and the regularizer `LogDegree`.
    weights : array of shape (n_users, n_users)
        Symmetric, with a zero diagonal.
    """

    def __init__(self, problem, weights):
        rows = zip(problem.row_start[:-1], problem.row_start[1:], strict=True)
        self.A = [problem.A[first:last].astype(np.float64) for first, last in rows]
        self.confidence, self.beta, self.mu = problem.confidence, problem.beta, problem.mu1
        self.lam, self.delta, self.mu2 = problem.regularizer.lam, problem.regularizer.delta, problem.graph_mu
        self.weights = np.array(weights, dtype=np.float64)
        self.alpha = np.zeros((problem.n_users, problem.n_predictors))

    def update_model(self, k, t):
        """User k's Frank-Wolfe update number t of the run, with the paper's step size."""
        K = len(self.A)
        margins = self.A[k] @ self.alpha[k]
        eta = np.exp(margins.min() - margins)
        eta /= eta.sum()
        degree = self.weights[k].sum()
        neighbours_mean = self.weights[k] @ self.alpha / degree
        gradient = -self.confidence[k] * (eta @ self.A[k]) + self.mu * (self.alpha[k] - neighbours_mean)
        j = np.argmax(np.abs(gradient))
        gamma = 2 * K / (t + 2 * K)
        vertex = -self.beta if gradient[j] > 0 else self.beta
        self.alpha[k] *= 1 - gamma
        self.alpha[k, j] += gamma * vertex

    def loss(self, k):
        """Confidence-weighted loss of user k per sample, as it enters the graph problem."""
        margins = self.A[k] @ self.alpha[k]
        smallest = margins.min()
        return self.confidence[k] * (np.log(np.exp(smallest - margins).mean()) - smallest)

    def update_weights(self, k, batch):
        """User k's exact graph step over a batch of peers: bisection on its new degree."""
        own, losses = self.loss(k), np.array([self.loss(l) for l in batch])
        cost = own + losses + 0.5 * self.mu * ((self.alpha[k] - self.alpha[batch]) ** 2).sum(axis=1)
        rest = self.weights[k].sum() - self.weights[k, batch].sum()
        rho = self.weights[batch].sum(axis=1) - self.weights[k, batch] + self.delta

        def best(degree):
            linear = cost / self.mu2 - 1 / (degree + self.delta) - 2 * self.lam * rho
            root = np.sqrt(linear**2 + 8 * self.lam)
            # Both forms are the same root; each is the accurate one where it is used.
            u = np.where(linear > 0, 2 / (linear + root), (root - linear) / (4 * self.lam))
            return np.maximum(0.0, u - rho)

        low, high = rest, rest + 1.0
        while rest + best(high).sum() > high:
            high = rest + 2 * (high - rest)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if rest + best(middle).sum() > middle else (low, middle)
        new = best((low + high) / 2)
        self.weights[k, batch] = self.weights[batch, k] = new


def model_update_us(problem, graph, updates=2000):
    """Microseconds per model update."""
    users = Schedule(SEED, problem.n_users, 1).users(MODEL_STREAM, 0, updates)
    population = NumpyPopulation(problem, graph.to_scipy().toarray())

    def work():
        for t, k in enumerate(users):
            population.update_model(int(k), t)

    return best_us(work, updates, repetitions=2)


def graph_step_us(problem, kappa, wakeups=500):
    """Microseconds per graph wake-up."""
    schedule = Schedule(SEED, problem.n_users, kappa)
    users, batches = schedule.users(GRAPH_STREAM, 0, wakeups), schedule.batches(0, wakeups)
    population = NumpyPopulation(problem, np.zeros((problem.n_users, problem.n_users)))

    def work():
        for k, batch in zip(users, batches, strict=True):
            population.update_weights(int(k), batch)

    return best_us(work, wakeups, repetitions=2)


def main():
    kappa = demo_settings("dada-learned").plan.kappa
    times = {
        "model_update_us": model_update_us(*moons_problem("dada-oracle", 100)),
        "graph_step_us": graph_step_us(moons_problem("dada-learned", 100)[0], kappa),
    }
    print(json.dumps(times, indent=2))


if __name__ == "__main__":
    main()
