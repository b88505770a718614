"""Users who join after the fit, and new rows of known users."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dada.core.block_steps import BlockStep
from dada.core.plan import BLOCK_STEP
from dada.core.problem import Problem
from dada.data import Population
from dada.data.population import NUMERIC_KINDS, shorten
from dada.estimators.base import PersonalEstimator
from dada.fitting.models import positions_of
from dada.fitting.newcomers import NOBODY, Candidates, follow, learn_next_to, with_rows
from dada.fitting.settings import generator
from dada.task import problem, training_predictions

# Users with new rows are updated in turn, in this many rounds, so that each uses the others' latest models.
ROUNDS = 5


@dataclass(eq=False, repr=False)
class GrowingEstimator(PersonalEstimator):
    """An estimator whose users and rows change after the fit."""

    __metadata_request__partial_fit: ClassVar[dict[str, Any]] = {"users": True}

    def add_user(self, X: Any, y: Any, user: Any, *, n_updates: int | None = None) -> Self:
        """Learn a model for a new user; no other model changes.

        The newcomer fetches models (all, or 100 in a large population), follows those that do best on its own rows,
        starts from their mean and updates its model. If the fit used ``graph="everyone"`` or ``"none"``, so does the
        newcomer.

        Parameters
        ----------
        X, y : arrays of shapes (rows, features) and (rows,)
            The newcomer's rows, at least one. With `user_column`, that column of X holds its id.
        user : number or str
            Its id, not yet in `users_`.
        n_updates : int, optional
            Updates of its model, one move each; by default the number of moves per user of the fit.

        Returns
        -------
        The estimator itself, with one more user, the last in `users_`. The graph is directed from then on: the newcomer
        learns from others, who do not learn from it.

        Examples
        --------
        >>> from dada import DadaClassifier
        >>> X, y, users = [[0.0], [1.0], [0.2], [0.9]], [0, 1, 0, 1], ["ann", "ann", "bob", "bob"]
        >>> model = DadaClassifier(random_state=0).fit(X, y, users=users)
        >>> model.add_user([[0.1], [0.8]], [0, 1], "eve").predict([[0.0], [1.0]], users="eve")
        array([0, 1])
        """
        check_is_fitted(self)
        self._refuse_private()
        if positions_of(self.users_, [user])[0][0] >= 0:
            raise ValueError(f"user must be a new one, got {user!r}, who has a model: use partial_fit for more rows")
        users = np.full(np.shape(y)[0], user) if self.user_column is None else None
        population = self._population(X, y, users, reset=False, fresh=False)
        if population.user_ids.tolist() != [user]:
            raise ValueError(f"X must hold rows of user {user!r} only, got {shorten(population.user_ids)}")
        self._add(population, self._updates(n_updates))
        self.held_ = [*self._held(), population]
        return self

    def partial_fit(self, X: Any, y: Any, users: Any = None, *, n_updates: int | None = None) -> Self:
        """Continue to learn from new rows.

        The first call is a `fit`. Later, the models of users with new rows are updated in turn, next to the models that
        now do best on their rows; no other model changes. New users join as by `add_user`. With `half_life`, each time
        a user has new rows, each of its older rows is dropped with the probability that leaves half of them after
        `half_life` calls.

        Parameters
        ----------
        X, y, users
            As in `fit`: new rows, of known or new users.
        n_updates : int, optional
            Updates of each user with new rows, one move each; by default as many as per user in the first call.

        Notes
        -----
        The estimator keeps the rows, in `held_`, but not in model files, pickles or copies: these cannot continue to
        learn. Base predictors and settings stay those of the first call.

        Examples
        --------
        >>> from dada import DadaClassifier
        >>> X, users = [[0.0], [1.0], [0.2], [0.9]], ["ann", "ann", "bob", "bob"]
        >>> model = DadaClassifier(half_life=1.0, random_state=0).partial_fit(X, [0, 1, 0, 1], users=users)
        >>> for _ in range(5):
        ...     model = model.partial_fit(X, [1, 0, 1, 0], users=users)
        >>> model.predict([[0.0], [1.0]], users="ann")
        array([1, 0])
        """
        return self._continue(X, y, users, n_updates, fresh=True)

    def _continue(self, X: Any, y: Any, users: Any, n_updates: int | None, *, fresh: bool) -> Self:
        """`partial_fit`; `fresh`: the first call learns the classes or the scale from y."""
        self._refuse_private()
        if not hasattr(self, "models_"):
            self._learn(self._settings(), self._population(X, y, users, fresh=fresh))
            return self
        new = self._population(X, y, users, reset=False, fresh=False)
        updates, ids = self._updates(n_updates), new.user_ids
        unseen = positions_of(self.users_, ids)[0] < 0
        held = self._rows_of(ids[~unseen])
        if unseen.any():
            self._add(new.select(np.flatnonzero(unseen)), updates)
        if held is not None:
            held = self._thinned(held, np.isin(held.user_ids, ids))
        held = new if held is None else held.joined(new)
        self.held_ = [held]
        if not unseen.all():
            self._update(held.select(np.flatnonzero(np.isin(held.user_ids, ids[~unseen]))), updates)
        return self

    def _thinned(self, held: Population, returning: NDArray[np.bool_]) -> Population | None:
        """The rows left after `half_life` has dropped some of the returning users' rows."""
        rng = self._generator()
        if self.half_life is None:
            return held
        kept = ~returning[held.owners] | (rng.random(held.n_rows) < 0.5 ** (1.0 / self.half_life))
        left = held.take(kept)
        return left.select(np.flatnonzero(left.sizes)) if left.n_rows else None

    def _add(self, population: Population, n_updates: int) -> None:
        """Learn models for new users."""
        _refuse_other_kind(population.user_ids, self.users_)
        candidates, rng = self._candidates(), self._generator()
        confidence = population.sizes / self.settings_["most_rows"]
        followed, models = [], []
        for own, trust in zip(self._problems(population), confidence, strict=True):
            followed.append(follow(candidates, own, self.settings_, rng))
            models.append(learn_next_to(followed[-1], candidates, own, trust, n_updates))
        self.graph_ = with_rows(self.graph_, np.arange(self.n_users_, self.n_users_ + len(models)), followed)
        self.users_ = np.append(self.users_, population.user_ids)
        self.models_ = np.vstack([self.models_, *models])
        self.confidence_ = np.append(self.confidence_, confidence)
        self.n_users_ = len(self.users_)
        self.n_iter_ += n_updates * len(models)

    def _update(self, population: Population, n_updates: int) -> None:
        """Update the models of known users in turn, round after round."""
        at, rng = positions_of(self.users_, population.user_ids)[0], self._generator()
        self.confidence_[at] = population.sizes / self.settings_["most_rows"]
        problems = self._problems(population)
        candidates, followed = self._candidates(), [NOBODY] * len(at)
        for some in _shares(n_updates, ROUNDS):
            for p, (k, own) in enumerate(zip(at.tolist(), problems, strict=True)):
                followed[p] = follow(candidates, own, self.settings_, rng, k)
                model = learn_next_to(followed[p], candidates, own, self.confidence_[k], some, self.models_[k])
                self.models_[k] = model
        self.graph_ = with_rows(self.graph_, at, followed)
        self.n_iter_ += n_updates * len(at)

    def _problems(self, population: Population) -> list[Problem]:
        """The problem of each user by itself, with the settings of the fit."""
        used = self.settings_
        at = positions_of(self.users_, population.user_ids)[0]
        h = training_predictions(population, self.predictors_, at)
        options = {"loss": used["loss"], "beta": used["beta"], "mu1": used["mu"]}
        whole = problem(population, self.predictors_, predictions=h, **options)
        return [
            whole.of_rows(slice(first, last), np.array([0, last - first]))
            for first, last in pairwise(whole.row_start.tolist())
        ]

    def _rows_of(self, known: NDArray[Any]) -> Population | None:
        """All rows that are kept; refuses known users without any."""
        pieces = self._held()
        held = reduce(Population.joined, pieces) if pieces else None
        lost = known if held is None else known[~np.isin(known, held.user_ids)]
        if lost.size:
            raise ValueError(
                f"partial_fit needs the earlier rows of known users, but has none of {lost.size} of them: "
                f"{shorten(lost)}. Model files, pickles and copies keep no rows: fit again"
            )
        return held

    def _held(self) -> list[Population]:
        return getattr(self, "held_", [])

    def __getstate__(self) -> dict[str, Any]:
        # A model that is passed on must not pass on the rows it was learned from.
        return {name: value for name, value in super().__getstate__().items() if name != "held_"}

    def _refuse_private(self) -> None:
        if self.privacy is not None:
            raise ValueError("a private fit cannot grow: each further row or user needs a release. Fit again")

    def _updates(self, n_updates: int | None) -> int:
        if n_updates is None:
            moves = BlockStep().inner_moves if self.settings_.get("step") == BLOCK_STEP else 1
            return moves * int(self.settings_["n_updates"])
        if not isinstance(n_updates, Integral) or n_updates < 0:
            raise ValueError(f"n_updates must be an integer >= 0 or None, got {n_updates!r}")
        return int(n_updates)

    def _candidates(self) -> Candidates:
        return Candidates(self.models_, self.confidence_, self.graph_)

    def _generator(self) -> np.random.Generator:
        # The updates so far make calls with the same seed differ.
        seed = int(generator(self.random_state).integers(2**31))
        return np.random.default_rng([seed, self.n_users_, self.n_iter_])


def _shares(total: int, parts: int) -> list[int]:
    """A number split into about equal parts, without zeros.

    >>> _shares(7, 5), _shares(2, 5)
    ([1, 1, 2, 1, 2], [1, 1])
    """
    ends = np.arange(parts + 1) * total // parts
    return [part for part in np.diff(ends).tolist() if part]


def _refuse_other_kind(new: NDArray[Any], known: NDArray[Any]) -> None:
    """Refuse numbers as ids next to text, or text next to numbers."""
    if (new.dtype.kind in NUMERIC_KINDS) != (known.dtype.kind in NUMERIC_KINDS):
        raise TypeError(f"users must be of one kind: known are ids such as {shorten(known, 3)}, got {shorten(new, 3)}")
