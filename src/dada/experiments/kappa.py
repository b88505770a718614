"""The effect of the block size kappa on learning the graph: its objective against wake-ups and bits, models frozen."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dada import task
from dada.baselines.persolin import wake_graph
from dada.core.bits import cached_graph_bits
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.plan import GRAPH_STREAM, Plan, Schedule
from dada.data import BasePredictors, Population
from dada.engine import run
from dada.engine.graph_loops import DistanceRule
from dada.engine.state import State
from dada.experiments.lab import Job, Lab, run_groups
from dada.experiments.ladders import Settings
from dada.experiments.methods import rounded
from dada.experiments.page import Block, Figure, Page, Table, bits_text, decimal, drawing, verdicts
from dada.experiments.protocol import N_RUNS
from dada.experiments.table1 import EVERY_WEIGHT_TO_EVERYONE_BITS, KAPPA_ONE_BITS
from dada.experiments.tasks import SPECS, whole_task
from dada.plot.theme import Picture, Theme

KAPPAS = (1, 2, 5, 10, 20, 50, 99)
STEPS = {"lipschitz": "the paper's step", "exact": "the exact step"}
# The length of the paper's step is of the order of delta^2: delta = 1 gives it a fair chance.
GRAPH = {"beta": 10.0, "mu": 1.0, "lam": 1.0, "delta": 1.0}
ASKED = 60_000
LEAST_WAKEUPS = 12_000
POINTS = 150
# Left ends of the axes.
FIRST = {"wakeups": 20, "bits": 2e4}
TARGETS = (0.5, 0.1, 0.01)
COUNTED = ("wakeups", "bits", "cached_bits")
Results = dict[tuple[str, int], list[dict[str, Any]]]
# By step, kappa, part of the initial distance, and what is counted.
Reached = dict[tuple[str, int, float, str], float | None]


def graph_study(
    train: Population, predictors: BasePredictors, settings: Settings, rng: np.random.Generator
) -> dict[str, Any]:
    """Learn a graph from local models and record the objective on the way.

    `settings` are `beta`, `mu`, `lam`, `delta`; `updates` per user of the local models; `kappa`, `graph_step` and
    `wakeups` of the graph, on which the local models do not depend. The result has lists of wake-ups, of h(w), and of
    bits sent: as the paper counts them, and if users keep the models they receive.
    """
    n_users, kappa, wakeups = train.n_users, settings["kappa"], settings["wakeups"]
    regularizer = LogDegree(lam=settings["lam"], delta=settings["delta"])
    problem = task.problem(train, predictors, beta=settings["beta"], mu1=settings["mu"], regularizer=regularizer)
    models = run(problem, Plan(n_updates=settings["updates"] * n_users, learn_graph=False), rng).models
    schedule = Schedule.draw(rng, n_users, kappa)
    plan = Plan(n_updates=0, kappa=kappa, graph_step=settings["graph_step"], sampler="uniform")
    state = State.start(problem, plan, CollaborationGraph.empty(n_users), np.float32)
    state.use_models(problem, models)
    learner = DistanceRule(problem, plan, models.dtype)
    learner.losses = problem.graph_losses(models)
    # The objective is recorded at the start and then at ever larger intervals.
    marks = np.unique(np.concatenate(([0], np.geomspace(1, wakeups, POINTS).astype(int))))
    objective, bits = [problem.graph_objective(models, state.graph)], [0.0]
    for before, upto in pairwise(marks):
        wake_graph(learner, state, schedule, int(upto - before))
        objective.append(problem.graph_objective(models, state.graph))
        bits.append(state.ledger.bits)
    awake, batches = schedule.users(GRAPH_STREAM, 0, wakeups), schedule.batches(0, wakeups)
    cached = np.cumsum(cached_graph_bits(awake, batches, np.count_nonzero(models, axis=1), problem.n_predictors))
    return {
        "wakeups": marks.tolist(),
        "objective": objective,
        "bits": bits,
        "cached_bits": [0.0, *cached[marks[1:] - 1].tolist()],
    }


def moons_graph_study(settings: Settings, seed: int, run: int) -> dict[str, Any]:
    """:func:`graph_study` on a draw of Moons."""
    data = whole_task("moons", seed, run, SPECS["moons"].stumps, SPECS["moons"].rule)
    return graph_study(*data, settings, np.random.default_rng([seed, run, zlib.crc32(b"graph-study")]))


def kappa_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page."""
    results, best = compute(lab)
    reached_by = {
        (step, kappa, target, name): _mean_reached(results[step, kappa], best, target, name)
        for step in STEPS
        for kappa in KAPPAS
        for target in TARGETS
        for name in COUNTED
    }
    blocks = [
        *(
            Figure(step, f"Distance to the optimum with {title}.", _picture(results, best, step))
            for step, title in STEPS.items()
        ),
        *(_reach_table(reached_by, step) for step in STEPS),
        *_verdicts(reached_by),
    ]
    steps = {
        step: {
            str(kappa): {
                "course": _course(results[step, kappa], best),
                "reached": {str(t): {name: reached_by[step, kappa, t, name] for name in COUNTED} for t in TARGETS},
            }
            for kappa in KAPPAS
        }
        for step in STEPS
    }
    return Page.of("kappa", lab, blocks, {"settings": GRAPH, "optimum": best, "steps": steps})


