"""Pages of the synthetic users: Moons and its graph, accuracy by local dataset size, and Moons100 with lambda."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.data.synthetic import GROUP_ANGLES_DEG
from dada.experiments import page
from dada.experiments.lab import Lab, run_groups
from dada.experiments.ladders import Settings
from dada.experiments.methods import method_of
from dada.experiments.page import Block, Figure, Heading, Page, Table
from dada.experiments.protocol import (
    ChosenSettings,
    Pair,
    choose,
    final_jobs,
    finals,
    method_data,
    summarise,
    summarise_all,
)
from dada.experiments.table1 import MOONS100_LEARNED_NEIGHBOURS, MOONS100_ORACLE_NEIGHBOURS
from dada.experiments.tasks import SPECS, people
from dada.plot import GraphPanel, graph_picture, weight_picture
from dada.plot.theme import Picture, Theme

TRACED = ("dada-learned", "dada-oracle", "perso-lin-learned", "perso-lin-oracle")
LEVELS = ("local-boost", "global-boost", "local-lin", "global-lin")
EXTRA = ("dada-uniform", "dada-evidence")
ON_PRINTED = ("dada-oracle", "dada-learned", "dada-evidence", "local-boost", "global-boost")
SIZE_METHODS = ("local-boost", "dada-learned", "dada-oracle")
# Smallest numbers of training rows of the size classes, and the largest number.
SIZE_CLASSES = {"moons": (3, 5, 7, 9, 11, 13, 15), "harws": (46, 55, 65, 75, 85, 95)}
LAMBDAS = tuple(10.0**power for power in range(-6, 4))
Chosen = Mapping[Pair, ChosenSettings]
Runs = dict[Pair, list[dict[str, Any]]]


def moons_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of accuracy and neighbours against iterations."""
    chosen, runs = compute(lab, "moons")
    n_users = people("moons", lab.seed, 0).train.n_users
    mean = {method: summarise(runs["moons", method]).mean for _, method in runs}
    linear = max(mean[m] for m in ("global-lin", "local-lin", "perso-lin-learned", "perso-lin-oracle"))
    is_ordered = mean["dada-oracle"] > mean["dada-learned"] > max(mean["local-boost"], mean["global-boost"])
    _, edges = mean_trace(runs["moons", "dada-learned"], "edges")
    most, oracle = 2 * float(edges[1:].max()) / n_users, summarise(runs["moons", "dada-oracle"]).neighbours or 0.0
    picture = _neighbour_picture("moons", runs, n_users)
    blocks = [
        _accuracy_figure("moons", runs),
        Figure("neighbours", "Neighbours per user while the graph is learned.", picture),
        _accuracy_table("moons", chosen, runs),
        Heading("As printed"),
        page.TEXTS["moons"]["printed"],
        _printed_table(lab, chosen),
        *page.verdicts(
            "moons",
            mean=mean,
            linear=linear,
            most=most,
            oracle=oracle,
            order="agrees with" if is_ordered else "unlike",
            far="far below" if linear < mean["dada-learned"] - 3 else "not far below",
            sparser="always sparser, as in the paper" if most < oracle else "denser at times, unlike the paper",
        ),
    ]
    return Page.of("moons", lab, blocks, {"methods": _accuracy_data(chosen, runs)})


