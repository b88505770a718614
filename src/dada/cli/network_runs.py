"""Networks of `dada sim` and `dada swarm`: users of a table or synthetic ones, simulated or as real peers here."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dada import task
from dada.cli.console import GraphRule, StepRule, percent, plan_settings
from dada.cli.fit import kept_rows
from dada.cli.watching import synthetic_info
from dada.core.accuracy import Samples, accuracy_per_user, is_right, mean_per_user
from dada.core.bits import Ledger
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.problem import Problem
from dada.core.regularizers import LogDegree
from dada.data import BasePredictors, Population, Stumps, UserTable, moons, moons100
from dada.engine import Plan, run
from dada.events import Observer, Progress, RunInfo, Stopped, silent
from dada.net.forkserver import Swarm
from dada.net.home import Home, read_ticket
from dada.net.iroh_transport import new_secret_key
from dada.net.network_file import NetworkFile, Target
from dada.net.node import Node
from dada.net.process import RunOptions, open_node
from dada.net.session import LinkOptions
from dada.net.statuses import PeerOverview
from dada.peer.config import usual_settings
from dada.peer.everyone_graph import OWN_EDGES
from dada.peer.member import Rhythm
from dada.sim import check_two_classes, network_of, network_problem
from dada.sim.faults import Faults
from dada.sim.simulation import NetworkPoint, SimulatedNetwork, SimulationOverview, SimulationResult

BETA, MU = 10.0, 1.0
# Updates per user of the compiled engine to compare with: enough to converge.
UPDATES_PER_USER = 200
# Points of a simulation at which the terminal, or a page, is updated.
POINTS, WATCHED_POINTS = 20, 150
FEW_PEERS = 50
# Share of the rows of each user of a table that tests its model.
TESTED = 0.2
REFRESH_EVERY_S = 1.0
# Time between a kill and the restart.
AWAY_S = 1.0
OPTIONS = RunOptions()
# Concurrent dials in a process of many peers.
MOST_DIALS = 8


@dataclass(frozen=True, eq=False)
class NetworkUsers:
    """The users of a network: rows to learn from and to test, base predictors, and what is known of synthetic users.

    `options` are those of the command that names them.
    """

    name: str
    options: str
    train: Population
    test: Population
    predictors: BasePredictors
    problem: Problem
    groups: Array
    oracle: CollaborationGraph | None = None


def synthetic_peers(data: str, n_users: int, seed: int) -> NetworkUsers:
    """Synthetic users, whose true graph is known."""
    people = {"moons": moons, "moons100": moons100}[data](seed, n_users=n_users)
    predictors, problem = network_problem(people.train, Stumps(n=200, rule="feature-range"), BETA, MU)
    oracle = CollaborationGraph.from_scipy(people.oracle_weights())
    options = f"--users {n_users} --data {data}"
    return NetworkUsers(data, options, people.train, people.test, predictors, problem, people.groups, oracle)


def table_peers(file: Path, user: str, label: str, drop: Sequence[str], seed: int) -> NetworkUsers:
    """The users of a table; a fifth of every user's rows is for tests."""
    table = UserTable.read(file, user=user, label=label, drop=tuple(drop))
    people = table.people(table.encoder())
    check_two_classes(people)
    kept = kept_rows(people.sizes, TESTED, np.random.default_rng(seed))
    if kept.all():
        raise ValueError(f"{file}: no user has enough rows to hold one out for tests, which takes {round(1 / TESTED)}")
    people = table.people(table.encoder(kept))
    train, test = people.take(kept), people.take(~kept)
    predictors, problem = network_problem(train)
    options = shlex.join(
        [str(file), "--user", user, "--label", label, *(part for name in drop for part in ("--drop", name))]
    )
    return NetworkUsers(file.name, options, train, test, predictors, problem, np.zeros(train.n_users, np.int64))


def mean(accuracies: Array) -> float:
    """Mean over the users with test rows."""
    return float(accuracies[~np.isnan(accuracies)].mean())


def engine_plan(n_users: int, graph: GraphRule, step: StepRule, kappa: int = 5, **more: Any) -> Plan:
    """How the compiled engine learns models and graph of the same users, for comparison."""
    options = {"kappa": min(kappa, n_users - 1), "restart": "local", **plan_settings(graph, step), **more}
    return Plan(UPDATES_PER_USER * n_users, **options)


def engine_graph(n_users: int, graph: GraphRule) -> CollaborationGraph | None:
    """The graph on which the engine learns: a background graph if peers have one; else it learns the graph."""
    if graph != "everyone":
        return None
    return CollaborationGraph.background(n_users, np.random.default_rng(0), 2 * OWN_EDGES)


