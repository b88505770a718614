"""Who wakes when, and whom it asks: a run's chance, drawn once and readable at any place.

Users wake at the ticks of independent Poisson clocks of equal rate. Seen from outside, each tick is of a user drawn
uniformly, and waits between ticks are exponential. A schedule is cut in blocks, each drawn from its own counter of one
Philox key, so any range of events can be had without drawing what came before: a run resumes, or is handed to another
engine, with nothing but the key and a position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dada.core.compiled import Array, kernel

BLOCK = 4096
MODEL_STREAM, LOCAL_STREAM, GRAPH_STREAM = 0, 1, 2


@dataclass(frozen=True)
class Schedule:
    """The wake-ups of a population, as a function of the event's number.

    Parameters
    ----------
    key : int
        Seed of all draws; take it from a generator with `Schedule.draw`.
    n_users : int
        Number of clocks.
    kappa : int
        Peers asked at a graph wake-up.
    span : int, optional
        Each block of model wake-ups is of users with so many numbers in a row, from a random one on. By default of all.

    Examples
    --------
    >>> schedule = Schedule.draw(np.random.default_rng(0), n_users=10, kappa=3)
    >>> bool((schedule.users(MODEL_STREAM, 5000, 5010) == schedule.users(MODEL_STREAM, 0, 9000)[5000:5010]).all())
    True
    >>> schedule.batches(0, 4).shape
    (4, 3)
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
        """A schedule whose key comes from a generator."""
        return cls(int(rng.integers(2**63)), n_users, kappa, span)

    def users(self, stream: int, start: int, stop: int) -> Array:
        """The users that wake at events start..stop-1 of a stream."""

        def draw(rng: np.random.Generator) -> Array:
            if self.span is None or self.span >= self.n_users or stream == GRAPH_STREAM:
                return rng.integers(self.n_users, size=BLOCK, dtype=np.int32)
            first = rng.integers(self.n_users)
            return ((first + rng.integers(self.span, size=BLOCK)) % self.n_users).astype(np.int32)

        return self._read(start, stop, draw, 2 * stream)

    def batches(self, start: int, stop: int) -> Array:
        """The kappa distinct peers, none the user itself, asked at graph events start..stop-1."""

        def draw(rng: np.random.Generator) -> Array:
            # Floyd's sampling turns kappa draws, the i-th below n_users - kappa + i, into a uniform set.
            bounds = np.arange(self.n_users - self.kappa, self.n_users)
            return rng.integers(bounds, size=(BLOCK, self.kappa)).astype(np.int32)

        batches = self._read(start, stop, draw, 2 * GRAPH_STREAM + 1)
        distinct_peers(batches, self.users(GRAPH_STREAM, start, stop), self.n_users)
        return batches

    def words(self, start: int, stop: int, per_event: int) -> Array:
        """Random words of 32 bits for graph events start..stop-1, for choices that depend on how the run has gone."""

        def draw(rng: np.random.Generator) -> Array:
            return rng.integers(2**32, size=(BLOCK, per_event))

        return self._read(start, stop, draw, 2 * GRAPH_STREAM + 3)

    def waits(self, stream: int, start: int, stop: int) -> Array:
        """Time between successive ticks of the whole population, each user ticking once per unit of time on average."""
        draws = self._read(start, stop, lambda rng: rng.standard_exponential(BLOCK), 2 * stream + 1001)
        return draws / self.n_users

    def _read(self, start: int, stop: int, draw: Callable[[np.random.Generator], Array], stream: int) -> Array:
        first, last = start // BLOCK, max(start, stop - 1) // BLOCK
        blocks = []
        for block in range(first, last + 1):
            counter = np.array([0, 0, block, stream], dtype=np.uint64)
            blocks.append(draw(np.random.Generator(np.random.Philox(key=self.key, counter=counter))))
        offset = first * BLOCK
        return np.concatenate(blocks)[start - offset : stop - offset]


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
