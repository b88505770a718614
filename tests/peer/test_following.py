"""Peers of an evidence graph, wired by hand: everybody decides for itself, and both ends know who follows whom."""

import numpy as np
import pytest

from dada.peer.config import PeerConfig
from dada.peer.edges import MOST_ENDED_EDGES
from dada.peer.evidence_graph import LISTENER_KEY, MOST_LISTENERS
from dada.peer.inputs import GraphStep, Leave, ModelStep, Persist, Refused, ResetModel, Send
from dada.peer.messages import (
    EdgeState,
    Follow,
    FollowAck,
    Hello,
    ModelDelta,
    ModelOffer,
    Snapshot,
    SnapshotReply,
    StateReply,
    StateRequest,
)
from dada.peer.peer import Peer

A = np.array([[1, -1, 1], [1, 1, -1], [1, -1, -1]], np.int8)
ROWS = {b"ann": A, b"bob": A[:2], b"eve": A[1:]}


def make(me, records=None, **settings):
    settings = {"n_neighbours": 2, "tau": 1.0, **settings}
    peer = Peer(me, ROWS.get(me, A), PeerConfig(3, beta=2.0, mu1=0.5, graph="evidence", **settings))
    if records is not None:
        peer.restore(records)
    return peer


class Three:
    """Ann, Bob and Eve with their stored records; `talk` carries messages, losing those it is told to."""

    def __init__(self, **settings):
        self.settings = settings
        self.peers = {name: make(name, **settings) for name in ROWS}
        self.records = {name: {} for name in ROWS}
        self.said = []
        for name, peer in self.peers.items():
            self.talk(name, peer.start(0.0))
        for _ in range(3):
            for name in ROWS:
                self.act(name, ModelStep())

    def talk(self, name, effects, now=0.0, loses=lambda message: False):
        queue = [(name, effect) for effect in effects]
        for sender, effect in queue:
            if isinstance(effect, Persist):
                self.records[sender].pop(effect.key, None)
                if effect.value:
                    self.records[sender][effect.key] = effect.value
            elif isinstance(effect, Send):
                self.said.append(effect.message)
                if not loses(effect.message):
                    answers = self.peers[effect.to].receive(sender, effect.message, now)
                    queue.extend((effect.to, answer) for answer in answers)
        assert len(queue) < 1000

    def act(self, name, action, now=0.0, loses=lambda message: False):
        self.talk(name, self.peers[name].act(action, now), now, loses)

    def hello(self, name, to, now=0.0):
        self.talk(to, self.peers[to].receive(name, self.peers[name].hello(), now), now)

    def restart(self, name, records=None, now=0.0):
        self.peers[name] = make(name, dict(self.records[name] if records is None else records), **self.settings)
        self.talk(name, self.peers[name].start(now), now)

    def assert_agreed(self):
        for name, peer in self.peers.items():
            for other, held in self.peers.items():
                if other != name:
                    assert (other in peer.neighbours) == (name in held.listeners)


@pytest.fixture
def three():
    three = Three()
    three.act(b"ann", GraphStep((b"bob", b"eve")))
    assert three.peers[b"ann"].neighbours == [b"bob", b"eve"]
    return three


def test_who_asks_follows_and_who_is_followed_knows_it_but_follows_nobody(three):
    three.assert_agreed()
    assert three.peers[b"bob"].listeners == [b"ann"]
    assert three.peers[b"bob"].neighbours == three.peers[b"ann"].listeners == []
    assert sum(edge.weight for edge in three.peers[b"ann"].edges.values()) == pytest.approx(1.0)
    assert not any(isinstance(message, StateReply | EdgeState) for message in three.said)


def test_moves_go_to_listeners_alone(three):
    three.said.clear()
    three.act(b"ann", ResetModel())
    three.act(b"ann", ModelStep())
    assert three.said == []
    three.act(b"bob", ResetModel())
    three.act(b"bob", ModelStep())
    assert any(isinstance(message, ModelDelta) for message in three.said)
    copy = three.peers[b"ann"].edges[b"bob"].copy
    np.testing.assert_array_equal(copy.alpha, three.peers[b"bob"].model.alpha)


def test_only_so_many_are_followed_and_the_rest_is_told():
    three = Three(n_neighbours=1)
    three.act(b"ann", GraphStep((b"bob", b"eve")))
    (followed,) = three.peers[b"ann"].neighbours
    three.assert_agreed()
    assert three.peers[b"ann"].edges[followed].weight == 1.0


def test_a_lost_word_is_repeated_until_it_is_heard():
    three = Three()
    three.act(b"ann", GraphStep((b"bob",)), loses=lambda message: isinstance(message, Follow))
    ann = three.peers[b"ann"]
    assert three.peers[b"bob"].listeners == []
    three.talk(b"ann", ann.on_timer(ann.deadline), ann.deadline)
    three.assert_agreed()
    assert ann.deadline == float("inf")


def test_a_model_that_does_harm_is_let_go(three):
    settings = {"vet": True}
    three = Three(**settings)
    three.act(b"ann", GraphStep((b"bob", b"eve")))
    bad = Snapshot(9, 9, np.array([0], "<u4").tobytes(), np.array([-2.0], "<f4").tobytes())
    three.peers[b"ann"].receive(b"bob", SnapshotReply(bad), 0.0)
    three.act(b"ann", GraphStep(()))
    assert three.peers[b"ann"].neighbours == [b"eve"]
    three.assert_agreed()