def engine_accuracies(
    problem: Problem, plan: Plan, test: Samples, seed: int, graph: CollaborationGraph | None = None
) -> tuple[Array, float]:
    """Test accuracy of each user in the compiled engine, which has all data in one place, and mean neighbours."""
    result = run(problem, plan, np.random.default_rng(seed), graph=graph)
    return accuracy_per_user(test, result.models), float(result.graph.mean_neighbours)


@dataclass(frozen=True, eq=False)
class SimulationCase:
    """A simulated network, and the test samples of its users."""

    network: SimulatedNetwork
    test: Samples
    graph: GraphRule
    step: StepRule
    info: RunInfo

    def run(self, page: Observer, show: Callable[[NetworkPoint], None]) -> SimulationResult:
        """Run the network, and update a page and a line on the terminal."""
        if page is silent:
            return self.network.run(show, POINTS)
        overview = SimulationOverview(
            self.network, self.info, lambda models: accuracy_per_user(self.test, models), page
        )
        duration_s = self.network.duration_s

        def look(point: NetworkPoint) -> None:
            overview.send(milestone=point.time_s >= duration_s)
            page(Progress(round(point.time_s), round(duration_s)))
            show(point)

        outcome = self.network.run(look, WATCHED_POINTS)
        page(Stopped(f"All {outcome.checks:,} checks held."))
        return outcome

    def accuracies(self, outcome: SimulationResult) -> dict[str, float]:
        """Mean test accuracy of the honest users: with their chosen models, with others, and alone."""
        models = {"test": outcome.models, "together": outcome.together, "local": outcome.alone}
        return {
            f"{name}_accuracy": mean(accuracy_per_user(self.test, rows)[outcome.honest])
            for name, rows in models.items()
        }

    def result(self, outcome: SimulationResult) -> dict[str, Any]:
        """The result, ready for JSON; the compiled engine learns from the same users, for comparison."""
        problem = self.network.problem
        plan, edges = engine_plan(problem.n_users, self.graph, self.step), engine_graph(problem.n_users, self.graph)
        engine, _ = engine_accuracies(problem, plan, self.test, 0, edges)
        counted = ("messages", "bytes", "lost", "refused", "restarts")
        return {
            **self.accuracies(outcome),
            "engine_accuracy": mean(engine[outcome.honest]),
            "honest": int(outcome.honest.sum()),
            "trusting": int(outcome.trusts.sum()),
            "edges": outcome.edges,
            **{name: outcome.counts[name] for name in counted},
            "bits": round(outcome.bits),
            "events": outcome.events,
            "invariants_checked": outcome.checks,
            "violations": 0,
        }


def make_case(
    people: NetworkUsers,
    steps: int,
    seed: int,
    faults: str,
    graph: GraphRule = "evidence",
    journal: BinaryIO | None = None,
    step: StepRule = "block",
) -> SimulationCase:
    """Build the simulated network of given users."""
    replay = f"dada sim {people.options} --steps {steps} --seed {seed} --faults {faults} --graph {graph} --step {step}"
    run_options: Any = {"graph": graph, "step": step, "steps": steps, "seed": seed}
    network = network_of(people.problem, Faults.named(faults), **run_options, replay=replay, journal=journal)
    info = users_info(f"{people.train.n_users} simulated peers, {people.name}; faults: {faults}", people)
    honest = np.array([host.is_honest for host in network.world.hosts])
    test = task.samples(people.test, people.predictors)
    return SimulationCase(network, test, graph, step, _with_liars(info, honest))


def users_info(title: str, people: NetworkUsers, **known: Any) -> RunInfo:
    """What a page shows about the users of a network."""
    return synthetic_info(title, people, people.predictors, **known)


def _with_liars(info: RunInfo, honest: Array) -> RunInfo:
    """The description of a run, with liars as a group."""
    if honest.all():
        return info
    groups, names = (info.groups.copy(), info.group_names) if info.group_names else (np.zeros(honest.size), ("honest",))
    groups[~honest] = len(names)
    return replace(info, groups=groups, group_names=(*names, "liars"))


@dataclass(frozen=True, eq=False)
class Reference:
    """Test accuracies of the users of a swarm in the compiled engine; `alone` has one per user."""

    alone: Array
    engine: float
    engine_neighbours: float
    oracle: float | None

    @property
    def local(self) -> float:
        """Mean accuracy of users that learn alone."""
        return mean(self.alone)


