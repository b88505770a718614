"""A run looked at from outside: every user and the graph, as arrays of their own."""

from __future__ import annotations

from dada.core.losses import GRAPH_LOSSES
from dada.core.problem import Problem, losses_for_graph
from dada.engine.evaluate import Samples, accuracy_per_user
from dada.engine.ledger import FLOATS, INDICES, MESSAGES
from dada.engine.state import State
from dada.events import Snapshot, heaviest_predictors


def snapshot_of(problem: Problem, state: State, phase: str, samples: Samples | None) -> Snapshot:
    """The state of a run in the given phase, with every user's accuracy on the given samples."""
    users, graph, ledger = state.users, state.graph, state.ledger
    k, l, w = graph.edges()
    predictors, weights = heaviest_predictors(users.alpha)
    return Snapshot(
        phase=phase,
        updates=state.updates,
        k=k,
        l=l,
        w=w,
        directed=graph.directed,
        confidence=problem.confidence,
        loss=losses_for_graph(GRAPH_LOSSES["mean"], problem.loss_code, users.margins, users.emphasis, users.row_start),
        accuracy=accuracy_per_user(samples, users.alpha),
        predictors=predictors,
        predictor_weights=weights,
        messages=users.sent[:, MESSAGES].copy(),
        bits=users.sent[:, FLOATS] * ledger.float_bits + users.sent[:, INDICES] * ledger.index_bits,
    )
