"""The file of a recording: a header, then records, each with its length and checksum.

    header   8 bytes "DADALOG" and a line feed, uint32 version
    record   uint32 length of the body, uint32 CRC-32 of the body, body
    body     one byte, 0 or 1, then the content: as it is, or compressed with zlib
    content  one msgpack array, its first entry the number of its kind

Numbers are little-endian. A file may end within a record, because its writer was killed or is still writing: everything
before is valid.

Fields have the names of the event's fields; numeric arrays are raw little-endian bytes. Order is the schema: new fields
go last, with defaults, and readers skip unknown fields and kinds, so older readers open newer recordings of the same
version.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

MAGIC = b"DADALOG\n"
VERSION = 1
HEADER = struct.Struct("<8sI")
FRAME = struct.Struct("<II")
#: Smaller contents are not compressed.
COMPRESS_FROM = 200
#: A larger length is damage: no record has it. A record of a million users takes about 1e8 bytes.
LARGEST_BODY = 1 << 28
LARGEST_CONTENT = 1 << 29


class RecordingError(ValueError):
    """A file is not a recording that this version can read."""


def header() -> bytes:
    """The first bytes of a recording."""
    return HEADER.pack(MAGIC, VERSION)


def frame(content: bytes) -> bytes:
    """A record around the given content.

    >>> frame(b"abc").hex(" ", 4)
    '04000000 cc4721eb 00616263'
    """
    body = b"\0" + content if len(content) < COMPRESS_FROM else b"\1" + zlib.compress(content, level=1)
    return FRAME.pack(len(body), zlib.crc32(body)) + body


def check_header(start: bytes, name: str) -> None:
    """Raise if the file is not a recording, or one of a newer version."""
    if len(start) < HEADER.size or start[: len(MAGIC)] != MAGIC:
        raise RecordingError(f"{name} is not a recording of dada: it does not start with {MAGIC!r} and a version")
    version = HEADER.unpack(start[: HEADER.size])[1]
    if version > VERSION:
        raise RecordingError(
            f"{name} is a recording of version {version}, and this dada reads versions up to {VERSION}: update dada"
        )


class LogReader:
    """Reads the records of a file from its start, up to the last good one.

    Attributes
    ----------
    good_bytes : int
        Size of header and good records read so far.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "run.dadalog"
    ...     _ = path.write_bytes(header() + frame(b"one") + frame(b"two")[:-1])
    ...     reader = LogReader(path)
    ...     list(reader), reader.good_bytes, reader.lost_bytes
    ([b'one'], 24, 11)
    """

    def __init__(self, path: str | os.PathLike[str], largest_content: int = LARGEST_CONTENT) -> None:
        self.path, self.largest_content = Path(path), largest_content
        self.size = self.path.stat().st_size
        with self.path.open("rb") as file:
            check_header(file.read(HEADER.size), str(path))
        self.good_bytes = HEADER.size

    @property
    def lost_bytes(self) -> int:
        """Bytes after the last good record: 0 for a complete file that was read to its end."""
        return self.size - self.good_bytes

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(self.good_bytes)
            while (body := _next_body(file)) is not None:
                content = _content(body, self.largest_content)
                if content is None:
                    return
                self.good_bytes += FRAME.size + len(body)
                yield content


def _next_body(file: BinaryIO) -> bytes | None:
    """The body of the next record; None at the end of the file or if the record is damaged."""
    start = file.read(FRAME.size)
    if len(start) < FRAME.size:
        return None
    length, checksum = FRAME.unpack(start)
    if not 1 <= length <= LARGEST_BODY:
        return None
    body = file.read(length)
    return body if len(body) == length and zlib.crc32(body) == checksum else None


def _content(body: bytes, most: int) -> bytes | None:
    if body[0] == 0:
        return body[1:]
    if body[0] != 1:
        return None
    # A few bytes can stand for gigabytes: never more than a record may hold is decompressed.
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(body[1:], most)
    except zlib.error:
        return None
    return content if stream.eof else None


class _Record(msgspec.Struct, array_like=True):
    """A record; `at_s` is the time since the recording began, in seconds."""

    at_s: float


class Info(_Record, tag=0):
    """The users and methods, see `dada.events.RunInfo`; `groups` is int32, `alone` float32."""

    title: str
    users: list[str]
    groups: bytes
    group_names: list[str]
    alone: bytes
    baselines: dict[str, float]
    predictors: list[str]


class PhaseStart(_Record, tag=1):
    """A phase begins, see `dada.events.PhaseStarted`."""

    kind: str
    events: int


class Done(_Record, tag=2):
    """Progress, see `dada.events.Progress`."""

    done: int
    total: int


class Spread(msgspec.Struct, array_like=True):
    """An accuracy over all users: mean, tenth percentile and worst."""

    mean: float
    tenth: float
    worst: float


class Point(_Record, tag=3):
    """A trace point; its accuracies are summarised, or None if unknown."""

    updates: int
    graph_wakeups: int
    objective: float
    gap: float
    train: Spread | None
    test: Spread | None
    edges: int
    bits: float


class Edges(_Record, tag=4):
    """The graph: all edges if `whole`, else the changes since the previous record, with weight 0 for removed edges.

    Ordered by `k`, then `l`, which are uint16 for at most 65,536 users, else uint32; `w` is float32. `total` counts the
    edges of the run, which may be more than the recording keeps.
    """

    updates: int
    phase: str
    whole: bool
    directed: bool
    total: int
    k: bytes
    l: bytes
    w: bytes


class UserStates(_Record, tag=5):
    """All users, directly after the graph of the same snapshot.

    float32: confidence, loss, accuracy (empty if unknown), predictor_weights, bits; int32: predictors; float64:
    messages. Both arrays of predictors have `tops` entries per user.
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


