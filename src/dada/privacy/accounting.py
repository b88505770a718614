"""The budget, and exact accounting of Gaussian and pure mechanisms.

Gaussian releases with sensitivities D_i and standard deviations s_i are together as private as one Gaussian release
with mu = sqrt(sum (D_i / s_i)^2), whose trade-off is exact:

    delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)                                                  (P1)

Noise is drawn on a grid. A discrete Gaussian of s steps per standard deviation differs from a rounded continuous one
by at most 1/(8 s^2) in total variation for each coordinate; `grid_delta` charges that difference to delta.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from scipy.optimize import brentq
from scipy.special import log_ndtr

PROTECTS = ("rows", "labels")
NOISE = ("secure", "seeded")
MOST_MU = 1e4


@dataclass(frozen=True)
class Privacy:
    """What one user's releases may reveal about its rows to all other users together.

    Parameters
    ----------
    epsilon, delta : float
        The budget of each user: replacing one of its rows changes the probability of any set of releases by at most
        the factor e^epsilon, plus delta. Labels are protected with delta = 0.
    protects : {"rows", "labels"}
        "rows": features and label of a row. "labels": the label only; features are not protected.
    ranges : (low, high), optional
        Public range of the features: two numbers, or two sequences with a number per feature. Needed to protect rows;
        must not be read off the rows. Values outside are clipped.
    targets : (low, high), optional
        Public range of a regression's targets, likewise.
    norm : float, optional
        Public bound on the Euclidean norm of the base predictions of a row. Longer rows are shortened before their
        release. By default the square root of their number, which holds always. One-hot features have smaller norms.
    ledger : path, optional
        File that records what was released; a second fit to the same rows sends the same bytes. By default a fit keeps
        no record, and every further fit to the same rows spends the budget once more.
    noise : {"secure", "seeded"}
        "seeded" takes the noise from `random_state`, so that an experiment can be repeated. It protects nobody:
        whoever knows the seed removes the noise.

    Examples
    --------
    >>> Privacy(epsilon=4.0, ranges=(0, 1)).protects
    'rows'
    >>> Privacy(epsilon=-1.0)
    Traceback (most recent call last):
    ValueError: epsilon must be a finite number > 0, got -1.0
    """

    epsilon: float
    delta: float = 1e-5
    protects: str = "rows"
    ranges: Any = None
    targets: tuple[float, float] | None = None
    norm: float | None = None
    ledger: str | os.PathLike[str] | None = None
    noise: str = "secure"

    def __post_init__(self) -> None:
        if not isinstance(self.epsilon, Real) or not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be a finite number > 0, got {self.epsilon!r}")
        if not isinstance(self.delta, Real) or not 0 < self.delta < 1:
            raise ValueError(f"delta must be between 0 and 1, both excluded, got {self.delta!r}")
        if self.protects not in PROTECTS:
            raise ValueError(f"protects must be one of {list(PROTECTS)}, got {self.protects!r}")
        if self.noise not in NOISE:
            raise ValueError(f"noise must be one of {list(NOISE)}, got {self.noise!r}")
        if self.norm is not None and not 0 < self.norm < math.inf:
            raise ValueError(f"norm must be a finite number > 0, got {self.norm!r}")
        if self.protects == "rows" and self.ranges is None:
            raise ValueError(
                "ranges must be given to protect rows: (low, high), public bounds of the features that do not come "
                "from the rows; or protect labels only with protects='labels'"
            )


@dataclass(frozen=True)
class PrivacyCost:
    """What releases cost: `mu` of Gaussian noise, `epsilon` of pure mechanisms, and `delta` of drawing on a grid.

    >>> PrivacyCost(mu=0.3) + PrivacyCost(mu=0.4)
    PrivacyCost(mu=0.5, epsilon=0.0, delta=0.0)
    """

    mu: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    def __add__(self, other: PrivacyCost) -> PrivacyCost:
        return PrivacyCost(math.hypot(self.mu, other.mu), self.epsilon + other.epsilon, self.delta + other.delta)

    def delta_at(self, epsilon: float) -> float:
        """The delta that these releases guarantee at this epsilon; 1 if pure mechanisms alone cost more.

        >>> round(PrivacyCost(mu=0.925).delta_at(4.0), 7)
        1e-05
        """
        if self.epsilon > epsilon * (1 + 1e-12):
            return 1.0
        return min(1.0, gaussian_delta(self.mu, max(0.0, epsilon - self.epsilon)) + self.delta)


def total(costs: Iterable[PrivacyCost]) -> PrivacyCost:
    """The cost of all releases together.

    >>> total([])
    PrivacyCost(mu=0.0, epsilon=0.0, delta=0.0)
    """
    return sum(costs, PrivacyCost())


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Exact delta of Gaussian releases, Eq. (P1).

    >>> gaussian_delta(0.0, 1.0)
    0.0
    """
    if mu == 0.0:
        return 0.0
    upper, lower = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    # The difference of two nearly equal terms, taken relative to the first.
    log_first = float(log_ndtr(upper))
    return max(0.0, -math.exp(log_first) * math.expm1(epsilon + float(log_ndtr(lower)) - log_first))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose Gaussian releases are (epsilon, delta)-private, rounded down.

    >>> [round(gaussian_mu(epsilon, 1e-5), 3) for epsilon in (1, 4, 8)]
    [0.268, 0.925, 1.666]
    """
    if not epsilon > 0 or not 0 < delta < 1:
        raise ValueError(f"epsilon must be > 0 and delta between 0 and 1, got epsilon={epsilon}, delta={delta}")
    found = float(brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-9, MOST_MU, xtol=1e-15, rtol=1e-14))
    while gaussian_delta(found, epsilon) > delta:
        found *= 1 - 1e-12
    return found


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon at which Gaussian releases are (epsilon, delta)-private.

    >>> round(gaussian_epsilon(gaussian_mu(4.0, 1e-5), 1e-5), 9)
    4.0
    """
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1.0
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, high, xtol=1e-12))


def grid_delta(epsilon: float, steps: Iterable[int], counts: Iterable[int]) -> float:
    """Delta that drawing on a grid costs; `counts` coordinates have `steps` grid steps per standard deviation.

    >>> grid_delta(4.0, [1 << 30], [170]) < 1e-14
    True
    """
    apart = sum(count / (8 * step * step) for step, count in zip(steps, counts, strict=True))
    return (1 + math.exp(epsilon)) * apart
