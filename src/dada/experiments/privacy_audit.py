"""Attack on released bytes: find out which of two rows was among a user's rows.

The attacker knows everything but one row, which is one of two. Its test is the most powerful one, the likelihood ratio
of a release. Its rates of hits and false alarms bound epsilon from below in two ways:

- counting: an (epsilon, delta)-private mechanism has P(alarm | row) <= e^epsilon P(alarm | other row) + delta for every
  alarm, whatever its noise;
- Gaussian: if the noise is Gaussian, the two rates of one alarm give mu, and mu gives epsilon at the claimed delta
  (Nasr et al. 2023). Counting would need events as rare as delta for the same.

A second attack needs one run only (Steinke, Nasr and Jagielski 2023). Many slots hold one of two rows each, by a fair
coin, and the attacker guesses the coins that it is surest of. See `one_run`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, ndtri
from scipy.stats import beta, binom

from dada.privacy.accounting import Privacy, gaussian_delta
from dada.privacy.noise import Bits, randomised_response
from dada.privacy.release import (
    UNIT,
    Statistics,
    StatisticsMechanism,
    read_labels,
    read_statistics,
    release_labels,
    sums,
)

Floats = NDArray[np.float64]
# Probability that a bound is wrong, on either side.
DOUBT = 0.001
# Part of the releases that chooses the threshold of the alarm; the others are counted.
PILOT = 0.2
# One run: probability that its bound is wrong, slots of a user, and the share of the slots of rows that is guessed. The
# share was chosen by simulated Gaussian scores: fewer guesses prove less, and more guesses are less sure.
RUN_DOUBT, SLOTS, GUESSED = 0.01, 10, 0.2
# No label of a run is flipped beyond this epsilon, and no bound is sought.
MOST_EPSILON = 30.0


class Rows(NamedTuple):
    """Base predictions and outputs of a user."""

    h: Floats
    y: Floats


def worlds() -> tuple[Rows, Rows]:
    """Two users that differ in one row, as far apart as the joint sensitivity of G and B allows for rows of norm 1."""
    others = Rows(np.array([[0.3, -0.2], [-0.5, 0.5]]), np.array([[1.0], [-1.0]]))
    first, second = (Rows(*map(np.vstack, zip(others, last, strict=True))) for last in canaries())
    return first, second


def canaries() -> tuple[Rows, Rows]:
    """Two rows of norm 1 that are as far apart as the joint sensitivity of G and B allows."""
    return Rows(np.array([[1.0, 0.0]]), np.ones((1, 1))), Rows(np.array([[0.5, math.sqrt(0.75)]]), -np.ones((1, 1)))


def divided(mechanism: StatisticsMechanism, factor: int) -> StatisticsMechanism:
    """A mechanism with less noise than it should have."""
    steps = {name: max(1, getattr(mechanism, name) // factor) for name in ("gram_steps", "moment_steps")}
    return replace(mechanism, **steps)


def log_ratio(first: Rows, second: Rows, norm: float) -> Callable[[Statistics], float]:
    """The log likelihood ratio of released statistics: of the first rows against the second."""
    pairs = tuple(zip(*(sums(rows.h, rows.y, norm) for rows in (first, second)), strict=True))
    middle, towards = [(one + other) / UNIT / 2 for one, other in pairs], [(one - other) / UNIT for one, other in pairs]

    def score(found: Statistics) -> float:
        by_gram = ((found.gram - middle[0]) * towards[0]).sum() / found.gram_sigma**2
        return float(by_gram + ((found.moment - middle[1]) * towards[1]).sum() / found.moment_sigma**2)

    return score


def statistics_scores(mechanism: StatisticsMechanism, n_trials: int, source: Bits) -> tuple[Floats, Floats]:
    """Log likelihood ratio of releases of either world."""
    score = log_ratio(*worlds(), mechanism.norm)
    first, second = (
        np.array([score(read_statistics(mechanism.release(rows.h, rows.y, source))[0]) for _ in range(n_trials)])
        for rows in worlds()
    )
    return first, second


def label_scores(epsilon: float, n_trials: int, source: Bits) -> tuple[Floats, Floats]:
    """Released labels of either world: the true label is 1 or 0."""
    first, second = (
        randomised_response(source, np.full(n_trials, label), 2, epsilon).astype(np.float64) for label in (1, 0)
    )
    return first, second


def epsilon_shown(first: Floats, second: Floats, delta: float = 0.0, is_gaussian: bool = False) -> float:
    """The epsilon that an attack proves to be exceeded, or 0: Clopper-Pearson bounds of the rates of an alarm.

    The first scores choose the threshold of the alarm, the others are counted.
    """
    pilot = int(PILOT * len(first))

    def shown(threshold: float, part: slice) -> float:
        hits, alarms = (int((scores[part] >= threshold).sum()) for scores in (first, second))
        return bound(hits, alarms, len(first[part]), delta, is_gaussian)

    thresholds = np.unique(np.quantile(np.concatenate([first[:pilot], second[:pilot]]), np.linspace(0.02, 0.999, 60)))
    best = max(thresholds.tolist(), key=lambda threshold: shown(threshold, slice(0, pilot)))
    return max(0.0, shown(best, slice(pilot, None)))


def bound(hits: int, alarms: int, n: int, delta: float = 0.0, is_gaussian: bool = False) -> float:
    """Lower bound of epsilon for `hits` and false `alarms`, each of n.

    >>> round(bound(500, 500, 1000), 2), round(bound(1000, 0, 1000), 1)
    (-0.2, 5.0)
    >>> round(bound(600, 400, 1000, 1e-5, is_gaussian=True), 2)
    0.95
    """
    least = float(beta.ppf(DOUBT, hits, n - hits + 1)) if hits else 0.0
    most = float(beta.ppf(1 - DOUBT, alarms + 1, n - alarms)) if alarms < n else 1.0
    if is_gaussian:
        return gaussian_epsilon(float(ndtri(least) - ndtri(most)), delta) if least > most else -math.inf
    return math.log((least - delta) / most) if least > delta else -math.inf


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of Gaussian releases at a delta, Eq. (P1).

    >>> round(gaussian_epsilon(0.268, 1e-5), 2)
    1.0
    """
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # For any mu, delta vanishes beyond mu^2 / 2 and forty times mu.
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, mu * (mu / 2 + 40)))


