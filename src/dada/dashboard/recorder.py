"""Record a run: an observer that writes what it is told to a file, at a bounded cost to the run.

Trace points, phases and notes are all kept. Snapshots are taken as often as three bounds allow: the time that recording
takes, as a share of the run's; a hundred per e-fold of the run's age, so that the lively beginning is dense and a long
run stays small; and, for long runs, a number of bytes per second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from dada import events
from dada.dashboard import records
from dada.dashboard.logfile import frame, header
from dada.dashboard.records import EdgeChanges, rounded

#: Beside milestones, recording takes at most this part of the run's time, and an allowance for short runs.
SHARE = 0.03
ALLOWANCE_S = 0.1
#: Snapshots while the age of the run grows by a factor e: at most, and where each fills some hundred kilobytes.
MOST_STEPS, LEAST_STEPS = 100, 8
BYTES_PER_STEPS = 4e6
#: However long a run is, snapshots are no rarer than this, or than the bytes allow.
LONGEST_INTERVAL_S = 1.0
BYTES_PER_S = 10e3
#: How long the state of peers is taken as known while only round trips change.
PEERS_EVERY_S = 10.0


class Recorder:
    """Writes the events of a run to a file.

    A recording that cannot be written, as on a full disk, never harms the run: it ends, and `failure` says why.

    Parameters
    ----------
    path : path
        The file, by convention `*.dadalog`. An existing one is replaced.
    now : callable
        Clock, in seconds.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from dada.dashboard.logfile import LogReader
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
        # Without a buffer every record reaches those who follow the file at once, and none is lost with the process.
        self._file: BinaryIO | None = self.path.open("wb", buffering=0)
        self._file.write(header())
        self._began: float | None = None
        self._spent = self._price = self._last = self._last_progress = 0.0
        self._size = 0
        self._edges = EdgeChanges()
        self._peers: records.Peers | None = None

    def __call__(self, event: events.Event) -> None:
        """Record an event, or leave it out."""
        if self._file is None or isinstance(event, events.TrialStarted):
            return
        before = self._now()
        if self._began is None:
            # A run may be prepared, settings tried and kernels compiled long before there is anything to show.
            self._began = before
        age = before - self._began
        if isinstance(event, events.SnapshotOffer):
            if event.milestone:
                # Not charged: the first of them may wait until kernels are compiled.
                self._take(event, age)
                return
            if self._is_due(age):
                self._take(event, age)
                self._price = max(self._now() - before, 0.5 * self._price)
        elif isinstance(event, events.Progress):
            if age - self._last_progress >= age / MOST_STEPS or event.done == event.total:
                self._last_progress = age
                self._write(records.Done(age, event.done, event.total))
        else:
            record = _record_of(event, age)
            if record is not None and not self._is_known(record):
                self._write(record)
        self._spent += self._now() - before

    def close(self) -> None:
        """End the recording."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _is_known(self, record: records.Record) -> bool:
        """Whether a record says nothing new: peers that are as they were a moment ago."""
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
        whole, edges = self._edges.next(snapshot)
        ids = "<u2" if snapshot.loss.size <= 1 << 16 else "<u4"
        size = self._write(
            records.Edges(
                at_s=age,
                updates=snapshot.updates,
                phase=snapshot.phase,
                whole=whole,
                directed=snapshot.directed,
                total=int(snapshot.w.size),
                k=edges.k.astype(ids).tobytes(),
                l=edges.l.astype(ids).tobytes(),
                w=edges.w.tobytes(),
            )
        )
        self._size = size + self._write(
            records.Users(
                at_s=age,
                updates=snapshot.updates,
                tops=snapshot.predictors.shape[1],
                confidence=rounded(snapshot.confidence).tobytes(),
                loss=rounded(snapshot.loss).tobytes(),
                accuracy=rounded(snapshot.accuracy).tobytes(),
                predictors=snapshot.predictors.astype("<i4").tobytes(),
                predictor_weights=rounded(snapshot.predictor_weights).tobytes(),
                messages=snapshot.messages.astype("<f8").tobytes(),
                bits=rounded(snapshot.bits).tobytes(),
            )
        )
        self._last = age

    def _write(self, record: records.Record) -> int:
        content = frame(records.encode(record))
        if self._file is not None:
            try:
                # A short write leaves half a record at the end, which readers leave out.
                if self._file.write(content) < len(content):
                    raise OSError(f"only a part of a record could be written to {self.path}")
            except OSError as error:
                self.failure = error
                self.close()
        return len(content)


def _record_of(event: Any, age: float) -> records.Record | None:
    """The record of an event; none for events that recordings do not hold."""
    match event:
        case events.RunInfo():
            return records.Info(
                age,
                event.title,
                list(event.users),
                event.groups.astype("<i4").tobytes(),
                list(event.group_names),
                rounded(event.alone).tobytes(),
                dict(event.baselines),
                list(event.predictors),
            )
        case events.PhaseStarted():
            return records.Phase(age, event.kind, event.events)
        case events.TracePoint():
            return records.Point(
                age,
                event.updates,
                event.graph_wakeups,
                event.objective,
                event.gap,
                _spread(event.train_accuracy),
                _spread(event.test_accuracy),
                event.edges,
                event.bits,
            )
        case events.PeerStatus():
            return records.Peers(
                age,
                event.up.astype("u1").tobytes(),
                event.restarts.astype("<u4").tobytes(),
                rounded(event.rtt_ms).tobytes(),
                event.refused.astype("<u4").tobytes(),
            )
        case events.CheckpointSaved():
            return records.Note(age, f"Checkpoint saved: {Path(event.path).name}")
        case events.CheckpointFailed():
            return records.Note(age, f"Checkpoint not written: {event.reason}")
        case events.Stopped():
            return records.Stop(age, event.status)
    return None


def _spread(accuracy: NDArray[Any]) -> records.Spread | None:
    known = accuracy[np.isfinite(accuracy)]
    if known.size == 0:
        return None
    return records.Spread(float(known.mean()), float(np.percentile(known, 10)), float(known.min()))
