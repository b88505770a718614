"""Pages of results: blocks, the same page as HTML, Markdown and JSON, and numbers as text."""

from __future__ import annotations

import io
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from dada.experiments.lab import Lab
from dada.experiments.methods import method_of
from dada.experiments.protocol import FAR, ChosenSettings, Pair, Summary
from dada.experiments.tasks import SPECS
from dada.plot import panels
from dada.plot.theme import DARK, LIGHT, Picture, Theme, drawn, new_figure

DASH = "–"
TEXTS = tomllib.loads(files("dada.experiments").joinpath("texts.toml").read_text(encoding="utf-8"))


def percent(mean: float | None, std: float | None = None) -> str:
    """A percentage, with its standard deviation if there is one.

    >>> percent(95.567, 0.214), percent(70.0), percent(None)
    ('95.57 ± 0.21', '70.00', '–')
    """
    if mean is None:
        return DASH
    # A deviation that would be shown as zero comes from rounding.
    return f"{mean:.2f}" if not std or std < 0.005 else f"{mean:.2f} ± {std:.2f}"


def decimal(value: float | None, digits: int = 1) -> str:
    """A number with a fixed number of decimals."""
    return DASH if value is None else f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    """A difference with its sign.

    >>> signed(-0.314)
    '-0.31'
    """
    return DASH if value is None else f"{value:+.2f}"


def settings_text(values: Mapping[str, Any], at_the_end: Sequence[str] = ()) -> str:
    """Hyper-parameters in one line; those at the end of what was tried have a star.

    >>> settings_text({"beta": 10.0, "mu": 0.001}, ["mu"])
    'beta 10, mu 0.001*'
    """
    return ", ".join(f"{name} {value:g}{'*' * (name in at_the_end)}" for name, value in values.items()) or DASH


def bits_text(value: float | None) -> str:
    """A number of bits.

    >>> bits_text(2_872_320), bits_text(512.0)
    ('2.87 Mbit', '512 bit')
    """
    if value is None:
        return DASH
    for factor, unit in ((1e9, "Gbit"), (1e6, "Mbit"), (1e3, "kbit")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} bit"


# Widths of figures: legible on a screen and in print, yet small files.
SCREEN_PIXELS, PRINT_PIXELS = 1000, 1500


class Heading(NamedTuple):
    """The title of a section."""

    text: str


class PageLinks(NamedTuple):
    """A list of other pages: name of the file without its ending, title, remark."""

    items: Sequence[tuple[str, str, str]]


