"""What classifier and regressor share: settings, users, rows, and the graph."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted, validate_data

from dada.core.graph import CollaborationGraph
from dada.core.losses import Loss
from dada.core.plan import Status
from dada.core.regularizers import Regularizer
from dada.data import Population, Recipe
from dada.data.arrays import as_features, as_values, collected, shorten
from dada.events import Observer, silent
from dada.fitting.execution import Watched
from dada.fitting.fit import Learned, learn
from dada.fitting.rows import Rows, also, average_model, blockwise_decisions, positions_of, write_line
from dada.fitting.settings import check_settings, check_unknown_user, generator


class Neighbour(NamedTuple):
    """A user that another one learns from: the weight between them and its share of all that one's weights."""

    user: Any
    weight: float
    share: float


class PersonalEstimator(BaseEstimator):
    """Models of many users over a graph; subclasses say what the targets are."""

    # Users are asked for wherever scikit-learn routes metadata; who watches a fit is none of its business.
    __metadata_request__fit: ClassVar[dict[str, Any]] = {
        "users": True,
        "observer": UNUSED,
        "checkpoint": UNUSED,
    }
    __metadata_request__predict: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__score: ClassVar[dict[str, Any]] = {"users": True}

    def __init__(
        self,
        predictors: Recipe | None = None,
        *,
        loss: str | Loss = "auto",
        beta: float | str = "auto",
        mu: float | str = "auto",
        lam: float | str = "auto",
        delta: float = 0.01,
        regularizer: Regularizer | None = None,
        graph: Any = "auto",
        graph_loss: str = "mean",
        step: str = "pairwise",
        graph_step: str = "exact",
        kappa: int | None = None,
        n_updates: int | str = "auto",
        graph_every: float | str = "auto",
        n_neighbours: int = 10,
        max_neighbours: int | None = None,
        tau: float = 1.0,
        restart: str = "zero",
        half_life: float | None = None,
        tol: float | None = None,
        max_bits: float | None = None,
        max_time_s: float | None = None,
        unknown_user: str = "error",
        dtype: Any = "float32",
        engine: str = "local",
        latency: float | str = "auto",
        n_jobs: int | None = None,
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
        self.n_neighbours = n_neighbours
        self.max_neighbours = max_neighbours
        self.tau = tau
        self.restart = restart
        self.half_life = half_life
        self.tol = tol
        self.max_bits = max_bits
        self.max_time_s = max_time_s
        self.unknown_user = unknown_user
        self.dtype = dtype
        self.engine = engine
        self.latency = latency
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        users: Any = None,
        sample_weight: Any = None,
        *,
        observer: Observer = silent,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn a model for every user, and the graph between users.

        Parameters
        ----------
        X : array, scipy.sparse matrix, pandas or polars frame of shape (rows, features)
            Finite numbers. A sparse matrix is made dense.
        y : array of shape (rows,)
            Targets.
        users : array of shape (rows,), optional
            Which user each row belongs to: numbers or strings. Without it, all rows are one user's.
        sample_weight : array of shape (rows,), optional
            How much each row counts within its user's loss, beside the user's other rows. Rows of weight 0 are left
            out.
        observer : callable
            Gets every event of `dada.events` during the fit.
        checkpoint : path, optional
            File that keeps the state of the fit. Where there is one, of the same data, settings and seed, the fit goes
            on from there, and ends as if it had never been interrupted, bit for bit.

        Returns
        -------
        The estimator itself. After Ctrl-C it is fitted with the state so far, and a `ConvergenceWarning` says so.
        """
        check_settings(self.get_params(deep=False))
        self._learn(self._training_rows(X, y, users, sample_weight), observer, checkpoint)
        return self

    def neighbours_of(self, user: Any) -> list[Neighbour]:
        """Who a user learns from, and how much: strongest first.

        Examples
        --------
        >>> from dada import DadaClassifier
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

    def _repr_html_inner(self) -> str:
        """What notebooks show: the settings, and of a fitted model who learns from whom."""
        settings = str(super()._repr_html_inner())
        if not hasattr(self, "graph_"):
            return settings
        from dada.plot.page import model_html

        return settings + model_html(self)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        return bundle | ({"text/html": self._repr_html_inner()} if "text/html" in bundle else {})

    def _learn(self, rows: Rows, observer: Observer = silent, checkpoint: str | os.PathLike[str] | None = None) -> None:
        params = self.get_params(deep=False)
        check_settings(params)
        told = also(observer, write_line) if self.verbose else observer
        self._keep(rows, learn(params, rows, generator(self.random_state), Watched(told, checkpoint)))
        if self.status_ is Status.INTERRUPTED:
            warnings.warn(self.status_.value, ConvergenceWarning, stacklevel=3)

    def _targets(self, y: Any, fresh: bool) -> tuple[NDArray[Any], int]:
        """Targets as `Rows` holds them, and the number of classes; with `fresh`, what they mean is learned from y."""
        raise NotImplementedError

    def _class_weights(self, y: NDArray[Any]) -> NDArray[np.float64] | None:
        """Weights that rows have by their targets."""
        return None

    def _training_rows(
        self, X: Any, y: Any, users: Any, sample_weight: Any = None, *, reset: bool = True, fresh: bool = True
    ) -> Rows:
        """Checked rows grouped by user; `reset` learns the features anew, `fresh` the meaning of the targets."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        rows = self._rows(X, reset=reset)
        targets, n_classes = self._targets(y, fresh)
        owners = as_values(np.full(rows.shape[0], "all") if users is None else users, "users")
        weights = self._weights(sample_weight, targets)
        # The population checks lengths; its labels have room for two classes only, so targets are put in afterwards.
        names = getattr(self, "feature_names_in_", None)
        people = Population.from_arrays(rows, np.ones(len(targets)), owners, classes=(-1, 1), feature_names=names)
        order = np.argsort(np.unique(owners, return_inverse=True)[1], kind="stable")
        people = replace(people, y=targets[order])
        if weights is None:
            return Rows(people, n_classes)
        return _without_zeros(Rows(people, n_classes, weights[order]))

    def _weights(self, sample_weight: Any, targets: NDArray[Any]) -> NDArray[np.float64] | None:
        by_class = self._class_weights(targets)
        if sample_weight is None:
            return by_class
        weights = np.asarray(as_values(sample_weight, "sample_weight"), np.float64)
        if len(weights) != len(targets) or not (weights >= 0).all() or not weights.any():
            raise ValueError(
                f"sample_weight must be {len(targets)} numbers >= 0, one per row, not all zero, got {shorten(weights)}"
            )
        return weights if by_class is None else weights * by_class

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

    def _decisions(self, X: Any, users: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        rows = self._rows(X)
        positions = self._positions(users, rows.shape[0])
        average = average_model(self.models_, self.confidence_) if (positions < 0).any() else None
        return blockwise_decisions(rows, positions, self.predictors_, self.models_, average)

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

    def _keep(self, rows: Rows, learned: Learned) -> None:
        self.users_ = rows.people.user_ids
        self.n_users_ = rows.people.n_users
        self.confidence_ = rows.people.confidence
        self.predictors_ = learned.predictors
        self.settings_ = learned.settings
        self.models_ = learned.result.models
        self.graph_: CollaborationGraph = learned.result.graph
        self.trace_ = learned.result.trace
        self.ledger_ = learned.result.ledger
        self.status_ = learned.result.status
        self.n_iter_ = learned.result.updates

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


def _without_zeros(rows: Rows) -> Rows:
    assert rows.weights is not None
    kept = rows.take(np.flatnonzero(rows.weights > 0))
    empty = kept.people.sizes == 0
    if empty.any():
        raise ValueError(
            f"{int(empty.sum())} users have no row of a weight above 0: {shorten(kept.people.user_ids[empty])}. "
            "Leave these users out"
        )
    return kept
