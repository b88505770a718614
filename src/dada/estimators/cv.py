"""`DadaClassifierCV`: settings chosen on held-out rows, and for every user whether it is better off alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from dada.estimators.agreement import agreed
from dada.estimators.auto import AUTO, LEAST_UPDATES, numbers
from dada.estimators.carrying import carry_out
from dada.estimators.chance import generator
from dada.estimators.choosing import is_clear
from dada.estimators.classifier import DadaClassifier
from dada.estimators.prediction import decisions_of
from dada.estimators.rows import Rows
from dada.estimators.settings import check_settings, recipes_of
from dada.estimators.splitter import PerUserKFold
from dada.estimators.workers import check_workers, latency_of

ALONE = "none"


class Setting(NamedTuple):
    """One point of the grid; `pull` is mu as a multiple of what "auto" takes, `family` names the base predictors."""

    graph: str
    beta: float
    pull: float
    family: str


def _on_ray() -> Any:
    from dada.engine.ray_tasks import joblib_on_ray

    return joblib_on_ray()


class DadaClassifierCV(ClassifierMixin, BaseEstimator):
    """A `DadaClassifier` whose base predictors, graph, beta and mu are chosen by cross-validation inside users' rows.

    For each family of base predictors (those of the estimator where it has some), graph and beta, the values of mu make
    a path along which models go on from each other, and the best mean accuracy over users on held-out rows wins. Linear
    predictors and the first graph stay unless others are better by more than a standard error. Afterwards every user
    compares what it would have done alone on the same held-out rows, and keeps its local model where that was better
    beyond chance.

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
        A user keeps its local model when that was right more often on held-out rows by this many standard errors;
        infinity never does.
    engine : {"local", "ray"}
        Where trials are made: by joblib here (or where `joblib.parallel_config` says), or on a Ray cluster. The result
        is the same.
    n_jobs : int, optional
        Trials at the same time, of which there is one for each fold; -1 for as many as processors.
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
    cv_results_ : list of (Setting, float)
        Mean accuracy over users on held-out rows, of every setting and of learning alone.

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
        pulls: Any = (4.0, 2.0, 1.0, 0.5, 0.25, 0.1),
        n_splits: int = 3,
        n_repeats: int = 2,
        doubt: float = 1.64,
        engine: str = "local",
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.graphs = graphs
        self.betas = betas
        self.pulls = pulls
        self.n_splits = n_splits
        self.n_repeats = n_repeats
        self.doubt = doubt
        self.engine = engine
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, users: Any = None) -> Self:
        """Choose settings and learn from all rows; parameters as of `DadaClassifier.fit`."""
        base = DadaClassifier() if self.estimator is None else clone(self.estimator)
        params = base.get_params(deep=False)
        check_settings(params)
        check_workers(self.engine, "auto", self.n_jobs)
        rows = base._training_rows(X, y, users)
        rng = generator(self.random_state)
        right = self._held_out(params, rows, rng.spawn(1)[0])
        tested = np.maximum(right.pop("tested"), 1)
        several = rows.people.sizes > 1
        scores = {setting: float((found / tested)[several].mean()) for setting, found in right.items()}
        best = self._best(scores, right, several)
        # Only models of the same base predictors can stand in one table.
        alone = [setting for setting in scores if (setting.graph, setting.family) == (ALONE, best.family)]
        local = max(alone, key=scores.__getitem__)
        self.best_setting_ = best
        recipe = recipes_of(params["predictors"], rows)[best.family]
        predictors, _ = agreed(recipe, rows.people)
        used = numbers(params | {"mu": AUTO}, rows, predictors.n * rows.n_blocks, best.family)
        chosen = {"graph": best.graph, "beta": best.beta, "mu": best.pull * used["mu"], "predictors": recipe}
        chosen |= {"n_updates": used["n_updates"], "random_state": int(rng.integers(2**31))}
        self.best_estimator_ = base.set_params(**chosen).fit(X, y, users)
        self.alone_ = self._better_alone(right[best], right[local])
        if self.alone_.any():
            own = clone(base).set_params(graph=ALONE, beta=local.beta, mu=0.0).fit(X, y, users)
            self.best_estimator_.models_[self.alone_] = own.models_[self.alone_]
        self.cv_results_ = sorted(scores.items(), key=lambda item: -item[1])
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

    def _held_out(self, params: dict[str, Any], rows: Rows, rng: np.random.Generator) -> dict[Any, NDArray[Any]]:
        """How many held-out rows of every user each setting got right; under "tested", how many there were."""
        # A trial has one worker: it is trials that are shared out.
        params = params | {"latency": latency_of(params), "engine": "local", "n_jobs": None}
        owners, trials = rows.owners, []
        for _ in range(self.n_repeats):
            folds = PerUserKFold(self.n_splits, shuffle=True, random_state=rng)
            for kept, tested in folds.split(owners, rows.people.y, users=owners):
                trials.append(delayed(self._trial)(params, rows, kept, tested, int(rng.integers(2**31))))
        with _on_ray() if self.engine == "ray" else nullcontext():
            found = Parallel(n_jobs=self.n_jobs)(trials)
        return {setting: sum(trial[setting] for trial in found) for setting in found[0]}

    def _trial(
        self, params: dict[str, Any], rows: Rows, kept: NDArray[Any], tested: NDArray[Any], seed: int
    ) -> dict[Any, NDArray[Any]]:
        """What one fold adds to the counts of `_held_out`."""
        learned, judged = rows.take(kept), rows.take(tested)
        right: dict[Any, NDArray[Any]] = {"tested": judged.people.sizes.astype(np.float64)}
        for family, recipe in recipes_of(params["predictors"], rows).items():
            predictors, _ = agreed(recipe, learned.people)
            for setting, models in self._paths(params, learned, predictors, family, seed):
                right[setting] = judged.per_user(judged.right(decisions_of(judged, predictors, models)))
        return right

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
                for pull in self.pulls:
                    here = plain | {"graph": graph, "mu": pull * auto}
                    if models is not None:
                        here["n_updates"] = max(LEAST_UPDATES // 2, used["n_updates"] // 2)
                    run = carry_out(here, rows, predictors, np.random.default_rng(seed), models=models)
                    models = run.models
                    yield Setting(graph, beta, pull, family), models

    def _best(
        self, scores: dict[Setting, float], right: dict[Any, NDArray[Any]], several: NDArray[np.bool_]
    ) -> Setting:
        """The best setting with the first base predictors and graph, unless others are better beyond chance."""
        best = None
        kinds = dict.fromkeys((setting.family, setting.graph) for setting in scores if setting.graph != ALONE)
        for kind in kinds:
            other = max((s for s in scores if (s.family, s.graph) == kind), key=scores.__getitem__)
            if best is None or is_clear((right[other] - right[best])[several]):
                best = other
        return best or max(scores, key=scores.__getitem__)

    def _better_alone(self, together: NDArray[Any], alone: NDArray[Any]) -> NDArray[np.bool_]:
        """Whose local model was right more often, by `doubt` times the standard error of a count of that size."""
        gain = (alone - together) / self.n_repeats
        return np.asarray(gain > self.doubt * np.sqrt(np.maximum(abs(gain), 1.0)))
