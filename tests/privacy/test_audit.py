"""Audit of released bytes: a likelihood-ratio attacker stays below the claimed epsilon, and exceeds it with less noise.

The attacker knows everything but one row, which is one of two extremes: paired worlds. Its best test projects a release
on the difference of the worlds' statistics. Its advantage bounds mu from below, and so epsilon.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta

from dada.privacy.accounting import gaussian_delta
from dada.privacy.noise import Bits, randomised_response
from dada.privacy.release import UNIT, StatisticsMechanism, read_statistics, sums

EPSILON, DELTA, TRIALS = 1.0, 1e-5, 1500


def worlds():
    """Two users that differ in one row, at the largest distance that the sensitivities allow."""
    others = np.array([[0.3, -0.2], [-0.5, 0.5]])
    rows = [np.vstack([others, last]) for last in ([1.0, 1.0], [1.0, -1.0])]
    outputs = [np.array([[1.0], [-1.0], [sign]]) for sign in (1.0, 1.0)]
    return list(zip(rows, outputs, strict=True))


def scores(mechanism, source):
    """Log likelihood ratio of each release of both worlds."""
    (gram, moment), (other_gram, other_moment) = (sums(h, y, mechanism.norm) for h, y in worlds())
    towards = [(a - b) / UNIT for a, b in ((gram, other_gram), (moment, other_moment))]
    middle = [(a + b) / UNIT / 2 for a, b in ((gram, other_gram), (moment, other_moment))]
    found = []
    for h, y in worlds():
        released = [read_statistics(mechanism.release(h, y, source))[0] for _ in range(TRIALS)]
        found.append(np.array([
            ((each.gram - middle[0]) * towards[0]).sum() / each.gram_sigma**2
            + ((each.moment - middle[1]) * towards[1]).sum() / each.moment_sigma**2
            for each in released
        ]))  # fmt: skip
    return found


def delta_shown(first, second):
    """The delta at EPSILON that the attacker's advantage proves, at three standard errors: its scores are Gaussian."""
    apart = (first.mean() - second.mean()) / np.sqrt((first.var() + second.var()) / 2)
    return gaussian_delta(max(0.0, apart - 3 * math.sqrt(2 / len(first))), EPSILON)


@pytest.fixture
def mechanism():
    return StatisticsMechanism.calibrated(EPSILON, DELTA, n_predictors=2, n_outputs=1)


def test_released_statistics_stay_below_the_claim(mechanism):
    assert delta_shown(*scores(mechanism, Bits(np.random.default_rng(1).bytes))) <= DELTA


def test_the_audit_finds_half_of_the_noise(mechanism):
    """With half of the noise the same attacker exceeds the claim: the audit can fail."""
    broken = replace(mechanism, gram_steps=mechanism.gram_steps // 2, moment_steps=mechanism.moment_steps // 2)
    assert delta_shown(*scores(broken, Bits(np.random.default_rng(2).bytes))) > DELTA


@pytest.mark.parametrize(("drawn_with", "is_private"), [(EPSILON, True), (2 * EPSILON, False)])
def test_released_labels_spend_what_is_claimed(drawn_with, is_private):
    source, n = Bits(np.random.default_rng(3).bytes), 4000
    given = [randomised_response(source, np.full(n, label), 2, drawn_with) for label in (1, 0)]
    hits, alarms = (int(each.sum()) for each in given)
    low, high = beta.ppf(0.001, hits, n - hits + 1), beta.ppf(0.999, alarms + 1, n - alarms)
    found = math.log(low / high)
    assert (found <= EPSILON) is is_private
    assert found > 0.8 * drawn_with
