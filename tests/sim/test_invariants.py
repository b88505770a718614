"""Each violated invariant is detected, and reported with the command that repeats the run."""

import numpy as np
import pytest

from dada.net.store import Store
from dada.peer.edges import PeerEdges, Versions
from dada.peer.inputs import Persist
from dada.peer.member import Member
from dada.peer.messages import Follow
from dada.peer.model import EPOCH_KEY, OwnModel
from dada.peer.neighbourhoods import EvidenceGraph
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from dada.sim.invariants import InvariantError
from dada.sim.world import VirtualDisk
from tests.helpers.networks import network


@pytest.fixture
def replace(monkeypatch):
    """Replace a method by a wrong one, which gets the original first."""

    def replace(owner, method, wrong):
        original = getattr(owner, method)
        monkeypatch.setattr(owner, method, lambda self, *args, **kwargs: wrong(original, self, *args, **kwargs))

    return replace


def run_all(seeds, **settings):
    for seed in seeds:
        network(seed=seed, replay=f"dada sim --seed {seed}", **settings).check()


def run_until_found(what, **settings):
    with pytest.raises(InvariantError, match=what) as found:
        run_all(range(6), **settings)
    assert "replay: dada sim --seed" in str(found.value)


@pytest.mark.parametrize("graph", ["distance", "evidence", "evidence, block"])
def test_a_sound_network_passes(graph):
    run_all((1, 2), graph=graph)


@pytest.mark.parametrize(
    ("which", "growth", "found", "graph"),
    [("model", 6.0, "model of l1 norm", {}), ("shared", 30.0, "shared model of l1 norm", {"graph": "evidence, block"})],
)
def test_a_model_outside_its_ball_is_detected(which, growth, found, graph, replace):
    def step(original, own, gamma, confidence):
        change = original(own, gamma, confidence)
        getattr(own, which).alpha[0] += growth
        return change

    replace(OwnModel, "step", step)
    run_until_found(found, faults="none", **graph)


def test_a_copy_that_differs_from_its_original_is_detected(replace):
    def apply_change(original, edges, sender, delta, now):
        effects = original(edges, sender, delta, now)
        if edges[sender].copy is not None:
            edges[sender].copy.alpha[3] += np.float32(1e-6)
        return effects

    replace(PeerEdges, "apply_change", apply_change)
    run_until_found("its copy of the model of .* differs from the original", faults="none")


def test_missed_moves_are_detected(replace):
    def apply_change(original, edges, sender, delta, now):
        copy = edges[sender].copy
        if copy is not None and delta.sequence > copy.sequence + 1:
            copy.sequence = delta.sequence - 1
        return original(edges, sender, delta, now)

    replace(PeerEdges, "apply_change", apply_change)
    run_until_found("differs from the original", faults="loss")


def test_ends_that_disagree_are_detected(replace):
    def set_(original, edges, peer, edge, weight, *rest):
        return original(edges, peer, edge, weight * (1.5 if edges.me < peer else 1.0), *rest)

    replace(PeerEdges, "set", set_)
    run_until_found("edge to", faults="none")


@pytest.mark.parametrize("graph", ["distance", "evidence"])
def test_a_report_that_is_never_repeated_is_detected(graph, replace):
    def announce(original, edges, peer, now, *rest, **others):
        send = original(edges, peer, now, *rest, **others)
        edges.settle(peer, edges[peer])
        return send

    replace(PeerEdges, "announce", announce)
    run_until_found("edge to", graph=graph, faults="loss")


def test_a_negative_weight_is_detected(replace):
    def settle(original, edges, peer, edge):
        original(edges, peer, edge)
        edge.weight = -1.0

    replace(PeerEdges, "settle", settle)
    run_until_found("weight -1.0 to|a degree of", faults="none")


def test_a_message_that_is_sent_before_its_state_is_stored_is_detected(replace):
    def handle(original, peer, fact):
        return sorted(original(peer, fact), key=lambda effect: isinstance(effect, Persist))

    replace(Peer, "handle", handle)
    run_until_found("epoch .* is sent|before .* is stored", faults="none")


