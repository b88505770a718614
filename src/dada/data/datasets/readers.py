"""Real datasets in memory: rows of many users, their splits, and the readers of the publishers' files."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dada.data.population import Population, shorten

# The column with the split of the published results; None: a random fifth of each user's rows.
PAPER_SPLIT: Mapping[str, str | None] = {
    "harws": "split20",
    "vehicle": None,
    "vehicle_partial": "split50",
    "computer": "paper_split",
    "school": "split1",
}
PAPER_TRAIN_FRACTION = 0.2
SPLIT_COLUMN = re.compile(r"split\d+|paper_split")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled rows of many users, with the splits and further columns that came with them.

    Attributes
    ----------
    name : str
        Name of the dataset, such as ``"school"``.
    X : (R, D) float32 array
        Features, unscaled, in the order of the rows of the file.
    y : (R,) int8 array
        Labels, -1 or +1.
    users : (R,) int16 array
        The user each row belongs to.
    feature_names : tuple of str
        One name per column of X; publishers may use a name twice.
    extras : mapping of str to (R,) array
        Columns that are not features: splits, the score or activity behind the label, ...
    about : mapping
        Metadata of the file: title, and the meaning of the label and of the extra columns.

    Examples
    --------
    >>> rows = Dataset(
    ...     name="school",
    ...     X=np.array([[0], [1], [1], [0]], dtype=np.float32),
    ...     y=np.array([-1, 1, 1, -1], dtype=np.int8),
    ...     users=np.array([0, 0, 1, 1], dtype=np.int16),
    ...     feature_names=("gender",),
    ...     extras={"split1": np.array([0, 1, 1, 0], dtype=np.int8)},
    ...     about={},
    ... )
    >>> train, test = rows.split()
    >>> train.y.tolist(), test.y.tolist()
    ([-1, -1], [1, 1])
    """

    name: str
    X: np.ndarray
    y: np.ndarray
    users: np.ndarray
    feature_names: tuple[str, ...]
    extras: Mapping[str, np.ndarray]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_users(self) -> int:
        """Number of users, K."""
        return len(np.unique(self.users))

    @property
    def splits(self) -> tuple[str, ...]:
        """Names that :meth:`split` takes."""
        return ("paper", *(column for column in self.extras if SPLIT_COLUMN.fullmatch(column)))

    def population(self) -> Population:
        """All rows, grouped by user."""
        return self._population(np.ones(len(self.y), dtype=bool))

    def split(
        self, which: str = "paper", rng: np.random.Generator | int | None = None
    ) -> tuple[Population, Population]:
        """Training and test data of every user, by a split that is part of the dataset.

        Parameters
        ----------
        which : str
            One of `splits`. ``"paper"`` is the split of the published results; Vehicle Sensor has none on
            record, so a fifth of each sensor's rows is drawn from `rng`.
        rng : Generator or int, optional
            Used only where rows are drawn.
        """
        if which not in self.splits:
            raise ValueError(f"split must be one of {', '.join(self.splits)} for {self.name}, got {which!r}")
        column = PAPER_SPLIT[self.name] if which == "paper" else which
        if column is not None:
            return self._parts(self.extras[column] == 0)
        if rng is None:
            raise ValueError(f"{self.name} has no published split: give rng, from which a random fifth is drawn")
        return self.random_split(rng, PAPER_TRAIN_FRACTION)

    def random_split(self, rng: np.random.Generator | int, train_fraction: float) -> tuple[Population, Population]:
        """Draw a fraction of each user's rows for training and leave the rest for testing.

        The fraction is rounded to whole rows of each user, who keeps at least one row on each side.
        """
        if not 0 < train_fraction < 1:
            raise ValueError(f"train_fraction must be between 0 and 1, both excluded, got {train_fraction}")
        rng = np.random.default_rng(rng)
        users, sizes = np.unique(self.users, return_counts=True)
        if sizes.min() < 2:
            raise ValueError(
                f"{int((sizes < 2).sum())} users have one row only, which cannot be on both sides of a split: "
                f"{shorten(users[sizes < 2])}. Leave these users out"
            )
        in_train = np.zeros(len(self.y), dtype=bool)
        for k, m in zip(users, sizes, strict=True):
            n_train = min(max(round(train_fraction * m), 1), m - 1)
            in_train[rng.choice(np.flatnonzero(self.users == k), n_train, replace=False)] = True
        return self._parts(in_train)

    def sha256(self) -> str:
        """Digest of every column, the same however the rows are stored in a file."""
        digest = hashlib.sha256()
        for name, values in {"user": self.users, "features": self.X, "label": self.y, **self.extras}.items():
            little_endian = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
            digest.update(f"{name} {little_endian.dtype.str} {values.shape}\n".encode())
            digest.update(little_endian.tobytes())
        return digest.hexdigest()

    def _parts(self, in_train: np.ndarray) -> tuple[Population, Population]:
        return self._population(in_train), self._population(~in_train)

    def _population(self, chosen: np.ndarray) -> Population:
        known: dict[str, Any] = {"feature_names": self.feature_names, "classes": (-1, 1), "user_ids": self.users}
        return Population.from_arrays(self.X[chosen], self.y[chosen], self.users[chosen], **known)


