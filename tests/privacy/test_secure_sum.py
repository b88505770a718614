"""Secure aggregation: the sum is exact, users may drop out, and no single vector is seen."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dada.privacy.noise import Bits
from dada.privacy.release import StatisticsMechanism, read_statistics
from dada.privacy.secure_sum import (
    OWN_SEED,
    introduced,
    join_secret,
    noise_share,
    split_secret,
    summed_statistics,
    unmasked_sum,
)

N_USERS, THRESHOLD = 9, 4


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def users(rng):
    return introduced(N_USERS, 6, THRESHOLD, rng.bytes)


@pytest.fixture
def values(rng):
    return rng.integers(-(1 << 60), 1 << 60, (N_USERS, 5)).astype(np.int64)


def summed(users, values, senders, holders):
    sent = {k: users[k].masked(values[k]) for k in senders}
    revealed = {k: users[k].reveal(frozenset(senders)) for k in holders}
    return unmasked_sum(sent, revealed, [user.neighbours for user in users], THRESHOLD)


@pytest.mark.parametrize("absent", [(), (0,), (3, 4), (0, 8)], ids=str)
def test_the_sum_of_those_who_sent_is_exact(users, values, absent):
    senders = [k for k in range(N_USERS) if k not in absent]
    assert_array_equal(summed(users, values, senders, senders), values[senders].sum(axis=0))


def test_users_may_drop_out_between_sending_and_unmasking(users, values):
    senders = list(range(1, N_USERS))
    assert_array_equal(summed(users, values, senders, [1, 2, 4, 5, 7, 8]), values[senders].sum(axis=0))


def test_too_few_shares_lose_the_sum_instead_of_changing_it(users, values):
    with pytest.raises(ValueError, match="4 are needed: the sum is lost"):
        summed(users, values, list(range(N_USERS)), [0, 1, 2, 3])


def test_what_is_sent_is_masked_and_a_second_list_is_refused(users, values):
    """Without its own seed, all pair seeds together leave a user's vector masked."""
    user = users[4]
    left = user.masked(values[4]).astype(np.int64)
    pair_seeds = {other: seed for other, seed in user.seeds.items() if other != OWN_SEED}
    assert set(pair_seeds) == set(user.neighbours)
    user.seeds[OWN_SEED] = bytes(32)
    assert (left != user.masked(values[4]).astype(np.int64)).all()
    user.reveal(frozenset(range(N_USERS)))
    assert user.reveal(frozenset(range(N_USERS)))
    with pytest.raises(ValueError, match="revealed shares for another list"):
        user.reveal(frozenset({1, 2}))


def test_a_holder_reveals_one_kind_of_share_for_each_user(users):
    senders = frozenset(range(2, N_USERS))
    shown = users[3].reveal(senders)
    own, pairs = ({owner for owner, place in shown if (place == OWN_SEED) is kind} for kind in (True, False))
    assert not own & pairs
    assert own <= senders
    assert pairs == {0, 1} & set(users[3].neighbours)


def test_fewer_shares_than_the_threshold_fit_every_secret(rng):
    shares = split_secret(b"s" * 32, [0, 1, 2, 3], 3, rng.bytes)
    assert join_secret({k: shares[k] for k in (0, 1, 3)}) == b"s" * 32
    with pytest.raises(ValueError, match="2 shares do not restore a seed"):
        join_secret({k: shares[k] for k in (0, 1)})
    with pytest.raises(ValueError, match=r"threshold must be in 1\.\.4"):
        split_secret(b"s" * 32, [0, 1, 2, 3], 5, rng.bytes)


def test_shares_of_the_noise_add_up_to_the_noise_of_one_release(rng):
    whole = StatisticsMechanism.calibrated(1.0, 1e-5, n_predictors=2, n_outputs=1)
    own = noise_share(whole, N_USERS)
    assert own.gram_sigma * np.sqrt(N_USERS) >= whole.gram_sigma
    assert own.gram_sigma * np.sqrt(N_USERS) == pytest.approx(whole.gram_sigma, rel=1e-6)
    source = Bits(rng.bytes)
    h, y = rng.uniform(-1, 1, (N_USERS, 4, 2)), rng.choice([-1.0, 1.0], (N_USERS, 4, 1))
    bodies = [own.release(*rows, source) for rows in zip(h, y, strict=True)]
    found = summed_statistics(bodies, N_USERS, rng.bytes)
    each = [read_statistics(body)[0] for body in bodies]
    assert_array_equal(found.gram, sum(one.gram for one in each))
    assert_array_equal(found.moment, sum(one.moment for one in each))
    assert found.n_rows == 4 * N_USERS
    assert found.moment_sigma == pytest.approx(whole.moment_sigma, rel=1e-6)
