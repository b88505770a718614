"""Random splits of real users' rows: which comparisons survive when other rows are held out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np

from dada.core.compiled import Array
from dada.experiments import page as wording
from dada.experiments.data import SPECS, people
from dada.experiments.jobs import Job
from dada.experiments.lab import Lab
from dada.experiments.methods import METHODS
from dada.experiments.other_tasks import other_tasks
from dada.experiments.page import Block, Heading, Items, Page, Table, Text
from dada.experiments.protocol import FAR, Pair, Summary, Trial, summarise, try_all
from dada.experiments.published import SOURCE, TABLE1

N_SPLITS, QUICK_SPLITS = 10, 2
# Whether a user is worse off takes more where it has few rows to test by: means over ten splits are still chance.
SPLITS_OF_USERS = {"school": 100}
# Cross-validation inside cross-validation ten times over would take hours on HARWS.
JUDGED = ("dada-auto",)
RIVALS = ("dada-alone", "local-boost", "dada-learned", "perso-lin-learned", "hierarchical", "trees-pooled-user")
ALONE = "dada-alone"
# A difference is taken for real beyond so many of its standard errors.
CLEAR = 2.0


def split_study(
    lab: Lab, datasets: Sequence[str], published: Mapping[Pair, Summary]
) -> tuple[list[Block], dict[str, Any]]:
    """Blocks and data of the study.

    Parameters
    ----------
    lab : Lab
        Does the work.
    datasets : sequence of str
        Real datasets.
    published : mapping
        Summaries of the same methods on the published splits.
    """
    n_splits = QUICK_SPLITS if lab.quick else N_SPLITS
    users = _per_user(lab, product(datasets, (*JUDGED, *RIVALS)), range(1, n_splits + 1))
    means = {pair: values.mean(axis=1) for pair, values in users.items()}
    for dataset in datasets:
        more = range(n_splits + 1, (n_splits if lab.quick else SPLITS_OF_USERS.get(dataset, n_splits)) + 1)
        for pair, values in _per_user(lab, product([dataset], (*JUDGED, ALONE)), more).items():
            users[pair] = np.concatenate([users[pair], values])
    blocks: list[Block] = [Text(INTRO), _table(datasets, means), _worse_off_table(datasets, users)]
    verdicts = [
        _verdict(dataset, ours, rival, published, means) for dataset in datasets for ours in JUDGED for rival in RIVALS
    ]
    blocks += [Text("What holds on the published split, and what the random splits say of it:"), Items(verdicts)]
    data = {
        dataset: {
            method: {"means": means[dataset, method].round(3).tolist()}
            | ({"worse_off": _worse_off(users, dataset, method)} if method in JUDGED else {})
            for method in (*JUDGED, *RIVALS)
        }
        for dataset in datasets
    }
    return blocks, data


def _per_user(lab: Lab, pairs: Iterable[Pair], splits: Iterable[int]) -> dict[Pair, Array]:
    """Test accuracies in percent: a row per split, a column per user."""
    pairs = list(pairs)
    trials = [try_all(lab, pairs, split=split) for split in splits]
    return {pair: 100 * np.array([trial[pair].runs[0]["test"] for trial in trials]) for pair in pairs if trials}


def mean_and_error(values: Array) -> tuple[float, float]:
    """Mean and its standard error.

    >>> mean_and_error(np.array([1.0, 3.0]))
    (2.0, 1.0)
    """
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def _table(datasets: Sequence[str], means: Mapping[Pair, Array]) -> Table:
    rows = [
        [METHODS[method].title, *(_with_error(means[dataset, method]) for dataset in datasets)]
        for method in (*JUDGED, *RIVALS)
    ]
    count = len(next(iter(means.values())))
    caption = f"Mean test accuracy over users, mean and standard error over {count} random splits"
    return Table(caption, ["method", *(SPECS[dataset].title for dataset in datasets)], rows)


def _worse_off_table(datasets: Sequence[str], users: Mapping[Pair, Array]) -> Table:
    rows = [
        [METHODS[method].title, *(wording.number(_worse_off(users, dataset, method)) for dataset in datasets)]
        for method in JUDGED
    ]
    rows.append(["splits", *(str(len(users[dataset, ALONE])) for dataset in datasets)])
    caption = f"Users more than {FAR:g} points below learning alone, both as means over the splits, % of users"
    return Table(caption, ["method", *(SPECS[dataset].title for dataset in datasets)], rows)


def _worse_off(users: Mapping[Pair, Array], dataset: str, method: str) -> float:
    loss = (users[dataset, ALONE] - users[dataset, method]).mean(axis=0)
    return float(100 * np.mean(loss > FAR))


def _verdict(
    dataset: str, ours: str, rival: str, published: Mapping[Pair, Summary], means: Mapping[Pair, Array]
) -> str:
    before = published[dataset, ours].mean - published[dataset, rival].mean
    now, error = mean_and_error(means[dataset, ours] - means[dataset, rival])
    if abs(now) <= CLEAR * error:
        verdict = "no clear difference"
    elif (now > 0) == (before > 0):
        verdict = "survives"
    else:
        verdict = "does not survive"
    names = f"{METHODS[ours].title} against {METHODS[rival].title}"
    return (
        f"{SPECS[dataset].title}: {names}: {before:+.2f} published split, {now:+.2f} ± {error:.2f} random: {verdict}."
    )


def _with_error(values: Array) -> str:
    mean, error = mean_and_error(values)
    return f"{mean:.2f} ± {error:.2f}"


INTRO = (
    "Each split draws as large a part of every user's rows for training as the published one, and settings are chosen "
    "anew inside it by three folds over the coarse grid. Splits share rows, so that standard errors are too small "
    "rather than too large."
)


OF_PAPER = (
    "global-lin",
    "local-lin",
    "perso-lin-learned",
    "global-boost",
    "local-boost",
    "dada-learned",
    "dada-oracle",
)
OURS = ("dada-auto", "dada-cv", "dada-auto-evidence", "dada-auto-everyone", "dada-alone")
ON_STUMPS = ("dada-uniform", "dada-random", "dada-evidence")
CENTRAL = ("hierarchical", "trees-local", "trees-pooled", "trees-pooled-user", "constant")
LINEUP = (*OURS, *OF_PAPER, *ON_STUMPS, *CENTRAL)
SYNTHETIC = ("moons", "moons100")
# Users so small that learning alone is hopeless, and the populations on which they are looked at.
FEW_ROWS = 4
MOONS_SEEDS = (1, 2, 3, 4, 5)


def beyond(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page.

    Parameters
    ----------
    lab : Lab
        Does the work.
    datasets : sequence of str
        Real datasets that are present; synthetic users are always there.
    """
    trials = try_all(lab, [pair for dataset in (*datasets, *SYNTHETIC) for pair in _pairs(dataset)])
    summaries = {pair: _summary(trials, pair) for pair in trials}
    page = Page("beyond", "Beyond the paper", _lead(lab))
    page.blocks += [_overview([*datasets, *SYNTHETIC], summaries)]
    for dataset in (*datasets, *SYNTHETIC):
        page.blocks += [Heading(SPECS[dataset].title), _details(dataset, trials, summaries)]
    page.blocks += [Heading("Where ours loses"), Items([_losses(name, summaries) for name in (*datasets, *SYNTHETIC)])]
    table, moons = _moons(lab, trials)
    page.blocks += [Heading("Moons: how far towards the true graph"), table, Text(MOONS_TEXT)]
    page.data = {
        "datasets": {
            dataset: {
                method: _data(trials[dataset, method], summaries[dataset, method]) for _, method in _pairs(dataset)
            }
            for dataset in (*datasets, *SYNTHETIC)
        },
        "moons": moons,
    }
    if datasets:
        blocks, page.data["random_splits"] = split_study(lab, datasets, summaries)
        page.blocks += [Heading(f"{N_SPLITS} random splits of each user's rows"), *blocks]
    blocks, page.data["other_tasks"] = other_tasks(lab, datasets)
    page.blocks += [*blocks, Heading("Notes"), Items(NOTES), Text(f"Published numbers: {SOURCE}")]
    return page