HARWS_FILE = "human+activity+recognition+using+smartphones.zip"
HARWS_ZIP = "UCI HAR Dataset.zip"
HARWS_FOLDER = "UCI HAR Dataset"
SITTING = 4
HARWS_SEED = 13112018


def read_harws(files: Mapping[str, Path]) -> Dataset:
    """Read the publisher's zip, in which a second zip may hold the folder with the text files."""
    from sklearn.model_selection import train_test_split

    path = files[HARWS_FILE]
    try:
        with zipfile.ZipFile(path) as outer:
            nested = HARWS_ZIP in outer.namelist()
            with zipfile.ZipFile(io.BytesIO(outer.read(HARWS_ZIP)) if nested else path) as archive:
                names = _feature_names(archive)
                parts = [_harws_part(archive, which, len(names)) for which in ("train", "test")]
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a complete zip file ({error})") from error
    except KeyError as error:
        raise ValueError(f"{path}: the zip lacks a file of the dataset ({error.args[0]})") from error

    X, activity, users = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    sizes = [len(part[1]) for part in parts]
    split20 = np.ones(len(X), dtype=np.int8)
    split20[train_test_split(np.arange(len(X)), train_size=0.2, random_state=HARWS_SEED)[0]] = 0
    extras = {
        "activity": activity,
        "orig_split": np.repeat([0, 1], sizes).astype(np.int8),
        "orig_row": np.concatenate([np.arange(size) for size in sizes]).astype(np.int16),
        "split20": split20,
    }
    return Dataset("harws", X, _labels(activity == SITTING), users, names, extras)


def _feature_names(archive: zipfile.ZipFile) -> tuple[str, ...]:
    lines = archive.read(f"{HARWS_FOLDER}/features.txt").decode().split("\n")
    return tuple(line.split(maxsplit=1)[1].strip() for line in lines if line.strip())


