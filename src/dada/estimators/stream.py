"""Fit users whose rows are in Parquet files and never in one process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.core.accuracy import mean_per_user
from dada.core.problem import bytes_of_run, check_memory, margins_of_labels
from dada.data import BasePredictors, FeatureSummary, ParquetUsers
from dada.engine import run
from dada.engine.shards import remote_problem
from dada.estimators.classifier import DadaClassifier
from dada.events import Observer, silent
from dada.fitting.lam import MANY_USERS, SAMPLES, extended, find_lam
from dada.fitting.models import Fit
from dada.fitting.settings import AUTO, LATENCY, Settings, generator

# A feature takes eight bytes, a margin of a stump one: so features of few users are held at a time.
USERS_AT_ONCE = 20_000


@dataclass(frozen=True, eq=False)
class Margins:
    """Reads the margins of a range of users, in the process of their shard."""

    users: ParquetUsers
    predictors: BasePredictors
    users_at_once: int = USERS_AT_ONCE

    def __call__(self, first: int, last: int) -> NDArray[Any]:
        """y_i h_j(x_i) of the users first..last-1, of whom `users_at_once` are read at a time."""
        ends = np.concatenate([[0], np.cumsum(self.users.sizes[first:last])])
        margins = np.empty((int(ends[-1]), self.predictors.n), self.predictors.dtype)
        for start in range(first, last, self.users_at_once):
            stop = min(start + self.users_at_once, last)
            people = self.users.read(start, stop)
            mine = margins[ends[start - first] : ends[stop - first]]
            mine[...] = margins_of_labels(self.predictors.predict(people.X), people.y)
        return margins


def fit_parquet(
    model: DadaClassifier,
    users: ParquetUsers,
    *,
    observer: Observer = silent,
    checkpoint: str | os.PathLike[str] | None = None,
    users_at_once: int = USERS_AT_ONCE,
) -> DadaClassifier:
    """Fit a classifier to users whose rows no single process holds.

    Every shard (an actor with ``engine="ray"``, else a process of this machine; `n_jobs` of them) reads the rows of its
    users. This process keeps ids, models and the graph. Base predictors are fitted to merged summaries of the files
    (see `FeatureSummary`), and updates always have a latency.

    Parameters
    ----------
    model : DadaClassifier
        The classifier to fit. With many users, ``lam="auto"`` is found from samples of 500 and 2,000.
    users : ParquetUsers
        The files.
    observer, checkpoint
        As in `DadaClassifier.fit`.
    users_at_once : int
        Users whose features a shard holds at a time.

    Returns
    -------
    The model, fitted; its `train_accuracy_` is the mean over users, which the trace does not have.

    Examples
    --------
    >>> import polars as pl, tempfile
    >>> from dada.data import moons
    >>> people = moons(1, n_users=12).train
    >>> table = pl.DataFrame(people.X[:, :2], schema=["east", "north"])
    >>> table = table.with_columns(who=people.users, side=people.y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table.write_parquet(f"{folder}/moons.parquet")
    ...     users = ParquetUsers.open(folder, user="who", label="side")
    ...     model = fit_parquet(DadaClassifier(n_updates=30, random_state=0), users)
    >>> model.models_.shape[0]
    12
    """
    if model.class_weight is not None:
        raise ValueError(
            f"class_weight needs all rows in one process, got {model.class_weight!r}: "
            "leave it out, or fit to rows in memory"
        )
    if model.user_column is not None:
        raise ValueError(
            f"ParquetUsers names the users in its column {users.user!r}: leave user_column={model.user_column!r} out"
        )
    settings = model._settings()
    if settings.privacy is not None:
        raise ValueError("privacy needs all rows in one process: fit to rows in memory, without --stream")
    if callable(settings.graph):
        raise ValueError("a graph rule reads all rows in one process: fit to rows in memory, or name a graph")
    if settings.latency in (AUTO, 0):
        settings = replace(settings, latency=LATENCY)
    if settings.is_graph(AUTO):
        settings = replace(settings, graph="everyone")
    summary = FeatureSummary.of_all(_summaries(settings.engine, users))
    # No rows can be held out here to choose a family: the richest is taken.
    *_, recipe = settings.recipes(users).values()
    predictors = recipe.fit(summary.rows())
    settings = settings.resolved(users, predictors.n)
    rng = generator(model.random_state)
    lam_rng = rng.spawn(1)[0] if settings.lam == AUTO else rng
    if settings.needs_lam(users.n_users):
        settings = replace(settings, lam=_lam(settings, users, predictors, lam_rng))
    needed = bytes_of_run(users.n_users, users.n_rows, predictors.n, neighbours=settings.n_neighbours, copies=0)
    what = f"models and graph of {users.n_users} users with {predictors.n} base predictors"
    check_memory(needed, what, "take fewer base predictors (predictors=), or a larger machine")
    graph = settings.given_graph(users.n_users)
    with settings.shards(Margins(users, predictors, users_at_once)) as workers:
        name, coupling = f"{users.name} {recipe!r}", np.asarray(predictors.coupling, np.float64)
        problem = remote_problem(
            workers, users.sizes, predictors.n, name=name, coupling=coupling, **settings.model_settings
        )
        result = run(
            problem,
            settings.plan(users.n_users),
            rng,
            graph=graph,
            workers=workers,
            dtype=settings.dtype,
            observer=observer,
            checkpoint=None if checkpoint is None else os.fspath(checkpoint),
            resume=checkpoint is not None,
        )
        margins = problem.margins(result.models)
    shown = settings.shown() | {"n_predictors": predictors.n, "predictors": recipe}
    model._keep(users, Fit(predictors, shown, result))
    model.n_features_in_, model.encoder_ = len(users.inputs), users.encoder
    model.feature_names_in_ = np.array(users.inputs, dtype=object)
    model.train_accuracy_ = float(mean_per_user(margins > 0, problem.row_start).mean())
    return model


def _lam(settings: Settings, users: ParquetUsers, predictors: BasePredictors, rng: np.random.Generator) -> float:
    """lam for the wanted number of neighbours, from all users if they are few, else from two samples."""

    def find(n_users: int) -> float:
        return find_lam(settings, settings.problem(users.sample(n_users), predictors), rng)

    if users.n_users < MANY_USERS:
        return find(users.n_users)
    smaller, larger = (find(size) for size in SAMPLES)
    return extended(smaller, larger, users.n_users)


def _summaries(engine: str, users: ParquetUsers) -> Iterable[FeatureSummary]:
    """Summaries of the files, in their order, whatever the number of workers."""
    files = range(len(users.files))
    if engine != "ray":
        return map(users.summary_of, files)
    from dada.engine.backends import Tasks

    return Tasks().map(users.summary_of, files)
