"""The collaboration graph: who learns from whom, and how much."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from dada.core.compiled import Array


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
        from dada.plot.html import graph_png

        return graph_png(self)

    def _repr_html_(self) -> str:
        """Notebook view: a drawing and a table."""
        from dada.plot.html import as_html, graph_facts

        return as_html("CollaborationGraph", graph_facts(self), self._repr_png_())
