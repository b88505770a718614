"""Fits to Parquet files that no process holds: what fits in memory with the same latency learn."""

import numpy as np
import polars as pl
import pytest

from dada import DadaClassifier, DadaRegressor
from dada.data import Linear, ParquetUsers, Stumps, Trees, Union
from dada.estimators.stream import fit_parquet

K, ROWS = 12, 8
TARGETS = ("side", "kind", "days")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    owner, X = np.repeat(np.arange(K), ROWS), rng.normal(size=(K * ROWS, 3))
    score = X[:, 0] + 0.5 * (owner % 2) * X[:, 1]
    columns = {
        "who": owner,
        "side": score > 0,
        "kind": np.array(["short", "middle", "long"])[np.digitize(score, [-0.5, 0.5])],
        "days": 10 + 3 * score,
    }
    return pl.DataFrame(X, schema=["x", "y", "z"]).with_columns(**{k: pl.Series(v) for k, v in columns.items()})


@pytest.fixture(scope="module")
def file(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("stream") / "rows.parquet"
    # The rows of a user need not be together.
    table.with_row_index("n").sort(pl.col("n") % ROWS, maintain_order=True).drop("n").write_parquet(path)
    return path


def users_of(file, label):
    return ParquetUsers.open(file, user="who", label=label, drop=[name for name in TARGETS if name != label])


def in_memory(table, model, label):
    return model.fit(table.select("x", "y", "z"), table[label], users=table["who"])


CASES = {
    "two classes": ("side", DadaClassifier, {}),
    "three classes by evidence": ("kind", DadaClassifier, {"graph": "evidence", "mu": 0.1}),
    "weights of classes": ("kind", DadaClassifier, {"graph": "everyone", "class_weight": "balanced"}),
    "numbers": ("days", DadaRegressor, {"graph": "evidence"}),
    "numbers both ways": ("days", DadaRegressor, {"graph": "evidence-symmetric", "mu": 0.1}),
}


@pytest.mark.parametrize("case", CASES)
def test_streams_learn_what_fits_in_memory_learn(case, table, file):
    label, estimator, settings = CASES[case]
    settings = settings | {"predictors": Union(Stumps(per_feature=2), Linear()), "n_updates": 10, "random_state": 0}
    streamed = fit_parquet(estimator(**settings), users_of(file, label), users_at_once=5)
    here = in_memory(table, estimator(latency=0.1, **settings), label)
    np.testing.assert_array_equal(streamed.models_, here.models_)
    np.testing.assert_array_equal(streamed.graph_.weights, here.graph_.weights)
    assert streamed.settings_["mu"] == here.settings_["mu"]
    assert streamed.settings_["step"] == "block"
    X, who = table.select("x", "y", "z"), table["who"]
    np.testing.assert_array_equal(streamed.predict(X, who), here.predict(X, who))


def test_processes_read_their_own_users_and_agree(file):
    users = users_of(file, "days")
    settings = dict(graph="evidence", mu=0.1, n_updates=10, random_state=0)
    one, two = (fit_parquet(DadaRegressor(n_jobs=n, **settings), users) for n in (1, 2))
    np.testing.assert_array_equal(one.models_, two.models_)
    np.testing.assert_array_equal(one.graph_.weights, two.graph_.weights)
    assert one.bits_ == two.bits_


def test_choices_are_made_by_trials_and_kept(file):
    model = fit_parquet(DadaClassifier(n_updates=5, random_state=0), users_of(file, "side"))
    assert model.decision_.held_out
    assert model.settings_["graph"] in ("everyone", "evidence")
    assert 0.5 < model.train_accuracy_ <= 1


def test_trees_are_refused(file):
    with pytest.raises(ValueError, match="leave Trees out"):
        fit_parquet(DadaClassifier(predictors=Trees(), mu=0.1, graph="everyone"), users_of(file, "side"))


@pytest.mark.parametrize(("label", "estimator"), [("days", DadaClassifier), ("kind", DadaRegressor)])
def test_the_wrong_estimator_is_refused_by_name(label, estimator, file):
    with pytest.raises(ValueError, match="use DadaRegressor" if estimator is DadaClassifier else "use DadaClassifier"):
        fit_parquet(estimator(), users_of(file, label))
