import re

import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_array_equal

from dada.data import population_from_table, read_table

VISITS = pl.DataFrame(
    {
        "who": ["bob", "ann", "bob"],
        "age": [31, 64, 28],
        "income": [1.5, 2.5, 0.5],
        "came": ["yes", "no", "no"],
        "town": ["Lyon", "Lille", "Nice"],
    }
)


def stored(frame, folder, suffix):
    path = folder / f"visits{suffix}"
    frame.write_csv(path) if suffix.lower() == ".csv" else frame.write_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_a_file_comes_back_as_it_was_written(tmp_path, suffix):
    path = stored(VISITS, tmp_path, suffix)
    assert read_table(path).equals(VISITS)
    assert read_table(str(path)).equals(VISITS)


def test_the_type_of_a_csv_column_is_taken_from_all_of_its_values(tmp_path):
    path = tmp_path / "late.csv"
    path.write_text("a\n" + "1\n" * 500 + "1.5\n")
    assert read_table(path)["a"].dtype == pl.Float64


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("visits.xlsx", b"x", "can read files ending in .csv or .parquet, got '.xlsx'"),
        ("visits", b"x", "can read files ending in .csv or .parquet, got 'no ending'"),
        ("empty.csv", b"", "empty.csv: the file is empty"),
        ("empty.parquet", b"", "empty.parquet: the file is empty"),
        ("header.csv", b"who,age\n", "header.csv: the file has no rows, only the columns 'who', 'age'"),
        ("ragged.csv", b"a,b\n1,2\n1,2,3\n", "does every line have as many fields as the header?"),
        ("corrupt.parquet", b"PAR1 this is no table PAR1", "corrupt.parquet: not a readable .parquet file"),
        ("text.parquet", b"a,b\n1,2\n", "text.parquet: not a readable .parquet file"),
        ("binary.csv", b"a,b\n\xff\xfe\x00,2\n", "binary.csv: not a readable .csv file"),
    ],
)
def test_files_that_cannot_be_read_say_why(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_table(tmp_path / name)


def test_a_truncated_parquet_file_is_refused(tmp_path):
    path = stored(VISITS, tmp_path, ".parquet")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"not a readable \.parquet file, is it complete\?"):
        read_table(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv: there is no such file"):
        read_table(tmp_path / "nowhere.csv")


def test_a_csv_line_that_is_too_short_is_found_as_a_missing_value(tmp_path):
    (tmp_path / "short.csv").write_text("who,a,came,b\nann,1,0,2\nbob,1,1\n")
    with pytest.raises(ValueError, match=r"NaN at row 1, column 1 \('b'\)"):
        population_from_table(tmp_path / "short.csv", user="who", label="came")


def test_marks_of_missing_values_and_dates_are_read_from_a_csv_file(tmp_path):
    (tmp_path / "marks.csv").write_text("a,b,day\n1,x,2024-03-01\nNA,?,\n.,null,2024-03-02\n")
    frame = read_table(tmp_path / "marks.csv")
    assert frame.dtypes == [pl.Int64, pl.String, pl.Date]
    assert frame.null_count().row(0) == (2, 2, 1)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_fields_are_separated_as_the_header_shows(tmp_path, separator):
    VISITS.write_csv(tmp_path / "visits.csv", separator=separator)
    assert read_table(tmp_path / "visits.csv").equals(VISITS)


def test_decimals_are_read_as_numbers(tmp_path):
    path = stored(VISITS.with_columns(pl.col("income").cast(pl.Decimal(10, 2))), tmp_path, ".parquet")
    assert read_table(path).equals(VISITS)


@pytest.mark.parametrize("source", ["polars", "pandas", "lazy", ".csv", ".parquet"])
def test_every_source_gives_the_same_population(tmp_path, source):
    if source.startswith("."):
        table = stored(VISITS, tmp_path, source)
    else:
        table = {"polars": VISITS, "pandas": VISITS.to_pandas(), "lazy": VISITS.lazy()}[source]
    population = population_from_table(table, user="who", label="came", drop=["town"])
    assert population.feature_names == ("age", "income")
    assert_array_equal(population.user_ids, ["ann", "bob"])
    assert_array_equal(population.X, [[64, 2.5], [31, 1.5], [28, 0.5]])
    assert_array_equal(population.y, [-1, 1, -1])


def test_named_features_are_taken_in_the_order_named():
    population = population_from_table(VISITS, user="who", label="came", features=["income", "age"])
    assert population.feature_names == ("income", "age")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"user": "name"}, "no column 'name' (did you mean 'came'?); it has 5: 'who', 'age', 'income', 'came', 'town'"),
        ({"label": "visited"}, "no column 'visited'"),
        ({"features": ["age", "size"]}, "no column 'size'"),
        ({"drop": ["city"]}, "no column 'city'"),
        ({}, "1 of 3 feature columns are not numeric: 'town'. Encode them as numbers, or drop them (--drop"),
        ({"user": "came"}, "user and label must be two columns, got 'came' for both"),
        ({"features": ["age", "came"]}, "features must not hold the user, the label or a dropped column, got 'came'"),
        ({"drop": ["age", "income", "town"]}, "no feature column is left beside"),
    ],
)
def test_wrong_columns_are_named(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        population_from_table(VISITS, **{"user": "who", "label": "came", **arguments})


def test_a_missing_user_in_a_table_is_refused():
    frame = pd.DataFrame({"who": ["ann", None], "age": [1, 2], "came": [0, 1]})
    with pytest.raises(ValueError, match="users has 1 missing values, the first at row 1"):
        population_from_table(frame, user="who", label="came")
