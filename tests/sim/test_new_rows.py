"""Peers whose samples change while they run end where peers end that had these samples from the start."""

import io

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dada.core.block_steps import BlockStep
from dada.core.graph import CollaborationGraph
from dada.core.problem import Problem
from dada.engine import Plan, run
from dada.peer.inputs import ModelStep, PeerConfig, ResetModel, RowsChanged, StoredRows
from dada.peer.member import Rhythm
from dada.peer.peer import replay
from dada.sim.simulation import SimulatedNetwork
from dada.sim.virtual import Faults
from tests.helpers.lockstep import Lockstep


def users(seed, K, n=12):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 9, K)
    A = rng.choice(np.array([-1, 1], np.int8), size=(sizes.sum(), n))
    return Problem(A, np.concatenate([[0], np.cumsum(sizes)]), beta=3.0, mu1=0.7, loss="logistic")


def fewer(problem, sizes):
    """The first rows of each user."""
    rows = np.concatenate([problem.row_start[k] + np.arange(m) for k, m in enumerate(sizes)])
    return Problem(problem.A[rows], np.concatenate([[0], np.cumsum(sizes)]), beta=3.0, mu1=0.7, loss="logistic")


@pytest.mark.parametrize("step", ["pairwise", "block"])
def test_nothing_of_earlier_rows_is_left(step):
    problem = users(0, K=8)
    plan = Plan(n_updates=300, step=step, block=BlockStep(), kappa=3, graph_every=90, graph_rule="evidence")
    engine = run(problem, plan, np.random.default_rng(1))
    peers = Lockstep(problem, plan)
    for k, peer in enumerate(peers.peers):
        rows = problem.rows_of(k)
        for fact in (RowsChanged(0.0, StoredRows.of(rows.take(slice(1)))), ModelStep(0.0), ResetModel(0.0)):
            peer.handle(fact)
        peer.handle(RowsChanged(0.0, StoredRows.of(rows)))
    peers.run(np.random.default_rng(1))
    assert_array_equal(peers.models, engine.models)
    assert_array_equal(peers.graph.indices, engine.graph.indices)


def test_peers_that_receive_rows_reach_the_optimum_of_all_rows():
    K = 4
    problem = users(3, K)
    before = fewer(problem, np.ones(K, np.int64))
    config = PeerConfig(12, 3.0, 0.7, loss="logistic", graph="everyone")
    rhythm = Rhythm(local_steps=5, first_graph_steps=5, graph_every=5)
    network = SimulatedNetwork(before, config, rhythm, Faults.named("none"), steps=250, seed=0)
    for k in range(K):
        network.change_rows(k, problem.rows_of(k), 50.0 + k)
    result = network.run()
    complete = CollaborationGraph.complete(K)
    reference = run(problem, Plan(n_updates=4000, learn_graph=False), np.random.default_rng(0), graph=complete)
    reached, best = (problem.objective(models, complete) for models in (result.together, reference.models))
    assert reached == pytest.approx(best, rel=1e-4)
    # All peers know the largest number of samples.
    largest = {host.member.peer.neighbourhood.sizes.largest for host in network.world.hosts}
    assert largest == {int(problem.sizes.max())}


@pytest.mark.parametrize("graph", ["evidence", "distance"])
def test_rows_that_come_amid_faults_violate_no_invariant_and_are_replayed(graph):
    problem, journal = users(5, K=8), io.BytesIO()
    config = PeerConfig(12, 3.0, 0.7, loss="logistic", graph=graph, n_neighbours=3, vet=True, trust_largest=0.2)
    rhythm = Rhythm(local_steps=5, first_graph_steps=3, graph_every=2)
    start = fewer(problem, np.full(8, 2))
    network = SimulatedNetwork(start, config, rhythm, Faults.named("loss,churn"), steps=20, seed=1, journal=journal)
    for k in range(8):
        network.change_rows(k, problem.rows_of(k), 2.0 * k)
    network.run()
    assert replay(io.BytesIO(journal.getvalue())).is_whole
    up = [host for host in network.joined if host.is_up]
    assert [host.member.peer.own.size for host in up] == [int(problem.sizes[host.number]) for host in up]
