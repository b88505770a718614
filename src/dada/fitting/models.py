"""One fit, with settings whose open choices `held_out.decide` has made, and decision values of the fitted models.

Before it, a search finds the lam that gives a learned graph the wanted number of neighbours. A large population is
represented by two samples, so that the search takes no longer than on a sample.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dada.core.bits import OF_MODELS
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.losses import is_right, mean_per_user
from dada.core.plan import Plan, Status
from dada.core.problem import Problem, bytes_of_run, check_memory
from dada.data import BasePredictors, BoostedTrees, Population, Recipe
from dada.data.population import as_values
from dada.engine import RunResult, Samples, decision_values, run
from dada.engine.shards import Workers
from dada.events import Event, Observer, Stopped, silent
from dada.fitting.boosting import boost, boosted_of, with_leaves
from dada.fitting.settings import AUTO, LEAST_UPDATES, Settings
from dada.fitting.trees import Grove, trees_of
from dada.task import info, n_blocks, samples, shared_predictors, training_predictions

Checkpoint = str | os.PathLike[str] | None
# Share of the updates in which users learn alone, before a graph rule takes their models.
SHARE_ALONE = 0.25
# Wake-ups per user of the runs between which trees are grown; for other steps than block steps, moves.
GROWING_WAKEUPS, GROWING_MOVES = 20, 100
FROM_TREES = "trees that users grew, and merged summaries"


class HeldOutValues(NamedTuple):
    """Decision values of held-out rows, with the user and the number of the class of each row."""

    users: NDArray[Any]
    labels: NDArray[np.intp]
    values: NDArray[np.float64]


class Decided(NamedTuple):
    """The recipe of the base predictors and its family, settings with graph and mu, and the share right by trial.

    `mu_scale` is mu as a multiple of its automatic value; 1 if it was given. `values` are those of held-out rows in the
    trial most like the choice.
    """

    recipe: Recipe
    family: str
    settings: Settings
    held_out: dict[str, float]
    mu_scale: float = 1.0
    values: HeldOutValues | None = None

    def filling(self, settings: Settings) -> Decided:
        """The same choices for other settings, where these leave them open."""
        graph = self.settings.graph if settings.is_graph(AUTO) else settings.graph
        mu = self.settings.mu if settings.mu == AUTO else settings.mu
        is_same = graph is self.settings.graph and mu == self.settings.mu
        values = self.values if is_same else None
        return self._replace(settings=replace(settings, graph=graph, mu=mu), values=values)


@dataclass(frozen=True, eq=False)
class Fit:
    """Base predictors, the settings used (as `settings_` shows them), the result of the run and held-out values."""

    predictors: BasePredictors
    settings: dict[str, Any]
    result: RunResult
    values: HeldOutValues | None = None


def fit(
    decided: Decided,
    population: Population,
    rng: np.random.Generator,
    observer: Observer = silent,
    checkpoint: Checkpoint = None,
    test: Population | None = None,
) -> Fit:
    """Learn models and graph; what is still open in the settings follows from sizes.

    A checkpoint holds the state of the run: a run with the same data, settings and seed continues from it. The trace
    follows the accuracy on `test`, other rows of the same users.
    """
    recipe, family, settings, held_out, *_ = decided
    whole, (boosted, recipe) = recipe, boosted_of(recipe)
    # Users who learn alone have no trees of others.
    boosted = boosted if settings.is_shared and population.n_users > 1 else None
    boost_rng = None if boosted is None else rng.spawn(1)[0]
    predictors, predictions, source, bits = dictionary(recipe, family, settings, population, rng)
    settings = settings.resolved(population, predictors.n * n_blocks(population), family)
    if settings.max_bits is not None and bits:
        settings = replace(settings, max_bits=max(1.0, settings.max_bits - bits))
    problem = settings.problem(population, predictors, predictions)
    lam_rng = rng.spawn(1)[0] if settings.lam == AUTO else rng
    if settings.needs_lam(population.n_users):
        settings = replace(settings, lam=find_lam(settings, problem, lam_rng))
        problem = replace(problem, **settings.model_settings)
    if observer is not silent:
        title = f"{population.n_users} users, {population.n_rows} rows"
        observer(info(population, predictors, title))
    traced: dict[str, Any] = {}
    # Only two classes have an accuracy by signs.
    if population.n_classes == 2:
        traced["train"] = samples(population, predictors, predictions)
        if test is not None:
            traced["test"] = samples(test, predictors)
    ruled, stopped = settings.with_rule_of(population), []

    def watch(event: Event) -> None:
        """Boosted trees come before the end."""
        if boosted is not None and isinstance(event, Stopped):
            stopped.append(event)
        else:
            observer(event)

    watched = observer if boosted is None else watch
    result = run_engine(ruled, problem, rng, observer=watched, checkpoint=checkpoint, **traced)
    result.ledger.coded[OF_MODELS] += bits
    if bits:
        result = replace(result, trace=tuple(replace(point, bits=point.bits + bits) for point in result.trace))
    shown = settings.shown()
    if boosted is not None and boost_rng is not None and result.status is not Status.INTERRUPTED:
        coupled = decisions(predictions, population.row_start, result.models)
        predictors, result = _boosted(boosted, population, predictors, result, coupled, boost_rng, test)
        recipe = whole if result.status is not Status.INTERRUPTED else recipe
        observer(result.trace[-1])
        # Newcomers and later rows learn inside this bound.
        shown["beta"] = max(float(shown["beta"]), 1.01 * float(np.abs(result.models).sum(axis=1).max()))
    for event in stopped:
        observer(event)
    shown |= {"n_predictors": predictors.n, "predictors": recipe}
    return Fit(predictors, shown | {"predictors_from": source, "held_out": held_out}, result, decided.values)


def _boosted(
    recipe: BoostedTrees,
    population: Population,
    predictors: BasePredictors,
    result: RunResult,
    coupled: NDArray[np.float64],
    rng: np.random.Generator,
    test: Population | None,
) -> tuple[BasePredictors, RunResult]:
    """Base predictors and models with boosted trees beside them; `coupled` are the training rows' values without trees.

    The trace ends with a point of their accuracy and bits; its objective and gap remain those of the coupled models.
    """
    found = boost(recipe, population, rng)
    if not found.is_whole:
        return predictors, replace(result, status=Status.INTERRUPTED)
    predictors, models = with_leaves(predictors, result.models, found, recipe.share, n_blocks(population))
    result.ledger.coded[OF_MODELS] += found.bits
    end = replace(result.trace[-1], bits=result.trace[-1].bits + found.bits)
    if population.n_classes == 2:
        values = (1 - recipe.share) * coupled + recipe.share * found.values[:, 0]
        end = replace(end, train_accuracy=_accuracy(population, values))
        if test is not None:
            values = blockwise_decisions(test.X, test.owners, predictors, models, None)
            end = replace(end, test_accuracy=_accuracy(test, values))
    return predictors, replace(result, models=models, trace=(*result.trace, end))


def _accuracy(population: Population, values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Share of each user's rows whose class decision values of two classes give."""
    return mean_per_user(is_right(values, population.y), population.row_start).astype(np.float32)


