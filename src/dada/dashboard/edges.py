"""Graphs as a recording holds them: whole from time to time, and what changed in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dada.dashboard.records import rounded
from dada.events import Snapshot

#: Of a larger graph the heaviest edges are kept: more would be one grey mass, and make recordings huge.
MOST_EDGES = 100_000
#: A whole graph is as small as a list of changes once this part of its edges has changed.
MOSTLY_CHANGED = 0.7
#: After changes of so many times its edges a graph is written whole again, so that any moment is found quickly.
CHANGES_PER_WHOLE = 3


class EdgeList(NamedTuple):
    """Edges, ordered by k, then l; as changes, an edge that is gone has weight 0."""

    k: NDArray[np.int64]
    l: NDArray[np.int64]
    w: NDArray[np.float32]


def _sorted_edges(snapshot: Snapshot) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Edges as numbers k * K + l in ascending order, with their weights."""
    w = rounded(snapshot.w)
    keys = np.asarray(snapshot.k, np.int64) * snapshot.loss.size + snapshot.l
    if w.size > MOST_EDGES:
        heaviest = np.argpartition(w, w.size - MOST_EDGES)[w.size - MOST_EDGES :]
        keys, w = keys[heaviest], w[heaviest]
    order = np.argsort(keys, kind="stable")
    return keys[order], w[order]


@dataclass
class EdgeChanges:
    """Turns one graph after the other into whole graphs and changes."""

    keys: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    w: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    changes: float = np.inf
    n_users: int = 0

    def next(self, snapshot: Snapshot) -> tuple[bool, EdgeList]:
        """Whether the graph is given whole, and its edges or changes.

        Examples
        --------
        >>> from tests.helpers.snapshots import snapshot
        >>> changes = EdgeChanges()
        >>> changes.next(snapshot(edges=[(0, 1, 1.0), (0, 2, 1.0), (1, 2, 1.0)]))[0]
        True
        >>> whole, edges = changes.next(snapshot(edges=[(0, 1, 1.0), (0, 2, 0.5), (1, 2, 1.0)]))
        >>> whole, edges.k.tolist(), edges.l.tolist(), edges.w.tolist()
        (False, [0], [2], [0.5])
        """
        old_keys, old_w = self.keys, self.w
        keys, w = self.keys, self.w = _sorted_edges(snapshot)
        changed_keys, changed_w = _difference(old_keys, old_w, keys, w)
        if snapshot.loss.size != self.n_users:
            # Another number of users, as where peers join, numbers all edges anew.
            self.n_users, self.changes = snapshot.loss.size, np.inf
        self.changes += changed_keys.size
        whole = changed_keys.size > MOSTLY_CHANGED * keys.size or self.changes > CHANGES_PER_WHOLE * keys.size
        if whole:
            self.changes = 0
            changed_keys, changed_w = keys, w
        return whole, EdgeList(*np.divmod(changed_keys, max(snapshot.loss.size, 1)), changed_w)


def _difference(
    old_keys: NDArray[np.int64], old_w: NDArray[np.float32], keys: NDArray[np.int64], w: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """New and changed edges with their weights, and gone ones with weight 0, in ascending order."""
    place = np.searchsorted(old_keys, keys)
    place[place == old_keys.size] = 0
    same = np.zeros(keys.size, bool) if old_keys.size == 0 else (old_keys[place] == keys) & (old_w[place] == w)
    gone = np.setdiff1d(old_keys, keys, assume_unique=True)
    all_keys = np.concatenate([keys[~same], gone])
    order = np.argsort(all_keys, kind="stable")
    return all_keys[order], np.concatenate([w[~same], np.zeros(gone.size, np.float32)])[order]
