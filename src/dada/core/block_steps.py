"""One user's block step: many pairwise moves, then one short message.

At a wake-up the user extrapolates the weighted mean of its neighbours' *shared* models (momentum), and solves its own
block towards the result y:

    min over ||alpha||_1 <= beta of   c_k L_k(alpha) + (mu1 / 2) sum_j omega_j (alpha_j - y_j)^2.

The shared model is what the neighbours hold. It follows theta alpha + (1 - theta) y by messages. A message is a list of
coordinates and small integers, in units of a power of two: `value[c] * 2**exponent` is added to the shared model at
`coordinate[c]`. What a message leaves out stays in the difference and is sent later (error feedback).

All entries of a shared model are multiples of the finest unit, `2**finest`, and additions of such numbers are exact. So
owner and holders have the same bits, in whatever order messages arrive, and a snapshot of the model is a message too.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dada.core.compiled import Array, lean_kernel
from dada.core.losses import loss_and_weights
from dada.core.model_steps import (
    ModelSettings,
    StepScratch,
    UserModel,
    between_vertices,
    block_gradient,
    largest_entry,
    make_move,
    without_zeros,
)

# Inner moves end when the gap of the block has fallen to this part of its first value.
SOLVED_PART = 0.1
# Part of mu1 at a user's first wake-up, and its growth to 1 by wake-ups: the neighbours' models are mostly noise at
# first, and a strong coupling to them would hold back what all users have to learn.
FIRST_MU_PART, MU_GROWTH = 0.25, 1.12
LEAST_BITS, MOST_BITS = 2, 32
# The finest unit is this many powers of two below beta: sums of a few beta then fit the digits of the format exactly.
DIGITS = {np.dtype(np.float32): 22, np.dtype(np.float64): 51}
# The exponent of a message is one signed byte, and its units are normal numbers in single precision.
LEAST_EXPONENT = -120
# Exponent of a model without entries: above that of any unit.
COARSEST = 127
# Wake-ups after which a user recomputes its margins and its neighbour sum, to remove rounding errors.
MARGINS_EVERY, NEIGHBOUR_SUM_EVERY = 8, 256


class BlockStep(NamedTuple):
    """Settings of the block step."""

    # Most pairwise moves at a wake-up.
    inner_moves: int = 10
    # Extrapolation of the neighbours' mean by this multiple of its last change, in [0, 1). It grows to this value over
    # the first wake-ups of a user.
    momentum: float = 0.95
    # Share of the user's model in what is sent, in (0, 1]; the rest is the target. Below 1, means spread faster on a
    # sparse graph, and models are tied to a mean of more users than their neighbours.
    theta: float = 1.0
    # Bits of one sent value, 2 to 32.
    quantise_bits: int = 8
    # Entries of a change below this part of the largest are not sent yet, in [0, 1].
    keep: float = 0.2
    # A change whose largest entry is at most this part of the model's largest is not sent yet, in [0, 1).
    silence: float = 0.01

    def checked(self) -> BlockStep:
        """The settings with the types that kernels take; raises if one is out of range."""
        ranges = {
            "inner_moves": (">= 1", self.inner_moves >= 1),
            "momentum": ("in [0, 1)", 0 <= self.momentum < 1),
            "theta": ("in (0, 1]", 0 < self.theta <= 1),
            "quantise_bits": (f"in {LEAST_BITS}..{MOST_BITS}", LEAST_BITS <= self.quantise_bits <= MOST_BITS),
            "keep": ("in [0, 1]", 0 <= self.keep <= 1),
            "silence": ("in [0, 1)", 0 <= self.silence < 1),
        }
        for name, (wanted, is_met) in ranges.items():
            if not is_met:
                raise ValueError(f"{name} must be {wanted}, got {getattr(self, name)}")
        typed = {name: type(default)(getattr(self, name)) for name, default in self._field_defaults.items()}
        return self._replace(**typed)


class CodedChange(NamedTuple):
    """Room for a message: its first entries add `value * 2**exponent` to the model at `coordinate`."""

    coordinate: Array
    value: Array


def make_message(n: int) -> CodedChange:
    """Room for a message about models of n predictors."""
    return CodedChange(np.empty(n, np.int32), np.empty(n, np.int32))


def finest_exponent(beta: float, dtype: np.dtype[np.floating]) -> int:
    """The exponent of the finest unit of shared models of this precision."""
    return max(LEAST_EXPONENT, math.frexp(beta)[1] - DIGITS[np.dtype(dtype)])


@lean_kernel
def mean_of_neighbours(degree: float, neighbour_sum: Array, mean: Array) -> None:
    """The weighted mean of the neighbours' shared models; zero without neighbours."""
    inverse = mean.dtype.type(1.0 / degree if degree > 0.0 else 0.0)
    for j in range(mean.size):
        mean[j] = inverse * neighbour_sum[j]


