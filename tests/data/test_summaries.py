"""Summaries that users merge give the base predictors that all rows in one place would give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dada.data import Constant, FeatureSummary, Linear, Stumps, Union


def users(rng, n_users=40, features=3):
    centres = rng.normal(size=(n_users, features))
    return [centre + rng.normal(size=(rng.integers(1, 30), features)) for centre in centres]


@given(st.integers(0, 2**32 - 1))
def test_merged_moments_are_those_of_all_rows(seed):
    parts = users(np.random.default_rng(seed), n_users=5)
    merged, rows = FeatureSummary.of_all(map(FeatureSummary.of, parts)), np.concatenate(parts)
    assert merged.count == len(rows)
    assert_allclose(merged.mean, rows.mean(axis=0), rtol=1e-9, atol=1e-12)
    assert_allclose(merged.std, rows.std(axis=0), rtol=1e-9, atol=1e-12)


def test_merged_summaries_give_nearly_the_predictors_of_all_rows():
    parts = users(np.random.default_rng(0), n_users=100)
    rows = np.concatenate(parts)
    agreed = FeatureSummary.of_all(map(FeatureSummary.of, parts)).rows()
    stumps, together = (Stumps(per_feature=4).fit(X) for X in (agreed, rows))
    assert_array_equal(stumps.feature, together.feature)
    below = (rows[:, stumps.feature] <= stumps.threshold).mean(axis=0)
    assert_allclose(below, np.tile([0.2, 0.4, 0.6, 0.8], 3), atol=0.02)
    linear, exact = (Linear().fit(X) for X in (agreed, rows))
    assert_allclose(linear.mean, exact.mean, atol=0.02)
    assert_allclose(linear.scale, exact.scale, rtol=0.03)


def test_few_different_values_lose_nothing():
    rng = np.random.default_rng(1)
    parts = [rng.integers(0, 3, (7, 2)).astype(float) for _ in range(30)]
    agreed = FeatureSummary.of_all(map(FeatureSummary.of, parts)).rows(210)
    for column, whole in zip(agreed.T, np.concatenate(parts).T, strict=True):
        assert_array_equal(np.sort(column), np.sort(whole))


def test_stumps_on_different_features_are_no_duplicates_of_each_other():
    rows = np.random.default_rng(2).normal(size=(500, 4))
    recipe = Union(Stumps(per_feature=3, drop_duplicates=True), Constant())
    assert recipe.fit(FeatureSummary.of(rows).rows()).n == 13


def test_the_order_of_merging_hardly_matters():
    parts = [FeatureSummary.of(X) for X in users(np.random.default_rng(3))]
    one, other = FeatureSummary.of_all(parts), FeatureSummary.of_all(parts[::-1])
    assert_allclose(one.std, other.std, rtol=1e-9)
    assert_allclose(np.sort(one.rows(), axis=0), np.sort(other.rows(), axis=0), atol=0.3)


def test_other_features_are_refused():
    with pytest.raises(ValueError, match="of the same features, got 1 and 2"):
        FeatureSummary.of([[1.0]]).merged(FeatureSummary.of([[1.0, 2.0]]))
