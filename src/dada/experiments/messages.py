"""What our fits send: bits, neighbours and accuracy by step and graph, accuracy within a budget, wake-ups to a gap."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from sklearn.exceptions import ConvergenceWarning

from dada import task
from dada.core.block_steps import BlockStep
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.plan import Plan
from dada.data import Constant, Linear, Union
from dada.engine import run as run_engine
from dada.estimators import DadaClassifier
from dada.experiments import page
from dada.experiments.budget import COMPARED, FITTING, Curve, Curves, compute, value_at
from dada.experiments.lab import Job, Lab, run_groups
from dada.experiments.methods import method_of
from dada.experiments.page import Block, Figure, Heading, Page, Table
from dada.experiments.protocol import N_RUNS, Pair
from dada.experiments.published import BUDGET_FACTORS
from dada.experiments.tasks import SPECS, WEAK, data_digest, people
from dada.plot.theme import Picture, Theme

N_SPLITS = 10
SYNTHETIC = ("moons", "moons100")
OURS, ONE_MOVE = "ours", "one-move"
# What each fit leaves at its defaults, and what it sets.
FITS: dict[str, tuple[str, dict[str, Any]]] = {
    ONE_MOVE: ("one move per message, graph by trials", {"step": "pairwise"}),
    "everyone": ("block steps, everyone", {"graph": "everyone"}),
    "evidence": ("block steps, evidence", {"graph": "evidence"}),
    "distance": ("one move per message, the paper's graph", {"graph": "learned"}),
    OURS: ("`DadaClassifier()`: block steps, graph by trials", {}),
}
GRAPHS = ("everyone", "evidence", "distance")
GAPS = (1e-2, 1e-3)
STEPS = {"paper": "the paper's step", "pairwise": "pairwise step", "block": "block step"}
MOST_WAKEUPS = 3000
Fits = Mapping[Pair, Sequence[Mapping[str, Any]]]


def messages_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page for real datasets, all present; synthetic users are always included."""
    shown = [*datasets, *SYNTHETIC]
    draws = range(1, 1 + (2 if lab.quick else N_SPLITS))
    jobs = {
        (dataset, fit): [_job(lab, dataset, fit, draw, run=0) for draw in draws]
        for dataset, fit in product(shown, FITS)
    }
    found = run_groups(lab, jobs, "fits")
    wakeups = dict(zip(shown, _wakeups(lab, shown), strict=True))
    blocks: list[Block] = [
        fit_table(found, shown),
        graph_sentence(found, shown),
        Heading("The choice of the graph"),
        _graph_table(found, shown),
        Heading("Wake-ups to a gap"),
        _wakeup_table(wakeups),
        page.TEXTS["messages"]["gaps"],
    ]
    fits = {
        "/".join(pair): {name: [result[name] for result in results] for name in ("test", "bits", "neighbours")}
        for pair, results in found.items()
    }
    data: dict[str, Any] = {"fits": fits, "wakeups": wakeups}
    if datasets:
        more, data["budgets"] = _budgets(lab, datasets)
        blocks += more
    return Page.of("messages", lab, blocks, data)


def _job(lab: Lab, dataset: str, fit: str, draw: int, run: int) -> Job:
    arguments = {"dataset": dataset, "fit": fit, "seed": lab.seed, "draw": draw, "run": run}
    return Job(one_fit, arguments, data_digest(dataset))


def one_fit(dataset: str, fit: str, seed: int, draw: int, run: int) -> dict[str, Any]:
    """Accuracy in percent, bits and neighbours of one of `FITS` on a draw or split, 0 being the published split."""
    users = people(dataset, seed, draw)
    model = DadaClassifier(**FITS[fit][1], random_state=np.random.default_rng([seed, draw, run]))
    with warnings.catch_warnings():
        # The paper's graph and one-move steps may end far from settled: the page compares them as they are.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit_population(users.train, test=users.test)
    trace = model.trace_
    test = [round(100 * float(np.nanmean(point.test_accuracy)), 4) for point in trace]
    return {
        "test": test[-1],
        "bits": float(model.bits_),
        "neighbours": model.graph_.mean_neighbours,
        "trace": {
            "updates": [point.updates for point in trace],
            "test": test,
            "bits": [point.bits for point in trace],
            "graph_bits": [point.graph_bits for point in trace],
        },
    }


