"""Pictures show what their captions state, and pages are self-contained."""

import io
import re
from functools import partial
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.image import imread
from numpy.testing import assert_array_equal

from dada.core.graph import CollaborationGraph
from dada.events import TracePoint
from dada.plot import DARK, LIGHT, GraphPanel, accuracy_picture, drawn, force_layout, graph_picture, weight_picture
from dada.plot.panels import Section, figure, node_radius, page, paragraph, table


def two_groups(n=10):
    """Two complete groups of n users, with one weak edge between them."""
    k, l = np.triu_indices(n, 1)
    ends = np.concatenate([k, k + n, [0]]), np.concatenate([l, l + n, [n]])
    return CollaborationGraph.from_edges(2 * n, *ends, np.append(np.ones(2 * k.size), 0.01))


def panel(graph, loss=None):
    K = graph.n_users
    loss = np.linspace(-1, 1, K) if loss is None else loss
    return GraphPanel("learned", graph, np.linspace(0.2, 1, K), loss, [str(k) for k in range(K)])


def trace():
    same = {"graph_wakeups": 0, "objective": 0.0, "gap": 0.0, "edges": 5, "bits": 0.0, "graph_bits": 0.0}
    accuracy = [
        {"train_accuracy": np.full(10, 0.8 + t), "test_accuracy": np.full(10, 0.7 + t)} for t in (0, 0.01, 0.02)
    ]
    return [TracePoint(updates=20 * t, **accuracy[t], **same) for t in range(3)]


def test_layout_keeps_groups_together_and_discs_apart():
    graph, radius = two_groups(), np.full(20, 0.03)
    places = force_layout(graph, radius)
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)
    within = distance[:10, :10].max(), distance[10:, 10:].max()
    assert max(within) < distance[:10, 10:].mean()
    assert distance[np.triu_indices(20, 1)].min() > 1.8 * 0.03
    assert places.min() >= 0
    assert places.max() <= 1


def test_layout_takes_graphs_without_edges_and_directed_ones():
    assert np.isfinite(force_layout(CollaborationGraph.empty(3))).all()
    directed = CollaborationGraph(np.array([0, 1, 1]), np.array([1], np.int32), np.ones(1), directed=True)
    assert np.isfinite(force_layout(directed)).all()


def test_layout_of_one_user_is_the_middle():
    np.testing.assert_allclose(force_layout(CollaborationGraph.empty(1)), [[0.5, 0.5]])


def test_heavier_edges_are_darker_and_more_confident_nodes_larger():
    graph = CollaborationGraph.from_edges(3, [0, 1], [1, 2], [0.2, 2.0])
    axes = graph_picture([panel(graph)]).axes[0]
    (edges,) = (item for item in axes.collections if isinstance(item, LineCollection))
    (nodes,) = (item for item in axes.collections if isinstance(item, PathCollection))
    light, heavy = edges.get_colors()[:, 3]
    assert light < heavy
    assert (np.diff(nodes.get_sizes()) > 0).all()
    np.testing.assert_allclose(
        nodes.get_sizes() / nodes.get_sizes()[0], (node_radius(np.array([0.2, 0.6, 1])) / node_radius(0.2)) ** 2
    )


def test_smaller_loss_is_greener():
    axes = graph_picture([panel(two_groups(3))]).axes[0]
    (nodes,) = (item for item in axes.collections if isinstance(item, PathCollection))
    red, green = nodes.get_facecolors()[:, 0], nodes.get_facecolors()[:, 1]
    assert green[0] > red[0]
    assert red[-1] > green[-1]


def test_nodes_carry_their_labels_unless_there_are_too_many():
    few, many = panel(CollaborationGraph.empty(3)), panel(CollaborationGraph.empty(400))
    assert [text.get_text() for text in graph_picture([few]).axes[0].texts] == ["0", "1", "2"]
    assert not graph_picture([many]).axes[0].texts


def test_long_names_stay_near_their_nodes():
    names = ["NORTH_CAROLINA", "MASSACHUSETTS", "7", "a b"]
    places = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    shown = GraphPanel("", CollaborationGraph.empty(4), np.ones(4), np.zeros(4), names, places)
    picture = graph_picture([shown])
    picture.canvas.draw()
    (ax,) = picture.axes[:1]
    discs = next(item for item in ax.collections if isinstance(item, PathCollection))
    diameter = 2 * np.sqrt(discs.get_sizes()[0] / np.pi) * picture.dpi / 72
    texts = ax.texts
    assert [text.get_text() for text in texts] == ["NORTH_\nCAROLINA", "MASSACHUSETTS", "7", "a b"]
    assert max(text.get_window_extent().width for text in texts) < 1.3 * diameter
    assert texts[0].get_fontsize() > texts[1].get_fontsize() < texts[2].get_fontsize()


