"""What collaboration brings at a budget: held-out rows at home, beside sending nothing and no privacy.

No further release is made. The centres of a user do not contain its own release, and labels were flipped one by one, so
rows held out at home are new to every model that is compared. Whoever runs this sees exact rows of all users: in a
network each peer could compute its own part only, and nobody the column without privacy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from dada.fitting.held_out import PerUserKFold
from dada.fitting.models import best_class
from dada.fitting.private import HOME_FOLDS, home_trials, outputs
from dada.privacy.noise import label_correlation
from dada.privacy.pooling import Pool, find_groups, home_model, own_excluded
from dada.privacy.release import Statistics

if TYPE_CHECKING:
    from dada.data import Population
    from dada.estimators import DadaClassifier, DadaRegressor

Floats = NDArray[np.float64]
# Standard deviation of the noise without privacy.
NO_NOISE = 1e-6


class Benefit(NamedTuple):
    """Scores of held-out rows: the share of right ones, or the mean absolute error of numbers."""

    alone: float
    private: float
    no_privacy: float


def benefit(model: DadaClassifier | DadaRegressor, population: Population, seed: int = 0) -> Benefit:
    """Held-out scores of users alone, with the releases of a private fit, and with exact statistics or labels instead.

    Examples
    --------
    >>> from dada import DadaClassifier, Population, Privacy
    >>> rng = np.random.default_rng(0)
    >>> X, users = rng.uniform(-1, 1, (1200, 3)), np.repeat(np.arange(100), 12)
    >>> people = Population.from_arrays(X, X[:, 0] + 0.5 * X[:, 1] + 0.4 * rng.normal(size=1200) > 0, users)
    >>> model = DadaClassifier(privacy=Privacy(16.0, ranges=(-1, 1), noise="seeded"), random_state=0)
    >>> found = benefit(model.fit_population(people), people)
    >>> found.alone < found.private <= found.no_privacy + 0.02
    True
    """
    rng = np.random.default_rng(seed)
    privacy = model.privacy
    if privacy is None:
        raise ValueError("a fit without privacy has nothing to compare: give privacy")
    if privacy.protects == "labels":
        free = clone(model).set_params(privacy=None).fit_population(population)
        kept = label_correlation(privacy.epsilon, population.n_classes)
        alone, private = (float(part.mean()) for part in home_trials(_fit(model), population, rng, kept).right)
        _, no_privacy = (float(part.mean()) for part in home_trials(_fit(free), population, rng).right)
        return Benefit(alone, private, no_privacy)
    h, y = model.predictors_.predict(population.X).astype(np.float64), outputs(population)
    coupling = np.asarray(model.predictors_.coupling, np.float64)
    rows = [population.user_rows(k) for k in range(population.n_users)]
    exact = [Statistics(h[own].T @ h[own], h[own].T @ y[own], len(h[own]), NO_NOISE, NO_NOISE) for own in rows]
    pool = Pool.of(exact, coupling)
    groups = find_groups(pool, rng)
    exactly = np.stack([own_excluded(pool, groups, k) for k in range(pool.n_users)])
    ways = (exactly[:, :0], np.asarray(model.centres_, np.float64), exactly)
    found = [_held_out(population, h, y, centres, coupling, seed) for centres in ways]
    scale = 1.0 if population.n_classes else model.target_scale_
    return Benefit(*(scale * one for one in found))


def _fit(model: Any) -> Any:
    """What home models are learned next to, in the shape of a fit."""
    from types import SimpleNamespace

    sent = model.models_ if model.privacy is None else model.released_models_
    result = SimpleNamespace(models=sent, graph=model.graph_)
    return SimpleNamespace(settings=model.settings_, predictors=model.predictors_, result=result)


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
