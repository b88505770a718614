"""Table 1: test accuracy of every method on the real datasets, with standard deviations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dada.experiments import page as wording
from dada.experiments.data import SPECS
from dada.experiments.lab import Lab
from dada.experiments.methods import METHODS
from dada.experiments.page import Heading, Items, Page, Table, Text
from dada.experiments.protocol import Choice, Pair, Summary, finals, summarise, try_all
from dada.experiments.published import AUTHORS, SOURCE, TABLE1, AuthorsRun, Published

IN_PAPER = ("global-lin", "local-lin", "perso-lin-learned", "global-boost", "local-boost", "dada-learned")
BEYOND = ("constant", "hierarchical", "dada-uniform", "dada-random", "dada-evidence", "dada-mixed")
CLOSE = 0.5


@dataclass(frozen=True)
class Result:
    """A method on a dataset: what was chosen, what it gave, what was published."""

    choice: Choice
    summary: Summary
    published: Published | None


def table1(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page.

    Parameters
    ----------
    lab : Lab
        Does the work.
    datasets : sequence of str
        Real datasets, all present.
    """
    results = compute(lab, datasets)
    theirs = _at_authors_settings(lab, datasets)
    page = Page("table1", "Table 1: test accuracy on real data", _intro(lab))
    page.blocks += [
        _overview(datasets, results),
        *(block for dataset in datasets for block in _details(dataset, results)),
    ]
    if theirs:
        page.blocks += [Heading("At the authors' settings"), Text(AUTHORS_INTRO), _authors_table(theirs)]
    page.blocks += [
        Heading("What agrees with the paper, and what does not"),
        Items(_verdicts(datasets, results, theirs)),
    ]
    page.blocks += [Heading("Notes"), Items(NOTES), Text(f"Published numbers: {SOURCE}")]
    page.data = {
        "datasets": {dataset: _dataset_data(dataset, results) for dataset in datasets},
        "at_authors_settings": [_authors_data(run, summary) for run, summary in theirs],
    }
    return page


def compute(lab: Lab, datasets: Sequence[str]) -> dict[Pair, Result]:
    """Choose settings and run every method."""
    trials = try_all(lab, [(dataset, method) for dataset in datasets for method in (*IN_PAPER, *BEYOND)])
    results = {}
    for (dataset, method), trial in trials.items():
        alone = METHODS[method].alone
        summary = summarise(trial.runs, trials[dataset, alone].runs if alone else None)
        column = SPECS[dataset].column
        published = TABLE1.get(method, {}).get(column) if column else None
        results[dataset, method] = Result(trial.choice, summary, published)
    return results


def _at_authors_settings(lab: Lab, datasets: Sequence[str]) -> list[tuple[AuthorsRun, Summary]]:
    wanted = [run for run in AUTHORS if run.dataset in datasets]
    # The same method may stand there twice with other settings, so each is asked for on its own.
    return [
        (
            run,
            summarise(
                finals(lab, {(run.dataset, run.method): run.settings}, "authors' settings")[run.dataset, run.method]
            ),
        )
        for run in wanted
    ]


def _intro(lab: Lab) -> str:
    how = (
        "a coarse grid and one repeat of 3-fold cross-validation (quick mode: only to see that all works)"
        if lab.quick
        else "all settings of the published grids (3 folds; the best quarter of them three times, rows dealt out anew)"
    )
    return (
        "Every method's settings were chosen by cross-validation inside each user's training rows, with "
        f"{how}; nothing was chosen on test data. Each method then ran three times; ± is the standard deviation over "
        "these runs. Numbers are percentages. The paper says that it averages over users, yet some of its numbers "
        "are the share of all test rows, so both are shown."
    )


