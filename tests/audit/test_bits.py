"""The bill of a run, recomputed from a log of its moves: what changed at each wake-up, and who was asked."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dada.core.plan import GRAPH_STREAM, LOCAL_STREAM, MODEL_STREAM
from tests.audit.test_trace import run_of

FLOAT_BITS = 32
STREAMS = {"local": LOCAL_STREAM, "graph": GRAPH_STREAM, "models": MODEL_STREAM}


def model_messages(before, after, k, step):
    """Messages, floats and indices of one update of user k: its move goes to each user that learns from it."""
    changed = before.alpha != after.alpha
    assert not np.delete(changed, k, axis=0).any()
    assert step != "pairwise" or changed[k].sum() <= 2
    receivers = 0 if after.phase == "local" else np.count_nonzero(before.W[:, k])
    price = receivers * np.array([1, 1, 2 if step == "pairwise" else 1])
    if not changed[k].any() and (after.counts[0] == before.counts[0]).all():
        # Nothing to gain, so no move. A move too short to change a single-precision model is sent all the same.
        return np.zeros(3, int)
    return price


def graph_messages(before, after, k, asked, plan):
    """Messages, floats and indices of one graph wake-up of user k."""
    sizes, counts = np.count_nonzero(before.alpha, axis=1), np.zeros(3, int)
    began, ended = (before.W == 0) & (after.W > 0), (before.W > 0) & (after.W == 0)
    if plan.graph_rule == "evidence":
        for l in asked:
            if before.W[k, l] == 0:
                counts += (1, 1 + sizes[l], sizes[l])
        return counts + np.array([(began | ended).sum(), 0, 0])
    for l in asked:
        # The reply has model, loss and degree; the new weight goes back.
        counts += (2, 3 + sizes[l], sizes[l])
        ended[k, l] = ended[l, k] = False
    # A full list dropped an edge, and its other end receives the weight zero.
    return counts + ended.sum() // 2 * np.array([1, 1, 0])


def restarted(before):
    """The moment with all models at zero."""
    return replace(before, alpha=np.zeros_like(before.alpha))


@pytest.mark.parametrize("seed", range(50))
def test_the_ledger_counts_what_the_log_of_moves_says(seed):
    _, plan, run = run_of(seed)
    log = [run.points[0][1], *run.moments]
    made = {"local": 0, "graph": 0, "models": 0}
    awake = {phase: run.schedule.users(stream, 0, len(log)) for phase, stream in STREAMS.items()}
    asked = run.schedule.batches(0, len(log))
    counts = np.zeros((2, 3), int)
    for before, after in pairwise(log):
        e = made[after.phase]
        k = awake[after.phase][e]
        if after.phase == "graph":
            counts[1] += graph_messages(before, after, k, asked[e], plan)
        else:
            is_restart = after.phase == "models" and e == 0 and plan.learn_graph and plan.restart == "zero"
            counts[0] += model_messages(restarted(before) if is_restart else before, after, k, plan.step)
        made[after.phase] += 1
        assert_array_equal(after.counts, counts)
    index_bits = math.log2(run.moments[0].alpha.shape[1])
    for point, moment in run.points:
        bits = moment.counts[:, 1] * FLOAT_BITS + moment.counts[:, 2] * index_bits
        assert_allclose([point.bits, point.graph_bits], [bits.sum(), bits[1]], rtol=1e-12)
    assert counts[0, 0] > 0 or not run.moments[-1].W.any()
