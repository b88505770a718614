"""A census of the users, from which peers without a server compute settings that depend on all of them.

Theory of operation
-------------------
The strength of the coupling, mu, must fit the scale of the users' losses: it is a multiple of their mean confidence,
m_k / max m_l. No peer knows all m_l. So each publishes a signed *record* with its number of samples, and all peers keep
the records of the same users: those whose ids have the lowest hashes, a random sample of at most `MOST_RECORDS`. Two
peers that meet merge their records. Merging in any order, repeatedly or after losses gives the same records, unlike
sums that are passed on. Once gossip has spread all records, every peer has the same ones and computes the same
settings. A newcomer receives them at its first exchange. A peer that leaves stays in the sample.

*Messages.* At each exchange of views a peer sends the digest of its records (`CensusSummary`). If the receiver's
differs, it answers with short checks of its own records. Each of the two then sends what the other lacks
(`CensusReply`).

*Liars.* A peer has one record, signed by itself. The largest number of samples is trusted as in
`dada.peer.edges.Sizes`: a minority of liars cannot raise it above twice the median. All else that a record can change
is one of the confidences in the mean, between 0 and 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from dada.peer.config import PeerConfig
from dada.peer.edges import largest_trusted
from dada.peer.inputs import Effect, Persist, Send
from dada.peer.messages import (
    CHECK_SIZE,
    DIGEST_SIZE,
    MOST_RECORDS,
    CensusMessage,
    CensusRecord,
    CensusReply,
    CensusSummary,
    ImplausibleError,
    PeerId,
)
from dada.peer.witnesses import Seal

CENSUS_KEY = b"census"
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
    >>> from dada.peer.witnesses import Unsealed
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
        self._problem, self._seal = config.digest, seal
        self._own = CensusRecord(me, 0, 1)
        # In the order of the hashes of their peers; `_checks` has a check of each.
        self._records: dict[PeerId, CensusRecord] = {}
        self._checks = b""

    def __len__(self) -> int:
        return len(self._records)

    # -- settings --------------------------------------------------------------------------------------------------

    @property
    def largest(self) -> int:
        """The largest trusted number of samples."""
        sizes = [record.size for record in self._records.values()]
        return max(self.config.known_largest, largest_trusted(sizes, self.config.trust_largest))

    @property
    def mu(self) -> float:
        """Strength of the coupling: a multiple of the mean of m_k / max m_l, 1 at most each."""
        assert self.config.mu_per_confidence is not None
        largest = self.largest
        confidences = [min(1.0, record.size / largest) for record in self._records.values()]
        return self.config.mu_per_confidence * sum(confidences) / len(confidences)

    # -- records ---------------------------------------------------------------------------------------------------

    def publish(self, size: int) -> list[Effect]:
        """Give this peer's record a number of samples."""
        if self._own.version > 0 and self._own.size == size:
            return []
        return self._republish(self._own.version + 1, size)

    def _republish(self, version: int, size: int) -> list[Effect]:
        unsigned = CensusRecord(self.me, version, size)
        self._own = CensusRecord(self.me, version, size, self._seal.sign(self._content(unsigned)))
        self._keep([self._own])
        return [self.record()]

    def _content(self, record: CensusRecord) -> bytes:
        """What the owner of a record signs."""
        return b"dada census" + msgspec.msgpack.encode((self._problem, record.peer, record.version, record.size))

    def _keep(self, records: Iterable[CensusRecord]) -> None:
        """Keep the newest record of each of the peers with the lowest hashes."""
        merged = dict(self._records)
        for record in records:
            held = merged.get(record.peer)
            if held is None or (held.version, held.size) < (record.version, record.size):
                merged[record.peer] = record
        if merged != self._records:
            kept = sorted(merged.values(), key=lambda record: self._hash(record.peer))[:MOST_RECORDS]
            self._records = {record.peer: record for record in kept}
            self._checks = b"".join(self._check(record) for record in kept)

    def _hash(self, content: bytes, size: int = DIGEST_SIZE) -> bytes:
        return hashlib.blake2b(content, digest_size=size, key=self._problem).digest()

    # -- messages --------------------------------------------------------------------------------------------------

    def summary(self, with_checks: bool = False) -> CensusSummary:
        """The first message of an exchange; with checks, the answer to it."""
        return CensusSummary(self._hash(self._checks), self._checks if with_checks else b"")

    def _check(self, record: CensusRecord) -> bytes:
        return self._hash(self._content(record), CHECK_SIZE)

    def receive(self, sender: PeerId, message: CensusMessage) -> list[Effect]:
        """Answer a message: with checks, with records that the sender lacks, or not at all."""
        if isinstance(message, CensusSummary):
            if message.digest == self.summary().digest:
                return []
            if not message.checks:
                return [Send(sender, self.summary(with_checks=True))]
            return [Send(sender, CensusReply(self._lacking(message.checks), self._checks))]
        before, known = self._checks, set(_pieces(self._checks))
        new = [record for record in message.records if self._check(record) not in known]
        if not all(self._seal.verify(record.peer, self._content(record), record.signature) for record in new):
            raise ImplausibleError("a record of the census with a false signature")
        self._keep(record for record in new if record.peer != self.me)
        # A record of an earlier life, whose state was lost: this one must be newer.
        versions = [record.version for record in new if record.peer == self.me and record.version >= self._own.version]
        effects: list[Effect] = self._republish(max(versions) + 1, self._own.size) if versions else []
        effects += [self.record()] if self._checks != before else []
        if message.checks and (records := self._lacking(message.checks)):
            effects.append(Send(sender, CensusReply(records)))
        return effects

    def _lacking(self, checks: bytes) -> tuple[CensusRecord, ...]:
        """Records that are not among those of another peer."""
        theirs, own = set(_pieces(checks)), self._records.values()
        return tuple(record for record, check in zip(own, _pieces(self._checks), strict=True) if check not in theirs)

    # -- storage ---------------------------------------------------------------------------------------------------

    def record(self) -> Persist:
        """All records, to be stored; the first is that of this peer."""
        others = tuple(record for record in self._records.values() if record.peer != self.me)
        return Persist(CENSUS_KEY, msgspec.msgpack.encode((self._own, *others)))

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take over stored records."""
        if CENSUS_KEY in records:
            stored = _decoder.decode(records[CENSUS_KEY])
            self._own = stored[0]
            self._keep(stored)


def _pieces(checks: bytes) -> list[bytes]:
    return [checks[start : start + CHECK_SIZE] for start in range(0, len(checks), CHECK_SIZE)]
