"""The model of one peer, copies of its neighbours' models, and the locally trained fallback model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import msgspec
import numpy as np
from msgspec.structs import replace

from dada.core import block_steps as blocks
from dada.core import model_steps as steps
from dada.core.bits import OF_GRAPH, OF_MODELS, Cost, Ledger, coded_bits, move_cost
from dada.core.compiled import Array
from dada.core.graph_steps import judged_losses, log_evidence
from dada.core.losses import ALL_ALIKE, GRAPH_LOSSES, check_weights, loss_for_graph, relative_weights
from dada.core.model_steps import UserRows, rows_per_sample
from dada.core.plan import BLOCK_STEP
from dada.peer.copies import Code, ModelCopy, write_code
from dada.peer.inputs import PeerConfig, Persist
from dada.peer.messages import BlockChange, ImplausibleError, ModelChange, ModelDelta, ModelSnapshot

MODEL_KEY, EPOCH_KEY = b"model", b"epoch"
# The largest norm of a model to learn from, in radii of the l1 ball; rounding puts shared models beyond it by 3 %.
MOST_ACCEPTED = 1.5


class _StoredModel(msgspec.Struct, array_like=True):
    snapshot: ModelSnapshot
    updates: int


class _StoredBlockModel(_StoredModel, array_like=True):
    shared: ModelSnapshot


class BlockSteps:
    """The block steps of one peer: settings, the neighbours' mean at the last step, and working memory."""

    def __init__(self, config: PeerConfig) -> None:
        n, dtype = config.n_predictors, config.dtype
        self.step, self.finest, self.beta = config.block.checked(), config.finest, config.beta
        self.previous, self.target = np.zeros(n, dtype), np.empty(n, dtype)
        self.message = blocks.make_message(n)
        self.change_bits = 0

    def begin(self, degree: float, neighbour_sum: Array) -> None:
        """The neighbours have changed: the mean of the former ones says nothing about the trend of the new."""
        blocks.mean_of_neighbours(degree, neighbour_sum, self.previous)

    def solve(
        self, settings: steps.ModelSettings, wakeups: int, user: steps.UserModel, model: ModelCopy,
        scratch: steps.StepScratch,
    ) -> None:  # fmt: skip
        """Solve the peer's block; `target` is then the model to share."""
        if wakeups % blocks.MARGINS_EVERY == blocks.MARGINS_EVERY - 1:
            steps.refresh_margins(user, model.n_support)
        # Counts have the type that the engine's have: then peers use the kernel that the engine compiles.
        counts = np.int32(wakeups), np.int32(model.n_support)
        model.n_support = int(
            blocks.block_step(settings, self.step, counts[0], user, counts[1], self.previous, self.target, scratch)
        )

    def change(self, model: ModelCopy, shared: ModelCopy, scratch: steps.StepScratch) -> BlockChange | None:
        """Bring the shared model nearer to the target; returns the message, or None if there is nothing to send yet."""
        loudest = blocks.largest_weight(model.alpha, model.support, model.n_support)
        size, exponent = blocks.encode_change(self.step, self.finest, self.target, shared.alpha, loudest, self.message)
        if size == 0:
            return None
        blocks.decode_change(self.message, size, exponent, scratch)
        if not shared.add(size, exponent, self.beta, scratch):
            return None
        shared.sequence += 1
        self.change_bits = int(coded_bits(shared.alpha.size, size, self.step.quantise_bits))
        entries = Code(self.message.coordinate[:size], self.message.value[:size], exponent)
        return BlockChange(*shared.number, write_code(entries, shared.alpha.size, self.step.quantise_bits))


def zero_model(rows: UserRows, config: PeerConfig) -> steps.UserModel:
    """The zero model of a user with these rows, which have the types that kernels take (`checked_rows`)."""
    A, offset, weights = rows
    (m, n), dtype = A.shape, config.dtype
    offset = np.zeros(m, dtype) if offset is None else offset
    sample_weight = ALL_ALIKE if weights is None else relative_weights(weights, np.array([0, m]))
    support = np.zeros(n, np.int16 if n < 2**15 else np.int32)
    vectors = np.zeros(n, dtype), np.zeros(n, dtype)
    return steps.UserModel(A, offset.copy(), *vectors, support, offset, sample_weight)