def learn_centrally(people: NetworkUsers, network: NetworkFile, seed: int) -> Reference:
    """Learn with the compiled engine: each user alone, with a learned graph, and with the true graph if it is known."""
    n_users, test = people.train.n_users, task.samples(people.test, people.predictors)
    joint = replace(people.problem, regularizer=network.regularizer)
    fixed = Plan(UPDATES_PER_USER * n_users, learn_graph=False)
    graph, step = network.settings["graph"], network.settings.get("step", "pairwise")
    learned = engine_plan(n_users, graph, step, network.rhythm.kappa, graph_every=20 * n_users)
    engine, neighbours = engine_accuracies(joint, learned, test, seed, engine_graph(n_users, graph))
    oracle = None
    if people.oracle is not None:
        oracle = mean(engine_accuracies(joint, fixed, test, seed, people.oracle)[0])
    return Reference(
        alone=engine_accuracies(replace(joint, mu1=0.0), fixed, test, seed)[0],
        engine=mean(engine),
        engine_neighbours=neighbours,
        oracle=oracle,
    )


def make_network(
    people: NetworkUsers, wakeups_per_s: float, graph: GraphRule = "evidence", step: StepRule = "block"
) -> NetworkFile:
    """The network file of a swarm."""
    spec, arrays = people.predictors.to_arrays()
    local_steps = 10 if step == "block" else 60
    # Every candidate neighbour costs a link, and this machine opens all of them.
    first_graph_steps, kappa = (8, 10) if people.train.n_users <= FEW_PEERS else (4, 5)
    problem, labels = people.problem, [] if people.train.classes is None else people.train.classes.tolist()
    return NetworkFile(
        settings={"beta": problem.beta, "mu1": problem.mu1, "vet": True, **usual_settings(graph, step)},
        features=people.train.feature_names,
        target=Target(tuple(map(str, labels))),
        coupling=np.asarray(people.predictors.coupling, np.float64),
        predictors=spec,
        arrays=arrays,
        rhythm=Rhythm(local_steps, first_graph_steps, graph_every=5, kappa=kappa, wakeups_per_s=wakeups_per_s),
        regularizer=LogDegree(lam=3.0, delta=0.1),
    )


def make_homes(folder: Path, people: NetworkUsers, network: NetworkFile) -> list[Home]:
    """Create a folder for every peer, with a key and its samples."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "network.json"
    network.write(file)
    homes = [Home(folder / f"peer-{k:03d}") for k in range(people.train.n_users)]
    for k, home in enumerate(homes):
        home.create(file, new_secret_key())
        home.write_samples(people.problem.rows_of(k))
    return homes


class SwarmDisplay:
    """Collects the statuses of a swarm, and shows them on a terminal."""

    def __init__(
        self, console: Console, test: Samples, network: NetworkFile, reference: Reference, overview: PeerOverview
    ) -> None:
        self._test, self._network, self._reference, self._overview = test, network, reference, overview
        self._screen = Live(console=console, refresh_per_second=2, transient=True)
        self._is_shown = console.is_terminal
        self._statuses: Sequence[Mapping[str, Any]] = ()
        self._last = (time.monotonic(), 0)
        self.restarts = self.errors = 0

    def __enter__(self) -> SwarmDisplay:
        if self._is_shown:
            self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.stop()

    def show(self, homes: Sequence[Home], statuses: Sequence[Mapping[str, Any]], left_s: float) -> None:
        """Take the current statuses."""
        self._statuses = statuses
        self._overview.update(statuses, lambda: accuracies(homes, self._network, self._test), milestone=left_s <= 0)
        if self._is_shown:
            self._screen.update(self._table(self._accuracy(homes), left_s))

    def result(self, homes: Sequence[Home]) -> dict[str, Any]:
        """The swarm's result, ready for JSON; accuracies are fractions."""
        total = self._overview.total
        counts = np.array([0, total("paper_floats"), total("paper_indices")])
        return {
            "peers": self.n_up,
            "test_accuracy": self._accuracy(homes),
            "local_accuracy": self._reference.local,
            "engine_accuracy": self._reference.engine,
            "oracle_accuracy": self._reference.oracle,
            "edges": self.n_edges,
            "messages": total("messages_sent"),
            "wire_bytes": total("wire_bytes"),
            "model_bytes": total("model_bytes"),
            "paper_bits": round(Ledger(self._network.coupling.size).price(counts)) + total("coded_bits"),
            "restarts": self.restarts,
            "errors": self.errors,
        }

    @property
    def n_up(self) -> int:
        """Peers that are running."""
        return sum(bool(status.get("running")) for status in self._statuses)

    @property
    def n_edges(self) -> int:
        """Pairs of peers in which at least one has the other as a neighbour."""
        return len({frozenset((status["id"], l)) for status in self._statuses for l in status.get("neighbours", ())})

    @property
    def mean_neighbours(self) -> float:
        """Neighbours per peer."""
        return float(np.mean([len(status.get("neighbours", ())) for status in self._statuses]))

    def _accuracy(self, homes: Sequence[Home]) -> float:
        return mean(accuracies(homes, self._network, self._test))

    def _table(self, test_accuracy: float, left_s: float) -> Table:
        now, sent = time.monotonic(), self._overview.total("messages_sent")
        per_s = (sent - self._last[1]) / max(now - self._last[0], 1e-9)
        self._last = (now, sent)
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", justify="right")
        table.add_column(style="bold")
        rows = {
            "peers up": f"{self.n_up} of {len(self._statuses)}",
            "links": f"{sum(status.get('links', 0) for status in self._statuses) // 2}",
            "edges": f"{self.n_edges} ({self.mean_neighbours:.1f} neighbours per peer)",
            "messages": f"{sent} ({per_s:.0f} per second)",
            "on the wire": f"{self._overview.total('wire_bytes') / 1e6:.1f} MB",
            "test accuracy": f"{percent(test_accuracy)} (alone {percent(self._reference.local)})",
            "restarts": f"{self.restarts}",
            "seconds left": f"{left_s:.0f}",
        }
        for row in rows.items():
            table.add_row(*row)
        return table


