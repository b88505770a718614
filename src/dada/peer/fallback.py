"""A model that owes nothing to anybody: what a peer falls back on where working together does not pay.

A peer learns alone when it starts, which takes milliseconds. Later it can ask which of two models to trust, its own or
the one learned together. On the samples that both were learned from, whichever fits closer would win. So both are
learned again without a part of the samples and judged on that part, each part in turn, while the neighbours' models are
held fixed; they hardly know these samples. Judged by the mean margin, clipped to -1..1: on few samples it tells more
than the number of right answers, and no single sample decides.
"""

from __future__ import annotations

import numpy as np

from dada.core.compiled import Array, kernel
from dada.core.emphasis import ALL_ALIKE
from dada.core.model_steps import (
    STEP_RULES,
    ModelSettings,
    StepScratch,
    UserModel,
    make_scratch,
    model_step,
    step_size,
)
from dada.peer.config import PeerConfig

STEPS = 200
MOST_PARTS = 10


@kernel
def learn(
    rule: int,
    settings: ModelSettings,
    confidence: float,
    degree: float,
    user: UserModel,
    n_steps: int,
    scratch: StepScratch,
) -> int:
    """Model steps of one user from zero while its neighbours stand still; returns the size of the support."""
    n_support = 0
    for t in range(n_steps):
        gamma = step_size(rule, 1, t, t)
        _, n_support, n_changed = model_step(rule, settings, confidence, degree, user, n_support, gamma, scratch)
        if n_changed == 0:
            break
    return n_support


class Fallback:
    """The local model of a peer, and the choice between it and the one learned together.

    Parameters
    ----------
    A : array of shape (samples, n_predictors)
        Margins of the user's own samples.
    config : PeerConfig

    Attributes
    ----------
    alpha : array of shape (n_predictors,)
        The local model.

    Examples
    --------
    >>> A = np.array([[1, -1], [1, 1], [1, -1]], np.int8)
    >>> own = Fallback(A, PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> own.alpha.tolist()
    [1.0, 0.0]
    >>> right, wrong = np.array([1.0, 0.0], np.float32), np.array([-1.0, 0.0], np.float32)
    >>> own.is_better(0.1, 1.0, right), own.is_better(0.1, 1.0, wrong)
    (False, True)
    """

    def __init__(self, A: Array, config: PeerConfig) -> None:
        self._A = np.ascontiguousarray(A) if A.dtype == np.int8 else np.ascontiguousarray(A, np.float32)
        self._settings = config.settings
        self._rule = STEP_RULES["pairwise" if config.step == "paper" else config.step]
        self._scratch = make_scratch(A.shape[1], A.shape[0], np.dtype(np.float32))
        nobody = np.zeros(A.shape[1], np.float32)
        self.alpha = self._learned(self._A, 1.0, 0.0, nobody)
        self._own_margin = self._held_out_margin(1.0, 0.0, nobody)

    def is_better(self, confidence: float, degree: float, pull: Array) -> bool:
        """Whether the local model promises more than one that is drawn to the neighbours' models.

        Parameters
        ----------
        confidence : float
            c_k, by which the user's own loss counts.
        degree : float
            Sum of the neighbours' weights; without any there is nothing to choose.
        pull : array of shape (n_predictors,)
            Weighted sum of the neighbours' models.
        """
        return degree <= 0.0 or self._held_out_margin(confidence, degree, pull) < self._own_margin

    def _held_out_margin(self, confidence: float, degree: float, pull: Array) -> float:
        m = self._A.shape[0]
        # The only sample of a user judges what the neighbours know without it.
        if m == 1:
            return _clipped_margins(self._A, pull / degree if degree > 0.0 else pull)
        n_parts = min(m, MOST_PARTS)
        part_of = np.arange(m) % n_parts
        total = 0.0
        for part in range(n_parts):
            is_out = part_of == part
            alpha = self._learned(self._A[~is_out], confidence * float(np.mean(~is_out)), degree, pull)
            total += _clipped_margins(self._A[is_out], alpha)
        return total / m

    def _learned(self, A: Array, confidence: float, degree: float, pull: Array) -> Array:
        m, n = A.shape
        support = np.zeros(n, np.int32)
        margins, offset = np.zeros(m, np.float32), np.zeros(m, np.float32)
        user = UserModel(A, margins, np.zeros(n, np.float32), pull, support, offset, ALL_ALIKE)
        learn(self._rule, self._settings, float(confidence), float(degree), user, STEPS, self._scratch)
        return user.alpha


def _clipped_margins(A: Array, alpha: Array) -> float:
    return float(np.clip(A.astype(np.float64) @ alpha, -1.0, 1.0).sum())
