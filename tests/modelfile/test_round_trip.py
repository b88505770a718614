"""Model files: nothing is lost, and nothing half-written stays."""

import errno
import io
import json
import os
import pickle
import stat
import zipfile
from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from dada import (
    CollaborationGraph,
    Constant,
    DadaClassifier,
    DadaClassifierCV,
    DadaRegressor,
    DegreeFunction,
    DegreeTarget,
    Linear,
    Loss,
    Pretrained,
    Stumps,
    Union,
    load_model,
    modelfile,
    save_model,
)
from tests.helpers.models import ROWS, fitted
from tests.helpers.people import moons_rows


def test_everything_comes_back(path, model):
    loaded = load_model(path)
    assert loaded.get_params() == model.get_params()
    for name in ("models_", "confidence_", "classes_", "users_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
        assert getattr(loaded, name).dtype == getattr(model, name).dtype
    for name in ("indptr", "indices", "weights"):
        np.testing.assert_array_equal(getattr(loaded.graph_, name), getattr(model.graph_, name))
    for name in ("n_users_", "n_features_in_", "n_iter_", "status_", "objective_", "bits_"):
        assert getattr(loaded, name) == getattr(model, name)
    assert loaded.ledger_.messages == model.ledger_.messages
    assert loaded.neighbours_of("ann") == model.neighbours_of("ann")
    assert not hasattr(loaded, "feature_names_in_")


def test_the_trace_comes_back(path, model):
    loaded = load_model(path)
    assert len(loaded.trace_) == len(model.trace_)
    for point, stored in zip(model.trace_, loaded.trace_, strict=True):
        assert (stored.updates, stored.objective, stored.gap, stored.edges) == (
            point.updates, point.objective, point.gap, point.edges,
        )  # fmt: skip
        np.testing.assert_array_equal(stored.train_accuracy, point.train_accuracy)


def test_predictions_are_the_same_bit_for_bit(tmp_path):
    train, test = moons_rows(1, n_users=20)
    model = fitted(train, unknown_user="average")
    save_model(model, tmp_path / "moons.dada")
    loaded = load_model(tmp_path / "moons.dada")
    for users in (test.users, 12345):
        np.testing.assert_array_equal(
            loaded.decision_function(test.X, users=users), model.decision_function(test.X, users=users)
        )


def test_a_loaded_model_can_be_fitted_saved_and_pickled_again(path, model, tmp_path):
    loaded = load_model(path)
    save_model(loaded, tmp_path / "again.dada")
    assert (tmp_path / "again.dada").read_bytes() == path.read_bytes()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(loaded)).models_, model.models_)
    loaded.fit(ROWS.X, ROWS.y, users=ROWS.users)
    np.testing.assert_array_equal(loaded.models_, model.models_)


def test_the_same_model_gives_the_same_bytes(path, tmp_path):
    save_model(fitted(), tmp_path / "other.dada")
    assert (tmp_path / "other.dada").read_bytes() == path.read_bytes()


IDS = {
    "text": np.array(["ann", "bob", "Ωmega", "日本"]),
    "int64": np.array([-(2**62), 0, 7, 2**62 + 1]),
    "uint8": np.array([0, 1, 2, 255], np.uint8),
    "float": np.array([0.1, 0.2, 1 / 3, 1e300]),
    "dates": np.array(["2020-01-01", "2020-01-02", "2021-01-01", "2022-01-01"], "datetime64[D]"),
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_user_ids_of_any_type_come_back_exactly(ids, tmp_path):
    model = DadaClassifier(random_state=0, n_updates=2).fit(ROWS.X, ROWS.y, users=np.repeat(ids, 8))
    save_model(model, tmp_path / "model.dada")
    loaded = load_model(tmp_path / "model.dada")
    assert loaded.users_.dtype == ids.dtype
    np.testing.assert_array_equal(loaded.users_, np.sort(ids))
    np.testing.assert_array_equal(
        loaded.decision_function(ROWS.X, users=np.repeat(ids, 8)),
        model.decision_function(ROWS.X, users=np.repeat(ids, 8)),
    )


@pytest.mark.parametrize("labels", [("no", "yes"), (False, True), (-1, 1), (0.0, 2.0)])
def test_labels_of_any_type_come_back_exactly(labels, tmp_path):
    y = np.array(labels)[ROWS.y]
    model = DadaClassifier(n_updates=20, random_state=0).fit(ROWS.X, y, users=ROWS.users)
    save_model(model, tmp_path / "model.dada")
    predicted = load_model(tmp_path / "model.dada").predict(ROWS.X, users=ROWS.users)
    assert predicted.dtype == y.dtype
    assert set(predicted.tolist()) == set(labels)
    np.testing.assert_array_equal(predicted, model.predict(ROWS.X, users=ROWS.users))


def manifest_of(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("manifest.json"))


def several_classes():
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(60, 2)), np.repeat(["ann", "bob", "cid"], 20)
    return X, np.array(["low", "middle", "top"])[np.digitize(X[:, 0], [-0.5, 0.5])], users


