"""The effect of the block size kappa: objective of the graph against wake-ups and bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from dada.core.compiled import Array
from dada.experiments import page as wording
from dada.experiments.graph_study import GRAPH_STUDY
from dada.experiments.jobs import Job, rounded
from dada.experiments.lab import Lab
from dada.experiments.page import Figure, Heading, Items, Page, Table
from dada.experiments.protocol import N_RUNS
from dada.experiments.published import EVERY_WEIGHT_TO_EVERYONE_BITS, KAPPA_ONE_BITS
from dada.plot.theme import Picture, Theme, new_figure

KAPPAS = (1, 2, 5, 10, 20, 50, 99)
STEPS = {"lipschitz": "the paper's step", "exact": "the exact step"}
# With a small delta the paper's step is very short (its length is of the order of delta^2): delta = 1 shows it at work.
GRAPH = {"beta": 10.0, "mu": 1.0, "lam": 1.0, "delta": 1.0}
ASKED = 60_000
LEAST_WAKEUPS = 12_000
# Where the pictures begin: before, nothing can be seen.
FIRST = {"wakeups": 20, "bits": 2e4}
TARGETS = (0.5, 0.1, 0.01)
LEAD = (
    "The graph of 100 Moons users is learned from their purely local models, kappa peers being asked at a wake-up. "
    "Shown is how far the objective is from its optimum, as a part of where it starts; lines are means of three "
    "runs."
)
Results = dict[tuple[str, int], list[dict[str, Any]]]


def kappa_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page."""
    results, best = compute(lab)
    page = Page("kappa", "The effect of kappa on learning the graph", LEAD)
    page.blocks += [
        *(
            Figure(step, f"Distance to the optimum with {title}.", _picture(results, best, step))
            for step, title in STEPS.items()
        ),
        *(_reach_table(results, best, step) for step in STEPS),
        Heading("What agrees with the paper, and what does not"),
        Items(_verdicts(results, best)),
    ]
    page.data = {
        "settings": GRAPH,
        "optimum": best,
        "steps": {
            step: {
                str(kappa): {
                    "course": _course(results[step, kappa], best),
                    "reached": {
                        str(target): {
                            name: _mean_reached(results[step, kappa], best, target, name)
                            for name in ("wakeups", "bits", "cached_bits")
                        }
                        for target in TARGETS
                    },
                }
                for kappa in KAPPAS
            }
            for step in STEPS
        },
    }
    return page


