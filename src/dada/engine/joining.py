"""One user's updates while all others stand still: how somebody joins a population that has learned already."""

from __future__ import annotations

import numpy as np

from dada.core.compiled import Array, as_float, kernel
from dada.core.model_steps import PAIRWISE, ModelSettings, StepScratch, UserModel, make_scratch, model_step
from dada.core.problem import Problem, margins_of


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
    user = UserModel(np.ascontiguousarray(A), margins, alpha, mean.astype(number), support, offset, problem.emphasis)
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
