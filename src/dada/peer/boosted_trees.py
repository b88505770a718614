"""Boosted trees with personal leaves, as one peer holds them: their bytes, its own leaves, its answers in a pool.

A tree is the bytes of a complete binary tree: its round (two bytes), for each node the number of a feature (two bytes)
and of one of the network's thresholds of that feature (one byte), then for each leaf the pool's value of every output
(one byte, in `LEAF_UNIT`). The children of node s are 2 s + 1 and 2 s + 2. Trees have one order for all, by round and
then by name. A peer's own values of the leaves are a function of the trees in this order and of its own rows, so they
are never stored. All numbers come from `dada.core.boosting`: equal trees and rows give the values of a fit, bit for
bit.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dada.core.boosting import (
    LEAF_UNIT,
    LEAST_OF_POOL,
    MOST_KEPT,
    MOST_OF_HISTOGRAM,
    MOST_OF_SUMS,
    ROWS_TO_SPLIT,
    SHRINKAGE,
    add_histogram,
    add_leaf_sums,
    add_own_leaves,
    add_rounded,
    favourite,
    leaves_of,
    n_tested_of,
    pull_and_weight,
    unit_of,
)
from dada.core.compiled import Array
from dada.core.model_steps import n_blocks
from dada.peer.grove import MOST_CUTS, MOST_FEATURES, NO_SPLIT, NODE_SIZE, name_of
from dada.peer.messages import LARGEST_BOOSTED, MOST_BOOSTED, GrowthRequest, ImplausibleError

# A peer leads the growing of at most this share of all trees; with fewer peers a network has fewer trees.
GROWERS_NEEDED = 5
# Rounds of trees go to this multiple of their planned number, of which honest peers need hardly more than one.
SPARE_ROUNDS, MOST_ROUNDS = 4, 10_000
# Features that a node may test, at most, so that a request stays small.
MOST_TESTED = 512
# The vote of a user whose rows favour no feature, and the stages of a level.
NO_VOTE = 0xFFFF
VOTES, HISTOGRAMS, SUMS = range(3)
# States of the rows that are kept, so that a tree which belongs before the last ones is inserted cheaply.
RECENT = 64
# Largest sum of residuals or weights in a leaf that is believed.
LARGEST_SUM = 2.0**40


class TreeArrays(NamedTuple):
    """A tree as arrays: feature and threshold number (-1: no split) of each node, and the pool's values of leaves."""

    feature: NDArray[np.int64]
    cut: NDArray[np.int64]
    leaf: NDArray[np.float64]


