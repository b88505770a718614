"""What a peer remembers of others: the edge to each, a graph step under way, and who has lied to it."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from dada.peer.copies import ModelCopy
from dada.peer.messages import ModelOffer, PeerId, StateReply

# More versions than a peer gives in one life.
VERSIONS_PER_LIFE = 1 << 20


@dataclass(eq=False)
class Edge:
    """What a peer holds of the edge to one other peer.

    `acknowledged` if the other end is known to hold the same; `size`: the number of samples it said it has.
    """

    weight: float = 0.0
    version: int = 0
    author: PeerId = b""
    copy: ModelCopy | None = None
    acknowledged: bool = True
    repeats: int = 0
    snapshot_asked: float = -math.inf
    size: int = 1

    @property
    def rank(self) -> tuple[int, PeerId]:
        """What decides between two states of one edge."""
        return self.version, self.author


class Versions:
    """Numbers for the states that one peer gives its edges, none of which it has ever given before.

    They go on rising from life to life and from edge to edge, so that none comes back where a peer has forgotten an
    edge, or where a power cut has lost its last records.

    >>> versions = Versions()
    >>> versions.begin(epoch=1)
    >>> versions.after(0) < versions.after(0) < versions.after(10**9)
    True
    """

    def __init__(self) -> None:
        self._next = 0

    def begin(self, epoch: int) -> None:
        """Start a life."""
        self._next = epoch * VERSIONS_PER_LIFE

    def after(self, version: int) -> int:
        """A new version above a given one."""
        self._next += 1
        return max(version + 1, self._next)


@dataclass(eq=False)
class Round:
    """A graph step that waits for replies."""

    number: int
    batch: tuple[PeerId, ...]
    deadline: float
    replies: dict[PeerId, StateReply | ModelOffer] = field(default_factory=dict)


class Offences:
    """How often each peer said what cannot be true; those who did so longest ago are forgotten first.

    >>> offences = Offences(patience=2, most_peers=10)
    >>> [offences.add(b"liar") for _ in range(2)]
    [False, True]
    """

    def __init__(self, patience: int, most_peers: int) -> None:
        self.patience, self.most_peers = patience, most_peers
        self._counts: OrderedDict[PeerId, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, peer: PeerId) -> bool:
        """Count one more; whether the patience with this peer is now at an end."""
        self._counts[peer] = self._counts.get(peer, 0) + 1
        self._counts.move_to_end(peer)
        if len(self._counts) > self.most_peers:
            self._counts.popitem(last=False)
        return self.is_ignored(peer)

    def is_ignored(self, peer: PeerId) -> bool:
        """Whether a peer is not listened to any more."""
        return self._counts.get(peer, 0) >= self.patience


class Sizes:
    """How many samples others say they have, and the largest number one can rely on.

    Parameters
    ----------
    distrust : float
        Part of the largest numbers that is ignored.
    most_peers : int
        Numbers remembered; those heard of longest ago are forgotten first.

    Examples
    --------
    >>> sizes = Sizes(distrust=0.3, most_peers=100)
    >>> for peer, size in ((b"a", 10), (b"b", 12), (b"c", 8), (b"liar", 10**9)):
    ...     sizes.note(peer, size)
    >>> sizes.largest
    12
    """

    def __init__(self, distrust: float, most_peers: int) -> None:
        self.distrust, self.most_peers = distrust, most_peers
        self.largest = 1
        self._sizes: OrderedDict[PeerId, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sizes)

    def note(self, peer: PeerId, size: int) -> None:
        """A peer says how many samples it has."""
        was = self._sizes.get(peer)
        self._sizes[peer] = size
        self._sizes.move_to_end(peer)
        if len(self._sizes) > self.most_peers:
            self._sizes.popitem(last=False)
        if was != size:
            ordered = sorted(self._sizes.values(), reverse=True)
            self.largest = ordered[int(self.distrust * len(ordered))]