def test_three_classes_come_back(tmp_path):
    X, y, users = several_classes()
    model = DadaClassifier(n_updates=30, random_state=0).fit(X, y, users=users)
    save_model(model, tmp_path / "kinds.dada")
    loaded = load_model(tmp_path / "kinds.dada")
    assert loaded.classes_.tolist() == ["low", "middle", "top"]
    assert_array_equal(loaded.decision_function(X, users=users), model.decision_function(X, users=users))
    assert loaded.bits_ == model.bits_


def test_numbers_come_back(tmp_path):
    X, _, users = several_classes()
    model = DadaRegressor(n_updates=30, random_state=0).fit(X, 40 + 3 * X[:, 0], users=users)
    save_model(model, tmp_path / "numbers.dada")
    loaded = load_model(tmp_path / "numbers.dada")
    assert isinstance(loaded, DadaRegressor)
    assert_array_equal(loaded.predict(X, users=users), model.predict(X, users=users))
    assert loaded.get_params() == model.get_params()


def test_only_what_the_first_version_lacked_is_of_the_second(path, tmp_path):
    X, y, users = several_classes()
    save_model(DadaClassifier(n_updates=5, random_state=0).fit(X, y, users=users), tmp_path / "kinds.dada")
    assert manifest_of(path)["version"] == 1
    assert manifest_of(tmp_path / "kinds.dada")["version"] == 2


def test_the_error_of_a_search_names_what_to_save(tmp_path):
    X, y, users = several_classes()
    search = DadaClassifierCV(DadaClassifier(graph="everyone", n_updates=5), betas=(10.0,), mu_scales=(1.0,))
    with pytest.raises(TypeError, match="for a search, save its best_estimator_"):
        save_model(search.fit(X, y, users=users), tmp_path / "search.dada")


def test_names_of_features_come_back(tmp_path):
    model = DadaClassifier(n_updates=2).fit(pd.DataFrame(ROWS.X, columns=["größe"]), ROWS.y, users=ROWS.users)
    save_model(model, tmp_path / "model.dada")
    assert load_model(tmp_path / "model.dada").feature_names_in_.tolist() == ["größe"]