class Dictionary(NamedTuple):
    """Base predictors, their predictions of the training rows, what they were fitted to, and the bits of agreeing."""

    predictors: BasePredictors
    predictions: NDArray[Any]
    source: str
    bits: int = 0


def dictionary(
    recipe: Recipe, family: str, settings: Settings, population: Population, rng: np.random.Generator
) -> Dictionary:
    """Fit base predictors; trees are grown in rounds, between which short runs find models, graph and residuals.

    Trees that no model uses after a run are forgotten. Without trees this draws nothing from the generator.

    Examples
    --------
    >>> from dada.data import Trees
    >>> people = Population.from_arrays(np.arange(40.0)[:, None], [0, 1] * 20, ["ann"] * 20 + ["bob"] * 20)
    >>> settings, rng = Settings(graph="everyone"), np.random.default_rng(0)
    >>> found = dictionary(Trees(per_user=3, rounds=0), "given", settings, people, rng)
    >>> found.predictors.n, found.predictions.shape
    (6, (40, 6))
    """
    trees, rest = trees_of(recipe)
    if trees is None:
        predictors, source = shared_predictors(recipe, population)
        check_fits(settings, population, predictors)
        return Dictionary(predictors, training_predictions(population, predictors), source)
    fixed = None if rest is None else shared_predictors(rest, population)[0]
    grove = Grove(trees, population, fixed, rng)
    bits = grove.grow()
    for _ in range(trees.rounds):
        predictors, predictions = grove.predictors, grove.predictions
        check_fits(settings, population, predictors)
        used = settings.resolved(population, predictors.n * n_blocks(population), family)
        quick = GROWING_WAKEUPS if used.takes_blocks else GROWING_MOVES
        used = replace(used, n_updates=min(quick, int(used.n_updates)), tol=None, lam=AUTO)
        problem = used.problem(population, predictors, predictions)
        found = run_engine(used.with_rule_of(population), problem, rng.spawn(1)[0], traced=False)
        values = decisions(predictions, population.row_start, found.models)
        bits += int(found.ledger.bits)
        grove.forget(found.models)
        bits += grove.grow(values, found.graph)
    check_fits(settings, population, grove.predictors)
    return Dictionary(grove.predictors, grove.predictions, FROM_TREES, bits)


