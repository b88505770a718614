"""The gossip search needs far fewer wake-ups than uniform batches, as the documentation says."""

import numpy as np

from benchmarks.gossip import measure, reached


def test_gossip_comes_near_the_optimum_of_all_pairs_sooner_than_uniform_batches():
    entry = measure(500, with_uniform=True, long=120, most_uniform=120)
    near = entry["gossip"]["of_initial"]
    assert near is not None
    assert near["wakeups"] <= 50
    uniform = entry["uniform"]["of_initial"]
    assert uniform is None or uniform["wakeups"] > 2 * near["wakeups"]
    # Nothing that a search finds lies below the optimum.
    assert entry["long_run_above"] >= 0


def test_the_first_point_within_each_tolerance_is_reported():
    curve = [{"wakeups": n, "h": h} for n, h in ((1, 5.0), (2, 1.08), (3, 1.005))]
    result = reached(curve, at_zero=11.0, optimum=1.0)
    assert (result["of_initial"]["wakeups"], result["of_optimum"]["wakeups"]) == (2, 3)
    np.testing.assert_allclose(result["curve"], [[1, 0.4], [2, 0.008], [3, 0.0005]])
