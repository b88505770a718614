"""`dada bench`: the speed of the compiled steps on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dada.cli.bench.scale import scale
from dada.cli.console import AsJson, print_json, print_table, stderr, stdout, working

app = typer.Typer(invoke_without_command=True)
app.command()(scale)


@app.callback()
def bench(
    context: typer.Context,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, and no more than 10,000 users.")] = False,
    as_json: AsJson = False,
) -> None:
    """Time the compiled updates, beside plain NumPy, on one core.

    Moons has 100 users, 200 stumps and the oracle graph, with the settings of `dada demo`; the larger populations have
    20 neighbours each. Times are processor time of one thread, best of several runs, compiled and warmed.

    **Examples**

    - `dada bench`
    - `dada bench --quick --json`
    """
    if context.invoked_subcommand is not None:
        return
    from dada.cli.bench.measure import measure

    with working("Timing") as say:
        result = measure(quick, say)
    if result["moons"]["model_update_us"]["numpy"] is None:
        stderr().print("The NumPy version stands in benchmarks/ of the repository; installed alone, dada lacks it.")
    if as_json:
        print_json(result)
    else:
        _show(result)


def _show(result: dict[str, Any]) -> None:
    moons = result["moons"]
    rows = [
        ["model update, paper's step", _us(moons["model_update_us"]["paper"])],
        ["model update, pairwise step", _us(moons["model_update_us"]["pairwise"])],
        ["model update, plain NumPy", _us(moons["model_update_us"]["numpy"])],
        ["graph step, exact, 5 peers", _us(moons["graph_step_us"]["exact"])],
        ["graph step, plain NumPy", _us(moons["graph_step_us"]["numpy"])],
    ]
    print_table(["Moons, 100 users, 200 stumps", "us"], rows)
    stdout().print()
    scale = [
        [f"{entry['users']:,}", _us(entry["model_update_us"]), f"{entry['bytes_per_user']:,.0f}"]
        for entry in result["scale"]
    ]
    print_table(["users, 20 neighbours each", "us per model update", "bytes per user"], scale)


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
