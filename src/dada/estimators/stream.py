"""Fit users whose rows are in Parquet files and never in one process."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dada.core.losses import mean_per_user
from dada.core.model_steps import rows_per_sample
from dada.core.problem import bytes_of_run, check_memory
from dada.data import BasePredictors, FeatureSummary, ParquetUsers, Population, Recipe
from dada.data.predictors.families import takes_summary
from dada.data.predictors.thresholds import FittedStumps
from dada.engine.shards import remote_problem
from dada.estimators.classifier import DadaClassifier, DadaRegressor
from dada.events import Observer, silent
from dada.fitting.held_out import ENOUGH_HELD_OUT, MOST_USERS, decide
from dada.fitting.models import MANY_USERS, SAMPLES, Fit, extended, find_lam, run_engine
from dada.fitting.settings import AUTO, LATENCY, Settings, generator
from dada.fitting.trees import trees_of
from dada.task import n_blocks, user_rows

Estimator = TypeVar("Estimator", DadaClassifier, DadaRegressor)

# A feature takes eight bytes, a margin of a stump one: so features of few users are held at a time.
USERS_AT_ONCE = 20_000
# Rows beyond which waves are left out: with 200 of them, each row takes almost a kilobyte.
MOST_ROWS_OF_WAVES = 2_000_000
# Users on whom choices are made, at least: three folds of few users hold out as many rows as one fold of many, and
# among few users evidence finds good neighbours within a short trial.
TRIED_USERS = 300
# With more users than these, a wake-up of each takes minutes in all, and the last ten of fifty gain 0.1 points.
MANY_TO_WAKE, FEWER_WAKEUPS = 200_000, 40


@dataclass(frozen=True, eq=False)
class Margins:
    """Reads the margins of a range of users, in the process of their shard."""

    users: ParquetUsers
    predictors: BasePredictors
    users_at_once: int = USERS_AT_ONCE

    def __call__(self, first: int, last: int) -> NDArray[Any]:
        """Margins of the users first..last-1 (see `dada.task`), of whom `users_at_once` are read at a time."""
        users, predictors = self.users, self.predictors
        rows = rows_per_sample(users.n_classes) * np.concatenate([[0], np.cumsum(users.sizes[first:last])])
        number = predictors.dtype if users.n_classes == 2 else np.float32
        found = np.empty((int(rows[-1]), predictors.n * n_blocks(users)), number)
        for start in range(first, last, self.users_at_once):
            stop = min(start + self.users_at_once, last)
            people = users.read(start, stop)
            own = slice(rows[start - first], rows[stop - first])
            found[own] = user_rows(predictors.predict(people.X), people.y, users.n_classes).A
        return found


def fit_parquet(
    model: Estimator,
    users: ParquetUsers,
    *,
    observer: Observer = silent,
    checkpoint: str | os.PathLike[str] | None = None,
    users_at_once: int = USERS_AT_ONCE,
) -> Estimator:
    """Fit a classifier or a regressor to users whose rows no single process holds.

    Every shard (an actor with ``engine="ray"``, else a process of this machine; `n_jobs` of them) reads the rows of its
    users. This process keeps ids, models and the graph; for numbers and class weights also the labels. What is open
    (base predictors, graph, mu) is chosen on a sample (see `users_to_try`). Trees are not among the choices, nor,
    beyond two million rows, are waves. With more than 200,000 users a fit by block steps has at most 40 wake-ups per
    user. Base predictors are fitted to merged summaries of the files (see `FeatureSummary`), or to the sample if they
    need rows; updates always have a latency.

    Parameters
    ----------
    model : DadaClassifier or DadaRegressor
        The estimator to fit. With many users, ``lam="auto"`` is found from samples of 500 and 2,000.
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
    settings = _checked(model, users)
    rng = generator(model.random_state)
    trial_rng = rng.spawn(1)[0]
    labels, sampled = _samples(model, users)
    few = sampled(MOST_USERS)
    # Users grow trees on all of their rows, and a tree must not predict the rows that it has seen.
    tried, interacts = users_to_try(users.n_users, users.n_rows), users.n_rows <= MOST_ROWS_OF_WAVES
    decided = decide(settings, few, trial_rng, observer, tried, grows=False, interacts=interacts)
    recipe, family, settings = decided.recipe, decided.family, decided.settings
    if model.mu == AUTO:
        # The confidences of a sample are relative to its largest user.
        usual = replace(settings, mu=AUTO).resolved(users, 1, family).model_settings["mu1"]
        settings = replace(settings, mu=decided.mu_scale * usual)
    predictors = _predictors(recipe, settings.engine, users, few)
    settings = settings.resolved(users, predictors.n * n_blocks(users), family)
    if model.n_updates == AUTO and settings.takes_blocks and users.n_users > MANY_TO_WAKE:
        settings = replace(settings, n_updates=min(int(settings.n_updates), FEWER_WAKEUPS))
    lam_rng = rng.spawn(1)[0] if settings.lam == AUTO else rng
    if settings.needs_lam(users.n_users):
        settings = replace(settings, lam=_lam(settings, users.n_users, sampled, predictors, lam_rng))
    sizes, n_weights = users.sizes * rows_per_sample(users.n_classes), predictors.n * n_blocks(users)
    needed = bytes_of_run(users.n_users, int(sizes.sum()), n_weights, neighbours=settings.n_neighbours, copies=0)
    what = f"models and graph of {users.n_users} users with {n_weights} base predictors"
    check_memory(needed, what, "take fewer base predictors (predictors=), or a larger machine")
    with settings.shards(Margins(users, predictors, users_at_once)) as workers:
        rows: Any = {"coupling": np.tile(np.asarray(predictors.coupling, np.float64), n_blocks(users))}
        if labels is not None:
            _, *known = user_rows(labels.X, labels.y, labels.n_classes, labels.weights)
            rows |= dict(zip(("offset", "weights"), known, strict=True))
        name = f"{users.name} {recipe!r}"
        problem = remote_problem(workers, sizes, n_weights, name=name, **rows, **settings.model_settings)
        result = run_engine(settings, problem, rng, observer=observer, checkpoint=checkpoint, workers=workers)
        reached = problem.margins(result.models)
    shown = settings.shown() | {"n_predictors": predictors.n, "predictors": recipe, "held_out": decided.held_out}
    model._keep(users, Fit(predictors, shown, result, decided.values))
    model.decision_ = decided._replace(settings=settings)
    model.n_features_in_, model.encoder_ = len(users.inputs), users.encoder
    model.feature_names_in_ = np.array(users.inputs, dtype=object)
    model.train_accuracy_ = np.nan
    if users.n_classes:
        right = reached.reshape(users.n_rows, -1).min(axis=1) > 0
        model.train_accuracy_ = float(mean_per_user(right, np.append(0, np.cumsum(users.sizes))).mean())
    return model


