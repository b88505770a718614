"""Peers agree on settings that depend on all users, without a server, whatever is lost and whoever lies."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dada.core.problem import Problem
from dada.peer.census import Census
from dada.peer.inputs import PeerConfig, Send
from dada.peer.member import Rhythm
from dada.peer.messages import MOST_RECORDS, CensusRecord, CensusReply, ImplausibleError, encode
from dada.sim.simulation import SimulatedNetwork
from dada.sim.virtual import Faults, VirtualSeal

CONFIG = PeerConfig(8, 3.0, 0.7, graph="everyone", step="block", mu_per_confidence=2.0, trust_largest=0.2)


def census(k, size=5):
    me = k.to_bytes(8, "big")
    made = Census(me, CONFIG, VirtualSeal(me))
    made.publish(size)
    return made


def meet(one, other, lost=lambda: False):
    """Exchange messages until nobody answers."""
    queue = [(other, Send(other.me, one.summary()))]
    while queue:
        receiver, effect = queue.pop()
        if isinstance(effect, Send) and not lost():
            sender = one if receiver is other else other
            answers = receiver.receive(sender.me, effect.message)
            queue += [(sender, answer) for answer in answers]


def test_two_that_meet_have_the_same_records_and_settings():
    ann, bob = census(1, size=10), census(2, size=6)
    meet(ann, bob)
    assert ann.summary() == bob.summary()
    assert (ann.largest, ann.mu) == (bob.largest, bob.mu) == (10, 2.0 * 0.8)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), n=st.integers(2, 12))
def test_the_order_of_meetings_and_lost_messages_do_not_matter(seed, n):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 30, n)
    group = [census(k, int(size)) for k, size in enumerate(sizes)]
    for _ in range(5 * n):
        meet(*rng.choice(group, 2, replace=False), lost=lambda: rng.random() < 0.3)
    for _ in range(2):
        for other in group[1:]:
            meet(group[0], other)
    assert len({one.summary().digest for one in group}) == 1
    assert len({one.mu for one in group}) == 1


def test_a_larger_network_is_sampled_alike_by_all():
    many = [census(k) for k in range(MOST_RECORDS + 20)]
    for _ in range(2):
        for other in many[1:]:
            meet(many[0], other)
    assert [len(one) for one in (many[0], many[-1])] == [MOST_RECORDS, MOST_RECORDS]
    assert many[0].summary() == many[-1].summary()
    assert len(encode(many[0].summary())) < 25


def test_a_new_number_of_samples_replaces_the_old_one():
    ann, bob = census(1, size=4), census(2, size=8)
    meet(ann, bob)
    ann.publish(8)
    meet(bob, ann)
    assert bob.mu == ann.mu == 2.0


def test_a_peer_that_lost_its_state_publishes_above_its_old_record():
    ann, bob = census(1, size=4), census(2, size=8)
    for size in (5, 6, 8):
        ann.publish(size)
    meet(ann, bob)
    again = census(1, size=4)
    meet(bob, again)
    meet(again, bob)
    assert bob.mu == again.mu == 2.0 * 0.75


def test_a_majority_of_liars_cannot_exceed_the_bound_of_the_network():
    me = b"an honest peer"
    honest = Census(me, replace(CONFIG, most_samples=12), VirtualSeal(me))
    honest.publish(6)
    for k in range(5):
        meet(honest, census(k, size=10**9))
    assert honest.largest == 12


def test_a_record_is_believed_only_with_the_signature_of_its_owner():
    ann, bob = census(1), census(2)
    forged = CensusRecord(ann.me, version=9, size=10**9, signature=VirtualSeal(b"eve").sign(b"a record"))
    with pytest.raises(ImplausibleError, match="false signature"):
        bob.receive(b"eve", CensusReply((forged,)))
    odd = CensusRecord(ann.me, version=9, size=5, gains=(1,))
    with pytest.raises(ImplausibleError, match="2 gains"):
        bob.receive(b"eve", CensusReply((odd,)))
    assert len(bob) == 1


def test_a_few_liars_hardly_change_the_settings():
    rng = np.random.default_rng(0)
    honest = [census(k, int(rng.integers(5, 11))) for k in range(45)]
    for other in honest[1:]:
        meet(honest[0], other)
    before = honest[0].mu
    for k in range(45, 50):
        meet(honest[0], census(k, size=10**9))
    assert honest[0].largest <= 20
    assert honest[0].mu == pytest.approx(before, rel=0.5)


def after_judging(gains, n_silent=0):
    """The fraction of mu that users with these gains choose, next to others that have not judged yet."""
    group = [census(k) for k in range(len(gains) + n_silent)]
    for one, own in zip(group, gains, strict=False):
        one.publish_gains(own)
    for other in group[1:]:
        meet(group[0], other)
    return group[0].fraction


@pytest.mark.parametrize(
    ("gains", "fraction"),
    [((2.0, -1.0), 0.25), ((2.0, 5.0), 0.0625), ((-2.0, 5.0), 1.0), ((0.0, 0.0), 1.0)],
)
def test_clear_gains_of_most_users_weaken_the_coupling(gains, fraction):
    drawn = gains + np.random.default_rng(0).normal(size=(12, 2)) * 0.5 * (gains[0] != 0.0)
    assert after_judging(drawn, n_silent=4) == fraction
    assert after_judging(drawn, n_silent=13) == 1.0
    assert after_judging(drawn[:5]) == 1.0


def test_gains_of_one_liar_are_clipped():
    assert after_judging([(-2.0, -2.0)] * 11 + [(1e9, 1e9)]) == 1.0


def test_a_restored_census_is_the_same():
    ann, bob = census(1), census(2, size=9)
    meet(ann, bob)
    ann.publish_gains((0.5, -0.25))
    again = Census(ann.me, CONFIG, VirtualSeal(ann.me))
    again.restore({ann.record().key: ann.record().value})
    assert again.summary() == ann.summary()
    assert again.publish(5) == []
    assert again.is_judged


@pytest.mark.parametrize("faults", ["none", "loss,churn"])
def test_all_peers_of_a_network_end_with_the_strength_that_estimators_choose(faults):
    rng, K = np.random.default_rng(3), 8
    sizes = rng.integers(3, 7, K)
    A = rng.choice(np.array([-1, 1], np.int8), size=(sizes.sum(), 8))
    problem = Problem(A, np.concatenate([[0], np.cumsum(sizes)]), beta=3.0, mu1=0.7)
    rhythm = Rhythm(local_steps=2, first_graph_steps=2, graph_every=3)
    network = SimulatedNetwork(problem, CONFIG, rhythm, Faults.named(faults), steps=30, seed=0)
    network.run()
    joined = [host.member.peer for host in network.joined if host.is_up]
    assert_array_equal([peer.own.mu for peer in joined], joined[0].own.mu)
    if faults == "none":
        census = network.world.hosts[0].member.census
        assert census.is_judged
        assert joined[0].own.mu == pytest.approx(2.0 * problem.confidence.mean() * census.fraction)
