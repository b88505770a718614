"""Moons100: accuracy curves, oracle and learned graph, and what lambda does to sparsity and accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure as Drawing

from dada.experiments import wording
from dada.experiments.curves import Runs, accuracy_curves, accuracy_data, accuracy_table, compute
from dada.experiments.data import people
from dada.experiments.lab import Lab
from dada.experiments.methods import Settings
from dada.experiments.moons_pages import graph_of
from dada.experiments.page import Figure, Heading, Items, Page, Table
from dada.experiments.protocol import final_jobs, summarise
from dada.experiments.published import MOONS100_LEARNED_NEIGHBOURS, MOONS100_ORACLE_NEIGHBOURS
from dada.plot import GraphPanel, graph_picture
from dada.plot.theme import Picture, Theme, new_figure

LAMBDAS = tuple(10.0**power for power in range(-6, 4))
LEAD = (
    "100 users, each with a rotation of its own and 3 to 20 training rows. Settings are chosen on other draws "
    "of the population; curves and numbers are means over three draws."
)


def moons100_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page."""
    chosen, runs = compute(lab, "moons100")
    sweep = _sweep(lab, chosen["moons100", "dada-learned"].settings)
    alone = summarise(runs["moons100", "local-boost"]).mean
    page = Page("moons100", "Moons100: users without groups", LEAD)
    page.blocks += [
        Figure(
            "accuracy",
            "Accuracy while learning; dashed lines are methods without collaboration.",
            accuracy_curves("moons100", runs),
        ),
        accuracy_table("moons100", chosen, runs),
        Figure(
            "graph",
            "Oracle and learned graph of the first draw. Nodes are labelled with the angle of their task.",
            _graph_picture(lab, runs),
        ),
        Figure("lambda", "Neighbours and test accuracy against lambda.", _sweep_picture(sweep, alone)),
        Table(
            "What lambda does, all other settings as chosen",
            ["lambda", "neighbours", "mean test accuracy over users"],
            [
                [f"{lam:g}", wording.number(row["neighbours"]), wording.accuracy(row["mean"], row["std"])]
                for lam, row in sweep.items()
            ],
        ),
        Heading("What agrees with the paper, and what does not"),
        Items(_verdicts(runs, sweep, alone)),
    ]
    page.data = {
        "methods": accuracy_data("moons100", chosen, runs),
        "lambda": {f"{lam:g}": row for lam, row in sweep.items()},
    }
    return page


def _sweep(lab: Lab, settings: Settings) -> dict[float, dict[str, float]]:
    pair = ("moons100", "dada-learned")
    jobs = {lam: final_jobs(lab, pair, settings | {"lam": lam}) for lam in LAMBDAS}
    found = iter(lab.run([job for some in jobs.values() for job in some], "lambda"))
    rows = {}
    for lam, some in jobs.items():
        summary = summarise([next(found) for _ in some])
        rows[lam] = {"neighbours": summary.neighbours or 0.0, "mean": summary.mean, "std": summary.std}
    return rows


def _graph_picture(lab: Lab, runs: Runs) -> Picture:
    users = people("moons100", lab.seed, 0)
    assert users.angles is not None
    labels = [f"{np.rad2deg(angle) % 360:.0f}" for angle in users.angles]
    panels = [
        GraphPanel(title, graph_of(run, users.train.n_users), users.train.confidence, np.array(run["losses"]), labels)
        for title, run in (
            ("Oracle graph", runs["moons100", "dada-oracle"][0]),
            ("Learned graph", runs["moons100", "dada-learned"][0]),
        )
    ]
    return partial(graph_picture, panels)


def _sweep_picture(sweep: Mapping[float, Mapping[str, float]], alone: float) -> Picture:
    def picture(*, theme: Theme) -> Drawing:
        with theme.applied():
            figure, (left, right) = new_figure(10.0, 3.8, columns=2)
            colour, lams = theme.colour_of("dada-learned"), list(sweep)
            left.plot(lams, [row["neighbours"] for row in sweep.values()], marker="o", color=colour)
            left.set(xscale="log", xlabel="lambda", title="Neighbours per user", ylim=(0, None))
            right.plot(lams, [row["mean"] for row in sweep.values()], marker="o", color=colour, label="Dada-Learned")
            right.axhline(alone, color=theme.colour_of("local-boost"), linestyle="--", label="Local-boost")
            right.set(xscale="log", xlabel="lambda", title="Test accuracy, %")
            right.legend()
            for ax in (left, right):
                ax.grid(visible=True)
        return figure

    return picture


def _verdicts(runs: Runs, sweep: Mapping[float, Mapping[str, float]], alone: float) -> list[str]:
    learned, oracle = summarise(runs["moons100", "dada-learned"]), summarise(runs["moons100", "dada-oracle"])
    neighbours = [row["neighbours"] for row in sweep.values()]
    sparser = all(later >= earlier - 0.5 for earlier, later in pairwise(neighbours))
    smallest = next(iter(sweep.values()))["mean"]
    return [
        f"Dada-Oracle {oracle.mean:.1f}, Dada-Learned {learned.mean:.1f}, Local-boost {alone:.1f}: "
        f"{'the order of the paper' if oracle.mean > learned.mean > alone else 'not the order of the paper'}.",
        f"The learned graph has {learned.neighbours:.1f} neighbours per user (paper: "
        f"{MOONS100_LEARNED_NEIGHBOURS}), the oracle graph {oracle.neighbours:.1f} (paper: "
        f"{MOONS100_ORACLE_NEIGHBOURS}). The first depends on the chosen lambda.",
        f"A smaller lambda gives a sparser graph: {'agrees' if sparser else 'does not hold throughout'}.",
        f"At the smallest lambda accuracy is {smallest:.1f}, against {alone:.1f} alone. The paper finds that "
        "accuracy tends to that of learning alone as lambda goes to zero.",
    ]