def run_engine(
    settings: Settings,
    problem: Problem,
    rng: np.random.Generator,
    *,
    start: RunResult | None = None,
    train: Samples | None = None,
    test: Samples | None = None,
    observer: Observer = silent,
    checkpoint: Checkpoint = None,
    traced: bool = True,
    workers: Workers | None = None,
) -> RunResult:
    """Run the engine on a problem, from zero or from the end of another run, with settings that are all decided.

    Each trace point costs about as much as one move of every user: trials leave them out. The workers are those of the
    settings, unless others are given.
    """
    if callable(settings.graph):
        settings = replace(settings, graph=graph_by_rule(settings, problem, rng.spawn(1)[0]))
    plan, graph = settings.plan(problem.n_users), settings.given_graph(problem.n_users)
    if not traced:
        plan = replace(plan, trace_every=max(1, plan.n_updates))
    models = None if start is None else start.models
    if start is not None and plan.learn_graph:
        plan = replace(plan, local_updates=0, restart="local")
    options: Any = {"train": train, "test": test, "dtype": settings.dtype, "observer": observer}
    if start is not None and settings.takes_blocks:
        options["shared"] = start.shared
    with settings.workers() if workers is None else nullcontext(workers) as used:
        options["workers"] = used
        first = run(problem, plan, rng, graph=graph, models=models, **options, **_kept(checkpoint))
        if not (plan.learn_graph and settings.is_graph("evidence-symmetric")):
            return first
        fixed, both = replace(plan, learn_graph=False), _both_ways(first.graph)
        return run(problem, fixed, rng, graph=both, models=first.models, **options, **_kept(checkpoint, ".symmetric"))


def _both_ways(graph: CollaborationGraph) -> CollaborationGraph:
    """A directed graph made symmetric, without weights so small that single precision rounds them to zero."""
    both = graph.symmetrised()
    light = both.weights.max(initial=0.0) * 1e-6
    k, l, w = both.edges()
    return CollaborationGraph.from_edges(graph.n_users, k[w > light], l[w > light], w[w > light])


def graph_by_rule(settings: Settings, problem: Problem, rng: np.random.Generator) -> CollaborationGraph:
    """What a graph rule makes of models that users learned alone, in a quarter of the updates."""
    n_updates = max(1, round(float(settings.n_updates) * SHARE_ALONE))
    alone = replace(settings, graph="none", mu=0.0, n_updates=n_updates)
    local = run_engine(alone, replace(problem, **alone.model_settings), rng, traced=False)
    if local.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    made = settings.graph(local.models)
    return made if isinstance(made, CollaborationGraph) else CollaborationGraph.from_scipy(made)


def _kept(checkpoint: Checkpoint, part: str = "") -> dict[str, Any]:
    """The engine's checkpoint; a fit of two runs has a file for each."""
    path = None if checkpoint is None else os.fspath(checkpoint) + part
    return {"checkpoint": path, "resume": path is not None}