def users_to_try(n_users: int, n_rows: int) -> int:
    """Number of users on whom a stream makes its choices.

    >>> users_to_try(1_000, 9_000), users_to_try(100_000, 900_000), users_to_try(100_000, 10_000_000)
    (1000, 334, 300)
    """
    if n_users <= MOST_USERS:
        return n_users
    return min(MOST_USERS, max(TRIED_USERS, math.ceil(ENOUGH_HELD_OUT * n_users / n_rows)))


def _checked(model: Estimator, users: ParquetUsers) -> Settings:
    """The settings of a model, if a stream can have them, with latency."""
    if model.user_column is not None:
        raise ValueError(
            f"ParquetUsers names the users in its column {users.user!r}: leave user_column={model.user_column!r} out"
        )
    settings = model._settings()
    if settings.privacy is not None:
        raise ValueError("privacy needs all rows in one process: fit to rows in memory, without --stream")
    if callable(settings.graph):
        raise ValueError("a graph rule reads all rows in one process: fit to rows in memory, or name a graph")
    return replace(settings, latency=LATENCY) if settings.latency in (AUTO, 0) else settings


def _samples(model: Estimator, users: ParquetUsers) -> tuple[Population | None, Callable[[int], Population]]:
    """All labels with their weights, if targets or weights depend on all of them, and a function that draws samples."""
    if users.n_classes and getattr(model, "class_weight", None) is None:
        return None, lambda most: model._adopted(users.sample(most))
    labels = model._weighted(model._adopted(users.labels()))

    def sampled(most: int) -> Population:
        few = users.sample(most)
        own = labels.select(np.searchsorted(users.user_ids, few.user_ids))
        return replace(few, y=own.y, weights=own.weights)

    return labels, sampled


def _predictors(recipe: Recipe, engine: str, users: ParquetUsers, few: Population) -> BasePredictors:
    """Base predictors from merged summaries of the files, or from a sample of users if they need rows."""
    if trees_of(recipe)[0] is not None:
        raise ValueError("users grow trees on rows in memory: leave Trees out of predictors, or fit to rows in memory")
    if not takes_summary(recipe):
        return recipe.fit(few.X)

    def marks(stumps: FittedStumps) -> NDArray[np.uint64]:
        return stumps.marks(few.X, np.random.default_rng(few.n_rows))

    return recipe.fit_summary(FeatureSummary.of_all(_summaries(engine, users)), marks)


def _lam(
    settings: Settings,
    n_users: int,
    sampled: Callable[[int], Population],
    predictors: BasePredictors,
    rng: np.random.Generator,
) -> float:
    """lam for the wanted number of neighbours, from all users if they are few, else from two samples."""

    def find(most: int) -> float:
        return find_lam(settings, settings.problem(sampled(most), predictors), rng)

    if n_users < MANY_USERS:
        return find(n_users)
    smaller, larger = (find(size) for size in SAMPLES)
    return extended(smaller, larger, n_users)


def _summaries(engine: str, users: ParquetUsers) -> Iterable[FeatureSummary]:
    """Summaries of the files, in their order, whatever the number of workers."""
    files = range(len(users.files))
    if engine != "ray":
        return map(users.summary_of, files)
    from dada.engine.backends import Tasks

    return Tasks().map(users.summary_of, files)
