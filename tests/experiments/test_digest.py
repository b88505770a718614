"""A page is recognised as older than its code: by constants, but not by comments."""

import json
import shutil

import pytest

from dada.experiments.catalogue import CATALOGUE, faults
from dada.experiments.digest import SOURCES, digest, modules_of

PAGE = "dada.experiments.table1"


@pytest.fixture
def sources(tmp_path):
    """A copy of the package, and a function that copies it anew with a file changed."""
    n_copies = iter(range(99))

    def changed(file="", old="", new=""):
        folder = tmp_path / str(next(n_copies))
        shutil.copytree(SOURCES / "dada", folder / "dada", ignore=shutil.ignore_patterns("__pycache__", "*.js"))
        if file:
            path = folder / "dada" / file
            text = path.read_text()
            assert old in text
            path.write_text(text.replace(old, new, 1))
        return folder

    return changed


def test_a_constant_of_a_method_changes_the_digest(sources):
    changed = sources("experiments/methods.py", "DELTA = 0.1", "DELTA = 0.2")
    assert digest([PAGE], sources=changed) != digest([PAGE])


def test_code_that_is_imported_indirectly_changes_the_digest(sources):
    changed = sources("core/graph_steps.py", "class LogDegree:", "@str\nclass LogDegree:")
    assert digest([PAGE], sources=changed) != digest([PAGE])


def test_what_a_module_does_when_it_is_imported_changes_the_digest(sources):
    changed = sources("core/losses.py", "import numpy as np", "import numpy as np\n\nnp.seterr(all='raise')")
    assert digest([PAGE], sources=changed) != digest([PAGE])


def test_a_definition_that_nothing_refers_to_does_not_count(sources):
    changed = sources("core/losses.py", "import numpy as np", "import numpy as np\n\nEXTRA = 1")
    assert digest([PAGE], sources=changed) == digest([PAGE])


def test_a_name_that_is_not_defined_is_reported(sources):
    changed = sources("experiments/methods.py", "BasePredictors, Population", "BasePredictors, Populace as Population")
    with pytest.raises(ValueError, match=r"dada\.data defines no 'Populace'"):
        digest([PAGE], sources=changed)


def test_results_of_rivals_do_not_depend_on_our_choices(sources):
    changed = sources("fitting/held_out.py", "N_FOLDS = 3", "N_FOLDS = 4")
    score, ours = "dada.experiments.public_tables.fold_score", "dada.experiments.ours"
    assert digest([score], sources=changed) == digest([score])
    assert digest([score, ours], sources=changed) != digest([score, ours])


def test_comments_docstrings_and_empty_lines_do_not_count(sources):
    changed = sources("experiments/methods.py", "DELTA = 0.1", "\n\n# A comment.\nDELTA = 0.1  # Another.")
    path = changed / "dada" / "experiments" / "methods.py"
    path.write_text(path.read_text().replace('"""Numbers rounded for a file."""', '"""Rounded\n\n    numbers."""'))
    assert digest([PAGE], sources=changed) == digest([PAGE])


@pytest.mark.parametrize("file", ["plot/theme.py", "cli/paper_commands.py", "estimators/classifier.py"])
def test_code_that_a_page_does_not_depend_on_does_not_count(sources, file):
    changed = sources(file, "from __future__ import annotations", "from __future__ import annotations\n\nEXTRA = 1")
    assert digest([PAGE], sources=changed) == digest([PAGE])


def test_the_pages_of_the_paper_do_not_depend_on_our_estimators():
    assert not [name for name in modules_of([PAGE]) if name.startswith("dada.estimators")]
    assert "dada.estimators.cv" in modules_of(["dada.experiments.beyond"])


@pytest.mark.parametrize("name", ["beyond", "messages", "tables", "untouched", "privacy"])
def test_pages_of_our_estimators_depend_on_how_they_choose(name):
    assert "dada.fitting.held_out" in modules_of(CATALOGUE[name].roots)
    assert "dada.estimators.classifier" in modules_of(CATALOGUE[name].roots)


def test_names_stand_for_the_module_that_defines_them():
    assert "dada.data" not in modules_of(["dada.task"])
    assert "dada.data.population" in modules_of(["dada.task"])


def test_a_page_of_other_code_is_reported(tmp_path):
    for entry in CATALOGUE.values():
        made = {"seed": 3, "mode": "full", "commit": "abc", "digest": entry.digest(3, "full")}
        (tmp_path / f"{entry.name}.json").write_text(json.dumps({"made_with": made}))
    assert faults(tmp_path) == []
    for name, change in {"kappa": {"digest": "0"}, "size": {"mode": "quick"}, "moons": {"seed": 4}}.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"made_with": json.loads(path.read_text())["made_with"] | change}))
    (tmp_path / "table1.json").unlink()
    found = faults(tmp_path)
    assert [fault.split(":")[0].removeprefix(f"{tmp_path}/") for fault in found] == [
        "table1.json is missing",
        "moons.json is older than its code (commit abc)",
        "kappa.json is older than its code (commit abc)",
        "size.json is of a quick run",
    ]
