"""Accuracy and neighbours while learning, on the synthetic populations Moons and Moons100."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from dada.core.compiled import Array
from dada.experiments.data import SPECS
from dada.experiments.lab import Lab
from dada.experiments.methods import METHODS, Settings
from dada.experiments.page import Table, percent, settings_text, summary_table
from dada.experiments.protocol import ChosenSettings, Pair, choose, finals, summarise_all
from dada.plot.theme import Picture, Theme, new_figure

TRACED = ("dada-learned", "dada-oracle", "perso-lin-learned", "perso-lin-oracle")
LEVELS = ("local-boost", "global-boost", "local-lin", "global-lin")
EXTRA = ("dada-uniform", "dada-evidence")
Runs = dict[Pair, list[dict[str, Any]]]


def compute(lab: Lab, dataset: str) -> tuple[dict[Pair, ChosenSettings], Runs]:
    """Choose settings on other draws of the population, then run every method on three draws."""
    pairs = [(dataset, method) for method in (*TRACED, *LEVELS, *EXTRA)]
    chosen = choose(lab, pairs, f"validation, {SPECS[dataset].title}")
    return chosen, run_all(lab, {pair: choice.settings for pair, choice in chosen.items()})


def run_all(lab: Lab, settings: Mapping[Pair, Settings]) -> Runs:
    """Final runs; collaborative methods have traces, Dada also graphs."""
    runs: Runs = {}
    for detail in ("graph", "trace", ""):
        wanted = {pair: chosen for pair, chosen in settings.items() if _detail(pair[1]) == detail}
        traced = {pair: chosen | _trace_every(chosen) if detail else chosen for pair, chosen in wanted.items()}
        runs |= finals(lab, traced, "final runs", detail=detail)
    return runs


def _detail(method: str) -> str:
    if method in ("dada-learned", "dada-oracle"):
        return "graph"
    return "trace" if method in TRACED else ""


def _trace_every(settings: Settings) -> Settings:
    """Fifty trace points per run of 100 users."""
    return {"trace_every": max(1, 100 * settings["updates"] // 50)}


def accuracy_table(dataset: str, chosen: Mapping[Pair, ChosenSettings], runs: Runs) -> Table:
    """Final accuracies of all methods."""
    summaries = summarise_all(runs)
    rows = []
    for method in (*TRACED, *LEVELS, *EXTRA):
        train = [100 * float(np.mean(run["train"])) for run in runs[dataset, method]]
        chosen_text = settings_text(chosen[dataset, method].tuned)
        more = {"on training data": percent(float(np.mean(train))), "chosen": chosen_text}
        rows.append((METHODS[method].title, summaries[dataset, method], more))
    columns = ["mean over users", "all rows", "on training data", "10th percentile", "worst user",
               "below their accuracy alone, % of users", "neighbours", "chosen"]  # fmt: skip
    return summary_table(f"{SPECS[dataset].title}: test accuracy on three draws of the population", columns, rows)


def accuracy_data(dataset: str, chosen: Mapping[Pair, ChosenSettings], runs: Runs) -> dict[str, Any]:
    """The same numbers as data, with the traces of the runs."""
    summaries = summarise_all(runs)
    return {
        method: {
            "chosen": chosen[dataset, method].tuned,
            "cross_validation": chosen[dataset, method].score,
            "test": asdict(summaries[dataset, method]),
            "traces": [run["trace"] for run in runs[dataset, method] if "trace" in run],
        }
        for method in (*TRACED, *LEVELS, *EXTRA)
    }


def mean_trace(runs: Sequence[Mapping[str, Any]], name: str) -> tuple[Array, Array]:
    """Updates, and the mean over runs of a traced quantity."""
    updates = np.array(runs[0]["trace"]["updates"])
    return updates, np.mean([run["trace"][name] for run in runs], axis=0)


def accuracy_curves(dataset: str, runs: Runs) -> Picture:
    """A figure of training and test accuracy; methods without a trace are horizontal lines."""

    def picture(*, theme: Theme) -> Drawing:
        with theme.applied():
            figure, axes = new_figure(11.0, 4.6, columns=2, sharex=True)
            for ax, part, title in zip(axes, ("train", "test"), ("Training", "Test"), strict=True):
                for position, method in enumerate(TRACED):
                    updates, values = mean_trace(runs[dataset, method], part)
                    per_user = updates / len(runs[dataset, method][0]["test"])
                    colour = theme.colour_of(method, position)
                    ax.plot(per_user[1:], 100 * values[1:], color=colour, linewidth=1.8, label=METHODS[method].title)
                _levels(ax, theme, dataset, runs, part)
                ax.set(title=f"{title} accuracy", xlabel="model updates per user", ylabel="accuracy, %")
                ax.grid(visible=True)
            axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
        return figure

    return picture


def _levels(ax: Axes, theme: Theme, dataset: str, runs: Runs, part: str) -> None:
    for position, method in enumerate(LEVELS):
        level = 100 * float(np.mean([run[part] for run in runs[dataset, method]]))
        colour = theme.colour_of(method, position + 2)
        ax.axhline(level, color=colour, linewidth=1.2, linestyle="--", label=METHODS[method].title)


def neighbour_curves(dataset: str, runs: Runs, n_users: int) -> Picture:
    """A figure of the number of neighbours while the graph is learned."""

    def picture(*, theme: Theme) -> Drawing:
        with theme.applied():
            figure, (ax,) = new_figure(6.4, 3.6)
            updates, edges = mean_trace(runs[dataset, "dada-learned"], "edges")
            ax.plot(updates[1:], 2 * edges[1:] / n_users, color=theme.colour_of("dada-learned"), label="Dada-Learned")
            oracle = float(np.mean([run["neighbours"] for run in runs[dataset, "dada-oracle"]]))
            ax.axhline(oracle, color=theme.colour_of("dada-oracle"), linestyle="--", label="oracle graph")
            ax.set(title="Neighbours per user", xlabel="model updates", ylim=(0, None))
            ax.grid(visible=True)
            ax.legend()
        return figure

    return picture
