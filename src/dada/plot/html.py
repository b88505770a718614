"""Self-contained web pages with light and dark mode, and the HTML that notebooks show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.plot.panels import graph as draw
from dada.plot.panels import model_panel
from dada.plot.theme import Theme, data_uri, drawn, new_figure

_STYLE = "\n" + files("dada.plot").joinpath("page.css").read_text(encoding="utf-8")

# The browser loads nothing but the embedded pictures and styles.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


# Shown on narrow screens, where tables and pictures are wider than the page.
HINT = '<p class="hint">Scroll sideways to see all of it.</p>'


@dataclass(frozen=True)
class Section:
    """A heading and its content, as pieces of HTML from `paragraph`, `table` and `figure`."""

    title: str
    pieces: Sequence[str]


def paragraph(text: str) -> str:
    """A paragraph; text between backquotes is set as code."""
    parts = escape(text, quote=False).split("`")
    return "<p>" + "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts)) + "</p>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], best: int | None = None) -> str:
    """A table of text cells; the row at position `best` is highlighted."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = []
    for position, row in enumerate(rows):
        mark = ' class="best"' if position == best else ""
        body.append(f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'{HINT}<div class="scroll">{whole}</div>'


def figure(light: bytes, dark: bytes, caption: str) -> str:
    """A picture with its caption, as two embedded PNG files: for light and for dark mode."""
    words = escape(caption)
    return (
        f'<figure>{HINT}<div class="scroll"><picture>'
        f'<source media="(prefers-color-scheme: dark)" srcset="{data_uri(dark)}">'
        f'<img src="{data_uri(light)}" alt="{words}"></picture></div><figcaption>{words}</figcaption></figure>'
    )


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page."""
    body = "".join(f"<section><h2>{escape(part.title)}</h2>{''.join(part.pieces)}</section>" for part in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f'<body><main><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{body}</main></body></html>\n'
    )


#: Larger graphs take long to lay out, and their nodes would overlap.
MOST_DRAWN = 300


def graph_png(
    graph: CollaborationGraph,
    *,
    confidence: Array | None = None,
    loss: Array | None = None,
    names: Sequence[Any] | None = None,
    positions: Array | None = None,
) -> bytes | None:
    """A graph as the bytes of a PNG file; None if it has too many users to be drawn."""
    if not 0 < graph.n_users <= MOST_DRAWN:
        return None

    def picture(*, theme: Theme) -> Figure:
        with theme.applied():
            figure, (ax,) = new_figure(4.6, 4.6)
            draw(graph, ax, confidence=confidence, loss=loss, names=names, positions=positions, theme=theme)
        return figure

    return drawn(picture, dpi=110)


def graph_facts(graph: CollaborationGraph) -> dict[str, str]:
    """Summary of a graph, for a table."""
    counts = graph.neighbour_counts
    facts = {"users": f"{graph.n_users:,}", "edges": f"{graph.n_edges:,}" + (" (directed)" if graph.directed else "")}
    if graph.n_users:
        facts["neighbours"] = f"{counts.min()} to {counts.max()}, {graph.mean_neighbours:.1f} on average"
        facts["without neighbours"] = f"{(counts == 0).sum():,}"
    if graph.n_edges:
        w = graph.weights
        facts["weights"] = f"{w.min():.3g} to {w.max():.3g}, median {np.median(w):.3g}"
    return facts


def model_html(model: Any) -> str:
    """A fitted estimator's graph, drawn with its users' names, and a summary of the fit."""
    accuracy = model.trace_[-1].train_accuracy
    facts = graph_facts(model.graph_)
    if accuracy.size:
        facts["accuracy on training rows"] = f"{100 * np.nanmean(accuracy):.1f} %, mean over users"
    facts |= {"base predictors": f"{model.models_.shape[1]:,}", "sent": f"{model.bits_:.3g} bits"}
    facts["fit"] = model.status_.value
    title, caption, picture = "Who learns from whom", "", None
    if model.n_users_ <= MOST_DRAWN:
        panel = model_panel(model)
        title, caption = panel.title, panel.caption
        drawn_of: Any = {"loss": panel.loss, "names": panel.labels, "positions": panel.places}
        picture = graph_png(panel.graph, confidence=panel.confidence, **drawn_of)
    return as_html(title, facts, picture, caption)


def as_html(title: str, facts: Mapping[str, str], picture: bytes | None, caption: str = "") -> str:
    """A title and a table, next to a picture with its caption if given, as self-contained HTML."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in facts.items()
    )
    image = f"<img src='{data_uri(picture)}' alt='graph' style='max-width:420px'>" if picture else ""
    words = f"<p style='max-width:420px'>{escape(caption)}</p>" if caption else ""
    return (
        f"<div style='display:flex;flex-wrap:wrap;gap:24px;align-items:flex-start'>{image}"
        f"<div><strong>{escape(title)}</strong><table>{rows}</table>{words}</div></div>"
    )
