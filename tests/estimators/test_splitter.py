"""PerUserKFold: every user keeps something to learn from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dada import PerUserKFold
from dada.fitting.held_out import EvenFolds


def folds_of_rows(splitter, users, y=None):
    """The folds in which each row is tested, after checking that train and test rows are complements."""
    folds = [[] for _ in users]
    for i, (train, test) in enumerate(splitter.split(users, y, users=users)):
        assert sorted([*train, *test]) == list(range(len(users)))
        for row in test:
            folds[row].append(i)
    return folds


populations = st.lists(st.integers(0, 6), min_size=1, max_size=40).filter(
    lambda users: sum(users.count(user) > 1 for user in users) >= 6
)


@given(users=populations, n_splits=st.integers(2, 6), shuffle=st.booleans(), labelled=st.booleans())
def test_invariants(users, n_splits, shuffle, labelled):
    y = [row % 2 for row in range(len(users))] if labelled else None
    folds = folds_of_rows(PerUserKFold(n_splits, shuffle=shuffle, random_state=0), users, y)
    sizes = np.zeros(n_splits, int)
    for user in set(users):
        own = [folds[row] for row in range(len(users)) if users[row] == user]
        assert [len(each) for each in own] == [1 if len(own) > 1 else 0] * len(own)
        counts = np.bincount([each[0] for each in own if each], minlength=n_splits)
        assert counts.max() < len(own)
        assert counts.max() - counts.min() <= 1
        sizes += counts
    assert sizes.min() > 0
    assert sizes.max() - sizes.min() <= 1


def test_labels_are_spread_over_the_folds():
    users, y = np.repeat(["ann", "bob"], 9), np.tile([0] * 6 + [1] * 3, 2)
    for _, test in PerUserKFold(3, shuffle=True, random_state=1).split(y, y, users):
        assert sorted(zip(users[test].tolist(), y[test].tolist(), strict=True)) == [
            ("ann", 0), ("ann", 0), ("ann", 1), ("bob", 0), ("bob", 0), ("bob", 1),
        ]  # fmt: skip


def test_shuffling_follows_the_seed():
    users = np.repeat([1, 2], 20)
    a, b, c = (folds_of_rows(PerUserKFold(3, shuffle=True, random_state=seed), users) for seed in (5, 5, 6))
    assert a == b != c


def test_users_may_come_as_groups():
    users = ["ann", "ann", "bob", "bob"]
    by_group = [test.tolist() for _, test in PerUserKFold(2).split(users, groups=users)]
    assert by_group == [test.tolist() for _, test in PerUserKFold(2).split(users, users=users)] == [[0, 2], [1, 3]]
    assert PerUserKFold(2).get_n_splits() == 2


@pytest.mark.parametrize(
    ("n_splits", "users", "message"),
    [
        (1, [1, 1], "n_splits must be an integer >= 2, got 1"),
        (2.0, [1, 1], "n_splits must be an integer >= 2, got 2.0"),
        (3, [1, 1, 2, 3, 4], "n_splits must be at most 2, the number of rows of users with two rows or more, got 3"),
        (2, None, "needs the user of each row: give users="),
    ],
)
def test_bad_input(n_splits, users, message):
    with pytest.raises(ValueError, match=message):
        next(PerUserKFold(n_splits).split([0, 0], users=users))


def test_labels_and_users_must_agree_in_length():
    with pytest.raises(ValueError, match="got 1 and 2"):
        next(PerUserKFold(2).split([0, 0], [1], users=[1, 1]))


def test_folds_of_users_with_as_many_rows_as_folds_have_similar_labels():
    users, y = np.repeat(np.arange(150), 3), np.tile([0, 0, 1], 150)
    for kept, tested in EvenFolds(3, shuffle=True, random_state=0).split(users, y, users=users):
        assert np.bincount(users[tested]).tolist() == [1] * 150
        assert abs(y[kept].mean() - 1 / 3) < 0.1
        assert abs(y[tested].mean() - 1 / 3) < 0.1
