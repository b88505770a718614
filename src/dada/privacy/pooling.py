"""From releases to models: prior centres, groups of users, released models; and the home model that never leaves.

User k's release is G_k and B_k plus noise. With a_j a centre, its residual R_k = B_k - G_k a_j is modelled as

    R_k ~ N(0, s^2 G + G T G + noise),    G = m_k times the mean of G per row, T = prior variance of a_k - a_j     (P2)

Everything from `Pool` on is post-processing of releases. `home_model` uses a user's own rows: its result and its
weights must stay with that user.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dada.privacy.release import Statistics

Floats = NDArray[np.float64]
# Ratios of the noise of an output to the prior variance of a weight; each user averages over them by evidence.
PULLS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# Variance of an output around its model, and the ratio for released models. Both chosen on School, splits 2 and 3.
RESIDUAL, RELEASED_PULL = 0.8, 50.0
# How far G of one user is trusted beyond its share of the sum of all.
OWN_SHARE = 0.3
# Prior probability that nothing released helps, and the pseudo-rows of the residual variance.
ALONE = 0.1
PSEUDO_ROWS = 2.0
MOST_GROUPS, EM_STEPS = 4, 30


@dataclass(frozen=True, eq=False)
class Pool:
    """Releases of all users, with the noise of `Statistics`.

    `coupling` is the relative pull of each weight to the centre: near 0 for weights in which users differ.
    """

    gram: Floats
    moment: Floats
    n_rows: NDArray[np.int64]
    gram_sigma: float
    moment_sigma: float
    coupling: Floats

    @classmethod
    def of(cls, releases: Sequence[Statistics], coupling: Floats, constant: int | None = None) -> Pool:
        """Collect releases that have the same noise; the square of a `constant` predictor is the public row count."""
        noise = {(each.gram_sigma, each.moment_sigma) for each in releases}
        if len(noise) != 1:
            raise ValueError(f"releases must have the same noise, got {len(noise)} different ones")
        gram = np.stack([each.gram for each in releases])
        n_rows = np.array([each.n_rows for each in releases])
        if constant is not None:
            gram[:, constant, constant] = n_rows
        # A coupling of zero would leave a weight without a prior.
        return cls(gram, np.stack([each.moment for each in releases]), n_rows, *noise.pop(), np.maximum(coupling, 1e-3))

    @property
    def n_users(self) -> int:
        """K."""
        return len(self.n_rows)

    @cached_property
    def mean_gram(self) -> Floats:
        """G per row, positive semidefinite."""
        return _clipped(self.gram.sum(axis=0), 0.0) / self.n_rows.sum()

    def centre(self, weights: Floats) -> Floats:
        """Ridge solution of the weighted sum of releases, with eigenvalues below the noise raised to it."""
        gram, moment = np.tensordot(weights, self.gram, 1), np.tensordot(weights, self.moment, 1)
        n = len(gram)
        # Twice the rms eigenvalue: where noise ends (Wigner's semicircle).
        floor = 2 * self.gram_sigma / math.sqrt(2) * math.sqrt(float(weights @ weights) * n)
        values, vectors = np.linalg.eigh(gram)
        return np.asarray(vectors @ ((vectors.T @ moment) / (np.maximum(values, floor) + 1.0)[:, None]))

    @cached_property
    def own_gram(self) -> Floats:
        """G of each user, shrunk to its share of the sum, positive semidefinite."""
        mean = self.n_rows[:, None, None] * self.mean_gram
        return _clipped(mean + OWN_SHARE * (self.gram - mean), 0.0)

    @cached_property
    def prior(self) -> Floats:
        """Prior variance T of each weight around its centre, for what is computed from releases."""
        return np.asarray(RESIDUAL / (RELEASED_PULL * self.coupling))

    @cached_property
    def _signal(self) -> tuple[Floats, Floats]:
        """Eigenvalues and eigenvectors of the part of each user's covariance (P2) that is not noise."""
        values, vectors = np.linalg.eigh(RESIDUAL * self.own_gram + (self.own_gram * self.prior) @ self.own_gram)
        return values, vectors

    def _decorrelated(self, centre: Floats) -> tuple[Floats, Floats]:
        """Residuals of all users along the eigenvectors of their covariances, and the variances there."""
        values, vectors = self._signal
        residual = self.moment - self.own_gram @ centre
        noise = self.moment_sigma**2 + (OWN_SHARE * self.gram_sigma) ** 2 / 2 * float((centre**2).sum(axis=0).mean())
        return vectors.transpose(0, 2, 1) @ residual, np.maximum(values, 0.0) + noise + 1e-6

    def released_models(self, centres: Floats) -> Floats:
        """The best model of each user that can be computed from releases, around a centre for each."""
        found = np.empty_like(self.moment)
        for k, centre in enumerate(centres):
            along, variance = (values[k] for values in self._decorrelated(centre))
            solved = self._signal[1][k] @ (along / variance[:, None])
            found[k] = centre + self.prior[:, None] * (self.own_gram[k] @ solved)
        return found

    def log_density(self, centre: Floats) -> Floats:
        """Log density of each user's residual around a centre, Eq. (P2), up to a constant."""
        along, variance = self._decorrelated(centre)
        squares = (along**2 / variance[:, :, None]).sum(axis=(1, 2))
        return np.asarray(-0.5 * (squares + self.moment.shape[2] * np.log(variance).sum(axis=1)))

    def whitened(self, centre: Floats) -> Floats:
        """Residuals of all users in units of their standard deviations, a row per user."""
        along, variance = self._decorrelated(centre)
        white = self._signal[1] @ (along / np.sqrt(variance)[:, :, None])
        return white.reshape(self.n_users, -1)


