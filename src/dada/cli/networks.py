"""`dada sim`, `dada replay` and `dada swarm`: networks of users, simulated or of real peers."""

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
    GraphRule,
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
from dada.cli.watching import Live, Record, watching

if TYPE_CHECKING:
    from dada.cli.simulated_runs import NetworkUsers
    from dada.sim.simulation import NetworkPoint

MEASURES = {"accuracy": "test\naccuracy", "R2": "variance\nexplained"}
# Peers by default, and at most.
SIMULATED, MOST_SIMULATED = 50, 10_000
PEERS, MOST_PEERS = 20, 1000

TableFile = Annotated[Path | None, typer.Argument(help="CSV or Parquet file; its users are the peers.")]
UserColumn = Annotated[str | None, typer.Option("--user", help="Column with the user of each row of FILE.")]
LabelColumn = Annotated[str | None, typer.Option("--label", help="Column of FILE to predict.")]
Columns = Annotated[list[str] | None, typer.Option("--drop", help="Column of FILE to leave out; repeatable.")]
DataName = Annotated[
    Literal[
        "moons",
        "moons100",
        "xor",
        "boxes",
        "school",
        "school-scores",
        "computer",
        "vehicle_partial",
        "harws",
        "harws-activities",
    ]
    | None,
    typer.Option("--data", help="Synthetic users, by default moons; or those of a dataset (see dada datasets)."),
]
Predictors = Annotated[
    Literal["auto", "trees", "boosted"],
    typer.Option(
        "--predictors",
        help="Base predictors; trees: peers grow small trees and send them to each other; boosted: they grow trees "
        "with each other, whose leaves have values of each peer's own.",
    ),
]
NetworkGraph = Annotated[GraphRule | None, GraphOption.__metadata__[0]]


def network_users(
    file: Path | None,
    user: str | None,
    label: str | None,
    drop: list[str] | None,
    data: str | None,
    users: int | None,
    usual: int,
    most: int,
    seed: int,
    predictors: str = "auto",
) -> NetworkUsers:
    """The users of a table or a dataset, or synthetic ones."""
    from dada.cli.simulated_runs import with_boosting, with_trees

    if file is None:
        if user is not None or label is not None or drop:
            raise ValueError("--user, --label and --drop name columns of a table: give FILE too")
        found = _named_users(data or "moons", users, usual, seed)
    else:
        if data is not None or users is not None:
            raise ValueError(f"--data and --users are for synthetic users: leave them out with {file}")
        if user is None or label is None:
            raise ValueError(f"--user and --label are needed: the columns of {file} with the user and the label")
        found = _table_users(file, user, label, drop or [], most, seed)
    if predictors == "boosted":
        return with_boosting(found)
    return with_trees(found, seed) if predictors == "trees" else found


def _named_users(data: str, users: int | None, usual: int, seed: int) -> NetworkUsers:
    from dada.cli.simulated_runs import SYNTHETIC, dataset_peers, synthetic_peers

    if data in SYNTHETIC:
        return synthetic_peers(data, users or usual, seed)
    if users is not None:
        raise ValueError(f"--users is for synthetic users: leave it out with --data {data}")
    return dataset_peers(data, seed)


def _table_users(file: Path, user: str, label: str, drop: list[str], most: int, seed: int) -> NetworkUsers:
    from dada.cli.simulated_runs import table_peers

    people = table_peers(file, user, label, drop, seed)
    if people.train.n_users > most:
        raise ValueError(f"{file} holds {people.train.n_users} users, this machine runs {most} at most: take a sample")
    return people


