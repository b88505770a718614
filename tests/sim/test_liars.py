"""Each kind of liar does what it says, and the honest learn on."""

import numpy as np
import pytest

from dada.core.model_steps import make_scratch
from dada.peer.inputs import Refused, Send
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.messages import (
    CodecError,
    Descriptor,
    EdgeState,
    FriendsReply,
    ModelDelta,
    ModelOffer,
    Snapshot,
    SnapshotReply,
    StateReply,
    StateRequest,
    ViewReply,
    decode,
    encode,
)
from dada.peer.model import ImplausibleError, ModelCopy
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from dada.sim import simulation as networks
from dada.sim.liars import (
    KINDS,
    Attractor,
    Chameleon,
    Claimer,
    Exaggerator,
    Flooder,
    Garbler,
    Gossip,
    Poisoner,
    Rewinder,
)
from dada.sim.links import Faults
from dada.sim.simulation import Network
from dada.sim.world import SendBytes
from tests.sim.test_network import CONFIGS, users

CONFIG = CONFIGS["distance"]
MOVE = ModelDelta(1, 2, 3, True, -1, 0.1, False)
SNAPSHOT = Snapshot(1, 1, b"\x00\x00\x00\x00", np.float32(1.0).tobytes())


def member(me=b"me"):
    rng = np.random.default_rng(0)
    A = np.random.default_rng(1).choice(np.array([-1, 1], np.int8), size=(6, 30))
    return Member(Peer(me, A, CONFIG), PeerSampling(me, rng), Planner(Rhythm(local_steps=5), rng))


def liar(kind):
    made = kind(member(b"liar"), np.random.default_rng(2))
    made.start(0.0, [Descriptor(b"me", 0)])
    return made


def honest():
    made = member()
    made.start(0.0, [Descriptor(b"liar", 0)])
    return made


def test_no_model_or_move_of_an_exaggerator_is_possible():
    one, scratch = liar(Exaggerator), make_scratch(30, 6, np.dtype(np.float32))
    for _ in range(30):
        with pytest.raises(ImplausibleError):
            ModelCopy.from_snapshot(one.lie(b"me", SnapshotReply(SNAPSHOT)).snapshot, 30, CONFIG.beta)
        copy, move = ModelCopy.from_snapshot(SNAPSHOT, 30, CONFIG.beta), one.lie(b"me", MOVE)
        try:
            copy.follow(move, CONFIG.beta, scratch)
        except ImplausibleError:
            continue
        assert np.abs(copy.alpha).sum() <= CONFIG.beta * (1 + 1e-3)


@pytest.mark.parametrize("kind", [Attractor, Poisoner])
def test_an_attractor_reports_what_attracts_most_and_its_model_is_well_formed(kind):
    one = liar(kind)
    reply = one.lie(b"me", StateReply(1, SNAPSHOT, 0.5, 3.0, 6))
    assert (reply.loss, reply.degree) == (-CONFIG.beta, 0.0)
    values = np.frombuffer(reply.snapshot.values, "<f4")
    assert 0.7 * CONFIG.beta < np.abs(values).sum() <= CONFIG.beta * (1 + 1e-3)


def test_a_chameleon_is_honest_at_first():
    one = liar(Chameleon)
    assert one.lie(b"me", SnapshotReply(SNAPSHOT)) == SnapshotReply(SNAPSHOT)
    while one.member.planner.wakeups < 40:
        one.on_timer(one.deadline)
    turned = one.lie(b"me", SnapshotReply(SNAPSHOT)).snapshot
    honest_values = one.member.peer.model.snapshot()
    assert sorted(np.frombuffer(turned.values, "<f4")) == sorted(-np.frombuffer(honest_values.values, "<f4"))


def test_a_claimer_never_gets_more_than_others_let_it_have():
    one, other = liar(Claimer), honest()
    other.receive(b"friend", EdgeState(1, b"friend", 1.0, other.peer.model.snapshot()), 0.0)
    for _ in range(50):
        other.receive(b"liar", one.lie(b"me", EdgeState(1, b"liar", 1.0, SNAPSHOT)), 0.0)
    weights = {peer: edge.weight for peer, edge in other.peer.edges.items()}
    assert weights[b"friend"] == 1.0
    assert weights.get(b"liar", 0.0) <= 2.0


def test_rewinders_old_states_change_nothing():
    one, other = liar(Rewinder), honest()
    other.receive(b"liar", EdgeState(2**40, b"liar", 1.0, other.peer.model.snapshot()), 0.0)
    before = other.peer.edges[b"liar"].weight
    for _ in range(20):
        for deed in one.mischief():
            other.receive(b"liar", deed.message, 0.0)
    assert other.peer.edges.get(b"liar") is None or other.peer.edges[b"liar"].weight in (before, 0.0)


def test_garbage_is_no_message():
    one = liar(Garbler)
    deeds = [deed for _ in range(30) for deed in one.mischief()]
    assert all(isinstance(deed, SendBytes) for deed in deeds)
    failures = 0
    for deed in deeds:
        try:
            decode(deed.data)
        except CodecError:
            failures += 1
    assert failures > 0.9 * len(deeds)


def test_a_flood_is_a_hundred_questions():
    deeds = liar(Flooder).mischief()
    assert len(deeds) == 100
    assert len({deed.to for deed in deeds}) == 1


def test_gossip_names_peers_that_do_not_exist():
    one, other = liar(Gossip), honest()
    reply = one.lie(b"me", ViewReply(()))
    assert len(reply.view) >= 15
    assert b"me" not in {known.peer for known in reply.view}
    assert isinstance(other.receive(b"liar", reply, 0.0)[0], Refused)


def test_liars_else_do_as_their_member_does():
    one, same = liar(Garbler), member(b"liar")
    same.start(0.0, [Descriptor(b"me", 0)])
    question = StateRequest(3)
    (answer,) = one.receive_bytes(b"me", encode(question), 0.0)
    assert answer == same.receive_bytes(b"me", encode(question), 0.0)[0]
    assert isinstance(answer, Send)
    assert one.on_unreachable(b"me", 0.0) == same.on_unreachable(b"me", 0.0)
    assert one.leave(1.0) == same.leave(1.0)


@pytest.mark.parametrize("kind", [Attractor, Poisoner])
def test_liars_boast_of_samples_where_nothing_else_is_reported(kind):
    offer = liar(kind).lie(b"me", ModelOffer(1, SNAPSHOT, 3))
    assert offer.size == 10**6
    assert offer.snapshot != SNAPSHOT


def test_gossip_names_friends_that_do_not_exist():
    friends = liar(Gossip).lie(b"me", FriendsReply(())).friends
    assert len(friends) >= 4
    assert all(len(friend.peer) == 8 for friend in friends)


@pytest.mark.parametrize("graph", ["distance", "evidence"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_network_stands_a_fifth_of_any_one_kind(kind, graph, monkeypatch):
    monkeypatch.setattr(networks, "KINDS", (kind,))
    rhythm = Rhythm(local_steps=5, first_graph_steps=3, graph_every=2)
    outcome = Network(users(15), CONFIGS[graph], rhythm, Faults(lying=0.2, lost=0.1), steps=25, seed=1).run()
    assert outcome.honest.sum() == 12
    assert outcome.edges > 0