def test_a_number_that_repeats_is_detected(replace):
    def begin_epoch(original, own, after=0):
        own.shared.epoch = 0
        return original(own, after)

    replace(OwnModel, "begin_epoch", begin_epoch)
    run_until_found("a second model with the number|versions from", faults="churn")


def test_a_change_that_does_not_reach_the_sum_of_models_is_detected(replace):
    def follow(original, own, copy, weight, change):
        return original(own, copy, 0.0, change)

    replace(OwnModel, "follow", follow)
    run_until_found("a sum of models off by", faults="none")


def test_a_view_that_grows_without_bound_is_detected(replace):
    def exchange(original, sampling):
        sampling.view.update({bytes([99, k]): next(iter(sampling.view.values())) for k in range(40) if sampling.view})
        return original(sampling)

    replace(PeerSampling, "exchange", exchange)
    run_until_found("view, at most 30 are allowed", faults="none")


def test_records_that_are_never_deleted_are_detected(replace):
    def write(original, disk, changes):
        original(disk, changes)
        for _ in range(10):
            original(disk, [Persist(b"old:" + len(disk.kept).to_bytes(4, "big"), b"never deleted")])

    replace(VirtualDisk, "write", write)
    run_until_found("records, at most", steps=60, faults="none")


def test_a_member_without_a_fallback_model_is_detected(replace):
    def init(original, member, *args, **kwargs):
        original(member, *args, **kwargs)
        member.fallback.alpha = np.zeros(0)

    replace(Member, "__init__", init)
    run_until_found("no fallback model", faults="none")


def test_a_view_that_is_not_stored_is_detected(replace):
    def exchange(original, sampling):
        return [effect for effect in original(sampling) if not isinstance(effect, Persist)]

    replace(PeerSampling, "exchange", exchange)
    run_until_found("before the view is stored", faults="none")


def test_a_model_outside_the_ball_that_is_judged_is_detected(replace):
    def copy_of(original, own, snapshot):
        copy = original(own, snapshot)
        copy.alpha *= 10
        return copy

    replace(OwnModel, "copy_of", copy_of)
    run_until_found("a copy of l1 norm", graph="evidence", faults="none")


def test_a_weight_that_changes_without_a_version_is_detected(replace):
    def settle(original, edges, peer, edge):
        original(edges, peer, edge)
        edge.weight *= 0.5

    replace(PeerEdges, "settle", settle)
    run_until_found("an edge of weight|a degree of", faults="none")


def test_a_follow_that_undoes_a_newer_one_is_detected(replace):
    def receive(original, graph, sender, message, now):
        effects = original(graph, sender, message, now)
        if isinstance(message, Follow):
            graph.follow_states[sender].version -= 1
        return effects

    replace(EvidenceGraph, "receive", receive)
    run_until_found("a follower at version", graph="evidence", faults="loss")


def test_versions_that_begin_again_with_every_life_are_detected(replace):
    replace(Versions, "begin", lambda original, versions, epoch: original(versions, 0))
    run_until_found("in another life", faults="churn")


def test_records_that_differ_from_those_stored_are_detected(replace):
    replace(Store, "records", lambda original, store: {**original(store), b"deleted": b"before"})
    run_until_found("records differ from those that were stored", faults="none")


def test_an_epoch_that_a_power_cut_could_undo_is_detected(replace):
    def write(original, store, records):
        original(store, [Persist(b"another" if key == EPOCH_KEY else key, value) for key, value in records])

    replace(Store, "write", write)
    run_until_found("a power cut can undo epoch|records differ", faults="none")


@pytest.mark.parametrize(("follows", "faults"), [(False, "none"), (True, "churn")])
def test_a_follower_that_is_missing_or_never_removed_is_detected(follows, faults, replace):
    def receive(original, graph, sender, message, now):
        effects = original(graph, sender, message, now)
        if isinstance(message, Follow):
            graph.follow_states[sender].follows = follows
        return effects

    replace(EvidenceGraph, "receive", receive)
    what = f"edge to .*: followed is {not follows} here, {follows} there|acknowledged before it is stored"
    run_until_found(what, graph="evidence", faults=faults)
