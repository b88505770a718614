"""A peer with an old state takes a new epoch, and two processes with one identity are noticed."""

import numpy as np
import pytest

from dada.core.model_steps import UserRows
from dada.peer.inputs import (
    GraphStep,
    ModelStep,
    PeerConfig,
    Received,
    Refused,
    ResetModel,
    Restored,
    Send,
    Started,
    Warned,
)
from dada.peer.messages import EpochSeen, Hello
from dada.peer.peer import MOST_EPOCHS_AHEAD, MOST_REPORTERS, Peer
from tests.helpers.peers import WiredPeers

A = np.array([[1, -1, 1], [1, 1, -1], [1, -1, -1]], np.int8)


@pytest.fixture(params=["evidence", "distance"])
def graph(request):
    return request.param


def make(me, graph="evidence"):
    return Peer(me, UserRows(A), PeerConfig(3, beta=2.0, mu1=0.5, graph=graph, n_neighbours=2, tau=1.0))


def two_friends(graph):
    two = WiredPeers(lambda me: make(me, graph), (b"ann", b"bob"))
    for _ in range(3):
        for name in two.peers:
            two.give(name, ModelStep(0.0))
    two.give(b"ann", GraphStep(0.0, (b"bob",)))
    assert two[b"ann"].edges.neighbours == [b"bob"]
    return two


def test_a_restored_folder_gets_an_epoch_above_all_that_were_seen(graph):
    two = two_friends(graph)
    backup = dict(two.records[b"bob"])
    for now in (1.0, 2.0, 3.0):
        two.restart(b"bob", now=now)
    two.give(b"bob", ResetModel(3.0))
    seen = two[b"bob"].own.model.epoch
    assert two[b"ann"].edges[b"bob"].copy.epoch == seen
    two.restart(b"bob", backup, now=10.0)
    two.give(b"ann", Received(10.0, b"bob", two[b"bob"].hello()))
    assert two[b"bob"].own.model.epoch == seen + 1
    two.give(b"bob", ResetModel(11.0))
    two.give(b"bob", ModelStep(12.0))
    copy, own = two[b"ann"].edges[b"bob"].copy, two[b"bob"].own.model
    assert copy.number == own.number
    np.testing.assert_array_equal(copy.alpha, own.alpha)


def test_a_peer_that_lost_its_records_is_followed_again_after_its_new_epoch(graph):
    two = two_friends(graph)
    two.restart(b"bob", now=1.0)
    two.give(b"ann", Received(1.0, b"bob", two[b"bob"].hello()))
    two.restart(b"bob", {}, now=2.0)
    two.give(b"ann", Received(2.0, b"bob", two[b"bob"].hello()))
    assert two[b"bob"].neighbourhood.followers == [b"ann"]


def test_an_old_epoch_is_refused_and_answered_with_the_highest():
    ann = make(b"ann")
    ann.handle(Started(0.0))
    ann.handle(Received(0.0, b"bob", Hello(ann.config.digest, 9)))
    refused, answer = ann.handle(Received(1.0, b"bob", Hello(ann.config.digest, 7)))
    assert refused == Refused(b"bob", "epoch 7 after epoch 9: an old state, or two processes with one identity")
    assert answer == Send(b"bob", EpochSeen(9))


def exchange(ann, twin, now):
    """Greet a neighbour, deliver its answers, and return the warnings."""
    answers = ann.handle(Received(now, b"bob", twin.hello()))
    effects = [
        effect
        for answer in answers
        if isinstance(answer, Send)
        for effect in twin.handle(Received(now, b"ann", answer.message))
    ]
    return [effect.text for effect in effects if isinstance(effect, Warned)]


def test_twins_with_the_same_epoch_are_noticed_by_both_and_by_their_neighbour():
    ann, twins = make(b"ann"), [make(b"bob"), make(b"bob")]
    ann.handle(Started(0.0, b"a"))
    for twin, life in zip(twins, (b"1", b"2"), strict=True):
        twin.handle(Restored({b"epoch": (5).to_bytes(8, "big")}))
        twin.handle(Started(0.0, life))
    warnings = [[], []]
    for now in range(8):
        for number, twin in enumerate(twins):
            warnings[number] += exchange(ann, twin, float(now))
            ann.handle(Received(float(now), b"bob", twin.hello()))
    for texts in warnings:
        assert any("another process uses its identity" in text for text in texts)
    assert any("Stop one." in text for texts in warnings for text in texts)
    assert max(twin.own.model.epoch for twin in twins) < 12


def test_a_liar_cannot_push_the_epoch_far_or_often():
    bob = make(b"bob")
    bob.handle(Started(0.0))
    (refused,) = bob.handle(Received(0.0, b"liar", EpochSeen(MOST_EPOCHS_AHEAD + 100)))
    assert "reports epoch" in refused.reason
    for k in range(100):
        bob.handle(Received(0.0, b"liar%d" % k, EpochSeen(bob.own.model.epoch + 1)))
        bob.handle(Received(0.0, b"liar%d" % k, EpochSeen(bob.own.model.epoch + 1)))
    assert bob.own.model.epoch <= 1 + 2 * MOST_REPORTERS


def test_a_late_report_changes_nothing():
    bob = make(b"bob")
    bob.handle(Started(0.0, b"life"))
    assert bob.handle(Received(0.0, b"ann", EpochSeen(1, b"life"))) == []


def test_a_peer_that_reports_an_older_epoch_is_greeted_again():
    bob = make(b"bob")
    bob.handle(Started(0.0, b"life"))
    bob.handle(Received(0.0, b"ann", EpochSeen(4, b"other")))
    assert bob.handle(Received(0.0, b"cat", EpochSeen(4, b"other"))) == [
        Send(b"cat", Hello(bob.config.digest, 5, b"life"))
    ]
