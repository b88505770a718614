"""Background graph: a few edges of weight 1 to random peers, the same at both ends, replaced when lost."""

import numpy as np
import pytest

from dada.core.block_steps import BlockStep
from dada.core.model_steps import UserRows
from dada.peer.inputs import GraphStep, ModelStep, PeerConfig, Received, Unreachable
from dada.peer.messages import EdgeState, ModelOffer, StateReply
from dada.peer.neighbourhoods import MOST_EDGES, OWN_EDGES
from dada.peer.peer import Peer
from tests.helpers.peers import WiredPeers

CONFIG = PeerConfig(6, beta=2.0, mu1=0.5, graph="everyone", step="block", block=BlockStep(theta=0.5, silence=0.0))
NAMES = [b"peer%02d" % k for k in range(20)]


def make(me):
    A = np.random.default_rng(me[-1]).choice(np.array([-1, 1], np.int8), (4, 6), p=[0.3, 0.7])
    return Peer(me, UserRows(A), CONFIG)


def wired(names=NAMES, rounds=3):
    """Peers after a few graph steps each, with batches of random peers."""
    rng, peers = np.random.default_rng(0), WiredPeers(make, names)
    for _ in range(rounds):
        for name in names:
            others = [other for other in names if other != name]
            peers.give(name, GraphStep(0.0, tuple(others[p] for p in rng.permutation(len(others))[:OWN_EDGES])))
    return peers


@pytest.fixture(scope="module")
def settled():
    return wired()


def test_edges_are_symmetric_of_weight_one_and_bounded(settled):
    for name, peer in settled.peers.items():
        assert OWN_EDGES <= len(peer.edges.neighbours) <= MOST_EDGES
        for other in peer.edges.neighbours:
            assert peer.edges[other].weight == settled[other].edges[name].weight == 1.0
            assert peer.edges[other].copy.number == settled[other].own.shared.number


def test_no_loss_or_degree_is_sent(settled):
    assert any(isinstance(message, ModelOffer) for message in settled.sent)
    assert not any(isinstance(message, StateReply) for message in settled.sent)


def test_a_peer_with_enough_edges_asks_nobody():
    peers = wired(NAMES[:4])
    assert all(len(peer.edges.neighbours) == 3 for peer in peers.peers.values())
    peers.sent.clear()
    peers.give(NAMES[0], GraphStep(0.0, tuple(NAMES[1:4])))
    assert not any(isinstance(message, ModelOffer | EdgeState) for message in peers.sent)


def test_a_lost_edge_is_replaced():
    peers = wired()
    first = NAMES[0]
    lost = next(other for other in peers[first].edges.neighbours if peers[first].edges[other].author == first)
    before = len(peers[first].edges.neighbours)
    peers.give(first, Unreachable(0.0, lost))
    strangers = tuple(name for name in NAMES if name not in (first, lost, *peers[first].edges.neighbours))
    peers.give(first, GraphStep(0.0, strangers))
    assert len(peers[first].edges.neighbours) == before
    assert lost not in peers[first].edges.neighbours


def test_a_full_peer_refuses_one_more_edge():
    peers = WiredPeers(make, NAMES)
    for name in NAMES[1 : MOST_EDGES + 3]:
        peers.give(name, GraphStep(0.0, (NAMES[0],)))
    assert len(peers[NAMES[0]].edges.neighbours) == MOST_EDGES
    assert peers[NAMES[MOST_EDGES + 2]].edges.neighbours == []


def test_block_changes_reach_both_ends(settled):
    first, other = NAMES[0], settled[NAMES[0]].edges.neighbours[0]
    for name in (first, other):
        settled.give(name, ModelStep(0.0))
    for one, two in ((first, other), (other, first)):
        np.testing.assert_array_equal(settled[one].edges[two].copy.alpha, settled[two].own.shared.alpha)
        assert settled[two].own.shared.n_support > 0


def test_other_weights_are_refused():
    (refused, *_) = make(b"me").handle(Received(0.0, b"you", EdgeState(1, b"you", 0.5)))
    assert refused.reason == "an edge of weight 0.5, in this network it is 0 or 1"
