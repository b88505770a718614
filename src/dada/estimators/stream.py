"""Fitting users whose rows lie in Parquet files and never in one process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.core.memory import bytes_of_run, check_memory
from dada.data import BasePredictors, FeatureSummary, ParquetUsers, Population
from dada.engine import run
from dada.engine.shards import RemoteProblem
from dada.estimators.classifier import DadaClassifier
from dada.events import Observer, silent
from dada.fitting.execution import Watched
from dada.fitting.fit import Learned, lam_of, told_of
from dada.fitting.lam import AUTO, LARGER, MANY_USERS, SMALLER, extended, numbers
from dada.fitting.rows import Rows
from dada.fitting.settings import (
    LATENCY,
    check_settings,
    generator,
    graph_of,
    plan_of,
    recipes_of,
    regularizer_of,
    shards_of,
)

# Features take eight bytes a number, margins of stumps one: so features of few users are held at a time.
USERS_AT_ONCE = 20_000


@dataclass(frozen=True, eq=False)
class Margins:
    """Reads the margins of a range of users; goes to where a shard is."""

    users: ParquetUsers
    predictors: BasePredictors

    def __call__(self, first: int, last: int) -> NDArray[Any]:
        """y_i h_j(x_i) of the users first..last-1, of whom some at a time are read."""
        ends = np.concatenate([[0], np.cumsum(self.users.sizes[first:last])])
        margins = np.empty((int(ends[-1]), self.predictors.n), self.predictors.dtype)
        for start in range(first, last, USERS_AT_ONCE):
            stop = min(start + USERS_AT_ONCE, last)
            people = self.users.read(start, stop)
            mine = margins[ends[start - first] : ends[stop - first]]
            np.multiply(self.predictors.predict(people.X), people.y[:, None].astype(margins.dtype), out=mine)
        return margins


def fit_parquet(
    model: DadaClassifier,
    users: ParquetUsers,
    *,
    observer: Observer = silent,
    checkpoint: str | os.PathLike[str] | None = None,
) -> DadaClassifier:
    """Fit a classifier to users of whom no process holds all rows.

    Every shard (an actor with ``engine="ray"``, else a process of this machine; `n_jobs` of them) reads the rows of its
    own users. This process keeps the ids, the models and the graph. Base predictors are fitted to merged summaries of
    the files (see `FeatureSummary`) instead of to all rows, and updates always take time to be known (`latency`).

    Parameters
    ----------
    model : DadaClassifier
        What to fit, with its settings. Of many users, ``lam="auto"`` is found from samples of 500 and 2,000.
    users : ParquetUsers
        Where the rows are.
    observer, checkpoint
        As of `DadaClassifier.fit`.

    Returns
    -------
    The model, fitted; its `train_accuracy_` is the mean over users, which the trace does not tell.

    Examples
    --------
    >>> import polars as pl, tempfile
    >>> from dada.data import moons
    >>> people = moons(1, n_users=12).train
    >>> table = pl.DataFrame(people.X[:, :2], schema=["east", "north"])
    >>> table = table.with_columns(who=people.user_ids.repeat(people.sizes), side=people.y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table.write_parquet(f"{folder}/moons.parquet")
    ...     users = ParquetUsers.open(folder, user="who", label="side")
    ...     model = fit_parquet(DadaClassifier(n_updates=30, random_state=0), users)
    >>> model.models_.shape[0]
    12
    """
    params = model.get_params(deep=False)
    check_settings(params)
    if params["class_weight"] is not None:
        raise ValueError(
            f"class_weight needs all rows in one process, got {params['class_weight']!r}: "
            "leave it out, or fit to rows in memory"
        )
    if params["latency"] in (AUTO, 0):
        params["latency"] = LATENCY
    summary = FeatureSummary.of_all(_summaries(params, users))
    rows = _stand_in(users, summary.rows())
    # No rows can be held out here to choose by: the richest family does.
    *_, recipe = recipes_of(params["predictors"], rows).values()
    predictors = recipe.fit(rows.people.X)
    used = numbers(params, rows, predictors.n)
    if isinstance(used["graph"], str) and used["graph"] == AUTO:
        used["graph"] = "everyone"
    rng = generator(model.random_state)
    if used["lam"] == AUTO:
        used["lam"] = _lam(used, users, predictors, rng.spawn(1)[0])
    needed = bytes_of_run(users.n_users, users.n_rows, predictors.n, neighbours=used["n_neighbours"], copies=0)
    what = f"models and graph of {users.n_users} users with {predictors.n} base predictors"
    check_memory(needed, what, "take fewer base predictors (predictors=), or a larger machine")
    plan = plan_of(used, users.n_users)
    graph = graph_of(used["graph"], users.n_users, np.random.default_rng(users.n_users)) if used["mu"] > 0 else None
    with shards_of(used, Margins(users, predictors)) as workers:
        problem = RemoteProblem.of(
            workers, users.sizes, predictors.n, name=f"{users.name} {recipe!r}", loss=used["loss"], beta=used["beta"],
            mu1=used["mu"], regularizer=regularizer_of(used), graph_loss=used["graph_loss"],
            coupling=np.asarray(predictors.coupling, np.float64),
        )  # fmt: skip
        shown: Any = Watched(observer, checkpoint).options()
        result = run(problem, plan, rng, graph=graph, workers=workers, dtype=used["dtype"], **shown)
        margins = problem.margins(result.models)
    model._keep(rows, Learned(predictors, told_of(used, predictors, recipe), result))
    model.classes_, model.n_features_in_ = users.classes, len(users.feature_names)
    model.feature_names_in_ = np.array(users.feature_names, dtype=object)
    # The rows that stand in for all others are nobody's, to be gone on with by partial_fit.
    model.held_ = []
    right = np.add.reduceat((margins > 0).astype(np.float64), rows.people.row_start[:-1])
    model.train_accuracy_ = float((right / users.sizes).mean())
    return model


def _lam(
    used: dict[str, Any], users: ParquetUsers, predictors: BasePredictors, rng: np.random.Generator
) -> float | None:
    """lam for the wanted number of neighbours, from samples of users, as in `sampled` for many users in memory."""
    if users.n_users < MANY_USERS:
        return lam_of(used, Rows(users.sample(users.n_users), 2), predictors, rng)
    smaller, larger = (lam_of(used, Rows(users.sample(size), 2), predictors, rng) for size in (SMALLER, LARGER))
    return None if smaller is None or larger is None else extended(smaller, larger, users.n_users)


def _summaries(params: dict[str, Any], users: ParquetUsers) -> Any:
    """Summaries of the files, in their order: always the same, whoever makes them."""
    numbers_of_files = range(len(users.files))
    if params["engine"] != "ray":
        return map(users.summary_of, numbers_of_files)
    from dada.engine.backends import Tasks

    return Tasks().map(users.summary_of, numbers_of_files)


def _stand_in(users: ParquetUsers, sample: NDArray[np.float64]) -> Rows:
    """All users with their numbers of rows, but with some rows that are spread as theirs in the place of theirs."""
    row_start = np.concatenate([[0], np.cumsum(users.sizes)]).astype(np.int64)
    nothing = np.zeros(len(sample), np.int8)
    return Rows(Population(sample, nothing, row_start, users.user_ids, users.classes, users.feature_names), 2)
