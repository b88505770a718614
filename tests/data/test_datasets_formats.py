"""The publishers' own formats, on small files made here."""

import json
import zipfile

import numpy as np
import pytest
from scipy.io import savemat

from dada.data.datasets import readers
from tests.helpers.publisher_files import partial_json, small_computer, small_harws, small_school, small_vehicle


def cells(*values):
    """A column of MATLAB cells."""
    column = np.empty((len(values), 1), dtype=object)
    for k, value in enumerate(values):
        column[k, 0] = value
    return column


class TestHarws:
    @pytest.mark.parametrize("nested", [True, False])
    def test_rows_come_in_the_publishers_order(self, tmp_path, nested):
        parts = small_harws(tmp_path / "har.zip", nested)
        data = readers.read_harws({readers.HARWS_FILE: tmp_path / "har.zip"})
        np.testing.assert_array_equal(data.X, np.concatenate([parts["train"][0], parts["test"][0]]).astype(np.float32))
        assert data.users.tolist() == [1, 1, 3] * 4 + [2] * 8
        assert data.feature_names == ("tBodyAcc-mean()-X", "bands-1,8", "angle(X,gravityMean)")
        activity = np.concatenate([parts["train"][1], parts["test"][1]])
        np.testing.assert_array_equal(data.extras["activity"], activity)
        np.testing.assert_array_equal(data.y, np.where(activity == 4, 1, -1))
        assert data.extras["orig_split"].tolist() == [0] * 12 + [1] * 8
        assert data.extras["orig_row"].tolist() == [*range(12), *range(8)]
        assert (data.extras["split20"] == 0).sum() == 4

    def test_the_types_are_those_of_the_format(self, tmp_path):
        small_harws(tmp_path / "har.zip")
        data = readers.read_harws({readers.HARWS_FILE: tmp_path / "har.zip"})
        assert (data.X.dtype, data.y.dtype, data.users.dtype) == (np.float32, np.int8, np.int16)
        assert [values.dtype.str[1:] for values in data.extras.values()] == ["i1", "i1", "i2", "i1"]

    @pytest.mark.parametrize("nested", [True, False])
    def test_a_cut_zip_is_refused(self, tmp_path, nested):
        path = tmp_path / "har.zip"
        small_harws(path, nested)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(ValueError, match="not a complete zip file"):
            readers.read_harws({readers.HARWS_FILE: path})

    @pytest.mark.parametrize("nested", [True, False])
    def test_a_zip_with_other_bytes_inside_is_refused(self, tmp_path, nested):
        path = tmp_path / "har.zip"
        small_harws(path, nested)
        content = bytearray(path.read_bytes())
        content[200:260] = b"\xa5" * 60
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a complete zip file"):
            readers.read_harws({readers.HARWS_FILE: path})

    def test_a_zip_without_the_files_is_refused(self, tmp_path):
        path = tmp_path / "har.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("notes.txt", "nothing here")
        with pytest.raises(ValueError, match=r"lacks a file of the dataset.*features\.txt"):
            readers.read_harws({readers.HARWS_FILE: path})

    @pytest.mark.parametrize(
        ("member", "text", "message"),
        [
            ("train/y_train.txt", "1\n2\n", "do not fit together"),
            ("test/subject_test.txt", "2\n" * 9, "do not fit together"),
            ("features.txt", "1 one\n2 two\n", "do not fit together"),
            ("train/X_train.txt", "0.1 0.2 0.3\n0.1 0.2\n", "not a table of numbers"),
            ("train/X_train.txt", "0.1 0.2 a\n", "not a table of numbers"),
        ],
    )
    def test_files_that_do_not_fit_are_refused(self, tmp_path, member, text, message):
        path, broken = tmp_path / "har.zip", tmp_path / "broken.zip"
        small_harws(path, nested=False)
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(broken, "w") as new:
            for name in old.namelist():
                new.writestr(name, text if name.endswith(member) else old.read(name))
        with pytest.raises(ValueError, match=message):
            readers.read_harws({readers.HARWS_FILE: broken})


