"""``dada reproduce`` on the command line."""

import json

import pytest
from typer.testing import CliRunner

from dada.cli import app
from dada.experiments import catalogue
from dada.experiments.catalogue import Reproduction
from dada.experiments.page import Page, Table


@pytest.fixture
def small_page(monkeypatch):
    def make(lab, datasets):
        rows = [["ours", f"{lab.seed}"], ["quick", str(lab.quick)]]
        return Page("kappa", "A page", "Lead.", [Table("Small", ["", "value"], rows)], {"seed": lab.seed})

    entry = Reproduction("kappa", "A page", "supplement", make)
    monkeypatch.setitem(catalogue.CATALOGUE, "kappa", entry)


def dada(*arguments):
    return CliRunner().invoke(app, ["reproduce", *arguments])


def test_the_list_names_every_page():
    shown = dada("--list").stdout
    assert all(name in shown for name in (*catalogue.CATALOGUE, "all"))


def test_an_unknown_name_is_answered_with_the_known_ones():
    result = dada("table3")
    assert result.exit_code == 2
    assert "table1" in result.stderr
    assert "'table3'" in result.stderr


def test_files_are_written_and_json_printed(small_page, tmp_path):
    result = dada("kappa", "--json", "--seed", "5", "--out", str(tmp_path), "--jobs", "1")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["seed"] == 5
    stored = (tmp_path / "kappa.json").read_text()
    assert json.loads(stored) == json.loads(result.stdout)
    assert "seconds" not in stored
    assert json.loads((tmp_path / "timing.json").read_text())["kappa"] >= 0
    again = dada("kappa", "--json", "--seed", "5", "--out", str(tmp_path / "again"), "--jobs", "1")
    assert (tmp_path / "again" / "kappa.json").read_text() == stored
    assert again.stdout == result.stdout


def test_tables_are_printed_whole_into_a_file(small_page, tmp_path):
    shown = dada("kappa", "--quick", "--out", str(tmp_path)).stdout
    assert "Small" in shown
    assert "True" in shown


def test_a_dataset_that_is_not_one_is_refused():
    result = dada("table1", "--dataset", "iris")
    assert result.exit_code == 2
    assert "'iris'" in result.stderr
