"""The model of one peer, copies of its neighbours' models, and the locally trained fallback model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from dada.core import model_steps as steps
from dada.core.compiled import Array
from dada.core.graph_steps import log_evidence
from dada.core.losses import ALL_ALIKE, GRAPH_LOSSES, loss_for_graph
from dada.peer.config import PeerConfig
from dada.peer.inputs import Persist
from dada.peer.messages import ModelDelta, ModelSnapshot

MODEL_KEY, EPOCH_KEY = b"model", b"epoch"


class _StoredModel(msgspec.Struct, array_like=True):
    snapshot: ModelSnapshot
    updates: int


class OwnModel:
    """The model of a peer, and the samples it is learned from: row i of A holds the margins y_i h_j(x_i).

    Attributes
    ----------
    updates : int
        Steps since the model was zero.
    is_stale : bool
        Whether the sum of the neighbours' models must be recomputed before the next step.
    degree : float
        Sum of the weights of the models in that sum.

    Examples
    --------
    >>> own = OwnModel(np.array([[1, -1], [1, 1]], np.int8), PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> own.step(gamma=-1.0, confidence=1.0).j, own.model.alpha.tolist()
    (0, [1.0, 0.0])
    """

    def __init__(self, A: Array, config: PeerConfig) -> None:
        if A.ndim != 2 or A.shape[0] < 1 or A.shape[1] != config.n_predictors:
            raise ValueError(f"A must have samples as rows and {config.n_predictors} columns, got shape {A.shape}")
        if abs(A).max() > config.largest_prediction:
            raise ValueError(
                f"A has entries of size {abs(A).max():.6g}, but the network agreed on {config.largest_prediction:g}: "
                "other peers would refuse its losses. Set largest_prediction, or scale the base predictors"
            )
        self.config = config
        self.size = int(A.shape[0])
        n = config.n_predictors
        self.model = ModelCopy.zero(n)
        self.user = steps.UserModel(
            np.ascontiguousarray(A) if A.dtype == np.int8 else np.ascontiguousarray(A, np.float32),
            np.zeros(self.size, np.float32),
            self.model.alpha,
            np.zeros(n, np.float32),
            self.model.support,
            np.zeros(self.size, np.float32),
            ALL_ALIKE,
        )
        self.updates = 0
        self.is_stale = True
        self.degree = 0.0
        self.scratch = steps.make_scratch(n, self.size, np.dtype(np.float32))
        self._settings = config.settings
        self._rule = steps.STEP_RULES[config.step]
        self._evidence_of_nothing = self.evidence(self.model)

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def loss(self) -> float:
        """The loss on the peer's own samples, as graph steps take it."""
        kind = GRAPH_LOSSES[self.config.graph_loss]
        user = self.user
        return float(loss_for_graph(kind, self._settings.loss, user.margins, user.sample_weight, self.scratch.eta))

    def evidence(self, copy: ModelCopy, tau: float = 1.0, size: int = 1) -> float:
        """Log evidence for another model on the peer's own samples (see `dada.core.graph_steps`)."""
        return float(log_evidence(tau, self._settings.loss, self.user, copy.alpha, copy.support, copy.n_support, size))

    def accepts(self, copy: ModelCopy) -> bool:
        """Whether a model is at least as good as none on the peer's own samples; always true without vetting."""
        if not self.config.vet or copy.n_support == 0:
            return True
        return self.evidence(copy) >= self._evidence_of_nothing

    def squared_distance(self, copy: ModelCopy) -> float:
        """Squared distance to another model."""
        own = self.model
        return float(
            steps.squared_distance(
                self._settings.coupling, own.alpha, own.support, own.n_support, copy.alpha, copy.support, copy.n_support
            )
        )

    def copy_of(self, snapshot: ModelSnapshot) -> ModelCopy:
        """A model that another peer sent, checked."""
        return ModelCopy.from_snapshot(snapshot, self.config.n_predictors, self.config.beta)

    # -- steps -----------------------------------------------------------------------------------------------------

    @property
    def is_refresh_due(self) -> bool:
        """Whether `refresh` must come before the next step."""
        return self.is_stale or self._is_rounding_due

    @property
    def _is_rounding_due(self) -> bool:
        return self.updates % steps.REFRESH_EVERY == steps.REFRESH_EVERY - 1

    def refresh(self, models: Iterable[tuple[float, ModelCopy]]) -> None:
        """Recompute the sum of the neighbours' models, in the given order; from time to time the margins too."""
        self.user.neighbour_sum[:] = 0
        self.degree = add_models(self.user.neighbour_sum, models)
        self.is_stale = False
        if self._is_rounding_due:
            steps.refresh_margins(self.user, self.model.n_support)

    def step(self, gamma: float, confidence: float) -> ModelDelta | None:
        """Make one step; returns the move, or None if the model did not change."""
        if self._rule == steps.LOCAL:
            gamma = steps.step_size(steps.LOCAL, 0, 0, self.updates)
        user = self.user._replace(confidence=confidence, degree=self.degree)
        move, self.model.n_support, n_changed = steps.model_step(
            self._rule, self._settings, user, self.model.n_support, gamma, self.scratch
        )
        self.updates += 1
        if n_changed == 0:
            return None
        self.model.sequence += 1
        return ModelDelta(
            *self.model.number, int(move.j), move.toward > 0, int(move.away), float(move.gamma), bool(move.takes_all)
        )

    def follow(self, copy: ModelCopy, weight: float, delta: ModelDelta) -> None:
        """Apply a neighbour's move to the copy of its model, and to the sum of the neighbours' models."""
        n_changed = copy.follow(delta, self.config.beta, self.scratch)
        if not self.is_stale:
            scratch = self.scratch
            steps.add_change(self.user.neighbour_sum, weight, n_changed, scratch.coordinate, scratch.delta)

    def reset(self) -> None:
        """Start again from zero."""
        self._adopt(ModelCopy.zero(self.config.n_predictors))
        self.updates = 0

    def _adopt(self, model: ModelCopy) -> None:
        """Replace the values of the model in place, and recompute the margins."""
        self.model.alpha[:], self.model.support[:] = model.alpha, model.support
        self.model.n_support, self.model.sequence = model.n_support, self.model.sequence + 1
        steps.refresh_margins(self.user, self.model.n_support)
        self.is_stale = True

    # -- storage ---------------------------------------------------------------------------------------------------

    def record(self) -> Persist:
        """The model, to be stored."""
        return Persist(MODEL_KEY, msgspec.msgpack.encode(_StoredModel(self.model.snapshot(), self.updates)))

    def begin_epoch(self, after: int = 0) -> Persist:
        """Begin an epoch above the last one and above a given one: no number of an earlier life repeats."""
        self.model.epoch, self.model.sequence = max(self.model.epoch, after) + 1, 0
        return Persist(EPOCH_KEY, self.model.epoch.to_bytes(8, "big"))

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take over a stored model."""
        if MODEL_KEY in records:
            stored = msgspec.msgpack.decode(records[MODEL_KEY], type=_StoredModel)
            self._adopt(self.copy_of(stored.snapshot))
            self.updates = stored.updates
        if EPOCH_KEY in records:
            self.model.epoch = int.from_bytes(records[EPOCH_KEY], "big")


def add_models(neighbour_sum: Array, models: Iterable[tuple[float, ModelCopy]]) -> float:
    """Add weighted models to a sum; returns the sum of the weights."""
    total = 0.0
    for weight, copy in models:
        steps.add_model(neighbour_sum, weight, copy.alpha)
        total += weight
    return total


# Rounding errors of sound peers, of other versions and machines too, are smaller than this relative to a bound.
SLACK = 1e-3


class ImplausibleError(ValueError):
    """A message that no sound peer sends."""


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
        """The zero model."""
        return cls(np.zeros(n, np.float32), np.zeros(n, np.int16 if n < 2**15 else np.int32), 0, epoch, 0)

    @classmethod
    def from_snapshot(cls, snapshot: ModelSnapshot, n: int, beta: float) -> ModelCopy:
        """The model in a message, checked."""
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

    def snapshot(self) -> ModelSnapshot:
        """The model for a message."""
        used = self.support[: self.n_support]
        return ModelSnapshot(
            self.epoch, self.sequence, used.astype("<u4").tobytes(), self.alpha[used].astype("<f4").tobytes()
        )

    def follow(self, delta: ModelDelta, beta: float, scratch: steps.StepScratch) -> int:
        """Apply the owner's next move; returns the number of changed coordinates, listed in the scratch."""
        n = self.alpha.size
        if not (0 <= delta.j < n and (0 <= delta.away < n or delta.away in (steps.CENTRE, steps.ALL))):
            raise ImplausibleError(f"a move names coordinates beyond the {n} base predictors")
        if not 0.0 <= delta.gamma <= 1.0:
            raise ImplausibleError(f"a move has a step of {delta.gamma}, not in [0, 1]")
        if delta.away >= 0 and self.alpha[delta.away] == 0:
            raise ImplausibleError("a move takes weight from a coordinate that is zero")
        toward = beta if delta.positive else -beta
        move = steps.Move(delta.j, toward, delta.away, float(np.float32(delta.gamma)), delta.takes_all)
        self.n_support, n_changed = steps.apply_move(move, self.alpha, self.support, self.n_support, scratch)
        self.sequence = delta.sequence
        if np.abs(self.alpha[self.support[: self.n_support]].astype(np.float64)).sum() > beta * (1 + SLACK):
            raise ImplausibleError(f"a move leaves a model whose l1 norm exceeds beta = {beta}")
        return int(n_changed)


# Steps of the fallback model, and parts of the samples that are held out in turn.
STEPS, MOST_PARTS = 200, 10


class Fallback:
    """The locally trained model `alpha` of a peer, and the choice between it and the model learned with others.

    >>> A = np.array([[1, -1], [1, 1], [1, -1]], np.int8)
    >>> own = Fallback(A, PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> own.alpha.tolist()
    [1.0, 0.0]
    >>> right, wrong = np.array([1.0, 0.0], np.float32), np.array([-1.0, 0.0], np.float32)
    >>> own.is_better(0.1, 1.0, right), own.is_better(0.1, 1.0, wrong)
    (False, True)
    """

    def __init__(self, A: Array, config: PeerConfig) -> None:
        self._A = np.ascontiguousarray(A) if A.dtype == np.int8 else np.ascontiguousarray(A, np.float32)
        self._settings = config.settings
        self._rule = steps.STEP_RULES["pairwise" if config.step == "paper" else config.step]
        self._scratch = steps.make_scratch(A.shape[1], A.shape[0], np.dtype(np.float32))
        no_neighbours = np.zeros(A.shape[1], np.float32)
        self.alpha = self.learned(self._A, 1.0, 0.0, no_neighbours)
        self._own_margin = self._held_out_margin(1.0, 0.0, no_neighbours)

    def is_better(self, confidence: float, degree: float, neighbour_sum: Array) -> bool:
        """Whether the local model has larger held-out margins than a model learned with the neighbours.

        `degree` is the sum of the neighbours' weights, and `neighbour_sum` the weighted sum of their models. Without
        neighbours the local model is chosen.
        """
        return degree <= 0.0 or self._held_out_margin(confidence, degree, neighbour_sum) < self._own_margin

    def _held_out_margin(self, confidence: float, degree: float, neighbour_sum: Array) -> float:
        m = self._A.shape[0]
        # With one sample, the neighbours' models are judged as they are.
        if m == 1:
            return _clipped_margins(self._A, neighbour_sum / degree if degree > 0.0 else neighbour_sum)
        n_parts = min(m, MOST_PARTS)
        part_of = np.arange(m) % n_parts
        total = 0.0
        for part in range(n_parts):
            is_out = part_of == part
            alpha = self.learned(self._A[~is_out], confidence * float(np.mean(~is_out)), degree, neighbour_sum)
            total += _clipped_margins(self._A[is_out], alpha)
        return total / m

    def learned(self, A: Array, confidence: float, degree: float, neighbour_sum: Array) -> Array:
        """A model learned from some samples and a fixed sum of neighbours' models."""
        m, n = A.shape
        support = np.zeros(n, np.int32)
        margins, offset = np.zeros(m, np.float32), np.zeros(m, np.float32)
        user = steps.UserModel(
            A, margins, np.zeros(n, np.float32), neighbour_sum, support, offset, ALL_ALIKE,
            float(confidence), float(degree),
        )  # fmt: skip
        steps.frozen_steps(self._rule, self._settings, user, 0, STEPS, self._scratch)
        return user.alpha


def _clipped_margins(A: Array, alpha: Array) -> float:
    return float(np.clip(A.astype(np.float64) @ alpha, -1.0, 1.0).sum())
