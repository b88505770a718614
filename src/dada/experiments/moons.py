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
from dada.experiments.data import SPECS, people
from dada.experiments.lab import Lab, run_groups
from dada.experiments.methods import METHODS, Settings
from dada.experiments.page import (
    TEXTS,
    Figure,
    Heading,
    Page,
    Table,
    Text,
    agreement,
    decimal,
    drawing,
    percent,
    summary_table,
)
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
from dada.experiments.published import MOONS100_LEARNED_NEIGHBOURS, MOONS100_ORACLE_NEIGHBOURS
from dada.plot import GraphPanel, graph_picture, weight_picture
from dada.plot.theme import Picture, Theme

TRACED = ("dada-learned", "dada-oracle", "perso-lin-learned", "perso-lin-oracle")
LEVELS = ("local-boost", "global-boost", "local-lin", "global-lin")
EXTRA = ("dada-uniform", "dada-evidence")
Runs = dict[Pair, list[dict[str, Any]]]
LAMBDAS = tuple(10.0**power for power in range(-6, 4))
GROUP_NAMES = ("45°", "135°", "225°", "315°")
SIZE_METHODS = ("local-boost", "dada-learned", "dada-oracle")


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


def _accuracy_table(dataset: str, chosen: Mapping[Pair, ChosenSettings], runs: Runs) -> Table:
    def more(pair: Pair) -> dict[str, str]:
        train = [100 * float(np.mean(run["train"])) for run in runs[pair]]
        return {"on training data": percent(float(np.mean(train)))}

    columns = ["mean over users", "all rows", "on training data", "10th percentile", "worst user",
               "below their accuracy alone, % of users", "neighbours", "chosen"]  # fmt: skip
    caption = f"{SPECS[dataset].title}: test accuracy on three draws of the population"
    return summary_table(caption, columns, chosen, summarise_all(runs), more)


def _accuracy_data(chosen: Mapping[Pair, ChosenSettings], runs: Runs) -> dict[str, Any]:
    """The same numbers as data, with the traces of the runs."""
    summaries = summarise_all(runs)
    return {
        pair[1]: method_data(choice, summaries[pair], traces=[run["trace"] for run in runs[pair] if "trace" in run])
        for pair, choice in chosen.items()
    }


def mean_trace(runs: Sequence[Mapping[str, Any]], name: str) -> tuple[Array, Array]:
    """Updates, and the mean over runs of a traced quantity."""
    updates = np.array(runs[0]["trace"]["updates"])
    return updates, np.mean([run["trace"][name] for run in runs], axis=0)


def _accuracy_figure(dataset: str, runs: Runs) -> Figure:
    """Training and test accuracy; methods without a trace are horizontal lines."""

    @drawing(11.0, 4.6, columns=2, sharex=True)
    def picture(theme: Theme, axes: list[Axes]) -> None:
        for ax, part, title in zip(axes, ("train", "test"), ("Training", "Test"), strict=True):
            for position, method in enumerate(TRACED):
                updates, values = mean_trace(runs[dataset, method], part)
                per_user = updates / len(runs[dataset, method][0]["test"])
                colour = theme.colour_of(method, position)
                ax.plot(per_user[1:], 100 * values[1:], color=colour, linewidth=1.8, label=METHODS[method].title)
            for position, method in enumerate(LEVELS):
                level = 100 * float(np.mean([run[part] for run in runs[dataset, method]]))
                colour = theme.colour_of(method, position + 2)
                ax.axhline(level, color=colour, linewidth=1.2, linestyle="--", label=METHODS[method].title)
            ax.set(title=f"{title} accuracy", xlabel="model updates per user", ylabel="accuracy, %")
        axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)

    return Figure("accuracy", "Accuracy while learning; dashed lines are methods without collaboration.", picture)


