"""A census of the users, from which peers without a server compute settings that depend on all of them.

Theory of operation
-------------------
*Records.* A peer publishes one signed record, and gossip brings it to all. All peers keep the records of the same
peers: those whose ids have the lowest hashes. Two peers that meet merge their records. Merging in any order, repeatedly
or after losses gives the same records, unlike sums that are passed on. A record of a peer that leaves is kept. A peer
first sends a digest of its records. If the receiver's differs, it answers with short checks of its own. Each of the two
then sends what the other lacks. Trees (`dada.peer.grove`) spread in the same way.

*Census.* The strength of the coupling, mu, must fit the scale of the users' losses: it is a multiple of their mean
confidence, m_k / max m_l. No peer knows all m_l. So each publishes its number of samples, and later the log-likelihood
of held-out samples that a weaker coupling gains. The records of a random sample of at most `MOST_RECORDS` users reach
all, so every peer computes the same settings. A newcomer receives them at its first exchange.

*Gains.* A peer learns its model again without some of its samples, next to its neighbours' present models, with mu and
with fractions of it. If most users have published their gains, and these are clear, mu becomes that fraction. The
neighbours' models have learned a little from the held-out samples, in favour of a stronger coupling; so only weaker
ones are compared.

*Liars.* A peer has one record, signed by itself. The largest number of samples is trusted as in
`dada.peer.edges.Sizes`: a minority of liars cannot raise it above twice the median. All else that a record can change
is one of the confidences in the mean, between 0 and 1, and one of the gains, which are clipped.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from dada.peer.edges import largest_trusted
from dada.peer.inputs import Effect, PeerConfig, Persist, Send
from dada.peer.messages import (
    CHECK_SIZE,
    DIGEST_SIZE,
    LARGEST_COUNT,
    MOST_GAIN,
    MOST_RECORDS,
    AtomRecord,
    CensusMessage,
    CensusRecord,
    CensusReply,
    CensusSummary,
    ImplausibleError,
    PeerId,
)
from dada.peer.signatures import Seal

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
    >>> from dada.peer.signatures import Unsealed
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


CENSUS_KEY = b"census"
# Fractions of mu whose gains are compared, the fewest users who decide, and the standard errors by which a sum of gains
# must exceed zero, as in `dada.fitting.held_out`. Gains are in hundredths.
FRACTIONS, LEAST_JUDGED, DOUBT, GAIN_UNIT = (0.25, 0.0625), 8, 1.0, 0.01
_decoder = msgspec.msgpack.Decoder(tuple[CensusRecord, ...])


class Census:
    """The records that one peer holds.

    Parameters
    ----------
    me : bytes
        This peer's id.
    config : PeerConfig
        Settings of the network; records of other networks are not valid.
    seal : Seal
        Signs the record of this peer, and verifies others.

    Examples
    --------
    >>> from dada.peer.signatures import Unsealed
    >>> config = PeerConfig(n_predictors=2, beta=1.0, mu1=1.0, graph="everyone", mu_per_confidence=2.0)
    >>> ann, bob = (Census(name, config, Unsealed()) for name in (b"ann", b"bob"))
    >>> _ = ann.publish(10), bob.publish(4)
    >>> (question,) = ann.receive(b"bob", bob.summary())
    >>> (answer,) = bob.receive(b"ann", question.message)
    >>> _ = ann.receive(b"bob", answer.message)
    >>> ann.largest, ann.mu
    (10, 1.4)
    """

    def __init__(self, me: PeerId, config: PeerConfig, seal: Seal) -> None:
        self.me, self.config = me, config
        self._records = SignedRecords(CensusRecord(me, 0, 1), b"dada census", config.digest, seal, MOST_RECORDS)

    def __len__(self) -> int:
        return len(self._records)

    # -- settings --------------------------------------------------------------------------------------------------

    @property
    def largest(self) -> int:
        """The largest trusted number of samples."""
        sizes, most = [record.size for record in self._records], self.config.most_samples
        largest = largest_trusted(sizes, self.config.trust_largest)
        return max(self.config.known_largest, largest if most is None else min(largest, most))

    @property
    def mu(self) -> float:
        """Strength of the coupling."""
        return self.fraction * self.whole_mu

    @property
    def fraction(self) -> float:
        """The fraction of mu that the users' gains favour."""
        judged = np.array([record.gains for record in self._records if record.gains], np.float64)
        if len(judged) < max(LEAST_JUDGED, len(self._records) / 2):
            return 1.0
        chosen, before = 1.0, np.zeros(len(judged))
        for fraction, gains in zip(FRACTIONS, judged.T, strict=True):
            ahead = gains - before
            if not ahead.sum() > DOUBT * ahead.std() * math.sqrt(len(ahead)):
                break
            chosen, before = fraction, gains
        return chosen

    @property
    def whole_mu(self) -> float:
        """A multiple of the mean of m_k / max m_l, 1 at most each."""
        assert self.config.mu_per_confidence is not None
        largest = self.largest
        confidences = [min(1.0, record.size / largest) for record in self._records]
        return self.config.mu_per_confidence * sum(confidences) / len(confidences)

    # -- records ---------------------------------------------------------------------------------------------------

    @property
    def is_judged(self) -> bool:
        """Whether this peer has published its gains."""
        return bool(self._records.own.gains)

    def publish(self, size: int) -> list[Effect]:
        """Give this peer's record a number of samples."""
        if self._records.own.version > 0 and self._records.own.size == size:
            return []
        return self._republish(replace(self._records.own, size=size))

    def publish_gains(self, gains: Sequence[float]) -> list[Effect]:
        """Add to this peer's record the log-likelihood that each of `FRACTIONS` gains."""
        clipped = (max(-MOST_GAIN, min(MOST_GAIN, round(gain / GAIN_UNIT))) for gain in gains)
        return self._republish(replace(self._records.own, gains=tuple(clipped)))

    def _republish(self, record: CensusRecord) -> list[Effect]:
        self._records.publish(record)
        return [self.record()]

    # -- messages --------------------------------------------------------------------------------------------------

    def summary(self, with_checks: bool = False) -> CensusSummary:
        """The first message of an exchange; with checks, the answer to it."""
        return CensusSummary(self._records.digest, self._records.checks if with_checks else b"")

    def receive(self, sender: PeerId, message: CensusMessage) -> list[Effect]:
        """Answer a message: with checks, with records that the sender lacks, or not at all."""
        records = self._records
        if isinstance(message, CensusSummary):
            if message.digest == records.digest:
                return []
            if not message.checks:
                return [Send(sender, self.summary(with_checks=True))]
            return [Send(sender, CensusReply(records.lacking(message.checks), records.checks))]
        if any(len(record.gains) not in (0, len(FRACTIONS)) for record in message.records):
            raise ImplausibleError(f"a record of the census without {len(FRACTIONS)} gains")
        effects: list[Effect] = [self.record()] if records.merge(message.records) else []
        if message.checks and (lacking := records.lacking(message.checks)):
            effects.append(Send(sender, CensusReply(lacking)))
        return effects

    # -- storage ---------------------------------------------------------------------------------------------------

    def record(self) -> Persist:
        """All records, to be stored; the first is that of this peer."""
        others = tuple(record for record in self._records if record.peer != self.me)
        return Persist(CENSUS_KEY, msgspec.msgpack.encode((self._records.own, *others)))

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take over stored records."""
        if CENSUS_KEY in records:
            stored = _decoder.decode(records[CENSUS_KEY])
            self._records.own = stored[0]
            self._records.keep(stored)
