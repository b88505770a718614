"""A dictionary of small trees that the peers of a network grow themselves and send to each other, without a server.

Theory of operation
-------------------
*Atoms.* An atom is the bytes of a complete binary tree. For each node it has the number of a feature (two bytes) and of
one of the network's thresholds of that feature (one byte), then for each leaf a whole number of 127ths (one byte). The
children of node s are 2 s + 1 and 2 s + 2; a value up to the threshold goes to the first. `NO_SPLIT` sends all there.
An atom is named by a hash of its bytes. Names are not sent: each peer computes them, so equal atoms have equal names,
and nobody can give an atom the name of another. Thresholds are agreed numbers, so that none can be infinite, or reveal
a value of a feature. A peer holds its samples as *bins*, the number of thresholds below each value. They are all that
atoms need.

*Records.* Each peer publishes one signed record with the trees that it grew on its own rows. Gossip brings all records
to all peers (see `dada.peer.census`), at each greeting and each exchange of views. Trees are checked before they are
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

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dada.core.compiled import Array
from dada.core.model_steps import UserRows
from dada.peer.census import SignedRecords
from dada.peer.inputs import Effect, Persist, Refused, Send
from dada.peer.messages import (
    DICTIONARY_SIZE,
    DIGEST_SIZE,
    LARGEST_ATOM,
    MOST_ATOMS,
    MOST_GROWERS,
    MOST_PLANTINGS,
    AtomMessage,
    AtomRecord,
    AtomReply,
    AtomRequest,
    ImplausibleError,
    PeerId,
)
from dada.peer.signatures import Seal

NO_SPLIT, LEAF_STEPS, NODE_SIZE = 255, 127, 3
MOST_FEATURES, MOST_CUTS = 1 << 16, NO_SPLIT


def name_of(atom: bytes) -> bytes:
    """The name of an atom: a hash of its bytes."""
    return hashlib.sha256(atom).digest()[:DIGEST_SIZE]


def dictionary_name(names: Sequence[bytes]) -> bytes:
    """The name of a dictionary with these atoms, in ascending order of their names; empty without any.

    >>> dictionary_name([]), len(dictionary_name([name_of(b"tree")]))
    (b'', 8)
    """
    return hashlib.sha256(b"".join(names)).digest()[:DICTIONARY_SIZE] if names else b""


class AtomArrays(NamedTuple):
    """Atoms as arrays: feature and threshold number of each node, shape (atoms, nodes), and 127ths of each leaf."""

    feature: NDArray[np.uint16]
    cut: NDArray[np.uint8]
    leaf: NDArray[np.int8]

    def write(self) -> list[bytes]:
        """The atoms as bytes."""
        parts = (self.feature.astype("<u2"), self.cut.astype(np.uint8), self.leaf.astype(np.int8))
        return [b"".join(np.ascontiguousarray(part[j]).tobytes() for part in parts) for j in range(len(self.leaf))]


@dataclass(frozen=True)
class AtomTerms:
    """What all atoms of a network have in common.

    Parameters
    ----------
    n_features : int
        Features of a sample, at most 65,536.
    n_cuts : int
        Thresholds of each feature, at most 255.
    depth : int
        Tests on the way to a leaf.
    per_user : int
        Atoms that a peer grows on its own rows.

    Examples
    --------
    >>> terms = AtomTerms(n_features=2, n_cuts=3, depth=1, per_user=5)
    >>> atom = AtomArrays(np.array([[1]]), np.array([[2]]), np.array([[127, -127]])).write()[0]
    >>> terms.predict(np.array([[0, 2], [0, 3]], np.uint8), [atom]).tolist()
    [[1.0], [-1.0]]
    >>> terms.check(atom + b"more")
    Traceback (most recent call last):
        ...
    dada.peer.messages.ImplausibleError: a tree of 9 bytes, one of depth 1 has 5
    """

    n_features: int
    n_cuts: int
    depth: int
    per_user: int

    def __post_init__(self) -> None:
        if not (1 <= self.n_features <= MOST_FEATURES and 1 <= self.n_cuts <= MOST_CUTS and self.depth >= 1):
            raise ValueError(
                f"trees need 1 to {MOST_FEATURES} features, 1 to {MOST_CUTS} thresholds and a depth of 1 or more, "
                f"got {self.n_features}, {self.n_cuts} and {self.depth}"
            )
        if self.size > LARGEST_ATOM or not 1 <= self.per_user <= MOST_ATOMS:
            raise ValueError(
                f"a peer grows 1 to {MOST_ATOMS} trees of at most {LARGEST_ATOM} bytes, got {self.per_user} of depth "
                f"{self.depth}, which have {self.size}: choose fewer or smaller ones"
            )

    @property
    def size(self) -> int:
        """Bytes of an atom."""
        return NODE_SIZE * (2**self.depth - 1) + 2**self.depth

    def check(self, atom: bytes) -> None:
        """Raise `ImplausibleError` unless some bytes are an atom of this network."""
        if len(atom) != self.size:
            raise ImplausibleError(f"a tree of {len(atom)} bytes, one of depth {self.depth} has {self.size}")
        feature, cut, leaf = self.read([atom])
        if feature.max() >= self.n_features:
            raise ImplausibleError(f"a tree tests feature {feature.max()}, there are {self.n_features}")
        if ((cut >= self.n_cuts) & (cut != NO_SPLIT)).any() or feature[cut == NO_SPLIT].any():
            raise ImplausibleError(f"a tree has a threshold beyond the {self.n_cuts} of a feature")
        if (leaf < -LEAF_STEPS).any():
            raise ImplausibleError(f"a tree has a leaf below -1: {leaf.min()} of {LEAF_STEPS}")

    def read(self, atoms: Sequence[bytes]) -> AtomArrays:
        """Checked atoms as arrays."""
        n_nodes = 2**self.depth - 1
        content = np.frombuffer(b"".join(atoms), np.uint8).reshape(len(atoms), self.size)
        feature = np.ascontiguousarray(content[:, : 2 * n_nodes]).view("<u2")
        return AtomArrays(feature, content[:, 2 * n_nodes : 3 * n_nodes], content[:, 3 * n_nodes :].view(np.int8))

    def split(self, content: bytes) -> list[bytes]:
        """The atoms in their concatenation, checked."""
        atoms = [content[start : start + self.size] for start in range(0, len(content), self.size)]
        for atom in atoms:
            self.check(atom)
        return atoms

    def predict(self, bins: Array, atoms: Sequence[bytes]) -> NDArray[np.float32]:
        """Predictions of shape (samples, atoms)."""
        feature, cut, leaf = self.read(atoms)
        tree, row = np.arange(len(atoms)), np.arange(len(bins))[:, None]
        node = np.zeros((len(bins), len(atoms)), np.intp)
        for _ in range(self.depth):
            above = bins[row, feature[tree, node]] > cut[tree, node]
            node = 2 * node + 1 + above
        return (leaf[tree, node - (2**self.depth - 1)] / LEAF_STEPS).astype(np.float32)


class Plot(NamedTuple):
    """The samples of one user, and the atoms grown on them.

    `fixed` are margins of the network's fixed base predictors; `signs` those of a base predictor that is always 1, one
    column for each block of weights. `bins` has a row for each sample, `grown` are the user's own atoms.
    """

    fixed: UserRows
    signs: Array
    bins: Array
    grown: tuple[bytes, ...] = ()

    def rows(self, terms: AtomTerms, atoms: Sequence[bytes]) -> UserRows:
        """Margins of the fixed base predictors and of some atoms.

        An own atom predicts 0: it has memorised the labels of these samples, so they must not give it a weight.
        """
        blocks, n_rows = self.signs.shape[1], len(self.fixed.A)
        h = np.repeat(terms.predict(self.bins, atoms), n_rows // len(self.bins), axis=0)
        h[:, [atom in self.grown for atom in atoms]] = 0
        parts = []
        for c, of_block in enumerate(np.split(self.fixed.A, blocks, axis=1)):
            parts += [of_block.astype(np.float32), self.signs[:, c : c + 1].astype(np.float32) * h]
        return self.fixed._replace(A=np.concatenate(parts, axis=1))


class Orchard(NamedTuple):
    """The samples of all users of a network with trees, what their trees have in common, and the thresholds."""

    terms: AtomTerms
    plots: tuple[Plot, ...]
    cuts: Array

    @property
    def names(self) -> list[bytes]:
        """Names of all trees, in the order of their coordinates."""
        return sorted({name_of(atom) for plot in self.plots for atom in plot.grown})

    def in_order(self, alpha: Array, atoms: Sequence[bytes]) -> Array:
        """A model over some trees as one over all trees of these users; others are left out."""
        blocks, names = self.plots[0].signs.shape[1], self.names
        by_block = alpha.reshape(blocks, -1)
        n_fixed = by_block.shape[1] - len(atoms)
        ordered = np.zeros((blocks, n_fixed + len(names)), alpha.dtype)
        ordered[:, :n_fixed] = by_block[:, :n_fixed]
        place = {name: n_fixed + j for j, name in enumerate(names)}
        for j, atom in enumerate(atoms):
            if (name := name_of(atom)) in place:
                ordered[:, place[name]] = by_block[:, n_fixed + j]
        return ordered.ravel()


ATOMS_KEY, DICTIONARY_KEY = b"atoms:", b"dictionary:"
# Bytes of trees in one reply; the rest follows at the next exchange. Replies to one peer between two exchanges.
MOST_SENT, MOST_ANSWERS = 1 << 17, 8
# Unknown dictionaries about which a peer asks, and peers that it asks later.
MOST_ASKED = 64


class SharedGrove:
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
    >>> from dada.peer.grove import AtomArrays
    >>> from dada.peer.signatures import Unsealed
    >>> terms = AtomTerms(n_features=1, n_cuts=1, depth=1, per_user=1)
    >>> atoms = AtomArrays(np.zeros((2, 1)), np.zeros((2, 1)), np.array([[9, -9], [-5, 5]])).write()
    >>> rows = UserRows(np.ones((1, 1), np.int8)), np.ones((1, 1)), np.zeros((1, 1), np.uint8)
    >>> ann, bob = (
    ...     SharedGrove(me, terms, Plot(*rows, (atom,)), b"", Unsealed()) for me, atom in zip((b"a", b"b"), atoms)
    ... )
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

    def rest(self) -> None:
        """Wait no longer for an answer: one that was lost is given up at the next exchange, and none follows."""
        self._is_waiting, self._later = False, {}

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
