"""A peer's own counters decide what each of its wake-ups is, across restarts too."""

import numpy as np
import pytest
from scipy import stats

from dada.peer.inputs import GraphStep, ModelStep, ResetModel
from dada.peer.member import Planner, Rhythm
from dada.peer.messages import Descriptor
from dada.peer.sampling import PeerSampling

LETTERS = {ModelStep: "m", GraphStep: "g", ResetModel: "r"}


def view_of(n_peers, rng):
    sampling = PeerSampling(b"me", rng)
    sampling.introduce(Descriptor(bytes([k]), 0) for k in range(n_peers))
    return sampling


def actions(planner, n, rng):
    sampling = view_of(3, rng)
    return "".join(LETTERS[type(planner.next_action(sampling, now=0.0))] for _ in range(n))


def test_local_steps_first_then_first_graph_steps_then_both_in_turn():
    rng = np.random.default_rng(0)
    rhythm = Rhythm(local_steps=3, first_graph_steps=2, graph_every=4)
    assert actions(Planner(rhythm, rng), 16, rng) == "mmm" + "gg" + "mmmmg" + "mmmmg" + "m"


def test_the_model_restarts_once_after_the_first_graph_steps_where_asked():
    rng = np.random.default_rng(0)
    rhythm = Rhythm(local_steps=1, first_graph_steps=1, graph_every=1, restart=True)
    assert actions(Planner(rhythm, rng), 7, rng) == "mgrmgmg"


def test_a_restarted_planner_goes_on_where_it_was():
    rhythm = Rhythm(local_steps=3, first_graph_steps=2, graph_every=2, restart=True)
    whole = actions(Planner(rhythm, np.random.default_rng(0)), 20, np.random.default_rng(1))
    for cut in range(20):
        rng = np.random.default_rng(2)
        first, second = Planner(rhythm, rng), Planner(rhythm, rng)
        before = actions(first, cut, rng)
        record = first.record()
        second.restore({record.key: record.value} if cut else {})
        assert before + actions(second, 20 - cut, rng) == whole
        assert second.wakeups == 20


def test_batches_are_distinct_peers_of_the_view():
    rng = np.random.default_rng(0)
    planner, sampling = Planner(Rhythm(local_steps=0, first_graph_steps=50, kappa=4), rng), view_of(9, rng)
    for _ in range(50):
        batch = planner.next_action(sampling, now=0.0).batch
        assert len(set(batch)) == 4
        assert set(batch) <= set(sampling.view)


def test_waits_are_exponential():
    planner = Planner(Rhythm(wakeups_per_s=4.0), np.random.default_rng(0))
    waits = [planner.wait_s() for _ in range(2000)]
    assert stats.kstest(waits, stats.expon(scale=0.25).cdf).pvalue > 0.01


@pytest.mark.parametrize(("name", "value"), [("kappa", 0), ("graph_every", 0), ("local_steps", -1)])
def test_counts_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least .*, got {value}"):
        Rhythm(**{name: value})


def test_a_clock_must_tick():
    with pytest.raises(ValueError, match="wakeups_per_s must be > 0 and finite, got 0"):
        Rhythm(wakeups_per_s=0)
