"""`dada predict` and `dada inspect` take files of pipelines; a table that does not fit is refused in one line."""

import io
import json
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from typer.testing import CliRunner

from dada import DadaClassifier, DadaRegressor, save_model
from dada.cli.app import app

SHORT = {"graph": "everyone", "n_updates": 20, "random_state": 0}
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "age": RNG.uniform(20, 60, 80),
        "town": RNG.choice(["Oslo", "Rome"], 80),
        "person": np.repeat(["ann", "bob", "cid", "dan"], 20),
        "unused": "word",
    }
)
TABLE.loc[3, "town"] = np.nan
CAME = np.where(TABLE["age"] > 40, "yes", "no")


def encoder(output="default", users="person", **settings):
    parts = [
        ("n", StandardScaler(), ["age"]),
        ("t", OneHotEncoder(sparse_output=False, **settings), ["town"]),
        ("u", "passthrough", [users] if users else []),
    ]
    return ColumnTransformer(parts).set_output(transform=output)


def column_of_users(output):
    return -1 if output == "default" else "u__person"


@pytest.fixture
def path(tmp_path):
    model = DadaClassifier(user_column="u__person", **SHORT)
    save_model(make_pipeline(encoder("pandas"), model).fit(TABLE, CAME), tmp_path / "p.dada")
    return tmp_path / "p.dada"


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def predicted(path, table, *options):
    table.to_csv(path.parent / "new.csv", index=False)
    return pl.read_csv(io.StringIO(run("predict", path, path.parent / "new.csv", *options)))


def one_line_error(path, table, *options):
    table.to_csv(path.parent / "new.csv", index=False)
    result = CliRunner().invoke(app, ["predict", str(path), str(path.parent / "new.csv"), *options])
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    return line


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
@pytest.mark.parametrize("output", ["default", "pandas", "polars"])
def test_classes_are_predicted_by_users_in_a_column(kind, output, tmp_path):
    X = kind(TABLE)
    pipeline = make_pipeline(encoder(output), DadaClassifier(user_column=column_of_users(output), **SHORT)).fit(X, CAME)
    save_model(pipeline, tmp_path / "p.dada")
    found = predicted(tmp_path / "p.dada", TABLE)
    assert found.columns == ["person", "label", "score"]
    assert found["person"].to_list() == TABLE["person"].tolist()
    assert_array_equal(found["label"].to_numpy(), pipeline.predict(X))
    assert_array_equal(found["score"].to_numpy(), pipeline.predict_proba(X)[:, 1])


def test_numbers_are_predicted_by_users_apart(tmp_path):
    X, ages = TABLE[["age", "town"]], TABLE["age"].to_numpy()
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(encoder(users=None), DadaRegressor(**SHORT)).fit(X, 2 * ages, users=TABLE["person"])
        expected = pipeline.predict(X, users=TABLE["person"])
    save_model(pipeline, tmp_path / "p.dada")
    found = predicted(tmp_path / "p.dada", TABLE, "--user", "person")
    assert found.columns == ["person", "label"]
    assert_allclose(found["label"].to_numpy(), expected, rtol=1e-12)
    assert "no column 'user'" in one_line_error(tmp_path / "p.dada", TABLE)
    save_model(pipeline, tmp_path / "p.dada", note={"user_column": "person"})
    assert predicted(tmp_path / "p.dada", TABLE).columns == ["person", "label"]


def test_columns_of_arrays_are_taken_in_their_order(tmp_path):
    X = RNG.normal(size=(80, 3))
    with sklearn.config_context(enable_metadata_routing=True):
        steps = StandardScaler(), PCA(2), DadaClassifier(**SHORT)
        pipeline = make_pipeline(*steps).fit(X, X[:, 0] > 0, users=TABLE["person"])
    save_model(pipeline, tmp_path / "p.dada")
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(user=TABLE["person"])
    expected = pipeline[-1].predict_proba(pipeline[:-1].transform(X), users=TABLE["person"])[:, 1]
    assert_array_equal(predicted(tmp_path / "p.dada", table)["score"].to_numpy(), expected)
    line = one_line_error(tmp_path / "p.dada", table.drop(columns="b"))
    assert "new.csv does not fit the steps before the model: X has 2 features" in line
    names = {entry["column"] for entry in json.loads(run("inspect", tmp_path / "p.dada", "--json"))["importances"]}
    assert names <= {"pca0", "pca1"}