def _overview(datasets: Sequence[str], results: dict[Pair, Result]) -> Table:
    rows = []
    for method in (*IN_PAPER, *BEYOND):
        cells = [METHODS[method].title]
        for dataset in datasets:
            result = results[dataset, method]
            ours = wording.accuracy(result.summary.mean, result.summary.std)
            cells.append(ours if result.published is None else f"{ours} ({wording.published(result.published)})")
        rows.append(cells)
    return Table(
        "Mean test accuracy over users; published number in brackets",
        ["method", *(SPECS[dataset].title for dataset in datasets)],
        rows,
    )


def _details(dataset: str, results: dict[Pair, Result]) -> list[Heading | Table]:
    spec = SPECS[dataset]
    rows = []
    for method in (*IN_PAPER, *BEYOND):
        result = results[dataset, method]
        summary, is_partial = result.summary, spec.column is None
        rows.append(
            [
                METHODS[method].title,
                wording.accuracy(summary.mean, summary.std),
                wording.accuracy(summary.pooled, summary.pooled_std),
                wording.published(result.published),
                wording.signed(_difference(result)),
                wording.NOTHING if is_partial else wording.number(summary.tenth),
                wording.NOTHING if is_partial else wording.number(summary.worst),
                wording.number(summary.worse_off),
                wording.number(summary.neighbours),
                wording.settings(result.choice.tuned),
            ]
        )
    columns = ["method", "mean over users", "all rows", "published", "difference", "10th percentile", "worst user",
               "worse off than alone, % of users", "neighbours", "chosen"]  # fmt: skip
    caption = f"{spec.title}: {spec.stumps} stumps, thresholds by {spec.rule}"
    return [Heading(spec.title), Table(caption, columns, rows)]


def _authors_table(theirs: Sequence[tuple[AuthorsRun, Summary]]) -> Table:
    rows = []
    for run, summary in theirs:
        published = TABLE1[run.method][run.dataset]
        ours = (summary.pooled, summary.pooled_std) if run.pooled else (summary.mean, summary.std)
        rows.append(
            [
                f"{SPECS[run.dataset].title}, {METHODS[run.method].title}",
                wording.accuracy(*ours),
                wording.published(published),
                wording.signed(ours[0] - published.mean),
                "all rows" if run.pooled else "mean over users",
                run.note or wording.NOTHING,
            ]
        )
    columns = ["", "ours", "published", "difference", "accuracy of", "note"]
    return Table("Not tuned: the settings the authors used", columns, rows)


def _difference(result: Result) -> float | None:
    return None if result.published is None else result.summary.mean - result.published.mean


def agrees(result: Result) -> bool:
    """Whether ours and the published number are the same but for chance, by either way of averaging."""
    assert result.published is not None
    summary, theirs = result.summary, result.published
    spread = 2 * math.hypot(max(summary.std, summary.pooled_std), theirs.std or 0.0)
    nearest = min(abs(summary.mean - theirs.mean), abs(summary.pooled - theirs.mean))
    return nearest <= max(CLOSE, spread)


def _verdicts(
    datasets: Sequence[str], results: dict[Pair, Result], theirs: Sequence[tuple[AuthorsRun, Summary]]
) -> list[str]:
    reproduced = {
        (run.dataset, run.method)
        for run, summary in theirs
        if agrees(Result(Choice({}, {}, None, 0), summary, TABLE1[run.method][run.dataset]))
    }
    sentences = []
    for dataset in datasets:
        for method in IN_PAPER:
            result = results[dataset, method]
            if result.published is None:
                continue
            name = f"{SPECS[dataset].title}, {METHODS[method].title}"
            numbers = (
                f"{wording.accuracy(result.summary.mean)} over users, {wording.accuracy(result.summary.pooled)} "
                f"over rows; published {wording.published(result.published)}"
            )
            if agrees(result):
                sentences.append(f"{name}: agrees ({numbers}).")
                continue
            where = "higher" if (_difference(result) or 0) > 0 else "lower"
            cause = WHY.get((dataset, method), "")
            if (dataset, method) in reproduced:
                cause = f"With the authors' settings the published number comes out. {cause}"
            sentences.append(f"{name}: {where} than published ({numbers}). {cause}".strip())
    if any(SPECS[dataset].column is None for dataset in datasets):
        sentences.append(
            "VEHICLE (partial): a draw of 1,860 of the records of Vehicle Sensor with a split of our own. It says "
            "how the methods compare there, and nothing about the published column."
        )
    return sentences


