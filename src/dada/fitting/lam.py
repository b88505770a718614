"""Search for the lam that gives a learned graph the wanted number of neighbours.

A large population is represented by two samples, so that the search takes no longer than on a sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.core.graph_steps import LogDegree
from dada.core.plan import Plan
from dada.core.problem import Problem
from dada.engine import run
from dada.fitting.settings import LEAST_UPDATES, Settings

# Sizes of the two samples, and of the smallest population that they represent.
SAMPLES = (500, 2000)
MANY_USERS = 2 * SAMPLES[1]
_COUNTS = ("n_updates", "local_updates", "graph_every", "first_graph_wakeups", "graph_wakeups", "trace_every")


def find_lam(settings: Settings, problem: Problem, rng: np.random.Generator) -> float:
    """lam for ``n_neighbours`` neighbours per user of a graph that is learned from distances."""
    plan = settings.plan(problem.n_users)
    quick = replace(plan, n_updates=min(plan.n_updates, LEAST_UPDATES * problem.n_users))
    quick = replace(quick, max_bits=None, max_time_s=None, gap_tolerance=None)
    return lam_for(problem, quick, settings.n_neighbours, settings.delta, rng, settings.dtype)


def some_users(problem: Problem, plan: Plan, n_users: int, rng: np.random.Generator) -> tuple[Problem, Plan]:
    """The problem of a random sample of users, and a plan with the same number of wake-ups per user.

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
    find: Callable[[Problem, Plan], float],
    problem: Problem,
    plan: Plan,
    rng: np.random.Generator,
    samples: tuple[int, int] = SAMPLES,
) -> float:
    """What `find` would give for all users, from its values for two samples.

    With more users to choose from, a given number of neighbours is nearer and the graph's weights are larger: the lam
    that leads to it falls as a power of the number of users.
    """
    found = [find(*some_users(problem, plan, size, rng)) for size in samples]
    return extended(found[0], found[1], problem.n_users, samples)


def extended(smaller: float, larger: float, n_users: int, samples: tuple[int, int] = SAMPLES) -> float:
    """The value of a power law at `n_users`, from its values at the sizes of the two samples.

    >>> round(extended(4.0, 2.0, 8000), 6)
    1.0
    """
    power = math.log(larger / smaller) / math.log(samples[1] / samples[0])
    return float(larger * (n_users / samples[1]) ** power)


LAM_EXPONENTS = (-6.0, 9.0)
# The search ends after LAM_RUNS short runs, or when the number of neighbours is within a tenth.
LAM_RUNS = 8
NEAR_ENOUGH = 0.1
LEAST_NEIGHBOURS = 0.01
# d log(lam) / d log(neighbours), as measured on Moons between 5 and 25 neighbours.
USUAL_SLOPE = 3.0


def lam_for(
    problem: Problem, plan: Plan, n_neighbours: float, delta: float, rng: np.random.Generator, dtype: Any
) -> float:
    """The lam under which a learned graph has about `n_neighbours` neighbours per user.

    Models learned together are nearer to each other than models learned alone, and how near depends on lam. So short
    runs with some values of lam are tried, and the next value is interpolated between those that gave too few and too
    many neighbours. The first two values come from the graph between fixed models alone, which is solved quickly:
    between models learned alone, which gives too many neighbours, and between those of the first run, which gives too
    few. Of many users, two samples are used instead.

    Examples
    --------
    >>> from dada.data import Stumps, moons
    >>> from dada.task import problem
    >>> users = moons(1, n_users=40).train
    >>> joint = problem(users, Stumps(n=40).fit(users.X), beta=10.0, mu1=1.0)
    >>> lam_for(joint, Plan(n_updates=2000), 5.0, 0.01, np.random.default_rng(0), np.float32) > 0
    True
    """
    if problem.n_users > MANY_USERS and len(problem.A):
        return extrapolated(lambda some, few: lam_for(some, few, n_neighbours, delta, rng, dtype), problem, plan, rng)
    seed, wanted = int(rng.integers(2**31)), min(float(n_neighbours), problem.n_users - 1.0)
    models = run(replace(problem, mu1=0.0), replace(plan, learn_graph=False), rng, dtype=dtype).models
    lam = _lam_between(problem, plan, models, wanted, delta, seed)
    low, high = (10.0**end for end in LAM_EXPONENTS)
    tried: list[tuple[float, float]] = []
    while True:
        together = replace(problem, regularizer=LogDegree(lam, delta))
        result = run(together, plan, np.random.default_rng(seed), dtype=dtype)
        tried.append((math.log(lam), math.log(max(result.graph.mean_neighbours, LEAST_NEIGHBOURS) / wanted)))
        if len(tried) == 1:
            lam = _lam_between(problem, plan, result.models, wanted, delta, seed)
        else:
            lam = math.exp(_next_trial(tried))
        miss = min(abs(excess) for _, excess in tried)
        # Beyond the range of the search, lam has no influence left.
        if miss < NEAR_ENOUGH or len(tried) == LAM_RUNS or not low < lam < high:
            return math.exp(next(at for at, excess in tried if abs(excess) == miss))


def _next_trial(tried: list[tuple[float, float]]) -> float:
    """The next log lam to try, from pairs of log lam and the log ratio of found to wanted neighbours.

    >>> _next_trial([(0.0, -1.0), (4.0, 1.0)])
    2.0
    >>> _next_trial([(0.0, -1.0), (4.0, -0.5)]) > 4.0
    True
    """
    few, many = [pair for pair in tried if pair[1] < 0], [pair for pair in tried if pair[1] >= 0]
    if not few or not many:
        nearest, excess = min(tried, key=lambda pair: abs(pair[1]))
        return nearest - USUAL_SLOPE * excess
    (low, short), (high, excess) = max(few, key=lambda pair: pair[1]), min(many, key=lambda pair: pair[1])
    # Stay near the middle: below some lam the number of neighbours hardly falls, and interpolation would stall there.
    return low + (high - low) * min(0.65, max(0.35, short / (short - excess)))


def _lam_between(problem: Problem, plan: Plan, models: NDArray[Any], wanted: float, delta: float, seed: int) -> float:
    """The lam under which the graph between fixed models has about `wanted` neighbours per user, by bisection."""
    only_graph = replace(plan, n_updates=0, local_updates=0, restart="local", max_neighbours=None)
    low, high = LAM_EXPONENTS
    for _ in range(10):
        middle = 0.5 * (low + high)
        trial = replace(problem, regularizer=LogDegree(10.0**middle, delta))
        rng = np.random.default_rng(seed)
        found = run(trial, only_graph, rng, models=models, dtype=models.dtype.type).graph.mean_neighbours
        low, high = (middle, high) if found < wanted else (low, middle)
    return float(10.0 ** (0.5 * (low + high)))
