"""The settings of a run, its schedule of wake-ups, and the reasons it may stop."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dada.core.block_steps import BlockStep
from dada.core.compiled import Array, kernel
from dada.core.graph import N_CANDIDATES, N_GUESTS, BatchMix, gossip_mix, uniform_mix
from dada.core.graph_steps import GRAPH_STEPS
from dada.core.model_steps import STEP_RULES


class Status(Enum):
    """The reason a run stopped."""

    FINISHED = "All planned updates were made."
    CONVERGED = "The gap fell below the wanted tolerance."
    OUT_OF_BITS = "The communication budget is used up."
    OUT_OF_TIME = "The time limit was reached."
    INTERRUPTED = "The run was interrupted; its state so far is kept."


BLOCK = 4096
MODEL_STREAM, LOCAL_STREAM, GRAPH_STREAM = 0, 1, 2
# Numbers of draws; the users of a stream have twice its number.
BATCHES, RANDOM_BITS = 2 * GRAPH_STREAM + 1, 2 * GRAPH_STREAM + 3


@dataclass(frozen=True)
class Schedule:
    """The wake-ups of a population, as a function of the event number.

    `key` is the seed of all draws, `kappa` the number of peers asked at a graph wake-up. With a `span`, each block of
    model wake-ups is drawn from this many consecutive users, starting at a random one.
    """

    key: int
    n_users: int
    kappa: int
    span: int | None = None

    def __post_init__(self) -> None:
        if self.n_users < 1:
            raise ValueError(f"n_users must be at least 1, got {self.n_users}")
        if self.n_users > 1 and not 1 <= self.kappa <= self.n_users - 1:
            raise ValueError(f"kappa must be in 1..{self.n_users - 1} (n_users - 1), got {self.kappa}")

    @classmethod
    def draw(cls, rng: np.random.Generator, n_users: int, kappa: int, span: int | None = None) -> Schedule:
        """A schedule with a key from a generator."""
        return cls(int(rng.integers(2**63)), n_users, kappa, span)

    def users(self, stream: int, start: int, stop: int) -> Array:
        """The users that wake at events start..stop-1 of a stream."""
        return self._read(2 * stream, start, stop)

    def batches(self, start: int, stop: int) -> Array:
        """The kappa distinct peers, none the user itself, asked at graph events start..stop-1."""
        batches = self._read(BATCHES, start, stop)
        distinct_peers(batches, self.users(GRAPH_STREAM, start, stop), self.n_users)
        return batches

    def random_bits(self, start: int, stop: int, per_event: int) -> Array:
        """Random 32-bit numbers for graph events start..stop-1, for choices that depend on the state of the run."""
        return self._read(RANDOM_BITS, start, stop, per_event)

    def _read(self, draws: int, start: int, stop: int, per_event: int = 0) -> Array:
        first, last = start // BLOCK, max(start, stop - 1) // BLOCK
        blocks = [_drawn(self, draws, number, per_event) for number in range(first, last + 1)]
        offset = first * BLOCK
        return np.concatenate(blocks)[start - offset : stop - offset]


# Short chunks of a run read the same block many times.
@lru_cache(maxsize=16)
def _drawn(schedule: Schedule, draws: int, number: int, per_event: int) -> Array:
    """One block of draws."""
    n_users, kappa, span = schedule.n_users, schedule.kappa, schedule.span
    counter = np.array([0, 0, number, draws], dtype=np.uint64)
    rng = np.random.Generator(np.random.Philox(key=schedule.key, counter=counter))
    if draws == RANDOM_BITS:
        return rng.integers(2**32, size=(BLOCK, per_event))
    if draws == BATCHES:
        # Floyd's sampling turns kappa draws, the i-th below n_users - kappa + i, into a uniform set.
        return rng.integers(np.arange(n_users - kappa, n_users), size=(BLOCK, kappa)).astype(np.int32)
    if span is None or span >= n_users or draws == 2 * GRAPH_STREAM:
        return rng.integers(n_users, size=BLOCK, dtype=np.int32)
    first = rng.integers(n_users)
    return ((first + rng.integers(span, size=BLOCK)) % n_users).astype(np.int32)


@kernel
def distinct_peers(batches: Array, users: Array, n_users: int) -> None:
    """Turn rows of bounded draws into sets of distinct peers other than the row's user, in place."""
    kappa = batches.shape[1]
    for t in range(batches.shape[0]):
        for b in range(kappa):
            # Peers are numbered 0..n_users-2 here; the bound of draw b is n_users - kappa + b, exclusive.
            l = batches[t, b]
            for a in range(b):
                if batches[t, a] == l:
                    l = n_users - kappa + b - 1
                    break
            batches[t, b] = l
        for b in range(kappa):
            if batches[t, b] >= users[t]:
                batches[t, b] += 1


