"""Noise has the distribution that the accountant assumes."""

import numpy as np
import pytest
from scipy.stats import chisquare

from dada.privacy.noise import (
    Bits,
    below,
    discrete_gaussian,
    exp_coin,
    flip_probability,
    gaussian_vector,
    randomised_response,
)

N = 4000


@pytest.fixture
def source():
    return Bits(np.random.default_rng(11).bytes)


@pytest.mark.parametrize("steps", [1, 3])
def test_small_gaussians_have_exact_probabilities(source, steps):
    drawn = gaussian_vector(source, steps, N)
    limit = 3 * steps
    x = np.arange(-limit, limit + 1)
    p = np.exp(-(np.arange(-60, 61) ** 2) / (2 * steps**2))
    p /= p.sum()
    inside = p[60 - limit : 60 + limit + 1]
    counts = np.array([(drawn == value).sum() for value in x])
    expected = N * np.append(inside, 1 - inside.sum())
    assert chisquare(np.append(counts, N - counts.sum()), expected).pvalue > 1e-3


def test_large_gaussians_have_the_standard_deviation_asked_for(source):
    drawn = gaussian_vector(source, 1 << 35, N) / (1 << 35)
    assert abs(drawn.mean()) < 4 / np.sqrt(N)
    assert abs(drawn.std() - 1) < 4 / np.sqrt(2 * N)
    assert abs((abs(drawn) > 1.96).mean() - 0.05) < 4 * np.sqrt(0.05 * 0.95 / N)


def test_low_bits_are_uniform(source):
    """Nothing about a value survives in the low bits of its release."""
    drawn = gaussian_vector(source, 1 << 35, N)
    assert chisquare(np.bincount(drawn & 15, minlength=16)).pvalue > 1e-3


@pytest.mark.parametrize(("numerator", "denominator"), [(1, 3), (1, 1), (5, 2)])
def test_coins_fall_with_the_probability_of_the_exponential(source, numerator, denominator):
    heads = np.mean([exp_coin(source, numerator, denominator) for _ in range(N)])
    p = np.exp(-numerator / denominator)
    assert abs(heads - p) < 4 * np.sqrt(p * (1 - p) / N)


def test_integers_below_a_limit_are_uniform(source):
    assert chisquare(np.bincount([below(source, 5) for _ in range(N)], minlength=5)).pvalue > 1e-3


@pytest.mark.parametrize("n_classes", [2, 4])
def test_labels_change_as_often_as_randomised_response_says(source, n_classes):
    labels = np.arange(N) % n_classes
    given = randomised_response(source, labels, n_classes, epsilon=1.0)
    p = flip_probability(1.0, n_classes)
    assert abs((given != labels).mean() - p) < 4 * np.sqrt(p * (1 - p) / N)
    wrong = (given - labels)[given != labels] % n_classes
    assert sorted(set(wrong.tolist())) == list(range(1, n_classes))


def test_the_secure_source_never_repeats():
    assert Bits().bits(256) != Bits().bits(256)


def test_seeded_noise_repeats():
    one, other = (discrete_gaussian(Bits(np.random.default_rng(3).bytes), 1000) for _ in range(2))
    assert one == other


def test_labels_outside_the_classes_are_refused(source):
    with pytest.raises(ValueError, match=r"labels must be class numbers in 0\.\.1"):
        randomised_response(source, np.array([-1, 1]), 2, epsilon=1.0)
