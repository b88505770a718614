"""Settings of a large population from samples of it, so that finding them takes no longer than a sample does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.core.graph import CollaborationGraph
from dada.core.plan import Plan
from dada.core.problem import Problem
from dada.core.regularizers import LogDegree
from dada.data import Constant, Linear, Recipe, Stumps, Union
from dada.engine import run
from dada.fitting.rows import Rows

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


AUTO = "auto"
# Families of base predictors, and those that were given.
LINEAR, STUMPS, GIVEN = "linear", "stumps", "given"
# Pull towards neighbours as a multiple of the mean confidence: losses of few rows then meet a pull of their own scale.
MU_SCALE = {"adaboost": 2.0}
OTHER_MU_SCALE = 0.35
# Linear predictors are few, and a model of them needs less company.
MU_SCALE_OF_LINEAR = 0.5
BETA = 30.0
LEAST_UPDATES, MOST_UPDATES, UPDATES_OF_LINEAR = 200, 600, 2000
BY_EVIDENCE = ("evidence", "evidence-symmetric")
LEAST_GRAPH_EVERY, GRAPH_ROUNDS = 10.0, 20.0
GRAPH_EVERY = 50.0
# Cells of the margins beyond which stumps are left out, a quarter of a gigabyte in single precision.
MOST_CELLS = 1 << 26
MOST_STUMPS = 2000
# Up to here everyone can follow everyone.
FEW_USERS = 300
SOME_USERS = 50
LAM_EXPONENTS = (-6.0, 9.0)
# Short runs by which lam is sought; they end when the number of neighbours is within a tenth.
LAM_RUNS = 8
NEAR_ENOUGH = 0.1
LEAST_NEIGHBOURS = 0.01
# How many times lam grows, in logarithms, when neighbours grow once: seen on Moons between 5 and 25 of them.
USUAL_SLOPE = 3.0


def families(rows: Rows) -> dict[str, Recipe]:
    """Families of base predictors by name, the simplest first.

    Linear features are clipped; stumps lie at quantiles, four to ten per feature, with linear features beside them. All
    have a weakly coupled constant. Stumps are left out where several classes would make the table of margins too large.
    """
    D = rows.people.n_features
    linear: tuple[Recipe, ...] = (Linear(), Constant(coupling=0.1))
    per_feature = min(10, max(4, MOST_STUMPS // D))
    if rows.n_classes > 2:
        cells = rows.people.n_rows * (rows.n_classes - 1) * rows.n_classes
        per_feature = min(per_feature, MOST_CELLS // (cells * D) - 1)
    found: dict[str, Recipe] = {LINEAR: Union(*linear)}
    if per_feature >= 1:
        found[STUMPS] = Union(Stumps(per_feature=per_feature, drop_duplicates=True), *linear)
    return found


def numbers(params: dict[str, Any], rows: Rows, n_weights: int, family: str = GIVEN) -> dict[str, Any]:
    """The settings with a number in place of every ``"auto"`` that sizes decide; graph and lam stay."""
    used = dict(params)
    # Each class has weights of its own, and a row of C classes counts as C - 1 comparisons with the right one, whose
    # mean is the loss: bound, length and pull are those of two classes for each pair.
    n_classes = max(2, rows.n_classes)
    if used["loss"] == AUTO:
        used["loss"] = "squared" if rows.n_classes == 0 else "logistic"
    if used["beta"] == AUTO:
        used["beta"] = BETA * n_classes / 2
    if used["mu"] == AUTO:
        mu_scale = MU_SCALE.get(used["loss"], OTHER_MU_SCALE) * float(rows.people.confidence.mean())
        mu_scale *= MU_SCALE_OF_LINEAR if family == LINEAR else 1.0
        used["mu"] = mu_scale / (n_classes - 1)
    if used["n_updates"] == AUTO:
        # Linear features depend on each other and take many turns before they settle, but are quick.
        least = UPDATES_OF_LINEAR if family == LINEAR else LEAST_UPDATES
        used["n_updates"] = max(least, min(n_weights // 2, MOST_UPDATES * n_classes // 2))
    return used


def graph_every(params: dict[str, Any]) -> float:
    """Model updates per user between two rounds of graph updates."""
    if params["graph_every"] != AUTO:
        return float(params["graph_every"])
    graph = params["graph"]
    if isinstance(graph, str) and graph in BY_EVIDENCE:
        return max(LEAST_GRAPH_EVERY, params["n_updates"] / GRAPH_ROUNDS)
    return GRAPH_EVERY


def everyone(n_users: int, rng: np.random.Generator) -> CollaborationGraph:
    """Everybody joined to everybody alike; beyond 300 users, to about fifty others drawn at random.

    >>> everyone(4, np.random.default_rng(0)).mean_neighbours
    3.0
    """
    if n_users <= FEW_USERS:
        return CollaborationGraph.complete(n_users)
    rounds = [rng.permutation(n_users) for _ in range(SOME_USERS // 2)]
    pairs = np.concatenate([np.column_stack((order, np.roll(order, 1))) for order in rounds])
    pairs = np.unique(np.sort(pairs, axis=1), axis=0)
    return CollaborationGraph.from_edges(n_users, pairs[:, 0], pairs[:, 1], np.ones(len(pairs)))


def lam_for(
    problem: Problem, plan: Plan, n_neighbours: float, delta: float, rng: np.random.Generator, dtype: Any
) -> float:
    """The lam under which a learned graph has about so many neighbours per user.

    Models that have learned together are nearer to each other than those learned alone, and how near depends on lam: so
    short runs with some values of lam are tried, and between those that gave too few and too many neighbours the next
    value is interpolated. The first two values come from the graph between given models alone, which is quickly solved:
    one between models learned alone, which leads to too many, one between those of the first run, to too few.
    Of many users two samples are looked at instead.

    Examples
    --------
    >>> from dada.data import moons
    >>> from dada.task import Task
    >>> task = Task.of(moons(1, n_users=40).train, Stumps(n=40))
    >>> plan = Plan(n_updates=2000)
    >>> lam = lam_for(task.problem(beta=10.0, mu1=1.0), plan, 5.0, 0.01, np.random.default_rng(0), np.float32)
    >>> bool(lam > 0)
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
    """log lam to try next, from pairs of log lam and log of how many times too many neighbours it gave.

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
    # Near the middle: below some lam neighbours hardly become fewer, and interpolation would creep along there.
    return low + (high - low) * min(0.65, max(0.35, short / (short - excess)))


def _lam_between(problem: Problem, plan: Plan, models: NDArray[Any], wanted: float, delta: float, seed: int) -> float:
    """The lam under which the graph between given models has about so many neighbours per user, by bisection."""
    only_graph = replace(plan, n_updates=0, local_updates=0, restart="local", max_neighbours=None)
    low, high = LAM_EXPONENTS
    for _ in range(10):
        middle = 0.5 * (low + high)
        trial = replace(problem, regularizer=LogDegree(10.0**middle, delta))
        rng = np.random.default_rng(seed)
        found = run(trial, only_graph, rng, models=models, dtype=models.dtype.type).graph.mean_neighbours
        low, high = (middle, high) if found < wanted else (low, middle)
    return float(10.0 ** (0.5 * (low + high)))