def _pairs(dataset: str) -> list[Pair]:
    has_oracle = SPECS[dataset].synthetic
    return [(dataset, method) for method in LINEUP if has_oracle or method != "dada-oracle"]


def _summary(trials: dict[Pair, Trial], pair: Pair) -> Summary:
    dataset, method = pair
    alone = METHODS[method].alone
    return summarise(trials[pair].runs, trials[dataset, alone].runs if alone else None)


def _best_published(dataset: str) -> float | None:
    """The best row of the paper's table."""
    column = SPECS[dataset].column
    return None if column is None else max(row[column].mean for row in TABLE1.values())


def _overview(datasets: Sequence[str], summaries: dict[Pair, Summary]) -> Table:
    rows = [["Best row of the paper", *(wording.accuracy(_best_published(dataset)) for dataset in datasets)]]
    for method in LINEUP:
        found = [summaries.get((dataset, method)) for dataset in datasets]
        cells = [wording.NOTHING if one is None else wording.accuracy(one.mean, one.std) for one in found]
        rows.append([METHODS[method].title, *cells])
    return Table("Mean test accuracy over users", ["method", *(SPECS[dataset].title for dataset in datasets)], rows)


def _details(dataset: str, trials: dict[Pair, Trial], summaries: dict[Pair, Summary]) -> Table:
    # Sensors with four test rows say nothing about the worst user.
    is_partial = dataset == "vehicle_partial"
    rows = []
    for pair in _pairs(dataset):
        one = summaries[pair]
        rows.append(
            [
                METHODS[pair[1]].title,
                wording.accuracy(one.mean, one.std),
                wording.accuracy(one.pooled, one.pooled_std),
                wording.NOTHING if is_partial else wording.number(one.tenth),
                wording.NOTHING if is_partial else wording.number(one.worst),
                wording.number(one.worse_off),
                wording.number(one.far_worse_off),
                wording.number(one.neighbours),
                wording.bits(one.bits),
                wording.settings(trials[pair].choice.tuned),
            ]
        )
    columns = ["method", "mean over users", "all rows", "10th percentile", "worst user", "worse off than alone, %",
               f"by more than {FAR:g} points, %", "neighbours", "bits sent", "chosen"]  # fmt: skip
    return Table(f"{SPECS[dataset].title}: test accuracy", columns, rows)


