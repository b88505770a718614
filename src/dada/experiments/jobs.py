"""The unit of work of the experiments: one run of one method on one population, described by plain data."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dada.baselines.outcome import Outcome
from dada.core.compiled import Array
from dada.data.datasets import load
from dada.experiments.data import SPECS, people, validation_draw, validation_task, whole_task
from dada.experiments.graph_study import GRAPH_STUDY, graph_study
from dada.experiments.methods import Settings, fit
from dada.experiments.task_studies import TASK_STUDIES
from dada.task import Task

ALL_DATA = -1
DIGITS = 6


@dataclass(frozen=True)
class Job:
    """One run. Two jobs with the same `key` give the same result, wherever and whenever they run.

    Attributes
    ----------
    dataset, method : str
        Keys of `SPECS` and `METHODS`.
    settings : str
        The method's settings as JSON with sorted keys, so that a job can be compared and sent to a worker.
    seed, run : int
        The experiment's seed, and the number of the run. A run has its own chance; in cross-validation its own folds.
    fold : int
        The fold held out of the training data to test on, or `ALL_DATA`: train on all, test on the test data.
    stumps : int
        Number of base predictors.
    rule : str
        Which ones, see `predictors`.
    detail : {"", "trace", "graph"}
        What the result shall hold beside accuracies: the course of the run, or that and the graph with every user's
        loss.
    split : int
        Of real users, 0 for the published split and others for random ones.
    """

    dataset: str
    method: str
    settings: str
    seed: int
    run: int
    fold: int
    stumps: int
    rule: str
    detail: str = ""
    split: int = 0

    @classmethod
    def of(
        cls,
        dataset: str,
        method: str,
        settings: Mapping[str, Any],
        *,
        seed: int,
        run: int,
        fold: int = ALL_DATA,
        detail: str = "",
        split: int = 0,
    ) -> Job:
        """A job from a dictionary of settings, in which `stumps` and `rule` may replace those of the dataset."""
        rest, spec = dict(settings), SPECS[dataset]
        stumps, rule = rest.pop("stumps", spec.stumps), rest.pop("rule", spec.rule)
        text = json.dumps(rest, sort_keys=True)
        return cls(dataset, method, text, seed, run, fold, stumps, rule, detail, split)

    @property
    def key(self) -> str:
        """What the result depends on, but for the code."""
        return "|".join(str(part) for part in (*vars(self).values(), data_digest(self.dataset)))


@lru_cache
def data_digest(dataset: str) -> str:
    """Short name of the rows of a real dataset; empty for synthetic ones, which the seed decides."""
    return "" if SPECS[dataset].synthetic else load(dataset).sha256()[:16]


def execute(job: Job) -> dict[str, Any]:
    """Do the work of a job.

    Returns
    -------
    dict
        In cross-validation how many held-out rows of each user were right, and the bits sent. Otherwise test
        accuracies and what else tables and figures show; numbers that JSON can hold.
    """
    settings: Settings = json.loads(job.settings)
    if job.method in TASK_STUDIES:
        return TASK_STUDIES[job.method](settings, job.seed)
    draw = _draw(job)
    oracle = people(job.dataset, job.seed, draw).oracle
    rng = np.random.default_rng([job.seed, job.run, zlib.crc32(job.method.encode())])
    if job.fold != ALL_DATA:
        task, held_out = validation_task(job.dataset, job.seed, job.run, job.fold, job.stumps, job.rule, job.split)
        outcome = fit(job.method, task, held_out, settings, rng, oracle)
        right = np.rint(np.nan_to_num(outcome.test_accuracy) * held_out.sizes).astype(int)
        return {"right": right.tolist(), "rows": held_out.sizes.tolist(), "bits": outcome.bits}
    task = whole_task(job.dataset, job.seed, draw, job.stumps, job.rule)
    if job.method == GRAPH_STUDY:
        return graph_study(task, settings, rng)
    outcome = fit(job.method, task, people(job.dataset, job.seed, draw).test, settings, rng, oracle)
    return (
        _accuracies(outcome)
        | (_trace(outcome) if job.detail else {})
        | (_graph(outcome, task, settings) if job.detail == "graph" else {})
    )


def _draw(job: Job) -> int:
    """Which draw of synthetic users, or which split of real ones, a job is on."""
    if not SPECS[job.dataset].synthetic:
        return job.split
    return job.run if job.fold == ALL_DATA else validation_draw(job.run, job.fold)


def _accuracies(outcome: Outcome) -> dict[str, Any]:
    return {
        "test": rounded(outcome.test_accuracy),
        "test_pooled": outcome.test_accuracy_pooled,
        "train": rounded(outcome.train_accuracy),
        "train_pooled": outcome.train_accuracy_pooled,
        "bits": outcome.bits,
        "neighbours": outcome.neighbours,
    }


def _trace(outcome: Outcome) -> dict[str, Any]:
    points = outcome.trace
    return {
        "trace": {
            "updates": [point.updates for point in points],
            "train": rounded([point.train_accuracy.mean() for point in points]),
            "test": rounded([point.test_accuracy.mean() for point in points]),
            "edges": [point.edges for point in points],
            "bits": [point.bits for point in points],
            "graph_bits": [point.graph_bits for point in points],
        }
    }


def _graph(outcome: Outcome, task: Task, settings: Settings) -> dict[str, Any]:
    assert outcome.graph is not None
    k, l, w = outcome.graph.edges()
    problem = task.problem(beta=settings["beta"], mu1=settings["mu"])
    losses = problem.graph_losses(outcome.models) / problem.confidence
    return {"edges": [k.tolist(), l.tolist(), rounded(w)], "losses": rounded(losses)}


def rounded(values: Array | list[Any]) -> list[float]:
    """Numbers short enough for a file."""
    return [round(float(value), DIGITS) for value in values]
