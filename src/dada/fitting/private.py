"""Private fits: what users release, what is computed from releases, and home models that never leave.

Rows: each user releases noisy statistics once; centres, groups and released models are computed from releases alone
(`dada.privacy.pooling`). Labels: each user releases its labels after randomised response; the usual fit runs on these.
Either way a user's home model is learned from its own exact rows next to what others released.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dada.core.bits import FLOATS, MESSAGES
from dada.core.graph import CollaborationGraph
from dada.core.plan import Status
from dada.data import BasePredictors, Constant, Linear, Population, Recipe, Union
from dada.engine import Ledger, RunResult
from dada.engine.model_loops import nothing_shared
from dada.events import Observer, TracePoint, silent
from dada.fitting.held_out import DOUBT, Choice, HeldOutScores, PerUserKFold, better_alone, decide
from dada.fitting.models import Checkpoint, Decided, Fit, decisions, fit
from dada.fitting.newcomers import NOBODY, Candidates, follow, learn_next_to
from dada.fitting.settings import Settings, everyone
from dada.privacy.accounting import Privacy, PrivacyCost, PrivacyLedger
from dada.privacy.noise import Bits, label_correlation
from dada.privacy.pooling import Pool, find_groups, home_model, own_excluded
from dada.privacy.release import (
    Statistics,
    StatisticsMechanism,
    read_labels,
    read_statistics,
    release_labels,
    worth_sending,
)
from dada.privacy.secure_sum import HONEST, LEAST_USERS, added, noise_share, summed_statistics, without
from dada.task import problem

FROM_RANGES = "public ranges"
HOME_FOLDS = 3
# Rows that estimate the size of base predictions on public ranges.
PROBES = 4096


class PrivacyReport(NamedTuple):
    """What a private fit released.

    `sent` is False where the noise estimate advised against it, and `reason` says why. `spent` is the cost of each
    user; `releases` holds the bytes of each user's release, in the order of `users_`, or nothing if only sums are seen.
    """

    sent: bool
    reason: str
    spent: PrivacyCost
    releases: tuple[bytes, ...]

    def __repr__(self) -> str:
        size = sum(map(len, self.releases))
        return f"PrivacyReport(sent={self.sent}, {len(self.releases)} releases of {size} bytes: {self.reason})"


class PrivateFit(NamedTuple):
    """A fit whose models are home models, the models that others can compute, and the report.

    `centres` are those of each user from released statistics, without its own, shape (users, centres, n, outputs).
    """

    home: Fit
    released: NDArray[Any]
    report: PrivacyReport
    centres: NDArray[np.float64] | None = None


class Shared(NamedTuple):
    """What a home model is learned next to: users' models and graph, their base predictors and the settings used."""

    predictors: BasePredictors
    settings: dict[str, Any]
    models: NDArray[Any]
    graph: CollaborationGraph


def fit_privately(
    settings: Settings,
    population: Population,
    rng: np.random.Generator,
    observer: Observer = silent,
    checkpoint: Checkpoint = None,
) -> PrivateFit:
    """Release once, learn from releases, then learn home models.

    Parameters
    ----------
    settings : Settings
        With `privacy`.
    population : Population
        Exact rows; only releases of them influence anything but home models.
    rng : numpy.random.Generator
        Randomness of the fit; of the noise only with ``noise="seeded"``.
    observer : callable
        Receives events of a fit to released labels; none of a fit to released statistics.
    checkpoint : path, optional
        Of a fit to released labels.
    """
    privacy = settings.privacy
    if privacy is None:
        raise ValueError("privacy must be given for a private fit, got None")
    if population.weights is not None:
        raise ValueError("privacy does not support weights: leave out sample_weight and class_weight")
    source: Bits = Bits() if privacy.noise == "secure" else Bits(rng.spawn(1)[0].bytes)
    with _opened(privacy) as ledger:
        if privacy.protects == "labels":
            return _by_labels(settings, privacy, population, rng, observer, checkpoint, ledger, source)
        return _by_statistics(settings, privacy, population, rng, ledger, source)


@contextmanager
def _opened(privacy: Privacy) -> Iterator[PrivacyLedger]:
    ledger = PrivacyLedger(privacy.ledger, epsilon=privacy.epsilon, delta=privacy.delta)
    try:
        yield ledger
    finally:
        ledger.close()


