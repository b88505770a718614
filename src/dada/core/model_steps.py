"""One user's Frank-Wolfe update: gradient, atom, step, change (Eqs. 3 and 4).

User k's block, divided by its degree, is

    min over ||alpha||_1 <= beta of   c_k L_k(alpha) + (mu1 / 2) sum_j omega_j (alpha_j - abar_j)^2,

with abar the weighted mean of the neighbours' models. The scale of the graph cancels, and a user without neighbours
solves its local problem. Each user updates its margins A alpha and its `neighbour_sum` = sum_l w_kl alpha_l by
increments. Increments in single precision drift, so both are recomputed every `REFRESH_EVERY` updates.

Every step ends in a `Move`. The owner and its neighbours apply it with the same operations, so that copies of a model
equal the model bit for bit. Applying a move lists the changed coordinates; neighbours add them to their sums.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dada.core.compiled import Array, bits_of, lean_kernel
from dada.core.losses import LossCode, curvature_along, loss_and_weights, slope_along

PAPER, LOCAL, LINE_SEARCH, PAIRWISE = 0, 1, 2, 3
STEP_RULES = {"paper": PAPER, "local": LOCAL, "line-search": LINE_SEARCH, "pairwise": PAIRWISE}

CENTRE, ALL = -1, -2

# Own updates after which a user recomputes its margins and neighbour sum: rare enough to cost nothing, often enough to
# keep the rounding error of single precision far below the optimisation error.
REFRESH_EVERY = 256

SINGLE_EPSILON = 2.0**-23
# Relative error of a sum in double precision: an l1 norm that exceeds the ball by less is inside.
ROUNDING = 1e-13


class ModelSettings(NamedTuple):
    """Settings of model updates, shared by all users."""

    loss: LossCode
    beta: float
    mu: float
    coupling: Array


class UserRows(NamedTuple):
    """The samples of one user, or of several, as kernels learn from them.

    Base predictor margins A (rows, n), and for each row an offset and a weight; without them, offsets are 0 and rows
    count equally. Two classes and numbers have one row per sample, C classes have C - 1.
    """

    A: Array
    offset: Array | None = None
    weights: Array | None = None

    def take(self, rows: Array | slice) -> UserRows:
        """Some of the rows."""
        offset, weights = (None if part is None else part[rows] for part in self[1:])
        return UserRows(self.A[rows], offset, weights)

    def joined(self, newer: UserRows) -> UserRows:
        """These rows and newer ones of the same kind; rows without weights count as one."""
        weights = None
        if self.weights is not None or newer.weights is not None:
            weights = np.concatenate([np.ones(len(r.A)) if r.weights is None else r.weights for r in (self, newer)])
        offsets = [rows.offset for rows in (self, newer) if rows.offset is not None]
        offset = np.concatenate(offsets) if offsets else None
        return UserRows(np.concatenate([self.A, newer.A]), offset, weights)


def rows_per_sample(n_classes: int) -> int:
    """Rows of margins of one sample: a comparison with each wrong class."""
    return max(1, n_classes - 1)


def n_blocks(n_classes: int) -> int:
    """Blocks of n weights in a model: one for each class if there are more than two."""
    return n_classes if n_classes > 2 else 1


class UserModel(NamedTuple):
    """One user's arrays, its confidence c_k and its degree d_k.

    Base predictor margins A (m, n); current margins, offset and sample weight (m); model, neighbour sum and support
    (n). Current margins are offset + A alpha. The offset is zero in classification and minus the targets in
    regression, where margins are residuals. `sample_weight` is empty if all samples count equally.
    """

    A: Array
    margins: Array
    alpha: Array
    neighbour_sum: Array
    support: Array
    offset: Array
    sample_weight: Array
    confidence: float = 1.0
    degree: float = 0.0


class Move(NamedTuple):
    """The change of a model by one step: mass gamma moves to the vertex toward * e_j, from `away`.

    `away` is the coordinate whose active vertex loses the mass, `CENTRE` (the unused part of the ball), or `ALL`: all
    coordinates in proportion, which is a Frank-Wolfe step.
    """

    j: int
    toward: float
    away: int
    gamma: float
    takes_all: bool


class StepScratch(NamedTuple):
    """Working memory of a model step, and its change: `coordinate[:c]` moved by `delta[:c]`."""

    gradient: Array
    eta: Array
    h: Array
    coordinate: Array
    delta: Array


def make_scratch(n: int, most_samples: int, dtype: np.dtype[np.floating]) -> StepScratch:
    """Working memory for models of n predictors and users with at most `most_samples` samples."""
    eta, h = np.empty(most_samples, dtype), np.empty(most_samples, dtype)
    return StepScratch(np.empty(n, dtype), eta, h, np.empty(n, np.int32), np.empty(n, dtype))


@lean_kernel
def block_gradient(settings: ModelSettings, user: UserModel, eta: Array, gradient: Array) -> None:
    """Block k of grad f divided by d_k, Eq. (4): -c_k A^T eta + mu1 omega (alpha - abar)."""
    m, n = user.A.shape
    number = gradient.dtype.type
    mu = number(coupling_strength(settings, user))
    inverse = number(1.0 / user.degree if user.degree > 0.0 else 0.0)
    for j in range(n):
        gradient[j] = mu * settings.coupling[j] * (user.alpha[j] - inverse * user.neighbour_sum[j])
    for i in range(m):
        c = number(-user.confidence * eta[i])
        for j in range(n):
            gradient[j] += c * number(user.A[i, j])


@lean_kernel
def coupling_strength(settings: ModelSettings, user: UserModel) -> float:
    """mu1, or 0 for a user without neighbours."""
    return settings.mu if user.degree > 0.0 else 0.0


@lean_kernel
def largest_entry(gradient: Array) -> int:
    """The index of the entry of largest magnitude, the lowest on ties: the coordinate of the atom, Eq. (3)."""
    # Compilers vectorise the maximum of integers, but not of floats, because of NaN.
    largest = bits_of(abs(gradient[0]))
    for j in range(1, gradient.size):
        largest = max(largest, bits_of(abs(gradient[j])))
    for j in range(gradient.size):
        if bits_of(abs(gradient[j])) == largest:
            return j
    return 0


@lean_kernel
def exact_gamma(loss: LossCode, user: UserModel, slope: float, quadratic: float, h: Array) -> float:
    """The gamma in [0, 1] that minimises the block objective along h, by safeguarded Newton on its derivative.

    `slope` < 0 is the derivative at 0 and `quadratic` the constant second derivative of the coupling term.
    """
    confidence, margins, sample_weight = user.confidence, user.margins, user.sample_weight
    at_zero, _ = slope_along(loss, margins, sample_weight, h, 0.0)
    linear = slope - confidence * at_zero
    low, high, gamma, last = 0.0, 1.0, 1.0, 2.0
    for _ in range(100):
        first, second = slope_along(loss, margins, sample_weight, h, gamma)
        derivative = confidence * first + linear + quadratic * gamma
        if derivative > 0.0:
            high = gamma
        else:
            low = gamma
        if low == 1.0 or abs(derivative) <= 1e-9 * abs(slope):
            return gamma
        step = gamma - derivative / max(confidence * second + quadratic, 1e-300)
        # With a bound in place of the second derivative, Newton's method converges slowly.
        if not low < step < high or abs(step - gamma) > 0.5 * last:
            step = 0.5 * (low + high)
        if step == gamma:
            return gamma
        gamma, last = step, abs(step - gamma)
    return gamma


@lean_kernel
def toward_vertex(settings: ModelSettings, user: UserModel, n_support: int, gamma: float, scratch: StepScratch) -> Move:
    """The Frank-Wolfe move alpha <- (1 - gamma) alpha + gamma beta s e_j; gamma < 0 requests an exact line search."""
    m = user.margins.size
    number = user.alpha.dtype.type
    h, gradient = scratch.h[:m], scratch.gradient
    j = largest_entry(gradient)
    toward = -settings.beta if gradient[j] > 0.0 else settings.beta
    vertex = number(toward)
    for i in range(m):
        h[i] = vertex * number(user.A[i, j]) - (user.margins[i] - user.offset[i])
    if gamma < 0.0:
        slope = np.float64(gradient[j]) * vertex
        quadratic = settings.coupling[j] * (np.float64(vertex) * vertex - 2.0 * vertex * user.alpha[j])
        for p in range(n_support):
            q = user.support[p]
            slope -= np.float64(gradient[q]) * user.alpha[q]
            quadratic += settings.coupling[q] * np.float64(user.alpha[q]) * user.alpha[q]
        quadratic *= coupling_strength(settings, user)
        gamma = exact_gamma(settings.loss, user, slope, quadratic, h) if slope < 0.0 else 0.0
    return Move(j, toward, ALL, np.float64(number(gamma)), False)


@lean_kernel
def between_vertices(
    settings: ModelSettings, user: UserModel, n_support: int, eta: Array, scratch: StepScratch
) -> Move:
    """The pairwise move: mass goes from the worst active vertex to the best vertex of the l1 ball.

    The model is a mixture of the vertices sign(alpha_j) beta e_j with mass |alpha_j| / beta, and of the centre with
    the rest. The closed-form step size never increases the block objective: the second derivative along the move grows
    at most as exp(growth gamma).
    """
    m = user.margins.size
    number = user.alpha.dtype.type
    beta = settings.beta
    h, gradient = scratch.h[:m], scratch.gradient
    j = largest_entry(gradient)
    toward = -beta if gradient[j] > 0.0 else beta
    away_index, away_value, mass_used = CENTRE, -np.inf, 0.0
    for p in range(n_support):
        q = user.support[p]
        mass_used += abs(np.float64(user.alpha[q]))
        value = gradient[q] * (beta if user.alpha[q] > 0.0 else -beta)
        if value > away_value:
            away_index, away_value = int(q), value
    slack = 1.0 - mass_used / beta
    # Ignore slack of the size of rounding errors: it would allow steps of zero length from the centre.
    if slack > 1e-6 and away_value <= 0.0:
        away_index, away_value = CENTRE, 0.0
    away, most = 0.0, slack
    if away_index >= 0:
        away = beta if user.alpha[away_index] > 0.0 else -beta
        most = abs(np.float64(user.alpha[away_index])) / beta
    pair_gap = away_value - np.float64(gradient[j]) * toward
    if not pair_gap > 0.0:
        return Move(j, toward, away_index, 0.0, False)
    for i in range(m):
        h[i] = number(toward) * number(user.A[i, j])
        if away_index >= 0:
            h[i] -= number(away) * number(user.A[i, away_index])
    if away_index == j:
        length = settings.coupling[j] * (toward - away) ** 2
    else:
        length = settings.coupling[j] * toward**2
        if away_index >= 0:
            length += settings.coupling[away_index] * away**2
    curvature, growth = curvature_along(settings.loss, user.margins, user.sample_weight, eta, h)
    curvature = user.confidence * curvature + coupling_strength(settings, user) * length
    # If sample weights underflow, the curvature is zero; this bound is above it, and only shortens the step.
    curvature = max(curvature, 1e-30 * growth * growth)
    gamma = math.log1p(growth * pair_gap / curvature) / growth if growth > 1e-12 else pair_gap / curvature
    takes_all = gamma >= most and away_index >= 0 and away_index != j
    gamma = min(gamma, most)
    # More than the slack would lead out of the ball; a vertex bounds what it loses when the move is applied.
    rounded = inward(gamma, user.alpha) if away_index == CENTRE else number(gamma)
    return Move(j, toward, away_index, np.float64(rounded), takes_all)


@lean_kernel
def inward(x: float, alpha: Array) -> float:
    """x in the precision of a model, rounded toward zero."""
    number = alpha.dtype.type
    near = number(x)
    return np.nextafter(near, number(0.0)) if abs(np.float64(near)) > abs(x) else near


@lean_kernel
def bounded_change(alpha: Array, j: int, delta: float, growth: float) -> float:
    """The change `delta` of a weight, shortened so that the rounded weight grows by at most `growth` in size."""
    if abs(np.float64(delta)) > growth:
        delta = alpha.dtype.type(growth if delta > 0.0 else -growth)
    new = alpha[j] + delta
    while abs(np.float64(new)) > abs(np.float64(alpha[j])) + growth:
        # One or two units in the last place of the sum. In double precision rounding is monotone and needs none.
        delta -= new * alpha.dtype.type(SINGLE_EPSILON)
        new = alpha[j] + delta
    return delta


@lean_kernel
def without_zeros(alpha: Array, support: Array, n_support: int) -> int:
    """Drop the coordinates that have become zero from a support; returns its new size."""
    kept = 0
    for p in range(n_support):
        if alpha[support[p]] != 0.0:
            support[kept] = support[p]
            kept += 1
    return kept


@lean_kernel
def apply_move(move: Move, alpha: Array, support: Array, n_support: int, scratch: StepScratch) -> tuple[int, int]:
    """Apply a move to a model or to a copy of it, with the same operations.

    Rounding never takes a model out of its ball, whatever the precision and the number of moves: in a pairwise move a
    weight gains at most what another loses, and a Frank-Wolfe move that ends outside is scaled back. Returns the new
    size of the support and the number of changed coordinates, listed in the scratch.
    """
    number = alpha.dtype.type
    gamma = number(move.gamma)
    if gamma == 0.0:
        return n_support, 0
    if alpha[move.j] == 0.0:
        support[n_support] = move.j
        n_support += 1
    some_zero = False
    if move.away == ALL:
        n_changed = n_support
        keep, norm = number(1.0) - gamma, 0.0
        for p in range(n_support):
            q = support[p]
            updated = keep * alpha[q]
            if q == move.j:
                updated += gamma * number(move.toward)
            scratch.coordinate[p] = q
            scratch.delta[p] = updated
            norm += abs(np.float64(updated))
        # Rounding would otherwise carry the norm beyond the ball, a little further with every step.
        excess = norm / abs(move.toward)
        for p in range(n_support):
            q = support[p]
            updated = scratch.delta[p]
            if excess > 1.0 + ROUNDING:
                updated = inward(updated / excess, alpha)
            scratch.delta[p] = updated - alpha[q]
            alpha[q] = updated
            some_zero |= updated == 0.0
    else:
        n_changed = 1
        before = alpha[move.j]
        gain = gamma * number(move.toward)
        scratch.coordinate[0] = move.j
        if move.away == move.j:
            # Mass moves between the two vertices of one coordinate: at most all of it, which changes the sign.
            gain += gain
            scratch.delta[0] = gain if abs(before + gain) <= abs(before) else -(before + before)
        elif move.away == CENTRE:
            gain = inward(move.gamma * move.toward, alpha)
            scratch.delta[0] = bounded_change(alpha, move.j, gain, abs(np.float64(gain)))
        else:
            n_changed = 2
            away = alpha[move.away]
            # Taking all mass of a vertex must leave an exact zero; otherwise its coordinate stays in the support.
            loss = -away if move.takes_all else (-abs(gain) if away > 0.0 else abs(gain))
            lost = max(0.0, abs(np.float64(away)) - abs(np.float64(away + loss)))
            scratch.coordinate[1] = move.away
            scratch.delta[1] = loss
            scratch.delta[0] = bounded_change(alpha, move.j, gain, lost)
        for c in range(n_changed):
            alpha[scratch.coordinate[c]] += scratch.delta[c]
            some_zero |= alpha[scratch.coordinate[c]] == 0.0
    return (without_zeros(alpha, support, n_support) if some_zero else n_support), n_changed


@lean_kernel
def make_move(move: Move, user: UserModel, n_support: int, scratch: StepScratch) -> tuple[int, int]:
    """Apply a move along `scratch.h` to a user's model and margins; returns what `apply_move` returns."""
    n_support, n_changed = apply_move(move, user.alpha, user.support, n_support, scratch)
    if n_changed > 0:
        length = user.alpha.dtype.type(move.gamma)
        for i in range(user.margins.size):
            user.margins[i] += length * scratch.h[i]
    return n_support, n_changed


