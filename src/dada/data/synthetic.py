"""Synthetic users: rotated two moons as in the paper, in groups (Moons) or spread out (Moons100), and interactions.

In Boxes and Xor the label depends on a pair of features together, another pair for each of three groups of users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse

from dada.data.population import Population

Seed = np.random.Generator | int
DataRule = Literal["run", "printed"]
RULES = ("run", "printed")

GROUP_SHARES = (0.1, 0.2, 0.3, 0.4)
GROUP_ANGLES_DEG = (45.0, 135.0, 225.0, 315.0)
ANGLE_SPREAD_DEG = 5.0
POINT_NOISE = 0.1
FLIPPED_SHARE = 0.05
ORACLE_WIDTH = 0.1
MAX_PAIRS = 20_000_000
# Half-width of a box that holds half of the rows, and the number of groups with a pair of features each.
BOX, N_PAIRS = 0.7, 3


@dataclass(frozen=True, eq=False)
class SyntheticUsers:
    """Users whose tasks are similar where their known angles are.

    Attributes
    ----------
    train, test : Population
        The same users in the same order.
    groups : (K,) int64 array
        Group of each user; all zeros when users are not grouped.
    angles : (K,) float64 array
        Rotation of each user's task, in radians; groups without moons are spread evenly over the circle.
    negligible : float
        Oracle weights below this are dropped.
    """

    train: Population
    test: Population
    groups: np.ndarray
    angles: np.ndarray
    negligible: float

    def oracle_weights(self, *, max_neighbours: int | None = None) -> sparse.csr_array:
        """The graph that knows the tasks: w_kl = exp((cos(angle_k - angle_l) - 1) / 0.1).

        Parameters
        ----------
        max_neighbours : int, optional
            Most neighbours per user, half of them on either side in angle. Needed for many users, where all similar
            pairs together do not fit in memory.

        Returns
        -------
        scipy.sparse.csr_array of shape (K, K)
            Symmetric, zero diagonal, without the weights below `negligible`.

        Examples
        --------
        >>> users = moons(0, n_users=20, n_test=1)
        >>> users.oracle_weights().count_nonzero(axis=1)[users.groups == 3].tolist()
        [7, 7, 7, 7, 7, 7, 7, 7]
        """
        turns = np.mod(self.angles, 2 * np.pi)
        order = np.argsort(turns, kind="stable")
        first, second = _near_pairs(turns[order], self._reach(), max_neighbours)
        weight = np.exp((np.cos(turns[order[first]] - turns[order[second]]) - 1) / ORACLE_WIDTH)
        kept = weight >= self.negligible
        rows, columns, weight = order[first[kept]], order[second[kept]], weight[kept]
        ends = (np.concatenate((rows, columns)), np.concatenate((columns, rows)))
        shape = (len(turns), len(turns))
        return sparse.coo_array((np.concatenate((weight, weight)), ends), shape=shape).tocsr()

    def _reach(self) -> float:
        """Largest angle between two users whose weight is not negligible."""
        cosine = max(-1.0, 1 + ORACLE_WIDTH * np.log(self.negligible))
        # Short of half a turn, so that two opposite users are one pair and not two.
        return min(float(np.arccos(cosine)), float(np.nextafter(np.pi, 0)))


def moons(
    rng: Seed, *, rule: DataRule = "run", n_users: int = 100, n_test: int = 100, dimensions: int = 20
) -> SyntheticUsers:
    """Draw the Moons users: four groups, each with its own rotation of the two moons.

    10, 20, 30 and 40 % of the users have rotations near 45, 135, 225 and 315 degrees (standard deviation 5 degrees). A
    user has 3 to 15 training rows and `n_test` test rows, each set drawn independently as
    :func:`sklearn.datasets.make_moons` does with noise 0.1: half of the rows on either moon, evenly spaced. Moons turn
    about the origin of that function, which is not their centre. Of four ways to draw the rows and two centres, these
    come nearest to the accuracies known for this data; boosting gives 82 % alone and 73 to 77 % on all rows pooled
    (seeds 1 to 3, rule ``"run"``).

    Parameters
    ----------
    rng : numpy.random.Generator or int
        Random generator, or a seed.
    rule : {"run", "printed"}
        ``"run"``: the further features are zero, training labels are clean, 5 % of the test labels are flipped (no
        classifier exceeds 95 % on average). ``"printed"``, the paper's text: the further features are random (standard
        normal in our reading), 5 % of the training labels are flipped, test labels are clean.
    n_users, n_test, dimensions : int
        Users, test rows per user, features.

    Examples
    --------
    >>> users = moons(1)
    >>> users.train.n_users, users.train.n_features, users.test.n_rows
    (100, 20, 10000)
    """
    _check(rule, n_users, n_test, dimensions)
    rng = np.random.default_rng(rng)
    groups = np.searchsorted(np.cumsum(GROUP_SHARES), (np.arange(n_users) + 0.5) / n_users)
    degrees = np.asarray(GROUP_ANGLES_DEG)[groups] + rng.normal(0, ANGLE_SPREAD_DEG, n_users)
    sizes = rng.integers(3, 15, n_users, endpoint=True)
    angles = np.deg2rad(degrees)
    train, test = _draw_users(rng, rule, angles, sizes, n_test, dimensions)
    return SyntheticUsers(train, test, groups.astype(np.int64), angles, negligible=1e-2)


def moons100(
    rng: Seed, *, rule: DataRule = "run", n_users: int = 100, n_test: int = 100, dimensions: int = 20
) -> SyntheticUsers:
    """Draw the Moons100 users: no groups, each user has an independent rotation.

    A user's rotation axis is read as a standard normal vector in the plane of the moons, and its moons are turned by
    that vector's direction, so rotations are uniform on the circle and the angle between two axes is the difference of
    two rotations. The paper does not state which oracle weights are negligible: 1e-6 leaves 61.9 (standard deviation
    0.6) neighbours on average for 100 users, near the published 60.86; other axes with other limits come as near, so
    this number does not confirm the reading.

    A user has 3 to 20 training rows and `n_test` test rows, drawn as in :func:`moons`, whose parameters it shares.

    Examples
    --------
    >>> users = moons100(1)
    >>> int(users.train.sizes.min()), int(users.train.sizes.max())
    (3, 20)
    """
    _check(rule, n_users, n_test, dimensions)
    rng = np.random.default_rng(rng)
    axes = rng.standard_normal((n_users, 2))
    angles = np.arctan2(axes[:, 1], axes[:, 0])
    sizes = rng.integers(3, 20, n_users, endpoint=True)
    train, test = _draw_users(rng, rule, angles, sizes, n_test, dimensions)
    return SyntheticUsers(train, test, np.zeros(n_users, dtype=np.int64), angles, negligible=1e-6)


def boxes(rng: Seed, *, n_users: int = 60, n_test: int = 100, dimensions: int = 8, n_train: int = 30) -> SyntheticUsers:
    """Draw users in three groups; a label is positive inside a box of two features, another pair for each group.

    Features are uniform on [-1, 1]. The box of group g is ``|x[2g]| < 0.7`` and ``|x[2g + 1]| < 0.7``, which holds for
    about half of the rows. 5 % of the training labels are flipped. A user has about `n_train` training rows, at least
    half and at most one and a half times as many.

    Parameters
    ----------
    rng : numpy.random.Generator or int
        Random generator, or a seed.
    n_users, n_test, dimensions, n_train : int
        Users, test rows per user, features (at least six), mean training rows per user.

    Examples
    --------
    >>> users = boxes(1)
    >>> users.train.n_users, users.train.n_features, users.test.n_rows
    (60, 8, 6000)
    """
    return _interacting(rng, n_users, n_test, dimensions, n_train, lambda a, b: np.maximum(abs(a), abs(b)) < BOX)


def xor(rng: Seed, *, n_users: int = 60, n_test: int = 100, dimensions: int = 8, n_train: int = 30) -> SyntheticUsers:
    """Draw users in three groups; a label is positive if two features have the same sign.

    No feature helps by itself. Everything else is as in :func:`boxes`.

    Examples
    --------
    >>> people = xor(1).test
    >>> round(float((people.y > 0).mean()), 1)
    0.5
    """
    return _interacting(rng, n_users, n_test, dimensions, n_train, lambda a, b: a * b > 0)


def _interacting(
    rng: Seed,
    n_users: int,
    n_test: int,
    dimensions: int,
    n_train: int,
    is_positive: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> SyntheticUsers:
    limits = {"n_users": (n_users, 1), "n_test": (n_test, 1), "n_train": (n_train, 2)}
    for name, (value, least) in {**limits, "dimensions": (dimensions, 2 * N_PAIRS)}.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    rng = np.random.default_rng(rng)
    groups = np.arange(n_users) % N_PAIRS

    def rows(sizes: np.ndarray, flipped: float) -> Population:
        owner = np.repeat(np.arange(n_users), sizes)
        X, every = rng.uniform(-1, 1, (len(owner), dimensions)), np.arange(len(owner))
        first = 2 * groups[owner]
        is_flipped = rng.random(len(owner)) < flipped
        labels = np.where(is_positive(X[every, first], X[every, first + 1]) ^ is_flipped, 1, -1)
        return Population.from_arrays(X, labels, owner, classes=(-1, 1))

    train = rows(rng.integers(n_train // 2, n_train + n_train // 2, n_users, endpoint=True), FLIPPED_SHARE)
    test = rows(np.full(n_users, n_test), 0.0)
    return SyntheticUsers(train, test, groups, 2 * np.pi * groups / N_PAIRS, negligible=1e-2)


def _check(rule: str, n_users: int, n_test: int, dimensions: int) -> None:
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    for name, value, least in (("n_users", n_users, 1), ("n_test", n_test, 1), ("dimensions", dimensions, 2)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def _draw_users(
    rng: np.random.Generator, rule: str, angles: np.ndarray, sizes: np.ndarray, n_test: int, dimensions: int
) -> tuple[Population, Population]:
    """Draw the training rows, then the test rows, so that `n_test` does not change what is learned from."""
    filled, flips = (rule == "printed"), ((FLIPPED_SHARE, 0.0) if rule == "printed" else (0.0, FLIPPED_SHARE))
    test_sizes = np.full(len(angles), n_test)
    train = _turned_moons(rng, angles, sizes, dimensions, filled=filled, flipped=flips[0])
    test = _turned_moons(rng, angles, test_sizes, dimensions, filled=filled, flipped=flips[1])
    return train, test


def _turned_moons(
    rng: np.random.Generator, angles: np.ndarray, sizes: np.ndarray, dimensions: int, *, filled: bool, flipped: float
) -> Population:
    owner = np.repeat(np.arange(len(sizes)), sizes)
    points, labels = _two_moons(rng, owner, sizes)
    X = rng.standard_normal((len(owner), dimensions)) if filled else np.zeros((len(owner), dimensions))
    cosine, sine = np.cos(angles)[owner], np.sin(angles)[owner]
    X[:, 0] = cosine * points[0] - sine * points[1]
    X[:, 1] = sine * points[0] + cosine * points[1]
    labels = np.where(rng.random(len(owner)) < flipped, -labels, labels)
    return Population.from_arrays(X, labels, owner, classes=(-1, 1))


def _two_moons(rng: np.random.Generator, owner: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points, shape (2, R), and labels of scikit-learn's two moons, drawn per user, rows shuffled."""
    row = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    n_outer = (sizes // 2)[owner]
    outer = row < n_outer
    place = np.where(outer, row, row - n_outer)
    last = np.where(outer, n_outer, sizes[owner] - n_outer) - 1
    arc = np.pi * place / np.maximum(last, 1)
    points = np.empty((2, len(owner)))
    points[0] = np.where(outer, np.cos(arc), 1 - np.cos(arc))
    points[1] = np.where(outer, np.sin(arc), 0.5 - np.sin(arc))
    points += rng.normal(0, POINT_NOISE, points.shape)
    shuffled = np.lexsort((rng.random(len(owner)), owner))
    return points[:, shuffled], np.where(outer, -1, 1)[shuffled]


def _near_pairs(turns: np.ndarray, reach: float, max_neighbours: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Positions of all pairs of sorted angles at most `reach` apart on the circle, each pair once."""
    K = len(turns)
    around = np.concatenate((turns, turns + 2 * np.pi))
    ahead = np.searchsorted(around, turns + reach, side="right") - np.arange(1, K + 1)
    if max_neighbours is not None:
        if max_neighbours < 2:
            raise ValueError(f"max_neighbours must be at least 2 (one on either side), got {max_neighbours}")
        ahead = np.minimum(ahead, max_neighbours // 2)
    n_pairs = int(ahead.sum())
    if n_pairs > MAX_PAIRS:
        raise ValueError(
            f"the oracle graph of {K} users has {n_pairs} edges, more than the limit of {MAX_PAIRS}: "
            "bound it, for example with max_neighbours=20"
        )
    first = np.repeat(np.arange(K), ahead)
    offset = np.arange(n_pairs) - np.repeat(np.cumsum(ahead) - ahead, ahead)
    return first, (first + 1 + offset) % K
