"""The joint problem: objective J, gradient and certificates.

    J(alpha, w) = sum_k d_k c_k L_k(alpha_k) + (mu1/2) sum_{k<l} w_kl ||alpha_k - alpha_l||^2 + mu2 g(w)        (1)

All values are computed in double precision from models and graph alone, whatever the precision of the run: they
certify its result independently of its bookkeeping.

Also the memory that a run on a problem takes, to compare with what the machine has before anything large is allocated.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from dada.core.compiled import Array, kernel
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree, Regularizer, RegularizerCode, degree_value, weight_value
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
    margins_of,
    relative_weights,
)
from dada.core.model_steps import ModelSettings, UserModel, UserRows, add_model, block_gradient, squared_difference

LARGEST_BETA = 1e12


class RemoteRows(Protocol):
    """Rows that other processes hold. They compute everything in a `Problem` that depends on A."""

    def margins(self, alpha: Array) -> Array:
        """Margins of all rows under the given models."""

    def model_gaps(self, settings: ModelSettings, alpha: Array, graph: CollaborationGraph) -> Array:
        """Frank-Wolfe gap of every user's block, divided by d_k."""


def margins_of_labels(predictions: Array, y: Array) -> Array:
    """Margins y_i h_j(x_i) of base predictions and labels -1 and 1, in the dtype of the predictions."""
    margins: Array = predictions * y[:, None].astype(predictions.dtype)
    return margins


def frank_wolfe_gaps(gradient: Array, alpha: Array, beta: float) -> Array:
    """max over ||s||_1 <= beta of <gradient_k, alpha_k - s>, for every row k."""
    gaps: Array = (gradient * alpha).sum(axis=1) + beta * abs(gradient).max(axis=1)
    return gaps


