"""From releases to models: how far a user's own G is trusted, and variances by likelihood."""

import numpy as np

from dada.privacy.noise import Bits
from dada.privacy.pooling import SPREADS, Pool, find_groups
from dada.privacy.release import StatisticsMechanism, read_statistics


def pooled(scale=1.0, mix=0.0, n_users=60, n_rows=80, epsilon=6.0, seed=0):
    """Releases of users with one rule for outputs of a size; `mix` shifts the features of each user."""
    rng = np.random.default_rng(seed)
    mechanism = StatisticsMechanism.calibrated(epsilon, 1e-5, n_predictors=5, n_outputs=1)
    source, rule, releases = Bits(rng.bytes), rng.uniform(-0.2, 0.2, 5), []
    for _ in range(n_users):
        h = np.clip(rng.uniform(-0.5, 0.5, (n_rows, 5)) + mix * rng.uniform(-0.5, 0.5, 5), -1, 1)
        y = scale * (h @ rule + 0.3 * rng.normal(size=n_rows))
        releases.append(read_statistics(mechanism.release(h, y[:, None], source))[0])
    return Pool.of(releases, np.ones(5))


def test_a_users_own_gram_counts_only_if_users_differ_beyond_the_noise():
    assert pooled(mix=0.0).own_share.max() < 0.25
    assert pooled(mix=1.0).own_share.min() > 0.5


def test_a_users_own_gram_counts_less_with_more_noise():
    shares = [pooled(mix=1.0, epsilon=epsilon).own_share.mean() for epsilon in (0.5, 2.0, 8.0)]
    assert shares == sorted(shares)


def test_variances_follow_the_size_of_the_outputs():
    large, small = (pooled(scale, n_rows=1000, epsilon=12.0).residuals for scale in (1.0, 0.5))
    assert large.residual > small.residual
    assert SPREADS[0] == small.spread


def test_released_models_of_one_rule_are_near_their_centre():
    found = [find_groups(pooled(n_users=30, seed=seed), np.random.default_rng(0)) for seed in range(5)]
    assert [groups.n for groups in found] == [1] * 5
    assert np.median([abs(groups.released_models() - groups.centres[0]).max() for groups in found]) < 0.05


def test_the_number_of_groups_follows_the_releases():
    """Users of three rules, in releases whose noise hides the rule of a single user."""
    rng = np.random.default_rng(1)
    mechanism = StatisticsMechanism.calibrated(6.0, 1e-5, n_predictors=5, n_outputs=1)
    source, rules, releases = Bits(rng.bytes), rng.normal(size=(3, 5)), []
    for k in range(90):
        h = rng.uniform(-1, 1, (100, 5))
        y = np.sign(h @ rules[k % 3])[:, None]
        releases.append(read_statistics(mechanism.release(h, y, source))[0])
    groups = find_groups(Pool.of(releases, np.ones(5)), rng)
    assert groups.n in (3, 4)
    nearest = groups.share.argmax(axis=1)
    same = nearest[:, None] == nearest
    rule = np.arange(90) % 3
    assert (same == (rule[:, None] == rule)).mean() > 0.85
