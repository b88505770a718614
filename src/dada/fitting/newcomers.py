"""Choose neighbours for one user and update its model; all other models stay frozen.

Candidates are scored as by a graph of evidence (`dada.core.graph_steps`): by the loss of their models on the user's own
rows, and by their confidence. In a large population the first candidates are drawn at random, the next are neighbours
of the best so far, as gossip finds them; how many models are fetched does not depend on the number of users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import judged_losses
from dada.core.losses import margins_of
from dada.core.model_steps import PAIRWISE, UserModel, frozen_steps, make_scratch
from dada.core.problem import Problem
from dada.engine.state import as_float

# Models fetched at most.
MOST_ASKED = 100
# Of these drawn at random: enough to meet a group that is a tenth of the population several times.
DRAWN = 60


class Candidates(NamedTuple):
    """Users whose models can be fetched: models, confidences, and the graph between them."""

    models: Array
    confidence: Array
    graph: CollaborationGraph


class Followed(NamedTuple):
    """Positions of a user's neighbours, and their weights, which sum to one."""

    users: NDArray[np.int64]
    weights: NDArray[np.float64]

    def mean(self, models: Array) -> NDArray[np.float64]:
        """The weighted mean of their models."""
        return np.asarray(self.weights @ models[self.users].astype(np.float64))


NOBODY = Followed(np.empty(0, np.int64), np.empty(0))


def alike(candidates: Candidates, rng: np.random.Generator, but: int = -1) -> Followed:
    """All candidates except `but` with equal weights; of a large population, a random sample."""
    users = _others(candidates, but)
    if users.size > MOST_ASKED:
        users = np.sort(rng.choice(users, MOST_ASKED, replace=False))
    return Followed(users, np.full(users.size, 1.0 / max(1, users.size)))


def best(
    candidates: Candidates, problem: Problem, n_neighbours: int, tau: float, rng: np.random.Generator, but: int = -1
) -> Followed:
    """The users, except `but`, whose models do best on the rows of a problem of one user.

    Examples
    --------
    >>> candidates = Candidates(np.array([[1.0], [-1.0], [2.0]]), np.ones(3), CollaborationGraph.empty(3))
    >>> problem = Problem(np.array([[1], [1]], np.int8), np.array([0, 2]), beta=2.0, mu1=1.0)
    >>> best(candidates, problem, 2, 1.0, np.random.default_rng(0)).users.tolist()
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
    losses = judged_losses(problem.loss_code, margins)
    totals = losses.sum(axis=0) if problem.weights is None else problem.sample_weight @ losses
    return np.asarray(np.log(candidates.confidence[users]) - tau * totals)


def _others(candidates: Candidates, but: int) -> NDArray[np.int64]:
    users = np.arange(len(candidates.models))
    return users[users != but]


def _followed_by(graph: CollaborationGraph, users: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
    """Neighbours of the users, without known ones, in the order of the users."""
    followed = np.concatenate([graph.neighbours(int(k))[0] for k in users]).astype(np.int64)
    first = np.sort(np.unique(followed, return_index=True)[1])
    return followed[first][~np.isin(followed[first], known)]


def follow(
    candidates: Candidates, problem: Problem, settings: dict[str, Any], rng: np.random.Generator, k: int = -1
) -> Followed:
    """Neighbours of the user at position k, or of a newcomer, by the rule of the fit (`settings_`)."""
    graph = settings["graph"]
    if graph == "none" or settings["mu"] == 0:
        return NOBODY
    if graph == "everyone" and k < 0:
        return alike(candidates, rng)
    if graph in ("everyone", "given") and k >= 0:
        others, weights = candidates.graph.neighbours(k)
        return Followed(others.astype(np.int64), weights / max(weights.sum(), np.finfo(float).tiny))
    return best(candidates, problem, settings["n_neighbours"], settings["tau"], rng, k)


def learn_next_to(
    followed: Followed,
    candidates: Candidates,
    problem: Problem,
    confidence: float,
    n_updates: int,
    start: Array | None = None,
) -> Array:
    """Update one user's model next to those it follows, or alone if it follows nobody."""
    mean = followed.mean(candidates.models)
    if followed.users.size == 0:
        problem, mean = replace(problem, mu1=0.0), np.zeros(problem.n_predictors)
    dtype = candidates.models.dtype.type
    return join(problem, mean, start=start, confidence=confidence, n_updates=n_updates, dtype=dtype)


def with_rows(graph: CollaborationGraph, at: NDArray[Any], rows: Sequence[Followed]) -> CollaborationGraph:
    """The graph with these neighbours of the users at some positions, also behind the last; directed.

    >>> both = CollaborationGraph.from_edges(2, [0], [1], [1.0])
    >>> with_rows(both, np.array([2]), [Followed(np.array([0, 1]), np.array([0.5, 0.5]))]).neighbour_counts.tolist()
    [1, 1, 2]
    """
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


def join(
    problem: Problem,
    mean: Array,
    *,
    start: Array | None = None,
    confidence: float = 1.0,
    n_updates: int = 200,
    dtype: type = np.float32,
) -> Array:
    """The model of the one user of a problem after pairwise steps next to the weighted mean of its neighbours' models.

    It starts from `start`, or from the mean.

    Examples
    --------
    >>> problem = Problem(np.array([[1, -1], [1, 1]], np.int8), np.array([0, 2]), beta=2.0, mu1=1.0)
    >>> join(problem, np.array([0.0, 1.0]), n_updates=50).round(1).tolist()
    [1.0, 0.5]
    """
    if problem.n_users != 1 or mean.shape != (problem.n_predictors,):
        raise ValueError(
            f"the problem must have one user and the mean {problem.n_predictors} weights, got {problem.n_users} users "
            f"and shape {mean.shape}"
        )
    number = as_float(dtype)
    A = problem.A if problem.A.dtype == np.int8 else problem.A.astype(number)
    alpha, offset = (mean if start is None else start).astype(number), problem.offsets.astype(number)
    margins = margins_of(problem.A, problem.row_start, problem.offsets, alpha[None]).astype(number)
    # The types of a peer's arrays: the kernels that peers have compiled are found on disk.
    support = np.zeros(alpha.size, np.int16 if alpha.size < 2**15 else np.int32)
    used = np.flatnonzero(alpha)
    support[: used.size] = used
    user = UserModel(
        np.ascontiguousarray(A), margins, alpha, mean.astype(number), support, offset, problem.sample_weight,
        float(confidence), 1.0,
    )  # fmt: skip
    scratch = make_scratch(alpha.size, margins.size, np.dtype(number))
    frozen_steps(PAIRWISE, problem.settings(number), user, used.size, n_updates, scratch)
    return alpha