def _released(
    ledger: PrivacyLedger, population: Population, what: str, cost: PrivacyCost, make: Callable[[int, slice], bytes]
) -> tuple[bytes, ...]:
    """The release of each user, from the ledger if these rows were released before."""
    found = []
    for k, user in enumerate(population.user_ids.tolist()):
        rows = population.user_rows(k)
        digest = hashlib.sha256(np.ascontiguousarray(population.X[rows]).tobytes() + population.y[rows].tobytes())
        name = f"{what} of rows {digest.hexdigest()[:16]}"
        found.append(ledger.release(repr(user), name, cost, lambda k=k, rows=rows: make(k, rows)))  # type: ignore[misc]
    return tuple(found)


def public_predictors(recipe: Recipe | str | None, ranges: Any, n_features: int) -> BasePredictors:
    """Base predictors that depend on public ranges only.

    By default the features divided by their ranges, and a constant; zero stays zero where a range includes it, so that
    sparse rows stay short. A given recipe is fitted to the two corners of the ranges.

    Examples
    --------
    >>> public_predictors(None, (0, 10), 2).predict(np.array([[5.0, 20.0]]))
    array([[0.5, 1. , 1. ]], dtype=float32)
    """
    try:
        low, high = (np.broadcast_to(np.asarray(side, np.float64), (n_features,)) for side in ranges)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"ranges must be (low, high): two numbers, or two sequences of {n_features} numbers, got {ranges!r}"
        ) from error
    if not (np.isfinite(low) & np.isfinite(high) & (low <= high)).all() or not (low < high).any():
        raise ValueError("ranges must be finite with low <= high, and low < high for some feature")
    if isinstance(recipe, str):
        raise ValueError(f"privacy takes predictors as a recipe, such as dada.Stumps(), got {recipe!r}")
    if recipe is not None:
        return recipe.fit(np.stack([low, high]))
    furthest, keeps_zero = np.maximum(abs(low), abs(high)), (low <= 0) & (high >= 0) & (low < high)
    corners = np.stack([np.where(keeps_zero, -furthest, low), np.where(keeps_zero, furthest, high)])
    return Union(Linear(), Constant(coupling=0.1)).fit(corners)


def expected_square(predictors: BasePredictors, ranges: Any) -> float:
    """Mean of ||h||^2 over rows that are uniform in the public ranges: what can be known of rows without a `norm`.

    >>> round(expected_square(public_predictors(None, (-3, 3), 3), (-3, 3)), 1)
    2.0
    """
    low, high = (np.broadcast_to(np.asarray(side, np.float64), (predictors.n_features,)) for side in ranges)
    rows = np.random.default_rng(0).uniform(low, high, (PROBES, predictors.n_features))
    return float((predictors.predict(rows).astype(np.float64) ** 2).sum(axis=1).mean())


def _by_statistics(
    settings: Settings,
    privacy: Privacy,
    population: Population,
    rng: np.random.Generator,
    ledger: PrivacyLedger,
    source: Bits,
) -> PrivateFit:
    predictors = public_predictors(settings.predictors, privacy.ranges, population.n_features)
    h, y = predictors.predict(population.X).astype(np.float64), outputs(population)
    mechanism = StatisticsMechanism.calibrated(
        privacy.epsilon, privacy.delta, n_predictors=predictors.n, n_outputs=y.shape[1], norm=privacy.norm
    )
    square = None if privacy.norm is not None else expected_square(predictors, privacy.ranges)
    group = public_groups(privacy, population)
    # The noise of one release is enough for a sum.
    n_noises = int(group.max()) + 1 if privacy.secure_sum else population.n_users
    estimate = worth_sending(mechanism, n_noises, population.n_rows, square)
    cost, bodies = PrivacyCost(), tuple[bytes, ...]()
    coupling = np.asarray(predictors.coupling, np.float64)
    found = Pooled(
        np.zeros((population.n_users, 0, predictors.n, y.shape[1])),
        np.zeros((population.n_users, predictors.n, y.shape[1])),
        CollaborationGraph.empty(population.n_users),
        "none",
    )
    if estimate.send and population.n_users > 1:
        spec, cost = _spec(predictors, privacy), mechanism.cost(privacy.epsilon)
        shares = [noise_share(mechanism, max(1, int(HONEST * n))) for n in np.bincount(group)]
        used = [shares[j] if privacy.secure_sum else mechanism for j in group.tolist()]

        def make(k: int, rows: slice) -> bytes:
            return used[k].release(h[rows], y[rows], source, spec)

        what = "share of a sum" if privacy.secure_sum else "statistics"
        bodies = _released(ledger, population, f"{what} {spec} {mechanism.gram_steps}", cost, make)
        constant = predictors.n - 1 if settings.predictors is None else None
        for body in bodies:
            _checked(body, spec)
        if privacy.secure_sum:
            found = pooled_sums(bodies, group, coupling, constant, rng)
        else:
            found = pooled_releases(bodies, coupling, constant, rng)
    home = np.stack(
        [
            home_model(h[rows], y[rows], found.centres[k], coupling)
            for k, rows in enumerate(map(population.user_rows, range(population.n_users)))
        ]
    )
    shown = {"loss": "squared", "graph": found.name, "n_predictors": predictors.n, "predictors": settings.predictors}
    shown |= {"predictors_from": FROM_RANGES, "held_out": {}, "norm": mechanism.norm, "mu": 0.0, "n_updates": 0}
    shown |= {"gram_sigma": mechanism.gram_sigma, "moment_sigma": mechanism.moment_sigma}
    result = _result(_flat(home, settings), found.graph, len(bodies), predictors.n, y.shape[1])
    report = PrivacyReport(bool(bodies), estimate.reason, cost, () if privacy.secure_sum else bodies)
    return PrivateFit(Fit(predictors, shown, result), _flat(found.released, settings), report, found.centres)


