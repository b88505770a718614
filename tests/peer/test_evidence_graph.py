"""Evidence graph: each peer decides on its own weights, and both ends know who follows whom."""

import numpy as np
import pytest

from dada.core.model_steps import UserRows
from dada.peer.edges import MOST_ENDED_EDGES
from dada.peer.inputs import (
    GraphStep,
    Leave,
    ModelStep,
    PeerConfig,
    Persist,
    Received,
    Refused,
    ResetModel,
    Started,
    TimerFired,
    Unreachable,
)
from dada.peer.messages import (
    EdgeState,
    Follow,
    FollowAck,
    Hello,
    ModelDelta,
    ModelOffer,
    ModelSnapshot,
    SnapshotReply,
    StateReply,
    StateRequest,
)
from dada.peer.neighbourhoods import FOLLOWER_KEY, MOST_STRANGERS
from dada.peer.peer import Peer
from tests.helpers.peers import WiredPeers

A = np.array([[1, -1, 1], [1, 1, -1], [1, -1, -1]], np.int8)
ROWS = {b"ann": A, b"bob": A[:2], b"eve": A[1:]}


def make(me, **settings):
    settings = {"n_neighbours": 2, "tau": 1.0, **settings}
    return Peer(me, UserRows(ROWS.get(me, A)), PeerConfig(3, beta=2.0, mu1=0.5, graph="evidence", **settings))


def learned_alone(**settings):
    """Ann, Bob and Eve after three model steps each."""
    three = WiredPeers(lambda me: make(me, **settings), ROWS)
    for _ in range(3):
        for name in ROWS:
            three.give(name, ModelStep(0.0))
    return three


def assert_agreed(three):
    for name, peer in three.peers.items():
        for other, held in three.peers.items():
            if other != name:
                assert (other in peer.edges.neighbours) == (name in held.neighbourhood.followers)


@pytest.fixture
def three():
    three = learned_alone()
    three.give(b"ann", GraphStep(0.0, (b"bob", b"eve")))
    assert three[b"ann"].edges.neighbours == [b"bob", b"eve"]
    return three


def test_the_asking_peer_follows_and_the_followed_peer_knows_it(three):
    assert_agreed(three)
    assert three[b"bob"].neighbourhood.followers == [b"ann"]
    assert three[b"bob"].edges.neighbours == three[b"ann"].neighbourhood.followers == []
    assert sum(edge.weight for edge in three[b"ann"].edges.values()) == pytest.approx(1.0)
    assert not any(isinstance(message, StateReply | EdgeState) for message in three.sent)


def test_moves_go_to_followers_only(three):
    three.sent.clear()
    three.give(b"ann", ResetModel(0.0))
    three.give(b"ann", ModelStep(0.0))
    assert three.sent == []
    three.give(b"bob", ResetModel(0.0))
    three.give(b"bob", ModelStep(0.0))
    assert any(isinstance(message, ModelDelta) for message in three.sent)
    copy = three[b"ann"].edges[b"bob"].copy
    np.testing.assert_array_equal(copy.alpha, three[b"bob"].own.model.alpha)


def test_at_most_n_neighbours_are_followed():
    three = learned_alone(n_neighbours=1)
    three.give(b"ann", GraphStep(0.0, (b"bob", b"eve")))
    (followed,) = three[b"ann"].edges.neighbours
    assert_agreed(three)
    assert three[b"ann"].edges[followed].weight == 1.0


def test_a_lost_follow_is_repeated_until_acknowledged():
    three = learned_alone()
    three.give(b"ann", GraphStep(0.0, (b"bob",)), loses=lambda message: isinstance(message, Follow))
    ann = three[b"ann"]
    assert three[b"bob"].neighbourhood.followers == []
    three.give(b"ann", TimerFired(ann.deadline))
    assert_agreed(three)
    assert ann.deadline == float("inf")


def test_a_harmful_model_is_dropped_at_once():
    three = learned_alone(vet=True)
    three.give(b"ann", GraphStep(0.0, (b"bob", b"eve")))
    bad = ModelSnapshot(9, 9, np.array([0], "<u4").tobytes(), np.array([-2.0], "<f4").tobytes())
    three.give(b"ann", Received(0.0, b"bob", SnapshotReply(bad)))
    assert three[b"ann"].edges.neighbours == [b"eve"]
    assert_agreed(three)


def test_a_huge_sample_count_is_cut_to_the_largest_trusted_one():
    one, other = (make(b"me", trust_largest=0.5) for _ in range(2))
    for peer, claimed in ((one, 3), (other, 10**9)):
        peer.handle(Started(0.0))
        peer.handle(GraphStep(0.0, (b"bob", b"eve")))
        good = ModelSnapshot(1, 1, np.array([0], "<u4").tobytes(), np.array([1.0], "<f4").tobytes())
        peer.handle(Received(0.0, b"bob", ModelOffer(1, good, 3)))
        peer.handle(Received(0.0, b"eve", ModelOffer(1, good, claimed)))
    assert one.edges[b"eve"].weight == other.edges[b"eve"].weight == 0.5


