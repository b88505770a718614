"""Distance graph: lost, repeated, forgotten and forged messages do no lasting harm."""

import numpy as np
import pytest

from dada.core.graph_steps import LogDegree, exact_step
from dada.core.model_steps import UserRows
from dada.peer.edges import MOST_ENDED_EDGES
from dada.peer.inputs import (
    GraphStep,
    ModelStep,
    PeerConfig,
    Persist,
    Received,
    ResetModel,
    Restored,
    Send,
    Started,
    TimerFired,
    Unreachable,
)
from dada.peer.messages import EdgeAck, EdgeState, Goodbye, ModelDelta, ModelSnapshot, SnapshotReply, StateRequest
from dada.peer.peer import Peer
from tests.helpers.peers import WiredPeers

A = np.array([[1, -1, 1], [1, 1, -1], [1, -1, -1]], np.int8)


def make(me, **settings):
    config = PeerConfig(n_predictors=3, beta=2.0, mu1=0.5, regularizer=LogDegree(lam=0.3, delta=0.1), **settings)
    return Peer(me, UserRows(A), config)


def weights(pair):
    return tuple(pair[here].edges[there].weight for here, there in ((b"ann", b"bob"), (b"bob", b"ann")))


@pytest.fixture
def pair():
    """Ann and Bob, who have learned alone and have an edge."""
    pair = WiredPeers(make, (b"ann", b"bob"))
    for _ in range(3):
        pair.give(b"ann", ModelStep(0.0))
        pair.give(b"bob", ModelStep(0.0))
    pair.give(b"ann", GraphStep(0.0, (b"bob",)))
    assert weights(pair)[0] > 0.0
    return pair


def test_a_lost_weight_is_repeated_until_acknowledged(pair):
    pair.give(b"ann", ResetModel(0.0))
    pair.give(b"ann", GraphStep(0.0, (b"bob",)), loses=lambda message: isinstance(message, EdgeState))
    ann = pair[b"ann"]
    assert weights(pair)[0] != weights(pair)[1]
    assert not ann.edges[b"bob"].acknowledged
    pair.give(b"ann", TimerFired(ann.deadline))
    assert weights(pair)[0] == weights(pair)[1]
    assert ann.deadline == float("inf")


def test_a_lost_move_is_detected_at_the_next_graph_step(pair):
    ann, bob = pair[b"ann"], pair[b"bob"]
    pair.give(b"ann", ResetModel(0.0), loses=lambda message: isinstance(message, SnapshotReply))
    pair.give(b"ann", ModelStep(0.0), loses=lambda message: isinstance(message, ModelDelta))
    assert bob.edges[b"ann"].copy.number < ann.own.model.number
    pair.give(b"ann", GraphStep(0.0, ()))
    assert bob.edges[b"ann"].copy.number == ann.own.model.number
    np.testing.assert_array_equal(bob.edges[b"ann"].copy.alpha, ann.own.model.alpha)


def test_an_edge_that_one_end_dropped_silently_ends_at_the_other_too(pair):
    pair[b"ann"].handle(Unreachable(1.0, b"bob"))
    assert weights(pair) == (0.0, weights(pair)[1])
    pair.give(b"bob", GraphStep(2.0, ()))
    assert weights(pair) == (0.0, 0.0)


def test_no_version_repeats_after_a_power_cut(pair):
    before = dict(pair.records[b"ann"])
    pair.give(b"ann", ResetModel(0.0))
    pair.give(b"ann", GraphStep(0.0, (b"bob",)))
    lost = pair[b"ann"].edges[b"bob"].rank
    # The disk has an older state of the edge, and ann changes the edge again before bob sends a message.
    pair.restart(b"ann", {**before, b"epoch": pair.records[b"ann"][b"epoch"]}, 5.0, loses=lambda message: True)
    pair.give(b"bob", ResetModel(6.0), loses=lambda message: True)
    pair.give(b"ann", GraphStep(6.0, (b"bob",)), loses=lambda message: isinstance(message, EdgeAck))
    assert pair[b"ann"].edges[b"bob"].rank > lost
    assert weights(pair)[0] == weights(pair)[1]


