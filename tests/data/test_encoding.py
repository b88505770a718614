"""Columns of every kind become numbers, the same from pandas, polars and a stored encoder."""

import json
from datetime import date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from dada.data import TableEncoder
from dada.data.encoding import MOST_LEVELS, least_level_rows, needs_encoding, telling_columns

N = 24
START = datetime(2023, 11, 28, 6)
COLUMNS = {
    "age": [None if i == 3 else 20 + i % 7 for i in range(N)],
    "income": [float("nan") if i == 5 else 1.5 * (i % 9) for i in range(N)],
    "smoker": [None if i == 4 else i % 3 == 0 for i in range(N)],
    "member": [i % 2 == 0 for i in range(N)],
    "region": [None if i == 6 else ("north", "south", "west")[i % 3] for i in range(N)],
    "day": [None if i == 7 else (START + timedelta(days=9 * i)).date() for i in range(N)],
    "seen": [START + timedelta(days=9 * i, hours=i) for i in range(N)],
    "stay": [timedelta(hours=6 * (i % 5)) for i in range(N)],
}
NAMES = [
    *("age", "age missing", "income", "income missing", "smoker", "smoker missing", "member"),
    *('region = "north"', 'region = "south"', 'region = "west"', "region = other"),
    *("day of day", "month of day", "weekday of day", "day missing"),
    *("day of seen", "month of seen", "weekday of seen", "hour of seen", "stay"),
]


def polars_frame():
    return pl.DataFrame(COLUMNS, strict=False).with_columns(pl.col("region").cast(pl.Categorical))


def pandas_frame():
    return pd.DataFrame(COLUMNS).astype({"age": "Int64", "smoker": "boolean", "region": "category"})


def stored(encoder):
    """The encoder after a stay in a file."""
    return TableEncoder.from_json(json.loads(json.dumps(encoder.to_json(), allow_nan=False)))


def test_every_kind_of_column_gets_readable_features_that_name_their_source():
    encoder = TableEncoder.fit(polars_frame())
    assert list(encoder.feature_names) == NAMES
    assert encoder.source_column[NAMES.index('region = "south"')] == "region"
    assert encoder.source_column[NAMES.index("weekday of seen")] == "seen"
    assert encoder.left_out == {}


def test_values_are_those_of_the_table():
    rows = dict(zip(NAMES, TableEncoder.fit(polars_frame()).transform(polars_frame()).T, strict=True))
    assert rows["age"][3] == np.median([age for age in COLUMNS["age"] if age is not None])
    assert_array_equal(np.flatnonzero(rows["age missing"]), [3])
    assert_array_equal(rows["member"], COLUMNS["member"])
    assert_array_equal(np.flatnonzero(rows['region = "north"']), [i for i in range(0, N, 3) if i != 6])
    # A single row without a region is too rare for a level of its own.
    assert_array_equal(np.flatnonzero(rows["region = other"]), [6])
    seen = [START + timedelta(days=9 * i, hours=i) for i in range(N)]
    assert_array_equal(rows["weekday of seen"], [when.weekday() for when in seen])
    assert_array_equal(rows["month of seen"], [when.month for when in seen])
    assert_array_equal(rows["hour of seen"], [when.hour for when in seen])
    assert_array_equal(rows["day of day"][:2], [(COLUMNS["day"][i] - date(1970, 1, 1)).days for i in range(2)])
    assert_array_equal(rows["stay"], [stay / timedelta(days=1) for stay in COLUMNS["stay"]])


def test_pandas_polars_and_a_stored_encoder_agree():
    expected = TableEncoder.fit(polars_frame()).transform(polars_frame())
    for encoder in (TableEncoder.fit(pandas_frame()), stored(TableEncoder.fit(polars_frame()))):
        for frame in (pandas_frame(), polars_frame(), polars_frame().lazy(), pd.DataFrame(COLUMNS).astype(object)):
            assert_array_equal(encoder.transform(frame), expected)


@pytest.mark.parametrize("column", [[Decimal("1.5"), None, Decimal("2.5")], [1, None, 2.5], [np.True_, None, False]])
def test_python_numbers_of_any_type_are_numbers(column):
    frame = pd.DataFrame({"c": np.array(column, object)})
    expected = [[float(column[0]), 0], [(float(column[0]) + float(column[2])) / 2, 1], [float(column[2]), 0]]
    assert TableEncoder.fit(frame).transform(frame).tolist() == expected


