"""The benchmark of growing populations reports cost and memory for each size, with the setting."""

import pytest

from benchmarks.scale import measure, refuse_too_many
from dada.core.problem import TooLittleMemoryError


@pytest.mark.parametrize("threads", [1, 2])
def test_cost_and_memory_are_reported_for_each_size(threads):
    report = measure([50, 100], threads, timed=300, repetitions=1)
    small, large = report["scale"]
    assert (small["users"], large["users"]) == (50, 100)
    assert small["cost_ratio"] == 1.0
    assert 0 < large["update_us"] == pytest.approx(1e6 / large["updates_per_s"])
    assert large["near_update_us"] > 0
    # alpha, neighbour sum and support: 200 predictors at 10 bytes; margins, lists of 20 and candidates come on top.
    assert 2000 < large["state_bytes"] < 3000
    assert report["setting"]["neighbours"] == 20
    assert ("thread_speedup" in large) == (threads > 1)


def test_a_population_that_does_not_fit_is_refused():
    with pytest.raises(TooLittleMemoryError, match="a benchmark of 1,000,000,000 users needs about 6"):
        refuse_too_many(1_000_000_000)
