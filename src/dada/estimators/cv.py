"""`DadaClassifierCV`: settings chosen on held-out rows, and for every user whether it is better off alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from numbers import Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from dada.estimators.classifier import DadaClassifier
from dada.fitting.execution import carry_out
from dada.fitting.folds import PerUserKFold
from dada.fitting.held_out import HeldOutScores, is_ahead, share_right
from dada.fitting.lam import AUTO, LEAST_UPDATES, numbers
from dada.fitting.rows import Rows, agreed, decisions_of
from dada.fitting.settings import check_settings, check_workers, generator, latency_of, recipes_of

ALONE = "none"


class Setting(NamedTuple):
    """One point of the grid; `pull` is mu as a multiple of what "auto" takes, `family` names the base predictors."""

    graph: str
    beta: float
    mu_scale: float
    family: str


class Tried(NamedTuple):
    """How a setting did on held-out rows: the share that was right, mean over users, and the mean log score of all."""

    setting: Setting
    accuracy: float
    log_score: float


def _on_ray() -> Any:
    from dada.engine.backends import joblib_on_ray

    return joblib_on_ray()


class DadaClassifierCV(ClassifierMixin, BaseEstimator):
    """A `DadaClassifier` whose base predictors, graph, beta and mu are chosen by cross-validation inside users' rows.

    For each family of base predictors (those of the estimator where it has some), graph and beta, the values of mu make
    a path along which models go on from each other. Of each family and graph the setting stands that gives the highest
    probability to labels of held-out rows, among those that get no fewer of these right; or the one nearest to the
    automatic settings if the difference is within a standard error. Linear predictors and the first graph stay unless
    others get more rows right, by more than a standard error. Afterwards every user compares what it would have done
    alone on the same rows, and keeps its local model where that was better beyond chance.

    Parameters
    ----------
    estimator : DadaClassifier, optional
        Holds all other settings.
    graphs : sequence of str
        Graphs to try.
    betas : sequence of float
        Bounds to try.
    pulls : sequence of float
        Values of mu to try, as multiples of the one that "auto" would take.
    n_splits, n_repeats : int
        Folds, and how often rows are dealt out anew.
    doubt : float
        A user keeps its local model when that was right more often on held-out rows by this many standard errors of the
        difference (McNemar's test); infinity never does.
    engine : {"local", "ray"}
        Where trials are made: by joblib here (or where `joblib.parallel_config` says), or on a Ray cluster. The result
        is the same.
    n_jobs : int, optional
        Trials at the same time, of which there is one for each fold; -1 for as many as processors.
    verbose : int
        Above 0, joblib tells how many trials are done.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        Decides folds and runs.

    Attributes
    ----------
    best_estimator_ : DadaClassifier
        Fitted to all rows with the best setting; models of users who are better off alone are their local ones.
    best_setting_ : Setting
        Graph, beta, pull and family.
    alone_ : array of bool of shape (n_users,)
        Who keeps its local model.
    cv_results_ : list of Tried
        Every setting, and learning alone, with mean accuracy over users on held-out rows and the mean logarithm of the
        probability of their labels, the most accurate first.

    Examples
    --------
    >>> from dada.data import moons
    >>> train = moons(1, n_users=12).train
    >>> search = DadaClassifierCV(DadaClassifier(n_updates=30), betas=(10.0,), pulls=(1.0,), random_state=0)
    >>> search.fit(train.X, train.y, users=train.user_ids.repeat(train.sizes)).best_setting_.beta
    10.0
    """

    __metadata_request__fit: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__predict: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__predict_proba: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__decision_function: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__score: ClassVar[dict[str, Any]] = {"users": True}

    def __init__(
        self,
        estimator: DadaClassifier | None = None,
        *,
        graphs: Any = ("everyone", "evidence"),
        betas: Any = (10.0, 30.0),
        mu_scales: Any = (4.0, 2.0, 1.0, 0.5, 0.25, 0.1),
        n_splits: int = 3,
        n_repeats: int = 2,
        doubt: float = 1.64,
        engine: str = "local",
        n_jobs: int | None = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.graphs = graphs
        self.betas = betas
        self.mu_scales = mu_scales
        self.n_splits = n_splits
        self.n_repeats = n_repeats
        self.doubt = doubt
        self.engine = engine
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> Self:
        """Choose settings and learn from all rows; parameters as of `DadaClassifier.fit`.

        Weights say how much rows count when models learn; held-out rows count alike.
        """
        base = DadaClassifier() if self.estimator is None else clone(self.estimator)
        params = base.get_params(deep=False)
        check_settings(params)
        check_workers(self.engine, "auto", self.n_jobs)
        for name in ("betas", "mu_scales"):
            _check_grid(name, getattr(self, name))
        rows = base._training_rows(X, y, users, sample_weight)
        rng = generator(self.random_state)
        judged = self._held_out(params, rows, rng.spawn(1)[0])
        best = self._best(judged, rows, numbers(params, rows, 1)["beta"])
        # Only models of the same base predictors can stand in one table.
        local = _likeliest({s: j for s, j in judged.items() if (s.graph, s.family) == (ALONE, best.family)})
        self.best_setting_ = best
        recipe = recipes_of(params["predictors"], rows)[best.family]
        predictors, _ = agreed(recipe, rows.people)
        used = numbers(params | {"mu": AUTO}, rows, predictors.n * rows.n_blocks, best.family)
        chosen = {"graph": best.graph, "beta": best.beta, "mu": best.mu_scale * used["mu"], "predictors": recipe}
        chosen |= {"n_updates": used["n_updates"], "random_state": int(rng.integers(2**31))}
        self.best_estimator_ = base.set_params(**chosen).fit(X, y, users, sample_weight)
        self.alone_ = self._better_alone(judged[local].right - judged[best].right, rows)
        if self.alone_.any():
            own = clone(base).set_params(graph=ALONE, beta=local.beta, mu=0.0).fit(X, y, users, sample_weight)
            self.best_estimator_.models_[self.alone_] = own.models_[self.alone_]
        self.cv_results_ = sorted(_tried(judged, rows), key=lambda tried: -tried.accuracy)
        self.classes_ = self.best_estimator_.classes_
        self.n_features_in_ = self.best_estimator_.n_features_in_
        return self

    def decision_function(self, X: Any, users: Any = None) -> NDArray[np.float64]:
        """As of `DadaClassifier`, with the best estimator."""
        check_is_fitted(self)
        return self.best_estimator_.decision_function(X, users)

    def predict(self, X: Any, users: Any = None) -> NDArray[Any]:
        """As of `DadaClassifier`, with the best estimator."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X, users)

    def predict_proba(self, X: Any, users: Any = None) -> NDArray[np.float64]:
        """As of `DadaClassifier`, with the best estimator."""
        check_is_fitted(self)
        return self.best_estimator_.predict_proba(X, users)

    def score(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> float:
        """As of `DadaClassifier`, with the best estimator."""
        check_is_fitted(self)
        return self.best_estimator_.score(X, y, users, sample_weight)

    def _held_out(self, params: dict[str, Any], rows: Rows, rng: np.random.Generator) -> dict[Setting, HeldOutScores]:
        """How right the models of each setting are about rows that are held out."""
        # A trial has one worker: it is trials that are shared out.
        params = params | {"latency": latency_of(params), "engine": "local", "n_jobs": None}
        owners, trials, places = rows.owners, [], []
        for _ in range(self.n_repeats):
            folds = PerUserKFold(self.n_splits, shuffle=True, random_state=rng)
            for kept, tested in folds.split(owners, rows.people.y, users=owners):
                trials.append(delayed(self._trial)(params, rows, kept, tested, int(rng.integers(2**31))))
                places.append(tested)
        with _on_ray() if self.engine == "ray" else nullcontext():
            found = Parallel(n_jobs=self.n_jobs, verbose=self.verbose)(trials)
        judged = {setting: HeldOutScores.none_yet(rows.people.n_rows) for setting in found[0]}
        for tested, trial in zip(places, found, strict=True):
            for setting, each in trial.items():
                judged[setting].add(tested, each, 1 / self.n_repeats)
        return judged

    def _trial(
        self, params: dict[str, Any], rows: Rows, kept: NDArray[Any], tested: NDArray[Any], seed: int
    ) -> dict[Setting, HeldOutScores]:
        """How right every setting is about the rows of one fold."""
        learned, held_out = rows.take(kept), rows.take(tested)
        judged = {}
        for family, recipe in recipes_of(params["predictors"], rows).items():
            predictors, _ = agreed(recipe, learned.people)
            for setting, models in self._paths(params, learned, predictors, family, seed):
                judged[setting] = HeldOutScores.of(held_out, decisions_of(held_out, predictors, models))
        return judged

    def _paths(
        self, params: dict[str, Any], rows: Rows, predictors: Any, family: str, seed: int
    ) -> Iterator[tuple[Setting, NDArray[Any]]]:
        """Models of every setting; along a path of pulls each run goes on from the one before."""
        used = numbers(params | {"mu": AUTO}, rows, predictors.n * rows.n_blocks, family)
        auto = used["mu"]
        for beta in self.betas:
            plain = used | {"beta": beta, "lam": None, "graph": ALONE, "mu": 0.0}
            yield (
                Setting(ALONE, beta, 0.0, family),
                carry_out(plain, rows, predictors, np.random.default_rng(seed)).models,
            )
            for graph in self.graphs if rows.people.n_users > 1 else ():
                models = None
                for mu_scale in self.mu_scales:
                    here = plain | {"graph": graph, "mu": mu_scale * auto}
                    if models is not None:
                        here["n_updates"] = max(LEAST_UPDATES // 2, used["n_updates"] // 2)
                    run = carry_out(here, rows, predictors, np.random.default_rng(seed), models=models)
                    models = run.models
                    yield Setting(graph, beta, mu_scale, family), models

    def _best(self, judged: dict[Setting, HeldOutScores], rows: Rows, beta: float) -> Setting:
        """The best setting with the first base predictors and graph, unless others get more right beyond chance."""
        best = None
        for kind in dict.fromkeys((setting.family, setting.graph) for setting in judged if setting.graph != ALONE):
            other = _best_of_kind({s: j for s, j in judged.items() if (s.family, s.graph) == kind}, rows, beta)
            if best is None or is_ahead(rows, judged[other].right, judged[best].right):
                best = other
        return best or _likeliest(judged)

    def _better_alone(self, gains: NDArray[np.float32], rows: Rows) -> NDArray[np.bool_]:
        """Whose local model was right more often, by McNemar's test with Edwards' correction for few rows."""
        error = np.sqrt(np.maximum(rows.per_user(gains**2), 1.0))
        return np.asarray(rows.per_user(gains) - 1.0 > self.doubt * error)


def _check_grid(name: str, values: Any) -> None:
    if not len(values) or not all(isinstance(value, Real) and 0 < float(value) < math.inf for value in values):
        raise ValueError(f"{name} must be numbers > 0 to choose from, at least one, got {values!r}")


def _best_of_kind(judged: dict[Setting, HeldOutScores], rows: Rows, beta: float) -> Setting:
    """The likeliest setting of those that are right as often as the usual one, or that one if it is no less likely.

    More pull makes models more careful, which is likelier even where they are less often right.
    """
    usual = min(judged, key=lambda setting: (_apart(setting.beta, beta), _apart(setting.mu_scale, 1.0)))
    good = {s: j for s, j in judged.items() if not is_ahead(rows, judged[usual].right, j.right)}
    best = _likeliest(good)
    return best if is_ahead(rows, judged[best].log_score, judged[usual].log_score) else usual


def _apart(value: float, usual: float) -> float:
    return abs(math.log(value / usual))


def _likeliest(judged: dict[Setting, HeldOutScores]) -> Setting:
    return max(judged, key=lambda setting: judged[setting].likelihood)


def _tried(judged: dict[Setting, HeldOutScores], rows: Rows) -> list[Tried]:
    # A user's only row is in no fold.
    tested = int(rows.people.sizes[rows.people.sizes > 1].sum())
    return [Tried(setting, share_right(rows, each), each.likelihood / tested) for setting, each in judged.items()]
