"""Computer Buyers: ratings of twenty computers by many people, as kept in the PMTK collection."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dada.data.datasets._matlab import matrix, variables
from dada.data.datasets.dataset import Dataset

__all__ = ["FILE", "read"]

FILE = "conjointAnalysisComputerBuyers.mat"
FEATURES = (
    "constant",
    "hot_line",
    "RAM",
    "screen_size",
    "CPU_speed",
    "hard_disk",
    "CD_ROM",
    "cache",
    "color_of_unit",
    "availability",
    "warranty",
    "software",
    "guarantee",
    "price",
)
SPLIT_SEED = 2018
FEWEST_TRAIN, MOST_TRAIN = 5, 10

ABOUT: Mapping[str, Any] = {
    "name": "Computer Buyers",
    "title": "Ratings of computers by MBA students (Lenk et al. 1996), copy of PMTK",
    "user": "person 0..189, a row of likeBuy",
    "label": "+1 score above 5, -1 up to 5",
    "score": "how likely the person is to buy the computer, 0..10",
    "profile": "the computer, 0..19",
    "paper_split": "0 train, 1 test: the first 5 to 10 computers of one random order that all persons share",
    "z": "z0..z6: what is known of the person (computerDataZ), a constant and six traits whose order is not documented",
}


def read(files: Mapping[str, Path]) -> Dataset:
    """Read the ratings (one row per person), the design (one row per computer) and the persons' traits."""
    path = files[FILE]
    found = variables(path, "likeBuy", "designMarix", "computerDataZ")  # the misspelling is the file's
    score = matrix(found["likeBuy"], "likeBuy", path)
    n_people, n_profiles = score.shape
    design = matrix(found["designMarix"], "designMarix", path, len(FEATURES))
    traits = matrix(found["computerDataZ"], "computerDataZ", path, 7)
    if len(design) != n_profiles or len(traits) != n_people:
        raise ValueError(
            f"{path}: the ratings of {n_people} people for {n_profiles} computers do not fit "
            f"the design of {len(design)} computers and the traits of {len(traits)} people"
        )
    extras = {
        "score": score.ravel().astype(np.int8),
        "profile": np.tile(np.arange(n_profiles), n_people).astype(np.int8),
        "paper_split": _paper_split(n_people, n_profiles).ravel(),
        **{f"z{j}": np.repeat(traits[:, j], n_profiles).astype(np.int8) for j in range(traits.shape[1])},
    }
    return Dataset(
        "computer",
        np.tile(design, (n_people, 1)).astype(np.float32),
        np.where(extras["score"] > 5, 1, -1).astype(np.int8),
        np.repeat(np.arange(n_people), n_profiles).astype(np.int16),
        FEATURES,
        extras,
        ABOUT,
    )


def _paper_split(n_people: int, n_profiles: int) -> np.ndarray:
    """0 where a person's rating is for training: two old generators, because the published split used them."""
    order = np.random.RandomState(SPLIT_SEED).permutation(n_profiles)
    counts = random.Random(SPLIT_SEED)
    in_test = np.ones((n_people, n_profiles), dtype=np.int8)
    for row in in_test:
        row[order[: counts.randint(FEWEST_TRAIN, MOST_TRAIN)]] = 0
    return in_test
