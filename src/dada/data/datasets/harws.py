"""Human activity recognition with smartphones: the zip file of the UCI repository."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dada.data.datasets.dataset import Dataset

__all__ = ["FILE", "read"]

FILE = "human+activity+recognition+using+smartphones.zip"
INNER_ZIP = "UCI HAR Dataset.zip"
FOLDER = "UCI HAR Dataset"
SITTING = 4
SPLIT_SEED = 13112018

ABOUT: Mapping[str, Any] = {
    "name": "HARWS",
    "title": "UCI Human Activity Recognition Using Smartphones v1.0",
    "user": "subject 1..30",
    "label": "+1 sitting (activity 4), -1 any other activity",
    "activity": {
        "1": "WALKING",
        "2": "WALKING_UPSTAIRS",
        "3": "WALKING_DOWNSTAIRS",
        "4": "SITTING",
        "5": "STANDING",
        "6": "LAYING",
    },
    "orig_split": "file of the publisher the row stands in: 0 train, 1 test; no subject is in both",
    "orig_row": "number of the row in that file",
    "split20": f"0 train, 1 test: train_test_split(train_size=0.2, random_state={SPLIT_SEED}) of all rows in order",
}


def read(files: Mapping[str, Path]) -> Dataset:
    """Read the publisher's zip, in which a second zip may hold the folder with the text files."""
    from sklearn.model_selection import train_test_split

    path = files[FILE]
    try:
        with zipfile.ZipFile(path) as outer:
            nested = INNER_ZIP in outer.namelist()
            with zipfile.ZipFile(io.BytesIO(outer.read(INNER_ZIP)) if nested else path) as archive:
                names = _feature_names(archive)
                parts = [_part(archive, which, len(names)) for which in ("train", "test")]
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a complete zip file ({error})") from error
    except KeyError as error:
        raise ValueError(f"{path}: the zip lacks a file of the dataset ({error.args[0]})") from error

    X, activity, users = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    sizes = [len(part[1]) for part in parts]
    split20 = np.ones(len(X), dtype=np.int8)
    split20[train_test_split(np.arange(len(X)), train_size=0.2, random_state=SPLIT_SEED)[0]] = 0
    extras = {
        "activity": activity,
        "orig_split": np.repeat([0, 1], sizes).astype(np.int8),
        "orig_row": np.concatenate([np.arange(size) for size in sizes]).astype(np.int16),
        "split20": split20,
    }
    y = np.where(activity == SITTING, 1, -1).astype(np.int8)
    return Dataset("harws", X, y, users, names, extras, ABOUT)


def _feature_names(archive: zipfile.ZipFile) -> tuple[str, ...]:
    lines = archive.read(f"{FOLDER}/features.txt").decode().split("\n")
    return tuple(line.split(maxsplit=1)[1].strip() for line in lines if line.strip())


def _part(archive: zipfile.ZipFile, which: str, n_features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X = _numbers(archive, f"{FOLDER}/{which}/X_{which}.txt")
    activity = _numbers(archive, f"{FOLDER}/{which}/y_{which}.txt")
    subject = _numbers(archive, f"{FOLDER}/{which}/subject_{which}.txt")
    if X.shape[1] != n_features or activity.shape != (len(X), 1) or subject.shape != (len(X), 1):
        raise ValueError(
            f"{archive.filename or INNER_ZIP}: the {which} files do not fit together: X {X.shape} for {n_features} "
            f"features, y {activity.shape}, subject {subject.shape}"
        )
    return X.astype(np.float32), activity[:, 0].astype(np.int8), subject[:, 0].astype(np.int16)


def _numbers(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    with archive.open(member) as lines:
        try:
            return np.loadtxt(lines, ndmin=2)
        except ValueError as error:
            raise ValueError(f"{member}: not a table of numbers ({error})") from error
