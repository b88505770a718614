"""What classifier and regressor share: settings, rows, prediction and the graph."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from dada.core.graph import CollaborationGraph
from dada.core.plan import Status
from dada.data import ParquetUsers, Population
from dada.data.encoding import TableEncoder, needs_encoding, telling_columns
from dada.data.population import as_features, as_values, collected, frame_columns, is_frame, shorten, without_column
from dada.estimators.explanation import FeatureEffect, contributions, effects, references, uses_of
from dada.events import Event, Observer, TracePoint, TrialStarted, fan_out, silent
from dada.fitting.held_out import decide
from dada.fitting.models import (
    Checkpoint,
    Decided,
    Fit,
    average_model,
    blockwise_decisions,
    decisions,
    fit,
    positions_of,
)
from dada.fitting.private import fit_privately
from dada.fitting.settings import Parameters, Settings, check_unknown_user, generator
from dada.task import training_predictions

ENCODE = ("auto", "never")


class Neighbour(NamedTuple):
    """A user that another user learns from: the weight between them, and its share of the other's weights."""

    user: Any
    weight: float
    share: float


@dataclass(eq=False, repr=False)
class PersonalEstimator(Parameters, BaseEstimator):
    """Models of many users over a graph; subclasses define the targets."""

    # Wherever scikit-learn routes metadata, it passes users; observer and checkpoint are not metadata.
    __metadata_request__fit: ClassVar[dict[str, Any]] = {
        "users": True,
        "observer": UNUSED,
        "checkpoint": UNUSED,
    }
    __metadata_request__predict: ClassVar[dict[str, Any]] = {"users": True}
    __metadata_request__score: ClassVar[dict[str, Any]] = {"users": True}

    user_column: Any = field(default=None, kw_only=True)
    encode: str = field(default="auto", kw_only=True)

    def fit(
        self,
        X: Any,
        y: Any,
        users: Any = None,
        sample_weight: Any = None,
        *,
        observer: Observer = silent,
        checkpoint: Checkpoint = None,
    ) -> Self:
        """Learn a model for every user, and the graph between users.

        Parameters
        ----------
        X : array, scipy.sparse matrix, pandas or polars frame of shape (rows, features)
            Finite numbers. A frame may also hold text, categories, dates and missing values: see `encode`. A sparse
            matrix is made dense.
        y : array of shape (rows,)
            Targets.
        users : array of shape (rows,), optional
            The user of each row: numbers or strings. By default `user_column` names them, or all rows belong to one
            user.
        sample_weight : array of shape (rows,), optional
            Weight of each row relative to its user's other rows. Rows of weight 0 are left out.
        observer : callable
            Receives every event of `dada.events` during the fit.
        checkpoint : path, optional
            File that keeps the state of the fit. If it exists, from the same data, settings and seed, the fit continues
            from it and ends as if it had never been interrupted, bit for bit.

        Returns
        -------
        The estimator itself. After Ctrl-C it is fitted with the state so far, and raises a `ConvergenceWarning`.
        """
        settings = self._settings()
        self._learn(settings, self._population(X, y, users, sample_weight), observer, checkpoint)
        return self

    def fit_population(
        self,
        population: Population,
        *,
        encoder: TableEncoder | None = None,
        like: PersonalEstimator | None = None,
        test: Population | None = None,
        observer: Observer = silent,
        checkpoint: Checkpoint = None,
    ) -> Self:
        """Like `fit`, with rows that are grouped by user already.

        Parameters
        ----------
        population : Population
            The rows.
        encoder : TableEncoder, optional
            What made their features of a table.
        like : DadaClassifier or DadaRegressor, optional
            An estimator that was fitted before: base predictors, graph and mu are chosen as there, where they are open,
            instead of by trials on held-out rows.
        test : Population, optional
            Other rows of the same users; with two classes, `trace_` follows the accuracy on them.
        observer, checkpoint
            As in `fit`.

        Examples
        --------
        >>> from dada import DadaClassifier, moons
        >>> model = DadaClassifier(graph="everyone", n_updates=20, random_state=0)
        >>> model.fit_population(moons(0, n_users=4).train).n_users_
        4
        """
        settings = self._settings()
        names = population.feature_names if encoder is None else encoder.inputs
        self.n_features_in_, self.feature_names_in_ = len(names), np.array(names, dtype=object)
        self.encoder_: TableEncoder | None = encoder
        self._learn(settings, self._weighted(self._adopted(population)), observer, checkpoint, like, test)
        return self

    def neighbours_of(self, user: Any) -> list[Neighbour]:
        """The users that a user learns from, and how much, the strongest first.

        Examples
        --------
        >>> from dada import DadaClassifier
        >>> X, y, users = [[0.0], [1.0], [0.0], [1.0]], [0, 1, 0, 1], ["ann", "ann", "bob", "bob"]
        >>> model = DadaClassifier(graph=[[0, 2], [2, 0]], random_state=0).fit(X, y, users=users)
        >>> model.neighbours_of("ann")
        [Neighbour(user='bob', weight=2.0, share=1.0)]
        """
        others, weights = self.graph_.neighbours(self._position(user))
        total = float(weights.sum())
        return [
            Neighbour(other, weight, weight / total)
            for other, weight in zip(self.users_[others].tolist(), weights.tolist(), strict=True)
        ]

    def followers_of(self, user: Any) -> list[Neighbour]:
        """The users that learn from a user, and which share of their weights it has, the strongest first.

        Examples
        --------
        >>> import dada
        >>> model = dada.DadaClassifier(graph=[[0, 2], [2, 0]], random_state=0)
        >>> model = model.fit([[0.0], [1.0]] * 2, [0, 1] * 2, users=["ann", "ann", "bob", "bob"])
        >>> model.add_user([[0.1], [0.8]], [0, 1], "eve").followers_of("eve")
        []
        >>> [follower.user for follower in model.followers_of("ann")]
        ['bob', 'eve']
        """
        k = self._position(user)
        degree, weights = self.graph_.degree, self.graph_.to_scipy()[:, [k]].tocoo()
        order = np.argsort(-weights.data, kind="stable")
        return [
            Neighbour(self.users_[at].item(), float(weight), float(weight / degree[at]))
            for at, weight in zip(weights.row[order], weights.data[order], strict=True)
        ]

    def users_frame(self, alone: bool = False) -> Any:
        """A polars frame with a row per user, in the order of `users_`.

        Its columns are user, rows, neighbours, followers, of classes the share right among the user's rows that trials
        held out (held_out_accuracy, of the trial most like the choice), and the share of the user's training rows that
        its model gets right (train_accuracy) or their mean absolute error (train_error); null where this is not known,
        as of several classes or numbers in a model from a file, which holds no rows.

        Parameters
        ----------
        alone : bool
            Of classes, whether to add the share right among held-out rows if each user learns alone
            (held_out_accuracy_alone). This takes three more fits, without a graph, on the rows that are kept.

        Examples
        --------
        >>> from dada import DadaClassifier
        >>> X, y, users = [[0.0], [1.0], [0.0], [1.0]], [0, 1, 0, 1], ["ann", "ann", "bob", "bob"]
        >>> model = DadaClassifier(graph=[[0, 2], [2, 0]], random_state=0).fit(X, y, users=users)
        >>> model.users_frame().row(0)
        ('ann', 2, 1, 1, 1.0, 1.0)
        """
        import polars as pl

        check_is_fitted(self)
        name, scores = self._training_scores()
        columns = {
            "user": self.users_,
            "rows": np.rint(self.confidence_ * self.settings_["most_rows"]).astype(np.int64),
            "neighbours": self.graph_.neighbour_counts,
            "followers": np.bincount(self.graph_.indices, minlength=self.n_users_),
        }
        found = self._held_out_scores(alone) | {name: scores}
        columns |= {key: pl.Series(each.astype(np.float32)).fill_nan(None) for key, each in found.items()}
        return pl.DataFrame(columns)

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Share of each column of X in what all models use, in the order of `feature_names_in_`; they sum to 1.

        The importance of a feature is the mean absolute deviation of the decision value as the feature varies, over
        its typical values, those of the features that it interacts with, and over users; that of a column is the sum of
        the features made of it. All are 0 if models are constant. Columns of users, and those left out, have 0. Typical
        values are quantiles that the base predictors know, so no rows are needed. Base predictors of many features,
        such as waves of all, have no importances.

        Examples
        --------
        >>> from dada import DadaClassifier
        >>> X = np.column_stack([np.linspace(-1, 1, 20), np.tile([0.0, 1.0], 10)])
        >>> model = DadaClassifier(n_updates=20, random_state=0).fit(X, X[:, 0] > 0)
        >>> model.feature_importances_.argmax(), round(model.feature_importances_.sum(), 6)
        (np.int64(0), np.float64(1.0))
        """
        check_is_fitted(self)
        return self._importances(self.models_)

    def importances_of(self, user: Any) -> dict[str, float]:
        """`feature_importances_` of the model of one user, by column.

        Examples
        --------
        >>> from dada import DadaClassifier
        >>> X, users = np.linspace(-1, 1, 20)[:, None], ["ann", "bob"] * 10
        >>> DadaClassifier(n_updates=20, random_state=0).fit(X, X[:, 0] > 0, users=users).importances_of("bob")
        {'x0': 1.0}
        """
        shares = self._importances(self.models_[[self._position(user)]])
        return dict(zip(self._columns()[0], shares.tolist(), strict=True))

    def feature_effects(self, user: Any = None) -> list[FeatureEffect]:
        """How decision values change when a feature rises from a low to a high value, the strongest effect first.

        Low and high are the 10 % and 90 % quantiles of the feature as base predictors know them, or 0 and 1 if it has
        no other values, as a level of text: two of its levels differ by the difference of their effects. The effect is
        exact, whatever the values of the other features, if models are sums of functions of one feature. With trees or
        waves it is the mean over typical values of the others. In
        regression it is in units of the target; with more than two classes there is an effect for each.

        Parameters
        ----------
        user : number or str, optional
            The user whose model to explain; by default the mean over all users.

        Examples
        --------
        >>> from dada import DadaRegressor
        >>> X, users = np.linspace(-1, 1, 40)[:, None], np.repeat(["ann", "bob"], 20)
        >>> model = DadaRegressor(random_state=0).fit(X, 3 * X[:, 0] + 1, users=users)
        >>> (effect,) = model.feature_effects()
        >>> effect.column, effect.effect > 2, effect.agreement
        ('x0', True, 1.0)
        >>> rise = model.predict([[effect.high]], users="ann") - model.predict([[effect.low]], users="ann")
        >>> bool(np.isclose(rise[0], model.feature_effects("ann")[0].effect, rtol=1e-4))
        True
        """
        check_is_fitted(self)
        models = self.models_ if user is None else self.models_[[self._position(user)]]
        columns, places = self._columns()
        low, high = references(self.predictors_).ends
        names = self.used_features_ or [columns[place] for place in places]
        found = []
        for label, of_users in zip(self._scored_labels(), effects(self.predictors_, models), strict=True):
            means = getattr(self, "target_scale_", 1.0) * of_users.mean(axis=0)
            agreement = (np.sign(of_users) == np.sign(means)).mean(axis=0)
            for d in np.flatnonzero(uses_of(self.predictors_).any(axis=0)).tolist():
                ends = float(low[d]), float(high[d]), float(means[d])
                found.append(FeatureEffect(columns[places[d]], names[d], label, *ends, float(agreement[d])))
        return sorted(found, key=lambda each: -abs(each.effect))

    def _importances(self, models: NDArray[Any]) -> NDArray[np.float64]:
        columns, places = self._columns()
        of_columns = np.bincount(places, weights=contributions(self.predictors_, models), minlength=len(columns))
        return of_columns / (of_columns.sum() or 1.0)

    def _columns(self) -> tuple[list[str], NDArray[np.intp]]:
        """Names of the columns of X, and the column of each feature."""
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            columns = [f"x{d}" for d in range(self.n_features_in_)]
            places = np.arange(self.n_features_in_)
            return columns, places if self.user_column is None else np.delete(places, self.user_column)
        columns = [str(name) for name in names]
        sources = self.input_columns_ if self.encoder_ is None else self.encoder_.source_column
        return columns, np.array([columns.index(str(name)) for name in sources or ()], np.intp)

    def _scored_labels(self) -> list[Any]:
        """The label of each block of decision values; None for numbers."""
        return [None]

    def _training_scores(self) -> tuple[str, NDArray[np.float64]]:
        """Name and value of each user's score on its training rows, NaN if it is not known."""
        raise NotImplementedError

    def _held_out_scores(self, alone: bool) -> dict[str, NDArray[np.float64]]:
        """Each user's scores on held-out rows, by name, NaN if there are none; empty for numbers."""
        return {}

    def _training_values(self) -> Iterator[tuple[Population, NDArray[np.int64], NDArray[np.float64]]]:
        """Training rows that are kept, the positions of their users, and decision values."""
        for held in getattr(self, "held_", []):
            at, _ = positions_of(self.users_, held.user_ids)
            h = training_predictions(held, self.predictors_, at)
            yield held, at, decisions(h, held.row_start, self.models_[at])

    def _position(self, user: Any) -> int:
        check_is_fitted(self)
        positions, unknown = positions_of(self.users_, [user])
        if unknown:
            raise self._unknown(unknown)
        return int(positions[0])

    def _repr_html_inner(self) -> str:
        """HTML for notebooks: the settings and, after a fit, the graph."""
        settings = str(super()._repr_html_inner())
        if not hasattr(self, "graph_"):
            return settings
        from dada.plot.panels import model_html

        return settings + model_html(self)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        return bundle | ({"text/html": self._repr_html_inner()} if "text/html" in bundle else {})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _settings(self) -> Settings:
        return Settings(**{item.name: getattr(self, item.name) for item in fields(Settings)})

    def _learn(
        self,
        settings: Settings,
        population: Population,
        observer: Observer = silent,
        checkpoint: Checkpoint = None,
        like: PersonalEstimator | None = None,
        test: Population | None = None,
    ) -> None:
        rng, watch = generator(self.random_state), fan_out(observer, write_line) if self.verbose else observer
        if settings.privacy is not None:
            private = fit_privately(settings, population, rng, watch, checkpoint)
            self._keep(population, private.home)
            self.released_models_, self.privacy_, self.centres_ = private.released, private.report, private.centres
            return
        # Drawn in any case: the run must not depend on whether there were trials.
        trial_rng = rng.spawn(1)[0]
        decided = decide(settings, population, trial_rng, watch) if like is None else like.decision_.filling(settings)
        self.decision_: Decided = decided
        found = fit(decided, population, rng, watch, checkpoint, test)
        self._keep(population, found)
        if self.status_ is Status.INTERRUPTED:
            warnings.warn(self.status_.value, ConvergenceWarning, stacklevel=3)
        if self.status_ is Status.FINISHED and not found.result.is_settled:
            warnings.warn(unsettled(found), ConvergenceWarning, stacklevel=3)

    def _targets(self, y: Any, fresh: bool) -> tuple[NDArray[Any], dict[str, Any]]:
        """Targets and what they are, for `Population.from_arrays`; `fresh`: learn the classes or the scale from y."""
        raise NotImplementedError

    def _adopted(self, population: Population) -> Population:
        """A population with targets as this estimator learns them."""
        raise NotImplementedError

    def _class_weights(self, population: Population) -> NDArray[np.float64] | None:
        """Weights of rows by their class."""
        return None

    def _population(
        self, X: Any, y: Any, users: Any, sample_weight: Any = None, *, reset: bool = True, fresh: bool = True
    ) -> Population:
        """Checked rows grouped by user. `reset`: relearn the features; `fresh`: relearn the classes or the scale."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        features, users = self._rows(X, users, reset=reset)
        targets, kind = self._targets(y, fresh)
        if reset and self.encoder_ is not None:
            _warn_of_leaks(X, y, self.encoder_)
        population = Population.from_arrays(
            features,
            targets,
            np.full(features.shape[0], "all") if users is None else users,
            feature_names=self.used_features_,
            sample_weight=sample_weight,
            **kind,
        )
        return self._weighted(population)

    def _weighted(self, population: Population) -> Population:
        """The population with the weights of classes, without rows of weight 0."""
        weights, by_class = population.weights, self._class_weights(population)
        if by_class is not None:
            weights = by_class if weights is None else weights * by_class
        if weights is None:
            return population
        kept = replace(population, weights=weights).take(weights > 0)
        empty = kept.user_ids[kept.sizes == 0]
        if empty.size:
            raise ValueError(f"{empty.size} users have no row of a weight above 0: {shorten(empty)}. Leave them out")
        return kept

    def _rows(self, X: Any, users: Any, reset: bool = False) -> tuple[Any, Any]:
        """X as finite numbers without the user column, and the user of each row, or None; sparse X stays sparse."""
        X = collected(X)
        if users is not None and self.user_column is not None:
            raise ValueError(
                f"X names the users in its column {self.user_column!r}, the user_column: leave users= out, "
                "or set user_column=None"
            )
        if is_frame(X):
            return self._frame_rows(X, users, reset)
        if not reset and self._finds_columns_by_name:
            raise ValueError(
                f"X must be a data frame, as at the fit, with the columns {shorten(self.input_columns_ or [], 20)}"
            )
        if reset:
            self.encoder_ = None
        checks: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64}
        checks["ensure_all_finite"] = hasattr(X, "toarray")
        if self.user_column is None:
            rows = validate_data(self, X, reset=reset, **checks)
        else:
            rest, users = without_column(X, self.user_column)
            validate_data(self, np.asarray(X), reset=reset, skip_check_array=True)
            rows = check_array(rest, estimator=self, **checks)
        return rows if hasattr(rows, "toarray") else as_features(rows)[0], users

    def _frame_rows(self, frame: Any, users: Any, reset: bool) -> tuple[Any, Any]:
        """`_rows` of a frame; after the fit its columns are found by name, if it has text or a user column."""
        if reset or not self._finds_columns_by_name:
            validate_data(self, frame, reset=reset, skip_check_array=True)
        if self.user_column is not None:
            frame, users = without_column(frame, self.user_column_)
        if reset:
            self.encoder_ = self._new_encoder(frame, users)
        if self.encoder_ is not None:
            return self.encoder_.transform(frame), users
        return as_features(frame if reset else _chosen(frame, self.input_columns_))[0], users

    def _new_encoder(self, frame: Any, users: Any) -> TableEncoder | None:
        if self.encode not in ENCODE:
            raise ValueError(f"encode must be one of {list(ENCODE)}, got {self.encode!r}")
        # Levels and medians would reveal the rows that privacy protects.
        is_protected = self.privacy is not None and self.privacy.protects == "rows"
        if self.encode == "never" or is_protected or not needs_encoding(frame):
            return None
        return TableEncoder.fit(frame, users=users)

    @property
    def _finds_columns_by_name(self) -> bool:
        return self.encoder_ is not None or (self.user_column is not None and hasattr(self, "feature_names_in_"))

    @property
    def input_columns_(self) -> list[str] | None:
        """The columns of a frame that predictions use, but for the user column; None after a fit to an array."""
        if self.encoder_ is not None:
            return list(self.encoder_.inputs)
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else [name for name in names.tolist() if name != self.user_column_]

    @property
    def user_column_(self) -> Any:
        """The user column: its name if X was a frame with names at the fit, else its position."""
        names = getattr(self, "feature_names_in_", None)
        is_position = names is not None and isinstance(self.user_column, int | np.integer)
        return names[self.user_column] if is_position and names is not None else self.user_column

    @property
    def used_features_(self) -> list[str] | None:
        """Names of the numbers that base predictors use: columns of a frame, or what encoding made of them."""
        return self.input_columns_ if self.encoder_ is None else list(self.encoder_.feature_names)

    def _decisions(self, X: Any, users: Any) -> NDArray[np.float64]:
        return self._placed_decisions(X, users)[0]

    def _placed_decisions(self, X: Any, users: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Decision value of each row, and the position of its user, -1 for unknown ones."""
        check_is_fitted(self)
        rows, users = self._rows(X, users)
        positions = self._positions(users, rows.shape[0])
        average = average_model(self.models_, self.confidence_) if (positions < 0).any() else None
        return blockwise_decisions(rows, positions, self.predictors_, self.models_, average), positions

    def _positions(self, users: Any, n_rows: int) -> NDArray[np.int64]:
        check_unknown_user(self.unknown_user)
        averages = self.unknown_user == "average"
        if users is None:
            if self.n_users_ > 1:
                raise ValueError(
                    f"the model was fitted for {self.n_users_} users: give users=, the user of each row, "
                    "or fit with user_column=, the column of X that names it"
                )
            return np.zeros(n_rows, np.int64)
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
            f"such as {shorten(self.users_, 3)}. Fit with rows of these users, or set unknown_user='average'"
        )

    def _keep(self, people: Population | ParquetUsers, found: Fit) -> None:
        self.users_ = people.user_ids
        self.n_users_ = people.n_users
        self.confidence_ = people.confidence
        self.predictors_ = found.predictors
        self.settings_ = found.settings | {"most_rows": int(people.sizes.max())}
        self.models_ = found.result.models
        self.graph_: CollaborationGraph = found.result.graph
        self.trace_ = found.result.trace
        self.ledger_ = found.result.ledger
        self.status_ = found.result.status
        self.n_iter_ = found.result.updates
        self.held_ = [people] if isinstance(people, Population) else []

    @property
    def objective_(self) -> float:
        """The joint objective at the end of the fit."""
        check_is_fitted(self)
        return float(self.trace_[-1].objective)

    @property
    def bits_(self) -> float:
        """Simulated communication of the fit, in bits."""
        check_is_fitted(self)
        return float(self.ledger_.bits)


