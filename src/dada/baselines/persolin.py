"""Perso-lin: collaborative linear models, over a given graph or one learned along with them.

    min over theta of  sum_k d_k c_k L_k(theta_k) + (mu/2) sum_{k<l} w_kl ||theta_k - theta_l||^2,
    L_k(theta) = mean_i log(1 + exp(-y_i theta'(x_i, 1))) + (ridge/2) ||theta||^2.

Users wake by the same schedule as in boosting. Who wakes moves its model by a Newton step on its own block and
sends the whole model, one float per weight, to each neighbour: the ledger counts these floats exactly as it counts the
messages of boosting. The graph is learned by the engine's own kernel, in the phases of the same `Plan`.

Newton steps, because some data (561 correlated features) would take thousands of gradient steps. Their length has a
closed form that never increases the block, as in the boosting step: along a direction the third derivative of the
logistic loss is at most its second times the largest change of a margin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dada.baselines.graph_learner import GraphLearner
from dada.baselines.linear import linear_outcome, linear_values
from dada.baselines.outcome import Outcome, Scores
from dada.core.compiled import Array, kernel
from dada.core.graph import CollaborationGraph
from dada.core.losses import logistic_value
from dada.core.neighbours import NeighbourLists, lists_from_csr
from dada.core.plan import LOCAL_STREAM, MODEL_STREAM, Schedule
from dada.core.problem import disagreement, regularizer_sum
from dada.core.regularizers import LogDegree, Regularizer
from dada.data import Population
from dada.engine import Ledger, Plan
from dada.events import Observer, PhaseStarted, Progress, TracePoint, silent
from dada.task import Task

_NOT_FOR_LINEAR = ("max_neighbours", "keep_nearest", "max_bits", "max_time_s", "gap_tolerance")


@dataclass(frozen=True)
class PersolinSettings:
    """The numbers of collaborative linear models.

    Parameters
    ----------
    plan : Plan
        Updates, phases and the graph step. Its model step and its stops do not concern linear models.
    mu : float
        How much models are drawn to their neighbours'.
    regularizer : Regularizer
        g(w); only where the graph is learned.
    ridge : float
        Penalty on the weights, without which separable data have no best model.
    """

    plan: Plan
    mu: float = 1.0
    regularizer: Regularizer = field(default_factory=LogDegree)
    ridge: float = 1e-3

    def __post_init__(self) -> None:
        if not (self.mu > 0 and self.ridge > 0):
            raise ValueError(f"mu and ridge must be > 0, got mu={self.mu}, ridge={self.ridge}")
        for name in _NOT_FOR_LINEAR:
            if getattr(self.plan, name) is not None:
                raise ValueError(f"{name} is not for linear models, got {getattr(self.plan, name)}: leave it out")


def persolin_oracle(
    task: Task,
    test: Population,
    settings: PersolinSettings,
    rng: np.random.Generator,
    observer: Observer = silent,
    *,
    graph: CollaborationGraph,
) -> Outcome:
    """Collaborative linear models over a graph that is given and stays (Perso-lin-Oracle).

    Parameters
    ----------
    task : Task
        Training data; the base predictors are not used.
    test : Population
        The same users' test data.
    settings : PersolinSettings
        Coupling, penalty, plan.
    rng : numpy.random.Generator
        Chance of the run.
    observer : callable
        Gets the events of the run.
    graph : CollaborationGraph
        Who learns from whom.

    Returns
    -------
    Outcome
        Models are rows of one weight per feature and, last, the intercept. Points of the trace have no `gap` (NaN).

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> everyone = CollaborationGraph.complete(10)
    >>> settings = PersolinSettings(Plan(n_updates=100))
    >>> persolin_oracle(task, users.test, settings, np.random.default_rng(0), graph=everyone).bits
    604800.0
    """
    run = _LinearRun(task, test, settings, rng, observer, graph)
    run.models(settings.plan.n_updates)
    return run.outcome("perso-lin-oracle", task)


def persolin_learned(
    task: Task, test: Population, settings: PersolinSettings, rng: np.random.Generator, observer: Observer = silent
) -> Outcome:
    """Collaborative linear models over a graph learned along with them (Perso-lin-Learned).

    Parameters as in :func:`persolin_oracle`.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> task = Task.of(users.train, Stumps(n=40))
    >>> outcome = persolin_learned(task, users.test, PersolinSettings(Plan(n_updates=100)), np.random.default_rng(0))
    >>> outcome.models.shape, outcome.graph.n_users
    ((10, 21), 10)
    """
    run = _LinearRun(task, test, settings, rng, observer, CollaborationGraph.empty(task.train.n_users))
    for number, phase in enumerate(settings.plan.phases(task.train.n_users)):
        observer(PhaseStarted(phase.kind, phase.events))
        if phase.kind == "local":
            run.alone(phase.events)
        elif phase.kind == "graph":
            run.learner.wake(phase.events, run.data.confidence * run.losses())
        else:
            if number == 2 and settings.plan.restart == "zero":
                run.theta[...] = 0
            run.models(phase.events)
    return run.outcome("perso-lin-learned", task)


class LinearData(NamedTuple):
    """All users' rows with a last column of ones; `gram` holds X_k X_k' of users with fewer rows than weights."""

    X: Array
    y: Array
    row_start: Array
    confidence: Array
    gram: Array
    gram_start: Array


class LinearStep(NamedTuple):
    """What all users share when they update linear models."""

    mu: float
    ridge: float


class _LinearRun:
    """Linear models of a population in the course of a plan."""

    def __init__(
        self,
        task: Task,
        test: Population,
        settings: PersolinSettings,
        rng: np.random.Generator,
        observer: Observer,
        graph: CollaborationGraph,
    ) -> None:
        train = task.train
        self.settings, self.observer = settings, observer
        self.train, self.test = train, test
        self.data = _linear_data(train)
        self.step = LinearStep(settings.mu, settings.ridge)
        self.theta = np.zeros((train.n_users, train.n_features + 1), np.float32)
        # A dense model needs no indices, and log2(1) = 0 bits is what the ledger then charges for them.
        self.ledger = Ledger(n_predictors=1)
        kappa = min(settings.plan.kappa, max(1, train.n_users - 1))
        self.schedule = Schedule.draw(rng, train.n_users, kappa)
        self.learner = GraphLearner(
            self.theta,
            self.schedule,
            mu=settings.mu,
            regularizer=settings.regularizer,
            ledger=self.ledger,
            step=settings.plan.graph_step,
            graph=graph,
        )
        self.updates = 0
        self._points: list[TracePoint] = [self._point()]

    def alone(self, count: int) -> None:
        """Updates without any neighbour, for the first graph."""
        nobody = CollaborationGraph.empty(self.train.n_users)
        lists = lists_from_csr(nobody.indptr, nobody.indices, nobody.weights)
        awake = self.schedule.users(LOCAL_STREAM, 0, count)
        run_linear(self.step, self.data, self.theta, lists, awake, self.ledger.models)

    def models(self, count: int) -> None:
        """Updates over the graph as it stands."""
        plan, end = self.settings.plan, self.updates + count
        every = plan.trace_interval()
        while self.updates < end:
            upto = min(end, self.updates + every - self.updates % every)
            awake = self.schedule.users(MODEL_STREAM, self.updates, upto)
            run_linear(self.step, self.data, self.theta, self.learner.lists, awake, self.ledger.models)
            self.updates = upto
            self.observer(Progress(self.updates, plan.n_updates))
            if self.updates % every == 0:
                self._points.append(self._point())
                self.observer(self._points[-1])

    def losses(self) -> Array:
        """L_k of every user."""
        return linear_losses(self.data, self.settings.ridge, self.theta)

    def outcome(self, name: str, task: Task) -> Outcome:
        """What was learned; the trace ends with the run, also where that fell between two regular points."""
        end = () if self._points[-1].updates == self.updates else (self._point(),)
        models, bits, graph = self.theta.astype(np.float64), self.ledger.bits, self.learner.graph
        return linear_outcome(name, task, self.test, models, bits=bits, trace=(*self._points, *end), graph=graph)

    def _point(self) -> TracePoint:
        graph, mu = self.learner.graph, self.settings.mu
        k, l, w = graph.edges()
        distance = disagreement(self.theta, np.ones(self.theta.shape[1]), k, l, w)
        regularizer = regularizer_sum(self.settings.regularizer.compiled, graph.indptr, graph.weights)
        fit = float(graph.degree @ (self.data.confidence * self.losses()))
        return TracePoint(
            updates=self.updates,
            graph_wakeups=self.learner.wakeups,
            objective=fit + 0.5 * mu * float(distance) + mu * float(regularizer),
            gap=math.nan,
            train_accuracy=self._accuracy(self.train),
            test_accuracy=self._accuracy(self.test),
            edges=graph.n_edges,
            bits=self.ledger.bits,
            graph_bits=self.ledger.graph_bits,
        )

    def _accuracy(self, population: Population) -> Array:
        return Scores.of(population, linear_values(population, self.theta)).per_user.astype(np.float32)


def _linear_data(train: Population) -> LinearData:
    X = np.column_stack([train.X, np.ones(train.n_rows)])
    blocks = [X[train.user_rows(k)] for k in range(train.n_users)]
    grams = [(block @ block.T).ravel() if block.shape[0] < block.shape[1] else np.empty(0) for block in blocks]
    gram_start = np.cumsum([0, *(gram.size for gram in grams)])
    y = train.y.astype(np.float64)
    return LinearData(X, y, train.row_start, train.confidence, np.concatenate(grams), gram_start)


@kernel
def neighbour_mean(theta: Array, lists: NeighbourLists, k: int, mean: Array) -> float:
    """Fill the weighted mean of k's neighbours' models; returns k's degree."""
    degree = 0.0
    mean[:] = 0.0
    for p in range(lists.start[k], lists.start[k] + lists.length[k]):
        w = lists.weights[p]
        degree += w
        for j in range(mean.size):
            mean[j] += w * theta[lists.ids[p], j]
    if degree > 0.0:
        for j in range(mean.size):
            mean[j] /= degree
    return degree


