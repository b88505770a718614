"""Many peers on this machine, each in its own process: started, killed, restarted and stopped; their status as events.

A swarm does not take part in learning. It starts the first peer alone and gives its ticket to all others, which then
find each other. It reads only the status and state files that peers write.

*Fork server.* Numba and LLVM take about 90 MB and a second or two. One process pays for them: it imports and loads
everything, then forks a child per peer, and its children share its pages. Compiling takes 100 MB more, which LLVM does
not return: a server that has compiled a kernel starts itself again, and loads it from disk. It runs no event loop and
opens no socket: iroh starts its threads in the children. Requests and replies are lines of JSON on its stdin and
stdout. When stdin ends, it kills its children.

*Status.* The status that each running peer writes for its owner becomes events for observers such as the dashboard;
samples are not read.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numba.core.event import install_recorder

from dada.core.compiled import Array
from dada.core.model_steps import UserRows, rows_per_sample
from dada.events import TOP_PREDICTORS, Observer, PeerStatus, RunInfo, Snapshot, SnapshotOffer, edges_reported
from dada.net.home import Home
from dada.net.process import LEAN_ENVIRONMENT, RunOptions, run_peer
from dada.peer.inputs import Fact, GraphStep, ModelStep, PeerConfig, Received, ResetModel, Send
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from dada.peer.signatures import Unsealed

# Counters of a status that start at zero in each process of a peer.
COUNTS = (
    "messages_sent", "messages_received", "payload_bytes", "wire_bytes", "messages_refused",
    "paper_messages", "paper_floats", "paper_indices", "coded_bits", "model_bytes",
)  # fmt: skip


@dataclass(eq=False)
class StatusHistory:
    """The last status of one peer, and its counters summed over restarts.

    Examples
    --------
    >>> history = StatusHistory()
    >>> for epoch, sent in ((1, 5), (1, 7), (2, 1)):
    ...     history.update({"id": "ab", "running": True, "epoch": epoch, "messages_sent": sent})
    >>> history.restarts, history.counts["messages_sent"]
    (1, 8)
    """

    status: Mapping[str, Any] = field(default_factory=dict)
    is_up: bool = False
    restarts: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def update(self, status: Mapping[str, Any]) -> None:
        """Add a status; one without `id` only reports whether the peer is running."""
        self.is_up = bool(status.get("running"))
        if "id" not in status:
            return
        is_restarted = bool(self.status) and status["epoch"] > self.status["epoch"]
        self.restarts += is_restarted
        for name in COUNTS:
            before = 0 if is_restarted else self.status.get(name, 0)
            self.counts[name] += int(status.get(name, 0) - before)
        self.status = status


class PeerOverview:
    """Sends events about a group of peers to an observer.

    Parameters
    ----------
    observer : callable
        Receives the events.
    info : RunInfo
        Description of the run; its users are the observed peers, in the order of their statuses. Other peers that are
        neighbours of some of them are added after them, named by the first digits of their ids.
    directed : bool
        Whether each peer chooses its neighbours alone, as in the evidence graph; otherwise both ends share an edge.

    Examples
    --------
    >>> received = []
    >>> overview = PeerOverview(received.append, RunInfo(users=("ann", "bob")))
    >>> overview.update([{"running": False}, {"running": False}])
    >>> [type(event).__name__ for event in received], received[1].up.tolist()
    (['RunInfo', 'PeerStatus', 'SnapshotOffer'], [False, False])
    """

    def __init__(self, observer: Observer, info: RunInfo, directed: bool = False) -> None:
        self._observer, self._info, self._directed = observer, info, directed
        self._observed = [StatusHistory() for _ in info.users]
        self._places: dict[str, int] = {}
        self._others: list[str] = []
        self._reported_others = -1

    def update(
        self,
        statuses: Sequence[Mapping[str, Any]],
        accuracy: Callable[[], Array] | None = None,
        milestone: bool = False,
    ) -> None:
        """Send events for the last status of each peer (`Node.status`), with whether it is `running`.

        `accuracy` returns the accuracy of each peer's model; by default it is that on its own samples. A milestone is a
        snapshot that the observer must keep.
        """
        for k, (seen, status) in enumerate(zip(self._observed, statuses, strict=True)):
            seen.update(status)
            if "id" in status:
                self._places[status["id"]] = k
        for seen in self._observed:
            for peer in seen.status.get("neighbours", ()):
                if peer not in self._places:
                    self._places[peer] = len(self._observed) + len(self._others)
                    self._others.append(peer)
        # The first snapshot is always kept, even if it has to wait for the compiler.
        milestone = milestone or self._reported_others < 0
        if len(self._others) != self._reported_others:
            self._reported_others = len(self._others)
            self._observer(self._extended_info())
        self._observer(self._peer_status())
        self._observer(SnapshotOffer(lambda: self._snapshot(accuracy), milestone))

    def total(self, count: str) -> int:
        """A counter of the statuses (one of `COUNTS`), summed over all peers and their restarts."""
        return sum(seen.counts[count] for seen in self._observed)

    def _column(self, value_of: Callable[[StatusHistory], Any], filler: Any) -> Array:
        """A value of each observed peer, and the filler for all others."""
        return np.array([*map(value_of, self._observed), *[filler] * len(self._others)])

    def _extended_info(self) -> RunInfo:
        info, more = self._info, len(self._others)
        return replace(
            info,
            users=(*info.users, *(peer[:8] for peer in self._others)),
            groups=np.pad(info.groups, (0, more), constant_values=-1) if info.groups.size else info.groups,
            alone=np.pad(info.alone, (0, more), constant_values=np.nan) if info.alone.size else info.alone,
        )

    def _peer_status(self) -> PeerStatus:
        trips: dict[str, list[float]] = {}
        for seen in self._observed:
            if seen.is_up:
                for peer, took_ms in seen.status.get("round_trips_ms", {}).items():
                    trips.setdefault(peer, []).extend([] if took_ms is None else [took_ms])
        rtt_ms = self._column(lambda seen: np.nan, np.nan)
        for peer, found in trips.items():
            if peer in self._places and found:
                rtt_ms[self._places[peer]] = np.median(found)

        def refused(seen: StatusHistory) -> int:
            return seen.counts["messages_refused"] + sum(seen.status.get("links_refused", {}).values())

        return PeerStatus(
            up=np.array([*(seen.is_up for seen in self._observed), *(peer in trips for peer in self._others)], bool),
            restarts=self._column(lambda seen: seen.restarts, 0),
            rtt_ms=rtt_ms,
            refused=self._column(refused, 0),
        )

    def _snapshot(self, accuracy: Callable[[], Array] | None) -> Snapshot:
        k, l, w = self._edges()
        samples = self._column(lambda seen: seen.status.get("samples", 0), 0)
        predictors, weights = (np.full((samples.size, TOP_PREDICTORS), filler) for filler in (-1, 0.0))
        for row, seen in enumerate(self._observed):
            for place, (j, weight) in enumerate(seen.status.get("heaviest", ())):
                predictors[row, place], weights[row, place] = j, weight
        right = self._column(lambda seen: seen.status.get("accuracy", np.nan), np.nan)
        if accuracy is not None:
            right[: len(self._observed)] = accuracy()
        return Snapshot(
            phase="peers",
            updates=sum(seen.status.get("model_updates", 0) for seen in self._observed),
            k=k,
            l=l,
            w=w,
            directed=self._directed,
            confidence=samples / max(samples.max(initial=0), 1),
            loss=self._column(lambda seen: seen.status.get("loss", np.nan), np.nan),
            accuracy=right,
            predictors=predictors,
            predictor_weights=weights,
            messages=self._column(lambda seen: seen.counts["messages_sent"], 0),
            bits=8.0 * self._column(lambda seen: seen.counts["wire_bytes"], 0),
        )

    def _edges(self) -> tuple[Array, Array, Array]:
        """Edges reported by the peers that are up."""
        reported = [
            (place, self._places[peer], weight)
            for place, seen in enumerate(self._observed)
            if seen.is_up
            for peer, weight in seen.status.get("neighbours", {}).items()
        ]
        return edges_reported(reported, self._directed)


STOP_WITHIN_S = 10.0
# To fork a peer with its folder and options, or to poll the child with a process id.
Request = tuple[str, RunOptions] | int


class SwarmError(OSError):
    """A swarm could not start, or its fork server has ended."""


class ForkServer:
    """The client's end of a fork server; the network and samples in `home` determine which kernels it loads."""

    def __init__(self, home: Home) -> None:
        self._process = subprocess.Popen(
            _command(home),
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

    def start(self, home: Home, options: RunOptions) -> int:
        """Fork the process of the peer in a folder, and return its id; it logs to `home.log`."""
        pid = self._ask((str(home.folder), options))
        assert pid is not None
        return pid

    def exit_code(self, pid: int) -> int | None:
        """Exit code of a child, None while it runs; may be asked until the first exit code is returned."""
        return self._ask(pid)

    def close(self) -> None:
        """End the server and every child that still runs."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _ask(self, request: Request) -> int | None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> int | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        reply = msgspec.json.decode(line, type=int | str | None) if line else "the fork server ended unexpectedly"
        if isinstance(reply, str):
            raise SwarmError(reply)
        return reply


class SwarmPeer:
    """One peer of a swarm. Its process id is None before it starts and after it was ended on purpose."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.pid: int | None = None
        self.exit_code: int | None = None
        self._server: ForkServer | None = None

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        if self._server is None or self.pid is None:
            return False
        if self.exit_code is None:
            self.exit_code = self._server.exit_code(self.pid)
        return self.exit_code is None

    def launch(self, server: ForkServer, options: RunOptions) -> None:
        """Start its process."""
        self.home.status.unlink(missing_ok=True)
        self._server, self.pid, self.exit_code = server, server.start(self.home, options), None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        # The server reaps a child only when asked, so the process id cannot have been reused.
        if self.is_up and self.pid is not None:
            os.kill(self.pid, number)

    def wait(self, deadline: float) -> int | None:
        """Wait for the end of the process; returns its exit code, or None after the deadline of the monotonic clock."""
        while self.is_up and time.monotonic() < deadline:
            time.sleep(0.01)
        self.pid = None
        return self.exit_code

    def status(self) -> dict[str, Any]:
        """Its last status."""
        return self.home.read_status() | {"running": self.is_up}

    def wait_for_status(self, timeout_s: float) -> None:
        """Wait until it has written a status, or raise with the last line of its log."""
        deadline, log = time.monotonic() + timeout_s, self.home.log
        while not self.home.status.exists():
            if not self.is_up:
                lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
                reason = lines[-1] if lines else "its log is empty"
                raise SwarmError(f"the peer in {self.home.folder} did not start: {reason}")
            if time.monotonic() > deadline:
                raise SwarmError(f"the peer in {self.home.folder} wrote no status within {timeout_s:g} s")
            time.sleep(0.02)


class Swarm:
    """Peers as processes, one per folder with samples, all with the same options; the swarm sets `join`.

    The generator chooses the peers to kill.
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
        server = self._server = ForkServer(first.home)
        first.launch(server, self._options)
        first.wait_for_status(timeout_s)
        self._options = replace(self._options, join=(first.home.read_status()["ticket"],))
        for peer in others:
            peer.launch(server, self._options)
        for peer in others:
            peer.wait_for_status(timeout_s)

    def kill_one(self) -> SwarmPeer:
        """Kill a random peer without warning."""
        up = [peer for peer in self.peers if peer.is_up]
        peer = up[int(self._rng.integers(len(up)))]
        peer.send_signal(signal.SIGKILL)
        peer.wait(time.monotonic() + STOP_WITHIN_S)
        return peer

    def revive(self) -> list[SwarmPeer]:
        """Restart every peer that is down; a process that ended by itself counts as an error."""
        assert self._server is not None
        down = [peer for peer in self.peers if not peer.is_up]
        for peer in down:
            self.errors += peer.pid is not None
            self.restarts += 1
            peer.launch(self._server, self._options)
        return down

    def stop(self) -> None:
        """Ask all processes to end, kill those that do not, and end the fork server."""
        running = [peer for peer in self.peers if peer.is_up]
        for peer in running:
            peer.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_WITHIN_S
        # None is the exit code of a process that is still running: the fork server kills it.
        self.errors += sum(peer.wait(deadline) != 0 for peer in running)
        if self._server is not None:
            self._server.close()
            self._server = None

    def statuses(self) -> list[dict[str, Any]]:
        """The last status of each peer."""
        return [peer.status() for peer in self.peers]


def rehearse(rows: UserRows, config: PeerConfig) -> None:
    """Let three peers with copies of the same samples learn in memory, which loads every kernel that they call."""
    rng, few = np.random.default_rng(0), rows.take(slice(3 * rows_per_sample(config.n_classes)))
    members = []
    for k in range(3):
        peer = Peer(bytes([k]), few, config)
        members.append(Member(peer, PeerSampling(peer.me, rng), Planner(Rhythm(), rng)))
    peers = {member.me: member.peer for member in members}
    round_: list[Fact] = [ModelStep(0.0), GraphStep(0.0, tuple(peers))]
    restart: list[Fact] = [ResetModel(0.0), ModelStep(0.0), ModelStep(0.0)]
    for facts in (round_, round_, round_, restart):
        for me in peers:
            for fact in facts:
                _handle(peers, me, fact)
    for member in members:
        _ = member.model


def _handle(peers: dict[bytes, Peer], me: bytes, fact: Fact) -> None:
    """Give a peer a fact, and deliver the messages that follow without delay."""
    queue = deque((me, effect) for effect in peers[me].handle(fact))
    while queue:
        sender, effect = queue.popleft()
        if isinstance(effect, Send):
            replies = peers[effect.to].handle(Received(0.0, sender, effect.message))
            queue.extend((effect.to, reply) for reply in replies)


def serve(home: Home, may_restart: bool = True) -> None:
    """Load everything a peer needs, then answer requests until stdin ends."""
    try:
        _, network = home.read()
        rows, config, grove = home.read_samples(), network.config, home.open_grove(b"", Unsealed())
        if grove is not None:
            rows, config = grove.rows(), config.with_trees(grove.name, grove.origin([]))
        with install_recorder("numba:compile") as compiled:
            rehearse(rows, config)
            if (boosting := home.open_boosting(b"", Unsealed())) is not None:
                boosting.rehearse()
    except (OSError, ValueError) as error:
        _answer(str(error))
        return
    if compiled.buffer and may_restart:
        os.execv(sys.executable, [*_command(home), "restarted"])
    # Frozen objects are skipped by the garbage collector, which would otherwise write to the shared pages.
    gc.collect()
    gc.freeze()
    _answer(None)
    children: set[int] = set()
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=Request)
        if isinstance(request, int):
            pid, status = os.waitpid(request, os.WNOHANG)
            children.discard(pid)
            _answer(os.waitstatus_to_exitcode(status) if pid else None)
        else:
            folder, options = request
            pid = _fork(Home(Path(folder)), options)
            children.add(pid)
            _answer(pid)
    for pid in sorted(children):
        os.kill(pid, signal.SIGKILL)


def _command(home: Home) -> list[str]:
    return [sys.executable, "-m", "dada.net.forkserver", str(home.folder)]


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
    serve(Home(Path(sys.argv[1])), may_restart=len(sys.argv) == 2)
