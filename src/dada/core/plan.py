"""What a run shall do: steps, phases and when to stop."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dada.core.gossip import N_CANDIDATES, N_GUESTS, BatchMix, gossip_mix, uniform_mix
from dada.core.graph_steps import GRAPH_STEPS
from dada.core.model_steps import STEP_RULES

GRAPH_RULES = ("distance", "evidence")
RESTARTS = ("zero", "local")
SAMPLERS = ("auto", "uniform", "gossip")
# Up to here uniform batches find everybody soon enough.
FEW_USERS = 300


class Phase(NamedTuple):
    """A stretch of wake-ups of one kind: "local", "graph" or "models"."""

    kind: str
    events: int


@dataclass(frozen=True)
class Plan:
    """The settings of one run. Counts are of wake-ups of the whole population unless they say "per user".

    Parameters
    ----------
    n_updates : int
        Model updates in all.
    learn_graph : bool
        Learn the graph along with the models. Otherwise the graph given to `run` stands, or there is none.
    graph_rule : {"distance", "evidence"}
        How a graph is learned: the paper's problem, from losses and distances of models; or by how well other users'
        models do on one's own samples (directed, see `dada.core.evidence`).
    step : {"pairwise", "paper", "local", "line-search"}
        Rule of the model step.
    graph_step : {"exact", "lipschitz"}
        Rule of the graph step.
    kappa : int
        Peers asked at a graph wake-up.
    sampler : {"auto", "uniform", "gossip"}
        Where these peers come from: drawn from everybody, as in the paper, or most of them from the neighbours of
        neighbours (see `dada.core.gossip`). "auto" is gossip for more than 300 users.
    local_updates : int, optional
        Updates of the purely local models from which the first graph is learned; `n_updates` where not given.
    restart : {"zero", "local"}
        Models after the first graph: from zero, as in the paper, or from the local ones.
    graph_every : int, optional
        Model updates between two graph phases; 20 per user where not given. Models that start from zero must have moved
        apart before the next phase, or everybody looks alike and the graph becomes complete.
    first_graph_wakeups, graph_wakeups : int, optional
        Wake-ups of the first graph phase and of each later one; 30 and 2 per user where not given.
    n_neighbours : int
        Models that a user follows at most, for the rule "evidence".
    tau : float
        How sharply evidence decides between models, for the rule "evidence".
    max_neighbours : int, optional
        Bound on every user's list of neighbours; a full list gives up its lightest edge for a heavier one.
    keep_nearest : int, optional
        Let each user open edges only to this many of the peers it has met whose models are nearest to its own.
    latency : float
        Time that a model update takes to reach the neighbours, in mean times between two wake-ups of a user. 0: it is
        there at once, and one thread carries out all updates. Anything more lets several workers share a run, and
        its result does not depend on how many they are (see `dada.engine.windows`).
    span : int, optional
        Let every 4,096 model wake-ups in a row be of so many users with neighbouring numbers, drawn anew each time, so
        that their memory stays near the processor: quicker in large populations. Everybody still wakes equally often in
        the long run, but not independently of the others: this is another run than the one without, not the paper's.
    max_bits, max_time_s, gap_tolerance : float, optional
        Stop before the wake-up whose messages would exceed a budget, after some seconds, or when, at a trace point,
        the duality gap is below this part of the gap of zero models.
    trace_every : int, optional
        Model updates between two trace points; a fiftieth of the run where not given.
    """

    n_updates: int
    learn_graph: bool = True
    graph_rule: str = "distance"
    step: str = "pairwise"
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
    keep_nearest: int | None = None
    latency: float = 0.0
    span: int | None = None
    max_bits: float | None = None
    max_time_s: float | None = None
    gap_tolerance: float | None = None
    trace_every: int | None = None

    def __post_init__(self) -> None:
        for name, known in (
            ("step", STEP_RULES),
            ("graph_step", GRAPH_STEPS),
            ("restart", RESTARTS),
            ("graph_rule", GRAPH_RULES),
            ("sampler", SAMPLERS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {sorted(known)}, got {getattr(self, name)!r}")
        if self.n_neighbours < 1 or not self.tau > 0:
            raise ValueError(f"n_neighbours must be >= 1 and tau > 0, got {self.n_neighbours} and {self.tau}")
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency must be >= 0 and finite, got {self.latency}")
        if self.latency > 0:
            self._check_windows()
        if self.n_updates < 0:
            raise ValueError(f"n_updates must be >= 0, got {self.n_updates}")
        for name in (
            "graph_every",
            "max_neighbours",
            "keep_nearest",
            "span",
            "trace_every",
            "max_bits",
            "max_time_s",
            "gap_tolerance",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0 (or None), got {value}")
        for name in ("local_updates", "first_graph_wakeups", "graph_wakeups"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must be >= 0 (or None), got {value}")

    def _check_windows(self) -> None:
        """Refuse what updates in windows cannot do."""
        if self.step != "pairwise":
            raise ValueError(f"latency > 0 works with step='pairwise' only, got {self.step!r}: set latency=0")
        if self.learn_graph and self.graph_rule != "distance":
            raise ValueError(f"latency > 0 works with symmetric graphs only, got {self.graph_rule!r}: set latency=0")
        if self.span is not None:
            raise ValueError(
                f"latency > 0 shares wake-ups out by users, got span={self.span}: set latency=0, or span=None"
            )
        if self.max_bits is not None:
            raise ValueError("latency > 0 cannot stop in the middle of a window: set latency=0, or max_bits=None")

    def window(self, n_users: int) -> int:
        """Model updates that may be under way at the same time; 0 where each is known at once.

        >>> Plan(n_updates=1, latency=0.1).window(n_users=1000)
        100
        """
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
        """Whom a graph wake-up asks in a population of this size."""
        gossips = self.sampler == "gossip" or (self.sampler == "auto" and n_users > FEW_USERS)
        return gossip_mix(self.kappa) if gossips else uniform_mix(self.kappa)

    def n_remembered(self, n_users: int) -> tuple[int, int]:
        """How many candidates and guests a user remembers in a population of this size.

        >>> Plan(n_updates=1).n_remembered(n_users=100), Plan(n_updates=1).n_remembered(n_users=1000)
        ((0, 0), (16, 8))
        """
        if not self.learn_graph or self.graph_rule != "distance":
            return 0, 0
        searches = self.batch_mix(n_users).n_gossip > 0
        n_candidates, n_guests = (N_CANDIDATES, N_GUESTS) if searches else (0, 0)
        return (n_candidates if self.keep_nearest is None else self.keep_nearest), n_guests

    def trace_interval(self) -> int:
        """Model updates between two trace points."""
        return max(1, self.n_updates // 50) if self.trace_every is None else self.trace_every
