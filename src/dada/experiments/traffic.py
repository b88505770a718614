"""What runs send: accuracy against bits, in Table 2 and the figure behind it; and the bits of our fits.

Among the settings within half a point of the best in cross-validation, the ones that send the fewest bits are used.
Every run is made twice, a short one with many trace points and a whole one; the short one is the beginning of the whole
one, event by event.

Of our fits: bits, neighbours and accuracy by step and graph, accuracy within a budget, wake-ups to a gap.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from sklearn.exceptions import ConvergenceWarning

from dada import task
from dada.core.bits import FLOAT_BITS
from dada.core.block_steps import BlockStep
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.plan import Plan
from dada.data import Constant, Linear, Union
from dada.engine import run as run_engine
from dada.estimators import DadaClassifier
from dada.experiments import page
from dada.experiments.lab import Job, Lab, run_groups
from dada.experiments.ladders import Settings
from dada.experiments.methods import GRAPH_PHASES, method_of
from dada.experiments.page import Block, Figure, Heading, Page, Table
from dada.experiments.protocol import N_RUNS, ChosenSettings, Pair, choose, finals
from dada.experiments.table1 import BUDGET_FACTORS, SOURCE, accuracy_of, budget_accuracy_of
from dada.experiments.tasks import SPECS, WEAK, data_digest, people
from dada.plot.theme import Picture, Theme

COMPARED = ("perso-lin-learned", "dada-learned")
SLACK = 0.5
EARLY_UPDATES = 10
# The authors' program counts this many neighbours for every user.
COUNTED_NEIGHBOURS = 20

# Three readings of "a budget of D Z x 160 bits": what is counted, and whether every user has the budget.
READINGS = {
    "all users together, model messages only": ("model_bits", False),
    "all users together, all messages": ("bits", False),
    "each user, all messages": ("bits", True),
}
FITTING = "all users together, model messages only"


@dataclass(frozen=True, eq=False)
class Curve:
    """Mean test accuracy in percent of one run at every trace point, and the bits sent by then."""

    updates: Array
    test: Array
    bits: Array
    model_bits: Array

    def at(self, budget: float, counted: str) -> float | None:
        """The accuracy reached within a budget; None if it does not pay for one update."""
        affordable = np.flatnonzero(getattr(self, counted) <= budget)
        last = int(affordable[-1]) if affordable.size else 0
        return float(self.test[last]) if self.updates[last] > 0 else None


Curves = dict[Pair, list[Curve]]


def table2(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of Table 2: accuracy under budgets, for every reading of them."""
    chosen, curves = compute(lab, datasets)
    budgets = {
        reading: {
            f"DZ x {factor}": {
                dataset: {m: value_at(lab, (dataset, m), curves[dataset, m], factor, reading) for m in COMPARED}
                for dataset in datasets
            }
            for factor in BUDGET_FACTORS
        }
        for reading in READINGS
    }
    blocks: list[Block] = [_reading_table(lab, datasets), *_which_reading(lab, datasets), _cost_table(chosen, curves)]
    for reading, values in budgets.items():
        blocks += [Heading(f"Budget for {reading}"), _budget_table(datasets, values, reading)]
    blocks += [*page.agreement(_verdicts(lab, datasets, budgets, curves)), SOURCE]
    data = {"budgets": budgets, "chosen": {"/".join(pair): choice.tuned for pair, choice in chosen.items()}}
    return Page.of("table2", lab, blocks, data)


