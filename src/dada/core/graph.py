"""The collaboration graph: who learns from whom, and how much; and the neighbour lists that hold it while it changes.

During a run all lists share one pool. A full list moves to the end of the pool with twice the room, so that memory is
O(edges). Kernels cannot enlarge the pool: they stop before it might overflow, and `grow` repacks it with more room.

A gossip search asks neighbours of neighbours. A user's view holds its neighbours, its candidates (the nearest peers it
has met) and its guests (peers that made it a candidate).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dada.core.compiled import Array, lean_kernel


@dataclass(frozen=True, eq=False)
class CollaborationGraph:
    """Sparse non-negative weights between users, without self-weights; symmetric unless `directed`.

    Attributes
    ----------
    indptr, indices, weights : arrays
        Compressed rows: user k's neighbours are ``indices[indptr[k]:indptr[k+1]]``, ascending. An edge is in the rows
        of both its ends; in a directed graph, only in the row of the user who learns.
    directed : bool
        Whether k may learn from l without l learning from k.

    Examples
    --------
    >>> graph = CollaborationGraph.from_edges(3, [0, 1], [1, 2], [0.5, 2.0])
    >>> graph
    CollaborationGraph(3 users, 2 edges)
    >>> graph.degree.tolist()
    [0.5, 2.5, 2.0]
    >>> graph.neighbours(1)[0].tolist()  # strongest first
    [2, 0]
    """

    indptr: Array
    indices: Array
    weights: Array
    directed: bool = False

    def __repr__(self) -> str:
        return f"CollaborationGraph({self.n_users} users, {self.n_edges} edges{', directed' if self.directed else ''})"

    @classmethod
    def from_edges(cls, n_users: int, k: Any, l: Any, w: Any) -> CollaborationGraph:
        """A graph from edge lists; each edge once, in either direction. Edges of weight zero are dropped."""
        if n_users < 1:
            raise ValueError(f"n_users must be at least 1, got {n_users}")
        k, l, w = np.asarray(k, np.int64), np.asarray(l, np.int64), np.asarray(w, np.float64)
        if not (k.shape == l.shape == w.shape and k.ndim == 1):
            raise ValueError(f"edge lists must be of equal length, got shapes {k.shape}, {l.shape} and {w.shape}")
        if k.size and not (0 <= min(k.min(), l.min()) and max(k.max(), l.max()) < n_users):
            raise ValueError(
                f"edge ends must be users 0..{n_users - 1}, got {min(k.min(), l.min())}..{max(k.max(), l.max())}"
            )
        if not (np.isfinite(w).all() and (w >= 0).all()):
            raise ValueError("edge weights must be finite and not negative")
        k, l, w = k[w > 0], l[w > 0], w[w > 0]
        if (k == l).any():
            raise ValueError(f"edges must join two different users, got one from {k[k == l][0]} to itself")
        rows, columns, values = np.concatenate([k, l]), np.concatenate([l, k]), np.concatenate([w, w])
        order = np.lexsort((columns, rows))
        rows, columns, values = rows[order], columns[order], values[order]
        twice = (rows[1:] == rows[:-1]) & (columns[1:] == columns[:-1])
        if twice.any():
            at = int(np.flatnonzero(twice)[0])
            raise ValueError(f"each edge must be given once, got ({rows[at]}, {columns[at]}) twice")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_users))])
        return cls(indptr.astype(np.int64), columns.astype(np.int32), values)

    @classmethod
    def from_scipy(cls, matrix: Any) -> CollaborationGraph:
        """A graph from a symmetric scipy.sparse (or dense) matrix."""
        import scipy.sparse

        sparse = scipy.sparse.csr_array(matrix, dtype=np.float64)
        if sparse.shape[0] != sparse.shape[1]:
            raise ValueError(f"the weight matrix must be square, got shape {sparse.shape}")
        difference = abs(sparse - sparse.T)
        if difference.nnz and difference.max() > 1e-9 * max(1.0, abs(sparse).max()):
            raise ValueError("the weight matrix must be symmetric: w[k, l] == w[l, k]")
        upper = scipy.sparse.triu(sparse).tocoo()
        return cls.from_edges(sparse.shape[0], upper.row, upper.col, upper.data)

    @classmethod
    def empty(cls, n_users: int) -> CollaborationGraph:
        """No edges: users learn independently."""
        return cls(np.zeros(n_users + 1, np.int64), np.zeros(0, np.int32), np.zeros(0))

    @classmethod
    def complete(cls, n_users: int, weight: float = 1.0) -> CollaborationGraph:
        """Equal weights between all users; takes O(n_users^2) memory."""
        k, l = np.triu_indices(n_users, 1)
        return cls.from_edges(n_users, k, l, np.full(k.size, weight))

    @classmethod
    def background(cls, n_users: int, rng: np.random.Generator, n_neighbours: int = 10) -> CollaborationGraph:
        """The union of ``n_neighbours / 2`` random cycles through all users: few neighbours, and short paths.

        `n_neighbours` is even. Users have slightly fewer neighbours where two cycles share an edge. With at most
        `n_neighbours` users, the graph is complete.

        Examples
        --------
        >>> graph = CollaborationGraph.background(50, np.random.default_rng(0))
        >>> int(graph.neighbour_counts.max()), bool((graph.weights == 1).all())
        (10, True)
        """
        if n_neighbours < 2 or n_neighbours % 2:
            raise ValueError(f"n_neighbours must be even and at least 2, got {n_neighbours}")
        if n_users <= n_neighbours:
            return cls.complete(n_users)
        cycles = np.array([rng.permutation(n_users) for _ in range(n_neighbours // 2)])
        ends = np.stack([cycles, np.roll(cycles, 1, axis=1)], axis=-1).reshape(-1, 2)
        k, l = np.unique(np.sort(ends, axis=1), axis=0).T
        return cls.from_edges(n_users, k, l, np.ones(k.size))

    @property
    def n_users(self) -> int:
        """Number of users."""
        return int(self.indptr.size - 1)

    @property
    def n_edges(self) -> int:
        """Number of edges, each counted once."""
        return int(self.indices.size if self.directed else self.indices.size // 2)

    @property
    def degree(self) -> Array:
        """d_k, the sum of user k's weights."""
        # Without edges bincount returns integers.
        return np.bincount(self._rows, weights=self.weights, minlength=self.n_users).astype(np.float64)

    @property
    def neighbour_counts(self) -> Array:
        """|N_k|, the number of neighbours of each user."""
        return np.diff(self.indptr)

    @property
    def mean_neighbours(self) -> float:
        """Mean number of neighbours per user."""
        return float(self.indices.size / self.n_users)

    @property
    def _rows(self) -> Array:
        return np.repeat(np.arange(self.n_users), self.neighbour_counts)

    def neighbours(self, k: int) -> tuple[Array, Array]:
        """User k's neighbours and the weights to them, strongest first."""
        if not 0 <= k < self.n_users:
            raise IndexError(f"user must be in 0..{self.n_users - 1}, got {k}")
        row = slice(self.indptr[k], self.indptr[k + 1])
        order = np.argsort(-self.weights[row], kind="stable")
        return self.indices[row][order], self.weights[row][order]

    def edges(self) -> tuple[Array, Array, Array]:
        """(k, l, w) of every edge once, with k < l unless the graph is directed (k learns from l)."""
        rows = self._rows
        once = np.ones(rows.size, bool) if self.directed else rows < self.indices
        return rows[once], self.indices[once], self.weights[once]

    def symmetrised(self) -> CollaborationGraph:
        """The symmetric graph with weights (w_kl + w_lk) / 2."""
        if not self.directed:
            return self
        weights = self.to_scipy()
        return CollaborationGraph.from_scipy((weights + weights.T) / 2)

    def to_scipy(self) -> Any:
        """The weights as a scipy.sparse.csr_array; row k holds the users that k learns from."""
        import scipy.sparse

        return scipy.sparse.csr_array((self.weights, self.indices, self.indptr), shape=(self.n_users, self.n_users))

    def to_networkx(self, user_ids: Any = None) -> Any:
        """The graph as a networkx Graph or DiGraph, with nodes named by `user_ids` and edges with a `weight`."""
        import networkx

        names = list(range(self.n_users)) if user_ids is None else np.asarray(user_ids).tolist()
        different = len(set(names))
        if not len(names) == different == self.n_users:
            raise ValueError(
                f"user_ids must be {self.n_users} distinct names, got {len(names)} with {different} distinct"
            )
        graph = networkx.DiGraph() if self.directed else networkx.Graph()
        graph.add_nodes_from(names)
        k, l, w = self.edges()
        graph.add_weighted_edges_from(
            (names[a], names[b], weight) for a, b, weight in zip(k.tolist(), l.tolist(), w.tolist(), strict=True)
        )
        return graph

    def write_graphml(self, path: str | os.PathLike[str], user_ids: Any = None) -> None:
        """Write the graph as GraphML, for Gephi or Cytoscape."""
        import networkx

        networkx.write_graphml(self.to_networkx(user_ids), path)

    def _repr_png_(self) -> bytes | None:
        """Notebook drawing."""
        from dada.plot.panels import graph_png

        return graph_png(self)

    def _repr_html_(self) -> str:
        """Notebook view: a drawing and a table."""
        from dada.plot.panels import as_html, graph_facts

        return as_html("CollaborationGraph", graph_facts(self), self._repr_png_())


