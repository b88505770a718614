"""Witnesses: the followers of one peer compare the models that it signed for them.

Theory of operation
-------------------
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
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import NamedTuple, Protocol

from dada.peer.copies import ModelCopy
from dada.peer.messages import (
    DIGEST_SIZE,
    Equivocation,
    FollowAck,
    ImplausibleError,
    Message,
    PeerId,
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