def _chosen(frame: Any, names: list[str] | None) -> Any:
    """The named columns of a frame; all of them if there are no names."""
    if names is None:
        return frame
    given = list(frame_columns(frame))
    absent = [name for name in names if name not in given]
    if absent:
        raise ValueError(f"X has no column {shorten(absent)}, which the model needs; it has {shorten(given, 20)}")
    return frame[names]


def _warn_of_leaks(X: Any, y: Any, encoder: TableEncoder) -> None:
    found = telling_columns(X, as_values(y, "y"), encoder.inputs)
    if found:
        warnings.warn(
            f"y follows exactly from column {shorten(found)}: leave it out if it is not known before y", stacklevel=4
        )


def unsettled(found: Fit) -> str:
    """What a user can do about models that are far from their optimum."""
    return (
        f"models are far from settled after {found.settings['n_updates']} updates per user: their gap is "
        f"{found.result.relative_gap:.0%} of that of zero models. Set a larger n_updates, or a mu below "
        f"{found.settings['mu']:.3g} for weaker coupling"
    )


def write_line(event: Event) -> None:
    """Write a line to the standard error stream at every trial of a setting and every trace point."""
    if isinstance(event, TrialStarted):
        sys.stderr.write(f"trying on held-out rows: {event.choice}\n")
    if isinstance(event, TracePoint):
        sys.stderr.write(
            f"{event.updates} updates: objective {event.objective:.6g}, gap {event.gap:.3g}, "
            f"training accuracy {np.mean(event.train_accuracy):.3f}, {event.edges} edges, {event.bits:.3g} bits\n"
        )
