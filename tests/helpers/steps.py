"""One step of one user, outside any run."""

import numpy as np

from dada.core.model_steps import STEP_RULES, UserModel, make_scratch, model_step
from tests.helpers.problems import margins_in_numpy


def one_step(problem, graph, alpha, k, rule, gamma=-1.0, dtype=np.float64):
    """User k's model, support and margins after one step from the models `alpha`, and the number of changes."""
    n = problem.n_predictors
    own = alpha[k].astype(dtype)
    A = np.ascontiguousarray(problem.A[problem.row_start[k] : problem.row_start[k + 1]])
    neighbours, weights = graph.neighbours(k)
    neighbour_sum = (weights @ alpha[neighbours]).astype(dtype)
    support = np.zeros(n, np.int16)
    used = np.flatnonzero(own)
    support[: used.size] = used
    margins = margins_in_numpy(problem, k, own.astype(np.float64)).astype(dtype)
    offset = problem.offsets[problem.row_start[k] : problem.row_start[k + 1]].astype(dtype)
    sample_weight = problem.sample_weight[problem.row_start[k] : problem.row_start[k + 1]]
    known = problem.confidence[k], float(weights.sum())
    user = UserModel(A, margins, own, neighbour_sum, support, offset, sample_weight, *known)
    scratch, settings = make_scratch(n, A.shape[0], np.dtype(dtype)), problem.settings(dtype)
    move, n_support, n_changed = model_step(STEP_RULES[rule], settings, user, used.size, gamma, scratch)
    return user, support[:n_support], n_changed, move
