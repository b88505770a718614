"""Random Fourier features: waves that a seed decides."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dada.data import RandomFourier, Union, predictors_from_arrays

ROWS = np.random.default_rng(0).normal(size=(60, 3)) * [1.0, 10.0, 0.0] + [0.0, 5.0, 2.0]


def test_the_seed_decides_and_nothing_else():
    first, second = (RandomFourier(n=20, seed=3).fit(ROWS).predict(ROWS) for _ in range(2))
    assert_array_equal(first, second)
    assert not np.array_equal(first, RandomFourier(n=20, seed=4).fit(ROWS).predict(ROWS))


def test_products_come_near_to_a_gaussian_kernel():
    waves = RandomFourier(n=20_000, width=1.0, seed=1).fit(ROWS).predict(ROWS).astype(float)
    scaled = (ROWS[:, :2] - ROWS[:, :2].mean(axis=0)) / ROWS[:, :2].std(axis=0)
    distance2 = ((scaled[:, None] - scaled[None]) ** 2).sum(axis=2)
    assert_allclose(2 * waves @ waves.T / 20_000, np.exp(-distance2 / 4), atol=0.05)


def test_stored_waves_come_back_bit_for_bit():
    waves = Union(RandomFourier(n=5, coupling=0.5)).fit(ROWS)
    again = predictors_from_arrays(*waves.to_arrays())
    assert_array_equal(again.predict(ROWS), waves.predict(ROWS))
    assert again.coupling.tolist() == [0.5] * 5
    assert waves.describe(0).startswith("wave 0 of length")


@pytest.mark.parametrize(("wrong", "message"), [({"n": 0}, "n must be at least 1"), ({"width": 0.0}, "width must be"),
                                                ({"seed": -1}, "seed must be >= 0")])  # fmt: skip
def test_settings_are_checked(wrong, message):
    with pytest.raises(ValueError, match=message):
        RandomFourier(**wrong)


def test_features_that_do_not_vary_are_refused():
    with pytest.raises(ValueError, match="all 2 features are constant in the 3 rows"):
        RandomFourier().fit(np.ones((3, 2)))


def test_waves_of_two_features_ignore_the_others():
    rows = np.random.default_rng(1).normal(size=(30, 6))
    waves = RandomFourier(n=40, features=2, seed=2).fit(rows)
    used = np.count_nonzero(waves.directions, axis=0)
    assert used.tolist() == [2] * 40
    assert_allclose(waves.predict(rows), np.cos((rows - waves.mean) @ waves.directions + waves.phases), atol=1e-6)
    assert len(np.unique(np.argsort(waves.directions == 0, axis=0)[:2], axis=1).T) > 10


def test_waves_of_few_features_are_stored_by_feature():
    rows = np.random.default_rng(1).normal(size=(30, 6))
    waves = RandomFourier(n=40, features=2).fit(rows)
    spec, arrays = waves.to_arrays()
    assert len(arrays["directions"]) == len(arrays["feature"]) == 80
    assert_array_equal(predictors_from_arrays(spec, arrays).predict(rows), waves.predict(rows))
    with pytest.raises(ValueError, match="all below 6: the file is damaged"):
        predictors_from_arrays(spec, {**arrays, "feature": np.full(80, 6)})


def test_the_number_of_waves_follows_the_features_that_vary():
    assert RandomFourier(n=100, per_feature=10).fit(ROWS).n == 20
