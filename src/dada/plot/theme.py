"""Colours and fonts of all pictures, for light and dark pages."""

from __future__ import annotations

import base64
import io
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Colours that stay apart for colour-blind readers (Okabe and Ito); a method keeps its colour in every picture.
METHODS = {
    "dada-classifier": ("DadaClassifier()", "#e69f00"),
    "dada-learned": ("Dada-Learned", "#0072b2"),
    "dada-oracle": ("Dada-Oracle", "#009e73"),
    "local-boost": ("Local-boost", "#d55e00"),
    "global-boost": ("Global-boost", "#cc79a7"),
}
OTHER_COLOURS = ("#56b4e9", "#8c6bb1", "#7f7f7f", "#a6761d")


@dataclass(frozen=True)
class Theme:
    """Paper, ink and the fainter inks of a picture."""

    paper: str
    ink: str
    faint: str
    grid: str
    brighter: float = 0.0

    def applied(self) -> AbstractContextManager[None]:
        """Context that draws in this theme, independent of the reader's matplotlib settings."""
        # A context does not restore the backend, without which a notebook shows no further figures.
        settings: Any = {
            **{name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"},
            "figure.facecolor": self.paper,
            "axes.facecolor": self.paper,
            "axes.edgecolor": self.faint,
            "axes.labelcolor": self.ink,
            "axes.titlecolor": self.ink,
            "axes.titlesize": 12,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.titlepad": 10,
            "axes.labelsize": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "grid.color": self.grid,
            "grid.linewidth": 0.8,
            "legend.frameon": False,
            "legend.labelcolor": self.ink,
            "font.family": "DejaVu Sans",
            "font.size": 10,
            "text.color": self.ink,
            "xtick.color": self.faint,
            "ytick.color": self.faint,
            "xtick.labelcolor": self.ink,
            "ytick.labelcolor": self.ink,
        }
        return matplotlib.rc_context(settings)

    def colour_of(self, method: str, position: int = 0) -> Any:
        """The fixed colour of a known method, or a colour by position for others."""
        other = OTHER_COLOURS[position % len(OTHER_COLOURS)]
        rgb = matplotlib.colors.to_rgb(METHODS[method][1] if method in METHODS else other)
        return tuple(channel + (1 - channel) * self.brighter for channel in rgb)


LIGHT = Theme(paper="#ffffff", ink="#1c2430", faint="#8b95a3", grid="#e8ecf0")
DARK = Theme(paper="#14181f", ink="#e6eaf0", faint="#7d8898", grid="#2a313c", brighter=0.25)


class Picture(Protocol):
    """Something that can be drawn in either theme."""

    def __call__(self, *, theme: Theme) -> Figure:
        """The picture as a figure."""


def name_of(method: str) -> str:
    """Display name of a method."""
    return METHODS[method][0] if method in METHODS else method


def new_figure(width: float, height: float, columns: int = 1, **layout: Any) -> tuple[Figure, list[Axes]]:
    """An empty figure, in inches, with a row of axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, **layout)
    return figure, list(axes[0])


def new_axes(width: float, height: float) -> Axes:
    """Axes of a new pyplot figure, which a notebook shows."""
    import matplotlib.pyplot as plt

    figure: Figure = plt.figure(figsize=(width, height), layout="constrained")
    return figure.add_subplot()


def drawn(picture: Picture, theme: Theme = LIGHT, dpi: int = 150) -> bytes:
    """A picture as the bytes of a PNG file; the same picture gives the same bytes."""
    buffer = io.BytesIO()
    picture(theme=theme).savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def data_uri(png: bytes) -> str:
    """A PNG file as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
