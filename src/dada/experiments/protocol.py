"""How hyper-parameters are chosen and accuracies reported.

Settings are chosen by cross-validation inside each user's training rows: three folds, shuffled in every repeat
(synthetic users: on other draws of the population, see `validation_task`). The score of a setting is the mean of the
two accuracies that tables show, over users and over rows: the first alone is too noisy if some users have four rows.
All settings of the published grid are tried once, the best quarter twice more. From the best of these the search climbs
on until every setting one step away has been tried, beyond the grid too (`ladders.climb`). The chosen setting is then
trained on all training rows, three times with different randomness. Random splits have one repeat and one run each,
since their randomness is that of the splits; their search starts at the choice on the published split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from dada.core.compiled import Array
from dada.experiments.lab import Job, Lab, run_groups
from dada.experiments.ladders import Settings, at_the_end, climb
from dada.experiments.methods import method_of, train_job
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
    score: float | None = None
    tried: int = 0

    @property
    def at_the_end(self) -> tuple[str, ...]:
        """Names of the tuned settings at the end of what can be tried."""
        return at_the_end(self.tuned)


def choose(
    lab: Lab,
    pairs: Iterable[Pair],
    label: str,
    *,
    fixed: Mapping[Pair, Settings] | None = None,
    slack: float = 0.0,
    split: int = 0,
    start: Mapping[Pair, Settings] | None = None,
) -> dict[Pair, ChosenSettings]:
    """Choose settings for (dataset, method) pairs by cross-validation on a split, 0 being the published one.

    `fixed` settings of a pair are not tuned. Among the settings at most `slack` points of accuracy below the best, the
    one that sends the fewest bits is chosen. `start` are settings to start from instead of the grid.
    """
    pairs = list(pairs)
    is_short = lab.quick or split > 0
    common = {
        pair: method_of(pair[1]).effort(SPECS[pair[0]], lab.quick) | (fixed or {}).get(pair, {}) for pair in pairs
    }
    tuned = {pair: method for pair in pairs if (method := method_of(pair[1])).grid}
    points = {pair: [start[pair]] if start else method.points(is_short) for pair, method in tuned.items()}
    trials = _Trials(lab, common, split)
    if not is_short:
        trials.run(points, range(1), label)
        points = {
            pair: _best_quarter(some, [trials.score(pair, point) for point in some]) for pair, some in points.items()
        }
    repeats = range(1 if is_short else N_RUNS)
    searches = {pair: climb(points[pair], () if lab.quick else list(method.grid)) for pair, method in tuned.items()}
    wanted = {pair: next(search) for pair, search in searches.items()}
    final: dict[Pair, list[Settings]] = {pair: [] for pair in tuned}
    while wanted:
        trials.run(wanted, repeats, label)
        new = {}
        for pair, some in wanted.items():
            final[pair] += some
            with suppress(StopIteration):
                new[pair] = searches[pair].send([trials.score(pair, point) for point in some])
        wanted = new
    chosen = {}
    for pair in pairs:
        if pair not in tuned:
            chosen[pair] = ChosenSettings({}, common[pair])
            continue
        values = np.array([trials.score(pair, point) for point in final[pair]])
        bits = np.array([trials.bits(pair, point) for point in final[pair]])
        at = best_setting(values, bits, slack)
        point = final[pair][at]
        chosen[pair] = ChosenSettings(point, common[pair] | point, float(values[at]), trials.tried(pair))
    return chosen


class _Trials:
    """Results of cross-validation, by pair and setting."""

    def __init__(self, lab: Lab, common: Mapping[Pair, Settings], split: int) -> None:
        self.lab, self.common, self.split = lab, common, split
        self.rows: dict[Pair, dict[tuple[Any, ...], list[dict[str, Any]]]] = {}

    def run(self, points: Mapping[Pair, Sequence[Settings]], repeats: range, label: str) -> None:
        """Try settings in some repeats of all folds."""
        folds = [(repeat, fold) for repeat in repeats for fold in range(N_FOLDS)]
        jobs = {
            (pair, i): [self._job(pair, point, run, fold) for run, fold in folds]
            for pair, some in points.items()
            for i, point in enumerate(some)
        }
        for (pair, i), rows in run_groups(self.lab, jobs, label).items():
            self.rows.setdefault(pair, {})[tuple(points[pair][i].values())] = rows

    def _job(self, pair: Pair, point: Settings, run: int, fold: int) -> Job:
        settings = self.common[pair] | point
        return train_job(*pair, settings, seed=self.lab.seed, run=run, fold=fold, split=self.split)

    def score(self, pair: Pair, point: Settings) -> float:
        """Held-out accuracy in percent."""
        return validation_score(self.rows[pair][tuple(point.values())])

    def bits(self, pair: Pair, point: Settings) -> float:
        """Mean number of bits sent."""
        return float(np.mean([row["bits"] or 0.0 for row in self.rows[pair][tuple(point.values())]]))

    def tried(self, pair: Pair) -> int:
        """Number of settings tried."""
        return len(self.rows[pair])


def final_jobs(lab: Lab, pair: Pair, settings: Settings, *, detail: str = "", split: int = 0) -> list[Job]:
    """The runs on all training data."""
    dataset, method = pair
    differ = method_of(method).has_chance or SPECS[dataset].synthetic
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


def try_all(
    lab: Lab, pairs: Iterable[Pair], *, split: int = 0, start: Mapping[Pair, Settings] | None = None
) -> TrialResults:
    """Choose settings and make the final runs of (dataset, method) pairs.

    "dada-random" requires "dada-learned" among the methods: the random graph has as many edges as the learned one.
    """
    pairs = list(pairs)
    where = f", random split {split}" if split else ""
    first = [pair for pair in pairs if pair[1] != "dada-random"]
    chosen = choose(lab, first, f"cross-validation{where}", split=split, start=start)
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
        (dataset, method): summarise(some, runs.get((dataset, method_of(method).alone or "")))
        for (dataset, method), some in runs.items()
    }


def method_data(choice: ChosenSettings, summary: Summary, **more: Any) -> dict[str, Any]:
    """The results of a method for the file of a page."""
    found = {"chosen": choice.tuned, "settings_tried": choice.tried, "at_the_end": list(choice.at_the_end)}
    return found | {"cross_validation": choice.score, "test": asdict(summary), **more}


def _mean_and_std(values: Array) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _mean_of(runs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return None if runs[0][name] is None else float(np.mean([run[name] for run in runs]))


def _best_quarter(points: Sequence[Settings], scores: Sequence[float]) -> list[Settings]:
    """The best quarter, at least five, in the order of the grid."""
    kept = max(5, -(-len(scores) // 4))
    return [points[i] for i in sorted(np.argsort(-np.array(scores), kind="stable")[:kept].tolist())]


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