@dataclass(frozen=True)
class BoostedTerms:
    """What all boosted trees of a network have in common; parameters as in `dada.data.BoostedTrees`.

    Examples
    --------
    >>> terms = BoostedTerms(n_features=2, n_cuts=3, n_classes=2, rounds=40, depth=1)
    >>> tree = terms.write(1, np.array([1]), np.array([2]), np.array([[32.0], [-32.0]]))
    >>> terms.read(tree).leaf.tolist(), terms.per_grower
    ([[1.0], [-1.0]], 8)
    >>> terms.check(tree + b"more")
    Traceback (most recent call last):
        ...
    dada.peer.messages.ImplausibleError: a boosted tree of 11 bytes, one of this network has 7
    """

    n_features: int
    n_cuts: int
    n_classes: int
    rounds: int = 500
    depth: int = 2
    own: float = 3.0
    rate: float = 0.1
    share: float = 0.5

    def __post_init__(self) -> None:
        if not (1 <= self.n_features <= MOST_FEATURES and 1 <= self.n_cuts <= MOST_CUTS and self.depth >= 1):
            raise ValueError(
                f"boosted trees need 1 to {MOST_FEATURES} features, 1 to {MOST_CUTS} thresholds and a depth of 1 or "
                f"more, got {self.n_features}, {self.n_cuts} and {self.depth}"
            )
        if not (0 < self.own < math.inf and 0 < self.rate <= 1 and 0 < self.share < 1):
            raise ValueError(
                f"own must be > 0 and finite, rate in (0, 1] and share in (0, 1), "
                f"got {self.own}, {self.rate} and {self.share}"
            )
        if not 1 <= self.rounds <= min(MOST_ROUNDS, GROWERS_NEEDED * MOST_BOOSTED):
            raise ValueError(f"rounds must be in 1..{GROWERS_NEEDED * MOST_BOOSTED}, got {self.rounds}")
        if self.size > LARGEST_BOOSTED:
            raise ValueError(
                f"a boosted tree has at most {LARGEST_BOOSTED} bytes, of depth {self.depth} and {self.n_outputs} "
                f"outputs {self.size}: choose a smaller depth"
            )

    @property
    def n_outputs(self) -> int:
        """Values of a leaf: one for each class, if there are more than two."""
        return n_blocks(self.n_classes)

    @property
    def n_nodes(self) -> int:
        """Nodes of a tree that may split."""
        return 2**self.depth - 1

    @property
    def size(self) -> int:
        """Bytes of a tree."""
        return 2 + NODE_SIZE * self.n_nodes + (self.n_nodes + 1) * self.n_outputs

    @property
    def per_grower(self) -> int:
        """Trees of one grower, at most."""
        return math.ceil(self.rounds / GROWERS_NEEDED)

    def write(self, number: int, feature: Array, cut: Array, leaf: Array) -> bytes:
        """A tree of a round; values of leaves are in `LEAF_UNIT`."""
        return number.to_bytes(2, "little") + write_nodes(feature, cut) + leaf.astype(np.int8).tobytes()

    def round_of(self, tree: bytes) -> int:
        """The round of a checked tree."""
        return int.from_bytes(tree[:2], "little")

    def read(self, tree: bytes) -> TreeArrays:
        """A checked tree as arrays."""
        end = 2 + NODE_SIZE * self.n_nodes
        leaf = np.frombuffer(tree[end:], np.int8).reshape(-1, self.n_outputs)
        return TreeArrays(*read_nodes(tree[2:end]), leaf.astype(np.float64) * LEAF_UNIT)

    def check(self, tree: bytes) -> None:
        """Raise `ImplausibleError` unless some bytes are a tree of this network."""
        if len(tree) != self.size:
            raise ImplausibleError(f"a boosted tree of {len(tree)} bytes, one of this network has {self.size}")
        most = min(MOST_ROUNDS, SPARE_ROUNDS * self.rounds)
        if not 1 <= self.round_of(tree) <= most:
            raise ImplausibleError(f"a boosted tree of round {self.round_of(tree)}, there are {most}")
        self.check_nodes(tree[2 : 2 + NODE_SIZE * self.n_nodes])

    def check_nodes(self, nodes: bytes) -> None:
        """Raise `ImplausibleError` unless the nodes of a tree, or of its upper levels, are of this network."""
        feature, cut = read_nodes(nodes)
        if feature.size and feature.max() >= self.n_features:
            raise ImplausibleError(f"a boosted tree tests feature {feature.max()}, there are {self.n_features}")
        if (cut >= self.n_cuts).any() or feature[cut < 0].any():
            raise ImplausibleError(f"a boosted tree has a threshold beyond the {self.n_cuts} of a feature")

    def in_order(self, trees: Collection[bytes]) -> list[bytes]:
        """Trees in the order in which all peers apply them."""
        return sorted(set(trees), key=lambda tree: (self.round_of(tree), name_of(tree)))

    def next_round(self, trees: Sequence[bytes]) -> int:
        """The round of a tree that is grown after others."""
        last = max(map(self.round_of, trees), default=0)
        return min(last + 1, MOST_ROUNDS, SPARE_ROUNDS * self.rounds)


def write_nodes(feature: Array, cut: Array) -> bytes:
    """The bytes of nodes; a threshold number of -1 is no split."""
    return feature.astype("<u2").tobytes() + np.where(cut < 0, NO_SPLIT, cut).astype(np.uint8).tobytes()


