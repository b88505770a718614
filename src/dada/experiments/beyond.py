"""Beyond the paper: its methods, ours and central ones, on published and random splits, on Moons, and other tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from dada.core.accuracy import mean_by_owner
from dada.core.compiled import Array
from dada.data.datasets import load
from dada.estimators import DadaClassifier, DadaRegressor, PerUserKFold
from dada.experiments import page
from dada.experiments.lab import Job, Lab, run_groups
from dada.experiments.methods import METHODS, train_job
from dada.experiments.page import Block, Heading, Page, Table
from dada.experiments.protocol import FAR, ChosenSettings, Pair, Summary, method_data, try_all
from dada.experiments.published import SOURCE, best_accuracy_of
from dada.experiments.table1 import IN_PAPER
from dada.experiments.tasks import N_FOLDS, SPECS, data_digest, people

N_SPLITS, QUICK_SPLITS = 10, 2
# Users of School have few test rows: comparing them one by one takes more splits.
SPLITS_OF_USERS = {"school": 100}
# Nested cross-validation on every random split would take hours on HARWS, so dada-cv is left out.
OURS_ON_SPLITS = "dada-auto"
ALONE = "dada-alone"
RIVALS = (ALONE, "local-boost", "dada-learned", "perso-lin-learned", "hierarchical", "trees-pooled-user")
ON_SPLITS = (OURS_ON_SPLITS, *RIVALS)
# A difference is clear beyond this number of standard errors.
CLEAR = 2.0
OURS = ("dada-auto", "dada-cv", "dada-auto-evidence", "dada-auto-everyone", "dada-alone")
CENTRAL = ("hierarchical", "trees-local", "trees-pooled", "trees-pooled-user", "constant")
LINEUP = (*OURS, *IN_PAPER, "dada-oracle", "dada-uniform", "dada-random", "dada-evidence", *CENTRAL)
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
    blocks: list[Block] = [_overview(shown, summaries)]
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
        more, data["random_splits"] = split_study(lab, datasets, summaries)
        blocks += [Heading("Random splits of each user's rows"), *more]
    more, data["other_tasks"] = other_tasks(lab, datasets)
    notes = [*texts["notes"], *_partial_note(lab, datasets)]
    blocks += [*more, Heading("Notes"), notes, SOURCE]
    return Page.of("beyond", lab, blocks, data)


def split_study(
    lab: Lab, datasets: Sequence[str], published: Mapping[Pair, Summary]
) -> tuple[list[Block], dict[str, Any]]:
    """Blocks and data of random splits of real datasets, compared with summaries of the published splits."""
    n_splits = QUICK_SPLITS if lab.quick else N_SPLITS
    users = _per_user(lab, product(datasets, ON_SPLITS), range(1, n_splits + 1))
    means = {pair: values.mean(axis=1) for pair, values in users.items()}
    for dataset in datasets:
        more = range(n_splits + 1, (n_splits if lab.quick else SPLITS_OF_USERS.get(dataset, n_splits)) + 1)
        for pair, values in _per_user(lab, product([dataset], (OURS_ON_SPLITS, ALONE)), more).items():
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


def _per_user(lab: Lab, pairs: Iterable[Pair], splits: Iterable[int]) -> dict[Pair, Array]:
    """Test accuracies in percent: a row per split, a column per user."""
    pairs = list(pairs)
    runs = [try_all(lab, pairs, split=split).runs for split in splits]
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
    methods = f"{METHODS[ours[1]].title} against {METHODS[rival[1]].title}"
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


def better_methods(dataset: str, summaries: Mapping[Pair, Summary]) -> str:
    """Name the methods above the better one of our defaults and our cross-validated classifier."""
    mine = ("dada-auto", "dada-cv")
    ours = max(mine, key=lambda method: summaries[dataset, method].mean)
    mean = summaries[dataset, ours].mean
    better = [
        f"{METHODS[method].title} {summary.mean:.2f}"
        for (where, method), summary in summaries.items()
        if where == dataset and method not in mine and summary.mean > mean
    ]
    return f"{SPECS[dataset].title}: {METHODS[ours].title} {mean:.2f}; above it: {', '.join(better) or 'none'}."


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


WHO = {"dada": "Dada, our defaults", "local": "each user alone", "pooled": "all rows in one place"}
SCHOOL_SPLITS = range(1, 11)
PENALTIES = (0.01, 0.1, 1.0, 10.0)
RIDGE_PENALTIES = tuple(10.0**power for power in range(-2, 5))


def other_tasks(lab: Lab, datasets: Sequence[str]) -> tuple[list[Block], dict[str, Any]]:
    """Blocks and data of the tasks whose dataset is present."""
    blocks: list[Block] = []
    data: dict[str, Any] = {}
    if "harws" in datasets:
        found = dict(zip(WHO, _run(lab, six_activities, "harws", [{"who": who} for who in WHO]), strict=True))
        data["six-activities"] = found
        blocks += [Heading("Six activities of HARWS"), _six_table(found)]
    if "school" in datasets:
        splits = SCHOOL_SPLITS[:2] if lab.quick else SCHOOL_SPLITS
        each = {who: [{"who": who, "split": split} for split in splits] for who in WHO}
        scores = {who: _run(lab, school_scores, "school", arguments) for who, arguments in each.items()}
        data["school-scores"] = scores
        blocks += [Heading("Scores of School"), _score_table(scores), page.TEXTS["beyond"]["school"]]
    return blocks, data


def _run(lab: Lab, study: Callable[..., dict[str, Any]], dataset: str, arguments: list[dict[str, Any]]) -> list[Any]:
    jobs = [Job(study, some | {"seed": lab.seed}, data_digest(dataset)) for some in arguments]
    return lab.run(jobs, study.__name__.replace("_", " "))


def six_activities(who: str, seed: int) -> dict[str, Any]:
    """Test accuracy of every user of HARWS, six classes, a fifth of the rows for training.

    `who` is "dada" (default settings), or "local" or "pooled" multinomial logistic regression, whose penalty is chosen
    by cross-validation inside users' training rows.
    """
    rows = load("harws")
    X, y, users = rows.X.astype(np.float64), rows.extras["activity"], rows.users
    train = rows.extras["split20"] == 0
    data = X[train], y[train], users[train]
    penalty = None if who == "dada" else _best_penalty(who, *data, seed)
    learn = DadaClassifier(random_state=seed) if penalty is None else partial(_logistic, C=penalty)
    right = _predicted(who, learn, *data, X[~train], users[~train]) == y[~train]
    return {"test": mean_by_owner(right, users[~train]).tolist(), "penalty": penalty}


def school_scores(who: str, split: int, seed: int) -> dict[str, Any]:
    """Explained variance of test scores on one of the ten splits of School.

    "explained" is relative to the variance over all pupils, "explained_within" to that around the mean of each school.
    """
    rows = load("school")
    X, y, users = rows.X.astype(np.float64), rows.extras["score"].astype(np.float64), rows.users
    train = rows.extras[f"split{split}"] == 0
    learn = DadaRegressor(random_state=seed) if who == "dada" else _ridge
    predicted = _predicted(who, learn, X[train], y[train], users[train], X[~train], users[~train])
    wrong = float(np.mean((y[~train] - predicted) ** 2))
    school = np.unique(users[~train], return_inverse=True)[1]
    around = y[~train] - mean_by_owner(y[~train], users[~train])[school]
    return {
        "explained": 1 - wrong / float(y[~train].var()),
        "explained_within": 1 - wrong / float(np.mean(around**2)),
        "rmse": float(np.sqrt(wrong)),
    }


def _predicted(who: str, learn: Any, X: Array, y: Array, users: Array, rows: Array, owners: Array) -> Array:
    """Predictions for `rows`: of our estimator, or of a function that learns from all rows or from each user's."""
    if who == "dada":
        return learn.fit(X, y, users=users).predict(rows, owners)
    if who == "pooled":
        return learn(X, y)(rows)
    found = np.zeros(len(rows), y.dtype)
    for user in np.unique(owners).tolist():
        own, asked = users == user, owners == user
        found[asked] = learn(X[own], y[own])(rows[asked])
    return found


