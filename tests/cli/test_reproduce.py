"""``dada reproduce`` on the command line."""

import json

from typer.testing import CliRunner

from dada.cli.app import app
from dada.cli.paper_commands import make_pages
from dada.experiments.catalogue import CATALOGUE, Reproduction
from dada.experiments.page import Page, Table


def small(name="small"):
    def make(lab, datasets):
        rows = [["ours", f"{lab.seed}"], ["quick", str(lab.quick)]]
        return Page(name, "A page", "Lead.", [Table("Small", ["", "value"], rows)], {"seed": lab.seed})

    return Reproduction(name, "A page", "supplement", make)


def dada(*arguments):
    return CliRunner().invoke(app, ["reproduce", *arguments])


def test_the_list_names_every_page():
    shown = dada("--list").stdout
    assert all(name in shown for name in (*CATALOGUE, "all"))


def test_an_unknown_name_is_answered_with_the_known_ones():
    result = dada("table3")
    assert result.exit_code == 2
    assert "table1" in result.stderr
    assert "'table3'" in result.stderr


def test_files_are_written_and_json_printed(tmp_path, capsys):
    def made(out):
        make_pages([small()], None, out, as_json=True, work={"seed": 5, "n_jobs": 1})
        return capsys.readouterr().out

    printed = made(tmp_path)
    assert json.loads(printed)["seed"] == 5
    stored = (tmp_path / "small.json").read_text()
    assert json.loads(stored) == json.loads(printed)
    assert "seconds" not in stored
    assert json.loads((tmp_path / "timing.json").read_text())["small"] >= 0
    assert made(tmp_path / "again") == printed
    assert (tmp_path / "again" / "small.json").read_text() == stored


def test_tables_are_printed_whole_into_a_file(tmp_path, capsys):
    make_pages([small()], None, tmp_path, as_json=False, work={"quick": True, "n_jobs": 1})
    shown = capsys.readouterr().out
    assert "Small" in shown
    assert "True" in shown


def test_several_pages_have_an_index(tmp_path, capsys):
    make_pages([small("one"), small("two")], None, tmp_path, as_json=True, work={"n_jobs": 1})
    assert set(json.loads(capsys.readouterr().out)) == {"one", "two"}
    assert "[A page](two.md) (supplement)" in (tmp_path / "index.md").read_text()


def test_a_dataset_that_is_not_one_is_refused():
    result = dada("table1", "--dataset", "iris")
    assert result.exit_code == 2
    assert "'iris'" in result.stderr