@dataclass(frozen=True, eq=False)
class Problem:
    """The learning problem of one population.

    Parameters
    ----------
    A : array of shape (rows, n_predictors)
        Margins y_i h_j(x_i) of the base predictors, rows grouped by user; int8 where they are -1, 0 or 1.
    row_start : array of shape (n_users + 1,)
        User k's samples are the rows ``row_start[k]:row_start[k+1]``; at least one each.
    loss : str or Loss
        "adaboost" (the paper's), "logistic", "squared-hinge"; "squared" or "huber" for regression; or a custom `Loss`.
    beta : float
        Bound on the l1 norm of every model.
    mu1 : float
        Strength of the coupling between neighbours' models; 0 for independent users.
    mu2 : float, optional
        Weight of the graph regularizer; mu1 by default.
    regularizer : LogDegree, DegreeTarget or DegreeFunction
        g(w).
    graph_loss : {"mean", "paper", "logistic"}
        The loss in the graph problem: the mean over samples, Eq. (2) as printed, or logistic (never negative).
    coupling : array of shape (n_predictors,), optional
        omega_j, the coupling weight of predictor j; 1 by default.
    offset : array of shape (rows,), optional
        Margins of the zero model. In regression, minus the targets: margins are then residuals, and A holds the base
        predictions.
    weights : array of shape (rows,), optional
        Weight of each row in its user's loss; equal by default. Only ratios within a user matter: confidences depend
        on the numbers of rows alone.
    remote : RemoteRows, optional
        Holder of the rows if they are in other processes; A then has no rows (see `dada.engine.shards`).
    rows_name : str
        Distinguishes remote rows when a checkpoint is resumed.

    Examples
    --------
    >>> problem = Problem(np.array([[1], [-1], [1]], np.int8), np.array([0, 1, 3]), beta=2.0, mu1=1.0)
    >>> problem.confidence.tolist()
    [0.5, 1.0]
    >>> graph = CollaborationGraph.from_edges(2, [0], [1], [1.0])
    >>> float(problem.model_gap(np.zeros((2, 1)), graph))  # only user 0 gains from its predictor
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
    remote: RemoteRows | None = None
    rows_name: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.beta <= LARGEST_BETA:
            raise ValueError(
                f"beta must be > 0 and at most {LARGEST_BETA:g} (it bounds the l1 norm of a model; squares of "
                f"larger numbers overflow single precision), got {self.beta}"
            )
        if not 0 <= self.mu1 < math.inf:
            raise ValueError(f"mu must be >= 0 and finite, got {self.mu1}")
        if self.mu2 is not None and not 0 < self.mu2 < math.inf:
            raise ValueError(f"mu2 must be > 0 and finite, got {self.mu2}")
        if self.graph_loss not in GRAPH_LOSSES:
            raise ValueError(f"graph_loss must be one of {sorted(GRAPH_LOSSES)}, got {self.graph_loss!r}")
        self._check_rows()
        if self.weights is not None:
            check_weights(self.weights, int(self.row_start[-1]))
        omega, n = self.coupling, self.n_predictors
        if omega is not None and not (omega.shape == (n,) and (omega >= 0).all() and np.isfinite(omega).all()):
            raise ValueError(f"coupling must be {n} finite numbers >= 0, got shape {omega.shape}")
        loss_code(self.loss)
        if self.loss in REGRESSION and self.graph_loss == "logistic":
            raise ValueError(f"graph_loss 'logistic' is for classification, got loss={self.loss!r}: use 'mean'")

    def _check_rows(self) -> None:
        rows, shape = self.row_start, self.A.shape
        covers = len(shape) == 2 and rows.size > 1 and rows[0] == 0
        covers = covers and shape[0] == (rows[-1] if self.remote is None else 0)
        if not covers or (np.diff(rows) < 1).any():
            raise ValueError("A must have one row per sample and every user at least one sample")
        if self.n_predictors < 1:
            raise ValueError("A must have a column for each base predictor, at least one")
        if not np.isfinite(self.A).all():
            raise ValueError("A must be finite, got NaN or infinity")
        if self.offset is not None and not (self.offset.shape == (rows[-1],) and np.isfinite(self.offset).all()):
            raise ValueError(
                f"offset must be one finite number per row of A ({rows[-1]}), got shape {self.offset.shape}"
            )

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
        """Margins of each row under the zero model."""
        return np.zeros(self.row_start[-1]) if self.offset is None else self.offset.astype(np.float64)

    @cached_property
    def sample_weight(self) -> Array:
        """Row weights with mean one for each user; empty if all rows count equally."""
        return ALL_ALIKE if self.weights is None else relative_weights(self.weights, self.row_start)

    def of_rows(self, rows: Array | slice, row_start: Array) -> Self:
        """The problem restricted to some rows, grouped by user according to `row_start`."""
        return replace(self, row_start=row_start, **self._rows.take(rows)._asdict())

    def rows_of(self, k: int) -> UserRows:
        """The rows of user k."""
        return self._rows.take(slice(self.row_start[k], self.row_start[k + 1]))

    @property
    def _rows(self) -> UserRows:
        return UserRows(self.A, self.offset, self.weights)

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
        """Settings of model updates in the given precision."""
        coupling = np.ones(self.n_predictors) if self.coupling is None else self.coupling
        return ModelSettings(self.loss_code, float(self.beta), float(self.mu1), coupling.astype(dtype))

    def margins(self, alpha: Array) -> Array:
        """offset_k + A_k alpha_k of all users, row by row."""
        if self.remote is not None:
            return self.remote.margins(self._fitting(alpha))
        return margins_of(self.A, self.row_start, self.offsets, self._fitting(alpha))

    def graph_losses(self, alpha: Array) -> Array:
        """c_k times the loss of each user in the graph problem."""
        return self._losses(alpha, self.graph_loss)

    def objective(self, alpha: Array, graph: CollaborationGraph) -> float:
        """J(alpha, w), Eq. (1). On a directed graph, the sum of the users' objectives: no regularizer, every arc."""
        if graph.directed:
            return self.model_objective(alpha, graph)
        return self.model_objective(alpha, graph) + self.graph_mu * self.regularizer_value(graph)

    def model_objective(self, alpha: Array, graph: CollaborationGraph) -> float:
        """f(alpha): the terms of J that depend on the models."""
        # The loss that models minimise, whatever the graph loss; Eq. (2) differs from it by a constant.
        losses = self._losses(alpha, "paper" if self.graph_loss == "paper" else "mean")
        return float(graph.degree @ losses + 0.5 * self.mu1 * self._disagreement(alpha, graph))

    def graph_objective(self, alpha: Array, graph: CollaborationGraph) -> float:
        """h(w): J as a function of the graph, with the graph loss."""
        own = graph.degree @ self.graph_losses(alpha) + 0.5 * self.mu1 * self._disagreement(alpha, graph)
        return float(own) + self.graph_mu * self.regularizer_value(graph)

    def regularizer_value(self, graph: CollaborationGraph) -> float:
        """g(w)."""
        return float(regularizer_sum(self.regularizer_code, graph.indptr, graph.weights))

    def model_gradient(self, alpha: Array, graph: CollaborationGraph) -> Array:
        """Gradient of f divided by d_k in block k, Eq. (4); for a user without neighbours, of its local problem."""
        if self.remote is not None:
            raise ValueError("the gradient needs all rows, and other processes hold them: use model_gaps")
        if graph.n_users != self.n_users:
            raise ValueError(f"the graph has {graph.n_users} users, the problem {self.n_users}")
        data = self.A, self.row_start, self.offsets, self.sample_weight, self.confidence
        models = np.ascontiguousarray(self._fitting(alpha), np.float64)
        return model_gradients(self.settings(), *data, models, graph.indptr, graph.indices, graph.weights)

    def model_gaps(self, alpha: Array, graph: CollaborationGraph) -> Array:
        """Frank-Wolfe gap of every user's block, divided by d_k."""
        if self.remote is not None:
            return self.remote.model_gaps(self.settings(), self._fitting(alpha), graph)
        return frank_wolfe_gaps(self.model_gradient(alpha, graph), alpha, self.beta)

    def model_gap(self, alpha: Array, graph: CollaborationGraph) -> float:
        """sum_k d_k gap_k: the certificate of the models.

        On a symmetric graph it is the duality gap, an upper bound of f(alpha) - f*. On a directed graph users have
        objectives of their own and no common one; there it is the equilibrium gap, an upper bound of what all users
        together could gain if each changed its own model while the others stay fixed. It is zero exactly at a fixed
        point, where no user gains by a change. A user without neighbours counts with weight one, although f ignores it:
        its local problem must converge too.
        """
        return float(np.where(graph.degree > 0, graph.degree, 1.0) @ self.model_gaps(alpha, graph))

    def _losses(self, alpha: Array, kind: str) -> Array:
        margins, code = self.margins(alpha), GRAPH_LOSSES[kind]
        return self.confidence * losses_for_graph(code, self.loss_code, margins, self.sample_weight, self.row_start)

    def _fitting(self, alpha: Array) -> Array:
        if alpha.shape != (self.n_users, self.n_predictors):
            raise ValueError(f"models must have shape {(self.n_users, self.n_predictors)}, got {alpha.shape}")
        return alpha

    def _disagreement(self, alpha: Array, graph: CollaborationGraph) -> float:
        return float(disagreement(np.ascontiguousarray(alpha), self.settings().coupling, *graph.edges()))


