"""Attacks on what single users of Computer send, with and without privacy.

- *Membership*: the attacker holds all rows of a user, of which some were learned from, and tells them apart. From
  statistics it refits: the weights of its rows, at least 0, whose weighted sums come nearest to G and B. From a model
  it takes the margin of a row, less the margin under the mean model of all users.
- *Reconstruction* by an informed attacker, who knows all rows of the user but one (Balle, Cherubin and Hayes 2022):
  what is left of G and B when the known rows are subtracted is h h^T and y h. Its answer is the likeliest of the rows
  of the dataset.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn.metrics import roc_auc_score

from dada.data import Population
from dada.estimators import DadaClassifier
from dada.experiments.privacy_study import CASES, RowTask, populations, row_task
from dada.privacy.accounting import Privacy
from dada.privacy.noise import Bits
from dada.privacy.release import Statistics, StatisticsMechanism, read_statistics

Floats = NDArray[np.float64]
DATASET, EXACT = "computer", 1e-9


def attack_statistics(epsilon: float | None, seed: int) -> dict[str, float]:
    """Success of the attacks on users' statistics, exact or released at an epsilon, in per cent."""
    task = row_task(DATASET, 0, seed)
    found = [_of_user(task, k, rows, _seen(task, rows, epsilon, k, seed)) for k, rows in enumerate(task.parts())]
    names = ("membership", "row", "label")
    return {name: 100 * float(np.mean([one[i] for one in found])) for i, name in enumerate(names)}


def _seen(task: RowTask, rows: slice, epsilon: float | None, k: int, seed: int) -> Statistics:
    """What the attacker receives."""
    h, y = task.rows.h[rows], task.rows.y[rows, None]
    if epsilon is None:
        return Statistics(h.T @ h, h.T @ y, len(h), EXACT, EXACT)
    mechanism = StatisticsMechanism.calibrated(
        epsilon, Privacy.delta, n_predictors=h.shape[1], n_outputs=1, norm=task.rows.norm
    )
    return read_statistics(mechanism.release(h, y, Bits(np.random.default_rng([seed, k, 3]).bytes)))[0]


def _of_user(task: RowTask, k: int, rows: slice, seen: Statistics) -> tuple[float, float, float]:
    """AUC of membership; whether the last row was found among all rows of the dataset; and its label."""
    h, y, tested = task.rows.h[rows], task.rows.y[rows], task.test.user_rows(k)
    candidates = np.concatenate([h, task.test_h[tested]])
    labels = np.concatenate([y, task.test.y[tested]])
    products = candidates[:, :, None] * candidates[:, None, :]
    parts = [products.reshape(len(products), -1), labels[:, None] * candidates]
    # The noise off the diagonal is smaller by sqrt(2), and each cell counts twice.
    sigmas = (seen.gram_sigma, seen.moment_sigma)
    system = np.concatenate([part / sigma for part, sigma in zip(parts, sigmas, strict=True)], axis=1)
    wanted = np.concatenate([seen.gram.ravel() / sigmas[0], seen.moment.ravel() / sigmas[1]])
    scale = abs(wanted).max()
    weights, _ = nnls(system.T / scale, wanted / scale)
    auc = float(roc_auc_score(np.arange(len(candidates)) < len(h), weights))
    gram = seen.gram - h[:-1].T @ h[:-1]
    moment = seen.moment[:, 0] - h[:-1].T @ y[:-1]
    everyone = np.unique(np.concatenate([task.rows.h, task.test_h]), axis=0)
    squares = (everyone**2).sum(axis=1)
    fit = (((everyone @ gram) * everyone).sum(axis=1) - squares**2 / 2) / seen.gram_sigma**2
    fit += (abs(everyone @ moment) - squares / 2) / seen.moment_sigma**2
    best = everyone[fit.argmax()]
    return auc, float(np.allclose(best, h[-1])), float(np.sign(h[-1] @ moment) == y[-1])


def attack_models(epsilon: float | None, seed: int) -> dict[str, float]:
    """AUC of membership, in per cent, from the models that users send: of true labels, or of flipped ones."""
    train, test = populations(CASES[DATASET], 0, seed)
    privacy = None if epsilon is None else Privacy(epsilon, protects="labels", noise="seeded")
    model = DadaClassifier(privacy=privacy, random_state=seed).fit(train.X, train.targets, users=train.users)
    sent = model.models_ if privacy is None else model.released_models_
    inside, outside = (_gained(model, sent, rows) for rows in (train, test))
    each = []
    for k in range(train.n_users):
        own = np.concatenate([inside[train.user_rows(k)], outside[test.user_rows(k)]])
        each.append(roc_auc_score(np.arange(len(own)) < train.sizes[k], own))
    return {"membership": 100 * float(np.mean(each))}


def _gained(model: DadaClassifier, sent: NDArray[Any], rows: Population) -> Floats:
    """Margin of each row under its user's model, less that under the mean model."""
    h = model.predictors_.predict(rows.X).astype(np.float64)
    return np.asarray(rows.y * (h * (sent - sent.mean(axis=0))[rows.owners]).sum(axis=1))