def test_times_of_a_zone_are_those_of_greenwich():
    naive = pl.DataFrame({"seen": COLUMNS["seen"]})
    zoned = naive.with_columns(pl.col("seen").dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo"))
    encoder = TableEncoder.fit(naive)
    for frame in (zoned, zoned.to_pandas()):
        assert_array_equal(encoder.transform(frame), encoder.transform(naive))


TEXT = st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=30, max_size=60)


@settings(max_examples=20, deadline=None)
@given(text=TEXT, seed=st.integers(0, 1000))
def test_the_stored_encoder_gives_the_matrix_of_scikit_learns_transformers(text, seed):
    rng, n = np.random.default_rng(seed), len(text)
    text[:4] = ["a", "a", "b", "b"]
    frame = pd.DataFrame({"x": rng.normal(size=n), "text": np.array(text, object)})
    frame.loc[rng.random(n) < 0.2, "x"] = np.nan
    new = pd.DataFrame({"x": [np.nan, 1.0, 2.0], "text": np.array(["a", "unseen", None], object)})
    levels = OneHotEncoder(
        min_frequency=least_level_rows(n), max_categories=MOST_LEVELS, handle_unknown="infrequent_if_exist"
    )
    theirs = ColumnTransformer(
        [("x", SimpleImputer(strategy="median", add_indicator=True), ["x"]), ("text", levels, ["text"])],
        sparse_threshold=0,
    ).fit(frame)
    ours = stored(TableEncoder.fit(frame))
    assert_array_equal(ours.transform(frame), theirs.transform(frame))
    assert_array_equal(ours.transform(new), theirs.transform(new))


@pytest.fixture(scope="module")
def encoder():
    return TableEncoder.fit(pl.DataFrame({"age": [30, 40, 50, 60], "town": ["Rome", "Oslo"] * 2}))


def test_new_rows_may_lack_values_and_have_new_levels_other_columns_and_another_order(encoder):
    new = pl.DataFrame({"extra": [1, 2], "town": ["Bonn", None], "age": [None, 35]})
    assert encoder.transform(new).tolist() == [[45.0, 0.0, 0.0], [35.0, 0.0, 0.0]]


def test_columns_that_are_missing_are_named(encoder):
    with pytest.raises(ValueError, match="X has no column 'town', which the model needs; it has 'age', 'size'"):
        encoder.transform(pl.DataFrame({"age": [1], "size": [2]}))


def test_text_that_holds_numbers_is_read_as_numbers_where_numbers_were(encoder):
    assert encoder.transform(pl.DataFrame({"age": ["35"], "town": ["Oslo"]})).tolist() == [[35.0, 1.0, 0.0]]
    with pytest.raises(ValueError, match="column 'age' must hold numbers, as at the fit, got levels such as 'old'"):
        encoder.transform(pl.DataFrame({"age": ["old"], "town": ["Oslo"]}))


def test_numbers_are_levels_where_text_was():
    encoder = TableEncoder.fit(pl.DataFrame({"code": ["1", "1", "x", "x"]}))
    assert encoder.transform(pl.DataFrame({"code": [1, 2]})).tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_dates_are_read_from_text_where_dates_were():
    days = [date(2024, 3, 1), date(2024, 3, 9)]
    encoder = TableEncoder.fit(pl.DataFrame({"day": days}))
    as_text = pl.DataFrame({"day": [str(day) for day in days]})
    assert_array_equal(encoder.transform(as_text), encoder.transform(pl.DataFrame({"day": days})))


def test_a_column_that_is_empty_in_new_rows_may_have_any_type():
    frame = polars_frame()
    encoder = TableEncoder.fit(frame)
    expected = encoder.transform(frame.with_columns(pl.lit(None, frame.schema[name]).alias(name) for name in COLUMNS))
    for dtype in (pl.Null, pl.String, pl.Float64, pl.Date):
        empty = frame.with_columns(pl.lit(None, dtype).alias(name) for name in COLUMNS)
        assert_array_equal(encoder.transform(empty), expected)
    assert_array_equal(encoder.transform(pd.DataFrame({name: [None] * N for name in COLUMNS})), expected)


