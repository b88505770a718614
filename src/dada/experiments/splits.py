"""Random splits of real users' rows: which comparisons survive when other rows are held out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from dada.core.compiled import Array
from dada.experiments import wording
from dada.experiments.data import SPECS
from dada.experiments.lab import Lab
from dada.experiments.methods import METHODS
from dada.experiments.page import Block, Items, Table, Text
from dada.experiments.protocol import FAR, Pair, Summary, try_all

N_SPLITS, QUICK_SPLITS = 10, 2
# Whether a user is worse off takes more where it has few rows to test by: means over ten splits are still chance.
SPLITS_OF_USERS = {"school": 100}
# Cross-validation inside cross-validation ten times over would take hours on HARWS.
OURS = ("dada-auto",)
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
    users = _per_user(lab, product(datasets, (*OURS, *RIVALS)), range(1, n_splits + 1))
    means = {pair: values.mean(axis=1) for pair, values in users.items()}
    for dataset in datasets:
        more = range(n_splits + 1, (n_splits if lab.quick else SPLITS_OF_USERS.get(dataset, n_splits)) + 1)
        for pair, values in _per_user(lab, product([dataset], (*OURS, ALONE)), more).items():
            users[pair] = np.concatenate([users[pair], values])
    blocks: list[Block] = [Text(INTRO), _table(datasets, means), _worse_off_table(datasets, users)]
    verdicts = [
        _verdict(dataset, ours, rival, published, means) for dataset in datasets for ours in OURS for rival in RIVALS
    ]
    blocks += [Text("What holds on the published split, and what the random splits say of it:"), Items(verdicts)]
    data = {
        dataset: {
            method: {"means": means[dataset, method].round(3).tolist()}
            | ({"worse_off": _worse_off(users, dataset, method)} if method in OURS else {})
            for method in (*OURS, *RIVALS)
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
        for method in (*OURS, *RIVALS)
    ]
    count = len(next(iter(means.values())))
    caption = f"Mean test accuracy over users, mean and standard error over {count} random splits"
    return Table(caption, ["method", *(SPECS[dataset].title for dataset in datasets)], rows)


def _worse_off_table(datasets: Sequence[str], users: Mapping[Pair, Array]) -> Table:
    rows = [
        [METHODS[method].title, *(wording.number(_worse_off(users, dataset, method)) for dataset in datasets)]
        for method in OURS
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
