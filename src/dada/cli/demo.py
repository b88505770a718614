"""`dada demo` shows the method at work on synthetic users; `dada bench` times its compiled steps on this machine.

The time of an update is the processor time of a run with updates minus that of a run without, divided by their number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dada.cli.console import OUTPUT, AsJson, Seed, print_json, print_table, progress, stdout, working
from dada.cli.watching import Live, Record, SlowMotion, watching

if TYPE_CHECKING:
    from dada.cli.demo_report import DemoResult
    from dada.core.graph import CollaborationGraph
    from dada.core.plan import Plan
    from dada.core.problem import Problem
    from dada.events import Observer


# Duration of the run that a live demo shows, and usual seconds of a demo for its progress bar.
LIVE_S, USUAL_S = 20.0, 5.0


def demo(
    seed: Seed = 1,
    out: Annotated[Path, typer.Option(*OUTPUT, help="Folder for the pictures and the report.")] = Path("dada-demo"),
    users: Annotated[int, typer.Option(min=10, max=1000, help="Number of users.")] = 100,
    rule: Annotated[
        Literal["run", "printed"],
        typer.Option(help="How data are drawn: as in the authors' program, or as in the paper's text (far harder)."),
    ] = "run",
    live: Live = False,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Compare learning alone, in one place, and together, on synthetic users whose true graph is known.

    Each of 100 users has 3 to 15 labelled points of two moons, rotated by an angle near one of four; no user
    knows which users are similar. Shows a table, and writes pictures and a report that opens in any browser.

    **Examples**

    - `dada demo`
    - `dada demo --seed 2 --out second`
    - `dada demo --live`
    - `dada demo --record run.dadalog`
    - `dada demo --json`
    """
    from dada.events import fan_out

    out.mkdir(parents=True, exist_ok=True)
    with watching(live, record) as page:
        # The page opens while these load, which takes seconds.
        from dada.cli.demo_report import HEADER, METHODS, OURS, row_of, run_demo, write_report
        from dada.plot.theme import name_of

        # The run itself takes a quarter of a second.
        shown = SlowMotion(page, LIVE_S) if live else page
        with progress({name_of(method): 1.0 for method in (*METHODS, OURS)}, USUAL_S) as bars:

            def watch(method: str) -> Observer:
                """A progress bar for each method; the page shows ours."""
                bar = bars(name_of(method))
                return fan_out(bar, shown) if method == OURS else bar

            result = run_demo(seed, users, rule, watch)
        with working("Drawing"):
            files = write_report(result, out)
        if as_json:
            print_json(as_dict(result, files))
            return
        rows = [row_of(*outcome) for outcome in result.outcomes.items()]
        print_table(HEADER, rows, best=0, title=f"{result.dataset}, {users} users, seed {seed}")
        stdout().print(f"\nOpen [bold]{files[0]}[/bold] for curves and graphs.", highlight=False, soft_wrap=True)


def as_dict(result: DemoResult, files: list[Path]) -> dict[str, Any]:
    """The result for JSON; accuracies are fractions."""
    methods: dict[str, dict[str, float]] = {}
    for name, outcome in result.outcomes.items():
        methods[name] = {
            "test_accuracy": round(float(outcome.test_accuracy.mean()), 6),
            "test_accuracy_pooled": round(outcome.test_accuracy_pooled, 6),
        }
        if outcome.graph is not None and outcome.bits is not None:
            methods[name] |= {"neighbours": outcome.graph.mean_neighbours, "bits": round(outcome.bits)}
    return {"dataset": result.dataset, "seed": result.seed, "methods": methods, "files": [str(file) for file in files]}


SEED = 1
N_NEIGHBOURS = 20


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, and no more than 10,000 users.")] = False,
    as_json: AsJson = False,
) -> None:
    """Time the compiled updates on one core.

    Moons has 100 users, 200 stumps and the oracle graph, with the settings of `dada demo`; the larger populations have
    20 neighbours each. Times are processor time of one thread, best of several runs, without compilation.

    **Examples**

    - `dada bench`
    - `dada bench --quick --json`
    """
    sizes = (1_000, 10_000) if quick else (1_000, 10_000, 100_000)
    with working("Timing") as report:
        result = measure(sizes=sizes, repetitions=5 if quick else 20, report=report)
    print_report(result, as_json)


