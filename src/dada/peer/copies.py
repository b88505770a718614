"""Models in the form a peer keeps them: dense values, the list of nonzero coordinates, and a number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dada.core.compiled import Array
from dada.core.model_steps import ALL, CENTRE, Move, StepScratch, apply_move
from dada.peer.messages import ModelDelta, Snapshot

# A model may exceed the l1 ball by what single precision rounds, and by no more.
SLACK = 1e-3


class ImplausibleError(ValueError):
    """Something a sound peer cannot have said."""


@dataclass(eq=False)
class ModelCopy:
    """A model at (epoch, sequence)."""

    alpha: Array
    support: Array
    n_support: int
    epoch: int
    sequence: int

    @classmethod
    def zero(cls, n: int, epoch: int = 0) -> ModelCopy:
        """The model that predicts nothing."""
        return cls(np.zeros(n, np.float32), np.zeros(n, np.int16 if n < 2**15 else np.int32), 0, epoch, 0)

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, n: int, beta: float) -> ModelCopy:
        """A model as another peer sent it, checked."""
        if len(snapshot.coordinates) % 4 or len(snapshot.coordinates) != len(snapshot.values):
            raise ImplausibleError("a model's coordinates and values differ in number")
        coordinates = np.frombuffer(snapshot.coordinates, "<u4")
        values = np.frombuffer(snapshot.values, "<f4")
        if coordinates.size > n or (coordinates >= n).any():
            raise ImplausibleError(f"a model has coordinates beyond the {n} base predictors")
        if np.unique(coordinates).size != coordinates.size:
            raise ImplausibleError("a model names a coordinate twice")
        if not np.isfinite(values).all() or (values == 0).any():
            raise ImplausibleError("a model has values that are not finite or zero")
        if np.abs(values.astype(np.float64)).sum() > beta * (1 + SLACK):
            raise ImplausibleError(f"a model's l1 norm exceeds beta = {beta}")
        copy = cls.zero(n)
        copy.alpha[coordinates] = values
        copy.support[: coordinates.size] = coordinates
        copy.n_support, copy.epoch, copy.sequence = int(coordinates.size), snapshot.epoch, snapshot.sequence
        return copy

    @property
    def number(self) -> tuple[int, int]:
        """(epoch, sequence)."""
        return self.epoch, self.sequence

    def snapshot(self) -> Snapshot:
        """The model as a message carries it."""
        used = self.support[: self.n_support]
        return Snapshot(
            self.epoch, self.sequence, used.astype("<u4").tobytes(), self.alpha[used].astype("<f4").tobytes()
        )

    def follow(self, delta: ModelDelta, beta: float, scratch: StepScratch) -> int:
        """Apply the owner's next move; returns the number of changed coordinates, listed in the scratch."""
        n = self.alpha.size
        if not (0 <= delta.j < n and (0 <= delta.away < n or delta.away in (CENTRE, ALL))):
            raise ImplausibleError(f"a move names coordinates beyond the {n} base predictors")
        if not 0.0 <= delta.gamma <= 1.0:
            raise ImplausibleError(f"a move has a step of {delta.gamma}, not in [0, 1]")
        if delta.away >= 0 and self.alpha[delta.away] == 0:
            raise ImplausibleError("a move takes mass where there is none")
        toward = beta if delta.positive else -beta
        move = Move(delta.j, toward, delta.away, float(np.float32(delta.gamma)), delta.takes_all)
        self.n_support, n_changed = apply_move(move, self.alpha, self.support, self.n_support, scratch)
        self.sequence = delta.sequence
        if np.abs(self.alpha[self.support[: self.n_support]].astype(np.float64)).sum() > beta * (1 + SLACK):
            raise ImplausibleError(f"a move leaves a model whose l1 norm exceeds beta = {beta}")
        return int(n_changed)
