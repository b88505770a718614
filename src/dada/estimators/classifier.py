"""`DadaClassifier` and `DadaRegressor`: personal models and the graph between users."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from dada.core.losses import mean_per_user
from dada.data import ParquetUsers, Population
from dada.data.population import as_values
from dada.estimators.online import GrowingEstimator
from dada.fitting.calibration import Calibration, calibrate, probabilities
from dada.fitting.held_out import HeldOutScores, PerUserKFold
from dada.fitting.models import Fit, best_class, blockwise_decisions, class_scores, positions_of
from dada.privacy.accounting import Privacy

# Folds of the scores of users who learn alone.
FOLDS_ALONE = 3


@dataclass(eq=False, repr=False)
class DadaClassifier(ClassifierMixin, GrowingEstimator):
    """Classifier with a model for each user, learned along a graph of who resembles whom.

    Every user has a sparse combination of base predictors, fitted to its own rows and pulled to the models of its
    neighbours. The weights of the graph are learned together with the models.

    Parameters
    ----------
    predictors : Stumps, Linear, Constant, RandomFourier, Trees, Pretrained, Union or other recipe, str, optional
        Base predictors. By default every feature, clipped at two standard deviations, and a weakly coupled constant.
        Features clipped at one standard deviation, decision stumps at four to ten quantiles of each feature, waves of
        two features or trees that users grow, beside linear features, are taken instead if these do better on held-out
        training rows. `BoostedTrees` join linear features or stumps if held-out labels are then likelier. "linear",
        "clipped", "stumps", "waves", "trees" and "boosted" are these families by name; "grown" has trees of
        neighbourhoods too, which take several times the bits and are taken only if they are far ahead.
    loss : {"auto", "adaboost", "logistic", "squared-hinge"} or Loss
        Loss of a user's model on its own rows. "auto" is logistic.
    beta : float or "auto"
        Bound on the sum of absolute weights of a model: larger fits closer. "auto" is 15 per class, 30 in regression.
    mu : float or "auto"
        How strongly neighbours pull on a model, and the weight of the graph's regularizer. With 0, users learn alone
        and no graph is learned. "auto" is 0.35 times the mean confidence of users (2 times for AdaBoost's loss), half
        of that for linear predictors, divided by the number of classes minus one. With the graphs "everyone" and
        "evidence" it is a quarter of that if this does better on held-out training rows.
    lam : float or "auto"
        Weight of the squared edge weights: smaller gives fewer neighbours. "auto" finds the value that gives the first
        graph `n_neighbours` per user on average.
    delta : float
        Offset of the degree in the logarithm that keeps users connected.
    regularizer : LogDegree, DegreeTarget or DegreeFunction, optional
        Regularizer of the graph, instead of the one given by `lam` and `delta`.
    graph : {"auto", "everyone", "learned", "evidence", "evidence-symmetric", "none"}, graph, matrix or function
        Who learns from whom. "everyone": all alike, by way of ten random neighbours each. Other steps than "block" use
        the complete graph (beyond 300 users, fifty random neighbours each). "learned": from losses and distances of
        models, as in the paper. "evidence": from the losses of others' models on a user's own rows; this graph is
        directed, unless "evidence-symmetric". "none": users learn alone. A given graph has its rows in the order of
        sorted ids. A rule is a function ``rule(population, models)`` that returns a graph or a symmetric matrix; models
        are those that users learned alone, one row each. "auto" is "evidence" if it does better than "everyone" on
        held-out training rows.
    graph_loss : {"mean", "paper", "logistic"}
        The loss that the graph is learned from: the mean per sample, the sum as in the paper, or a logistic loss.
    step : {"auto", "block", "pairwise", "paper", "local", "line-search"}
        Rule of the model updates. "block": a user makes up to ten moves on its own model, and sends the change once, in
        few bits. The other rules make one move and send it. "auto" is "block", or "pairwise" with latency, with privacy
        or with a graph that is "learned".
    graph_step : {"exact", "lipschitz"}
        Rule of the graph updates.
    kappa : int, optional
        Users sampled at each graph update, at most ``n_users - 1``. By default 5, or all others if they are fewer.
    n_updates : int or "auto"
        Model updates per user. "auto" is 80 block steps, fewer for models of less than 40 weights unless mu is large,
        and 50 by evidence. For other steps it is half the number of weights of a model, between 200 and 600; for the
        automatic linear predictors 2000.
    graph_every : float or "auto"
        Model updates per user between two phases of graph updates. "auto" is 5 block steps. For other steps it is
        n_updates / 20, at least 10, for evidence graphs, and 50 otherwise.
    n_neighbours : int
        Maximum number of neighbours in an evidence graph, and the mean number that ``lam="auto"`` aims at.
    max_neighbours : int, optional
        Maximum number of neighbours per user. By default unbounded, or `n_neighbours` for evidence graphs.
    tau : float
        Inverse temperature of the evidence weights: larger favours the best models more.
    restart : {"zero", "local"}
        Models after the first graph: zero, or the local models that the first graph was learned from.
    half_life : float, optional
        Calls of `partial_fit` with new rows of a user after which half of its older rows are dropped. By default none
        are.
    class_weight : dict, "balanced" or None
        Weight of the rows of each label within each user's loss. "balanced" gives all labels the same total weight.
    tol : float, optional
        Stop when the gap falls below this fraction of the gap of zero models; `TracePoint` describes the gap.
    max_bits : float, optional
        Stop when the simulated communication reaches this many bits.
    max_time_s : float, optional
        Stop after this many seconds.
    unknown_user : {"error", "average"}
        Prediction for a user that was not in the training data: refuse, or use the mean of all models, weighted by
        confidence.
    dtype : {"float32", "float64"}
        Precision of the models.
    engine : {"local", "ray"}
        Where models are updated: in this process, or in shards on a Ray cluster (needs the extra `ray`; the cluster at
        RAY_ADDRESS, else a local one). Graphs are always updated in this process.
    latency : float or "auto"
        Message delay, in units of a user's mean update interval. Parallel workers need a latency > 0, within which
        updates do not depend on each other; with the same latency, models are the same, bit for bit, for any number of
        workers. A latency > 0 needs ``step="pairwise"`` and a symmetric graph (not "evidence"; "auto" is then
        "everyone"). "auto" is 0, or 0.1 for several workers.
    n_jobs : int, optional
        Parallel workers: threads, or shards on Ray. By default one, or on Ray all processors; -1 for all processors.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        Source of randomness. The same seed gives the same models, bit for bit.
    verbose : int
        Above 0, write a line to the standard error stream at every trial of settings and every point of the trace.
    user_column : str or int, optional
        The column of X that names the user of each row, by name in a frame or by position in an array, instead of
        `users=`. All of scikit-learn then measures the personal models: scorers, searches, calibration.
    encode : {"auto", "never"}
        "auto" encodes a frame that has a text, category or date column, or a missing value: `TableEncoder` describes
        how. Arrays, and frames of numbers, are used as they are. Nothing is encoded if `privacy` protects rows.
    privacy : Privacy, optional
        Differentially private collaboration: what a user's releases may reveal about its rows or labels. `models_` are
        then home models, which never leave a user, and `released_models_` what others can compute. See docs/privacy.md.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The labels.
    settings_ : dict
        The values used for every "auto", the base predictors and what they were fitted to (merged summaries of users,
        or rows), and under "held_out" the score of each trial on held-out rows.
    users_ : array of shape (n_users,)
        The user ids, sorted. ``["all"]`` after a fit without users.
    n_users_ : int
        Number of users.
    models_ : array of shape (n_users, n_predictors)
        Weights of the base predictors in each user's model; with more than two classes, a block for each of them.
    graph_ : CollaborationGraph
        Weights between users, numbered as in `users_`.
    confidence_ : array of shape (n_users,)
        Each user's number of rows relative to the largest.
    predictors_ : BasePredictors
        The fitted base predictors; ``predictors_.describe(j)`` describes number j.
    trace_ : tuple of TracePoint
        Objective, gap, accuracy of every user on its training rows, edges and bits along the run.
    objective_ : float
        The joint objective at the end.
    ledger_ : Ledger
        Simulated messages between users, by kind.
    bits_ : float
        Their size in bits, in the paper's count. It leaves out the model that a waking user sends to a new neighbour,
        and requests.
    n_iter_ : int
        Model updates made, of all users together.
    status_ : Status
        Why the fit ended; its value is a sentence.
    released_models_ : array of shape (n_users, n_predictors)
        With `privacy`: the models that others can compute from what was released.
    centres_ : array of shape (n_users, n_centres, n_predictors, n_outputs) or None
        With `privacy` of rows: what others' releases tell each user. Not stored in model files.
    privacy_ : PrivacyReport
        With `privacy`: whether anything was sent and why, what each user spent, and the released bytes.
    calibration_ : Calibration or None
        Temperatures that make `predict_proba` reliable, from the trials that chose the settings, and how reliable it is
        without and with them. None if nothing was tried on held-out rows, or with `privacy`.
    decision_ : Decided
        Base predictors, graph and mu as chosen by trials, for `fit_population(like=...)`.
    n_features_in_, feature_names_in_
        As in scikit-learn; with the user column.
    encoder_ : TableEncoder or None
        How the columns of X became numbers; None if they were numbers.
    used_features_ : list of str or None
        Names of the features that base predictors use; None if X was an array.

    Notes
    -----
    With more than two classes an update moves one base predictor of one class, and the loss is of the differences
    between the score of a row's class and those of all others.

    With `user_column` the users are part of X, and scikit-learn needs to know nothing of them. With `users=` they reach
    the classifier inside `Pipeline`, `GridSearchCV` and `cross_validate` by metadata routing: call
    ``sklearn.set_config(enable_metadata_routing=True)`` and give ``users=`` (``params={"users": ...}`` to
    `cross_validate`). scikit-learn passes no metadata on to the predictions behind scorers by name (``"roc_auc"``),
    `cross_val_predict` and ``GridSearchCV.predict``: these need `user_column`.

    Examples
    --------
    >>> from dada.data import moons
    >>> train, test = moons(1).train, moons(1).test
    >>> model = DadaClassifier(random_state=0).fit(train.X, train.y, users=train.users)
    >>> model.score(test.X, test.y, users=test.users) > 0.85
    True
    >>> [neighbour.weight > 0 for neighbour in model.neighbours_of(7)][:2]
    [True, True]
    """

    __metadata_request__predict_proba: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__decision_function: ClassVar[dict[str, Any]] = {"users": True}

    class_weight: Any = field(default=None, kw_only=True)

    def partial_fit(
        self, X: Any, y: Any, users: Any = None, *, classes: Any = None, n_updates: int | None = None
    ) -> Self:
        """Continue to learn from new rows, as in `GrowingEstimator.partial_fit`.

        Parameters
        ----------
        X, y, users
            As in `fit`: new rows, of known or new users.
        classes : array, optional
            All labels, if the first call does not have them all.
        n_updates : int, optional
            Updates of each user with new rows; by default the number of updates per user of the first call.
        """
        if classes is not None and not hasattr(self, "models_"):
            self.classes_: Any = np.unique(as_values(classes, "classes"))
        return self._continue(X, y, users, n_updates, fresh=classes is None)

    def decision_function(self, X: Any, users: Any = None) -> NDArray[np.float64]:
        """Decision values of each row under its user's model.

        Parameters
        ----------
        X : array, scipy.sparse matrix, pandas or polars frame of shape (rows, features)
            As at `fit`. In a frame that is encoded or has a user column, columns may have any order, and others may be
            beside them.
        users : array of shape (rows,) or one user id, optional
            The user of each row, or of all rows. Not needed with `user_column` or a single user.

        Returns
        -------
        array of shape (rows,), positive for the second class; with more than two classes, (rows, n_classes)
        """
        return self._decisions(X, users)

    def predict(self, X: Any, users: Any = None) -> NDArray[Any]:
        """Predicted label of each row; parameters as in `decision_function`."""
        decisions = self.decision_function(X, users)
        return self.classes_[best_class(decisions)]

    def predict_proba(self, X: Any, users: Any = None) -> NDArray[np.float64]:
        """Probabilities of all classes; parameters as in `decision_function`.

        They are the logistic function of the decision value, or the softmax of all, divided by the user's temperature:
        see `calibration_`. The most probable class is the predicted one.
        """
        values, positions = self._placed_decisions(X, users)
        if self.calibration_ is None:
            return class_scores(values)
        return probabilities(values, self.calibration_.of(positions))

    def score(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> float:
        """Share of rows whose label is predicted; other parameters as in `decision_function`."""
        return float(accuracy_score(y, self.predict(X, users), sample_weight=sample_weight))

    def _targets(self, y: Any, fresh: bool) -> tuple[NDArray[Any], dict[str, Any]]:
        labels = _column(y)
        check_classification_targets(labels)
        return labels, {"classes": None if fresh else self.classes_}

    def _scored_labels(self) -> list[Any]:
        labels: list[Any] = self.classes_.tolist()
        return labels[1:] if len(labels) == 2 else labels

    def _training_scores(self) -> tuple[str, NDArray[np.float64]]:
        # A loaded model has the accuracies of the fit only, of two classes.
        last = self.trace_[-1].train_accuracy if self.trace_ else np.zeros(0)
        scores = np.append(last, np.full(self.n_users_ - len(last), np.nan))
        for held, at, values in self._training_values():
            scores[at] = mean_per_user(HeldOutScores.of(held, values).right, held.row_start)
        return "train_accuracy", scores

    def _held_out_scores(self, alone: bool) -> dict[str, NDArray[np.float64]]:
        decided, scores = getattr(self, "decision_", None), np.full(self.n_users_, np.nan)
        if decided is not None and decided.values is not None:
            found = decided.values
            positions, _ = positions_of(self.users_, found.users)
            right = best_class(found.values) == found.labels
            counts = np.bincount(positions, minlength=self.n_users_)
            seen = counts > 0
            scores[seen] = np.bincount(positions, right, self.n_users_)[seen] / counts[seen]
        return {"held_out_accuracy": scores} | ({"held_out_accuracy_alone": self._scores_alone()} if alone else {})

    def _scores_alone(self) -> NDArray[np.float64]:
        """Share right among each user's held-out rows if all learn alone, from the training rows that are kept."""
        scores = np.full(self.n_users_, np.nan)
        for held in getattr(self, "held_", []):
            right = np.full(held.n_rows, np.nan)
            folds = PerUserKFold(FOLDS_ALONE, shuffle=True, random_state=0)
            for kept, tested in folds.split(held.owners, held.y, users=held.owners):
                local = clone(self).set_params(graph="none", privacy=None, random_state=0)
                local.fit_population(held.take(kept))
                part = held.take(tested)
                at, _ = positions_of(local.users_, part.user_ids)
                values = blockwise_decisions(part.X, at[part.owners], local.predictors_, local.models_, None)
                right[tested] = HeldOutScores.of(part, values).right
            at, _ = positions_of(self.users_, held.user_ids)
            known = ~np.isnan(right)
            counts = np.bincount(held.owners[known], minlength=held.n_users)
            sums = np.bincount(held.owners[known], right[known], held.n_users)
            scores[at[counts > 0]] = sums[counts > 0] / counts[counts > 0]
        return scores

    def _adopted(self, population: Population) -> Population:
        if population.classes is None:
            raise ValueError("y must hold classes, got numbers: use DadaRegressor")
        return population

    def _class_weights(self, population: Population) -> NDArray[np.float64] | None:
        classes = population.classes
        if self.class_weight is None or classes is None:
            return None
        codes = population.codes
        if isinstance(self.class_weight, str):
            if self.class_weight != "balanced":
                raise ValueError(f"class_weight must be a dict, 'balanced' or None, got {self.class_weight!r}")
            counts = np.bincount(codes, minlength=len(classes))
            return np.asarray(len(codes) / (len(classes) * np.maximum(counts, 1))[codes], np.float64)
        of_class = np.array([self.class_weight.get(label, 1.0) for label in classes.tolist()], np.float64)
        if not ((of_class > 0) & (of_class < np.inf)).all():
            raise ValueError(f"class_weight must be above 0 and finite for every class, got {self.class_weight!r}")
        return of_class[codes]

    def _keep(self, people: Population | ParquetUsers, found: Fit) -> None:
        super()._keep(people, found)
        self.classes_ = people.classes
        values = found.values
        self.calibration_: Calibration | None = None if values is None else calibrate(values, self.users_)


@dataclass(eq=False, repr=False)
class DadaRegressor(RegressorMixin, GrowingEstimator):
    """Regressor with a model for each user, learned along a graph of who resembles whom.

    Targets are standardised over all users; a constant among the base predictors is the intercept. Parameters and
    attributes are those of `DadaClassifier`, but for the loss and what belongs to classes.

    Parameters
    ----------
    loss : {"auto", "squared", "huber"}
        Loss of the residuals. "auto" is squared; Huber's grows linearly beyond one standard deviation of the targets.

    Attributes
    ----------
    target_mean_, target_scale_ : float
        Mean and standard deviation of the targets at the fit.

    Examples
    --------
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> users = np.repeat(["ann", "bob"], 20)
    >>> model = DadaRegressor(random_state=0).fit(X, 3 * X[:, 0] + 1, users=users)
    >>> model.score(X, 3 * X[:, 0] + 1, users=users) > 0.9
    True
    """

    def predict(self, X: Any, users: Any = None) -> NDArray[np.float64]:
        """Predicted number for each row under its user's model; parameters as in `DadaClassifier.decision_function`."""
        values = self._decisions(X, users)
        return self.target_mean_ + self.target_scale_ * values

    def score(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> float:
        """Coefficient of determination over all rows; other parameters as in `predict`."""
        return float(r2_score(y, self.predict(X, users), sample_weight=sample_weight))

    def _targets(self, y: Any, fresh: bool) -> tuple[NDArray[Any], dict[str, Any]]:
        values = _column(y)
        if values.dtype.kind not in "biuf":
            raise ValueError(f"y must hold numbers, got an array of type {values.dtype}")
        if fresh:
            self._learn_scale(values.astype(np.float64))
        return self._standardised(values.astype(np.float64)), {"task": "numbers"}

    def _adopted(self, population: Population) -> Population:
        if population.classes is not None:
            raise ValueError(f"y must hold numbers, got {population.n_classes} classes: use DadaClassifier")
        self._learn_scale(population.y)
        return replace(population, y=self._standardised(population.y))

    def _training_scores(self) -> tuple[str, NDArray[np.float64]]:
        scores = np.full(self.n_users_, np.nan)
        for held, at, values in self._training_values():
            scores[at] = self.target_scale_ * mean_per_user(np.abs(values - held.y), held.row_start)
        return "train_error", scores

    def _learn_scale(self, y: NDArray[np.float64]) -> None:
        if y.size == 1:
            raise ValueError("y must hold two numbers or more to learn from, got n_samples = 1")
        if self.privacy is not None:
            self.target_mean_, self.target_scale_ = _public_scale(self.privacy)
            return
        self.target_mean_, spread = float(y.mean()), float(y.std())
        self.target_scale_ = spread if spread > 0 else 1.0

    def _standardised(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        return (y - self.target_mean_) / self.target_scale_


def _public_scale(privacy: Privacy) -> tuple[float, float]:
    """Centre and half width of the public range of targets: statistics of y would reveal it."""
    low, high = privacy.targets or (0.0, 0.0)
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"privacy needs the public range of the targets, targets=(low, high), got {privacy.targets!r}")
    return (low + high) / 2, (high - low) / 2


def _column(y: Any) -> NDArray[Any]:
    return as_values(column_or_1d(y, warn=True) if getattr(y, "ndim", 1) > 1 else y, "y")