def test_a_followed_peer_that_lost_its_records_recovers_its_followers(three):
    three.restart(b"bob", {b"epoch": three.records[b"bob"][b"epoch"]})
    assert three[b"bob"].neighbourhood.followers == []
    for _ in range(2):
        three.give(b"ann", GraphStep(0.0, ()))
    assert_agreed(three)
    copy = three[b"ann"].edges[b"bob"].copy
    assert copy.number == three[b"bob"].own.model.number


def test_a_follower_that_lost_its_records_gets_no_more_moves(three):
    three.restart(b"ann", {b"epoch": three.records[b"ann"][b"epoch"]})
    assert three[b"bob"].neighbourhood.followers == [b"ann"]
    three.give(b"bob", Received(0.0, b"ann", three[b"ann"].hello()))
    assert three[b"bob"].neighbourhood.followers == []
    three.give(b"eve", ResetModel(0.0))
    three.give(b"eve", ModelStep(0.0))
    assert three[b"eve"].neighbourhood.followers == []


def test_a_restarted_follower_continues(three):
    weights = {peer: edge.weight for peer, edge in three[b"ann"].edges.items()}
    three.restart(b"ann")
    ann = three[b"ann"]
    assert {peer: edge.weight for peer, edge in ann.edges.items()} == weights
    assert all(edge.copy is not None and edge.acknowledged for edge in ann.edges.values())
    assert ann.edges[b"bob"].size == 2
    assert_agreed(three)


def test_a_restarted_peer_sends_moves_to_its_followers(three):
    three.restart(b"bob")
    assert three[b"bob"].neighbourhood.followers == [b"ann"]
    three.give(b"bob", ResetModel(0.0))
    copy = three[b"ann"].edges[b"bob"].copy
    assert copy.number == three[b"bob"].own.model.number


def test_a_follow_of_an_old_version_is_ignored(three):
    bob = three[b"bob"]
    version = three[b"ann"].edges[b"bob"].version
    bob.handle(Received(0.0, b"ann", Follow(version + 5, follows=False)))
    (answer,) = bob.handle(Received(0.0, b"ann", Follow(version, follows=True)))
    assert bob.neighbourhood.followers == []
    assert answer.message == FollowAck(version + 5, False, *bob.own.model.number, size=bob.own.size)


def test_a_leaving_peer_is_dropped_by_followers_and_followed(three):
    three.give(b"bob", GraphStep(0.0, (b"eve",)))
    three.give(b"bob", Leave(0.0))
    assert three[b"ann"].edges.neighbours == [b"eve"]
    assert b"bob" not in three[b"eve"].neighbourhood.followers


def test_an_unreachable_follower_comes_back_with_a_greeting(three):
    three.give(b"bob", Unreachable(1.0, b"ann"))
    assert three[b"bob"].neighbourhood.followers == []
    three.give(b"ann", Received(2.0, b"bob", three[b"bob"].hello()))
    assert_agreed(three)


def test_the_greeting_of_a_stranger_gets_no_answer(three):
    assert three[b"eve"].handle(Received(0.0, b"bob", Hello(three[b"eve"].config.digest, 1))) == []


def test_followers_are_bounded_and_one_too_many_is_refused():
    peer = make(b"me")
    peer.handle(Started(0.0))
    for k in range(MOST_STRANGERS + 1):
        effects = peer.handle(Received(0.0, k.to_bytes(4, "big"), Follow(1, follows=True)))
    assert len(peer.neighbourhood.followers) == MOST_STRANGERS
    (answer,) = effects
    assert not answer.message.follows
    follower = make(b"you")
    follower.handle(Started(0.0))
    follower.handle(GraphStep(0.0, (b"me",)))
    good = ModelSnapshot(1, 1, np.array([0], "<u4").tobytes(), np.array([1.0], "<f4").tobytes())
    follower.handle(Received(0.0, b"me", ModelOffer(1, good, 3)))
    assert follower.edges.neighbours == [b"me"]
    follower.handle(Received(0.0, b"me", FollowAck(follower.edges[b"me"].version, False, 1, 1)))
    assert follower.edges.neighbours == []
    assert follower.deadline == float("inf")


def test_former_followers_are_forgotten_in_memory_and_on_disk():
    peer = make(b"me")
    peer.handle(Started(0.0))
    stored = {}
    for k in range(MOST_ENDED_EDGES + 50):
        for version, follows in ((1, True), (2, False)):
            for effect in peer.handle(Received(0.0, k.to_bytes(4, "big"), Follow(version, follows))):
                if isinstance(effect, Persist):
                    stored[effect.key] = effect.value
    assert len(peer.neighbourhood.follow_states) == MOST_ENDED_EDGES
    assert all(key.startswith(FOLLOWER_KEY) and not value for key, value in stored.items())


def test_the_first_version_is_one():
    (refused,) = make(b"me").handle(Received(0.0, b"you", Follow(0, follows=True)))
    assert isinstance(refused, Refused)


def test_messages_of_the_distance_graph_are_refused():
    (refused,) = make(b"me").handle(Received(0.0, b"you", EdgeState(1, b"you", 1.0)))
    assert "no peer of this network answers a EdgeState" in refused.reason
    (answer,) = make(b"me").handle(Received(0.0, b"you", StateRequest(4)))
    assert isinstance(answer.message, ModelOffer)
