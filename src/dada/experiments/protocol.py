"""How hyper-parameters are chosen and accuracies reported.

Settings are chosen by cross-validation inside each user's training rows: three folds, dealt out anew in every repeat
(synthetic users: on other draws of the population, see `validation_task`).
The score of a setting is the mean of the two accuracies that tables show, over users and over rows: the first alone is
too noisy where some users have four rows. Among equals the first of the grid wins. All settings go through a first
repeat, the best quarter of them through two more. The chosen setting then learns from all training rows, three times
with different chance. On random splits the same is done with the coarse grid, one repeat and one run: there, chance is
that of the splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dada.core.compiled import Array
from dada.experiments.data import N_FOLDS, SPECS
from dada.experiments.jobs import Job
from dada.experiments.lab import Lab
from dada.experiments.methods import METHODS, Settings, effort

N_RUNS = 3
# Points of accuracy: what counts as far worse off, and what rounding may do.
FAR, NOTICEABLE = 2.0, 1e-4
Pair = tuple[str, str]


@dataclass(frozen=True)
class Choice:
    """What cross-validation chose: the tuned settings, all settings, the score in percent, and how many were tried.

    A method with nothing to tune has no score.
    """

    tuned: Settings
    settings: Settings
    score: float | None
    tried: int


def choose(
    lab: Lab,
    pairs: Iterable[Pair],
    label: str,
    *,
    fixed: Mapping[Pair, Settings] | None = None,
    slack: float = 0.0,
    split: int = 0,
) -> dict[Pair, Choice]:
    """Choose settings for (dataset, method) pairs by cross-validation.

    Parameters
    ----------
    lab : Lab
        Does the work.
    pairs : iterable of (str, str)
        Datasets and methods.
    label : str
        Shown beside the progress bar.
    fixed : mapping, optional
        Settings of a pair that are given, not chosen.
    slack : float
        Points of accuracy: of the settings at most this much below the best, take the one that sends the fewest bits.
        0 takes the best.
    split : int
        0 for the published split of real users, others for random ones.
    """
    pairs = list(pairs)
    is_coarse = lab.quick or split > 0
    grids = {pair: _grid(lab, pair, (fixed or {}).get(pair, {}), is_coarse) for pair in pairs}
    tuned = {pair: dict(enumerate(grids[pair])) for pair in pairs if METHODS[pair[1]].grid}
    rows = _trials(lab, tuned, range(1), label, split)
    if not is_coarse:
        best = {pair: _best_quarter([_score(rows[pair, i]) for i in grid]) for pair, grid in tuned.items()}
        tuned = {pair: {i: grid[i] for i in best[pair]} for pair, grid in tuned.items()}
        more = _trials(lab, tuned, range(1, N_RUNS), f"{label}, best quarter", split)
        rows = {at: rows[at] + again for at, again in more.items()}
    chosen = {}
    for pair in pairs:
        if pair not in tuned:
            chosen[pair] = Choice(*grids[pair][0], score=None, tried=0)
            continue
        places = list(tuned[pair])
        scores = np.array([_score(rows[pair, i]) for i in places])
        bits = np.array([np.mean([row["bits"] or 0.0 for row in rows[pair, i]]) for i in places])
        at = _best(scores, bits, slack)
        chosen[pair] = Choice(*grids[pair][places[at]], score=float(scores[at]), tried=len(grids[pair]))
    return chosen


def final_jobs(lab: Lab, pair: Pair, settings: Settings, *, detail: str = "", split: int = 0) -> list[Job]:
    """The runs on all training data."""
    dataset, method = pair
    fresh = METHODS[method].has_chance or SPECS[dataset].synthetic
    return [
        Job.of(dataset, method, settings, seed=lab.seed, run=run if fresh else 0, detail=detail, split=split)
        for run in range(1 if split else N_RUNS)
    ]


def finals(
    lab: Lab, settings: Mapping[Pair, Settings], label: str, *, detail: str = "", split: int = 0
) -> dict[Pair, list[dict[str, Any]]]:
    """The results of the runs on all training data."""
    jobs = {pair: final_jobs(lab, pair, chosen, detail=detail, split=split) for pair, chosen in settings.items()}
    results = iter(lab.run([job for some in jobs.values() for job in some], label))
    return {pair: [next(results) for _ in some] for pair, some in jobs.items()}


@dataclass(frozen=True)
class Trial:
    """A method on a dataset: what was chosen, and the runs on all training data."""

    choice: Choice
    runs: list[dict[str, Any]]


def try_all(lab: Lab, pairs: Iterable[Pair], *, split: int = 0) -> dict[Pair, Trial]:
    """Choose settings and make the final runs of (dataset, method) pairs.

    A random graph has as many edges as the learned one, so "dada-random" needs "dada-learned" beside it.
    """
    pairs = list(pairs)
    where = f", random split {split}" if split else ""
    chosen = choose(lab, [pair for pair in pairs if pair[1] != "dada-random"], f"cross-validation{where}", split=split)
    runs = finals(lab, {pair: choice.settings for pair, choice in chosen.items()}, f"final runs{where}", split=split)
    density = {
        (dataset, method): {"neighbours": summarise(runs[dataset, "dada-learned"]).neighbours}
        for dataset, method in pairs
        if method == "dada-random"
    }
    late = choose(lab, density, f"cross-validation, random graph{where}", fixed=density, split=split)
    settings = {pair: choice.settings for pair, choice in late.items()}
    runs |= finals(lab, settings, f"final runs, random graph{where}", split=split)
    chosen |= late
    return {pair: Trial(chosen[pair], runs[pair]) for pair in pairs}


@dataclass(frozen=True)
class Summary:
    """Test accuracy of a method in percent, over runs and users.

    `mean` weighs users alike and `pooled` rows; both with standard deviations over runs. `tenth` and `worst` are the
    10th percentile and the minimum over users, `worse_off` the percentage of users below their accuracy alone, and
    `far_worse_off` of those more than `FAR` points below.
    """

    mean: float
    std: float
    pooled: float
    pooled_std: float
    tenth: float
    worst: float
    worse_off: float | None
    far_worse_off: float | None
    neighbours: float | None
    bits: float | None


def summarise(runs: Sequence[Mapping[str, Any]], alone: Sequence[Mapping[str, Any]] | None = None) -> Summary:
    """Accuracies of some runs, and against those of the same users alone.

    Examples
    --------
    >>> run = {"test": [0.5, 1.0], "test_pooled": 0.8, "neighbours": 3.0, "bits": 64.0}
    >>> summarise([run], [run | {"test": [0.6, 0.9]}]).worse_off
    50.0
    """
    users = 100 * np.array([run["test"] for run in runs])
    pooled = 100 * np.array([run["test_pooled"] for run in runs])
    worse_off = far_worse_off = None
    if alone is not None:
        loss = 100 * np.array([run["test"] for run in alone]) - users
        worse_off = float(100 * np.mean(loss > NOTICEABLE))
        far_worse_off = float(100 * np.mean(loss > FAR + NOTICEABLE))
    return Summary(
        *_mean_and_std(users.mean(axis=1)),
        *_mean_and_std(pooled),
        tenth=float(np.percentile(users, 10, axis=1).mean()),
        worst=float(users.min(axis=1).mean()),
        worse_off=worse_off,
        far_worse_off=far_worse_off,
        neighbours=_mean_of(runs, "neighbours"),
        bits=_mean_of(runs, "bits"),
    )


def _mean_and_std(values: Array) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _mean_of(runs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return None if runs[0][name] is None else float(np.mean([run[name] for run in runs]))


def _grid(lab: Lab, pair: Pair, fixed: Settings, is_coarse: bool) -> list[tuple[Settings, Settings]]:
    """Every point of the grid: what is tuned, and all settings."""
    dataset, method = pair
    common = effort(method, SPECS[dataset], lab.quick) | fixed
    return [(point, common | point) for point in METHODS[method].points(is_coarse)]


def _trials(
    lab: Lab,
    candidates: Mapping[Pair, Mapping[int, tuple[Settings, Settings]]],
    repeats: Iterable[int],
    label: str,
    split: int,
) -> dict[tuple[Pair, int], list[dict[str, Any]]]:
    """Results of cross-validation, by pair and place of the setting in the grid."""
    folds = [(repeat, fold) for repeat in repeats for fold in range(N_FOLDS)]
    jobs = {
        ((dataset, method), i): [
            Job.of(dataset, method, settings, seed=lab.seed, run=repeat, fold=fold, split=split)
            for repeat, fold in folds
        ]
        for (dataset, method), grid in candidates.items()
        for i, (_, settings) in grid.items()
    }
    results = iter(lab.run([job for some in jobs.values() for job in some], label))
    return {at: [next(results) for _ in some] for at, some in jobs.items()}


def _best_quarter(scores: Sequence[float]) -> list[int]:
    """Places of the best quarter, at least five, in the order of the grid."""
    kept = max(5, -(-len(scores) // 4))
    return sorted(np.argsort(-np.array(scores), kind="stable")[:kept].tolist())


def _score(rows: Sequence[Mapping[str, Any]]) -> float:
    """Held-out accuracy in percent: half way between the mean over users and the share of all rows."""
    right = np.sum([row["right"] for row in rows], axis=0)
    held_out = np.sum([row["rows"] for row in rows], axis=0)
    tested = held_out > 0
    return float(50 * np.mean(right[tested] / held_out[tested]) + 50 * right.sum() / held_out.sum())


def _best(scores: Array, bits: Array, slack: float) -> int:
    """The first best setting, or the cheapest of those almost as good."""
    if slack == 0.0:
        return int(np.argmax(scores))
    good = scores >= scores.max() - slack
    return int(np.argmin(np.where(good, bits, np.inf)))
