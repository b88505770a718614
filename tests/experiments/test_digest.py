"""A page is recognised as older than its code: by constants, but not by comments."""

import json
import shutil

import pytest

from dada.experiments.catalogue import CATALOGUE, faults
from dada.experiments.digest import SOURCES, digest, modules_of

PAGE = "dada.experiments.table1"


@pytest.fixture(scope="module")
def usual():
    """The digest of a page of the package as it is."""
    return digest([PAGE])


@pytest.fixture
def sources(tmp_path):
    """A function that copies the package, with the first place of a text changed in some of its files."""

    def changed(old, new, *files):
        shutil.copytree(SOURCES / "dada", tmp_path / "dada", ignore=shutil.ignore_patterns("__pycache__", "*.js"))
        for file in files:
            path = tmp_path / "dada" / file
            text = path.read_text()
            assert old in text
            path.write_text(text.replace(old, new, 1))
        return tmp_path

    return changed


def test_a_constant_of_a_method_changes_the_digest(sources, usual):
    changed = sources("DELTA = 0.1", "DELTA = 0.2", "experiments/methods.py")
    assert digest([PAGE], sources=changed) != usual


def test_code_that_is_imported_indirectly_changes_the_digest(sources, usual):
    changed = sources("class LogDegree:", "@str\nclass LogDegree:", "core/graph_steps.py")
    assert digest([PAGE], sources=changed) != usual


def test_what_a_module_does_when_it_is_imported_changes_the_digest(sources, usual):
    changed = sources("import numpy as np", "import numpy as np\n\nnp.seterr(all='raise')", "core/losses.py")
    assert digest([PAGE], sources=changed) != usual


def test_a_definition_that_nothing_refers_to_does_not_count(sources, usual):
    changed = sources("import numpy as np", "import numpy as np\n\nEXTRA = 1", "core/losses.py")
    assert digest([PAGE], sources=changed) == usual


def test_a_name_that_is_not_defined_is_reported(sources):
    changed = sources("BasePredictors, Population", "BasePredictors, Populace as Population", "experiments/methods.py")
    with pytest.raises(ValueError, match=r"dada\.data defines no 'Populace'"):
        digest([PAGE], sources=changed)


def test_results_of_rivals_do_not_depend_on_our_choices(sources):
    changed = sources("N_FOLDS = 3", "N_FOLDS = 4", "fitting/held_out.py")
    score, ours = "dada.experiments.public_tables.fold_score", "dada.experiments.ours"
    assert digest([score], sources=changed) == digest([score])
    assert digest([score, ours], sources=changed) != digest([score, ours])


def test_comments_docstrings_and_empty_lines_do_not_count(sources, usual):
    changed = sources("DELTA = 0.1", "\n\n# A comment.\nDELTA = 0.1  # Another.", "experiments/methods.py")
    path = changed / "dada" / "experiments" / "methods.py"
    path.write_text(path.read_text().replace('"""Numbers rounded for a file."""', '"""Rounded\n\n    numbers."""'))
    assert digest([PAGE], sources=changed) == usual


def test_code_that_a_page_does_not_depend_on_does_not_count(sources, usual):
    first = "from __future__ import annotations"
    changed = sources(
        first, f"{first}\n\nEXTRA = 1", "plot/theme.py", "cli/paper_commands.py", "estimators/classifier.py"
    )
    assert digest([PAGE], sources=changed) == usual


def test_the_pages_of_the_paper_do_not_depend_on_our_estimators():
    assert not [name for name in modules_of([PAGE]) if name.startswith("dada.estimators")]
    assert "dada.estimators.cv" in modules_of(["dada.experiments.beyond"])


@pytest.mark.parametrize("name", ["beyond", "messages", "tables", "untouched", "privacy"])
def test_pages_of_our_estimators_depend_on_how_they_choose(name):
    assert {"dada.fitting.held_out", "dada.estimators.classifier"} <= set(modules_of(CATALOGUE[name].roots))


def test_names_stand_for_the_module_that_defines_them():
    assert "dada.data" not in modules_of(["dada.task"])
    assert "dada.data.population" in modules_of(["dada.task"])


def test_a_page_of_other_code_is_reported(tmp_path):
    some = {name: CATALOGUE[name] for name in ("table1", "moons", "graph", "kappa", "size")}
    for entry in some.values():
        made = {"seed": 3, "mode": "full", "commit": "abc", "digest": entry.digest(3, "full")}
        (tmp_path / f"{entry.name}.json").write_text(json.dumps({"made_with": made}))
    assert faults(tmp_path, some) == []
    for name, change in {"kappa": {"digest": "0"}, "size": {"mode": "quick"}, "moons": {"seed": 4}}.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"made_with": json.loads(path.read_text())["made_with"] | change}))
    (tmp_path / "table1.json").unlink()
    found = faults(tmp_path, some)
    assert [fault.split(":")[0].removeprefix(f"{tmp_path}/") for fault in found] == [
        "table1.json is missing",
        "moons.json is older than its code (commit abc)",
        "kappa.json is older than its code (commit abc)",
        "size.json is of a quick run",
    ]


def test_names_of_the_package_itself_are_followed_to_their_homes(sources):
    usual = digest(["dada.Stumps"])
    changed = sources("class Stumps:", "@str\nclass Stumps:", "data/predictors/thresholds.py")
    assert digest(["dada.Stumps"], sources=changed) != usual


def test_peers_count_unless_they_are_left_out(sources):
    usual = [digest(["dada.sim.network_of"], left_out=out) for out in ((), ("dada.peer",))]
    changed = sources("class Member:", "@str\nclass Member:", "peer/member.py")
    now = [digest(["dada.sim.network_of"], sources=changed, left_out=out) for out in ((), ("dada.peer",))]
    assert (now[0] != usual[0], now[1] == usual[1]) == (True, True)