GRAPH_RULES = ("distance", "evidence")
# The rules of one move per wake-up, and the block step.
BLOCK_STEP = "block"
STEPS = (*STEP_RULES, BLOCK_STEP)
DEFAULT_BLOCK_STEP = BlockStep()
# The steps that workers make in windows.
IN_WINDOWS = ("pairwise", BLOCK_STEP)
RESTARTS = ("zero", "local")
SAMPLERS = ("auto", "uniform", "gossip")
# Up to this population size uniform batches find good neighbours fast enough.
FEW_USERS = 300


class Phase(NamedTuple):
    """Consecutive wake-ups of one kind: "local", "graph" or "models"."""

    kind: str
    events: int


@dataclass(frozen=True)
class Plan:
    """The settings of one run. All counts are totals over the population.

    Parameters
    ----------
    n_updates : int
        Number of model updates.
    learn_graph : bool
        Learn the graph along with the models. Otherwise the run keeps the graph it is given, or uses none.
    graph_rule : {"distance", "evidence"}
        How to learn the graph: by the paper's problem, from losses and distances of models; or by how well other users'
        models fit a user's own samples (directed, see `dada.core.graph_steps`).
    step : {"pairwise", "paper", "local", "line-search", "block"}
        Rule of the model step. "block" solves a user's block at each wake-up and sends short messages (see
        `dada.core.block_steps`).
    block : BlockStep
        Settings of the rule "block".
    graph_step : {"exact", "lipschitz"}
        Rule of the graph step.
    kappa : int
        Peers asked at a graph wake-up.
    sampler : {"auto", "uniform", "gossip"}
        How to choose these peers: uniformly, as in the paper, or mostly among neighbours of neighbours (see
        `dada.core.graph`). "auto" is gossip for more than 300 users.
    local_updates : int, optional
        Updates of the independent models from which the first graph is learned; `n_updates` by default.
    restart : {"zero", "local"}
        Models after the first graph: zero, as in the paper, or the local ones.
    graph_every : int, optional
        Model updates between two graph phases; 20 per user by default. Models that start from zero must differ before
        the next phase, or the graph becomes complete.
    first_graph_wakeups, graph_wakeups : int, optional
        Wake-ups of the first graph phase and of each later one; 30 and 2 per user by default.
    n_neighbours : int
        Most neighbours per user, for the rule "evidence".
    tau : float
        How strongly evidence separates models, for the rule "evidence".
    max_neighbours : int, optional
        Most neighbours per user; a full list drops its lightest edge for a heavier one.
    latency : float
        Time until a model update reaches the neighbours, in units of a user's mean update interval. With 0 it arrives
        at once, and one thread makes all updates. With more, several workers can share a run; the result does not
        depend on their number (see `dada.engine.shards`). Evidence wake-ups are then made in rounds of as many as
        users, which choose their peers by the lists at the start of the round.
    span : int, optional
        Draw each block of 4,096 model wake-ups from this many consecutive users, so that their memory stays in the
        caches: faster for large populations. In the long run all users wake equally often, but not independently: the
        result differs from a run without `span`.
    max_bits, max_time_s, gap_tolerance : float, optional
        Stop before the wake-up whose messages would exceed the budget, after this many seconds, or at the first trace
        point whose gap (`Problem.model_gap`) is below this share of the gap of zero models.
    trace_every : int, optional
        Model updates between two trace points; 1/50 of the run by default.
    """

    n_updates: int
    learn_graph: bool = True
    graph_rule: str = "distance"
    step: str = "pairwise"
    block: BlockStep = DEFAULT_BLOCK_STEP
    graph_step: str = "exact"
    kappa: int = 5
    sampler: str = "auto"
    local_updates: int | None = None
    restart: str = "zero"
    graph_every: int | None = None
    first_graph_wakeups: int | None = None
    graph_wakeups: int | None = None
    n_neighbours: int = 10
    tau: float = 3.0
    max_neighbours: int | None = None
    latency: float = 0.0
    span: int | None = None
    max_bits: float | None = None
    max_time_s: float | None = None
    gap_tolerance: float | None = None
    trace_every: int | None = None

    def __post_init__(self) -> None:
        choices = {"step": STEPS, "graph_step": GRAPH_STEPS, "restart": RESTARTS}
        for name, known in (choices | {"graph_rule": GRAPH_RULES, "sampler": SAMPLERS}).items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {sorted(known)}, got {getattr(self, name)!r}")
        if self.step == BLOCK_STEP:
            self.block.checked()
        if self.n_neighbours < 1 or not self.tau > 0:
            raise ValueError(f"n_neighbours must be >= 1 and tau > 0, got {self.n_neighbours} and {self.tau}")
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency must be >= 0 and finite, got {self.latency}")
        if self.latency > 0:
            self._check_windows()
        if self.n_updates < 0:
            raise ValueError(f"n_updates must be >= 0, got {self.n_updates}")
        positive = ("graph_every", "max_neighbours", "span", "trace_every", "max_bits", "max_time_s", "gap_tolerance")
        for name in (*positive, "local_updates", "first_graph_wakeups", "graph_wakeups"):
            value, sign = getattr(self, name), ">" if name in positive else ">="
            if value is not None and not (value > 0 or (value == 0 and sign == ">=")):
                raise ValueError(f"{name} must be {sign} 0 (or None), got {value}")

    def _check_windows(self) -> None:
        """Reject settings that do not work with latency."""
        if self.step not in IN_WINDOWS:
            raise ValueError(f"latency > 0 works with step in {IN_WINDOWS} only, got {self.step!r}: set latency=0")
        if self.span is not None:
            raise ValueError(f"latency > 0 does not work with span, got span={self.span}: set latency=0 or span=None")
        if self.max_bits is not None:
            raise ValueError("latency > 0 does not work with max_bits: set latency=0 or max_bits=None")

    def window(self, n_users: int) -> int:
        """Model updates that may be in progress at the same time; 0 without latency."""
        return max(1, round(self.latency * n_users)) if self.latency > 0 else 0

    def phases(self, n_users: int) -> Iterator[Phase]:
        """The phases of the run, in order.

        >>> plan = Plan(n_updates=25, graph_every=10, local_updates=5, first_graph_wakeups=7, graph_wakeups=3)
        >>> [tuple(phase) for phase in plan.phases(n_users=10)][:4]
        [('local', 5), ('graph', 7), ('models', 10), ('graph', 3)]
        """
        if not (self.learn_graph and n_users > 1):
            yield Phase("models", self.n_updates)
            return
        yield Phase("local", self.n_updates if self.local_updates is None else self.local_updates)
        yield Phase("graph", 30 * n_users if self.first_graph_wakeups is None else self.first_graph_wakeups)
        every = 20 * n_users if self.graph_every is None else self.graph_every
        wakeups = 2 * n_users if self.graph_wakeups is None else self.graph_wakeups
        for done in range(0, self.n_updates, every):
            yield Phase("models", min(every, self.n_updates - done))
            if done + every < self.n_updates:
                yield Phase("graph", wakeups)

    def batch_mix(self, n_users: int) -> BatchMix:
        """The peers that a graph wake-up asks in a population of this size."""
        gossips = self.sampler == "gossip" or (self.sampler == "auto" and n_users > FEW_USERS)
        return gossip_mix(self.kappa) if gossips else uniform_mix(self.kappa)

    def n_remembered(self, n_users: int) -> tuple[int, int]:
        """Numbers of candidates and guests per user in a population of this size."""
        if not self.learn_graph or self.graph_rule != "distance":
            return 0, 0
        return (N_CANDIDATES, N_GUESTS) if self.batch_mix(n_users).n_gossip > 0 else (0, 0)

    def trace_interval(self) -> int:
        """Model updates between two trace points."""
        return max(1, self.n_updates // 50) if self.trace_every is None else self.trace_every
