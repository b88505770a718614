import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dada import events
from dada.dashboard import records
from dada.dashboard.records import ALLOWANCE_S, MOST_EDGES, SHARE, EdgeChanges, LogReader, Recorder
from tests.helpers.snapshots import snapshot


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def read(path):
    return [records.decode(content) for content in LogReader(path)]


def offer(taken, clock=None, cost_s=0.0, milestone=False, **given):
    def take():
        taken.append(clock and clock.now_s)
        if clock:
            clock.now_s += cost_s
        return snapshot(**given)

    return events.SnapshotOffer(take, milestone)


def test_every_kind_of_event_is_kept(tmp_path):
    path = tmp_path / "run.dadalog"
    accuracy = np.array([0.5, np.nan, 1.0], np.float32)
    nothing = np.zeros(0, np.float32)
    with Recorder(path, now=Clock()) as recorder:
        recorder(
            events.RunInfo("Title", ("a", "b"), np.array([0, 1]), ("x", "y"), accuracy[:1], {"alone": 0.5}, ("h",))
        )
        recorder(events.PhaseStarted("local", 10))
        recorder(events.Progress(10, 10))
        recorder(events.TracePoint(1, 2, 3.0, 4.0, accuracy, nothing, edges=5, bits=6.0, graph_bits=1.0))
        recorder(events.PeerStatus(np.array([True]), np.array([2]), np.array([1.5]), np.array([3])))
        recorder(events.CheckpointSaved("folder/run.ckpt", 1))
        recorder(events.CheckpointFailed("folder/run.ckpt", "disk full"))
        recorder(events.Stopped("Over."))
    info, phase, done, point, peers, saved, failed, stop = read(path)
    assert (info.title, info.users, info.baselines) == ("Title", ["a", "b"], {"alone": 0.5})
    assert (phase.kind, done.done) == ("local", 10)
    assert (point.train.mean, point.train.worst, point.test) == (0.75, 0.5, None)
    assert (peers.up, np.frombuffer(peers.rtt_ms, "<f4").tolist()) == (b"\1", [1.5])
    assert saved.text == "Checkpoint saved: run.ckpt"
    assert "disk full" in failed.text
    assert stop.status == "Over."


def test_events_of_a_kind_that_recordings_do_not_hold_are_left_out(tmp_path):
    with Recorder(tmp_path / "run.dadalog") as recorder:
        recorder(object())
    assert read(tmp_path / "run.dadalog") == []


def test_time_begins_with_the_run_and_not_with_trials_before_it(tmp_path):
    clock = Clock()
    with Recorder(tmp_path / "run.dadalog", now=clock) as recorder:
        recorder(events.TrialStarted("linear, everyone"))
        clock.now_s += 60.0
        recorder(events.PhaseStarted("models", 10))
    (phase,) = read(tmp_path / "run.dadalog")
    assert phase.at_s == 0.0


def test_a_snapshot_is_kept_whole(tmp_path):
    path = tmp_path / "run.dadalog"
    with Recorder(path) as recorder:
        recorder(offer([], edges=[(1, 2, 0.75), (0, 1, 0.5)], updates=12, phase="graph"))
    edges, users = read(path)
    assert (edges.whole, edges.updates, edges.phase, edges.total) == (True, 12, "graph", 2)
    assert_array_equal(np.frombuffer(edges.k, "<u2"), [0, 1])
    assert_array_equal(np.frombuffer(edges.l, "<u2"), [1, 2])
    assert_array_equal(np.frombuffer(edges.w, "<f4"), [0.5, 0.75])
    assert_allclose(np.frombuffer(users.loss, "<f4"), [0, 0.5, 1])
    assert_array_equal(np.frombuffer(users.predictors, "<i4").reshape(3, users.tops), [[0, 1, -1]] * 3)
    assert_array_equal(np.frombuffer(users.messages, "<f8"), [0, 1, 2])


GRAPHS = st.lists(
    st.dictionaries(
        st.tuples(st.integers(0, 5), st.integers(0, 5)), st.sampled_from([0.5, 1.0, 2.0, 1e-3, 7.25]), max_size=20
    ),
    min_size=1,
    max_size=8,
)


