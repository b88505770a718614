"""A member passes views to its peer sampling and other messages to its peer, limits senders, and resumes."""

import numpy as np
import pytest

from dada.peer.config import PeerConfig
from dada.peer.inputs import Persist, Refused, Send
from dada.peer.member import Member, Planner, RateLimit, Rhythm
from dada.peer.messages import (
    Descriptor,
    EdgeState,
    Goodbye,
    ModelSnapshot,
    StateReply,
    StateRequest,
    ViewReply,
    ViewRequest,
    encode,
)
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling

CONFIG = PeerConfig(n_predictors=3, beta=2.0, mu1=0.5)
A = np.array([[1, -1, 1], [1, 1, -1]], np.int8)


def member(rhythm=None, limit=None, me=b"me", seed=0):
    rng = np.random.default_rng(seed)
    planner = Planner(Rhythm(local_steps=2) if rhythm is None else rhythm, rng)
    return Member(Peer(me, A, CONFIG), PeerSampling(me, rng), planner, limit=limit)


def sent(effects):
    return [effect for effect in effects if isinstance(effect, Send)]


def test_views_are_answered_with_views_and_questions_with_state():
    here = member()
    here.start(0.0)
    (view,) = here.receive_bytes(b"you", encode(ViewRequest((Descriptor(b"you", 0),))), 0.0)
    assert isinstance(view.message, ViewReply)
    assert here.sampling.peers == (b"you",)
    (state,) = here.receive_bytes(b"you", encode(StateRequest(4)), 0.0)
    assert isinstance(state.message, StateReply)


def test_a_goodbye_ends_the_acquaintance():
    here = member()
    here.start(0.0, [Descriptor(b"you", 0)])
    here.receive(b"you", Goodbye(), 0.0)
    assert here.sampling.peers == ()


def test_an_unreachable_peer_leaves_the_view():
    here = member()
    here.start(0.0, [Descriptor(b"you", 0)])
    here.on_unreachable(b"you", 0.0)
    assert here.sampling.peers == ()


def test_whoever_does_not_answer_a_graph_step_is_doubted_and_then_lost():
    here = member(Rhythm(local_steps=0, first_graph_steps=9, wakeups_per_s=0.1))
    here.start(0.0, [Descriptor(b"ghost", 0)])
    here.next_exchange = float("inf")
    while here.planner.wakeups < 3:
        here.on_timer(here.deadline)
    assert here.sampling.peers == ()


def test_garbage_and_floods_are_refused_and_counted():
    here = member(limit=RateLimit(messages_per_s=1.0, burst=3.0))
    here.start(0.0)
    assert [type(e) for e in here.receive_bytes(b"liar", b"\x01garbage", 0.0)] == [Refused]
    answers = [here.receive_bytes(b"flood", encode(StateRequest(1)), 0.0)[0] for _ in range(10)]
    assert sum(isinstance(answer, Send) for answer in answers) == 3
    assert answers[-1] == Refused(b"flood", "too many messages")


def test_time_alone_drives_a_member():
    here = member(Rhythm(local_steps=2, first_graph_steps=1, wakeups_per_s=10.0))
    here.start(0.0, [Descriptor(b"you", 0)])
    effects = []
    while here.planner.wakeups < 4:
        effects += here.on_timer(here.deadline)
    assert here.peer.own.updates == 3
    kinds = [type(effect.message) for effect in sent(effects)]
    assert ViewRequest in kinds
    assert StateRequest in kinds


def test_a_new_member_has_learned_alone_before_others_meet_it():
    here = member(Rhythm(local_steps=3))
    effects = here.start(0.0)
    assert here.peer.own.updates == 3
    assert {effect.key for effect in effects} == {b"epoch", b"planner", b"model"}


def test_a_restarted_member_knows_its_model_plan_and_acquaintances():
    first = member(Rhythm(local_steps=5))
    records = {}
    effects = first.start(0.0, [Descriptor(b"you", 0)])
    for _ in range(6):
        effects += first.on_timer(first.deadline)
    for effect in effects:
        if isinstance(effect, Persist):
            records[effect.key] = effect.value
    second = member(Rhythm(local_steps=5), seed=1)
    second.restore(records)
    second.start(10.0)
    np.testing.assert_array_equal(second.peer.own.model.alpha, first.peer.own.model.alpha)
    assert second.peer.own.model.alpha.any()
    assert second.planner.wakeups == first.planner.wakeups > 5
    assert second.sampling.peers == (b"you",)
    assert second.peer.own.model.epoch == first.peer.own.model.epoch + 1


def test_nothing_is_due_after_leaving():
    here = member()
    here.start(0.0)
    here.leave(1.0)
    assert here.deadline == float("inf")


def test_exchanges_need_a_period():
    with pytest.raises(ValueError, match="exchange_every_s must be > 0 and finite, got 0"):
        Member(Peer(b"me", A, CONFIG), member().sampling, member().planner, exchange_every_s=0)


def test_a_member_trusts_neighbours_only_where_they_promise_more_than_it_has_alone():
    here = member()
    here.start(0.0)
    assert not here.trusts_others
    np.testing.assert_array_equal(here.model, here.fallback.alpha)
    used = np.array([0], "<u4").tobytes()
    for peer, value in ((b"friend", 2.0), (b"foe", -2.0)):
        there = member()
        there.start(0.0)
        snapshot = ModelSnapshot(1, 1, used, np.array([value], "<f4").tobytes())
        there.receive(peer, EdgeState(1, peer, 10.0, snapshot), 0.0)
        assert there.trusts_others == (peer == b"friend")
