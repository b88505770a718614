"""Many peers on this machine, each a process of its own: started, watched, killed, restarted and stopped.

Nothing here takes part in learning. The first peer is started alone; all others are given its ticket and find each
other by themselves. A swarm only reads what peers say about themselves and what they have stored.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dada.net.home import Home
from dada.net.runner import RunOptions, arguments

STOP_WITHIN_S = 10.0
# What a peer counts anew in each of its lives.
COUNTS = (
    "messages_sent",
    "messages_received",
    "payload_bytes",
    "wire_bytes",
    "messages_refused",
    "paper_messages",
    "paper_floats",
    "paper_indices",
)


class SwarmError(OSError):
    """A swarm that does not come up."""


@dataclass(eq=False)
class Child:
    """One peer of a swarm and its process."""

    home: Home
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    past: dict[str, int] = field(default_factory=dict)

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> Path:
        """Where its process writes what it has to say."""
        return self.home.folder / "log"

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else "it said nothing"


class Swarm:
    """Peers as processes.

    Parameters
    ----------
    homes : iterable of Home
        One folder per peer, made by `Home.create`, with samples.
    options : RunOptions
        How all of them run; `join` is filled in by the swarm.
    rng : numpy.random.Generator
        Decides who is killed.
    environment : dict, optional
        Further environment variables for the processes.
    """

    def __init__(
        self,
        homes: Iterable[Home],
        options: RunOptions,
        rng: np.random.Generator,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.children = [Child(home) for home in homes]
        if not self.children:
            raise ValueError("a swarm needs at least one peer, got none")
        self.restarts = self.errors = 0
        self._options, self._rng = options, rng
        self._environment = {**os.environ, **(environment or {})}

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self, timeout_s: float = 60.0) -> None:
        """Start the first peer, and with its ticket all others; returns when every process runs and has spoken."""
        first, others = self.children[0], self.children[1:]
        self._launch(first)
        self._await_status([first], timeout_s)
        ticket = first.home.read_status()["ticket"]
        self._options = replace(self._options, join=(ticket,))
        for child in others:
            self._launch(child)
        self._await_status(others, timeout_s)

    def kill_one(self) -> Child:
        """Kill a random peer without warning."""
        up = [child for child in self.children if child.is_up]
        child = up[int(self._rng.integers(len(up)))]
        assert child.process is not None
        child.process.kill()
        child.process.wait()
        self._note_end(child)
        child.process = None
        return child

    def revive(self) -> list[Child]:
        """Start every peer again that does not run; a process that ended by itself counts as an error."""
        revived = []
        for child in self.children:
            if not child.is_up:
                if child.process is not None:
                    self.errors += 1
                    self._note_end(child)
                self._launch(child)
                self.restarts += 1
                revived.append(child)
        return revived

    def stop(self) -> None:
        """Ask all processes to end, and end those that do not."""
        running = [child.process for child in self.children if child.process is not None and child.is_up]
        for process in running:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_WITHIN_S
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.errors += 1
                process.kill()
                process.wait()
                continue
            if process.returncode != 0:
                self.errors += 1

    def statuses(self) -> list[dict[str, Any]]:
        """What each peer last said about itself; counts include its earlier lives."""
        return [self._status(child) for child in self.children]

    # -- processes -------------------------------------------------------------------------------------------------

    def _launch(self, child: Child) -> None:
        child.starts += 1
        child.home.status.unlink(missing_ok=True)
        with child.log.open("ab") as log:
            child.process = subprocess.Popen(
                arguments(child.home, self._options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                # Ctrl-C is for the swarm, which then stops its peers one by one.
                start_new_session=True,
            )

    def _await_status(self, children: list[Child], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for child in children:
            while not child.home.status.exists():
                if not child.is_up:
                    raise SwarmError(f"the peer in {child.home.folder} did not start: {child.last_words()}")
                if time.monotonic() > deadline:
                    raise SwarmError(f"the peer in {child.home.folder} said nothing for {timeout_s:g} s")
                time.sleep(0.02)

    def _status(self, child: Child) -> dict[str, Any]:
        status: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError):
            status = child.home.read_status()
        for name, count in child.past.items():
            status[name] = status.get(name, 0) + count
        return status | {"running": child.is_up}

    def _note_end(self, child: Child) -> None:
        """Keep the counts of a life that has ended: the next one begins at zero."""
        status = self._status(child)
        child.past = {name: int(status.get(name, 0)) for name in COUNTS}
        child.home.status.unlink(missing_ok=True)
