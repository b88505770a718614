"""Datasets in memory and in their Parquet files."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dada.data.datasets import NAMES, Dataset, cache_folder, dataset_path, entry_of, load
from dada.data.datasets.cache import CATALOG, read_dataset, write_dataset
from dada.data.datasets.readers import PAPER_SPLIT


def some_school():
    """Six pupils of two schools, in the columns of the School dataset."""
    extras = {
        "score": np.array([3, 30, 40, 12, 50, 7], dtype=np.int8),
        "split1": np.array([0, 1, 0, 0, 1, 1], dtype=np.int8),
        "split2": np.array([1, 0, 1, 0, 1, 0], dtype=np.int8),
    }
    return Dataset(
        name="school",
        X=np.arange(6 * 17, dtype=np.float32).reshape(6, 17),
        y=np.array([-1, 1, 1, -1, 1, -1], dtype=np.int8),
        users=np.array([4, 4, 4, 9, 9, 9], dtype=np.int16),
        feature_names=tuple(f"attribute {j}" for j in range(17)),
        extras=extras,
        about={"name": "School", "label": "score above 20"},
    )


def rewrite(path, frame=None, about=None):
    """Change the rows or the metadata of a Parquet file."""
    metadata = json.loads(pl.read_parquet_metadata(path)["dataset"])
    frame = pl.read_parquet(path) if frame is None else frame
    frame.write_parquet(path, metadata={"dataset": json.dumps(metadata if about is None else {**metadata, **about})})


@pytest.fixture
def school_file(tmp_path):
    path = tmp_path / "school.parquet"
    write_dataset(some_school(), path)
    return path


class TestSplits:
    def test_the_papers_split_is_the_named_column(self):
        train, test = some_school().split()
        assert train.y.tolist() == [-1, 1, -1]
        assert test.y.tolist() == [1, 1, -1]
        assert train.user_ids.tolist() == test.user_ids.tolist() == [4, 9]

    def test_another_split_is_chosen_by_name(self):
        data = some_school()
        assert data.splits == ("paper", "split1", "split2")
        train, test = data.split("split2")
        assert train.X[:, 0].tolist() == [17.0, 51.0, 85.0]
        assert test.X[:, 0].tolist() == [0.0, 34.0, 68.0]

    def test_an_unknown_split_lists_the_known_ones(self):
        with pytest.raises(ValueError, match=r"one of paper, split1, split2 for school, got 'split3'"):
            some_school().split("split3")

    def test_vehicle_draws_a_fifth_of_each_sensor_from_the_generator(self):
        vehicle = some_vehicle(sizes=(10, 25, 50))
        with pytest.raises(ValueError, match="give rng"):
            vehicle.split()
        train, test = vehicle.split(rng=np.random.default_rng(3))
        assert train.sizes.tolist() == [2, 5, 10]
        assert test.sizes.tolist() == [8, 20, 40]
        again, _ = vehicle.split(rng=3)
        np.testing.assert_array_equal(train.X, again.X)
        assert not np.array_equal(train.X, vehicle.split(rng=4)[0].X)

    @given(
        sizes=st.lists(st.integers(2, 12), min_size=1, max_size=6),
        fraction=st.floats(0.01, 0.99),
        seed=st.integers(0, 9),
    )
    def test_a_random_split_gives_every_row_once_and_every_user_both_sides(self, sizes, fraction, seed):
        data = some_vehicle(sizes)
        train, test = data.random_split(seed, fraction)
        assert train.n_users == test.n_users == len(sizes)
        rows = np.concatenate([train.X[:, 0], test.X[:, 0]])
        np.testing.assert_array_equal(np.sort(rows), data.X[:, 0])
        np.testing.assert_array_equal(train.sizes + test.sizes, sizes)
        wanted = np.clip(np.round(fraction * np.array(sizes)), 1, np.array(sizes) - 1)
        np.testing.assert_array_equal(train.sizes, wanted)

    @pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
    def test_a_fraction_outside_0_and_1_is_refused(self, fraction):
        with pytest.raises(ValueError, match="train_fraction must be between 0 and 1"):
            some_school().random_split(0, fraction)

    def test_a_user_with_one_row_cannot_be_split(self):
        with pytest.raises(ValueError, match=r"1 users have one row only.*: 1\. Leave"):
            some_vehicle(sizes=(3, 1)).random_split(0, 0.5)

    def test_the_whole_population_holds_all_rows(self):
        people = some_school().population()
        assert people.sizes.tolist() == [3, 3]
        assert people.feature_names[3] == "attribute 3"
        assert people.classes.tolist() == [-1, 1]


def some_vehicle(sizes):
    rows = sum(sizes)
    y = np.resize(np.array([-1, 1], dtype=np.int8), rows)
    users = np.repeat(np.arange(len(sizes), dtype=np.int16), sizes)
    return Dataset("vehicle", np.arange(rows, dtype=np.float32)[:, None], y, users, ("x",), {}, {})


class TestDigest:
    def test_it_depends_on_every_column(self):
        data = some_school()
        other_score = {**data.extras, "score": data.extras["score"] + np.int8(1)}
        changed = [
            replace(data, X=data.X + 1),
            replace(data, y=-data.y),
            replace(data, users=data.users + np.int16(1)),
            replace(data, extras=other_score),
        ]
        assert len({version.sha256() for version in (data, *changed)}) == 5

    def test_it_does_not_depend_on_the_layout_in_memory(self):
        data = some_school()
        assert replace(data, X=np.asfortranarray(data.X)).sha256() == data.sha256()


class TestParquet:
    def test_what_is_written_is_read_again(self, school_file):
        data, written = load("school", school_file.parent), some_school()
        assert data.sha256() == written.sha256()
        assert data.feature_names == written.feature_names
        assert data.X.dtype == np.float32
        assert data.about == {
            **written.about,
            "feature_names": list(written.feature_names),
            "K": 2,
            "D": 17,
            "records": 6,
        }
        assert data.extras["score"].tolist() == [3, 30, 40, 12, 50, 7]

    def test_the_columns_are_those_of_the_documented_format(self, school_file):
        schema = pl.read_parquet_schema(school_file)
        assert list(schema) == ["user", *(f"f{j}" for j in range(17)), "label", "score", "split1", "split2"]
        assert (schema["user"], schema["f0"], schema["label"]) == (pl.Int16, pl.Float32, pl.Int8)

    def test_a_failed_write_leaves_nothing(self, tmp_path):
        broken = replace(some_school(), about={"name": object()})
        with pytest.raises(TypeError):
            write_dataset(broken, tmp_path / "school.parquet")
        assert list(tmp_path.iterdir()) == []

    def test_a_failed_write_keeps_the_file_that_was_there(self, school_file):
        before = school_file.read_bytes()
        with pytest.raises(pl.exceptions.ShapeError):
            write_dataset(replace(some_school(), y=np.ones(2, dtype=np.int8)), school_file)
        assert school_file.read_bytes() == before
        assert list(school_file.parent.iterdir()) == [school_file]

    def test_the_environment_chooses_the_folder(self, school_file, monkeypatch):
        monkeypatch.setenv("DADA_DATA", str(school_file.parent))
        assert cache_folder() == school_file.parent
        assert load("school").n_users == 2
        monkeypatch.setenv("DADA_DATA", "")
        assert cache_folder().name == "dada"

    def test_the_error_of_a_missing_dataset_names_the_command(self, tmp_path):
        for name in NAMES:
            with pytest.raises(FileNotFoundError, match=f"dada datasets fetch {name}"):
                load(name, tmp_path)
        with pytest.raises(FileNotFoundError, match=r"--file vehicle\.mat.*litian96/fair_flearn.*vehicle_partial"):
            load("vehicle", tmp_path)

    def test_an_unknown_name_lists_the_known_ones(self):
        with pytest.raises(ValueError, match=r"one of harws, vehicle, vehicle_partial, computer, school, got 'schol'"):
            load("schol")


class TestDamagedParquet:
    def refusal(self, path):
        with pytest.raises(ValueError, match="does not hold the dataset school") as caught:
            load("school", path.parent)
        message = str(caught.value)
        assert str(path) in message
        assert message.endswith("Move the file away and run: dada datasets fetch school")
        return message

    @pytest.mark.parametrize("kept", [0, 3, 200, -1])
    def test_cut_off(self, school_file, kept):
        school_file.write_bytes(school_file.read_bytes()[:kept])
        assert "not a complete Parquet file" in self.refusal(school_file)

    def test_another_kind_of_file(self, school_file):
        school_file.write_text("user,f0,label\n1,0.5,1\n" * 10)
        assert "not a complete Parquet file" in self.refusal(school_file)

    def test_overwritten_in_the_middle(self, school_file):
        content = bytearray(school_file.read_bytes())
        content[4:400] = b"\xff" * 396
        school_file.write_bytes(content)
        assert "not a complete Parquet file" in self.refusal(school_file)

    def test_without_metadata(self, school_file):
        pl.read_parquet(school_file).write_parquet(school_file)
        assert "unknown format" in self.refusal(school_file)

    @pytest.mark.parametrize("text", ["{", "[1]"])
    def test_with_metadata_that_are_no_object(self, school_file, text):
        pl.read_parquet(school_file).write_parquet(school_file, metadata={"dataset": text})
        assert "its metadata" in self.refusal(school_file)

    @pytest.mark.parametrize("column", ["user", "f3", "label", "split1"])
    def test_a_missing_column(self, school_file, column):
        rewrite(school_file, pl.read_parquet(school_file).drop(column))
        assert f"column '{column}' is missing" in self.refusal(school_file)

    @pytest.mark.parametrize(
        ("column", "kind", "wanted"),
        [
            ("f2", pl.String, "floats"),
            ("f2", pl.Int32, "floats"),
            ("user", pl.Float64, "integers"),
            ("score", pl.String, "numbers"),
        ],
    )
    def test_a_column_of_another_type(self, school_file, column, kind, wanted):
        rewrite(school_file, pl.read_parquet(school_file).with_columns(pl.col(column).cast(kind)))
        assert f"column '{column}' must hold {wanted}" in self.refusal(school_file)

    @pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
    def test_missing_or_infinite_values(self, school_file, value):
        frame = pl.read_parquet(school_file).with_columns(pl.Series("f5", [value] + [0.0] * 5, dtype=pl.Float32))
        rewrite(school_file, frame)
        assert "column 'f5' has missing or infinite values" in self.refusal(school_file)

    @pytest.mark.parametrize(("column", "message"), [("label", "-1 and +1 only"), ("split2", "0 (train) and 1 (test)")])
    def test_values_that_mean_nothing(self, school_file, column, message):
        rewrite(school_file, pl.read_parquet(school_file).with_columns((pl.col(column) + 2).alias(column)))
        assert message in self.refusal(school_file)

    def test_lost_rows(self, school_file):
        rewrite(school_file, pl.read_parquet(school_file).head(4))
        assert "it has 4 records of 2 users, its metadata state 6 of 2" in self.refusal(school_file)

    def test_another_dataset_under_this_name(self, school_file):
        rewrite(school_file, about={"name": "HARWS"})
        assert "name it 'HARWS', not 'School'" in self.refusal(school_file)

    @pytest.mark.parametrize("about", [{"D": 16}, {"D": "17"}, {"feature_names": ["a"]}, {"feature_names": None}])
    def test_metadata_that_do_not_list_the_features(self, school_file, about):
        rewrite(school_file, about=about)
        assert "must list 17 features" in self.refusal(school_file)


class TestCatalog:
    def test_every_dataset_has_terms_a_citation_and_a_split(self):
        assert NAMES == ("harws", "vehicle", "vehicle_partial", "computer", "school")
        assert set(PAPER_SPLIT) == set(NAMES)
        for entry in CATALOG.values():
            assert entry.terms
            assert entry.citation
            assert entry.publisher
            assert entry.how_to_get.startswith(f"run: dada datasets fetch {entry.name}")

    def test_only_the_vehicle_file_cannot_be_downloaded(self):
        assert [name for name in NAMES if entry_of(name).url is None] == ["vehicle"]

    def test_commercial_use_of_harws_is_excluded(self):
        assert "no commercial use" in entry_of("harws").terms

    def test_a_path_is_the_name_in_the_folder(self, tmp_path):
        assert dataset_path("computer", tmp_path) == tmp_path / "computer.parquet"


def test_a_file_is_read_by_entry_and_path(school_file):
    assert read_dataset(entry_of("school"), school_file).name == "school"
