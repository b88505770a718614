"""A watcher that never complains proves nothing: each broken rule must be found, with the command that repeats it."""

import numpy as np
import pytest

from dada.peer.distance_graph import SharedEdges
from dada.peer.edges import Edge
from dada.peer.evidence_graph import Following
from dada.peer.member import Member
from dada.peer.model import OwnModel
from dada.peer.sampling import PeerSampling
from dada.sim.invariants import InvariantError
from tests.sim.test_network import network


def broken(patch, method, wrong, owner=SharedEdges):
    original = getattr(owner, method)
    patch.setattr(owner, method, lambda self, *args, **kwargs: wrong(original, self, *args, **kwargs))


def run_all(seeds, **settings):
    for seed in seeds:
        network(seed=seed, replay=f"dada sim --seed {seed}", **settings).run()


def run_until_found(what, **settings):
    with pytest.raises(InvariantError, match=what) as found:
        run_all(range(6), **settings)
    assert "replay: dada sim --seed" in str(found.value)


def test_a_sound_network_passes_what_the_broken_ones_do_not():
    run_all(range(3))


def test_a_model_outside_its_ball_is_found(monkeypatch):
    def wrong(original, own, gamma, confidence):
        delta = original(own, gamma, confidence)
        own.model.alpha[0] += 6.0
        return delta

    broken(monkeypatch, "step", wrong, OwnModel)
    run_until_found("model of l1 norm", faults="none")


def test_a_copy_that_differs_from_its_original_is_found(monkeypatch):
    def wrong(original, peer, sender, delta, now):
        effects = original(peer, sender, delta, now)
        edge = peer.edges.get(sender)
        if edge is not None and edge.copy is not None:
            edge.copy.alpha[3] += np.float32(1e-6)
        return effects

    broken(monkeypatch, "on_delta", wrong)
    run_until_found("its copy of the model of .* differs from the original", faults="none")


def test_missed_moves_that_nobody_notices_are_found(monkeypatch):
    def wrong(original, peer, sender, delta, now):
        edge = peer.edges.get(sender)
        if edge is not None and edge.copy is not None and delta.sequence > edge.copy.sequence + 1:
            edge.copy.sequence = delta.sequence - 1
        return original(peer, sender, delta, now)

    broken(monkeypatch, "on_delta", wrong)
    run_until_found("differs from the original", faults="loss")


def test_ends_that_disagree_are_found(monkeypatch):
    def wrong(original, peer, name, edge, weight, *rest):
        return original(peer, name, edge, weight * (1.5 if peer.me < name else 1.0), *rest)

    broken(monkeypatch, "_set_edge", wrong)
    run_until_found("edge to", faults="none")


def test_a_weight_that_is_never_repeated_is_found(monkeypatch):
    def wrong(original, peer, name, edge):
        edge.acknowledged = True
        peer.waiting.pop(name, None)
        return original(peer, name, edge)

    def announce(original, peer, name, edge, now, *rest, **others):
        effects = original(peer, name, edge, now, *rest, **others)
        edge.acknowledged = True
        peer.waiting.pop(name, None)
        return effects

    broken(monkeypatch, "_settled", wrong)
    broken(monkeypatch, "_announce", announce)
    run_until_found("edge to", faults="loss")


def test_a_negative_weight_is_found(monkeypatch):
    def wrong(original, peer, sender, state, now):
        effects = original(peer, sender, state, now)
        peer.edges.setdefault(sender, Edge()).weight = -1.0
        return effects

    broken(monkeypatch, "_on_edge", wrong)
    run_until_found("weight -1.0 to|a degree of", faults="none")


def test_a_view_that_grows_without_bound_is_found(monkeypatch):
    def wrong(original, sampling):
        sampling.view.update({bytes([99, k]): next(iter(sampling.view.values())) for k in range(40) if sampling.view})
        return original(sampling)

    broken(monkeypatch, "exchange", wrong, PeerSampling)
    run_until_found("view, at most 30 are allowed", faults="none")


def test_records_that_are_never_forgotten_are_found(monkeypatch):
    monkeypatch.setattr("dada.sim.invariants.MOST_ENDED_EDGES", -40)
    run_until_found("(edges|records), at most", faults="all")


def test_a_member_without_a_model_of_its_own_is_found(monkeypatch):
    def wrong(original, member, *args, **kwargs):
        original(member, *args, **kwargs)
        member.fallback.alpha = np.zeros(0)

    broken(monkeypatch, "__init__", wrong, Member)
    run_until_found("no model of its own", faults="none")


# -- the evidence graph --------------------------------------------------------------------------------------------


def test_a_sound_evidence_graph_passes_too():
    run_all(range(3), graph="evidence")


def test_a_follower_that_is_not_heard_is_found(monkeypatch):
    def wrong(original, neighbourhood, sender, follow):
        effects = original(neighbourhood, sender, follow)
        neighbourhood.heard[sender].listens = False
        return effects

    broken(monkeypatch, "_on_follow", wrong, Following)
    run_until_found("edge to .*: followed is True here, False there", graph="evidence", faults="none")


def test_a_follower_that_is_told_of_moves_for_ever_is_found(monkeypatch):
    def wrong(original, neighbourhood, sender, follow):
        effects = original(neighbourhood, sender, follow)
        neighbourhood.heard[sender].listens = True
        return effects

    broken(monkeypatch, "_on_follow", wrong, Following)
    run_until_found("edge to .*: followed is False here, True there", graph="evidence", faults="churn")


def test_a_word_that_is_never_repeated_is_found(monkeypatch):
    def wrong(original, neighbourhood, name, edge, now, *rest, **others):
        effects = original(neighbourhood, name, edge, now, *rest, **others)
        edge.acknowledged = True
        neighbourhood.waiting.pop(name, None)
        return effects

    broken(monkeypatch, "_announce", wrong, Following)
    run_until_found("edge to", graph="evidence", faults="loss")
