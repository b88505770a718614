"""The statuses of peers become the events that a page shows."""

import numpy as np
import pytest

from dada import events
from dada.net.forkserver import PeerOverview

ANN, BOB, ZOE = "aa" * 32, "bb" * 32, "99" * 32


def status(me, neighbours=(), **given):
    plain = {
        "running": True,
        "id": me,
        "epoch": 7,
        "samples": 4,
        "model_updates": 10,
        "loss": 0.5,
        "accuracy": 0.75,
        "heaviest": [(3, 1.5), (1, -0.5)],
        "neighbours": dict(neighbours),
        "round_trips_ms": {},
        "messages_sent": 5,
        "wire_bytes": 100,
        "messages_refused": 1,
        "links_refused": {},
    }
    return plain | given


class Page:
    """The last event of each kind; offers are taken."""

    def __init__(self):
        self.infos = 0

    def __call__(self, event):
        if isinstance(event, events.RunInfo):
            self.info, self.infos = event, self.infos + 1
        elif isinstance(event, events.PeerStatus):
            self.peers = event
        else:
            self.milestone, self.snapshot = event.milestone, event.take()


@pytest.fixture
def page():
    return Page()


@pytest.fixture
def overview(page):
    return PeerOverview(page, events.RunInfo(users=("ann", "bob")))


def test_two_neighbours_have_one_edge_with_the_mean_of_both_weights(overview, page):
    overview.update([status(ANN, {BOB: 1.0}, samples=8), status(BOB, {ANN: 2.0})])
    shown = page.snapshot
    assert (shown.k.tolist(), shown.l.tolist(), shown.w.tolist()) == ([0], [1], [1.5])
    assert shown.confidence.tolist() == [1.0, 0.5]
    assert shown.updates == 20
    assert shown.predictors[0].tolist() == [3, 1, -1, -1, -1]
    assert shown.bits.tolist() == [800.0, 800.0]
    assert shown.accuracy.tolist() == [0.75, 0.75]


def test_edges_have_a_direction_if_each_peer_decides_alone(page):
    overview = PeerOverview(page, events.RunInfo(users=("ann", "bob")), directed=True)
    overview.update([status(ANN, {BOB: 1.0}), status(BOB, {ANN: 2.0})])
    shown = page.snapshot
    assert shown.directed
    assert (shown.k.tolist(), shown.l.tolist(), shown.w.tolist()) == ([0, 1], [1, 0], [1.0, 2.0])


def test_an_accuracy_that_is_given_is_shown(overview, page):
    overview.update([status(ANN), status(BOB)], accuracy=lambda: np.array([0.9, 0.8]))
    assert page.snapshot.accuracy.tolist() == [0.9, 0.8]


def test_neighbours_elsewhere_are_shown_too(overview, page):
    overview.update([status(ANN), status(BOB)])
    assert page.info.users == ("ann", "bob")
    overview.update([status(ANN, {ZOE: 1.0}, round_trips_ms={ZOE: None}), status(BOB)])
    assert page.info.users == ("ann", "bob", ZOE[:8])
    assert (page.snapshot.k.tolist(), page.snapshot.l.tolist()) == ([0], [2])
    assert np.isnan(page.snapshot.loss[2])
    assert page.peers.up.tolist() == [True, True, True]
    overview.update([status(ANN, {ZOE: 1.0}), status(BOB)])
    assert page.peers.up.tolist() == [True, True, False]
    assert page.infos == 2


def test_a_peer_that_is_down_reports_no_edges_but_stays(overview, page):
    overview.update([status(ANN, {BOB: 1.0}), status(BOB, {ANN: 1.0})])
    overview.update([status(ANN), {"running": False}])
    assert page.peers.up.tolist() == [True, False]
    assert page.snapshot.w.size == 0
    assert page.snapshot.updates == 20


def test_counts_go_on_over_restarts(overview, page):
    overview.update([status(ANN), status(BOB)])
    overview.update([status(ANN), {"running": False}])
    overview.update(
        [status(ANN), status(BOB, epoch=8, messages_sent=2, messages_refused=0, links_refused={"frame": 4})]
    )
    assert page.peers.restarts.tolist() == [0, 1]
    assert page.snapshot.messages.tolist() == [5, 7]
    assert page.peers.refused.tolist() == [1, 5]


def test_the_round_trip_to_a_peer_is_the_median_of_what_others_measure():
    page = Page()
    others = ["cc" * 32, "dd" * 32]
    overview = PeerOverview(page, events.RunInfo(users=("ann", "bob", "cid", "dan")))
    measured = zip((BOB, *others), (4.0, 8.0, 100.0), strict=True)
    overview.update([status(ANN), *(status(peer, round_trips_ms={ANN: took, BOB: None}) for peer, took in measured)])
    np.testing.assert_array_equal(page.peers.rtt_ms, [8.0, np.nan, np.nan, np.nan])


def test_the_first_moment_is_not_missed(overview, page):
    overview.update([{"running": False}, {"running": False}])
    assert page.milestone
    overview.update([{"running": False}, {"running": False}])
    assert not page.milestone