def _losses(dataset: str, summaries: dict[Pair, Summary]) -> str:
    """Who does better than our best row that needs no oracle, by name."""
    ours = max(("dada-auto", "dada-cv"), key=lambda method: summaries[dataset, method].mean)
    mean = summaries[dataset, ours].mean
    better = [
        f"{METHODS[method].title} {summaries[dataset, method].mean:.2f}"
        for _, method in _pairs(dataset)
        if method not in ("dada-auto", "dada-cv") and summaries[dataset, method].mean > mean
    ]
    name = f"{SPECS[dataset].title}: {METHODS[ours].title} {mean:.2f}"
    return f"{name}; above it: {', '.join(better)}." if better else f"{name}; nothing here is above it."


def _moons(lab: Lab, trials: dict[Pair, Trial]) -> tuple[Table, list[dict[str, Any]]]:
    """How far the evidence graph goes from learning alone to knowing the true graph, population by population."""
    methods = ("local-boost", "dada-learned", "dada-auto-evidence", "dada-oracle")
    settings = {method: trials["moons", method].choice.settings for method in methods}
    jobs = [Job.of("moons", method, settings[method], seed=seed, run=0) for seed in MOONS_SEEDS for method in methods]
    results = iter(lab.run(jobs, "Moons, seeds 1 to 5"))
    found = []
    for seed in MOONS_SEEDS:
        runs = {method: next(results) for method in methods}
        few = people("moons", seed, 0).train.sizes <= FEW_ROWS
        test = {method: 100 * np.array(run["test"]) for method, run in runs.items()}
        means = {method: float(values.mean()) for method, values in test.items()}
        whole = means["dada-oracle"] - means["local-boost"]
        found.append(
            {
                "seed": seed,
                "mean": means,
                "few_rows": {method: float(values[few].mean()) for method, values in test.items()},
                "way": {method: 100 * (means[method] - means["local-boost"]) / whole for method in methods},
                "neighbours": runs["dada-auto-evidence"]["neighbours"],
            }
        )
    rows = [_moons_row(str(one["seed"]), one) for one in found]
    rows.append(_moons_row("mean", _mean_of(found)))
    columns = ["seed", "Local-boost", "Dada-Learned", "evidence", "Dada-Oracle", "way, Dada-Learned, %",
               "way, evidence, %", "neighbours", f"at most {FEW_ROWS} rows: alone", "evidence"]  # fmt: skip
    return Table("The evidence graph with our defaults, on five populations", columns, rows), found