@kernel
def losses_for_graph(kind: int, loss: LossCode, margins: Array, sample_weight: Array, row_start: Array) -> Array:
    """The loss of each user in the graph problem."""
    values = np.empty(row_start.size - 1)
    scratch = np.empty_like(margins)
    for k in range(values.size):
        rows = slice(row_start[k], row_start[k + 1])
        values[k] = loss_for_graph(kind, loss, margins[rows], sample_weight[rows], scratch[rows])
    return values


@kernel
def regularizer_sum(reg: RegularizerCode, indptr: Array, weights: Array) -> float:
    """g(w) from compressed rows, which hold every edge twice."""
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
            distance += squared_difference(coupling[j], alpha[k[e], j], alpha[l[e], j])
        total += w[e] * distance
    return total


@kernel
def model_gradients(
    settings: ModelSettings, A: Array, row_start: Array, offset: Array, sample_weight: Array, confidence: Array,
    alpha: Array, indptr: Array, indices: Array, weights: Array,
) -> Array:  # fmt: skip
    """Blocks of the gradient of f, divided by their degrees, for the users with rows; alpha may hold more models."""
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
            add_model(neighbour_sum, weights[p], alpha[indices[p]])
        loss_and_weights(settings.loss, margins[rows], sample_weight[rows], eta[rows])
        user = UserModel(
            A[rows], margins[rows], alpha[k], neighbour_sum, support, offset[rows], sample_weight[rows],
            confidence[k], degree,
        )  # fmt: skip
        block_gradient(settings, user, eta[rows], gradient[k])
    return gradient


# A neighbour's id and weight, twice, because full lists double.
BYTES_PER_NEIGHBOUR = 2 * (4 + 8)
# A user's scalars, its row, its place in the lists, and its candidates and guests.
BYTES_PER_USER = 64 + 24 + 224
UNKNOWN = sys.maxsize


class TooLittleMemoryError(MemoryError, ValueError):
    """A run that does not fit into memory."""


def bytes_of_run(
    n_users: int,
    n_rows: int,
    n_predictors: int,
    *,
    neighbours: float = 20.0,
    cell_bytes: int = 1,
    copies: int = 1,
    weighted: bool = False,
) -> int:
    """Peak memory of a run with this expected number of neighbours per user.

    It holds `copies` tables of margins or predictions at the same time; a cell is 1 byte if all are -1, 0 or 1, else 4.
    """
    # Models, neighbour sums, supports, and the copy in the result.
    state = n_users * (n_predictors * (4 + 4 + 2 + 4) + BYTES_PER_USER + int(neighbours * BYTES_PER_NEIGHBOUR))
    # Current margins and offsets, in single precision, and in double precision for certificates.
    rows = n_rows * (copies * n_predictors * cell_bytes + 2 * 4 + 3 * 8)
    # Row weights as given and normalised.
    rows += n_rows * 2 * 8 if weighted else 0
    return state + rows


def available_bytes() -> int:
    """Memory that this process can still allocate, given the machine, its container and its own limit."""
    return min(_free_on_machine(), _free_in_group(), _free_under_limit())


def peak_bytes() -> int:
    """Peak memory of this process so far; 0 if unknown."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def check_memory(needed: int, what: str, way_out: str, free: int | None = None) -> None:
    """Raise `TooLittleMemoryError` if a run does not fit into the free memory, by default `available_bytes()`."""
    free = available_bytes() if free is None else free
    if needed > free:
        raise TooLittleMemoryError(
            f"{what} needs about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free: {way_out}"
        )


def _free_on_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return UNKNOWN


def _free_in_group() -> int:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        return UNKNOWN if limit == "max" else int(limit) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return UNKNOWN


def _free_under_limit() -> int:
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError):
        return UNKNOWN
    return UNKNOWN if limit == resource.RLIM_INFINITY else limit - held