class TestComputer:
    def test_every_rating_becomes_a_row(self, tmp_path):
        score, design, traits = small_computer(tmp_path / "c.mat")
        data = readers.read_computer({readers.COMPUTER_FILE: tmp_path / "c.mat"})
        assert data.users.tolist() == [0] * 20 + [1] * 20 + [2] * 20 + [3] * 20
        np.testing.assert_array_equal(data.X[20:40], design.astype(np.float32))
        np.testing.assert_array_equal(data.extras["score"], score.ravel())
        np.testing.assert_array_equal(data.y, np.where(score.ravel() > 5, 1, -1))
        np.testing.assert_array_equal(data.extras["profile"], np.tile(np.arange(20), 4))
        np.testing.assert_array_equal(data.extras["z6"][40:60], np.full(20, traits[2, 6]))
        assert data.feature_names[-1] == "price"

    def test_all_people_share_one_order_of_computers_in_the_split(self, tmp_path):
        small_computer(tmp_path / "c.mat", n_people=30)
        data = readers.read_computer({readers.COMPUTER_FILE: tmp_path / "c.mat"})
        in_train = data.extras["paper_split"].reshape(30, 20) == 0
        counts = in_train.sum(axis=1)
        assert set(counts) == {5, 6, 7, 8, 9, 10}
        by_size = in_train[np.argsort(counts, kind="stable")]
        assert np.all(by_size[1:] >= by_size[:-1])

    def test_a_file_without_the_ratings_is_refused(self, tmp_path):
        savemat(tmp_path / "c.mat", {"designMarix": np.ones((20, 14)), "other": 1})
        with pytest.raises(ValueError, match="lacks likeBuy, computerDataZ; it holds designMarix, other"):
            readers.read_computer({readers.COMPUTER_FILE: tmp_path / "c.mat"})

    @pytest.mark.parametrize(
        ("score", "design", "traits", "message"),
        [
            (np.ones((4, 20)), np.ones((20, 13)), np.ones((4, 7)), "designMarix must be .* with 14 columns"),
            (np.ones((4, 20)), np.ones((19, 14)), np.ones((4, 7)), "do not fit the design of 19 computers"),
            (np.ones((4, 20)), np.ones((20, 14)), np.ones((5, 7)), "traits of 5 people"),
            (np.full((4, 20), np.nan), np.ones((20, 14)), np.ones((4, 7)), "likeBuy must be a matrix of finite"),
            (np.array([["a"]]), np.ones((20, 14)), np.ones((4, 7)), "likeBuy must be a matrix of finite"),
        ],
    )
    def test_matrices_that_do_not_fit_are_refused(self, tmp_path, score, design, traits, message):
        savemat(tmp_path / "c.mat", {"likeBuy": score, "designMarix": design, "computerDataZ": traits})
        with pytest.raises(ValueError, match=message):
            readers.read_computer({readers.COMPUTER_FILE: tmp_path / "c.mat"})

    @pytest.mark.parametrize("kept", [0, 10, 200, -50])
    def test_a_cut_file_is_refused(self, tmp_path, kept):
        path = tmp_path / "c.mat"
        small_computer(path)
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(ValueError, match=r"not a readable MATLAB file|lacks"):
            readers.read_computer({readers.COMPUTER_FILE: path})


class TestSchool:
    def test_pupils_are_cut_into_schools_and_splits(self, tmp_path):
        x, score, tests, files = small_school(tmp_path)
        data = readers.read_school(files)
        assert data.users.tolist() == [0] * 4 + [1] * 5 + [2] * 3
        np.testing.assert_array_equal(data.X, x.T[:, [*range(5, 21), 27]].astype(np.float32))
        np.testing.assert_array_equal(data.extras["s_pct_vr1"], x[4])
        np.testing.assert_array_equal(data.extras["s_den_rc"], x[26])
        np.testing.assert_array_equal(data.extras["score"], score)
        np.testing.assert_array_equal(data.y, np.where(score > 20, 1, -1))
        for i, in_test in enumerate(tests):
            np.testing.assert_array_equal(np.flatnonzero(data.extras[f"split{i + 1}"]), in_test)

    def test_features_and_further_columns_are_all_28(self):
        assert sorted([*readers.PUPIL_COLUMNS, *readers.SCHOOL_COLUMNS]) == list(range(28))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"x": np.ones((27, 12))}, "with 28 columns"),
            ({"y": np.ones((11, 1))}, "12 pupils in x and 11 in y"),
            ({"y": np.ones((3, 4))}, "y must be one row or one column"),
            ({"task_indexes": [[2, 5, 10]]}, "start at 1"),
            ({"task_indexes": [[1, 10, 5]]}, "rising"),
            ({"task_indexes": [[1, 5, 13]]}, "rising"),
        ],
    )
    def test_schools_that_do_not_fit_are_refused(self, tmp_path, change, message):
        x, score, _, files = small_school(tmp_path)
        savemat(files[readers.SCHOOL_FILE], {"x": x, "y": score[:, None], "task_indexes": [[1, 5, 10]], **change})
        with pytest.raises(ValueError, match=message):
            readers.read_school(files)

    @pytest.mark.parametrize("tr", [[1, 2, 3], [2, *range(2, 12)], [0, *range(2, 12)]])
    def test_a_split_must_hold_every_pupil_once(self, tmp_path, tr):
        *_, files = small_school(tmp_path)
        savemat(files["school_3_indexes.mat"], {"tr": [tr], "tst": [[12]]})
        with pytest.raises(ValueError, match=r"school_3_indexes\.mat: tr .* must hold each of the 12 pupils once"):
            readers.read_school(files)


