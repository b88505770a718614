"""`dada fit`, `predict` and `inspect` on tables with columns of every kind, with no option but user and label."""

import json
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from dada import DadaClassifier, Linear, load_model, save_model
from dada.cli.app import app

QUICK = ("--updates", 20, "--graph", "none")


def dada(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def dada_json(*arguments):
    result = dada(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def stays(n_rows=90, seed=0):
    """A table as people have them: an index, text, dates, gaps, a constant, an id, and labels of several kinds."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n_rows)
    return pl.DataFrame(
        {
            "": range(1, n_rows + 1),
            "person": [("ann", "bob", "cid")[i % 3] for i in range(n_rows)],
            "east": x,
            "north": [None if i % 11 == 0 else float(v) for i, v in enumerate(rng.normal(size=n_rows))],
            "region": [None if i % 17 == 0 else ("north", "south", "west")[i % 4 % 3] for i in range(n_rows)],
            "member": [bool(v) for v in rng.random(n_rows) > 0.5],
            "seen": [date(2023, 11, 1) + timedelta(days=3 * i) for i in range(n_rows)],
            "note": [f"note {i}" for i in range(n_rows)],
            "year": [2024] * n_rows,
            "came": np.where(x + 0.3 * rng.normal(size=n_rows) > 0, "yes", "no"),
            "kind": np.array(["short", "middle", "long"])[np.digitize(x + 0.3 * rng.normal(size=n_rows), [-0.5, 0.5])],
            "days": 10 + 3 * x + rng.normal(size=n_rows),
        }
    )


LABELS = {"came": "classes", "kind": "classes", "days": "numbers"}


def written(frame, path, drop=()):
    frame = frame.drop(drop)
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    return path


@pytest.fixture(
    scope="module", params=[(label, suffix) for label in LABELS for suffix in (".csv", ".parquet")], ids=str
)
def fitted(request, tmp_path_factory):
    label, suffix = request.param
    folder = tmp_path_factory.mktemp("stays")
    others = [name for name in LABELS if name != label]
    path = written(stays(), folder / f"stays{suffix}", others)
    found = dada_json("fit", path, "--user", "person", "--label", label, "-o", folder / "m.dada", *QUICK)
    return label, path, found


def test_a_table_of_every_kind_of_column_is_fitted_predicted_and_inspected(fitted):
    label, path, found = fitted
    assert found["task"] == LABELS[label]
    assert set(found["left_out"]) == {"", "note", "year"}
    assert set(found["encoded"]) == {"east", "north", "region", "member", "seen"}
    assert found["features"] == sum(found["encoded"].values())
    together = found["held_out"]["together"]
    assert (together["r2"] > 0.3) if label == "days" else (together["accuracy_over_rows"] > 0.5)
    rows = dada_json("predict", found["model"], path)
    given = stays()
    assert [row["person"] for row in rows] == given["person"].to_list()
    if label != "days":
        assert np.mean([row["label"] == given[label][i] for i, row in enumerate(rows)]) > 0.7
    seen = dada_json("inspect", found["model"])
    assert seen["encoded"] == found["encoded"]
    assert seen["importances"][0]["column"] == "east"
    assert {row["column"] for row in seen["effects"]} <= set(found["encoded"])
    assert dada("inspect", found["model"], "--user", "ann").exit_code == 0


def test_new_rows_may_differ_from_the_training_table(fitted, tmp_path):
    _, _, found = fitted
    new = stays(9, seed=1).select("region", "person", "seen", "east", "member", "north")
    new = new.with_columns(region=pl.lit("far"), north=None, seen=None, extra=pl.lit("x"))
    path = written(new, tmp_path / "new.csv")
    assert len(dada_json("predict", found["model"], path)) == 9
    refused = dada("predict", found["model"], written(new.drop("region"), tmp_path / "less.csv"))
    assert refused.exit_code == 2
    assert "no column 'region'" in refused.stderr


def test_the_report_names_what_became_of_columns(tmp_path):
    path = written(
        stays().with_columns(reason=pl.when(pl.col("came") == "yes").then(pl.lit("well"))), tmp_path / "s.csv"
    )
    result = dada("fit", path, "--user", "person", "--label", "came", "--drop", "kind", "--drop", "days",
                  "-o", tmp_path / "m.dada", *QUICK)  # fmt: skip
    assert result.exit_code == 0, result.stderr
    for part in (
        "2 classes",
        "6 columns became",
        "Left out '': row numbers.",
        "Left out 'year': the same value in every row.",
        "Left out 'note': text with 90 different values in 90 rows, like ids.",
        "The label follows exactly from 'reason': --drop",
    ):
        assert part in result.stdout
    assert "columns" in dada("inspect", tmp_path / "m.dada").stdout


@pytest.mark.parametrize("column", ["person", "came", "days"])
def test_rows_without_a_user_or_a_label_are_counted_or_dropped(tmp_path, column):
    frame = stays().with_row_index("at")
    frame = frame.with_columns(pl.when(pl.col("at") % 10 != 0).then(pl.col(column)).alias(column)).drop("at", "kind")
    label = column if column != "person" else "came"
    path = written(frame, tmp_path / "gaps.csv", [name for name in ("came", "days") if name != label])
    fit = ("fit", path, "--user", "person", "--label", label, "-o", tmp_path / "m.dada", *QUICK)
    refused = dada(*fit)
    assert refused.exit_code == 2
    assert f"9 of 90 rows have no user or no label (9 in column '{column}' missing)" in " ".join(refused.stderr.split())
    assert "--drop-missing" in refused.stderr
    assert dada_json(*fit, "--drop-missing")["dropped_rows"] == 9


def test_user_ids_of_any_type_are_known_again(tmp_path):
    frame = stays().select("east", "north", "came", person=pl.Series([7, 8, 9] * 30, dtype=pl.Float64))
    path = written(frame, tmp_path / "floats.parquet")
    dada_json("fit", path, "--user", "person", "--label", "came", "-o", tmp_path / "m.dada", *QUICK)
    as_text = written(frame.head(3).with_columns(pl.col("person").cast(int)), tmp_path / "ints.csv")
    assert len(dada_json("predict", tmp_path / "m.dada", as_text)) == 3
    assert dada_json("inspect", tmp_path / "m.dada", "--user", "8")["user"] == 8.0
    mixed = frame.with_columns(pl.col("person").cast(int).cast(str).replace("9", "x9"))
    dada_json("fit", written(mixed, tmp_path / "text.csv"), "--user", "person", "--label", "came",
              "-o", tmp_path / "t.dada", *QUICK)  # fmt: skip
    assert (
        len(
            dada_json(
                "predict", tmp_path / "t.dada", written(mixed.filter(pl.col("person") == "7"), tmp_path / "7.csv")
            )
        )
        == 30
    )


@pytest.mark.parametrize("n_rows", [1, 2, 40])
def test_users_may_have_one_row_or_many(tmp_path, n_rows):
    rng = np.random.default_rng(n_rows)
    n = 30 * n_rows
    frame = pl.DataFrame(
        {"u": np.repeat(np.arange(30), n_rows), "town": rng.choice(["a", "b"], n), "x": rng.normal(size=n)}
    )
    frame = frame.with_columns(y=(pl.col("x") > 0).cast(int) + (pl.col("town") == "a").cast(int))
    path = written(frame, tmp_path / "t.csv")
    found = dada_json("fit", path, "--user", "u", "--label", "y", "-o", tmp_path / "m.dada", *QUICK)
    assert (found["users"], found["rows"], found["held_out"] is None) == (30, n, n_rows < 2)
    assert len(dada_json("predict", tmp_path / "m.dada", path)) == n


def test_a_model_that_finds_users_in_x_predicts_a_file(tmp_path):
    frame = stays().drop("note", "kind", "days", "", "year")
    path = written(frame, tmp_path / "s.csv")
    cheap = dict(predictors=Linear(), graph="none", n_updates=20, random_state=0)
    inside = DadaClassifier(user_column="person", **cheap).fit(frame.drop("came"), frame["came"])
    array = frame.select("east", "person").to_numpy()
    for name, model, table in (("frame", inside, path),
                               ("array", DadaClassifier(user_column=1, **cheap).fit(array, frame["came"]),
                                written(frame.select("east", "person"), tmp_path / "two.csv"))):  # fmt: skip
        save_model(model, tmp_path / name)
        rows = dada_json("predict", tmp_path / name, table, "--user", "person")
        X = frame if name == "frame" else array
        assert [row["label"] for row in rows] == model.predict(X).tolist()
    assert load_model(tmp_path / "frame").user_column == "person"


def test_a_file_read_in_parts_is_encoded_too(tmp_path):
    path = written(stays(), tmp_path / "s.parquet", ["kind", "days"])
    fit = ("fit", path, "--stream", "--user", "person", "--label", "came", "-o", tmp_path / "m.dada", "--updates", 20)
    found = dada_json(*fit, "--lam", 1)
    assert set(found["left_out"]) == {"", "note", "year"}
    assert found["features"] == sum(found["encoded"].values())
    rows = dada_json("predict", tmp_path / "m.dada", path)
    assert np.mean([row["label"] == came for row, came in zip(rows, stays()["came"], strict=True)]) > 0.7
    refused = dada(*fit, "--drop-missing")
    assert "--drop-missing needs the whole table: leave out --stream" in " ".join(refused.stderr.split())


def test_text_is_refused_where_levels_would_reveal_rows(tmp_path):
    path = written(stays(), tmp_path / "s.csv", ["kind", "days", "note"])
    refused = dada("fit", path, "--user", "person", "--label", "came", "--epsilon", 1, "--ranges", 0, 1)
    assert refused.exit_code == 2
    assert "feature columns are not numeric" in refused.stderr
