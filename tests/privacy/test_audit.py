"""Audit of released bytes: a likelihood-ratio attacker stays below the claimed epsilon, and exceeds it with less noise.

Counting proves little with few releases, so the tests also use what is known of the noise: the attacker's scores are
Gaussian, and their distance bounds mu from below.
"""

import math

import numpy as np
import pytest

from dada.experiments.privacy_audit import bound, divided, epsilon_shown, label_scores, statistics_scores
from dada.privacy.accounting import gaussian_delta
from dada.privacy.noise import Bits
from dada.privacy.release import StatisticsMechanism

EPSILON, DELTA, TRIALS = 1.0, 1e-5, 1500


def scores(factor, seed):
    """Scores of the attacker if the noise is divided by a factor."""
    mechanism = StatisticsMechanism.calibrated(EPSILON, DELTA, n_predictors=2, n_outputs=1)
    return statistics_scores(divided(mechanism, factor), TRIALS, Bits(np.random.default_rng(seed).bytes))


def delta_shown(first, second):
    """The delta at EPSILON that the distance of Gaussian scores proves, at three standard errors."""
    apart = (first.mean() - second.mean()) / np.sqrt((first.var() + second.var()) / 2)
    return gaussian_delta(max(0.0, apart - 3 * math.sqrt(2 / len(first))), EPSILON)


def test_released_statistics_stay_below_the_claim():
    found = scores(1, seed=1)
    assert delta_shown(*found) <= DELTA
    assert epsilon_shown(*found, delta=DELTA) <= EPSILON


def test_the_distance_of_scores_finds_half_of_the_noise():
    assert delta_shown(*scores(2, seed=2)) > DELTA


def test_counting_finds_a_fifth_of_the_noise():
    """Clopper-Pearson bounds assume nothing about the noise, and need a larger fault to show it."""
    assert epsilon_shown(*scores(5, seed=3), delta=DELTA) > EPSILON


@pytest.mark.parametrize(("factor", "is_private"), [(1, True), (2, False)])
def test_released_labels_spend_what_is_claimed(factor, is_private):
    found = epsilon_shown(*label_scores(factor * EPSILON, 8000, Bits(np.random.default_rng(3).bytes)))
    assert (found <= EPSILON) is is_private
    assert found > 0.8 * factor * EPSILON


def test_a_bound_counts_delta_and_proves_nothing_without_hits():
    assert bound(0, 0, 100) == -math.inf
    assert bound(90, 1, 100, delta=0.1) < bound(90, 1, 100)
    assert epsilon_shown(np.zeros(100), np.zeros(100)) == 0.0
