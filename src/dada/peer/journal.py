"""A journal of all facts that a peer was given. Replayed into a new peer, they lead to the same state, bit for bit.

A journal is a sequence of frames, each a length and a MessagePack record: first the peer's id, its settings and its
samples, then the facts in order, and at intervals a digest of the state they led to. A peer that starts again appends
a new birth to the same journal. A journal contains the samples (as margins of the base predictors), so it is as private
as they are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec

from dada.core.block_steps import BlockStep
from dada.core.graph_steps import DegreeTarget, LogDegree
from dada.peer.config import PeerConfig
from dada.peer.inputs import Fact, StoredRows, as_bytes, as_numbers
from dada.peer.peer import Peer

LENGTH = struct.Struct("<I")
LARGEST_FRAME = 1 << 30
# Facts between two digests: a difference is then found near the place where it began.
DIGEST_EVERY = 1000

REGULARIZERS = {"LogDegree": LogDegree, "DegreeTarget": DegreeTarget}


class JournalError(ValueError):
    """A file that is not a journal, or a journal whose facts no longer lead to the recorded state."""


class Birth(msgspec.Struct, array_like=True, tag=100):
    """A new peer: `Peer(me, stored.rows, config)`."""

    me: bytes
    stored: StoredRows
    settings: dict[str, Any]
    regularizer: str
    regularizer_settings: dict[str, float]
    coupling: bytes


class Digest(msgspec.Struct, array_like=True, tag=101):
    """The state that all facts so far led to."""

    digest: bytes


Record = Birth | Fact | Digest

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


class PeerJournal:
    """Writes the journal of one peer.

    Parameters
    ----------
    file : binary file
        Frames are appended to it.
    peer : Peer
        The peer, before its first fact.

    Examples
    --------
    >>> import io
    >>> import numpy as np
    >>> from dada.core.model_steps import UserRows
    >>> from dada.peer.inputs import ModelStep, Started
    >>> file, rows = io.BytesIO(), UserRows(np.ones((1, 2), np.int8))
    >>> peer = Peer(b"me", rows, PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> journal = PeerJournal(file, peer)
    >>> for fact in (Started(0.0), ModelStep(0.5)):
    ...     journal.write(fact)
    ...     effects = peer.handle(fact)
    >>> journal.close()
    >>> replay(io.BytesIO(file.getvalue()))
    Replay(births=1, facts=2, digests=1, is_whole=True)
    """

    def __init__(self, file: BinaryIO, peer: Peer) -> None:
        self._file, self._peer = file, peer
        self._facts = 0
        self._append(_birth(peer))

    def write(self, fact: Fact) -> None:
        """Record the fact that the peer is given next."""
        if self._facts and self._facts % DIGEST_EVERY == 0:
            self._append(Digest(digest_of(self._peer)))
        self._facts += 1
        self._append(fact)

    def close(self) -> None:
        """Record the final state."""
        self._append(Digest(digest_of(self._peer)))
        self._file.flush()

    def _append(self, record: Record) -> None:
        data = _encoder.encode(record)
        self._file.write(LENGTH.pack(len(data)) + data)


class Replay(NamedTuple):
    """Contents of a replayed journal; `is_whole` unless it was cut off."""

    births: int
    facts: int
    digests: int
    is_whole: bool


def replay(file: BinaryIO) -> Replay:
    """Give a new peer all facts of a journal; raise `JournalError` if its state differs from the recorded one."""
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
            peer.handle(record)
            facts += 1
    if record is None:
        raise JournalError("this is not a journal: it is empty")
    return Replay(births, facts, digests, isinstance(record, Digest))


def read(file: BinaryIO) -> Iterator[Record]:
    """The records of a journal, without a last one that was cut off."""
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
    """Digest of a peer's state: equal digests mean equal models, edges, copies and timers."""
    state = hashlib.sha256()
    own, edges, neighbourhood = peer.own, peer.edges, peer.neighbourhood
    model, shared, waiting = own.model, own.shared, sorted(edges.waiting.items())
    counts = (own.updates, edges.degree, neighbourhood.sizes.confidence, neighbourhood.rounds.count)
    state.update(repr((shared.number, counts, waiting, neighbourhood.followers)).encode())
    state.update(model.alpha.tobytes() + model.support[: model.n_support].tobytes() + own.user.margins.tobytes())
    if shared is not model:
        state.update(shared.alpha.tobytes() + shared.support[: shared.n_support].tobytes())
    for name, edge in sorted(edges.items()):
        state.update(repr((name, edge.weight, edge.rank, edge.acknowledged, edge.repeats)).encode())
        if edge.copy is not None:
            state.update(repr(edge.copy.number).encode() + edge.copy.alpha.tobytes())
    return state.digest()


def _birth(peer: Peer) -> Birth:
    config = peer.config
    kind = type(config.regularizer).__name__
    if kind not in REGULARIZERS:
        raise JournalError(f"a journal can keep the regularizers {', '.join(REGULARIZERS)}, not a custom one")
    # A peer is born without trees: they come as a fact.
    trees = ("dictionary", "agreed")
    unused = (() if config.sends_codes else ("block", "dtype")) + (() if config.most_samples else ("most_samples",))
    apart = ("regularizer", "coupling", *trees, *unused)
    others = [field.name for field in dataclasses.fields(config) if field.name not in apart]
    return Birth(
        me=peer.me,
        stored=StoredRows.of(peer.own.rows),
        settings={name: getattr(config, name) for name in others},
        regularizer=kind,
        regularizer_settings=dataclasses.asdict(config.regularizer),
        coupling=as_bytes(config.coupling),
    )


def _born(birth: Birth) -> Peer:
    try:
        regularizer = REGULARIZERS[birth.regularizer](**birth.regularizer_settings)
        settings = dict(birth.settings)
        if "block" in settings:
            settings["block"] = BlockStep(*settings["block"])
        config = PeerConfig(**settings, regularizer=regularizer, coupling=as_numbers(birth.coupling))
        return Peer(birth.me, birth.stored.rows, config)
    except (TypeError, ValueError, KeyError) as error:
        raise JournalError(f"the peer of this journal cannot be made: {error}") from error
