"""Membership of a network with a founder: certificates that admit peers, and the list of those that are excluded.

The founder of a network is an Ed25519 key that runs no peer. It signs two kinds of statements:

- A *certificate* admits one peer, for ever or until a date. Both ends of a new link show theirs in the handshake.
- A *revocation* lists all revoked members and has a counter. Peers send the counter with each exchange of views, and
  whoever has the higher one sends its list to the other. A peer stores a list before it sends it, and drops the members
  in it for good.

Both name the network, so that they are valid nowhere else. A list can be neither forged nor rolled back: it has the
founder's signature, and the highest counter counts. A peer that is cut off from all honest ones does not receive it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from dada.peer.messages import LARGEST_COUNT, MOST_REVOKED, Certificate, PeerId, Revocation
from dada.peer.witnesses import Seal


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