def budget(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of accuracy against bits sent."""
    chosen, curves = compute(lab, datasets)
    caption = "mean test accuracy over users against bits sent by all users."
    blocks: list[Block] = [
        *(Figure(name, f"{SPECS[name].title}: {caption}", _picture(name, curves)) for name in datasets),
        _reach_table(datasets, curves),
        page.TEXTS["budget"]["notes"],
    ]
    data = {}
    for pair, some in curves.items():
        runs = [{name: getattr(c, name).tolist() for name in ("bits", "model_bits", "test")} for c in some]
        data["/".join(pair)] = {"chosen": chosen[pair].tuned, "runs": runs}
    return Page.of("budget", lab, blocks, data)


def compute(lab: Lab, datasets: Sequence[str]) -> tuple[dict[Pair, ChosenSettings], Curves]:
    """Choose settings and trace the runs."""
    pairs = [(dataset, method) for dataset in datasets for method in COMPARED]
    chosen = choose(lab, pairs, "cross-validation", slack=SLACK)
    early, whole = {}, {}
    for pair, choice in chosen.items():
        early[pair], whole[pair] = _traced(choice.settings, people(pair[0], lab.seed, 0).train.n_users)
    first = finals(lab, early, "beginnings", detail="trace")
    rest = finals(lab, whole, "whole runs", detail="trace")
    return chosen, {
        pair: [joined_curve(*results) for results in zip(first[pair], rest[pair], strict=True)] for pair in pairs
    }


def value_at(lab: Lab, pair: Pair, curves: Sequence[Curve], factor: int, reading: str) -> dict[str, float] | None:
    """Mean and standard deviation over runs of the accuracy within a budget."""
    counted, each = READINGS[reading]
    train = people(pair[0], lab.seed, 0).train
    allowed = float(train.n_features * FLOAT_BITS * factor * (train.n_users if each else 1))
    values = [curve.at(allowed, counted) for curve in curves]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return {"mean": float(np.mean(known)), "std": float(np.std(known, ddof=1))}


def _traced(settings: Settings, n_users: int) -> tuple[Settings, Settings]:
    """Settings of the short and of the whole run; both have the phases of the whole."""
    n_updates = settings["updates"] * n_users
    phases = {"graph_every": max(1, n_updates // GRAPH_PHASES), "local_updates": n_updates}
    early = {"updates": min(EARLY_UPDATES, settings["updates"]), "trace_every": max(1, n_users // 10)}
    return settings | phases | early, settings | phases | {"trace_every": max(1, n_updates // 100)}


def joined_curve(early: Mapping[str, Any], whole: Mapping[str, Any]) -> Curve:
    """One curve from the traces of the short and of the whole run."""
    first, rest = early["trace"], whole["trace"]
    late = [i for i, updates in enumerate(rest["updates"]) if updates > first["updates"][-1]]

    def joined(name: str) -> Array:
        return np.array(first[name] + [rest[name][i] for i in late])

    bits, graph_bits = joined("bits"), joined("graph_bits")
    return Curve(joined("updates"), 100 * joined("test"), bits, bits - graph_bits)


def _budget_table(datasets: Sequence[str], budgets: Mapping[str, Any], reading: str) -> Table:
    rows = []
    for factor in BUDGET_FACTORS:
        for method in COMPARED:
            cells = [f"DZ x {factor}, {method_of(method).title}"]
            for dataset in datasets:
                value = budgets[f"DZ x {factor}"][dataset][method]
                ours = page.percent(value["mean"], value["std"]) if value else page.DASH
                theirs = page.percent(budget_accuracy_of(dataset, method, factor))
                cells.append(f"{ours} ({theirs})" if SPECS[dataset].column else ours)
            rows.append(cells)
    titles = [SPECS[dataset].title for dataset in datasets]
    return Table(f"Mean test accuracy over users, budget for {reading}; published in brackets", ["", *titles], rows)


def _counted_updates(lab: Lab, dataset: str, factor: int) -> tuple[float, float]:
    """Model updates that a budget pays for, by the authors' count of a message: of all users together, and per user."""
    train = people(dataset, lab.seed, 0).train
    updates = train.n_features * FLOAT_BITS * factor / _counted_message(dataset)
    return updates, updates / train.n_users


def _counted_message(dataset: str) -> float:
    return COUNTED_NEIGHBOURS * (FLOAT_BITS + math.log(SPECS[dataset].stumps))


def _reading_table(lab: Lab, datasets: Sequence[str]) -> Table:
    """Updates that the authors' count of bits allows, under either reading."""
    rows = []
    for dataset in datasets:
        for factor in BUDGET_FACTORS if SPECS[dataset].column else ():
            updates, per_user = _counted_updates(lab, dataset, factor)
            theirs = page.percent(budget_accuracy_of(dataset, "dada-learned", factor))
            rows.append([f"{SPECS[dataset].title}, DZ x {factor}", f"{per_user:.1f}", f"{updates:.0f}", theirs])
    columns = ["", "updates per user, if for all users together", "if for each user", "published Dada-Learned"]
    caption = f"Model updates that a budget pays for, at {COUNTED_NEIGHBOURS} neighbours and Z + ln n bits per message"
    return Table(caption, columns, rows)


def _which_reading(lab: Lab, datasets: Sequence[str]) -> list[str]:
    """Which reading fits the published numbers, by the dataset with the fewest updates per user."""
    factor = BUDGET_FACTORS[0]
    counted = {name: _counted_updates(lab, name, factor) for name in datasets if SPECS[name].column}
    if not counted:
        return []
    dataset = min(counted, key=lambda name: counted[name][1])
    updates, per_user = counted[dataset]
    theirs, whole = budget_accuracy_of(dataset, "dada-learned", factor), accuracy_of(dataset, "dada-learned")
    assert theirs is not None
    assert whole is not None
    facts = {
        "neighbours": COUNTED_NEIGHBOURS,
        "factor": factor,
        "per_user": per_user,
        "updates": updates,
        "title": SPECS[dataset].title,
        "theirs": page.percent(theirs),
        "whole": page.percent(whole.mean),
        "zeros": page.TEXTS["table2"]["zeros"] if per_user < 1 and theirs < whole.mean - 5 else "",
        "fitting": FITTING,
    }
    return [page.sentence("table2", "reading", **facts)]


def _cost_table(chosen: Mapping[Pair, ChosenSettings], curves: Curves) -> Table:
    """The chosen settings, and the cost of an update with them."""
    rows = []
    for pair, choice in chosen.items():
        first_graph = float(np.mean([curve.bits[1] - curve.model_bits[1] for curve in curves[pair]]))
        costs = [page.bits_text(_bits_per_update(curves[pair])), page.bits_text(first_graph)]
        rows.append([page.title_of(pair), *costs, page.settings_text(choice.tuned)])
    columns = ["", "bits of a model update, to all neighbours", "bits of the first graph", "chosen"]
    return Table("Cost of messages in our runs", columns, rows)


def _bits_per_update(curves: Sequence[Curve]) -> float:
    return float(np.mean([curve.model_bits[-1] / curve.updates[-1] for curve in curves]))


def _reach_table(datasets: Sequence[str], curves: Curves) -> Table:
    """Bits until a run is within one point of its final accuracy."""
    rows = []
    for dataset in datasets:
        cells = [SPECS[dataset].title]
        for method in COMPARED:
            needed = [curve.bits[np.argmax(curve.test >= curve.test[-1] - 1.0)] for curve in curves[dataset, method]]
            end = float(np.mean([curve.test[-1] for curve in curves[dataset, method]]))
            cells += [page.bits_text(float(np.mean(needed))), page.percent(end)]
        rows.append(cells)
    columns = ["", "Perso-lin-Learned, bits", "final accuracy", "Dada-Learned, bits", "final accuracy"]
    return Table("All bits sent until the accuracy is first within one point of its final value", columns, rows)


def _verdicts(lab: Lab, datasets: Sequence[str], budgets: Mapping[str, Any], curves: Curves) -> list[str]:
    write, sentences = partial(page.sentence, "table2"), []
    for reading in READINGS:
        gaps = [abs(gap) for dataset in datasets for gap in _gaps(dataset, budgets[reading]).values()]
        if gaps:
            sentences.append(write("distance", reading=reading, mean=np.mean(gaps), n=len(gaps)))
    for dataset in datasets:
        cells = [row[dataset] for row in budgets[FITTING].values()]
        ahead = sum(_is_ahead(cell["dada-learned"], cell["perso-lin-learned"]) for cell in cells)
        sentences.append(write("ahead", title=SPECS[dataset].title, ahead=ahead, n=len(cells), reading=FITTING))
    for dataset in datasets:
        factors = ", ".join(str(factor) for factor, gap in _gaps(dataset, budgets[FITTING]).items() if gap > 1.0)
        if factors:
            ours = page.bits_text(_bits_per_update(curves[dataset, "dada-learned"]))
            costs = {"ours": ours, "theirs": page.bits_text(_counted_message(dataset))}
            sentences.append(write("above", title=SPECS[dataset].title, factors=factors, **costs))
    counted = "all users together, all messages"
    cells = [cell for row in budgets[counted].values() for methods in row.values() for cell in methods.values()]
    sentences.append(write("dashes", reading=counted, dashes=sum(cell is None for cell in cells), n=len(cells)))
    for dataset, factor in product(datasets, BUDGET_FACTORS):
        n_users = people(dataset, lab.seed, 0).train.n_users
        theirs = budget_accuracy_of(dataset, "perso-lin-learned", factor)
        # By the published count a message is a whole model of D Z bits.
        updates = factor / COUNTED_NEIGHBOURS
        if theirs is not None and updates < n_users / 2:
            facts = {"factor": factor, "updates": updates, "users": n_users, "theirs": page.percent(theirs)}
            sentences.append(write("too_few", title=SPECS[dataset].title, **facts))
    return sentences


def _gaps(dataset: str, budgets: Mapping[str, Any]) -> dict[int, float]:
    """Accuracy of Dada-Learned minus the published number by budget, if both are known."""
    return {
        factor: ours["mean"] - theirs
        for factor in BUDGET_FACTORS
        if (theirs := budget_accuracy_of(dataset, "dada-learned", factor)) is not None
        and (ours := budgets[f"DZ x {factor}"][dataset]["dada-learned"]) is not None
    }


def _is_ahead(first: dict[str, float] | None, second: dict[str, float] | None) -> bool:
    return first is not None and (second is None or first["mean"] > second["mean"])


def _picture(dataset: str, curves: Curves) -> Picture:
    @page.drawing(11.0, 4.0, columns=2, sharey=True)
    def picture(theme: Theme, axes: list[Axes]) -> None:
        titles = {"model_bits": "model messages only", "bits": "all messages, the graph's too"}
        for ax, (counted, title) in zip(axes, titles.items(), strict=True):
            for position, method in enumerate(COMPARED):
                for run, curve in enumerate(curves[dataset, method]):
                    colour = theme.colour_of(method, position)
                    label = method_of(method).title if run == 0 else None
                    sent = getattr(curve, counted)
                    ax.plot(sent[1:], curve.test[1:], color=colour, linewidth=1.4, alpha=0.8, label=label)
            ax.set(xscale="log", xlabel="bits sent by all users", title=f"{SPECS[dataset].title}, {title}")
        axes[0].set(ylabel="test accuracy, %")
        axes[1].legend(loc="lower right")

    return picture


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
    figures = [Figure(name, f"{SPECS[name].title}: {caption}", _fits_picture(name, curves)) for name in datasets]
    return [Heading("Accuracy within a budget"), table, *figures], budgets


def curve_of(trace: Mapping[str, Sequence[float]]) -> Curve:
    """The curve of a fit."""
    updates, test, bits, graph_bits = (np.array(trace[name]) for name in ("updates", "test", "bits", "graph_bits"))
    return Curve(updates, test, bits, bits - graph_bits)


def _title(method: str) -> str:
    return "`DadaClassifier()`" if method == OURS else method_of(method).title


def _fits_picture(dataset: str, curves: Curves) -> Picture:
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