@lean_kernel
def model_step(
    rule: int, settings: ModelSettings, user: UserModel, n_support: int, gamma: float, scratch: StepScratch
) -> tuple[Move, int, int]:
    """One update of a user's model and margins by a step rule; `gamma` comes from `step_size`.

    Returns the move, the new size of the support, and the number of changed coordinates, listed in the scratch.
    """
    eta = scratch.eta[: user.margins.size]
    loss_and_weights(settings.loss, user.margins, user.sample_weight, eta)
    block_gradient(settings, user, eta, scratch.gradient)
    if rule == PAIRWISE:
        move = between_vertices(settings, user, n_support, eta, scratch)
    else:
        move = toward_vertex(settings, user, n_support, gamma, scratch)
    n_support, n_changed = make_move(move, user, n_support, scratch)
    return move, n_support, n_changed


@lean_kernel
def step_size(rule: int, n_users: int, t: int, own_updates: int) -> float:
    """gamma of the rules with a fixed schedule; negative if the step computes it."""
    if rule == PAPER:
        return 2.0 * n_users / (t + 2.0 * n_users)
    if rule == LOCAL:
        return 2.0 / (own_updates + 2.0)
    return -1.0


@lean_kernel
def refresh_margins(user: UserModel, n_support: int) -> None:
    """Recompute the margins offset + A alpha from the support."""
    number = user.alpha.dtype.type
    for i in range(user.margins.size):
        total = np.float64(user.offset[i])
        for p in range(n_support):
            q = user.support[p]
            total += np.float64(user.A[i, q]) * user.alpha[q]
        user.margins[i] = number(total)


