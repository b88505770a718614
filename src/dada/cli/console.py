"""Shared parts of the commands: streams, tables, progress bars, one-line errors, common options."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column, Table
from rich.text import Text
from typer.core import TyperGroup

from dada import __version__

AsJson = Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed; the same seed gives the same result.")]

# Names of the option that says where to write, the same in all commands.
OUTPUT = ("-o", "--output", "--out")
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

    On a narrow terminal, headers and text are wrapped and numbers stay whole. In a file the table has its full width.
    A wide table has more space between its columns.
    """
    table = Table(title=title or None, title_justify="left", title_style="bold", header_style="dim", box=None)
    table.pad_edge = wide
    for position, name in enumerate(header):
        justify: Literal["left", "right"] = "left" if position < text_columns else "right"
        longest = 0 if position < text_columns else max((len(row[position]) for row in rows), default=0)
        table.add_column(name, justify=justify, overflow="fold", min_width=longest)
    for position, row in enumerate(rows):
        table.add_row(*(Text(cell) for cell in row), style="bold cyan" if position == best else None)
    console = stdout()
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    console.print(table)


def write(text: str) -> None:
    """Write text as it is."""
    stdout().print(text, highlight=False, markup=False, soft_wrap=True)


def print_error(message: str) -> None:
    """Write one red line."""
    one_line = " ".join(message.split())
    stderr().print(Text.assemble(("Error: ", "bold red"), (one_line, "red")), soft_wrap=True)


# Of a stage that makes choices first, the share of their trials, and how many are usual.
SHARE_OF_TRIALS, USUAL_TRIALS = 0.9, 12
# The usual time of a command counts like what its first tenth has shown.
PRIOR = 0.1


@contextmanager
def progress(stages: Mapping[str, float], usual_s: float) -> Iterator[Watch]:
    """One progress bar on stderr, with the time left; a call with the name of a stage returns an observer of its run.

    `stages` holds the usual share of each stage in the work, in their order, `usual_s` the usual time of all. Hidden
    without a terminal.
    """
    console = stderr()
    percentage, trial = TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.fields[trial]}", style="dim")
    columns = (TextColumn("{task.description:<14}"), BarColumn(), percentage, TimeLeft(usual_s), trial)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield Work(bars, stages)


class TimeLeft(ProgressColumn):
    """An estimate of the time left, from the first second on."""

    def __init__(self, usual_s: float) -> None:
        super().__init__(Column(no_wrap=True, min_width=15))
        self.usual_s = usual_s

    def render(self, task: Task) -> Text:
        """The estimate in words."""
        left_s = time_left_s(task.elapsed or 0.0, task.percentage / 100, self.usual_s)
        return Text(f"about {left_s:.0f} s left" if left_s < 100 else f"about {left_s / 60:.0f} min left")


def time_left_s(elapsed_s: float, share: float, usual_s: float) -> float:
    """Seconds left after a share of the work: at first as is usual, later as the work so far goes.

    >>> [round(time_left_s(*at, usual_s=10.0), 1) for at in ((0.0, 0.0), (30.0, 0.5), (60.0, 1.0))]
    [10.0, 25.8, 0.0]
    """
    return (1 - share) * (elapsed_s + PRIOR * usual_s) / (share + PRIOR)


@contextmanager
def working(task: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr: call the result with the current task. Hidden without a terminal."""
    console = stderr()
    if not console.is_terminal:
        yield lambda task: None
        return
    with console.status(task) as status:
        yield lambda task: status.update(task)


class Work:
    """One progress bar over all stages of a command."""

    def __init__(self, bars: Progress, stages: Mapping[str, float]) -> None:
        self.bars, self.stages = bars, stages
        self.task = bars.add_task("", total=sum(stages.values()), trial="")

    def __call__(self, stage: str) -> Callable[[Any], None]:
        """Begin a stage; the observer advances the bar by its trials, then by its run."""
        names = list(self.stages)
        before = sum(self.stages[name] for name in names[: names.index(stage)])
        self.bars.update(self.task, description=stage, completed=before, trial="")
        n_trials = 0

        def observe(event: Any) -> None:
            # Imported late: the events come with NumPy, which `dada --help` does not need.
            from dada import events

            nonlocal n_trials
            if isinstance(event, events.TrialStarted):
                n_trials += 1
                share = SHARE_OF_TRIALS * (1 - math.exp(-n_trials / USUAL_TRIALS))
                trial = f"trying {_cropped(event.choice)}"
            elif isinstance(event, events.Progress):
                chosen = SHARE_OF_TRIALS if n_trials else 0.0
                share, trial = chosen + (1 - chosen) * event.done / max(event.total, 1), ""
            else:
                return
            self.bars.update(self.task, completed=before + share * self.stages[stage], trial=trial)

        return observe


def _cropped(text: str, longest: int = 32) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def percent(value: float) -> str:
    """A fraction as a percentage.

    >>> percent(0.8849)
    '88.5%'
    """
    # Rounded first: two ways to compute the same mean must print the same number.
    return f"{100 * round(value, 6):.1f}%"


def short(value: float, sign: str = "") -> str:
    """A number with three digits, and no power of ten where it is readable without.

    >>> short(17234.0), short(-0.001234), short(1.5, sign="+")
    ('17200', '-0.00123', '+1.5')
    """
    return f"{float(f'{value:.3g}'):{sign}.10g}"


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
            print_error(str(error) or "interrupted")
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
