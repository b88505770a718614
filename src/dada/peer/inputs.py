"""Inputs and outputs of a peer: the settings of its network and facts go in, effects come out.

All peers of one network share the settings. A fact is something that happened, with its time. An action is a fact that
the peer's own planner decides on. Facts are also the records of a journal, so a peer can be replayed from what it was
given.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dada.core.block_steps import BlockStep, finest_exponent
from dada.core.compiled import Array
from dada.core.graph_steps import GRAPH_STEPS, LogDegree, Regularizer, best_weight, degree_slope
from dada.core.losses import GRAPH_LOSSES, REGRESSION, loss_code
from dada.core.model_steps import ModelSettings, UserRows, n_blocks
from dada.core.plan import BLOCK_STEP, DEFAULT_BLOCK_STEP, GRAPH_RULES, STEPS
from dada.peer.messages import Message, PeerId

LARGEST_COST = 1e9
# Coupling of the weights of trees.
TREE_COUPLING = 1.0


@dataclass(frozen=True, eq=False)
class PeerConfig:
    """The learning problem of a network, and the rules between its peers.

    Parameters
    ----------
    n_predictors : int
        Weights in a model: base predictors, which all peers share (`predictors_digest`), times blocks of classes.
    n_classes : int
        Number of classes; with more than two, a model has a block of weights for each. 0 for numbers, whose margins are
        residuals.
    beta, mu1, mu2, loss, regularizer, graph_loss, coupling
        As in `dada.core.problem.Problem`.
    mu_per_confidence : float, optional
        If given, mu1 is only the first value: peers replace it by this multiple of the users' mean confidence, as they
        know it from the census (`dada.peer.census`). Not in the distance graph, whose peers check each other's weights.
    graph : {"distance", "evidence", "everyone"}
        How neighbours are chosen: "distance" is the paper's rule, from losses and distances of models, with one weight
        per edge for both ends; with "evidence" each peer chooses the models that do best on its own samples; with
        "everyone" it keeps about ten edges of weight 1 to random peers.
    n_neighbours, tau
        Of the evidence graph, as in `dada.core.plan.Plan`.
    step : {"pairwise", "local", "line-search", "paper", "block"}
        Rule of the model step. "paper" needs its gamma from outside: only a simulation knows the global count. With
        "block", a step solves the peer's block and sends a short coded message (see `dada.core.block_steps`).
    block : BlockStep
        Settings of the rule "block".
    dtype : {"float32", "float64"}
        Precision of models; "float64" needs the rule "block", because moves are sent in single precision.
    graph_step : {"exact", "lipschitz"}
    max_neighbours : int, optional
        Most edges a peer keeps; a full peer gives up its lightest edge for a heavier one.
    damping : float
        Share of a graph step that is taken, in (0, 1]; below 1, concurrent changes of a peer's edges do not overshoot.
    vet : bool
        Keep edges only to models that are at least as good as none on the peer's own samples, and let no peer claim far
        more weight than all others have.
    known_largest : int
        The largest number of rows of any user, as far as it is known beforehand; others report theirs.
    most_samples : int, optional
        A bound of the number of samples of any user; larger claims count as this number. Then not even a majority of
        liars can lower the confidence of others.
    trust_largest : float
        Share of the largest reported sample counts that is ignored when confidence is computed. A few liars then cannot
        lower the confidence of all others.
    largest_prediction : float
        Largest size of a base prediction. It bounds the loss that a sound peer can report.
    reply_timeout_s : float
        How long a graph step waits for replies, and the first wait before a message is repeated.
    dictionary, agreed : bytes
        With trees (`dada.peer.grove`): the name of the dictionary, and the digest of the problem without its trees.
    """

    n_predictors: int
    beta: float
    mu1: float
    mu2: float | None = None
    loss: str = "adaboost"
    regularizer: Regularizer = field(default_factory=LogDegree)
    graph_loss: str = "mean"
    coupling: Array | None = None
    graph: str = "distance"
    n_neighbours: int = 10
    tau: float = 3.0
    step: str = "pairwise"
    block: BlockStep = DEFAULT_BLOCK_STEP
    dtype: str = "float32"
    graph_step: str = "exact"
    max_neighbours: int | None = None
    damping: float = 1.0
    vet: bool = False
    known_largest: int = 1
    most_samples: int | None = None
    trust_largest: float = 0.0
    largest_prediction: float = 1.0
    reply_timeout_s: float = 2.0
    predictors_digest: bytes = b""
    n_classes: int = 2
    mu_per_confidence: float | None = None
    dictionary: bytes = b""
    agreed: bytes = b""

    def __post_init__(self) -> None:
        for name, known in (
            ("graph", (*GRAPH_RULES, "everyone")),
            ("step", STEPS),
            ("dtype", ("float32", "float64") if self.step == BLOCK_STEP else ("float32",)),
            ("graph_step", GRAPH_STEPS),
            ("graph_loss", GRAPH_LOSSES),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {sorted(known)}, got {getattr(self, name)!r}")
        if self.n_neighbours < 1 or not self.tau > 0:
            raise ValueError(f"n_neighbours must be >= 1 and tau > 0, got {self.n_neighbours} and {self.tau}")
        if not (self.beta > 0 and self.mu1 >= 0):
            raise ValueError(f"beta must be > 0 and mu >= 0, got beta={self.beta}, mu={self.mu1}")
        if self.mu_per_confidence is not None and (
            self.graph == "distance" or not 0 < self.mu_per_confidence < math.inf
        ):
            raise ValueError(
                f"mu_per_confidence must be > 0 and finite, with the graph evidence or everyone, "
                f"got {self.mu_per_confidence} with {self.graph}"
            )
        if not 0 < self.largest_prediction < math.inf:
            raise ValueError(f"largest_prediction must be > 0 and finite, got {self.largest_prediction}")
        if self.known_largest < 1:
            raise ValueError(f"known_largest must be at least 1, got {self.known_largest}")
        if self.most_samples is not None and self.most_samples < self.known_largest:
            raise ValueError(
                f"most_samples must be at least known_largest, got {self.most_samples} < {self.known_largest}"
            )
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping must be in (0, 1], got {self.damping}")
        if (self.n_classes == 0) != (self.loss in REGRESSION) or self.n_classes in (1, -1):
            raise ValueError(
                f"classes need a loss of margins and numbers one of {REGRESSION}, "
                f"got n_classes={self.n_classes} and loss={self.loss!r}"
            )
        if self.n_classes == 0 and self.graph_loss == "logistic":
            raise ValueError(f"graph_loss 'logistic' is for classes, got loss={self.loss!r}: use 'mean'")
        if self.n_predictors % n_blocks(self.n_classes):
            raise ValueError(f"{self.n_classes} classes have as many weights each, got {self.n_predictors} in all")
        self.block.checked()
        loss_code(self.loss)

    @property
    def sends_codes(self) -> bool:
        """Whether models and their changes are sent as codes."""
        return self.step == BLOCK_STEP

    @property
    def finest(self) -> int:
        """Exponent of the finest unit of shared models."""
        return finest_exponent(self.beta, np.dtype(self.dtype))

    @property
    def graph_mu(self) -> float:
        """mu2, the weight of the graph regularizer."""
        return float(self.mu1 if self.mu2 is None else self.mu2)

    @property
    def least_loss(self) -> float:
        """Lower bound of a peer's loss: that of margins which are all as large as a model of the ball can make them.

        >>> PeerConfig(n_predictors=5, beta=10.0, mu1=1.0, largest_prediction=3.0).least_loss
        -30.0
        """
        can_be_negative = self.loss == "adaboost" and self.graph_loss != "logistic"
        return -self.beta * self.largest_prediction if can_be_negative else 0.0

    @property
    def heaviest_weight(self) -> float:
        """Upper bound of an edge's weight: twice the best weight at the least possible cost.

        >>> PeerConfig(n_predictors=5, beta=10.0, mu1=1.0).heaviest_weight > 100
        True
        """
        regularizer = self.regularizer.compiled
        # A coupling of zero makes every weight cost nothing.
        marginal = 2.0 * self.least_loss / self.graph_mu if self.graph_mu > 0.0 else -LARGEST_COST
        return 2.0 * float(best_weight(regularizer, marginal + degree_slope(regularizer, 0.0), 0.0))

    @property
    def settings(self) -> ModelSettings:
        """Arguments of the model kernels."""
        coupling = np.ones(self.n_predictors) if self.coupling is None else self.coupling
        return ModelSettings(loss_code(self.loss), float(self.beta), float(self.mu1), coupling.astype(self.dtype))

    def with_trees(self, dictionary: bytes, origin: Array) -> PeerConfig:
        """These settings with other trees; `origin` has the present coordinate of each new one, or -1 for a new tree.

        >>> PeerConfig(2, 10.0, 1.0).with_trees(b"name", np.array([0, 1, -1])).n_predictors
        3
        """
        before = self.settings.coupling.astype(np.float64)
        coupling = np.where(origin >= 0, before[origin], TREE_COUPLING)
        sizes: Any = {"n_predictors": origin.size, "coupling": coupling}
        return replace(self, **sizes, dictionary=dictionary, agreed=self.digest)

    @property
    def digest(self) -> bytes:
        """Digest of the learning problem: peers with different digests do not connect."""
        if self.agreed:
            return self.agreed
        rules = {"distance": (self.regularizer, self.graph_loss), "evidence": (self.n_neighbours, self.tau)}
        mu = (self.mu1, self.graph_mu) if self.mu_per_confidence is None else ("census", self.mu_per_confidence)
        shared = (self.n_predictors, self.n_classes, self.beta, *mu, self.loss, self.graph)
        text = repr((shared, rules.get(self.graph, ()), self.settings.coupling.tolist(), self.predictors_digest))
        if self.largest_prediction != 1.0:
            text += repr(self.largest_prediction)
        if self.sends_codes:
            text += repr((self.dtype, *self.block.checked()))
        return hashlib.sha256(text.encode()).digest()[:16]


# Chosen on other draws of users than those of the commands; results hardly depend on them.
N_NEIGHBOURS, TAU = 5, 1.0


def usual_settings(graph: str, step: str) -> dict[str, Any]:
    """Settings of `PeerConfig` for a graph rule and a model step.

    >>> usual_settings("distance", "pairwise")
    {'graph': 'distance'}
    """
    by_graph = {"graph": graph} | ({"n_neighbours": N_NEIGHBOURS, "tau": TAU} if graph == "evidence" else {})
    if step != BLOCK_STEP:
        return by_graph
    on_evidence = BlockStep(inner_moves=10, momentum=0.0, quantise_bits=6, silence=0.02)
    return by_graph | {"step": step, "block": BlockStep(theta=0.5) if graph == "everyone" else on_evidence}


# The record of a secure sum: the peer's secrets, and the parts that it published.
SUMS_KEY = b"secure sums"


class StoredRows(msgspec.Struct, frozen=True, array_like=True):
    """The samples of a user, as bytes."""

    A: bytes
    dtype: str
    n_rows: int
    offset: bytes = b""
    weights: bytes = b""

    @classmethod
    def of(cls, rows: UserRows) -> StoredRows:
        """Rows to be stored."""
        return cls(rows.A.tobytes(), rows.A.dtype.str, len(rows.A), as_bytes(rows.offset), as_bytes(rows.weights))

    @property
    def rows(self) -> UserRows:
        """The stored rows."""
        # A copy, since kernels are compiled anew for arrays that cannot be written.
        A: Array = np.frombuffer(self.A, np.dtype(self.dtype)).reshape(self.n_rows, -1).copy()
        return UserRows(A, as_numbers(self.offset), as_numbers(self.weights))


def as_bytes(numbers: Array | None) -> bytes:
    """Numbers in double precision as bytes; empty for None."""
    return b"" if numbers is None else np.asarray(numbers, np.float64).tobytes()


def as_numbers(content: bytes) -> Array | None:
    """The inverse of `as_bytes`."""
    return np.frombuffer(content, np.float64) if content else None


class Restored(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The records that an earlier life stored were read; comes before `Started`."""

    records: dict[bytes, bytes]