SETTINGS = {
    "recipes": dict(predictors=Union(Stumps(n=3, rule="feature-range"), Constant(coupling=0.5))),
    "regularizer": dict(regularizer=DegreeTarget(target=2.0)),
    "numpy numbers": dict(beta=np.float64(3.5), n_updates=np.int64(2), mu=np.float32(0.5)),
    "evidence": dict(graph="evidence", max_neighbours=2),
    "no graph": dict(graph="none"),
    "weights of classes": dict(class_weight={1: 2.5, 0: 1.0}),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings_come_back(settings, tmp_path):
    model = fitted(**{"n_updates": 2, **settings})
    save_model(model, tmp_path / "model.dada")
    loaded = load_model(tmp_path / "model.dada")
    assert loaded.get_params() == model.get_params()
    assert loaded.graph_.directed == model.graph_.directed


def test_linear_predictors_come_back(model, tmp_path):
    # Only what is stored matters here, so the models need no fit of their own.
    linear = Linear().fit(ROWS.X)
    stored = replace(stored_form(model, tmp_path), predictors=linear, models=np.array([[1.0], [-2.0], [0.0], [0.5]]))
    modelfile.write(stored, tmp_path / "linear.dada")
    again = modelfile.read(tmp_path / "linear.dada")
    np.testing.assert_array_equal(again.predictors.predict(ROWS.X), linear.predict(ROWS.X))
    np.testing.assert_array_equal(again.models, stored.models)


def stored_form(model, folder):
    save_model(model, folder / "form.dada")
    return modelfile.read(folder / "form.dada")


def test_a_given_graph_comes_back_as_the_given_graph(tmp_path):
    weights = np.array([[0, 2, 0, 0], [2, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0.0]])
    save_model(fitted(graph=weights, n_updates=2), tmp_path / "model.dada")
    loaded = load_model(tmp_path / "model.dada")
    assert isinstance(loaded.graph, CollaborationGraph)
    np.testing.assert_array_equal(loaded.graph.to_scipy().toarray(), weights)


def value(z):
    return (z * z + 1) ** 0.5 - z


def slope(z):
    return z / (z * z + 1) ** 0.5 - 1


def one(z):
    return 1.0


def test_functions_leave_their_name_and_must_be_given_again(tmp_path):
    own = DegreeFunction(lambda d: 1 / (1 + d), lambda d: -1 / (1 + d) ** 2, lambda d: 2 / (1 + d) ** 3)
    model = fitted(loss=Loss("ramp", value, slope, one), regularizer=own, n_updates=2, graph_loss="logistic")
    save_model(model, tmp_path / "model.dada")
    loaded = load_model(tmp_path / "model.dada")
    np.testing.assert_array_equal(loaded.models_, model.models_)
    with pytest.raises(ValueError, match="got 'ramp'"):
        loaded.set_params(regularizer=None).fit(ROWS.X, ROWS.y, users=ROWS.users)


def test_a_random_generator_is_not_stored(tmp_path):
    save_model(fitted(random_state=np.random.default_rng(0), n_updates=2), tmp_path / "model.dada")
    assert load_model(tmp_path / "model.dada").random_state is None


class Tree:
    classes_ = (0, 1)

    def predict(self, X):
        return (X[:, 0] > 0).astype(int)


def test_what_is_code_is_refused_before_a_file_is_made(tmp_path):
    with pytest.raises(TypeError, match="predictors of type Pretrained cannot be written to a model file"):
        save_model(fitted(predictors=Pretrained([Tree()]), n_updates=2), tmp_path / "model.dada")
    days = np.repeat(np.array([date(2020, 1, day) for day in (1, 2, 3, 4)], object), 8)
    model = DadaClassifier(n_updates=2).fit(ROWS.X, ROWS.y, users=days)
    with pytest.raises(TypeError, match="users of type date cannot be written to a model file"):
        save_model(model, tmp_path / "model.dada")
    assert os.listdir(tmp_path) == []


def test_a_file_holds_plain_members_and_a_readable_manifest(path):
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert set(archive.namelist()) == {"manifest.json", *manifest["members"]}
        for name in manifest["members"]:
            np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
    assert (manifest["format"], manifest["version"], manifest["n_users"]) == ("dada-model", 1, 4)
    assert manifest["settings"]["loss"] == "adaboost"


def test_a_new_file_has_the_usual_rights(path):
    usual = path.with_name("usual")
    usual.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


@pytest.mark.parametrize("when", ["write", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(when, path, model, monkeypatch):
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, {"write": "fsync", "replace": "replace"}[when], full)
    with pytest.raises(
        OSError, match=r"the model file was not written \(No space left on device\).*people.dada"
    ) as caught:
        save_model(model, path)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["people.dada"]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(path, model, monkeypatch):
    before = path.read_bytes()

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_model(model, path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["people.dada"]


def test_a_missing_folder_is_named(model, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the model file was not written .*nowhere"):
        save_model(model, tmp_path / "nowhere" / "people.dada")


def test_a_link_is_followed(path, model, tmp_path):
    link = tmp_path / "link.dada"
    link.symlink_to(path)
    save_model(model, link)
    assert link.is_symlink()
    assert load_model(link).n_users_ == 4


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.dada"):
        load_model(tmp_path / "none.dada")


def test_a_note_stays_with_the_model_and_changes_nothing_else(path):
    before = modelfile.read(path)
    modelfile.write(replace(before, note={"user_column": "person", "label_column": "went"}), path)
    after = modelfile.read(path)
    assert before.note == {}
    assert after.note == {"user_column": "person", "label_column": "went"}
    np.testing.assert_array_equal(after.models, before.models)
