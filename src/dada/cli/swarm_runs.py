"""Runs of `dada swarm`: users and their network, reference accuracies, processes, and the display."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dada import task
from dada.cli.console import GraphRule, peer_settings, percent, plan_settings
from dada.core.accuracy import is_right, mean_per_user
from dada.core.bits import Ledger
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.problem import margins_of_labels
from dada.core.regularizers import LogDegree
from dada.data import BasePredictors
from dada.data.synthetic import SyntheticUsers
from dada.engine import Plan, Samples, run
from dada.net.forkserver import Swarm
from dada.net.home import Home, read_ticket
from dada.net.iroh_transport import new_secret_key
from dada.net.network_file import NetworkFile
from dada.net.node import Node
from dada.net.process import RunOptions, open_node
from dada.net.session import LinkOptions
from dada.net.statuses import PeerOverview
from dada.peer.member import Rhythm

BETA, MU = 10.0, 1.0
FEW_PEERS = 50
# Enough for models to converge.
UPDATES_PER_USER = 200


@dataclass(frozen=True, eq=False)
class Reference:
    """Test accuracies of the same users in the compiled engine; `alone` has one per user."""

    alone: Array
    engine: float
    engine_neighbours: float
    oracle: float

    @property
    def local(self) -> float:
        """Mean accuracy of users that learn alone."""
        return float(self.alone.mean())


def make_network(
    people: SyntheticUsers, predictors: BasePredictors, wakeups_per_s: float, graph: GraphRule = "evidence"
) -> NetworkFile:
    """The network file of a swarm."""
    spec, arrays = predictors.to_arrays()
    # Every candidate neighbour costs a link, and this machine opens all of them.
    first_graph_steps, kappa = (8, 10) if people.train.n_users <= FEW_PEERS else (4, 5)
    return NetworkFile(
        settings={"beta": BETA, "mu1": MU, "vet": True, **peer_settings(graph)},
        features=tuple(f"x{d}" for d in range(people.train.n_features)),
        classes=("-1", "1"),
        coupling=np.asarray(predictors.coupling, np.float64),
        predictors=spec,
        arrays=arrays,
        rhythm=Rhythm(60, first_graph_steps, graph_every=5, kappa=kappa, wakeups_per_s=wakeups_per_s),
        regularizer=LogDegree(lam=3.0, delta=0.1),
    )


def make_homes(folder: Path, people: SyntheticUsers, predictors: BasePredictors, network: NetworkFile) -> list[Home]:
    """Create a folder for every peer, with a key and its samples."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "network.json"
    network.write(file)
    margins = margins_of_labels(predictors.predict(people.train.X), people.train.y)
    rows = pairwise(people.train.row_start)
    homes = []
    for k, (start, stop) in enumerate(rows):
        home = Home(folder / f"peer-{k:03d}")
        home.create(file, new_secret_key())
        home.write_samples(margins[start:stop])
        homes.append(home)
    return homes


def learn_centrally(people: SyntheticUsers, predictors: BasePredictors, network: NetworkFile, seed: int) -> Reference:
    """Learn with the compiled engine: each user alone, with a learned graph, and with the true graph."""
    settings = network.settings
    K = people.train.n_users
    test = task.samples(people.test, predictors)

    def learned_by(plan: Plan, mu1: float, graph: CollaborationGraph | None = None) -> tuple[Array, float]:
        others = {name: value for name, value in settings.items() if name in ("loss", "graph_loss", "mu2")}
        problem = task.problem(
            people.train, predictors, beta=settings["beta"], mu1=mu1, regularizer=network.regularizer, **others
        )
        result = run(problem, plan, np.random.default_rng(seed), graph=graph, test=test)
        return result.trace[-1].test_accuracy, float(result.graph.mean_neighbours)

    fixed = Plan(n_updates=UPDATES_PER_USER * K, learn_graph=False)
    graph = plan_settings(settings["graph"])
    learned = Plan(
        UPDATES_PER_USER * K, kappa=min(network.rhythm.kappa, K - 1), graph_every=20 * K, restart="local", **graph
    )
    oracle = CollaborationGraph.from_scipy(people.oracle_weights())
    engine, neighbours = learned_by(learned, settings["mu1"])
    return Reference(
        alone=learned_by(fixed, 0.0)[0],
        engine=float(engine.mean()),
        engine_neighbours=neighbours,
        oracle=float(learned_by(fixed, settings["mu1"], oracle)[0].mean()),
    )


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
            "peers": sum(bool(status.get("running")) for status in self._statuses),
            "test_accuracy": self._accuracy(homes),
            "local_accuracy": self._reference.local,
            "engine_accuracy": self._reference.engine,
            "oracle_accuracy": self._reference.oracle,
            "edges": self.n_edges,
            "messages": total("messages_sent"),
            "wire_bytes": total("wire_bytes"),
            "paper_bits": round(Ledger(self._network.coupling.size).price(counts)),
            "restarts": self.restarts,
            "errors": self.errors,
        }

    @property
    def n_edges(self) -> int:
        """Pairs of peers in which at least one has the other as a neighbour."""
        return len({frozenset((status["id"], l)) for status in self._statuses for l in status.get("neighbours", ())})

    @property
    def mean_neighbours(self) -> float:
        """Neighbours per peer."""
        return float(np.mean([len(status.get("neighbours", ())) for status in self._statuses]))

    def _accuracy(self, homes: Sequence[Home]) -> float:
        return float(accuracies(homes, self._network, self._test).mean())

    def _table(self, test_accuracy: float, left_s: float) -> Table:
        now, sent = time.monotonic(), self._overview.total("messages_sent")
        per_s = (sent - self._last[1]) / max(now - self._last[0], 1e-9)
        self._last = (now, sent)
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", justify="right")
        table.add_column(style="bold")
        up = sum(bool(status.get("running")) for status in self._statuses)
        rows = {
            "peers up": f"{up} of {len(self._statuses)}",
            "links": f"{sum(status.get('links', 0) for status in self._statuses) // 2}",
            "edges": f"{self.n_edges} ({self.mean_neighbours:.1f} neighbours per peer)",
            "messages": f"{sent} ({per_s:.0f} per second)",
            "on the wire": f"{self._overview.total('wire_bytes') / 1e6:.1f} MB",
            "test accuracy": f"{percent(test_accuracy)} (alone {percent(self._reference.local)})",
            "restarts": f"{self.restarts}",
            "seconds left": f"{left_s:.0f}",
        }
        for name, value in rows.items():
            table.add_row(name, value)
        return table


def accuracies(homes: Sequence[Home], network: NetworkFile, test: Samples) -> Array:
    """Each user's test accuracy with its peer's stored model."""
    found = []
    for k, home in enumerate(homes):
        rows = slice(int(test.row_start[k]), int(test.row_start[k + 1]))
        values = test.predictions[rows].astype(np.float64) @ _model(home, network)
        found.append(is_right(values, test.y[rows]))
    return mean_per_user(np.concatenate(found), test.row_start)


def _model(home: Home, network: NetworkFile) -> Array:
    return home.read_model() if home.state.exists() else np.zeros(network.coupling.size, np.float32)


REFRESH_EVERY_S = 1.0
# Time between a kill and the restart.
AWAY_S = 1.0
OPTIONS = RunOptions()
# Concurrent dials in a process of many peers.
MOST_DIALS = 8


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


def run_in_process(homes: Sequence[Home], seconds: float, display: SwarmDisplay) -> None:
    """Run all peers in this process."""
    asyncio.run(_run_nodes(homes, seconds, display))


async def _run_nodes(homes: Sequence[Home], seconds: float, display: SwarmDisplay) -> None:
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
