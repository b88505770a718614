"""Rivals under the same guarantee: mean-regularised multi-task learning with noisy gradients, and output perturbation.

Both give a model per user that others may see, (epsilon, delta)-private for each user's rows by Gaussian noise of the
same mu as our releases. Neither needs a graph: the centre of all others' models is what a user's home model is pulled
to. Noise is drawn from the generator: these are for comparisons, not for use.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
NEWTON_STEPS = 30


class PrivateTask(NamedTuple):
    """Rows of all users: base predictions no longer than `norm`, targets in [-1, 1], which are classes or numbers."""

    h: Floats
    y: Floats
    row_start: NDArray[np.int64]
    norm: float
    is_class: bool

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each user."""
        return np.diff(self.row_start)


class Shared(NamedTuple):
    """Models that all users see, and for each user the centre of all others' models."""

    models: Floats
    centres: Floats


def mr_mtl(task: PrivateTask, mu: float, rng: np.random.Generator, *, rounds: int, pull: float, clip: float) -> Shared:
    """Mean-regularised multi-task learning with noisy gradients (Liu et al., NeurIPS 2022).

    In each round a user adds up its rows' gradients of the squared loss, each clipped, with Gaussian noise, and its
    model is pulled to the mean of all models. The mean of the last half of the rounds is taken.

    Parameters
    ----------
    task : PrivateTask
    mu : float
        Of all rounds together; infinite for no noise.
    rng : numpy.random.Generator
    rounds : int
        Rounds; the noise of each grows with their square root.
    pull : float
        Strength of the pull to the mean.
    clip : float
        Largest norm of a row's gradient.
    """
    h, sizes = task.h, task.sizes
    owner = np.repeat(np.arange(sizes.size), sizes)
    length = np.maximum(np.sqrt((h**2).sum(axis=1)), 1e-12)
    sigma = 2 * clip * np.sqrt(rounds) / mu
    rate = 1.0 / (task.norm**2 + pull)
    share = sizes / sizes.sum()
    models = np.zeros((sizes.size, h.shape[1]))
    last = np.zeros_like(models)
    for step in range(rounds):
        residual = task.y - (h * models[owner]).sum(axis=1)
        residual *= np.minimum(1.0, clip / np.maximum(abs(residual) * length, 1e-12))
        gradient = -np.add.reduceat(h * residual[:, None], task.row_start[:-1], axis=0)
        gradient += sigma * rng.normal(size=models.shape)
        models = models - rate * (gradient / sizes[:, None] + pull * (models - share @ models))
        if step >= rounds // 2:
            last += models
    return _shared(last / (rounds - rounds // 2), sizes.astype(np.float64))


def output_perturbation(task: PrivateTask, mu: float, rng: np.random.Generator, *, ridge: float) -> Shared:
    """Each user's regularised local model plus Gaussian noise (Chaudhuri et al., 2011).

    The mean loss with the penalty ridge/2 ||w||^2 is strongly convex, so replacing a row moves its minimum by at most
    2 L / (m ridge), where L bounds the gradient of a row: norm for the logistic loss. For the squared loss the minimum
    is no longer than ridge^-1/2, so that L = (1 + norm / sqrt(ridge)) norm.
    """
    sizes = task.sizes.astype(np.float64)
    parts = [slice(*ends) for ends in zip(task.row_start[:-1], task.row_start[1:], strict=True)]
    models = np.stack([_local(task.h[rows], task.y[rows], ridge, task.is_class) for rows in parts])
    slope = task.norm * (1.0 if task.is_class else 1.0 + task.norm / np.sqrt(ridge))
    sigma = 2 * slope / (sizes * ridge * mu)
    models += sigma[:, None] * rng.normal(size=models.shape)
    if task.is_class:
        # Half of the log odds: E y = tanh(w h / 2) is close to w h / 2.
        models, sigma = models / 2, sigma / 2
    # The variance of a model is that of its noise and of its rows.
    return _shared(models, 1.0 / (sigma**2 + 1.0 / sizes))


def _local(h: Floats, y: Floats, ridge: float, is_class: bool) -> Floats:
    """Minimum of a user's mean loss with a penalty, by Newton steps in the span of its rows."""
    basis = np.linalg.qr(h.T)[0]
    z = h @ basis
    found, penalty = np.zeros(z.shape[1]), ridge * np.eye(z.shape[1])
    for _ in range(NEWTON_STEPS if is_class else 1):
        mean = np.tanh(z @ found / 2) if is_class else z @ found
        slope = (1 - mean**2) / 4 if is_class else np.ones(len(z))
        gradient = z.T @ (y - mean) / len(z) / (2 if is_class else 1) - ridge * found
        step = np.linalg.solve((z.T * slope) @ z / len(z) + penalty, gradient)
        found = found + step
        if abs(step).max() < 1e-9:
            break
    return np.asarray(basis @ found)


def _shared(models: Floats, weights: Floats) -> Shared:
    """Models and the weighted mean of all others'."""
    total = weights @ models
    own = weights[:, None] * models
    return Shared(models, (total - own) / np.maximum(weights.sum() - weights, 1e-300)[:, None])
