"""The published data themselves, where DADA_DATA holds them."""

import numpy as np
import pytest

from dada.data.datasets import entry_of, readers
from tests.helpers.datasets import load_or_skip
from tests.helpers.publisher_files import computer_mat, harws_zip, partial_json, school_mats

# name: K, D, records, fewest and most per user, share of +1
TABLE = {
    "harws": (30, 561, 10299, 281, 409, 0.1725),
    "vehicle_partial": (23, 100, 1860, 7, 534, 0.5500),
    "computer": (190, 14, 3800, 20, 20, 0.4247),
    "school": (139, 17, 15362, 22, 251, 0.4546),
}
# name: training rows and their fewest and most per user, then the same of the test rows
SPLITS = {
    "harws": ((2059, 46, 95), (8240, 230, 335)),
    "vehicle_partial": ((940, 4, 267), (920, 3, 267)),
    "computer": ((1407, 5, 10), (2393, 10, 15)),
    "school": ((11472, 16, 188), (3890, 6, 63)),
}


@pytest.mark.parametrize("name", TABLE)
def test_sizes_are_the_published_ones(name):
    data = load_or_skip(name)
    sizes = data.population().sizes
    share = round(float((data.y == 1).mean()), 4)
    assert (data.n_users, data.X.shape[1], len(data.y), sizes.min(), sizes.max(), share) == TABLE[name]
    assert (entry_of(name).n_users, entry_of(name).n_features, entry_of(name).n_rows) == TABLE[name][:3]


@pytest.mark.parametrize("name", SPLITS)
def test_the_papers_split_has_the_published_sizes(name):
    parts = load_or_skip(name).split()
    assert tuple((part.n_rows, part.sizes.min(), part.sizes.max()) for part in parts) == SPLITS[name]


@pytest.mark.parametrize("name", TABLE)
def test_the_rows_are_the_reference(name):
    assert load_or_skip(name).sha256() == entry_of(name).sha256


def test_school_has_ten_splits_of_equal_size():
    data = load_or_skip("school")
    assert data.splits == ("paper", *(f"split{i}" for i in range(1, 11)))
    assert {data.split(which)[0].n_rows for which in data.splits} == {11472}


def test_the_label_of_school_is_its_score_above_20():
    data = load_or_skip("school")
    np.testing.assert_array_equal(data.y == 1, data.extras["score"] > 20)


# The next tests write the published rows in their publisher's format and read them back, splits included.


def test_computer_files_give_the_reference(tmp_path):
    data = load_or_skip("computer")
    score = data.extras["score"].reshape(190, 20)
    traits = np.stack([data.extras[f"z{j}"][::20] for j in range(7)], axis=1)
    computer_mat(tmp_path / "c.mat", score, data.X[:20], traits)
    assert readers.read_computer({readers.COMPUTER_FILE: tmp_path / "c.mat"}).sha256() == data.sha256()


def test_school_files_give_the_reference(tmp_path):
    data = load_or_skip("school")
    x = np.empty((28, len(data.y)))
    x[list(readers.PUPIL_COLUMNS)] = data.X.T
    x[list(readers.SCHOOL_COLUMNS)] = [data.extras[name] for name in readers.SCHOOL_COLUMNS.values()]
    first = np.searchsorted(data.users, np.arange(139))
    tests = [np.flatnonzero(data.extras[name]) for name in readers.SCHOOL_SPLIT_FILES]
    files = school_mats(tmp_path, x, data.extras["score"].astype(float), first, tests)
    assert readers.read_school(files).sha256() == data.sha256()


def test_the_partial_vehicle_file_gives_the_reference(tmp_path):
    data = load_or_skip("vehicle_partial")
    of_sensor = [data.users == k for k in range(23)]
    partial_json(tmp_path / "p.json", [data.X[rows] for rows in of_sensor], [data.y[rows] for rows in of_sensor])
    assert readers.read_vehicle_partial({readers.VEHICLE_PARTIAL_FILE: tmp_path / "p.json"}).sha256() == data.sha256()


def test_harws_files_give_the_reference_but_for_the_other_559_features(tmp_path):
    data = load_or_skip("harws")
    parts = {}
    for part, which in enumerate(("train", "test")):
        rows = data.extras["orig_split"] == part
        parts[which] = (data.X[rows, :2], data.extras["activity"][rows], data.users[rows])
    harws_zip(tmp_path / "har.zip", data.feature_names[:2], parts)
    again = readers.read_harws({readers.HARWS_FILE: tmp_path / "har.zip"})
    np.testing.assert_array_equal(again.X, data.X[:, :2])
    np.testing.assert_array_equal(again.y, data.y)
    np.testing.assert_array_equal(again.users, data.users)
    assert again.extras.keys() == data.extras.keys()
    for name, values in data.extras.items():
        np.testing.assert_array_equal(again.extras[name], values, strict=True)