class Pooled(NamedTuple):
    """What users learn from releases: centres for each, without its own part, released models, and the graph."""

    centres: NDArray[np.float64]
    released: NDArray[np.float64]
    graph: CollaborationGraph
    name: str


def pooled_releases(
    bodies: Sequence[bytes], coupling: NDArray[np.float64], constant: int | None, rng: np.random.Generator
) -> Pooled:
    """Groups that a mixture model finds in releases."""
    pool = Pool.of([read_statistics(body)[0] for body in bodies], coupling, constant)
    groups = find_groups(pool, rng)
    centres = np.stack([own_excluded(pool, groups, k) for k in range(pool.n_users)])
    name = f"{groups.n} groups" if groups.n > 1 else "everyone"
    return Pooled(centres, groups.released_models(), _group_graph(groups.share.argmax(axis=1)), name)


def pooled_sums(
    bodies: Sequence[bytes],
    group: NDArray[np.intp],
    coupling: NDArray[np.float64],
    constant: int | None,
    rng: np.random.Generator,
) -> Pooled:
    """Centres of secure sums: that of a user's group, and that of all groups if there are several."""
    members = [np.flatnonzero(group == j) for j in range(int(group.max()) + 1)]
    sums = [
        summed_statistics([bodies[k] for k in some.tolist()], int(HONEST * some.size), rng.bytes) for some in members
    ]

    def centre(total: Statistics) -> NDArray[np.float64]:
        return Pool.of([total], coupling, constant).centre(np.ones(1))

    centres = []
    for k, j in enumerate(group.tolist()):
        own, _ = read_statistics(bodies[k])
        totals = [sums[j]] if len(sums) == 1 else [sums[j], added(sums)]
        centres.append(np.stack([centre(without(total, own)) for total in totals]))
    of_groups = np.stack([centre(total) for total in sums])
    name = "everyone" if len(sums) == 1 else f"{len(sums)} public groups"
    return Pooled(np.stack(centres), of_groups[group], _group_graph(group), name)


def public_groups(privacy: Privacy, population: Population) -> NDArray[np.intp]:
    """Number of the public group of each user; all zero without groups."""
    users = population.user_ids.tolist()
    if privacy.groups is None:
        return np.zeros(len(users), np.intp)
    names = dict(privacy.groups)
    missing = [user for user in users if user not in names]
    if missing:
        raise ValueError(f"groups must name a group for each user, there is none for {missing[0]!r}")
    found, group = np.unique([names[user] for user in users], return_inverse=True)
    sizes = np.bincount(group)
    if sizes.min() < LEAST_USERS:
        raise ValueError(
            f"a group of a secure sum needs at least {LEAST_USERS} users, "
            f"{str(found[sizes.argmin()])!r} has {sizes.min()}"
        )
    return group