def check_fits(settings: Settings, population: Population, predictors: BasePredictors) -> None:
    """Refuse a run that needs more memory than is free, before its tables are made."""
    cell_bytes = 1 if predictors.dtype == np.int8 and population.n_classes == 2 else 4
    n_rows = population.n_rows * max(1, population.n_classes - 1)
    sizes = (population.n_users, n_rows, predictors.n * n_blocks(population))
    # Two tables: margins, and the predictions that they come from and that give accuracies.
    needed = bytes_of_run(
        *sizes,
        neighbours=max(20.0, settings.n_neighbours),
        cell_bytes=cell_bytes,
        copies=2,
        weighted=population.weights is not None,
    )
    what = f"a fit of {sizes[0]:,} users with {n_rows:,} rows and {sizes[2]:,} base predictors"
    check_memory(needed, what, "take fewer base predictors (predictors=), a sample of users, or a larger machine")


AVERAGE = -1
# Base predictions held at a time: a few megabytes, whatever the number of rows.
BLOCK_CELLS = 1 << 22


def positions_of(user_ids: NDArray[Any], users: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """Positions of users in `user_ids`, -1 for unknown ones, and the list of unknown users.

    >>> positions_of(np.array(["ann", "bob"]), ["bob", "zoe", "bob"])
    (array([ 1, -1,  1]), ['zoe'])
    """
    ids, row = np.unique(as_values(users, "users"), return_inverse=True)
    known = {user: k for k, user in enumerate(user_ids.tolist())}
    names = ids.tolist()
    where = np.array([known.get(name, AVERAGE) for name in names], dtype=np.int64)
    return where[row], [name for name in names if name not in known]


def average_model(models: NDArray[Any], confidence: NDArray[np.float64]) -> NDArray[Any]:
    """The mean of all models, weighted by confidence."""
    return (confidence @ models / confidence.sum()).astype(models.dtype)


def decisions(predictions: NDArray[Any], row_start: NDArray[np.int64], models: NDArray[Any]) -> NDArray[np.float64]:
    """Decision values of rows grouped by user; models with a block of weights per class give a column per class."""
    n = predictions.shape[1]
    n_blocks = models.shape[1] // n
    if n_blocks == 1:
        return np.asarray(decision_values(predictions, row_start, np.ascontiguousarray(models)))
    blocks = (np.ascontiguousarray(models[:, c * n : (c + 1) * n]) for c in range(n_blocks))
    return np.column_stack([decision_values(predictions, row_start, own) for own in blocks])


def blockwise_decisions(
    X: Any,
    positions: NDArray[np.int64],
    predictors: BasePredictors,
    models: NDArray[Any],
    average: NDArray[Any] | None,
    block_cells: int = BLOCK_CELLS,
) -> NDArray[np.float64]:
    """Decision value of each row of X under the model at its position; position -1 means the `average` model."""
    n_blocks = models.shape[1] // predictors.n
    values = np.empty((len(positions), n_blocks))
    order = np.argsort(positions, kind="stable")
    size = max(1, block_cells // predictors.n)
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        present, first = np.unique(positions[rows], return_index=True)
        used = models[present]
        if present[0] == AVERAGE:
            used[0] = average
        block = X[rows].toarray() if hasattr(X, "toarray") else X[rows]
        found = decisions(predictors.predict(block), np.append(first, len(rows)), used)
        values[rows] = found[:, None] if n_blocks == 1 else found
    return values[:, 0] if n_blocks == 1 else values


def best_class(values: NDArray[np.float64]) -> NDArray[np.intp]:
    """Number of the class with the largest decision value; of two classes, 1 if the value is positive."""
    return values.argmax(axis=1) if values.ndim > 1 else (values > 0).astype(np.intp)


def class_scores(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores of all classes that add up to 1: the logistic function of a decision value, or the softmax of several."""
    if values.ndim > 1:
        return np.asarray(softmax(values, axis=1))
    positive = expit(values)
    return np.column_stack((1 - positive, positive))


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
