"""Pages of results and measured figures are those of the present code, or say that they are not."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

from dada.experiments.catalogue import CATALOGUE, faults, mark

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results"
TABLES = runpy.run_path(str(DOCS / "tables.py"))
MEASURED = runpy.run_path(str(DOCS / "measured.py"))


def test_a_page_that_is_older_than_its_code_says_so(tmp_path):
    shutil.copytree(RESULTS, tmp_path, dirs_exist_ok=True)
    stale = [path.name for path in mark(tmp_path)]
    assert stale == [], (
        "code has changed: run `dada reproduce --check --mark --out docs/results`, or make the pages anew"
    )


def test_a_notice_comes_and_goes_with_the_fault(tmp_path):
    entry = CATALOGUE["kappa"]
    page, data = tmp_path / "kappa.md", tmp_path / "kappa.json"
    page.write_text("# Kappa\n\nText.\n")
    made = '{"made_with": {"mode": "full", "seed": 0, "commit": "abc", "digest": "%s"}}'
    data.write_text(made % "other")
    assert mark(tmp_path) == [page]
    assert page.read_text().startswith(
        "# Kappa\n\n> **Older than the code.** kappa.json is older than its code (commit abc)"
    )
    assert mark(tmp_path) == []
    data.write_text(made % entry.digest(0, "full"))
    assert mark(tmp_path) == [page]
    assert page.read_text() == "# Kappa\n\nText.\n"
    assert not [fault for fault in faults(tmp_path) if "kappa" in fault]


@pytest.mark.parametrize("page", TABLES["PAGES"], ids=lambda page: page.name)
def test_quoted_tables_are_those_of_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert text == TABLES["quoted"](text), "results have changed: run `python docs/tables.py`"


def test_a_table_is_found_by_its_caption(tmp_path):
    (tmp_path / "demo.md").write_text("**First**\n\n| a |\n| - |\n| 1 |\n\n**Second**\n\n| b |\n| - |\n| 2 |\n")
    page = "Text.\n\n<!-- demo: Second -->\n\n| old |\n\nMore.\n"
    assert TABLES["quoted"](page, tmp_path) == "Text.\n\n<!-- demo: Second -->\n\n| b |\n| - |\n| 2 |\n\nMore.\n"
    with pytest.raises(ValueError, match="has no table 'Third'"):
        TABLES["quoted"](page.replace("Second", "Third"), tmp_path)


def test_every_benchmark_that_a_page_quotes_has_a_row_that_says_when_it_ran():
    table = MEASURED["PAGE"].read_text(encoding="utf-8")
    pages = [DOCS.parent / "README.md", *DOCS.glob("*.md"), *DOCS.glob("howto/*.md")]
    quoted = {name for page in pages for name in re.findall(r"benchmarks[/.](\w+)", page.read_text(encoding="utf-8"))}
    assert sorted(name for name in quoted if not re.search(rf"benchmarks[/.]{name}\b", table)) == []
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert [row for row in rows if not MEASURED["ROW"].fullmatch(row)] == []


def test_figures_that_are_older_than_their_code_say_so():
    page = MEASURED["PAGE"].read_text(encoding="utf-8")
    assert page == MEASURED["marked"](page), "code has changed: run `python docs/measured.py`, or measure anew"


def test_a_mark_comes_with_another_digest_and_goes_when_measured_anew():
    row = "| demo | `python benchmarks/convergence.py` | abcdef0 | {} |"
    code, other = MEASURED["digest_of"](MEASURED["code_behind"](row)), 16 * "0"
    older = row.format(f"{other}, older than the code")
    assert MEASURED["marked"](row.format(other)) == older
    assert MEASURED["renewed"](older, ["other name"], "0123456") == older
    assert MEASURED["renewed"](older, ["demo"], "0123456") == row.replace("abcdef0", "0123456").format(code)
    assert MEASURED["marked"](row.format(f"{code}, older than the code")) == row.format(code)


def test_code_behind_commands_and_the_processes_that_they_start_counts():
    code = MEASURED["code_behind"]("`python benchmarks/scale_fit.py`")
    assert {path.name for path in code.scripts} == {"scale_fit.py", "machine.py"}
    assert {"dada.cli.fit.fit", "dada.load_model"} <= code.names
    with pytest.raises(ValueError, match="no code is known"):
        MEASURED["code_behind"]("by hand")