def test_ids_may_be_numbers_where_the_model_has_text(tmp_path):
    X = TABLE.assign(person=np.repeat(["1", "2", "3", "4"], 20))
    pipeline = make_pipeline(encoder("polars"), DadaClassifier(user_column="u__person", **SHORT)).fit(X, CAME)
    save_model(pipeline, tmp_path / "p.dada")
    assert_array_equal(predicted(tmp_path / "p.dada", X)["label"].to_numpy(), pipeline.predict(X))


def test_unknown_users_are_refused_or_averaged(path):
    table = TABLE.assign(person="eve")
    assert "'eve'" in one_line_error(path, table)
    assert predicted(path, table, "--unknown-user", "average").height == 80


def test_columns_that_no_step_uses_may_be_absent_and_others_may_not(path):
    assert_array_equal(predicted(path, TABLE.drop(columns="unused")), predicted(path, TABLE))
    assert_array_equal(predicted(path, TABLE[["unused", "person", "town", "age"]]), predicted(path, TABLE))
    line = one_line_error(path, TABLE.rename(columns={"town": "towns"}))
    assert "has no column 'town'" in line
    assert "'towns'" in line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"age": "old"}, "could not convert string to float: 'old' (text in 'age')"),
        ({"town": 7}, "column 'town' of"),
        ({"town": 7}, "holds numbers, where the pipeline was fitted to text"),
        ({"town": "Bonn"}, "Found unknown categories ['Bonn']"),
    ],
)
def test_a_column_of_another_type_is_named(change, words, path):
    assert words in one_line_error(path, TABLE.assign(**change))


def test_levels_that_are_numbers_are_not_taken_for_text(tmp_path):
    X = TABLE.assign(town=np.arange(80) % 3)
    before = encoder("pandas", handle_unknown="ignore")
    pipeline = make_pipeline(before, DadaClassifier(user_column="u__person", **SHORT)).fit(X, CAME)
    save_model(pipeline, tmp_path / "p.dada")
    assert_array_equal(predicted(tmp_path / "p.dada", X)["label"].to_numpy(), pipeline.predict(X))
    assert "holds text, where the pipeline was fitted to numbers" in one_line_error(tmp_path / "p.dada", TABLE)


def test_the_user_of_a_column_has_no_option(path):
    assert "leave --user out" in one_line_error(path, TABLE, "--user", "person")


def test_missing_text_may_need_pandas(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    TABLE.to_csv(path.parent / "new.csv", index=False)
    result = CliRunner().invoke(app, ["predict", str(path), str(path.parent / "new.csv")])
    assert (result.exit_code, len(result.stderr.strip().splitlines())) == (2, 1)
    assert "pandas" in result.stderr


def test_inspect_names_steps_columns_and_features(path):
    seen = json.loads(run("inspect", path, "--json"))
    assert seen["pipeline"]["steps"] == [{"name": "columntransformer", "type": "ColumnTransformer"}]
    assert seen["pipeline"]["columns"] == ["age", "town", "person", "unused"]
    assert {entry["column"] for entry in seen["importances"]} <= {
        "n__age",
        "t__town_Oslo",
        "t__town_Rome",
        "t__town_nan",
    }
    assert run("inspect", path).startswith("Before the models: columntransformer (ColumnTransformer).")
    assert "n__age" in run("inspect", path, "--user", "ann")


@pytest.mark.parametrize("output", ["default", "polars"])
def test_features_are_named_whatever_the_steps_return(output, tmp_path):
    model = DadaClassifier(user_column=column_of_users(output), **SHORT)
    save_model(make_pipeline(encoder(output), model).fit(TABLE, CAME), tmp_path / "p.dada")
    assert "n__age" in run("inspect", tmp_path / "p.dada", "--user", "bob", "-o", tmp_path / "graph.png")


def test_other_commands_name_the_way_out(path):
    TABLE.assign(label=CAME).to_csv(path.parent / "new.csv", index=False)
    commands = [
        ["add-user", path, path.parent / "new.csv"],
        ["peer", "new-network", path.parent / "n", "--model", path],
    ]
    for command in commands:
        result = CliRunner().invoke(app, [str(argument) for argument in command])
        assert result.exit_code == 2
        assert "holds a pipeline" in " ".join(result.stderr.split())


def test_a_damaged_file_and_an_absent_extra_are_one_line(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "skops.io", None)
        assert 'pip install "dada-learn[pipelines]"' in one_line_error(path, TABLE)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"StandardScaler"', b'"StandardScalar"'))
    assert "damaged" in one_line_error(path, TABLE)
