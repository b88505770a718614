"""The benchmark of liars compares the same honest users with liars, without, and alone."""

import pytest

from benchmarks.liars import colluding, summary, table
from dada.sim.liars import Attractor, Mirror
from tests.sim.test_liars import liar


def part(kind, share, together):
    return {
        "liar": kind, "share": share, "seed": 1, "steps": 9, "together": together, "alone": [0.8, 0.7, 0.6, 0.5],
        "honest": [True, True, True, kind is None], "weight": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("share", "together", "difference", "holds"),
    [
        (0.1, [0.9, 0.8, 0.7, 0.0], 0.0, True),
        (0.1, [0.9, 0.8, 0.66, 0.0], -4 / 3, False),
        (0.2, [0.9, 0.8, 0.66, 0.0], -4 / 3, True),
        (0.3, [0.8, 0.69, 0.6, 0.0], -1 / 3, True),
        (None, [0.8, 0.69, 0.6, 0.0], -1 / 3, False),
    ],
)
def test_liars_count_in_no_mean_and_each_share_has_its_bound(share, together, difference, holds):
    parts = [part("Mirror", share, together), part(None, 0.0 if share else None, [0.9, 0.8, 0.7, 0.2])]
    row = summary({(one["liar"], one["share"], 1, 9): one for one in parts}, "Mirror", share, [1], 9)
    assert row["difference"] == pytest.approx(difference)
    assert (row["all_honest"], row["alone"], row["holds"]) == (pytest.approx(80), pytest.approx(70), holds)
    assert table([row]).endswith("| yes |" if holds else "| no |")


def test_the_identities_of_one_attacker_share_a_model_and_what_they_know():
    kind = colluding(Attractor)
    first, second = liar(kind), liar(kind)
    assert second.model is first.model
    assert second.source is first.member
    kind = colluding(Mirror)
    assert liar(kind).models is liar(kind).models
