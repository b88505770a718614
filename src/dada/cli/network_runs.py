"""Networks of `dada swarm`: real peers on this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dada.cli.console import GraphRule, StepRule, percent
from dada.cli.new_networks import network_of_model
from dada.cli.peer_tables import network_boosting
from dada.cli.simulated_runs import (
    UPDATES_PER_USER,
    NetworkUsers,
    engine_graph,
    engine_leaves,
    engine_models,
    engine_plan,
)
from dada.core.bits import Ledger
from dada.core.compiled import Array
from dada.core.graph_steps import LogDegree
from dada.data.predictors.families import FittedUnion
from dada.engine import Plan
from dada.fitting.calibration import Exam
from dada.net.forkserver import PeerOverview, Swarm
from dada.net.home import Home
from dada.net.iroh_transport import new_secret_key
from dada.net.network_file import NetworkFile, NetworkTrees, Target, read_ticket
from dada.net.node import Node
from dada.net.process import RunOptions, open_node
from dada.net.session import LinkOptions
from dada.peer.boosted_trees import LeafModel
from dada.peer.inputs import PeerConfig, usual_settings
from dada.peer.member import Rhythm

# Beyond these peers, one machine is slow to answer: graph steps then wait longer for replies.
FEW_PEERS, PATIENT_S = 50, 10.0
REFRESH_EVERY_S = 1.0
# Time between a kill and the restart.
AWAY_S = 1.0
OPTIONS = RunOptions()
# Concurrent dials in a process of many peers.
MOST_DIALS = 8


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
    alone_exam, leaves = exam, engine_leaves(people, seed)
    if model is not None:
        lonely = type(model)(graph="none", random_state=seed).fit_population(people.train, like=model)
        # Trees that users grow without neighbours are others.
        alone, alone_exam = lonely.models_, Exam(people.test, lonely.predictors_)
        engine, neighbours = model.models_, float(model.graph_.mean_neighbours)
    else:
        joint = replace(people.problem, regularizer=network.regularizer)
        fixed = Plan(UPDATES_PER_USER * n_users, learn_graph=False)
        graph, step = network.settings["graph"], network.settings.get("step", "pairwise")
        learned = engine_plan(n_users, graph, step, network.rhythm.kappa, graph_every=20 * n_users)
        engine, neighbours = engine_models(joint, learned, seed, engine_graph(n_users, graph))
        if people.oracle is not None:
            oracle = people.score(engine_models(joint, fixed, seed, people.oracle)[0], leaves)
        alone, _ = engine_models(replace(joint, mu1=0.0), fixed, seed)
    together = people.score(engine, leaves)
    return Reference(alone_exam.per_user(alone), alone_exam.score(alone), together, neighbours, oracle)


def make_network(
    people: NetworkUsers, wakeups_per_s: float, graph: GraphRule | None = None, step: StepRule = "block"
) -> NetworkFile:
    """The network file of a swarm; by default with the usual graph of its users."""
    # Every candidate neighbour costs a link, and this machine opens all of them.
    first_graph_steps, kappa = (8, 10) if people.train.n_users <= FEW_PEERS else (4, 5)
    guard: dict[str, Any] = {"vet": True, "most_samples": int(people.problem.sizes.max())}
    if people.model is not None:
        patience: dict[str, Any] = {} if people.train.n_users <= FEW_PEERS else {"reply_timeout_s": PATIENT_S}
        return network_of_model(people.model, wakeups_per_s, graph, step, kappa=kappa, **guard, **patience)
    fixed, trees = people.predictors, None
    if people.orchard is not None and isinstance(fixed, FittedUnion):
        terms, fixed = people.orchard.terms, fixed.parts[0]
        trees = NetworkTrees(people.orchard.cuts, terms.depth, terms.per_user)
    boosting = None if people.boosted is None else network_boosting(people.boosted.cuts)
    spec, arrays = fixed.to_arrays()
    local_steps = 10 if step == "block" else 60
    problem, labels = people.problem, [] if people.train.classes is None else people.train.classes.tolist()
    # Only a loss that is not usual is in the file.
    loss = {} if problem.loss == PeerConfig.loss else {"loss": problem.loss}
    usual = usual_settings(graph or people.graph, step)
    return NetworkFile(
        settings={"beta": problem.beta, "mu1": problem.mu1, **guard, **loss, **usual},
        features=people.train.feature_names,
        target=Target(tuple(map(str, labels))),
        coupling=np.asarray(fixed.coupling, np.float64),
        predictors=spec,
        arrays=arrays,
        rhythm=Rhythm(local_steps, first_graph_steps, graph_every=5, kappa=kappa, wakeups_per_s=wakeups_per_s),
        regularizer=LogDegree(lam=3.0, delta=0.1),
        trees=trees,
        boosting=boosting,
    )


def make_homes(folder: Path, people: NetworkUsers, network: NetworkFile) -> list[Home]:
    """Create a folder for every peer, with a key and its samples."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "network.json"
    network.write(file)
    homes = [Home(folder / f"peer-{k:03d}") for k in range(people.train.n_users)]
    for k, home in enumerate(homes):
        home.create(file, new_secret_key())
        if people.orchard is not None:
            home.write_plot(people.orchard.plots[k])
        elif people.boosted is not None:
            home.write_boosted(people.problem.rows_of(k), people.boosted.rows[k])
        else:
            home.write_samples(people.problem.rows_of(k))
    return homes