def _clipped(matrix: Floats, floor: float) -> Floats:
    """Symmetric matrices with eigenvalues below the floor raised to it."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, floor)[..., None, :]) @ np.swapaxes(vectors, -1, -2))


@dataclass(frozen=True, eq=False)
class Groups:
    """Probabilities of users' groups: `share[k, j]` that user k belongs to group j; the groups' centres."""

    share: Floats
    centres: Floats
    score: float

    @property
    def n(self) -> int:
        """Number of groups."""
        return len(self.centres)


def find_groups(pool: Pool, rng: np.random.Generator, most: int = MOST_GROUPS) -> Groups:
    """Groups of users by a mixture model of the residuals (P2); their number by the Bayesian information criterion.

    At most `most` groups are tried, and each needs about ten users.
    """
    best = mixture(pool, 1, rng)
    for n_groups in range(2, min(most, pool.n_users // 10) + 1):
        found = max((mixture(pool, n_groups, rng) for _ in range(3)), key=lambda groups: groups.score)
        if found.score > best.score:
            best = found
    return best


def mixture(pool: Pool, n_groups: int, rng: np.random.Generator) -> Groups:
    """Fit a mixture with a number of groups by expectation and maximisation."""
    n_users, (n, outputs) = pool.n_users, pool.moment.shape[1:]
    share = np.ones((n_users, 1))
    centres = pool.centre(share[:, 0])[None]
    if n_groups > 1:
        share = _started(pool.whitened(centres[0]), n_groups, rng)
    for _ in range(EM_STEPS if n_groups > 1 else 1):
        centres = np.stack([pool.centre(share[:, j]) for j in range(n_groups)])
        log = np.stack([pool.log_density(centre) for centre in centres], axis=1)
        log += np.log(np.maximum(share.mean(axis=0), 1e-9))
        top = log.max(axis=1, keepdims=True)
        before, share = share, np.exp(log - top)
        total = share.sum(axis=1, keepdims=True)
        share = share / total
        if n_groups > 1 and abs(share - before).max() < 1e-3:
            break
    likelihood = float((top + np.log(total)).sum())
    return Groups(share, centres, likelihood - 0.5 * (n_groups * (n * outputs + 1) - 1) * math.log(n_users))


def _started(points: Floats, n_groups: int, rng: np.random.Generator) -> Floats:
    """Memberships around distant points, as k-means++ starts."""
    seeds = [points[rng.integers(len(points))]]
    while len(seeds) < n_groups:
        distance = np.min([((points - seed) ** 2).sum(axis=1) for seed in seeds], axis=0)
        seeds.append(points[rng.choice(len(points), p=distance / distance.sum())])
    nearest = np.argmin([((points - seed) ** 2).sum(axis=1) for seed in seeds], axis=0)
    return np.eye(n_groups)[nearest] * 0.9 + 0.1 / n_groups


def own_excluded(pool: Pool, groups: Groups, k: int) -> Floats:
    """The groups' centres without the release of user k, whose rows take part at home already."""
    share = groups.share.copy()
    share[k] = 0.0
    return np.stack([pool.centre(share[:, j]) for j in range(groups.n)])


def home_model(h: Floats, y: Floats, centres: Floats, coupling: Floats, pulls: Sequence[float] = PULLS) -> Floats:
    """A user's own model: its rows, and the released centres that its rows make likely.

    For each centre (and zero, with probability `ALONE`) and each strength of the pull, the posterior mean of a Gaussian
    linear model has a closed form, and so has its evidence; the home model is their average, weighted by evidence. If
    no centre fits, a user ends with the model that it would learn alone.
    """
    gram, n_outputs = h.T @ h, y.shape[1]
    coupling = np.maximum(coupling, 1e-3)
    around = [np.zeros((h.shape[1], n_outputs)), *centres]
    prior = [ALONE if len(around) > 1 else 1.0, *[(1 - ALONE) / max(1, len(centres))] * len(centres)]
    models, scores = [], []
    for centre, weight in zip(around, prior, strict=True):
        residual = y - h @ centre
        moment = h.T @ residual
        for pull in pulls:
            ridge = pull * coupling
            system = gram + np.diag(ridge)
            step = np.linalg.solve(system, moment)
            error = float((residual**2).sum() - (moment * step).sum())
            log_det = float(np.linalg.slogdet(system)[1]) - float(np.log(ridge).sum())
            score = -0.5 * n_outputs * log_det
            score -= (y.size + PSEUDO_ROWS) / 2 * math.log(error + PSEUDO_ROWS)
            scores.append(score + math.log(weight))
            models.append(centre + step)
    evidence = np.exp(np.array(scores) - max(scores))
    return np.asarray(np.tensordot(evidence / evidence.sum(), np.stack(models), 1))