def test_many_levels_are_pooled():
    names = [f"t{i % 40}" for i in range(400)] + ["Rome"] * 100
    encoder = TableEncoder.fit(pl.DataFrame({"town": names}))
    assert len(encoder.feature_names) == MOST_LEVELS
    assert 'town = "Rome"' in encoder.feature_names
    assert encoder.feature_names[-1] == "town = other"


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("Unnamed: 0", range(N), "row numbers"),
        ("", [5, 3, *range(6, N + 4)], "row numbers"),
        ("rownames", range(1, N + 1), "row numbers"),
        ("id", range(1, N + 1), "row numbers"),
        ("year", [2024] * N, "the same value in every row"),
        ("town", ["Rome"] * N, "the same value in every row"),
        ("note", [None] * N, "all values are missing"),
        ("name", [f"n{i}" for i in range(N)], f"text with {N} different values in {N} rows, like ids"),
        ("tags", [["a", "b"]] * N, "of type List, which is neither numbers, text nor dates"),
    ],
)
def test_columns_that_hold_nothing_are_left_out(name, values, reason):
    frame = pl.DataFrame({name: list(values), "age": COLUMNS["age"]})
    encoder = TableEncoder.fit(frame)
    assert encoder.left_out == {name: reason}
    assert encoder.inputs == ("age",)
    assert stored(encoder) == encoder


@pytest.mark.parametrize(("name", "values"), [("id", [7, 7, 9, 12] * 6), ("age", range(N)), ("id", [0.5] + [1.0] * 23)])
def test_numbers_that_are_no_row_numbers_are_kept(name, values):
    assert TableEncoder.fit(pl.DataFrame({name: list(values)})).inputs == (name,)


def test_a_table_with_nothing_to_learn_from_is_refused():
    with pytest.raises(ValueError, match="no column is left to learn from: 'year': the same value in every row"):
        TableEncoder.fit(pl.DataFrame({"year": [2024, 2024]}))


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(ValueError, match="column names must differ, got 'a' more than once"):
        TableEncoder.fit(pd.DataFrame([[1, "x"]], columns=["a", "a"]))


@pytest.mark.parametrize("frame", [polars_frame, pandas_frame])
def test_only_frames_with_other_columns_than_numbers_need_encoding(frame):
    assert needs_encoding(frame()[["region"]])
    assert needs_encoding(frame()[["age"]])
    assert not needs_encoding(frame()[["member", "stay"]])


@pytest.mark.parametrize(
    ("column", "is_telling"),
    [
        (["yes" if i % 2 else "no" for i in range(40)], True),
        ([i % 2 for i in range(40)], True),
        ([None if i % 2 else 3 for i in range(40)], True),
        ([100 * (i % 2) + i / 7 for i in range(40)], True),  # a threshold separates the labels
        ([i % 3 for i in range(40)], False),
        (list(range(40)), False),
        ([f"n{i}" for i in range(40)], False),
        ([1] * 40, False),
    ],
)
def test_columns_that_determine_the_label_are_found(column, is_telling):
    labels = np.array([i % 2 for i in range(40)])
    assert telling_columns(pl.DataFrame({"c": column}), labels) == ["c"] * is_telling


def test_a_column_that_is_the_number_to_predict_in_another_unit_is_found():
    rng = np.random.default_rng(0)
    euros = rng.normal(size=50)
    frame = pl.DataFrame({"dollars": 3 + 1.1 * euros, "noisy": euros + rng.normal(size=50)})
    assert telling_columns(frame, euros) == ["dollars"]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "code"},
        {"fill": float("nan")},
        {"fill": "x"},
        {"surprise": 1},
        {"kind": "levels", "levels": [1], "has_other": False},
        {"kind": "dates", "parts": ["year"]},
    ],
)
def test_a_stored_encoder_that_makes_no_sense_is_refused(change):
    column = {"kind": "numbers", "name": "age", "fill": 1.0, "marks_missing": False} | change
    with pytest.raises((ValueError, TypeError, KeyError)):
        TableEncoder.from_json({"columns": [column], "left_out": {}})
