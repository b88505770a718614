"""How far users' models can be trusted: calibrated probabilities, and scores on test rows.

A temperature T divides decision values before they become probabilities: above 1 for models that are too sure. It
changes no predicted label. All users share a common temperature, found by maximum likelihood, and each has its own
factor, drawn to 1 by a prior: users have too few held-out rows for a free one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.core.losses import Reliability, mean_per_user
from dada.data import BasePredictors, Population
from dada.fitting.held_out import HeldOutScores
from dada.fitting.models import HeldOutValues, class_scores, decisions, positions_of

Floats = NDArray[np.float64]

# Prior variance of the logarithm of a user's factor. On School, Computer, HARWS and Moons, 0.01 to 0.1 do equally well.
SPREAD = 0.03
# Logarithms of temperatures change by at most this in a step of Newton's method, and stay within these limits.
LONGEST_STEP, LIMIT = 1.0, np.log(20.0)
MOST_STEPS = 50
LEAST_ROWS = 20


@dataclass(frozen=True, eq=False)
class Calibration:
    """Temperatures, and how reliable probabilities of held-out rows are without and with them.

    Attributes
    ----------
    common : float
        Temperature of users without held-out rows.
    temperatures : array of shape (n_users,)
        Temperature of each user.
    before, after : Reliability
        Of probabilities without and with temperatures. For `after`, the temperatures of a row were found without it.
    """

    common: float
    temperatures: Floats
    before: Reliability
    after: Reliability

    def __repr__(self) -> str:
        low, high = self.temperatures.min(), self.temperatures.max()
        return (
            f"Calibration(temperatures {low:.3g} to {high:.3g}, expected calibration error "
            f"{self.before.error:.4f} before, {self.after.error:.4f} after)"
        )

    def of(self, positions: NDArray[np.int64]) -> Floats:
        """Temperatures of the users at these positions; -1, and users who joined later, have the common one."""
        own = np.append(self.temperatures, self.common)
        return own[np.where(positions < len(self.temperatures), positions, -1)]


def calibrate(held_out: HeldOutValues, user_ids: NDArray[Any]) -> Calibration | None:
    """Temperatures of users from held-out rows; None for too few rows. All are 1 if they make labels no likelier.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> values = rng.normal(size=2000)
    >>> labels = (rng.random(2000) < 1 / (1 + np.exp(-values))).astype(int)
    >>> found = calibrate(HeldOutValues(np.repeat(["ann", "bob"], 1000), labels, 2 * values), np.array(["ann", "bob"]))
    >>> abs(found.common - 2.0) < 0.2, found.after.error < found.before.error
    (True, True)
    """
    owners, _ = positions_of(user_ids, held_out.users) if len(held_out.users) else (np.zeros(0, np.int64), [])
    if len(owners) < LEAST_ROWS or len(np.unique(held_out.labels)) < 2:
        return None
    scores, y, n_users = _scores(held_out.values), held_out.labels, len(user_ids)
    before = Reliability.of(class_scores(held_out.values), y)
    logs = np.empty(len(y))
    half = _halves(owners)
    for part in (0, 1):
        known = half == part
        common, own = _fitted(scores[known], y[known], owners[known], n_users)
        logs[~known] = (common + own)[owners[~known]]
    after = Reliability.of(class_scores(_cooled(held_out.values, np.exp(logs))), y)
    if after.log_loss >= before.log_loss:
        return Calibration(1.0, np.ones(n_users), before, before)
    common, own = _fitted(scores, y, owners, n_users)
    return Calibration(float(np.exp(common)), np.exp(common + own), before, after)


def _cooled(values: Floats, temperatures: Floats) -> Floats:
    return values / (temperatures if values.ndim == 1 else temperatures[:, None])


def probabilities(values: Floats, temperatures: Floats) -> Floats:
    """Probabilities of all classes from decision values and the temperature of each row."""
    return class_scores(_cooled(values, temperatures))


def _scores(values: Floats) -> Floats:
    """A score for each class, also of two."""
    return values if values.ndim > 1 else np.column_stack([np.zeros(len(values)), values])


def _halves(owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 and 1 in turn over the rows of each user."""
    order = np.argsort(owners, kind="stable")
    first = np.searchsorted(owners[order], owners[order])
    halves = np.empty(len(owners), np.int64)
    halves[order] = (np.arange(len(owners)) - first) % 2
    return halves


