"""The installed distribution and the imported package agree."""

import re
import subprocess
from importlib import metadata, resources
from pathlib import Path

import dada

ROOT = Path(__file__).parents[1]


def test_version_is_the_one_of_the_distribution():
    assert dada.__version__ == metadata.version("dada-learn")


def test_every_public_name_exists_and_the_list_is_sorted():
    assert [name for name in dada.__all__ if not hasattr(dada, name)] == []
    assert list(dada.__all__) == sorted(dada.__all__)


def test_annotations_are_published_to_type_checkers():
    assert resources.files("dada").joinpath("py.typed").is_file()


def test_the_command_is_the_one_of_the_command_package():
    (command,) = metadata.entry_points(group="console_scripts", name="dada")
    assert command.value == "dada.cli.app:main"


def test_make_knows_how_to_make_all_of_its_targets():
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    made = subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
