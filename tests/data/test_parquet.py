"""Users in Parquet files, read a range at a time."""

import numpy as np
import polars as pl
import pytest

from dada.data import FeatureSummary, ParquetUsers, Population, UserTable, population_from_table


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    owner = rng.choice([f"user {k:02}" for k in range(20)], 400)
    columns = {
        "person": owner,
        "a": rng.normal(size=400),
        "b": rng.integers(9, size=400),
        "came": rng.random(400) < 0.5,
    }
    return pl.DataFrame(columns)


@pytest.fixture
def folder(table, tmp_path):
    """The rows of every user spread over three files and several row groups."""
    (tmp_path / "more").mkdir()
    table[:150].write_parquet(tmp_path / "1.parquet", row_group_size=40)
    table[150:160].write_parquet(tmp_path / "2.parquet")
    table[160:].write_parquet(tmp_path / "more" / "3.parquet", row_group_size=50)
    return tmp_path


def same(a: Population, b: Population) -> bool:
    pairs = [(a.X, b.X), (a.y, b.y), (a.row_start, b.row_start), (a.user_ids, b.user_ids), (a.classes, b.classes)]
    return a.feature_names == b.feature_names and all(np.array_equal(one, other) for one, other in pairs)


def test_ranges_of_users_are_those_of_the_whole_table(table, folder):
    whole = population_from_table(table, user="person", label="came")
    users = ParquetUsers.open(folder, user="person", label="came")
    assert (users.n_users, users.n_rows, users.n_features) == (whole.n_users, whole.n_rows, whole.n_features)
    assert np.array_equal(users.sizes, whole.sizes)
    for first, last in ((0, 20), (0, 7), (7, 8), (13, 20)):
        assert same(users.read(first, last), whole.select(np.arange(first, last)))


def test_columns_of_text_are_encoded_alike_in_every_range_of_users(table, tmp_path):
    towns = pl.Series(["Rome", "Oslo", None, "Oslo"] * table.height)[: table.height]
    mixed = table.with_columns(town=towns, year=pl.lit(2024))
    mixed.write_parquet(tmp_path / "mixed.parquet")
    users = ParquetUsers.open(tmp_path, user="person", label="came")
    assert users.inputs == (*(name for name in table.columns if name not in ("person", "came")), "town")
    assert users.encoder.left_out == {"year": "the same value in every row"}
    whole = UserTable.read(mixed, user="person", label="came").people(users.encoder)
    for first, last in ((0, 20), (7, 8)):
        assert same(users.read(first, last), whole.select(np.arange(first, last)))
    assert users.summary_of(0).count == table.height


@pytest.mark.parametrize(("label", "task"), [("b", "auto"), ("b", "numbers"), ("a", "auto")])
def test_labels_may_be_several_classes_or_numbers(label, task, table, folder):
    whole = population_from_table(table, user="person", label=label, task=task)
    users = ParquetUsers.open(folder, user="person", label=label, task=task)
    assert users.n_classes == whole.n_classes == (9 if (label, task) == ("b", "auto") else 0)
    assert same(users.read(3, 9), whole.select(np.arange(3, 9)))
    labels = users.labels()
    assert np.array_equal(labels.y, whole.y)
    assert np.array_equal(labels.row_start, whole.row_start)
    assert labels.X.shape == (400, 0)


@pytest.mark.parametrize(
    "ids", [np.arange(5) * 10, np.arange(5) * 0.5 - 1, np.arange("2024-01", "2024-06", dtype="M8[D]")[:5]]
)
def test_users_may_be_numbers_or_dates(ids, tmp_path):
    rows = pl.DataFrame({"who": ids.repeat(2), "x": np.arange(10.0), "y": [0, 1] * 5})
    rows[::-1].write_parquet(tmp_path / "rows.parquet")
    users = ParquetUsers.open(tmp_path / "rows.parquet", user="who", label="y")
    assert same(users.read(1, 4), population_from_table(rows[::-1], user="who", label="y").select([1, 2, 3]))


def test_only_row_groups_that_may_hold_a_wanted_user_matter(tmp_path):
    rows = pl.DataFrame({"who": np.arange(1000), "x": np.arange(1000.0), "y": np.arange(1000) % 2})
    rows.write_parquet(tmp_path / "rows.parquet", row_group_size=100)
    users = ParquetUsers.open(tmp_path, user="who", label="y")
    content = bytearray((tmp_path / "rows.parquet").read_bytes())
    # The first row group becomes unreadable, and nobody notices who does not ask for its users.
    content[4:400] = bytes(396)
    (tmp_path / "rows.parquet").write_bytes(content)
    assert users.read(500, 600).n_users == 100
    with pytest.raises(pl.exceptions.PolarsError):
        users.read(0, 100)


def test_summaries_of_files_merge_to_that_of_all_rows(table, folder):
    users = ParquetUsers.open(folder, user="person", label="came")
    merged = FeatureSummary.of_all(users.summary_of(number) for number in range(len(users.files)))
    whole = FeatureSummary.of(table.select("a", "b"))
    assert merged.count == whole.count
    np.testing.assert_allclose(merged.mean, whole.mean)
    assert np.array_equal(merged.rows(), whole.rows())


def test_a_sample_has_users_from_all_over(folder):
    users = ParquetUsers.open(folder, user="person", label="came")
    assert users.sample(3).user_ids.tolist() == [users.user_ids[k] for k in (0, 9, 19)]
    assert users.sample(50).n_users == 20


def test_the_name_changes_with_the_rows(table, folder):
    before = ParquetUsers.open(folder, user="person", label="came").name
    assert ParquetUsers.open(folder, user="person", label="came").name == before
    table[150:161].write_parquet(folder / "2.parquet")
    assert ParquetUsers.open(folder, user="person", label="came").name != before


def test_what_cannot_be_read_is_said_at_once(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        ParquetUsers.open(folder / "9.parquet", user="person", label="came")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no \.parquet file"):
        ParquetUsers.open(tmp_path / "empty", user="person", label="came")
    with pytest.raises(ValueError, match="no column 'went'"):
        ParquetUsers.open(folder, user="person", label="went")
    pl.DataFrame({"person": ["ann", "bob"], "a": [1.0, 2.0], "came": [1, 1]}).write_parquet(
        tmp_path / "empty" / "1.parquet"
    )
    with pytest.raises(ValueError, match="must hold two values or more, got 1 only"):
        ParquetUsers.open(tmp_path / "empty", user="person", label="came")
    with pytest.raises(ValueError, match="must hold numbers"):
        ParquetUsers.open(folder, user="a", label="person", task="numbers")
    (folder / "4.parquet").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not readable Parquet"):
        ParquetUsers.open(folder, user="person", label="came")