def read_nodes(nodes: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Features and threshold numbers of nodes, the inverse of `write_nodes`."""
    n = len(nodes) // NODE_SIZE
    cut = np.frombuffer(nodes[2 * n :], np.uint8).astype(np.int64)
    return np.frombuffer(nodes[: 2 * n], "<u2").astype(np.int64), np.where(cut == NO_SPLIT, -1, cut)


class BoostedRows(NamedTuple):
    """The samples of one user: the number of thresholds below each value, labels, and weights if any."""

    bins: Array
    y: Array
    weights: Array | None = None


class BoostedUsers(NamedTuple):
    """The samples of all users of a network with boosted trees, what their trees have in common, and the thresholds."""

    terms: BoostedTerms
    rows: tuple[BoostedRows, ...]
    cuts: Array


def varying_in(cuts: Array) -> NDArray[np.int64]:
    """The features that vary, by their thresholds; all, if no feature has two different ones.

    >>> varying_in(np.array([[1.0, 2.0], [5.0, 5.0]])).tolist()
    [0]
    """
    varying = np.flatnonzero(cuts[:, 0] < cuts[:, -1])
    return varying if varying.size else np.arange(len(cuts))


class LeafModel(NamedTuple):
    """Trees, and a user's own values of their leaves, of shape (leaves, outputs) for each."""

    trees: tuple[bytes, ...]
    values: tuple[NDArray[np.float64], ...]


class OwnLeaves:
    """A user's own values of the leaves of trees, and what these leave to learn on its rows.

    Examples
    --------
    >>> terms = BoostedTerms(n_features=1, n_cuts=1, n_classes=2, rounds=5, depth=1, own=0.25, rate=1.0)
    >>> leaves = OwnLeaves(terms, BoostedRows(np.array([[0], [1]], np.uint8), np.array([1.0, -1.0])))
    >>> leaves.take([terms.write(1, np.array([0]), np.array([0]), np.array([[32.0], [32.0]]))])
    >>> leaves.values[0].tolist()
    [[1.5], [-0.5]]
    """

    def __init__(self, terms: BoostedTerms, rows: BoostedRows) -> None:
        self.terms, self.rows = terms, rows
        self.trees: list[bytes] = []
        self.values: list[NDArray[np.float64]] = []
        self.margins = np.zeros((len(rows.y), terms.n_outputs))
        # Decision values of the rows before each of the last trees.
        self._before: OrderedDict[int, NDArray[np.float64]] = OrderedDict()

    @property
    def model(self) -> LeafModel:
        """The trees and the values of their leaves."""
        return LeafModel(tuple(self.trees), tuple(self.values))

    def take(self, trees: Sequence[bytes]) -> None:
        """Have the values of these trees, in their order; what stays the same at the beginning is kept."""
        same = 0
        while same < min(len(trees), len(self.trees)) and trees[same] == self.trees[same]:
            same += 1
        self._return_to(same)
        for tree in trees[len(self.trees) :]:
            self._add(tree)

    def pull_and_weight(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Residual and weight of each row for each output."""
        return pull_and_weight(self.rows.y, self.terms.n_classes, self.margins, self.rows.weights)

    def _return_to(self, n: int) -> None:
        if n == len(self.trees):
            return
        n = n if n in self._before else 0
        self.margins = self._before[n] if n else np.zeros_like(self.margins)
        del self.trees[n:], self.values[n:]
        for later in [number for number in self._before if number >= n]:
            del self._before[later]

    def _add(self, tree: bytes) -> None:
        terms, (pull, weight) = self.terms, self.pull_and_weight()
        feature, cut, shared = terms.read(tree)
        self._before[len(self.trees)] = self.margins.copy()
        if len(self._before) > RECENT:
            self._before.popitem(last=False)
        values, G, W = np.empty_like(shared), np.empty_like(shared), np.empty_like(shared)
        reached = leaves_of(self.rows.bins, feature, cut)
        add_own_leaves(reached, pull, weight, shared, terms.own, terms.rate, G, W, values, self.margins)
        self.trees.append(tree)
        self.values.append(values)


def answer(leaves: OwnLeaves, request: GrowthRequest) -> bytes:
    """What a member of a pool answers to the grower of a tree, by its own rows."""
    terms = leaves.terms
    feature, cut, tested = parts_of(terms, request)
    pull, weight = leaves.pull_and_weight()
    reached = leaves_of(leaves.rows.bins, feature, cut)
    if request.stage == SUMS:
        return _sums(reached, pull, weight, terms.n_nodes + 1)
    of_output = np.ascontiguousarray(pull[:, request.output]), np.ascontiguousarray(weight[:, request.output])
    in_nodes = [np.flatnonzero(reached == node) for node in range(len(tested))]
    if request.stage == VOTES:
        return _votes(leaves.rows.bins, in_nodes, *of_output, tested, terms.n_cuts + 1)
    return _histograms(leaves.rows.bins, in_nodes, *of_output, tested, terms.n_cuts + 1)


def parts_of(
    terms: BoostedTerms, request: GrowthRequest
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The upper nodes of a request, and the features that each node of its level tests, none for sums."""
    n_above = len(request.tree) // NODE_SIZE
    levels = terms.depth + 1 if request.stage == SUMS else terms.depth
    is_of_stage = (n_above == terms.n_nodes) == (request.stage == SUMS)
    if len(request.tree) % NODE_SIZE or n_above not in (2**level - 1 for level in range(levels)) or not is_of_stage:
        raise ImplausibleError(f"{len(request.tree)} bytes of the upper levels of a boosted tree")
    terms.check_nodes(request.tree)
    if request.output >= terms.n_outputs:
        raise ImplausibleError(f"residuals of output {request.output}, there are {terms.n_outputs}")
    tested = np.frombuffer(request.features[: len(request.features) // 2 * 2], "<u2").astype(np.int64)
    each, rest = divmod(tested.size, n_above + 1)
    most = {VOTES: MOST_TESTED, HISTOGRAMS: MOST_KEPT, SUMS: 0}[request.stage]
    if rest or len(request.features) % 2 or not min(1, most) <= each <= most:
        raise ImplausibleError(f"{len(request.features)} bytes of features for {n_above + 1} nodes")
    if tested.size and tested.max() >= terms.n_features:
        raise ImplausibleError(f"a node tests feature {tested.max()}, there are {terms.n_features}")
    return *read_nodes(request.tree), tested.reshape(n_above + 1, each)


def _votes(bins: Array, in_nodes: Sequence[Array], pull: Array, weight: Array, tested: Array, n_bins: int) -> bytes:
    """For each node the place of the favourite feature, two bytes."""
    G, W = np.zeros(n_bins), np.zeros(n_bins)
    places = [
        favourite(bins, rows, pull, weight, of_node, SHRINKAGE, G, W)
        for rows, of_node in zip(in_nodes, tested, strict=True)
    ]
    return np.array([NO_VOTE if place < 0 else place for place in places], "<u2").tobytes()


def read_votes(body: bytes, n_nodes: int, n_tested: int) -> NDArray[np.int64]:
    """The votes of a member of a pool, -1 for none."""
    if len(body) != 2 * n_nodes:
        raise ImplausibleError(f"{len(body)} bytes of votes at {n_nodes} nodes")
    places = np.frombuffer(body, "<u2").astype(np.int64)
    if (places[places != NO_VOTE] >= n_tested).any():
        raise ImplausibleError(f"a vote for feature {places[places != NO_VOTE].max()} of {n_tested}")
    return np.where(places == NO_VOTE, -1, places)


class Histograms(NamedTuple):
    """Histograms of one user at the nodes of a level.

    `counts` are its rows in each node, up to `ROWS_TO_SPLIT`; `numbers` residuals and weights by bin, of shape (nodes,
    features, 2, bins).
    """

    counts: NDArray[np.uint8]
    numbers: NDArray[np.float64]


def _histograms(bins: Array, in_nodes: Sequence[Array], pull: Array, weight: Array, kept: Array, n_bins: int) -> bytes:
    """For each node its rows, one byte; exponents of units, one byte each; numbers in these units, one byte each."""
    own_G, own_W = np.zeros(n_bins), np.zeros(n_bins)
    numbers = np.zeros((*kept.shape, 2, n_bins))
    exponents = np.zeros((*kept.shape, 2), np.int8)
    for node, rows in enumerate(in_nodes):
        for p in range(kept.shape[1]):
            of_feature = numbers[node, p]
            add_histogram(bins, rows, kept[node, p], pull, weight, own_G, own_W, of_feature[0], of_feature[1])
            for part in range(2):
                exponents[node, p, part] = _to_units(of_feature[part], MOST_OF_HISTOGRAM)
    counts = np.array([min(rows.size, ROWS_TO_SPLIT) for rows in in_nodes], np.uint8)
    return counts.tobytes() + exponents.tobytes() + numbers.astype(np.int8).tobytes()


def _to_units(numbers: Array, most: float) -> int:
    """Divide rounded numbers by their unit; its exponent."""
    unit = unit_of(numbers, 0, len(numbers) - 1, most)
    if unit == 0.0:
        return 0
    numbers /= unit
    return int(np.clip(math.frexp(unit)[1] - 1, -128, 127))


def read_histograms(body: bytes, n_nodes: int, n_kept: int, n_bins: int) -> Histograms:
    """The histograms of a member of a pool."""
    cells = n_nodes * n_kept * 2
    if len(body) != n_nodes + cells * (1 + n_bins):
        raise ImplausibleError(f"{len(body)} bytes of histograms at {n_nodes} nodes")
    counts = np.frombuffer(body[:n_nodes], np.uint8)
    exponents = np.frombuffer(body[n_nodes : n_nodes + cells], np.int8).astype(np.int32)
    numbers = np.frombuffer(body[n_nodes + cells :], np.int8).astype(np.float64).reshape(n_nodes, n_kept, 2, n_bins)
    if counts.max() > ROWS_TO_SPLIT or (np.abs(numbers) > MOST_OF_HISTOGRAM).any() or (numbers[:, :, 1] < 0).any():
        raise ImplausibleError("histograms with counts, numbers or weights out of range")
    return Histograms(counts, np.ldexp(numbers, exponents.reshape(n_nodes, n_kept, 2, 1)))


def _sums(reached: Array, pull: Array, weight: Array, n_leaves: int) -> bytes:
    """Sums of residuals and weights in leaves: exponents of units, one byte for each output; numbers, one byte each."""
    exact, numbers = np.zeros((2, 2, pull.shape[1], n_leaves))
    add_leaf_sums(reached, pull, weight, exact[0].T, exact[1].T)
    exponents = np.zeros(exact.shape[:2], np.int8)
    for cell in np.ndindex(exponents.shape):
        add_rounded(exact[cell], 0, n_leaves - 1, MOST_OF_SUMS, numbers[cell])
        exponents[cell] = _to_units(numbers[cell], MOST_OF_SUMS)
    return exponents.tobytes() + numbers.astype(np.int8).tobytes()


def read_sums(body: bytes, terms: BoostedTerms) -> NDArray[np.float64]:
    """The sums of residuals and weights in the leaves of a member of a pool, of shape (2, leaves, outputs)."""
    n_leaves, cells = terms.n_nodes + 1, 2 * terms.n_outputs
    if len(body) != cells * (1 + n_leaves):
        raise ImplausibleError(f"{len(body)} bytes of sums in {n_leaves} leaves")
    exponents = np.frombuffer(body[:cells], np.int8).astype(np.int32).reshape(2, terms.n_outputs, 1)
    numbers = np.frombuffer(body[cells:], np.int8).astype(np.float64).reshape(2, terms.n_outputs, n_leaves)
    sums = np.ldexp(numbers, exponents)
    if np.abs(numbers).max() > MOST_OF_SUMS or (sums[1] < 0).any() or (np.abs(sums) > LARGEST_SUM).any():
        raise ImplausibleError("sums of residuals out of range, or negative weights")
    return np.ascontiguousarray(sums.transpose(0, 2, 1))


def draw_tested(terms: BoostedTerms, varying: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw the features that each node of a tree may test, of those that vary; shape (nodes, features)."""
    n_tested = min(MOST_TESTED, n_tested_of(varying.size))
    return np.stack([rng.choice(varying, n_tested, replace=False) for _ in range(terms.n_nodes)])


def pool_size(n_rows: int, rows_of_pool: int) -> int:
    """Users of a pool, if all have as many rows as this one.

    >>> pool_size(50, 700), pool_size(5000, 700)
    (14, 8)
    """
    return max(LEAST_OF_POOL, math.ceil(rows_of_pool / n_rows))
