"""A dictionary of trees that the peers of a network grow themselves, without a server.

Theory of operation
-------------------
*Records.* Each peer publishes one signed record with the trees that it grew on its own rows. Gossip brings all records
to all peers (see `dada.peer.records`), at each greeting and each exchange of views. Trees are checked before they are
kept: their size, features, thresholds and leaves. A peer that sends others commits an offence.

*Dictionary.* The base predictors of a peer are the fixed ones of the network and the trees of all records that it
holds, in ascending order of their names. So equal records give equal dictionaries and equal coordinates, and equal
trees of several peers are one coordinate. A dictionary has a name, which every whole model in a message carries.

*Change.* Soon after its records have changed, a peer adopts the new dictionary: it stores all trees, computes their
margins on its rows, gives weight 0 to new trees in its model and in the copies of its neighbours' models, begins an
epoch, and sends its model again. A peer that meets a model over another dictionary does not use it. It compares its
records with those of the sender, once; one of the two then changes its dictionary.

*Forgetting.* A tree that no record names any more leaves the dictionary. A peer that grew other trees publishes a new
record with these. But before a peer adopts a dictionary without a tree that its own model or a neighbour's uses, it
adds this tree to its own record: a tree in use is never lost.

*Bounds.* A record has 64 trees and 256 versions at most. Beyond 256 peers, those whose ids have the lowest hashes grow
the trees of all; others cannot keep a tree that all of these forget.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dada.core.compiled import Array
from dada.core.model_steps import UserRows
from dada.peer.atoms import AtomTerms, Plot, dictionary_name, name_of
from dada.peer.inputs import Effect, Persist, Refused, Send
from dada.peer.messages import (
    MOST_ATOMS,
    MOST_GROWERS,
    MOST_PLANTINGS,
    AtomMessage,
    AtomRecord,
    AtomReply,
    AtomRequest,
    PeerId,
)
from dada.peer.records import SignedRecords
from dada.peer.witnesses import Seal

ATOMS_KEY, DICTIONARY_KEY = b"atoms:", b"dictionary:"
# Bytes of trees in one reply; the rest follows at the next exchange. Replies to one peer between two exchanges.
MOST_SENT, MOST_ANSWERS = 1 << 17, 8
# Unknown dictionaries about which a peer asks, and peers that it asks later.
MOST_ASKED = 64


class Grove:
    """The records of trees that one peer holds, and its dictionary.

    Parameters
    ----------
    me : bytes
        This peer's id.
    terms : AtomTerms
        What all trees of the network have in common.
    plot : Plot
        The user's samples, and the trees grown on them.
    problem : bytes
        Digest of the network's settings.
    seal : Seal
        Signs the record of this peer, and verifies others.

    Attributes
    ----------
    names : list of bytes
        Names of the trees in the dictionary, in the order of their coordinates.
    sent_bits : int
        Bits of all trees that this peer has sent.

    Examples
    --------
    >>> from dada.peer.atoms import AtomArrays
    >>> from dada.peer.witnesses import Unsealed
    >>> terms = AtomTerms(n_features=1, n_cuts=1, depth=1, per_user=1)
    >>> atoms = AtomArrays(np.zeros((2, 1)), np.zeros((2, 1)), np.array([[9, -9], [-5, 5]])).write()
    >>> rows = UserRows(np.ones((1, 1), np.int8)), np.ones((1, 1)), np.zeros((1, 1), np.uint8)
    >>> ann, bob = (Grove(me, terms, Plot(*rows, (atom,)), b"", Unsealed()) for me, atom in zip((b"a", b"b"), atoms))
    >>> _ = ann.plant(), bob.plant()
    >>> (question,) = ann.receive(b"b", bob.request())
    >>> (answer,) = bob.receive(b"a", question.message)
    >>> _ = ann.receive(b"b", answer.message)
    >>> _ = ann.adopt()
    >>> len(ann.names), ann.rows().A.shape
    (2, (1, 3))
    """

    def __init__(self, me: PeerId, terms: AtomTerms, plot: Plot, problem: bytes, seal: Seal) -> None:
        self.terms, self.plot = terms, plot
        empty = AtomRecord(me, 0, ())
        self.records = SignedRecords(empty, b"dada atoms", problem, seal, MOST_GROWERS, MOST_PLANTINGS)
        self.names: list[bytes] = []
        self.sent_bits = 0
        # When the present records are adopted.
        self.due = math.inf
        self._atoms: dict[bytes, bytes] = {}
        self._old_keys: list[bytes] = []
        self._asked: set[bytes] = set()
        self._is_waiting = False
        self._answers: Counter[PeerId] = Counter()
        self._later: dict[PeerId, None] = {}

    @property
    def name(self) -> bytes:
        """The name of the dictionary."""
        return dictionary_name(self.names)

    @property
    def atoms(self) -> list[bytes]:
        """The trees of the dictionary, in the order of their coordinates."""
        return [self._atoms[name] for name in self.names]

    def rows(self) -> UserRows:
        """Margins of the whole dictionary on the user's samples."""
        return self.plot.rows(self.terms, self.atoms)

    def origin(self, before: Sequence[bytes]) -> NDArray[np.int32]:
        """For each coordinate the one that it had in an earlier dictionary, or -1."""
        blocks = self.plot.signs.shape[1]
        n_fixed = self.plot.fixed.A.shape[1] // blocks
        place = {name: n_fixed + j for j, name in enumerate(before)}
        of_block = np.array([*range(n_fixed), *(place.get(name, -1) for name in self.names)], np.int32)
        shift = (n_fixed + len(before)) * np.arange(blocks, dtype=np.int32)[:, None]
        return np.where(of_block >= 0, of_block + shift, -1).astype(np.int32).ravel()

    def used_by(self, models: Sequence[Array]) -> set[bytes]:
        """Names of the trees that have a weight in some model."""
        by_block = np.any(np.stack(models) != 0, axis=0).reshape(self.plot.signs.shape[1], -1)
        is_used = by_block.any(axis=0)[by_block.shape[1] - len(self.names) :]
        return {name for name, used in zip(self.names, is_used.tolist(), strict=True) if used}

    # -- dictionary ------------------------------------------------------------------------------------------------

    def plant(self) -> list[Effect]:
        """Publish the user's own trees, unless the record of this peer has them."""
        own = self.records.own
        if own.version > 0 and set(self.plot.grown) <= set(own.atoms):
            return []
        return self._publish(self.plot.grown)

    def keep(self, in_use: Collection[bytes]) -> list[Effect]:
        """Add to this peer's record the trees in use that no record has any more."""
        named = {name_of(atom) for record in self.records for atom in record.atoms}
        forgotten = [self._atoms[name] for name in self.names if name in in_use and name not in named]
        if not forgotten:
            return []
        still_named = [atom for atom in self.records.own.atoms if atom in self.plot.grown or name_of(atom) in in_use]
        return self._publish([*still_named, *forgotten])

    def _publish(self, atoms: Sequence[bytes]) -> list[Effect]:
        before = self._stored()
        self.records.publish(replace(self.records.own, atoms=tuple(atoms[:MOST_ATOMS])))
        return self._changes(before)

    def adopt(self) -> list[Effect]:
        """Take over the trees of all records; returns what must be stored before a model refers to them."""
        self.due = math.inf
        self._asked.clear()
        known = {name_of(atom): atom for record in self.records for atom in record.atoms}
        if known.keys() == self._atoms.keys():
            return []
        self._old_keys.append(DICTIONARY_KEY + self.name)
        self._atoms, self.names = known, sorted(known)
        self._old_keys = [key for key in self._old_keys if key != DICTIONARY_KEY + self.name]
        return [Persist(DICTIONARY_KEY + self.name, b"".join(self.atoms))] if self.names else []

    def forget(self) -> list[Effect]:
        """Delete earlier dictionaries; the stored model refers to the present one."""
        keys, self._old_keys = self._old_keys, []
        return [Persist(key, b"") for key in keys]

    # -- messages --------------------------------------------------------------------------------------------------

    def request(self, with_checks: bool = False) -> AtomRequest:
        """The first message of an exchange; with checks, the answer to it."""
        return AtomRequest(self.records.digest, self.records.checks if with_checks else b"")

    def ask(self, *partners: PeerId) -> list[Effect]:
        """Compare records with some peers, and with those that asked while this one waited for records of another."""
        if partners:
            self._answers.clear()
        asked = dict.fromkeys((*partners, *self._later))
        self._is_waiting, self._later = False, {}
        return [Send(peer, self.request()) for peer in asked]

    def ask_about(self, sender: PeerId, dictionary: bytes) -> list[Effect]:
        """Compare records with the sender of a model, once for every unknown dictionary."""
        if dictionary == self.name or dictionary in self._asked or len(self._asked) >= MOST_ASKED:
            return []
        self._asked.add(dictionary)
        return [Send(sender, self.request())]

    def receive(self, sender: PeerId, message: AtomMessage) -> list[Effect]:
        """Answer a message: with checks, with records that the sender lacks, or not at all."""
        if isinstance(message, AtomRequest):
            if message.digest == self.records.digest:
                return []
            if not message.checks:
                # Several peers may have the same records: they are fetched from one.
                if self._is_waiting and len(self._later) < MOST_ASKED:
                    self._later[sender] = None
                    return []
                self._is_waiting = True
                return [Send(sender, self.request(with_checks=True))]
            self._answers[sender] += 1
            if self._answers[sender] > MOST_ANSWERS:
                return [Refused(sender, f"requests for trees beyond {MOST_ANSWERS} between two exchanges")]
            return [self._reply(sender, message.checks, with_checks=True)]
        for record in message.records:
            for atom in record.atoms:
                self.terms.check(atom)
        before = self._stored()
        self.records.merge(message.records)
        effects = self._changes(before)
        if message.checks and self.records.lacking(message.checks):
            effects.append(self._reply(sender, message.checks))
        return [*effects, *self.ask()]

    def _reply(self, sender: PeerId, checks: bytes, with_checks: bool = False) -> Send:
        most = max(1, MOST_SENT // (MOST_ATOMS * self.terms.size))
        records = self.records.lacking(checks)[:most]
        self.sent_bits += 8 * self.terms.size * sum(len(record.atoms) for record in records)
        return Send(sender, AtomReply(records, self.records.checks if with_checks else b""))

    # -- storage ---------------------------------------------------------------------------------------------------

    def _stored(self) -> dict[PeerId, AtomRecord]:
        """The records on disk: all, and that of this peer."""
        return {record.peer: record for record in (*self.records, self.records.own)}

    def _changes(self, before: Mapping[PeerId, AtomRecord]) -> list[Effect]:
        now = self._stored()
        new = (peer for peer in now if now[peer] != before.get(peer))
        gone = (peer for peer in before if peer not in now)
        written = [Persist(ATOMS_KEY + peer, msgspec.msgpack.encode(now[peer])) for peer in new]
        return [*written, *(Persist(ATOMS_KEY + peer, b"") for peer in gone)]

    def restore(self, records: Mapping[bytes, bytes], dictionary: bytes) -> None:
        """Take over stored records, and the dictionary that the stored model refers to."""
        stored = [
            msgspec.msgpack.decode(value, type=AtomRecord)
            for key, value in records.items()
            if key.startswith(ATOMS_KEY)
        ]
        for record in stored:
            if record.peer == self.records.own.peer:
                self.records.own = record
        self.records.keep(record for record in stored if record.version > 0)
        kept = DICTIONARY_KEY + dictionary
        self._old_keys = [key for key in records if key.startswith(DICTIONARY_KEY) and key != kept]
        self._atoms = {name_of(atom): atom for atom in self.terms.split(records.get(kept, b""))}
        self.names = sorted(self._atoms)
        if self.name != dictionary:
            raise ValueError(f"the trees of the stored model are missing: dictionary {dictionary.hex()}")
