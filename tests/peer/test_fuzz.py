"""No message can kill or cripple a member: any messages, any order, with restarts from its records in between."""

import pytest

from dada.peer.inputs import Failed, GraphStep, Received, Refused
from dada.peer.messages import LARGEST_VERSION, Follow, FollowAck, ModelOffer, decode, encode
from dada.peer.peer import PATIENCE
from tests.helpers.peer_fuzz import CONFIGS, PeerFuzz


@pytest.mark.parametrize("network", CONFIGS)
@pytest.mark.parametrize("seed", range(2))
def test_any_messages_leave_a_member_sound_and_able_to_restart(network, seed):
    fuzz = PeerFuzz(seed, network)
    fuzz.run(1000)
    assert fuzz.counts["effects"] > 100
    assert fuzz.counts["refused"] > 100
    fuzz.start()


def test_an_acknowledgement_at_the_largest_version_costs_nothing():
    fuzz = PeerFuzz(0, "evidence")
    peer = fuzz.member.peer
    fuzz.perform(peer.handle(GraphStep(0.0, (b"friend",))))
    offer = ModelOffer(peer.neighbourhood.rounds.count, peer.own.model.snapshot(), size=3)
    ack = FollowAck(LARGEST_VERSION, True, 1, 1)
    for message in (offer, ack):
        fuzz.perform(fuzz.member.receive_bytes(b"friend", encode(message), 0.0))
    assert peer.edges.neighbours == [b"friend"]
    assert peer.edges[b"friend"].version > LARGEST_VERSION
    fuzz.start()


def test_an_error_costs_the_message_and_counts_as_an_offence():
    peer = PeerFuzz(0, "evidence").member.peer
    broken = Received(0.0, b"you", Follow("not a number", follows=True))
    for _ in range(PATIENCE):
        (failed,) = peer.handle(broken)
        assert isinstance(failed, Failed)
        assert "Follow raised" in failed.reason
    (ignored,) = peer.handle(Received(0.0, b"you", Follow(1, follows=True)))
    assert type(ignored) is Refused


@pytest.mark.parametrize(
    "message",
    [Follow(-1, True), Follow(LARGEST_VERSION + 1, True), FollowAck(2**64 - 1, True, 1, 1), FollowAck(1, True, -1, 1)],
)
def test_numbers_beyond_the_bounds_are_not_decoded(message):
    with pytest.raises(ValueError, match="Expected `int`"):
        decode(encode(message))
