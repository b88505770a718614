"""The tree of commands."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dada import __version__
from dada.cli.bench import bench
from dada.cli.console import print_error
from dada.cli.dataset_commands import app as datasets
from dada.cli.demo import demo
from dada.cli.fit import fit
from dada.cli.inspect import inspect
from dada.cli.networks import replay, sim, swarm
from dada.cli.peer_commands import app as peer
from dada.cli.predict import predict
from dada.cli.reproduce import reproduce
from dada.cli.watching import dashboard, report


class Commands(TyperGroup):
    """Commands that report expected errors in one line with exit code 2; --debug shows the traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (OSError, ValueError, TypeError) as error:
            if ctx.params.get("debug"):
                raise
            print_error(str(error))
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            print_error("interrupted")
            raise typer.Exit(130) from error


app = typer.Typer(
    name="dada",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"dada {__version__}\n")
        raise typer.Exit()


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Personal models for many users, learned together with the graph of who learns from whom."""


app.command()(demo)
app.command()(fit)
app.command()(predict)
app.command()(inspect)
app.command()(reproduce)
app.command()(dashboard)
app.command()(report)
app.command()(sim)
app.command()(replay)
app.command()(swarm)
app.command()(bench)
app.add_typer(datasets, name="datasets")
app.add_typer(peer, name="peer")


def main() -> None:
    """Run the command with the arguments of the process."""
    app(prog_name="dada")
