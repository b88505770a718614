"""Updates in windows of time: whoever shares them, the result is the same to the last bit."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.plan import Plan
from dada.core.problem import Problem
from dada.engine import run
from dada.engine.backends import Processes
from dada.engine.shards import Sharded, ThisProcess, Threads, Workers
from dada.events import TracePoint
from tests.helpers.problems import random_graph, random_problem

K, N = 60, 12


def population(seed: int = 0, weighted: bool = False) -> Problem:
    rng = np.random.default_rng(seed)
    rows = np.concatenate([[0], np.cumsum(rng.integers(1, 6, K))])
    A = rng.choice(np.array([-1, 1], np.int8), (rows[-1], N))
    weights = rng.exponential(size=rows[-1]) if weighted else None
    return Problem(A, rows, beta=3.0, mu1=0.5, regularizer=LogDegree(lam=0.5), weights=weights)


def graph(seed: int = 1) -> CollaborationGraph:
    rng = np.random.default_rng(seed)
    k, l = np.nonzero(np.triu(rng.random((K, K)) < 0.15, 1))
    return CollaborationGraph.from_edges(K, k, l, rng.random(k.size) + 0.1)


def state_hash(workers: Workers | None, latency: float = 0.2, learn: bool = False, weighted: bool = False) -> str:
    plan = Plan(
        n_updates=330 * K if not learn else 20 * K, learn_graph=learn, kappa=3, latency=latency, graph_every=7 * K
    )
    given = None if learn else graph()
    result = run(population(weighted=weighted), plan, np.random.default_rng(5), graph=given, workers=workers)
    digest = hashlib.sha256(result.models.tobytes() + result.graph.weights.tobytes())
    digest.update(result.ledger.models.tobytes())
    return digest.hexdigest()


def test_threads_agree_to_the_last_bit() -> None:
    assert state_hash(Threads(1)) == state_hash(Threads(2)) == state_hash(Threads(5))


def test_shards_agree_with_threads() -> None:
    expected = state_hash(None)
    for shards in (1, 2, 4):
        assert state_hash(Sharded(shards, ThisProcess())) == expected


def test_shards_in_processes_agree_too() -> None:
    with Sharded(2, Processes()) as workers:
        assert state_hash(workers, latency=2.0) == state_hash(None, latency=2.0)


def test_runs_that_learn_their_graph_agree() -> None:
    assert state_hash(Threads(2), learn=True) == state_hash(Sharded(3, ThisProcess()), learn=True)


@pytest.mark.parametrize("learn", [False, True])
def test_rows_with_weights_agree_too(learn: bool) -> None:
    expected = state_hash(None, learn=learn, weighted=True)
    assert expected != state_hash(None, learn=learn)
    for workers in (Threads(2), Threads(5), Sharded(3, ThisProcess())):
        assert state_hash(workers, learn=learn, weighted=True) == expected


def test_results_settle_as_latency_shrinks() -> None:
    given, problem = graph(), population()

    def objective(latency: float) -> float:
        plan = Plan(n_updates=400 * K, learn_graph=False, latency=latency)
        return problem.model_objective(run(problem, plan, np.random.default_rng(2), graph=given).models, given)

    at_once = objective(0.0)
    assert objective(0.1) == pytest.approx(at_once, rel=1e-3)


FEW = 24
BLOCKS = Plan(n_updates=20 * FEW, learn_graph=False, step="block", latency=0.3)
EVIDENCE = Plan(
    n_updates=16 * FEW, step="block", graph_rule="evidence", n_neighbours=3, kappa=2, latency=0.3,
    local_updates=3 * FEW, first_graph_wakeups=3 * FEW + 5, graph_every=8 * FEW, graph_wakeups=FEW // 2,
)  # fmt: skip
# More wake-ups of a user than it makes between two refreshes of its neighbour sum.
LONG = replace(BLOCKS, n_updates=270 * FEW, latency=3.0)
PLANS = {
    "blocks": BLOCKS,
    "directed": BLOCKS,
    "long": LONG,
    "evidence": EVIDENCE,
    "gossip": replace(EVIDENCE, sampler="gossip"),
    "moves by evidence": replace(EVIDENCE, step="pairwise"),
}


def few(**kind) -> Problem:
    return random_problem(np.random.default_rng(2), FEW, 8, beta=5.0, mu1=0.5, dtype=np.float32, **kind)


def digest_of(case: str, workers: Workers | None, **options) -> str:
    plan, problem = PLANS[case], options.pop("problem", few())
    graph = None
    if not plan.learn_graph:
        graph = random_graph(np.random.default_rng(1), FEW)
        if case == "directed":
            half = graph.to_scipy().multiply(np.random.default_rng(5).random((FEW, FEW)) < 0.5).tocsr()
            half.eliminate_zeros()
            graph = CollaborationGraph(half.indptr.astype(np.int64), half.indices, half.data, directed=True)
    result = run(problem, plan, np.random.default_rng(3), graph=graph, workers=workers, **options)
    ledger = result.ledger
    arrays = result.models, result.graph.indices, result.graph.weights, *result.shared
    gaps = np.array([(point.objective, point.gap) for point in result.trace])
    digest = hashlib.sha256()
    for array in (*arrays, ledger.models, ledger.graph, ledger.coded, gaps):
        digest.update(array.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("case", PLANS)
def test_any_workers_make_the_same_block_steps_and_evidence_wakeups(case) -> None:
    expected = digest_of(case, None)
    for workers in (Threads(3), Sharded(1, ThisProcess()), Sharded(2, ThisProcess()), Sharded(3, ThisProcess())):
        assert digest_of(case, workers) == expected


@pytest.mark.parametrize("kind", [{"weighted": True}, {"loss": "squared", "shifted": True}], ids=["weights", "numbers"])
@pytest.mark.parametrize("case", ["blocks", "evidence"])
def test_weights_and_numbers_make_no_difference_to_shards(case, kind) -> None:
    problem = few(**kind)
    expected = digest_of(case, None, problem=problem)
    assert digest_of(case, Sharded(3, ThisProcess()), problem=problem) == expected


def test_block_steps_and_evidence_agree_in_processes_and_after_a_pause(tmp_path) -> None:
    def stop(event):
        if isinstance(event, TracePoint) and event.updates > 9 * FEW:
            raise KeyboardInterrupt

    kept = dict(checkpoint=tmp_path / "half-way")
    with Sharded(2, Processes()) as workers:
        with pytest.raises(KeyboardInterrupt):
            digest_of("gossip", workers, **kept, checkpoint_every_s=0, observer=stop)
        assert digest_of("gossip", workers, **kept, resume=True) == digest_of("gossip", None)


def test_a_round_of_uniform_batches_is_what_its_wakeups_are_in_turn() -> None:
    problem, models = few(), np.random.default_rng(4).normal(size=(FEW, 8)) / 8
    only_graph = replace(EVIDENCE, step="pairwise", n_updates=1, local_updates=0, restart="local")
    in_turn, shared = (
        run(problem, plan, np.random.default_rng(3), models=models, workers=workers)
        for plan, workers in ((replace(only_graph, latency=0.0), None), (only_graph, Sharded(2, ThisProcess())))
    )
    assert in_turn.graph.n_edges > FEW
    assert np.array_equal(in_turn.graph.indices, shared.graph.indices)
    assert np.array_equal(in_turn.graph.weights, shared.graph.weights)
    assert np.array_equal(in_turn.ledger.graph, shared.ledger.graph)


def test_block_steps_settle_as_latency_shrinks() -> None:
    problem, graph = few(), random_graph(np.random.default_rng(1), FEW)

    def objective(latency: float) -> float:
        plan = replace(BLOCKS, n_updates=200 * FEW, latency=latency)
        return problem.model_objective(run(problem, plan, np.random.default_rng(2), graph=graph).models, graph)

    assert objective(0.1) == pytest.approx(objective(0.0), rel=1e-3)


def test_what_windows_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="'pairwise', 'block'"):
        Plan(n_updates=1, step="paper", latency=0.1)
    with pytest.raises(ValueError, match="latency > 0"):
        run(population(), Plan(n_updates=1, learn_graph=False), np.random.default_rng(0), workers=Threads(2))
