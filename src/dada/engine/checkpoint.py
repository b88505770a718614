"""What a run looks after between two chunks of wake-ups: its time limit, its checkpoints, Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dada.engine.state import State
from dada.events import CheckpointFailed, CheckpointSaved, Observer


@dataclass
class TimeLimit:
    """Seconds that a run may take, counted from its start or its resumption."""

    now: Callable[[], float]
    limit_s: float | None
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    def is_over(self) -> bool:
        """Whether they have passed."""
        return self.limit_s is not None and self.now() - self.started >= self.limit_s


@dataclass
class Checkpoints:
    """Keeps the state of a run in a file.

    A checkpoint that cannot be written does not end the run, which may have hours of work in it: the observer is told,
    the file before stays as it is, and the next one may succeed.
    """

    state: State
    path: Path
    run_id: str
    every_s: float
    observer: Observer
    now: Callable[[], float]
    tried: float = field(init=False)

    def __post_init__(self) -> None:
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"checkpoint {self.path}: make the folder {self.path.parent} first")
        if self.path.is_dir():
            raise IsADirectoryError(f"checkpoint {self.path} is a folder; name a file in it")
        self.tried = self.now()

    def resume(self) -> None:
        """Take up the state in the file, if there is one."""
        if os.path.exists(self.path):
            self.state.load(self.path, self.run_id)

    def tick(self) -> None:
        """Save, if it is time to."""
        if self.now() - self.tried >= self.every_s:
            self.save()

    def save(self) -> OSError | None:
        """Save, and tell the observer whether that went well."""
        try:
            self.state.save(self.path, self.run_id)
        except OSError as error:
            self.observer(CheckpointFailed(str(self.path), str(error)))
            return error
        finally:
            self.tried = self.now()
        self.observer(CheckpointSaved(str(self.path), self.state.updates))
        return None


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag; a second one interrupts at once.

    Signals belong to the main thread, and a process may have been told to ignore Ctrl-C: both are left alone.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    hit = False

    def note(*_: object) -> None:
        nonlocal hit
        hit = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: hit
    finally:
        signal.signal(signal.SIGINT, before)