def sim(
    file: TableFile = None,
    user: UserColumn = None,
    label: LabelColumn = None,
    drop: Columns = None,
    users: Annotated[
        int | None, typer.Option(min=2, max=MOST_SIMULATED, help="Number of synthetic peers; by default 50.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Wake-ups per peer.")] = 150,
    seed: Seed = 0,
    faults: Annotated[
        str, typer.Option(help="Faults: none, loss, churn, byzantine, all, or several with commas.")
    ] = "all",
    data: DataName = None,
    predictors: Predictors = "auto",
    graph: NetworkGraph = None,
    step: StepOption = "block",
    journal: Annotated[
        Path | None, typer.Option(help="Record all inputs of the first peer in this file, for dada replay.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(min=1e-3, help="Peers protect their data with this budget.")] = None,
    protects: Annotated[
        Literal["labels", "rows"], typer.Option(help="What epsilon protects: labels only, or whole rows.")
    ] = "labels",
    ranges: Annotated[
        tuple[float, float] | None, typer.Option(help="Public lowest and highest value of all features, for rows.")
    ] = None,
    live: Live = False,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a network of peers with losses, crashes and liars, and check its invariants after every event.

    Peers are the users of a table, a fifth of whose rows test the models, or synthetic.

    Peers run the code of a real network; only time and transport are virtual, so a seed repeats a run exactly. Faults:
    *loss* (a fifth of the messages, others repeated or delayed), *churn* (peers crash and restart, join late, leave),
    *byzantine* (a tenth of the peers are liars), *all* (and a partition).

    With --epsilon each peer makes one release, of its labels or its rows, as after `dada peer init --epsilon`; crashes
    do not make it release again. The noise comes from the seed.

    **Examples**

    - `dada sim`
    - `dada sim visits.csv --user person --label came --faults loss`
    - `dada sim --faults loss,churn --users 100 --seed 7`
    - `dada sim --faults byzantine --json`
    - `dada sim --step pairwise --graph distance`
    - `dada sim --data moons --epsilon 4 --faults loss,churn`
    - `dada sim --data school --epsilon 4 --protects rows --ranges 0 1`
    - `dada sim --data xor --predictors trees --faults loss,churn`
    - `dada sim --data xor --predictors boosted --faults loss,churn`
    - `dada sim --live`
    """
    from dada import Privacy
    from dada.cli.simulated_runs import make_case, with_privacy
    from dada.sim.invariants import InvariantError

    privacy = None if epsilon is None else Privacy(epsilon, protects=protects, ranges=ranges)
    if privacy is not None and predictors != "auto":
        raise ValueError("trees reveal rows of their owners, which --epsilon protects: leave --predictors out")

    with watching(live, record) as page:
        with ExitStack() as stack:
            report = stack.enter_context(working("Making users"))

            def show(point: NetworkPoint) -> None:
                report(f"Wake-up {point.time_s:.0f} of {steps}: {point.up} peers running, {point.edges} edges")

            written = None if journal is None else stack.enter_context(journal.open("wb"))
            people = network_users(file, user, label, drop, data, users, SIMULATED, MOST_SIMULATED, seed, predictors)
            if privacy is not None:
                people = with_privacy(people, privacy, seed, graph)
            case = make_case(people, steps, seed, faults, graph, written, step)
            try:
                outcome = case.run(page, show)
            except InvariantError as error:
                print_error(str(error))
                raise typer.Exit(1) from error
            report("Learning in one place, to compare")
            result = case.result(outcome)
        n_users = people.train.n_users
        asked = {"users": n_users, "steps": steps, "seed": seed, "faults": faults, "data": people.name}
        asked |= {"graph": case.graph, "step": step}
        print_json(asked | result) if as_json else _show_simulation(result, n_users)


def _show_simulation(result: dict[str, Any], users: int) -> None:
    rows = [
        ["alone", percent(result["local_accuracy"])],
        ["together", percent(result["together_accuracy"])],
        ["each peer's choice of the two", percent(result["test_accuracy"])],
        ["compiled engine, learned graph", percent(result["engine_accuracy"])],
    ]
    print_table((f"learning ({result['honest']} honest users of {users})", MEASURES[result["measure"]]), rows, best=2)
    stdout().print(
        f"{result['edges']} edges, {result['messages']:,} messages, {result['bytes'] / 1e6:.1f} MB, "
        f"{bits(result['bits'])} about models; "
        f"{result['lost']:,} messages lost, {result['refused']:,} refused, {result['restarts']} restarts\n"
        f"{result['events']:,} events, {result['invariants_checked']:,} checks, none violated"
        f"{_trees(result)}{_privacy(result)}",
        highlight=False,
    )


def _trees(result: dict[str, Any]) -> str:
    """Trees of a network that has any, as a line of text."""
    found = result.get("trees")
    if boosted := result.get("boosted"):
        sent = f"a peer sent {boosted['sent_bytes'] / 1e3:.1f} kB for them on average"
        return f"\n{boosted['trees']} boosted trees of {boosted['growers']} growers; {sent}"
    if not found:
        return ""
    return f"\n{found['alive']} trees alive; a peer sent {found['sent_bytes'] / 1e3:.1f} kB of trees on average"


def _privacy(result: dict[str, Any]) -> str:
    """What private peers have released, as a line of text."""
    found = result.get("privacy")
    if not found:
        return ""
    return f"\n{found['released']} peers have made their release, with epsilon {found['epsilon']:g}"


def replay(journal: Annotated[Path, typer.Argument(help="A file that --journal has written.")]) -> None:
    """Give a new peer all inputs of a recorded one, and check that it ends in the same state."""
    from dada.peer.peer import replay as replay_journal

    with journal.open("rb") as file:
        result = replay_journal(file)
    ending = "" if result.is_whole else " The journal was cut off before its end."
    stdout().print(
        f"The same state, bit for bit, at {result.digests} checkpoints of {result.facts} facts "
        f"in {result.births} {'life' if result.births == 1 else 'lives'}.{ending}"
    )


def swarm(
    file: TableFile = None,
    user: UserColumn = None,
    label: LabelColumn = None,
    drop: Columns = None,
    users: Annotated[
        int | None, typer.Option(min=2, max=MOST_PEERS, help="Number of synthetic peers; by default 20.")
    ] = None,
    data: DataName = None,
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
    predictors: Predictors = "auto",
    graph: NetworkGraph = None,
    step: StepOption = "block",
    keep: Annotated[Path | None, typer.Option(help="Keep the peers' folders here.")] = None,
    live: Live = False,
    record: Record = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run real peers on this machine, and compare their models with those of users that learn alone.

    Every peer is a process with its own key, data, clock and state. Peers communicate over encrypted links on the
    loopback interface, and nothing coordinates them. Peers are the users of a table, a fifth of whose rows test the
    models, those of a dataset, or synthetic. Real users have the settings that `DadaClassifier` or `DadaRegressor`
    chooses for them. The same users also learn in the compiled engine, with a learned graph and, if they are
    synthetic, with the true one.

    **Examples**

    - `dada swarm`
    - `dada swarm visits.csv --user person --label came --seconds 30`
    - `dada swarm --users 20 --data moons --seconds 60 --json`
    - `dada swarm --kill-every 5`
    - `dada swarm --graph distance`
    - `dada swarm --data xor --predictors trees`
    - `dada swarm --users 300 --in-process --seconds 120`
    - `dada swarm --live --kill-every 10`
    """
    from dada.cli import network_runs as runs
    from dada.cli.simulated_runs import users_info
    from dada.events import Stopped
    from dada.net.forkserver import PeerOverview

    if in_process and kill_every is not None:
        raise ValueError("--kill-every kills processes, so it cannot be combined with --in-process")
    people = network_users(file, user, label, drop, data, users, PEERS, MOST_PEERS, seed, predictors)
    n_users = people.train.n_users
    rate = rate if rate is not None else min(8.0, 160.0 / n_users)
    network = runs.make_network(people, rate, graph, step)
    with (
        watching(live, record) as page,
        tempfile.TemporaryDirectory(prefix="dada-swarm-") if keep is None else nullcontext(str(keep)) as folder,
    ):
        with working("Learning in the engine, for comparison"):
            reference = runs.learn_centrally(people, network, seed)
        homes = runs.make_homes(Path(folder), people, network)
        baselines = {"alone": reference.local, "engine": reference.engine, "engine, true graph": reference.oracle}
        levels = {name: level for name, level in baselines.items() if level is not None}
        info = users_info(f"{n_users} real peers, {people.name}", people, alone=reference.alone, baselines=levels)
        overview = PeerOverview(page, info, directed=network.config.graph == "evidence")
        display = runs.SwarmDisplay(stderr(), people, network, reference, overview)
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
    ]
    if result["oracle_accuracy"] is not None:
        rows.append(["compiled engine, true graph", percent(result["oracle_accuracy"]), "-"])
    print_table(("learning", MEASURES[result["measure"]], "neighbours"), rows, best=1)
    stderr().print(
        f"{result['peers']} peers, {result['edges']} edges, {result['messages']} messages, "
        f"{result['wire_bytes'] / 1e6:.1f} MB on the wire, {bits(result['paper_bits'])} in the paper's count, "
        f"{result['restarts']} restarts, {result['errors']} errors{_trees(result)}"
    )
