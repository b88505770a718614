"""Files in the publishers' formats, made from arrays a test holds."""

import io
import json
import zipfile

import numpy as np
from scipy.io import savemat

from dada.data.datasets import readers

HAR_FOLDER = "UCI HAR Dataset"


def harws_zip(path, names, parts, nested=True):
    """`parts` holds, for train and test, the features, activities and subjects."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        lines = [f"{j + 1} {name}\n" for j, name in enumerate(names)]
        archive.writestr(f"{HAR_FOLDER}/features.txt", "".join(lines))
        for which, (X, activity, subject) in parts.items():
            text = "".join(" " + " ".join(f"{v: .16e}" for v in row) + "\n" for row in X)
            archive.writestr(f"{HAR_FOLDER}/{which}/X_{which}.txt", text)
            archive.writestr(f"{HAR_FOLDER}/{which}/y_{which}.txt", "".join(f"{a}\n" for a in activity))
            archive.writestr(f"{HAR_FOLDER}/{which}/subject_{which}.txt", "".join(f"{s}\n" for s in subject))
    if nested:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{HAR_FOLDER}.zip", inner.getvalue())
            archive.writestr(f"{HAR_FOLDER}.names", "see the folder")
    else:
        path.write_bytes(inner.getvalue())


def small_harws(path, nested=True):
    rng = np.random.default_rng(0)
    parts = {
        which: (rng.uniform(-1, 1, (rows, 3)), rng.integers(1, 7, rows), subjects)
        for which, rows, subjects in (("train", 12, [1, 1, 3] * 4), ("test", 8, [2] * 8))
    }
    harws_zip(path, ["tBodyAcc-mean()-X", "bands-1,8", "angle(X,gravityMean)"], parts, nested)
    return parts


def computer_mat(path, score, design, traits):
    savemat(path, {"likeBuy": score, "designMarix": design, "computerDataZ": traits})


def small_computer(path, n_people=4, n_profiles=20):
    rng = np.random.default_rng(1)
    score = rng.integers(0, 11, (n_people, n_profiles))
    design = np.hstack([np.ones((n_profiles, 1)), rng.choice([-1.0, 1.0], (n_profiles, 13))])
    traits = rng.integers(0, 10, (n_people, 7))
    computer_mat(path, score.astype(np.float64), design, traits.astype(np.float64))
    return score, design, traits


def school_mats(folder, x, score, first, tests):
    """`tests` holds, for each split, the numbers of the pupils in its test set, counted from 0."""
    savemat(folder / readers.SCHOOL_FILE, {"x": x, "y": score[:, None], "task_indexes": first[:, None] + 1})
    for file, in_test in zip(readers.SCHOOL_SPLIT_FILES.values(), tests, strict=True):
        train = np.setdiff1d(np.arange(len(score)), in_test)
        savemat(folder / file, {"tr": train[None] + 1, "tst": in_test[None] + 1, "tr_indexes": 0, "tst_indexes": 0})
    return {file: folder / file for file in (readers.SCHOOL_FILE, *readers.SCHOOL_SPLIT_FILES.values())}


def small_school(folder, sizes=(4, 5, 3)):
    rng = np.random.default_rng(2)
    n_pupils = sum(sizes)
    x = rng.integers(0, 2, (28, n_pupils)).astype(np.float64)
    score = rng.integers(1, 71, n_pupils).astype(np.float64)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    tests = [np.sort(first + i % 3) for i in range(10)]
    return x, score, tests, school_mats(folder, x, score, first, tests)


def small_vehicle(path, sizes=(5, 7)):
    rng = np.random.default_rng(3)
    X, Y = np.empty((len(sizes), 1), dtype=object), np.empty((len(sizes), 1), dtype=object)
    for k, size in enumerate(sizes):
        X[k, 0] = rng.normal(size=(size, 4))
        Y[k, 0] = rng.choice([-1.0, 1.0], (size, 1))
    savemat(path, {"X": X, "Y": Y})
    return X.ravel(), Y.ravel()


def partial_json(path, rows, labels):
    names = [f"f_{k:05d}" for k in range(len(rows))]
    data = {name: {"x": x.tolist(), "y": [[int(v)] for v in y]} for name, x, y in zip(names, rows, labels, strict=True)}
    # The publisher's file lists the sensors in any order under user_data.
    shuffled = dict(reversed(data.items()))
    path.write_text(json.dumps({"users": names, "num_samples": [len(x) for x in rows], "user_data": shuffled}))