def test_two_weights_with_one_version_are_settled_by_a_new_version(pair):
    edge = pair[b"ann"].edges[b"bob"]
    rank, lower = edge.rank, edge.weight / 2
    # A second process with Bob's identity gave the same version to another weight.
    pair.give(b"ann", Received(1.0, b"bob", EdgeState(*rank, lower)))
    assert weights(pair) == (lower, lower)
    assert edge.rank > rank
    assert pair[b"bob"].edges[b"ann"].rank == edge.rank


def test_a_neighbour_whose_model_is_unknown_has_no_influence(pair):
    records = dict(pair.records[b"ann"])
    with_edge, alone = make(b"ann"), make(b"ann")
    with_edge.handle(Restored(records))
    alone.handle(Restored({key: value for key, value in records.items() if b"edge" not in key}))
    for peer in (with_edge, alone):
        peer.handle(Started(0.0))
        peer.handle(ModelStep(0.0))
    assert with_edge.edges.neighbours == [b"bob"]
    np.testing.assert_array_equal(with_edge.own.model.alpha, alone.own.model.alpha)


def test_ended_edges_are_forgotten_in_memory_and_on_disk():
    peer = make(b"me")
    stored = set()
    peer.handle(Started(0.0))
    for k in range(MOST_ENDED_EDGES + 50):
        other = b"p" + k.to_bytes(2, "big")
        for effect in [
            *peer.handle(Received(0.0, other, EdgeState(1, other, 1.0))),
            *peer.handle(Received(0.0, other, Goodbye())),
        ]:
            if isinstance(effect, Persist) and effect.key.startswith(b"edge:"):
                stored.add(effect.key) if effect.value else stored.discard(effect.key)
    assert len(peer.edges) == len(stored) == MOST_ENDED_EDGES
    assert peer.deadline == float("inf")


def test_a_refused_edge_has_no_weight_and_no_timer():
    peer = make(b"me", max_neighbours=1)
    peer.handle(Started(0.0))
    peer.handle(Received(0.0, b"first", EdgeState(1, b"first", 2.0)))
    _, answer = peer.handle(Received(0.0, b"second", EdgeState(1, b"second", 1.0)))
    assert answer.message.weight == 0.0
    assert answer.message.version > 1
    assert peer.edges.neighbours == [b"first"]
    assert peer.deadline == float("inf")


def test_stale_states_are_answered_without_setting_timers(pair):
    ann = pair[b"ann"]
    (answer,) = ann.handle(Received(1.0, b"bob", EdgeState(0, b"", 0.0)))
    assert answer.message.weight == ann.edges[b"bob"].weight
    assert ann.deadline == float("inf")


def test_an_acknowledgement_of_an_old_version_is_answered_with_the_new_one(pair):
    ann = pair[b"ann"]
    (answer,) = ann.handle(Received(1.0, b"bob", EdgeAck(1, b"bob", 1, 1)))
    assert isinstance(answer.message, EdgeState)
    assert answer.message.version == ann.edges[b"bob"].version


def test_a_peer_that_lost_a_weight_asks_for_it_until_it_has_it(pair):
    """A message of a life whose last records a power cut undid arrives late, and the answers to it are lost."""
    ann, edge = pair[b"ann"], pair[b"ann"].edges[b"bob"]
    late = EdgeState(edge.version + 1, b"ann", 2 * edge.weight)
    pair.give(b"bob", Received(1.0, b"ann", late), loses=lambda message: isinstance(message, EdgeState))
    assert weights(pair) == (edge.weight, late.weight)
    assert not edge.acknowledged
    pair.give(b"ann", TimerFired(ann.deadline))
    assert weights(pair) == (late.weight, late.weight)
    assert ann.edges[b"bob"].acknowledged
    assert ann.deadline == float("inf")


