"""Make pages, and an index of them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

from dada.data.datasets import entry_of
from dada.experiments.catalogue import CATALOGUE
from dada.experiments.data import present
from dada.experiments.environment import made_with
from dada.experiments.lab import Lab
from dada.experiments.page import Page
from dada.plot.page import Section, paragraph
from dada.plot.page import page as html_page

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
