"""Random bytes from an unknown peer: invariants, and a coverage-guided search for violations.

`make fuzz-wire` searches with Atheris (pip install atheris) and writes bytes that break something to a file; kept in
tests/peer/corpus, they are replayed by tests/net/test_fuzz.py.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import numpy as np

from dada.core.model_steps import UserRows
from dada.net.network_file import TicketError, read_ticket
from dada.net.session import HandshakeError, read_claims, read_greeting, read_hello
from dada.net.transport import FrameError, FrameReader, Kind
from dada.peer.copies import MOST_SHARED
from dada.peer.inputs import GraphStep, PeerConfig, Persist, Refused, Send, TimerFired
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.messages import LARGEST_MESSAGE, Descriptor
from dada.peer.peer import Peer
from dada.peer.sampling import VIEW_SIZE, PeerSampling

ME, FRIEND, STRANGER = b"me", b"friend", b"stranger"
CONFIGS = [
    PeerConfig(6, beta=2.0, mu1=1.0, vet=True, graph=graph, step=step)
    for graph, step in (("distance", "pairwise"), ("evidence", "pairwise"), ("evidence", "block"))
]
MARGINS = np.array([[1, -1, 1, 1, -1, 1], [1, 1, -1, 1, 1, -1], [-1, 1, 1, 1, -1, -1]], np.int8)


def make_member(config: PeerConfig) -> Member:
    """A member that waits for the reply of a stranger, so that replies have an effect."""
    rng = np.random.default_rng(0)
    member = Member(Peer(ME, UserRows(MARGINS), config), PeerSampling(ME, rng), Planner(Rhythm(), rng))
    member.start(0.0, [Descriptor(FRIEND, 0), Descriptor(STRANGER, 1)])
    member.peer.handle(GraphStep(0.0, (FRIEND, STRANGER)))
    member.sampling.exchange()
    return member


def feed(data: bytes) -> None:
    """Send these bytes to peers of every network; raises if an invariant fails."""
    for config in CONFIGS:
        _feed(make_member(config), data)
    with contextlib.suppress(TicketError):
        read_ticket("dada1" + data[1:].decode("ascii", "replace"))


def _feed(member: Member, data: bytes) -> None:
    """Send the bytes in pieces of the size that the first byte gives."""
    reader = FrameReader(LARGEST_MESSAGE)
    piece = 1 + (data[0] if data else 0)
    now = 0.0
    try:
        for start in range(1, len(data), piece):
            reader.feed(data[start : start + piece])
            while (received := reader.next()) is not None:
                now += 0.1
                _receive(member, *received, now)
        reader.end()
    except FrameError:
        pass
    check(member)


def _receive(member: Member, kind: Kind, content: bytes, now: float) -> None:
    if kind == Kind.MESSAGE:
        for effect in member.receive_bytes(STRANGER, content, now):
            assert isinstance(effect, Send | Persist | Refused)
        if member.peer.deadline <= now:
            member.peer.handle(TimerFired(now))
        return
    readers = {Kind.GREETING: read_greeting, Kind.PROOF: read_claims}
    try:
        if kind in readers:
            readers[kind](content)
        else:
            read_hello(content, member.peer.config.digest)
    except HandshakeError:
        pass


def check(member: Member) -> None:
    """Invariants after any message."""
    peer = member.peer
    assert np.abs(peer.own.model.alpha).sum() <= peer.config.beta * 1.001
    assert np.isfinite(peer.edges.degree)
    assert peer.edges.degree >= 0.0
    for edge in peer.edges.values():
        assert 0.0 <= edge.weight < np.inf
        if edge.copy is not None:
            assert np.isfinite(edge.copy.alpha).all()
            most = MOST_SHARED if peer.config.sends_codes else 1.0
            assert np.abs(edge.copy.alpha).sum() <= peer.config.beta * most * 1.01
    assert len(member.sampling.view) <= VIEW_SIZE


OTHER_MODULES = ("dada.peer.sampling", "dada.net.transport", "dada.net.session", "dada.net.home")


def search(corpus: Path, seconds: int) -> None:
    """Look for bytes that reach new code, or that break something."""
    import atheris

    feed(b"")
    names = ("messages", "copies", "model", "edges", "neighbourhoods", "member", "peer")
    for name in (*(f"dada.peer.{name}" for name in names), *OTHER_MODULES):
        module = sys.modules[name]
        for attribute, value in list(vars(module).items()):
            if callable(value) and getattr(value, "__module__", "") == name:
                if isinstance(value, type):
                    _instrument_methods(atheris, value)
                elif hasattr(value, "__code__"):
                    setattr(module, attribute, atheris.instrument_func(value))
    arguments = [sys.argv[0], str(corpus), f"-max_total_time={seconds}", "-max_len=600", "-print_final_stats=1"]
    atheris.Setup(arguments, feed)
    atheris.Fuzz()


def _instrument_methods(atheris, kind: type) -> None:
    for name, value in list(vars(kind).items()):
        if hasattr(value, "__code__"):
            setattr(kind, name, atheris.instrument_func(value))


if __name__ == "__main__":
    search(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 60)
