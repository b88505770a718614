"""`dada inspect` tells what models are made of, and draws a tree."""

import json
import re

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner

from dada import BoostedTrees, DadaClassifier, DadaRegressor, Linear, RandomFourier, Union, save_model
from dada.cli.app import app
from dada.cli.explained import drawn_tree, kinds_of, strongest_predictors

RECIPE = Union(Linear(), BoostedTrees(rounds=15, rate=0.3, share=0.75))


def fitted(kind):
    """The target depends on age and town together."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"age": rng.normal(40, 10, 120), "town": rng.choice(["Oslo", "Rome"], 120)})
    fits = (frame["age"].to_numpy() > 40) == (frame["town"].to_numpy() == "Rome")
    labels = {"two": fits, "several": np.where(frame["age"] > 50, "old", fits.astype(str)), "numbers": 20.0 * fits}
    estimator = DadaRegressor if kind == "numbers" else DadaClassifier
    model = estimator(RECIPE, graph="everyone", mu=0.1, n_updates=20, random_state=0)
    return model.fit(frame, labels[kind], users=np.repeat(["ann", "bob", "cid"], 40))


def leaves_of(node):
    return [node] if isinstance(node, float) else leaves_of(node["yes"]) + leaves_of(node["no"])


@pytest.mark.parametrize("options", [(), ("--user", "bob")], ids=["all", "one"])
@pytest.mark.parametrize("kind", ["two", "several", "numbers"])
def test_boosted_trees_are_told_and_drawn(kind, options, tmp_path):
    model, path = fitted(kind), tmp_path / "m.dada"
    save_model(model, path)
    shown = CliRunner().invoke(app, ["inspect", str(path), *options]).stdout
    found = json.loads(CliRunner().invoke(app, ["inspect", str(path), *options, "--json"]).stdout)
    assert {part["kind"] for part in found["parts"]} == {"linear", "leaves"}
    assert sum(part["share"] for part in found["parts"]) == pytest.approx(1)
    assert "15 small trees with leaf values of each user's own" in shown
    label = found["tree"]["label"]
    target = "the prediction" if kind == "numbers" else f"the score of {label!r}"
    assert f"Of 15 trees, the one that moves {target} most" in shown
    lines = drawn_tree(found["tree"]["root"])
    assert set(lines) <= set(shown.splitlines())
    # A level is present or not, without a threshold.
    questions = [line.rpartition(": ")[2].strip() for line in lines if line.endswith("?")]
    assert questions
    assert all(re.fullmatch(r"age > [\d.]+\?|town = \"(Oslo|Rome)\"\?", question) for question in questions)
    # Leaves of numbers are in their unit.
    weights = (model.models_[[1]] if options else model.models_).mean(axis=0)
    in_units = weights * (model.target_scale_ if kind == "numbers" else 1.0)
    assert all(np.abs(in_units - leaf).min() < 1e-6 for leaf in leaves_of(found["tree"]["root"]))


def test_leaves_with_equal_tests_are_one_predictor():
    model = fitted("two")
    found = strongest_predictors(model, 1, top=1000)
    words = [row["predictor"] for row in found]
    assert len(set(words)) == len(words)
    assert [abs(row["weight"]) for row in found] == sorted((abs(row["weight"]) for row in found), reverse=True)
    assert_allclose(sum(row["weight"] for row in found), model.models_[1].sum(), rtol=1e-5)


def test_users_in_pictures_have_the_kind_of_their_predictions():
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(90, 2)), np.repeat(["ann", "bob", "cid"], 30)
    shift = np.repeat([0.0, 5.0, 10.0], 30)
    settings = {"graph": "everyone", "mu": 0.01, "n_updates": 30, "random_state": 0}
    numbers = DadaRegressor("linear", **settings).fit(X, X[:, 0] + shift, users=users)
    kinds, names = kinds_of(numbers)
    assert kinds.tolist() == [0, 1, 2]
    assert names[0].startswith("predictions up to")
    labels = np.where(rng.random(90) < 0.9, np.repeat(["tea", "milk", "soda"], 30), "tea")
    classes = DadaClassifier("linear", **settings).fit(X, labels, users=users)
    kinds, names = kinds_of(classes)
    assert [names[kind] for kind in kinds.tolist()] == ["mostly tea", "mostly milk", "mostly soda"]
    waves = DadaClassifier(RandomFourier(n=5), **settings).fit(X, labels, users=users)
    assert kinds_of(waves) is None
