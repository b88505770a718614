"""Users who come later, and rows that grow old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dada.core.graph import CollaborationGraph
from dada.core.problem import Problem
from dada.data.arrays import NUMERIC_KINDS, shorten
from dada.estimators.base import PersonalEstimator
from dada.fitting.fit import Learned
from dada.fitting.newcomers import NOBODY, Candidates, Followed, alike, best, join
from dada.fitting.rows import Rows, aged, both, of_users, positions_of
from dada.fitting.settings import generator

# Rounds in which users with new rows learn in turn, so that each meets what the others have learned meanwhile.
ROUNDS = 5


class GrowingEstimator(PersonalEstimator):
    """An estimator whose users and rows change after the fit."""

    __metadata_request__partial_fit: ClassVar[dict[str, Any]] = {"users": True}

    held_: list[Rows]

    def add_user(self, X: Any, y: Any, user: Any, *, n_updates: int | None = None) -> Self:
        """Give a new user a model from a few rows of its own, without touching anybody else's.

        The newcomer asks for models (of everybody, or of 100 users in a large population), follows those that do best
        on its own rows, starts from their mean and makes updates of its own. Where the fit let everybody learn from
        everyone alike, so does the newcomer; where everybody learned alone, it does too.

        Parameters
        ----------
        X, y : arrays of shapes (rows, features) and (rows,)
            The newcomer's rows, any number of them.
        user : number or str
            Its id, not yet in `users_`.
        n_updates : int, optional
            Its own model updates; as many as every user made in the fit where not given.

        Returns
        -------
        The estimator itself, with one user more, who stands last in `users_`. The graph is directed from then on: the
        newcomer learns from others who do not learn from it.

        Examples
        --------
        >>> from dada import DadaClassifier
        >>> X, y, users = [[0.0], [1.0], [0.2], [0.9]], [0, 1, 0, 1], ["ann", "ann", "bob", "bob"]
        >>> model = DadaClassifier(random_state=0).fit(X, y, users=users)
        >>> model.add_user([[0.1], [0.8]], [0, 1], "eve").predict([[0.0], [1.0]], users="eve")
        array([0, 1])
        """
        check_is_fitted(self)
        if positions_of(self.users_, [user])[0][0] >= 0:
            raise ValueError(f"user must be a new one, got {user!r}, who has a model: use partial_fit for more rows")
        rows = self._training_rows(X, y, np.full(np.shape(y)[0], user), reset=False, fresh=False)
        self._let_join(rows, self._own_updates(n_updates))
        self.held_ = [*self._held(), rows]
        return self

    def partial_fit(self, X: Any, y: Any, users: Any = None, *, n_updates: int | None = None) -> Self:
        """Go on learning from new rows, while older ones are forgotten little by little.

        The first call is a `fit`. Later, users who come with new rows go on from their models, in turn, drawn to those
        whose models now do best on the rows they have; nobody else's model changes. Users not seen before join as by
        `add_user`. Each time a user comes with new rows, its older ones are kept with the chance that leaves half of
        them after `half_life` times; all are kept where that is None.

        Parameters
        ----------
        X, y, users
            As of `fit`: new rows, of old or new users.
        n_updates : int, optional
            Model updates of each user who comes with rows; as many as each made in the first call where not given.

        Notes
        -----
        The estimator holds on to rows, in `held_`, to weigh them against new ones. They go into no model file, pickle
        or copy, so none of these can be fitted further. Base predictors and settings stay those of the first call.

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
        return self._go_on(X, y, users, n_updates, fresh=True)

    def _go_on(self, X: Any, y: Any, users: Any, n_updates: int | None, *, fresh: bool) -> Self:
        """`partial_fit`; `fresh` says whether the first call learns from y what targets mean."""
        if not hasattr(self, "models_"):
            self._learn(self._training_rows(X, y, users, fresh=fresh))
            return self
        new = self._training_rows(X, y, users, reset=False, fresh=False)
        updates, ids = self._own_updates(n_updates), new.people.user_ids
        unseen = positions_of(self.users_, ids)[0] < 0
        held = self._weighable(ids[~unseen])
        if unseen.any():
            self._let_join(of_users(new, np.flatnonzero(unseen)), updates)
        if held is not None:
            held = aged(held, np.isin(held.people.user_ids, ids), self.half_life, self._chance())
        held = new if held is None else both(held, new)
        self.held_ = [held]
        if not unseen.all():
            back = np.isin(held.people.user_ids, ids[~unseen])
            self._let_learn(of_users(held, np.flatnonzero(back)), updates)
        return self

    def _let_join(self, rows: Rows, n_updates: int) -> None:
        """Give models to users who have none."""
        _refuse_other_kind(rows.people.user_ids, self.users_)
        candidates, rng = self._candidates(), self._chance()
        confidence = rows.people.sizes / self.settings_["most_rows"]
        followed, models = [], []
        for problem, trust in zip(self._own_problems(rows), confidence, strict=True):
            followed.append(self._choice(candidates, problem, rng))
            models.append(self._steps(problem, followed[-1], trust, n_updates))
        self.graph_ = _with_rows(self.graph_, np.arange(self.n_users_, self.n_users_ + len(models)), followed)
        self.users_ = np.append(self.users_, rows.people.user_ids)
        self.models_ = np.vstack([self.models_, *models])
        self.confidence_ = np.append(self.confidence_, confidence)
        self.n_users_ = len(self.users_)
        self.n_iter_ += n_updates * len(models)

    def _let_learn(self, rows: Rows, n_updates: int) -> None:
        """Let users who have models go on in turn, round after round."""
        at, rng = positions_of(self.users_, rows.people.user_ids)[0], self._chance()
        self.confidence_[at] = rows.people.sizes / self.settings_["most_rows"]
        problems = self._own_problems(rows)
        candidates, followed = self._candidates(), [NOBODY] * len(at)
        for some in _shares(n_updates, ROUNDS):
            for p, (k, problem) in enumerate(zip(at.tolist(), problems, strict=True)):
                followed[p] = self._choice(candidates, problem, rng, k)
                self.models_[k] = self._steps(problem, followed[p], self.confidence_[k], some, self.models_[k])
        self.graph_ = _with_rows(self.graph_, at, followed)
        self.n_iter_ += n_updates * len(at)

    def _choice(self, candidates: Candidates, problem: Problem, rng: np.random.Generator, k: int = -1) -> Followed:
        """Whom the user at position k follows, or a newcomer: as the fit had it."""
        graph, settings = self.settings_["graph"], self.settings_
        if graph == "none" or settings["mu"] == 0:
            return NOBODY
        if graph == "everyone" and k < 0:
            return alike(candidates, rng)
        if graph in ("everyone", "given") and k >= 0:
            others, weights = self.graph_.neighbours(k)
            return Followed(others.astype(np.int64), weights / max(weights.sum(), np.finfo(float).tiny))
        return best(candidates, problem, settings["n_neighbours"], settings["tau"], rng, k)

    def _steps(
        self, problem: Problem, followed: Followed, confidence: float, n_updates: int, start: Any = None
    ) -> NDArray[Any]:
        """Own updates of one user next to those it follows; alone where there is nobody."""
        if followed.users.size == 0:
            problem, mean = replace(problem, mu1=0.0), np.zeros(problem.n_predictors)
        else:
            mean = followed.mean(self.models_)
        dtype = self.models_.dtype.type
        return join(problem, mean, start=start, confidence=confidence, n_updates=n_updates, dtype=dtype)

    def _own_problems(self, rows: Rows) -> list[Problem]:
        """The problem of each user by itself, in the terms of the fit."""
        used = self.settings_
        whole = rows.problem(self.predictors_, used["loss"], beta=used["beta"], mu1=used["mu"])
        return [
            whole.of_rows(slice(first, last), np.array([0, last - first]))
            for first, last in pairwise(whole.row_start.tolist())
        ]

    def _weighable(self, known: NDArray[Any]) -> Rows | None:
        """The rows that are held, if these users' are among them."""
        pieces = self._held()
        held = reduce(both, pieces) if pieces else None
        lost = known if held is None else known[~np.isin(known, held.people.user_ids)]
        if lost.size:
            raise ValueError(
                f"partial_fit weighs new rows against those before, but holds none of {lost.size} users with models: "
                f"{shorten(lost)}. Model files, pickles and copies keep no rows: fit again"
            )
        return held

    def _held(self) -> list[Rows]:
        return getattr(self, "held_", [])

    def __getstate__(self) -> dict[str, Any]:
        # Whoever passes a model on does not mean to pass on the rows it came from.
        return {name: value for name, value in super().__getstate__().items() if name != "held_"}

    def _own_updates(self, n_updates: int | None) -> int:
        if n_updates is None:
            return int(self.settings_["n_updates"])
        if not isinstance(n_updates, Integral) or n_updates < 0:
            raise ValueError(f"n_updates must be an integer >= 0 or None, got {n_updates!r}")
        return int(n_updates)

    def _candidates(self) -> Candidates:
        return Candidates(self.models_, self.confidence_, self.graph_)

    def _chance(self) -> np.random.Generator:
        # Updates made so far tell one call from the next, where the seed is the same.
        seed = int(generator(self.random_state).integers(2**31))
        return np.random.default_rng([seed, self.n_users_, self.n_iter_])

    def _keep(self, rows: Rows, learned: Learned) -> None:
        super()._keep(rows, learned)
        self.settings_["most_rows"] = int(rows.people.sizes.max())
        self.held_ = [rows]


