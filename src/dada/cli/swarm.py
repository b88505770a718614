"""`dada swarm`: many real peers on this machine."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dada.cli.console import (
    AsJson,
    GraphOption,
    Live,
    Record,
    Seed,
    bits,
    percent,
    print_json,
    print_table,
    stderr,
    watching,
)
from dada.cli.watch import synthetic_info, synthetic_peers

if TYPE_CHECKING:
    from dada.cli.swarm_runs import Reference, SwarmDisplay
    from dada.data import BasePredictors, SyntheticUsers
    from dada.events import RunInfo


def swarm(
    users: Annotated[int, typer.Option(min=2, max=1000, help="Number of peers.")] = 20,
    data: Annotated[Literal["moons", "moons100"], typer.Option(help="Dataset of the peers.")] = "moons",
    seconds: Annotated[float, typer.Option(min=1.0, help="Duration after all peers are up.")] = 60.0,
    rate: Annotated[
        float | None, typer.Option(min=0.01, help="Wake-ups per peer and second; 8 by default, fewer for many peers.")
    ] = None,
    kill_every: Annotated[
        float | None,
        typer.Option(min=0.5, help="Kill a random peer with SIGKILL every N seconds, and restart it."),
    ] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Run all peers in one process, with real sockets.")
    ] = False,
    graph: GraphOption = "evidence",
    keep: Annotated[Path | None, typer.Option(help="Keep the peers' folders here.")] = None,
    live: Live = False,
    record: Record = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run real peers on this machine, and compare their models with those of users that learn alone.

    Every peer is a process with its own key, data, clock and state. Peers communicate over encrypted links on the
    loopback interface, and nothing coordinates them. The same users also learn in the compiled engine, with a learned
    graph and with the true one.

    **Examples**

    - `dada swarm`
    - `dada swarm --users 20 --data moons --seconds 60 --json`
    - `dada swarm --kill-every 5`
    - `dada swarm --graph distance`
    - `dada swarm --users 300 --in-process --seconds 120`
    - `dada swarm --live --kill-every 10`
    """
    from dada.cli import swarm_runs as runs
    from dada.events import Stopped
    from dada.net.statuses import PeerOverview
    from dada.task import samples

    if in_process and kill_every is not None:
        raise ValueError("--kill-every kills processes, so it cannot be combined with --in-process")
    wakeups_per_s = rate if rate is not None else min(8.0, 160.0 / users)
    people, predictors = synthetic_peers(data, users, seed)
    network = runs.make_network(people, predictors, wakeups_per_s, graph)
    console = stderr()
    with (
        watching(live, record) as page,
        tempfile.TemporaryDirectory(prefix="dada-swarm-") if keep is None else nullcontext(str(keep)) as folder,
    ):
        with console.status("Learning in the engine, for comparison") if console.is_terminal else nullcontext():
            reference = runs.learn_centrally(people, predictors, network, seed)
        homes = runs.make_homes(Path(folder), people, predictors, network)
        is_directed = network.config.graph == "evidence"
        overview = PeerOverview(page, _info(data, people, predictors, reference), is_directed)
        display = runs.SwarmDisplay(console, samples(people.test, predictors), network, reference, overview)
        if in_process:
            runs.run_in_process(homes, seconds, display)
        else:
            runs.run_processes(homes, seconds, display, kill_every, seed)
        result = display.result(homes)
        page(Stopped(f"The peers learned for {seconds:g} s."))
        if as_json:
            print_json(result)
        else:
            _show(result, display, reference)


def _info(data: str, people: SyntheticUsers, predictors: BasePredictors, reference: Reference) -> RunInfo:
    """Description of the run, with the reference accuracies."""
    baselines = {"alone": reference.local, "engine": reference.engine, "engine, true graph": reference.oracle}
    title = f"{people.train.n_users} real peers, {data}"
    return synthetic_info(title, people, predictors, alone=reference.alone, baselines=baselines)


def _show(result: dict[str, Any], display: SwarmDisplay, reference: Reference) -> None:
    rows = [
        ["alone", percent(result["local_accuracy"]), "-"],
        ["together, this swarm", percent(result["test_accuracy"]), f"{display.mean_neighbours:.1f}"],
        ["compiled engine, learned graph", percent(result["engine_accuracy"]), f"{reference.engine_neighbours:.1f}"],
        ["compiled engine, true graph", percent(result["oracle_accuracy"]), "-"],
    ]
    print_table(("learning", "test\naccuracy", "neighbours"), rows, best=1)
    stderr().print(
        f"{result['peers']} peers, {result['edges']} edges, {result['messages']} messages, "
        f"{result['wire_bytes'] / 1e6:.1f} MB on the wire, {bits(result['paper_bits'])} in the paper's count, "
        f"{result['restarts']} restarts, {result['errors']} errors"
    )
