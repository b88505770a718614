"""Simulated networks of `dada sim`, and the compiled engine beside them; no transport is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np

from dada.cli.console import GraphRule, StepRule, plan_settings
from dada.cli.model_networks import network_of_model
from dada.cli.network_users import NetworkUsers
from dada.cli.watching import synthetic_info
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.problem import Problem
from dada.engine import Plan, run
from dada.events import Observer, Progress, RunInfo, Stopped, silent
from dada.peer.agreed_graph import OWN_EDGES
from dada.sim import network_of
from dada.sim.faults import Faults
from dada.sim.simulation import NetworkPoint, SimulatedNetwork, SimulationOverview, SimulationResult

# Updates per user of the compiled engine to compare with: enough to converge.
UPDATES_PER_USER = 200
# Points of a simulation at which the terminal, or a page, is updated.
POINTS, WATCHED_POINTS = 20, 150


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
            **self._trees(),
        }

    def _trees(self) -> dict[str, Any]:
        """Trees alive, and bytes of trees that a peer sent on average, in its last life."""
        groves = [host.member.grove for host in self.network.joined if host.member.grove is not None]
        if not groves:
            return {}
        sent_bytes = sum(grove.sent_bits for grove in groves) / (8 * len(groves))
        return {"trees": {"alive": max(len(grove.names) for grove in groves), "sent_bytes": round(sent_bytes)}}


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
        options |= {"orchard": people.orchard, "n_classes": people.train.n_classes}
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
