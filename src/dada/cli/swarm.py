"""`dada swarm`: many real peers on this machine, learning together."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dada.cli import watch
from dada.cli.console import AsJson, GraphOption, Seed, bits, percent, print_json, print_table, stderr

if TYPE_CHECKING:
    from dada.cli.swarm_runs import Live as Screen
    from dada.cli.swarm_runs import Reference
    from dada.data import SyntheticUsers
    from dada.events import RunInfo
    from dada.task import Task


def swarm(
    users: Annotated[int, typer.Option(min=2, max=1000, help="Number of peers.")] = 20,
    data: Annotated[Literal["moons", "moons100"], typer.Option(help="What the peers learn.")] = "moons",
    seconds: Annotated[float, typer.Option(min=1.0, help="How long they learn, once all are up.")] = 60.0,
    rate: Annotated[
        float | None, typer.Option(min=0.01, help="Wake-ups per peer and second; 8 by default, fewer for many peers.")
    ] = None,
    kill_every: Annotated[
        float | None,
        typer.Option(min=0.5, help="Kill a random peer with SIGKILL each so many seconds, and restart it."),
    ] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="All peers in one process; real sockets all the same.")
    ] = False,
    graph: GraphOption = "evidence",
    keep: Annotated[Path | None, typer.Option(help="Keep the peers' folders here.")] = None,
    live: watch.Live = False,
    record: watch.Record = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Start real peers on this machine, let them find each other and learn, and compare with learning alone.

    Every peer is a process of its own with its own key, data, clock and disk; they talk over encrypted links on the
    loopback interface, and nobody coordinates them. The same users are also given to the compiled engine, which sees
    everything at once: with a learned graph, and with the true one.

    **Examples**

    - `dada swarm`
    - `dada swarm --users 20 --data moons --seconds 60 --json`
    - `dada swarm --kill-every 5`
    - `dada swarm --graph distance`
    - `dada swarm --users 300 --in-process --seconds 120`
    - `dada swarm --live --kill-every 10`
    """
    from dada.cli.swarm_runs import Live as Screen
    from dada.cli.swarm_runs import learn_centrally, make_homes, make_network, make_users, run_in_process, run_processes
    from dada.events import Stopped
    from dada.net.overview import Overview

    if in_process and kill_every is not None:
        raise ValueError("--kill-every kills processes, so it cannot be combined with --in-process")
    wakeups_per_s = rate if rate is not None else min(8.0, 160.0 / users)
    people, task = make_users(data, users, seed)
    network = make_network(task, wakeups_per_s, graph)
    console = stderr()
    with (
        watch.watching(live, record) as page,
        tempfile.TemporaryDirectory(prefix="dada-swarm-") if keep is None else nullcontext(str(keep)) as folder,
    ):
        with console.status("Learning in one place, to compare") if console.is_terminal else nullcontext():
            reference = learn_centrally(people, task, network, seed)
        homes = make_homes(Path(folder), people, task, network)
        is_directed = network.config.graph == "evidence"
        overview = Overview(page, _info(data, people, task, reference), is_directed)
        screen = Screen(console, task.samples_of(people.test), network, reference, overview)
        if in_process:
            run_in_process(homes, seconds, screen)
        else:
            run_processes(homes, seconds, screen, kill_every, seed)
        result = screen.result(homes)
        page(Stopped(f"The peers learned for {seconds:g} s."))
        if as_json:
            print_json(result)
        else:
            _show(result, screen, reference)


def _info(data: str, people: SyntheticUsers, task: Task, reference: Reference) -> RunInfo:
    """Who takes part, and how the same users do where one computer sees everything."""
    baselines = {"alone": reference.local, "engine": reference.engine, "engine, true graph": reference.oracle}
    title = f"{people.train.n_users} real peers, {data}"
    return watch.synthetic_info(title, people, task, alone=reference.alone, baselines=baselines)


def _show(result: dict[str, Any], screen: Screen, reference: Reference) -> None:
    rows = [
        ["alone", percent(result["local_accuracy"]), "-"],
        ["together, this swarm", percent(result["test_accuracy"]), f"{screen.mean_neighbours:.1f}"],
        ["compiled engine, learned graph", percent(result["engine_accuracy"]), f"{reference.engine_neighbours:.1f}"],
        ["compiled engine, true graph", percent(result["oracle_accuracy"]), "-"],
    ]
    print_table(("learning", "test\naccuracy", "neighbours"), rows, best=1)
    stderr().print(
        f"{result['peers']} peers, {result['edges']} edges, {result['messages']} messages, "
        f"{result['wire_bytes'] / 1e6:.1f} MB on the wire, {bits(result['paper_bits'])} in the paper's count, "
        f"{result['restarts']} restarts, {result['errors']} errors"
    )
