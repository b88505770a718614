"""What collaboration brings at a budget: held-out rows at home, beside sending nothing and no privacy.

No further release is made. The centres of a user do not contain its own release, and labels were flipped one by one, so
rows held out at home are new to every model that is compared. Whoever runs this sees exact rows of all users: in a
network each peer could compute its own part only, and nobody the column without privacy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dada.data import BasePredictors, Population
from dada.fitting.held_out import PerUserKFold
from dada.fitting.models import best_class
from dada.fitting.private import HOME_FOLDS, Shared, home_trials, outputs
from dada.privacy.pooling import Pool, find_groups, home_model, own_excluded
from dada.privacy.release import Statistics

Floats = NDArray[np.float64]
# Standard deviation of the noise without privacy.
NO_NOISE = 1e-6


class Benefit(NamedTuple):
    """Scores of held-out rows: the share of right ones, or the mean absolute error of numbers."""

    alone: float
    private: float
    no_privacy: float


def benefit_of_labels(released: Shared, exact: Shared, population: Population, kept: float, seed: int = 0) -> Benefit:
    """Held-out scores of users alone, next to models of released labels, and next to models of exact labels.

    `kept` is the correlation of a released label with the exact one.

    Examples
    --------
    >>> from dada import DadaClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, users = rng.uniform(-1, 1, (240, 3)), np.repeat(np.arange(40), 6)
    >>> people = Population.from_arrays(X, X[:, 0] + 0.5 * X[:, 1] > 0, users)
    >>> model = DadaClassifier(predictors="linear", random_state=0).fit_population(people)
    >>> shared = Shared(model.predictors_, model.settings_, model.models_, model.graph_)
    >>> found = benefit_of_labels(shared, shared, people, kept=1.0)
    >>> found.alone < found.private
    True
    """
    rng = np.random.default_rng(seed)
    alone, private = (float(part.mean()) for part in home_trials(released, population, rng, kept).right)
    _, no_privacy = (float(part.mean()) for part in home_trials(exact, population, rng).right)
    return Benefit(alone, private, no_privacy)


def benefit_of_statistics(
    predictors: BasePredictors, centres: Floats, population: Population, scale: float = 1.0, seed: int = 0
) -> Benefit:
    """Held-out scores of users alone, around the centres of releases, and around those of exact statistics.

    Errors of numbers are multiplied by `scale`.

    Examples
    --------
    >>> from dada import DadaClassifier, Privacy
    >>> rng = np.random.default_rng(0)
    >>> X, users = rng.uniform(-1, 1, (1200, 3)), np.repeat(np.arange(100), 12)
    >>> people = Population.from_arrays(X, X[:, 0] + 0.5 * X[:, 1] + 0.4 * rng.normal(size=1200) > 0, users)
    >>> model = DadaClassifier(privacy=Privacy(16.0, ranges=(-1, 1), noise="seeded"), random_state=0)
    >>> model = model.fit_population(people)
    >>> found = benefit_of_statistics(model.predictors_, model.centres_, people)
    >>> found.alone < found.private <= found.no_privacy + 0.02
    True
    """
    h, y = predictors.predict(population.X).astype(np.float64), outputs(population)
    coupling = np.asarray(predictors.coupling, np.float64)
    rows = [population.user_rows(k) for k in range(population.n_users)]
    exact = [Statistics(h[own].T @ h[own], h[own].T @ y[own], len(h[own]), NO_NOISE, NO_NOISE) for own in rows]
    pool = Pool.of(exact, coupling)
    groups = find_groups(pool, np.random.default_rng(seed))
    exactly = np.stack([own_excluded(pool, groups, k) for k in range(pool.n_users)])
    ways = (exactly[:, :0], np.asarray(centres, np.float64), exactly)
    return Benefit(*(scale * _held_out(population, h, y, each, coupling, seed) for each in ways))


def _held_out(population: Population, h: Floats, y: Floats, centres: Floats, coupling: Floats, seed: int) -> float:
    """Score of home models on rows that they did not learn from."""
    values = np.zeros_like(y)
    folds = PerUserKFold(HOME_FOLDS, shuffle=True, random_state=seed)
    for remaining, tested in folds.split(population.owners, population.y, users=population.owners):
        for k in np.unique(population.owners[tested]).tolist():
            own, new = (part[population.owners[part] == k] for part in (remaining, tested))
            values[new] = h[new] @ home_model(h[own], y[own], centres[k], coupling)
    if not population.n_classes:
        return float(abs(values - y).mean())
    right = best_class(values if population.n_classes > 2 else values[:, 0]) == population.codes
    return float(right.mean())