FIRST_ROOM = 8


class NeighbourLists(NamedTuple):
    """User k's neighbours are ids[start[k] : start[k] + length[k]], ascending; the pool is free from `end[0]`."""

    start: Array
    length: Array
    room: Array
    ids: Array
    weights: Array
    end: Array


def lists_from_csr(indptr: Array, indices: Array, weights: Array, spare: int = 0) -> NeighbourLists:
    """Lists from a CSR matrix with sorted rows, followed by `spare` free cells."""
    count = np.diff(indptr).astype(np.int32)
    room = np.where(count == 0, 0, np.maximum(count, FIRST_ROOM)).astype(np.int32)
    start = np.concatenate([[0], np.cumsum(room, dtype=np.int64)])
    size = int(start[-1]) + spare
    ids, values = np.zeros(size, np.int32), np.zeros(size)
    rows = np.repeat(np.arange(count.size), count)
    target = start[rows] + np.arange(indices.size) - np.asarray(indptr, dtype=np.int64)[rows]
    ids[target], values[target] = indices, weights
    return NeighbourLists(start[:-1].copy(), count, room, ids, values, start[-1:].copy())


def lists_to_csr(lists: NeighbourLists) -> tuple[Array, Array, Array]:
    """The (indptr, indices, weights) of the lists, packed."""
    indptr = np.concatenate([[0], np.cumsum(lists.length, dtype=np.int64)])
    rows = np.repeat(np.arange(lists.length.size), lists.length)
    source = lists.start[rows] + np.arange(indptr[-1]) - indptr[rows]
    return indptr, lists.ids[source].copy(), lists.weights[source].copy()