def _harws_part(archive: zipfile.ZipFile, which: str, n_features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X = _numbers(archive, f"{HARWS_FOLDER}/{which}/X_{which}.txt")
    activity = _numbers(archive, f"{HARWS_FOLDER}/{which}/y_{which}.txt")
    subject = _numbers(archive, f"{HARWS_FOLDER}/{which}/subject_{which}.txt")
    if X.shape[1] != n_features or activity.shape != (len(X), 1) or subject.shape != (len(X), 1):
        raise ValueError(
            f"{archive.filename or HARWS_ZIP}: the {which} files do not fit together: X {X.shape} for {n_features} "
            f"features, y {activity.shape}, subject {subject.shape}"
        )
    return X.astype(np.float32), activity[:, 0].astype(np.int8), subject[:, 0].astype(np.int16)


def _numbers(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    with archive.open(member) as lines:
        try:
            return np.loadtxt(lines, ndmin=2)
        except ValueError as error:
            raise ValueError(f"{member}: not a table of numbers ({error})") from error


COMPUTER_FILE = "conjointAnalysisComputerBuyers.mat"
COMPUTER_FEATURES = (
    "constant", "hot_line", "RAM", "screen_size", "CPU_speed", "hard_disk", "CD_ROM", "cache", "color_of_unit",
    "availability", "warranty", "software", "guarantee", "price",
)  # fmt: skip
COMPUTER_SEED = 2018
FEWEST_TRAIN, MOST_TRAIN = 5, 10


def read_computer(files: Mapping[str, Path]) -> Dataset:
    """Read the ratings (one row per person), the design (one row per computer) and the persons' traits."""
    path = files[COMPUTER_FILE]
    found = _variables(path, "likeBuy", "designMarix", "computerDataZ")  # the misspelling is the file's
    score = _matrix(found["likeBuy"], "likeBuy", path)
    n_people, n_profiles = score.shape
    design = _matrix(found["designMarix"], "designMarix", path, len(COMPUTER_FEATURES))
    traits = _matrix(found["computerDataZ"], "computerDataZ", path, 7)
    if len(design) != n_profiles or len(traits) != n_people:
        raise ValueError(
            f"{path}: the ratings of {n_people} people for {n_profiles} computers do not fit "
            f"the design of {len(design)} computers and the traits of {len(traits)} people"
        )
    extras = {
        "score": score.ravel().astype(np.int8),
        "profile": np.tile(np.arange(n_profiles), n_people).astype(np.int8),
        "paper_split": _computer_split(n_people, n_profiles).ravel(),
        **{f"z{j}": np.repeat(traits[:, j], n_profiles).astype(np.int8) for j in range(traits.shape[1])},
    }
    return Dataset(
        "computer",
        np.tile(design, (n_people, 1)).astype(np.float32),
        _labels(extras["score"] > 5),
        np.repeat(np.arange(n_people), n_profiles).astype(np.int16),
        COMPUTER_FEATURES,
        extras,
    )


def _computer_split(n_people: int, n_profiles: int) -> np.ndarray:
    """0 where a person's rating is for training: two old generators, because the published split used them."""
    order = np.random.RandomState(COMPUTER_SEED).permutation(n_profiles)
    counts = random.Random(COMPUTER_SEED)
    in_test = np.ones((n_people, n_profiles), dtype=np.int8)
    for row in in_test:
        row[order[: counts.randint(FEWEST_TRAIN, MOST_TRAIN)]] = 0
    return in_test


SCHOOL_FILE = "school_b.mat"
SCHOOL_SPLIT_FILES = {f"split{i}": f"school_{i}_indexes.mat" for i in range(1, 11)}

# Rows of x in the file. A pupil's own attributes are the features; year and school are the same for many pupils.
PUPIL_COLUMNS = {
    **dict(enumerate(("gender_code0_male", "gender_code1_female", "vr_code1_VR3", "vr_code2_VR1", "vr_code3_VR2"), 5)),
    **{9 + code: f"ethnic_code{code}" for code in range(1, 12)},
    27: "constant",
}
SCHOOL_COLUMNS = {
    **dict(enumerate(("s_year1985", "s_year1986", "s_year1987", "s_pct_fsm", "s_pct_vr1"))),
    **{21 + j: f"s_school_{kind}" for j, kind in enumerate(("mixed", "male", "female"))},
    **{24 + j: f"s_den_{kind}" for j, kind in enumerate(("maintained", "coe", "rc"))},
}
N_ATTRIBUTES = len(PUPIL_COLUMNS) + len(SCHOOL_COLUMNS)


def read_school(files: Mapping[str, Path]) -> Dataset:
    """Read the pupils of all schools and the ten files with the pupils of each split."""
    path = files[SCHOOL_FILE]
    found = _variables(path, "x", "y", "task_indexes")
    pupils = _matrix(np.transpose(found["x"]), "the transpose of x", path, N_ATTRIBUTES)
    score = _vector(found["y"], "y", path)
    first = _vector(found["task_indexes"], "task_indexes", path).astype(np.int64) - 1
    rising = len(first) > 0 and first[0] == 0 and bool(np.all(np.diff(first, append=len(pupils)) > 0))
    if len(score) != len(pupils) or not rising:
        raise ValueError(
            f"{path}: {len(pupils)} pupils in x and {len(score)} in y must be cut into schools by rising task_indexes "
            f"that start at 1, got {len(first)} of them"
        )
    extras: dict[str, np.ndarray] = {
        "score": score.astype(np.int8),
        **{name: pupils[:, j].astype(np.float32) for j, name in SCHOOL_COLUMNS.items()},
        **{name: _school_split(files[file], len(pupils)) for name, file in SCHOOL_SPLIT_FILES.items()},
    }
    return Dataset(
        "school",
        pupils[:, list(PUPIL_COLUMNS)].astype(np.float32),
        _labels(score > 20),
        np.repeat(np.arange(len(first)), np.diff(first, append=len(pupils))).astype(np.int16),
        tuple(PUPIL_COLUMNS.values()),
        extras,
    )


def _school_split(path: Path, n_pupils: int) -> np.ndarray:
    found = _variables(path, "tr", "tst")
    train, test = (_vector(found[name], name, path).astype(np.int64) - 1 for name in ("tr", "tst"))
    if not np.array_equal(np.sort(np.concatenate([train, test])), np.arange(n_pupils)):
        raise ValueError(
            f"{path}: tr ({len(train)} pupils) and tst ({len(test)}) must hold each of the {n_pupils} pupils once"
        )
    in_test = np.ones(n_pupils, dtype=np.int8)
    in_test[train] = 0
    return in_test


VEHICLE_FILE = "vehicle.mat"
VEHICLE_PARTIAL_FILE = "mytrain.json"


def read_vehicle(files: Mapping[str, Path]) -> Dataset:
    """Read the cells X and Y, which hold one matrix of records and one column of labels per sensor."""
    path = files[VEHICLE_FILE]
    found = _variables(path, "X", "Y")
    X, Y = (np.asarray(found[name]).ravel() for name in ("X", "Y"))
    if X.dtype != object or Y.dtype != object or len(X) != len(Y):
        raise ValueError(f"{path}: X and Y must be cells with one entry per sensor, got {len(X)} and {len(Y)} entries")
    rows = [_matrix(x, f"X{{{k + 1}}}", path) for k, x in enumerate(X)]
    labels = [_vector(y, f"Y{{{k + 1}}}", path) for k, y in enumerate(Y)]
    return _vehicle_dataset("vehicle", rows, labels, path)


def read_vehicle_partial(files: Mapping[str, Path]) -> Dataset:
    """Read the JSON file, which lists records and labels under the name of each sensor."""
    path = files[VEHICLE_PARTIAL_FILE]
    try:
        sensors = json.loads(path.read_text(encoding="utf-8"))
        records = [sensors["user_data"][name] for name in sensors["users"]]
        rows = [_matrix(record["x"], f"x of sensor {k}", path) for k, record in enumerate(records)]
        labels = [_vector(record["y"], f"y of sensor {k}", path) for k, record in enumerate(records)]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not records per sensor under users and user_data ({error!r})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not a complete JSON file ({error})") from error
    dataset = _vehicle_dataset("vehicle_partial", rows, labels, path)
    return replace(dataset, extras={"split50": _half_of_each_class(dataset.users, dataset.y)})


def _vehicle_dataset(name: str, rows: list[np.ndarray], labels: list[np.ndarray], path: Path) -> Dataset:
    sizes = [len(x) for x in rows]
    if not rows or sizes != [len(y) for y in labels] or len({x.shape[1] for x in rows}) != 1:
        raise ValueError(
            f"{path}: every sensor needs one label per record and the same features, got records {sizes}, "
            f"labels {[len(y) for y in labels]} and features {sorted({x.shape[1] for x in rows})}"
        )
    X, y = np.concatenate(rows).astype(np.float32), np.concatenate(labels)
    if not np.isin(y, (-1, 1)).all():
        raise ValueError(f"{path}: labels must be -1 or +1, got {np.unique(y)[:5].tolist()}")
    users = np.repeat(np.arange(len(rows)), sizes).astype(np.int16)
    names = tuple(f"acoustic_or_seismic_{j}" for j in range(X.shape[1]))
    return Dataset(name, X, y.astype(np.int8), users, names, {})


def _half_of_each_class(users: np.ndarray, y: np.ndarray) -> np.ndarray:
    rng = np.random.RandomState(0)
    in_test = np.ones(len(y), dtype=np.int8)
    for k in np.unique(users):
        for label in (-1, 1):
            rows = rng.permutation(np.flatnonzero((users == k) & (y == label)))
            in_test[rows[: (len(rows) + 1) // 2]] = 0
    return in_test


def _labels(positive: np.ndarray) -> np.ndarray:
    return np.where(positive, 1, -1).astype(np.int8)


def _variables(path: Path, *names: str) -> dict[str, Any]:
    """Read a .mat file that must hold the named variables."""
    from scipy.io import loadmat

    try:
        found: dict[str, Any] = loadmat(str(path))
    except FileNotFoundError:
        raise
    except NotImplementedError as error:
        raise ValueError(f"{path}: saved in MATLAB's v7.3 format, save it again with -v7") from error
    except Exception as error:  # a damaged file fails in the decoder with whatever its bytes lead to
        raise ValueError(f"{path}: not a readable MATLAB file ({error})") from error
    absent = [name for name in names if name not in found]
    if absent:
        present = [name for name in found if not name.startswith("__")]
        raise ValueError(f"{path}: lacks {', '.join(absent)}; it holds {', '.join(present) or 'nothing'}")
    return {name: found[name] for name in names}


def _matrix(value: Any, name: str, path: Path, n_columns: int | None = None) -> np.ndarray:
    """Take a variable as a matrix of finite numbers."""
    array = np.asarray(value)
    numeric = array.dtype.kind in "biuf" and bool(np.isfinite(array).all())
    if not numeric or array.ndim != 2 or (n_columns is not None and array.shape[1] != n_columns):
        columns = "" if n_columns is None else f" with {n_columns} columns"
        raise ValueError(
            f"{path}: {name} must be a matrix of finite numbers{columns}, got {array.dtype} of shape {array.shape}"
        )
    return array


def _vector(value: Any, name: str, path: Path) -> np.ndarray:
    """Take a variable as a row or column of finite numbers."""
    array = _matrix(value, name, path)
    if 1 not in array.shape:
        raise ValueError(f"{path}: {name} must be one row or one column, got shape {array.shape}")
    return array.ravel()
