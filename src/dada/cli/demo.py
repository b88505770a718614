"""`dada demo`: the method at work on synthetic users, as a table, pictures and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dada.cli.console import AsJson, Seed, print_json, print_table, progress, stdout, working
from dada.cli.watching import Live, Record, SlowMotion, watching

if TYPE_CHECKING:
    from dada.cli.demo_report import DemoResult
    from dada.events import Observer

# Duration of the run that a live demo shows.
LIVE_S = 20.0


def demo(
    seed: Seed = 1,
    out: Annotated[Path, typer.Option(help="Folder for the pictures and the report.")] = Path("dada-demo"),
    users: Annotated[int, typer.Option(min=10, max=1000, help="Number of users.")] = 100,
    rule: Annotated[
        Literal["run", "printed"],
        typer.Option(help="How data are drawn: as in the authors' program, or as in the paper's text (far harder)."),
    ] = "run",
    live: Live = False,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Compare learning alone, in one place, and together, on synthetic users whose true graph is known.

    Each of 100 users has 3 to 15 labelled points of two moons, rotated by an angle near one of four; no user
    knows which users are similar. Shows a table, and writes pictures and a report that opens in any browser.

    **Examples**

    - `dada demo`
    - `dada demo --seed 2 --out second`
    - `dada demo --live`
    - `dada demo --record run.dadalog`
    - `dada demo --json`
    """
    from dada.events import fan_out

    out.mkdir(parents=True, exist_ok=True)
    with watching(live, record) as page:
        # The page opens while these load, which takes seconds.
        from dada.cli.demo_report import HEADER, OURS, row_of, run_demo, write_report
        from dada.plot.theme import name_of

        # The run itself takes a quarter of a second.
        shown = SlowMotion(page, LIVE_S) if live else page
        with progress() as bars:

            def watch(method: str) -> Observer:
                """A progress bar for each method; the page shows ours."""
                bar = bars(name_of(method))
                return fan_out(bar, shown) if method == OURS else bar

            result = run_demo(seed, users, rule, watch)
        with working("Drawing"):
            files = write_report(result, out)
        if as_json:
            print_json(as_dict(result, files))
            return
        rows = [row_of(*outcome) for outcome in result.outcomes.items()]
        print_table(HEADER, rows, best=0, title=f"{result.dataset}, {users} users, seed {seed}")
        stdout().print(f"\nOpen [bold]{files[0]}[/bold] for curves and graphs.", highlight=False, soft_wrap=True)


def as_dict(result: DemoResult, files: list[Path]) -> dict[str, Any]:
    """The result for JSON; accuracies are fractions."""
    methods: dict[str, dict[str, float]] = {}
    for name, outcome in result.outcomes.items():
        methods[name] = {
            "test_accuracy": round(float(outcome.test_accuracy.mean()), 6),
            "test_accuracy_pooled": round(outcome.test_accuracy_pooled, 6),
        }
        if outcome.graph is not None and outcome.bits is not None:
            methods[name] |= {"neighbours": outcome.graph.mean_neighbours, "bits": round(outcome.bits)}
    return {"dataset": result.dataset, "seed": result.seed, "methods": methods, "files": [str(file) for file in files]}
