"""Whom somebody follows who learns while all others stand still: a few models are asked for, the best are kept.

Models are judged as a graph by evidence judges them (`dada.core.graph_steps`): by how well they do on own rows, and
by how many rows they come from. In a large population the first asked are drawn at random, the next are those whom the
best found so far follow, as gossip would find them; how many are asked does not depend on how many users there are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dada.core.compiled import Array, as_float, kernel
from dada.core.graph import CollaborationGraph
from dada.core.losses import REGRESSION
from dada.core.model_steps import PAIRWISE, ModelSettings, StepScratch, UserModel, make_scratch, model_step
from dada.core.problem import Problem, margins_of

# Asked in all; up to so many users, everybody is.
MOST_ASKED = 100
# Of these drawn at random: enough to meet a group that is a tenth of the population several times over.
DRAWN = 60


class Candidates(NamedTuple):
    """Those who can be asked: models, confidences, and the graph between them."""

    models: Array
    confidence: Array
    graph: CollaborationGraph


class Followed(NamedTuple):
    """Positions of the users whom somebody follows, and their weights, which sum to one."""

    users: NDArray[np.int64]
    weights: NDArray[np.float64]

    def mean(self, models: Array) -> NDArray[np.float64]:
        """The weighted mean of their models."""
        return np.asarray(self.weights @ models[self.users].astype(np.float64))


NOBODY = Followed(np.empty(0, np.int64), np.empty(0))


def alike(candidates: Candidates, rng: np.random.Generator, but: int = -1) -> Followed:
    """Everybody alike, or in a large population some drawn at random; `but` says who is asking, if it is in there."""
    users = _others(candidates, but)
    if users.size > MOST_ASKED:
        users = np.sort(rng.choice(users, MOST_ASKED, replace=False))
    return Followed(users, np.full(users.size, 1.0 / max(1, users.size)))


def best(
    candidates: Candidates, problem: Problem, n_neighbours: int, tau: float, rng: np.random.Generator, but: int = -1
) -> Followed:
    """The users whose models do best on the rows of a problem of one user.

    Examples
    --------
    >>> crowd = Crowd(np.array([[1.0], [-1.0], [2.0]]), np.ones(3), CollaborationGraph.empty(3))
    >>> problem = Problem(np.array([[1], [1]], np.int8), np.array([0, 2]), beta=2.0, mu1=1.0)
    >>> best(crowd, problem, 2, 1.0, np.random.default_rng(0)).users.tolist()
    [0, 2]
    """
    users = _others(candidates, but)
    if users.size == 0:
        return NOBODY
    if users.size > MOST_ASKED:
        users = np.append(
            rng.choice(users, DRAWN, replace=False), candidates.graph.neighbours(but)[0] if but >= 0 else []
        )
        users = np.unique(users.astype(np.int64))
    scores = log_evidence(candidates, users, problem, tau)
    while len(candidates.models) > MOST_ASKED > users.size:
        leaders = users[np.argsort(-scores, kind="stable")[:n_neighbours]]
        news = _followed_by(candidates.graph, leaders, np.append(users, but))[: MOST_ASKED - users.size]
        if news.size == 0:
            break
        users, scores = np.append(users, news), np.append(scores, log_evidence(candidates, news, problem, tau))
    kept = np.argsort(-scores, kind="stable")[:n_neighbours]
    kept = kept[np.argsort(users[kept])]
    weights = np.exp(scores[kept] - scores[kept].max())
    return Followed(users[kept], weights / weights.sum())


def log_evidence(candidates: Candidates, users: NDArray[np.int64], problem: Problem, tau: float) -> NDArray[np.float64]:
    """log of the unnormalised weights of users' models on the rows of one user."""
    models = candidates.models[users].astype(np.float64)
    margins = problem.offsets[:, None] + problem.A.astype(np.float64) @ models.T
    if problem.loss in REGRESSION:
        size = abs(margins)
        linear = (problem.loss == "huber") & (size > 1.0)
        losses = np.where(linear, size - 0.5, 0.5 * size**2)
    else:
        losses = np.logaddexp(0.0, -margins)
    totals = losses.sum(axis=0) if problem.weights is None else problem.sample_weight @ losses
    return np.asarray(np.log(candidates.confidence[users]) - tau * totals)


def _others(candidates: Candidates, but: int) -> NDArray[np.int64]:
    users = np.arange(len(candidates.models))
    return users[users != but]


def _followed_by(graph: CollaborationGraph, users: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those whom any of the users follows, without those who are known, in the order of the users."""
    followed = np.concatenate([graph.neighbours(int(k))[0] for k in users]).astype(np.int64)
    first = np.sort(np.unique(followed, return_index=True)[1])
    return followed[first][~np.isin(followed[first], known)]


def join(
    problem: Problem,
    mean: Array,
    *,
    start: Array | None = None,
    confidence: float = 1.0,
    n_updates: int = 200,
    dtype: type = np.float32,
) -> Array:
    """Learn one user's model next to neighbours whose models do not change.

    Parameters
    ----------
    problem : Problem
        Of this user alone.
    mean : array of shape (n_predictors,)
        The weighted mean of its neighbours' models, to which its own is drawn.
    start : array of shape (n_predictors,), optional
        Where its model starts; at the mean where not given.
    confidence : float
        Its number of samples as a part of the largest in the population.
    n_updates : int
        Pairwise steps.

    Returns
    -------
    array of shape (n_predictors,)

    Examples
    --------
    >>> problem = Problem(np.array([[1, -1], [1, 1]], np.int8), np.array([0, 2]), beta=2.0, mu1=1.0)
    >>> join(problem, np.array([0.0, 1.0]), n_updates=50).round(1).tolist()
    [1.0, 0.5]
    """
    if problem.n_users != 1 or mean.shape != (problem.n_predictors,):
        raise ValueError(
            f"one user and a mean of {problem.n_predictors} weights are wanted, got {problem.n_users} users "
            f"and shape {mean.shape}"
        )
    number = as_float(dtype)
    A = problem.A if problem.A.dtype == np.int8 else problem.A.astype(number)
    alpha, offset = (mean if start is None else start).astype(number), problem.offsets.astype(number)
    margins = margins_of(problem.A, problem.row_start, problem.offsets, alpha[None]).astype(number)
    support = np.zeros(alpha.size, np.int32)
    used = np.flatnonzero(alpha)
    support[: used.size] = used
    user = UserModel(
        np.ascontiguousarray(A), margins, alpha, mean.astype(number), support, offset, problem.sample_weight
    )
    scratch = make_scratch(alpha.size, margins.size, np.dtype(number))
    own_steps(problem.settings(number), float(confidence), user, used.size, n_updates, scratch)
    return alpha


@kernel
def own_steps(
    settings: ModelSettings, confidence: float, user: UserModel, n_support: int, n_updates: int, scratch: StepScratch
) -> None:
    """Pairwise steps of one user whose pull stands still."""
    for _ in range(n_updates):
        _, n_support, _ = model_step(PAIRWISE, settings, confidence, 1.0, user, n_support, -1.0, scratch)
