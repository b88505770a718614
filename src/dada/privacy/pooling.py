"""From releases to models: prior centres, groups of users, released models; and the home model that never leaves.

User k's release is G_k and B_k plus noise. With a_j a centre, its residual R_k = B_k - G_k a_j is modelled as

    R_k ~ N(0, s^2 G + G T G + noise),    G = G_k shrunk to m_k times its mean per row, T = variance of a_k - a_j  (P2)

How far G_k is shrunk, s^2 and T follow from the releases.

Everything from `Pool` on is post-processing of releases. `home_model` uses a user's own rows: its result and its
weights must stay with that user.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dada.privacy.release import Statistics

Floats = NDArray[np.float64]
# Ratios of the noise of an output to the prior variance of a weight; each user averages over them by evidence.
PULLS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# Variances of an output around its model, and of a weight around its centre: releases choose by their likelihood.
RESIDUALS = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
SPREADS = (0.00016, 0.0005, 0.0016, 0.005, 0.016, 0.05)
# Prior probability that nothing released helps, and the pseudo-rows of the residual variance.
ALONE = 0.1
PSEUDO_ROWS = 2.0
MOST_GROUPS, STARTS, EM_STEPS = 8, 10, 30


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

    @cached_property
    def _variances(self) -> tuple[float, float]:
        """Variance of G per row between users, in Frobenius norm, and that of the noise on G of one user."""
        n = len(self.coupling)
        noise = self.gram_sigma**2 * n * (n + 1) / 2
        total = float(((self.gram - self.n_rows[:, None, None] * self.mean_gram) ** 2).sum())
        return max(0.0, total - self.n_users * noise) / float((self.n_rows.astype(np.float64) ** 2).sum()), noise

    def _own_part(self, weights: Floats) -> Floats:
        """How far weighted sums of G are trusted beyond their share of the sum of all, for each row of weights."""
        between, noise = self._variances
        signal = between * (weights**2 @ self.n_rows.astype(np.float64) ** 2)
        return np.asarray(signal / (signal + noise * (weights**2).sum(axis=-1)))

    def centre(self, weights: Floats) -> Floats:
        """Ridge solution of the weighted sum of releases, with eigenvalues below the noise raised to it."""
        gram, moment = np.tensordot(weights, self.gram, 1), np.tensordot(weights, self.moment, 1)
        mean, n = float(weights @ self.n_rows) * self.mean_gram, len(gram)
        gram = mean + self._own_part(weights) * (gram - mean)
        # Twice the rms eigenvalue: where noise ends (Wigner's semicircle).
        floor = 2 * self.gram_sigma / math.sqrt(2) * math.sqrt(float(weights @ weights) * n)
        values, vectors = np.linalg.eigh(gram)
        return np.asarray(vectors @ ((vectors.T @ moment) / (np.maximum(values, floor) + 1.0)[:, None]))

    @cached_property
    def own_share(self) -> Floats:
        """How far G of each user is trusted beyond its share of the sum of all."""
        return self._own_part(np.eye(self.n_users))

    @cached_property
    def own_gram(self) -> Floats:
        """G of each user, shrunk to its share of the sum, positive semidefinite."""
        mean = self.n_rows[:, None, None] * self.mean_gram
        return _clipped(mean + self.own_share[:, None, None] * (self.gram - mean), 0.0)

    @cached_property
    def residuals(self) -> Residuals:
        """The model of residuals around the centre of all users."""
        share = np.ones((self.n_users, 1))
        return Residuals(self).fitted(share, self.centre(share[:, 0])[None])


@dataclass(frozen=True, eq=False)
class Residuals:
    """The model (P2) of the residuals of a pool.

    `residual` is the variance s^2 of an output around its model, `spread` that of a weight with coupling 1 around its
    centre.
    """

    pool: Pool
    residual: float = RESIDUALS[-1]
    spread: float = SPREADS[-2]

    @cached_property
    def prior(self) -> Floats:
        """Prior variance T of each weight around its centre."""
        return np.asarray(self.spread / self.pool.coupling)

    @cached_property
    def _signal(self) -> tuple[Floats, Floats]:
        """Eigenvalues and eigenvectors of the part of each user's covariance (P2) that is not noise."""
        gram = self.pool.own_gram
        values, vectors = np.linalg.eigh(self.residual * gram + (gram * self.prior) @ gram)
        return values, vectors

    def _decorrelated(self, centre: Floats) -> tuple[Floats, Floats]:
        """Residuals of all users along the eigenvectors of their covariances, and the variances there."""
        pool, (values, vectors) = self.pool, self._signal
        residual = pool.moment - pool.own_gram @ centre
        of_gram = pool.own_share * pool.gram_sigma**2 / 2 * float((centre**2).sum(axis=0).mean())
        noise = pool.moment_sigma**2 + of_gram[:, None]
        return vectors.transpose(0, 2, 1) @ residual, np.maximum(values, 0.0) + noise + 1e-6

    def released_models(self, centres: Floats) -> Floats:
        """The best model of each user that can be computed from releases, around a centre for each."""
        found = np.empty_like(self.pool.moment)
        for k, centre in enumerate(centres):
            along, variance = (values[k] for values in self._decorrelated(centre))
            solved = self._signal[1][k] @ (along / variance[:, None])
            found[k] = centre + self.prior[:, None] * (self.pool.own_gram[k] @ solved)
        return found

    def log_density(self, centre: Floats) -> Floats:
        """Log density of each user's residual around a centre, Eq. (P2), up to a constant."""
        along, variance = self._decorrelated(centre)
        squares = (along**2 / variance[:, :, None]).sum(axis=(1, 2))
        return np.asarray(-0.5 * (squares + self.pool.moment.shape[2] * np.log(variance).sum(axis=1)))

    def whitened(self, centre: Floats) -> Floats:
        """Residuals of all users in units of their standard deviations, a row per user."""
        along, variance = self._decorrelated(centre)
        white = self._signal[1] @ (along / np.sqrt(variance)[:, :, None])
        return white.reshape(self.pool.n_users, -1)

    def fitted(self, share: Floats, centres: Floats) -> Residuals:
        """The model whose variances, from a grid and in turn, make residuals around the groups' centres likeliest."""

        def likelihood(model: Residuals) -> float:
            return sum(float(share[:, j] @ model.log_density(centre)) for j, centre in enumerate(centres))

        best = max((replace(self, residual=residual) for residual in RESIDUALS), key=likelihood)
        best = max((replace(best, spread=spread) for spread in SPREADS), key=likelihood)
        return max((replace(best, residual=residual) for residual in RESIDUALS), key=likelihood)


