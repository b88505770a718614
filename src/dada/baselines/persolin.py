"""Perso-lin: collaborative linear models, over a given graph or one learned along with them.

    min over theta of  sum_k d_k c_k L_k(theta_k) + (mu/2) sum_{k<l} w_kl ||theta_k - theta_l||^2,
    L_k(theta) = mean_i log(1 + exp(-y_i theta'(x_i, 1))) + (ridge/2) ||theta||^2.

Users wake on the schedule of boosting. An update is a Newton step on the user's own block; the user then sends its
whole model, one float per weight, to each neighbour, and the ledger counts these floats. The graph is learned by the
engine's `DistanceRule`, in the phases of the same `Plan`.

Newton steps are used because correlated features (561 in HARWS) would need thousands of gradient steps. Their length
has a closed form that never increases the block: along a direction, the third derivative of the logistic loss is at
most its second derivative times the largest change of a margin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dada.baselines.boosting import MethodResult, accuracies
from dada.baselines.classical import linear_result, linear_values
from dada.core.bits import FLOATS, MESSAGES, dense_model_cost, graph_reply_cost, weight_cost
from dada.core.compiled import Array, kernel
from dada.core.graph import CollaborationGraph, NeighbourLists, lists_from_csr
from dada.core.graph_steps import LogDegree, Regularizer
from dada.core.plan import GRAPH_STREAM, LOCAL_STREAM, MODEL_STREAM, Schedule
from dada.core.problem import Problem, margins_of_labels
from dada.data import Population
from dada.engine import Ledger, Plan
from dada.engine.graph_loops import DistanceRule
from dada.engine.state import State
from dada.events import TracePoint

_NOT_FOR_LINEAR = ("max_neighbours", "max_bits", "max_time_s", "gap_tolerance")


@dataclass(frozen=True)
class PersolinSettings:
    """Settings of collaborative linear models.

    The model step and the stops of the plan do not apply. `mu` is the strength of the coupling between neighbours,
    `regularizer` is g(w) of learned graphs, and `ridge` penalises weights: without it separable data have no optimum.
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


def persolin(
    train: Population,
    test: Population,
    settings: PersolinSettings,
    rng: np.random.Generator,
    *,
    graph: CollaborationGraph | None = None,
) -> MethodResult:
    """Collaborative linear models; parameters as in :func:`dada.baselines.boosting.boost`.

    A given graph stays fixed (Perso-lin-Oracle); by default it is learned along with the models (Perso-lin-Learned).
    A model is a row of one weight per feature, then the intercept. Trace points have no `gap` (NaN).

    Examples
    --------
    >>> from dada.data import moons
    >>> users = moons(0, n_users=10, n_test=5)
    >>> settings, graph = PersolinSettings(Plan(n_updates=100)), CollaborationGraph.complete(10)
    >>> persolin(users.train, users.test, settings, np.random.default_rng(0), graph=graph).bits
    604800.0
    >>> persolin(users.train, users.test, settings, np.random.default_rng(0)).models.shape
    (10, 21)
    """
    n_users, plan = train.n_users, settings.plan
    run = _LinearRun(train, test, settings, rng, graph or CollaborationGraph.empty(n_users))
    if graph is not None:
        run.models(plan.n_updates)
        return run.result()
    for number, phase in enumerate(plan.phases(n_users)):
        if phase.kind == "local":
            run.alone(phase.events)
        elif phase.kind == "graph":
            run.graph(phase.events)
        else:
            if number == 2 and plan.restart == "zero":
                run.theta[...] = 0
            run.models(phase.events)
    return run.result()


def wake_graph(learner: DistanceRule, state: State, schedule: Schedule, count: int) -> None:
    """Make the next `count` graph wake-ups of a schedule; models stay frozen.

    The caller sets `learner.losses`, the confidence-weighted loss of every user.
    """
    start, done = state.graph_wakeups, 0
    awake = schedule.users(GRAPH_STREAM, start, start + count)
    batches = schedule.batches(start, start + count)
    random_bits = schedule.random_bits(start, start + count, learner.mix.n_draws)
    while done < count:
        done += learner.wake(state, awake[done:], batches[done:], random_bits[done:])
    state.graph_wakeups += count


class LinearData(NamedTuple):
    """All rows with a last column of ones; `gram` holds X_k X_k' of users with fewer rows than weights."""

    X: Array
    y: Array
    row_start: Array
    confidence: Array
    gram: Array
    gram_start: Array

    @classmethod
    def of(cls, train: Population) -> LinearData:
        """The data of a population."""
        X = np.column_stack([train.X, np.ones(train.n_rows)])
        blocks = [X[train.user_rows(k)] for k in range(train.n_users)]
        grams = [(block @ block.T).ravel() if block.shape[0] < block.shape[1] else np.empty(0) for block in blocks]
        gram_start = np.cumsum([0, *(gram.size for gram in grams)])
        y = train.y.astype(np.float64)
        return cls(X, y, train.row_start, train.confidence, np.concatenate(grams), gram_start)


