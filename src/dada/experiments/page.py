"""Numbers as readers of tables want them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import matplotlib

from dada.experiments.published import Published
from dada.plot.page import Section, paragraph
from dada.plot.page import figure as html_figure
from dada.plot.page import page as html_page
from dada.plot.page import table as html_table
from dada.plot.theme import DARK, LIGHT, Picture, Theme, drawn

NOTHING = "–"


def accuracy(mean: float | None, std: float | None = None) -> str:
    """A percentage with two digits, and its standard deviation where there is one.

    >>> accuracy(95.567, 0.214), accuracy(70.0), accuracy(None)
    ('95.57 ± 0.21', '70.00', '–')
    """
    if mean is None:
        return NOTHING
    # A deviation that would be shown as zero is one of rounding: a method without chance.
    return f"{mean:.2f}" if not std or std < 0.005 else f"{mean:.2f} ± {std:.2f}"


def published(value: Published | None) -> str:
    """A published accuracy."""
    return NOTHING if value is None else accuracy(value.mean, value.std)


def number(value: float | None, digits: int = 1) -> str:
    """A number with so many digits behind the point."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    """A difference with its sign.

    >>> signed(-0.314)
    '-0.31'
    """
    return NOTHING if value is None else f"{value:+.2f}"


def settings(values: Mapping[str, Any]) -> str:
    """Hyper-parameters in one line.

    >>> settings({"beta": 10.0, "mu": 0.001})
    'beta 10, mu 0.001'
    """
    return ", ".join(f"{name} {value:g}" for name, value in values.items()) or NOTHING


def bits(value: float | None) -> str:
    """An amount of bits.

    >>> bits(2_872_320), bits(512.0)
    ('2.87 Mbit', '512 bit')
    """
    if value is None:
        return NOTHING
    for factor, unit in ((1e9, "Gbit"), (1e6, "Mbit"), (1e3, "kbit")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} bit"


# Widths of pictures: enough to read on a screen and in print, little enough to keep pages light.
SCREEN_PIXELS, PRINT_PIXELS = 1000, 1500


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True)
class Heading:
    """The title of a section."""

    text: str


@dataclass(frozen=True)
class Table:
    """Cells as people read them; the first column is text, the others are numbers."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A picture, kept as PNG and SVG."""

    name: str
    caption: str
    picture: Picture


Block = Text | Items | Heading | Table | Figure


@dataclass
class Page:
    """One reproduction.

    Attributes
    ----------
    name, title, lead : str
        Of the files, and for people; the lead says what the page shows.
    blocks : list of Block
        What readers see.
    data : dict
        What the JSON file holds: every number shown and more, but no time and no path.
    """

    name: str
    title: str
    lead: str
    blocks: list[Block] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path, made_with: dict[str, Any]) -> Path:
        """Write all files of the page into a folder; returns the HTML file."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(self.json(made_with), encoding="utf-8")
        (folder / f"{self.name}.md").write_text(self.markdown(made_with), encoding="utf-8")
        for block in self.blocks:
            if isinstance(block, Figure):
                (folder / f"{self.file_of(block)}.png").write_bytes(drawn_png(block.picture, LIGHT, PRINT_PIXELS))
                (folder / f"{self.file_of(block)}.svg").write_bytes(drawn_svg(block.picture))
        page = folder / f"{self.name}.html"
        page.write_text(self.html(made_with), encoding="utf-8")
        return page

    def json(self, made_with: dict[str, Any]) -> str:
        """The results as JSON, the same bytes for the same results."""
        content = {"name": self.name, "made_with": made_with, **self.data}
        return json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"

    def markdown(self, made_with: dict[str, Any]) -> str:
        """The page as Markdown."""
        parts = [f"# {self.title}", self.lead, *(self._markdown_of(block) for block in self.blocks), _footer(made_with)]
        return "\n\n".join(parts) + "\n"

    def html(self, made_with: dict[str, Any]) -> str:
        """The page as one HTML file that carries its figures."""
        sections: list[tuple[str, list[str]]] = [("Result", [])]
        for block in self.blocks:
            if isinstance(block, Heading):
                sections.append((block.text, []))
            else:
                sections[-1][1].append(_html_of(block))
        sections.append(("Made with", [paragraph(_footer(made_with))]))
        return html_page(self.title, self.lead, [Section(title, pieces) for title, pieces in sections if pieces])

    def file_of(self, figure: Figure) -> str:
        """Name of a figure's files, without their endings."""
        return f"{self.name}-{figure.name}"

    def _markdown_of(self, block: Block) -> str:
        match block:
            case Text(text):
                return text
            case Items(items):
                return "\n".join(f"- {item}" for item in items)
            case Heading(text):
                return f"## {text}"
            case Figure(_, caption, _):
                return f"![{caption}]({self.file_of(block)}.png)\n\n*{caption}*"
            case Table(caption, columns, rows):
                align = ["---", *["---:"] * (len(columns) - 1)]
                lines = [columns, align, *rows]
                cells = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
                return f"**{caption}**\n\n" + "\n".join(cells)


def _html_of(block: Block) -> str:
    match block:
        case Text(text):
            return paragraph(text)
        case Items(items):
            return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"
        case Table(caption, columns, rows):
            return paragraph(caption) + html_table(columns, rows)
        case Figure(_, caption, picture):
            light, dark = (drawn_png(picture, theme, SCREEN_PIXELS) for theme in (LIGHT, DARK))
            return html_figure(light, dark, caption)
        case Heading(text):
            return f"<h2>{escape(text)}</h2>"


def drawn_png(picture: Picture, theme: Theme, pixels: int) -> bytes:
    """A picture of about this width as the bytes of a PNG file."""
    width_inches = picture(theme=theme).get_figwidth()
    return drawn(picture, theme, dpi=min(150, round(pixels / width_inches)))


def drawn_svg(picture: Picture) -> bytes:
    """A picture as the bytes of an SVG file, the same bytes for the same picture."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "dada"}):
        picture(theme=LIGHT).savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _footer(made_with: dict[str, Any]) -> str:
    facts = "; ".join(f"{name} {value}" for name, value in made_with.items() if value not in (None, ""))
    return f"Made by dada reproduce. {facts}."
