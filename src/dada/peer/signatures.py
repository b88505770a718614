"""Signatures: of models, which witnesses compare, and of a founder, who admits and excludes the members of a network.

Witnesses
---------
A peer has one model per number (epoch, sequence), the same for all followers. It signs a *statement* about it: the
number and a digest of the model. Snapshots carry statements, and so do acknowledgements if the follower asks; changes
do not, because a signature is longer than a change.

A follower keeps a *trail* of each neighbour: the digests of the last models that it received, by number, and the last
model whose statement agreed with its copy. Between two exchanges of views, two peers find a neighbour that they have in
common, and each sends the other its last signed copy of that neighbour's model (`Witness`). The receiver compares it:

- It has had that number, with the same digest: the neighbour is consistent.
- It has had that number, with another digest: the neighbour lied to one of the two, and is ignored from then on. If
  both digests are signed, they are a proof. It is stored and passed on, and every peer drops the liar for good.
- It was never given that number, although it had earlier ones: the neighbour may send every follower a sequence of its
  own. The copy must do about as well on the receiver's samples as the neighbour's model there; otherwise the neighbour
  is dropped and not asked for a while, each time twice as long. Changes arrive in unbroken order unless messages are
  lost, so this test rarely concerns an honest neighbour.

A neighbour that does not sign is dropped, because nobody could compare its models.

Membership
----------
The founder of a network is an Ed25519 key that runs no peer. It signs two kinds of statements:

- A *certificate* admits one peer, for ever or until a date. Both ends of a new link show theirs in the handshake.
- A *revocation* lists all revoked members and has a counter. Peers send the counter with each exchange of views, and
  whoever has the higher one sends its list to the other. A peer stores a list before it sends it, and drops the members
  in it for good.

Both name the network, so that they are valid nowhere else. A list can be neither forged nor rolled back: it has the
founder's signature, and the highest counter counts. A peer that is cut off from all honest ones does not receive it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from dada.peer.copies import ModelCopy
from dada.peer.messages import (
    DIGEST_SIZE,
    LARGEST_COUNT,
    MOST_REVOKED,
    Certificate,
    Equivocation,
    FollowAck,
    ImplausibleError,
    Message,
    PeerId,
    Revocation,
    SnapshotReply,
    Statement,
    Witness,
)
from dada.peer.model import OwnModel

# Models of each neighbour whose digests are remembered.
TRAIL_LENGTH = 64
# Reminders that asked for a statement and got none that matches, after which a neighbour is dropped.
MOST_UNANSWERED = 3
# Neighbours named in a request for witnesses, witnesses sent in reply, and bytes about each neighbour.
MOST_NAMED, MOST_COMPARED = 10, 4
NAME_SIZE, CHECK_SIZE, ENTRY_SIZE = 2, 4, 6
# How much lower the log evidence for a witness's copy may be; graph steps for which a peer is then not asked the first
# time, and how often that doubles.
MOST_EVIDENCE_LOST, DOUBTED_STEPS, MOST_DOUBLINGS = 1.0, 60, 10
# Peers whose doubts are remembered, and peers that are proven liars.
MOST_DOUBTED, MOST_EXPOSED = 1024, 1024
EXPOSED_KEY = b"exposed:"


class Seal(Protocol):
    """Signs the statements of one peer, and verifies those of all."""

    def sign(self, content: bytes) -> bytes:
        """The signature of this peer."""

    def verify(self, peer: PeerId, content: bytes, signature: bytes) -> bool:
        """Whether a signature is that of a peer."""


class Unsealed:
    """No signatures, for peers that trust each other: two statements then never make a proof."""

    def sign(self, content: bytes) -> bytes:
        """See `Seal`."""
        return b""

    def verify(self, peer: PeerId, content: bytes, signature: bytes) -> bool:
        """See `Seal`."""
        return not signature


class ContradictionError(ImplausibleError):
    """A peer made two different statements about one number."""

    def __init__(self, owner: PeerId, first: Statement, second: Statement) -> None:
        super().__init__(f"sent two models with the number {first.epoch}, {first.sequence}")
        self.owner, self.first, self.second = owner, first, second


def content_of(statement: Statement) -> bytes:
    """What the owner of a model signs."""
    number = statement.epoch.to_bytes(8, "big") + statement.sequence.to_bytes(8, "big")
    return b"dada model" + number + statement.digest


def digest_of(copy: ModelCopy) -> bytes:
    """Digest of the values of a model, the same for all copies of it."""
    # Adding zero makes all zeros positive.
    values = (copy.alpha + 0).astype(copy.alpha.dtype.newbyteorder("<"), copy=False)
    return hashlib.blake2b(values.tobytes(), digest_size=DIGEST_SIZE).digest()


def statement_of(copy: ModelCopy, signature: bytes = b"") -> Statement:
    """The statement about a model.

    >>> statement_of(ModelCopy.zero(3, epoch=7)).epoch
    7
    """
    return Statement(*copy.number, digest_of(copy), signature)


def entries_of(signed: list[Witness], asking: PeerId, asked: PeerId) -> bytes:
    """The content of a request: a short name and a check of each signed copy.

    Checks depend on both peers, so that no liar can make models whose checks are equal between any two followers.

    >>> from dada.peer.messages import ModelSnapshot
    >>> copy = Witness(b"eve", ModelSnapshot(1, 2, b"", b""), b"signed")
    >>> len(entries_of([copy], b"ann", b"bob"))
    6
    """
    return b"".join(_name(one.owner) + _check(one, asking, asked) for one in signed[:MOST_NAMED])


def to_compare(request: bytes, signed: dict[PeerId, Witness], asking: PeerId, asked: PeerId) -> list[Witness]:
    """The signed copies of peers that a request names, without those that are equal to the copies there."""
    by_name = {_name(owner): one for owner, one in signed.items() if owner != asking}
    entries = [request[start : start + ENTRY_SIZE] for start in range(0, len(request), ENTRY_SIZE)]
    found = [(by_name.get(entry[:NAME_SIZE]), entry[NAME_SIZE:]) for entry in entries]
    return [one for one, check in found if one is not None and _check(one, asking, asked) != check]


def _name(peer: PeerId) -> bytes:
    # Two peers may have the same name; then a witness is sent in vain.
    return hashlib.blake2b(peer, digest_size=NAME_SIZE).digest()


def _check(one: Witness, asking: PeerId, asked: PeerId) -> bytes:
    content = b"".join(part.to_bytes(8, "big") for part in one.number) + one.snapshot.coordinates + one.snapshot.values
    return hashlib.blake2b(content + asking + asked, digest_size=CHECK_SIZE).digest()


def statements_in(sender: PeerId, message: Message, own: OwnModel) -> list[tuple[PeerId, Statement]]:
    """The signed statements in a message, each with the peer that must have signed it."""
    if isinstance(message, FollowAck):
        return [(sender, message.statement)] if message.digest else []
    if isinstance(message, SnapshotReply):
        return [(sender, statement_of(own.copy_of(message.snapshot), message.signature))]
    if isinstance(message, Witness):
        return [(message.owner, statement_of(own.copy_of(message.snapshot), message.signature))]
    if isinstance(message, Equivocation):
        return [(message.owner, message.first), (message.owner, message.second)]
    return []


class Doubt(NamedTuple):
    """How often the copy of a witness did badly, and the last graph step at which its owner is not asked.

    >>> Doubt().again(step=5), Doubt().again(step=5).again(step=100)
    (Doubt(times=1, until=65), Doubt(times=2, until=220))
    """

    times: int = 0
    until: int = -1

    def again(self, step: int) -> Doubt:
        """The doubt after one more such copy."""
        return Doubt(self.times + 1, step + DOUBTED_STEPS * 2 ** min(self.times, MOST_DOUBLINGS))


class Trail:
    """The digests of a neighbour's models, by number, and the last model that it signed.

    >>> trail, copy = Trail(), ModelCopy.zero(3, epoch=1)
    >>> trail.note(copy)
    >>> trail.confirms(b"ann", statement_of(copy)), trail.confirms(b"ann", Statement(1, 5, b"another"))
    (True, False)
    """

    def __init__(self) -> None:
        self._statements: OrderedDict[tuple[int, int], Statement] = OrderedDict()
        self.signed: Witness | None = None
        self.unanswered = self.compared = 0

    def __len__(self) -> int:
        return len(self._statements)

    def is_signed(self, copy: ModelCopy | None) -> bool:
        """Whether the owner has signed a copy."""
        return copy is not None and self.signed is not None and self.signed.number == copy.number

    def note(self, copy: ModelCopy) -> None:
        """A copy of the neighbour's model has a new number."""
        self._statements[copy.number] = statement_of(copy)
        if len(self._statements) > TRAIL_LENGTH:
            self._statements.popitem(last=False)

    def began_after(self, number: tuple[int, int]) -> bool:
        """Whether all models that are remembered are newer than this number."""
        return not self._statements or number < next(iter(self._statements))

    def confirms(self, owner: PeerId, statement: Statement) -> bool:
        """Whether a model with this number and digest was received; raises if it had another digest."""
        known = self._statements.get((statement.epoch, statement.sequence))
        if known is None:
            return False
        if known.digest != statement.digest:
            raise ContradictionError(owner, known, statement)
        if statement.signature:
            self._statements[statement.epoch, statement.sequence] = statement
        return True


