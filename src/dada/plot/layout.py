"""Where the users of a graph stand in a drawing."""

from __future__ import annotations

import numpy as np

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph

ROUNDS = 400
GRAVITY = 0.25
SPRING = 0.035


def force_layout(graph: CollaborationGraph, radius: Array | float = 0.01, seed: int = 0) -> Array:
    """Places for the users, found by springs along the edges and repulsion between all users.

    An edge pulls as strongly as its share in the degrees of its ends, so that a few heavy hubs do not draw everybody
    into one heap; a weak pull to the middle keeps separate groups on the page. Users then give way to each other until
    no two discs overlap.

    Parameters
    ----------
    graph : CollaborationGraph
        At most a few thousand users: all pairs are looked at.
    radius : float or array of shape (n_users,)
        Size of the discs, where the picture is the unit square.
    seed : int
        Of the starting places.

    Returns
    -------
    array of shape (n_users, 2)
        Within the unit square.

    Examples
    --------
    >>> graph = CollaborationGraph.from_edges(4, [0, 2], [1, 3], [1.0, 1.0])
    >>> places = force_layout(graph)
    >>> bool(np.linalg.norm(places[0] - places[1]) < np.linalg.norm(places[0] - places[2]))
    True
    """
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(graph.n_users, 2))
    graph = graph.symmetrised()
    share = 1.0 / np.sqrt(np.where(graph.degree > 0, graph.degree, np.inf))
    pull = graph.to_scipy().toarray() * share[:, None] * share[None, :]
    for cooling in np.linspace(1.0, 0.02, ROUNDS):
        push = _force(places, pull)
        length = np.maximum(np.linalg.norm(push, axis=1, keepdims=True), 1e-12)
        places = places + push * np.minimum(0.1, cooling / length)
    return _without_overlap(_in_unit_square(places), np.broadcast_to(radius, graph.n_users))


def _squares(places: Array) -> Array:
    """Squared distances of all pairs."""
    x, y = places.T
    squares: Array = (x[:, None] - x) ** 2 + (y[:, None] - y) ** 2
    return squares


def _away(places: Array, strength: Array) -> Array:
    """The sum over all others of strength times the way from them."""
    moved: Array = places * strength.sum(axis=1, keepdims=True) - strength @ places
    return moved


def _force(places: Array, pull: Array) -> Array:
    strength = 1.0 / (places.shape[0] * SPRING * np.maximum(_squares(places), 1e-4)) - pull
    return _away(places, strength) - GRAVITY * places


def _in_unit_square(places: Array) -> Array:
    low, high = places.min(axis=0), places.max(axis=0)
    side = max(float((high - low).max()), 1e-12)
    centred: Array = 0.5 + (places - (low + high) / 2) / side
    return centred


def _without_overlap(places: Array, radius: Array) -> Array:
    """Push overlapping discs apart, round by round, and fit the result into the unit square again."""
    apart = 1.12 * (radius[:, None] + radius[None, :])
    np.fill_diagonal(apart, 0.0)
    for _ in range(200):
        distance = np.maximum(np.sqrt(_squares(places)), 1e-9)
        overlap = np.maximum(apart - distance, 0.0)
        if not overlap.any():
            break
        places = places + 0.35 * _away(places, overlap / distance)
    return _in_unit_square(places)
