"""`dada sim`, `dada replay` and `dada swarm`: networks of synthetic users, simulated or of real peers."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dada.cli.console import (
    AsJson,
    GraphOption,
    Seed,
    StepOption,
    bits,
    percent,
    print_error,
    print_json,
    print_table,
    stderr,
    stdout,
    working,
)
from dada.cli.watching import Live, Record, synthetic_info, watching

if TYPE_CHECKING:
    from dada.sim.simulation import NetworkPoint

DataName = Annotated[Literal["moons", "moons100"], typer.Option("--data", help="Dataset of the peers.")]


def sim(
    users: Annotated[int, typer.Option(min=2, max=10_000, help="Number of peers.")] = 50,
    steps: Annotated[int, typer.Option(min=1, help="Wake-ups per peer.")] = 150,
    seed: Seed = 0,
    faults: Annotated[
        str, typer.Option(help="Faults: none, loss, churn, byzantine, all, or several with commas.")
    ] = "all",
    data: DataName = "moons",
    graph: GraphOption = "evidence",
    step: StepOption = "block",
    journal: Annotated[
        Path | None, typer.Option(help="Record all inputs of the first peer in this file, for dada replay.")
    ] = None,
    live: Live = False,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a network of peers with losses, crashes and liars, and check its invariants after every event.

    Peers run the code of a real network; only time and transport are virtual, so a seed repeats a run exactly. Faults:
    *loss* (a fifth of the messages, others repeated or delayed), *churn* (peers crash and restart, join late, leave),
    *byzantine* (a tenth of the peers are liars), *all* (and a partition).

    **Examples**

    - `dada sim`
    - `dada sim --faults loss,churn --users 100 --seed 7`
    - `dada sim --faults byzantine --json`
    - `dada sim --step pairwise --graph distance`
    - `dada sim --live`
    """
    from dada.cli.network_runs import make_case
    from dada.sim.invariants import InvariantError

    with watching(live, record) as page:
        with ExitStack() as stack:
            report = stack.enter_context(working("Making users"))

            def show(point: NetworkPoint) -> None:
                report(f"Wake-up {point.time_s:.0f} of {steps}: {point.up} peers running, {point.edges} edges")

            file = None if journal is None else stack.enter_context(journal.open("wb"))
            case = make_case(data, users, steps, seed, faults, graph, file, step)
            try:
                outcome = case.run(page, show)
            except InvariantError as error:
                print_error(str(error))
                raise typer.Exit(1) from error
            report("Learning in one place, to compare")
            result = case.result(outcome)
        asked = {"users": users, "steps": steps, "seed": seed, "faults": faults, "data": data}
        asked |= {"graph": graph, "step": step}
        print_json(asked | result) if as_json else _show_simulation(result, users)


def _show_simulation(result: dict[str, Any], users: int) -> None:
    rows = [
        ["alone", percent(result["local_accuracy"])],
        ["together", percent(result["together_accuracy"])],
        ["each peer's choice of the two", percent(result["test_accuracy"])],
        ["compiled engine, learned graph", percent(result["engine_accuracy"])],
    ]
    print_table((f"learning ({result['honest']} honest users of {users})", "test\naccuracy"), rows, best=2)
    stdout().print(
        f"{result['edges']} edges, {result['messages']:,} messages, {result['bytes'] / 1e6:.1f} MB, "
        f"{bits(result['bits'])} about models; "
        f"{result['lost']:,} messages lost, {result['refused']:,} refused, {result['restarts']} restarts\n"
        f"{result['events']:,} events, {result['invariants_checked']:,} checks, none violated",
        highlight=False,
    )


def replay(journal: Annotated[Path, typer.Argument(help="A file that --journal has written.")]) -> None:
    """Give a new peer all inputs of a recorded one, and check that it ends in the same state."""
    from dada.peer.journal import replay as replay_journal

    with journal.open("rb") as file:
        result = replay_journal(file)
    ending = "" if result.is_whole else " The journal was cut off before its end."
    stdout().print(
        f"The same state, bit for bit, at {result.digests} checkpoints of {result.facts} facts "
        f"in {result.births} {'life' if result.births == 1 else 'lives'}.{ending}"
    )


def swarm(
    users: Annotated[int, typer.Option(min=2, max=1000, help="Number of peers.")] = 20,
    data: DataName = "moons",
    seconds: Annotated[float, typer.Option(min=1.0, help="Duration after all peers are up.")] = 60.0,
    rate: Annotated[
        float | None, typer.Option(min=0.01, help="Wake-ups per peer and second; 8 by default, fewer for many peers.")
    ] = None,
    kill_every: Annotated[
        float | None, typer.Option(min=0.5, help="Kill a random peer with SIGKILL every N seconds, and restart it.")
    ] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Run all peers in one process, with real sockets.")
    ] = False,
    graph: GraphOption = "evidence",
    step: StepOption = "block",
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
    from dada.cli import network_runs as runs
    from dada.events import Stopped
    from dada.net.statuses import PeerOverview
    from dada.task import samples

    if in_process and kill_every is not None:
        raise ValueError("--kill-every kills processes, so it cannot be combined with --in-process")
    people, predictors = runs.synthetic_peers(data, users, seed)
    rate = rate if rate is not None else min(8.0, 160.0 / users)
    network = runs.make_network(people, predictors, rate, graph, step)
    with (
        watching(live, record) as page,
        tempfile.TemporaryDirectory(prefix="dada-swarm-") if keep is None else nullcontext(str(keep)) as folder,
    ):
        with working("Learning in the engine, for comparison"):
            reference = runs.learn_centrally(people, predictors, network, seed)
        homes = runs.make_homes(Path(folder), people, predictors, network)
        baselines = {"alone": reference.local, "engine": reference.engine, "engine, true graph": reference.oracle}
        known: Any = {"alone": reference.alone, "baselines": baselines}
        info = synthetic_info(f"{users} real peers, {data}", people, predictors, **known)
        overview = PeerOverview(page, info, directed=graph == "evidence")
        display = runs.SwarmDisplay(stderr(), samples(people.test, predictors), network, reference, overview)
        if in_process:
            asyncio.run(runs.run_nodes(homes, seconds, display))
        else:
            runs.run_processes(homes, seconds, display, kill_every, seed)
        result = display.result(homes)
        page(Stopped(f"The peers learned for {seconds:g} s."))
        neighbours = (display.mean_neighbours, reference.engine_neighbours)
        print_json(result) if as_json else _show_swarm(result, *neighbours)


def _show_swarm(result: dict[str, Any], neighbours: float, engine_neighbours: float) -> None:
    rows = [
        ["alone", percent(result["local_accuracy"]), "-"],
        ["together, this swarm", percent(result["test_accuracy"]), f"{neighbours:.1f}"],
        ["compiled engine, learned graph", percent(result["engine_accuracy"]), f"{engine_neighbours:.1f}"],
        ["compiled engine, true graph", percent(result["oracle_accuracy"]), "-"],
    ]
    print_table(("learning", "test\naccuracy", "neighbours"), rows, best=1)
    stderr().print(
        f"{result['peers']} peers, {result['edges']} edges, {result['messages']} messages, "
        f"{result['wire_bytes'] / 1e6:.1f} MB on the wire, {bits(result['paper_bits'])} in the paper's count, "
        f"{result['restarts']} restarts, {result['errors']} errors"
    )
