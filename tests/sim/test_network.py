"""Simulated networks repeat exactly, reach agreement, and learn despite losses, crashes and liars."""

import io

import numpy as np
import pytest

from dada.cli.simulated_runs import make_case, synthetic_peers
from dada.peer.peer import replay
from dada.sim.virtual import Faults
from tests.helpers.networks import CONFIGS, network


def test_a_seed_repeats_a_run_exactly():
    first, second, other = (network(seed=seed).run() for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.together, second.together)
    assert (first.counts, first.events, first.checks) == (second.counts, second.events, second.checks)
    assert first.counts != other.counts


def test_watching_changes_nothing():
    points = []
    seen, unseen = network(seed=5).run(points.append, n_points=7), network(seed=5).run()
    np.testing.assert_array_equal(seen.together, unseen.together)
    assert seen.counts == unseen.counts
    assert len(points) == 7
    assert points[-1].edges == seen.edges


def checked(**settings):
    """A network after its run. Its invariants include that ends of edges agree, and that some peers have neighbours."""
    one = network(**settings)
    one.check()
    return one


@pytest.mark.parametrize("graph", CONFIGS)
@pytest.mark.parametrize("faults", ["none", "all"])
def test_the_ends_of_all_edges_agree_after_all_faults(faults, graph):
    assert checked(faults=faults, graph=graph).invariants.checked > 5000


def test_a_background_graph_is_connected_and_bounded():
    one = checked(K=40, steps=20, faults="loss,churn", graph="everyone")
    edges = {host.me: host.member.peer.edges.neighbours for host in one.joined if host.is_up}
    reached, waiting = set(), [min(edges)]
    while waiting:
        me = waiting.pop()
        if me in edges and me not in reached:
            reached.add(me)
            waiting += edges[me]
    assert len(reached) == len(edges) > 20
    sizes = [len(neighbours) for neighbours in edges.values()]
    assert max(sizes) <= 12
    assert 8 < np.mean(sizes) < 12


@pytest.mark.parametrize("graph", ["distance", "evidence, block"])
def test_each_fault_occurs_and_leaves_ends_that_agree(graph):
    without = checked(steps=5, faults="none", graph=graph).world.counts
    for name, counted in (("loss", "lost"), ("churn", "restarts"), ("byzantine", "refused")):
        assert checked(K=15, steps=15, faults=name, graph=graph).world.counts[counted] > 0
        assert without[counted] == 0


@pytest.fixture(scope="module")
def calm():
    return checked(steps=12, faults="none", graph="evidence")


@pytest.mark.parametrize("fault", ["unheard", "dropping", "drifting", "slow", "restored", "doubled", "damaged"])
def test_a_fault_of_links_or_machines_changes_a_run_and_violates_nothing(fault, calm):
    disturbed = checked(steps=12, faults=Faults(**{fault: 0.2}), graph="evidence")
    assert disturbed.world.counts != calm.world.counts


def test_two_processes_with_one_identity_are_noticed():
    one = checked(steps=25, seed=1, faults=Faults(doubled=0.1), graph="evidence")
    assert any("another process uses its identity" in text for _, text in one.world.warnings)


def test_the_result_has_no_models_of_liars():
    outcome = network(K=20, faults="byzantine").run()
    assert outcome.honest.sum() == 18
    assert not outcome.models[~outcome.honest].any()
    assert outcome.models[outcome.honest].any(axis=1).all()


@pytest.mark.parametrize("graph", ["distance", "evidence, block"])
def test_the_first_peers_journal_replays(graph):
    file = io.BytesIO()
    network(seed=1, journal=file, graph=graph).run()
    result = replay(io.BytesIO(file.getvalue()))
    assert result.facts > 100
    assert result.is_whole


def test_faults_must_be_shares_and_known():
    with pytest.raises(ValueError, match=r"lost must be in 0\.\.1 \(a share\), got 2"):
        Faults(lost=2)
    with pytest.raises(ValueError, match="faults must be among none, loss, churn, byzantine, all"):
        Faults.named("rain")
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        network(steps=0)


def test_a_network_learns_despite_losses_crashes_and_liars():
    """Moons, one draw of 20 users: a smaller sample than in the benchmark, so with wider margins."""
    found = {}
    for faults in ("none", "loss,churn", "byzantine"):
        case = make_case(synthetic_peers("moons", 20, 1), 40, 1, faults)
        found[faults] = list(case.accuracies(case.network.run()).values())
    test, _, local = range(3)
    assert found["none"][test] > found["none"][local] + 0.01
    assert found["loss,churn"][test] > found["none"][test] - 0.03
    assert found["byzantine"][test] > found["byzantine"][local] - 0.01
