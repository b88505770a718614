"""Graphs as readers see them: nodes and edges, weight matrices, and the web pages and notebooks that show them.

Pages are self-contained, with light and dark mode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.plot.theme import LIGHT, METHODS, Theme, data_uri, drawn, new_axes, new_figure

# Greener is a smaller loss; the lightness is ordered too.
LOSS_COLOURS = LinearSegmentedColormap.from_list(
    "loss", ["#0b6b3a", "#3fae5a", "#a6d96a", "#fee08b", "#f98e52", "#c9302c"]
)
# Colours of kinds of users, in their order, are those of methods; they stay apart for colour-blind readers.
KIND_COLOURS = tuple(METHODS)
MOST_LABELS = 150
# Width of a letter as a share of its size, and the smallest size of names, in points.
LETTER, SMALLEST_LETTERS = 0.8, 3.8
NODE_RADIUS = 0.03
# Up to this number of users, nodes have their full size.
ROOMY = 100
SIDE_POINTS = 460.0
ROUNDS = 100


def force_layout(graph: CollaborationGraph, radius: Array | float = 0.01, seed: int = 0) -> Array:
    """Positions of the users in the unit square by networkx's force-directed layout, with discs that do not overlap.

    The force of an edge is its weight divided by the root of the degrees of its ends, so that a few heavy hubs do not
    pull all users together. The cost is quadratic in the number of users.

    Examples
    --------
    >>> graph = CollaborationGraph.from_edges(4, [0, 2], [1, 3], [1.0, 1.0])
    >>> places = force_layout(graph)
    >>> bool(np.linalg.norm(places[0] - places[1]) < np.linalg.norm(places[0] - places[2]))
    True
    """
    import networkx

    K, (k, l, w) = graph.n_users, graph.symmetrised().edges()
    degree = np.bincount(k, w, K) + np.bincount(l, w, K)
    forces = CollaborationGraph.from_edges(K, k, l, w / np.sqrt(degree[k] * degree[l])).to_networkx()
    # From 500 users on, networkx loops over the users in Python.
    rounds = ROUNDS if K < 500 else ROUNDS // 5
    found = networkx.spring_layout(forces, k=2 / np.sqrt(K), iterations=rounds, seed=seed, method="force")
    places = np.array([found[user] for user in range(K)])
    return _without_overlap(_in_unit_square(places), np.broadcast_to(radius, K))


def model_layout(models: Array, radius: Array | float = 0.01, seed: int = 0) -> Array:
    """Positions of users in the unit square by the two principal components of their models, without overlap.

    Examples
    --------
    >>> places = model_layout(np.array([[1.0, 0.0], [1.1, 0.0], [-1.0, 0.1]]))
    >>> bool(np.linalg.norm(places[0] - places[1]) < np.linalg.norm(places[0] - places[2]))
    True
    """
    centred = models - models.mean(axis=0, dtype=np.float64)
    axes, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    places = np.zeros((len(models), 2))
    places[:, : min(2, sizes.size)] = (axes * sizes)[:, :2]
    # Equal models would stay on top of each other.
    places = _in_unit_square(places) + np.random.default_rng(seed).normal(scale=1e-3, size=places.shape)
    return _without_overlap(_in_unit_square(places), np.broadcast_to(radius, len(models)))


def _in_unit_square(places: Array) -> Array:
    low, high = places.min(axis=0), places.max(axis=0)
    side = max(float((high - low).max()), 1e-12)
    centred: Array = 0.5 + (places - (low + high) / 2) / side
    return centred


def _without_overlap(places: Array, radius: Array) -> Array:
    """Push overlapping discs apart, round by round, then fit the result into the unit square again."""
    apart = 1.12 * (radius[:, None] + radius[None, :])
    np.fill_diagonal(apart, 0.0)
    for _ in range(200):
        x, y = places.T
        distance = np.maximum(np.hypot(x[:, None] - x, y[:, None] - y), 1e-9)
        overlap = np.maximum(apart - distance, 0.0)
        if not overlap.any():
            break
        push = overlap / distance
        places = places + 0.35 * (places * push.sum(axis=1, keepdims=True) - push @ places)
    return _in_unit_square(places)


@dataclass(frozen=True, eq=False)
class GraphPanel:
    """One graph and what its drawing shows: node size is confidence, colour is loss, labels are on the nodes.

    Nodes are at the `places` given, in the unit square; by default where the forces of the edges put them. Where losses
    are not known (NaN), colours are those of `kinds`: the number of each user's kind, 0, 1, ..., and the kinds' names;
    without kinds all users have the same.
    """

    title: str
    graph: CollaborationGraph
    confidence: Array
    loss: Array
    labels: Sequence[str]
    places: Array | None = None
    caption: str = ""
    kinds: tuple[Array, Sequence[str]] | None = None

    @cached_property
    def positions(self) -> Array:
        """Positions of the nodes in the unit square."""
        return force_layout(self.graph, node_radius(self.confidence)) if self.places is None else self.places


def model_panel(model: Any, kinds: tuple[Array, Sequence[str]] | None = None) -> GraphPanel:
    """The panel of a fitted estimator; `kinds` as in `GraphPanel`.

    If everyone learns from everyone alike, the edges are random and not drawn: users with similar models are close.
    """
    *_, name = (frame := model.users_frame()).columns
    scores = frame[name].to_numpy()
    errors = 1 - scores if name == "train_accuracy" else scores
    if np.isfinite(errors).any():
        errors = np.where(np.isnan(errors), np.nanmean(errors), errors)
    about: Any = {
        "confidence": model.confidence_,
        "loss": errors,
        "labels": [str(user) for user in model.users_.tolist()],
        "kinds": kinds,
    }
    if model.settings_.get("graph") == "everyone":
        places = model_layout(model.models_, node_radius(model.confidence_))
        caption = "Everyone learns from everyone alike. Users with similar models are close (two principal components)."
        return GraphPanel(
            "Who resembles whom", CollaborationGraph.empty(model.n_users_), places=places, caption=caption, **about
        )
    caption = "Arrows point to the users that are learned from." if model.graph_.directed else ""
    return GraphPanel("Who learns from whom", model.graph_, caption=caption, **about)


def node_radius(confidence: Array) -> Array:
    """Radius of the nodes in a unit square; the area grows with confidence and shrinks with many users."""
    shrinkage = np.sqrt(min(1.0, ROOMY / np.size(confidence)))
    return NODE_RADIUS * shrinkage * np.sqrt(0.2 + 0.8 * confidence)


def graph(
    graph: CollaborationGraph,
    ax: Axes | None = None,
    *,
    confidence: Array | None = None,
    loss: Array | None = None,
    names: Sequence[Any] | None = None,
    positions: Array | None = None,
    theme: Theme = LIGHT,
) -> Axes:
    """Draw a graph: node size is confidence, colour is loss (greener is smaller), edge darkness is weight.

    In a directed graph, arrows point to the users that are learned from.

    Parameters
    ----------
    graph : CollaborationGraph
        At most a few hundred users are distinguishable.
    ax : matplotlib axes, optional
        Axes to draw on; by default those of a new figure.
    confidence, loss : arrays of shape (n_users,), optional
        Sizes, in (0, 1], and colours; by default the same for all users.
    names : sequence, optional
        Labels of the nodes, drawn for up to 150 users; by default their numbers.
    positions : array of shape (n_users, 2), optional
        Places of the nodes in the unit square, such as those of `model_layout`; by default by the forces of edges.

    Returns
    -------
    The axes, with the nodes and edges.

    Examples
    --------
    >>> triangle = CollaborationGraph.from_edges(3, [0, 1, 0], [1, 2, 2], [1.0, 0.5, 0.1])
    >>> ax = graph(triangle, loss=np.array([0.1, 0.2, 0.9]), names=["ann", "bob", "cid"])
    >>> [text.get_text() for text in ax.texts]
    ['ann', 'bob', 'cid']
    """
    ax = new_axes(6.0, 6.0) if ax is None else ax
    K = graph.n_users
    sizes, colours = (np.ones(K) if given is None else np.asarray(given, float) for given in (confidence, loss))
    labels = [str(name) for name in (range(K) if names is None else names)]
    for what, given in (("confidence", sizes), ("loss", colours), ("names", labels)):
        if len(given) != K:
            raise ValueError(f"{what} must have an entry for each of the {K} users, got {len(given)}")
    box = ax.get_window_extent()
    side = min(box.width, box.height) * 72 / ax.get_figure(root=True).dpi  # type: ignore[union-attr]
    # A margin surrounds the unit square of the nodes.
    _draw_graph(ax, theme, GraphPanel("", graph, sizes, colours, labels, positions), side / 1.1)
    return ax


def weights(
    graph: CollaborationGraph,
    ax: Axes | None = None,
    *,
    groups: Array | None = None,
    group_names: Sequence[str] | None = None,
    theme: Theme = LIGHT,
) -> Axes:
    """Draw the weight matrix, darker for heavier, users sorted by group.

    Parameters
    ----------
    graph : CollaborationGraph
        At most a few thousand users: the matrix is dense.
    groups : array of shape (n_users,), optional
        The group of each user, 0, 1, ...; by default one group.
    group_names : sequence of str, optional
        Labels of the axes; by default the numbers.
    ax : matplotlib axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    The axes, with the image of the matrix.

    Examples
    --------
    >>> pair = CollaborationGraph.from_edges(3, [0], [2], [1.0])
    >>> weights(pair, groups=np.array([0, 1, 0]), group_names=["a", "b"]).images[0].get_array().shape
    (3, 3)
    """
    ax = new_axes(5.0, 5.0) if ax is None else ax
    numbers = np.zeros(graph.n_users, np.int64) if groups is None else np.asarray(groups)
    if numbers.shape != (graph.n_users,):
        raise ValueError(f"groups must have an entry for each of the {graph.n_users} users, got {numbers.shape}")
    if group_names is None:
        group_names = [""] if groups is None else [str(number) for number in range(int(numbers.max()) + 1)]
    _draw_weights(ax, theme, graph, numbers, group_names)
    return ax


def graph_picture(panels: Sequence[GraphPanel], theme: Theme = LIGHT, measure: str = "loss") -> Figure:
    """Figure of graphs side by side: node size is confidence, colour the measured loss, edge darkness weight."""
    with theme.applied():
        figure, axes = new_figure(7.2 * len(panels) + 0.6, 7.6, columns=len(panels))
        losses = np.concatenate([panel.loss for panel in panels])
        words = "node size: confidence" + "      edge darkness: weight" * any(panel.graph.n_edges for panel in panels)
        if np.isnan(losses).any():
            for ax, panel in zip(axes, panels, strict=True):
                _draw_graph(ax, theme, panel)
            _name_kinds(figure, theme, panels[0], words)
            return figure
        # One scale of colours: panels are compared.
        low, high = np.percentile(losses, [2, 98])
        for ax, panel in zip(axes, panels, strict=True):
            _draw_graph(ax, theme, panel, colours=Normalize(low, high, clip=True))
        scale = ScalarMappable(Normalize(0, 1), LOSS_COLOURS)
        bar = figure.colorbar(scale, ax=axes, location="bottom", shrink=0.3, aspect=40, pad=0.02)
        bar.set_ticks([0, 1], labels=[f"smallest {measure}", "largest"])
        bar.ax.tick_params(length=0)
        bar.set_label(words, fontsize=9)
        bar.outline.set_visible(False)
    return figure


def _name_kinds(figure: Figure, theme: Theme, panel: GraphPanel, title: str) -> None:
    """A legend of the kinds of users below the figure."""
    numbers, names = panel.kinds if panel.kinds is not None else (np.zeros(0, np.int64), ())
    present = np.unique(numbers).tolist()
    marks = [
        Line2D([], [], linestyle="", marker="o", markersize=9, color=_kind_colour(theme, kind)) for kind in present
    ]
    legend = figure.legend(
        marks,
        [names[kind] for kind in present],
        title=title,
        loc="outside lower center",
        ncols=min(6, len(present) or 1),
    )
    legend.get_title().set_fontsize(9)


def _kind_colour(theme: Theme, kind: int) -> Any:
    return theme.colour_of(KIND_COLOURS[kind]) if kind < len(KIND_COLOURS) else theme.colour_of("", kind)


def _draw_graph(
    ax: Axes, theme: Theme, panel: GraphPanel, side_points: float = SIDE_POINTS, colours: Normalize | None = None
) -> None:
    """Draw a graph on axes whose shorter side has the given length, in points."""
    k, l, w = panel.graph.edges()
    order = np.argsort(w)
    k, l, w = k[order], l[order], w[order]
    if w.size:
        darkness = np.sqrt(np.minimum(w / np.percentile(w, 97), 1.0))
        # Many edges overlap: the more there are, the fainter each is drawn.
        darkest = np.clip(12.0 / np.sqrt(w.size), 0.05, 0.8)
        ink = np.array(to_rgb(theme.ink))
        shades = np.column_stack([np.tile(ink, (w.size, 1)), 0.03 + darkest * darkness**1.5])
        segments = np.stack([panel.positions[k], panel.positions[l]], axis=1)
        ax.add_collection(LineCollection(list(segments), colors=shades, linewidths=0.35 + 1.1 * darkness, zorder=1))
        if panel.graph.directed:
            heads = _arrow_heads(panel.positions[k], panel.positions[l], node_radius(panel.confidence)[l])
            ax.add_collection(PolyCollection(list(heads), facecolors=shades, zorder=1))
    sizes = np.pi * (side_points * node_radius(panel.confidence)) ** 2
    if np.isnan(panel.loss).any():
        numbers = panel.kinds[0] if panel.kinds is not None else np.zeros(panel.graph.n_users, np.int64)
        fill = np.array([_kind_colour(theme, kind) for kind in numbers.tolist()])
    else:
        if colours is None:
            low, high = np.percentile(panel.loss, [2, 98])
            colours = Normalize(low, high, clip=True)
        fill = LOSS_COLOURS(colours(panel.loss))
    x, y = panel.positions.T
    ax.scatter(x, y, s=sizes, c=fill, edgecolors=theme.paper, linewidths=1.2, zorder=2)
    if panel.graph.n_users <= MOST_LABELS:
        _label_nodes(ax, panel, fill, side_points)
    ax.set(title=panel.title, xlim=(-0.05, 1.05), ylim=(-0.05, 1.05), aspect="equal")
    if panel.caption:
        ax.text(0.5, -0.01, panel.caption, ha="center", va="top", transform=ax.transAxes, fontsize=8, color=theme.faint)
    ax.set_axis_off()


def _arrow_heads(start: Array, end: Array, radius: Array, length: float = 0.014) -> Array:
    """Triangles at the end of each edge, at the rim of the node, of shape (edges, 3, 2)."""
    along = end - start
    along = along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    across = np.column_stack([-along[:, 1], along[:, 0]])
    tip = end - radius[:, None] * along
    base = tip - length * along
    return np.stack([tip, base + 0.4 * length * across, base - 0.4 * length * across], axis=1)


def _label_nodes(ax: Axes, panel: GraphPanel, fill: Any, side_points: float) -> None:
    """Write names on nodes, in several lines and smaller letters where they would stick out."""
    lightness = fill[:, :3] @ np.array([0.299, 0.587, 0.114])
    widths = 2 * side_points * node_radius(panel.confidence)
    for (x, y), label, light, confidence, colour, width in zip(
        panel.positions, panel.labels, lightness, panel.confidence, fill, widths, strict=True
    ):
        lines = _in_lines(label)
        size, fitting = side_points / SIDE_POINTS * (5.0 + 4.0 * confidence), width / (LETTER * max(map(len, lines)))
        ink, middle = "#10151c" if light > 0.5 else "#ffffff", "center_baseline" if len(lines) == 1 else "center"
        smaller = min(size, max(SMALLEST_LETTERS, fitting))
        text = ax.text(
            x, y, "\n".join(lines), ha="center", va=middle, fontsize=smaller, color=ink, zorder=3, linespacing=0.95
        )  # fmt: skip
        if smaller < size:
            # What sticks out anyway has the colour of its node around it.
            text.set_path_effects([withStroke(linewidth=1.0, foreground=colour)])


def _in_lines(name: str, most: int = 6) -> list[str]:
    """A name in lines, broken after spaces, underscores and hyphens if it is longer than `most`.

    >>> _in_lines("NORTH_CAROLINA"), _in_lines("p 12")
    (['NORTH_', 'CAROLINA'], ['p 12'])
    """
    return [name] if len(name) <= most else re.findall(r"[^\s_-]+[_-]*|[_-]+", name) or [name]


def weight_picture(
    panels: Sequence[GraphPanel], groups: Array, group_names: Sequence[str], theme: Theme = LIGHT
) -> Figure:
    """Figure of weight matrices side by side, users sorted by group; within each matrix darker is heavier.

    `groups` holds the group of each user, 0, 1, ...
    """
    with theme.applied():
        figure, axes = new_figure(5.6 * len(panels), 5.7, columns=len(panels))
        for ax, panel in zip(axes, panels, strict=True):
            _draw_weights(ax, theme, panel.graph, groups, group_names)
            ax.set_title(panel.title)
    return figure


def _draw_weights(ax: Axes, theme: Theme, graph: CollaborationGraph, groups: Array, group_names: Sequence[str]) -> None:
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


# A graph that a function receives has the name of the function that draws it.
draw = graph

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