def _neighbour_picture(dataset: str, runs: Runs, n_users: int) -> Picture:
    @drawing(6.4, 3.6)
    def picture(theme: Theme, axes: list[Axes]) -> None:
        updates, edges = mean_trace(runs[dataset, "dada-learned"], "edges")
        ax, neighbours = axes[0], 2 * edges[1:] / n_users
        ax.plot(updates[1:], neighbours, color=theme.colour_of("dada-learned"), label="Dada-Learned")
        oracle = float(np.mean([run["neighbours"] for run in runs[dataset, "dada-oracle"]]))
        ax.axhline(oracle, color=theme.colour_of("dada-oracle"), linestyle="--", label="oracle graph")
        ax.set(title="Neighbours per user", xlabel="model updates", ylim=(0, None))
        ax.legend()

    return picture


def moons100_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page."""
    chosen, runs = compute(lab, "moons100")
    sweep = _sweep(lab, chosen["moons100", "dada-learned"].settings)
    alone = summarise(runs["moons100", "local-boost"]).mean
    page = Page.of("moons100", lab)
    page.blocks += [
        _accuracy_figure("moons100", runs),
        _accuracy_table("moons100", chosen, runs),
        Figure(
            "graph",
            "Oracle and learned graph of the first draw. Nodes are labelled with the angle of their task.",
            partial(graph_picture, _panels("moons100", lab, runs)),
        ),
        Figure("lambda", "Neighbours and test accuracy against lambda.", _sweep_picture(sweep, alone)),
        Table(
            "The effect of lambda, with all other settings as chosen",
            ["lambda", "neighbours", "mean test accuracy over users"],
            [[f"{lam:g}", decimal(row["neighbours"]), percent(row["mean"], row["std"])] for lam, row in sweep.items()],
        ),
        *agreement(_verdicts(runs, sweep, alone)),
    ]
    page.data = {
        "methods": _accuracy_data(chosen, runs),
        "lambda": {f"{lam:g}": row for lam, row in sweep.items()},
    }
    return page


def _sweep(lab: Lab, settings: Settings) -> dict[float, dict[str, float]]:
    jobs = {lam: final_jobs(lab, ("moons100", "dada-learned"), settings | {"lam": lam}) for lam in LAMBDAS}
    rows = {}
    for lam, runs in run_groups(lab, jobs, "lambda").items():
        summary = summarise(runs)
        rows[lam] = {"neighbours": summary.neighbours or 0.0, "mean": summary.mean, "std": summary.std}
    return rows


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


def _sweep_picture(sweep: Mapping[float, Mapping[str, float]], alone: float) -> Picture:
    @drawing(10.0, 3.8, columns=2)
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
        f"At the smallest lambda accuracy is {smallest:.1f}, against {alone:.1f} alone. In the paper accuracy tends to "
        "that of learning alone as lambda goes to zero: "
        f"{'agrees' if abs(smallest - alone) < 1 else 'does not agree'}.",
    ]


def moons_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of accuracy and neighbours against iterations."""
    chosen, runs = compute(lab, "moons")
    page = Page.of("moons", lab)
    n_users = people("moons", lab.seed, 0).train.n_users
    _, edges = mean_trace(runs["moons", "dada-learned"], "edges")
    oracle = summarise(runs["moons", "dada-oracle"]).neighbours or 0.0
    page.blocks += [
        _accuracy_figure("moons", runs),
        Figure(
            "neighbours", "Neighbours per user while the graph is learned.", _neighbour_picture("moons", runs, n_users)
        ),
        _accuracy_table("moons", chosen, runs),
        Heading("As printed"),
        Text(TEXTS["moons"]["printed"]),
        _printed_table(lab, {pair[1]: choice.settings for pair, choice in chosen.items()}),
        *agreement(_moons_verdicts(runs, 2 * float(edges[1:].max()) / n_users, oracle)),
    ]
    page.data = {"methods": _accuracy_data(chosen, runs)}
    return page