def measure(
    n_users: int = 100,
    sizes: Sequence[int] = (),
    repetitions: int = 5,
    graph_wakeups: int = 10_000,
    report: Callable[[str], None] = lambda task: None,
) -> dict[str, Any]:
    """Times for Moons with `n_users`, and times and memory for populations of the given sizes."""
    from dada.cli.demo_report import demo_settings

    oracle, graph = moons_problem("dada-oracle", n_users)
    learned, _ = moons_problem("dada-learned", n_users)
    updates = demo_settings("dada-oracle", n_users).plan.n_updates
    report("Timing model updates")
    models = {step: model_update_us(oracle, graph, step, updates, repetitions) for step in ("paper", "pairwise")}
    report("Timing graph steps")
    plan = demo_settings("dada-learned", n_users).plan
    weights = {"exact": graph_step_us(learned, plan, graph_wakeups, repetitions)}
    scale = []
    for size in sizes:
        report(f"Timing {size:,} users")
        problem, graph = moons_problem("dada-oracle", size, max_neighbours=N_NEIGHBOURS)
        update_us = model_update_us(problem, graph, "pairwise", 20 * size, repetitions=3)
        scale.append({"users": size, "model_update_us": update_us, "bytes_per_user": bytes_per_user(problem, graph)})
    return {"moons": {"model_update_us": models, "graph_step_us": weights}, "scale": scale}


def print_report(result: dict[str, Any], as_json: bool) -> None:
    """Print the result of `measure` as JSON or as two tables."""
    if as_json:
        print_json(result)
        return
    models, weights = result["moons"]["model_update_us"], result["moons"]["graph_step_us"]
    times = {"model update, paper's step": models["paper"], "model update, pairwise step": models["pairwise"]}
    times["graph step, exact, 5 peers"] = weights["exact"]
    print_table(["Moons, 100 users, 200 stumps", "us"], [[name, f"{time:.2f}"] for name, time in times.items()])
    stdout().print()
    columns = {"users": ",", "model_update_us": ".2f", "bytes_per_user": ",.0f"}
    scale = [[format(entry[name], form) for name, form in columns.items()] for entry in result["scale"]]
    print_table(["users, 20 neighbours each", "us per model update", "bytes per user"], scale)


def best_us(work: Callable[[], Any], events: int, repetitions: int) -> float:
    """Shortest processor time of this thread per event, in microseconds, after one run that warms up."""
    return 1e6 * min(times_s(work, repetitions, time.thread_time)) / events


def times_s(work: Callable[[], Any], repetitions: int, clock: Callable[[], float]) -> list[float]:
    """Seconds by a clock that each repetition takes, after one run that warms up."""
    work()
    times = []
    for _ in range(repetitions):
        started = clock()
        work()
        times.append(clock() - started)
    return times


def moons_problem(method: str, n_users: int, **bounded: Any) -> tuple[Problem, CollaborationGraph]:
    """The Moons problem of a method of the demo, and the oracle graph."""
    from dada.cli.demo_report import STUMPS, demo_settings
    from dada.core.graph import CollaborationGraph
    from dada.data import moons
    from dada.task import problem

    users, settings = moons(SEED, n_users=n_users, n_test=1), demo_settings(method, n_users)
    chosen = {"mu1": settings.mu, **{name: getattr(settings, name) for name in ("beta", "regularizer", "graph_loss")}}
    joint = problem(users.train, STUMPS.fit(users.train.X), **chosen)
    return joint, CollaborationGraph.from_scipy(users.oracle_weights(**bounded))


def model_update_us(problem: Problem, graph: CollaborationGraph, step: str, updates: int, repetitions: int) -> float:
    """Microseconds per model update over a given graph."""
    from dada.core.plan import Plan

    plan = Plan(updates, learn_graph=False, step=step, trace_every=updates)
    return _difference_us(problem, plan, replace(plan, n_updates=0), updates, repetitions, graph=graph)


def graph_step_us(problem: Problem, plan: Plan, wakeups: int, repetitions: int) -> float:
    """Microseconds per graph wake-up, starting from the empty graph and locally trained models."""
    alone = replace(plan, n_updates=0, local_updates=plan.n_updates, trace_every=1, first_graph_wakeups=0)
    return _difference_us(problem, replace(alone, first_graph_wakeups=wakeups), alone, wakeups, repetitions)


def _difference_us(problem: Problem, plan: Plan, without: Plan, events: int, repetitions: int, **given: Any) -> float:
    import numpy as np

    from dada.engine import run

    def per_event(plan: Plan) -> float:
        return best_us(lambda: run(problem, plan, np.random.default_rng(SEED), **given), events, repetitions)

    return round(per_event(plan) - per_event(without), 4)


def bytes_per_user(problem: Problem, graph: CollaborationGraph) -> float:
    """Memory of a run's state per user: data, model, neighbours' sum and neighbour list."""
    import numpy as np

    from dada.core.plan import Plan
    from dada.engine.state import State

    state = State.start(problem, Plan(0, learn_graph=False), graph, np.float32)
    arrays = {id(array): array for array in (*state.users, *state.lists)}
    return round(sum(array.nbytes for array in arrays.values()) / problem.n_users, 1)
