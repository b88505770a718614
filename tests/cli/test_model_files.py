"""Commands given a file that is no model, a damaged one, or one from the future say so in one line."""

import json
import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

from dada import DadaClassifier, DadaRegressor, save_model
from dada.cli.app import app


@pytest.fixture
def model(tmp_path):
    X, y, users = [[0.0], [1.0], [0.2], [0.9]], ["no", "yes", "no", "yes"], ["ann", "ann", "bob", "bob"]
    save_model(DadaClassifier(graph="none", n_updates=5, random_state=0).fit(X, y, users=users), tmp_path / "m.dada")
    (tmp_path / "new.csv").write_text("user,x0\nann,0.3\n")
    return tmp_path / "m.dada"


def with_version(path, version):
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["manifest.json"] = json.dumps(json.loads(content["manifest.json"]) | {"version": version}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def one_line_error(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    return line


@pytest.fixture(params=["predict", "inspect"])
def command(request, model):
    return ["predict", model, model.parent / "new.csv"] if request.param == "predict" else ["inspect", model]


def test_a_whole_file_is_read(command):
    assert CliRunner().invoke(app, [str(argument) for argument in command]).exit_code == 0


def test_a_newer_file_asks_for_a_newer_library(command, model):
    with_version(model, 99)
    assert "version 99" in one_line_error(*command)


def test_a_file_cut_short_is_refused(command, model):
    model.write_bytes(model.read_bytes()[:-200])
    assert "m.dada" in one_line_error(*command)


def test_a_changed_byte_is_noticed(command, model):
    data = bytearray(model.read_bytes())
    at = data.index(b"\x93NUMPY") + 200
    data[at] ^= 255
    model.write_bytes(bytes(data))
    assert "m.dada" in one_line_error(*command)


def test_a_missing_file_is_named(command, model):
    model.unlink()
    assert "m.dada" in one_line_error(*command)


def test_debug_shows_the_traceback(model):
    model.unlink()
    result = CliRunner().invoke(app, ["--debug", "inspect", str(model)])
    assert isinstance(result.exception, FileNotFoundError)


@pytest.fixture
def people(tmp_path):
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(60, 2)), np.repeat(["ann", "bob", "cid"], 20)
    rows = "".join(f"{user},{a},{b}\n" for user, (a, b) in zip(users[::10], X[::10], strict=True))
    (tmp_path / "rows.csv").write_text("user,a,b\n" + rows)
    return X, users


def run_json(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_several_classes_are_predicted_and_inspected(people, tmp_path):
    X, users = people
    y = np.array(["low", "middle", "top"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    save_model(DadaClassifier(n_updates=30, random_state=0).fit(X, y, users=users), tmp_path / "kinds.dada")
    rows = run_json("predict", tmp_path / "kinds.dada", tmp_path / "rows.csv")
    assert {row["label"] for row in rows} <= {"low", "middle", "top"}
    assert all(1 / 3 <= row["score"] <= 1 for row in rows)
    seen = run_json("inspect", tmp_path / "kinds.dada", "--user", "bob", "-o", tmp_path / "graph.png")
    assert seen["train_accuracy"] is None
    assert all(entry["predictor"].startswith(("low: ", "middle: ", "top: ")) for entry in seen["predictors"])
    assert CliRunner().invoke(app, ["inspect", str(tmp_path / "kinds.dada")]).exit_code == 0


def test_numbers_are_predicted_and_inspected(people, tmp_path):
    X, users = people
    save_model(DadaRegressor(n_updates=30, random_state=0).fit(X, 40 + X[:, 0], users=users), tmp_path / "n.dada")
    rows = run_json("predict", tmp_path / "n.dada", tmp_path / "rows.csv")
    assert all(set(row) == {"user", "label"} and 30 < row["label"] < 50 for row in rows)
    assert run_json("inspect", tmp_path / "n.dada")["users"] == 3
