"""Runs of block steps: their optimum, what is sent and counted, cuts and pauses, learned graphs."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dada.core.bits import coded_bits
from dada.core.block_steps import BlockStep, finest_exponent
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.plan import Status
from dada.engine import Plan, run
from tests.helpers.problems import random_graph, random_problem
from tests.helpers.runs import InterruptAt, bits_of, watched_run

EXACT = BlockStep(inner_moves=1, momentum=0.0, theta=1.0, quantise_bits=32, keep=0.0, silence=0.0)
PROBLEM = random_problem(
    np.random.default_rng(0), 9, 8, beta=5.0, mu1=0.5, regularizer=LogDegree(0.3, 0.1), dtype=np.float32
)
GRAPH = random_graph(np.random.default_rng(1), 9)
FIXED = Plan(n_updates=300, learn_graph=False, step="block", trace_every=70)
EVIDENCE = Plan(
    n_updates=300, graph_rule="evidence", n_neighbours=3, kappa=2, graph_every=60, step="block", trace_every=70
)
DISTANCE = Plan(n_updates=300, graph_every=60, kappa=3, step="block", trace_every=70)
PLANS = {"fixed": FIXED, "evidence": EVIDENCE, "distance": DISTANCE}


def go(plan, problem=PROBLEM, seed=3, **options):
    graph = None if plan.learn_graph else GRAPH
    return run(problem, plan, np.random.default_rng(seed), graph=graph, **options)


@pytest.mark.parametrize("step", [EXACT, EXACT._replace(inner_moves=30, momentum=0.9), BlockStep(silence=0.0)])
@pytest.mark.parametrize("kind", [{}, {"loss": "logistic", "weighted": True}, {"loss": "huber", "shifted": True}])
@pytest.mark.parametrize("directed", [False, True])
def test_block_steps_reach_the_optimum_of_pairwise_steps(step, kind, directed):
    rng = np.random.default_rng(7)
    problem = random_problem(rng, 7, 6, beta=3.0, mu1=0.4, coupling=rng.uniform(0.1, 1, 6), **kind)
    graph = random_graph(rng, 7)
    if directed:
        rows = graph.to_scipy().multiply(rng.random((7, 7)) < 0.6).tocsr()
        rows.eliminate_zeros()
        graph = CollaborationGraph(rows.indptr.astype(np.int64), rows.indices, rows.data, directed=True)
    options = dict(graph=graph, dtype=np.float64)
    pairwise = run(problem, Plan(n_updates=30_000, learn_graph=False), np.random.default_rng(0), **options)
    plan = Plan(n_updates=7_000 if step.inner_moves > 1 else 30_000, learn_graph=False, step="block", block=step)
    blocks = run(problem, plan, np.random.default_rng(0), **options)
    at_zero = problem.model_gap(np.zeros_like(blocks.models), graph)
    assert problem.model_gap(blocks.models, graph) <= 1e-5 * at_zero
    if not directed:
        reached, best = (problem.model_objective(result.models, graph) for result in (blocks, pairwise))
        assert abs(reached - best) <= 1e-6 * abs(best)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_sums_are_of_what_was_sent_and_models_stay_in_the_ball(plan):
    def look(state):
        shared, users = state.shared, state.users
        weights = state.graph.to_scipy().toarray()
        fresh = users.stale == 0
        if (state.phase % 2 == 0 and state.phase > 0) or not plan.learn_graph:
            assert_allclose(users.neighbour_sum[fresh], (weights @ shared.model)[fresh], rtol=1e-4, atol=1e-4)
        units = shared.model / 2.0 ** finest_exponent(PROBLEM.beta, np.dtype(np.float32))
        assert_array_equal(units, np.round(units))
        assert (np.abs(users.alpha).sum(axis=1, dtype=np.float64) <= PROBLEM.beta).all()
        assert_array_equal(users.sent.sum(axis=0), state.ledger.models + state.ledger.graph)
        assert shared.bits.sum() == state.ledger.coded.sum()

    watched_run(PROBLEM, plan, 3, look, graph=None if plan.learn_graph else GRAPH)


def test_every_message_is_counted_for_every_follower():
    counted = []

    def look(state):
        counted.append((state.ledger.messages, state.ledger.bits, state.updates))

    step = BlockStep(quantise_bits=6)
    result = watched_run(PROBLEM, Plan(200, learn_graph=False, step="block", block=step), 3, look, graph=GRAPH)
    ledger, n = result.ledger, PROBLEM.n_predictors
    assert result.shared.bits.sum() == ledger.bits
    smallest, largest = coded_bits(n, 1, 6), coded_bits(n, n, 6)
    assert smallest * ledger.messages <= ledger.bits <= largest * ledger.messages
    assert 0 < ledger.messages < 200 * GRAPH.neighbour_counts.max()
    assert ledger.models[1:].tolist() == [0, 0]
    assert [messages for messages, _, _ in counted] == sorted(messages for messages, _, _ in counted)


def test_a_user_without_followers_sends_nothing():
    result = run(PROBLEM, FIXED, np.random.default_rng(0))
    assert result.ledger.messages == 0
    assert result.ledger.bits == 0
    alone = run(PROBLEM, Plan(3000, learn_graph=False), np.random.default_rng(0))
    empty = CollaborationGraph.empty(9)
    assert PROBLEM.model_gap(result.models, empty) <= 10 * PROBLEM.model_gap(alone.models, empty) + 1e-2


def test_replies_of_graph_phases_carry_snapshots():
    result = go(EVIDENCE)
    # A number of samples, or the word of following; models are in the coded bits.
    assert result.ledger.graph[2] == 0
    assert result.ledger.graph[1] <= result.ledger.graph[0]
    assert result.ledger.coded[1] > 0
    assert result.graph.directed
    assert result.graph.neighbour_counts.max() <= 3


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("budget", [False, True])
def test_where_a_run_is_cut_into_chunks_changes_no_bit(plan, budget):
    if budget:
        plan = replace(plan, max_bits=0.7 * go(plan).ledger.bits)
    whole = bits_of(go(plan))
    for chunk in (1, 7):
        assert bits_of(go(plan, chunk=chunk)) == whole


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_run_that_is_interrupted_again_and_again_ends_with_the_same_bits(plan, tmp_path):
    whole = go(plan)
    result, pauses = None, 0
    while result is None or result.status is Status.INTERRUPTED:
        result = go(plan, checkpoint=tmp_path / "run", resume=True, chunk=16, observer=InterruptAt(3 + pauses))
        pauses += 1
    assert pauses > 3
    assert bits_of(result) == bits_of(whole)
    assert_array_equal(result.ledger.coded, whole.ledger.coded)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_budget_is_kept_and_nearly_used(plan):
    free = go(plan)
    limited = go(replace(plan, max_bits=0.6 * free.ledger.bits))
    assert limited.status is Status.OUT_OF_BITS
    assert 0.3 * free.ledger.bits < limited.ledger.bits <= 0.6 * free.ledger.bits


def test_a_run_goes_on_from_another_as_if_there_had_been_one():
    half = Plan(n_updates=150, learn_graph=False, step="block", block=BlockStep(momentum=0.0))
    first = go(half)
    second = go(half, models=first.models, shared=first.shared)
    assert_array_equal(second.shared.wakeups, 2 * first.shared.wakeups)
    assert PROBLEM.model_gap(second.models, GRAPH) < PROBLEM.model_gap(first.models, GRAPH)
    # What neighbours hold is not sent again.
    assert second.ledger.bits < first.ledger.bits


def test_shared_models_of_other_steps_are_refused():
    pairwise = Plan(n_updates=10, learn_graph=False)
    with pytest.raises(ValueError, match="step='block'"):
        go(pairwise, shared=go(FIXED).shared)


def test_evidence_goes_on_from_a_directed_graph():
    first = go(EVIDENCE)
    plan = Plan(
        100, graph_rule="evidence", kappa=2, local_updates=0, first_graph_wakeups=0, restart="local", step="block"
    )
    second = run(PROBLEM, plan, np.random.default_rng(0), graph=first.graph, models=first.models, shared=first.shared)
    assert_array_equal(second.graph.to_scipy().toarray(), first.graph.to_scipy().toarray())


@pytest.mark.parametrize("n_users", [1, 2, 3, 9, 10, 11, 12, 37])
def test_the_background_joins_all_users_by_few_edges(n_users):
    graph = CollaborationGraph.background(n_users, np.random.default_rng(n_users))
    assert graph.neighbour_counts.max() <= 10
    assert (graph.weights == 1).all()
    if n_users <= 10:
        assert graph.n_edges == n_users * (n_users - 1) // 2
    else:
        assert graph.neighbour_counts.min() >= 2
    reached = np.linalg.matrix_power(np.eye(n_users) + graph.to_scipy().toarray(), n_users)
    assert (reached > 0).all()


@pytest.mark.parametrize("n_neighbours", [0, 1, 5])
def test_a_background_of_odd_degree_is_refused(n_neighbours):
    with pytest.raises(ValueError, match="even and at least 2"):
        CollaborationGraph.background(20, np.random.default_rng(0), n_neighbours)
