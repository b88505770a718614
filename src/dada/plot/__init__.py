"""Pictures of runs and graphs.

`graph`, `weights`, `curves`, `users` and `reliability` draw on given matplotlib axes. The `*_picture` functions make
whole figures, for light and dark pages.
"""

from dada.plot.lines import accuracy_picture, curves, reliability, users
from dada.plot.panels import GraphPanel, force_layout, graph, graph_picture, model_layout, weight_picture, weights
from dada.plot.theme import DARK, LIGHT, Picture, Theme, data_uri, drawn

__all__ = [
    "DARK",
    "LIGHT",
    "GraphPanel",
    "Picture",
    "Theme",
    "accuracy_picture",
    "curves",
    "data_uri",
    "drawn",
    "force_layout",
    "graph",
    "graph_picture",
    "model_layout",
    "reliability",
    "users",
    "weight_picture",
    "weights",
]
