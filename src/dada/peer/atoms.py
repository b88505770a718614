"""Small trees as atoms: base predictors that peers grow and send to each other.

An atom is the bytes of a complete binary tree. For each node it has the number of a feature (two bytes) and of one of
the network's thresholds of that feature (one byte), then for each leaf a whole number of 127ths (one byte). The
children of node s are 2 s + 1 and 2 s + 2; a value up to the threshold goes to the first. `NO_SPLIT` sends all there.

An atom is named by a hash of its bytes. Names are not sent: each peer computes them, so equal atoms have equal names,
and nobody can give an atom the name of another. Thresholds are agreed numbers, so that none can be infinite, or reveal
a value of a feature.

A peer holds its samples as *bins*, the number of thresholds below each value. They are all that atoms need.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dada.core.compiled import Array
from dada.core.model_steps import UserRows
from dada.peer.messages import DICTIONARY_SIZE, DIGEST_SIZE, LARGEST_ATOM, MOST_ATOMS, ImplausibleError

NO_SPLIT, LEAF_STEPS, NODE_SIZE = 255, 127, 3
MOST_FEATURES, MOST_CUTS = 1 << 16, NO_SPLIT


def name_of(atom: bytes) -> bytes:
    """The name of an atom: a hash of its bytes."""
    return hashlib.sha256(atom).digest()[:DIGEST_SIZE]


def dictionary_name(names: Sequence[bytes]) -> bytes:
    """The name of a dictionary with these atoms, in ascending order of their names; empty without any.

    >>> dictionary_name([]), len(dictionary_name([name_of(b"tree")]))
    (b'', 8)
    """
    return hashlib.sha256(b"".join(names)).digest()[:DICTIONARY_SIZE] if names else b""


class AtomArrays(NamedTuple):
    """Atoms as arrays: feature and threshold number of each node, shape (atoms, nodes), and 127ths of each leaf."""

    feature: NDArray[np.uint16]
    cut: NDArray[np.uint8]
    leaf: NDArray[np.int8]

    def write(self) -> list[bytes]:
        """The atoms as bytes."""
        parts = (self.feature.astype("<u2"), self.cut.astype(np.uint8), self.leaf.astype(np.int8))
        return [b"".join(np.ascontiguousarray(part[j]).tobytes() for part in parts) for j in range(len(self.leaf))]


@dataclass(frozen=True)
class AtomTerms:
    """What all atoms of a network have in common.

    Parameters
    ----------
    n_features : int
        Features of a sample, at most 65,536.
    n_cuts : int
        Thresholds of each feature, at most 255.
    depth : int
        Tests on the way to a leaf.
    per_user : int
        Atoms that a peer grows on its own rows.

    Examples
    --------
    >>> terms = AtomTerms(n_features=2, n_cuts=3, depth=1, per_user=5)
    >>> atom = AtomArrays(np.array([[1]]), np.array([[2]]), np.array([[127, -127]])).write()[0]
    >>> terms.predict(np.array([[0, 2], [0, 3]], np.uint8), [atom]).tolist()
    [[1.0], [-1.0]]
    >>> terms.check(atom + b"more")
    Traceback (most recent call last):
        ...
    dada.peer.messages.ImplausibleError: a tree of 9 bytes, one of depth 1 has 5
    """

    n_features: int
    n_cuts: int
    depth: int
    per_user: int

    def __post_init__(self) -> None:
        if not (1 <= self.n_features <= MOST_FEATURES and 1 <= self.n_cuts <= MOST_CUTS and self.depth >= 1):
            raise ValueError(
                f"trees need 1 to {MOST_FEATURES} features, 1 to {MOST_CUTS} thresholds and a depth of 1 or more, "
                f"got {self.n_features}, {self.n_cuts} and {self.depth}"
            )
        if self.size > LARGEST_ATOM or not 1 <= self.per_user <= MOST_ATOMS:
            raise ValueError(
                f"a peer grows 1 to {MOST_ATOMS} trees of at most {LARGEST_ATOM} bytes, got {self.per_user} of depth "
                f"{self.depth}, which have {self.size}: choose fewer or smaller ones"
            )

    @property
    def size(self) -> int:
        """Bytes of an atom."""
        return NODE_SIZE * (2**self.depth - 1) + 2**self.depth

    def check(self, atom: bytes) -> None:
        """Raise `ImplausibleError` unless some bytes are an atom of this network."""
        if len(atom) != self.size:
            raise ImplausibleError(f"a tree of {len(atom)} bytes, one of depth {self.depth} has {self.size}")
        feature, cut, leaf = self.read([atom])
        if feature.max() >= self.n_features:
            raise ImplausibleError(f"a tree tests feature {feature.max()}, there are {self.n_features}")
        if ((cut >= self.n_cuts) & (cut != NO_SPLIT)).any() or feature[cut == NO_SPLIT].any():
            raise ImplausibleError(f"a tree has a threshold beyond the {self.n_cuts} of a feature")
        if (leaf < -LEAF_STEPS).any():
            raise ImplausibleError(f"a tree has a leaf below -1: {leaf.min()} of {LEAF_STEPS}")

    def read(self, atoms: Sequence[bytes]) -> AtomArrays:
        """Checked atoms as arrays."""
        n_nodes = 2**self.depth - 1
        content = np.frombuffer(b"".join(atoms), np.uint8).reshape(len(atoms), self.size)
        feature = np.ascontiguousarray(content[:, : 2 * n_nodes]).view("<u2")
        return AtomArrays(feature, content[:, 2 * n_nodes : 3 * n_nodes], content[:, 3 * n_nodes :].view(np.int8))

    def split(self, content: bytes) -> list[bytes]:
        """The atoms in their concatenation, checked."""
        atoms = [content[start : start + self.size] for start in range(0, len(content), self.size)]
        for atom in atoms:
            self.check(atom)
        return atoms

    def predict(self, bins: Array, atoms: Sequence[bytes]) -> NDArray[np.float32]:
        """Predictions of shape (samples, atoms)."""
        feature, cut, leaf = self.read(atoms)
        tree, row = np.arange(len(atoms)), np.arange(len(bins))[:, None]
        node = np.zeros((len(bins), len(atoms)), np.intp)
        for _ in range(self.depth):
            above = bins[row, feature[tree, node]] > cut[tree, node]
            node = 2 * node + 1 + above
        return (leaf[tree, node - (2**self.depth - 1)] / LEAF_STEPS).astype(np.float32)


class Plot(NamedTuple):
    """The samples of one user, and the atoms grown on them.

    `fixed` are margins of the network's fixed base predictors; `signs` those of a base predictor that is always 1, one
    column for each block of weights. `bins` has a row for each sample, `grown` are the user's own atoms.
    """

    fixed: UserRows
    signs: Array
    bins: Array
    grown: tuple[bytes, ...] = ()

    def rows(self, terms: AtomTerms, atoms: Sequence[bytes]) -> UserRows:
        """Margins of the fixed base predictors and of some atoms.

        An own atom predicts 0: it has memorised the labels of these samples, so they must not give it a weight.
        """
        blocks, n_rows = self.signs.shape[1], len(self.fixed.A)
        h = np.repeat(terms.predict(self.bins, atoms), n_rows // len(self.bins), axis=0)
        h[:, [atom in self.grown for atom in atoms]] = 0
        parts = []
        for c, of_block in enumerate(np.split(self.fixed.A, blocks, axis=1)):
            parts += [of_block.astype(np.float32), self.signs[:, c : c + 1].astype(np.float32) * h]
        return self.fixed._replace(A=np.concatenate(parts, axis=1))


class Orchard(NamedTuple):
    """The samples of all users of a network with trees, what their trees have in common, and the thresholds."""

    terms: AtomTerms
    plots: tuple[Plot, ...]
    cuts: Array

    @property
    def names(self) -> list[bytes]:
        """Names of all trees, in the order of their coordinates."""
        return sorted({name_of(atom) for plot in self.plots for atom in plot.grown})

    def in_order(self, alpha: Array, atoms: Sequence[bytes]) -> Array:
        """A model over some trees as one over all trees of these users; others are left out."""
        blocks, names = self.plots[0].signs.shape[1], self.names
        by_block = alpha.reshape(blocks, -1)
        n_fixed = by_block.shape[1] - len(atoms)
        ordered = np.zeros((blocks, n_fixed + len(names)), alpha.dtype)
        ordered[:, :n_fixed] = by_block[:, :n_fixed]
        place = {name: n_fixed + j for j, name in enumerate(names)}
        for j, atom in enumerate(atoms):
            if (name := name_of(atom)) in place:
                ordered[:, place[name]] = by_block[:, n_fixed + j]
        return ordered.ravel()
