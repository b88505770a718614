"""Shared parts of the commands: streams, tables, progress bars, one-line errors, common options."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from dada import __version__

AsJson = Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed; the same seed gives the same result.")]

FILE_WIDTH = 200

Watch = Callable[[str], Callable[[Any], None]]


def stdout() -> Console:
    """The terminal for results."""
    return Console()


def stderr() -> Console:
    """The terminal for messages."""
    return Console(stderr=True)


def print_json(value: Any) -> None:
    """Write a result as JSON."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    best: int | None = None,
    title: str = "",
    wide: bool = False,
    text_columns: int = 1,
) -> None:
    """Write a table; the first columns are text, the others are numbers, and the row at `best` is highlighted.

    A wide table is wrapped on a terminal and has its full width in a file.
    """
    table = Table(title=title or None, title_justify="left", title_style="bold", header_style="dim", box=None)
    table.pad_edge = wide
    for position, name in enumerate(header):
        justify: Literal["left", "right"] = "left" if position < text_columns else "right"
        table.add_column(name, justify=justify, no_wrap=not wide, overflow="fold" if wide else "ellipsis")
    for position, row in enumerate(rows):
        table.add_row(*(Text(cell) for cell in row), style="bold cyan" if position == best else None)
    console = stdout()
    if wide and not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    console.print(table)


def print_error(message: str) -> None:
    """Write one red line."""
    one_line = " ".join(message.split())
    stderr().print(Text.assemble(("Error: ", "bold red"), (one_line, "red")), soft_wrap=True)


@contextmanager
def progress() -> Iterator[Watch]:
    """Progress bars on stderr; a call with a name returns an observer of a run. Hidden without a terminal."""
    console = stderr()
    columns = (TextColumn("{task.description:<14}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    bars = Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal)
    with bars:
        yield lambda name: RunBar(bars, name)


@contextmanager
def working(task: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr: call the result with the current task. Hidden without a terminal."""
    console = stderr()
    if not console.is_terminal:
        yield lambda task: None
        return
    with console.status(task) as status:
        yield lambda task: status.update(task)


class RunBar:
    """An observer of a run that advances one progress bar."""

    def __init__(self, bars: Progress, name: str) -> None:
        self.bars, self.name, self.task = bars, name, bars.add_task(name, total=None)

    def __call__(self, event: Any) -> None:
        """Show the progress or the current trial."""
        # Imported late: the events come with NumPy, which `dada --help` does not need.
        from dada import events

        if isinstance(event, events.TrialStarted):
            self.bars.update(self.task, description=f"{self.name}: trying {event.choice}")
        elif isinstance(event, events.Progress):
            self.bars.update(self.task, description=self.name, completed=event.done, total=event.total)


def percent(value: float) -> str:
    """A fraction as a percentage.

    >>> percent(0.8849)
    '88.5%'
    """
    # Rounded first: two ways to compute the same mean must print the same number.
    return f"{100 * round(value, 6):.1f}%"


def bits(value: float | None) -> str:
    """A number of bits, in a suitable unit.

    >>> bits(41_300_000.0), bits(0.0), bits(None)
    ('41.3 Mbit', '0', '-')
    """
    if value is None:
        return "-"
    for unit, size in (("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f}"


def number(value: float | None) -> str:
    """A number with one digit after the point, or a dash."""
    return "-" if value is None else f"{value:.1f}"


def mean_of_users(values: Any) -> float | None:
    """Mean over users; None if there is no accuracy, as for numbers and several classes."""
    import numpy as np

    return None if np.isnan(values).all() else round(float(np.nanmean(values)), 6)


GraphRule = Literal["evidence", "distance", "everyone"]
GraphOption = Annotated[
    GraphRule,
    typer.Option(
        "--graph",
        help="How peers choose neighbours: by the fit of models to their samples, as in the paper, or ten at random.",
    ),
]
StepRule = Literal["block", "pairwise"]
StepOption = Annotated[
    StepRule,
    typer.Option(
        "--step", help="Model step of peers: many moves and one short coded message, or one move and one message."
    ),
]


def plan_settings(graph: GraphRule, step: StepRule) -> dict[str, Any]:
    """The usual settings of peers as those of `Plan`; with "everyone", the plan needs a graph."""
    from dada.peer.inputs import usual_settings

    settings = usual_settings(graph, step)
    rule = settings.pop("graph")
    return settings | ({"learn_graph": False} if rule == "everyone" else {"graph_rule": rule})


class Commands(TyperGroup):
    """Commands that report expected errors in one line with exit code 2; --debug shows the traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader has seen enough, as `head` does: Typer ends such a command without a message.
            raise
        except (ImportError, OSError, ValueError, TypeError) as error:
            if ctx.params.get("debug"):
                raise
            print_error(_in_words(error))
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            print_error("interrupted")
            raise typer.Exit(130) from error


def _in_words(error: Exception) -> str:
    """The message of an error; of files, their name comes first, without the system's number.

    >>> _in_words(FileNotFoundError(2, "No such file or directory", "visits.csv"))
    'visits.csv: no such file or directory'
    """
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    return str(error)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"dada {__version__}\n")
        raise typer.Exit()


def common_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Personal models for many users, learned together with the graph of who learns from whom."""
