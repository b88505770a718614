"""Tasks that the paper does not have: the six activities of HARWS, and the scores of School as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dada.core.accuracy import mean_by_owner
from dada.core.compiled import Array
from dada.data.datasets import load
from dada.estimators import DadaClassifier, DadaRegressor, PerUserKFold
from dada.experiments.data import N_FOLDS, data_digest
from dada.experiments.lab import Job, Lab
from dada.experiments.page import TEXTS, Block, Heading, Table, Text, decimal, percent

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
        scores = {
            who: _run(lab, school_scores, "school", [{"who": who, "split": split} for split in splits]) for who in WHO
        }
        data["school-scores"] = scores
        blocks += [Heading("Scores of School"), _score_table(scores), Text(TEXTS["beyond"]["school"])]
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
        lowest = [decimal(float(np.percentile(test, 10))), decimal(float(test.min()))]
        rows.append([name, percent(float(test.mean())), *lowest])
    columns = ["method", "mean over users", "10th percentile", "worst user"]
    return Table("Test accuracy, a fifth of the rows for training", columns, rows)


def _score_table(scores: dict[str, list[dict[str, Any]]]) -> Table:
    rows = []
    for who, results in scores.items():
        name = WHO[who] if who == "dada" else f"Ridge regression, {WHO[who]}"
        explained, within = (_spread(results, key) for key in ("explained", "explained_within"))
        rmse = float(np.mean([result["rmse"] for result in results]))
        rows.append([name, percent(*explained), percent(*within), decimal(rmse, 2)])
    caption = f"Explained variance of test scores on {len(scores['dada'])} published splits"
    columns = ["method", "of the variance over all pupils, %", "of that inside schools, %", "root mean squared error"]
    return Table(caption, columns, rows)


def _spread(results: list[dict[str, Any]], key: str) -> tuple[float, float]:
    values = 100 * np.array([result[key] for result in results])
    return float(values.mean()), float(values.std(ddof=1))