def test_without_losses_colours_are_those_of_kinds():
    places, kinds = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), (np.array([2, 0, 2]), ["low", "middle", "top"])
    unknown = GraphPanel(
        "", CollaborationGraph.empty(3), np.ones(3), np.full(3, np.nan), list("abc"), places, "", kinds
    )
    picture = graph_picture([unknown])
    discs = next(item for item in picture.axes[0].collections if isinstance(item, PathCollection))
    colours = discs.get_facecolors()
    assert_array_equal(colours[0], colours[2])
    assert not np.array_equal(colours[0], colours[1])
    (legend,) = picture.legends
    assert [text.get_text() for text in legend.get_texts()] == ["low", "top"]
    # Without edges, nothing is said about them.
    assert legend.get_title().get_text() == "node size: confidence"
    marks = [mark.get_color() for mark in legend.get_lines()]
    assert_array_equal([(*mark, 1.0) for mark in marks], colours[[1, 0]])


def test_weight_matrix_is_sorted_by_group():
    graph = CollaborationGraph.from_edges(4, [0, 1], [2, 3], [1.0, 1.0])
    axes = weight_picture([panel(graph)], np.array([0, 1, 0, 1]), ["a", "b"]).axes[0]
    shade = axes.images[0].get_array()
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = expected[2, 3] = expected[3, 2] = 1
    np.testing.assert_array_equal(shade, expected)


def test_accuracy_curves_are_means_over_users_against_updates_per_user():
    axes = accuracy_picture({"dada-learned": trace()}, {"local-boost": (0.9, 0.75)}, {}).axes[0]
    train, test = axes.lines[:2]
    np.testing.assert_allclose(test.get_xdata(), [0, 2, 4])
    np.testing.assert_allclose(test.get_ydata(), [0.7, 0.71, 0.72], rtol=1e-6)
    np.testing.assert_allclose(train.get_ydata(), [0.8, 0.81, 0.82], rtol=1e-6)
    assert {text.get_text() for text in axes.texts} == {"Dada-Learned  72.0%", "Local-boost  75.0%"}


def test_labels_of_near_lines_do_not_overlap():
    levels = {name: (0.9, 0.75 + 0.001 * i) for i, name in enumerate(("local-boost", "global-boost", "other"))}
    texts = accuracy_picture({}, levels, {}).axes[0].texts
    heights = sorted(text.xy[1] for text in texts)
    assert np.diff(heights).min() > 0.02


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_a_picture_is_drawn_on_the_paper_of_its_theme_and_always_the_same(theme):
    picture = partial(graph_picture, [panel(two_groups(3))])
    png = drawn(picture, theme, dpi=50)
    assert png == drawn(picture, theme, dpi=50)
    corner = imread(io.BytesIO(png))[0, 0, :3]
    np.testing.assert_allclose(corner, matplotlib.colors.to_rgb(theme.paper), atol=0.01)


def test_drawing_leaves_the_readers_settings_alone():
    before = dict(matplotlib.rcParams)
    drawn(partial(graph_picture, [panel(two_groups(3))]), dpi=50)
    assert dict(matplotlib.rcParams) == before


class Addresses(HTMLParser):
    """All addresses that a page makes a browser load, and the tags that stay open."""

    def __init__(self):
        super().__init__()
        self.found, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "srcset", "href", "data", "action")]
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_loads_nothing_from_elsewhere_and_closes_what_it_opens():
    png = drawn(partial(graph_picture, [panel(two_groups(3))]), dpi=40)
    pieces = [paragraph("a < b & `c`"), table(["x"], [["<1>"]]), figure(png, png, 'says "so"')]
    text = page("Title & more", "Lead", [Section("One", pieces)])
    parser = Addresses()
    parser.feed(text)
    assert parser.open == []
    assert len(parser.found) == 2
    assert all(address.startswith("data:image/png;base64,") for address in parser.found)
    assert "http" not in re.sub(r"base64,[^\"]*|http-equiv", "", text)


def test_a_page_escapes_what_it_is_given():
    text = page("<script>", "1 < 2", [Section("a & b", [paragraph("<b>"), table(["<i>"], [["<u>"]])])])
    for raw in ("<script>", "1 < 2", "a & b", "<b>", "<i>", "<u>"):
        assert raw not in text
