import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

from dada.data import Stumps

RULES = ("quantile", "feature-range", "global-range")


def varying_rows(values):
    shapes = hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=12)
    return hnp.arrays(np.float64, shapes, elements=values).filter(lambda X: np.ptp(X, axis=0).max() > 0)


ROWS = st.one_of(varying_rows(st.floats(-1e6, 1e6)), varying_rows(st.integers(0, 2).map(float)))


def fit_separating(recipe, X):
    """Stumps on these rows; another test covers rows that no stump of the rule separates."""
    try:
        return recipe.fit(X)
    except ValueError:
        reject()


@given(ROWS, st.sampled_from(RULES), st.integers(2, 7))
def test_a_stump_is_plus_one_up_to_its_threshold_and_minus_one_above(X, rule, per_feature):
    stumps = fit_separating(Stumps(per_feature=per_feature, rule=rule), X)
    predictions = stumps.predict(X)
    assert predictions.dtype == np.int8
    assert predictions.flags.c_contiguous
    assert_array_equal(predictions, np.where(X[:, stumps.feature] <= stumps.threshold, 1, -1))


@given(ROWS, st.sampled_from(RULES), st.integers(2, 7))
def test_dropping_duplicates_keeps_one_of_each_pattern_up_to_sign_in_order(X, rule, per_feature):
    every = fit_separating(Stumps(per_feature=per_feature, rule=rule), X).predict(X).T
    kept = Stumps(per_feature=per_feature, rule=rule, drop_duplicates=True).fit(X).predict(X).T
    first_of_each = []
    for pattern in every.tolist():
        opposite = [-v for v in pattern]
        if pattern not in first_of_each and opposite not in first_of_each:
            first_of_each.append(pattern)
    assert kept.tolist() == first_of_each


@given(ROWS, st.integers(1, 9))
def test_quantile_thresholds_separate_two_values_of_every_varying_feature(X, per_feature):
    stumps = Stumps(per_feature=per_feature, rule="quantile").fit(X)
    low, high = X.min(axis=0)[stumps.feature], X.max(axis=0)[stumps.feature]
    varies = high > low
    assert np.all(low[varies] <= stumps.threshold[varies])
    assert np.all(stumps.threshold[varies] < high[varies])


def test_quantile_thresholds_lie_between_data_values():
    thresholds = Stumps(per_feature=4, rule="quantile").fit(np.arange(10.0)[:, None]).threshold
    assert_array_equal(thresholds, [1.5, 3.5, 5.5, 7.5])


def test_quantile_thresholds_split_a_binary_feature_in_the_middle():
    assert_array_equal(Stumps(per_feature=3).fit([[0.0], [0.0], [0.0], [1.0]]).threshold, [0.5] * 3)


def test_quantile_thresholds_separate_neighbouring_floats():
    X = np.array([[1.0], [np.nextafter(1.0, 2.0)]])
    assert_array_equal(Stumps(n=1).fit(X).predict(X), [[1], [-1]])


def test_range_thresholds_end_at_the_top_of_the_range():
    X = np.array([[0.0, -1.0], [1.0, 3.0]])
    assert_allclose(Stumps(n=4, rule="feature-range").fit(X).threshold, [0.5, 1.0, 1.0, 3.0])
    assert_allclose(Stumps(n=4, rule="global-range").fit(X).threshold, [1.0, 3.0, 1.0, 3.0])


@given(varying_rows(st.floats(-1e6, 1e6)), st.integers(2, 40))
def test_the_last_range_stump_is_constant_whatever_the_rounding(X, per_feature):
    stumps = Stumps(per_feature=per_feature, rule="feature-range").fit(X)
    last = np.arange(per_feature - 1, stumps.n, per_feature)
    assert np.all(stumps.predict(X)[:, last] == 1)


@pytest.mark.parametrize(("n", "counts"), [(7, [3, 2, 2]), (6, [2, 2, 2]), (2, [1, 1, 0]), (None, [10, 10, 10])])
def test_stumps_are_spread_evenly_and_the_first_features_get_one_more(n, counts):
    X = np.random.default_rng(0).normal(size=(20, 3))
    assert np.bincount(Stumps(n=n).fit(X).feature, minlength=3).tolist() == counts


def test_predictions_do_not_depend_on_the_block_size():
    X = np.random.default_rng(0).normal(size=(101, 3))
    stumps = Stumps(n=13).fit(X)
    assert_array_equal(stumps.predict(X, block_cells=40), stumps.predict(X))


def test_describe_uses_feature_names():
    stumps = Stumps(n=2).fit([[1.0, 10.0], [2.0, 30.0]])
    assert [stumps.describe(j, ("age", "size")) for j in range(2)] == ["age <= 1.5", "size <= 20"]
    assert stumps.describe(1) == "x1 <= 20"


def test_coupling_is_one_unless_given():
    X = np.arange(6.0).reshape(3, 2)
    assert_array_equal(Stumps(n=3).fit(X).coupling, [1.0, 1.0, 1.0])
    assert_array_equal(Stumps(n=2, coupling=0.5).fit(X).coupling, [0.5, 0.5])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n": 0}, r"n must be at least 1 \(stumps in all\), got 0"),
        ({"per_feature": 0}, "per_feature must be at least 1, got 0"),
        ({"rule": "median"}, "rule must be one of quantile, feature-range, global-range, got 'median'"),
        ({"coupling": -1.0}, r"coupling must be a finite number >= 0 .*, got -1\.0"),
        ({"coupling": np.nan}, "coupling must be a finite number"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        Stumps(**parameters)


def test_constant_features_alone_are_refused():
    with pytest.raises(ValueError, match=r"none of the 20 stumps separates two of the 3 rows"):
        Stumps().fit(np.ones((3, 2)))


def test_one_range_threshold_per_feature_is_refused_because_it_never_separates():
    with pytest.raises(ValueError, match=r"too few thresholds each for rule 'feature-range'"):
        Stumps(n=2, rule="feature-range").fit([[0.0, 1.0], [2.0, 3.0]])


def test_nan_is_refused_when_fitting_and_another_width_when_predicting():
    with pytest.raises(ValueError, match="NaN at row 0, column 1"):
        Stumps().fit([[0.0, np.nan], [1.0, 1.0]])
    with pytest.raises(ValueError, match=r"the 2 features the base predictors were fitted on, got \(1, 3\)"):
        Stumps(n=2).fit([[0.0, 1.0], [2.0, 3.0]]).predict(np.zeros((1, 3)))
