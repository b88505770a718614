"""`dada datasets generate` writes a table that `dada fit` accepts, and a fit reports its peak memory."""

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from dada import DadaClassifier, population_from_table
from dada.cli.app import app

COLUMNS = ["--user", "user", "--label", "label", "--drop", "group"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated")
    arguments = ["datasets", "generate", str(folder / "users.parquet"), "--users", "12", "--test"]
    result = CliRunner().invoke(app, [*arguments, str(folder / "test.parquet"), "--test-rows", "4", "--json"])
    assert json.loads(result.stdout)["users"] == 12
    return folder


def test_every_user_has_rows_a_label_and_one_group(folder):
    train, test = pl.read_parquet(folder / "users.parquet"), pl.read_parquet(folder / "test.parquet")
    assert train.columns == test.columns == ["user", "label", *(f"x{j}" for j in range(20)), "group"]
    of_user = train.group_by("user").agg(pl.len(), pl.col("group").n_unique())
    assert of_user.height == 12
    assert of_user["len"].is_between(3, 15).all()
    assert of_user["group"].eq(1).all()
    assert test.group_by("user").len()["len"].eq(4).all()


def test_a_fit_reports_its_peak_memory(folder):
    fit = ["fit", str(folder / "users.parquet"), *COLUMNS, "--holdout", "0", "--graph", "none", "--updates", "5"]
    result = CliRunner().invoke(app, [*fit, "-o", str(folder / "model.dada"), "--json"])
    assert result.exit_code == 0, result.output
    assert 0.01 < json.loads(result.stdout)["peak_gb"] < 100


class BeyondAnyMachine:
    """A recipe with more base predictors than memory can hold."""

    n, n_features, dtype = 10**15, 20, np.dtype(np.int8)

    def fit(self, X):
        return self


def test_a_fit_that_lacks_memory_is_refused_before_it_starts(folder):
    people = population_from_table(folder / "users.parquet", user="user", label="label", drop=["group"])
    with pytest.raises(ValueError, match=r"a fit of 12 users with \d+ rows and 1,000,000,000,000,000 base predictors"):
        DadaClassifier(BeyondAnyMachine(), mu=1.0, graph="everyone").fit_population(people)


@pytest.mark.parametrize("kind", ["boxes", "xor"])
def test_features_of_generated_users_interact(kind, tmp_path):
    arguments = ["datasets", "generate", str(tmp_path / "users.parquet"), "--users", "6", "--kind", kind]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    table = pl.read_parquet(tmp_path / "users.parquet")
    assert table.columns == ["user", "label", *(f"x{j}" for j in range(8)), "group"]
    first = table.filter(pl.col("group") == 0)
    a, b, label = (first[name].to_numpy() for name in ("x0", "x1", "label"))
    expected = a * b > 0 if kind == "xor" else np.maximum(abs(a), abs(b)) < 0.7
    assert np.mean((label == 1) == expected) > 0.85
