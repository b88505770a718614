"""Updates in windows of time: whoever shares them, the result is the same to the last bit."""

import hashlib

import numpy as np
import pytest

from dada.core.graph import CollaborationGraph
from dada.core.plan import Plan
from dada.core.problem import Problem
from dada.core.regularizers import LogDegree
from dada.engine import run
from dada.engine.backends import Processes
from dada.engine.shards import Sharded, ThisProcess, Threads, Workers

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


def test_what_windows_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="pairwise"):
        Plan(n_updates=1, step="paper", latency=0.1)
    with pytest.raises(ValueError, match="latency > 0"):
        run(population(), Plan(n_updates=1, learn_graph=False), np.random.default_rng(0), workers=Threads(2))
