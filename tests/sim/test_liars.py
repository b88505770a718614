"""Each kind of liar lies in its way, and honest peers still learn."""

import numpy as np
import pytest

from dada.core.model_steps import UserRows, make_scratch
from dada.peer import messages
from dada.peer.copies import ModelCopy
from dada.peer.inputs import Persist, Refused, Send
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.messages import (
    CodecError,
    Descriptor,
    ImplausibleError,
    ModelDelta,
    ModelSnapshot,
    SnapshotReply,
    decode,
    encode,
)
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from dada.sim.liars import (
    ADAPTIVE_KINDS,
    KINDS,
    Attractor,
    Chameleon,
    Claimer,
    Exaggerator,
    Flooder,
    ForkedMirror,
    Garbler,
    Gossip,
    Mirror,
    Poisoner,
    Rewinder,
    SendBytes,
)
from dada.sim.virtual import Faults
from tests.helpers.networks import CONFIGS, network

CONFIG = CONFIGS["distance"]
MOVE = ModelDelta(1, 2, 3, True, -1, 0.1, False)
SNAPSHOT = ModelSnapshot(1, 1, b"\x00\x00\x00\x00", np.float32(1.0).tobytes())


def member(me=b"me"):
    rng = np.random.default_rng(0)
    A = np.random.default_rng(1).choice(np.array([-1, 1], np.int8), size=(6, 30))
    return Member(Peer(me, UserRows(A), CONFIG), PeerSampling(me, rng), Planner(Rhythm(local_steps=5), rng))


def liar(kind):
    made = member(b"liar")
    made.start(0.0, [Descriptor(b"me", 0)])
    return kind(made, np.random.default_rng(2))


def honest():
    made = member()
    made.start(0.0, [Descriptor(b"liar", 0)])
    return made


def test_models_and_moves_of_an_exaggerator_are_implausible():
    one, scratch = liar(Exaggerator), make_scratch(30, 6, np.dtype(np.float32))
    for _ in range(30):
        with pytest.raises(ImplausibleError):
            ModelCopy.from_snapshot(one.lie(SnapshotReply(SNAPSHOT)).snapshot, 30, CONFIG.beta)
        copy, move = ModelCopy.from_snapshot(SNAPSHOT, 30, CONFIG.beta), one.lie(MOVE)
        try:
            copy.follow(move, CONFIG.beta, scratch)
        except ImplausibleError:
            continue
        assert np.abs(copy.alpha).sum() <= CONFIG.beta * (1 + 1e-3)


@pytest.mark.parametrize("kind", [Attractor, Poisoner])
def test_an_attractor_reports_what_attracts_most_and_its_model_is_well_formed(kind):
    one = liar(kind)
    reply = one.lie(messages.StateReply(1, SNAPSHOT, 0.5, 3.0, 6))
    assert (reply.loss, reply.degree) == (-CONFIG.beta, 0.0)
    values = np.frombuffer(reply.snapshot.values, "<f4")
    assert 0.7 * CONFIG.beta < np.abs(values).sum() <= CONFIG.beta * (1 + 1e-3)


@pytest.mark.parametrize("size", [20, 40])
def test_a_model_over_other_trees_is_sent_in_the_size_of_the_liar(size):
    snapshot = liar(Poisoner).as_snapshot(np.full(size, 0.1), 1, 1)
    alpha = ModelCopy.from_snapshot(snapshot, 30, 10.0).alpha
    assert np.count_nonzero(alpha) == min(size, 30)


def test_a_chameleon_is_honest_at_first():
    one = liar(Chameleon)
    assert one.lie(SnapshotReply(SNAPSHOT)) == SnapshotReply(SNAPSHOT)
    while one.member.planner.wakeups < 40:
        one.member.on_timer(one.member.deadline)
    turned = one.lie(SnapshotReply(SNAPSHOT)).snapshot
    honest_values = one.member.peer.own.model.snapshot()
    assert sorted(np.frombuffer(turned.values, "<f4")) == sorted(-np.frombuffer(honest_values.values, "<f4"))


def test_a_claimer_gets_no_more_weight_than_twice_the_heaviest_other():
    one, other = liar(Claimer), honest()
    other.receive(b"friend", messages.EdgeState(1, b"friend", 1.0, other.peer.own.model.snapshot()), 0.0)
    for _ in range(50):
        other.receive(b"liar", one.lie(messages.EdgeState(1, b"liar", 1.0, SNAPSHOT)), 0.0)
    weights = {peer: edge.weight for peer, edge in other.peer.edges.items()}
    assert weights[b"friend"] == 1.0
    assert weights.get(b"liar", 0.0) <= 2.0