def checked_rows(rows: UserRows, config: PeerConfig) -> UserRows:
    """A peer's rows with the types that kernels take; raises if they do not fit the network."""
    A, offset, weights = rows
    per_sample = rows_per_sample(config.n_classes)
    if A.ndim != 2 or A.shape[0] < 1 or A.shape[1] != config.n_predictors or A.shape[0] % per_sample:
        raise ValueError(
            f"A must have {config.n_predictors} columns, and {per_sample} rows for each of one or more samples, "
            f"got shape {A.shape}"
        )
    if not abs(A).max() <= config.largest_prediction:
        raise ValueError(
            f"A has entries of size {abs(A).max():.6g}, but the network agreed on {config.largest_prediction:g}: "
            "other peers would refuse its losses. Set largest_prediction, or scale the base predictors"
        )
    if (offset is not None) != (config.n_classes == 0):
        raise ValueError(f"rows have offsets for numbers only, got n_classes={config.n_classes}")
    if offset is not None and not (offset.shape == A.shape[:1] and np.isfinite(offset).all()):
        raise ValueError(f"offset must be a finite number for each of {len(A)} rows, got shape {offset.shape}")
    if weights is not None:
        check_weights(weights, len(A))
    margins = np.ascontiguousarray(A, None if A.dtype == np.int8 else config.dtype)
    return UserRows(margins, None if offset is None else offset.astype(config.dtype), weights)