class Table(NamedTuple):
    """Cells as text; the first column is left-aligned, the others are numbers."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


SUMMARY_COLUMNS: dict[str, Callable[[Summary], str]] = {
    "mean over users": lambda summary: percent(summary.mean, summary.std),
    "all rows": lambda summary: percent(summary.pooled, summary.pooled_std),
    "10th percentile": lambda summary: decimal(summary.tenth),
    "worst user": lambda summary: decimal(summary.worst),
    "below their accuracy alone, % of users": lambda summary: decimal(summary.below_alone),
    f"by more than {FAR:g} points, %": lambda summary: decimal(summary.far_below_alone),
    "neighbours": lambda summary: decimal(summary.neighbours),
    "bits sent": lambda summary: bits_text(summary.bits),
}
# Columns that mean nothing for users with a few test rows.
TAILS = {"10th percentile": DASH, "worst user": DASH}


def title_of(pair: Pair) -> str:
    """Dataset and method, as pages name them."""
    return f"{SPECS[pair[0]].title}, {method_of(pair[1]).title}"


def summary_table(
    caption: str,
    columns: Sequence[str],
    chosen: Mapping[Pair, ChosenSettings],
    summaries: Mapping[Pair, Summary],
    more: Callable[[Pair], Mapping[str, str]] = lambda pair: {},
) -> Table:
    """A table with a row per chosen method; `more` gives the cells of columns that are not in `SUMMARY_COLUMNS`."""
    rows = []
    for pair, choice in chosen.items():
        cells = {name: cell(summaries[pair]) for name, cell in SUMMARY_COLUMNS.items()}
        cells |= {"chosen": settings_text(choice.tuned, choice.at_the_end), **more(pair)}
        cells |= TAILS if pair[0] == "vehicle_partial" else {}
        rows.append([method_of(pair[1]).title, *(cells[name] for name in columns)])
    return Table(caption, ["method", *columns], rows)


def dataset_table(caption: str, datasets: Sequence[str], methods: Iterable[str], cell: Callable[[Pair], str]) -> Table:
    """A table with a row per method and a column per dataset."""
    rows = [[method_of(method).title, *(cell((dataset, method)) for dataset in datasets)] for method in methods]
    return Table(caption, ["method", *(SPECS[dataset].title for dataset in datasets)], rows)


class Figure(NamedTuple):
    """A figure, stored as PNG and SVG."""

    name: str
    caption: str
    picture: Picture


def drawing(
    width: float, height: float, columns: int = 1, **layout: Any
) -> Callable[[Callable[[Theme, list[Axes]], None]], Picture]:
    """Decorate a function that draws on a row of axes with grid lines, to get a picture of a size in inches."""

    def decorate(draw: Callable[[Theme, list[Axes]], None]) -> Picture:
        def picture(*, theme: Theme) -> Drawing:
            with theme.applied():
                figure, axes = new_figure(width, height, columns, **layout)
                draw(theme, axes)
                for ax in axes:
                    ax.grid(visible=True)
            return figure

        return picture

    return decorate


# A string is a paragraph, a list of strings is a list of sentences.
Block = str | list[str] | PageLinks | Heading | Table | Figure


def agreement(sentences: list[str]) -> list[Block]:
    """The section of verdicts."""
    return [Heading("What agrees with the paper, and what does not"), sentences]


def verdicts(page: str, **facts: Any) -> list[Block]:
    """The section of verdicts of a page, with the facts filled into its sentences."""
    return agreement([sentence.format(**facts) for sentence in TEXTS[page]["verdicts"]])


def sentence(page: str, name: str, **facts: Any) -> str:
    """A sentence of a page, with the facts filled in."""
    text: str = TEXTS[page][name]
    return text.format(**facts)


@dataclass
class Page:
    """A page of results.

    `data` is the content of the JSON file: every number shown and more, but no time and no path.
    """

    name: str
    title: str
    lead: str
    blocks: Sequence[Block]
    data: dict[str, Any]

    @classmethod
    def of(cls, name: str, lab: Lab, blocks: Sequence[Block], data: dict[str, Any]) -> Page:
        """A page with its title and lead from ``texts.toml``; some leads depend on whether the lab is quick."""
        texts = TEXTS[name]
        lead = texts["lead"].replace("{how}", texts.get("quick" if lab.quick else "full", ""))
        return cls(name, texts["title"], lead, blocks, data)

    def write(self, folder: Path, made_with: dict[str, Any], seconds: int | None = None) -> Path:
        """Write all files of the page into a folder; return the HTML file.

        `seconds` is the processor time behind the page. It is not in the JSON file, which has the same bytes each time.
        """
        folder.mkdir(parents=True, exist_ok=True)
        shown = made_with if seconds is None else made_with | {"processor time": f"{seconds} s"}
        contents = {"json": self.json(made_with), "md": self.markdown(shown), "html": self.html(shown)}
        for ending, content in contents.items():
            (folder / f"{self.name}.{ending}").write_text(content, encoding="utf-8")
        for block in self.blocks:
            if isinstance(block, Figure):
                (folder / f"{self.file_of(block)}.png").write_bytes(drawn_png(block.picture, LIGHT, PRINT_PIXELS))
                (folder / f"{self.file_of(block)}.svg").write_bytes(drawn_svg(block.picture))
        return folder / f"{self.name}.html"

    def json(self, made_with: dict[str, Any]) -> str:
        """The results as JSON; equal results give equal bytes."""
        content = {"name": self.name, "made_with": made_with, **self.data}
        return json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"

    def markdown(self, made_with: dict[str, Any]) -> str:
        """The page as Markdown."""
        parts = [f"# {self.title}", self.lead, *(self._markdown_of(block) for block in self.blocks), _footer(made_with)]
        return "\n\n".join(parts) + "\n"

    def html(self, made_with: dict[str, Any]) -> str:
        """The page as a single HTML file with its figures."""
        sections: list[tuple[str, list[str]]] = [("Result", [])]
        for block in self.blocks:
            if isinstance(block, Heading):
                sections.append((block.text, []))
            else:
                sections[-1][1].append(_html_of(block))
        sections.append(("Made with", [panels.paragraph(_footer(made_with))]))
        return panels.page(
            self.title, self.lead, [panels.Section(title, pieces) for title, pieces in sections if pieces]
        )

    def file_of(self, figure: Figure) -> str:
        """Name of the files of a figure, without their endings."""
        return f"{self.name}-{figure.name}"

    def _markdown_of(self, block: Block) -> str:
        match block:
            case str():
                return block
            case list():
                return "\n".join(f"- {item}" for item in block)
            case PageLinks(items):
                return "\n".join(f"- [{title}]({name}.md) ({remark})" for name, title, remark in items)
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
        case str():
            return panels.paragraph(block)
        case list():
            return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in block) + "</ul>"
        case PageLinks(items):
            links = (f'<a href="{name}.html">{escape(title)}</a> ({escape(remark)})' for name, title, remark in items)
            return "<ul>" + "".join(f"<li>{link}</li>" for link in links) + "</ul>"
        case Table(caption, columns, rows):
            return panels.paragraph(caption) + panels.table(columns, rows)
        case Figure(_, caption, picture):
            light, dark = (drawn_png(picture, theme, SCREEN_PIXELS) for theme in (LIGHT, DARK))
            return panels.figure(light, dark, caption)
        case Heading(text):
            return f"<h2>{escape(text)}</h2>"


def drawn_png(picture: Picture, theme: Theme, pixels: int) -> bytes:
    """A figure of about this width as PNG."""
    width_inches = picture(theme=theme).get_figwidth()
    return drawn(picture, theme, dpi=min(150, round(pixels / width_inches)))


def drawn_svg(picture: Picture) -> bytes:
    """A figure as SVG; equal figures give equal bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "dada"}):
        picture(theme=LIGHT).savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _footer(made_with: dict[str, Any]) -> str:
    """How the page was made; all pages end with it, in all formats."""
    facts = "; ".join(f"{name} {value}" for name, value in made_with.items() if value not in (None, ""))
    return f"Made by dada reproduce. {facts}."
