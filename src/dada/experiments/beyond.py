"""Beyond the paper: its methods, ours and central ones, on published and random splits, on Moons, and other tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from dada.core.compiled import Array
from dada.core.losses import mean_by_owner
from dada.data.datasets import load
from dada.experiments import page
from dada.experiments.lab import Job, Lab, run_groups
from dada.experiments.ladders import Settings, at_the_end
from dada.experiments.methods import OURS, method_of, train_job
from dada.experiments.ours import METHODS as OUR_METHODS
from dada.experiments.page import Block, Heading, Page, Table
from dada.experiments.protocol import FAR, ChosenSettings, Pair, Summary, method_data, try_all
from dada.experiments.rivals import RIVALS as RIVALS_OF_ANY_LABEL
from dada.experiments.rivals import Prediction, predicted
from dada.experiments.table1 import IN_PAPER, SOURCE, accuracy_of, best_accuracy_of
from dada.experiments.tasks import SPECS, data_digest, people

N_SPLITS, QUICK_SPLITS = 10, 2
# Users of School have few test rows: comparing them one by one takes more splits.
SPLITS_OF_USERS = {"school": 100}
# To cross-validate dada-cv and the boosted trees of each user alone on every random split would take hours.
OURS_ON_SPLITS = "dada-auto"
ALONE = "dada-alone"
CENTRAL = ("dummies", "hierarchical", "home-ridge", "trees-user", "lightgbm-user", "xgboost-user")
RIVALS = (ALONE, "local-boost", "dada-learned", "perso-lin-learned", *CENTRAL)
ON_SPLITS = (OURS_ON_SPLITS, *RIVALS)
# A difference is clear beyond this number of standard errors.
CLEAR = 2.0
LINEUP = (
    *OUR_METHODS,
    *IN_PAPER,
    "lightgbm-alone",
    "xgboost-alone",
    "dada-oracle",
    "dada-uniform",
    "dada-random",
    "dada-evidence",
    *CENTRAL,
    "constant",
)
# The rows of the table of the README: all that are best on some dataset, and the methods of the paper.
SHORT = {
    "local-boost": "each user alone (Local-boost)",
    "global-boost": "one model for all (Global-boost)",
    "dada-learned": "the paper's method (Dada-Learned)",
    "perso-lin-learned": "collaborative linear models (Perso-lin-Learned)",
    "dada-auto": "**`DadaClassifier()`**",
    "dada-cv": "**`DadaClassifierCV()`**",
    "home-ridge": "pooled least squares and home ridge, one message per user",
    "dummies": "logistic regression with user intercepts, all data in one place",
    "hierarchical": "hierarchical logistic regression, all data in one place",
    "trees-user": "gradient boosting that knows the user, all data in one place",
    "lightgbm-user": "LightGBM that knows the user, all data in one place",
    "xgboost-user": "XGBoost that knows the user, all data in one place",
}
SYNTHETIC = ("moons", "moons100")
DETAILS = ("mean over users", "all rows", "10th percentile", "worst user", "below their accuracy alone, % of users",
           f"by more than {FAR:g} points, %", "neighbours", "bits sent", "chosen")  # fmt: skip
# Users with too few rows to learn alone, and the populations on which they are shown.
FEW_ROWS = 4
MOONS_SEEDS = (1, 2, 3, 4, 5)
ON_MOONS = ("local-boost", "dada-learned", "dada-auto-evidence", "dada-oracle")


def beyond(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page for real datasets, all present; synthetic users are always included."""
    shown = [*datasets, *SYNTHETIC]
    pairs = {dataset: [(dataset, method) for method in LINEUP if _is_possible(dataset, method)] for dataset in shown}
    chosen, _, summaries = try_all(lab, [pair for some in pairs.values() for pair in some])
    texts = page.TEXTS["beyond"]
    blocks: list[Block] = [short_table(datasets, summaries)] if datasets else []
    blocks += [_overview(shown, summaries)]
    for dataset in shown:
        own = {pair: chosen[pair] for pair in pairs[dataset]}
        title = SPECS[dataset].title
        blocks += [Heading(title), page.summary_table(f"{title}: test accuracy", DETAILS, own, summaries)]
    blocks += [Heading("Where ours loses"), [better_methods(name, summaries) for name in shown]]
    table, moons = _moons(lab, chosen)
    blocks += [Heading("Moons: distance to the true graph"), table, texts["moons"]]
    results = {
        dataset: {pair[1]: method_data(chosen[pair], summaries[pair]) for pair in some}
        for dataset, some in pairs.items()
    }
    data: dict[str, Any] = {"datasets": results, "moons": moons}
    if datasets:
        start = {pair: choice.tuned for pair, choice in chosen.items()}
        more, data["random_splits"] = split_study(lab, datasets, summaries, start)
        blocks += [Heading("Random splits of each user's rows"), *more]
    more, data["other_tasks"] = other_tasks(lab, datasets)
    notes = [*texts["notes"], *_partial_note(lab, datasets)]
    blocks += [*more, Heading("Notes"), notes, SOURCE]
    return Page.of("beyond", lab, blocks, data)


