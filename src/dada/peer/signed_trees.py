"""Boosted trees, each signed by its grower, which only become more: all peers come to hold the same.

A record has the signed trees of one grower. Two peers that meet send each other checks of their records, one for each
grower, and then the records that differ. Merging adds trees and never replaces any, so it may happen in any order,
repeatedly or after losses. A peer that has lost its disk receives its own trees from others. An empty tree states that
a peer takes part. Of one grower all keep the same trees, those with the lowest names, up to the network's limit, and
of all growers those whose ids have the lowest hashes. Of these trees a network uses twice a fair share of each grower,
those of the first rounds. So nobody fills the network alone; when many join, trees of the first growers may fall out of
use, and others are grown.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from dada.peer.boosted_trees import BoostedTerms
from dada.peer.grove import name_of
from dada.peer.inputs import Persist
from dada.peer.messages import (
    CHECK_SIZE,
    DIGEST_SIZE,
    MOST_GROWERS,
    BoostedRecord,
    ImplausibleError,
    PeerId,
    SignedTree,
)
from dada.peer.signatures import Seal

BOOSTED_KEY = b"boosted:"
# Shares of all trees, divided by the number of peers, that are used of one grower.
FAIR_SHARES = 2


class SignedTrees:
    """The records that one peer holds, in the order of the hashes of their growers.

    Parameters
    ----------
    me : bytes
        This peer's id.
    terms : BoostedTerms
        What all trees of the network have in common.
    problem : bytes
        Digest of the network's settings, which is part of all that is signed.
    seal : Seal
        Signs the trees of this peer, and verifies others.

    Examples
    --------
    >>> from dada.peer.signatures import Unsealed
    >>> terms = BoostedTerms(n_features=1, n_cuts=1, n_classes=2, rounds=5, depth=1)
    >>> ann, bob = (SignedTrees(me, terms, b"", Unsealed()) for me in (b"ann", b"bob"))
    >>> record = ann.add(b"")
    >>> bob.merge([record]), len(bob.trees), ann.digest == bob.digest
    ((BoostedRecord(peer=b'ann', trees=(SignedTree(tree=b'', signature=b''),)),), 0, True)
    """

    def __init__(self, me: PeerId, terms: BoostedTerms, problem: bytes, seal: Seal) -> None:
        self.me, self.terms = me, terms
        self._problem, self._seal = problem, seal
        # Signatures by tree, in the order of names, by grower.
        self._held: dict[PeerId, dict[bytes, bytes]] = {}
        self.checks = b""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[BoostedRecord]:
        return (self.record_of(peer) for peer in self._held)

    @property
    def digest(self) -> bytes:
        """Digest of all records."""
        return self._hash(self.checks)

    @property
    def trees(self) -> list[bytes]:
        """The trees in use, in the order in which all peers apply them: of each grower the first ones."""
        each = [self.terms.in_order([tree for tree in held if tree]) for held in self._held.values()]
        return self.terms.in_order([tree for of_grower in each for tree in of_grower[: self.fair_number]])

    @property
    def fair_number(self) -> int:
        """Trees of one grower that are used: more than its share, so that slow or absent peers are no loss."""
        return min(self.terms.per_grower, math.ceil(FAIR_SHARES * self.terms.rounds / max(1, len(self._held))))

    @property
    def counts(self) -> dict[PeerId, int]:
        """The number of trees of each grower."""
        return {peer: sum(bool(tree) for tree in held) for peer, held in self._held.items()}

    @property
    def may_grow(self) -> bool:
        """Whether others use another tree of this peer."""
        return self.me in self._held and self.counts[self.me] < self.fair_number

    def record_of(self, peer: PeerId) -> BoostedRecord:
        """The record of a grower."""
        return BoostedRecord(peer, tuple(SignedTree(*one) for one in self._held.get(peer, {}).items()))

    def add(self, tree: bytes) -> BoostedRecord:
        """Sign a tree of this peer, or an empty one; returns a record with it alone."""
        record = BoostedRecord(self.me, (SignedTree(tree, self._seal.sign(self._content(self.me, tree))),))
        self._keep([record])
        return record

    def merge(self, records: Iterable[BoostedRecord]) -> tuple[BoostedRecord, ...]:
        """Check, verify and keep trees that are new; returns those that were kept."""
        new = self._parts(records, are_held=False)
        for record in new:
            for one in record.trees:
                if one.tree:
                    self.terms.check(one.tree)
                if not self._seal.verify(record.peer, self._content(record.peer, one.tree), one.signature):
                    raise ImplausibleError("a boosted tree with a false signature")
        self._keep(new)
        return self._parts(new, are_held=True)

    def _parts(self, records: Iterable[BoostedRecord], are_held: bool) -> tuple[BoostedRecord, ...]:
        """Records with the trees that this peer holds, or with all others."""
        parts = []
        for record in records:
            held = self._held.get(record.peer, {})
            trees = tuple(one for one in record.trees if (one.tree in held) == are_held)
            parts += [BoostedRecord(record.peer, trees)] if trees else []
        return tuple(parts)

    def lacking(self, checks: bytes) -> tuple[BoostedRecord, ...]:
        """Records that differ from those of another peer."""
        theirs, own = set(_pieces(checks)), _pieces(self.checks)
        return tuple(record for record, check in zip(self, own, strict=True) if check not in theirs)

    def _keep(self, records: Iterable[BoostedRecord]) -> None:
        held = dict(self._held)
        for record in records:
            if record.trees:
                merged = held.get(record.peer, {}) | {one.tree: one.signature for one in record.trees}
                lowest = sorted((tree for tree in merged if tree), key=name_of)[: self.terms.per_grower]
                held[record.peer] = {tree: merged[tree] for tree in ([b""] if b"" in merged else []) + lowest}
        lowest_peers = sorted(held, key=self._hash)[:MOST_GROWERS]
        self._held = {peer: held[peer] for peer in lowest_peers}
        self.checks = b"".join(
            self._hash(msgspec.msgpack.encode((peer, *own)), CHECK_SIZE) for peer, own in self._held.items()
        )

    def _content(self, peer: PeerId, tree: bytes) -> bytes:
        """What a grower signs."""
        return b"dada boosted tree" + msgspec.msgpack.encode((self._problem, peer, tree))

    def _hash(self, content: bytes, size: int = DIGEST_SIZE) -> bytes:
        return hashlib.blake2b(content, digest_size=size, key=self._problem).digest()

    # -- storage ---------------------------------------------------------------------------------------------------

    def stored(self, peers: Iterable[PeerId]) -> list[Persist]:
        """The records of some growers, to be stored; those that are kept no more are deleted."""
        return [
            Persist(BOOSTED_KEY + peer, msgspec.msgpack.encode(self.record_of(peer)) if peer in self._held else b"")
            for peer in peers
        ]

    def restore(self, records: Mapping[bytes, bytes]) -> None:
        """Take over stored records."""
        self._keep(
            msgspec.msgpack.decode(value, type=BoostedRecord)
            for key, value in records.items()
            if key.startswith(BOOSTED_KEY)
        )


def _pieces(checks: bytes) -> list[bytes]:
    return [checks[start : start + CHECK_SIZE] for start in range(0, len(checks), CHECK_SIZE)]
