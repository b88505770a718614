import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dada.core.graph import (
    BatchMix,
    gather_peers,
    gossip_mix,
    lists_from_csr,
    next_bits,
    no_nearest,
    pick,
    remember_nearest,
    uniform_mix,
)
from dada.core.graph_steps import LogDegree
from dada.core.plan import Plan
from tests.helpers.problems import random_graph, random_problem
from tests.helpers.runs import watched_run


@given(seed=st.integers(0, 2**32), n_users=st.integers(2, 12), kappa=st.integers(1, 6))
def test_a_batch_holds_others_once_each_and_of_the_right_kinds(seed, n_users, kappa):
    rng = np.random.default_rng(seed)
    graph, mix = random_graph(rng, n_users, density=0.3), gossip_mix(kappa)
    nearest = no_nearest(n_users, 2, 2)
    for places in (nearest.ids, nearest.guests):
        places[...] = np.sort(rng.integers(-1, n_users, places.shape))[:, ::-1]
    lists = lists_from_csr(graph.indptr, graph.indices, graph.weights)
    k = int(rng.integers(n_users))
    uniform = np.array([(k + 1) % n_users], np.int32)
    draws = rng.integers(2**32, size=mix.n_draws)
    peers = np.empty(mix.size, np.int32)
    batch = peers[: gather_peers(BatchMix(1, *mix[1:]), lists, nearest, k, uniform, draws, peers)].tolist()
    neighbours = [set(graph.neighbours(l)[0].tolist()) for l in range(n_users)]
    near = [neighbours[l] | set(nearest.ids[l].tolist()) - {-1} for l in range(n_users)]
    listed = [near[l] | set(nearest.guests[l].tolist()) - {-1} for l in range(n_users)]
    fresh = {l for a in listed[k] for l in listed[a]} - near[k]
    assert len(set(batch)) == len(batch)
    assert k not in batch
    assert set(batch) <= neighbours[k] | fresh | set(uniform.tolist())
    assert batch[0] == uniform[0]


def met_by(k, nearest):
    """Whom user k meets in some wake-ups of a population without edges."""
    nobody, met = lists_from_csr(np.zeros(5, np.int64), np.empty(0, np.int32), np.empty(0)), set()
    for seed in range(30):
        peers, draws = np.empty(2, np.int32), np.random.default_rng(seed).integers(2**32, size=4)
        size = gather_peers(BatchMix(0, 2, 0), nobody, nearest, k, np.empty(0, np.int32), draws, peers)
        met |= set(peers[:size].tolist())
    return met


def test_a_user_without_neighbours_is_led_on_by_its_candidates():
    nearest = no_nearest(4, 2, 0)
    nearest.ids[:2] = [[1, -1], [2, 3]]
    assert met_by(0, nearest) == {2, 3}


def test_two_users_with_the_same_candidate_find_each_other():
    nearest = no_nearest(4, 2, 2)
    for k in (0, 3):
        assert remember_nearest(nearest, k, 1, 0.5)
    assert met_by(0, nearest) == {3}


def test_the_nearest_met_are_remembered_and_the_farthest_forgotten():
    nearest = no_nearest(5, 2, 1)
    assert [bool(remember_nearest(nearest, 0, l, d)) for l, d in ((1, 4.0), (2, 3.0), (3, 5.0), (4, 1.0))] == [
        True,
        True,
        False,
        True,
    ]
    assert sorted(nearest.ids[0].tolist()) == [2, 4]
    assert nearest.guests[:, 0].tolist() == [-1, 0, 0, -1, 0]


def test_bits_made_of_bits_spread_as_well():
    draws = [1]
    for _ in range(9_999):
        draws.append(next_bits(draws[-1]))
    assert len(set(draws)) == len(draws)
    counts = np.bincount([pick(draw, 10) for draw in draws])
    assert counts.min() > 900
    assert counts.max() < 1100


def test_uniform_batches_are_all_that_the_paper_asks():
    assert uniform_mix(4).size == 4
    assert uniform_mix(4).n_draws == 0


@pytest.mark.parametrize("kappa", [1, 3, 5, 12])
def test_a_gossip_search_always_asks_a_random_peer(kappa):
    mix = gossip_mix(kappa)
    assert mix.n_uniform >= 1
    assert mix.n_uniform + mix.n_gossip == kappa


def test_random_bits_pick_every_place_alike():
    draws = np.linspace(0, 2**32 - 1, 30_001).astype(np.int64)
    counts = np.bincount([pick(draw, 7) for draw in draws], minlength=7)
    assert counts.size == 7
    assert counts.max() - counts.min() <= 2


def test_without_any_edge_a_gossip_search_still_meets_everybody():
    # Weights stay at zero where the reward of a degree is below the cost of any edge, so all peers met were uniform.
    problem = random_problem(
        np.random.default_rng(0), 8, mu2=1e-3, regularizer=LogDegree(1.0, 10.0), graph_loss="logistic", dtype=np.float32
    )
    plan = Plan(n_updates=0, kappa=5, sampler="gossip", local_updates=10, first_graph_wakeups=800)
    state = watched_run(problem, plan, 1, lambda _: None)
    assert state.graph.n_edges == 0
    met = [set(ids[ids >= 0].tolist()) for ids in state.nearest.ids]
    assert all(met[k] == set(range(8)) - {k} for k in range(8))
