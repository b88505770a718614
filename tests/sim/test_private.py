"""Private peers of a simulated network: one release each, whatever crashes, and home models that gain from others."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dada import Linear, Population, Privacy, Trees, Union
from dada.privacy.accounting import BudgetError, PrivacyCost
from dada.sim import simulate
from dada.sim.invariants import InvariantError
from dada.sim.private import PrivateUsers

ROWS = Privacy(8.0, ranges=(-1, 1))
LABELS = Privacy(4.0, protects="labels")
BOTH = pytest.mark.parametrize("privacy", [LABELS, ROWS], ids=["labels", "rows"])


def people(n_users=20, n_rows=60, classes=2):
    """Users with a common rule, of whose rows twenty are for learning."""
    rng = np.random.default_rng(0)
    X, owner = rng.uniform(-1, 1, (n_users * n_rows, 3)), np.repeat(np.arange(n_users), n_rows)
    scores = X[:, 0] + 0.5 * X[:, 1] + 0.5 * rng.normal(size=owner.size)
    y = np.digitize(scores, np.linspace(-0.5, 0.5, classes - 1) if classes > 2 else [0.0])
    place, whole = np.arange(owner.size) % n_rows, Population.from_arrays(X, y, owner)
    return whole.take(place < 20), whole.take(place >= 20)


@BOTH
@pytest.mark.parametrize("faults", ["none", "all"])
def test_home_models_gain_from_one_release_of_each_peer(privacy, faults):
    train, test = people()
    found = simulate(train, privacy=privacy, faults=faults, steps=40)
    scores = {name: np.nanmean(of_users) for name, of_users in found.accuracies(test).items()}
    assert scores["chosen"] > scores["alone"] + 0.01
    private = found.network.private
    assert private.n_released == train.n_users
    assert found.result.counts["restarts"] > 0 or faults == "none"
    for entry in private.ledger.entries():
        assert entry.cost.delta_at(privacy.epsilon) <= private.ledger.delta
        with pytest.raises(BudgetError):
            private.ledger.release(entry.owner, "a second one", PrivacyCost(epsilon=0.5, mu=0.1), lambda: b"")


@BOTH
def test_a_seed_repeats_a_private_run(privacy):
    train, _ = people(n_users=8)
    first, again = (simulate(train, privacy=privacy, faults="loss,churn", steps=10) for _ in range(2))
    assert first.result.counts == again.result.counts
    assert_array_equal(first.result.models, again.result.models)
    digests = [[entry.digest for entry in one.network.private.ledger.entries()] for one in (first, again)]
    assert digests[0] == digests[1]


def test_what_peers_send_of_labels_follows_from_released_ones():
    """The state machine of each peer has the released labels, its fallback model the exact ones."""
    train, _ = people(n_users=6)
    found = simulate(train, privacy=Privacy(0.5, protects="labels"), steps=8)
    for host in found.network.joined:
        learned, exact = (rows[host.number] for rows in (found.network.private.learned, found.network.private.exact))
        assert_array_equal(host.member.peer.own.rows.A, learned.A)
        assert (learned.A != exact.A).any()
        assert_array_equal(exact.A, found.network.problem.rows_of(host.number).A)
        assert host.member.is_private


def test_what_peers_send_of_rows_is_a_release_and_nothing_else():
    train, _ = people(n_users=6)
    found = simulate(train, privacy=ROWS, steps=30)
    hosts = found.network.joined
    assert not any(host.member.peer.own.rows.A.any() for host in hosts)
    assert {len(host.member.releases.held) for host in hosts} == {6}
    assert len({release for host in hosts for release in host.member.releases.held.values()}) == 6


def test_three_classes_and_nothing_sent():
    train, test = people(classes=3)
    found = simulate(train, privacy=ROWS, steps=30)
    assert np.nanmean(found.accuracies(test)["chosen"]) > 0.5
    silent = simulate(train, privacy=Privacy(0.01, ranges=(-1, 1)), steps=10)
    assert silent.network.private.n_released == 0
    assert_array_equal(silent.result.together, silent.result.alone)


def test_a_second_release_is_noticed(monkeypatch):
    """Without its ledger a peer that crashes draws again, at once."""
    train, _ = people(n_users=8)

    def hasty(users, member):
        if member.releases is not None and member.releases.own is None:
            member.releases.publish(member.releases.draw(users.source))

    monkeypatch.setattr(PrivateUsers, "release_once", hasty)
    with pytest.raises(InvariantError, match="another release is sent than the first of its owner"):
        simulate(train, privacy=ROWS, faults="churn", steps=40)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"privacy": Privacy(1.0, ranges=(-1, 1)), "graph": "distance"}, "with the graph 'evidence', got 'distance'"),
        ({"privacy": Privacy(1.0, ranges=(-1, 1), secure_sum=True)}, "without secure sums"),
        ({"privacy": LABELS, "predictors": Union(Linear(), Trees())}, "trees reveal rows"),
    ],
)
def test_what_would_reveal_rows_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        simulate(people(n_users=3)[0], **given)


def test_numbers_have_no_private_peers():
    numbers = Population.from_arrays(np.zeros((4, 1)), np.array([0.1, 0.2, 0.5, 0.9]), [0, 0, 1, 1], task="numbers")
    with pytest.raises(ValueError, match="learn classes"):
        simulate(numbers, privacy=ROWS)
