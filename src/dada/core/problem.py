"""The joint problem: objective J, its gradients, certificates, and the constants of the paper's theorems.

    J(alpha, w) = sum_k d_k c_k L_k(alpha_k) + (mu1/2) sum_{k<l} w_kl ||alpha_k - alpha_l||^2 + mu2 g(w)        (1)

All values here are computed in double precision from models and graph alone, whatever a run keeps in single precision:
they certify a run rather than repeat its bookkeeping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from dada.core.compiled import Array, kernel
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import edge_gradient
from dada.core.losses import (
    ALL_ALIKE,
    GRAPH_LOSSES,
    REGRESSION,
    Loss,
    LossCode,
    check_weights,
    loss_and_weights,
    loss_code,
    loss_for_graph,
    relative_weights,
)
from dada.core.model_steps import ModelSettings, UserModel, block_gradient
from dada.core.regularizers import LogDegree, Regularizer, RegularizerCode, degree_value, weight_value


@dataclass(frozen=True, eq=False)
class Problem:
    """One population's learning problem.

    Parameters
    ----------
    A : array of shape (rows, n_predictors)
        Margins y_i h_j(x_i) of the base predictors, rows grouped by user; int8 where they are -1, 0 or 1.
    row_start : array of shape (n_users + 1,)
        User k's samples are the rows ``row_start[k]:row_start[k+1]``; at least one each.
    loss : str or Loss
        "adaboost" (the paper's), "logistic", "squared-hinge"; "squared" or "huber" for regression; or your own.
    beta : float
        Bound on the l1 norm of every model.
    mu1 : float
        How much a model is drawn to its neighbours'. 0 is learning alone.
    mu2 : float, optional
        Weight of the graph regularizer; as mu1 where not given.
    regularizer : LogDegree, DegreeTarget or DegreeFunction
        g(w).
    graph_loss : {"mean", "paper", "logistic"}
        Which value of a user's loss enters the graph problem: per sample, Eq. (2) as printed, or never negative.
    coupling : array of shape (n_predictors,), optional
        omega_j: how much predictor j is coupled to the neighbours'; 1 where not given.
    offset : array of shape (rows,), optional
        Margins at a zero model. For regression, minus the targets: margins are then residuals, and A holds the base
        predictions themselves.
    weights : array of shape (rows,), optional
        How much each row counts within its user's loss; all alike where not given. Only their ratios within a user
        matter: confidences are those of numbers of rows.

    Examples
    --------
    >>> problem = Problem(np.array([[1], [-1], [1]], np.int8), np.array([0, 1, 3]), beta=2.0, mu1=1.0)
    >>> problem.confidence.tolist()
    [0.5, 1.0]
    >>> graph = CollaborationGraph.from_edges(2, [0], [1], [1.0])
    >>> float(problem.model_gap(np.zeros((2, 1)), graph))  # user 0 gains from its predictor, user 1 cannot
    1.0
    """

    A: Array
    row_start: Array
    beta: float
    mu1: float
    mu2: float | None = None
    loss: str | Loss = "adaboost"
    regularizer: Regularizer = field(default_factory=LogDegree)
    graph_loss: str = "mean"
    coupling: Array | None = None
    offset: Array | None = None
    weights: Array | None = None

    def __post_init__(self) -> None:
        if not 0 < self.beta < math.inf:
            raise ValueError(f"beta must be > 0 and finite (it bounds the l1 norm of a model), got {self.beta}")
        if not 0 <= self.mu1 < math.inf:
            raise ValueError(f"mu must be >= 0 and finite, got {self.mu1}")
        if self.mu2 is not None and not 0 < self.mu2 < math.inf:
            raise ValueError(f"mu2 must be > 0 and finite, got {self.mu2}")
        if self.graph_loss not in GRAPH_LOSSES:
            raise ValueError(f"graph_loss must be one of {sorted(GRAPH_LOSSES)}, got {self.graph_loss!r}")
        self._check_rows()
        if self.weights is not None:
            check_weights(self.weights, int(self.row_start[-1]))
        if self.coupling is not None and not (
            self.coupling.shape == (self.n_predictors,)
            and (self.coupling >= 0).all()
            and np.isfinite(self.coupling).all()
        ):
            raise ValueError(
                f"coupling must be {self.n_predictors} finite numbers >= 0, got shape {self.coupling.shape}"
            )
        loss_code(self.loss)
        if self.loss in REGRESSION and self.graph_loss == "logistic":
            raise ValueError(f"graph_loss 'logistic' is for classification, got it with the loss {self.loss!r}")

    def _check_rows(self) -> None:
        rows, shape = self.row_start, self.A.shape
        covers = len(shape) == 2 and rows.size > 1 and rows[0] == 0 and rows[-1] == shape[0]
        if not covers or (np.diff(rows) < 1).any():
            raise ValueError("A must have one row per sample and every user at least one sample")
        if self.n_predictors < 1:
            raise ValueError("A must have a column for each base predictor, at least one")
        if not np.isfinite(self.A).all():
            raise ValueError("A must be finite, got NaN or infinity")
        if self.offset is not None and not (self.offset.shape == (shape[0],) and np.isfinite(self.offset).all()):
            raise ValueError(f"offset must be one finite number per row of A, got shape {self.offset.shape}")

    @property
    def n_users(self) -> int:
        """K."""
        return int(self.row_start.size - 1)

    @property
    def n_predictors(self) -> int:
        """n."""
        return int(self.A.shape[1])

    @cached_property
    def sizes(self) -> Array:
        """m_k, the number of samples of each user."""
        return np.diff(self.row_start)

    @cached_property
    def confidence(self) -> Array:
        """c_k = m_k / max_l m_l."""
        return self.sizes / self.sizes.max()

    @cached_property
    def offsets(self) -> Array:
        """What the margins of each row are at a zero model: nothing, or the given offset."""
        return np.zeros(self.A.shape[0]) if self.offset is None else self.offset.astype(np.float64)

    @cached_property
    def sample_weight(self) -> Array:
        """The weights as kernels take them, one on average for each user; empty where all rows count alike."""
        return ALL_ALIKE if self.weights is None else relative_weights(self.weights, self.row_start)

    def of_rows(self, rows: Array | slice, row_start: Array) -> Self:
        """The problem of some rows only, of which each user's lie between the given starts."""
        offset, weights = (None if values is None else values[rows] for values in (self.offset, self.weights))
        return replace(self, A=self.A[rows], row_start=row_start, offset=offset, weights=weights)

    @cached_property
    def loss_code(self) -> LossCode:
        """The loss as kernels take it."""
        return loss_code(self.loss)

    @property
    def regularizer_code(self) -> RegularizerCode:
        """The graph regularizer as kernels take it."""
        return self.regularizer.compiled

    @property
    def graph_mu(self) -> float:
        """mu2, the weight of g(w)."""
        return float(self.mu1 if self.mu2 is None else self.mu2)

    def settings(self, dtype: type | np.dtype[np.floating] = np.float64) -> ModelSettings:
        """What kernels need to update models in the given precision."""
        coupling = np.ones(self.n_predictors) if self.coupling is None else self.coupling
        return ModelSettings(self.loss_code, float(self.beta), float(self.mu1), coupling.astype(dtype))

    @property
    def rows_name(self) -> str:
        """What tells rows that are not in A from others; empty where all are."""
        return ""

    def margins(self, alpha: Array) -> Array:
        """offset_k + A_k alpha_k of all users, row by row."""
        return margins_of(self.A, self.row_start, self.offsets, self._fitting(alpha))

    def graph_losses(self, alpha: Array) -> Array:
        """c_k times the loss of each user as it enters the graph problem."""
        return self._losses(alpha, self.graph_loss)

    def objective(self, alpha: Array, graph: CollaborationGraph) -> float:
        """J(alpha, w), Eq. (1); a directed graph has no regularizer, and its f counts every arc."""
        if graph.directed:
            return self.model_objective(alpha, graph)
        return self.model_objective(alpha, graph) + self.graph_mu * self.regularizer_value(graph)

    def model_objective(self, alpha: Array, graph: CollaborationGraph) -> float:
        """f(alpha): the terms of J that depend on the models."""
        # The loss that models minimise, whichever one decides on the graph; Eq. (2) is it up to a constant.
        losses = self._losses(alpha, "paper" if self.graph_loss == "paper" else "mean")
        return float(graph.degree @ losses + 0.5 * self.mu1 * self._disagreement(alpha, graph))

    def graph_objective(self, alpha: Array, graph: CollaborationGraph) -> float:
        """h(w): J as a function of the graph, with the loss that decides on it."""
        own = graph.degree @ self.graph_losses(alpha) + 0.5 * self.mu1 * self._disagreement(alpha, graph)
        return float(own) + self.graph_mu * self.regularizer_value(graph)

    def regularizer_value(self, graph: CollaborationGraph) -> float:
        """g(w)."""
        return float(regularizer_sum(self.regularizer_code, graph.indptr, graph.weights))

    def model_gradient(self, alpha: Array, graph: CollaborationGraph) -> Array:
        """Gradient of f divided by d_k in block k, Eq. (4) (a user without neighbours: of its local problem)."""
        if graph.n_users != self.n_users:
            raise ValueError(f"the graph has {graph.n_users} users, the problem {self.n_users}")
        return model_gradients(
            self.settings(),
            self.A,
            self.row_start,
            self.offsets,
            self.sample_weight,
            self.confidence,
            np.ascontiguousarray(self._fitting(alpha), np.float64),
            graph.indptr,
            graph.indices,
            graph.weights,
        )

    def model_gaps(self, alpha: Array, graph: CollaborationGraph) -> Array:
        """Frank-Wolfe gap of every user's block, divided by d_k."""
        gradient = self.model_gradient(alpha, graph)
        gaps: Array = (gradient * alpha).sum(axis=1) + self.beta * abs(gradient).max(axis=1)
        return gaps

    def model_gap(self, alpha: Array, graph: CollaborationGraph) -> float:
        """sum_k d_k gap_k >= f(alpha) - f*: the certificate of the models.

        A user without neighbours counts once, though not in f: its local problem is to be solved too.
        """
        return float(np.where(graph.degree > 0, graph.degree, 1.0) @ self.model_gaps(alpha, graph))

    def graph_gradient(self, alpha: Array, graph: CollaborationGraph, k: Array, l: Array) -> Array:
        """dh/dw_kl for the given pairs, Eq. (5)."""
        losses, degree = self.graph_losses(alpha), graph.degree
        coupling = self.settings().coupling
        weights = graph.to_scipy()
        gradient = np.empty(len(k))
        for p, (a, b) in enumerate(zip(k, l, strict=True)):
            dist2 = float(coupling @ (alpha[a].astype(np.float64) - alpha[b]) ** 2)
            cost = losses[a] + losses[b] + 0.5 * self.mu1 * dist2
            gradient[p] = edge_gradient(
                self.regularizer_code, self.graph_mu, cost, float(weights[a, b]), degree[a], degree[b]
            )
        return gradient

    def curvature_bound(self, graph: CollaborationGraph) -> float:
        """C of Theorem 1 in the l1 geometry: 4 beta^2 sum_k d_k (c_k max|A_k|^2 + mu1 max omega).

        Tighter than the printed bound, which has the squared l1 norm of A_k. It holds for losses whose second
        derivative is at most one, as that of the built-in ones.
        """
        largest = np.array(
            [abs(self.A[a:b].astype(float)).max() for a, b in zip(self.row_start[:-1], self.row_start[1:], strict=True)]
        )
        per_user = self.confidence * largest**2 + self.mu1 * self.settings().coupling.max()
        return float(4 * self.beta**2 * (graph.degree @ per_user))

    def _losses(self, alpha: Array, kind: str) -> Array:
        values = losses_for_graph(
            GRAPH_LOSSES[kind], self.loss_code, self.margins(alpha), self.sample_weight, self.row_start
        )
        return self.confidence * values

    def _fitting(self, alpha: Array) -> Array:
        if alpha.shape != (self.n_users, self.n_predictors):
            raise ValueError(f"models must have shape {(self.n_users, self.n_predictors)}, got {alpha.shape}")
        return alpha

    def _disagreement(self, alpha: Array, graph: CollaborationGraph) -> float:
        k, l, w = graph.edges()
        coupling = self.settings().coupling
        return float(disagreement(np.ascontiguousarray(alpha), coupling, k, l, w))


def primal_bound(curvature: float, initial_gap: float, n_users: int, t: int) -> float:
    """Theorem 1: the expected f - f* after t steps of the rule `paper` is at most this."""
    return 2.0 * n_users * (curvature + initial_gap) / (t + 2.0 * n_users)


def graph_rate(regularizer: LogDegree, mu: float, n_users: int, kappa: int) -> float:
    """Theorem 2: rho, by which the expected h - h* shrinks per `lipschitz` step.

    >>> 0 < graph_rate(LogDegree(lam=1.0, delta=1.0), 1.0, n_users=10, kappa=1) < 1
    True
    """
    lipschitz = mu * ((kappa + 1) / regularizer.delta**2 + 2 * regularizer.lam)
    return 1.0 - 2.0 * kappa * (2.0 * mu * regularizer.lam) / (n_users * (n_users - 1) * lipschitz)


def expected_new_peers(n_users: int, kappa: int, step: int) -> float:
    """Expected number of peers that graph step `step` (1, 2, ...) asks for the first time."""
    return float(kappa * (1.0 - kappa / (n_users * (n_users - 1))) ** (step - 1))


@kernel
def margins_of(A: Array, row_start: Array, offset: Array, alpha: Array) -> Array:
    """offset_k + A_k alpha_k for all users, one after the other."""
    margins = np.empty(A.shape[0])
    for k in range(row_start.size - 1):
        for i in range(row_start[k], row_start[k + 1]):
            total = np.float64(offset[i])
            for j in range(A.shape[1]):
                if alpha[k, j] != 0.0:
                    total += np.float64(A[i, j]) * alpha[k, j]
            margins[i] = total
    return margins


@kernel
def losses_for_graph(kind: int, loss: LossCode, margins: Array, sample_weight: Array, row_start: Array) -> Array:
    """The loss of each user that enters the graph problem."""
    values = np.empty(row_start.size - 1)
    scratch = np.empty_like(margins)
    for k in range(values.size):
        rows = slice(row_start[k], row_start[k + 1])
        values[k] = loss_for_graph(kind, loss, margins[rows], sample_weight[rows], scratch[rows])
    return values


@kernel
def regularizer_sum(reg: RegularizerCode, indptr: Array, weights: Array) -> float:
    """g(w) from compressed rows, in which every edge stands twice."""
    total = 0.0
    for k in range(indptr.size - 1):
        degree = 0.0
        for p in range(indptr[k], indptr[k + 1]):
            degree += weights[p]
            total += 0.5 * weight_value(reg, weights[p])
        total += degree_value(reg, degree)
    return total


@kernel
def disagreement(alpha: Array, coupling: Array, k: Array, l: Array, w: Array) -> float:
    """sum over edges of w_kl ||alpha_k - alpha_l||^2."""
    total = 0.0
    for e in range(k.size):
        distance = 0.0
        for j in range(alpha.shape[1]):
            difference = np.float64(alpha[k[e], j]) - alpha[l[e], j]
            distance += coupling[j] * difference * difference
        total += w[e] * distance
    return total


@kernel
def model_gradients(
    settings: ModelSettings,
    A: Array,
    row_start: Array,
    offset: Array,
    sample_weight: Array,
    confidence: Array,
    alpha: Array,
    indptr: Array,
    indices: Array,
    weights: Array,
) -> Array:
    """Blocks of the gradient of f, each divided by its degree, of users that have rows; alpha may hold more models."""
    K, n = row_start.size - 1, alpha.shape[1]
    gradient = np.empty((K, n))
    neighbour_sum = np.empty(n)
    margins = margins_of(A, row_start, offset, alpha)
    eta = np.empty_like(margins)
    support = np.empty(0, np.int32)
    for k in range(K):
        rows = slice(row_start[k], row_start[k + 1])
        neighbour_sum[:] = 0.0
        degree = 0.0
        for p in range(indptr[k], indptr[k + 1]):
            degree += weights[p]
            for j in range(n):
                neighbour_sum[j] += weights[p] * alpha[indices[p], j]
        loss_and_weights(settings.loss, margins[rows], sample_weight[rows], eta[rows])
        user = UserModel(A[rows], margins[rows], alpha[k], neighbour_sum, support, offset[rows], sample_weight[rows])
        block_gradient(settings, confidence[k], degree, user, eta[rows], gradient[k])
    return gradient
