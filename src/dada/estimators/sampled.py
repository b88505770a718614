"""Settings of a large population from samples of it, so that finding them takes no longer than a sample does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dada.core.plan import Plan
from dada.core.problem import Problem

# Sizes of the two samples, and of the populations from which on they are drawn.
SMALLER, LARGER = 500, 2000
MANY_USERS = 2 * LARGER
_COUNTS = ("n_updates", "local_updates", "graph_every", "first_graph_wakeups", "graph_wakeups", "trace_every")


def some_users(problem: Problem, plan: Plan, n_users: int, rng: np.random.Generator) -> tuple[Problem, Plan]:
    """The problem of some users drawn at random, and a plan with as many wake-ups for each of them.

    Examples
    --------
    >>> problem = Problem(np.ones((6, 1), np.int8), np.array([0, 1, 3, 6]), beta=1.0, mu1=1.0)
    >>> fewer, plan = some_users(problem, Plan(n_updates=30), 2, np.random.default_rng(1))
    >>> fewer.n_users, plan.n_updates
    (2, 20)
    """
    chosen = np.sort(rng.choice(problem.n_users, n_users, replace=False))
    rows = np.repeat(np.isin(np.arange(problem.n_users), chosen), problem.sizes)
    row_start = np.concatenate([[0], np.cumsum(problem.sizes[chosen])])
    counts = {name: getattr(plan, name) for name in _COUNTS}
    scaled = {name: math.ceil(value * n_users / problem.n_users) for name, value in counts.items() if value is not None}
    return problem.of_rows(rows, row_start), replace(plan, **scaled)


def extrapolated(
    find: Callable[[Problem, Plan], float], problem: Problem, plan: Plan, rng: np.random.Generator
) -> float:
    """What `find` would give for all users, from what it gives for two samples: it changes as a power of their number.

    A graph with a given number of neighbours has them nearer when there are more users to choose from, and its weights
    are then larger: the lam that leads to it falls as a power of the number of users.
    """
    smaller, larger = (find(*some_users(problem, plan, size, rng)) for size in (SMALLER, LARGER))
    return extended(smaller, larger, problem.n_users)


def extended(smaller: float, larger: float, n_users: int) -> float:
    """The value for so many users of a power of their number, from its values for the two samples.

    >>> round(extended(4.0, 2.0, 8000), 6)
    1.0
    """
    power = math.log(larger / smaller) / math.log(LARGER / SMALLER)
    return float(larger * (n_users / LARGER) ** power)
