"""Vehicle Sensor: one MATLAB file with all records, and a public JSON file with a small part of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dada.data.datasets._matlab import matrix, variables, vector
from dada.data.datasets.dataset import Dataset

__all__ = ["FILE", "PARTIAL_FILE", "read", "read_partial"]

FILE = "vehicle.mat"
PARTIAL_FILE = "mytrain.json"

ABOUT: Mapping[str, Any] = {
    "name": "Vehicle Sensor",
    "title": "Vehicles heard and felt by 23 sensors (Duarte and Hu 2004), coded per sensor in vehicle.mat",
    "user": "sensor 0..22",
    "label": "+1 / -1 as in vehicle.mat, which does not say which vehicle is which",
    "features": "50 acoustic and 50 seismic ones, as in vehicle.mat",
}
ABOUT_PARTIAL: Mapping[str, Any] = {
    **ABOUT,
    "name": "Vehicle Sensor (PARTIAL)",
    "title": "A random draw of 1860 records from the vehicle sensor data of Duarte and Hu (2004), made for Ditto",
    "features": "50 acoustic and 50 seismic ones, standardised per sensor over all its records",
    "split50": "0 train, 1 test: half of each class of each sensor, RandomState(0); not a published split",
}


def read(files: Mapping[str, Path]) -> Dataset:
    """Read the cells X and Y, which hold one matrix of records and one column of labels per sensor."""
    path = files[FILE]
    found = variables(path, "X", "Y")
    X, Y = (np.asarray(found[name]).ravel() for name in ("X", "Y"))
    if X.dtype != object or Y.dtype != object or len(X) != len(Y):
        raise ValueError(f"{path}: X and Y must be cells with one entry per sensor, got {len(X)} and {len(Y)} entries")
    rows = [matrix(x, f"X{{{k + 1}}}", path) for k, x in enumerate(X)]
    labels = [vector(y, f"Y{{{k + 1}}}", path) for k, y in enumerate(Y)]
    return _dataset("vehicle", rows, labels, path, ABOUT)


def read_partial(files: Mapping[str, Path]) -> Dataset:
    """Read the JSON file, which lists records and labels under the name of each sensor."""
    path = files[PARTIAL_FILE]
    try:
        sensors = json.loads(path.read_text(encoding="utf-8"))
        records = [sensors["user_data"][name] for name in sensors["users"]]
        rows = [matrix(record["x"], f"x of sensor {k}", path) for k, record in enumerate(records)]
        labels = [vector(record["y"], f"y of sensor {k}", path) for k, record in enumerate(records)]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not records per sensor under users and user_data ({error!r})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not a complete JSON file ({error})") from error
    dataset = _dataset("vehicle_partial", rows, labels, path, ABOUT_PARTIAL)
    extras = {"split50": _half_of_each_class(dataset.users, dataset.y)}
    return Dataset(dataset.name, dataset.X, dataset.y, dataset.users, dataset.feature_names, extras, dataset.about)


def _dataset(
    name: str, rows: list[np.ndarray], labels: list[np.ndarray], path: Path, about: Mapping[str, Any]
) -> Dataset:
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
    return Dataset(name, X, y.astype(np.int8), users, names, {}, about)


def _half_of_each_class(users: np.ndarray, y: np.ndarray) -> np.ndarray:
    rng = np.random.RandomState(0)
    in_test = np.ones(len(y), dtype=np.int8)
    for k in np.unique(users):
        for label in (-1, 1):
            rows = rng.permutation(np.flatnonzero((users == k) & (y == label)))
            in_test[rows[: (len(rows) + 1) // 2]] = 0
    return in_test
