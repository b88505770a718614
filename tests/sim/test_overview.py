"""Events of a simulated network, as a page shows them."""

import numpy as np

from dada import events
from dada.sim.simulation import SimulationOverview
from tests.helpers.networks import network


class Film:
    """Keeps all events; snapshots that are offered are taken."""

    def __init__(self):
        self.infos, self.peers, self.snapshots = [], [], []

    def __call__(self, event):
        if isinstance(event, events.RunInfo):
            self.infos.append(event)
        elif isinstance(event, events.PeerStatus):
            self.peers.append(event)
        else:
            self.snapshots.append(event.take())


def watched(**settings):
    film, case = Film(), network(**settings)
    overview = SimulationOverview(case, events.RunInfo(), lambda models: np.abs(models).max(axis=1), film)
    return film, case, case.run(lambda point: overview.send(), n_points=9)


def test_watching_changes_nothing():
    _, _, seen = watched(seed=5)
    np.testing.assert_array_equal(seen.together, network(seed=5).run().together)


def test_the_last_snapshot_agrees_with_the_result():
    film, case, outcome = watched(K=20, seed=2, faults="churn")
    last, peers = film.snapshots[-1], film.peers[-1]
    # Also edges to those who are down, and edges that one end does not know of yet.
    assert last.w.size >= outcome.edges > 0
    assert (last.k < last.l).all()
    assert last.messages.sum() == outcome.counts["sent"]
    assert peers.restarts.sum() == outcome.counts["restarts"] > 0
    assert 0 < peers.up.sum() < 20
    joined = np.isfinite(last.accuracy)
    np.testing.assert_array_equal(last.accuracy[joined], np.abs(outcome.together).max(axis=1)[joined])
    np.testing.assert_array_equal(last.confidence, case.problem.confidence)


def test_no_accuracy_or_loss_of_liars_is_known():
    film, _, outcome = watched(K=20, seed=1, faults="byzantine")
    last, liars = film.snapshots[-1], ~outcome.honest
    assert liars.sum() == 2
    assert np.isnan(last.loss[liars]).all()
    assert np.isnan(last.accuracy[liars]).all()
    assert film.peers[-1].refused[outcome.honest].sum() > 0
    assert film.peers[-1].up.all()


def test_the_accuracy_alone_is_known_once_a_user_has_joined():
    film, _, _ = watched(K=20, seed=2, faults="churn")
    known = [np.isfinite(info.alone).sum() for info in film.infos]
    assert known == sorted(set(known))
    assert known[-1] > known[0]
