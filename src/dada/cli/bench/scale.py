"""`dada bench scale`: what an update costs, and how much memory a user takes, as populations grow."""

from __future__ import annotations

from typing import Annotated

import typer

from dada.cli.console import AsJson, print_json, print_table, working


def scale(
    users: Annotated[list[int] | None, typer.Option("--users", help="Population size; may be repeated.")] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Time so many threads too.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Time pairwise updates in random order for growing populations of 20 neighbours and 200 predictors.

    Times are processor time of one thread, best of several, once more with wake-ups in a row among 1,024 users
    (`Plan(span=1024)`); those of several threads are of the clock on the wall, and
    need a quiet machine. Memory beside the data is models, neighbours and all else that a run keeps for a user; the
    peak is that of the whole process, with the making of the population.

    **Examples**

    - `dada bench scale`
    - `dada bench scale --users 1000 --users 1000000 --json`
    """
    from dada.cli.bench.many import measure_scale

    with working("Timing") as say:
        result = measure_scale(users or [1_000, 10_000, 100_000, 1_000_000], threads, say)
    if as_json:
        print_json(result)
        return
    rows = [
        [
            f"{entry['users']:,}",
            f"{entry['update_us']:.2f}",
            f"{entry['cost_ratio']:.2f}",
            f"{entry['updates_per_s'] / 1e6:.2f}",
            f"{entry['near_update_us']:.2f}",
            f"{entry['state_bytes']:,.0f}",
            f"{entry['peak_gb']:.2f}",
            *([f"{entry['thread_speedup']:.2f}"] if threads > 1 else []),
        ]
        for entry in result["scale"]
    ]
    header = [
        "users",
        "us per update",
        "times the first",
        "million/s",
        "us in spans",
        "bytes per user beside the data",
        "peak GB",
    ]
    print_table([*header, *([f"{threads} threads"] if threads > 1 else [])], rows)