def means(results: Sequence[Mapping[str, Any]], name: str) -> float:
    """Mean of a number over fits."""
    return float(np.mean([result[name] for result in results]))


def fit_table(found: Fits, datasets: Sequence[str]) -> Table:
    """Accuracy, bits and neighbours of one-move fits and of the defaults."""

    def cells(dataset: str, fit: str) -> list[str]:
        results = found[dataset, fit]
        numbers = [page.percent(means(results, "test")), page.bits_text(means(results, "bits"))]
        return [*numbers, page.decimal(means(results, "neighbours"))]

    rows = []
    for dataset in datasets:
        gained, error = _difference(found, dataset)
        ratio = means(found[dataset, ONE_MOVE], "bits") / means(found[dataset, OURS], "bits")
        last = [f"{gained:+.2f} ± {error:.2f}", f"{ratio:.0f}"]
        rows.append([SPECS[dataset].title, *cells(dataset, ONE_MOVE), *cells(dataset, OURS), *last])
    columns = ["", "one move per message, %", "bits", "neighbours", "`DadaClassifier()`, %", "bits", "neighbours",
               "difference ± standard error", "times fewer bits"]  # fmt: skip
    return Table("Accuracy and bits of the final run of a fit", columns, rows)


def _difference(found: Fits, dataset: str) -> tuple[float, float]:
    """Mean and standard error of the accuracy of ours minus that of one-move fits."""
    gained = np.array([result["test"] for result in found[dataset, OURS]])
    gained -= [result["test"] for result in found[dataset, ONE_MOVE]]
    return float(gained.mean()), float(gained.std(ddof=1) / np.sqrt(len(gained)))


def graph_sentence(found: Fits, datasets: Sequence[str]) -> str:
    """How far the graph that trials choose is below the best graph, where it is farthest."""
    short = {}
    for dataset in datasets:
        best = max(GRAPHS, key=lambda graph: means(found[dataset, graph], "test"))
        short[dataset] = means(found[dataset, best], "test") - means(found[dataset, OURS], "test"), best
    dataset = max(short, key=lambda dataset: short[dataset][0])
    points, best = short[dataset]
    most = max(means(found[dataset, OURS], "neighbours") for dataset in datasets)
    facts = {"title": SPECS[dataset].title, "points": points, "best": best, "neighbours": most}
    return page.sentence("messages", "chosen" if points > 0 else "ahead", **facts)


def _graph_table(found: Fits, datasets: Sequence[str]) -> Table:
    rows = [
        [title, *(page.percent(means(found[dataset, fit], "test")) for dataset in datasets)]
        for fit, (title, _) in FITS.items()
        if fit != ONE_MOVE
    ]
    titles = [SPECS[dataset].title for dataset in datasets]
    return Table("Mean test accuracy over users, by graph", ["fit", *titles], rows)


def _wakeups(lab: Lab, datasets: Sequence[str]) -> list[dict[str, list[int | None]]]:
    most = MOST_WAKEUPS // 10 if lab.quick else MOST_WAKEUPS
    fixed = {"seed": lab.seed, "most": most}
    jobs = [Job(wakeups_to_gap, {"dataset": name, **fixed}, data_digest(name)) for name in datasets]
    return lab.run(jobs, "wake-ups to a gap")