def _moons_row(name: str, one: dict[str, Any]) -> list[str]:
    mean, way, few = one["mean"], one["way"], one["few_rows"]
    methods = ("local-boost", "dada-learned", "dada-auto-evidence", "dada-oracle")
    return [
        name,
        *(wording.number(mean[method]) for method in methods),
        wording.number(way["dada-learned"], 0),
        wording.number(way["dada-auto-evidence"], 0),
        wording.number(one["neighbours"]),
        wording.number(few["local-boost"]),
        wording.number(few["dada-auto-evidence"]),
    ]


def _mean_of(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of dictionaries of numbers, and of dictionaries of such."""
    first = found[0]
    return {
        name: _mean_of([one[name] for one in found])
        if isinstance(value, dict)
        else float(np.mean([one[name] for one in found]))
        for name, value in first.items()
    }


def _data(trial: Trial, summary: Summary) -> dict[str, Any]:
    return {"chosen": trial.choice.tuned, "cross_validation": trial.choice.score, "test": asdict(summary)}


def _lead(lab: Lab) -> str:
    how = " (quick mode: coarse grids and short runs, only to see that all works)" if lab.quick else ""
    return (
        "Every method of the paper, ours, and what one could do with all rows in one place, on the published splits "
        "and on synthetic users. Nothing was chosen on test rows by this program: settings come from cross-validation "
        f"inside each user's training rows{how}, or from the rules of the estimators. Three runs each; ± is the "
        "standard deviation over runs. Numbers are percentages unless they say otherwise."
    )


MOONS_TEXT = (
    "Way: of the distance from Local-boost to Dada-Oracle, how much is gone. Oracle and Local-boost have the paper's "
    "stumps and settings chosen on other draws; the evidence graph has the estimators' predictors and settings, "
    "which also lift users who learn alone."
)
NOTES = (
    "Our defaults: DadaClassifier() as it is. Cross-validated: DadaClassifierCV(), which chooses base predictors, "
    "graph, beta and mu, and leaves a user its local model where that did better on held-out rows beyond chance. "
    "Alone: the defaults without neighbours; it is what our rows are compared with in the columns worse off.",
    "The rules of the estimators were made while grids of settings had been seen on the test rows of the published "
    "splits. The random splits are the better judge of them, though not a perfect one: they share rows with these.",
    "Hierarchical logistic regression, Global-lin, Global-boost and the central trees need all rows in one place. "
    "Everything else sends models only.",
    "VEHICLE (partial) is a draw of 1,860 records; half of its 23 sensors have fewer than 13 rows for training and as "
    "few for testing, so that a single row moves the mean over users by up to a point.",
)
