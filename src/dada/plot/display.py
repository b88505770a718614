"""What notebooks show of a graph or a fitted model: a picture and a table."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.plot.axes import graph as draw
from dada.plot.theme import Theme, data_uri, drawn, new_figure

#: Larger graphs take long to lay out, and nodes could not be told apart.
MOST_DRAWN = 300


def graph_png(
    graph: CollaborationGraph,
    *,
    confidence: Array | None = None,
    loss: Array | None = None,
    names: Sequence[Any] | None = None,
) -> bytes | None:
    """A graph as the bytes of a PNG file; none where it has too many users to be drawn.

    >>> graph_png(CollaborationGraph.empty(2))[1:4]
    b'PNG'
    """
    if not 0 < graph.n_users <= MOST_DRAWN:
        return None

    def picture(*, theme: Theme) -> Figure:
        with theme.applied():
            figure, (ax,) = new_figure(4.6, 4.6)
            draw(graph, ax, confidence=confidence, loss=loss, names=names, theme=theme)
        return figure

    return drawn(picture, dpi=110)


def graph_facts(graph: CollaborationGraph) -> dict[str, str]:
    """What a table says of a graph.

    >>> graph_facts(CollaborationGraph.from_edges(3, [0], [1], [2.0]))["neighbours"]
    '0 to 1, 0.7 on average'
    """
    counts = graph.neighbour_counts
    facts = {"users": f"{graph.n_users:,}", "edges": f"{graph.n_edges:,}" + (" (directed)" if graph.directed else "")}
    if graph.n_users:
        facts["neighbours"] = f"{counts.min()} to {counts.max()}, {graph.mean_neighbours:.1f} on average"
        facts["without neighbours"] = f"{(counts == 0).sum():,}"
    if graph.n_edges:
        facts["weights"] = (
            f"{graph.weights.min():.3g} to {graph.weights.max():.3g}, median {np.median(graph.weights):.3g}"
        )
    return facts


def model_html(model: Any) -> str:
    """A fitted estimator's graph, drawn with its users' names, and how its fit went.

    >>> from dada import DadaClassifier
    >>> X, y, users = [[0.0], [1.0]] * 2, [0, 1, 0, 1], ["ann", "ann", "bob", "bob"]
    >>> fitted = DadaClassifier(random_state=0).fit(X, y, users=users)
    >>> "All planned updates were made." in model_html(fitted)
    True
    """
    accuracy = model.trace_[-1].train_accuracy
    facts = graph_facts(model.graph_)
    if accuracy.size:
        facts["accuracy on training rows"] = f"{100 * np.nanmean(accuracy):.1f} %, mean over users"
    facts |= {"base predictors": f"{model.models_.shape[1]:,}", "sent": f"{model.bits_:.3g} bits"}
    facts["fit"] = model.status_.value
    loss = 1.0 - accuracy if accuracy.size and np.isfinite(accuracy).all() else None
    picture = graph_png(model.graph_, confidence=model.confidence_, loss=loss, names=model.users_.tolist())
    return as_html("Who learns from whom", facts, picture)


def as_html(title: str, facts: Mapping[str, str], picture: bytes | None) -> str:
    """A title, a table and, where there is one, a picture beside it; needs nothing from elsewhere.

    >>> as_html("a < b", {"users": "3"}, None).count("<tr>")
    1
    """
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
        for name, value in facts.items()
    )
    image = f"<img src='{data_uri(picture)}' alt='graph' style='max-width:420px'>" if picture else ""
    return (
        f"<div style='display:flex;flex-wrap:wrap;gap:24px;align-items:flex-start'>{image}"
        f"<div><strong>{html.escape(title)}</strong><table>{rows}</table></div></div>"
    )
