import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dada.core.gossip import BatchMix, gather_peers, gossip_mix, pick, uniform_mix
from dada.core.neighbour_lists import lists_from_csr
from dada.core.plan import Plan
from dada.core.regularizers import LogDegree
from tests.helpers.problems import random_graph, random_problem
from tests.helpers.runs import watched_run


@given(seed=st.integers(0, 2**32), n_users=st.integers(2, 12), kappa=st.integers(1, 6))
def test_a_batch_holds_others_once_each_and_of_the_right_kinds(seed, n_users, kappa):
    rng = np.random.default_rng(seed)
    graph, mix = random_graph(rng, n_users, density=0.3), gossip_mix(kappa)
    lists = lists_from_csr(graph.indptr, graph.indices, graph.weights)
    k = int(rng.integers(n_users))
    uniform = np.array([(k + 1) % n_users], np.int32)
    words = rng.integers(2**32, size=mix.n_words)
    peers = np.empty(mix.size, np.int32)
    batch = peers[: gather_peers(BatchMix(1, *mix[1:]), lists, k, uniform, words, peers)].tolist()
    own = set(graph.neighbours(k)[0].tolist())
    theirs = {l for a in own for l in graph.neighbours(a)[0].tolist()}
    assert len(set(batch)) == len(batch)
    assert k not in batch
    assert set(batch) <= own | theirs | set(uniform.tolist())
    assert batch[0] == uniform[0]


def test_uniform_batches_are_all_that_the_paper_asks():
    assert uniform_mix(4).size == 4
    assert uniform_mix(4).n_words == 0


@pytest.mark.parametrize("kappa", [1, 3, 5, 12])
def test_a_gossip_search_always_asks_somebody_at_random(kappa):
    mix = gossip_mix(kappa)
    assert mix.n_uniform >= 1
    assert mix.n_uniform + mix.n_gossip == kappa


def test_words_pick_every_place_alike():
    words = np.linspace(0, 2**32 - 1, 30_001).astype(np.int64)
    counts = np.bincount([pick(word, 7) for word in words], minlength=7)
    assert counts.size == 7
    assert counts.max() - counts.min() <= 2


def test_without_any_edge_a_gossip_search_still_meets_everybody():
    # Weights stay at zero where the reward of a degree is below the cost of any edge, so all peers met were uniform.
    problem = random_problem(
        np.random.default_rng(0), 8, mu2=1e-3, regularizer=LogDegree(1.0, 10.0), graph_loss="logistic", dtype=np.float32
    )
    plan = Plan(n_updates=0, kappa=5, sampler="gossip", keep_nearest=7, local_updates=10, first_graph_wakeups=800)
    states = []
    result = watched_run(problem, plan, 1, states.append)
    assert result.graph.n_edges == 0
    met = np.sort(states[-1].nearest.ids, axis=1)
    assert all(met[k].tolist() == [l for l in range(8) if l != k] for k in range(8))
