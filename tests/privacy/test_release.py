"""Releases: sensitivities hold, bytes decode, noise is as large as stated."""

import itertools

import numpy as np
import pytest

from dada.privacy.accounting import content_hash
from dada.privacy.noise import Bits
from dada.privacy.release import (
    UNIT,
    ReleaseError,
    StatisticsMechanism,
    read_labels,
    read_statistics,
    release_labels,
    sums,
    worth_sending,
)


def norms(h, y, norm):
    """Frobenius norm of G and norm of B of one row minus another."""
    (gram, moment), (other_gram, other_moment) = (sums(h[i : i + 1], y[i : i + 1], norm) for i in range(2))
    return (np.linalg.norm((a - b) / UNIT) for a, b in ((gram, other_gram), (moment, other_moment)))


@pytest.mark.parametrize("norm", [1.0, 1.7, 3.0])
def test_replacing_a_row_moves_the_statistics_by_no_more_than_the_sensitivity(norm):
    rng = np.random.default_rng(5)
    for _ in range(200):
        h, y = rng.uniform(-1.5, 1.5, (2, 9)), rng.uniform(-2, 2, (2, 1))
        gram, moment = norms(h, y, norm)
        assert gram <= np.sqrt(2) * norm**2
        assert moment <= 2 * norm


def test_the_sensitivities_are_reached():
    corners = [np.array(pair, float) for pair in itertools.product((-1, 0, 1), repeat=2)]
    found = np.array([[*norms(np.array([h, g]), np.array([[1.0], [1.0]]), np.sqrt(2))]
                      for h, g in itertools.product(corners, corners)])  # fmt: skip
    assert found.max(axis=0) == pytest.approx([np.sqrt(2) * 2, 2 * np.sqrt(2)], rel=1e-3)


def test_several_outputs_have_the_sensitivity_of_one():
    rng = np.random.default_rng(6)
    for _ in range(100):
        _, moment = norms(rng.uniform(-1, 1, (2, 5)), np.eye(3)[rng.integers(0, 3, 2)], 2.0)
        assert moment <= 4.0


def test_a_release_decodes_to_the_statistics_plus_noise_of_the_stated_size():
    rng, n = np.random.default_rng(7), 40
    h, y = rng.uniform(-1, 1, (30, n)), np.sign(rng.normal(size=(30, 2)))
    mechanism = StatisticsMechanism.calibrated(2.0, 1e-5, n_predictors=n, n_outputs=2)
    body = mechanism.release(h, y, Bits(rng.bytes), "spec")
    found, spec = read_statistics(body)
    assert (found.n_rows, spec) == (30, "spec")
    assert np.array_equal(found.gram, found.gram.T)
    noise, outputs = found.gram - h.T @ h, y / np.sqrt(2)
    # Of 780 and 80 and 40 numbers, to about four standard errors.
    assert noise[np.triu_indices(n, 1)].std() == pytest.approx(found.gram_sigma / np.sqrt(2), rel=0.1)
    assert (found.moment - h.T @ outputs).std() == pytest.approx(found.moment_sigma, rel=0.3)
    assert np.diagonal(noise).std() == pytest.approx(found.gram_sigma, rel=0.4)
    assert len(content_hash(body)) == 64


def test_noise_is_calibrated_to_both_statistics_together():
    mechanism = StatisticsMechanism.calibrated(3.0, 1e-6, n_predictors=4, n_outputs=2, norm=1.5)
    spent = mechanism.cost(3.0).delta_at(3.0)
    assert 0.99e-6 < spent <= 1e-6


def moved(mechanism, h, y):
    """How far replacing the first of two rows by the second moves the sums that are released, in units of the noise.

    Cells off the diagonal of G, which occur once in a release, have less noise by the square root of 2.
    """
    (gram, moment), (other_gram, other_moment) = (sums(h[i : i + 1], y[i : i + 1], mechanism.norm) for i in range(2))
    cells = (gram - other_gram) / UNIT / mechanism.gram_sigma
    diagonal, off = np.diagonal(cells), cells[np.triu_indices(len(cells), 1)]
    outputs = (moment - other_moment) / UNIT / mechanism.moment_sigma
    return np.sqrt((diagonal**2).sum() + 2 * (off**2).sum() + (outputs**2).sum())


def farthest(mechanism, h, y, rng):
    """The distance that a random search from a pair of rows reaches."""
    best, width = moved(mechanism, h, y), 0.5
    for _ in range(600):
        trial = h + width * rng.normal(size=h.shape), y + width * rng.normal(size=y.shape)
        if (found := moved(mechanism, *trial)) > best:
            best, (h, y) = found, trial
        else:
            width = max(0.98 * width, 1e-3)
    return best