@lean_kernel
def extrapolate(momentum: float, wakeups: int, previous: Array, target: Array) -> None:
    """Move the target, a mean, on by momentum; `previous` becomes that mean."""
    t = wakeups + 1
    ahead = target.dtype.type(min(momentum, (t - 2.0) / (t + 1.0)) if t > 2 else 0.0)
    for j in range(target.size):
        mean = target[j]
        target[j] = mean + ahead * (mean - previous[j])
        previous[j] = mean


@lean_kernel
def block_gap(beta: float, user: UserModel, n_support: int, gradient: Array) -> float:
    """Frank-Wolfe gap of a block at its gradient."""
    gap = beta * abs(np.float64(gradient[largest_entry(gradient)]))
    for p in range(n_support):
        q = user.support[p]
        gap += np.float64(gradient[q]) * user.alpha[q]
    return gap


@lean_kernel
def solve_block(
    settings: ModelSettings, user: UserModel, n_support: int, most_moves: int, part: float, scratch: StepScratch
) -> int:
    """Pairwise moves on a user's block until its gap is this part of the first one; returns the size of the support."""
    eta = scratch.eta[: user.margins.size]
    enough = 0.0
    for number_of_move in range(most_moves):
        loss_and_weights(settings.loss, user.margins, user.sample_weight, eta)
        block_gradient(settings, user, eta, scratch.gradient)
        if most_moves > 1:
            gap = block_gap(settings.beta, user, n_support, scratch.gradient)
            if number_of_move == 0:
                enough = part * gap
            elif gap <= enough:
                break
        move = between_vertices(settings, user, n_support, eta, scratch)
        n_support, n_changed = make_move(move, user, n_support, scratch)
        if n_changed == 0:
            break
    return n_support


@lean_kernel
def stay_inside(beta: float, user: UserModel, n_support: int) -> None:
    """Shrink a model that rounding has put on or beyond the surface of the l1 ball just enough to put it inside."""
    number = user.alpha.dtype.type
    mass = 0.0
    for p in range(n_support):
        mass += abs(np.float64(user.alpha[user.support[p]]))
    # Relative rounding error of the sum.
    slack = 2.3e-16 * (n_support + 1)
    if mass <= beta * (1.0 - slack):
        return
    shrink = beta / mass * (1.0 - slack - (1.2e-7 if user.alpha.itemsize == 4 else 2.3e-16))
    for p in range(n_support):
        q = user.support[p]
        user.alpha[q] = number(shrink * user.alpha[q])
    for i in range(user.margins.size):
        user.margins[i] = number(user.offset[i] + shrink * (user.margins[i] - user.offset[i]))


