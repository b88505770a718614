"""What a run checks between two chunks of wake-ups: its time limit, its checkpoints, Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dada.atomic import remove_leftovers
from dada.engine.state import State
from dada.events import CheckpointFailed, CheckpointSaved, Observer


@dataclass
class TimeLimit:
    """Seconds that a run may take since it started or resumed."""

    now: Callable[[], float]
    limit_s: float | None
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.limit_s is not None and self.now() - self.started >= self.limit_s


@dataclass
class Checkpoints:
    """Saves the state of a run to a file.

    A failure to write does not stop the run, which may hold hours of work: the observer receives a `CheckpointFailed`,
    the previous file stays intact, and the next attempt may succeed.
    """

    state: State
    path: Path
    run_id: str
    every_s: float
    observer: Observer
    now: Callable[[], float]
    last_attempt: float = field(init=False)

    def __post_init__(self) -> None:
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f"checkpoint {self.path}: the folder {self.path.parent} does not exist, create it first"
            )
        if self.path.is_dir():
            raise IsADirectoryError(f"checkpoint {self.path} is a folder: give the path of a file")
        remove_leftovers(self.path)
        self.last_attempt = self.now()

    def resume(self) -> None:
        """Load the state from the file if it exists."""
        if os.path.exists(self.path):
            self.state.load(self.path, self.run_id)

    def tick(self) -> None:
        """Save if the interval has passed."""
        if self.now() - self.last_attempt >= self.every_s:
            self.save()

    def save(self) -> OSError | None:
        """Save, and report success or failure to the observer."""
        try:
            self.state.save(self.path, self.run_id)
        except OSError as error:
            self.observer(CheckpointFailed(str(self.path), str(error)))
            return error
        finally:
            self.last_attempt = self.now()
        self.observer(CheckpointSaved(str(self.path), self.state.updates))
        return None


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag; a second one interrupts at once.

    Only the main thread can handle signals, and a process that ignores Ctrl-C goes on ignoring it.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    hit = False

    def on_signal(*_: object) -> None:
        nonlocal hit
        hit = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: hit
    finally:
        signal.signal(signal.SIGINT, before)
