"""Many peers on this machine, each in its own process: started, killed, restarted and stopped.

A swarm does not take part in learning. It starts the first peer alone and gives its ticket to all others, which then
find each other. It reads only the status and state files that peers write.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dada.net.forkserver import ForkServer, ForkServerError, PeerProcess
from dada.net.home import Home
from dada.net.process import RunOptions

STOP_WITHIN_S = 10.0


class SwarmError(OSError):
    """A swarm could not start."""


@dataclass(eq=False)
class SwarmPeer:
    """One peer of a swarm and its process."""

    home: Home
    process: PeerProcess | None = None

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.is_up

    def status(self) -> dict[str, Any]:
        """Its last status."""
        return self.home.read_status() | {"running": self.is_up}

    def last_log_line(self) -> str:
        """The end of its log."""
        log = self.home.log
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return lines[-1] if lines else "its log is empty"


class Swarm:
    """Peers as processes.

    Parameters
    ----------
    homes : iterable of Home
        One folder per peer, made by `Home.create`, with samples.
    options : RunOptions
        Options of all peers; the swarm sets `join`.
    rng : numpy.random.Generator
        Chooses the peers to kill.
    """

    def __init__(self, homes: Iterable[Home], options: RunOptions, rng: np.random.Generator) -> None:
        self.peers = [SwarmPeer(home) for home in homes]
        if not self.peers:
            raise ValueError("a swarm needs at least one peer, got none")
        self.restarts = self.errors = 0
        self._options, self._rng = options, rng
        self._server: ForkServer | None = None

    def start(self, timeout_s: float = 60.0) -> None:
        """Start the first peer, then all others with its ticket; returns when every peer has written a status."""
        first, others = self.peers[0], self.peers[1:]
        try:
            self._server = ForkServer(first.home)
        except ForkServerError as error:
            raise SwarmError(f"the swarm did not start: {error}") from error
        self._launch(first)
        self._await_status([first], timeout_s)
        self._options = replace(self._options, join=(first.home.read_status()["ticket"],))
        for peer in others:
            self._launch(peer)
        self._await_status(others, timeout_s)

    def kill_one(self) -> SwarmPeer:
        """Kill a random peer without warning."""
        up = [peer for peer in self.peers if peer.is_up]
        peer = up[int(self._rng.integers(len(up)))]
        assert peer.process is not None
        peer.process.send_signal(signal.SIGKILL)
        peer.process.wait(STOP_WITHIN_S)
        peer.process = None
        return peer

    def revive(self) -> list[SwarmPeer]:
        """Restart every peer that is down; a process that ended by itself counts as an error."""
        down = [peer for peer in self.peers if not peer.is_up]
        for peer in down:
            self.errors += peer.process is not None
            self.restarts += 1
            self._launch(peer)
        return down

    def stop(self) -> None:
        """Ask all processes to end, kill those that do not, and end the fork server."""
        running = [peer.process for peer in self.peers if peer.process is not None and peer.is_up]
        for process in running:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_WITHIN_S
        # None is the exit code of a process that is still running: the fork server kills it.
        self.errors += sum(process.wait(deadline - time.monotonic()) != 0 for process in running)
        for peer in self.peers:
            peer.process = None
        if self._server is not None:
            self._server.close()
            self._server = None

    def statuses(self) -> list[dict[str, Any]]:
        """The last status of each peer."""
        return [peer.status() for peer in self.peers]

    def _launch(self, peer: SwarmPeer) -> None:
        assert self._server is not None
        peer.home.status.unlink(missing_ok=True)
        peer.process = self._server.start(peer.home, self._options)

    def _await_status(self, peers: list[SwarmPeer], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for peer in peers:
            while not peer.home.status.exists():
                if not peer.is_up:
                    raise SwarmError(f"the peer in {peer.home.folder} did not start: {peer.last_log_line()}")
                if time.monotonic() > deadline:
                    raise SwarmError(f"the peer in {peer.home.folder} wrote no status within {timeout_s:g} s")
                time.sleep(0.02)
