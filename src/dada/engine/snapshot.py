"""A run looked at from outside: every user and the graph, as arrays of their own."""

from __future__ import annotations

import numpy as np

from dada.core.compiled import Array
from dada.core.losses import GRAPH_LOSSES
from dada.core.problem import Problem, losses_for_graph
from dada.engine.evaluate import Samples, accuracy_per_user
from dada.engine.ledger import FLOATS, INDICES, MESSAGES
from dada.engine.state import State
from dada.events import Snapshot

#: Base predictors that a snapshot names for each user.
TOP_PREDICTORS = 5


def snapshot_of(problem: Problem, state: State, phase: str, samples: Samples | None) -> Snapshot:
    """The state of a run in the given phase, with every user's accuracy on the given samples."""
    users, graph, ledger = state.users, state.graph, state.ledger
    k, l, w = graph.edges()
    predictors, weights = heaviest_predictors(users.alpha, TOP_PREDICTORS)
    return Snapshot(
        phase=phase,
        updates=state.updates,
        k=k,
        l=l,
        w=w,
        directed=graph.directed,
        confidence=problem.confidence,
        loss=losses_for_graph(GRAPH_LOSSES["mean"], problem.loss_code, users.margins, users.row_start),
        accuracy=accuracy_per_user(samples, users.alpha),
        predictors=predictors,
        predictor_weights=weights,
        messages=users.sent[:, MESSAGES].copy(),
        bits=users.sent[:, FLOATS] * ledger.float_bits + users.sent[:, INDICES] * ledger.index_bits,
    )


def heaviest_predictors(alpha: Array, most: int) -> tuple[Array, Array]:
    """The base predictors that weigh most in each model, heaviest first, and their weights; -1 where a model has fewer.

    >>> numbers, weights = heaviest_predictors(np.array([[0.0, -3.0, 1.0], [0.0, 0.0, 2.0]]), 2)
    >>> numbers.tolist(), weights.tolist()
    ([[1, 2], [2, -1]], [[-3.0, 1.0], [2.0, 0.0]])
    """
    most = min(most, alpha.shape[1])
    size = np.abs(alpha)
    some = np.argpartition(size, alpha.shape[1] - most, axis=1)[:, alpha.shape[1] - most :]
    order = np.argsort(-np.take_along_axis(size, some, axis=1), axis=1, kind="stable")
    numbers = np.take_along_axis(some, order, axis=1)
    weights = np.take_along_axis(alpha, numbers, axis=1)
    return np.where(weights != 0, numbers, -1), weights
