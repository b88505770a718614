import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dada.core.bits import cached_graph_bits
from dada.core.graph_steps import LogDegree
from dada.core.plan import GRAPH_STREAM, MODEL_STREAM, Schedule
from dada.engine import Ledger, Plan, run
from tests.helpers.problems import random_graph, random_models, random_problem
from tests.helpers.runs import graph_phase


def test_bits_are_floats_and_indices():
    ledger = Ledger(n_predictors=5, float_bits=16)
    ledger.models += (2, 3, 4)
    ledger.graph += (10, 20, 30)
    assert ledger.messages == 12
    assert_allclose(ledger.model_bits, 3 * 16 + 4 * math.log2(5))
    assert_allclose(ledger.graph_bits, 20 * 16 + 30 * math.log2(5))
    assert ledger.bits == ledger.model_bits + ledger.graph_bits


def test_a_single_predictor_needs_no_index():
    assert Ledger(n_predictors=1).price(np.array([1, 1, 7])) == 32


def test_every_model_update_is_one_message_to_each_neighbour():
    rng = np.random.default_rng(0)
    problem, graph = random_problem(rng, 8, 6, dtype=np.float32), random_graph(rng, 8)
    result = run(problem, Plan(500, learn_graph=False, step="paper"), np.random.default_rng(1), graph=graph)
    users = Schedule.draw(np.random.default_rng(1), 8, 1).users(MODEL_STREAM, 0, 500)
    sent = graph.neighbour_counts[users].sum()
    assert_array_equal(result.ledger.models, [sent, sent, sent])
    assert_array_equal(result.ledger.graph, [0, 0, 0])


def test_every_peer_asked_sends_its_model_loss_and_degree_and_gets_its_weight():
    rng = np.random.default_rng(2)
    problem = random_problem(rng, 8, 6)
    alpha = random_models(rng, problem)
    sizes, counts = np.count_nonzero(alpha, axis=1), np.zeros(3, np.int64)
    for state, _, batch in graph_phase(problem, Plan(0, kappa=3), alpha, 1, 60):
        for l in batch:
            counts += (2, 3 + sizes[l], sizes[l])
        assert_array_equal(state.ledger.graph, counts)


def test_an_edge_given_up_for_a_heavier_one_is_one_message_more():
    rng = np.random.default_rng(3)
    problem = random_problem(rng, 8, 6, regularizer=LogDegree(0.3, 0.1))
    alpha = random_models(rng, problem)
    sizes, counts, given_up = np.count_nonzero(alpha, axis=1), np.zeros(3, np.int64), 0
    before = np.zeros((8, 8))
    for state, k, (l,) in graph_phase(problem, Plan(0, kappa=1, max_neighbours=2), alpha, 1, 300):
        after = state.graph.to_scipy().toarray()
        ended = (before > 0) & (after == 0)
        # Edges between others than the two who talk end only because a list was full.
        ended[k, l] = ended[l, k] = False
        given_up += ended.sum() // 2
        counts += (2, 3 + sizes[l], sizes[l])
        assert_array_equal(state.ledger.graph, counts + np.array([given_up, given_up, 0]))
        before = after
    assert given_up > 5


def test_bits_with_remembered_models_agree_with_a_direct_count():
    schedule = Schedule.draw(np.random.default_rng(4), 9, 3)
    users, batches = schedule.users(GRAPH_STREAM, 0, 200), schedule.batches(0, 200)
    sizes = np.random.default_rng(5).integers(0, 7, 9)
    bits = cached_graph_bits(users, batches, sizes, n_predictors=20)
    met = set()
    for t in range(200):
        expected = 3 * 2 * 32.0
        for l in batches[t].tolist():
            if (users[t], l) not in met:
                expected += 32 + sizes[l] * (32 + math.log2(20))
            met.add((users[t], l))
        assert_allclose(bits[t], expected, rtol=1e-14)


@pytest.mark.parametrize("kappa", [1, 4])
def test_remembering_models_saves_bits_but_not_in_the_first_wakeup(kappa):
    schedule = Schedule.draw(np.random.default_rng(6), 9, kappa)
    users, batches = schedule.users(GRAPH_STREAM, 0, 300), schedule.batches(0, 300)
    sizes = np.full(9, 5)
    bits = cached_graph_bits(users, batches, sizes, n_predictors=16)
    every_time = kappa * (3 * 32 + 5 * (32 + 4))
    assert bits[0] == every_time
    assert bits.max() == every_time
    assert bits.min() == kappa * 2 * 32