@lean_kernel
def block_step(
    settings: ModelSettings, step: BlockStep, wakeups: int, user: UserModel, n_support: int,
    previous: Array, target: Array, scratch: StepScratch,
) -> int:  # fmt: skip
    """One wake-up: solve the user's block towards the neighbours' mean, and leave in `target` the model to share.

    `previous` is the mean at the last wake-up. Returns the size of the support.
    """
    mean_of_neighbours(user.degree, user.neighbour_sum, target)
    extrapolate(step.momentum, wakeups, previous, target)
    mu = settings.mu * min(1.0, FIRST_MU_PART * MU_GROWTH ** min(wakeups, 99))
    coupled = ModelSettings(settings.loss, settings.beta, mu, settings.coupling)
    has_neighbours = 1.0 if user.degree > 0.0 else 0.0
    towards = UserModel(
        user.A, user.margins, user.alpha, target, user.support, user.offset, user.sample_weight,
        user.confidence, has_neighbours,
    )  # fmt: skip
    n_support = solve_block(coupled, towards, n_support, step.inner_moves, SOLVED_PART, scratch)
    stay_inside(settings.beta, user, n_support)
    number = target.dtype.type
    own = number(step.theta if user.degree > 0.0 else 1.0)
    for j in range(target.size):
        target[j] = own * user.alpha[j] + (number(1.0) - own) * target[j]
    return n_support


@lean_kernel
def encode_change(
    step: BlockStep, finest: int, wanted: Array, shared: Array, loudest: float, message: CodedChange
) -> tuple[int, int]:
    """The message that brings a shared model nearer to the wanted one: its number of entries and its exponent.

    Values are rounded to the nearest, halves away from zero. `silence` is relative to `loudest`, the largest entry of
    the user's model. Without entries, nothing is sent.
    """
    largest = 0.0
    for j in range(wanted.size):
        largest = max(largest, abs(np.float64(wanted[j]) - shared[j]))
    if not largest > step.silence * loudest:
        return 0, finest
    levels = (1 << (step.quantise_bits - 1)) - 1
    part, exponent = math.frexp(largest / levels)
    exponent = max(exponent - 1 if part == 0.5 else exponent, finest)
    per_unit = math.ldexp(1.0, -exponent)
    least = step.keep * largest
    n_entries = 0
    for j in range(wanted.size):
        change = np.float64(wanted[j]) - shared[j]
        value = min(math.floor(abs(change) * per_unit + 0.5), levels)
        if value > 0 and abs(change) >= least:
            message.coordinate[n_entries] = j
            message.value[n_entries] = value if change > 0.0 else -value
            n_entries += 1
    return n_entries, exponent


@lean_kernel
def decode_change(message: CodedChange, n_entries: int, exponent: int, scratch: StepScratch) -> None:
    """Write the change that a message encodes to the scratch; owner and holders add the same numbers."""
    unit = math.ldexp(1.0, exponent)
    for c in range(n_entries):
        scratch.coordinate[c] = message.coordinate[c]
        scratch.delta[c] = message.value[c] * unit


@lean_kernel
def add_to_model(model: Array, support: Array, n_support: int, n_changed: int, scratch: StepScratch) -> int:
    """Add a decoded message to a shared model or a copy of it; returns the size of the support.

    The coordinates of a message ascend, and so does the support of a shared model: sums over it do not depend on the
    messages by which the model came about.
    """
    n_new = 0
    for c in range(n_changed):
        n_new += model[scratch.coordinate[c]] == 0.0
    # Merge from the end.
    last, free = n_support - 1, n_support + n_new - 1
    for c in range(n_changed - 1, -1, -1):
        j = scratch.coordinate[c]
        if model[j] != 0.0:
            continue
        while last >= 0 and support[last] > j:
            support[free] = support[last]
            free -= 1
            last -= 1
        support[free] = j
        free -= 1
    n_support += n_new
    some_zero = False
    for c in range(n_changed):
        j = scratch.coordinate[c]
        model[j] += scratch.delta[c]
        some_zero |= model[j] == 0.0
    return without_zeros(model, support, n_support) if some_zero else n_support


@lean_kernel
def largest_weight(model: Array, support: Array, n_support: int) -> float:
    """The largest magnitude in a model."""
    largest = 0.0
    for p in range(n_support):
        largest = max(largest, abs(np.float64(model[support[p]])))
    return largest


@lean_kernel
def value_bits(largest: float, exponent: int) -> int:
    """Bits of a signed whole number of units up to the largest entry, as a snapshot needs them."""
    units, bits = math.ldexp(largest, -exponent), 1
    while units >= 1.0:
        units *= 0.5
        bits += 1
    return bits