class _LinearRun:
    """Linear models of a population during a plan. Their base predictors are the features and a constant."""

    def __init__(
        self,
        train: Population,
        test: Population,
        settings: PersolinSettings,
        rng: np.random.Generator,
        graph: CollaborationGraph,
    ) -> None:
        n_users = train.n_users
        self.train, self.test, self.settings = train, test, settings
        self.data = LinearData.of(train)
        margins, regularizer = margins_of_labels(self.data.X, self.data.y), settings.regularizer
        # The bound beta applies to boosting only.
        self.problem = Problem(
            margins, self.data.row_start, beta=1.0, mu1=settings.mu, regularizer=regularizer, loss="logistic"
        )
        plan = replace(settings.plan, kappa=min(settings.plan.kappa, max(1, n_users - 1)), sampler="uniform")
        self.schedule = Schedule.draw(rng, n_users, plan.kappa)
        self.learner = DistanceRule(self.problem, plan, np.dtype(np.float32))
        self.state = State.start(self.problem, plan, graph, np.float32)
        # A dense model needs no indices; with n = 1 an index costs log2(1) = 0 bits.
        self.state.ledger = Ledger(n_predictors=1)
        self.theta = self.state.users.alpha
        self.points = [self.point()]

    def alone(self, count: int) -> None:
        """Update models without neighbours, for the first graph."""
        nobody = CollaborationGraph.empty(self.problem.n_users)
        self._update(LOCAL_STREAM, 0, count, lists_from_csr(nobody.indptr, nobody.indices, nobody.weights))

    def graph(self, count: int) -> None:
        """Update the graph."""
        state = self.state
        state.use_models(self.problem, self.theta.copy())
        self.learner.losses = self.problem.graph_losses(self.theta) + self.penalties()
        wake_graph(self.learner, state, self.schedule, count)
        # For each peer: degree, loss, the new weight, and the whole model, including its zeros.
        floats = graph_reply_cost(0, False).floats + weight_cost().floats + dense_model_cost(self.theta.shape[1]).floats
        state.ledger.graph[FLOATS:] = state.graph_wakeups * self.schedule.kappa * floats, 0

    def models(self, count: int) -> None:
        """Update models over the current graph."""
        state, plan, end = self.state, self.settings.plan, self.state.updates + count
        every = plan.trace_interval()
        while state.updates < end:
            upto = min(end, state.updates + every - state.updates % every)
            self._update(MODEL_STREAM, state.updates, upto, state.lists)
            state.updates = upto
            if state.updates % every == 0:
                self.points.append(self.point())

    def _update(self, stream: int, start: int, end: int, lists: NeighbourLists) -> None:
        awake = self.schedule.users(stream, start, end)
        run_linear(self.settings.mu, self.settings.ridge, self.data, self.theta, lists, awake, self.state.ledger.models)

    def penalties(self) -> Array:
        """Ridge penalty of every model, weighted by confidence."""
        squares = (self.theta.astype(np.float64) ** 2).sum(axis=1)
        return 0.5 * self.settings.ridge * self.problem.confidence * squares

    def point(self) -> TracePoint:
        """A trace point of the current state."""
        state, graph = self.state, self.state.graph
        return TracePoint(
            updates=state.updates,
            graph_wakeups=state.graph_wakeups,
            objective=self.problem.objective(self.theta, graph) + float(graph.degree @ self.penalties()),
            gap=math.nan,
            train_accuracy=self._accuracy(self.train),
            test_accuracy=self._accuracy(self.test),
            edges=graph.n_edges,
            bits=state.ledger.bits,
            graph_bits=state.ledger.graph_bits,
        )

    def _accuracy(self, population: Population) -> Array:
        return accuracies(population, linear_values(population, self.theta))[0].astype(np.float32)

    def result(self) -> MethodResult:
        """The result; the trace always ends at the last update."""
        state = self.state
        end = () if self.points[-1].updates == state.updates else (self.point(),)
        models, trace = self.theta.astype(np.float64), (*self.points, *end)
        return linear_result(self.train, self.test, models, bits=state.ledger.bits, trace=trace, graph=state.graph)


@kernel
def neighbour_mean(theta: Array, lists: NeighbourLists, k: int, mean: Array) -> float:
    """Write the weighted mean of the models of k's neighbours to `mean`; return k's degree."""
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
    """-(X' diag(curvature) X + strong I)^-1 gradient, solved with the smaller of X'X and XX'."""
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
def newton_step(data: LinearData, k: int, mu: float, ridge: float, mean: Array, model: Array) -> None:
    """One descent step on c_k L_k + (mu/2) ||theta - mean||^2, in place."""
    first, last = data.row_start[k], data.row_start[k + 1]
    X, y = data.X[first:last], data.y[first:last]
    m, D = X.shape
    c = data.confidence[k]
    strong = mu + c * ridge
    curvature = np.empty(m)
    gradient = mu * (model - mean) + c * ridge * model
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
    mu: float, ridge: float, data: LinearData, theta: Array, lists: NeighbourLists, awake: Array, counts: Array
) -> None:
    """Update the models of the given users in order; each update sends one dense model to each neighbour."""
    D = theta.shape[1]
    mean, model = np.empty(D), np.empty(D)
    for k in awake:
        degree = neighbour_mean(theta, lists, k, mean)
        model[:] = theta[k]
        newton_step(data, k, mu if degree > 0.0 else 0.0, ridge, mean, model)
        theta[k] = model
        cost = dense_model_cost(D)
        counts[MESSAGES] += lists.length[k] * cost.messages
        counts[FLOATS] += lists.length[k] * cost.floats