def split_study(
    lab: Lab, datasets: Sequence[str], published: Mapping[Pair, Summary], start: Mapping[Pair, Settings]
) -> tuple[list[Block], dict[str, Any]]:
    """Blocks and data of random splits of real datasets, compared with summaries of the published splits.

    `start` has the settings from which the search on each split starts.
    """
    n_splits = QUICK_SPLITS if lab.quick else N_SPLITS
    users = _per_user(lab, product(datasets, ON_SPLITS), range(1, n_splits + 1), start)
    means = {pair: values.mean(axis=1) for pair, values in users.items()}
    for dataset in datasets:
        more = range(n_splits + 1, (n_splits if lab.quick else SPLITS_OF_USERS.get(dataset, n_splits)) + 1)
        for pair, values in _per_user(lab, product([dataset], (OURS_ON_SPLITS, ALONE)), more, start).items():
            users[pair] = np.concatenate([users[pair], values])
    below = {dataset: far_below(users[dataset, ALONE], users[dataset, OURS_ON_SPLITS], FAR) for dataset in datasets}
    caption = f"Users more than {FAR:g} points below learning alone, both as means over the splits, % of users"
    below_table = page.dataset_table(caption, datasets, [OURS_ON_SPLITS], lambda pair: page.decimal(below[pair[0]]))
    counts = ["splits", *(str(len(users[dataset, ALONE])) for dataset in datasets)]
    compared = [((dataset, OURS_ON_SPLITS), (dataset, rival)) for dataset in datasets for rival in RIVALS]
    means_caption = f"Mean test accuracy over users, mean and standard error over {n_splits} random splits"
    blocks: list[Block] = [
        page.TEXTS["beyond"]["splits"],
        page.dataset_table(
            means_caption, datasets, ON_SPLITS, lambda pair: "{:.2f} ± {:.2f}".format(*mean_and_error(means[pair]))
        ),
        Table(caption, below_table.columns, [*below_table.rows, counts]),
        "Differences on the published split, and whether the random splits confirm them:",
        [verdict(*pairs, published, means) for pairs in compared],
    ]
    data = {
        dataset: {method: {"means": means[dataset, method].round(3).tolist()} for method in ON_SPLITS}
        for dataset in datasets
    }
    for dataset in datasets:
        data[dataset][OURS_ON_SPLITS]["far_below_alone"] = below[dataset]
    return blocks, data


def _per_user(
    lab: Lab, pairs: Iterable[Pair], splits: Iterable[int], start: Mapping[Pair, Settings]
) -> dict[Pair, Array]:
    """Test accuracies in percent: a row per split, a column per user."""
    pairs = list(pairs)
    runs = [try_all(lab, pairs, split=split, start=start).runs for split in splits]
    return {pair: 100 * np.array([run[pair][0]["test"] for run in runs]) for pair in pairs if runs}


def far_below(alone: Array, ours: Array, points: float) -> float:
    """Percentage of users whose mean over splits is more than `points` below their mean alone."""
    return float(100 * np.mean((alone - ours).mean(axis=0) > points))


def mean_and_error(values: Array) -> tuple[float, float]:
    """Mean and standard error.

    >>> mean_and_error(np.array([1.0, 3.0]))
    (2.0, 1.0)
    """
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def verdict(ours: Pair, rival: Pair, published: Mapping[Pair, Summary], means: Mapping[Pair, Array]) -> str:
    """Whether random splits confirm the difference between two methods on the published split."""
    before = published[ours].mean - published[rival].mean
    now, error = mean_and_error(means[ours] - means[rival])
    if abs(now) <= CLEAR * error:
        finding = "no clear difference"
    elif (now > 0) == (before > 0):
        finding = "confirmed"
    else:
        finding = "not confirmed"
    methods = f"{method_of(ours[1]).title} against {method_of(rival[1]).title}"
    numbers = f"{before:+.2f} on the published split, {now:+.2f} ± {error:.2f} on random splits"
    return f"{SPECS[ours[0]].title}: {methods}: {numbers}: {finding}."


def _is_possible(dataset: str, method: str) -> bool:
    return SPECS[dataset].synthetic or method != "dada-oracle"


def _overview(datasets: Sequence[str], summaries: Mapping[Pair, Summary]) -> Table:
    def cell(pair: Pair) -> str:
        return page.percent(summaries[pair].mean, summaries[pair].std) if _is_possible(*pair) else page.DASH

    ours = page.dataset_table("Mean test accuracy over users", datasets, LINEUP, cell)
    best = ["Best row of the paper", *(page.percent(best_accuracy_of(dataset)) for dataset in datasets)]
    return Table(ours.caption, ours.columns, [best, *ours.rows])


