import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from dada.data import Constant, Linear, Pretrained, Stumps, Union, predictors_from_arrays

X = np.random.default_rng(3).normal(size=(40, 3)) * [1.0, 5.0, 0.2] + [0.0, 7.0, 1.0]
SIGNS = np.where(X[:, 0] > 0, "yes", "no")

STORABLE = {
    "stumps": Stumps(n=7, coupling=0.3),
    "linear": Linear(clip=2.0),
    "constant": Constant(coupling=0.1),
    "union": Union(Stumps(n=5), Union(Linear(coupling=0.5), Constant(coupling=0.1))),
}


def test_linear_predictions_are_standardised_and_cut_off():
    expected = np.clip((X - X.mean(axis=0)) / X.std(axis=0), -1, 1)
    predictions = Linear().fit(X).predict(X)
    assert predictions.dtype == np.float32
    assert_allclose(predictions, expected, rtol=1e-6)
    assert predictions.min() == -1
    assert predictions.max() == 1


def test_clip_is_the_number_of_standard_deviations_that_reach_one():
    assert_array_equal(Linear(clip=2.0).fit([[-1.0], [1.0]]).predict([[2.0], [1.0], [9.0]]), [[1], [0.5], [1]])


def test_linear_leaves_constant_features_out_even_where_their_mean_rounds():
    linear = Linear().fit(np.column_stack([np.full(10, 0.1), np.arange(10.0)]))
    assert linear.feature.tolist() == [1]


def test_linear_needs_a_feature_that_varies():
    with pytest.raises(ValueError, match="all 2 features are constant in the 5 rows given"):
        Linear().fit(np.ones((5, 2)))
    with pytest.raises(ValueError, match=r"clip must be a finite number > 0 .*, got 0"):
        Linear(clip=0)


def test_constant_is_plus_one_with_its_own_coupling():
    constant = Constant(coupling=0.1).fit(X)
    assert constant.predict(X).dtype == np.int8
    assert_array_equal(constant.predict(X), np.ones((40, 1)))
    assert_array_equal(constant.coupling, [0.1])


def test_pretrained_prefers_the_decision_function_cut_off_at_one():
    model = LogisticRegression().fit(X, SIGNS)
    predictions = Pretrained([model]).fit(X).predict(X)
    assert predictions.dtype == np.float32
    assert_allclose(predictions[:, 0], np.clip(model.decision_function(X), -1, 1), rtol=1e-6)


def test_pretrained_maps_two_classes_to_signs_and_cuts_numbers_off():
    tree, line = DecisionTreeClassifier().fit(X, SIGNS), LinearRegression().fit(X, 3 * X[:, 0])
    alone, both = Pretrained([tree]).fit(X), Pretrained([tree, line]).fit(X)
    assert alone.predict(X).dtype == np.int8
    assert_array_equal(alone.predict(X)[:, 0], np.where(SIGNS == "yes", 1, -1))
    assert both.predict(X).dtype == np.float32
    assert_allclose(both.predict(X)[:, 1], np.clip(3 * X[:, 0], -1, 1), rtol=1e-5)
    assert both.describe(1) == "pretrained LinearRegression"


def test_pretrained_refuses_what_gives_no_number_per_row():
    three = np.digitize(X[:, 0], [-0.5, 0.5])
    names = np.array(["a", "b", "c"])[three]
    with pytest.raises(ValueError, match=r"models\[0\] \(LogisticRegression\) must give one number per row"):
        Pretrained([LogisticRegression().fit(X, three)]).fit(X)
    with pytest.raises(ValueError, match=r"models\[0\] \(DecisionTreeClassifier\) must give numbers"):
        Pretrained([DecisionTreeClassifier().fit(X, names)]).fit(X)
    with pytest.raises(TypeError, match=r"models\[0\] must have decision_function or predict, got int"):
        Pretrained([1])
    with pytest.raises(ValueError, match="at least one fitted model, got none"):
        Pretrained([])


def test_pretrained_is_refused_by_model_files_with_the_way_out():
    fitted = Union(Stumps(n=3), Pretrained([DecisionTreeClassifier().fit(X, SIGNS)])).fit(X)
    with pytest.raises(TypeError, match=r"never pickled objects\. Store them with their own library and rebuild"):
        fitted.to_arrays()


