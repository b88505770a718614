"""Recordings: the format of their file, and an observer that writes one while a run goes on.

The file has a header, then records, each with its length and checksum.

    header   8 bytes "DADALOG" and a line feed, uint32 version
    record   uint32 length of the body, uint32 CRC-32 of the body, body
    body     one byte, 0 or 1, then the content: as it is, or compressed with zlib
    content  one msgpack array, its first entry the number of its kind

Numbers are little-endian. A file may end within a record, because its writer was killed or is still writing: everything
before is valid.

Fields have the names of the event's fields; numeric arrays are raw little-endian bytes. Order is the schema: new fields
go last, with defaults, and readers skip unknown fields and kinds, so older readers open newer recordings of the same
version.

Recording has a bounded cost to the run. Trace points, phases and notes are all kept. Three bounds limit the snapshots:
the time that recording takes, as a share of the run's time; a hundred per e-fold of the run's age, so that the
beginning is dense and a long run stays small; and, for long runs, a number of bytes per second.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dada import events

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


#: Apart from milestones, recording takes at most this share of the run's time, and an allowance for short runs.
SHARE = 0.03
ALLOWANCE_S = 0.1
#: Snapshots while the age of the run grows by a factor e: at most, and at least for large snapshots.
MOST_STEPS, LEAST_STEPS = 100, 8
BYTES_PER_STEPS = 4e6
#: The longest interval between snapshots, unless the bytes per second demand more.
LONGEST_INTERVAL_S = 1.0
BYTES_PER_S = 10e3
#: The state of peers is repeated at this interval if only round trips change.
PEERS_EVERY_S = 10.0


class Recorder(AbstractContextManager["Recorder"]):
    """Writes the events of a run to a file.

    An error while writing, such as a full disk, never stops the run: the recording ends, and `failure` holds the error.

    Parameters
    ----------
    path : path
        The file, by convention `*.dadalog`. An existing one is replaced.
    now : callable
        Clock, in seconds.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with Recorder(Path(folder) / "run.dadalog", now=lambda: 0.0) as recorder:
    ...         recorder(events.Stopped("All planned updates were made."))
    ...     [decode(content) for content in LogReader(Path(folder) / "run.dadalog")]
    [Stop(at_s=0.0, status='All planned updates were made.')]
    """

    def __init__(self, path: str | os.PathLike[str], now: Callable[[], float] = time.perf_counter) -> None:
        self.path = Path(path)
        self.failure: OSError | None = None
        self._now = now
        # Unbuffered: readers of the file see every record at once, and a killed process loses none.
        self._file: BinaryIO | None = self.path.open("wb", buffering=0)
        self._file.write(header())
        self._began: float | None = None
        self._spent = self._price = self._last = self._last_progress = 0.0
        self._size = 0
        self._edges = EdgeChanges()
        self._peers: Peers | None = None

    def __call__(self, event: events.Event) -> None:
        """Record an event, or skip it."""
        if self._file is None or isinstance(event, events.TrialStarted):
            return
        before = self._now()
        if self._began is None:
            # Trials and compilation may take long before the first event.
            self._began = before
        age = before - self._began
        if isinstance(event, events.SnapshotOffer):
            if event.milestone:
                # Not charged: the first milestone may wait for compilation.
                self._take(event, age)
                return
            if self._is_due(age):
                self._take(event, age)
                self._price = max(self._now() - before, 0.5 * self._price)
        elif isinstance(event, events.Progress):
            if age - self._last_progress >= age / MOST_STEPS or event.done == event.total:
                self._last_progress = age
                self._write(record_of(Done, age, event))
        else:
            record = _record(event, age)
            if record is not None and not self._is_known(record):
                self._write(record)
        self._spent += self._now() - before

    def note(self, text: str) -> None:
        """Record a line of text, which the page shows until the next one."""
        self._write(Note(0.0 if self._began is None else self._now() - self._began, text))

    def close(self) -> None:
        """End the recording."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __exit__(self, *error: object) -> None:
        self.close()

    def _is_known(self, record: Record) -> bool:
        """Whether a record repeats the previous state of the peers."""
        if not isinstance(record, Peers):
            return False
        last, self._peers = self._peers, record
        if last is None or record.at_s - last.at_s >= PEERS_EVERY_S:
            return False
        if (record.up, record.restarts, record.refused) != (last.up, last.restarts, last.refused):
            return False
        self._peers = last
        return True

    def _is_due(self, age: float) -> bool:
        steps = np.clip(BYTES_PER_STEPS / max(self._size, 1), LEAST_STEPS, MOST_STEPS)
        interval = min(age / steps, max(LONGEST_INTERVAL_S, self._size / BYTES_PER_S))
        affordable = self._spent + self._price <= ALLOWANCE_S + SHARE * age
        return affordable and age - self._last >= interval

    def _take(self, offer: events.SnapshotOffer, age: float) -> None:
        snapshot = offer.take()
        n_users = snapshot.loss.size
        whole, k, l, w = self._edges.next(n_users, snapshot.k, snapshot.l, snapshot.w)
        ids = "<u2" if n_users <= 1 << 16 else "<u4"
        changes = {"k": k.astype(ids).tobytes(), "l": l.astype(ids).tobytes(), "w": w.tobytes()}
        graph = record_of(Edges, age, snapshot, whole=whole, total=int(snapshot.w.size), **changes)
        users = record_of(UserStates, age, snapshot, tops=snapshot.predictors.shape[1])
        self._size = self._write(graph) + self._write(users)
        self._last = age

    def _write(self, record: Record) -> int:
        content = frame(encode(record))
        if self._file is not None:
            try:
                # A short write leaves a partial record at the end, which readers skip.
                if self._file.write(content) < len(content):
                    raise OSError(f"only a part of a record could be written to {self.path}")
            except OSError as error:
                self.failure = error
                self.close()
        return len(content)


_RECORDS: dict[type, type[Any]] = {
    events.RunInfo: Info,
    events.PhaseStarted: PhaseStart,
    events.PeerStatus: Peers,
    events.Stopped: Stop,
}


def _record(event: Any, age: float) -> Record | None:
    """The record of an event; None for events that are not recorded."""
    match event:
        case events.TracePoint():
            spreads = {"train": _spread(event.train_accuracy), "test": _spread(event.test_accuracy)}
            return record_of(Point, age, event, **spreads)
        case events.CheckpointSaved():
            return Note(age, f"Checkpoint saved: {Path(event.path).name}")
        case events.CheckpointFailed():
            return Note(age, f"Checkpoint not written: {event.reason}")
    kind = _RECORDS.get(type(event))
    return None if kind is None else record_of(kind, age, event)


def _spread(accuracy: NDArray[Any]) -> Spread | None:
    known = accuracy[np.isfinite(accuracy)]
    if known.size == 0:
        return None
    return Spread(float(known.mean()), float(np.percentile(known, 10)), float(known.min()))
