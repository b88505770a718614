"""What a recording says: one msgpack array per record, its first entry the number of its kind.

Numeric arrays are raw little-endian bytes. Order is the schema: new fields go last, with defaults, and readers skip the
fields and the kinds that they do not know, so older readers open newer recordings of the same version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dada.events import Snapshot


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """A record; `at_s` is the time since the recording began, in seconds."""

    at_s: float


class Info(_Record, frozen=True, tag=0):
    """Who takes part, see `dada.events.RunInfo`; `groups` is int32, `alone` float32."""

    title: str
    users: list[str]
    groups: bytes
    group_names: list[str]
    alone: bytes
    baselines: dict[str, float]
    predictors: list[str]


class Phase(_Record, frozen=True, tag=1):
    """A phase of so many wake-ups begins."""

    kind: str
    events: int


class Done(_Record, frozen=True, tag=2):
    """So many of all wake-ups are over."""

    done: int
    total: int


class Spread(msgspec.Struct, frozen=True, array_like=True):
    """An accuracy over all users: mean, tenth percentile and worst."""

    mean: float
    tenth: float
    worst: float


class Point(_Record, frozen=True, tag=3):
    """A trace point, with its accuracies summed up; none where unknown."""

    updates: int
    graph_wakeups: int
    objective: float
    gap: float
    train: Spread | None
    test: Spread | None
    edges: int
    bits: float


class Edges(_Record, frozen=True, tag=4):
    """The graph: all edges, where `whole`, else those that changed since the record before, gone ones with weight 0.

    Ordered by `k`, then `l`, which are uint16 where the run has at most 65,536 users, else uint32; `w` is float32.
    `total` counts the edges of the run, which may be more than a recording holds.
    """

    updates: int
    phase: str
    whole: bool
    directed: bool
    total: int
    k: bytes
    l: bytes
    w: bytes


class Users(_Record, frozen=True, tag=5):
    """All users, right after the graph of the same moment.

    float32: confidence, loss, accuracy (empty where unknown), predictor_weights, bits; int32: predictors;
    float64: messages. Both arrays of predictors have `tops` entries per user.
    """

    updates: int
    tops: int
    confidence: bytes
    loss: bytes
    accuracy: bytes
    predictors: bytes
    predictor_weights: bytes
    messages: bytes
    bits: bytes


class Peers(_Record, frozen=True, tag=6):
    """The peers of a network: uint8 up, uint32 restarts and refused, float32 rtt_ms."""

    up: bytes
    restarts: bytes
    rtt_ms: bytes
    refused: bytes


class Note(_Record, frozen=True, tag=7):
    """Something worth a line, such as a checkpoint."""

    text: str


class Stop(_Record, frozen=True, tag=8):
    """The run is over; `status` is a sentence."""

    status: str


Record = Info | Phase | Done | Point | Edges | Users | Peers | Note | Stop

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode
_decode_any = msgspec.msgpack.Decoder(list[Any]).decode
_KINDS = 9


def decode(content: bytes) -> Record | None:
    """The record with the given content; none where its kind is unknown, that is, newer.

    >>> decode(encode(Stop(1.5, "Done.")))
    Stop(at_s=1.5, status='Done.')
    >>> decode(encode([99, 1.5, "from the future"])) is None
    True
    """
    try:
        return _decode(content)
    except msgspec.ValidationError:
        tag = next(iter(_decode_any(content)), None)
        if isinstance(tag, int) and tag >= _KINDS:
            return None
        raise


def rounded(values: Any) -> NDArray[np.float32]:
    """Numbers as float32 with 14 significant bits: enough for the eye, and the zeros behind compress well.

    >>> rounded([0.125, 3.0, 1000.01]).tolist()
    [0.125, 3.0, 1000.0]
    """
    # A copy: its bits are changed in place.
    single = np.array(values, dtype="<f4")
    bits = single.view(np.uint32)
    bits += 0x200
    bits &= 0xFFFFFC00
    return single


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
