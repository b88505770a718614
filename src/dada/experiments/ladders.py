"""Values of hyper-parameters, and the search that climbs them until no step improves the score."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

Settings = dict[str, Any]
Grid = Mapping[str, tuple[float, ...]]

_POWERS = tuple(10.0**power for power in range(-7, 8))
# Every value that a search may reach. Published grids are parts of these.
LADDERS: Grid = {
    "beta": tuple(10.0**power for power in range(-1, 8)),
    **dict.fromkeys(("mu", "lam", "C", "C_own"), _POWERS),
    "trees": (10, 30, 100, 200, 350, 500, 1000, 2000, 4000, 8000, 16_000),
    "rate": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "leaves": (2, 4, 8, 16, 31, 63, 127),
}
# Ends of a ladder beyond which there is nothing to try: a larger rate oversteps, fewer trees do what a smaller rate
# does, and with a larger lam the distances of models count for nothing beside the degrees.
_NATURAL = {"leaves": 2, "trees": 10, "rate": 1.0, "lam": _POWERS[-1]}


def climb(
    start: Sequence[Settings], names: Sequence[str], slack: float = 0.0
) -> Generator[list[Settings], Sequence[float], Settings]:
    """Search `LADDERS` from some settings: yields settings to score, receives their scores, returns the best setting.

    Each round scores the settings one step away from the best one so far that have no score yet. The search ends when
    none improves the score by more than `slack` times its size, so that the best setting is at the end of a ladder only
    if the ladder ends there. Only parameters in `names` change. Among equals the first wins.

    Examples
    --------
    >>> search = climb([{"mu": 1.0}], ["mu"])
    >>> next(search), search.send([0.0]), search.send([-1.0, 1.0])
    ([{'mu': 1.0}], [{'mu': 0.1}, {'mu': 10.0}], [{'mu': 100.0}])
    >>> try:
    ...     search.send([0.5])
    ... except StopIteration as end:
    ...     end.value
    {'mu': 10.0}
    """
    scores: dict[tuple[float, ...], float] = {}
    points: dict[tuple[float, ...], Settings] = {}
    new, best, to_beat = list(start), start[0], -math.inf
    while new:
        values = yield new
        for point, value in zip(new, values, strict=True):
            points[tuple(point.values())], scores[tuple(point.values())] = point, value
        highest = max(scores, key=scores.__getitem__)
        if scores[highest] <= to_beat:
            break
        best, to_beat = points[highest], scores[highest] + slack * abs(scores[highest])
        new = [point for point in _neighbours(best, names) if tuple(point.values()) not in scores]
    return best


def _neighbours(point: Settings, names: Sequence[str]) -> list[Settings]:
    """The settings one step away. A value between two steps of its ladder has these as neighbours."""
    found = []
    for name in names:
        lower = [value for value in LADDERS[name] if value < point[name]][-1:]
        higher = [value for value in LADDERS[name] if value > point[name]][:1]
        found += [point | {name: value} for value in lower + higher]
    return found


def at_the_end(settings: Settings) -> tuple[str, ...]:
    """Names of the settings at the end of their ladder, where a value further out might be better.

    >>> at_the_end({"mu": 1e7, "lam": 1e7, "leaves": 2})
    ('mu',)
    """
    return tuple(
        name
        for name, value in settings.items()
        if name in LADDERS and value in (LADDERS[name][0], LADDERS[name][-1]) and _NATURAL.get(name) != value
    )