def _dataset_data(dataset: str, results: dict[Pair, Result]) -> dict[str, Any]:
    return {
        "partial": SPECS[dataset].column is None,
        "methods": {
            method: {
                "chosen": results[dataset, method].choice.tuned,
                "settings": results[dataset, method].choice.settings,
                "cross_validation": results[dataset, method].choice.score,
                "settings_tried": results[dataset, method].choice.tried,
                "test": asdict(results[dataset, method].summary),
                "published": _published_data(results[dataset, method].published),
                "difference": _difference(results[dataset, method]),
            }
            for method in (*IN_PAPER, *BEYOND)
        },
    }


def _authors_data(run: AuthorsRun, summary: Summary) -> dict[str, Any]:
    published = TABLE1[run.method][run.dataset]
    return {**asdict(run), "test": asdict(summary), "published": _published_data(published)}


def _published_data(value: Published | None) -> dict[str, float | None] | None:
    return None if value is None else value._asdict()


AUTHORS_INTRO = (
    "The paper's program and text do not say the same in all points. Below, the settings of the program: its step "
    "size, its loss in the graph problem, its number of updates. Where the published number is the share of all "
    "rows, so is ours."
)

NOTES = (
    "Stumps: the authors' program spreads thresholds over one range of values, the same for all features; on "
    "HARWS, where all features lie in [-1, 1], half of the stumps are then constant. We use that rule where the "
    "table says global-range. On Vehicle Sensor features are standardised and one range for all would follow the "
    "outliers, so each feature has its own.",
    "The hierarchical model, Global-lin and Global-boost need all data in one place. Everything else sends models "
    "only.",
    "The random graph has as many edges as the learned one. Where it does as well, the graph's density explains "
    "the gain and not who is joined to whom.",
    "Mixed predictors: four stumps per feature at its quantiles, one linear predictor per feature, and a constant "
    "whose weight is only loosely drawn to the neighbours'. Evidence graph: a user follows the ten models that do "
    "best on its own training rows.",
    "School has 139 schools; the paper says 140.",
)

# Why a number differs, as far as it is known.
WHY: dict[Pair, str] = {
    ("harws", "global-lin"): "Their penalty is not known; C = 0.01 gives 91.7 and C = 0.1 gives 95.9.",
    ("harws", "local-lin"): "Their penalty is not known; C = 0.1 gives 90.0 and C = 1 gives 94.1.",
    ("harws", "local-boost"): "Cross-validation takes a larger bound on the norm than theirs (10).",
    ("harws", "dada-learned"): "Their settings for this task are not known.",
    ("computer", "global-lin"): "No penalty explains it: ours gives 69.2 to 72.3 for C from 0.01 to 10.",
    ("computer", "local-lin"): "Their penalty is not known; C = 0.1 gives 61.2.",
    ("computer", "perso-lin-learned"): (
        "Known differences: our graph goes on changing while models are learned, the authors' program keeps the "
        "first; our users take Newton steps."
    ),
    ("computer", "global-boost"): (
        "Cross-validation takes the bound 1; the bound 5 of the authors gives 69.2 where their step stops and 72.3 "
        "at the optimum."
    ),
    ("computer", "local-boost"): "Cross-validation takes the bound 1, the authors 100.",
    ("computer", "dada-learned"): (
        "With the authors' settings and only the step replaced by ours, which comes nearer to the optimum of the "
        "models in as many updates, it is higher too (last row for COMPUTER there)."
    ),
    ("school", "global-lin"): (
        "No penalty explains it: ours gives 69.5 for C from 0.01 to 10, and predicting each school's majority "
        "gives 61.5."
    ),
    ("school", "perso-lin-learned"): "Known differences: as for COMPUTER.",
}
