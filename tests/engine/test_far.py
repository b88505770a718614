"""Problems whose rows only shards have: the same runs, bit for bit, as with all rows in one process."""

import numpy as np
import pytest

from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.plan import Plan
from dada.core.problem import Problem
from dada.engine import run
from dada.engine.backends import Processes
from dada.engine.shards import Sharded, ThisProcess, remote_problem

K, N = 40, 9
SETTINGS = dict(beta=3.0, mu1=0.5, regularizer=LogDegree(lam=0.5))


def near(**changes) -> Problem:
    rng = np.random.default_rng(3)
    rows = np.concatenate([[0], np.cumsum(rng.integers(1, 6, K))])
    return Problem(rng.choice(np.array([-1, 1], np.int8), (rows[-1], N)), rows, **SETTINGS, **changes)


def read(first: int, last: int) -> np.ndarray:
    problem = near()
    return problem.A[problem.row_start[first] : problem.row_start[last]].copy()


def far(workers: Sharded, name: str = "", **changes) -> Problem:
    return remote_problem(workers, near().sizes, N, name=name, **SETTINGS, **changes)


def graph() -> CollaborationGraph:
    k, l = np.nonzero(np.triu(np.random.default_rng(1).random((K, K)) < 0.2, 1))
    return CollaborationGraph.from_edges(K, k, l, 0.1 + np.arange(k.size) % 7)


def plan(**changes) -> Plan:
    return Plan(**dict(n_updates=12 * K, kappa=3, latency=0.2, graph_every=5 * K) | changes)


@pytest.mark.parametrize(
    ("backend", "shards", "weighted"), [(ThisProcess, 3, False), (ThisProcess, 3, True), (Processes, 2, True)]
)
def test_runs_and_their_traces_agree(backend, shards, weighted) -> None:
    weights = 1.0 + np.arange(len(near().A)) % 3 if weighted else None
    expected = run(near(weights=weights), plan(), np.random.default_rng(5))
    with Sharded(shards, backend(), read) as workers:
        found = run(far(workers, weights=weights), plan(), np.random.default_rng(5), workers=workers)
    assert np.array_equal(found.models, expected.models)
    assert np.array_equal(found.graph.weights, expected.graph.weights)
    assert [(a.objective, a.gap) for a in found.trace] == [(b.objective, b.gap) for b in expected.trace]


def test_models_to_start_from_get_their_margins_from_the_shards() -> None:
    start = np.random.default_rng(2).normal(size=(K, N)) / N
    fixed = plan(learn_graph=False)
    expected = run(near(), fixed, np.random.default_rng(5), graph=graph(), models=start)
    with Sharded(2, ThisProcess(), read) as workers:
        found = run(far(workers), fixed, np.random.default_rng(5), graph=graph(), models=start, workers=workers)
    assert np.array_equal(found.models, expected.models)


def test_a_checkpoint_of_other_rows_is_refused(tmp_path) -> None:
    file = tmp_path / "kept"
    with Sharded(2, ThisProcess(), read) as workers:
        run(far(workers, "these"), plan(), np.random.default_rng(5), workers=workers, checkpoint=file)
        run(far(workers, "these"), plan(), np.random.default_rng(5), workers=workers, checkpoint=file, resume=True)
        with pytest.raises(ValueError, match="another run"):
            run(far(workers, "those"), plan(), np.random.default_rng(5), workers=workers, checkpoint=file, resume=True)


def test_what_needs_the_rows_here_is_refused() -> None:
    with Sharded(2, ThisProcess(), read) as workers:
        problem = far(workers)
        with pytest.raises(ValueError, match="pass these shards as workers="):
            run(problem, plan(), np.random.default_rng(0))
        with pytest.raises(ValueError, match="model_gaps"):
            problem.model_gradient(np.zeros((K, N)), graph())
    with pytest.raises(ValueError, match="shards that read their rows"):
        far(Sharded(2, ThisProcess()))


def test_a_process_that_dies_is_missed() -> None:
    with Sharded(2, Processes(), read) as workers:
        problem = far(workers)
        workers.backend.workers[1].kill()
        workers.backend.workers[1].join()
        with pytest.raises(OSError, match="resume from a checkpoint"):
            problem.margins(np.zeros((K, N)))
