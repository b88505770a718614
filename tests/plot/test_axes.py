"""Drawing on given axes, and what notebooks show."""

import os
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from dada import DadaClassifier, DadaRegressor, plot
from dada.core.graph import CollaborationGraph
from dada.core.losses import Reliability
from dada.events import TracePoint
from dada.plot.panels import MOST_DRAWN, model_panel


def small_graph():
    return CollaborationGraph.from_edges(4, [0, 1, 0], [1, 2, 2], [1.0, 0.5, 0.1])


def trace_of(*means):
    accuracy = [np.full(3, mean, np.float32) for mean in means]
    none = np.zeros(0, np.float32)
    return [TracePoint(10 * t, 0, -t, 1 / (t + 1), a, none, t, 8.0 * t, 0.0) for t, a in enumerate(accuracy)]


def test_a_graph_is_drawn_on_given_axes_to_their_size():
    figure, (small, large) = plt.subplots(1, 2, width_ratios=[1, 4], figsize=(10, 8))
    assert plot.graph(small_graph(), small) is small
    plot.graph(small_graph(), large)
    sizes = [ax.collections[-1].get_sizes().max() for ax in (small, large)]
    assert sizes[1] > 3 * sizes[0]
    plt.close(figure)


def test_what_is_drawn_of_users_must_be_there_for_each():
    with pytest.raises(ValueError, match="loss must have an entry for each of the 4 users, got 3"):
        plot.graph(small_graph(), loss=np.ones(3))
    with pytest.raises(ValueError, match="groups must have an entry for each of the 4 users"):
        plot.weights(small_graph(), groups=np.zeros(3, int))
    plt.close("all")


def test_weights_are_sorted_by_group():
    ax = plot.weights(small_graph(), groups=np.array([1, 0, 1, 0]), group_names=["first", "second"])
    # The order is 1, 3, 0, 2: the heaviest weight, between 0 and 1, is in the first row's third column.
    assert ax.images[0].get_array()[0].argmax() == 2
    assert [label.get_text() for label in ax.get_xticklabels()] == ["first", "second"]
    plt.close("all")


@pytest.mark.parametrize("y", ["accuracy", "objective", "gap", "edges", "bits"])
def test_curves_show_any_column_of_a_trace(y):
    trace = trace_of(0.5, 0.7, 0.9)
    ax = plot.curves(trace, y=y, x="bits")
    expected = [0.5, 0.7, 0.9] if y == "accuracy" else [getattr(point, y) for point in trace]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), expected, rtol=1e-6)
    np.testing.assert_allclose(ax.lines[0].get_xdata(), [0, 8, 16])
    assert ax.get_legend() is None
    plt.close("all")


def test_a_curve_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="y must be one of accuracy, objective, gap, edges, bits, got 'loss'"):
        plot.curves(trace_of(0.5), y="loss")


def test_a_notebook_shows_a_picture_and_a_table_of_a_graph():
    graph = small_graph()
    assert graph._repr_png_().startswith(b"\x89PNG")
    shown = graph._repr_html_()
    assert "data:image/png;base64," in shown
    assert "<td style='text-align:left'>3</td>" in shown
    assert "http" not in shown


def test_a_notebook_shows_only_a_table_of_a_large_graph():
    graph = CollaborationGraph.empty(MOST_DRAWN + 1)
    assert graph._repr_png_() is None
    assert "<img" not in graph._repr_html_()


def test_a_notebook_shows_settings_picture_and_table_of_a_fitted_model():
    model = DadaClassifier(n_updates=5, random_state=0)
    before = model._repr_mimebundle_()["text/html"]
    assert "data:image/png" not in before
    model.fit([[0.0], [1.0]] * 3, [0, 1] * 3, users=["ann", "ann", "bob", "bob", "cid", "cid"])
    shown = model._repr_mimebundle_()
    assert "n_updates" in shown["text/html"]
    assert "data:image/png" in shown["text/html"]
    assert "accuracy on training rows" in shown["text/html"]
    assert model._repr_html_() != before
    assert shown["text/plain"] == repr(model)


def test_a_notebook_shows_a_fitted_regression_too():
    model = DadaRegressor(n_updates=5, random_state=0).fit([[0.0], [1.0]] * 2, [0.0, 1.0] * 2, users=[1, 1, 2, 2])
    assert "accuracy" not in model._repr_html_().rpartition("Who learns from whom")[2]


def test_users_who_all_learn_from_each_other_are_placed_by_their_models_without_edges():
    model = DadaClassifier(graph="everyone", mu=0.1, n_updates=5, random_state=0)
    model.fit([[0.0], [1.0]] * 3, [0, 1, 1, 0, 0, 1], users=["ann", "ann", "bob", "bob", "cid", "cid"])
    panel = model_panel(model)
    assert panel.graph.n_edges == 0
    assert "Everyone learns from everyone alike" in panel.caption
    distance = np.linalg.norm(panel.places[:, None] - panel.places, axis=2)
    assert distance[0, 2] < distance[0, 1]
    assert "two principal components" in model._repr_html_()


def test_arrows_of_a_directed_graph_point_to_the_user_that_is_learned_from():
    directed = CollaborationGraph(np.array([0, 1, 1]), np.array([1], np.int32), np.ones(1), directed=True)
    places = np.array([[0.0, 0.5], [1.0, 0.5]])
    ax = plot.graph(directed, positions=places)
    (heads,) = (item for item in ax.collections if isinstance(item, PolyCollection))
    tip, *base = heads.get_paths()[0].vertices[:3]
    assert tip[0] > max(point[0] for point in base) > 0.9
    symmetric = plot.graph(small_graph())
    assert not any(isinstance(item, PolyCollection) for item in symmetric.collections)
    plt.close("all")


def test_a_picture_leaves_the_backend_of_a_notebook_alone():
    code = (
        "import dada, matplotlib; before = matplotlib.get_backend(); "
        "dada.CollaborationGraph.complete(3)._repr_html_(); assert matplotlib.get_backend() == before == 'svg'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"MPLBACKEND": "svg"})


def test_reliability_has_a_line_for_each_name_and_the_diagonal():
    chances = np.array([[0.1, 0.9], [0.2, 0.8], [0.45, 0.55]])
    found = Reliability.of(chances, np.array([1, 1, 0]))
    ax = plot.reliability({"before": found, "after": found})
    assert len(ax.lines) == 3
    assert ax.lines[1].get_ydata().tolist() == [0.0, 1.0, 1.0]
    # (0.1 + 0.2 + 0.55) / 3, each row alone in its bin.
    assert ax.get_legend().get_texts()[0].get_text() == "before: off by 28.3 points"