def moons100_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of users without groups, and of the effect of lambda."""
    chosen, runs = compute(lab, "moons100")
    sweep = _sweep(lab, chosen["moons100", "dada-learned"].settings)
    summaries = {method: summarise(runs["moons100", method]) for _, method in runs}
    oracle, learned, alone = (summaries[m] for m in ("dada-oracle", "dada-learned", "local-boost"))
    is_ordered = oracle.mean > learned.mean > alone.mean
    is_sparser = all(b >= a - 0.5 for a, b in pairwise(row["neighbours"] for row in sweep.values()))
    smallest = next(iter(sweep.values()))["mean"]
    rows = [
        [f"{lam:g}", page.decimal(row["neighbours"]), page.percent(row["mean"], row["std"])]
        for lam, row in sweep.items()
    ]
    caption = "Oracle and learned graph of the first draw. Nodes are labelled with the angle of their task."
    blocks = [
        _accuracy_figure("moons100", runs),
        _accuracy_table("moons100", chosen, runs),
        Figure("graph", caption, partial(graph_picture, _panels("moons100", lab, runs))),
        Figure("lambda", "Neighbours and test accuracy against lambda.", _sweep_picture(sweep, alone.mean)),
        Table(
            "The effect of lambda, with all other settings as chosen",
            ["lambda", "neighbours", "mean test accuracy over users"],
            rows,
        ),
        *page.verdicts(
            "moons100",
            oracle=oracle,
            learned=learned,
            alone=alone.mean,
            smallest=smallest,
            in_paper=(MOONS100_LEARNED_NEIGHBOURS, MOONS100_ORACLE_NEIGHBOURS),
            order="the order of the paper" if is_ordered else "not the order of the paper",
            sparser="agrees" if is_sparser else "does not hold throughout",
            limit="agrees" if abs(smallest - alone.mean) < 1 else "does not agree",
        ),
    ]
    data = {"methods": _accuracy_data(chosen, runs), "lambda": {f"{lam:g}": row for lam, row in sweep.items()}}
    return Page.of("moons100", lab, blocks, data)


def graph_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of oracle and learned graph."""
    runs = run_all(lab, choose(lab, [("moons", "dada-learned"), ("moons", "dada-oracle")], "validation, MOONS"))
    panels, groups = _panels("moons", lab, runs), people("moons", lab.seed, 0).groups
    assert groups is not None
    facts = [_graph_facts(panel, groups) for panel in panels]
    share, careful, others = (facts[1][name] for name in ("share of weight inside groups", CAREFUL, OTHERS))
    drawn = (
        "The graphs. Nodes are labelled with the angle of their task; larger nodes have more data, greener nodes a "
        "smaller loss."
    )
    weights = partial(weight_picture, panels, groups, [f"{angle:.0f}°" for angle in GROUP_ANGLES_DEG])
    blocks = [
        Figure("weights", "Weights between users, sorted by group; darker is heavier.", weights),
        Figure("drawn", drawn, partial(graph_picture, panels)),
        Table(
            "The two graphs in numbers",
            ["", *(panel.title for panel in panels)],
            [[name, *(page.decimal(fact[name], 2) for fact in facts)] for name in facts[0]],
        ),
        *page.verdicts(
            "graph",
            share=100 * share,
            chance=100 * by_chance(groups),
            careful=careful,
            others=others,
            groups="the groups are recovered approximately, as in the paper" if share > 0.6 else "unlike the paper",
            degrees="agrees with" if careful < others else "unlike",
        ),
    ]
    return Page.of("graph", lab, blocks, {panel.title: fact for panel, fact in zip(panels, facts, strict=True)})