def test_repeated_messages_change_nothing(pair):
    bob = pair[b"bob"]
    moves = [e.message for e in pair[b"ann"].handle(ResetModel(0.0)) if isinstance(e, Send)]
    moves += [e.message for e in pair[b"ann"].handle(ModelStep(0.0)) if isinstance(e, Send)]
    for _ in range(3):
        for move in moves:
            bob.handle(Received(0.0, b"ann", move))
    np.testing.assert_array_equal(bob.edges[b"ann"].copy.alpha, pair[b"ann"].own.model.alpha)


def test_a_peer_that_keeps_sending_implausible_messages_is_ignored_and_loses_its_edge(pair):
    ann = pair[b"ann"]
    for _ in range(20):
        ann.handle(Received(0.0, b"bob", EdgeState(2, b"bob", float("nan"))))
    assert ann.edges.neighbours == []
    (refused,) = ann.handle(Received(0.0, b"bob", StateRequest(1)))
    assert "ignored" in refused.reason


# -- vetting -------------------------------------------------------------------------------------------------------


def model(*values, number=(1, 1)):
    used = np.flatnonzero(values)
    return ModelSnapshot(*number, used.astype("<u4").tobytes(), np.array(values)[used].astype("<f4").tobytes())


GOOD, BAD = model(2.0, 0.0, 0.0), model(-2.0, 0.0, 0.0)


def vetting(**settings):
    peer = make(b"me", vet=True, **settings)
    peer.handle(Started(0.0))
    return peer


def test_a_harmful_model_gets_no_edge():
    peer = vetting()
    _, answer = peer.handle(Received(0.0, b"liar", EdgeState(1, b"liar", 1.0, BAD)))
    assert answer.message.weight == 0.0
    assert peer.edges.neighbours == []
    peer.handle(Received(0.0, b"friend", EdgeState(1, b"friend", 1.0, GOOD)))
    assert peer.edges.neighbours == [b"friend"]


def test_an_edge_to_an_unknown_model_waits_for_the_model():
    peer = vetting()
    assert peer.handle(Received(0.0, b"you", EdgeState(1, b"you", 1.0))) == []
    peer.handle(Received(0.0, b"you", EdgeState(1, b"you", 1.0, GOOD)))
    assert peer.edges.neighbours == [b"you"]


def test_a_model_that_becomes_harmful_loses_its_edge_at_the_next_graph_step():
    peer = vetting()
    peer.handle(Received(0.0, b"you", EdgeState(1, b"you", 1.0, GOOD)))
    peer.handle(Received(0.0, b"you", SnapshotReply(model(-2.0, 0.0, 0.0, number=(1, 2)))))
    effects = peer.handle(GraphStep(0.0, ()))
    assert peer.edges.neighbours == []
    assert [e.message.weight for e in effects if isinstance(e, Send)] == [0.0]


def test_no_peer_can_claim_far_more_weight_than_all_others_have():
    peer = vetting()
    for name in (b"ann", b"bob"):
        peer.handle(Received(0.0, name, EdgeState(1, name, 1.0, GOOD)))
    for version in (5, 10**6, 10**9):
        effects = peer.handle(Received(0.0, b"bob", EdgeState(version, b"bob", 40.0)))
        (answer,) = (e.message for e in effects if isinstance(e, Send))
        assert answer.weight == peer.edges[b"bob"].weight == 2.0
        assert answer.version > version


def test_weights_above_the_upper_bound_are_refused():
    peer = vetting()
    (refused,) = peer.handle(Received(0.0, b"bob", EdgeState(1, b"bob", 1e6, GOOD)))
    assert "an edge of weight 1000000.0" in refused.reason


def test_sound_steps_stay_below_the_upper_bound():
    for lam in (0.01, 0.3, 10.0):
        config = PeerConfig(n_predictors=1, beta=2.0, mu1=0.5, regularizer=LogDegree(lam=lam, delta=0.1))
        new = np.empty(1)
        exact_step(config.regularizer.compiled, 0.5, np.array([-2 * config.beta]), np.zeros(1), np.zeros(1), 0.0, new)
        assert 0 < new[0] <= config.heaviest_weight
