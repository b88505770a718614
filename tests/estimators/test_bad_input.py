"""What the classifier says to input and settings that cannot work: the value, the limit and the way out."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dada import CollaborationGraph, DadaClassifier
from tests.helpers.people import opposites

ROWS = opposites()


def with_nan(where):
    X = ROWS.X.copy()
    X[3, 0] = where
    return X


DATA = {
    "NaN": (dict(X=with_nan(np.nan)), "X contains NaN at row 3, column 0"),
    "infinity": (dict(X=with_nan(np.inf)), "X contains infinity at row 3"),
    "infinity in a named column": (
        dict(X=pd.DataFrame({"age": with_nan(np.inf)[:, 0], "town": ["x", "y"] * 16})),
        r"infinity at row 3, column 0 \('age'\)",
    ),
    "NaN in sparse rows": (dict(X=sparse.csr_array(with_nan(np.nan))), "contains NaN"),
    "text": (
        dict(X=pd.DataFrame({"city": ["x"] * 32})),
        "no column is left to learn from: .city.: the same value in every row",
    ),
    "no row": (dict(X=np.empty((0, 1)), y=[], users=[]), "0 sample"),
    "no feature": (dict(X=np.empty((32, 0))), "0 feature"),
    "one dimension": (dict(X=ROWS.X[:, 0]), "Reshape your data"),
    "features that do not vary": (dict(X=np.zeros((32, 1))), "features are constant"),
    "no y": (dict(y=None), "requires y"),
    "one class": (dict(y=np.ones(32)), r"y holds one class only, 1.0, in all 32 rows"),
    "numbers for labels": (dict(y=np.linspace(0, 1, 32)), "Unknown label type: continuous"),
    "missing label": (dict(y=[None, *ROWS.y[1:]]), "y has 1 missing values, the first at row 0"),
    "too few labels": (dict(y=ROWS.y[1:]), "got 32 rows in X, 31 in y and 32 in users"),
    "too few users": (dict(users=ROWS.users[2:]), "got 32 rows in X, 32 in y and 30 in users"),
    "missing user": (dict(users=[np.nan, *ROWS.users[1:]]), "users has 1 missing values, the first at row 0"),
    "users of mixed types": (dict(users=[1, *ROWS.users[1:]]), "users mixes values that cannot be compared"),
}


@pytest.mark.parametrize(("change", "message"), DATA.values(), ids=DATA)
def test_data_is_refused(change, message):
    given = {**ROWS._asdict(), **change}
    with pytest.raises((ValueError, TypeError), match=message):
        DadaClassifier().fit(**given)


SETTINGS = [
    (dict(kappa=4, graph="learned"), r"kappa must be in 1\.\.3 \(n_users - 1\), got 4"),
    (dict(kappa=0), "kappa must be an integer >= 1, got 0"),
    (dict(kappa=2.5), "kappa must be an integer >= 1, got 2.5"),
    (dict(beta=0), "beta must be > 0 .*, got 0"),
    (dict(beta=-1.0), "beta must be > 0 .*, got -1.0"),
    (dict(beta=np.inf), "beta must be a finite number or 'auto', got inf"),
    (dict(beta=None), "beta must be a finite number or 'auto', got None"),
    (dict(mu=-1), "mu must be >= 0 .*, got -1"),
    (dict(mu="1"), "mu must be a finite number or 'auto', got '1'"),
    (dict(lam=0), "lam and delta must be > 0 .*, got lam=0"),
    (dict(tau=0, graph="evidence"), "tau > 0, got 8 and 0"),
    (dict(n_updates=0), "n_updates must be an integer >= 1 or 'auto', got 0"),
    (dict(graph_every=0), "graph_every must be a finite number > 0 or 'auto', got 0"),
    (dict(n_neighbours=0), "n_neighbours must be an integer >= 1, got 0"),
    (dict(class_weight="even"), "class_weight must be a dict, 'balanced' or None, got 'even'"),
    (dict(class_weight={0: 0.0}), "class_weight must be above 0 and finite for every class, got {0: 0.0}"),
    (dict(class_weight={0: np.inf}), "class_weight must be above 0 and finite for every class, got {0: inf}"),
    (dict(max_neighbours=0), "max_neighbours must be an integer >= 1, got 0"),
    (dict(max_bits=-1), "max_bits must be a finite number > 0, got -1"),
    (dict(tol=0.0), "tol must be a finite number > 0, got 0.0"),
    (dict(loss="hinge"), "loss must be one of .*adaboost.* or a dada.Loss, got 'hinge'"),
    (dict(graph_loss="sum"), "graph_loss must be one of .*, got 'sum'"),
    (dict(step="newton"), "step must be one of .*, got 'newton'"),
    (dict(graph_step="newton"), "graph_step must be one of .*, got 'newton'"),
    (dict(restart="warm"), "restart must be one of .*, got 'warm'"),
    (dict(graph="complete"), "graph must be one of .*, got 'complete'"),
    (dict(graph=np.ones((4, 4))), "two different users, got one from 0 to itself"),
    (dict(graph=np.triu(np.ones((4, 4)), 1)), "must be symmetric"),
    (dict(graph=CollaborationGraph.empty(7)), r"one row per user of the training data \(4, .*\), got 7"),
    (dict(regularizer="log"), "regularizer must be a LogDegree, DegreeTarget or DegreeFunction, got 'log'"),
    (dict(predictors="bushes"), r"predictors must be a recipe or one of .*'stumps', .*, got 'bushes'"),
    (dict(unknown_user="guess"), "unknown_user must be one of .*, got 'guess'"),
    (dict(dtype="float16"), "dtype must be float32 or float64, got float16"),
    (dict(random_state="seed"), "random_state must be None, an integer, .*, got 'seed'"),
]


@pytest.mark.parametrize(("settings", "message"), SETTINGS, ids=lambda value: str(value)[:40])
def test_settings_are_refused(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        DadaClassifier(**settings).fit(*ROWS)


def test_few_users_need_no_kappa():
    assert DadaClassifier().fit(*ROWS).n_users_ == 4


@pytest.fixture(scope="module")
def model():
    return DadaClassifier(random_state=0).fit(*ROWS)


def test_unknown_users_are_named_and_counted(model):
    with pytest.raises(
        ValueError, match=r"2 users were not in the training data: 'eve', 'zoe'.*unknown_user='average'"
    ):
        model.predict(ROWS.X[:3], users=["zoe", "ann", "eve"])
    with pytest.raises(ValueError, match=r"1 users were not in the training data: 'zoe'"):
        model.neighbours_of("zoe")


def test_a_number_is_not_the_text_that_looks_like_it():
    model = DadaClassifier().fit(ROWS.X, ROWS.y, users=np.repeat([1, 2, 3, 4], 8))
    with pytest.raises(ValueError, match="not in the training data: '1'"):
        model.predict(ROWS.X[:1], users=["1"])


def test_users_must_be_given_to_a_model_of_many(model):
    with pytest.raises(ValueError, match=r"fitted for 4 users: give users=.*user_column="):
        model.predict(ROWS.X)


def test_users_must_be_as_many_as_rows(model):
    with pytest.raises(ValueError, match="users must have one entry per row of X, got 2 for 3 rows"):
        model.predict(ROWS.X[:3], users=["ann", "bob"])


def test_the_way_unknown_users_are_treated_is_checked_again_at_prediction(model):
    wrong = DadaClassifier(random_state=0).fit(*ROWS).set_params(unknown_user="guess")
    with pytest.raises(ValueError, match="unknown_user must be one of"):
        wrong.predict(ROWS.X)


def test_other_features_are_refused(model):
    with pytest.raises(ValueError, match="X has 2 features, but DadaClassifier is expecting 1 features"):
        model.predict(np.zeros((1, 2)), users="ann")