def _shares(total: int, parts: int) -> list[int]:
    """A number cut into about equal parts, without zeros.

    >>> _shares(7, 5), _shares(2, 5)
    ([1, 1, 2, 1, 2], [1, 1])
    """
    ends = np.arange(parts + 1) * total // parts
    return [part for part in np.diff(ends).tolist() if part]


def _with_rows(graph: CollaborationGraph, at: NDArray[Any], rows: Sequence[Followed]) -> CollaborationGraph:
    """The graph with other rows at some positions, or behind its last."""
    n_users = max(graph.n_users, int(at.max()) + 1)
    replaced = np.isin(np.arange(n_users), at)
    owner = np.repeat(np.arange(graph.n_users), np.diff(graph.indptr))
    stays = ~replaced[owner]
    owner = np.concatenate([owner[stays], *(np.full(row.users.size, k) for k, row in zip(at, rows, strict=True))])
    others = np.concatenate([graph.indices[stays], *(row.users for row in rows)])
    weights = np.concatenate([graph.weights[stays], *(row.weights for row in rows)])
    order = np.lexsort((others, owner))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=n_users))]).astype(graph.indptr.dtype)
    return CollaborationGraph(indptr, others[order].astype(graph.indices.dtype), weights[order], directed=True)


def _refuse_other_kind(new: NDArray[Any], known: NDArray[Any]) -> None:
    """Refuse ids that would turn into text, or text into numbers, next to those known."""
    if (new.dtype.kind in NUMERIC_KINDS) != (known.dtype.kind in NUMERIC_KINDS):
        raise TypeError(f"users must be of one kind: known are ids such as {shorten(known, 3)}, got {shorten(new, 3)}")
