"""The process of one peer, which `dada peer run` becomes: reads its folder, runs its node, writes status and log.

It loads no table reader, plotting or command framework, which keeps it small.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from dada.core.model_steps import UserRows
from dada.net.home import Home, shown
from dada.net.iroh_transport import LOOPBACK, IrohSeal, IrohTransport, public_key
from dada.net.links import LinkClosed, LinkFailed, LinkOpened, LinkRefused
from dada.net.network_file import is_for_one_machine, read_ticket
from dada.net.node import Listening, MessageRefused, Node, NodeEvent, NodeStatus, NodeWarning, PeerGone, unwatched
from dada.net.session import LinkOptions, Terms
from dada.net.store import Store
from dada.peer.member import Member, Planner
from dada.peer.messages import PeerId
from dada.peer.peer import Peer, PeerJournal
from dada.peer.sampling import PeerSampling
from dada.privacy.noise import Bits

# A peer multiplies nothing large: one thread of linear algebra and one memory arena are enough, and save memory.
LEAN_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
# How often freed memory is returned to the system.
TRIM_EVERY_S = 60.0


@dataclass(frozen=True)
class RunOptions:
    """Options of a peer's process.

    Parameters
    ----------
    listen : str
        Address to listen at; loopback by default.
    relay : bool
        Use the public relays.
    join : tuple of str
        Tickets of peers to join.
    allowed : frozenset of bytes, optional
        The only peers admitted.
    wakeups_per_s : float, optional
        Rate of wake-ups, if it differs from the network's.
    exchange_every_s : float
        Mean time between two exchanges of known peers.
    half_life : float, optional
        Tables of new samples after which half of the older ones are dropped; None keeps all.
    leave : bool
        Leave the network at the end.
    journal : bool
        Record every input of the peer, for `dada replay`.
    """

    listen: str = LOOPBACK
    relay: bool = False
    join: tuple[str, ...] = ()
    allowed: frozenset[PeerId] | None = None
    wakeups_per_s: float | None = None
    exchange_every_s: float = 5.0
    leave: bool = False
    journal: bool = False
    half_life: float | None = None


async def open_node(
    home: Home,
    options: RunOptions,
    observer: Callable[[NodeEvent], None] = unwatched,
    journal_file: BinaryIO | None = None,
    links: LinkOptions | None = None,
) -> Node:
    """Create the node of the peer in a folder."""
    key, network = home.read()
    exact = home.read_samples()
    released = home.read_released() if home.is_private else None
    rhythm = network.rhythm
    if options.wakeups_per_s is not None:
        rhythm = replace(rhythm, wakeups_per_s=options.wakeups_per_s)
    seal = IrohSeal(key)
    membership = network.membership(seal)
    certificate = home.read_certificate(membership, public_key(key))
    store = Store(home.state)
    transport = await IrohTransport.bind(key, options.listen, options.relay)
    rng = np.random.default_rng()
    releases = home.open_releases(transport.me, seal) if home.has_statistics else None
    peer = Peer(transport.me, exact if released is None else released, network.config)
    member = Member(
        peer,
        PeerSampling(transport.me, rng, transport.addresses, seal=seal),
        Planner(rhythm, rng),
        exchange_every_s=options.exchange_every_s,
        journal=None if journal_file is None else PeerJournal(journal_file, peer),
        exact=None if released is None else exact,
        kept=home.kept_correlation(network.config.n_classes),
        releases=releases,
        membership=membership,
        grove=home.open_grove(transport.me, seal),
        boosting=home.open_boosting(transport.me, seal),
    )
    terms = Terms(network.secret, options.allowed, membership, certificate)

    def new_rows() -> UserRows | None:
        return home.take_rows(network.config, options.half_life, rng)

    node = Node(member, transport, store, terms, rng, observer, links, new_rows, home.new_revocation)
    if releases is not None:
        node.make_release = lambda: home.release_statistics(releases, Bits())
    return node


async def run_home(home: Home, options: RunOptions) -> None:
    """Run the peer in a folder until SIGINT or SIGTERM."""
    with home.lock(), home.open_journal() if options.journal else nullcontext() as journal_file:
        known = [read_ticket(ticket) for ticket in options.join]
        node = await open_node(home, options, _Reporter(home), journal_file)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, node.stop)
        try:
            await node.run(known, options.leave)
        finally:
            home.write_status(node.status() | {"pid": os.getpid(), "time": time.time()})
            node.store.close()


class _Reporter:
    """Writes the status file, and a log to stderr."""

    def __init__(self, home: Home) -> None:
        self._home, self._names = home, home.read_names()
        self._neighbours: set[str] = set()
        self._samples: int | None = None
        self._logged: dict[str, float] = {}
        self._trim_at = 0.0

    def __call__(self, event: NodeEvent) -> None:
        if isinstance(event, NodeStatus):
            self._home.write_status({**event.status, "pid": os.getpid(), "time": time.time()})
            self._log_neighbours(event.status["neighbours"])
            self._log_samples(event.status["samples"])
            if event.status["links"] == 0 and event.status["unreachable"]:
                peer, reason = next(iter(event.status["unreachable"].items()))
                self._log_seldom(f"no link to anybody; {self._name(peer)}: {reason}", key="no link")
            if self._trim_at <= time.monotonic():
                self._trim_at = time.monotonic() + TRIM_EVERY_S
                return_memory()
        elif isinstance(event, Listening):
            _log(f"peer {event.me.hex()[:10]} is up; others join with this ticket:")
            _log(event.ticket)
            if is_for_one_machine(read_ticket(event.ticket)):
                _log("this ticket works on this machine only; with --listen 0.0.0.0:4040 it works on others too")
        elif isinstance(event, LinkRefused | MessageRefused):
            self._log_seldom(f"refused {self._name(event.peer.hex())}: {event.reason}")
        elif isinstance(event, LinkOpened):
            self._log_seldom(f"linked to {self._name(event.peer.hex())} at {event.reason}")
        elif isinstance(event, LinkClosed):
            self._log_seldom(f"lost the link to {self._name(event.peer.hex())}: {event.reason}")
        elif isinstance(event, LinkFailed):
            self._log_seldom(f"cannot reach {self._name(event.peer.hex())}: {event.reason}", key=event.peer.hex())
        elif isinstance(event, NodeWarning):
            self._log_seldom(f"warning: {event.text}")
        elif isinstance(event, PeerGone):
            _log(f"neighbour {self._name(event.peer.hex())} is gone")

    def _name(self, peer: str) -> str:
        return shown(peer, self._names)

    def _log_neighbours(self, neighbours: Mapping[str, float]) -> None:
        for peer in sorted(set(neighbours) ^ self._neighbours):
            self._log_seldom(f"{'learns' if peer in neighbours else 'no longer learns'} from {self._name(peer)}")
        self._neighbours = set(neighbours)

    def _log_samples(self, samples: int) -> None:
        if self._samples not in (None, samples):
            self._log_seldom(f"has taken new samples in, and learns from {samples}")
        self._samples = samples

    def _log_seldom(self, text: str, key: str = "") -> None:
        """Log a line at most once a minute, and at most 20 lines a minute: an unknown peer must not fill the log.

        Lines with the same key count as one.
        """
        now, key = time.monotonic(), key or text
        self._logged = {line: when for line, when in self._logged.items() if now - when < 60.0}
        if key not in self._logged and len(self._logged) < 20:
            self._logged[key] = now
            _log(text)


def return_memory() -> None:
    """Return freed memory to the system; the allocator of glibc keeps it after a storm of connections otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def arguments(home: Home, options: RunOptions) -> list[str]:
    """The command line that runs a peer with these options.

    >>> parse(arguments(Home(Path("ann")), RunOptions(join=("dada1...",)))[3:])[1].join
    ('dada1...',)
    """
    return [sys.executable, "-m", "dada.net.process", str(home.folder), msgspec.json.encode(options).decode()]


def parse(line: Sequence[str]) -> tuple[Home, RunOptions]:
    """The folder and the options in a command line; the inverse of `arguments`."""
    folder, options = line
    return Home(Path(folder)), msgspec.json.decode(options, type=RunOptions)


def run_peer(home: Home, options: RunOptions) -> int:
    """Run the peer in a folder and return the exit code; expected errors end in one line."""
    try:
        asyncio.run(run_home(home, options))
    except (OSError, ValueError) as error:
        _log(f"Error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run_peer(*parse(sys.argv[1:])))
