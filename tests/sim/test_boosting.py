"""Networks that boost trees: all peers come to the same trees, whatever is lost, whoever leaves and whoever lies."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dada.data import BoostedTrees, Constant, Linear, Union, moons, xor
from dada.fitting.boosted_peers import boosted_users, with_boosted
from dada.fitting.calibration import Exam
from dada.peer import boosting
from dada.peer.boosted_trees import OwnLeaves
from dada.peer.signed_trees import SignedTrees
from dada.sim import network_of, network_problem, simulate
from dada.sim.invariants import InvariantError
from dada.sim.liars import Exploder, Grafter
from dada.sim.virtual import Faults

FIXED = Union(Linear(), Constant(coupling=0.1))
TREES = BoostedTrees(rounds=20, rate=0.3)


def network(faults="none", seed=0, steps=30, graph="evidence", people=None, trees=TREES, **options):
    people = moons(0, n_users=8).train if people is None else people
    _, problem, _ = network_problem(people, FIXED, mu=0.1, loss="logistic")
    named, boosted = Faults.named(faults) if isinstance(faults, str) else faults, boosted_users(trees, people)
    return network_of(problem, named, graph=graph, step="block", steps=steps, seed=seed, boosted=boosted, **options)


def boosting_of(made):
    return [host.member.boosting for host in made.world.hosts if host.is_honest and host.is_up]


@pytest.mark.parametrize("graph", ["evidence", "everyone", "distance"])
def test_all_peers_come_to_the_same_trees_and_to_as_many_as_the_network_wants(graph):
    made = network(graph=graph)
    made.check()
    found = boosting_of(made)
    assert {tuple(one.trees) for one in found} == {tuple(found[0].trees)}
    assert TREES.rounds <= len(found[0].trees) < 2 * TREES.rounds
    assert len({one.leaves().values[0].tobytes() for one in found}) > 1


@pytest.mark.parametrize("seed", range(3))
def test_no_tree_is_lost_by_losses_churn_and_restarts(seed):
    made = network("loss,churn", seed)
    made.check()
    assert made.invariants.checked > 1000
    assert boosting_of(made)[0].trees


@pytest.mark.parametrize(
    "faults",
    [
        Faults(lost=0.1, restored=0.25, churning=0.3),
        Faults(lost=0.1, damaged=0.25),
        Faults(doubled=0.25, lost=0.1),
        Faults.named("all"),
    ],
)
def test_no_tree_is_lost_by_broken_machines_and_second_processes(faults):
    made = network(faults, seed=1)
    made.check()
    assert boosting_of(made)[0].trees


def test_a_peer_that_does_not_store_trees_is_detected(monkeypatch):
    monkeypatch.setattr(SignedTrees, "stored", lambda self, peers: [])
    with pytest.raises(InvariantError, match="0 of 1 records stored"):
        network().check()


def test_a_peer_that_forgets_trees_is_detected(monkeypatch):
    def restore(self, records):
        self.add(b"")

    monkeypatch.setattr(SignedTrees, "restore", restore)
    with pytest.raises(InvariantError, match=r"records stored|boosted trees are lost"):
        network("churn", seed=1).check()


def test_values_that_depend_on_the_order_of_arrival_are_detected(monkeypatch):
    def take(self, trees):
        for tree in trees:
            if tree not in self.trees:
                self._add(tree)

    monkeypatch.setattr(OwnLeaves, "take", take)
    with pytest.raises(InvariantError, match=r"boosted trees, \d+ has|other values of leaves"):
        network("loss").check()


def test_false_trees_answers_and_requests_are_refused():
    made = network(Faults(lying=0.25), liar_kinds=(Grafter,))
    made.check()
    liars = [host for host in made.world.hosts if not host.is_honest]
    honest = boosting_of(made)
    assert len(liars) == 2
    assert sum(host.refused for host in made.world.hosts if host.is_honest) > 0
    assert honest[0].trees
    for one in honest:
        assert all(one.records.counts.get(liar.me, 0) == 0 for liar in liars)


def accuracy_among(liars, monkeypatch=None):
    """Accuracy of the boosted part alone, of honest users, beside peers that send the worst sound numbers."""
    if monkeypatch is not None:
        monkeypatch.setattr(boosting, "bounded", list)
    people = xor(1, n_users=20)
    made = network(Faults(lying=liars), 1, 50, people=people.train, trees=BoostedTrees(rounds=60, rate=0.3),
                   liar_kinds=(Exploder,))  # fmt: skip
    ends = made.run()
    predictors = FIXED.fit(people.train.X)
    none = np.zeros((20, predictors.n), np.float32)
    predictors, models = with_boosted(predictors, none, made.boosted.terms, made.boosted.cuts, ends.leaves)
    return Exam(people.test, predictors).score(models, ends.honest)


def test_a_tenth_of_liars_costs_some_accuracy_and_not_all(monkeypatch):
    alone, beside_liars = accuracy_among(0.0), accuracy_among(0.1)
    assert alone > 0.7
    assert beside_liars > alone - 0.1
    assert accuracy_among(0.1, monkeypatch) < beside_liars - 0.1


def test_a_simulation_of_boosted_trees_repeats_and_scores():
    people = xor(2, n_users=12)
    recipe = Union(FIXED, BoostedTrees(rounds=60, rate=0.3, share=0.9))
    one, two = (simulate(people.train, recipe, loss="logistic", faults="loss", steps=40) for _ in range(2))
    assert_array_equal(one.result.models, two.result.models)
    assert one.result.leaves[3].trees == two.result.leaves[3].trees
    assert_array_equal(np.array(one.result.leaves[3].values), np.array(two.result.leaves[3].values))
    found = {name: np.nanmean(values) for name, values in one.accuracies(people.test).items()}
    assert found["together"] > found["alone"] + 0.05
