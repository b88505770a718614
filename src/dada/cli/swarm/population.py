"""The users of a swarm: their data, the network they join, and what is known from learning in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dada.cli.graphs import GraphRule, peer_settings, plan_settings
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.regularizers import LogDegree
from dada.data import Stumps, moons, moons100
from dada.data.moons import SyntheticUsers
from dada.engine import Plan, run
from dada.net.home import Home
from dada.net.iroh_transport import new_secret_key
from dada.net.network import Network
from dada.peer.planner import Rhythm
from dada.task import Task

BETA, MU = 10.0, 1.0
FEW_PEERS = 50
# Enough that models change no more.
UPDATES_PER_USER = 200


@dataclass(frozen=True, eq=False)
class Reference:
    """Test accuracies of the same users, learning in one place; `alone` has one for each user."""

    alone: Array
    engine: float
    engine_neighbours: float
    oracle: float

    @property
    def local(self) -> float:
        """Their mean accuracy when each learns alone."""
        return float(self.alone.mean())


def make_users(data: str, n_users: int, seed: int) -> tuple[SyntheticUsers, Task]:
    """Synthetic users and their base predictors."""
    draw = moons if data == "moons" else moons100
    people = draw(np.random.default_rng(seed), n_users=n_users)
    return people, Task.of(people.train, Stumps(n=200, rule="feature-range"))


def make_network(task: Task, wakeups_per_s: float, graph: GraphRule = "evidence") -> Network:
    """What the peers of a swarm agree on."""
    predictors, arrays = task.predictors.to_arrays()
    # Every new acquaintance is a link to be made, and this machine makes them all.
    first_graph_steps, kappa = (8, 10) if task.train.n_users <= FEW_PEERS else (4, 5)
    return Network(
        settings={"beta": BETA, "mu1": MU, "vet": True, **peer_settings(graph)},
        features=tuple(f"x{d}" for d in range(task.train.n_features)),
        classes=("-1", "1"),
        coupling=np.asarray(task.predictors.coupling, np.float64),
        predictors=predictors,
        arrays=arrays,
        rhythm=Rhythm(60, first_graph_steps, graph_every=5, kappa=kappa, wakeups_per_s=wakeups_per_s),
        regularizer=LogDegree(lam=3.0, delta=0.1),
    )


def make_homes(folder: Path, people: SyntheticUsers, task: Task, network: Network) -> list[Home]:
    """A folder for every peer, with a key and its own samples."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "network.json"
    network.write(file)
    margins = task.samples.predictions * task.train.y[:, None].astype(task.predictors.dtype)
    rows = zip(task.train.row_start[:-1], task.train.row_start[1:], strict=True)
    homes = []
    for k, (start, stop) in enumerate(rows):
        home = Home(folder / f"peer-{k:03d}")
        home.create(file, new_secret_key())
        home.write_samples(margins[start:stop])
        homes.append(home)
    return homes


def learn_centrally(people: SyntheticUsers, task: Task, network: Network, seed: int) -> Reference:
    """Learn the same users alone, with a learned graph and with the true one, by the compiled engine."""
    settings = network.settings
    K = people.train.n_users
    test = task.samples_of(people.test)

    def learned_by(plan: Plan, mu1: float, graph: CollaborationGraph | None = None) -> tuple[Array, float]:
        others = {name: value for name, value in settings.items() if name in ("loss", "graph_loss", "mu2")}
        problem = task.problem(beta=settings["beta"], mu1=mu1, regularizer=network.regularizer, **others)
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
