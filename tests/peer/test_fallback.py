"""The fallback model equals learning alone, and is preferred if neighbours mislead."""

import numpy as np
import pytest

from dada.core.model_steps import UserRows
from dada.core.problem import Problem
from dada.engine import Plan, run
from dada.peer.inputs import PeerConfig
from dada.peer.model import STEPS, Fallback


def task(seed, m=8, n=40, truth_of=3):
    """Samples of a user whose labels follow a vote of the first few predictors, and many more of the same kind."""
    rng = np.random.default_rng(seed)
    predictions = rng.choice(np.array([-1, 1], np.int8), size=(m + 500, n))
    y = np.sign(predictions[:, :truth_of].sum(axis=1)).astype(np.int8)
    A = predictions * y[:, None]
    return A[:m], A[m:]


def right(A, alpha):
    return float((A.astype(float) @ alpha > 0).mean())


def config(**settings):
    return PeerConfig(n_predictors=40, beta=5.0, mu1=1.0, **settings)


@pytest.mark.parametrize("step", ["pairwise", "local", "line-search"])
def test_the_local_model_is_that_of_the_engine_without_a_graph(step):
    A, _ = task(0)
    alone = run(
        Problem(A, np.array([0, len(A)]), beta=5.0, mu1=1.0),
        Plan(n_updates=STEPS, learn_graph=False, step=step),
        np.random.default_rng(0),
    )
    own = Fallback(UserRows(A), config(step=step))
    np.testing.assert_allclose(own.alpha, alone.models[0], atol=1e-4)


def test_without_neighbours_the_fallback_is_chosen():
    A, _ = task(0)
    assert Fallback(UserRows(A), config()).is_better(1.0, 0.0, np.zeros(40, np.float32))


def test_good_neighbours_are_trusted_and_bad_ones_are_not():
    truth = np.zeros(40, np.float32)
    truth[:3] = 5.0 / 3
    trusted = {True: 0, False: 0}
    for seed in range(20):
        A, _ = task(seed)
        own = Fallback(UserRows(A), config())
        for is_good in (True, False):
            trusted[is_good] += not own.is_better(0.3, 1.0, truth if is_good else -truth)
    assert trusted[True] == 20
    assert trusted[False] == 0


def test_the_choice_is_never_much_worse_than_learning_alone_whatever_the_neighbours_models():
    chosen, alone = [], []
    for seed in range(30):
        A, more = task(seed)
        rng = np.random.default_rng(seed)
        own = Fallback(UserRows(A), config())
        neighbour_sum = rng.standard_normal(40).astype(np.float32)
        neighbour_sum *= 5.0 / np.abs(neighbour_sum).sum()
        together = own.learned(UserRows(A), 0.5, 1.0, neighbour_sum)
        alone.append(right(more, own.alpha))
        chosen.append(right(more, own.alpha if own.is_better(0.5, 1.0, neighbour_sum) else together))
    assert np.mean(chosen) > np.mean(alone) - 0.01


def test_a_user_with_one_sample_can_choose():
    A, _ = task(1, m=1)
    own, friendly = Fallback(UserRows(A), config()), 5.0 * A[0].astype(np.float32) / 40
    assert not own.is_better(1.0, 1.0, friendly)
    assert own.is_better(1.0, 1.0, -friendly)


def test_margins_may_be_real():
    A, _ = task(2)
    own = Fallback(UserRows(A * 0.5), config())
    assert 0 < np.abs(own.alpha).sum() <= 5.0 * (1 + 1e-6)


def test_a_weaker_coupling_gains_where_neighbours_mislead_and_loses_where_they_help():
    truth, gains = np.zeros(40, np.float32), {1.0: 0.0, -1.0: 0.0}
    truth[:3] = 5.0 / 3
    for seed in range(10):
        A, _ = task(seed)
        own = Fallback(UserRows(A), config())
        for sign in gains:
            (gained,) = own.gains(1.0, (0.25,), 0.3, 1.0, sign * truth)
            gains[sign] += gained
    assert gains[-1.0] > 0.0 > gains[1.0]
