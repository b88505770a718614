"""Links lose, repeat, delay and cut off the specified share of messages, and no others."""

import numpy as np

from dada.sim.virtual import Cut, lossy_link, reordering_link, repeating_link, steady_link, varying_link

N = 4000


def sent(link, seed=0):
    rng = np.random.default_rng(seed)
    return [link(0, 1, float(t), rng) for t in range(N)]


def test_a_steady_link_keeps_order():
    assert sent(steady_link(0.1)) == [(0.1,)] * N


def test_latencies_vary_around_their_median():
    delays = [delay for (delay,) in sent(varying_link(0.1))]
    assert abs(np.median(delays) - 0.1) < 0.01
    assert min(delays) > 0


def test_a_share_is_lost():
    assert abs(sum(not copies for copies in sent(lossy_link(steady_link(0.1), 0.2))) / N - 0.2) < 0.02


def test_a_share_is_repeated():
    assert abs(sum(len(copies) == 2 for copies in sent(repeating_link(steady_link(0.1), 0.3))) / N - 0.3) < 0.03


def test_a_share_is_held_up_for_a_bounded_time():
    delays = [delay for (delay,) in sent(reordering_link(steady_link(0.1), 0.1, longest_s=5.0))]
    assert abs(np.mean([delay > 0.1 for delay in delays]) - 0.1) < 0.02
    assert max(delays) <= 5.1


def test_a_partition_cuts_between_its_sides_only_and_only_for_its_time():
    cut = Cut(frozenset({0, 1}), 10.0, 20.0)
    assert cut.stops(0, 2, 15.0)
    assert cut.stops(2, 0, 15.0)
    assert not any(cut.stops(*pair, 15.0) for pair in ((0, 1), (2, 3)))
    assert not any(cut.stops(0, 2, time) for time in (9.9, 20.0))


def test_a_one_way_cut_stops_one_direction():
    cut = Cut(frozenset({0, 1}), 10.0, 20.0, is_one_way=True)
    assert cut.stops(0, 2, 15.0)
    assert not cut.stops(2, 0, 15.0)


def test_wrappers_combine():
    link = lossy_link(repeating_link(steady_link(0.1), 1.0), 0.5)
    assert {len(copies) for copies in sent(link)} == {0, 2}
