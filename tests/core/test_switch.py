"""Background or evidence: one user's comparison, and the decision of all."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dada.core.block_steps import evidence_gain, evidence_weights, prefers_evidence
from dada.core.losses import ALL_ALIKE
from dada.core.model_steps import UserModel, make_scratch
from dada.core.problem import Problem


def user_rows(A, offset=None, weights=ALL_ALIKE):
    offset = np.zeros(len(A)) if offset is None else offset
    zero = np.zeros(A.shape[1])
    return UserModel(A, offset.copy(), zero, zero.copy(), np.zeros(A.shape[1], np.int16), offset, weights)


def losses_in_numpy(A, models):
    return np.logaddexp(0.0, -(A @ models.T)).sum(axis=0)


def setting(rng, mu1=1e6, n=4, m=9):
    A = rng.normal(size=(m, n))
    problem = Problem(A, np.array([0, m]), beta=10.0, mu1=mu1, loss="logistic")
    return A, problem.settings(), make_scratch(n, m, np.dtype(np.float64))


def test_the_best_peers_are_weighted_by_their_evidence():
    rng = np.random.default_rng(0)
    A, settings, _ = setting(rng)
    models, sizes = rng.normal(size=(6, 4)), rng.integers(1, 20, 6)
    weights = evidence_weights(settings, user_rows(A), models, sizes, 0.5, 3)
    evidence = sizes * np.exp(-0.5 * losses_in_numpy(A, models))
    evidence[np.argsort(evidence)[:3]] = 0.0
    assert_allclose(weights, evidence / evidence.sum(), rtol=1e-9, atol=1e-12)


def test_the_gain_is_that_of_held_out_rows():
    rng = np.random.default_rng(1)
    # A pull this strong leaves both models at their targets, so that NumPy can compute the gain.
    A, settings, scratch = setting(rng)
    models, sizes = rng.normal(size=(5, 4)), np.full(5, 3)
    background, fold = rng.normal(size=4), np.arange(9) % 3
    expected = 0.0
    for f in range(3):
        evidence = np.exp(-losses_in_numpy(A[fold != f], models))
        evidence[np.argsort(evidence)[:3]] = 0.0
        target = evidence @ models / evidence.sum()
        expected += losses_in_numpy(A[fold == f], background[None])[0] - losses_in_numpy(A[fold == f], target[None])[0]
    gain = evidence_gain(
        settings, user_rows(A), fold, background, models, sizes, 1.0, 2, 30, scratch
    )  # fmt: skip
    assert_allclose(gain, expected, rtol=1e-4)


@pytest.mark.parametrize("fold", [[-1], [0, 0, 0]])
def test_a_user_that_can_hold_nothing_out_gains_nothing(fold):
    rng = np.random.default_rng(2)
    A, settings, scratch = setting(rng, m=len(fold))
    models = rng.normal(size=(5, 4))
    gain = evidence_gain(
        settings, user_rows(A), np.array(fold), models[0], models, np.ones(5, np.int64), 1.0, 2, 30, scratch
    )
    assert gain == 0.0


def test_evidence_that_knows_the_users_kind_gains():
    rng = np.random.default_rng(3)
    A, settings, scratch = setting(rng, mu1=0.1, m=30)
    kinds = np.array([[3.0, 0, 0, 0], [0, 0, 0, 3.0]])
    A *= np.sign(A @ kinds[0])[:, None]
    models = np.repeat(kinds, 3, axis=0)
    fold = np.arange(30) % 3
    gain = evidence_gain(settings, user_rows(A), fold, models.mean(axis=0), models, np.full(6, 5), 1.0, 3, 30, scratch)
    assert gain > 1.0


def test_a_population_changes_to_evidence_only_if_the_gain_is_clear():
    assert prefers_evidence(np.array([0.5, 0.6, 0.4, 0.7]))
    assert not prefers_evidence(np.array([5.0, -4.0, 3.0, 0.0]))
    assert not prefers_evidence(np.zeros(4))
    assert not prefers_evidence(np.array([-1.0, -1.1]))