@kernel
def newton_direction(X: Array, curvature: Array, gram: Array, strong: float, gradient: Array) -> Array:
    """-(X' diag(curvature) X + strong I)^-1 gradient, by whichever of the two matrices is smaller."""
    m, D = X.shape
    if m >= D:
        hessian = np.zeros((D, D))
        for i in range(m):
            for j in range(D):
                scaled = curvature[i] * X[i, j]
                for q in range(D):
                    hessian[j, q] += scaled * X[i, q]
        for j in range(D):
            hessian[j, j] += strong
        return -np.linalg.solve(hessian, gradient)
    root = np.sqrt(curvature)
    small = np.empty((m, m))
    right = np.empty(m)
    for i in range(m):
        total = 0.0
        for j in range(D):
            total += X[i, j] * gradient[j]
        right[i] = root[i] * total
        for q in range(m):
            small[i, q] = root[i] * gram[i * m + q] * root[q]
        small[i, i] += strong
    solved = np.linalg.solve(small, right)
    direction = -gradient / strong
    for i in range(m):
        scaled = root[i] * solved[i] / strong
        for j in range(D):
            direction[j] += scaled * X[i, j]
    return direction


@kernel
def newton_step(step: LinearStep, data: LinearData, k: int, mu: float, mean: Array, model: Array) -> None:
    """One descent step on c_k L_k + (mu/2) ||theta - mean||^2, in place."""
    first, last = data.row_start[k], data.row_start[k + 1]
    X, y = data.X[first:last], data.y[first:last]
    m, D = X.shape
    c = data.confidence[k]
    strong = mu + c * step.ridge
    curvature = np.empty(m)
    gradient = mu * (model - mean) + c * step.ridge * model
    for i in range(m):
        margin = 0.0
        for j in range(D):
            margin += X[i, j] * model[j]
        wrong = 1.0 / (1.0 + math.exp(y[i] * margin))
        curvature[i] = c / m * wrong * (1.0 - wrong)
        for j in range(D):
            gradient[j] -= c / m * y[i] * wrong * X[i, j]
    gram = data.gram[data.gram_start[k] : data.gram_start[k + 1]]
    direction = newton_direction(X, curvature, gram, strong, gradient)
    slope = square = growth = 0.0
    for j in range(D):
        slope += gradient[j] * direction[j]
        square += strong * direction[j] * direction[j]
    for i in range(m):
        change = 0.0
        for j in range(D):
            change += X[i, j] * direction[j]
        square += curvature[i] * change * change
        growth = max(growth, abs(change))
    if not (slope < 0.0 and square > 0.0):
        return
    length = -slope / square
    if growth > 1e-12:
        length = math.log1p(growth * length) / growth
    for j in range(D):
        model[j] += length * direction[j]


