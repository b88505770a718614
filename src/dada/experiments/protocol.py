"""How hyper-parameters are chosen and accuracies reported.

Settings are chosen by cross-validation inside each user's training rows: three folds, shuffled in every repeat
(synthetic users: on other draws of the population, see `validation_task`). The score of a setting is the mean of the
two accuracies that tables show, over users and over rows: the first alone is too noisy if some users have four rows.
Among equals the first of the grid wins. All settings are tried once, the best quarter twice more. The chosen setting
is then trained on all training rows, three times with different randomness. Random splits use the coarse grid, one
repeat and one run each: their randomness is that of the splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from dada.core.compiled import Array
from dada.experiments.lab import Job, Lab, run_groups
from dada.experiments.methods import METHODS, Settings, train_job
from dada.experiments.tasks import N_FOLDS, SPECS

N_RUNS = 3
# Points of accuracy: a large loss, and the effect of rounding.
FAR, NOTICEABLE = 2.0, 1e-4
Pair = tuple[str, str]


@dataclass(frozen=True)
class ChosenSettings:
    """Tuned settings, all settings, score in percent (None if nothing is tuned), and number of settings tried."""

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
) -> dict[Pair, ChosenSettings]:
    """Choose settings for (dataset, method) pairs by cross-validation on a split, 0 being the published one.

    `fixed` settings of a pair are not tuned. Among the settings at most `slack` points of accuracy below the best, the
    one that sends the fewest bits is chosen.
    """
    pairs = list(pairs)
    is_coarse = lab.quick or split > 0
    grids = {}
    for dataset, method in pairs:
        common = METHODS[method].effort(SPECS[dataset], lab.quick) | (fixed or {}).get((dataset, method), {})
        grids[dataset, method] = [(point, common | point) for point in METHODS[method].points(is_coarse)]
    tuned = {pair: dict(enumerate(grids[pair])) for pair in pairs if METHODS[pair[1]].grid}
    rows = _trials(lab, tuned, range(1), label, split)
    if not is_coarse:
        best = {pair: _best_quarter([validation_score(rows[pair, i]) for i in grid]) for pair, grid in tuned.items()}
        tuned = {pair: {i: grid[i] for i in best[pair]} for pair, grid in tuned.items()}
        more = _trials(lab, tuned, range(1, N_RUNS), f"{label}, best quarter", split)
        rows = {at: rows[at] + again for at, again in more.items()}
    chosen = {}
    for pair in pairs:
        if pair not in tuned:
            chosen[pair] = ChosenSettings(*grids[pair][0], score=None, tried=0)
            continue
        places = list(tuned[pair])
        scores = np.array([validation_score(rows[pair, i]) for i in places])
        bits = np.array([np.mean([row["bits"] or 0.0 for row in rows[pair, i]]) for i in places])
        at = best_setting(scores, bits, slack)
        chosen[pair] = ChosenSettings(*grids[pair][places[at]], score=float(scores[at]), tried=len(grids[pair]))
    return chosen


def final_jobs(lab: Lab, pair: Pair, settings: Settings, *, detail: str = "", split: int = 0) -> list[Job]:
    """The runs on all training data."""
    dataset, method = pair
    differ = METHODS[method].has_chance or SPECS[dataset].synthetic
    runs = [run if differ else 0 for run in range(1 if split else N_RUNS)]
    return [train_job(*pair, settings, seed=lab.seed, run=run, detail=detail, split=split) for run in runs]


def finals(
    lab: Lab, settings: Mapping[Pair, Settings], label: str, *, detail: str = "", split: int = 0
) -> dict[Pair, list[dict[str, Any]]]:
    """The results of the runs on all training data."""
    jobs = {pair: final_jobs(lab, pair, chosen, detail=detail, split=split) for pair, chosen in settings.items()}
    return run_groups(lab, jobs, label)


class TrialResults(NamedTuple):
    """Methods on datasets: chosen settings, runs on all training data, and their summaries."""

    chosen: dict[Pair, ChosenSettings]
    runs: dict[Pair, list[dict[str, Any]]]
    summaries: dict[Pair, Summary]


def try_all(lab: Lab, pairs: Iterable[Pair], *, split: int = 0) -> TrialResults:
    """Choose settings and make the final runs of (dataset, method) pairs.

    "dada-random" requires "dada-learned" among the methods: the random graph has as many edges as the learned one.
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
    runs = {pair: runs[pair] for pair in pairs}
    return TrialResults({pair: chosen[pair] for pair in pairs}, runs, summarise_all(runs))


