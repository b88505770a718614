"""Signed records of peers, one of each, that gossip brings to all.

All peers keep the records of the same peers: those whose ids have the lowest hashes. Two peers that meet merge their
records. Merging in any order, repeatedly or after losses gives the same records, unlike sums that are passed on. A
record of a peer that leaves is kept.

A peer first sends a digest of its records. If the receiver's differs, it answers with short checks of its own. Each of
the two then sends what the other lacks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from dada.peer.messages import (
    CHECK_SIZE,
    DIGEST_SIZE,
    LARGEST_COUNT,
    AtomRecord,
    CensusRecord,
    ImplausibleError,
    PeerId,
)
from dada.peer.witnesses import Seal

Record = TypeVar("Record", CensusRecord, AtomRecord)


class SignedRecords(Generic[Record]):
    """The records that one peer holds, in the order of the hashes of their peers.

    Parameters
    ----------
    own : record
        This peer's record at version 0: it is not published yet.
    purpose, problem : bytes
        Part of all that is signed: records of other kinds and networks are not valid.
    seal : Seal
        Signs the record of this peer, and verifies others.
    most : int
        Records that are kept.
    last : int
        The last version that a record can have.

    Examples
    --------
    >>> from dada.peer.witnesses import Unsealed
    >>> ann, bob = (SignedRecords(CensusRecord(me, 0, 1), b"census", b"", Unsealed(), 9) for me in (b"ann", b"bob"))
    >>> ann.publish(replace(ann.own, size=10))
    >>> bob.merge(ann.lacking(bob.checks))
    True
    >>> [record.size for record in bob], ann.digest == bob.digest
    ([10], True)
    """

    def __init__(
        self, own: Record, purpose: bytes, problem: bytes, seal: Seal, most: int, last: int = LARGEST_COUNT
    ) -> None:
        self.own: Record = own
        self.most, self.last = most, last
        self._purpose, self._problem, self._seal = purpose, problem, seal
        self._records: dict[PeerId, Record] = {}
        self.checks = b""

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    @property
    def digest(self) -> bytes:
        """Digest of all records."""
        return self._hash(self.checks)

    def publish(self, record: Record) -> None:
        """Replace this peer's record, at the next version; after the last one, it stays."""
        if record.version >= self.last:
            return
        record = replace(record, version=record.version + 1)
        self.own = replace(record, signature=self._seal.sign(self._content(record)))
        self.keep([self.own])

    def merge(self, records: Iterable[Record]) -> bool:
        """Keep records of others that are new, and verify them; returns whether any record has changed.

        If one is of an earlier life of this peer, whose state was lost, its own is published at a higher version.
        """
        before, known = self.checks, set(_pieces(self.checks))
        new = [record for record in records if self._check(record) not in known]
        if not all(self._seal.verify(record.peer, self._content(record), record.signature) for record in new):
            raise ImplausibleError("a record with a false signature")
        me = self.own.peer
        self.keep(record for record in new if record.peer != me)
        versions = [record.version for record in new if record.peer == me and record.version >= self.own.version]
        if versions:
            self.publish(replace(self.own, version=max(versions)))
        return bool(versions) or self.checks != before

    def lacking(self, checks: bytes) -> tuple[Record, ...]:
        """Records that are not among those of another peer."""
        theirs = set(_pieces(checks))
        return tuple(record for record, check in zip(self, _pieces(self.checks), strict=True) if check not in theirs)

    def keep(self, records: Iterable[Record]) -> None:
        """Keep the newest record of each of the peers with the lowest hashes; signatures were verified."""
        merged = dict(self._records)
        for record in records:
            held = merged.get(record.peer)
            if held is None or state_of(held) < state_of(record):
                merged[record.peer] = record
        if merged != self._records:
            lowest = sorted(merged.values(), key=lambda record: self._hash(record.peer))[: self.most]
            self._records = {record.peer: record for record in lowest}
            self.checks = b"".join(self._check(record) for record in lowest)

    def _content(self, record: Record) -> bytes:
        """What the owner of a record signs."""
        return self._purpose + msgspec.msgpack.encode((self._problem, *state_of(record)))

    def _check(self, record: Record) -> bytes:
        return self._hash(self._content(record), CHECK_SIZE)

    def _hash(self, content: bytes, size: int = DIGEST_SIZE) -> bytes:
        return hashlib.blake2b(content, digest_size=size, key=self._problem).digest()


def state_of(record: CensusRecord | AtomRecord) -> tuple[Any, ...]:
    """What a record states: all but its signature. Of two states of one peer, the larger counts."""
    return tuple(getattr(record, name) for name in record.__struct_fields__ if name != "signature")


def _pieces(checks: bytes) -> list[bytes]:
    return [checks[start : start + CHECK_SIZE] for start in range(0, len(checks), CHECK_SIZE)]
