"""A member passes views to its peer sampling and other messages to its peer, plans its steps, and limits senders."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import stats

from dada.core.model_steps import UserRows
from dada.peer.inputs import GraphStep, ModelStep, PeerConfig, Persist, Refused, ResetModel, Send
from dada.peer.member import BYTES_PER_MESSAGE, Member, Planner, RateLimit, Rhythm
from dada.peer.messages import (
    LARGEST_MESSAGE,
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


def member(rhythm=None, limit=None, me=b"me", seed=0, rows=A):
    rng = np.random.default_rng(seed)
    planner = Planner(Rhythm(local_steps=2) if rhythm is None else rhythm, rng)
    return Member(Peer(me, UserRows(rows), CONFIG), PeerSampling(me, rng), planner, limit=limit)


def sent(effects):
    return [effect for effect in effects if isinstance(effect, Send)]


def test_views_are_answered_with_views_and_questions_with_state():
    here = member()
    here.start(0.0)
    (view,) = here.receive_bytes(b"you", encode(ViewRequest((Descriptor(b"you", 0, version=1),))), 0.0)
    assert isinstance(view.message, ViewReply)
    assert list(here.sampling.view) == [b"you"]
    (state,) = here.receive_bytes(b"you", encode(StateRequest(4)), 0.0)
    assert isinstance(state.message, StateReply)


def test_a_peer_that_leaves_is_removed_from_the_view():
    here = member()
    here.start(0.0, [Descriptor(b"you", 0)])
    here.receive(b"you", Goodbye(), 0.0)
    assert list(here.sampling.view) == []


def test_a_member_with_other_rows_learns_and_predicts_from_these():
    here = member()
    here.start(0.0)
    here.change_rows(UserRows(np.concatenate([-A] * 5)), 0.0)
    assert_array_equal(here.model, member(rows=-A).model)
    assert here.peer.own.n_samples == 10
    for now in range(1, 100):
        here.on_timer(float(now))
    assert here.peer.own.accuracy == 1.0


def test_an_unreachable_peer_leaves_the_view():
    here = member()
    here.start(0.0, [Descriptor(b"you", 0)])
    here.on_unreachable(b"you", 0.0)
    assert list(here.sampling.view) == []


def test_a_peer_that_does_not_answer_graph_steps_is_doubted_and_then_lost():
    here = member(Rhythm(local_steps=0, first_graph_steps=9, wakeups_per_s=0.1))
    here.start(0.0, [Descriptor(b"ghost", 0)])
    here.next_exchange = float("inf")
    while here.planner.wakeups < 3:
        here.on_timer(here.deadline)
    assert list(here.sampling.view) == []


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


def test_a_new_member_makes_its_local_steps_at_once():
    here = member(Rhythm(local_steps=3))
    effects = here.start(0.0)
    assert here.peer.own.updates == 3
    assert {effect.key for effect in effects} == {b"epoch", b"planner", b"model"}


def test_a_restarted_member_restores_model_plan_and_view():
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
    assert list(second.sampling.view) == [b"you"]
    assert second.peer.own.model.epoch == first.peer.own.model.epoch + 1


def test_nothing_is_due_after_leaving():
    here = member()
    here.start(0.0)
    here.leave(1.0)
    assert here.deadline == float("inf")


def test_the_time_between_exchanges_must_be_positive():
    with pytest.raises(ValueError, match="exchange_every_s must be > 0 and finite, got 0"):
        Member(Peer(b"me", UserRows(A), CONFIG), member().sampling, member().planner, exchange_every_s=0)


def test_a_member_trusts_helpful_neighbours_only():
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


# -- planner --------------------------------------------------------------------------------------------------------


LETTERS = {ModelStep: "m", GraphStep: "g", ResetModel: "r"}


def view_of(n_peers, rng):
    sampling = PeerSampling(b"me", rng)
    sampling.introduce(Descriptor(bytes([k]), 0) for k in range(n_peers))
    return sampling


def actions(planner, n, rng):
    sampling = view_of(3, rng)
    return "".join(LETTERS[type(planner.next_action(sampling.sample, now=0.0))] for _ in range(n))


def test_local_steps_first_then_first_graph_steps_then_both_in_turn():
    rng = np.random.default_rng(0)
    rhythm = Rhythm(local_steps=3, first_graph_steps=2, graph_every=4)
    assert actions(Planner(rhythm, rng), 16, rng) == "mmm" + "gg" + "mmmmg" + "mmmmg" + "m"


def test_the_model_restarts_once_after_the_first_graph_steps_if_asked():
    rng = np.random.default_rng(0)
    rhythm = Rhythm(local_steps=1, first_graph_steps=1, graph_every=1, restart=True)
    assert actions(Planner(rhythm, rng), 7, rng) == "mgrmgmg"


def test_a_restarted_planner_continues():
    rhythm = Rhythm(local_steps=3, first_graph_steps=2, graph_every=2, restart=True)
    whole = actions(Planner(rhythm, np.random.default_rng(0)), 20, np.random.default_rng(1))
    for cut in range(20):
        rng = np.random.default_rng(2)
        first, second = Planner(rhythm, rng), Planner(rhythm, rng)
        before = actions(first, cut, rng)
        record = first.record()
        second.restore({record.key: record.value} if cut else {})
        assert before + actions(second, 20 - cut, rng) == whole
        assert second.wakeups == 20


def test_batches_are_distinct_peers_of_the_view():
    rng = np.random.default_rng(0)
    planner, sampling = Planner(Rhythm(local_steps=0, first_graph_steps=50, kappa=4), rng), view_of(9, rng)
    for _ in range(50):
        batch = planner.next_action(sampling.sample, now=0.0).batch
        assert len(set(batch)) == 4
        assert set(batch) <= set(sampling.view)


def test_waits_are_exponential():
    planner = Planner(Rhythm(wakeups_per_s=4.0), np.random.default_rng(0))
    waits = [planner.wait_s() for _ in range(2000)]
    assert stats.kstest(waits, stats.expon(scale=0.25).cdf).pvalue > 0.01


@pytest.mark.parametrize(("name", "value"), [("kappa", 0), ("graph_every", 0), ("local_steps", -1)])
def test_counts_below_their_minimum_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least .*, got {value}"):
        Rhythm(**{name: value})


def test_the_rate_of_wake_ups_must_be_positive():
    with pytest.raises(ValueError, match="wakeups_per_s must be > 0 and finite, got 0"):
        Rhythm(wakeups_per_s=0)


# -- rate limit -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 0.5), st.integers(0, 5000)), max_size=200))
def test_no_sender_exceeds_its_burst_and_rate(arrivals):
    limit = RateLimit(messages_per_s=3.0, burst=10.0)
    now, taken = 0.0, 0.0
    for wait, n_bytes in arrivals:
        now += wait
        assert taken <= 10.0 + 3.0 * now + 1 + 5000 / BYTES_PER_MESSAGE
        if limit.admits(b"ann", n_bytes, now):
            taken += 1 + n_bytes / BYTES_PER_MESSAGE


def test_the_largest_message_passes_and_leaves_a_debt():
    limit = RateLimit(messages_per_s=10.0, burst=10.0)
    assert limit.admits(b"ann", LARGEST_MESSAGE, 0.0)
    assert not limit.admits(b"ann", 0, 60.0)
    assert limit.admits(b"ann", 0, 120.0)


def test_a_flood_of_one_sender_does_not_block_another():
    limit = RateLimit(messages_per_s=1.0, burst=5.0)
    admitted = sum(limit.admits(b"flood", 0, 0.001 * t) for t in range(1000))
    assert admitted <= 6
    assert limit.admits(b"ann", 0, 1.0)


def test_buckets_are_bounded_in_number():
    limit = RateLimit(most_senders=8)
    for k in range(1000):
        limit.admits(k.to_bytes(2, "big"), 0, 0.0)
    assert len(limit) == 8


def test_a_clock_that_steps_back_admits_no_more_messages():
    limit = RateLimit(messages_per_s=1.0, burst=1.0)
    assert limit.admits(b"ann", 0, 10.0)
    assert not limit.admits(b"ann", 0, 0.0)


def test_a_limit_must_admit_messages():
    with pytest.raises(ValueError, match="a rate must be > 0"):
        RateLimit(messages_per_s=0.0)
