"""Small populations in the form a user of the classifier holds them."""

from typing import NamedTuple

import numpy as np

from dada.data import moons


class Rows(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    users: np.ndarray


def opposites(rows_per_user=8, ids=("ann", "bob", "cid", "dan")):
    """One feature; the first half of the users say 1 where it is positive, the others where it is negative."""
    rng = np.random.default_rng(0)
    users = np.repeat(ids, rows_per_user)
    X = rng.uniform(-1, 1, (users.size, 1))
    likes_positive = np.isin(users, ids[: len(ids) // 2])
    return Rows(X, ((X[:, 0] > 0) == likes_positive).astype(int), users)


def moons_rows(seed, **settings):
    """Training and test rows of the Moons users."""
    people = moons(seed, **settings)
    return tuple(Rows(part.X, part.y, part.users) for part in (people.train, people.test))