@kernel
def run_linear(
    step: LinearStep, data: LinearData, theta: Array, lists: NeighbourLists, awake: Array, counts: Array
) -> None:
    """Model updates of the given users in turn, counted as one dense model to each neighbour."""
    D = theta.shape[1]
    mean, model = np.empty(D), np.empty(D)
    for k in awake:
        degree = neighbour_mean(theta, lists, k, mean)
        model[:] = theta[k]
        newton_step(step, data, k, step.mu if degree > 0.0 else 0.0, mean, model)
        theta[k] = model
        counts[0] += lists.length[k]
        counts[1] += lists.length[k] * D


@kernel
def linear_losses(data: LinearData, ridge: float, theta: Array) -> Array:
    """Mean logistic loss and penalty of every user."""
    losses = np.empty(theta.shape[0])
    for k in range(losses.size):
        first, last = data.row_start[k], data.row_start[k + 1]
        total = 0.0
        for i in range(first, last):
            margin = 0.0
            for j in range(theta.shape[1]):
                margin += data.X[i, j] * theta[k, j]
            total += logistic_value(data.y[i] * margin)
        square = 0.0
        for j in range(theta.shape[1]):
            square += np.float64(theta[k, j]) * theta[k, j]
        losses[k] = total / (last - first) + 0.5 * ridge * square
    return losses
