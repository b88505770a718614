"""A sender's messages are admitted at a bounded rate, whoever it is and whatever others do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dada.peer.member import BYTES_PER_MESSAGE, RateLimit
from dada.peer.messages import LARGEST_MESSAGE


@given(st.lists(st.tuples(st.floats(0, 0.5), st.integers(0, 5000)), max_size=200))
def test_no_sender_takes_more_than_its_burst_and_rate(arrivals):
    limit = RateLimit(messages_per_s=3.0, burst=10.0)
    now, taken = 0.0, 0.0
    for wait, n_bytes in arrivals:
        now += wait
        assert taken <= 10.0 + 3.0 * now + 1 + 5000 / BYTES_PER_MESSAGE
        if limit.admits(b"ann", n_bytes, now):
            taken += 1 + n_bytes / BYTES_PER_MESSAGE


def test_the_largest_message_passes_and_is_paid_for_later():
    limit = RateLimit(messages_per_s=10.0, burst=10.0)
    assert limit.admits(b"ann", LARGEST_MESSAGE, 0.0)
    assert not limit.admits(b"ann", 0, 60.0)
    assert limit.admits(b"ann", 0, 120.0)


def test_a_flood_of_one_does_not_silence_another():
    limit = RateLimit(messages_per_s=1.0, burst=5.0)
    admitted = sum(limit.admits(b"flood", 0, 0.001 * t) for t in range(1000))
    assert admitted <= 6
    assert limit.admits(b"ann", 0, 1.0)


def test_buckets_are_bounded_in_number():
    limit = RateLimit(most_senders=8)
    for k in range(1000):
        limit.admits(k.to_bytes(2, "big"), 0, 0.0)
    assert len(limit) == 8


def test_a_clock_that_steps_back_admits_nothing_more():
    limit = RateLimit(messages_per_s=1.0, burst=1.0)
    assert limit.admits(b"ann", 0, 10.0)
    assert not limit.admits(b"ann", 0, 0.0)


def test_limits_that_let_nothing_through_are_refused():
    with pytest.raises(ValueError, match="a rate must be > 0"):
        RateLimit(messages_per_s=0.0)
