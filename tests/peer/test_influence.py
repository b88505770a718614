"""Neighbours move a model by at most their weight, and a neighbour whose model does harm has none."""

import numpy as np
import pytest

from dada.core.block_steps import BlockStep
from dada.core.model_steps import UserRows
from dada.peer.copies import ModelCopy
from dada.peer.inputs import GraphStep, ModelStep, PeerConfig, Received
from dada.peer.messages import SnapshotReply
from dada.peer.model import MOST_ACCEPTED, Fallback, OwnModel
from dada.peer.peer import Peer
from tests.helpers.peers import WiredPeers

BLOCK = BlockStep(inner_moves=10, momentum=0.0, quantise_bits=6, silence=0.02)
CONFIG = PeerConfig(4, beta=2.0, mu1=0.5, graph="evidence", n_neighbours=3, vet=True, step="block", block=BLOCK)
A = np.array([[1, -1, 1, 1], [1, 1, -1, 1], [1, -1, -1, -1]], np.int8)


def model_of(alpha, sequence):
    """A coded model of epoch 1."""
    copy = ModelCopy.zero(4, epoch=1)
    copy.alpha[:] = alpha
    used = np.flatnonzero(copy.alpha)
    copy.support[: used.size], copy.n_support = used, used.size
    copy.sequence, copy.exponent = sequence, -4
    return copy


@pytest.fixture
def followed():
    """Ann follows Bob and Eve, whose models are the same."""
    three = WiredPeers(lambda me: Peer(me, UserRows(A), CONFIG), (b"ann", b"bob", b"eve"))
    for name in (b"ann", b"bob", b"eve"):
        three.give(name, ModelStep(0.0))
    three.give(b"ann", GraphStep(0.0, (b"bob", b"eve")))
    assert three[b"ann"].edges.neighbours == [b"bob", b"eve"]
    return three


@pytest.mark.parametrize(
    ("alpha", "is_kept"),
    [([2.0, 0, 0, 0], True), ([-2.0, 0, 0, 0], False), ([2.9, 0, 0, 0], True), ([3.1, 0, 0, 0], False)],
    ids=["good", "harmful", "large", "too large"],
)
def test_a_neighbour_is_dropped_before_any_step_with_a_model_that_does_harm_or_is_too_large(followed, alpha, is_kept):
    ann = followed[b"ann"]
    copy = model_of(alpha, sequence=50)
    followed.give(b"ann", Received(0.0, b"eve", SnapshotReply(copy.coded_snapshot())))
    followed.give(b"ann", ModelStep(0.0))
    assert ann.edges.has_neighbour(b"eve") == is_kept
    held = ann.edges.models()
    assert all(ann.own.accepts(one) for _, one in held)
    np.testing.assert_allclose(ann.own.user.neighbour_sum, sum(weight * one.alpha for weight, one in held), atol=1e-6)


def test_a_network_that_does_not_vet_keeps_them():
    own = OwnModel(UserRows(A), PeerConfig(4, beta=2.0, mu1=0.5))
    assert own.accepts(model_of([-9.0, 0, 0, 0], 1))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_neighbours_with_a_share_of_the_weight_move_the_model_by_at_most_that_share(seed, share):
    rng, n, beta = np.random.default_rng(seed), 12, 3.0
    coupling = rng.uniform(0.2, 1.0, n)
    config = PeerConfig(n, beta=beta, mu1=0.7, loss="logistic", coupling=coupling)
    own = Fallback(UserRows(rng.choice(np.array([-1, 1], np.int8), size=(6, n))), config)
    honest, lies, other_lies = (_model(rng, n, MOST_ACCEPTED * beta) for _ in range(3))
    with_lies, with_others = (own.together(0.8, 1.0, (1 - share) * honest + share * lie) for lie in (lies, other_lies))

    def norm(change):
        return float(np.sqrt(coupling @ change.astype(np.float64) ** 2))

    assert norm(with_lies - with_others) <= share * norm(lies - other_lies) + 1e-3
    assert share * norm(lies - other_lies) <= 2 * share * MOST_ACCEPTED * beta


def _model(rng, n, norm):
    alpha = rng.standard_normal(n)
    return (norm * alpha / np.abs(alpha).sum()).astype(np.float32)
