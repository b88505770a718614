"""`dada datasets generate` writes a table that `dada fit` takes, and a fit tells how much memory it took."""

import json

import polars as pl
import pytest
from typer.testing import CliRunner

from dada.cli import app
from dada.core import memory

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


def test_a_fit_of_it_tells_its_peak_memory(folder):
    fit = ["fit", str(folder / "users.parquet"), *COLUMNS, "--holdout", "0", "--graph", "none", "--updates", "5"]
    result = CliRunner().invoke(app, [*fit, "-o", str(folder / "model.dada"), "--json"])
    assert result.exit_code == 0, result.output
    assert 0.01 < json.loads(result.stdout)["peak_gb"] < 100


def test_a_fit_that_lacks_memory_says_so_in_one_line(folder, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    fit = ["fit", str(folder / "users.parquet"), *COLUMNS, "--holdout", "0", "-o", str(folder / "none.dada")]
    result = CliRunner().invoke(app, fit)
    assert result.exit_code == 2
    assert "a fit of 12 users with" in " ".join(result.stderr.split())
    assert not (folder / "none.dada").exists()
