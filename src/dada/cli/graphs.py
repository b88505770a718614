"""How the peers that a command starts choose their neighbours, and what the compiled engine is told to do the same."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

GraphRule = Literal["evidence", "distance"]
GraphOption = Annotated[
    GraphRule,
    typer.Option(
        "--graph",
        help="How peers choose neighbours: by how well models do on their own samples, or as in the paper.",
    ),
]
# Chosen on other draws of users than those that commands show: gains hardly depend on them.
N_NEIGHBOURS, TAU = 5, 1.0


def peer_settings(graph: GraphRule) -> dict[str, Any]:
    """Settings of `PeerConfig`.

    >>> peer_settings("distance")
    {'graph': 'distance'}
    """
    return {"graph": graph} | ({"n_neighbours": N_NEIGHBOURS, "tau": TAU} if graph == "evidence" else {})


def plan_settings(graph: GraphRule) -> dict[str, Any]:
    """The same as settings of `Plan`.

    >>> plan_settings("distance")
    {'graph_rule': 'distance'}
    """
    settings = peer_settings(graph)
    return {"graph_rule": settings.pop("graph"), **settings}
