"""The Python code of the README, of docs/ and of its notebooks runs, page by page, in an empty folder.

A block fenced as ```python runs after the blocks above it: as a script, or, where it starts with >>>, as
examples with their output. What a page says that a script prints is compared with what it prints. A block fenced as
```python no-run is only shown. With DADA_PICTURES=docs/images the
pictures that pages draw become those that they show.
"""

import doctest
import json
import os
import re
import runpy
import shutil
import textwrap
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
NOTEBOOKS = sorted(ROOT.glob("docs/**/*.ipynb"))
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n+It prints\n\n((?:    [^\n]*\n)+))?", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(page)
    if wanted := os.environ.get("DADA_PICTURES"):
        for picture in tmp_path.glob("*.png"):
            shutil.copy(picture, ROOT / wanted)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_of_page_are_there(page):
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    missing = [name for name in shown if not (page.parent / name).is_file()]
    assert missing == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_of_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), namespace)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_shows_what_its_code_gave(path):
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert [output["output_type"] for cell in cells for output in cell["outputs"]].count("error") == 0


def test_reference_of_commands_is_that_of_the_code():
    written = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "docs" / "commands.py"))["reference"]()
    assert written == made, "commands have changed: run `python docs/commands.py` and commit docs/commands.md"


def test_a_wrong_page_fails_at_its_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 3\n```\nText.\n```python\n>>> x\n4\n```\n")
    with pytest.raises(pytest.fail.Exception, match=r'page.md", line 6'):
        run_blocks(page)


def test_output_that_differs_from_the_page_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\nprint(3)\n```\n\nIt prints\n\n    2\n    3\n")
    run_blocks(page)
    page.write_text(page.read_text().replace("    3", "    4"))
    with pytest.raises(AssertionError, match=r"page\.md prints something else"):
        run_blocks(page)


def run_blocks(page):
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        source, line = block[1], text.count("\n", 0, block.start(1))
        if source.startswith(">>>"):
            run_examples(source, namespace, page, line)
        else:
            with redirect_stdout(StringIO()) as printed:
                exec(compile("\n" * line + source, page, "exec"), namespace)
            if block[2]:
                assert printed.getvalue() == textwrap.dedent(block[2]), f"{page.name} prints something else"


def run_examples(source, namespace, page, line):
    test = doctest.DocTestParser().get_doctest(source, {}, page.name, str(page), line)
    test.globs = namespace
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report = []
    runner.run(test, out=report.append, clear_globs=False)
    if runner.failures:
        pytest.fail("".join(report), pytrace=False)
