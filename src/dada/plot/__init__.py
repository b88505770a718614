"""Pictures of runs and graphs, for light and dark pages, and a page that carries them."""

from dada.plot.accuracy import accuracy_picture
from dada.plot.graph import GraphPanel, graph_picture, weight_picture
from dada.plot.layout import force_layout
from dada.plot.theme import DARK, LIGHT, Picture, Theme, data_uri, drawn

__all__ = [
    "DARK",
    "LIGHT",
    "GraphPanel",
    "Picture",
    "Theme",
    "accuracy_picture",
    "data_uri",
    "drawn",
    "force_layout",
    "graph_picture",
    "weight_picture",
]
