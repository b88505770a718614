"""Audit of released bytes: a likelihood-ratio attacker stays below the claimed epsilon, and exceeds it with less noise.

Counting proves little with few releases, so the bound for rows also uses what is known of the noise: it is Gaussian.
"""

import math

import numpy as np
import pytest

from dada.experiments.privacy_audit import (
    RUN_DOUBT,
    audit,
    bound,
    epsilon_shown,
    gaussian_epsilon,
    label_scores,
    one_run,
    run_bound,
    run_chance,
    worlds,
)
from dada.privacy.accounting import gaussian_mu
from dada.privacy.noise import Bits
from dada.privacy.release import StatisticsMechanism

EPSILON, DELTA, TRIALS = 1.0, 1e-5, 4000


def test_the_two_worlds_are_as_far_apart_as_the_accountant_assumes():
    mechanism = StatisticsMechanism.calibrated(EPSILON, DELTA, n_predictors=2, n_outputs=1, norm=1.0)
    first, second = worlds()
    gram = np.linalg.norm(first.h.T @ first.h - second.h.T @ second.h)
    moment = np.linalg.norm(first.h.T @ first.y - second.h.T @ second.y)
    apart = math.hypot(gram / mechanism.gram_sigma, moment / mechanism.moment_sigma)
    assert apart == pytest.approx(mechanism.mu, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_released_statistics_stay_below_the_claim_and_half_of_the_noise_breaks_it(epsilon):
    claimed, halved = (audit("rows", epsilon, factor, TRIALS, seed=1)["shown"] for factor in (1, 2))
    assert 0 < claimed <= epsilon < halved


def test_counting_finds_a_quarter_of_the_noise():
    """It assumes nothing about the noise, and needs a larger fault to show it."""
    assert audit("rows", EPSILON, 4, TRIALS, seed=3)["counted"] > EPSILON


def test_the_epsilon_of_a_distance_is_that_of_the_accountant():
    for epsilon in (0.1, 1.0, 20.0):
        assert gaussian_epsilon(gaussian_mu(epsilon, DELTA), DELTA) == pytest.approx(epsilon, rel=1e-6)
    assert gaussian_epsilon(1e-6, DELTA) == 0.0


@pytest.mark.parametrize(("factor", "is_private"), [(1, True), (2, False)])
def test_released_labels_spend_what_is_claimed(factor, is_private):
    found = epsilon_shown(*label_scores(factor * EPSILON, 8000, Bits(np.random.default_rng(3).bytes)))
    assert (found <= EPSILON) is is_private
    assert found > 0.8 * factor * EPSILON


def test_a_bound_counts_delta_and_proves_nothing_without_hits():
    assert bound(0, 0, 100) == -math.inf
    assert bound(90, 1, 100, delta=0.1) < bound(90, 1, 100)
    assert epsilon_shown(np.zeros(100), np.zeros(100)) == 0.0
    assert epsilon_shown(np.zeros(100), np.zeros(100), DELTA, is_gaussian=True) == 0.0


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_one_run_stays_below_the_claim_and_a_third_of_the_noise_breaks_it(epsilon):
    claimed, reduced = (one_run("rows", epsilon, factor, 4000, seed=5)["shown"] for factor in (1, 3))
    assert 0 < claimed <= epsilon < reduced


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_one_run_shows_nearly_all_that_labels_spend(epsilon):
    claimed, doubled = (one_run("labels", epsilon, factor, 10000, seed=5)["shown"] for factor in (1, 2))
    assert 0.9 * epsilon < claimed <= epsilon < doubled


def test_the_bound_of_one_run_is_where_the_guesses_become_unlikely():
    for delta in (0.0, DELTA):
        shown = run_bound(1000, 400, 350, delta)
        assert run_chance(1000, 400, 350, shown, delta) == pytest.approx(RUN_DOUBT, rel=1e-6)
    assert run_bound(1000, 400, 350, DELTA) < run_bound(1000, 400, 350)
    assert run_bound(1000, 1000, 0) == 0.0


def test_the_chance_of_one_run_adds_delta_as_the_theorem_does():
    """Two slots, two right guesses, epsilon 0: 1/4, and 4 delta max(P(1 <= W < 2), P(0 <= W < 2) / 2)."""
    assert run_chance(2, 2, 2, 0.0, 0.01) == pytest.approx(0.25 + 0.04 * 0.5)
    assert run_chance(2, 2, 2, 0.0, 1.0) == 1.0


def test_a_correct_claim_is_rarely_exceeded():
    """Randomised response attains the bound: it is exceeded with the probability of the doubt at most."""
    n_runs = 400
    exceeded = sum(one_run("labels", EPSILON, 1, 200, seed)["shown"] > EPSILON for seed in range(n_runs))
    assert exceeded <= 3 * RUN_DOUBT * n_runs