class _Timed(msgspec.Struct, frozen=True, array_like=True):
    now: float


class Started(_Timed, frozen=True, tag=1):
    """A life begins; its random id distinguishes two processes with one identity."""

    life: bytes = b""


class ModelStep(_Timed, frozen=True, tag=2):
    """Action: make one model update; only the rule "paper" needs `gamma`."""

    gamma: float = -1.0


class GraphStep(_Timed, frozen=True, tag=3):
    """Action: update the weights to a batch of peers."""

    batch: tuple[PeerId, ...]


class ResetModel(_Timed, frozen=True, tag=4):
    """Action: restart the model from zero."""


class Leave(_Timed, frozen=True, tag=5):
    """Action: send a goodbye to all neighbours."""


class Received(_Timed, frozen=True, tag=6):
    """A message arrived."""

    sender: PeerId
    message: Message


class TimerFired(_Timed, frozen=True, tag=7):
    """The peer's deadline has passed."""


class Unreachable(_Timed, frozen=True, tag=8):
    """The transport has stopped trying to reach a peer."""

    peer: PeerId


class RowsChanged(_Timed, frozen=True, tag=9):
    """The user has new samples; these are all that the peer learns from now on."""

    stored: StoredRows


class SettingsAgreed(_Timed, frozen=True, tag=10):
    """The census gives another strength of the coupling, or another largest number of samples."""

    mu: float
    largest: int


class DictionaryChanged(_Timed, frozen=True, tag=11):
    """The trees among the base predictors have changed (see `dada.peer.grove`).

    `origin` are little-endian int32: the former coordinate of each present one, -1 for a new tree.
    """

    dictionary: bytes
    origin: bytes
    stored: StoredRows


Action = ModelStep | GraphStep | ResetModel | Leave
Fact = (
    Restored | Started | Action | Received | TimerFired | Unreachable | RowsChanged | SettingsAgreed | DictionaryChanged
)


class Persist(NamedTuple):
    """Store a record durably before any later effect is carried out; an empty value deletes the key."""

    key: bytes
    value: bytes


class Send(NamedTuple):
    """Send a message to a peer; it may be lost."""

    to: PeerId
    message: Message


class Refused(NamedTuple):
    """A message was ignored, and why; drivers count these."""

    sender: PeerId
    reason: str


class Failed(Refused):
    """A message was ignored because handling it raised an error: a flaw of this program, not of the sender."""


class Warned(NamedTuple):
    """Something that the operator of this peer must know."""

    text: str


Effect = Persist | Send | Refused | Warned