@dataclass(frozen=True)
class Summary:
    """Test accuracy of a method in percent, over runs and users.

    `mean` weights users equally, `pooled` rows; each has a standard deviation over runs. `tenth` and `worst` are the
    10th percentile and the minimum over users. `below_alone` is the percentage of users below their accuracy alone,
    `far_below_alone` of those more than `FAR` points below.
    """

    mean: float
    std: float
    pooled: float
    pooled_std: float
    tenth: float
    worst: float
    below_alone: float | None
    far_below_alone: float | None
    neighbours: float | None
    bits: float | None


def summarise(runs: Sequence[Mapping[str, Any]], alone: Sequence[Mapping[str, Any]] | None = None) -> Summary:
    """Summarise runs, and compare them with runs of the same users alone.

    Examples
    --------
    >>> run = {"test": [0.5, 1.0], "test_pooled": 0.8, "neighbours": 3.0, "bits": 64.0}
    >>> summarise([run], [run | {"test": [0.6, 0.9]}]).below_alone
    50.0
    """
    users = 100 * np.array([run["test"] for run in runs])
    pooled = 100 * np.array([run["test_pooled"] for run in runs])
    below_alone = far_below_alone = None
    if alone is not None:
        loss = 100 * np.array([run["test"] for run in alone]) - users
        below_alone = float(100 * np.mean(loss > NOTICEABLE))
        far_below_alone = float(100 * np.mean(loss > FAR + NOTICEABLE))
    return Summary(
        *_mean_and_std(users.mean(axis=1)),
        *_mean_and_std(pooled),
        tenth=float(np.percentile(users, 10, axis=1).mean()),
        worst=float(users.min(axis=1).mean()),
        below_alone=below_alone,
        far_below_alone=far_below_alone,
        neighbours=_mean_of(runs, "neighbours"),
        bits=_mean_of(runs, "bits"),
    )


def summarise_all(runs: Mapping[Pair, Sequence[Mapping[str, Any]]]) -> dict[Pair, Summary]:
    """Summaries of (dataset, method) pairs, each compared with its method without collaboration, if that has runs."""
    return {
        (dataset, method): summarise(some, runs.get((dataset, METHODS[method].alone or "")))
        for (dataset, method), some in runs.items()
    }


def method_data(choice: ChosenSettings, summary: Summary, **more: Any) -> dict[str, Any]:
    """The results of a method for the file of a page."""
    return {"chosen": choice.tuned, "cross_validation": choice.score, "test": asdict(summary), **more}


def _mean_and_std(values: Array) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _mean_of(runs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return None if runs[0][name] is None else float(np.mean([run[name] for run in runs]))


def _trials(
    lab: Lab,
    candidates: Mapping[Pair, Mapping[int, tuple[Settings, Settings]]],
    repeats: Iterable[int],
    label: str,
    split: int,
) -> dict[tuple[Pair, int], list[dict[str, Any]]]:
    """Results of cross-validation, by pair and position of the setting in the grid."""
    folds = [(repeat, fold) for repeat in repeats for fold in range(N_FOLDS)]
    jobs = {
        (pair, i): [train_job(*pair, chosen, seed=lab.seed, run=run, fold=fold, split=split) for run, fold in folds]
        for pair, grid in candidates.items()
        for i, (_, chosen) in grid.items()
    }
    return run_groups(lab, jobs, label)


def _best_quarter(scores: Sequence[float]) -> list[int]:
    """Positions of the best quarter, at least five, in the order of the grid."""
    kept = max(5, -(-len(scores) // 4))
    return sorted(np.argsort(-np.array(scores), kind="stable")[:kept].tolist())


def validation_score(rows: Sequence[Mapping[str, Any]]) -> float:
    """Held-out accuracy in percent: the average of the mean over users and the accuracy over all rows."""
    right = np.sum([row["right"] for row in rows], axis=0)
    held_out = np.sum([row["rows"] for row in rows], axis=0)
    tested = held_out > 0
    return float(50 * np.mean(right[tested] / held_out[tested]) + 50 * right.sum() / held_out.sum())


def best_setting(scores: Array, bits: Array, slack: float) -> int:
    """Position of the first best setting, or of the cheapest one at most `slack` points below it."""
    if slack == 0.0:
        return int(np.argmax(scores))
    good = scores >= scores.max() - slack
    return int(np.argmin(np.where(good, bits, np.inf)))