@lean_kernel
def add_model(neighbour_sum: Array, weight: float, alpha: Array) -> None:
    """neighbour_sum += weight * alpha."""
    w = neighbour_sum.dtype.type(weight)
    for j in range(neighbour_sum.size):
        neighbour_sum[j] += w * alpha[j]


@lean_kernel
def add_change(target: Array, weight: float, n_changed: int, coordinate: Array, delta: Array) -> None:
    """target += weight * change of a model; entries `coordinate[:n_changed]` of the model moved by `delta`."""
    w = target.dtype.type(weight)
    for c in range(n_changed):
        target[coordinate[c]] += w * delta[c]


@lean_kernel
def frozen_steps(
    rule: int, settings: ModelSettings, user: UserModel, n_support: int, n_steps: int, scratch: StepScratch
) -> int:
    """Up to `n_steps` steps of one user while all other models stay frozen; returns the new size of the support."""
    for t in range(n_steps):
        gamma = step_size(rule, 1, t, t)
        _, n_support, n_changed = model_step(rule, settings, user, n_support, gamma, scratch)
        if n_changed == 0:
            break
    return n_support


@lean_kernel
def squared_difference(coupling: float, a: float, b: float) -> float:
    """omega_j (a_j - b_j)^2: one term of the squared distance of two models."""
    difference = np.float64(a) - b
    return coupling * difference * difference


@lean_kernel
def squared_distance(
    coupling: Array, alpha_k: Array, support_k: Array, n_k: int, alpha_l: Array, support_l: Array, n_l: int
) -> float:
    """||alpha_k - alpha_l||^2 in the metric of the coupling weights, over the two supports only."""
    total = 0.0
    for p in range(n_k):
        q = support_k[p]
        total += squared_difference(coupling[q], alpha_k[q], alpha_l[q])
    for p in range(n_l):
        q = support_l[p]
        if alpha_k[q] == 0.0:
            total += squared_difference(coupling[q], alpha_l[q], 0.0)
    return total