def _clipped(matrix: Floats, floor: float) -> Floats:
    """Symmetric matrices with eigenvalues below the floor raised to it."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, floor)[..., None, :]) @ np.swapaxes(vectors, -1, -2))


@dataclass(frozen=True, eq=False)
class Groups:
    """Probabilities of users' groups: `share[k, j]` that user k belongs to group j; the groups' centres.

    `residuals` models what is left around the centres.
    """

    share: Floats
    centres: Floats
    score: float
    residuals: Residuals

    @property
    def n(self) -> int:
        """Number of groups."""
        return len(self.centres)

    def released_models(self) -> Floats:
        """The best model of each user that can be computed from releases."""
        return self.residuals.released_models(np.tensordot(self.share, self.centres, 1))


def find_groups(pool: Pool, rng: np.random.Generator, most: int = MOST_GROUPS) -> Groups:
    """Groups of users by a mixture model of the residuals (P2); their number by Akaike's information criterion.

    Centres serve predictions, so the number of groups is the one that would make the release of a further user
    likeliest; that the groups exist need not be proved. At most `most` groups are tried, each needs about ten users,
    and the search ends when two more groups in turn did not help.
    """
    best = mixture(pool, 1, rng)
    for n_groups in range(2, max(1, min(most, pool.n_users // 10)) + 1):
        if n_groups > best.n + 2:
            break
        found = mixture(pool, n_groups, rng)
        best = max(best, found, key=lambda groups: groups.score)
    return best


def mixture(pool: Pool, n_groups: int, rng: np.random.Generator) -> Groups:
    """Fit a mixture with a number of groups from several starts, and the variances around its centres."""
    residuals, everyone = pool.residuals, np.ones((pool.n_users, 1))
    if n_groups == 1:
        return _converged(residuals, everyone)
    points = residuals.whitened(pool.centre(everyone[:, 0]))
    starts = [_converged(residuals, _started(points, n_groups, rng)) for _ in range(STARTS)]
    first = max(starts, key=lambda groups: groups.score)
    return _converged(residuals.fitted(first.share, first.centres), first.share)


def _converged(residuals: Residuals, share: Floats) -> Groups:
    """Groups by expectation and maximisation from given memberships, with given variances."""
    pool, n_groups = residuals.pool, share.shape[1]
    for _ in range(EM_STEPS if n_groups > 1 else 1):
        centres = np.stack([pool.centre(share[:, j]) for j in range(n_groups)])
        log = np.stack([residuals.log_density(centre) for centre in centres], axis=1)
        log += np.log(np.maximum(share.mean(axis=0), 1e-9))
        top = log.max(axis=1, keepdims=True)
        before, share = share, np.exp(log - top)
        total = share.sum(axis=1, keepdims=True)
        share = share / total
        if abs(share - before).max() < 1e-3:
            break
    # Each centre and each share of users is estimated from the releases that it is judged by.
    n_estimated = n_groups * pool.moment[0].size + n_groups - 1
    return Groups(share, centres, float((top + np.log(total)).sum()) - n_estimated, residuals)


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