def wakeups_to_gap(dataset: str, seed: int, most: int) -> dict[str, list[int | None]]:
    """Wake-ups per user until the gap is one of `GAPS` times that of zero models, by step; None beyond `most`.

    Linear predictors on the complete graph, with the default coupling.
    """
    train = people(dataset, seed, 0).train
    predictors, _ = task.shared_predictors(Union(Linear(), Constant(coupling=WEAK)), train)
    mu = 0.175 * float(train.confidence.mean())
    problem = task.problem(train, predictors, beta=30.0, mu1=mu, loss="logistic")
    K, graph = problem.n_users, CollaborationGraph.complete(problem.n_users)
    steps = {
        "paper": Plan(most * K, learn_graph=False, step="paper", trace_every=10 * K),
        "pairwise": Plan(most * K, learn_graph=False, trace_every=10 * K),
        "block": Plan(most // 10 * K, learn_graph=False, step="block", block=BlockStep(silence=0.0), trace_every=K),
    }
    reached: dict[str, list[int | None]] = {}
    for step, plan in steps.items():
        plan = replace(plan, gap_tolerance=min(GAPS))
        trace = run_engine(problem, plan, np.random.default_rng(seed), graph=graph).trace
        below = [[point.updates // K for point in trace if point.gap <= part * trace[0].gap] for part in GAPS]
        reached[step] = [some[0] if some else None for some in below]
    return reached


def _wakeup_table(wakeups: Mapping[str, Mapping[str, Sequence[int | None]]]) -> Table:
    rows = []
    for dataset, reached in wakeups.items():
        counts = [count for step in STEPS for count in reached[step]]
        rows.append([SPECS[dataset].title, *(page.DASH if count is None else str(count) for count in counts)])
    columns = ["", *(f"{title}, {gap:g}" for title in STEPS.values() for gap in GAPS)]
    return Table("Wake-ups per user until the gap has fallen to a part of the first", columns, rows)


def _budgets(lab: Lab, datasets: Sequence[str]) -> tuple[list[Block], dict[str, Any]]:
    """Table 2 with our fits beside the methods of the paper, and accuracy against bits."""
    _, curves = compute(lab, datasets)
    jobs = {(dataset, OURS): [_job(lab, dataset, OURS, 0, run) for run in range(N_RUNS)] for dataset in datasets}
    curves = curves | {
        pair: [curve_of(result["trace"]) for result in results]
        for pair, results in run_groups(lab, jobs, "published splits").items()
    }
    methods = (*COMPARED, OURS)
    budgets = {
        f"DZ x {factor}": {
            dataset: {m: value_at(lab, (dataset, m), curves[dataset, m], factor, FITTING) for m in methods}
            for dataset in datasets
        }
        for factor in BUDGET_FACTORS
    }
    rows = []
    for (budget, values), method in product(budgets.items(), methods):
        cells = [values[dataset][method] for dataset in datasets]
        shown = [page.percent(cell["mean"], cell["std"]) if cell else page.DASH for cell in cells]
        rows.append([f"{budget}, {_title(method)}", *shown])
    titles = [SPECS[dataset].title for dataset in datasets]
    table = Table(f"Mean test accuracy over users, budget for {FITTING}", ["", *titles], rows)
    caption = "mean test accuracy over users against bits sent by all users."
    figures = [Figure(name, f"{SPECS[name].title}: {caption}", _picture(name, curves)) for name in datasets]
    return [Heading("Accuracy within a budget"), table, *figures], budgets


def curve_of(trace: Mapping[str, Sequence[float]]) -> Curve:
    """The curve of a fit."""
    updates, test, bits, graph_bits = (np.array(trace[name]) for name in ("updates", "test", "bits", "graph_bits"))
    return Curve(updates, test, bits, bits - graph_bits)


def _title(method: str) -> str:
    return "`DadaClassifier()`" if method == OURS else method_of(method).title


def _picture(dataset: str, curves: Curves) -> Picture:
    @page.drawing(7.0, 4.0)
    def picture(theme: Theme, axes: list[Axes]) -> None:
        for position, method in enumerate((*COMPARED, OURS)):
            for run, curve in enumerate(curves[dataset, method]):
                label = _title(method).strip("`") if run == 0 else None
                sent: Array = curve.bits[1:]
                colour = theme.colour_of(method, position)
                axes[0].plot(sent, curve.test[1:], color=colour, linewidth=1.4, alpha=0.8, label=label)
        axes[0].set(xscale="log", xlabel="bits sent by all users", ylabel="test accuracy, %")
        axes[0].set_title(SPECS[dataset].title)
        axes[0].legend(loc="lower right")

    return picture