class SwarmDisplay:
    """Collects the statuses of a swarm, and shows them on a terminal."""

    def __init__(
        self,
        console: Console,
        people: NetworkUsers,
        network: NetworkFile,
        reference: Reference,
        overview: PeerOverview,
    ) -> None:
        self._people, self._exam, self._network = people, people.exam, network
        self._reference, self._overview = reference, overview
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
        self._overview.update(statuses, lambda: self._per_user(homes), milestone=left_s <= 0)
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
            **self._trees(),
            **self._boosted(),
        }

    def _boosted(self) -> dict[str, Any]:
        """Boosted trees, their growers, and bytes that a peer sent for them on average."""
        found = [status["boosting"] for status in self._statuses if "boosting" in status]
        if not found:
            return {}
        most = max(found, key=lambda one: int(one["trees"]))
        sent_bytes = round(sum(one["sent_bytes"] for one in found) / len(found))
        return {"boosted": {"trees": most["trees"], "growers": most["growers"], "sent_bytes": sent_bytes}}

    def _trees(self) -> dict[str, Any]:
        """Trees alive, and bytes of trees that a peer sent on average."""
        found = [status["trees"] for status in self._statuses if "trees" in status]
        if not found:
            return {}
        sent_bytes = sum(one["sent_bytes"] for one in found) / len(found)
        return {"trees": {"alive": max(one["alive"] for one in found), "sent_bytes": round(sent_bytes)}}

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
        return self._people.score(models_of(homes, self._people), leaves_of(homes, self._people))

    def _per_user(self, homes: Sequence[Home]) -> Array:
        exam, models = self._people.with_leaves(models_of(homes, self._people), leaves_of(homes, self._people))
        return exam.per_user(models)

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


def models_of(homes: Sequence[Home], people: NetworkUsers) -> Array:
    """The stored model of each peer; zero before its first state."""
    models = np.zeros((len(homes), people.problem.n_predictors), np.float32)
    for k, home in enumerate(homes):
        if home.state.exists():
            alpha, atoms = home.read_model_and_trees()
            models[k] = alpha if people.orchard is None else people.orchard.in_order(alpha, atoms)
    return models


def leaves_of(homes: Sequence[Home], people: NetworkUsers) -> dict[int, LeafModel]:
    """The boosted trees that each peer has stored, with its own leaves; none if there are no boosted trees."""
    if people.boosted is None:
        return {}
    found = {k: home.read_leaves() for k, home in enumerate(homes) if home.state.exists()}
    return {k: own for k, own in found.items() if own is not None}


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
