"""Users inside X: scikit-learn measures personal models; frames with text, dates and gaps are encoded."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.inspection import permutation_importance
from sklearn.metrics import accuracy_score, log_loss, r2_score, roc_auc_score
from sklearn.model_selection import (
    GridSearchCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dada import DadaClassifier, DadaClassifierCV, DadaRegressor, Linear, PerUserKFold, Privacy, load_model, save_model
from tests.helpers.people import opposites

CHEAP = dict(predictors=Linear(), graph="none", n_updates=20, random_state=0)
ROWS = opposites(rows_per_user=12)
FRAME = pd.DataFrame({"x": ROWS.X[:, 0], "person": ROWS.users, "z": np.cos(7 * ROWS.X[:, 0])})
FEATURES = ["x", "z"]
FOLDS = list(PerUserKFold(3).split(FRAME, ROWS.y, groups=ROWS.users))


def inside(**settings):
    """A classifier that finds users in X."""
    return DadaClassifier(**{**CHEAP, "user_column": "person", **settings})


def beside(rows, **settings):
    """The same classifier, fitted to some rows with users apart."""
    model = DadaClassifier(**{**CHEAP, **settings})
    return model.fit(FRAME[FEATURES].iloc[rows], ROWS.y[rows], users=ROWS.users[rows])


def by_hand(method, rows, fitted_to, **settings):
    """Personal predictions with users apart."""
    return getattr(beside(fitted_to, **settings), method)(FRAME[FEATURES].iloc[rows], users=ROWS.users[rows])


BY_NAME = {
    "accuracy": ("predict", accuracy_score),
    "roc_auc": ("decision_function", roc_auc_score),
    "neg_log_loss": ("predict_proba", lambda y, chances: -log_loss(y, chances)),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_scorers_by_name_measure_personal_models(name):
    method, measure = BY_NAME[name]
    expected = [measure(ROWS.y[test], by_hand(method, test, train)) for train, test in FOLDS]
    found = cross_val_score(inside(), FRAME, ROWS.y, cv=PerUserKFold(3), groups=ROWS.users, scoring=name)
    assert_allclose(found, expected, rtol=1e-12)
    # The mean model is right about half of the rows: these users are opposites.
    assert name != "accuracy" or found.mean() > 0.8


def test_several_scorers_at_once_measure_personal_models():
    found = cross_validate(inside(), FRAME, ROWS.y, cv=FOLDS, scoring=list(BY_NAME))
    for name, (method, measure) in BY_NAME.items():
        expected = [measure(ROWS.y[test], by_hand(method, test, train)) for train, test in FOLDS]
        assert_allclose(found[f"test_{name}"], expected, rtol=1e-12)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_cross_val_predict_is_personal(method):
    found = cross_val_predict(inside(), FRAME, ROWS.y, cv=FOLDS, method=method)
    for train, test in FOLDS:
        assert_array_equal(found[test], by_hand(method, test, train))


def test_a_grid_search_scores_and_predicts_personally():
    search = GridSearchCV(inside(), {"beta": [0.1, 20.0]}, cv=FOLDS, scoring="neg_log_loss").fit(FRAME, ROWS.y)
    for beta, found in zip([0.1, 20.0], search.cv_results_["mean_test_score"], strict=True):
        each = [-log_loss(ROWS.y[test], by_hand("predict_proba", test, train, beta=beta)) for train, test in FOLDS]
        assert found == pytest.approx(np.mean(each), rel=1e-12)
    everybody = np.arange(len(ROWS.y))
    best = search.best_params_["beta"]
    assert_array_equal(search.predict(FRAME), by_hand("predict", everybody, everybody, beta=best))
    assert_array_equal(search.predict_proba(FRAME), by_hand("predict_proba", everybody, everybody, beta=best))


def test_calibration_is_fitted_to_personal_decisions():
    calibrated = CalibratedClassifierCV(inside(), method="sigmoid", cv=FOLDS).fit(FRAME, ROWS.y)
    chances = []
    for (train, _), each in zip(FOLDS, calibrated.calibrated_classifiers_, strict=True):
        (sigmoid,) = each.calibrators
        chances.append(sigmoid.predict(by_hand("decision_function", np.arange(len(ROWS.y)), train)))
    assert_allclose(calibrated.predict_proba(FRAME)[:, 1], np.mean(chances, axis=0), rtol=1e-12)
    assert calibrated.score(FRAME, ROWS.y) == accuracy_score(ROWS.y, calibrated.predict(FRAME))
    assert calibrated.score(FRAME, ROWS.y) > 0.8


def test_permutation_importance_measures_every_column_with_the_user():
    model, everybody = inside().fit(FRAME, ROWS.y), np.arange(len(ROWS.y))
    found = permutation_importance(model, FRAME, ROWS.y, n_repeats=2, random_state=0, scoring="accuracy")
    seed = np.random.RandomState(0).randint(np.iinfo(np.int32).max + 1)
    apart, base = beside(everybody), accuracy_score(ROWS.y, by_hand("predict", everybody, everybody))
    for j, name in enumerate(FRAME.columns):
        rng, order, drops = np.random.RandomState(seed), np.arange(len(FRAME)), []
        changed = FRAME.copy()
        for _ in range(2):
            rng.shuffle(order)
            changed[name] = changed[name].to_numpy()[order]
            predicted = apart.predict(changed[FEATURES], users=changed["person"])
            drops.append(base - accuracy_score(ROWS.y, predicted))
        assert_allclose(found.importances[j], drops, atol=1e-12)
    assert found.importances_mean[1] > 0.2


def test_a_learning_curve_is_personal():
    sizes, _, scores = learning_curve(
        inside(unknown_user="average"), FRAME, ROWS.y, cv=FOLDS, train_sizes=[0.75, 1.0], scoring="roc_auc"
    )
    for i, size in enumerate(sizes):
        expected = [
            roc_auc_score(ROWS.y[test], by_hand("decision_function", test, train[:size], unknown_user="average"))
            for train, test in FOLDS
        ]
        assert_allclose(scores[i], expected, rtol=1e-12)


def test_a_pipeline_scales_features_and_passes_the_user_on():
    scaled = ColumnTransformer([("scale", StandardScaler(), FEATURES)], remainder="passthrough")
    scaled.set_params(verbose_feature_names_out=False).set_output(transform="pandas")
    found = cross_val_score(make_pipeline(scaled, inside()), FRAME, ROWS.y, cv=FOLDS, scoring="roc_auc")
    for score, (train, test) in zip(found, FOLDS, strict=True):
        scaler = StandardScaler().fit(FRAME[FEATURES].iloc[train])
        own = DadaClassifier(**CHEAP).fit(
            scaler.transform(FRAME[FEATURES].iloc[train]), ROWS.y[train], users=ROWS.users[train]
        )
        values = own.decision_function(scaler.transform(FRAME[FEATURES].iloc[test]), users=ROWS.users[test])
        assert score == pytest.approx(roc_auc_score(ROWS.y[test], values), rel=1e-12)


def test_the_search_over_settings_finds_users_in_x():
    settings = dict(betas=(10.0,), mu_scales=(1.0,), n_repeats=1, random_state=0)
    base = DadaClassifier(Linear(), n_updates=20)
    apart = DadaClassifierCV(base, **settings).fit(FRAME[FEATURES], ROWS.y, users=ROWS.users)
    within = DadaClassifierCV(base, user_column="person", **settings).fit(FRAME, ROWS.y)
    assert_array_equal(within.predict_proba(FRAME), apart.predict_proba(FRAME[FEATURES], users=ROWS.users))
    assert within.score(FRAME, ROWS.y) == apart.score(FRAME[FEATURES], ROWS.y, users=ROWS.users)
    assert within.n_features_in_ == 3
    of_estimator = DadaClassifierCV(clone(base).set_params(user_column="person"), **settings).fit(FRAME, ROWS.y)
    assert_array_equal(of_estimator.predict(FRAME), within.predict(FRAME))


def test_a_regressor_finds_users_in_x():
    y = np.where(ROWS.y > 0, 3.0, 1.0) + ROWS.X[:, 0]
    settings = dict(CHEAP, n_updates=60)
    scores = cross_val_score(DadaRegressor(user_column="person", **settings), FRAME, y, cv=FOLDS, scoring="r2")
    for score, (train, test) in zip(scores, FOLDS, strict=True):
        apart = DadaRegressor(**settings).fit(FRAME[FEATURES].iloc[train], y[train], users=ROWS.users[train])
        predicted = apart.predict(FRAME[FEATURES].iloc[test], users=ROWS.users[test])
        assert score == pytest.approx(r2_score(y[test], predicted), rel=1e-12)


def as_lists(frame):
    return frame.to_numpy().tolist()


@pytest.mark.parametrize(
    ("container", "column"),
    [
        (lambda frame: frame, "person"),
        (lambda frame: frame, 1),
        (pl.from_pandas, "person"),
        (lambda frame: pl.from_pandas(frame).lazy(), "person"),
        (lambda frame: frame.to_numpy(), 1),
        (lambda frame: frame.to_numpy(), -2),
        (as_lists, 1),
    ],
)
def test_the_user_column_is_a_name_or_a_position(container, column):
    everybody = np.arange(len(ROWS.y))
    model = inside(user_column=column).fit(container(FRAME), ROWS.y)
    assert model.users_.tolist() == ["ann", "bob", "cid", "dan"]
    assert model.n_features_in_ == 3
    assert_array_equal(model.decision_function(container(FRAME)), by_hand("decision_function", everybody, everybody))


def test_numbers_in_an_array_name_users_too():
    numbers = np.searchsorted(np.unique(ROWS.users), ROWS.users)
    X = np.column_stack([numbers, ROWS.X])
    model = inside(user_column=0).fit(X, ROWS.y)
    assert model.users_.tolist() == [0, 1, 2, 3]
    assert model.score(X, ROWS.y) > 0.9


def test_columns_are_found_by_name_after_a_fit_with_a_user_column():
    model = inside().fit(FRAME, ROWS.y)
    other = FRAME.assign(extra="?")[["extra", "z", "person", "x"]]
    assert_array_equal(model.predict(other), model.predict(FRAME))
    with pytest.raises(ValueError, match="X has no column 'z', which the model needs; it has 'x'"):
        model.predict(FRAME[["x", "person"]])
    with pytest.raises(ValueError, match="X has no column 'person', the user_column; it has 'x', 'z'"):
        model.predict(FRAME[FEATURES])
    with pytest.raises(ValueError, match="X must be a data frame, as at the fit, with the columns 'x', 'z'"):
        model.predict(FRAME.to_numpy())


@pytest.mark.parametrize(
    ("X", "column", "message"),
    [
        (FRAME, "owner", "X has no column 'owner', the user_column; it has 'x', 'person', 'z'"),
        (
            FRAME.to_numpy(),
            "person",
            r"must be the position of a column of an array X of shape \(48, 3\), got 'person'",
        ),
        (FRAME.to_numpy(), 3, "got 3: give a data frame to name columns"),
        (sparse.csr_array(ROWS.X), 0, "a sparse X cannot hold the user_column: give users="),
        (FRAME.assign(person=[None, *ROWS.users[1:]]), "person", "users has 1 missing values, the first at row 0"),
    ],
)
def test_a_user_column_that_cannot_be_found_is_refused(X, column, message):
    with pytest.raises(ValueError, match=message):
        inside(user_column=column).fit(X, ROWS.y)


def test_users_are_given_once():
    with pytest.raises(ValueError, match=r"in its column 'person', the user_column: leave users= out, or set user_col"):
        inside().fit(FRAME, ROWS.y, users=ROWS.users)
    with pytest.raises(ValueError, match="leave users= out"):
        inside().fit(FRAME, ROWS.y).predict(FRAME, users=ROWS.users)


@pytest.mark.parametrize("unknown_user", ["error", "average"])
def test_a_model_of_many_users_never_guesses_the_user(unknown_user):
    model = beside(np.arange(len(ROWS.y)), unknown_user=unknown_user)
    for method in ("predict", "predict_proba", "decision_function"):
        with pytest.raises(
            ValueError, match=r"fitted for 4 users: give users=, the user of each row, or fit with user_"
        ):
            getattr(model, method)(FRAME[FEATURES])


def test_an_unknown_user_in_x_is_refused_or_averaged():
    new = FRAME.iloc[:2].assign(person=["eve", "ann"])
    with pytest.raises(ValueError, match=r"1 users were not in the training data: 'eve'.*unknown_user='average'"):
        inside().fit(FRAME, ROWS.y).predict(new)
    model = inside(unknown_user="average").fit(FRAME, ROWS.y)
    apart = beside(np.arange(len(ROWS.y)), unknown_user="average")
    assert_array_equal(model.decision_function(new), apart.decision_function(new[FEATURES], users=["eve", "ann"]))


def test_learning_goes_on_with_users_in_x():
    first, rest = FRAME[FRAME["person"] != "dan"], FRAME[FRAME["person"] == "dan"]
    labels = pd.Series(ROWS.y, index=FRAME.index)
    model = inside().partial_fit(first, labels[first.index]).partial_fit(rest, labels[rest.index])
    apart = DadaClassifier(**CHEAP).partial_fit(first[FEATURES], labels[first.index], users=first["person"])
    apart.partial_fit(rest[FEATURES], labels[rest.index], users=rest["person"])
    assert_array_equal(model.models_, apart.models_)
    added = inside().fit(first, labels[first.index]).add_user(rest, labels[rest.index], "dan")
    assert added.users_.tolist() == ["ann", "bob", "cid", "dan"]
    with pytest.raises(ValueError, match="X must hold rows of user 'eve' only, got 'dan'"):
        added.add_user(rest, labels[rest.index], "eve")


def test_a_file_keeps_the_user_column(tmp_path):
    for name, X, column in (("frame", FRAME, "person"), ("array", FRAME.to_numpy(), 1)):
        model = inside(user_column=column).fit(X, ROWS.y)
        save_model(model, tmp_path / name)
        loaded = load_model(tmp_path / name)
        assert_array_equal(loaded.decision_function(X), model.decision_function(X))
        assert loaded.get_params() == model.get_params()
        assert loaded.n_features_in_ == 3


# Columns of any kind

TOWNS = np.array(["Rome", "Oslo", "Bonn"])[np.arange(len(ROWS.y)) % 3]
MIXED = FRAME.assign(
    town=TOWNS,
    seen=pd.date_range("2024-01-01", periods=len(FRAME)),
    weight=np.where(np.arange(len(FRAME)) % 5, 1.5, np.nan),
)


@pytest.mark.parametrize("container", [lambda frame: frame, pl.from_pandas])
def test_a_frame_of_any_columns_is_encoded(container):
    model = inside().fit(container(MIXED), ROWS.y)
    assert model.feature_names_in_.tolist() == ["x", "person", "z", "town", "seen", "weight"]
    assert model.used_features_[2:5] == ['town = "Bonn"', 'town = "Oslo"', 'town = "Rome"']
    numbers = model.encoder_.transform(MIXED)
    apart = DadaClassifier(**CHEAP).fit(numbers, ROWS.y, users=ROWS.users)
    assert_array_equal(model.decision_function(container(MIXED)), apart.decision_function(numbers, users=ROWS.users))


def test_new_rows_may_have_gaps_new_levels_and_another_order():
    model = inside().fit(MIXED, ROWS.y)
    new = MIXED.assign(town="Wien", x=np.nan, seen=pd.NaT)[["town", "z", "seen", "x", "person", "weight"]]
    assert np.isfinite(model.decision_function(new)).all()
    with pytest.raises(ValueError, match="X has no column 'town', which the model needs"):
        model.predict(new.drop(columns="town"))


def test_an_encoded_model_is_the_same_from_its_file_and_goes_on_learning(tmp_path):
    model = inside().fit(MIXED, ROWS.y)
    save_model(model, tmp_path / "mixed.dada")
    loaded = load_model(tmp_path / "mixed.dada")
    assert_array_equal(loaded.decision_function(MIXED), model.decision_function(MIXED))
    assert loaded.encoder_ == model.encoder_
    save_model(loaded, tmp_path / "again.dada")
    assert (tmp_path / "again.dada").read_bytes() == (tmp_path / "mixed.dada").read_bytes()
    grown = model.partial_fit(MIXED.assign(town="Wien"), ROWS.y)
    assert grown.encoder_ == loaded.encoder_


def test_a_column_that_repeats_the_users_is_left_out():
    model = DadaClassifier(**CHEAP).fit(MIXED, ROWS.y, users=ROWS.users)
    assert model.encoder_.left_out == {"person": "the users"}
    inside_x = inside().fit(MIXED, ROWS.y)
    assert_array_equal(model.models_, inside_x.models_)


def test_numbers_are_used_as_they_are():
    plain = FRAME[FEATURES]
    model = DadaClassifier(**CHEAP).fit(plain, ROWS.y, users=ROWS.users)
    assert model.encoder_ is None
    assert model.used_features_ == FEATURES
    array = DadaClassifier(**CHEAP).fit(plain.to_numpy(), ROWS.y, users=ROWS.users)
    assert_array_equal(array.models_, model.models_)
    assert array.used_features_ is None


@pytest.mark.parametrize(
    "settings", [{"encode": "never"}, {"privacy": Privacy(1.0, protects="rows", ranges=(-1.0, 1.0))}]
)
def test_text_is_refused_where_nothing_may_be_encoded(settings):
    with pytest.raises(ValueError, match="2 of 5 feature columns are not numeric: 'town', 'seen'"):
        inside(**settings).fit(MIXED, ROWS.y)


def test_a_wrong_way_to_encode_is_refused():
    with pytest.raises(ValueError, match=r"encode must be one of \['auto', 'never'\], got 'hash'"):
        inside(encode="hash").fit(MIXED, ROWS.y)


def test_a_column_that_determines_y_is_reported():
    with pytest.warns(UserWarning, match="y follows exactly from column 'came': leave it out if it is not known"):
        inside().fit(MIXED.assign(came=np.where(ROWS.y > 0, "yes", "no")), ROWS.y)