def grow(lists: NeighbourLists, spare: int) -> NeighbourLists:
    """The same lists, packed, with at least `spare` free cells."""
    return lists_from_csr(*lists_to_csr(lists), spare=spare + int(lists.length.sum()))


@lean_kernel
def free_cells(lists: NeighbourLists) -> int:
    """Free cells at the end of the pool."""
    return lists.ids.size - lists.end[0]


@lean_kernel
def position(lists: NeighbourLists, k: int, l: int) -> int:
    """Position of l in k's list, or where it would be inserted."""
    low = lists.start[k]
    high = low + lists.length[k]
    while low < high:
        middle = (low + high) // 2
        if lists.ids[middle] < l:
            low = middle + 1
        else:
            high = middle
    return low


@lean_kernel
def is_neighbour(lists: NeighbourLists, k: int, l: int, at: int) -> bool:
    """Whether `at`, computed by `position`, holds l."""
    return at < lists.start[k] + lists.length[k] and lists.ids[at] == l


@lean_kernel
def has_neighbour(lists: NeighbourLists, k: int, l: int) -> bool:
    """Whether l is in k's list."""
    return is_neighbour(lists, k, l, position(lists, k, l))


@lean_kernel
def weight_of(lists: NeighbourLists, k: int, l: int) -> float:
    """w_kl, zero without an edge."""
    at = position(lists, k, l)
    return lists.weights[at] if is_neighbour(lists, k, l, at) else 0.0