def short_table(datasets: Sequence[str], summaries: Mapping[Pair, Summary]) -> Table:
    """The table of the README: rounded means on the published splits, published numbers in brackets."""

    def cell(pair: Pair) -> str:
        published = accuracy_of(*pair)
        mark = "**" if pair[1] in ("dada-auto", "dada-cv") else ""
        ours = f"{mark}{summaries[pair].mean:.1f}{mark}"
        return ours if published is None else f"{ours} ({published.mean:.1f})"

    rows = [[name, *(cell((dataset, method)) for dataset in datasets)] for method, name in SHORT.items()]
    return Table("In short", ["method", *(SPECS[dataset].title for dataset in datasets)], rows)


def better_methods(dataset: str, summaries: Mapping[Pair, Summary]) -> str:
    """Name the methods above the better one of our defaults and our cross-validated classifier."""
    mine = ("dada-auto", "dada-cv")
    ours = max(mine, key=lambda method: summaries[dataset, method].mean)
    mean = summaries[dataset, ours].mean
    better = [
        f"{method_of(method).title} {summary.mean:.2f}"
        for (where, method), summary in summaries.items()
        if where == dataset and method not in mine and summary.mean > mean
    ]
    return f"{SPECS[dataset].title}: {method_of(ours).title} {mean:.2f}; above it: {', '.join(better) or 'none'}."


def _moons(lab: Lab, chosen: Mapping[Pair, ChosenSettings]) -> tuple[Table, list[dict[str, Any]]]:
    """How much of the gap between learning alone and the true graph the evidence graph closes, by population."""
    jobs = {
        seed: [train_job("moons", m, chosen["moons", m].settings, seed=seed, run=0) for m in ON_MOONS]
        for seed in MOONS_SEEDS
    }
    found, numbers = [], []
    for seed, results in run_groups(lab, jobs, "Moons, seeds 1 to 5").items():
        runs = dict(zip(ON_MOONS, results, strict=True))
        few = people("moons", seed, 0).train.sizes <= FEW_ROWS
        test = {method: 100 * np.array(run["test"]) for method, run in runs.items()}
        means = {method: float(values.mean()) for method, values in test.items()}
        few_rows = {method: float(values[few].mean()) for method, values in test.items()}
        whole = means["dada-oracle"] - means["local-boost"]
        way = {method: 100 * (means[method] - means["local-boost"]) / whole for method in ON_MOONS}
        neighbours = runs["dada-auto-evidence"]["neighbours"]
        found.append({"seed": seed, "mean": means, "few_rows": few_rows, "way": way, "neighbours": neighbours})
        closed = [way["dada-learned"], way["dada-auto-evidence"]]
        few_means = [few_rows["local-boost"], few_rows["dada-auto-evidence"]]
        numbers.append([*means.values(), *closed, neighbours, *few_means])
    digits = [1] * len(ON_MOONS) + [0, 0, 1, 1, 1]
    names, numbers = [*map(str, MOONS_SEEDS), "mean"], [*numbers, np.mean(numbers, axis=0).tolist()]
    rows = [[name, *map(page.decimal, row, digits)] for name, row in zip(names, numbers, strict=True)]
    columns = ["seed", "Local-boost", "Dada-Learned", "evidence", "Dada-Oracle", "gap closed, Dada-Learned, %",
               "gap closed, evidence, %", "neighbours", f"at most {FEW_ROWS} rows: alone", "evidence"]  # fmt: skip
    return Table("The evidence graph with our defaults, on five populations", columns, rows), found


def _partial_note(lab: Lab, datasets: Sequence[str]) -> list[str]:
    if "vehicle_partial" not in datasets:
        return []
    users = people("vehicle_partial", lab.seed, 0)
    n_users, least = users.train.n_users, users.test.sizes.min()
    facts = {"records": users.train.n_rows + users.test.n_rows, "median": np.median(users.train.sizes)}
    return [page.sentence("beyond", "partial", users=n_users, least=least, points=100 / least / n_users, **facts)]


OUR_DEFAULTS = "dada"
WHO = {OUR_DEFAULTS: "Dada, our defaults", **{name: rival.title for name, rival in RIVALS_OF_ANY_LABEL.items()}}
SCHOOL_SPLITS = range(1, 11)
# To tune these on six classes of 561 features would take hours: scikit-learn's boosting cannot draw features for its
# trees, and alone every user has boosted trees of its own.
SLOW_ON_SIX = ("boosting", "lightgbm-alone")