def compute(lab: Lab) -> tuple[Results, list[float]]:
    """All runs, and the optimum of each run's population."""
    updates = 50 if lab.quick else 200

    def job(run: int, **settings: Any) -> Job:
        return Job.of("moons", GRAPH_STUDY, {**GRAPH, "updates": updates, **settings}, seed=lab.seed, run=run)

    def wakeups(kappa: int) -> int:
        return max(LEAST_WAKEUPS, ASKED // kappa)

    references = [job(run, kappa=20, graph_step="exact", wakeups=ASKED) for run in range(N_RUNS)]
    wanted = [(step, kappa) for step in STEPS for kappa in KAPPAS]
    jobs = [
        job(run, kappa=kappa, graph_step=step, wakeups=wakeups(kappa))
        for step, kappa in wanted
        for run in range(N_RUNS)
    ]
    found = iter(lab.run([*references, *jobs], "learning graphs"))
    best = [next(found)["objective"][-1] for _ in references]
    return {pair: [next(found) for _ in range(N_RUNS)] for pair in wanted}, best


def distance(run: Mapping[str, Any], optimum: float) -> Array:
    """(h - h*) / (h0 - h*) along a run."""
    objective = np.array(run["objective"])
    return np.maximum(objective - optimum, 0.0) / (objective[0] - optimum)


def reached(run: Mapping[str, Any], optimum: float, target: float, name: str) -> float | None:
    """Wake-ups or bits when the distance first falls to the target, between two notes by interpolation."""
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
    """Means over runs of wake-ups, bits and distance to the optimum, at the same notes."""
    gap = np.mean([distance(run, optimum) for run, optimum in zip(runs, best, strict=True)], axis=0)
    means = {name: np.mean([run[name] for run in runs], axis=0) for name in ("wakeups", "bits")}
    return {"distance": rounded(gap), **{name: rounded(values) for name, values in means.items()}}


def _reach_table(results: Results, best: Sequence[float], step: str) -> Table:
    rows = []
    for kappa in KAPPAS:
        runs, cells = results[step, kappa], [str(kappa)]
        for target in TARGETS:
            cells += [
                wording.number(_mean_reached(runs, best, target, "wakeups"), 0),
                wording.bits(_mean_reached(runs, best, target, "bits")),
            ]
        cells.append(wording.bits(_mean_reached(runs, best, 0.1, "cached_bits")))
        rows.append(cells)
    columns = ["kappa"]
    for target in TARGETS:
        columns += [f"wake-ups to {100 * target:g} %", f"bits to {100 * target:g} %"]
    return Table(
        f"With {STEPS[step]}: until the distance is down to a part of its start",
        [*columns, "bits to 10 %, models kept"],
        rows,
    )


def _picture(results: Results, best: Sequence[float], step: str) -> Picture:
    def picture(*, theme: Theme) -> Drawing:
        with theme.applied():
            figure, axes = new_figure(11.0, 4.2, columns=2, sharey=True)
            for ax, name, label in zip(axes, ("wakeups", "bits"), ("wake-ups", "bits sent"), strict=True):
                for position, kappa in enumerate(KAPPAS):
                    course = _course(results[step, kappa], best)
                    shade = 0.15 + 0.8 * position / (len(KAPPAS) - 1)
                    x, gap = course[name][1:], course["distance"][1:]
                    ax.plot(x, gap, color=_blend(theme, shade), linewidth=1.6, label=f"kappa {kappa}")
                ax.set(xscale="log", yscale="log", xlabel=label, xlim=(FIRST[name], None), ylim=(1e-4, 1.2))
                ax.grid(visible=True)
            axes[0].set(ylabel="distance to the optimum")
            axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
        return figure

    return picture


def _blend(theme: Theme, shade: float) -> tuple[float, float, float]:
    """From the colour of one end to that of the other, so that the order of kappas can be seen."""
    first, last = np.array(theme.colour_of("local-boost")), np.array(theme.colour_of("dada-learned"))
    red, green, blue = (1 - shade) * first + shade * last
    return float(red), float(green), float(blue)


def _verdicts(results: Results, best: Sequence[float]) -> list[str]:
    def at(step: str, kappa: int, name: str) -> float:
        return _mean_reached(results[step, kappa], best, 0.1, name) or np.inf

    fewest = min(KAPPAS, key=lambda kappa: at("lipschitz", kappa, "bits"))
    rounds = [at("lipschitz", kappa, "wakeups") for kappa in KAPPAS]
    falling = all(later <= 1.05 * earlier for earlier, later in pairwise(rounds))
    exact = [at("exact", kappa, "bits") for kappa in KAPPAS]
    every = wording.bits(EVERY_WEIGHT_TO_EVERYONE_BITS)
    return [
        f"With the paper's step kappa = {fewest} sends the fewest bits until 10 % of the distance is left "
        f"({wording.bits(at('lipschitz', fewest, 'bits'))}): {'agrees with' if fewest == 1 else 'unlike'} the "
        f"paper, which reports about {wording.bits(KAPPA_ONE_BITS)} for kappa = 1 at a precision it does not state. "
        f"Sending all weights to everybody once would take {every}.",
        f"With the paper's step a larger kappa needs {'fewer' if falling else 'not always fewer'} wake-ups "
        f"({rounds[0]:.0f} with kappa = 1, {rounds[-1]:.0f} with kappa = 99): "
        f"{'agrees' if falling else 'does not agree'}.",
        "The exact step, which the paper does not have, needs about as many bits whatever kappa "
        f"({wording.bits(min(exact))} to {wording.bits(max(exact))}), never more than the paper's step, and does "
        "not slow down when delta is small.",
    ]
