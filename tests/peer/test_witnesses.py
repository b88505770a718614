"""A peer that sends its followers different models is found, proven to be a liar, and dropped for good."""

import numpy as np
import pytest

from dada.core.model_steps import UserRows
from dada.peer.inputs import GraphStep, ModelStep, PeerConfig, Received, Refused
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.messages import (
    Descriptor,
    Equivocation,
    FollowAck,
    ModelSnapshot,
    SnapshotReply,
    SnapshotRequest,
    Statement,
    Witness,
    WitnessRequest,
)
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from dada.peer.signatures import MOST_UNANSWERED, Doubt, content_of, statement_of
from dada.sim.virtual import VirtualSeal
from tests.helpers.peers import WiredPeers

A = np.array([[1, -1, 1], [1, 1, -1], [1, -1, -1]], np.int8)
NAMES = (b"ann", b"bob", b"dan", b"eve")
CONFIG = PeerConfig(3, beta=2.0, mu1=0.5, graph="evidence", n_neighbours=3, tau=1.0)


def model(coordinate, value, sequence):
    """A model of epoch 1 with one weight."""
    return ModelSnapshot(1, sequence, np.array([coordinate], "<u4").tobytes(), np.array([value], "<f4").tobytes())


def signed(snapshot, by=b"eve"):
    peer = Peer(by, UserRows(A), CONFIG)
    return SnapshotReply(snapshot, VirtualSeal(by).sign(content_of(statement_of(peer.own.copy_of(snapshot)))))


@pytest.fixture
def four():
    """Ann and Bob follow Eve and each other; Dan follows Ann."""
    four = WiredPeers(lambda me: Peer(me, UserRows(A), CONFIG), NAMES)
    for name in NAMES:
        four.give(name, ModelStep(0.0))
    for name, batch in ((b"ann", (b"bob", b"eve")), (b"bob", (b"ann", b"eve")), (b"dan", (b"ann",))):
        four.give(name, GraphStep(0.0, batch))
    return four


def compare(four, one, two):
    """Let a peer ask another for its copies, as it does at each exchange of views."""
    for effect in four[one].neighbourhood.ask_for_witness(two):
        four.give(two, Received(0.0, one, effect.message))


def test_followers_of_an_honest_peer_have_equal_copies_and_send_no_models(four):
    four.sent.clear()
    compare(four, b"ann", b"bob")
    assert four.sent == []
    four.give(b"eve", ModelStep(0.0))
    assert all(not four[name].exposed and not four[name].neighbourhood.doubts for name in NAMES)


def test_whoever_signs_two_models_with_one_number_is_dropped_for_good_by_all_that_are_connected(four):
    four.give(b"ann", Received(0.0, b"eve", signed(model(0, 2.0, 50))))
    four.give(b"bob", Received(0.0, b"eve", signed(model(1, 2.0, 50))))
    compare(four, b"ann", b"bob")
    for name in (b"ann", b"bob", b"dan"):
        assert list(four[name].exposed) == [b"eve"]
        assert b"eve" not in four[name].edges.neighbours
    (proof,) = {message for message in four.sent if isinstance(message, Equivocation)}
    assert all(VirtualSeal(b"me").verify(b"eve", content_of(one), one.signature) for one in (proof.first, proof.second))
    four.restart(b"dan")
    four.give(b"dan", GraphStep(0.0, (b"eve",)))
    assert list(four[b"dan"].exposed) == [b"eve"]
    assert b"eve" not in four[b"dan"].edges


def test_a_statement_that_contradicts_the_copy_needs_no_witness(four):
    edge = four[b"ann"].edges[b"eve"]
    four[b"ann"].handle(Received(0.0, b"eve", FollowAck(edge.version, True, *edge.copy.number, b"another digest")))
    assert four[b"ann"].ignores(b"eve")
    assert not four[b"bob"].ignores(b"eve")


@pytest.mark.parametrize(("weight", "is_kept"), [(1.5, True), (-2.0, False)])
def test_a_witness_of_a_newer_model_must_have_one_that_does_about_as_well(weight, is_kept, four):
    four.give(b"ann", Received(0.0, b"eve", signed(model(0, 1.6, 50))))
    newer = signed(model(0, weight, 60))
    four.sent.clear()
    four.give(b"ann", Received(5.0, b"bob", Witness(b"eve", newer.snapshot, newer.signature)))
    assert (b"eve" in four[b"ann"].edges.neighbours) == is_kept
    assert (SnapshotRequest() in four.sent) == is_kept
    four.give(b"ann", GraphStep(6.0, (b"eve",)))
    assert (b"eve" in four[b"ann"].edges.neighbours) == is_kept


def test_an_old_model_that_a_liar_replays_changes_nothing(four):
    four.give(b"ann", Received(0.0, b"eve", signed(model(0, 1.6, 50))))
    before = four[b"ann"].edges[b"eve"].weight
    old = signed(model(0, -2.0, 0))
    four.give(b"ann", Received(0.0, b"bob", Witness(b"eve", old.snapshot, old.signature)))
    assert four[b"ann"].edges[b"eve"].weight == before


def test_a_neighbour_that_signs_nothing_is_dropped(four):
    ann = four[b"ann"]
    four.give(b"eve", ModelStep(0.0))
    ann.handle(Received(0.0, b"eve", SnapshotReply(model(0, 1.6, 50))))
    ann.edges[b"eve"].trail.signed = None
    for turn in range(2 * MOST_UNANSWERED + 2):
        four.give(b"ann", GraphStep(float(turn), ()), loses=lambda message: True)
    assert b"eve" not in ann.edges.neighbours


def test_a_false_signature_is_an_offence_of_its_sender():
    rng = np.random.default_rng(0)
    peer = Peer(b"ann", UserRows(A), CONFIG)
    member = Member(peer, PeerSampling(b"ann", rng, seal=VirtualSeal(b"ann")), Planner(Rhythm(), rng))
    member.start(0.0)
    first, second = (Statement(1, 5, digest, VirtualSeal(b"bob").sign(b"x")) for digest in (b"one", b"two"))
    refused, *_ = member.receive(b"bob", Equivocation(b"eve", first, second), 0.0)
    assert isinstance(refused, Refused)
    assert (len(peer.exposed), len(peer.offences)) == (0, 1)


def test_statements_that_agree_prove_nothing(four):
    same = Statement(1, 5, b"digest", b"signature")
    four.give(b"ann", Received(0.0, b"bob", Equivocation(b"eve", same, same)))
    assert not four[b"ann"].exposed


def test_a_peer_that_has_doubted_a_neighbour_asks_for_witnesses_at_every_wake_up(four):
    rng = np.random.default_rng(0)
    planner = Planner(Rhythm(local_steps=0, first_graph_steps=0), rng)
    ann = Member(four[b"ann"], PeerSampling(b"ann", rng), planner)
    ann.sampling.introduce([Descriptor(b"bob", 0)])

    def asked():
        ann.next_wakeup = 1.0
        return [
            effect.to for effect in ann.on_timer(1.0) if isinstance(getattr(effect, "message", None), WitnessRequest)
        ]

    assert asked() == []
    four[b"ann"].neighbourhood.doubts[b"liar"] = Doubt().again(step=1)
    assert asked() == asked() == [b"bob"]
