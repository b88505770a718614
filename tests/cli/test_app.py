"""The tree of commands."""

import subprocess
import sys

import pytest

HEAVY = ("matplotlib", "networkx", "numba", "numpy", "polars", "scipy", "sklearn")


@pytest.mark.parametrize("command", [[], ["fit"], ["datasets", "fetch"], ["bench"], ["peer", "run"]])
def test_help_imports_no_numerical_library(command):
    program = f"""
import sys
from dada.cli.app import app
try:
    app({[*command, "--help"]!r}, prog_name="dada")
except SystemExit as end:
    assert end.code == 0
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "Usage: dada" in shown
    assert shown.rstrip().endswith("[]")