class OwnModel:
    """The model of a peer, and the rows it is learned from: row i of A holds the margins y_i h_j(x_i).

    Attributes
    ----------
    model, shared : ModelCopy
        The model, and what neighbours hold of it: under block steps a model that follows it by messages, otherwise the
        model itself. The shared model has the numbers.
    updates : int
        Steps since the model was zero.
    is_stale : bool
        Whether the sum of the neighbours' models must be recomputed before the next step.
    degree : float
        Sum of the weights of the models in that sum.

    Examples
    --------
    >>> rows = UserRows(np.array([[1, -1], [1, 1]], np.int8))
    >>> own = OwnModel(rows, PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> own.step(gamma=-1.0, confidence=1.0).j, own.model.alpha.tolist()
    (0, [1.0, 0.0])
    """

    def __init__(self, rows: UserRows, config: PeerConfig) -> None:
        self.updates = 0
        self.degree = 0.0
        self._rule = steps.STEP_RULES.get(config.step, steps.PAIRWISE)
        self._begin(rows, config)

    def _begin(self, rows: UserRows, config: PeerConfig) -> None:
        """A zero model over the base predictors of a configuration."""
        self.config = config
        self._settings = config.settings
        n, dtype = config.n_predictors, config.dtype
        self.user = zero_model(checked_rows(rows, config), config)
        self.model = ModelCopy(self.user.alpha, self.user.support, 0, 0, 0)
        self._blocks = BlockSteps(config) if config.sends_codes else None
        self.shared = ModelCopy.zero(n, dtype=dtype) if config.sends_codes else self.model
        self.is_stale = True
        self.take_rows(rows)

    def rebase(self, rows: UserRows, config: PeerConfig, origin: Array) -> None:
        """Learn over other base predictors from now on, with the weights of those that stay (`ModelCopy.rebased`)."""
        mu, epoch = self.mu, self.shared.epoch
        model, shared = self.model.rebased(origin), self.shared.rebased(origin)
        self._begin(rows, config)
        self.couple(mu)
        self._adopt(model, shared)
        self.shared.epoch = epoch

    @property
    def mu(self) -> float:
        """Strength of the coupling between neighbours' models."""
        return self._settings.mu

    def couple(self, mu: float) -> None:
        """Set the strength of the coupling."""
        self._settings = self._settings._replace(mu=mu)

    def take_rows(self, rows: UserRows) -> None:
        """Learn from these rows from now on; the model stays as it is."""
        n, dtype = self.config.n_predictors, self.config.dtype
        self.rows = checked_rows(rows, self.config)
        self.size = len(self.rows.A)
        vectors = {name: getattr(self.user, name) for name in ("alpha", "neighbour_sum", "support")}
        self.user = zero_model(self.rows, self.config)._replace(**vectors)
        self.scratch = steps.make_scratch(n, self.size, np.dtype(dtype))
        steps.refresh_margins(self.user, self.model.n_support)
        self._evidence_of_nothing = self.evidence(ModelCopy.zero(n, dtype=dtype))

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def loss(self) -> float:
        """The loss on the peer's own samples, as graph steps take it."""
        kind = GRAPH_LOSSES[self.config.graph_loss]
        user = self.user
        return float(loss_for_graph(kind, self._settings.loss, user.margins, user.sample_weight, self.scratch.eta))

    @property
    def n_samples(self) -> int:
        """Number of the peer's own samples."""
        return self.size // rows_per_sample(self.config.n_classes)

    @property
    def accuracy(self) -> float | None:
        """Share of the peer's own samples that its model gets right; None for numbers."""
        if self.config.n_classes == 0:
            return None
        return float(np.mean(self.user.margins.reshape(self.n_samples, -1).min(axis=1) > 0))

    def evidence(self, copy: ModelCopy, tau: float = 1.0, size: int = 1) -> float:
        """Log evidence for another model on the peer's own samples (see `dada.core.graph_steps`)."""
        return float(log_evidence(tau, self._settings.loss, self.user, copy.alpha, copy.support, copy.n_support, size))

    def accepts(self, copy: ModelCopy) -> bool:
        """Whether a model is at least as good as none on the peer's own samples, and not much larger than the ball.

        Always true without vetting.
        """
        if not self.config.vet or copy.n_support == 0:
            return True
        return copy.norm <= MOST_ACCEPTED * self.config.beta and self.evidence(copy) >= self._evidence_of_nothing

    def squared_distance(self, copy: ModelCopy) -> float:
        """Squared distance of the shared model to another."""
        own = self.shared
        return float(
            steps.squared_distance(
                self._settings.coupling, own.alpha, own.support, own.n_support, copy.alpha, copy.support, copy.n_support
            )
        )

    def copy_of(self, snapshot: ModelSnapshot) -> ModelCopy:
        """A model that another peer sent, checked."""
        if self.config.sends_codes:
            return ModelCopy.from_code(snapshot, self.config)
        return ModelCopy.from_snapshot(snapshot, self.config.n_predictors, self.config.beta)

    def snapshot(self) -> ModelSnapshot:
        """The shared model, for a message."""
        return self.snapshot_of(self.shared)

    def snapshot_of(self, copy: ModelCopy) -> ModelSnapshot:
        """A shared model, of this peer or of another, for a message."""
        if not self.config.sends_codes:
            return copy.snapshot()
        coded = copy.coded_snapshot()
        return replace(coded, coordinates=self.config.dictionary) if self.config.dictionary else coded

    def count_change(self, ledger: Ledger, change: ModelChange, n_receivers: int) -> None:
        """Enter the change that the last step returned into a ledger."""
        if isinstance(change, BlockChange):
            assert self._blocks is not None
            ledger.models += np.multiply(Cost(1, 0, 0), n_receivers)
            ledger.coded[OF_MODELS] += n_receivers * self._blocks.change_bits
        else:
            ledger.models += np.multiply(move_cost(1 if change.away == steps.ALL else 2), n_receivers)

    def count_reply(self, ledger: Ledger, cost: Cost, copy: ModelCopy) -> None:
        """Enter a received model, and a message of this cost around it, into a ledger."""
        if self.config.sends_codes:
            ledger.coded[OF_GRAPH] += copy.snapshot_bits
        else:
            cost = Cost(cost.messages, cost.floats + copy.n_support, cost.indices + copy.n_support)
        ledger.graph += cost

    # -- steps -----------------------------------------------------------------------------------------------------

    @property
    def is_refresh_due(self) -> bool:
        """Whether `refresh` must come before the next step."""
        return self.is_stale or self._is_rounding_due

    @property
    def _is_rounding_due(self) -> bool:
        every = steps.REFRESH_EVERY if self._blocks is None else blocks.NEIGHBOUR_SUM_EVERY
        return self.updates % every == every - 1

    def refresh(self, models: Iterable[tuple[float, ModelCopy]]) -> None:
        """Recompute the sum of the neighbours' models, in the given order; from time to time the margins too."""
        self.user.neighbour_sum[:] = 0
        self.degree = add_models(self.user.neighbour_sum, models)
        if self._blocks is not None:
            if self.is_stale:
                self._blocks.begin(self.degree, self.user.neighbour_sum)
        elif self._is_rounding_due:
            steps.refresh_margins(self.user, self.model.n_support)
        self.is_stale = False

    def step(self, gamma: float, confidence: float) -> ModelChange | None:
        """Make one step; returns the change to send, or None if there is nothing to send."""
        user = self.user._replace(confidence=confidence, degree=self.degree)
        if self._blocks is not None:
            self._blocks.solve(self._settings, self.updates, user, self.model, self.scratch)
            self.updates += 1
            return self._blocks.change(self.model, self.shared, self.scratch)
        if self._rule == steps.LOCAL:
            gamma = steps.step_size(steps.LOCAL, 0, 0, self.updates)
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

    def follow(self, copy: ModelCopy, weight: float, change: ModelChange) -> None:
        """Apply a neighbour's change to the copy of its model, and to the sum of the neighbours' models."""
        if isinstance(change, BlockChange) != self.config.sends_codes:
            raise ImplausibleError(f"a {type(change).__name__} in a network with the step {self.config.step!r}")
        if isinstance(change, BlockChange):
            n_changed = copy.follow_code(change, self.config, self.scratch)
        else:
            n_changed = copy.follow(change, self.config.beta, self.scratch)
        if not self.is_stale:
            scratch = self.scratch
            steps.add_change(self.user.neighbour_sum, weight, n_changed, scratch.coordinate, scratch.delta)

    def reset(self) -> None:
        """Start again from zero."""
        zero = ModelCopy.zero(self.config.n_predictors)
        self._adopt(zero, zero)
        self.updates = 0

    def _adopt(self, model: ModelCopy, shared: ModelCopy) -> None:
        """Replace the values of the model and of the shared one in place, and recompute the margins."""
        for mine, new in ((self.model, model), (self.shared, shared)):
            mine.alpha[:], mine.support[:] = new.alpha, new.support
            mine.n_support, mine.exponent = new.n_support, new.exponent
        self.shared.sequence += 1
        steps.refresh_margins(self.user, self.model.n_support)
        self.is_stale = True

    # -- storage ---------------------------------------------------------------------------------------------------

    def record(self) -> Persist:
        """The model, to be stored."""
        stored = _StoredModel(self.model.snapshot(), self.updates)
        if self.config.sends_codes:
            stored = _StoredBlockModel(stored.snapshot, self.updates, self.snapshot())
        return Persist(MODEL_KEY, msgspec.msgpack.encode(stored))

    def begin_epoch(self, after: int = 0) -> Persist:
        """Begin an epoch above the last one and above a given one: no number of an earlier life repeats."""
        self.shared.epoch, self.shared.sequence = max(self.shared.epoch, after) + 1, 0
        return Persist(EPOCH_KEY, self.shared.epoch.to_bytes(8, "big"))

    @staticmethod
    def stored_dictionary(records: Mapping[bytes, bytes]) -> bytes:
        """The name of the dictionary of a stored model under block steps; empty without trees."""
        if MODEL_KEY not in records:
            return b""
        return msgspec.msgpack.decode(records[MODEL_KEY], type=_StoredBlockModel).shared.coordinates

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take over a stored model."""
        if MODEL_KEY in records:
            kind = _StoredBlockModel if self.config.sends_codes else _StoredModel
            stored = msgspec.msgpack.decode(records[MODEL_KEY], type=kind)
            config = self.config
            model = ModelCopy.from_snapshot(stored.snapshot, config.n_predictors, config.beta, config.dtype)
            shared = self.copy_of(stored.shared) if isinstance(stored, _StoredBlockModel) else model
            self._adopt(model, shared)
            self.updates = stored.updates
        if EPOCH_KEY in records:
            self.shared.epoch = int.from_bytes(records[EPOCH_KEY], "big")


def add_models(neighbour_sum: Array, models: Iterable[tuple[float, ModelCopy]]) -> float:
    """Add weighted models to a sum; returns the sum of the weights."""
    total = 0.0
    for weight, copy in models:
        steps.add_model(neighbour_sum, weight, copy.alpha)
        total += weight
    return total


# Steps of the fallback model, and standard errors by which it must be ahead to be preferred.
STEPS, CLEARLY_AHEAD = 200, 2.0
# Parts of the samples that are held out in turn; fewer of large tables, so that the choice takes a second at most.
MOST_PARTS, FEW_PARTS, FEW_CELLS = 10, 3, 1 << 19


class Fallback:
    """The locally trained model `alpha` of a peer, and the choice between it and the model learned with others.

    If others learned from flipped labels, `kept` is the correlation of these with the true ones: their models are as
    much shorter, and so are the differences between users, for which mu was chosen. So they are lengthened by 1 / kept,
    up to the bound beta, and mu is multiplied by its square.

    >>> rows = UserRows(np.array([[1, -1], [1, 1], [1, -1]], np.int8))
    >>> own = Fallback(rows, PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> own.alpha.tolist()
    [1.0, 0.0]
    >>> right, wrong = np.array([1.0, 0.0], np.float32), np.array([-1.0, 0.0], np.float32)
    >>> own.is_better(0.1, 1.0, right), own.is_better(0.1, 1.0, wrong)
    (False, True)
    """

    def __init__(self, rows: UserRows, config: PeerConfig, kept: float = 1.0) -> None:
        self._rows, self._config, self._kept = checked_rows(rows, config), config, kept
        self._per_sample = rows_per_sample(config.n_classes)
        self._settings = config.settings
        self.couple(config.settings.mu)
        # The paper's steps need a global count, and block steps others to send to.
        self._rule = steps.STEP_RULES["pairwise" if config.step in ("paper", BLOCK_STEP) else config.step]
        m, n = self._rows.A.shape
        self._scratch = steps.make_scratch(n, m, np.dtype(config.dtype))
        self._no_neighbours = np.zeros(n, config.dtype)
        self.alpha = self.learned(self._rows, 1.0, 0.0, self._no_neighbours)

    def couple(self, mu: float) -> None:
        """Set the strength of the coupling to neighbours' models."""
        self._settings = self._settings._replace(mu=self._kept**2 * mu)

    def _lengthened(self, degree: float, neighbour_sum: Array) -> Array:
        """The sum of neighbours' models as it would be without flipped labels."""
        if self._kept == 1.0:
            return neighbour_sum
        norm = float(np.abs(neighbour_sum).sum())
        longer = min(1 / self._kept, max(1.0, self._config.beta * degree / max(norm, 1e-30)))
        return np.asarray(longer * neighbour_sum, neighbour_sum.dtype)

    @cached_property
    def _own_scores(self) -> Array:
        return self._held_out_scores(1.0, 0.0, self._no_neighbours, self._scores)

    @cached_property
    def _score_of_nothing(self) -> float:
        return float(self._scores(self._rows, self._no_neighbours).mean())

    def is_better(self, confidence: float, degree: float, neighbour_sum: Array) -> bool:
        """Whether the local model has clearly better held-out scores than a model learned with the neighbours.

        Clearly: by two standard errors of the mean difference; or at all, if the neighbours' models are worse than
        none. `degree` is the sum of the neighbours' weights, and `neighbour_sum` the weighted sum of their models.
        Without neighbours the local model is chosen.
        """
        if degree <= 0.0:
            return True
        neighbour_sum = self._lengthened(degree, neighbour_sum)
        theirs = self._held_out_scores(confidence, degree, neighbour_sum, self._scores)
        ahead = self._own_scores - theirs
        do_harm = float(theirs.mean()) < self._score_of_nothing
        error = 0.0 if do_harm or ahead.size == 1 else float(ahead.std(ddof=1)) / math.sqrt(ahead.size)
        return float(ahead.mean()) > CLEARLY_AHEAD * error

    def together(self, confidence: float, degree: float, neighbour_sum: Array) -> Array:
        """A model learned from all rows and a fixed sum of neighbours' models."""
        return self.learned(self._rows, confidence, degree, self._lengthened(degree, neighbour_sum))

    def gains(
        self, mu: float, fractions: Iterable[float], confidence: float, degree: float, neighbour_sum: Array
    ) -> list[float]:
        """Log-likelihood of held-out samples that fractions of mu gain over mu, next to fixed neighbours' models."""
        whole, *weaker = (
            self._held_out_scores(confidence, degree, neighbour_sum, self._log_scores, fraction * mu).sum()
            for fraction in (1.0, *fractions)
        )
        return [float(scores - whole) for scores in weaker]

    def _held_out_scores(
        self,
        confidence: float,
        degree: float,
        neighbour_sum: Array,
        score: Callable[[UserRows, Array], Array],
        mu: float | None = None,
    ) -> Array:
        m = len(self._rows.A) // self._per_sample
        # With one sample, the neighbours' models are judged as they are.
        if m == 1:
            return score(self._rows, neighbour_sum / degree if degree > 0.0 else neighbour_sum)
        n_parts = min(m, MOST_PARTS if self._rows.A.size <= FEW_CELLS else FEW_PARTS)
        part_of = np.arange(m) % n_parts
        scores = np.empty(m)
        for part in range(n_parts):
            is_out = np.repeat(part_of == part, self._per_sample)
            kept = confidence * float(np.mean(~is_out))
            alpha = self.learned(self._rows.take(~is_out), kept, degree, neighbour_sum, mu)
            scores[part_of == part] = score(self._rows.take(is_out), alpha)
        return scores

    def _scores(self, rows: UserRows, alpha: Array) -> Array:
        """Score of each sample under a model: its margin, cut off at -1 and 1, or minus its loss for numbers."""
        margins = rows.A.astype(np.float64) @ alpha
        if rows.offset is not None:
            scores = -judged_losses(self._settings.loss, margins + rows.offset)
        else:
            scores = np.clip(margins, -1.0, 1.0).reshape(-1, self._per_sample).min(axis=1)
        return scores if rows.weights is None else scores * rows.weights[:: self._per_sample]

    def _log_scores(self, rows: UserRows, alpha: Array) -> Array:
        """Log-likelihood of each sample: of its class by its scores, or minus the squared error of a number."""
        margins = rows.A.astype(np.float64) @ alpha
        if rows.offset is not None:
            return np.asarray(-((margins + rows.offset) ** 2))
        behind = np.pad(-margins.reshape(-1, self._per_sample), ((0, 0), (1, 0)))
        # As `scipy.special.log_softmax`, bit for bit, without the memory that scipy takes.
        below_largest = behind - behind.max(axis=1, keepdims=True)
        return np.asarray(below_largest[:, 0] - np.log(np.exp(below_largest).sum(axis=1)))

    def learned(
        self, rows: UserRows, confidence: float, degree: float, neighbour_sum: Array, mu: float | None = None
    ) -> Array:
        """A model learned from some rows and a fixed sum of neighbours' models, with a given mu or the network's."""
        user = zero_model(rows, self._config)._replace(
            neighbour_sum=neighbour_sum, confidence=float(confidence), degree=float(degree)
        )
        settings = self._settings if mu is None else self._settings._replace(mu=mu)
        steps.frozen_steps(self._rule, settings, user, 0, STEPS, self._scratch)
        return user.alpha
