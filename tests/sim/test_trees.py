"""Peers that grow trees agree on a dictionary, whatever is lost, whoever leaves and whoever lies."""

import io
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dada.core.block_steps import BlockStep
from dada.data import Constant, Linear, Trees, Union, moons
from dada.engine import Plan, run
from dada.peer.grove import SharedGrove, dictionary_name, name_of
from dada.peer.inputs import DictionaryChanged, StoredRows
from dada.peer.peer import replay
from dada.sim import network_of, network_problem, simulate
from dada.sim.invariants import InvariantError
from dada.sim.liars import Poacher
from dada.sim.virtual import Faults
from tests.helpers.lockstep import Lockstep

RECIPE = Union(Linear(), Constant(coupling=0.1), Trees(per_user=3, depth=2))


def case(n_users=8, recipe=RECIPE):
    return network_problem(moons(0, n_users=n_users).train, recipe, mu=0.1, loss="logistic")


def network(faults="none", seed=0, steps=25, graph="evidence", **options):
    _, problem, orchard = case()
    named = Faults.named(faults) if isinstance(faults, str) else faults
    return network_of(problem, named, graph=graph, step="block", steps=steps, seed=seed, orchard=orchard, **options)


@pytest.mark.parametrize("graph", ["evidence", "everyone"])
def test_all_peers_learn_over_the_trees_of_all(graph):
    made = network(graph=graph)
    models = made.check()
    groves = [host.member.grove for host in made.world.hosts]
    assert {len(grove.records) for grove in groves} == {8}
    assert {tuple(grove.names) for grove in groves} == {tuple(groves[0].names)}
    assert models[:, -len(groves[0].names) :].any(axis=1).all()


def test_a_peer_gives_its_own_trees_no_weight():
    made = network()
    made.check()
    n_masked = 0
    for host in made.world.hosts:
        grove, own = host.member.grove, host.member.peer.own
        is_own = [atom in grove.plot.grown for atom in grove.atoms]
        n_masked += sum(is_own)
        assert not own.rows.A[:, -len(grove.names) :][:, is_own].any()
    assert n_masked >= len(made.world.hosts[0].member.grove.names) > 0


def test_loss_and_churn_lose_no_tree_in_use():
    for seed in range(2):
        made = network("loss,churn", seed)
        made.check()
        assert made.invariants.checked > 1000


def test_copies_are_renewed_when_a_peer_returns_to_an_earlier_dictionary():
    # One peer changes its dictionary and changes it back, while a neighbour keeps that dictionary and its epoch.
    recipe = Union(Linear(), Trees(per_user=3, depth=2))
    _, problem, orchard = network_problem(moons(1, n_users=8).train, recipe, mu=0.1, loss="logistic", seed=1)
    faults = Faults.named("loss,churn")
    made = network_of(problem, faults, graph="evidence", step="block", steps=30, seed=1, orchard=orchard)
    for k in range(2, 5):
        made.replant(k, orchard.plots[k + 1].grown[:1], 18.0)
    made.check()


def test_a_tree_in_use_outlives_the_record_of_its_owner():
    made = network(steps=40)
    other, used = replanted(made)
    made.check()
    names = made.world.hosts[0].member.grove.names
    assert used <= set(names)
    assert len(names) > 8 * 3 - 3
    assert other in names


def replanted(made):
    """Let the owner of a tree that another uses grow other trees; returns the name of one, and the trees in use."""
    made.world.run(20.0)
    hosts = made.world.hosts
    used = {name for host in hosts for name in host.member.trees_in_use}
    owner = next(host for host in hosts if {*owned(host.member.grove)} & used)
    grove = owner.member.grove
    atom = bytearray(grove.plot.grown[0])
    atom[-1] = (atom[-1] + 1) % 100
    made.replant(owner.number, [bytes(atom)], 21.0)
    return name_of(bytes(atom)), {*owned(grove)} & used


def owned(grove):
    return [name for name, atom in zip(grove.names, grove.atoms, strict=True) if atom in grove.plot.grown]


def test_a_peer_that_forgets_trees_in_use_is_detected(monkeypatch):
    monkeypatch.setattr(SharedGrove, "keep", lambda self, in_use: [])
    made = network(steps=40)
    replanted(made)
    with pytest.raises(InvariantError, match="trees in use are lost"):
        made.check()


def test_a_model_over_trees_that_are_not_stored_is_detected(monkeypatch):
    adopt = SharedGrove.adopt
    monkeypatch.setattr(SharedGrove, "adopt", lambda self: adopt(self)[1:])
    with pytest.raises(InvariantError, match="trees are not stored"):
        network().check()


def test_false_trees_are_refused():
    made = network(Faults(lying=0.25), liar_kinds=(Poacher,), steps=20)
    made.check()
    honest = [host for host in made.world.hosts if host.is_honest]
    planted = {atom for host in made.world.hosts for atom in host.member.grove.plot.grown}
    assert all(set(host.member.grove.atoms) <= planted for host in honest)
    assert sum(host.refused for host in honest) > 0


def test_a_journal_with_trees_replays():
    file = io.BytesIO()
    network("loss,churn", steps=10, journal=file).run()
    assert replay(io.BytesIO(file.getvalue())).is_whole


@pytest.mark.parametrize("rule", ["distance", "evidence"])
def test_engine_and_peers_give_the_same_bits_with_the_same_trees(rule):
    _, problem, orchard = case(6)
    plan = Plan(
        n_updates=60, step="block", kappa=3, graph_every=20, local_updates=12, graph_rule=rule, n_neighbours=3,
        block=BlockStep(momentum=0.0), restart="local",
    )  # fmt: skip
    engine = run(problem, plan, np.random.default_rng(0))
    atoms = sorted({atom for plot in orchard.plots for atom in plot.grown}, key=name_of)
    n_fixed = problem.n_predictors - len(atoms)
    peers = Lockstep(replace(problem, A=problem.A[:, :n_fixed], coupling=problem.coupling[:n_fixed]), plan)
    origin = np.array([*range(n_fixed), *(-1 for _ in atoms)], "<i4").tobytes()
    for peer, plot in zip(peers.peers, orchard.plots, strict=True):
        rows = StoredRows.of(plot.rows(orchard.terms, atoms))
        peer.handle(DictionaryChanged(0.0, dictionary_name(orchard.names), origin, rows))
    peers.run(np.random.default_rng(0))
    assert_array_equal(peers.models, engine.models)
    assert_array_equal(peers.shared, engine.shared.model)
    assert_array_equal(peers.ledger.coded, engine.ledger.coded)
    assert engine.models[:, n_fixed:].any()


def test_a_simulation_of_trees_repeats_and_scores():
    people = moons(1, n_users=6)
    one, two = (simulate(people.train, RECIPE, loss="logistic", faults="loss", steps=12) for _ in range(2))
    assert_array_equal(one.result.models, two.result.models)
    assert one.accuracies(people.test)["together"].shape == (6,)
