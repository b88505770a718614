"""Pictures of runs and graphs.

`graph`, `weights`, `curves` and `users` draw on matplotlib axes of yours. The `*_picture` functions make whole figures,
for light and dark pages.
"""

from dada.plot.curves import accuracy_picture, curves, graph, users, weights
from dada.plot.graph import GraphPanel, force_layout, graph_picture, weight_picture
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
    "users",
    "weight_picture",
    "weights",
]