@lean_kernel
def set_one_side(lists: NeighbourLists, k: int, l: int, w: float) -> None:
    """Store w_kl in k's list; zero removes the entry. The caller ensures that there are free cells."""
    at = position(lists, k, l)
    last = lists.start[k] + lists.length[k]
    if is_neighbour(lists, k, l, at):
        if w > 0.0:
            lists.weights[at] = w
            return
        for p in range(at, last - 1):
            lists.ids[p] = lists.ids[p + 1]
            lists.weights[p] = lists.weights[p + 1]
        lists.length[k] -= 1
        return
    if w <= 0.0:
        return
    if lists.length[k] == lists.room[k]:
        fresh = lists.end[0]
        lists.room[k] = max(FIRST_ROOM, 2 * lists.room[k])
        lists.end[0] += lists.room[k]
        for p in range(lists.length[k]):
            lists.ids[fresh + p] = lists.ids[lists.start[k] + p]
            lists.weights[fresh + p] = lists.weights[lists.start[k] + p]
        at += fresh - lists.start[k]
        last += fresh - lists.start[k]
        lists.start[k] = fresh
    for p in range(last, at, -1):
        lists.ids[p] = lists.ids[p - 1]
        lists.weights[p] = lists.weights[p - 1]
    lists.ids[at] = l
    lists.weights[at] = w
    lists.length[k] += 1


@lean_kernel
def set_weight(lists: NeighbourLists, k: int, l: int, w: float) -> None:
    """Store w_kl at both ends."""
    set_one_side(lists, k, l, w)
    set_one_side(lists, l, k, w)


@lean_kernel
def lightest(lists: NeighbourLists, k: int) -> int:
    """Position of the smallest weight in k's list (the first on ties)."""
    best = lists.start[k]
    for p in range(lists.start[k], lists.start[k] + lists.length[k]):
        if lists.weights[p] < lists.weights[best]:
            best = p
    return best


@lean_kernel
def list_degree(lists: NeighbourLists, k: int) -> float:
    """d_k, summed over the list in ascending order of neighbours."""
    total = 0.0
    for p in range(lists.start[k], lists.start[k] + lists.length[k]):
        total += lists.weights[p]
    return total


N_CANDIDATES, N_GUESTS = 16, 8
# Draws before a search for a new peer gives up.
ATTEMPTS = 8


class BatchMix(NamedTuple):
    """How many peers of each kind a wake-up asks: uniform, neighbours of neighbours, current neighbours."""

    n_uniform: int
    n_gossip: int
    n_refresh: int

    @property
    def size(self) -> int:
        """Most peers asked."""
        return self.n_uniform + self.n_gossip + self.n_refresh

    @property
    def n_draws(self) -> int:
        """Random numbers that one wake-up uses."""
        return 2 * self.n_gossip + self.n_refresh


def uniform_mix(kappa: int) -> BatchMix:
    """The paper's batches: kappa peers drawn uniformly from all users."""
    return BatchMix(kappa, 0, 0)


