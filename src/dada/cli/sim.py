"""`dada sim` and `dada replay`: a simulated network with faults, and the replay of a recorded peer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from dada.cli.console import (
    AsJson,
    GraphOption,
    GraphRule,
    Live,
    Record,
    Seed,
    peer_settings,
    percent,
    plan_settings,
    print_error,
    print_json,
    print_table,
    stdout,
    watching,
    working,
)
from dada.cli.watch import synthetic_info, synthetic_peers

if TYPE_CHECKING:
    from dada.data import BasePredictors, SyntheticUsers
    from dada.engine import Samples
    from dada.events import Observer, RunInfo
    from dada.sim.simulation import NetworkPoint, SimulatedNetwork, SimulationResult

BETA, MU = 10.0, 1.0
# Points of a run at which the terminal, or a page, is updated.
POINTS, WATCHED_POINTS = 20, 150
# Updates per user of the compiled engine to compare with: enough to converge.
ENGINE_UPDATES = 200

Users = Annotated[int, typer.Option(min=2, max=10_000, help="Number of peers.")]
Steps = Annotated[int, typer.Option(min=1, help="Wake-ups per peer.")]
FaultNames = Annotated[str, typer.Option(help="Faults: none, loss, churn, byzantine, all, or several with commas.")]
Data = Annotated[str, typer.Option(help="Data of the peers: moons or moons100.")]
JournalPath = Annotated[
    Path | None, typer.Option("--journal", help="Record all inputs of the first peer in this file, for dada replay.")
]


@dataclass(frozen=True, eq=False)
class SimulationCase:
    """A simulated network of synthetic users, and their test samples."""

    network: SimulatedNetwork
    test: Samples
    graph: GraphRule
    info: RunInfo

    def run(self, page: Observer, show: Callable[[NetworkPoint], None]) -> SimulationResult:
        """Run the network, and update a page and a line on the terminal."""
        from dada.engine import accuracy_per_user
        from dada.events import Progress, Stopped, silent
        from dada.sim.simulation import SimulationOverview

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
        from dada.engine import accuracy_per_user

        models = {"test": outcome.models, "together": outcome.together, "local": outcome.alone}
        return {
            f"{name}_accuracy": float(accuracy_per_user(self.test, rows)[outcome.honest].mean())
            for name, rows in models.items()
        }

    def engine_accuracy(self, honest: Any) -> float:
        """Accuracy of the same users with the compiled engine, which has all data in one place."""
        import numpy as np

        from dada.engine import Plan, accuracy_per_user, run

        problem, graph = self.network.problem, plan_settings(self.graph)
        plan = Plan(ENGINE_UPDATES * problem.n_users, kappa=min(5, problem.n_users - 1), restart="local", **graph)
        result = run(problem, plan, np.random.default_rng(0))
        return float(accuracy_per_user(self.test, result.models)[honest].mean())


def make_case(
    data: str,
    users: int,
    steps: int,
    seed: int,
    faults: str,
    graph: GraphRule = "evidence",
    journal: BinaryIO | None = None,
) -> SimulationCase:
    """Draw users and build their network."""
    from dada.core.regularizers import LogDegree
    from dada.peer.config import PeerConfig
    from dada.peer.member import Rhythm
    from dada.sim.faults import Faults
    from dada.sim.simulation import SimulatedNetwork
    from dada.task import problem, samples

    people, predictors = synthetic_peers(data, users, seed)
    regularizer = LogDegree(lam=0.3, delta=0.1)
    joint = problem(people.train, predictors, beta=BETA, mu1=MU, regularizer=regularizer)
    config = PeerConfig(
        joint.n_predictors, BETA, MU, regularizer=joint.regularizer, coupling=joint.coupling,
        max_neighbours=64, damping=0.5, vet=True, trust_largest=0.2, **peer_settings(graph),
    )  # fmt: skip
    network = SimulatedNetwork(
        joint,
        config,
        Rhythm(local_steps=100, first_graph_steps=min(20, max(1, steps // 5)), graph_every=4),
        Faults.named(faults),
        steps=steps,
        seed=seed,
        replay=f"dada sim --users {users} --steps {steps} --seed {seed} "
        f"--faults {faults} --data {data} --graph {graph}",
        journal=journal,
    )
    title = f"{users} simulated peers, {data}; faults: {faults}"
    return SimulationCase(network, samples(people.test, predictors), graph, _info(title, people, predictors, network))


def _info(title: str, people: SyntheticUsers, predictors: BasePredictors, network: SimulatedNetwork) -> RunInfo:
    """Description of the run: users by their group, and liars as a group."""
    import numpy as np

    info = synthetic_info(title, people, predictors)
    honest = np.array([host.is_honest for host in network.world.hosts])
    if honest.all():
        return info
    groups, names = (info.groups.copy(), info.group_names) if info.group_names else (np.zeros(honest.size), ("honest",))
    groups[~honest] = len(names)
    return replace(info, groups=groups, group_names=(*names, "liars"))


def sim(
    users: Users = 50,
    steps: Steps = 150,
    seed: Seed = 0,
    faults: FaultNames = "all",
    data: Data = "moons",
    graph: GraphOption = "evidence",
    journal: JournalPath = None,
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
    - `dada sim --live`
    """
    from dada.sim.invariants import InvariantError

    with watching(live, record) as page:
        with ExitStack() as stack:
            report = stack.enter_context(working("Making users"))

            def show(point: NetworkPoint) -> None:
                report(f"Wake-up {point.time_s:.0f} of {steps}: {point.up} peers running, {point.edges} edges")

            file = None if journal is None else stack.enter_context(journal.open("wb"))
            case = make_case(data, users, steps, seed, faults, graph, file)
            try:
                outcome = case.run(page, show)
            except InvariantError as error:
                print_error(str(error))
                raise typer.Exit(1) from error
            report("Learning in one place, to compare")
            engine = case.engine_accuracy(outcome.honest)
        result = _result(case, outcome, engine)
        if as_json:
            asked = {"users": users, "steps": steps, "seed": seed, "faults": faults, "data": data, "graph": graph}
            print_json(asked | result)
        else:
            _show(result, users)


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


def _result(case: SimulationCase, outcome: SimulationResult, engine: float) -> dict[str, Any]:
    counts = outcome.counts
    return {
        **case.accuracies(outcome),
        "engine_accuracy": engine,
        "honest": int(outcome.honest.sum()),
        "trusting": int(outcome.trusts.sum()),
        "edges": outcome.edges,
        "messages": counts["messages"],
        "bytes": counts["bytes"],
        "lost": counts["lost"],
        "refused": counts["refused"],
        "restarts": counts["restarts"],
        "events": outcome.events,
        "invariants_checked": outcome.checks,
        "violations": 0,
    }


def _show(result: dict[str, Any], users: int) -> None:
    rows = [
        ["alone", percent(result["local_accuracy"])],
        ["together", percent(result["together_accuracy"])],
        ["each peer's choice of the two", percent(result["test_accuracy"])],
        ["compiled engine, learned graph", percent(result["engine_accuracy"])],
    ]
    print_table((f"learning ({result['honest']} honest users of {users})", "test\naccuracy"), rows, best=2)
    stdout().print(
        f"{result['edges']} edges, {result['messages']:,} messages, {result['bytes'] / 1e6:.1f} MB; "
        f"{result['lost']:,} messages lost, {result['refused']:,} refused, {result['restarts']} restarts\n"
        f"{result['events']:,} events, {result['invariants_checked']:,} checks, none violated",
        highlight=False,
    )