@given(GRAPHS)
def test_changes_applied_one_after_the_other_give_every_graph(graphs):
    changes, current = EdgeChanges(), {}
    for graph in graphs:
        k, l = np.array(list(graph), int).reshape(-1, 2).T
        whole, *edges = changes.next(6, k, l, list(graph.values()))
        if whole:
            current = {}
        for k, l, w in zip(*(column.tolist() for column in edges), strict=True):
            if w > 0:
                current[k, l] = w
            else:
                del current[k, l]
        assert current.keys() == graph.keys()
        assert_allclose([current[edge] for edge in graph], list(graph.values()), rtol=1e-4)


def test_where_users_join_the_graph_is_given_whole():
    changes = EdgeChanges()
    edges = [0, 0, 1], [1, 2, 2], [1.0, 1.0, 1.0]
    changes.next(3, *edges)
    assert changes.next(3, *edges)[0] is False
    whole, k, l, _ = changes.next(4, [0, 0, 1, 2], [1, 2, 2, 3], np.ones(4))
    assert whole
    assert list(zip(k.tolist(), l.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 2), (2, 3)]


def test_of_a_huge_graph_the_heaviest_edges_are_kept():
    rng = np.random.default_rng(0)
    n_users = 1000
    k, l = np.divmod(rng.choice(n_users * n_users, MOST_EDGES + 500, replace=False), n_users)
    w = np.arange(k.size) + 1.0
    *_, kept = EdgeChanges().next(n_users, k, l, w)
    assert kept.size == MOST_EDGES
    assert kept.min() >= 500


def test_recording_takes_its_share_of_a_long_run_and_no_more(tmp_path):
    clock, taken = Clock(), []
    with Recorder(tmp_path / "run.dadalog", now=clock) as recorder:
        for _ in range(10_000):
            clock.now_s += 0.01
            recorder(offer(taken, clock, cost_s=0.05))
    cost = 0.05 * len(taken)
    assert 0.5 * SHARE * clock.now_s < cost <= ALLOWANCE_S + SHARE * clock.now_s


def test_the_beginning_is_dense_and_a_long_run_stays_small(tmp_path):
    clock, taken = Clock(), []
    with Recorder(tmp_path / "run.dadalog", now=clock) as recorder:
        for _ in range(36_000):
            clock.now_s += 0.1
            recorder(offer(taken, clock))
    gaps = np.diff(taken)
    assert gaps[0] == pytest.approx(0.1)
    assert gaps[-1] == pytest.approx(1.0, abs=0.11)
    assert (np.diff(gaps) > -0.11).all()


def test_a_milestone_is_kept_whatever_it_costs(tmp_path):
    clock, taken = Clock(), []
    with Recorder(tmp_path / "run.dadalog", now=clock) as recorder:
        recorder(offer(taken, clock, cost_s=100.0))
        recorder(offer(taken, clock, cost_s=100.0))
        assert len(taken) == 1
        recorder(offer(taken, clock, milestone=True))
    assert len(taken) == 2


def test_peers_are_kept_when_something_happens_to_them_and_now_and_then(tmp_path):
    clock = Clock()

    def peers(up, took_ms):
        return events.PeerStatus(np.array([up]), np.array([0]), np.array([took_ms]), np.array([0]))

    with Recorder(tmp_path / "run.dadalog", now=clock) as recorder:
        for at_s, up in ((0, True), (1, True), (2, False), (3, False), (9, False), (12, False), (13, False)):
            clock.now_s = float(at_s)
            recorder(peers(up, 10.0 * at_s))
    assert [record.at_s for record in read(tmp_path / "run.dadalog")] == [0.0, 2.0, 12.0]


def test_a_full_disk_ends_the_recording_and_not_the_run(tmp_path):
    path = tmp_path / "run.dadalog"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Recorder(path) as recorder:
        recorder(events.Stopped("kept"))
        try:
            # Room for a part of the next record.
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
            for _ in range(3):
                recorder(events.Stopped("lost"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "a part of a record" in str(recorder.failure)
    assert [record.status for record in read(path)] == ["kept"]


def test_an_unwritable_place_is_refused_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        Recorder(tmp_path / "no folder" / "run.dadalog")


def test_newer_kinds_of_records_are_skipped_and_damaged_ones_are_not():
    assert records.decode(records.encode([9, 0.0, "newer"])) is None
    assert records.decode(records.encode([8, 0.0, "Over.", "a newer field"])) == records.Stop(0.0, "Over.")
    with pytest.raises(ValueError, match="Expected"):
        records.decode(records.encode([8, 0.0]))