def test_rewinders_old_states_change_nothing():
    one, other = liar(Rewinder), honest()
    other.receive(b"liar", messages.EdgeState(2**40, b"liar", 1.0, other.peer.own.model.snapshot()), 0.0)
    before = other.peer.edges[b"liar"].weight
    for _ in range(20):
        for deed in one.attack():
            other.receive(b"liar", deed.message, 0.0)
    assert other.peer.edges.get(b"liar") is None or other.peer.edges[b"liar"].weight in (before, 0.0)


def test_most_garbage_cannot_be_decoded():
    one = liar(Garbler)
    deeds = [deed for _ in range(30) for deed in one.attack()]
    assert all(isinstance(deed, SendBytes) for deed in deeds)
    failures = 0
    for deed in deeds:
        try:
            decode(deed.data)
        except CodecError:
            failures += 1
    assert failures > 0.9 * len(deeds)


def test_a_flood_is_a_hundred_questions():
    deeds = liar(Flooder).attack()
    assert len(deeds) == 100
    assert len({deed.to for deed in deeds}) == 1


def test_gossip_invents_peers():
    one, other = liar(Gossip), honest()
    reply = one.lie(messages.ViewReply(()))
    assert len(reply.view) >= 15
    assert b"me" not in {known.peer for known in reply.view}
    assert isinstance(other.receive(b"liar", reply, 0.0)[0], Refused)


def test_a_liar_changes_messages_and_nothing_else():
    one, question = liar(Attractor), encode(messages.StateRequest(3))
    honest_effects = one.member.receive_bytes(b"me", question, 0.0)
    (false,) = one.falsify(honest_effects)
    assert isinstance(false, Send)
    assert false.message == one.lie(honest_effects[0].message) != honest_effects[0].message
    stored = Persist(b"key", b"value")
    assert one.falsify([stored]) == [stored]


@pytest.mark.parametrize("kind", [Attractor, Poisoner])
def test_an_attractor_exaggerates_its_sample_count(kind):
    offer = liar(kind).lie(messages.ModelOffer(1, SNAPSHOT, 3))
    assert offer.size == 10**6
    assert offer.snapshot != SNAPSHOT


def test_a_mirror_sends_each_victim_its_own_model():
    one = liar(Mirror)
    one.overhear(b"me", SnapshotReply(SNAPSHOT))
    one.overhear(b"her", SnapshotReply(ModelSnapshot(1, 1, b"\x03\x00\x00\x00", np.float32(2.0).tobytes())))
    offers = [one.lie_to(peer, messages.ModelOffer(1, SNAPSHOT, 3)) for peer in (b"me", b"her")]
    sent = [ModelCopy.from_snapshot(offer.snapshot, 30, CONFIG.beta).alpha for offer in offers]
    assert [int(np.argmax(alpha)) for alpha in sent] == [0, 3]
    assert [offer.size for offer in offers] == [10**6, 10**6]


@pytest.mark.parametrize("kind", [Mirror, ForkedMirror])
def test_followers_of_a_mirror_find_it_and_no_honest_peer_is_doubted(kind):
    faults = Faults(lying=0.2)
    one = network(K=15, steps=40, seed=1, faults=faults, graph="evidence", liar_kinds=(kind,))
    one.check()
    honest = {host.me for host in one.joined}
    peers = [host.member.peer for host in one.joined]
    found = [liar for peer in peers for liar in (*peer.exposed, *peer.neighbourhood.doubts)]
    assert len(found) >= 3
    assert not honest & set(found)


def test_gossip_invents_friends():
    friends = liar(Gossip).lie(messages.FriendsReply(())).friends
    assert len(friends) >= 4
    assert all(len(friend.peer) == 8 for friend in friends)


@pytest.mark.parametrize("graph", ["distance", "evidence"])
@pytest.mark.parametrize("kind", KINDS + ADAPTIVE_KINDS)
def test_a_network_tolerates_a_fifth_of_any_kind(kind, graph):
    faults = Faults(lying=0.2, lost=0.1)
    one = network(K=15, steps=16, seed=1, faults=faults, graph=graph, liar_kinds=(kind,))
    # The invariants include that some of the honest peers learn from each other.
    one.check()
    assert len(one.joined) == 12
