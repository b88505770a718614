"""The tree of commands."""

from __future__ import annotations

import typer

from dada.cli.console import Commands, common_options
from dada.cli.demo import bench, demo
from dada.cli.fit import fit
from dada.cli.model_commands import add_user, inspect, predict
from dada.cli.networks import replay, sim, swarm
from dada.cli.paper_commands import app as datasets
from dada.cli.paper_commands import reproduce
from dada.cli.peer_commands import app as peer
from dada.cli.watching import dashboard, report

app = typer.Typer(
    name="dada",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(common_options)
for command in (demo, fit, predict, add_user, inspect, reproduce, dashboard, report, sim, replay, swarm, bench):
    app.command()(command)
app.add_typer(datasets, name="datasets")
app.add_typer(peer, name="peer")


def main() -> None:
    """Run the command with the arguments of the process."""
    app(prog_name="dada")
