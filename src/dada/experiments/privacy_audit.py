"""Attack on released bytes: find out which of two rows was among a user's rows.

The attacker knows everything but one row, which is one of two. Its test is the most powerful one, the likelihood ratio
of a release. Its rates of hits and false alarms bound epsilon from below in two ways:

- counting: an (epsilon, delta)-private mechanism has P(alarm | row) <= e^epsilon P(alarm | other row) + delta for every
  alarm, whatever its noise;
- Gaussian: if the noise is Gaussian, the two rates of one alarm give mu, and mu gives epsilon at the claimed delta
  (Nasr et al. 2023). Counting would need events as rare as delta for the same.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import beta

from dada.privacy.accounting import Privacy, gaussian_delta
from dada.privacy.noise import Bits, randomised_response
from dada.privacy.release import UNIT, StatisticsMechanism, read_statistics, sums

Floats = NDArray[np.float64]
# Probability that a bound is wrong, on either side.
DOUBT = 0.001
# Part of the releases that chooses the threshold of the alarm; the others are counted.
PILOT = 0.2


class Rows(NamedTuple):
    """Base predictions and outputs of a user."""

    h: Floats
    y: Floats


def worlds() -> tuple[Rows, Rows]:
    """Two users that differ in one row, as far apart as the joint sensitivity of G and B allows for rows of norm 1."""
    others = np.array([[0.3, -0.2], [-0.5, 0.5]])
    first, second = (np.vstack([others, last]) for last in ([1.0, 0.0], [0.5, math.sqrt(0.75)]))
    return Rows(first, np.array([[1.0], [-1.0], [1.0]])), Rows(second, np.array([[1.0], [-1.0], [-1.0]]))


def divided(mechanism: StatisticsMechanism, factor: int) -> StatisticsMechanism:
    """A mechanism with less noise than it should have."""
    steps = {name: max(1, getattr(mechanism, name) // factor) for name in ("gram_steps", "moment_steps")}
    return replace(mechanism, **steps)


def statistics_scores(mechanism: StatisticsMechanism, n_trials: int, source: Bits) -> tuple[Floats, Floats]:
    """Log likelihood ratio of releases of either world."""
    (gram, moment), (other_gram, other_moment) = (sums(rows.h, rows.y, mechanism.norm) for rows in worlds())
    towards = [(a - b) / UNIT for a, b in ((gram, other_gram), (moment, other_moment))]
    middle = [(a + b) / UNIT / 2 for a, b in ((gram, other_gram), (moment, other_moment))]

    def score(body: bytes) -> float:
        found, _ = read_statistics(body)
        by_gram = ((found.gram - middle[0]) * towards[0]).sum() / found.gram_sigma**2
        return float(by_gram + ((found.moment - middle[1]) * towards[1]).sum() / found.moment_sigma**2)

    first, second = (
        np.array([score(mechanism.release(rows.h, rows.y, source)) for _ in range(n_trials)]) for rows in worlds()
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
