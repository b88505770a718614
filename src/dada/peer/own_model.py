"""The model of one peer: its samples, the pull of its neighbours, and the steps that improve it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from dada.core.compiled import Array
from dada.core.emphasis import ALL_ALIKE
from dada.core.evidence import log_evidence
from dada.core.losses import GRAPH_LOSSES, loss_for_graph
from dada.core.model_steps import (
    LOCAL,
    REFRESH_EVERY,
    STEP_RULES,
    UserModel,
    add_change,
    add_to_pull,
    make_scratch,
    model_step,
    refresh_margins,
    squared_distance,
    step_size,
)
from dada.peer.config import PeerConfig
from dada.peer.copies import ModelCopy
from dada.peer.effects import Persist
from dada.peer.messages import ModelDelta, Snapshot

MODEL_KEY, EPOCH_KEY = b"model", b"epoch"


class _StoredModel(msgspec.Struct, array_like=True):
    snapshot: Snapshot
    updates: int


class OwnModel:
    """What a peer has learned, and from what.

    Parameters
    ----------
    A : array of shape (samples, n_predictors)
        Margins y_i h_j(x_i) of the user's own samples.
    config : PeerConfig
        What the network agreed on.

    Attributes
    ----------
    model : ModelCopy
    updates : int
        Steps made since the model was zero.
    is_stale : bool
        Whether the pull must be summed anew before the next step.
    degree : float
        Sum of the weights of the models that pull.

    Examples
    --------
    >>> own = OwnModel(np.array([[1, -1], [1, 1]], np.int8), PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> own.step(gamma=-1.0, confidence=1.0).j, own.model.alpha.tolist()
    (0, [1.0, 0.0])
    """

    def __init__(self, A: Array, config: PeerConfig) -> None:
        if A.ndim != 2 or A.shape[0] < 1 or A.shape[1] != config.n_predictors:
            raise ValueError(f"A must have samples as rows and {config.n_predictors} columns, got shape {A.shape}")
        self.config = config
        self.size = int(A.shape[0])
        n = config.n_predictors
        self.model = ModelCopy.zero(n)
        self.user = UserModel(
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
        self.scratch = make_scratch(n, self.size, np.dtype(np.float32))
        self._settings = config.settings
        self._rule = STEP_RULES[config.step]
        self._evidence_of_nothing = self.evidence(self.model)

    # -- what can be read ------------------------------------------------------------------------------------------

    @property
    def loss(self) -> float:
        """The loss on the peer's own samples, as graph steps take it."""
        kind = GRAPH_LOSSES[self.config.graph_loss]
        user = self.user
        return float(loss_for_graph(kind, self._settings.loss, user.margins, user.emphasis, self.scratch.eta))

    def evidence(self, copy: ModelCopy, tau: float = 1.0, size: int = 1) -> float:
        """How well another model does on the peer's own samples (see `dada.core.evidence`)."""
        judged = self._settings.loss, self.user, copy.alpha, copy.support, copy.n_support
        return float(log_evidence(tau, *judged, size))

    def accepts(self, copy: ModelCopy) -> bool:
        """Whether a model is no worse than none on the peer's own samples, where the network vets."""
        if not self.config.vet or copy.n_support == 0:
            return True
        return self.evidence(copy) >= self._evidence_of_nothing

    def squared_distance(self, copy: ModelCopy) -> float:
        """How far another model is from this one."""
        own = self.model
        return float(
            squared_distance(
                self._settings.coupling, own.alpha, own.support, own.n_support, copy.alpha, copy.support, copy.n_support
            )
        )

    # -- steps -----------------------------------------------------------------------------------------------------

    @property
    def is_refresh_due(self) -> bool:
        """Whether `refresh` must come before the next step."""
        return self.is_stale or self._is_rounding_due

    @property
    def _is_rounding_due(self) -> bool:
        return self.updates % REFRESH_EVERY == REFRESH_EVERY - 1

    def refresh(self, models: Iterable[tuple[float, ModelCopy]]) -> None:
        """Sum the neighbours' models anew, in the given order; from time to time the margins too."""
        self.user.pull[:] = 0
        self.degree = add_models(self.user.pull, models)
        self.is_stale = False
        if self._is_rounding_due:
            refresh_margins(self.user, self.model.n_support)

    def step(self, gamma: float, confidence: float) -> ModelDelta | None:
        """Make one step; returns the move, if there was any to make."""
        if self._rule == LOCAL:
            gamma = step_size(LOCAL, 0, 0, self.updates)
        move, n_support, n_changed = model_step(
            self._rule,
            self._settings,
            confidence,
            self.degree,
            self.user,
            self.model.n_support,
            gamma,
            self.scratch,
        )
        self.model.n_support = n_support
        self.updates += 1
        if n_changed == 0:
            return None
        self.model.sequence += 1
        return ModelDelta(
            *self.model.number, int(move.j), move.toward > 0, int(move.away), float(move.gamma), bool(move.takes_all)
        )

    def follow(self, copy: ModelCopy, weight: float, delta: ModelDelta) -> None:
        """Apply a neighbour's move to the copy of its model, and to the pull."""
        n_changed = copy.follow(delta, self.config.beta, self.scratch)
        if not self.is_stale:
            add_change(self.user.pull, weight, n_changed, self.scratch)

    def reset(self) -> None:
        """Start again from zero."""
        self._adopt(ModelCopy.zero(self.config.n_predictors))
        self.updates = 0

    def _adopt(self, model: ModelCopy) -> None:
        """Replace the values of the model, in place, and all that follows from them."""
        self.model.alpha[:], self.model.support[:] = model.alpha, model.support
        self.model.n_support, self.model.sequence = model.n_support, self.model.sequence + 1
        refresh_margins(self.user, self.model.n_support)
        self.is_stale = True

    # -- storage ---------------------------------------------------------------------------------------------------

    def record(self) -> Persist:
        """The model, to be stored."""
        return Persist(MODEL_KEY, msgspec.msgpack.encode(_StoredModel(self.model.snapshot(), self.updates)))

    def begin_epoch(self) -> Persist:
        """Number the model anew: no number of an earlier life comes back."""
        self.model.epoch, self.model.sequence = self.model.epoch + 1, 0
        return Persist(EPOCH_KEY, self.model.epoch.to_bytes(8, "big"))

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take up a stored model, where there is one."""
        if MODEL_KEY in records:
            stored = msgspec.msgpack.decode(records[MODEL_KEY], type=_StoredModel)
            self._adopt(ModelCopy.from_snapshot(stored.snapshot, self.config.n_predictors, self.config.beta))
            self.updates = stored.updates
        if EPOCH_KEY in records:
            self.model.epoch = int.from_bytes(records[EPOCH_KEY], "big")


def add_models(pull: Array, models: Iterable[tuple[float, ModelCopy]]) -> float:
    """Add weighted models to a sum; returns the sum of the weights."""
    total = 0.0
    for weight, copy in models:
        add_to_pull(pull, weight, copy.alpha, copy.support, copy.n_support)
        total += weight
    return total