def compute(lab: Lab) -> tuple[Results, list[float]]:
    """All runs, and the optimum of each run's population."""
    updates = 50 if lab.quick else 200

    def jobs(step: str, kappa: int, wakeups: int) -> list[Job]:
        settings = GRAPH | {"updates": updates, "kappa": kappa, "graph_step": step, "wakeups": wakeups}
        return [Job(moons_graph_study, {"settings": settings, "seed": lab.seed, "run": run}) for run in range(N_RUNS)]

    reference = ("", 0)
    groups = {reference: jobs("exact", 20, ASKED)}
    groups |= {(s, kappa): jobs(s, kappa, max(LEAST_WAKEUPS, ASKED // kappa)) for s in STEPS for kappa in KAPPAS}
    found = run_groups(lab, groups, "learning graphs")
    return found, [run["objective"][-1] for run in found.pop(reference)]


def distance(run: Mapping[str, Any], optimum: float) -> Array:
    """(h - h*) / (h0 - h*) along a run."""
    objective = np.array(run["objective"])
    return np.maximum(objective - optimum, 0.0) / (objective[0] - optimum)


def reached(run: Mapping[str, Any], optimum: float, target: float, name: str) -> float | None:
    """Wake-ups or bits at which the distance first falls to the target, interpolated between records."""
    gap = distance(run, optimum)
    below = np.flatnonzero(gap <= target)
    if not below.size:
        return None
    i = int(below[0])
    share = (gap[i - 1] - target) / (gap[i - 1] - gap[i])
    return float(run[name][i - 1] + share * (run[name][i] - run[name][i - 1]))


def _mean_reached(runs: Sequence[Mapping[str, Any]], best: Sequence[float], target: float, name: str) -> float | None:
    values = [reached(run, optimum, target, name) for run, optimum in zip(runs, best, strict=True)]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _course(runs: Sequence[Mapping[str, Any]], best: Sequence[float]) -> dict[str, list[float]]:
    """Means over runs of wake-ups, bits and distance to the optimum."""
    gap = np.mean([distance(run, optimum) for run, optimum in zip(runs, best, strict=True)], axis=0)
    means = {name: np.mean([run[name] for run in runs], axis=0) for name in ("wakeups", "bits")}
    return {"distance": rounded(gap), **{name: rounded(values) for name, values in means.items()}}


def _reach_table(reached_by: Reached, step: str) -> Table:
    rows = []
    for kappa in KAPPAS:
        cells = [str(kappa)]
        for target in TARGETS:
            wakeups, bits = (reached_by[step, kappa, target, name] for name in ("wakeups", "bits"))
            cells += [decimal(wakeups, 0), bits_text(bits)]
        rows.append([*cells, bits_text(reached_by[step, kappa, 0.1, "cached_bits"])])
    names = [f"{what} to {100 * target:g} %" for target in TARGETS for what in ("wake-ups", "bits")]
    columns = ["kappa", *names, "bits to 10 %, models kept"]
    return Table(f"With {STEPS[step]}: until a part of the initial distance is left", columns, rows)


def _picture(results: Results, best: Sequence[float], step: str) -> Picture:
    @drawing(11.0, 4.2, columns=2, sharey=True)
    def picture(theme: Theme, axes: list[Axes]) -> None:
        first, last = np.array(theme.colour_of("local-boost")), np.array(theme.colour_of("dada-learned"))
        for ax, name, label in zip(axes, ("wakeups", "bits"), ("wake-ups", "bits sent"), strict=True):
            for position, kappa in enumerate(KAPPAS):
                course = _course(results[step, kappa], best)
                # Colours in the order of kappa, from one end to the other.
                shade = 0.15 + 0.8 * position / (len(KAPPAS) - 1)
                colour = tuple(((1 - shade) * first + shade * last).tolist())
                ax.plot(course[name][1:], course["distance"][1:], color=colour, linewidth=1.6, label=f"kappa {kappa}")
            ax.set(xscale="log", yscale="log", xlabel=label, xlim=(FIRST[name], None), ylim=(1e-4, 1.2))
        axes[0].set(ylabel="distance to the optimum")
        axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)

    return picture


def _verdicts(reached_by: Reached) -> list[Block]:
    def at(step: str, name: str) -> dict[int, float]:
        return {kappa: reached_by[step, kappa, 0.1, name] or np.inf for kappa in KAPPAS}

    paper, exact, wakeups = at("lipschitz", "bits"), at("exact", "bits"), at("lipschitz", "wakeups")
    fewest = min(KAPPAS, key=lambda kappa: paper[kappa])
    is_falling = all(wakeups[later] <= 1.05 * wakeups[earlier] for earlier, later in pairwise(KAPPAS))
    return verdicts(
        "kappa",
        fewest=fewest,
        fewest_bits=bits_text(paper[fewest]),
        one="agrees with" if fewest == 1 else "unlike",
        published=bits_text(KAPPA_ONE_BITS),
        everyone=bits_text(EVERY_WEIGHT_TO_EVERYONE_BITS),
        fewer="fewer" if is_falling else "not always fewer",
        wakeups=wakeups,
        falling="agrees" if is_falling else "does not agree",
        exact=(bits_text(min(exact.values())), bits_text(max(exact.values()))),
        cheaper=sum(exact[kappa] <= paper[kappa] for kappa in KAPPAS),
        n=len(KAPPAS),
    )