def _logistic(X: Array, y: Array, C: float) -> Callable[[Array], Array]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if (y == y[0]).all():
        return lambda rows: np.full(len(rows), y[0])
    return make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=1000)).fit(X, y).predict


def _ridge(X: Array, y: Array) -> Callable[[Array], Array]:
    from sklearn.linear_model import RidgeCV

    return RidgeCV(RIDGE_PENALTIES).fit(X, y).predict


def _best_penalty(who: str, X: Array, y: Array, users: Array, seed: int) -> float:
    """The penalty with the most held-out rows classified correctly."""
    folds = PerUserKFold(N_FOLDS, shuffle=True, random_state=np.random.default_rng(seed))
    right = np.zeros(len(PENALTIES))
    for kept, tested in folds.split(X, y, users=users):
        for i, C in enumerate(PENALTIES):
            learn = partial(_logistic, C=C)
            found = _predicted(who, learn, X[kept], y[kept], users[kept], X[tested], users[tested])
            right[i] += (found == y[tested]).sum()
    return PENALTIES[int(np.argmax(right))]


def _six_table(found: dict[str, dict[str, Any]]) -> Table:
    rows = []
    for who, result in found.items():
        test = 100 * np.array(result["test"])
        name = WHO[who] if who == "dada" else f"Multinomial logistic regression, {WHO[who]}"
        lowest = [page.decimal(float(np.percentile(test, 10))), page.decimal(float(test.min()))]
        rows.append([name, page.percent(float(test.mean())), *lowest])
    columns = ["method", "mean over users", "10th percentile", "worst user"]
    return Table("Test accuracy, a fifth of the rows for training", columns, rows)


def _score_table(scores: dict[str, list[dict[str, Any]]]) -> Table:
    rows = []
    for who, results in scores.items():
        name = WHO[who] if who == "dada" else f"Ridge regression, {WHO[who]}"
        explained, within = (_spread(results, key) for key in ("explained", "explained_within"))
        rmse = float(np.mean([result["rmse"] for result in results]))
        rows.append([name, page.percent(*explained), page.percent(*within), page.decimal(rmse, 2)])
    caption = f"Explained variance of test scores on {len(scores['dada'])} published splits"
    columns = ["method", "of the variance over all pupils, %", "of that inside schools, %", "root mean squared error"]
    return Table(caption, columns, rows)


def _spread(results: list[dict[str, Any]], key: str) -> tuple[float, float]:
    values = 100 * np.array([result[key] for result in results])
    return float(values.mean()), float(values.std(ddof=1))
