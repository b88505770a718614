"""Batches: peers of the view in a small network; also friends of friends and old neighbours in a large one."""

import numpy as np
import pytest

from dada.core.graph import gossip_mix
from dada.core.model_steps import UserRows
from dada.peer.inputs import PeerConfig, Received, Refused, Send, Started
from dada.peer.messages import Descriptor, EdgeState, FriendsReply, FriendsRequest, ImplausibleError
from dada.peer.peer import Peer
from dada.peer.sampling import FRIENDS_PER_REPLY, MOST_CANDIDATES, VIEW_SIZE, PeerSampling, Search

KAPPA = 8


def card(peer, age=0, addresses=(), version=1):
    """A descriptor as its subject made it; nobody signs here."""
    return Descriptor(peer, age, addresses, b"", version)


def name(k):
    return k.to_bytes(2, "big")


def make(n_known, neighbours=()):
    rng = np.random.default_rng(0)
    peer = Peer(b"me", UserRows(np.ones((2, 3), np.int8)), PeerConfig(n_predictors=3, beta=1.0, mu1=1.0))
    peer.handle(Started(0.0))
    for other in neighbours:
        peer.handle(Received(0.0, other, EdgeState(1, other, 1.0)))
    sampling = PeerSampling(b"me", rng)
    sampling.introduce(Descriptor(name(k), 0, (f"view:{k}",)) for k in range(n_known))
    for other in neighbours:
        sampling.keep(card(other))
    return Search(peer, sampling, rng), sampling


@pytest.fixture
def large():
    """A peer whose view is full, with three neighbours that are not in it."""
    return make(VIEW_SIZE, [b"ann", b"bob", b"eve"])[0]


def befriend(search, friends):
    """Ask, and let one neighbour answer."""
    (first, *_) = search.ask()
    assert isinstance(first, Send)
    assert first.message == FriendsRequest()
    return search.receive(first.to, FriendsReply(tuple(friends)))


def test_a_network_that_fits_a_view_is_sampled_without_asking_for_friends():
    search, _ = make(VIEW_SIZE - 1, [b"ann"])
    assert len(search.sample(KAPPA)) == KAPPA
    assert b"ann" not in search.sample(VIEW_SIZE)
    assert search.ask() == []


def test_a_batch_has_the_proportions_of_the_engine(large):
    friends = [card(b"friend%d" % k, 0) for k in range(MOST_CANDIDATES)]
    for start in range(0, MOST_CANDIDATES, FRIENDS_PER_REPLY):
        assert befriend(large, friends[start : start + FRIENDS_PER_REPLY]) == []
    batch, mix = large.sample(KAPPA), gossip_mix(KAPPA)
    assert len(batch) == mix.size
    assert sum(peer.startswith(b"friend") for peer in batch) == mix.n_gossip
    assert sum(peer in (b"ann", b"bob", b"eve") for peer in batch) == mix.n_refresh
    assert sum(len(peer) == 2 for peer in batch) == mix.n_uniform


def test_peers_of_the_view_replace_missing_friends(large):
    batch = large.sample(KAPPA)
    assert sum(len(peer) == 2 for peer in batch) == KAPPA


def test_each_friend_is_asked_once(large):
    befriend(large, [card(b"friend", 0)])
    assert b"friend" in large.sample(KAPPA)
    assert b"friend" not in large.sample(KAPPA)


def test_friends_of_friends_can_be_dialled():
    search, sampling = make(VIEW_SIZE, [b"ann"])
    befriend(search, [card(b"friend", 0, ("10.0.0.1:4000",))])
    assert sampling.addresses_of(b"friend") == ("10.0.0.1:4000",)
    assert sampling.sources[b"friend"] == b"ann"
    assert sampling.addresses_of(name(3)) == ("view:3",)
    assert sampling.addresses_of(b"nobody") == ()


def test_neighbours_are_sent_to_followers_only(large):
    (answer,) = large.receive(b"ann", FriendsRequest())
    assert {friend.peer for friend in answer.message.friends} == {b"bob", b"eve"}
    assert large.receive(name(1), FriendsRequest()) == []


def test_neighbours_with_unproven_addresses_are_not_passed_on():
    search, sampling = make(VIEW_SIZE, [b"ann", b"bob", b"eve"])
    sampling.keep(card(b"bob", 0, ("10.0.0.2:4000",), version=2))
    (answer,) = search.receive(b"ann", FriendsRequest())
    assert [friend.peer for friend in answer.message.friends] == [b"eve"]


def test_friends_that_did_not_sign_their_addresses_are_refused(large):
    with pytest.raises(ImplausibleError, match="did not sign"):
        befriend(large, [Descriptor(b"friend", 0, ("10.0.0.1:4000",))])


@pytest.mark.parametrize(
    "friends",
    [
        [card(name(k), 0) for k in range(FRIENDS_PER_REPLY + 1)],
        [card(b"twice", 0), card(b"twice", 1)],
    ],
)
def test_malformed_friends_are_refused(large, friends):
    (refused,) = befriend(large, friends)
    assert isinstance(refused, Refused)
    assert not large.candidates


def test_an_answer_counts_once_and_only_if_it_was_asked_for(large):
    (refused,) = large.receive(b"ann", FriendsReply((card(b"friend", 0),)))
    assert isinstance(refused, Refused)
    asked = [send.to for send in large.ask()]
    assert large.receive(asked[0], FriendsReply((card(b"friend", 0),))) == []
    assert isinstance(large.receive(asked[0], FriendsReply((card(b"other", 0),)))[0], Refused)
    assert list(large.candidates) == [b"friend"]


def test_candidates_are_bounded_and_the_oldest_go_first(large):
    for k in range(MOST_CANDIDATES + 5):
        befriend(large, [card(b"friend%d" % k, 0), card(b"me", 0)])
    assert len(large.candidates) == MOST_CANDIDATES
    assert b"friend0" not in large.candidates
    assert b"me" not in large.candidates