def graph_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of oracle and learned graph."""
    chosen = choose(lab, [("moons", "dada-learned"), ("moons", "dada-oracle")], "validation, MOONS")
    runs = run_all(lab, {pair: choice.settings for pair, choice in chosen.items()})
    panels, groups = _panels("moons", lab, runs), people("moons", lab.seed, 0).groups
    assert groups is not None
    facts = [_graph_facts(panel.graph, groups, panel.confidence, panel.loss) for panel in panels]
    page = Page.of("graph", lab)
    page.blocks += [
        Figure(
            "weights",
            "Weights between users, sorted by group; darker is heavier.",
            partial(weight_picture, panels, groups, GROUP_NAMES),
        ),
        Figure(
            "drawn",
            "The graphs. Nodes are labelled with the angle of their task; larger nodes have more data, greener nodes a "
            "smaller loss.",
            partial(graph_picture, panels),
        ),
        Table(
            "The two graphs in numbers",
            ["", *(panel.title for panel in panels)],
            [[name, *(decimal(fact[name], 2) for fact in facts)] for name in facts[0]],
        ),
        *agreement(_graph_verdicts(facts[1], by_chance(groups))),
    ]
    page.data = {panel.title: fact for panel, fact in zip(panels, facts, strict=True)}
    return page


def size_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of accuracy against local dataset size."""
    page = Page.of("size", lab)
    for dataset in ("moons", *(name for name in datasets if name == "harws")):
        methods = [method for method in SIZE_METHODS if SPECS[dataset].synthetic or method != "dada-oracle"]
        chosen = choose(lab, [(dataset, method) for method in methods], f"validation, {SPECS[dataset].title}")
        settings = {pair: choice.settings for pair, choice in chosen.items()}
        runs = run_all(lab, settings) if SPECS[dataset].synthetic else finals(lab, settings, "final runs")
        edges = [3, 5, 7, 9, 11, 13, 15] if dataset == "moons" else [46, 55, 65, 75, 85, 95]
        rows = _by_size(lab, dataset, methods, runs, edges)
        page.blocks += [
            Heading(SPECS[dataset].title),
            Figure(
                dataset,
                f"{SPECS[dataset].title}: test accuracy by number of training rows.",
                _size_picture(dataset, methods, rows),
            ),
            Table(
                f"{SPECS[dataset].title}: mean test accuracy by number of training rows",
                ["rows", "users (three runs)", *(METHODS[method].title for method in methods)],
                [[row["rows"], str(row["users"]), *(percent(row[method]) for method in methods)] for row in rows],
            ),
        ]
        page.data[dataset] = rows
    verdicts = [_size_verdict(dataset, rows) for dataset, rows in page.data.items()]
    page.blocks += agreement([*verdicts, TEXTS["size"]["note"]])
    return page


def by_chance(groups: Array) -> float:
    """The fraction of pairs of users that are in one group.

    >>> by_chance(np.array([0, 0, 1]))
    0.3333333333333333
    """
    k, l = np.triu_indices(len(groups), 1)
    return float((groups[k] == groups[l]).mean())


def _printed_table(lab: Lab, settings: Mapping[str, dict[str, Any]]) -> Table:
    methods = ("dada-oracle", "dada-learned", "dada-evidence", "local-boost", "global-boost")
    runs = finals(lab, {("moons-printed", method): settings[method] for method in methods}, "as printed")
    rows = [
        [METHODS[method].title, percent(summary.mean, summary.std), percent(summary.pooled)]
        for method in methods
        for summary in [summarise(runs["moons-printed", method])]
    ]
    return Table("Moons as printed: test accuracy", ["method", "mean over users", "all rows"], rows)


def _moons_verdicts(runs: Runs, most_neighbours: float, oracle_neighbours: float) -> list[str]:
    mean = {method: summarise(runs["moons", method]).mean for _, method in runs}
    order = mean["dada-oracle"] > mean["dada-learned"] > max(mean["local-boost"], mean["global-boost"])
    linear = max(mean[m] for m in ("global-lin", "local-lin", "perso-lin-learned", "perso-lin-oracle"))
    sparser = most_neighbours < oracle_neighbours
    return [
        f"Dada-Oracle ({mean['dada-oracle']:.1f}) above Dada-Learned ({mean['dada-learned']:.1f}) above Local-boost "
        f"({mean['local-boost']:.1f}) and Global-boost ({mean['global-boost']:.1f}): "
        f"{'agrees with' if order else 'unlike'} the paper.",
        f"The best linear method has {linear:.1f}, "
        f"{'far below' if linear < mean['dada-learned'] - 3 else 'not far below'} Dada-Learned; in the paper far below."
        f" Global-lin has {mean['global-lin']:.1f}; in the paper's figure it is near 50.",
        f"The learned graph has at most {most_neighbours:.1f} neighbours per user on average while learning, the "
        f"oracle graph {oracle_neighbours:.1f}: "
        f"{'always sparser, as in the paper' if sparser else 'denser at times, unlike the paper'}.",
        "The paper chooses settings by cross-validation inside users. Here they are chosen on other draws of the "
        "population: users have as many rows of either class, so a held-out row leaves more rows of the other class "
        "and misleads cross-validation.",
        "Beyond the paper: the evidence graph, whose weights are the likelihood of other users' models on a user's "
        f"own rows, gives {mean['dada-evidence']:.1f}; the complete graph gives {mean['dada-uniform']:.1f}.",
    ]