def _fitted(scores: Floats, y: NDArray[np.intp], owners: NDArray[np.int64], n_users: int) -> tuple[float, Floats]:
    """Logarithms of the common temperature and of users' factors, by Newton's method on the likelihood."""
    common, own = 0.0, np.zeros(n_users)
    for _ in range(MOST_STEPS):
        slope, curvature = _derivatives(scores, y, np.full(len(y), common))
        step = _step(slope.sum(), curvature.sum())
        common = float(np.clip(common + step, -LIMIT, LIMIT))
        if abs(step) < 1e-6:
            break
    for _ in range(MOST_STEPS):
        slope, curvature = _derivatives(scores, y, (common + own)[owners])
        slopes = np.bincount(owners, slope, n_users) - own / SPREAD
        step = _step(slopes, np.bincount(owners, curvature, n_users) + 1 / SPREAD)
        own += step
        if np.abs(step).max() < 1e-6:
            break
    return common, own


def _derivatives(scores: Floats, y: NDArray[np.intp], logs: Floats) -> tuple[Floats, Floats]:
    """Slope of each row's log-likelihood in the logarithm of its temperature, and its expected curvature."""
    cooled = _cooled(scores, np.exp(logs))
    weights = class_scores(cooled)
    mean = (weights * cooled).sum(axis=1)
    slope = mean - cooled[np.arange(len(y)), y]
    return slope, (weights * cooled**2).sum(axis=1) - mean**2


def _step(slope: Any, curvature: Any) -> Any:
    return np.clip(slope / np.maximum(curvature, 1e-12), -LONGEST_STEP, LONGEST_STEP)


class Exam:
    """Test rows of some users.

    Parameters
    ----------
    test : Population
        Targets as models learn them: numbers are standardised.
    predictors : BasePredictors

    Examples
    --------
    >>> from dada.data import Stumps
    >>> people = Population.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], ["ann", "ann", "bob"])
    >>> exam = Exam(people, Stumps(n=1).fit([[0.0], [2.0]]))
    >>> models = np.array([[-1.0], [1.0]])
    >>> exam.per_user(models).tolist(), exam.score(models), exam.measure
    ([0.5, 0.0], 0.25, 'accuracy')
    """

    def __init__(self, test: Population, predictors: BasePredictors) -> None:
        self._test, self._predictions = test, predictors.predict(test.X)

    @property
    def measure(self) -> str:
        """What scores are: the accuracy, or the share of variance explained."""
        return "accuracy" if self._test.n_classes else "R2"

    def per_user(self, models: NDArray[Any]) -> NDArray[np.float32]:
        """Score of each user's model: the share of rows that are right, or of the variance explained.

        The variance of numbers is that of all users together. NaN for a user without rows.
        """
        test = self._test
        right = HeldOutScores.of(test, decisions(self._predictions, test.row_start, models)).right
        means = mean_per_user(right, test.row_start)
        return (means if test.n_classes else 1.0 + means / test.y.var()).astype(np.float32)

    def score(self, models: NDArray[Any], users: NDArray[np.bool_] | None = None) -> float:
        """Mean accuracy of some users, or the variance of all their rows that is explained; of all users by default."""
        each, sizes = self.per_user(models), self._test.sizes
        counted = sizes > 0 if users is None else users & (sizes > 0)
        if self._test.n_classes:
            return float(each[counted].mean())
        return float(np.average(each[counted], weights=sizes[counted]))
