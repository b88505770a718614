"""Certificates admit one peer to one network, and the founder's newest list of revoked members counts."""

import numpy as np
import pytest
from msgspec.structs import replace

from dada.core.model_steps import UserRows
from dada.peer.inputs import GraphStep, PeerConfig, Persist, Received, Refused, Send, Warned
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.messages import (
    LARGEST_COUNT,
    MOST_REVOKED,
    CodecError,
    ModelOffer,
    Revocation,
    ViewRequest,
    decode,
    encode,
)
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from dada.peer.signatures import Membership
from dada.sim.virtual import VirtualSeal

A = np.array([[1, -1, 1], [1, 1, -1], [1, -1, -1]], np.int8)
CONFIG = PeerConfig(3, beta=2.0, mu1=0.5, graph="evidence", n_neighbours=3, tau=1.0)
FOUNDER = Membership(b"network", b"founder", VirtualSeal(b"founder"))
RULES = Membership(b"network", b"founder", VirtualSeal(b"ann"))


def make(records=None, me=b"ann", membership=RULES):
    rng = np.random.default_rng(0)
    sampling = PeerSampling(me, rng, seal=VirtualSeal(me))
    member = Member(Peer(me, UserRows(A), CONFIG), sampling, Planner(Rhythm(), rng), membership=membership)
    if records is not None:
        member.restore(records)
    member.start(0.0)
    return member


def follow(member, peer):
    """Let a member follow a peer."""
    member.peer.handle(GraphStep(0.0, (peer,)))
    offer = ModelOffer(member.peer.neighbourhood.rounds.count, member.peer.own.snapshot(), 5)
    member.peer.handle(Received(0.0, peer, offer))
    assert peer in member.peer.edges.neighbours


# -- certificates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("certificate", "flaw"),
    [
        (FOUNDER.admit(b"ann"), None),
        (FOUNDER.admit(b"ann", expires=1001), None),
        (None, "none was sent"),
        (FOUNDER.admit(b"bob"), "it admits 626f62"),
        (FOUNDER.admit(b"ann", expires=999), "it expired on 1970-01-01"),
        (Membership(b"other", b"founder", VirtualSeal(b"founder")).admit(b"ann"), "it is of another network"),
        (Membership(b"network", b"founder", VirtualSeal(b"eve")).admit(b"ann"), "the founder has not signed it"),
        (replace(FOUNDER.admit(b"bob"), peer=b"ann"), "the founder has not signed it"),
        (replace(FOUNDER.admit(b"ann", expires=999), expires=0), "the founder has not signed it"),
    ],
)
def test_a_certificate_admits_one_peer_to_one_network_for_some_time(certificate, flaw):
    assert RULES.flaw_of(certificate, b"ann", now=1000.0) == flaw


# -- lists of revoked members ---------------------------------------------------------------------------------------


def test_revoked_members_are_dropped_everywhere_and_stay_so_after_a_restart():
    member = make()
    follow(member, b"eve")
    member.sampling.meet(b"eve")
    effects = member.receive(b"bob", FOUNDER.revoke([b"eve"], counter=5), 1.0)
    assert not [effect for effect in effects if isinstance(effect, Send)]
    for holds in (member, make({effect.key: effect.value for effect in effects if isinstance(effect, Persist)})):
        assert holds.peer.ignores(b"eve")
        assert b"eve" not in holds.peer.edges.neighbours
        holds.receive(b"eve", holds.peer.hello(), 2.0)
        assert b"eve" not in holds.sampling.view
        (refused,) = holds.receive(b"eve", ViewRequest(()), 2.0)
        assert isinstance(refused, Refused)
        assert (holds.sampling.revocations, holds.peer.revocation.counter) == (5, 5)


def test_the_reply_of_a_member_that_is_excluded_meanwhile_does_not_count():
    member = make()
    member.peer.handle(GraphStep(0.0, (b"eve", b"silent")))
    offer = ModelOffer(member.peer.neighbourhood.rounds.count, member.peer.own.snapshot(), 5)
    member.receive(b"eve", offer, 0.0)
    member.receive(b"bob", FOUNDER.revoke([b"eve"], counter=5), 0.5)
    member.peer.handle(GraphStep(1.0, ()))
    assert member.peer.edges.neighbours == []


def test_the_highest_counter_counts():
    member = make()
    for counter, revoked in ((5, [b"eve"]), (4, [b"bob"]), (5, []), (6, [b"bob", b"eve"])):
        effects = member.receive(b"bob2", FOUNDER.revoke(revoked, counter), 1.0)
        assert not any(isinstance(effect, Refused) for effect in effects)
    assert list(member.peer.revoked) == [b"bob", b"eve"]
    assert len(member.peer.offences) == 0


@pytest.mark.parametrize(
    "forged",
    [
        Membership(b"network", b"founder", VirtualSeal(b"eve")).revoke([b"bob"], 9),
        Membership(b"other", b"founder", VirtualSeal(b"founder")).revoke([b"bob"], 9),
        replace(FOUNDER.revoke([b"bob"], 3), counter=9),
        replace(FOUNDER.revoke([b"eve"], 9), revoked=(b"bob",)),
        replace(FOUNDER.revoke([b"bobe", b"ve"], 9), revoked=(b"bob", b"eve")),
    ],
    ids=["other key", "other network", "other counter", "other peers", "other lengths"],
)
def test_a_forged_list_changes_nothing_and_is_an_offence(forged):
    member = make()
    refused, *_ = member.receive(b"eve", forged, 1.0)
    assert isinstance(refused, Refused)
    assert member.peer.revocation.counter == 0
    assert len(member.peer.offences) == 1


def test_a_network_without_a_founder_has_no_list():
    member = make(membership=None)
    refused, *_ = member.receive(b"eve", FOUNDER.revoke([b"bob"], 9), 1.0)
    assert isinstance(refused, Refused)
    assert not member.peer.revoked


def test_whoever_has_an_older_list_receives_the_newer_one_once_between_two_exchanges():
    member = make()
    newest = FOUNDER.revoke([b"eve"], counter=5)
    member.receive(b"founder", newest, 1.0)

    def lists(counter):
        effects = member.receive(b"bob", ViewRequest((), counter), 1.0)
        return [effect.message for effect in effects if isinstance(effect.message, Revocation)]

    assert lists(counter=5) == []
    assert [lists(counter=4) for _ in range(3)] == [[newest], [], []]
    member.on_timer(member.next_exchange)
    assert lists(counter=0) == [newest]


def test_a_revoked_member_is_told_so():
    effects = make().receive(b"bob", FOUNDER.revoke([b"ann"], counter=5), 1.0)
    assert any(isinstance(effect, Warned) for effect in effects)


def test_a_list_is_bounded():
    peers = [k.to_bytes(32, "big") for k in range(MOST_REVOKED)]
    longest = FOUNDER.revoke(peers, LARGEST_COUNT)
    assert decode(encode(longest)) == longest
    with pytest.raises(ValueError, match=f"at most {MOST_REVOKED} members, got {MOST_REVOKED + 1}"):
        FOUNDER.revoke([*peers, b"one more"], 1)
    with pytest.raises(CodecError):
        decode(encode(replace(longest, revoked=(*longest.revoked, b"one more"))))
    with pytest.raises(CodecError):
        decode(encode(replace(longest, counter=LARGEST_COUNT + 1)))
    with pytest.raises(ValueError, match="counter of a list"):
        FOUNDER.revoke([], 0)