def gossip_mix(kappa: int) -> BatchMix:
    """kappa new peers, a quarter of them (at least one) uniform, and two current neighbours."""
    n_uniform = max(1, kappa // 4)
    return BatchMix(n_uniform, kappa - n_uniform, 2)


@lean_kernel
def pick(random_bits: int, size: int) -> int:
    """A number below `size` from 32 random bits."""
    return (random_bits * size) >> 32


@lean_kernel
def append_new(peers: Array, size: int, k: int, l: int) -> int:
    """Append l to the peers unless it equals k or is among them; returns the new size."""
    if l == k:
        return size
    for b in range(size):
        if peers[b] == l:
            return size
    peers[size] = l
    return size + 1


@lean_kernel
def next_bits(random_bits: int) -> int:
    """The next 32 bits of a pseudorandom sequence."""
    mixed = ((random_bits ^ (random_bits >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 12)) * 0x297A2D39 + 0x9E3779B9) & 0xFFFFFFFF


class Nearest(NamedTuple):
    """The candidates and guests of each user; arrays without columns hold none.

    Distances are of the current graph phase, infinite for candidates from earlier phases. Free places hold -1 and come
    last.
    """

    ids: Array
    dist2: Array
    guests: Array


def no_nearest(n_users: int, n_candidates: int, n_guests: int) -> Nearest:
    """Memory for the given numbers of candidates and guests per user."""
    ids = np.full((n_users, n_candidates), -1, np.int32)
    return Nearest(ids, np.full(ids.shape, np.inf), np.full((n_users, n_guests), -1, np.int32))


@lean_kernel
def add_guest(guests: Array, l: int, k: int) -> None:
    """Make user k a guest of l; if all places are taken, it replaces another guest."""
    n_guests = guests.shape[1]
    place = 0
    while place < n_guests and guests[l, place] >= 0 and guests[l, place] != k:
        place += 1
    if n_guests > 0:
        guests[l, place if place < n_guests else k % n_guests] = k


@lean_kernel
def remember_nearest(nearest: Nearest, k: int, l: int, dist2: float) -> bool:
    """Make l a candidate of k if it is among the nearest peers that k has met; returns whether it is."""
    if nearest.ids.shape[1] == 0:
        return False
    farthest = 0
    for p in range(nearest.ids.shape[1]):
        if nearest.ids[k, p] == l:
            nearest.dist2[k, p] = dist2
            return True
        if nearest.dist2[k, p] > nearest.dist2[k, farthest]:
            farthest = p
    if dist2 >= nearest.dist2[k, farthest]:
        return False
    nearest.ids[k, farthest] = l
    nearest.dist2[k, farthest] = dist2
    add_guest(nearest.guests, l, k)
    return True


@lean_kernel
def is_candidate(nearest: Nearest, k: int, l: int) -> bool:
    """Whether l is a candidate of user k."""
    found = False
    for p in range(nearest.ids.shape[1]):
        found |= nearest.ids[k, p] == l
    return found


@lean_kernel
def n_filled(ids: Array, k: int) -> int:
    """Number of places taken in row k."""
    size = 0
    while size < ids.shape[1] and ids[k, size] >= 0:
        size += 1
    return size


@lean_kernel
def draw_from_view(lists: NeighbourLists, nearest: Nearest, k: int, random_bits: int) -> int:
    """A member of user k's view, -1 if it is empty: one time in four a guest, else a neighbour or a candidate."""
    length, n_candidates, n_guests = lists.length[k], n_filled(nearest.ids, k), n_filled(nearest.guests, k)
    # Two bits choose the part of the view, the others the member.
    part, rest = random_bits >> 30, (random_bits << 2) & 0xFFFFFFFF
    if n_guests > 0 and (part == 0 or n_candidates + length == 0):
        return nearest.guests[k, pick(rest, n_guests)]
    if n_candidates > 0 and (part & 1 == 1 or length == 0):
        return nearest.ids[k, pick(rest, n_candidates)]
    return lists.ids[lists.start[k] + pick(rest, length)] if length > 0 else -1


@lean_kernel
def neighbour_of_neighbour(lists: NeighbourLists, nearest: Nearest, k: int, first: int, second: int) -> int:
    """A new peer from the view of a member of k's view, chosen by two random numbers; -1 if none is found."""
    for _ in range(ATTEMPTS):
        a = draw_from_view(lists, nearest, k, first)
        if a < 0:
            return -1
        l = draw_from_view(lists, nearest, a, second)
        known = l < 0 or l == k or is_candidate(nearest, k, l) or has_neighbour(lists, k, l)
        if not known:
            return l
        first, second = next_bits(first), next_bits(second)
    return -1


@lean_kernel
def gather_peers(
    mix: BatchMix, lists: NeighbourLists, nearest: Nearest, k: int, uniform: Array, random_bits: Array, peers: Array
) -> int:
    """Fill `peers` with user k's batch, without repeats; returns its size."""
    size = 0
    for b in range(mix.n_uniform):
        size = append_new(peers, size, k, uniform[b])
    for g in range(mix.n_gossip):
        l = neighbour_of_neighbour(lists, nearest, k, random_bits[2 * g], random_bits[2 * g + 1])
        if l >= 0:
            size = append_new(peers, size, k, l)
    length = lists.length[k]
    for r in range(mix.n_refresh if length > 0 else 0):
        at = lists.start[k] + pick(random_bits[2 * mix.n_gossip + r], length)
        size = append_new(peers, size, k, lists.ids[at])
    return size
