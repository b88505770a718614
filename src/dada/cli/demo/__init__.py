"""`dada demo`: the method at work on synthetic users, as a table, pictures and a page."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from dada.cli.console import AsJson, Seed, bits, number, percent, print_json, print_table, progress, stderr, stdout

if TYPE_CHECKING:
    from dada.baselines import Outcome
    from dada.cli.demo.methods import DemoResult

HEADER = ("method", "test\naccuracy", "10th\npercentile", "worst\nuser", "pooled", "neighbours", "sent per\nuser")


def demo(
    seed: Seed = 1,
    out: Annotated[Path, typer.Option(help="Folder for the pictures and the report.")] = Path("dada-demo"),
    users: Annotated[int, typer.Option(min=10, max=2000, help="Number of users.")] = 100,
    rule: Annotated[
        Literal["run", "printed"],
        typer.Option(help="How the data are drawn: as the paper's authors ran it, or as its text says (far harder)."),
    ] = "run",
    as_json: AsJson = False,
) -> None:
    """Compare learning alone, in one place, and together, on synthetic users whose true graph is known.

    Each of 100 users has 3 to 15 labelled points of two moons, turned by an angle of its own near one of four; nobody
    knows who is alike. Shows a table, and writes pictures and a report that opens in any browser.

    **Examples**

    - `dada demo`
    - `dada demo --seed 2 --out second`
    - `dada demo --json`
    """
    from dada.cli.demo.methods import run_demo
    from dada.cli.demo.report import write_report
    from dada.plot.theme import name_of

    out.mkdir(parents=True, exist_ok=True)
    with progress() as watch:
        result = run_demo(seed, users, rule, lambda method: watch(name_of(method)))
    console = stderr()
    with console.status("Drawing pictures") if console.is_terminal else nullcontext():
        files = write_report(result, out)
    if as_json:
        print_json(as_dict(result, files))
        return
    rows = [row_of(outcome) for outcome in result.outcomes.values()]
    title = f"{result.dataset}, {users} users, seed {seed}"
    print_table(HEADER, rows, best=len(rows) - 1, title=title)
    stdout().print(f"\nOpen [bold]{files[0]}[/bold] for curves and graphs.", highlight=False)


def row_of(outcome: Outcome) -> list[str]:
    """The cells of one method in the result table."""
    from dada.plot.theme import name_of

    accuracy = outcome.test_accuracy
    per_user = None if outcome.bits is None else outcome.bits / accuracy.size
    return [
        name_of(outcome.name),
        percent(accuracy.mean()),
        percent(np.percentile(accuracy, 10)),
        percent(accuracy.min()),
        percent(outcome.test_accuracy_pooled),
        number(outcome.neighbours),
        bits(per_user),
    ]


def as_dict(result: DemoResult, files: list[Path]) -> dict[str, Any]:
    """The result as JSON gives it; accuracies are fractions."""
    methods: dict[str, dict[str, float]] = {}
    for name, outcome in result.outcomes.items():
        methods[name] = {
            "test_accuracy": round(float(outcome.test_accuracy.mean()), 6),
            "test_accuracy_pooled": round(outcome.test_accuracy_pooled, 6),
        }
        if outcome.graph is not None and outcome.bits is not None:
            methods[name] |= {"neighbours": outcome.graph.mean_neighbours, "bits": round(outcome.bits)}
    return {"dataset": result.dataset, "seed": result.seed, "methods": methods, "files": [str(file) for file in files]}