@dataclass(frozen=True)
class Membership:
    """The rules of a network with a founder, as one of its peers knows them.

    Parameters
    ----------
    network : bytes
        Digest of the learning problem and the founder.
    founder : bytes
        Public key of the founder.
    seal : Seal
        Verifies the founder's signatures; the founder's own also makes them.

    Examples
    --------
    >>> from dada.sim.virtual import VirtualSeal
    >>> founder = Membership(b"network", b"founder", VirtualSeal(b"founder"))
    >>> certificate = founder.admit(b"ann", expires=100)
    >>> [founder.flaw_of(certificate, peer, now) for peer, now in ((b"ann", 99.0), (b"bob", 99.0), (b"ann", 101.0))]
    [None, 'it admits 616e6e', 'it expired on 1970-01-01']
    >>> founder.is_genuine(founder.revoke([b"bob"], counter=1))
    True
    """

    network: bytes
    founder: PeerId
    seal: Seal

    def admit(self, peer: PeerId, expires: int = 0) -> Certificate:
        """A certificate for a peer, signed by the founder."""
        unsigned = Certificate(self.network, peer, expires, b"")
        return Certificate(self.network, peer, expires, self.seal.sign(_certificate_content(unsigned)))

    def flaw_of(self, certificate: Certificate | None, peer: PeerId, now: float) -> str | None:
        """Why a certificate does not admit a peer at a Unix time; None if it does."""
        if certificate is None:
            return "none was sent"
        if certificate.network != self.network:
            return "it is of another network"
        if certificate.peer != peer:
            return f"it admits {certificate.peer.hex()[:10]}"
        if 0 < certificate.expires < now:
            return f"it expired on {datetime.fromtimestamp(certificate.expires, UTC).date()}"
        if not self.seal.verify(self.founder, _certificate_content(certificate), certificate.signature):
            return "the founder has not signed it"
        return None

    def revoke(self, peers: Iterable[PeerId], counter: int) -> Revocation:
        """The list of revoked members, signed by the founder."""
        revoked = tuple(sorted(set(peers)))
        if len(revoked) > MOST_REVOKED:
            raise ValueError(f"a network excludes at most {MOST_REVOKED} members, got {len(revoked)}: found a new one")
        if not 0 < counter <= LARGEST_COUNT:
            raise ValueError(f"the counter of a list must be in 1..{LARGEST_COUNT}, got {counter}")
        return Revocation(counter, revoked, self.seal.sign(self._revocation_content(counter, revoked)))

    def is_genuine(self, revocation: Revocation) -> bool:
        """Whether the founder has signed a list."""
        content = self._revocation_content(revocation.counter, revocation.revoked)
        return self.seal.verify(self.founder, content, revocation.signature)

    def _revocation_content(self, counter: int, revoked: tuple[PeerId, ...]) -> bytes:
        return b"dada revocation" + self.network + counter.to_bytes(8, "big") + _joined(revoked)


def _certificate_content(certificate: Certificate) -> bytes:
    return b"dada member" + certificate.network + certificate.expires.to_bytes(8, "big") + _joined((certificate.peer,))


def _joined(peers: tuple[PeerId, ...]) -> bytes:
    """Ids with their lengths, so that no other list has the same bytes."""
    return b"".join(bytes([len(peer)]) + peer for peer in peers)
