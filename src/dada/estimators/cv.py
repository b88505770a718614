"""`DadaClassifierCV` and `DadaRegressorCV`: settings chosen on held-out rows, and who keeps its local model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted

from dada.data import Population, Recipe
from dada.engine import RunResult
from dada.estimators.classifier import DadaClassifier, DadaRegressor
from dada.fitting.boosting import boosted_of
from dada.fitting.calibration import calibrate
from dada.fitting.held_out import (
    DOUBT,
    SHORT_WAKEUPS,
    TRIAL_WAKEUPS,
    Fold,
    HeldOutScores,
    PerUserKFold,
    better_alone,
    decide,
    is_ahead,
    share_right,
)
from dada.fitting.models import HeldOutValues, run_engine
from dada.fitting.settings import AUTO, LEAST_UPDATES, Settings, check_workers, generator
from dada.task import n_blocks, shared_predictors

ALONE = "none"


class Setting(NamedTuple):
    """One point of the grid; `mu_scale` is the multiple of the automatic mu, `family` names the base predictors."""

    graph: str
    beta: float
    mu_scale: float
    family: str


class Tried(NamedTuple):
    """Scores of a setting on held-out rows, the higher the better.

    `score` is the share of right rows, as a mean over users, and `log_score` the mean log-likelihood of the labels of
    all rows. For numbers both are minus the squared error, as a mean over users and over rows.
    """

    setting: Setting
    score: float
    log_score: float


def _on_ray() -> Any:
    from dada.engine.backends import joblib_on_ray

    return joblib_on_ray()


@dataclass(eq=False, repr=False)
class PersonalSearch(BaseEstimator):
    """What the searches of classifier and regressor share."""

    __metadata_request__fit: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__predict: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__score: ClassVar[dict[str, Any]] = {"users": True}

    estimator: Any = None
    _: KW_ONLY
    betas: Any = (10.0, 30.0)
    mu_scales: Any = (4.0, 2.0, 1.0, 0.5, 0.25, 0.1)
    n_splits: int = 3
    n_repeats: int = 1
    doubt: float = DOUBT
    engine: str = "local"
    n_jobs: int | None = None
    verbose: int = 0
    random_state: Any = None
    user_column: Any = None

    def fit(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> Self:
        """Choose settings and learn from all rows; parameters as in the estimator's `fit`.

        Weights apply when models learn; held-out rows count equally.
        """
        base = self._base()
        if self.user_column is not None:
            base.set_params(user_column=self.user_column)
        settings = base._settings()
        if settings.privacy is not None:
            raise ValueError(
                f"a search compares settings on exact rows, which reveals them: fit {type(base).__name__}(privacy=...)"
            )
        check_workers(self.engine, "auto", self.n_jobs)
        for name in ("betas", "mu_scales"):
            _check_grid(name, getattr(self, name))
        population = base._population(X, y, users, sample_weight)
        rng = generator(self.random_state)
        recipe, family, decided, *_ = decide(settings, population, rng.spawn(1)[0], grows=False)
        settings, recipe = replace(settings, graph=decided.graph), boosted_of(recipe)[1]
        scores, values = self._held_out(settings, family, recipe, population, rng.spawn(1)[0])
        together = {s: each for s, each in scores.items() if s.graph != ALONE}
        beta = settings.resolved(population, 1).model_settings["beta"]
        best = best_setting(together, population, beta) if together else _likeliest(scores)
        local = _likeliest({s: each for s, each in scores.items() if s.graph == ALONE})
        predictors, _ = shared_predictors(recipe, population)
        automatic = replace(settings, mu=AUTO).resolved(population, predictors.n * n_blocks(population), best.family)
        mu = best.mu_scale * automatic.model_settings["mu1"]
        chosen = {"graph": settings.graph, "beta": best.beta, "mu": mu, "predictors": recipe}
        chosen |= {"n_updates": automatic.n_updates, "random_state": int(rng.integers(2**31))}
        self.best_setting_ = best
        self.best_estimator_ = base.set_params(**chosen).fit(X, y, users, sample_weight)
        self.alone_ = better_alone(scores[local].right - scores[best].right, population, self.doubt)
        if self.alone_.any():
            own = clone(base).set_params(graph=ALONE, beta=local.beta, mu=0.0).fit(X, y, users, sample_weight)
            self.best_estimator_.models_[self.alone_] = own.models_[self.alone_]
            kept_local = self.alone_[population.owners]
            values[best][kept_local] = values[local][kept_local]
        # The only row of a user is in no fold.
        tested = population.sizes[population.owners] > 1
        n_tested = int(tested.sum())
        self._calibrate(population.take(tested), values[best][tested])
        unit = getattr(self.best_estimator_, "target_scale_", 1.0) ** 2
        tried = [
            Tried(s, unit * share_right(population, each), unit * each.likelihood / n_tested)
            for s, each in scores.items()
        ]
        self.cv_results_ = sorted(tried, key=lambda each: -each.score)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.best_estimator_, name):
                setattr(self, name, getattr(self.best_estimator_, name))
        return self

    def predict(self, X: Any, users: Any = None) -> NDArray[Any]:
        """As the best estimator does."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X, users)

    def users_frame(self, alone: bool = False) -> Any:
        """As the best estimator does, with a column `kept_local`: whether the user keeps its local model.

        Examples
        --------
        >>> from dada.data import moons
        >>> train = moons(1, n_users=5).train
        >>> search = DadaClassifierCV(DadaClassifier(n_updates=5), betas=(10.0,), mu_scales=(1.0,), random_state=0)
        >>> search.fit(train.X, train.y, users=train.users).users_frame().columns[-2:]
        ['train_accuracy', 'kept_local']
        """
        import polars as pl

        check_is_fitted(self)
        return self.best_estimator_.users_frame(alone).with_columns(kept_local=pl.Series(self.alone_))

    def _base(self) -> DadaClassifier | DadaRegressor:
        """The estimator to search with, not fitted."""
        raise NotImplementedError

    def _calibrate(self, held_out: Population, values: NDArray[np.float64]) -> None:
        """Calibrate the best estimator, if it has probabilities, by decision values of held-out rows."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _held_out(
        self, settings: Settings, family: str, recipe: Recipe, population: Population, rng: np.random.Generator
    ) -> tuple[dict[Setting, HeldOutScores], dict[Setting, NDArray[np.float64]]]:
        """Scores and decision values of the models of each setting on held-out rows."""
        # A trial has one worker: the trials themselves run in parallel.
        settings = replace(settings, latency=settings.message_latency, engine="local", n_jobs=None)
        owners, trials, places = population.owners, [], []
        for _ in range(self.n_repeats):
            folds = PerUserKFold(self.n_splits, shuffle=True, random_state=rng)
            for kept, tested in folds.split(owners, population.y, users=owners):
                fold, seed = Fold.of(population, kept, tested), int(rng.integers(2**31))
                trials.append(delayed(self._trial)(settings, family, recipe, fold, seed))
                places.append(tested)
        with _on_ray() if self.engine == "ray" else nullcontext():
            found = Parallel(n_jobs=self.n_jobs, verbose=self.verbose)(trials)
        scores = {setting: HeldOutScores.zeros(population.n_rows) for setting in found[0]}
        values = {setting: np.zeros((population.n_rows, *each.shape[1:])) for setting, each in found[0].items()}
        for tested, trial in zip(places, found, strict=True):
            people = population.take(tested)
            for setting, each in trial.items():
                scores[setting].add(tested, HeldOutScores.of(people, each), 1 / self.n_repeats)
                values[setting][tested] += each / self.n_repeats
        return scores, values

    def _trial(
        self, settings: Settings, family: str, recipe: Recipe, fold: Fold, seed: int
    ) -> dict[Setting, NDArray[np.float64]]:
        """Decision values of every setting on the rows of one fold."""
        paths = self._paths(settings, fold, family, recipe, seed)
        return {setting: fold.values(family, models) for setting, models in paths}

    def _paths(
        self, settings: Settings, fold: Fold, family: str, recipe: Recipe, seed: int
    ) -> Iterator[tuple[Setting, NDArray[Any]]]:
        """Models of every setting; along a path of mu each run starts from the models of the one before."""
        tables, used = fold.through(family, recipe, replace(settings, mu=AUTO, lam=AUTO))
        used = used.with_rule_of(fold.learned)
        n_updates, automatic = int(used.n_updates), used.model_settings["mu1"]

        graph = used.graph if isinstance(used.graph, str) else "given"
        if used.takes_blocks:
            n_updates, later = min(n_updates, TRIAL_WAKEUPS), SHORT_WAKEUPS
        else:
            later = max(LEAST_UPDATES // 2, n_updates // 2)

        def run_of(start: RunResult | None = None, **changes: Any) -> RunResult:
            here = replace(used, n_updates=n_updates if start is None else later, **changes)
            problem = replace(tables.problem, **here.model_settings)
            return run_engine(here, problem, np.random.default_rng(seed), start=start, traced=False)

        for beta in self.betas:
            yield Setting(ALONE, beta, 0.0, family), run_of(beta=beta, graph=ALONE, mu=0.0).models
            if fold.learned.n_users > 1 and graph != ALONE:
                last = None
                for mu_scale in self.mu_scales:
                    last = run_of(last, beta=beta, mu=mu_scale * automatic)
                    yield Setting(graph, beta, mu_scale, family), last.models


@dataclass(eq=False, repr=False)
class DadaClassifierCV(ClassifierMixin, PersonalSearch):
    """A `DadaClassifier` whose beta and mu are chosen by cross-validation inside users' rows.

    Base predictors and graph are those of the estimator; if open, short trials choose them as in its own fit. For each
    beta, the values of mu form a path along which each run starts from the models of the one before. Among the settings
    that are right as often as the automatic one, that with the highest likelihood of held-out labels is chosen; or the
    automatic one if the difference is within a standard error. Afterwards every user compares its local model on the
    same rows, and keeps it if it was significantly better.

    Parameters
    ----------
    estimator : DadaClassifier, optional
        Holds all other settings.
    betas : sequence of float
        Bounds to try.
    mu_scales : sequence of float
        Values of mu to try, as multiples of the automatic one.
    n_splits, n_repeats : int
        Number of folds, and of repetitions with other folds.
    doubt : float
        A user keeps its local model if that was right more often on held-out rows by this many standard errors of the
        difference (McNemar's test); with infinity, never.
    engine : {"local", "ray"}
        Where trials run: by joblib on this machine (or as `joblib.parallel_config` sets), or on a Ray cluster. The
        result is the same.
    n_jobs : int, optional
        Parallel trials, one per fold; -1 for all processors.
    verbose : int
        Above 0, joblib reports finished trials.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        Decides folds and runs.
    user_column : str or int, optional
        As in `DadaClassifier`; by default that of the estimator.

    Attributes
    ----------
    best_estimator_ : DadaClassifier
        Fitted to all rows with the best setting; users in `alone_` have their local models.
    best_setting_ : Setting
        Graph, beta, mu_scale and family.
    alone_ : array of bool of shape (n_users,)
        Users who keep their local model.
    cv_results_ : list of Tried
        Every setting, and learning alone, with mean accuracy over users on held-out rows and the mean log-likelihood of
        their labels, the most accurate first.

    Examples
    --------
    >>> from dada.data import moons
    >>> train = moons(1, n_users=12).train
    >>> search = DadaClassifierCV(DadaClassifier(n_updates=30), betas=(10.0,), mu_scales=(1.0,), random_state=0)
    >>> search.fit(train.X, train.y, users=train.users).best_setting_.beta
    10.0
    """

    __metadata_request__predict_proba: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__decision_function: ClassVar[dict[str, Any]] = {"users": True}

    def fit(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> Self:
        """Choose settings and learn from all rows; parameters as in `DadaClassifier.fit`.

        Weights apply when models learn; held-out rows count equally.
        """
        super().fit(X, y, users, sample_weight)
        self.classes_ = self.best_estimator_.classes_
        return self

    def decision_function(self, X: Any, users: Any = None) -> NDArray[np.float64]:
        """As the best estimator does."""
        check_is_fitted(self)
        return self.best_estimator_.decision_function(X, users)

    def predict_proba(self, X: Any, users: Any = None) -> NDArray[np.float64]:
        """As the best estimator does."""
        check_is_fitted(self)
        return self.best_estimator_.predict_proba(X, users)

    def score(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> float:
        """As the best estimator does."""
        check_is_fitted(self)
        return self.best_estimator_.score(X, y, users, sample_weight)

    def _calibrate(self, held_out: Population, values: NDArray[np.float64]) -> None:
        found = HeldOutValues(held_out.users, held_out.codes, values)
        self.best_estimator_.calibration_ = calibrate(found, self.best_estimator_.users_)

    def _base(self) -> DadaClassifier:
        return DadaClassifier() if self.estimator is None else clone(self.estimator)


@dataclass(eq=False, repr=False)
class DadaRegressorCV(RegressorMixin, PersonalSearch):
    """A `DadaRegressor` whose beta and mu are chosen by cross-validation inside users' rows.

    Settings are compared by the squared error of held-out rows: the one with the least error is chosen, or the
    automatic one if the difference is within a standard error. A user keeps its local model if its squared error was
    smaller by `doubt` standard errors of the difference. Parameters and attributes are otherwise those of
    `DadaClassifierCV`.

    Parameters
    ----------
    estimator : DadaRegressor, optional
        Holds all other settings.

    Attributes
    ----------
    best_estimator_ : DadaRegressor
        Fitted to all rows with the best setting; users in `alone_` have their local models.
    cv_results_ : list of Tried
        Every setting, and learning alone, with minus the mean squared error of held-out rows, as a mean over users
        (score) and over rows (log_score), the best first.

    Examples
    --------
    >>> X, users = np.linspace(-1, 1, 40)[:, None], np.tile(["ann", "bob"], 20)
    >>> search = DadaRegressorCV(DadaRegressor(n_updates=20), mu_scales=(1.0, 0.25), random_state=0)
    >>> search.fit(X, 3 * X[:, 0] + 1, users=users).cv_results_[0].score > -0.1
    True
    """

    def score(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> float:
        """As the best estimator does."""
        check_is_fitted(self)
        return self.best_estimator_.score(X, y, users, sample_weight)

    def _base(self) -> DadaRegressor:
        return DadaRegressor() if self.estimator is None else clone(self.estimator)


def _check_grid(name: str, values: Any) -> None:
    if not len(values) or not all(isinstance(value, Real) and 0 < float(value) < math.inf for value in values):
        raise ValueError(f"{name} must be numbers > 0 to choose from, at least one, got {values!r}")


def best_setting(scores: dict[Setting, HeldOutScores], population: Population, beta: float) -> Setting:
    """The likeliest of the settings that are right as often as the usual one, or the usual one if it is as likely.

    The usual setting is the nearest to the automatic `beta`, and to ``mu_scale=1``. A larger mu makes models more
    cautious, which is likelier even if they are right less often.
    """
    usual = min(scores, key=lambda setting: (_apart(setting.beta, beta), _apart(setting.mu_scale, 1.0)))
    good = {s: each for s, each in scores.items() if not is_ahead(population, scores[usual].right, each.right)}
    best = _likeliest(good)
    return best if is_ahead(population, scores[best].log_score, scores[usual].log_score) else usual


def _apart(value: float, usual: float) -> float:
    return abs(math.log(value / usual))


def _likeliest(scores: dict[Setting, HeldOutScores]) -> Setting:
    return max(scores, key=lambda setting: scores[setting].likelihood)