def outputs(population: Population) -> NDArray[np.float64]:
    """Targets as columns of norm 1 at most: -1 and 1, an indicator for each of several classes, or clipped numbers.

    >>> outputs(Population.from_arrays(np.zeros((3, 1)), ["a", "b", "c"], [1, 1, 1])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    if population.n_classes > 2:
        return np.eye(population.n_classes)[population.y]
    return np.clip(population.y.astype(np.float64), -1.0, 1.0)[:, None]


def _spec(predictors: BasePredictors, privacy: Privacy) -> str:
    """Digest of the base predictors and the norm: releases are comparable only if these agree."""
    probe = np.random.default_rng(0).uniform(-1, 1, (8, predictors.n_features))
    scale = np.max([np.max(np.abs(side)) for side in privacy.ranges])
    digest = hashlib.sha256(predictors.predict(probe * scale).tobytes() + repr(privacy.norm).encode())
    return digest.hexdigest()[:16]


def _checked(body: bytes, spec: str) -> Statistics:
    found, theirs = read_statistics(body)
    if theirs != spec:
        raise ValueError(f"a release has base predictors and ranges {theirs!r}, this fit has {spec!r}")
    return found


def _group_graph(group: NDArray[np.intp]) -> CollaborationGraph:
    """Equal weights between users of a group."""
    ends = []
    for j in np.unique(group):
        members = np.flatnonzero(group == j)
        if members.size > 1:
            k, l, _ = everyone(members.size, np.random.default_rng(members.size)).edges()
            ends.append(np.stack([members[k], members[l]]))
    if not ends:
        return CollaborationGraph.empty(len(group))
    k, l = np.concatenate(ends, axis=1)
    return CollaborationGraph.from_edges(len(group), k, l, np.ones(k.size))


def _flat(models: NDArray[np.float64], settings: Settings) -> NDArray[Any]:
    """Models of shape (users, n, outputs) with a block of n weights per output."""
    return np.ascontiguousarray(models.transpose(0, 2, 1).reshape(len(models), -1).astype(settings.dtype))


def _result(models: NDArray[Any], graph: CollaborationGraph, n_sent: int, n: int, n_outputs: int) -> RunResult:
    """The result of a fit without steps: every release reaches every other user once."""
    ledger = Ledger(models.shape[1])
    numbers = n * (n + 1) // 2 + n * n_outputs
    ledger.graph[MESSAGES] = n_sent * (len(models) - 1)
    # A number of a release has 64 bits, a float 32.
    ledger.graph[FLOATS] = ledger.graph[MESSAGES] * 2 * numbers
    unknown = np.full(len(models), np.nan, np.float32)
    edges = len(graph.edges()[0])
    point = TracePoint(0, 0, float("nan"), float("nan"), unknown, unknown[:0], edges, ledger.bits, ledger.graph_bits)
    shared = nothing_shared(0, 0, models.dtype)
    return RunResult(models, graph, (point,), ledger, Status.FINISHED, 0, shared, relative_gap=0.0)


def _by_labels(
    settings: Settings,
    privacy: Privacy,
    population: Population,
    rng: np.random.Generator,
    observer: Observer,
    checkpoint: Checkpoint,
    ledger: PrivacyLedger,
    source: Bits,
) -> PrivateFit:
    if population.n_classes == 0:
        raise ValueError("protects='labels' needs classes, got numbers: protect rows, with ranges and targets")
    n_classes, cost = population.n_classes, PrivacyCost(epsilon=privacy.epsilon)
    codes = (population.y > 0).astype(np.int64) if n_classes == 2 else population.y

    def make(k: int, rows: slice) -> bytes:
        return release_labels(codes[rows], n_classes, privacy.epsilon, source)

    bodies = _released(ledger, population, f"labels {privacy.epsilon!r}", cost, make)
    given = np.concatenate([read_labels(body) for body in bodies])
    noisy = replace(population, y=(2 * given - 1).astype(np.int8) if n_classes == 2 else given)
    decided = _decided(settings, noisy, rng.spawn(1)[0], observer)
    found = fit(decided, noisy, rng, observer, checkpoint)
    shared = Shared(found.predictors, found.settings, found.result.models, found.result.graph)
    home = home_models(shared, population, rng, kept=label_correlation(privacy.epsilon, n_classes))
    reason = f"Labels are sent after randomised response with epsilon {privacy.epsilon:g}; features are not protected."
    report = PrivacyReport(True, reason, cost, bodies)
    # Home models are other models than those of the trials.
    kept = replace(found, result=replace(found.result, models=home), values=None)
    return PrivateFit(kept, found.result.models, report)


def _decided(settings: Settings, noisy: Population, rng: np.random.Generator, observer: Observer) -> Decided:
    """Choices on flipped labels; of the families of base predictors, the one that was right most often.

    The usual choice takes a simpler family unless another is significantly better. Flipped labels hide such a
    difference, but users who learn from exact labels at home still lose it.
    """
    decided = decide(settings, noisy, rng, observer)
    graph = "evidence" if settings.is_graph("evidence") else "everyone"
    trials = {family: str(Choice(family, graph, whole=True)) for family in settings.recipes(noisy)}
    right = {family: decided.held_out[trial] for family, trial in trials.items() if trial in decided.held_out}
    family = max(right, key=lambda name: right[name], default=decided.family)
    if settings.predictors is not None or family == decided.family:
        return decided
    again = decide(replace(settings, predictors=family), noisy, rng, observer)
    return again._replace(held_out=decided.held_out | again.held_out)


class HomeTrials(NamedTuple):
    """Models of each user alone and next to its neighbours, shape (users, 2, weights), and their held-out rows.

    `right` has shape (2, rows): 1 where a model predicts a row that it did not learn from.
    """

    models: NDArray[Any]
    right: NDArray[np.float32]


def home_models(
    shared: Shared, population: Population, rng: np.random.Generator, doubt: float = DOUBT, kept: float = 1.0
) -> NDArray[Any]:
    """Each user's model from its exact rows next to its neighbours' released models, or alone if held-out rows say so.

    A user keeps its local model if that was significantly better on held-out rows (McNemar's test). If the labels that
    all others released are worth less than its own rows, the joint model must be significantly better. Nobody sees this
    choice, nor the neighbours that a user follows by evidence on its own rows: so they cost nothing.

    Parameters
    ----------
    shared : Shared
        Learned from released labels.
    population : Population
        Exact rows.
    rng : numpy.random.Generator
        Decides the folds.
    doubt : float
        Standard errors by which the less usual model must be better.
    kept : float
        Correlation of a released label with the exact one; its information is the square of this.
    """
    models, (alone, together) = home_trials(shared, population, rng, kept)
    is_little = kept**2 * (population.n_rows - population.sizes) < population.sizes
    gains = alone - together
    stays = np.where(is_little, ~better_alone(-gains, population, doubt), better_alone(gains, population, doubt))
    return np.where(stays[:, None], models[:, 0], models[:, 1])


def home_trials(shared: Shared, population: Population, rng: np.random.Generator, kept: float = 1.0) -> HomeTrials:
    """Learn each user's model alone and next to its neighbours, from all of its rows and without each fold.

    Flipped labels shorten a linear rule by the factor `kept`, and so the differences between users' rules, for which mu
    was chosen. At home, neighbours' models are lengthened by 1 / `kept`, up to the bound beta, and mu is multiplied by
    its square.
    """
    used = shared.settings
    h = shared.predictors.predict(population.X)
    norms = np.abs(shared.models).sum(axis=1, keepdims=True)
    longer = np.clip(used["beta"] / np.maximum(norms, np.finfo(np.float32).tiny), 1.0, 1 / kept)
    candidates = Candidates(shared.models * longer.astype(shared.models.dtype), population.confidence, shared.graph)
    mu = kept**2 * used["mu"]
    whole = problem(population, shared.predictors, predictions=h, loss=used["loss"], beta=used["beta"], mu1=mu)
    per_row = max(1, population.n_classes - 1)

    def learned(k: int, rows: NDArray[np.intp]) -> NDArray[Any]:
        """A model for each way to learn, from some rows of user k."""
        cells = (rows[:, None] * per_row + np.arange(per_row)).ravel()
        own = whole.of_rows(cells, np.array([0, cells.size]))
        trust = rows.size / population.sizes.max()
        ways = (NOBODY, follow(candidates, own, used, rng, k))
        return np.stack([learn_next_to(each, candidates, own, trust, int(used["n_updates"])) for each in ways])

    n_users = population.n_users
    rows_of = [np.arange(rows.start, rows.stop) for rows in map(population.user_rows, range(n_users))]
    models = np.stack([learned(k, rows) for k, rows in enumerate(rows_of)])
    found = HomeTrials(models, np.zeros((models.shape[1], population.n_rows), np.float32))
    folds = PerUserKFold(HOME_FOLDS, shuffle=True, random_state=rng)
    for remaining, tested in folds.split(population.owners, population.y, users=population.owners):
        held_out, ends = population.take(tested), np.searchsorted(remaining, population.row_start)
        parts = [remaining[ends[k] : ends[k + 1]] for k in range(n_users)]
        trial = np.stack([learned(k, rows) if rows.size else models[k] for k, rows in enumerate(parts)])
        for way in range(trial.shape[1]):
            values = decisions(h[tested], held_out.row_start, trial[:, way])
            found.right[way, tested] = HeldOutScores.of(held_out, values).right
    return found