def _graph_facts(graph: CollaborationGraph, groups: Array, confidence: Array, loss: Array) -> dict[str, float]:
    k, l, w = graph.edges()
    inside = groups[k] == groups[l]
    careful = (confidence >= np.median(confidence)) & (loss >= np.median(loss))
    degree = graph.degree / graph.degree.mean()
    return {
        "neighbours per user": graph.mean_neighbours,
        "share of weight inside groups": float(w[inside].sum() / w.sum()),
        "share of edges inside groups": float(inside.mean()),
        "degree of users with much data and high loss, over the mean": float(degree[careful].mean()),
        "degree of all others, over the mean": float(degree[~careful].mean()),
    }


def _graph_verdicts(learned: Mapping[str, float], chance: float) -> list[str]:
    share = learned["share of weight inside groups"]
    careful = learned["degree of users with much data and high loss, over the mean"]
    others = learned["degree of all others, over the mean"]
    return [
        f"{100 * share:.0f} % of the learned graph's weight is inside groups, against {100 * chance:.0f} % of all "
        f"pairs: {'the groups are recovered approximately, as in the paper' if share > 0.6 else 'unlike the paper'}.",
        f"Users with much data and a high loss have {careful:.2f} times the mean degree, all others {others:.2f}: "
        f"{'agrees with' if careful < others else 'unlike'} the paper, where such users have small degrees.",
    ]


def _by_size(lab: Lab, dataset: str, methods: Sequence[str], runs: Runs, edges: Sequence[int]) -> list[dict[str, Any]]:
    n_runs = len(runs[dataset, methods[0]])
    draws = range(n_runs) if SPECS[dataset].synthetic else [0] * n_runs
    sizes = np.concatenate([people(dataset, lab.seed, draw).train.sizes for draw in draws])
    rows = []
    for i, (low, high) in enumerate(pairwise(edges)):
        last = i == len(edges) - 2
        inside = (sizes >= low) & ((sizes <= high) if last else (sizes < high))
        row: dict[str, Any] = {"rows": f"{low} to {high if last else high - 1}", "users": int(inside.sum())}
        for method in methods:
            accuracies = np.concatenate([run["test"] for run in runs[dataset, method]])
            row[method] = float(100 * accuracies[inside].mean()) if inside.any() else None
        rows.append(row)
    return rows


def _size_picture(dataset: str, methods: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Picture:
    @drawing(6.4, 4.0)
    def picture(theme: Theme, axes: list[Axes]) -> None:
        for method in methods:
            points = [(row["rows"], row[method]) for row in rows if row[method] is not None]
            colour, label = theme.colour_of(method), METHODS[method].title
            axes[0].plot(*zip(*points, strict=True), marker="o", color=colour, label=label)
        axes[0].set(title=SPECS[dataset].title, xlabel="training rows of a user", ylabel="test accuracy, %")
        axes[0].legend()

    return picture


def _size_verdict(dataset: str, rows: Sequence[Mapping[str, Any]]) -> str:
    known = [row for row in rows if row["users"]]
    few, many = (row["dada-learned"] - row["local-boost"] for row in (known[0], known[-1]))
    gained = sum(row["dada-learned"] > row["local-boost"] for row in known)
    finding = "as in the paper, those with little data gain most" if few > max(many, 0) else "no trend with size"
    return (
        f"{SPECS[dataset].title}: Dada-Learned is above Local-boost in {gained} of {len(known)} size classes, by "
        f"{few:.1f} points for the users with the least data and {many:.1f} for those with the most: {finding}."
    )
