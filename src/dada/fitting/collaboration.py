"""Learn together with few bits: block steps on a sparse background graph, then on evidence if users gain from it.

1. All users make block steps on a background graph, the union of a few random cycles.
2. Each user asks some random peers for their shared models and compares two targets on folds of its own rows (see
   `dada.core.block_steps`). The mean gain decides for everybody.
3. The steps continue on the background, or on an evidence graph: every few wake-ups a user asks more peers and follows
   those whose models fit its rows best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dada.core.accuracy import Samples
from dada.core.bits import FLOATS, MESSAGES, OF_GRAPH, Ledger
from dada.core.block_steps import BlockStep, evidence_gain, evidence_weights, prefers_evidence
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import NEGLIGIBLE
from dada.core.model_steps import UserModel, make_scratch
from dada.core.plan import Plan, Status
from dada.core.problem import Problem
from dada.engine import RunResult, run
from dada.engine.block_loops import snapshot_bits
from dada.engine.state import SharedModels
from dada.events import Event, Observer, TracePoint, silent

ON_BACKGROUND = BlockStep(theta=0.5)
ON_EVIDENCE = BlockStep(theta=1.0, momentum=0.0)
N_FOLDS = 3
# Exchanges in which every user learns the mean gain; each carries the sums of gains and of squared gains.
GOSSIP_EXCHANGES = 10


@dataclass(frozen=True)
class Collaboration:
    """Settings of a collaboration. Counts are per user.

    Parameters
    ----------
    wakeups, before_switch : int
        Block steps in total, and those before users compare background and evidence.
    n_background : int
        Neighbours on the background graph, even.
    n_asked : int
        Random peers that a user asks for their models before it compares.
    n_neighbours : int
        Peers that a user follows by evidence at most.
    tau : float
        How sharply evidence decides between models.
    ask_every, ask : int
        By evidence, a user asks `ask` more peers every `ask_every` wake-ups on average.
    on_background, on_evidence : BlockStep
        The block steps on either graph.
    """

    wakeups: int = 80
    before_switch: int = 15
    n_background: int = 10
    n_asked: int = 20
    n_neighbours: int = 8
    tau: float = 1.0
    ask_every: int = 5
    ask: int = 2
    on_background: BlockStep = ON_BACKGROUND
    on_evidence: BlockStep = ON_EVIDENCE

    def __post_init__(self) -> None:
        if not 0 <= self.before_switch <= self.wakeups:
            raise ValueError(f"before_switch must be in 0..wakeups = {self.wakeups}, got {self.before_switch}")
        for name in ("n_asked", "n_neighbours", "ask_every", "ask"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")


DEFAULT = Collaboration()


@dataclass(frozen=True, eq=False)
class CollaborationResult:
    """The outcome of a collaboration.

    Attributes
    ----------
    models, graph, trace, ledger, status
        As of `RunResult`, of all runs together.
    gains : array of shape (n_users,)
        Log-likelihood of a user's held-out rows by evidence minus that by background; empty if not compared.
    by_evidence : bool
        Whether users went over to evidence.
    """

    models: Array
    graph: CollaborationGraph
    trace: tuple[TracePoint, ...]
    ledger: Ledger
    status: Status
    gains: Array
    by_evidence: bool


def collaborate(
    problem: Problem,
    rng: np.random.Generator,
    settings: Collaboration = DEFAULT,
    *,
    rows_per_sample: int = 1,
    train: Samples | None = None,
    test: Samples | None = None,
    observer: Observer = silent,
    dtype: type = np.float32,
) -> CollaborationResult:
    """Learn models on a background graph, or on evidence if held-out rows say so.

    Parameters
    ----------
    problem : Problem
        Data and objective; its graph regularizer is not used.
    rng : numpy.random.Generator
        Source of the graph, the peers asked, the folds and the schedules.
    settings : Collaboration
        Numbers of wake-ups, neighbours and peers asked.
    rows_per_sample : int
        Consecutive rows of the problem that belong to one sample, and to one fold: with C classes, C - 1.
    train, test : Samples, optional
        Data for the accuracies in the trace.
    observer : callable
        Receives the events of all runs.
    dtype : float32 or float64
        Precision of the models.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> A = rng.choice(np.array([-1, 1], np.int8), size=(60, 4), p=[0.3, 0.7])
    >>> problem = Problem(A, np.arange(0, 61, 5), beta=5.0, mu1=0.2, loss="logistic")
    >>> result = collaborate(problem, rng)
    >>> result.by_evidence, result.ledger.bits < 1e6
    (False, True)
    """
    K = problem.n_users
    background = CollaborationGraph.background(K, rng, settings.n_background)
    steps = Plan(settings.before_switch * K, learn_graph=False, step="block", block=settings.on_background)
    runs = _Runs(problem, rng, observer, dict(train=train, test=test, dtype=dtype))
    first = runs.go(steps, background)
    gains, chosen = np.zeros(0), background
    rest = replace(steps, n_updates=(settings.wakeups - settings.before_switch) * K)
    if first.status is Status.FINISHED and K > 2 and problem.mu1 > 0 and rest.n_updates > 0:
        asked = ask_peers(background, settings.n_asked, rng)
        folds = deal_folds(problem.sizes, rows_per_sample, rng)
        gains, chosen = compare(problem, first.shared, background, asked, folds, settings)
        runs.ledgers.append(price_of_comparison(asked, first.shared))
    by_evidence = gains.size > 0 and prefers_evidence(gains)
    if by_evidence:
        rest = replace(
            rest, learn_graph=True, graph_rule="evidence", sampler="uniform", block=settings.on_evidence,
            kappa=min(settings.ask, K - 1), n_neighbours=settings.n_neighbours, tau=settings.tau, restart="local",
            local_updates=0, first_graph_wakeups=0, graph_every=settings.ask_every * K, graph_wakeups=K,
        )  # fmt: skip
    last = first
    if first.status is Status.FINISHED and rest.n_updates > 0:
        last = runs.go(rest, chosen if by_evidence else background, first)
    return CollaborationResult(last.models, last.graph, tuple(runs.trace), runs.ledger, last.status, gains, by_evidence)


class _Runs:
    """Runs one after the other, as one: with one trace and one ledger."""

    def __init__(self, problem: Problem, rng: np.random.Generator, observer: Observer, options: dict[str, Any]) -> None:
        self.problem, self.rng, self.observer, self.options = problem, rng, observer, options
        self.ledgers: list[Ledger] = []
        self.trace: list[TracePoint] = []

    @property
    def ledger(self) -> Ledger:
        """All that was sent."""
        total = Ledger(self.problem.n_predictors)
        for ledger in self.ledgers:
            for name in ("models", "graph", "coded"):
                getattr(total, name)[...] += getattr(ledger, name)
        return total

    def go(self, plan: Plan, graph: CollaborationGraph, before: RunResult | None = None) -> RunResult:
        """One more run; it continues the models of the run before."""
        ledger, updates = self.ledger, 0 if before is None else before.updates
        wakeups = self.trace[-1].graph_wakeups if self.trace else 0

        def shifted(point: TracePoint) -> TracePoint:
            return replace(
                point,
                updates=point.updates + updates,
                graph_wakeups=point.graph_wakeups + wakeups,
                bits=point.bits + ledger.bits,
                graph_bits=point.graph_bits + ledger.graph_bits,
            )

        def observer(event: Event) -> None:
            self.observer(shifted(event) if isinstance(event, TracePoint) else event)

        start: dict[str, Any] = {} if before is None else {"models": before.models, "shared": before.shared}
        seen = silent if self.observer is silent else observer
        result = run(self.problem, plan, self.rng, graph=graph, observer=seen, **start, **self.options)
        self.ledgers.append(result.ledger)
        self.trace += [shifted(point) for point in result.trace[min(len(self.trace), 1) :]]
        return result


def ask_peers(background: CollaborationGraph, n_asked: int, rng: np.random.Generator) -> list[Array]:
    """Random peers of each user, ascending, none of them a neighbour."""
    K = background.n_users
    asked = []
    for k in range(K):
        known = np.append(background.indices[background.indptr[k] : background.indptr[k + 1]], k)
        drawn = rng.choice(K, min(n_asked + known.size, K), replace=False)
        asked.append(np.sort(drawn[~np.isin(drawn, known)][:n_asked]))
    return asked


def deal_folds(sizes: Array, rows_per_sample: int, rng: np.random.Generator) -> Array:
    """A fold for every row: each user's samples are dealt out in random order, -1 for a user's only sample.

    >>> deal_folds(np.array([1, 4, 2]), 1, np.random.default_rng(0)).tolist()
    [-1, 2, 0, 1, 0, 1, 0]
    """
    folds = []
    for size in sizes // rows_per_sample:
        order = rng.permutation(size) % N_FOLDS if size > 1 else np.full(size, -1)
        folds.append(np.repeat(order, rows_per_sample))
    return np.concatenate(folds)


def compare(
    problem: Problem,
    shared: SharedModels,
    background: CollaborationGraph,
    asked: Sequence[Array],
    folds: Array,
    settings: Collaboration,
) -> tuple[Array, CollaborationGraph]:
    """Each user's gain from evidence, and the evidence graph among those it knows: its neighbours and those asked."""
    dtype = shared.model.dtype
    kernel_settings = problem.settings(dtype)
    scratch = make_scratch(problem.n_predictors, int(problem.sizes.max()), dtype)
    A = np.ascontiguousarray(problem.A, np.int8 if problem.A.dtype == np.int8 else dtype)
    offsets, moves = problem.offsets.astype(dtype), settings.on_background.inner_moves
    gains, indices, weights = np.zeros(problem.n_users), [], []
    for k, peers in enumerate(asked):
        own = slice(problem.row_start[k], problem.row_start[k + 1])
        zero = np.zeros(problem.n_predictors, dtype)
        support = np.zeros(problem.n_predictors, shared.support.dtype)
        rows = UserModel(
            A[own], offsets[own], zero, zero.copy(), support, offsets[own], problem.sample_weight[own],
            problem.confidence[k],
        )  # fmt: skip
        neighbours = background.indices[background.indptr[k] : background.indptr[k + 1]]
        known = np.union1d(neighbours, peers)
        models, sizes = shared.model[known], problem.sizes[known]
        mean = shared.model[neighbours].mean(axis=0, dtype=np.float64).astype(dtype)
        gains[k] = evidence_gain(
            kernel_settings, rows, folds[own], mean, models, sizes,
            settings.tau, settings.n_neighbours, moves, scratch,
        )  # fmt: skip
        found = evidence_weights(kernel_settings, rows, models, sizes, settings.tau, settings.n_neighbours)
        indices.append(known[found > NEGLIGIBLE])
        weights.append(found[found > NEGLIGIBLE])
    indptr = np.concatenate([[0], np.cumsum([len(found) for found in indices])])
    arrays = indptr.astype(np.int64), np.concatenate(indices).astype(np.int32), np.concatenate(weights)
    return gains, CollaborationGraph(*arrays, directed=True)


def price_of_comparison(asked: Sequence[Array], shared: SharedModels) -> Ledger:
    """What the comparison sends: a snapshot and a number of samples per peer asked, and the gossip of gains."""
    n_users, n = shared.model.shape
    ledger = Ledger(n)
    everyone = np.concatenate(asked)
    ledger.graph[MESSAGES] = everyone.size + GOSSIP_EXCHANGES * n_users
    ledger.graph[FLOATS] = everyone.size + 2 * GOSSIP_EXCHANGES * n_users
    ledger.coded[OF_GRAPH] = snapshot_bits(shared)[everyone].sum()
    return ledger