class TestVehicle:
    def test_cells_become_sensors(self, tmp_path):
        X, Y = small_vehicle(tmp_path / "vehicle.mat")
        data = readers.read_vehicle({readers.VEHICLE_FILE: tmp_path / "vehicle.mat"})
        assert data.users.tolist() == [0] * 5 + [1] * 7
        np.testing.assert_array_equal(data.X, np.concatenate(list(X)).astype(np.float32))
        np.testing.assert_array_equal(data.y, np.concatenate(list(Y)).ravel())
        assert data.splits == ("paper",)

    @pytest.mark.parametrize(
        ("X", "Y", "message"),
        [
            (np.ones((5, 4)), np.ones((5, 1)), "must be cells"),
            (cells(np.ones((2, 4)), np.ones((3, 4))), cells(np.ones((2, 1))), "got 2 and 1 entries"),
            (cells(np.ones((2, 4))), cells(np.ones((3, 1))), "one label per record"),
            (cells(np.ones((2, 4)), np.ones((2, 3))), cells(np.ones((2, 1)), np.ones((2, 1))), "the same features"),
            (cells(np.ones((2, 4))), cells(np.array([[1.0], [2.0]])), r"labels must be -1 or \+1, got \[1.0, 2.0\]"),
        ],
    )
    def test_cells_that_do_not_fit_are_refused(self, tmp_path, X, Y, message):
        savemat(tmp_path / "vehicle.mat", {"X": X, "Y": Y})
        with pytest.raises(ValueError, match=message):
            readers.read_vehicle({readers.VEHICLE_FILE: tmp_path / "vehicle.mat"})

    def test_the_error_of_the_newer_matlab_format_names_the_option(self, tmp_path):
        path = tmp_path / "vehicle.mat"
        path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124, b" ") + b"\x00\x02IM" + b"\x00" * 400)
        with pytest.raises(ValueError, match="save it again with -v7"):
            readers.read_vehicle({readers.VEHICLE_FILE: path})


class TestVehiclePartial:
    def test_sensors_come_in_the_order_of_their_list(self, tmp_path):
        rng = np.random.default_rng(4)
        rows, labels = [rng.normal(size=(m, 3)) for m in (5, 8)], [rng.choice([-1, 1], m) for m in (5, 8)]
        partial_json(tmp_path / "p.json", rows, labels)
        data = readers.read_vehicle_partial({readers.VEHICLE_PARTIAL_FILE: tmp_path / "p.json"})
        np.testing.assert_array_equal(data.X, np.concatenate(rows).astype(np.float32))
        np.testing.assert_array_equal(data.y, np.concatenate(labels))
        for k in range(2):
            for label in (-1, 1):
                group = data.extras["split50"][(data.users == k) & (data.y == label)]
                assert (group == 0).sum() == (len(group) + 1) // 2

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ('{"users": ["a"], "user_data": {"a"', "not a complete JSON file"),
            ('{"users": ["a"]}', "not records per sensor"),
            ("[]", "not records per sensor"),
            (json.dumps({"users": ["a"], "user_data": {"a": {"x": [["no"]], "y": [[1]]}}}), "matrix of finite numbers"),
            (json.dumps({"users": [], "user_data": {}}), "every sensor needs"),
        ],
    )
    def test_damaged_files_are_refused(self, tmp_path, content, message):
        (tmp_path / "p.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            readers.read_vehicle_partial({readers.VEHICLE_PARTIAL_FILE: tmp_path / "p.json"})
