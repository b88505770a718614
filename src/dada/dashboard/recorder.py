"""Record a run: an observer that writes events to a file, at a bounded cost to the run.

Trace points, phases and notes are all kept. Three bounds limit the snapshots: the time that recording takes, as a share
of the run's time; a hundred per e-fold of the run's age, so that the beginning is dense and a long run stays small;
and, for long runs, a number of bytes per second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dada import events
from dada.dashboard import records
from dada.dashboard.records import EdgeChanges, frame, header, record_of

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
    >>> from dada.dashboard.records import LogReader
    >>> with TemporaryDirectory() as folder:
    ...     with Recorder(Path(folder) / "run.dadalog", now=lambda: 0.0) as recorder:
    ...         recorder(events.Stopped("All planned updates were made."))
    ...     [records.decode(content) for content in LogReader(Path(folder) / "run.dadalog")]
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
        self._peers: records.Peers | None = None

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
                self._write(record_of(records.Done, age, event))
        else:
            record = _record(event, age)
            if record is not None and not self._is_known(record):
                self._write(record)
        self._spent += self._now() - before

    def note(self, text: str) -> None:
        """Record a line of text, which the page shows until the next one."""
        self._write(records.Note(0.0 if self._began is None else self._now() - self._began, text))

    def close(self) -> None:
        """End the recording."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __exit__(self, *error: object) -> None:
        self.close()

    def _is_known(self, record: records.Record) -> bool:
        """Whether a record repeats the previous state of the peers."""
        if not isinstance(record, records.Peers):
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
        graph = record_of(records.Edges, age, snapshot, whole=whole, total=int(snapshot.w.size), **changes)
        users = record_of(records.UserStates, age, snapshot, tops=snapshot.predictors.shape[1])
        self._size = self._write(graph) + self._write(users)
        self._last = age

    def _write(self, record: records.Record) -> int:
        content = frame(records.encode(record))
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
    events.RunInfo: records.Info,
    events.PhaseStarted: records.PhaseStart,
    events.PeerStatus: records.Peers,
    events.Stopped: records.Stop,
}


def _record(event: Any, age: float) -> records.Record | None:
    """The record of an event; None for events that are not recorded."""
    match event:
        case events.TracePoint():
            spreads = {"train": _spread(event.train_accuracy), "test": _spread(event.test_accuracy)}
            return record_of(records.Point, age, event, **spreads)
        case events.CheckpointSaved():
            return records.Note(age, f"Checkpoint saved: {Path(event.path).name}")
        case events.CheckpointFailed():
            return records.Note(age, f"Checkpoint not written: {event.reason}")
    kind = _RECORDS.get(type(event))
    return None if kind is None else record_of(kind, age, event)


def _spread(accuracy: NDArray[Any]) -> records.Spread | None:
    known = accuracy[np.isfinite(accuracy)]
    if known.size == 0:
        return None
    return records.Spread(float(known.mean()), float(np.percentile(known, 10)), float(known.min()))