@pytest.mark.parametrize("is_joint", [True, False])
@pytest.mark.parametrize(("n", "n_outputs", "norm"), [(2, 1, 1.0), (3, 1, 1.5), (5, 3, 2.0), (4, 4, None)])
def test_no_pair_of_rows_moves_both_statistics_beyond_the_joint_sensitivity(n, n_outputs, norm, is_joint):
    """Neither random rows nor a search for the worst pair go beyond mu of the accountant; the search comes close."""
    rng = np.random.default_rng(8)
    sizes = {"n_predictors": n, "n_outputs": n_outputs, "norm": norm}
    mechanism = StatisticsMechanism.calibrated(1.0, 1e-5, **sizes, is_joint=is_joint)
    pairs = [(rng.normal(size=(2, n)), rng.normal(size=(2, n_outputs))) for _ in range(1000)]
    found = [moved(mechanism, *pair) for pair in pairs]
    reached = max(farthest(mechanism, *pairs[i], rng) for i in np.argsort(found)[-3:])
    assert max(*found, reached) <= mechanism.mu
    # Rows of the largest norm are corners of a cube, not all of whose angles are possible.
    assert reached > 0.97 * mechanism.mu


def test_the_worst_pair_has_half_the_squared_norm_as_product_and_opposite_outputs():
    mechanism = StatisticsMechanism.calibrated(1.0, 1e-5, n_predictors=2, n_outputs=1, norm=1.0)
    h = np.array([[1.0, 0.0], [0.5, np.sqrt(0.75)]])
    assert moved(mechanism, h, np.array([[1.0], [-1.0]])) == pytest.approx(mechanism.mu, rel=1e-4)
    assert mechanism.mu == pytest.approx(3 / np.sqrt(2) / mechanism.moment_sigma, rel=1e-6)


def test_joint_calibration_needs_less_noise_on_the_moment_than_separate_ones():
    joint, separate = (
        StatisticsMechanism.calibrated(2.0, 1e-5, n_predictors=4, n_outputs=1, is_joint=is_joint)
        for is_joint in (True, False)
    )
    assert joint.moment_sigma == pytest.approx(0.75 * separate.moment_sigma, rel=1e-6)
    assert joint.gram_sigma == pytest.approx(1.06 * separate.gram_sigma, rel=1e-2)
    assert separate.cost(2.0).delta_at(2.0) < joint.cost(2.0).delta_at(2.0) <= 1e-5


def test_too_little_noise_for_the_grid_is_refused():
    with pytest.raises(ValueError, match="use a smaller epsilon"):
        StatisticsMechanism.calibrated(60.0, 1e-12, n_predictors=100, n_outputs=1, norm=1e-4)


def test_labels_decode():
    labels = np.array([0, 2, 1, 1])
    body = release_labels(labels, 3, epsilon=60.0, source=Bits())
    assert read_labels(body).tolist() == labels.tolist()


@pytest.mark.parametrize("damage", ["cut", "magic", "format", "header", "kind", "size"])
def test_damaged_bytes_are_refused(damage):
    mechanism = StatisticsMechanism.calibrated(2.0, 1e-5, n_predictors=2, n_outputs=1)
    body = mechanism.release(np.ones((3, 2)), np.ones((3, 1)), Bits())
    bad = {
        "cut": body[:-3],
        "magic": b"x" + body[1:],
        "format": body[:8] + b"\xff\xff" + body[10:],
        "header": body[:14] + b"]" + body[15:],
        "kind": release_labels(np.array([0]), 2, 1.0, Bits()),
        "size": body + bytes(8),
    }[damage]
    with pytest.raises(ReleaseError):
        read_statistics(bad)


def test_nothing_is_sent_where_noise_exceeds_the_signal():
    small = StatisticsMechanism.calibrated(4.0, 1e-5, n_predictors=21, n_outputs=1)
    estimate = worth_sending(small, n_users=100, n_rows=900)
    assert not estimate.send
    assert estimate.reason.startswith("Nothing is sent")
    assert worth_sending(small, n_users=100, n_rows=9000).send


def test_short_rows_are_a_smaller_signal():
    mechanism = StatisticsMechanism.calibrated(16.0, 1e-5, n_predictors=21, n_outputs=1)
    assert worth_sending(mechanism, n_users=100, n_rows=829).send
    assert not worth_sending(mechanism, n_users=100, n_rows=829, square=23 / 3).send
