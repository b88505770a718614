"""The published numbers, from the file ``published.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import NamedTuple

from dada.experiments.ladders import Settings
from dada.experiments.tasks import SPECS

SOURCE = (
    "Published numbers: V. Zantedeschi, A. Bellet, M. Tommasi: Fully Decentralized Joint Learning of Personalized "
    "Models and Collaboration Graphs. AISTATS 2020."
)
# Supplement: neighbours per user on Moons100, and bits for learning the graph of Moons with kappa = 1.
MOONS100_LEARNED_NEIGHBOURS = 42.64
MOONS100_ORACLE_NEIGHBOURS = 60.86
KAPPA_ONE_BITS = 5e5
EVERY_WEIGHT_TO_EVERYONE_BITS = 1.6e7
_FILE = tomllib.loads(files("dada.experiments").joinpath("published.toml").read_text(encoding="utf-8"))
BUDGET_FACTORS = tuple(map(int, _FILE["table2"]))


class Published(NamedTuple):
    """A published accuracy; `std` is over three runs, None for deterministic methods."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class AuthorsRun:
    """A run with the settings of the authors, as far as they are known; `pooled` weights all test rows equally."""

    dataset: str
    method: str
    settings: Settings
    pooled: bool = False
    is_known: bool = True
    note: str = ""


AUTHORS = tuple(AuthorsRun(**run) for run in _FILE["authors"])


def accuracy_of(dataset: str, method: str) -> Published | None:
    """The number of Table 1; None if the paper has none."""
    found = _FILE["table1"].get(method, {}).get(SPECS[dataset].column)
    return None if found is None else Published(*found)


def best_accuracy_of(dataset: str) -> float | None:
    """The best number of a column of Table 1; None if the paper has no such column."""
    means = [found.mean for method in _FILE["table1"] if (found := accuracy_of(dataset, method)) is not None]
    return max(means, default=None)


def budget_accuracy_of(dataset: str, method: str, factor: int) -> float | None:
    """The number of Table 2; None if the paper has none."""
    found: float | None = _FILE["table2"][str(factor)][method].get(SPECS[dataset].column)
    return found
