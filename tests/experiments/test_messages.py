"""What fits send: how fits are compared and reported."""

import numpy as np
import pytest

from dada.experiments.traffic import FITS, OURS, curve_of, fit_table, graph_sentence, one_fit, wakeups_to_gap


def fits(**tests):
    return {("moons", fit): [{"test": tests.get(fit, 80.0), "bits": 4e6, "neighbours": 9.0}] * 2 for fit in FITS}


def test_the_farthest_shortfall_is_named_with_its_graph():
    assert "0.50 points below evidence" in graph_sentence(fits(ours=89.5, evidence=90.0), ["moons"])
    assert "nowhere below" in graph_sentence(fits(ours=91.0, evidence=90.0), ["moons"])


def test_a_row_has_both_fits_their_difference_and_the_ratio_of_bits():
    row = fit_table(fits(ours=81.5), ["moons"]).rows[0]
    assert row == ["MOONS", "80.00", "4 Mbit", "9.0", "81.50", "4 Mbit", "9.0", "+1.50 ± 0.00", "1"]


def test_a_fit_reports_its_accuracy_and_a_growing_bill():
    found = one_fit("moons", OURS, seed=0, draw=1, run=0)
    assert found["test"] == found["trace"]["test"][-1] > 75
    curve = curve_of(found["trace"])
    assert np.all(np.diff(curve.bits) >= 0)
    assert curve.bits[-1] == pytest.approx(found["bits"])
    assert 0 < curve.model_bits[-1] <= curve.bits[-1]


def test_block_steps_need_the_fewest_wakeups():
    reached = wakeups_to_gap("moons", seed=0, most=600)
    assert reached["block"][0] < reached["pairwise"][0]
    assert reached["paper"][0] is None or reached["pairwise"][0] <= reached["paper"][0]
