"""Networks of fifty peers with every fault: a short form of `make soak`."""

from benchmarks.soak import soak


def test_no_invariant_is_violated_whatever_the_seed():
    events = 0
    for seed in range(1000, 1006):
        delivered, _, _, violation = soak(seed, steps=15)
        assert violation is None, violation
        events += delivered
    assert events > 20_000
