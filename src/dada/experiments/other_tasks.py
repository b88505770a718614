"""Several classes and regression: HARWS with its six activities, School with its scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dada.experiments import page as wording
from dada.experiments.jobs import Job
from dada.experiments.lab import Lab
from dada.experiments.page import Block, Heading, Table, Text
from dada.experiments.task_studies import SCHOOL_SCORES, SIX_ACTIVITIES

WHO = {"dada": "Dada, our defaults", "local": "each user alone", "pooled": "all rows in one place"}
SCHOOL_SPLITS = range(1, 11)


def other_tasks(lab: Lab, datasets: Sequence[str]) -> tuple[list[Block], dict[str, Any]]:
    """Blocks and data of the tasks whose dataset is present."""
    blocks: list[Block] = []
    data: dict[str, Any] = {}
    if "harws" in datasets:
        jobs = [Job.of("harws", SIX_ACTIVITIES, {"who": who}, seed=lab.seed, run=0) for who in WHO]
        found = dict(zip(WHO, lab.run(jobs, "six activities"), strict=True))
        data[SIX_ACTIVITIES] = found
        blocks += [Heading("Six activities of HARWS"), _six_table(found)]
    if "school" in datasets:
        splits = SCHOOL_SPLITS[:2] if lab.quick else SCHOOL_SPLITS
        scores = {who: _scores(lab, who, splits) for who in WHO}
        data[SCHOOL_SCORES] = scores
        blocks += [Heading("Scores of School"), _score_table(scores), Text(PUBLISHED_SCORES)]
    return blocks, data


def _scores(lab: Lab, who: str, splits: Sequence[int]) -> list[dict[str, Any]]:
    jobs = [Job.of("school", SCHOOL_SCORES, {"who": who, "split": s}, seed=lab.seed, run=0) for s in splits]
    return lab.run(jobs, "scores of School")


def _six_table(found: dict[str, dict[str, Any]]) -> Table:
    rows = []
    for who, result in found.items():
        test = 100 * np.array(result["test"])
        name = WHO[who] if who == "dada" else f"Multinomial logistic regression, {WHO[who]}"
        lowest = [wording.number(float(np.percentile(test, 10))), wording.number(float(test.min()))]
        rows.append([name, wording.accuracy(float(test.mean())), *lowest])
    columns = ["method", "mean over users", "10th percentile", "worst user"]
    return Table("Test accuracy, a fifth of the rows for training", columns, rows)


def _score_table(scores: dict[str, list[dict[str, Any]]]) -> Table:
    rows = []
    for who, results in scores.items():
        name = WHO[who] if who == "dada" else f"Ridge regression, {WHO[who]}"
        explained, within = (_spread(results, key) for key in ("explained", "explained_within"))
        rmse = float(np.mean([result["rmse"] for result in results]))
        rows.append([name, wording.accuracy(*explained), wording.accuracy(*within), wording.number(rmse, 2)])
    caption = f"Explained variance of test scores on {len(scores['dada'])} published splits"
    columns = ["method", "of the variance over all pupils, %", "of that inside schools, %", "root mean squared error"]
    return Table(caption, columns, rows)


def _spread(results: list[dict[str, Any]], key: str) -> tuple[float, float]:
    values = 100 * np.array([result[key] for result in results])
    return float(values.mean()), float(values.std(ddof=1))


PUBLISHED_SCORES = (
    "Published with these splits, and with features of the schools beside the 17 of the pupils: 26.7 ± 2.0 % (A. "
    "Argyriou, T. Evgeniou, M. Pontil: Convex multi-task feature learning, Machine Learning 73, 2008), and on splits "
    "of their own 29.5 ± 0.4 % (B. Bakker, T. Heskes: Task clustering and gating for Bayesian multitask learning, JMLR "
    "4, 2003). Both numbers are from memory and were not checked against the articles; which of the two variances they "
    "refer to is not certain either, so both are here."
)
