"""A journal of all facts that a peer was told. Replayed into a fresh peer, they give the same state, bit for bit.

A journal is a sequence of frames, each a length and a MessagePack record: first who the peer is, what it agreed on and
its samples, then the facts in order, and now and then a digest of the state they led to. A peer that starts again goes
on in the same journal with a new birth. A journal contains the samples (as margins of the base predictors), so it is as
private as they are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec
import numpy as np

from dada.core.compiled import Array
from dada.core.regularizers import DegreeTarget, LogDegree
from dada.peer.config import PeerConfig
from dada.peer.inputs import Action, Effect, GraphStep, Leave, ModelStep, ResetModel
from dada.peer.messages import Message
from dada.peer.peer import Peer

LENGTH = struct.Struct("<I")
LARGEST_FRAME = 1 << 30
# Facts between two digests: a difference is then found near to where it began.
DIGEST_EVERY = 1000

REGULARIZERS = {"LogDegree": LogDegree, "DegreeTarget": DegreeTarget}


class JournalError(ValueError):
    """A file that is not a journal, or a journal whose facts lead to another state than they once did."""


class Birth(msgspec.Struct, array_like=True, tag=0):
    """A peer that knows nothing yet: `Peer(me, A, config, known_largest)`."""

    me: bytes
    A: bytes
    dtype: str
    n_samples: int
    known_largest: int
    settings: dict[str, Any]
    regularizer: str
    regularizer_settings: dict[str, float]
    coupling: bytes


class Restored(msgspec.Struct, array_like=True, tag=1):
    """`restore(records)`."""

    records: dict[bytes, bytes]


class Started(msgspec.Struct, array_like=True, tag=2):
    """`start(now)`."""

    now: float


class Acted(msgspec.Struct, array_like=True, tag=3):
    """`act(action, now)`."""

    now: float
    action: str
    gamma: float = -1.0
    batch: tuple[bytes, ...] = ()


class Received(msgspec.Struct, array_like=True, tag=4):
    """`receive(sender, message, now)`."""

    now: float
    sender: bytes
    message: Message


class TimerFired(msgspec.Struct, array_like=True, tag=5):
    """`on_timer(now)`."""

    now: float


class GivenUp(msgspec.Struct, array_like=True, tag=6):
    """`on_unreachable(peer, now)`."""

    now: float
    peer: bytes


class Digest(msgspec.Struct, array_like=True, tag=7):
    """What all facts up to here led to."""

    digest: bytes


Fact = Restored | Started | Acted | Received | TimerFired | GivenUp
Record = Birth | Fact | Digest

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def acted(action: Action, now: float) -> Acted:
    """An action as a fact."""
    gamma = action.gamma if isinstance(action, ModelStep) else -1.0
    batch = action.batch if isinstance(action, GraphStep) else ()
    return Acted(now, type(action).__name__, gamma, batch)


class Journal:
    """Writes the journal of one peer.

    Parameters
    ----------
    file : binary file
        Where frames are appended.
    peer : Peer
        The peer, before it is told anything.

    Examples
    --------
    >>> import io
    >>> file, A = io.BytesIO(), np.ones((1, 2), np.int8)
    >>> peer = Peer(b"me", A, PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> journal = Journal(file, peer)
    >>> for fact in (Started(0.0), acted(ModelStep(), 0.5)):
    ...     journal.note(fact)
    ...     effects = tell(peer, fact)
    >>> journal.close()
    >>> replay(io.BytesIO(file.getvalue()))
    Replay(births=1, facts=2, digests=1, is_whole=True)
    """

    def __init__(self, file: BinaryIO, peer: Peer) -> None:
        self._file, self._peer = file, peer
        self._facts = 0
        self._write(_birth(peer))

    def note(self, fact: Fact) -> None:
        """Record a fact that the peer is told next."""
        if self._facts and self._facts % DIGEST_EVERY == 0:
            self._write(Digest(digest_of(self._peer)))
        self._facts += 1
        self._write(fact)

    def close(self) -> None:
        """Record the state at the end."""
        self._write(Digest(digest_of(self._peer)))
        self._file.flush()

    def _write(self, record: Record) -> None:
        data = _encoder.encode(record)
        self._file.write(LENGTH.pack(len(data)) + data)


def tell(peer: Peer, fact: Fact) -> list[Effect]:
    """Tell a peer a fact, and give its effects."""
    if isinstance(fact, Received):
        return peer.receive(fact.sender, fact.message, fact.now)
    if isinstance(fact, Acted):
        return peer.act(_action(fact), fact.now)
    if isinstance(fact, TimerFired):
        return peer.on_timer(fact.now)
    if isinstance(fact, GivenUp):
        return peer.on_unreachable(fact.peer, fact.now)
    if isinstance(fact, Started):
        return peer.start(fact.now)
    peer.restore(fact.records)
    return []


@dataclass(frozen=True)
class Replay:
    """What a replayed journal held; `is_whole` unless it was cut off in the middle."""

    births: int
    facts: int
    digests: int
    is_whole: bool


def replay(file: BinaryIO) -> Replay:
    """Tell a fresh peer all facts of a journal, and raise `JournalError` where its state differs from the recorded."""
    peer: Peer | None = None
    births = facts = digests = 0
    record: Record | None = None
    for record in read(file):
        if isinstance(record, Birth):
            peer, births = _born(record), births + 1
        elif peer is None:
            raise JournalError("this is not a journal: it does not begin with a birth")
        elif isinstance(record, Digest):
            digests += 1
            if digest_of(peer) != record.digest:
                raise JournalError(f"after {facts} facts the state differs from the recorded one")
        else:
            tell(peer, record)
            facts += 1
    if record is None:
        raise JournalError("this is not a journal: it is empty")
    return Replay(births, facts, digests, isinstance(record, Digest))


def read(file: BinaryIO) -> Iterator[Record]:
    """The records of a journal; a last one that was cut off is left out."""
    while len(header := file.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(header)
        if length > LARGEST_FRAME:
            raise JournalError(f"this is not a journal: it has a frame of {length} bytes, at most {LARGEST_FRAME}")
        data = file.read(length)
        if len(data) < length:
            return
        try:
            yield _decoder.decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise JournalError(f"this is not a journal: {error}") from error


def digest_of(peer: Peer) -> bytes:
    """Names the whole state of a peer: equal digests mean equal models, edges, copies and waits."""
    state = hashlib.sha256()
    model = peer.model
    waits = sorted(peer.waiting.items())
    state.update(repr((model.number, peer.own_updates, peer.degree, peer.confidence, peer.rounds, waits)).encode())
    state.update(model.alpha.tobytes() + model.support[: model.n_support].tobytes() + peer.user.margins.tobytes())
    state.update(repr(peer.listeners).encode())
    for name, edge in sorted(peer.edges.items()):
        state.update(repr((name, edge.weight, edge.rank, edge.acknowledged, edge.repeats)).encode())
        if edge.copy is not None:
            state.update(repr(edge.copy.number).encode() + edge.copy.alpha.tobytes())
    return state.digest()


def _birth(peer: Peer) -> Birth:
    config, A = peer.config, peer.user.A
    kind = type(config.regularizer).__name__
    if kind not in REGULARIZERS:
        raise JournalError(f"a journal can keep the regularizers {', '.join(REGULARIZERS)}, not one of your own")
    settings = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in ("regularizer", "coupling")
    }
    coupling = b"" if config.coupling is None else np.asarray(config.coupling, np.float64).tobytes()
    regularizer = dataclasses.asdict(config.regularizer)
    return Birth(
        peer.me, A.tobytes(), A.dtype.str, A.shape[0], peer.known_largest, settings, kind, regularizer, coupling
    )


def _born(birth: Birth) -> Peer:
    try:
        coupling = np.frombuffer(birth.coupling, np.float64) if birth.coupling else None
        regularizer = REGULARIZERS[birth.regularizer](**birth.regularizer_settings)
        config = PeerConfig(**birth.settings, regularizer=regularizer, coupling=coupling)
        A: Array = np.frombuffer(birth.A, np.dtype(birth.dtype)).reshape(birth.n_samples, config.n_predictors)
        return Peer(birth.me, A, config, birth.known_largest)
    except (TypeError, ValueError, KeyError) as error:
        raise JournalError(f"this journal's peer cannot be made: {error}") from error


def _action(fact: Acted) -> Action:
    if fact.action == "ModelStep":
        return ModelStep(fact.gamma)
    if fact.action == "GraphStep":
        return GraphStep(fact.batch)
    if fact.action == "ResetModel":
        return ResetModel()
    if fact.action == "Leave":
        return Leave()
    raise JournalError(f"a journal of a later version: action {fact.action!r} is not known")
