"""With what results were made: versions, commit, seed."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dada
from dada.data.datasets import entry_of
from dada.experiments.beyond import beyond
from dada.experiments.budget import budget, table2
from dada.experiments.data import REAL, present
from dada.experiments.kappa import kappa_page
from dada.experiments.lab import Lab
from dada.experiments.moons import graph_page, moons100_page, moons_page, size_page
from dada.experiments.page import Page
from dada.experiments.table1 import table1
from dada.plot.page import Section, paragraph
from dada.plot.page import page as html_page

_PACKAGES = ("numpy", "numba", "scipy", "scikit-learn")


def made_with(lab: Lab) -> dict[str, Any]:
    """Everything a reader needs to make the same results again."""
    return {
        "dada": dada.__version__,
        "commit": commit(Path(dada.__file__).parent),
        "seed": lab.seed,
        "mode": "quick" if lab.quick else "full",
        "Python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
    }


def commit(folder: Path) -> str | None:
    """The commit a folder is at, with a plus where its files have changed since; None outside a repository."""
    try:
        head = _git(folder, "rev-parse", "--short=10", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


TITLE = "The paper, reproduced"
LEAD = (
    "Every table and figure of Fully Decentralized Joint Learning of Personalized Models and Collaboration Graphs "
    "(AISTATS 2020), made anew, with what agrees and what does not."
)


def datasets_for(name: str, only: str | None) -> tuple[list[str], list[str]]:
    """The real datasets a page can show, and sentences about those that are missing.

    Parameters
    ----------
    name : str
        A key of `CATALOGUE`.
    only : str, optional
        The one dataset asked for; it must be there.
    """
    page = CATALOGUE[name]
    wanted = page.real if only is None else tuple(dataset for dataset in page.real if dataset == only)
    found = present(wanted)
    # The part of Vehicle Sensor is only a stand-in: nobody needs to be told that it is missing.
    absent = [dataset for dataset in wanted if dataset not in found and dataset != "vehicle_partial"]
    notes = [f"{dataset} is left out; to have it, {entry_of(dataset).how_to_get}" for dataset in absent]
    if only is not None and wanted and not found:
        raise FileNotFoundError(f"no dataset {only}; to get it, {entry_of(only).how_to_get}")
    if page.needs_data and not found:
        raise FileNotFoundError(f"{name} needs real data. {'. '.join(notes)}")
    return found, notes


def make_page(name: str, lab: Lab, datasets: Sequence[str], out: Path) -> Page:
    """Make one page and write its files; what it took is kept apart, in ``timing.json``."""
    started = time.monotonic()
    page = CATALOGUE[name].make(lab, datasets)
    page.write(out, made_with(lab))
    _note_time(out / "timing.json", name, time.monotonic() - started)
    return page


def write_index(pages: Sequence[Page], lab: Lab, out: Path) -> Path:
    """Write the index of some pages as HTML and Markdown; returns the HTML file."""
    lines = [f"- [{page.title}]({page.name}.md) ({CATALOGUE[page.name].source})" for page in pages]
    facts = made_with(lab)
    footer = "; ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    text = f"# {TITLE}\n\n{LEAD}\n\n" + "\n".join(lines) + f"\n\nMade with {footer}.\n"
    (out / "index.md").write_text(text, encoding="utf-8")
    items = "".join(
        f'<li><a href="{page.name}.html">{escape(page.title)}</a> ({escape(CATALOGUE[page.name].source)})</li>'
        for page in pages
    )
    sections = [Section("Pages", [f"<ul>{items}</ul>"]), Section("Made with", [paragraph(f"{footer}.")])]
    index = out / "index.html"
    index.write_text(html_page(TITLE, LEAD, sections), encoding="utf-8")
    return index


def _note_time(path: Path, name: str, seconds: float) -> None:
    times = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    times[name] = round(seconds, 1)
    path.write_text(json.dumps(times, indent=1, sort_keys=True) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Reproduction:
    """A page that can be made.

    Attributes
    ----------
    name, title : str
        On the command line, and for people.
    source : str
        Where it stands in the paper.
    make : callable
        Makes the page with a lab, for the real datasets given.
    real : tuple of str
        The real datasets it shows, where they are present.
    needs_data : bool
        Whether it shows nothing without them.
    """

    name: str
    title: str
    source: str
    make: Callable[[Lab, Sequence[str]], Page]
    real: tuple[str, ...] = ()
    needs_data: bool = False


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
