"""Networks of `dada sim` and `dada swarm`: simulated ones, and real peers on this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dada.cli.console import GraphRule, StepRule, percent, plan_settings
from dada.cli.model_networks import network_of_model
from dada.cli.network_users import NetworkUsers
from dada.cli.watching import synthetic_info
from dada.core.bits import Ledger
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.problem import Problem
from dada.core.regularizers import LogDegree
from dada.engine import Plan, run
from dada.events import Observer, Progress, RunInfo, Stopped, silent
from dada.fitting.exam import Exam
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
from dada.sim import network_of
from dada.sim.faults import Faults
from dada.sim.simulation import NetworkPoint, SimulatedNetwork, SimulationOverview, SimulationResult

# Updates per user of the compiled engine to compare with: enough to converge.
UPDATES_PER_USER = 200
# Points of a simulation at which the terminal, or a page, is updated.
POINTS, WATCHED_POINTS = 20, 150
FEW_PEERS = 50
REFRESH_EVERY_S = 1.0
# Time between a kill and the restart.
AWAY_S = 1.0
OPTIONS = RunOptions()
# Concurrent dials in a process of many peers.
MOST_DIALS = 8


def engine_plan(n_users: int, graph: GraphRule, step: StepRule, kappa: int = 5, **more: Any) -> Plan:
    """How the compiled engine learns models and graph of the same users, for comparison."""
    options = {"kappa": min(kappa, n_users - 1), "restart": "local", **plan_settings(graph, step), **more}
    return Plan(UPDATES_PER_USER * n_users, **options)


def engine_graph(n_users: int, graph: GraphRule) -> CollaborationGraph | None:
    """The graph on which the engine learns: a background graph if peers have one; else it learns the graph."""
    if graph != "everyone":
        return None
    return CollaborationGraph.background(n_users, np.random.default_rng(0), 2 * OWN_EDGES)


def engine_models(
    problem: Problem, plan: Plan, seed: int, graph: CollaborationGraph | None = None
) -> tuple[Array, float]:
    """Models in the compiled engine, which has all data in one place, and mean neighbours."""
    result = run(problem, plan, np.random.default_rng(seed), graph=graph)
    return result.models, float(result.graph.mean_neighbours)


@dataclass(frozen=True, eq=False)
class SimulationCase:
    """A simulated network, and its users."""

    network: SimulatedNetwork
    people: NetworkUsers
    graph: GraphRule
    step: StepRule
    info: RunInfo

    def run(self, page: Observer, show: Callable[[NetworkPoint], None]) -> SimulationResult:
        """Run the network, and update a page and a line on the terminal."""
        if page is silent:
            return self.network.run(show, POINTS)
        overview = SimulationOverview(self.network, self.info, self.people.exam.per_user, page)
        duration_s = self.network.duration_s

        def look(point: NetworkPoint) -> None:
            overview.send(milestone=point.time_s >= duration_s)
            page(Progress(round(point.time_s), round(duration_s)))
            show(point)

        outcome = self.network.run(look, WATCHED_POINTS)
        page(Stopped(f"All {outcome.checks:,} checks held."))
        return outcome

    def accuracies(self, outcome: SimulationResult) -> dict[str, float]:
        """Test accuracy of the honest users: with their chosen models, with others, and alone."""
        models = {"test": outcome.models, "together": outcome.together, "local": outcome.alone}
        exam = self.people.exam
        return {f"{name}_accuracy": exam.score(rows, outcome.honest) for name, rows in models.items()}

    def result(self, outcome: SimulationResult) -> dict[str, Any]:
        """The result, ready for JSON; the compiled engine learns from the same users, for comparison."""
        problem, model = self.network.problem, self.people.model
        if model is not None:
            engine = model.models_
        else:
            plan, edges = engine_plan(problem.n_users, self.graph, self.step), engine_graph(problem.n_users, self.graph)
            engine, _ = engine_models(problem, plan, 0, edges)
        counted = ("messages", "bytes", "lost", "refused", "restarts")
        return {
            "measure": self.people.exam.measure,
            **self.accuracies(outcome),
            "engine_accuracy": self.people.exam.score(engine, outcome.honest),
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
    graph: GraphRule | None = None,
    journal: BinaryIO | None = None,
    step: StepRule = "block",
) -> SimulationCase:
    """Build the simulated network of given users; by default with their usual graph."""
    graph = people.graph if graph is None else graph
    replay = f"dada sim {people.options} --steps {steps} --seed {seed} --faults {faults} --graph {graph} --step {step}"
    options: Any = {"steps": steps, "seed": seed, "replay": replay, "journal": journal}
    if people.model is None:
        network = network_of(people.problem, Faults.named(faults), graph=graph, step=step, **options)
    else:
        file = network_of_model(people.model, 1.0, graph, step, vet=True, trust_largest=0.2)
        network = SimulatedNetwork(people.problem, file.config, file.rhythm, Faults.named(faults), **options)
    info = users_info(f"{people.train.n_users} simulated peers, {people.name}; faults: {faults}", people)
    honest = np.array([host.is_honest for host in network.world.hosts])
    return SimulationCase(network, people, graph, step, _with_liars(info, honest))


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
    """Test scores of the users of a swarm in the compiled engine; `alone` has one per user, `local` is their mean."""

    alone: Array
    local: float
    engine: float
    engine_neighbours: float
    oracle: float | None


def learn_centrally(people: NetworkUsers, network: NetworkFile, seed: int) -> Reference:
    """Learn with the compiled engine: each user alone, with a learned graph, and with the true graph if it is known."""
    n_users, exam, model, oracle = people.train.n_users, people.exam, people.model, None
    if model is not None:
        alone = type(model)(graph="none", random_state=seed).fit_population(people.train, like=model).models_
        engine, neighbours = model.models_, float(model.graph_.mean_neighbours)
    else:
        joint = replace(people.problem, regularizer=network.regularizer)
        fixed = Plan(UPDATES_PER_USER * n_users, learn_graph=False)
        graph, step = network.settings["graph"], network.settings.get("step", "pairwise")
        learned = engine_plan(n_users, graph, step, network.rhythm.kappa, graph_every=20 * n_users)
        engine, neighbours = engine_models(joint, learned, seed, engine_graph(n_users, graph))
        if people.oracle is not None:
            oracle = exam.score(engine_models(joint, fixed, seed, people.oracle)[0])
        alone, _ = engine_models(replace(joint, mu1=0.0), fixed, seed)
    return Reference(exam.per_user(alone), exam.score(alone), exam.score(engine), neighbours, oracle)


def make_network(
    people: NetworkUsers, wakeups_per_s: float, graph: GraphRule | None = None, step: StepRule = "block"
) -> NetworkFile:
    """The network file of a swarm; by default with the usual graph of its users."""
    # Every candidate neighbour costs a link, and this machine opens all of them.
    first_graph_steps, kappa = (8, 10) if people.train.n_users <= FEW_PEERS else (4, 5)
    if people.model is not None:
        return network_of_model(people.model, wakeups_per_s, graph, step, kappa=kappa, vet=True)
    spec, arrays = people.predictors.to_arrays()
    local_steps = 10 if step == "block" else 60
    problem, labels = people.problem, [] if people.train.classes is None else people.train.classes.tolist()
    return NetworkFile(
        settings={"beta": problem.beta, "mu1": problem.mu1, "vet": True, **usual_settings(graph or people.graph, step)},
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
        self, console: Console, exam: Exam, network: NetworkFile, reference: Reference, overview: PeerOverview
    ) -> None:
        self._exam, self._network, self._reference, self._overview = exam, network, reference, overview
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
        self._overview.update(
            statuses, lambda: self._exam.per_user(models_of(homes, self._network)), milestone=left_s <= 0
        )
        if self._is_shown:
            self._screen.update(self._table(self._accuracy(homes), left_s))

    def result(self, homes: Sequence[Home]) -> dict[str, Any]:
        """The swarm's result, ready for JSON; accuracies are fractions."""
        total = self._overview.total
        counts = np.array([0, total("paper_floats"), total("paper_indices")])
        return {
            "peers": self.n_up,
            "measure": self._exam.measure,
            "test_accuracy": self._accuracy(homes),
            "local_accuracy": self._reference.local,
            "engine_accuracy": self._reference.engine,
            "oracle_accuracy": self._reference.oracle,
            "edges": self.n_edges,
            "messages": total("messages_sent"),
            "wire_bytes": total("wire_bytes"),
            "model_bytes": total("model_bytes"),
            "paper_bits": round(Ledger(self._network.config.n_predictors).price(counts)) + total("coded_bits"),
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
        return self._exam.score(models_of(homes, self._network))

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


def models_of(homes: Sequence[Home], network: NetworkFile) -> Array:
    """The stored model of each peer; zero before its first state."""
    nothing = np.zeros(network.config.n_predictors, network.config.dtype)
    return np.stack([home.read_model() if home.state.exists() else nothing for home in homes])


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
