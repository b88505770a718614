"""The tree of commands."""

import errno
import subprocess
import sys

import typer
from typer.testing import CliRunner

from dada.cli.app import app
from dada.cli.console import Commands, common_options

HEAVY = ("matplotlib", "networkx", "numba", "numpy", "polars", "scipy", "sklearn")


COMMANDS = ([], ["fit"], ["datasets", "fetch"], ["bench"], ["peer", "run"])


def test_help_imports_no_numerical_library():
    program = f"""
import sys
from dada.cli.app import app
for command in {COMMANDS!r}:
    try:
        app([*command, "--help"], prog_name="dada")
    except SystemExit as end:
        assert end.code == 0
    print(command, [name for name in {HEAVY!r} if name in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.count("Usage: dada") == len(COMMANDS)
    for command in COMMANDS:
        assert f"{command} []\n" in shown


def test_a_misspelled_command_is_answered_with_the_right_one():
    result = CliRunner().invoke(app, ["inspct"])
    assert result.exit_code == 2
    assert "Did you mean 'inspect'" in " ".join(result.stderr.split())


def command_that_raises(error):
    commands = typer.Typer(cls=Commands, pretty_exceptions_enable=False)
    commands.callback()(common_options)

    @commands.command()
    def work():
        raise error

    return CliRunner().invoke(commands, ["work"])


def test_a_missing_extra_is_one_line():
    result = command_that_raises(ImportError('this needs Ray: pip install "dada-learn[ray]"'))
    assert (result.exit_code, result.stderr.strip()) == (2, 'Error: this needs Ray: pip install "dada-learn[ray]"')


def test_a_closed_pipe_ends_a_command_without_a_message():
    result = command_that_raises(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert (result.exit_code, result.output) == (1, "")
