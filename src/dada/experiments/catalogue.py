"""The pages that can be made, and how each is made and written."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dada
from dada.data.datasets import entry_of
from dada.experiments.beyond import beyond
from dada.experiments.budget import budget, table2
from dada.experiments.kappa import kappa_page
from dada.experiments.lab import Lab
from dada.experiments.moons import graph_page, moons100_page, moons_page, size_page
from dada.experiments.page import Heading, Page, PageLinks
from dada.experiments.table1 import table1
from dada.experiments.tasks import REAL, present

_PACKAGES = ("numpy", "numba", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Reproduction:
    """A page that can be made, and its place in the paper.

    `make` makes it with a lab for some of the `real` datasets: those that are present, at least one if it `needs_data`.
    """

    name: str
    title: str
    source: str
    make: Callable[[Lab, Sequence[str]], Page]
    real: tuple[str, ...] = ()
    needs_data: bool = False

    def datasets(self, only: str | None = None) -> tuple[list[str], list[str]]:
        """The real datasets that the page can show, and notes about the missing ones; `only` must be present."""
        wanted = self.real if only is None else tuple(dataset for dataset in self.real if dataset == only)
        found = present(wanted)
        # The part of Vehicle Sensor only replaces the whole: its absence needs no note.
        absent = [dataset for dataset in wanted if dataset not in found and dataset != "vehicle_partial"]
        notes = [f"{dataset} is left out; to add it, {entry_of(dataset).how_to_get}" for dataset in absent]
        if only is not None and wanted and not found:
            raise FileNotFoundError(f"no dataset {only}; to get it, {entry_of(only).how_to_get}")
        if self.needs_data and not found:
            raise FileNotFoundError(f"{self.name} needs real data. {'. '.join(notes)}")
        return found, notes

    def write(self, lab: Lab, datasets: Sequence[str], out: Path) -> Page:
        """Make the page and write its files; its duration goes to ``timing.json``."""
        started = time.monotonic()
        page = self.make(lab, datasets)
        page.write(out, made_with(lab))
        timing = out / "timing.json"
        times = json.loads(timing.read_text(encoding="utf-8")) if timing.is_file() else {}
        times[self.name] = round(time.monotonic() - started, 1)
        timing.write_text(json.dumps(times, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return page


CATALOGUE = {
    entry.name: entry
    for entry in (
        Reproduction("table1", "Test accuracy on real data", "Table 1 and its standard deviations", table1, REAL, True),
        Reproduction("table2", "Test accuracy under communication budgets", "Table 2", table2, REAL, True),
        Reproduction("moons", "Accuracy and neighbours while learning, Moons", "Figure 1", moons_page),
        Reproduction("graph", "Oracle and learned graph, Moons", "Figure 2", graph_page),
        Reproduction("kappa", "Objective against wake-ups and bits, by kappa", "supplement", kappa_page),
        Reproduction("size", "Accuracy against local dataset size", "supplement", size_page, ("harws",)),
        Reproduction("budget", "Accuracy against bits sent", "supplement", budget, REAL, True),
        Reproduction("moons100", "Users without groups, and the effect of lambda", "supplement", moons100_page),
        Reproduction("beyond", "Better than the paper, and where not", "not in the paper", beyond, REAL),
    )
}


def write_index(links: Sequence[tuple[str, str, str]], lab: Lab, out: Path) -> Path:
    """Write the index of some pages, given by name, title and place in the paper; return its HTML file."""
    return Page.of("index", lab, [Heading("Pages"), PageLinks(links)], {}).write(out, made_with(lab))


def made_with(lab: Lab) -> dict[str, Any]:
    """Versions, commit and seed: what is needed to make the same results again. Every page records it."""
    return {
        "dada": dada.__version__,
        "commit": commit(Path(dada.__file__).parent),
        "seed": lab.seed,
        "mode": "quick" if lab.quick else "full",
        "Python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
    }


def commit(folder: Path) -> str | None:
    """The commit of a folder, with a plus if its files have changed since; None outside a repository."""
    try:
        head = _git(folder, "rev-parse", "--short=10", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
