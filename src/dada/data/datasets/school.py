"""School: exam scores of pupils of London schools, in the coding and splits of the multi-task literature."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dada.data.datasets._matlab import matrix, variables, vector
from dada.data.datasets.dataset import Dataset

__all__ = ["FILE", "SPLIT_FILES", "read"]

FILE = "school_b.mat"
SPLIT_FILES = {f"split{i}": f"school_{i}_indexes.mat" for i in range(1, 11)}

# Rows of x in the file. A pupil's own attributes are the features; year and school are the same for many pupils.
PUPIL = {
    5: "gender_code0_male",
    6: "gender_code1_female",
    7: "vr_code1_VR3",
    8: "vr_code2_VR1",
    9: "vr_code3_VR2",
    **{9 + code: f"ethnic_code{code}" for code in range(1, 12)},
    27: "constant",
}
YEAR_AND_SCHOOL = {
    0: "s_year1985",
    1: "s_year1986",
    2: "s_year1987",
    3: "s_pct_fsm",
    4: "s_pct_vr1",
    21: "s_school_mixed",
    22: "s_school_male",
    23: "s_school_female",
    24: "s_den_maintained",
    25: "s_den_coe",
    26: "s_den_rc",
}
N_ATTRIBUTES = len(PUPIL) + len(YEAR_AND_SCHOOL)

ABOUT: Mapping[str, Any] = {
    "name": "School",
    "title": "Exam scores of the Inner London Education Authority (Goldstein 1991), coded by Argyriou et al.",
    "user": "school 0..138",
    "label": "+1 score above 20, -1 up to 20",
    "score": "exam score, 1..70",
    "features": "gender, verbal reasoning band, ethnic group and a constant: 0 or 1, as in the file",
    "s_*": "year of the exam and attributes of the school, not used as features",
    "split1..split10": "0 train, 1 test: ten splits that came with the data; published results use split1",
}


def read(files: Mapping[str, Path]) -> Dataset:
    """Read the pupils of all schools and the ten files with the pupils of each split."""
    path = files[FILE]
    found = variables(path, "x", "y", "task_indexes")
    pupils = matrix(np.transpose(found["x"]), "the transpose of x", path, N_ATTRIBUTES)
    score = vector(found["y"], "y", path)
    first = vector(found["task_indexes"], "task_indexes", path).astype(np.int64) - 1
    rising = len(first) > 0 and first[0] == 0 and bool(np.all(np.diff(first, append=len(pupils)) > 0))
    if len(score) != len(pupils) or not rising:
        raise ValueError(
            f"{path}: {len(pupils)} pupils in x and {len(score)} in y must be cut into schools by rising task_indexes "
            f"that start at 1, got {len(first)} of them"
        )
    extras: dict[str, np.ndarray] = {
        "score": score.astype(np.int8),
        **{name: pupils[:, j].astype(np.float32) for j, name in YEAR_AND_SCHOOL.items()},
        **{name: _split(files[file], len(pupils)) for name, file in SPLIT_FILES.items()},
    }
    return Dataset(
        "school",
        pupils[:, list(PUPIL)].astype(np.float32),
        np.where(score > 20, 1, -1).astype(np.int8),
        np.repeat(np.arange(len(first)), np.diff(first, append=len(pupils))).astype(np.int16),
        tuple(PUPIL.values()),
        extras,
        ABOUT,
    )


def _split(path: Path, n_pupils: int) -> np.ndarray:
    found = variables(path, "tr", "tst")
    train, test = (vector(found[name], name, path).astype(np.int64) - 1 for name in ("tr", "tst"))
    if not np.array_equal(np.sort(np.concatenate([train, test])), np.arange(n_pupils)):
        raise ValueError(
            f"{path}: tr ({len(train)} pupils) and tst ({len(test)}) must hold each of the {n_pupils} pupils once"
        )
    in_test = np.ones(n_pupils, dtype=np.int8)
    in_test[train] = 0
    return in_test