class Peers(_Record, tag=6):
    """The peers of a network: uint8 up, uint32 restarts and refused, float32 rtt_ms."""

    up: bytes
    restarts: bytes
    rtt_ms: bytes
    refused: bytes


class Note(_Record, tag=7):
    """A line of text, such as a saved checkpoint."""

    text: str


class Stop(_Record, tag=8):
    """The run is over; `status` is a sentence."""

    status: str


Record = Info | PhaseStart | Done | Point | Edges | UserStates | Peers | Note | Stop

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode
_decode_any = msgspec.msgpack.Decoder(list[Any]).decode
_KINDS = 9


def decode(content: bytes) -> Record | None:
    """The record with the given content; None if its kind is unknown, that is, newer.

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
    """Numbers as float32 with 14 significant bits: enough for a picture, and trailing zeros compress well.

    >>> rounded([0.125, 3.0, 1000.01]).tolist()
    [0.125, 3.0, 1000.0]
    """
    # A copy, because its bits are changed in place.
    single = np.array(values, dtype="<f4")
    bits = single.view(np.uint32)
    bits += 0x200
    bits &= 0xFFFFFC00
    return single


_TYPES = {"groups": "<i4", "predictors": "<i4", "up": "u1", "restarts": "<u4", "refused": "<u4", "messages": "<f8"}
_R = TypeVar("_R", bound=_Record)


def record_of(kind: type[_R], at_s: float, event: Any, **given: Any) -> _R:
    """The record of an event: fields of the same name, arrays as bytes; `given` fields replace those of the event.

    >>> from dada.events import Stopped
    >>> record_of(Stop, 1.5, Stopped("Done."))
    Stop(at_s=1.5, status='Done.')
    """
    names = kind.__struct_fields__[1:]
    fields = {name: given[name] if name in given else _packed(name, getattr(event, name)) for name in names}
    return kind(at_s=at_s, **fields)


def _packed(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.astype(_TYPES[name]) if name in _TYPES else rounded(value)).tobytes()
    return dict(value) if isinstance(value, Mapping) else value


#: The heaviest edges of a larger graph are kept: more would be unreadable and make recordings huge.
MOST_EDGES = 100_000
#: Once this part of the edges has changed, the whole graph is as small as the changes.
MOSTLY_CHANGED = 0.7
#: After this number of changes per edge the whole graph is written again, which keeps seeking fast.
CHANGES_PER_WHOLE = 3


@dataclass
class EdgeChanges:
    """Encodes a sequence of graphs as whole graphs and changes."""

    keys: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    w: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    changes: float = np.inf
    n_users: int = 0

    def next(self, n_users: int, k: Any, l: Any, w: Any) -> tuple[bool, NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Whether the graph is given whole, and its edges or changes k, l, w, ordered by k, then l.

        Among changes, a removed edge has weight 0.

        Examples
        --------
        >>> changes = EdgeChanges()
        >>> changes.next(3, [0, 0, 1], [1, 2, 2], [1.0, 1.0, 1.0])[0]
        True
        >>> whole, *edges = changes.next(3, [0, 0, 1], [1, 2, 2], [1.0, 0.5, 1.0])
        >>> whole, [column.tolist() for column in edges]
        (False, [[0], [2], [0.5]])
        """
        old_keys, old_w = self.keys, self.w
        keys, w = np.asarray(k, np.int64) * n_users + np.asarray(l), rounded(w)
        if w.size > MOST_EDGES:
            heaviest = np.argpartition(w, w.size - MOST_EDGES)[w.size - MOST_EDGES :]
            keys, w = keys[heaviest], w[heaviest]
        order = np.argsort(keys, kind="stable")
        keys, w = self.keys, self.w = keys[order], w[order]
        changed_keys, changed_w = _difference(old_keys, old_w, keys, w)
        if n_users != self.n_users:
            # The keys of all edges depend on the number of users.
            self.n_users, self.changes = n_users, np.inf
        self.changes += changed_keys.size
        whole = changed_keys.size > MOSTLY_CHANGED * keys.size or self.changes > CHANGES_PER_WHOLE * keys.size
        if whole:
            self.changes = 0
            changed_keys, changed_w = keys, w
        return whole, *np.divmod(changed_keys, max(n_users, 1)), changed_w


def _difference(
    old_keys: NDArray[np.int64], old_w: NDArray[np.float32], keys: NDArray[np.int64], w: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """New and changed edges with their weights, and removed ones with weight 0, in ascending order."""
    place = np.searchsorted(old_keys, keys)
    place[place == old_keys.size] = 0
    same = np.zeros(keys.size, bool) if old_keys.size == 0 else (old_keys[place] == keys) & (old_w[place] == w)
    gone = np.setdiff1d(old_keys, keys, assume_unique=True)
    all_keys = np.concatenate([keys[~same], gone])
    order = np.argsort(all_keys, kind="stable")
    return all_keys[order], np.concatenate([w[~same], np.zeros(gone.size, np.float32)])[order]
