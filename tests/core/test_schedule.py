import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.stats import chisquare

from dada.core.plan import BLOCK, GRAPH_STREAM, LOCAL_STREAM, MODEL_STREAM, Schedule

SCHEDULE = Schedule.draw(np.random.default_rng(5), n_users=7, kappa=3)


@given(first=st.integers(0, 3 * BLOCK), length=st.integers(0, BLOCK + 5))
def test_any_place_can_be_read_without_what_came_before(first, length):
    last = 4 * BLOCK + 5
    stop = first + length
    whole = {stream: SCHEDULE.users(stream, 0, last) for stream in (MODEL_STREAM, LOCAL_STREAM, GRAPH_STREAM)}
    for stream, users in whole.items():
        assert_array_equal(SCHEDULE.users(stream, first, stop), users[first:stop])
    assert_array_equal(SCHEDULE.batches(first, stop), SCHEDULE.batches(0, last)[first:stop])
    assert_array_equal(SCHEDULE.random_bits(first, stop, 3), SCHEDULE.random_bits(0, last, 3)[first:stop])


@pytest.mark.parametrize("stream", [MODEL_STREAM, LOCAL_STREAM, GRAPH_STREAM])
def test_all_users_wake_alike(stream):
    users = SCHEDULE.users(stream, 0, 70_000)
    assert chisquare(np.bincount(users, minlength=7)).pvalue > 1e-3
    # And independently of who woke before.
    pairs = np.bincount(users[:-1] * 7 + users[1:], minlength=49)
    assert chisquare(pairs).pvalue > 1e-3


def test_streams_are_different():
    streams = [SCHEDULE.users(stream, 0, 200) for stream in (MODEL_STREAM, LOCAL_STREAM, GRAPH_STREAM)]
    for a in range(3):
        for b in range(a):
            assert (streams[a] != streams[b]).mean() > 0.5
    other = Schedule.draw(np.random.default_rng(6), n_users=7, kappa=3)
    assert (other.users(MODEL_STREAM, 0, 200) != streams[0]).mean() > 0.5


@pytest.mark.parametrize(("n_users", "kappa"), [(2, 1), (6, 1), (6, 3), (6, 5), (40, 39)])
def test_batches_hold_different_others(n_users, kappa):
    schedule = Schedule(3, n_users, kappa)
    users, batches = schedule.users(GRAPH_STREAM, 0, 500), schedule.batches(0, 500)
    assert batches.shape == (500, kappa)
    assert (batches >= 0).all()
    assert (batches < n_users).all()
    assert (batches != users[:, None]).all()
    assert (np.diff(np.sort(batches, axis=1), axis=1) > 0).all()


@pytest.mark.parametrize("kappa", [1, 2, 4])
def test_all_sets_of_peers_are_asked_alike(kappa):
    schedule = Schedule(11, 6, kappa)
    users, batches = schedule.users(GRAPH_STREAM, 0, 60_000), schedule.batches(0, 60_000)
    members = np.zeros((60_000, 6), np.int64)
    np.put_along_axis(members, batches.astype(np.int64), 1, axis=1)
    _, counts = np.unique(members @ 2 ** np.arange(6) * 6 + users, return_counts=True)
    n_sets = {1: 5, 2: 10, 4: 5}[kappa]
    assert counts.size == 6 * n_sets
    assert chisquare(counts).pvalue > 1e-3


def test_a_schedule_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="n_users must be at least 1, got 0"):
        Schedule(1, 0, 1)
    for kappa in (0, 3):
        with pytest.raises(ValueError, match=rf"kappa must be in 1\.\.2 \(n_users - 1\), got {kappa}"):
            Schedule(1, 3, kappa)
    assert Schedule(1, 1, 5).users(MODEL_STREAM, 0, 3).tolist() == [0, 0, 0]


def test_in_a_span_wakeups_in_a_row_are_of_users_next_to_each_other_and_all_wake_equally_often():
    schedule = Schedule.draw(np.random.default_rng(0), n_users=100, kappa=1, span=10)
    events = 500 * BLOCK
    users = schedule.users(MODEL_STREAM, 0, events)
    for row in users.reshape(-1, BLOCK)[:50]:
        assert ((row - row[0] + 9) % 100 < 19).all()
        assert len(np.unique(row)) == 10
    share = np.bincount(users, minlength=100) / events
    # Blocks are independent: the share of a user is a mean of 500 draws that are 0.1 with chance 0.1.
    assert abs(share - 0.01).max() < 5 * 0.03 / np.sqrt(500)


def test_graph_wakeups_know_no_span():
    with_span, without = (Schedule(7, n_users=100, kappa=3, span=span) for span in (10, None))
    assert_array_equal(with_span.users(GRAPH_STREAM, 0, 50), without.users(GRAPH_STREAM, 0, 50))