def other_tasks(lab: Lab, datasets: Sequence[str]) -> tuple[list[Block], dict[str, Any]]:
    """Blocks and data of the tasks whose dataset is present."""
    blocks: list[Block] = []
    data: dict[str, Any] = {}
    if "harws" in datasets:
        who = [name for name in WHO if name not in SLOW_ON_SIX]
        found = dict(zip(who, _run(lab, six_activities, "harws", [{"who": name} for name in who]), strict=True))
        data["six-activities"] = found
        blocks += [Heading("Six activities of HARWS"), _six_table(found)]
    if "school" in datasets:
        splits = SCHOOL_SPLITS[:2] if lab.quick else SCHOOL_SPLITS
        each = {who: [{"who": who, "split": split} for split in splits] for who in WHO}
        scores = {who: _run(lab, school_scores, "school", arguments) for who, arguments in each.items()}
        data["school-scores"] = scores
        blocks += [Heading("Scores of School"), _score_table(scores)]
    return blocks, data


def _run(lab: Lab, study: Callable[..., dict[str, Any]], dataset: str, arguments: list[dict[str, Any]]) -> list[Any]:
    jobs = [
        Job(study, some | {"seed": lab.seed}, data_digest(dataset), (OURS,) if some["who"] == OUR_DEFAULTS else ())
        for some in arguments
    ]
    return lab.run(jobs, study.__name__.replace("_", " "))


def six_activities(who: str, seed: int) -> dict[str, Any]:
    """Test accuracy of every user of HARWS, six classes, a fifth of the rows for training, of one of `WHO`."""
    rows = load("harws")
    X, y, users = rows.X.astype(np.float64), rows.extras["activity"], rows.users
    train = rows.extras["split20"] == 0
    found = _predicted(who, (X[train], y[train], users[train]), (X[~train], users[~train]), seed)
    return {"test": mean_by_owner(found.labels == y[~train], users[~train]).tolist(), "chosen": found.settings}


def school_scores(who: str, split: int, seed: int) -> dict[str, Any]:
    """Explained variance of test scores on one of the ten splits of School.

    "explained" is relative to the variance over all pupils, "explained_within" to that around the mean of each school.
    """
    rows = load("school")
    X, y, users = rows.X.astype(np.float64), rows.extras["score"].astype(np.float64), rows.users
    train = rows.extras[f"split{split}"] == 0
    found = _predicted(who, (X[train], y[train], users[train]), (X[~train], users[~train]), seed)
    wrong = float(np.mean((y[~train] - found.labels) ** 2))
    school = np.unique(users[~train], return_inverse=True)[1]
    around = y[~train] - mean_by_owner(y[~train], users[~train])[school]
    return {
        "explained": 1 - wrong / float(y[~train].var()),
        "explained_within": 1 - wrong / float(np.mean(around**2)),
        "rmse": float(np.sqrt(wrong)),
        "chosen": found.settings,
    }


def _predicted(who: str, train: tuple[Array, Array, Array], test: tuple[Array, Array], seed: int) -> Prediction:
    """Predictions of our estimator with its defaults, or of a rival."""
    if who == OUR_DEFAULTS:
        return Prediction(import_module(OURS).fitted_labels(*train, *test, seed), {})
    return predicted(who, *train, *test, rng=np.random.default_rng(seed))


def _six_table(found: dict[str, dict[str, Any]]) -> Table:
    rows = []
    for who, result in found.items():
        test = 100 * np.array(result["test"])
        lowest = [page.decimal(float(np.percentile(test, 10))), page.decimal(float(test.min()))]
        chosen = page.settings_text(result["chosen"], at_the_end(result["chosen"]))
        rows.append([WHO[who], page.percent(float(test.mean())), *lowest, chosen])
    columns = ["method", "mean over users", "10th percentile", "worst user", "chosen"]
    return Table("Test accuracy, a fifth of the rows for training", columns, rows)


def _score_table(scores: dict[str, list[dict[str, Any]]]) -> Table:
    rows = []
    for who, results in scores.items():
        explained, within = (_spread(results, key) for key in ("explained", "explained_within"))
        rmse = float(np.mean([result["rmse"] for result in results]))
        at_the_ends = sum(bool(at_the_end(result["chosen"])) for result in results)
        numbers = [page.percent(*explained), page.percent(*within), page.decimal(rmse, 2), str(at_the_ends)]
        rows.append([WHO[who], *numbers])
    caption = f"Explained variance of test scores on {len(scores[OUR_DEFAULTS])} published splits"
    columns = ["method", "of the variance over all pupils, %", "of that inside schools, %", "root mean squared error",
               "choices at the end"]  # fmt: skip
    return Table(caption, columns, rows)


def _spread(results: list[dict[str, Any]], key: str) -> tuple[float, float]:
    values = 100 * np.array([result[key] for result in results])
    return float(values.mean()), float(values.std(ddof=1))
