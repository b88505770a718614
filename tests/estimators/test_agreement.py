"""Base predictors come from what users tell of their rows, and the estimator says so."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.tree import DecisionTreeClassifier

from dada import DadaClassifier, DadaRegressor
from dada.data import Linear, Pretrained, RandomFourier, Stumps, Union
from tests.helpers.people import moons_rows


@pytest.mark.parametrize("recipe", [None, Stumps(n=40, rule="feature-range"), RandomFourier(n=20)])
def test_predictors_of_few_values_are_those_of_the_rows_to_the_last_bit(recipe):
    train, _ = moons_rows(1)
    model = DadaClassifier(recipe, n_updates=2, graph="none", random_state=0).fit(*train)
    assert model.settings_["predictors_from"] == "merged summaries of users"
    mine, theirs = (fitted.to_arrays()[1] for fitted in (model.predictors_, model.settings_["predictors"].fit(train.X)))
    assert mine.keys() == theirs.keys()
    for name in theirs:
        assert_array_equal(mine[name], theirs[name])


def test_features_of_many_values_are_cut_and_it_says_so():
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(3000, 2)), np.arange(3000) // 30
    recipe = Stumps(per_feature=10)
    model = DadaRegressor(recipe, n_updates=2, graph="none", random_state=0).fit(X, X[:, 0], users=users)
    assert model.settings_["predictors_from"].endswith("with more than 2048 values cut to 512")
    stumps = model.predictors_
    shares = (X[:, stumps.feature] <= stumps.threshold).mean(axis=0)
    assert_allclose(shares, np.tile(np.arange(1, 11) / 11, 2), atol=1 / 512)


def test_predictors_that_need_rows_get_them_and_it_says_so():
    train, _ = moons_rows(1, n_users=10)
    recipe = Union(Pretrained([DecisionTreeClassifier(max_depth=2).fit(train.X, train.y)]), Linear())
    model = DadaClassifier(recipe, n_updates=2, random_state=0).fit(*train)
    assert model.settings_["predictors_from"] == "rows"
