"""`DadaClassifier`: personal models and the graph between users, as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from dada.core.graph import CollaborationGraph
from dada.core.losses import Loss
from dada.core.regularizers import Regularizer
from dada.core.status import Status
from dada.data import Population, Recipe
from dada.data._inputs import as_features, as_values, collected, shorten
from dada.engine import RunResult, run
from dada.estimators.chance import generator
from dada.estimators.prediction import average_model, blockwise_decisions, positions_of
from dada.estimators.progress import also, write_line
from dada.estimators.settings import check_settings, check_unknown_user, graph_of, plan_of, recipe_of, regularizer_of
from dada.events import Observer, silent
from dada.task import Task


class Neighbour(NamedTuple):
    """A user that another one learns from: the weight between them and its share of all that one's weights."""

    user: Any
    weight: float
    share: float


class DadaClassifier(ClassifierMixin, BaseEstimator):
    """Binary classifier with a model for each user, learned along a graph of who resembles whom.

    Every user k has a sparse combination of base predictors, fitted to its own rows and drawn to the models of its
    neighbours. The weights of the graph are learned together with the models.

    Parameters
    ----------
    predictors : Stumps, Linear, Constant, Pretrained, Union or other recipe, optional
        Base predictors. By default decision stumps at ten quantiles of each feature (fewer where there are more than
        200 features), and a constant.
    loss : {"adaboost", "logistic", "squared-hinge"} or Loss
        Loss of a user's model on its own rows.
    beta : float
        Bound on the sum of absolute weights of a model: larger fits closer.
    mu : float
        How strongly a model is drawn to its neighbours', and the weight of the graph's regularizer. 0 means that
        everybody learns alone and no graph is learned.
    lam : float
        Weight of the squared edge weights: smaller gives fewer neighbours.
    delta : float
        Offset of the degree in the logarithm that keeps users from being left alone.
    regularizer : LogDegree, DegreeTarget or DegreeFunction, optional
        Regularizer of the graph in place of the one that `lam` and `delta` describe.
    graph : {"learned", "evidence", "none"}, CollaborationGraph or square matrix
        Learn the graph from losses and distances of models, as the paper does; learn it by evidence, from how well
        others' models do on a user's own rows (one may then learn from somebody who learns nothing in return; it pays
        where users have but a handful of rows); have none; or use the given one, its rows in the order of sorted ids.
    graph_loss : {"mean", "paper", "logistic"}
        Which value of a user's loss shapes the graph: per sample, the sum as in the paper, or never negative.
    step : {"pairwise", "paper", "local", "line-search"}
        Rule of the model updates.
    graph_step : {"exact", "lipschitz"}
        Rule of the graph updates.
    kappa : int, optional
        Users asked at each graph update, at most ``n_users - 1``. By default 5, or all others where they are fewer.
    n_updates : int
        Model updates per user.
    graph_every : float
        Model updates per user between two rounds of graph updates.
    max_neighbours : int, optional
        Bound on the number of neighbours of every user. By default there is none, but 10 for ``graph="evidence"``.
    tau : float
        How sharply evidence decides between models, for ``graph="evidence"``.
    restart : {"zero", "local"}
        Models after the first graph: from zero, or from the purely local ones that the first graph came from.
    tol : float, optional
        Stop when the duality gap of the models falls below this part of that of zero models.
    max_bits : float, optional
        Stop when users would have sent each other this many bits.
    max_time_s : float, optional
        Stop after this many seconds.
    unknown_user : {"error", "average"}
        What to do at prediction with a user that was not in the training data: refuse, or use the mean of all models,
        weighted by confidence.
    dtype : {"float32", "float64"}
        Precision of the models.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        Decides who updates when. The same seed gives the same models, bit for bit.
    verbose : int
        Write a line of progress to the standard error stream at every point of the trace.

    Attributes
    ----------
    classes_ : array of shape (2,)
        The two labels.
    users_ : array of shape (n_users,)
        The user ids, sorted. ``["all"]`` after a fit without users.
    n_users_ : int
        Number of users.
    models_ : array of shape (n_users, n_predictors)
        Weights of the base predictors in each user's model.
    graph_ : CollaborationGraph
        Weights between users, numbered as in `users_`.
    confidence_ : array of shape (n_users,)
        Each user's number of rows as a part of the largest.
    predictors_ : BasePredictors
        The fitted base predictors; ``predictors_.describe(j)`` says what number j does.
    trace_ : tuple of TracePoint
        Objective, gap, accuracy of every user on its training rows, edges and bits along the run.
    objective_ : float
        The joint objective at the end.
    ledger_ : Ledger
        Messages that users would have sent each other, by kind.
    bits_ : float
        Their size in bits.
    n_iter_ : int
        Model updates made, of all users together.
    status_ : Status
        Why the fit ended; its value is a sentence.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    Inside `Pipeline`, `GridSearchCV` and `cross_validate`, users reach the classifier by metadata routing: call
    ``sklearn.set_config(enable_metadata_routing=True)`` and give ``users=`` (``params={"users": ...}`` to
    `cross_validate`). The classifier asks for users everywhere by itself. scikit-learn passes no metadata on to the
    predictions behind scorers by name (``"roc_auc"``), `cross_val_predict` and ``GridSearchCV.predict``: score with the
    default, `score`, and predict with ``best_estimator_``.

    Examples
    --------
    >>> from dada.data import moons
    >>> train, test = moons(1).train, moons(1).test
    >>> model = DadaClassifier(random_state=0).fit(train.X, train.y, users=train.user_ids.repeat(train.sizes))
    >>> model.score(test.X, test.y, users=test.user_ids.repeat(test.sizes)) > 0.85
    True
    >>> [neighbour.weight > 0 for neighbour in model.neighbours_of(7)][:2]
    [True, True]
    """

    # Users are asked for wherever scikit-learn routes metadata; who watches a fit is none of its business.
    __metadata_request__fit: ClassVar[dict[str, Any]] = {"users": True, "observer": UNUSED}
    __metadata_request__predict: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__predict_proba: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__decision_function: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__score: ClassVar[dict[str, Any]] = {"users": True}

    def __init__(
        self,
        predictors: Recipe | None = None,
        *,
        loss: str | Loss = "adaboost",
        beta: float = 10.0,
        mu: float = 1.0,
        lam: float = 0.1,
        delta: float = 0.01,
        regularizer: Regularizer | None = None,
        graph: Any = "learned",
        graph_loss: str = "mean",
        step: str = "pairwise",
        graph_step: str = "exact",
        kappa: int | None = None,
        n_updates: int = 200,
        graph_every: float = 50,
        max_neighbours: int | None = None,
        tau: float = 1.0,
        restart: str = "zero",
        tol: float | None = None,
        max_bits: float | None = None,
        max_time_s: float | None = None,
        unknown_user: str = "error",
        dtype: Any = "float32",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.predictors = predictors
        self.loss = loss
        self.beta = beta
        self.mu = mu
        self.lam = lam
        self.delta = delta
        self.regularizer = regularizer
        self.graph = graph
        self.graph_loss = graph_loss
        self.step = step
        self.graph_step = graph_step
        self.kappa = kappa
        self.n_updates = n_updates
        self.graph_every = graph_every
        self.max_neighbours = max_neighbours
        self.tau = tau
        self.restart = restart
        self.tol = tol
        self.max_bits = max_bits
        self.max_time_s = max_time_s
        self.unknown_user = unknown_user
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, users: Any = None, *, observer: Observer = silent) -> Self:
        """Learn a model for every user, and the graph between users.

        Parameters
        ----------
        X : array, scipy.sparse matrix, pandas or polars frame of shape (rows, features)
            Finite numbers. A sparse matrix is made dense.
        y : array of shape (rows,)
            Labels of two values: numbers, strings or booleans.
        users : array of shape (rows,), optional
            Which user each row belongs to: numbers or strings. Without it, all rows are one user's.
        observer : callable
            Gets every event of `dada.events` during the fit.

        Returns
        -------
        DadaClassifier
            Itself. After Ctrl-C it is fitted with the state so far, and a `ConvergenceWarning` says so.
        """
        params = self.get_params(deep=False)
        check_settings(params)
        population = self._population(X, y, users)
        given = graph_of(self.graph, population.n_users)
        plan = plan_of(params, population.n_users)
        task = Task.of(population, recipe_of(self.predictors, population.n_features))
        problem = task.problem(
            beta=self.beta,
            mu1=self.mu,
            loss=self.loss,
            regularizer=regularizer_of(params),
            graph_loss=self.graph_loss,
        )
        result = run(
            problem,
            plan,
            generator(self.random_state),
            graph=given,
            train=task.samples,
            observer=also(observer, write_line) if self.verbose else observer,
            dtype=self.dtype,
        )
        self._keep(task, result)
        if result.status is Status.INTERRUPTED:
            warnings.warn(result.status.value, ConvergenceWarning, stacklevel=2)
        return self

    def decision_function(self, X: Any, users: Any = None) -> NDArray[np.float64]:
        """Decision value of each row under its user's model: positive for the second class.

        Parameters
        ----------
        X : array, scipy.sparse matrix, pandas or polars frame of shape (rows, features)
            As at `fit`.
        users : array of shape (rows,) or one user id, optional
            Whose model to use for each row, or for all rows. Not needed with a single user or
            ``unknown_user="average"``.

        Returns
        -------
        array of shape (rows,)
        """
        check_is_fitted(self)
        rows = self._rows(X)
        positions = self._positions(users, rows.shape[0])
        average = average_model(self.models_, self.confidence_) if (positions < 0).any() else None
        return blockwise_decisions(rows, positions, self.predictors_, self.models_, average)

    def predict(self, X: Any, users: Any = None) -> NDArray[Any]:
        """Predicted label of each row; parameters as of `decision_function`."""
        positive = self.decision_function(X, users) > 0
        return self.classes_[positive.astype(np.intp)]

    def predict_proba(self, X: Any, users: Any = None) -> NDArray[np.float64]:
        """Scores between 0 and 1 of both classes, adding up to 1; parameters as of `decision_function`.

        The score of the second class is the logistic function of the decision value. It orders rows as the decision
        value does, and only roughly is it a probability: for probabilities, calibrate it on rows of your own.
        """
        positive = expit(self.decision_function(X, users))
        return np.column_stack((1 - positive, positive))

    def score(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> float:
        """Share of rows whose label is predicted; other parameters as of `decision_function`."""
        return float(accuracy_score(y, self.predict(X, users), sample_weight=sample_weight))

    def neighbours_of(self, user: Any) -> list[Neighbour]:
        """Who a user learns from, and how much: strongest first.

        Examples
        --------
        >>> X, y, users = [[0.0], [1.0], [0.0], [1.0]], [0, 1, 0, 1], ["ann", "ann", "bob", "bob"]
        >>> model = DadaClassifier(graph=[[0, 2], [2, 0]], random_state=0).fit(X, y, users=users)
        >>> model.neighbours_of("ann")
        [Neighbour(user='bob', weight=2.0, share=1.0)]
        """
        check_is_fitted(self)
        positions, unknown = positions_of(self.users_, [user])
        if unknown:
            raise self._unknown(unknown)
        others, weights = self.graph_.neighbours(int(positions[0]))
        total = float(weights.sum())
        return [
            Neighbour(other, weight, weight / total)
            for other, weight in zip(self.users_[others].tolist(), weights.tolist(), strict=True)
        ]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = True
        return tags

    def _population(self, X: Any, y: Any, users: Any) -> Population:
        if y is None:
            raise ValueError("DadaClassifier requires y to be passed, but the target y is None")
        rows = self._rows(X, reset=True)
        labels = as_values(column_or_1d(y, warn=True) if getattr(y, "ndim", 1) > 1 else y, "y")
        check_classification_targets(labels)
        found = np.unique(labels)
        if len(found) > 2:
            raise ValueError(
                f"Only binary classification is supported. y has {len(found)} classes: {shorten(found)}. "
                "Select two of them, or learn one class against the rest"
            )
        owners = np.full(rows.shape[0], "all") if users is None else users
        return Population.from_arrays(rows, labels, owners)

    def _rows(self, X: Any, reset: bool = False) -> Any:
        """X as finite numbers: a sparse matrix stays sparse, anything else becomes an array."""
        X = collected(X)
        if hasattr(X, "columns") and hasattr(X, "dtypes"):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return as_features(X)[0]
        rows = validate_data(
            self, X, reset=reset, accept_sparse="csr", dtype=np.float64, ensure_all_finite=hasattr(X, "toarray")
        )
        return rows if hasattr(rows, "toarray") else as_features(rows)[0]

    def _positions(self, users: Any, n_rows: int) -> NDArray[np.int64]:
        check_unknown_user(self.unknown_user)
        averages = self.unknown_user == "average"
        if users is None:
            if self.n_users_ > 1 and not averages:
                raise ValueError(
                    f"the model was fitted for {self.n_users_} users: give users=, whose model to use for each row, "
                    "or set unknown_user='average' to use the mean of all models"
                )
            return np.full(n_rows, 0 if self.n_users_ == 1 else -1)
        one_for_all = np.ndim(users) == 0
        positions, unknown = positions_of(self.users_, [users] if one_for_all else users)
        if unknown and not averages:
            raise self._unknown(unknown)
        if one_for_all:
            return np.full(n_rows, positions[0])
        if len(positions) != n_rows:
            raise ValueError(f"users must have one entry per row of X, got {len(positions)} for {n_rows} rows")
        return positions

    def _unknown(self, unknown: list[Any]) -> ValueError:
        return ValueError(
            f"{len(unknown)} users were not in the training data: {shorten(unknown)}. Known are {self.n_users_} users "
            f"such as {shorten(self.users_, 3)}. Fit with rows of theirs, or set unknown_user='average'"
        )

    def _keep(self, task: Task, result: RunResult) -> None:
        self.classes_ = task.train.classes
        self.users_ = task.train.user_ids
        self.n_users_ = task.train.n_users
        self.confidence_ = task.train.confidence
        self.predictors_ = task.predictors
        self.models_ = result.models
        self.graph_: CollaborationGraph = result.graph
        self.trace_ = result.trace
        self.ledger_ = result.ledger
        self.status_ = result.status
        self.n_iter_ = result.updates

    @property
    def objective_(self) -> float:
        """The joint objective at the end of the fit."""
        check_is_fitted(self)
        return float(self.trace_[-1].objective)

    @property
    def bits_(self) -> float:
        """Bits that users would have sent each other during the fit."""
        check_is_fitted(self)
        return float(self.ledger_.bits)
