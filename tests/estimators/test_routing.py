"""Users flow through scikit-learn's pipelines, searches and cross-validation."""

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dada import DadaClassifier, PerUserKFold
from tests.helpers.people import opposites


@pytest.fixture(autouse=True)
def _routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture(scope="module")
def rows():
    return opposites()


def test_pipeline(rows):
    pipeline = make_pipeline(StandardScaler(), DadaClassifier(random_state=0)).fit(rows.X, rows.y, users=rows.users)
    assert pipeline[-1].n_users_ == 4
    assert pipeline.score(rows.X, rows.y, users=rows.users) == 1.0
    np.testing.assert_array_equal(pipeline.predict(rows.X, users=rows.users), rows.y)
    values = pipeline.decision_function(rows.X, users=rows.users)
    np.testing.assert_array_equal(values > 0, pipeline.predict_proba(rows.X, users=rows.users)[:, 1] > 0.5)


def test_grid_search_over_a_pipeline(rows):
    search = GridSearchCV(
        make_pipeline(StandardScaler(), DadaClassifier(graph="evidence", random_state=0)),
        {"dadaclassifier__mu": [0.3, 1.0], "dadaclassifier__beta": [1.0, 3.0]},
        cv=PerUserKFold(3),
    )
    search.fit(rows.X, rows.y, users=rows.users)
    assert search.best_score_ > 0.8
    assert search.best_estimator_[-1].users_.tolist() == ["ann", "bob", "cid", "dan"]
    assert search.score(rows.X, rows.y, users=rows.users) == 1.0
    np.testing.assert_array_equal(search.best_estimator_.predict(rows.X, users=rows.users), rows.y)


def test_users_may_also_reach_the_splitter_as_groups(rows):
    search = GridSearchCV(DadaClassifier(graph="evidence", random_state=0), {"mu": [1.0]}, cv=PerUserKFold(2))
    search.fit(rows.X, rows.y, users=rows.users, groups=rows.users)
    assert search.best_score_ > 0.8


def test_cross_validate(rows):
    results = cross_validate(
        DadaClassifier(graph="evidence", random_state=0),
        rows.X,
        rows.y,
        cv=PerUserKFold(4),
        params={"users": rows.users},
        return_train_score=True,
        return_estimator=True,
    )
    assert results["test_score"].mean() > 0.8
    assert results["train_score"].min() > 0.9
    assert [model.n_users_ for model in results["estimator"]] == [4, 4, 4, 4]


def test_requests_can_be_changed(rows):
    model = DadaClassifier(random_state=0).set_fit_request(users="owner").set_score_request(users="owner")
    pipeline = make_pipeline(StandardScaler(), model).fit(rows.X, rows.y, owner=rows.users)
    assert pipeline.score(rows.X, rows.y, owner=rows.users) == 1.0
    for method in ("predict", "predict_proba", "decision_function"):
        getattr(model, f"set_{method}_request")(users=False)