def accuracies(homes: Sequence[Home], network: NetworkFile, test: Samples) -> Array:
    """Each user's test accuracy with its peer's stored model, or with none before its first state."""
    found = []
    for home, (start, stop) in zip(homes, pairwise(test.row_start), strict=True):
        model = home.read_model() if home.state.exists() else np.zeros(network.coupling.size, np.float32)
        found.append(is_right(test.predictions[start:stop].astype(np.float64) @ model, test.y[start:stop]))
    return mean_per_user(np.concatenate(found), test.row_start)


def run_processes(
    homes: Sequence[Home], seconds: float, display: SwarmDisplay, kill_every: float | None, seed: int
) -> None:
    """Run each peer in its own process, and kill one every `kill_every` seconds."""
    swarm = Swarm(homes, OPTIONS, np.random.default_rng(seed))
    try:
        swarm.start()
        with display:
            _watch(swarm, seconds, display, kill_every)
    finally:
        running = swarm.statuses()
        swarm.stop()
        # The last statuses have the final counts; `running` is the state before the stop.
        final = [last | {"running": status["running"]} for last, status in zip(swarm.statuses(), running, strict=True)]
        display.restarts, display.errors = swarm.restarts, swarm.errors
        display.show(homes, final, 0.0)


def _watch(swarm: Swarm, seconds: float, display: SwarmDisplay, kill_every: float | None) -> None:
    homes = [peer.home for peer in swarm.peers]
    begin = time.monotonic()
    next_kill = begin + kill_every if kill_every is not None else float("inf")
    revive_at = float("inf")
    # The last killed peer must have time to restart.
    last_kill = begin + seconds - 3.0 * AWAY_S
    while (now := time.monotonic()) < begin + seconds:
        if now >= revive_at:
            swarm.revive()
            revive_at = float("inf")
        if next_kill <= now < last_kill and kill_every is not None:
            swarm.kill_one()
            next_kill, revive_at = now + kill_every, min(revive_at, now + AWAY_S)
        elif kill_every is None and any(not peer.is_up for peer in swarm.peers):
            swarm.revive()
        display.restarts, display.errors = swarm.restarts, swarm.errors
        display.show(homes, swarm.statuses(), begin + seconds - now)
        time.sleep(max(0.0, min(REFRESH_EVERY_S, begin + seconds - time.monotonic())))


async def run_nodes(homes: Sequence[Home], seconds: float, display: SwarmDisplay) -> None:
    """Run all peers in this process."""
    links = LinkOptions(dialling=asyncio.Semaphore(MOST_DIALS))
    nodes = [await open_node(home, OPTIONS, links=links) for home in homes]
    known = [read_ticket(nodes[0].ticket)]
    tasks = [asyncio.create_task(node.run(known if node is not nodes[0] else ())) for node in nodes]
    while not all(node.is_up or task.done() for node, task in zip(nodes, tasks, strict=True)):
        await asyncio.sleep(0.1)
    deadline = time.monotonic() + seconds
    with display:
        while (left := deadline - time.monotonic()) > 0 and not any(task.done() for task in tasks):
            display.show(homes, _statuses(nodes, tasks), left)
            # Statuses of many nodes take long: they read every link.
            await asyncio.sleep(min(max(REFRESH_EVERY_S, len(nodes) / 30), left))
    final = _statuses(nodes, tasks)
    for node in nodes:
        node.stop()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    for node in nodes:
        node.store.close()
    display.errors = sum(isinstance(end, BaseException) for end in ends)
    display.show(homes, final, 0.0)


def _statuses(nodes: list[Node], tasks: list[asyncio.Task[None]]) -> list[dict[str, Any]]:
    return [node.status() | {"running": not task.done()} for node, task in zip(nodes, tasks, strict=True)]