def audit(what: str, epsilon: float, factor: int, n_trials: int, seed: int) -> dict[str, Any]:
    """The epsilon that an attack shows, for noise that should give `epsilon` but is divided by a factor."""
    source = Bits(np.random.default_rng([seed, 7]).bytes)
    if what == "labels":
        shown = epsilon_shown(*label_scores(factor * epsilon, n_trials, source))
        return {"counted": shown, "shown": shown}
    delta = Privacy.delta
    claimed = StatisticsMechanism.calibrated(epsilon, delta, n_predictors=2, n_outputs=1, norm=1.0)
    scores = statistics_scores(divided(claimed, factor), n_trials, source)
    counted, gaussian = (epsilon_shown(*scores, delta, is_gaussian) for is_gaussian in (False, True))
    return {"counted": counted, "shown": max(counted, gaussian)}


def one_run(what: str, epsilon: float, factor: int, n_slots: int, seed: int) -> dict[str, Any]:
    """The epsilon that guesses in a single run show, for noise that should give `epsilon` but is divided by a factor.

    A fair coin decides which of two rows each slot holds, or which of two labels. Flipping a coin replaces one row, and
    users release independently, so all releases together are (epsilon, delta)-private with respect to each coin: that
    is all the bound assumes. The number of guesses is fixed before the run.
    """
    rng = np.random.default_rng([seed, 11])
    source, coins = Bits(rng.bytes), rng.integers(0, 2, n_slots)
    if what == "labels":
        given = read_labels(release_labels(coins, 2, min(factor * epsilon, MOST_EPSILON), source))
        right, guesses, delta = int((given == coins).sum()), n_slots, 0.0
    else:
        delta = Privacy.delta
        claimed = StatisticsMechanism.calibrated(epsilon, delta, n_predictors=2 * SLOTS, n_outputs=1, norm=1.0)
        scores = slot_scores(divided(claimed, factor), coins, source)
        surest = np.argsort(-np.abs(scores), kind="stable")[: int(GUESSED * n_slots)]
        right, guesses = int(((scores > 0) == (coins == 1))[surest].sum()), surest.size
    return {"guesses": guesses, "right": right, "shown": run_bound(n_slots, guesses, right, delta)}


def slot_scores(mechanism: StatisticsMechanism, coins: NDArray[np.integer], source: Bits) -> Floats:
    """Log likelihood ratio of the coin of each slot; a release holds `SLOTS` of them, in two base predictors each."""
    scores, (first, second) = [], canaries()
    score = log_ratio(first, second, mechanism.norm)
    for start in range(0, len(coins), SLOTS):
        own = coins[start : start + SLOTS].tolist()
        h, y = np.zeros((len(own), mechanism.n_predictors)), np.zeros((len(own), 1))
        places = [slice(2 * slot, 2 * slot + 2) for slot in range(len(own))]
        for slot, place in enumerate(places):
            h[slot, place], y[slot] = (row[0] for row in (first if own[slot] else second))
        found, _ = read_statistics(mechanism.release(h, y, source))
        for place in places:
            part = found._replace(gram=found.gram[place, place], moment=found.moment[place])
            scores.append(score(part))
    return np.array(scores)


def run_bound(n_slots: int, guesses: int, right: int, delta: float = 0.0) -> float:
    """Lower bound of epsilon for the right guesses of one run, or 0; wrong with probability `RUN_DOUBT` at most.

    >>> round(run_bound(1000, 1000, 731), 2), run_bound(1000, 1000, 500)
    (0.83, 0.0)
    """

    def excess(epsilon: float) -> float:
        return run_chance(n_slots, guesses, right, epsilon, delta) - RUN_DOUBT

    if excess(0.0) > 0:
        return 0.0
    return float(brentq(excess, 0.0, MOST_EPSILON)) if excess(MOST_EPSILON) > 0 else MOST_EPSILON


def run_chance(n_slots: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The largest probability of at least `right` right guesses in an (epsilon, delta)-private run.

    Theorem 5.2 of Steinke, Nasr and Jagielski (2023). With delta = 0, right guesses are at most as frequent as those of
    randomised response: binomial, with the probability e^epsilon / (1 + e^epsilon). Delta adds, for W with this
    distribution, 2 delta n_slots max over i of P(right - i <= W < right) / i.

    >>> run_chance(10, 1, 1, 0.0, 0.0)
    0.5
    """
    kept = float(expit(epsilon))
    by_epsilon = float(binom.sf(right - 1, guesses, kept))
    if not delta or not right:
        return by_epsilon
    below = np.arange(1, right + 1)
    by_delta = float((np.cumsum(binom.pmf(right - below, guesses, kept)) / below).max())
    return min(1.0, by_epsilon + 2 * delta * n_slots * by_delta)