def test_a_huge_number_of_samples_counts_for_no_more_than_the_largest_that_is_trusted():
    one, other = (make(b"me", trust_largest=0.5) for _ in range(2))
    for peer, claimed in ((one, 3), (other, 10**9)):
        peer.start(0.0)
        peer.act(GraphStep((b"bob", b"eve")), 0.0)
        good = Snapshot(1, 1, np.array([0], "<u4").tobytes(), np.array([1.0], "<f4").tobytes())
        peer.receive(b"bob", ModelOffer(1, good, 3), 0.0)
        peer.receive(b"eve", ModelOffer(1, good, claimed), 0.0)
    assert one.edges[b"eve"].weight == other.edges[b"eve"].weight == 0.5


def test_a_followed_peer_that_lost_its_records_learns_of_its_listeners_again(three):
    three.restart(b"bob", {b"epoch": three.records[b"bob"][b"epoch"]})
    assert three.peers[b"bob"].listeners == []
    for _ in range(2):
        three.act(b"ann", GraphStep(()))
    three.assert_agreed()
    copy = three.peers[b"ann"].edges[b"bob"].copy
    assert copy.number == three.peers[b"bob"].model.number


def test_a_follower_that_lost_its_records_is_soon_told_nothing_more(three):
    three.restart(b"ann", {b"epoch": three.records[b"ann"][b"epoch"]})
    assert three.peers[b"bob"].listeners == [b"ann"]
    three.hello(b"ann", to=b"bob")
    assert three.peers[b"bob"].listeners == []
    three.act(b"eve", ResetModel())
    three.act(b"eve", ModelStep())
    assert three.peers[b"eve"].listeners == []


def test_a_restarted_follower_goes_on_where_it_was(three):
    weights = {peer: edge.weight for peer, edge in three.peers[b"ann"].edges.items()}
    three.restart(b"ann")
    ann = three.peers[b"ann"]
    assert {peer: edge.weight for peer, edge in ann.edges.items()} == weights
    assert all(edge.copy is not None and edge.acknowledged for edge in ann.edges.values())
    assert ann.edges[b"bob"].size == 2
    three.assert_agreed()


def test_a_restarted_peer_tells_its_moves_to_its_listeners(three):
    three.restart(b"bob")
    assert three.peers[b"bob"].listeners == [b"ann"]
    three.act(b"bob", ResetModel())
    copy = three.peers[b"ann"].edges[b"bob"].copy
    assert copy.number == three.peers[b"bob"].model.number


def test_words_out_of_order_do_not_count(three):
    bob = three.peers[b"bob"]
    version = three.peers[b"ann"].edges[b"bob"].version
    bob.receive(b"ann", Follow(version + 5, follows=False), 0.0)
    (answer,) = bob.receive(b"ann", Follow(version, follows=True), 0.0)
    assert bob.listeners == []
    assert answer.message == FollowAck(version + 5, False, *bob.model.number)


def test_whoever_leaves_is_dropped_by_both_kinds_of_neighbours(three):
    three.act(b"bob", GraphStep((b"eve",)))
    three.act(b"bob", Leave())
    assert three.peers[b"ann"].neighbours == [b"eve"]
    assert b"bob" not in three.peers[b"eve"].listeners


def test_a_given_up_listener_comes_back_by_its_greeting(three):
    three.talk(b"bob", three.peers[b"bob"].on_unreachable(b"ann", 1.0))
    assert three.peers[b"bob"].listeners == []
    three.hello(b"bob", to=b"ann", now=2.0)
    three.assert_agreed()


def test_a_greeting_of_strangers_needs_no_answer(three):
    assert three.peers[b"eve"].receive(b"bob", Hello(three.peers[b"eve"].config.digest, 1), 0.0) == []


def test_listeners_are_bounded_and_one_too_many_is_told_so():
    peer = make(b"me")
    peer.start(0.0)
    for k in range(MOST_LISTENERS + 1):
        effects = peer.receive(k.to_bytes(4, "big"), Follow(1, follows=True), 0.0)
    assert len(peer.listeners) == MOST_LISTENERS
    (answer,) = effects
    assert not answer.message.follows
    follower = make(b"you")
    follower.start(0.0)
    follower.act(GraphStep((b"me",)), 0.0)
    good = Snapshot(1, 1, np.array([0], "<u4").tobytes(), np.array([1.0], "<f4").tobytes())
    follower.receive(b"me", ModelOffer(1, good, 3), 0.0)
    assert follower.neighbours == [b"me"]
    follower.receive(b"me", FollowAck(follower.edges[b"me"].version, False, 1, 1), 0.0)
    assert follower.neighbours == []
    assert follower.deadline == float("inf")


def test_those_who_follow_no_more_are_forgotten_in_memory_and_on_disk():
    peer = make(b"me")
    peer.start(0.0)
    stored = {}
    for k in range(MOST_ENDED_EDGES + 50):
        for version, follows in ((1, True), (2, False)):
            for effect in peer.receive(k.to_bytes(4, "big"), Follow(version, follows), 0.0):
                if isinstance(effect, Persist):
                    stored[effect.key] = effect.value
    assert len(peer.neighbourhood.heard) == MOST_ENDED_EDGES
    assert all(key.startswith(LISTENER_KEY) and not value for key, value in stored.items())


@pytest.mark.parametrize("version", [0, -1, 2**60])
def test_versions_that_nobody_gives_are_refused(version):
    (refused,) = make(b"me").receive(b"you", Follow(version, follows=True), 0.0)
    assert isinstance(refused, Refused)


def test_words_of_the_other_graph_are_refused():
    (refused,) = make(b"me").receive(b"you", EdgeState(1, b"you", 1.0), 0.0)
    assert "no peer of this network answers a EdgeState" in refused.reason
    (answer,) = make(b"me").receive(b"you", StateRequest(4), 0.0)
    assert isinstance(answer.message, ModelOffer)
