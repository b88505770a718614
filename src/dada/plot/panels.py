"""The collaboration graph as a drawing and as a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.plot.layout import force_layout
from dada.plot.theme import LIGHT, Theme, new_figure

# From large loss to small: greener is better, and lightness alone tells the order too.
LOSS_COLOURS = LinearSegmentedColormap.from_list(
    "loss", ["#0b6b3a", "#3fae5a", "#a6d96a", "#fee08b", "#f98e52", "#c9302c"]
)
MOST_LABELS = 150
NODE_RADIUS = 0.03
# Up to so many users, nodes have their full size.
ROOMY = 100
SIDE_POINTS = 460.0


@dataclass(frozen=True, eq=False)
class GraphPanel:
    """One graph with what its drawing shows.

    Attributes
    ----------
    title : str
        Written above.
    graph : CollaborationGraph
        Edges; darker is heavier.
    confidence : array of shape (n_users,)
        Node sizes, in (0, 1].
    loss : array of shape (n_users,)
        Node colours; greener is smaller.
    labels : sequence of str
        Written on the nodes.
    """

    title: str
    graph: CollaborationGraph
    confidence: Array
    loss: Array
    labels: Sequence[str]

    @cached_property
    def positions(self) -> Array:
        """Where the nodes stand."""
        return force_layout(self.graph, node_radius(self.confidence))


def node_radius(confidence: Array) -> Array:
    """Radius of the nodes in a picture whose side is 1; the area grows with confidence, and shrinks in a crowd."""
    crowd = np.sqrt(min(1.0, ROOMY / np.size(confidence)))
    return NODE_RADIUS * crowd * np.sqrt(0.2 + 0.8 * confidence)


def graph_picture(panels: Sequence[GraphPanel], theme: Theme = LIGHT) -> Figure:
    """Graphs side by side: node size is confidence, colour is loss, edge darkness is weight.

    Examples
    --------
    >>> graph = CollaborationGraph.from_edges(3, [0, 1], [1, 2], [1.0, 0.5])
    >>> panel = GraphPanel("learned", graph, np.ones(3), np.arange(3.0), list("abc"))
    >>> len(graph_picture([panel]).axes)
    2
    """
    with theme.applied():
        figure, axes = new_figure(7.2 * len(panels) + 0.6, 7.6, columns=len(panels))
        for ax, panel in zip(axes, panels, strict=True):
            draw_graph(ax, theme, panel)
        scale = ScalarMappable(Normalize(0, 1), LOSS_COLOURS)
        bar = figure.colorbar(scale, ax=axes, location="bottom", shrink=0.3, aspect=40, pad=0.02)
        bar.set_ticks([0, 1], labels=["smallest loss", "largest"])
        bar.ax.tick_params(length=0)
        bar.set_label("node size: confidence      edge darkness: weight", fontsize=9)
        bar.outline.set_visible(False)
    return figure


def draw_graph(ax: Axes, theme: Theme, panel: GraphPanel, side_points: float = SIDE_POINTS) -> None:
    """Draw a graph on axes whose shorter side has the given length, in points."""
    k, l, w = panel.graph.edges()
    order = np.argsort(w)
    k, l, w = k[order], l[order], w[order]
    if w.size:
        darkness = np.sqrt(np.minimum(w / np.percentile(w, 97), 1.0))
        # Many edges lie over each other: the more there are, the fainter each is drawn.
        darkest = np.clip(12.0 / np.sqrt(w.size), 0.05, 0.8)
        ink = np.array(to_rgb(theme.ink))
        colours = np.column_stack([np.tile(ink, (w.size, 1)), 0.03 + darkest * darkness**1.5])
        segments = np.stack([panel.positions[k], panel.positions[l]], axis=1)
        ax.add_collection(LineCollection(list(segments), colors=colours, linewidths=0.35 + 1.1 * darkness, zorder=1))
    sizes = np.pi * (side_points * node_radius(panel.confidence)) ** 2
    low, high = np.percentile(panel.loss, [2, 98])
    fill = LOSS_COLOURS(Normalize(low, high, clip=True)(panel.loss))
    x, y = panel.positions.T
    ax.scatter(x, y, s=sizes, c=fill, edgecolors=theme.paper, linewidths=1.2, zorder=2)
    if panel.graph.n_users <= MOST_LABELS:
        _label_nodes(ax, panel, fill, side_points / SIDE_POINTS)
    ax.set(title=panel.title, xlim=(-0.05, 1.05), ylim=(-0.05, 1.05), aspect="equal")
    ax.set_axis_off()


def _label_nodes(ax: Axes, panel: GraphPanel, fill: Any, scale: float) -> None:
    lightness = fill[:, :3] @ np.array([0.299, 0.587, 0.114])
    for (x, y), label, light, confidence in zip(
        panel.positions, panel.labels, lightness, panel.confidence, strict=True
    ):
        colour = "#10151c" if light > 0.5 else "#ffffff"
        size = scale * (5.0 + 4.0 * confidence)
        ax.text(x, y, label, ha="center", va="center_baseline", fontsize=size, color=colour, zorder=3)


def weight_picture(
    panels: Sequence[GraphPanel], groups: Array, group_names: Sequence[str], theme: Theme = LIGHT
) -> Figure:
    """Weight matrices side by side, users sorted by group; within each matrix darker is heavier.

    Parameters
    ----------
    panels : sequence of GraphPanel
        The graphs, of the same users.
    groups : array of shape (n_users,)
        Which group a user belongs to.
    group_names : sequence of str
        Written along the axes.
    theme : Theme
        Colours.

    Examples
    --------
    >>> graph = CollaborationGraph.from_edges(3, [0, 1], [1, 2], [1.0, 0.5])
    >>> panel = GraphPanel("learned", graph, np.ones(3), np.arange(3.0), list("abc"))
    >>> len(weight_picture([panel], np.array([0, 0, 1]), ["a", "b"]).axes)
    1
    """
    with theme.applied():
        figure, axes = new_figure(5.6 * len(panels), 5.7, columns=len(panels))
        for ax, panel in zip(axes, panels, strict=True):
            draw_weights(ax, theme, panel.graph, groups, group_names)
            ax.set_title(panel.title)
    return figure


def draw_weights(ax: Axes, theme: Theme, graph: CollaborationGraph, groups: Array, group_names: Sequence[str]) -> None:
    """Draw a weight matrix, users sorted by group."""
    order = np.argsort(groups, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=len(group_names)))])
    colours = LinearSegmentedColormap.from_list("weight", [theme.paper, theme.ink])
    weights = graph.to_scipy().toarray()[np.ix_(order, order)]
    heaviest = np.percentile(weights[weights > 0], 97) if (weights > 0).any() else 1.0
    shade = np.sqrt(np.minimum(weights / heaviest, 1.0))
    ax.imshow(shade, cmap=colours, vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    _mark_groups(ax, theme, starts, group_names)


def _mark_groups(ax: Axes, theme: Theme, starts: Array, names: Sequence[str]) -> None:
    for start in starts[1:-1]:
        ax.axhline(start - 0.5, color=theme.faint, linewidth=0.8)
        ax.axvline(start - 0.5, color=theme.faint, linewidth=0.8)
    middles = (starts[:-1] + starts[1:] - 1) / 2
    ax.set_xticks(middles, names)
    ax.set_yticks(middles, names)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(True)
