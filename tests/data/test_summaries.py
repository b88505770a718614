"""Summaries that users merge give the base predictors that all rows in one place would give."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.tree import DecisionTreeClassifier

from dada.data import Constant, FeatureSummary, Linear, Pretrained, RandomFourier, Stumps, Union
from dada.data.predictors.families import takes_summary


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


def ask(parts):
    """Sums of all users' marks, each of which draws words of its own."""
    return lambda stumps: np.sum(
        [stumps.marks(X, np.random.default_rng(k)) for k, X in enumerate(parts)], axis=0, dtype=np.uint64
    )


RECIPES = [
    Stumps(per_feature=4),
    Stumps(n=7, rule="feature-range"),
    Stumps(per_feature=3, rule="global-range", drop_duplicates=True),
    Linear(),
    RandomFourier(n=5),
    Union(Stumps(per_feature=6, drop_duplicates=True), Linear(), Constant(coupling=0.1)),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@given(seed=st.integers(0, 2**32 - 1))
def test_agreed_predictors_are_those_of_all_rows(recipe, seed):
    # Columns that repeat or oppose each other, and one that never varies, make duplicates of every kind.
    rng = np.random.default_rng(seed)
    parts = [np.round(rng.normal(size=(rng.integers(1, 9), 2)), 1) for _ in range(6)]
    parts = [np.column_stack([X, X[:, 0], -X[:, 1], np.zeros(len(X))]) for X in parts]
    summary = FeatureSummary.of_all(map(FeatureSummary.of, parts))
    agreed, together = recipe.fit_summary(summary, ask(parts)), recipe.fit(np.concatenate(parts))
    assert summary.is_exact
    mine, theirs = agreed.to_arrays()[1], together.to_arrays()[1]
    for name, array in theirs.items():
        assert_allclose(mine[name], array, rtol=1e-9, atol=1e-12)


def test_ranges_stay_exact_where_values_are_cut():
    rows = np.random.default_rng(4).normal(size=(5000, 2))
    summary = FeatureSummary.of_users(rows, np.arange(0, 5001, 5))
    assert not summary.is_exact
    assert max(len(values) for values, _ in summary.points) <= 2048
    assert_array_equal([summary.low, summary.high], [rows.min(axis=0), rows.max(axis=0)])
    exact = Stumps(n=10, rule="feature-range").fit(rows).threshold
    agreed = Stumps(n=10, rule="feature-range").fit_summary(summary, ask([rows])).threshold
    assert_array_equal(agreed, exact)


@given(st.integers(0, 2**32 - 1))
def test_users_summarised_in_chunks_give_what_one_by_one_gives(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 20, 30)
    rows, row_start = np.round(rng.normal(size=(sizes.sum(), 2)), 1), np.append(0, np.cumsum(sizes))
    chunks = FeatureSummary.of_users(rows, row_start, chunk=50)
    one_by_one = FeatureSummary.of_all(FeatureSummary.of(rows[a:b]) for a, b in pairwise(row_start))
    for mine, theirs in zip(chunks.points, one_by_one.points, strict=True):
        assert_array_equal(mine, theirs)
    assert_allclose(chunks.std, one_by_one.std, rtol=1e-9)


def test_a_union_with_a_family_that_needs_rows_is_refused():
    recipe = Union(Stumps(), Pretrained([DecisionTreeClassifier().fit([[0.0], [1.0]], [0, 1])]))
    assert not takes_summary(recipe)
    with pytest.raises(TypeError, match="Pretrained needs rows"):
        recipe.fit_summary(FeatureSummary.of([[0.0], [1.0]]), ask([]))
