"""Whom to ask at a graph wake-up: some peers at random, and neighbours of neighbours.

Uniform sampling finds the few peers that matter among K after about K wake-ups. Friends of friends are likely friends,
so most of a batch is drawn from the neighbours' lists; at least one peer is always drawn from everybody, because
without any the search ends in whatever cluster it began. A few present neighbours are asked again, so that old weights
follow when degrees change.
"""

from __future__ import annotations

from typing import NamedTuple

from dada.core.compiled import Array, lean_kernel
from dada.core.neighbour_lists import NeighbourLists


class BatchMix(NamedTuple):
    """How many peers of each kind a wake-up asks: uniform, neighbours of neighbours, present neighbours."""

    n_uniform: int
    n_gossip: int
    n_refresh: int

    @property
    def size(self) -> int:
        """Peers asked at most."""
        return self.n_uniform + self.n_gossip + self.n_refresh

    @property
    def n_words(self) -> int:
        """Random words that one wake-up uses."""
        return 2 * self.n_gossip + self.n_refresh


def uniform_mix(kappa: int) -> BatchMix:
    """The paper's batches: kappa peers drawn from everybody."""
    return BatchMix(kappa, 0, 0)


def gossip_mix(kappa: int) -> BatchMix:
    """kappa candidates, a quarter of them (at least one) uniform, and two present neighbours.

    >>> gossip_mix(5)
    BatchMix(n_uniform=1, n_gossip=4, n_refresh=2)
    """
    n_uniform = max(1, kappa // 4)
    return BatchMix(n_uniform, kappa - n_uniform, 2)


@lean_kernel
def pick(word: int, size: int) -> int:
    """A number below `size` from a random word of 32 bits."""
    return (word * size) >> 32


@lean_kernel
def append_new(peers: Array, size: int, k: int, l: int) -> int:
    """Append l to the peers unless it is k itself or there already; returns the new size."""
    if l == k:
        return size
    for b in range(size):
        if peers[b] == l:
            return size
    peers[size] = l
    return size + 1


@lean_kernel
def gather_peers(mix: BatchMix, lists: NeighbourLists, k: int, uniform: Array, words: Array, peers: Array) -> int:
    """Fill `peers` with user k's batch, without repeats; returns its size."""
    size = 0
    for b in range(mix.n_uniform):
        size = append_new(peers, size, k, uniform[b])
    length = lists.length[k]
    if length == 0:
        return size
    for g in range(mix.n_gossip):
        a = lists.ids[lists.start[k] + pick(words[2 * g], length)]
        if lists.length[a] > 0:
            size = append_new(peers, size, k, lists.ids[lists.start[a] + pick(words[2 * g + 1], lists.length[a])])
    for r in range(mix.n_refresh):
        size = append_new(peers, size, k, lists.ids[lists.start[k] + pick(words[2 * mix.n_gossip + r], length)])
    return size