def test_a_union_puts_families_side_by_side():
    stumps, linear, constant = Stumps(n=4), Linear(coupling=0.5), Constant(coupling=0.1)
    union = Union(stumps, linear, constant).fit(X)
    parts = [recipe.fit(X) for recipe in (stumps, linear, constant)]
    assert union.n == 8
    assert union.predict(X).dtype == union.dtype == np.float32
    assert union.predict(X).flags.c_contiguous
    assert_array_equal(union.predict(X), np.hstack([part.predict(X) for part in parts]))
    assert_array_equal(union.coupling, [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.1])
    described = [part.describe(j, "abc") for part in parts for j in range(part.n)]
    assert [union.describe(j, "abc") for j in range(8)] == described


def test_a_union_of_signs_stays_in_int8():
    assert Union(Stumps(n=4), Constant()).fit(X).predict(X).dtype == np.int8


def test_a_union_refuses_nothing_and_things_that_are_no_recipe():
    with pytest.raises(ValueError, match="at least one recipe"):
        Union()
    with pytest.raises(TypeError, match=r"recipe 1 of a union must have fit, as Stumps\(\), got str"):
        Union(Stumps(), "linear")


@pytest.mark.parametrize("kind", STORABLE)
def test_stored_predictors_predict_the_same_after_a_trip_through_json(kind):
    fitted = STORABLE[kind].fit(X)
    spec, arrays = fitted.to_arrays()
    again = predictors_from_arrays(json.loads(json.dumps(spec)), arrays)
    assert_array_equal(again.predict(X), fitted.predict(X))
    assert again.predict(X).dtype == fitted.predict(X).dtype
    assert_array_equal(again.coupling, fitted.coupling)
    assert [again.describe(j) for j in range(again.n)] == [fitted.describe(j) for j in range(fitted.n)]


@pytest.mark.parametrize("kind", STORABLE)
def test_recipes_are_values(kind):
    recipe = STORABLE[kind]
    assert clone(recipe, safe=False) == recipe
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert hash(recipe) == hash(clone(recipe, safe=False))


DAMAGES = {
    "no kind": (lambda s, a: s.pop("kind"), r"must be one of constant, .*\bunion\b.*, got None"),
    "new kind": (lambda s, a: s.update(kind="forest"), "got 'forest': the file is damaged, written by a newer"),
    "no width": (lambda s, a: s.pop("n_features"), "n_features .* must be an integer >= 1, got None"),
    "lost array": (lambda s, a: a.pop("threshold"), "lack the array 'threshold'"),
    "short array": (lambda s, a: a.update(threshold=a["threshold"][:-1]), "'threshold' must hold 7 finite numbers"),
    "NaN": (lambda s, a: a.update(threshold=a["threshold"] * np.nan), "'threshold' must hold 7 finite numbers"),
    "text": (lambda s, a: a.update(threshold=np.array(["a"] * 7)), "'threshold' must hold 7 finite numbers"),
    "no stump": (lambda s, a: a.update(feature=a["feature"][:0]), "'feature' must hold 7 finite numbers"),
    "far feature": (lambda s, a: s.update(n_features=2), r"must use features 0\.\.1, got 0\.\.2"),
    "coupling": (lambda s, a: a.update(coupling=-a["coupling"]), r"stored couplings must be >= 0, got -0\.3"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_storage_is_refused(damage):
    change, message = DAMAGES[damage]
    spec, arrays = STORABLE["stumps"].fit(X).to_arrays()
    change(spec, arrays)
    with pytest.raises(ValueError, match=message):
        predictors_from_arrays(spec, arrays)


def test_damaged_unions_and_scales_are_refused():
    spec, arrays = STORABLE["union"].fit(X).to_arrays()
    spec["parts"][0]["n_features"] = 4
    with pytest.raises(ValueError, match=r"must agree on n_features, got \[3, 4\]"):
        predictors_from_arrays(spec, arrays)
    with pytest.raises(ValueError, match="must be a list of families, got 3"):
        predictors_from_arrays({"kind": "union", "parts": 3}, arrays)
    spec, arrays = STORABLE["linear"].fit(X).to_arrays()
    with pytest.raises(ValueError, match=r"std and clip of linear predictors must be > 0, got 0\.0"):
        predictors_from_arrays(spec, {**arrays, "std": arrays["std"] * 0})


@given(st.sampled_from(sorted(STORABLE)), st.integers(0, 50))
def test_predictions_stay_within_one_on_rows_never_seen(kind, n_rows):
    rows = np.random.default_rng(n_rows).normal(scale=100, size=(n_rows, 3))
    predictions = STORABLE[kind].fit(X).predict(rows)
    assert predictions.shape[0] == n_rows
    assert np.all(np.abs(predictions) <= 1)
