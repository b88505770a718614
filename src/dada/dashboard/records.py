"""What a recording says: one msgpack array per record, its first entry the number of its kind.

Numeric arrays are raw little-endian bytes. Order is the schema: new fields go last, with defaults, and readers skip the
fields and the kinds that they do not know, so older readers open newer recordings of the same version.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray


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