def size_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of accuracy against local dataset size."""
    blocks: list[Block] = []
    found: dict[str, list[dict[str, Any]]] = {}
    for dataset in ("moons", *(name for name in datasets if name == "harws")):
        spec = SPECS[dataset]
        methods = [method for method in SIZE_METHODS if spec.synthetic or method != "dada-oracle"]
        chosen = choose(lab, [(dataset, method) for method in methods], f"validation, {spec.title}")
        settings = {pair: choice.settings for pair, choice in chosen.items()}
        runs = run_all(lab, chosen) if spec.synthetic else finals(lab, settings, "final runs")
        rows = found[dataset] = _by_size(lab, dataset, methods, runs)
        caption = "test accuracy by number of training rows"
        titles = ["rows", "users (three runs)", *(method_of(method).title for method in methods)]
        cells = [[row["rows"], str(row["users"]), *(page.percent(row[method]) for method in methods)] for row in rows]
        blocks += [
            Heading(spec.title),
            Figure(dataset, f"{spec.title}: {caption}.", _size_picture(dataset, methods, rows)),
            Table(f"{spec.title}: mean {caption}", titles, cells),
        ]
    sentences = [_size_verdict(dataset, rows) for dataset, rows in found.items()]
    return Page.of("size", lab, [*blocks, *page.agreement([*sentences, page.TEXTS["size"]["note"]])], found)


def compute(lab: Lab, dataset: str) -> tuple[Chosen, Runs]:
    """Choose settings on other draws of the population, then run every method on three draws."""
    pairs = [(dataset, method) for method in (*TRACED, *LEVELS, *EXTRA)]
    chosen = choose(lab, pairs, f"validation, {SPECS[dataset].title}")
    return chosen, run_all(lab, chosen)


def run_all(lab: Lab, chosen: Chosen) -> Runs:
    """Final runs; collaborative methods have traces, Dada also graphs."""
    details = dict.fromkeys(TRACED, "trace") | {"dada-learned": "graph", "dada-oracle": "graph"}
    runs: Runs = {}
    for detail in ("graph", "trace", ""):
        wanted = {pair: c.settings for pair, c in chosen.items() if details.get(pair[1], "") == detail}
        if detail:
            # Fifty trace points per run of 100 users.
            wanted = {pair: own | {"trace_every": max(1, 100 * own["updates"] // 50)} for pair, own in wanted.items()}
        runs |= finals(lab, wanted, "final runs", detail=detail)
    return runs


def _accuracy_table(dataset: str, chosen: Chosen, runs: Runs) -> Table:
    def more(pair: Pair) -> dict[str, str]:
        train = [100 * float(np.mean(run["train"])) for run in runs[pair]]
        return {"on training data": page.percent(float(np.mean(train)))}

    columns = ["mean over users", "all rows", "on training data", "10th percentile", "worst user",
               "below their accuracy alone, % of users", "neighbours", "chosen"]  # fmt: skip
    caption = f"{SPECS[dataset].title}: test accuracy on three draws of the population"
    return page.summary_table(caption, columns, chosen, summarise_all(runs), more)


def _accuracy_data(chosen: Chosen, runs: Runs) -> dict[str, Any]:
    """The same numbers as data, with the traces of the runs."""
    summaries = summarise_all(runs)
    return {
        pair[1]: method_data(choice, summaries[pair], traces=[run["trace"] for run in runs[pair] if "trace" in run])
        for pair, choice in chosen.items()
    }


def _printed_table(lab: Lab, chosen: Chosen) -> Table:
    settings = {("moons-printed", method): chosen["moons", method].settings for method in ON_PRINTED}
    rows = []
    for (_, method), runs in finals(lab, settings, "as printed").items():
        summary = summarise(runs)
        rows.append([method_of(method).title, page.percent(summary.mean, summary.std), page.percent(summary.pooled)])
    return Table("Moons as printed: test accuracy", ["method", "mean over users", "all rows"], rows)


def mean_trace(runs: Sequence[Mapping[str, Any]], name: str) -> tuple[Array, Array]:
    """Updates, and the mean over runs of a traced quantity."""
    updates = np.array(runs[0]["trace"]["updates"])
    return updates, np.mean([run["trace"][name] for run in runs], axis=0)


def _accuracy_figure(dataset: str, runs: Runs) -> Figure:
    """Training and test accuracy; methods without a trace are horizontal lines."""

    @page.drawing(11.0, 4.6, columns=2, sharex=True)
    def picture(theme: Theme, axes: list[Axes]) -> None:
        for ax, part, title in zip(axes, ("train", "test"), ("Training", "Test"), strict=True):
            for position, method in enumerate(TRACED):
                updates, values = mean_trace(runs[dataset, method], part)
                per_user = updates / len(runs[dataset, method][0]["test"])
                colour = theme.colour_of(method, position)
                ax.plot(per_user[1:], 100 * values[1:], color=colour, linewidth=1.8, label=method_of(method).title)
            for position, method in enumerate(LEVELS):
                level = 100 * float(np.mean([run[part] for run in runs[dataset, method]]))
                colour = theme.colour_of(method, position + 2)
                ax.axhline(level, color=colour, linewidth=1.2, linestyle="--", label=method_of(method).title)
            ax.set(title=f"{title} accuracy", xlabel="model updates per user", ylabel="accuracy, %")
        axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)

    return Figure("accuracy", "Accuracy while learning; dashed lines are methods without collaboration.", picture)


def _neighbour_picture(dataset: str, runs: Runs, n_users: int) -> Picture:
    @page.drawing(6.4, 3.6)
    def picture(theme: Theme, axes: list[Axes]) -> None:
        updates, edges = mean_trace(runs[dataset, "dada-learned"], "edges")
        ax, neighbours = axes[0], 2 * edges[1:] / n_users
        ax.plot(updates[1:], neighbours, color=theme.colour_of("dada-learned"), label="Dada-Learned")
        oracle = float(np.mean([run["neighbours"] for run in runs[dataset, "dada-oracle"]]))
        ax.axhline(oracle, color=theme.colour_of("dada-oracle"), linestyle="--", label="oracle graph")
        ax.set(title="Neighbours per user", xlabel="model updates", ylim=(0, None))
        ax.legend()

    return picture


def _sweep(lab: Lab, settings: Settings) -> dict[float, dict[str, float]]:
    jobs = {lam: final_jobs(lab, ("moons100", "dada-learned"), settings | {"lam": lam}) for lam in LAMBDAS}
    summaries = {lam: summarise(runs) for lam, runs in run_groups(lab, jobs, "lambda").items()}
    return {lam: {"neighbours": s.neighbours or 0.0, "mean": s.mean, "std": s.std} for lam, s in summaries.items()}


def _sweep_picture(sweep: Mapping[float, Mapping[str, float]], alone: float) -> Picture:
    @page.drawing(10.0, 3.8, columns=2)
    def picture(theme: Theme, axes: list[Axes]) -> None:
        left, right = axes
        colour, lams = theme.colour_of("dada-learned"), list(sweep)
        left.plot(lams, [row["neighbours"] for row in sweep.values()], marker="o", color=colour)
        left.set(xscale="log", xlabel="lambda", title="Neighbours per user", ylim=(0, None))
        right.plot(lams, [row["mean"] for row in sweep.values()], marker="o", color=colour, label="Dada-Learned")
        right.axhline(alone, color=theme.colour_of("local-boost"), linestyle="--", label="Local-boost")
        right.set(xscale="log", xlabel="lambda", title="Test accuracy, %")
        right.legend()

    return picture


def _panels(dataset: str, lab: Lab, runs: Runs) -> list[GraphPanel]:
    """Oracle and learned graph of the first draw, nodes labelled with the angle of their task."""
    users = people(dataset, lab.seed, 0)
    assert users.angles is not None
    labels = [f"{np.rad2deg(angle) % 360:.0f}" for angle in users.angles]
    panels = []
    for title, method in (("Oracle graph", "dada-oracle"), ("Learned graph", "dada-learned")):
        run = runs[dataset, method][0]
        graph = CollaborationGraph.from_edges(users.train.n_users, *run["edges"])
        panels.append(GraphPanel(title, graph, users.train.confidence, np.array(run["losses"]), labels))
    return panels


CAREFUL = "degree of users with much data and high loss, over the mean"
OTHERS = "degree of all others, over the mean"


def _graph_facts(panel: GraphPanel, groups: Array) -> dict[str, float]:
    k, l, w = panel.graph.edges()
    inside = groups[k] == groups[l]
    careful = (panel.confidence >= np.median(panel.confidence)) & (panel.loss >= np.median(panel.loss))
    degree = panel.graph.degree / panel.graph.degree.mean()
    return {
        "neighbours per user": panel.graph.mean_neighbours,
        "share of weight inside groups": float(w[inside].sum() / w.sum()),
        "share of edges inside groups": float(inside.mean()),
        CAREFUL: float(degree[careful].mean()),
        OTHERS: float(degree[~careful].mean()),
    }


def by_chance(groups: Array) -> float:
    """The fraction of pairs of users that are in one group.

    >>> by_chance(np.array([0, 0, 1]))
    0.3333333333333333
    """
    k, l = np.triu_indices(len(groups), 1)
    return float((groups[k] == groups[l]).mean())


def _by_size(lab: Lab, dataset: str, methods: Sequence[str], runs: Runs) -> list[dict[str, Any]]:
    n_runs, edges = len(runs[dataset, methods[0]]), SIZE_CLASSES[dataset]
    draws = range(n_runs) if SPECS[dataset].synthetic else [0] * n_runs
    sizes = np.concatenate([people(dataset, lab.seed, draw).train.sizes for draw in draws])
    rows = []
    for low, high in pairwise(edges):
        largest = high if high == edges[-1] else high - 1
        inside = (sizes >= low) & (sizes <= largest)
        row: dict[str, Any] = {"rows": f"{low} to {largest}", "users": int(inside.sum())}
        for method in methods:
            accuracies = np.concatenate([run["test"] for run in runs[dataset, method]])
            row[method] = float(100 * accuracies[inside].mean()) if inside.any() else None
        rows.append(row)
    return rows


def _size_picture(dataset: str, methods: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Picture:
    @page.drawing(6.4, 4.0)
    def picture(theme: Theme, axes: list[Axes]) -> None:
        for method in methods:
            points = [(row["rows"], row[method]) for row in rows if row[method] is not None]
            colour, label = theme.colour_of(method), method_of(method).title
            axes[0].plot(*zip(*points, strict=True), marker="o", color=colour, label=label)
        axes[0].set(title=SPECS[dataset].title, xlabel="training rows of a user", ylabel="test accuracy, %")
        axes[0].legend()

    return picture


def _size_verdict(dataset: str, rows: Sequence[Mapping[str, Any]]) -> str:
    known = [row for row in rows if row["users"]]
    few, many = (row["dada-learned"] - row["local-boost"] for row in (known[0], known[-1]))
    gained = sum(row["dada-learned"] > row["local-boost"] for row in known)
    finding = "as in the paper, those with little data gain most" if few > max(many, 0) else "no trend with size"
    facts = {"gained": gained, "classes": len(known), "few": few, "many": many, "finding": finding}
    return page.sentence("size", "verdict", title=SPECS[dataset].title, **facts)
