"""Fork server of a swarm: one process imports and compiles everything, then forks a child per peer.

Numba and LLVM take about 100 MB and a second or two. The server pays for them once, and its children share its pages.
It runs no event loop and opens no socket: iroh starts its threads in the children.

Requests and replies are lines of JSON on the server's stdin and stdout. When stdin ends, the server stops its children.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from pathlib import Path

import msgspec
import numpy as np

from dada.core.compiled import Array
from dada.net.home import Home
from dada.net.process import LEAN_ENVIRONMENT, RunOptions, run_peer
from dada.peer.config import PeerConfig
from dada.peer.inputs import Effect, GraphStep, ModelStep, Received, ResetModel, Send
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling


class ForkServerError(OSError):
    """The fork server could not start or has ended."""


class _Start(msgspec.Struct, tag=True):
    """Fork a peer; the reply is its process id."""

    folder: str
    options: RunOptions


class _Poll(msgspec.Struct, tag=True):
    """Return a child's exit code, or None while it runs."""

    pid: int


class ForkServer:
    """The client's end of a fork server.

    Parameters
    ----------
    home : Home
        Folder of any peer of the swarm; its network and samples determine which kernels are loaded.
    """

    def __init__(self, home: Home) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dada.net.forkserver", str(home.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **LEAN_ENVIRONMENT},
            # Ctrl-C is for the swarm, which then stops its peers in order.
            start_new_session=True,
        )
        try:
            self._reply()
        except BaseException:
            self.close()
            raise

    def start(self, home: Home, options: RunOptions) -> PeerProcess:
        """Fork the process of the peer in a folder; it logs to `home.log`."""
        pid = self._ask(_Start(str(home.folder), options))
        assert pid is not None
        return PeerProcess(self, pid)

    def exit_code(self, pid: int) -> int | None:
        """Exit code of a child, None while it runs; may be asked until the first exit code is returned."""
        return self._ask(_Poll(pid))

    def close(self) -> None:
        """End the server and every child that still runs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, request: _Start | _Poll) -> int | None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> int | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        reply = msgspec.json.decode(line, type=int | str | None) if line else "the fork server ended unexpectedly"
        if isinstance(reply, str):
            raise ForkServerError(reply)
        return reply


class PeerProcess:
    """A peer's process, forked by a fork server."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.exit_code: int | None = None
        self._server = server

    @property
    def is_up(self) -> bool:
        """Whether the process runs."""
        if self.exit_code is None:
            self.exit_code = self._server.exit_code(self.pid)
        return self.exit_code is None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        # The server reaps a child only when asked, so the process id cannot have been reused.
        if self.is_up:
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end of the process; returns its exit code, or None after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.is_up and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.exit_code


def rehearse(margins: Array, config: PeerConfig) -> None:
    """Let three peers with copies of the same samples learn in memory, which loads every kernel that they call."""
    rng = np.random.default_rng(0)
    members = []
    for k in range(3):
        peer = Peer(bytes([k]), margins[:3].copy(), config)
        members.append(Member(peer, PeerSampling(peer.me, rng), Planner(Rhythm(), rng)))
    peers = {member.me: member.peer for member in members}
    for _ in range(3):
        for me, peer in peers.items():
            others = tuple(other for other in peers if other != me)
            for action in (ModelStep(0.0), GraphStep(0.0, others)):
                _deliver(peers, peer, peer.handle(action))
    for peer in peers.values():
        for step in (ResetModel(0.0), ModelStep(0.0), ModelStep(0.0)):
            _deliver(peers, peer, peer.handle(step))
    for member in members:
        _ = member.model


def _deliver(peers: dict[bytes, Peer], sender: Peer, effects: list[Effect]) -> None:
    """Deliver messages, and the replies to them, without delay."""
    queue = deque((sender, effect) for effect in effects)
    while queue:
        author, effect = queue.popleft()
        if isinstance(effect, Send):
            receiver = peers[effect.to]
            queue.extend((receiver, reply) for reply in receiver.handle(Received(0.0, author.me, effect.message)))


def serve(home: Home) -> None:
    """Load everything a peer needs, then answer requests until stdin ends."""
    try:
        _, network = home.read()
        rehearse(home.read_samples(), network.config)
    except (OSError, ValueError) as error:
        _answer(str(error))
        return
    # Frozen objects are skipped by the garbage collector, which would otherwise write to the shared pages.
    gc.collect()
    gc.freeze()
    _answer(None)
    running: set[int] = set()
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=_Start | _Poll)
        if isinstance(request, _Start):
            pid = _fork(Home(Path(request.folder)), request.options)
            running.add(pid)
            _answer(pid)
        else:
            pid, status = os.waitpid(request.pid, os.WNOHANG)
            running.discard(pid)
            _answer(os.waitstatus_to_exitcode(status) if pid else None)
    for pid in sorted(running):
        os.kill(pid, signal.SIGKILL)


def _answer(reply: int | str | None) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


def _fork(home: Home, options: RunOptions) -> int:
    pid = os.fork()
    if pid:
        return pid
    exit_code = 1
    try:
        os.setsid()
        log = os.open(home.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        exit_code = run_peer(home, options)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(exit_code)


if __name__ == "__main__":
    serve(Home(Path(sys.argv[1])))
