"""Releases of peers that protect their rows: passed on by gossip, pooled at home.

Theory of operation
-------------------
A peer that protects its rows takes no part in the exchange of models: its state machine is given one public row of
zeros instead of its own. All that it sends about its rows is its release, noisy statistics (`dada.privacy.release`)
that are drawn once, stored in its ledger, signed, and sent byte for byte.

*Gossip.* At each exchange of views a peer sends a check of the releases that it holds. A partner that holds others
answers with their names, eight bytes each, and both send what the other lacks. Any peer may pass a release on, because
its owner has signed it. The first release of an owner counts.

*Home.* The centres and groups of all releases (`dada.privacy.pooling`) are the same numbers that an estimator computes
from the same releases. The home model is learned from them and from exact rows; neither it nor its weights are sent.

*Nothing is sent* where the pooled noise exceeds the pooled signal, judged by public numbers: peers met and rows per
peer. A peer that sends nothing still learns from others.

*Old backups.* A peer waits a few exchanges before it draws its release. If others hold one that it signed, its folder
is older than that release: it takes the bytes back instead of drawing a second time.

*Secure sums* (`dada.peer.secure_sums`) pass their parts on by the same gossip, signed and sent in the body of a
`Release`; no single release is then seen. As in `dada.peer.messages`, every number, list and byte string of a part is
bounded, and `read_part` refuses whatever is beyond.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dada.core.compiled import Array
from dada.core.model_steps import UserRows, n_blocks, rows_per_sample
from dada.peer.inputs import Effect, PeerConfig, Persist, Refused, Send, Warned
from dada.peer.messages import (
    LARGEST_MESSAGE,
    LARGEST_SIZE,
    MOST_RELEASES,
    RELEASE_NAME_SIZE,
    ImplausibleError,
    PeerId,
    Release,
    ReleaseCheck,
    ReleaseMessage,
    ReleaseNames,
    SampleCount,
)
from dada.peer.signatures import Seal
from dada.privacy.noise import Bits
from dada.privacy.pooling import Pool, find_groups, home_model, own_excluded
from dada.privacy.release import (
    Estimate,
    ReleaseError,
    Statistics,
    StatisticsMechanism,
    read_statistics,
    worth_sending,
)
from dada.privacy.secure_sum import CHECK_SIZE, KEY_SIZE, OWN, PAIR, SEALED_SIZE, SHARE_SIZE

RELEASE_KEY = b"release:"
# Bytes of releases that one answer sends, answers between two exchanges, and bytes of releases that a peer keeps.
MOST_SENT, MOST_ANSWERS, MOST_KEPT = 1 << 18, 8, 1 << 26
# Bytes of a message around the numbers of a release.
AROUND = 1024
# Standard deviations of the noise beyond which no released number is plausible.
MOST_SIGMAS = 20.0


class ExactRows(msgspec.Struct, frozen=True):
    """A user's base predictions h, shape (rows, n), and outputs y, shape (rows, outputs). They never leave."""

    h: Array
    y: Array


def outputs(y: Array, n_classes: int) -> NDArray[np.float64]:
    """Coded labels or numbers as columns of norm 1 at most.

    >>> outputs(np.array([2, 0]), 3).tolist(), outputs(np.array([0.5, -3.0]), 0).tolist()
    ([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], [[0.5], [-1.0]])
    """
    return np.eye(n_classes)[y] if n_classes > 2 else np.clip(np.asarray(y, np.float64), -1.0, 1.0)[:, None]


def public_row(config: PeerConfig) -> UserRows:
    """The row that the state machine of a peer is given in place of protected ones: zeros, for every user."""
    m = rows_per_sample(config.n_classes)
    return UserRows(np.zeros((m, config.n_predictors), np.int8), None if config.n_classes else np.zeros(m))


@dataclass(frozen=True, eq=False)
class ReleaseTerms:
    """What the peers of a network that protect rows agree on: mechanism, learning problem and coupling.

    To protect whole users, `rows_per_user` of each count at most, and the noise is as many times as large: replacing
    all of them moves (G, B) as many times as far as replacing one, at most.
    """

    mechanism: StatisticsMechanism
    spec: str
    coupling: Array
    rows_per_user: int = 0

    @property
    def noise(self) -> StatisticsMechanism:
        """The mechanism with the noise that is added."""
        times, steps = max(1, self.rows_per_user), (self.mechanism.gram_steps, self.mechanism.moment_steps)
        return replace(self.mechanism, gram_steps=times * steps[0], moment_steps=times * steps[1])

    @classmethod
    def of(
        cls, config: PeerConfig, epsilon: float, delta: float, rows_per_user: int = 0, is_joint: bool = True
    ) -> ReleaseTerms:
        """The terms of a network's learning problem; raises if a release does not fit into a message."""
        blocks = n_blocks(config.n_classes)
        n = config.n_predictors // blocks
        size = 8 * (n * (n + 1) // 2 + n * blocks) + AROUND
        if size > LARGEST_MESSAGE:
            raise ValueError(
                f"a release of {n} base predictors has {size:,} bytes, a message {LARGEST_MESSAGE:,} at most: create "
                "the network with fewer base predictors (--stumps), or protect labels"
            )
        mechanism = StatisticsMechanism.calibrated(epsilon, delta, n_predictors=n, n_outputs=blocks, is_joint=is_joint)
        coupling = config.settings.coupling[:n].astype(np.float64)
        return cls(mechanism, config.digest.hex(), coupling, rows_per_user)

    def checked(self, body: bytes) -> Statistics:
        """The statistics in a release of this network; raises for any other."""
        try:
            found, spec = read_statistics(body)
        except (ReleaseError, OverflowError, RecursionError) as error:
            raise ImplausibleError(f"no release: {error}") from error
        mechanism = self.mechanism
        if spec != self.spec or found.moment.shape != (mechanism.n_predictors, mechanism.n_outputs):
            raise ImplausibleError("a release of another learning problem")
        if (found.gram_sigma, found.moment_sigma) != (mechanism.gram_sigma, mechanism.moment_sigma):
            raise ImplausibleError("a release with another budget: only releases with the same noise can be pooled")
        if found.n_rows > LARGEST_SIZE:
            raise ImplausibleError(f"a release of {found.n_rows} rows, at most {LARGEST_SIZE}")
        largest = found.n_rows * mechanism.norm**2 + MOST_SIGMAS * max(found.gram_sigma, found.moment_sigma)
        if max(abs(found.gram).max(), abs(found.moment).max()) > largest:
            raise ImplausibleError(f"a release of {found.n_rows} rows with numbers above {largest:g}")
        return found


class SignedReleases(ABC):
    """Releases of all peers, signed by their owners and passed on by gossip, and the home model.

    Parameters
    ----------
    me : bytes
        Id of the peer.
    terms : ReleaseTerms
        What all peers agree on.
    rows : ExactRows
        The user's rows.
    seal : Seal
        Signs this peer's releases and verifies others'.
    expected : int
        Peers that are expected to release.
    """

    # Whether others see statistics of this peer's rows in sums only.
    is_summed = False

    def __init__(self, me: PeerId, terms: ReleaseTerms, rows: ExactRows, seal: Seal, expected: int = 0) -> None:
        self.me, self.terms, self.rows, self.expected = me, terms, rows, expected
        self._seal = seal
        # By slot, with their names: the first release of an owner in each slot counts.
        self.held: dict[bytes, Release] = {}
        self._named: dict[bytes, bytes] = {}
        self._bodies: set[bytes] = set()
        self._n_bytes = 0
        self.returned: bytes | None = None
        self._model: Array | None = None
        self._answers = 0

    @property
    @abstractmethod
    def own(self) -> Release | None:
        """The release of this peer's rows, if it was made."""

    @property
    @abstractmethod
    def n_pooled(self) -> int:
        """Number of other peers whose statistics the home model uses."""

    @property
    @abstractmethod
    def progress(self) -> str:
        """What has become of this peer's release, as a sentence."""

    @abstractmethod
    def draw(self, source: Bits) -> bytes:
        """Make the release of this peer's rows; spends the budget."""

    @abstractmethod
    def estimate(self, n_known: int) -> Estimate:
        """Whether to make the release now, if as many other peers are known; uses public numbers only."""

    @abstractmethod
    def _slot(self, release: Release) -> bytes:
        """The slot of a release; raises `ImplausibleError` for one that no peer of this network makes."""

    @abstractmethod
    def _centres(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Centres of the groups of other users; none if there is nothing to compute them from."""

    def publish(self, body: bytes) -> Release:
        """Send this release from now on; it is on disk."""
        release = Release(self.me, body, self._seal.sign(_content(body)))
        self._hold(self._slot(release), release)
        return release

    def home_model(self, rng: np.random.Generator) -> Array:
        """The model for predictions, with a block of weights per output: exact rows, and the releases held."""
        if self._model is None:
            found = home_model(self.rows.h, self.rows.y, self._centres(rng), self.terms.coupling)
            self._model = np.ascontiguousarray(found.T).ravel()
        return self._model

    def ask(self, partner: PeerId) -> list[Effect]:
        """Let a peer compare its releases with these, at an exchange of views."""
        self._answers = 0
        return [Send(partner, ReleaseCheck(self._check()))]

    def receive(self, sender: PeerId, message: ReleaseMessage) -> list[Effect]:
        """Answer a message about releases."""
        if isinstance(message, ReleaseCheck):
            return [] if message.check == self._check() else [Send(sender, ReleaseNames(self._names()))]
        if isinstance(message, ReleaseNames):
            return self._on_names(sender, message)
        return self._on_release(sender, message)

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take over the releases of others that an earlier life stored."""
        for key, value in records.items():
            if key.startswith(RELEASE_KEY):
                stored = msgspec.msgpack.decode(value, type=Release)
                self._hold(self._slot(stored), stored)

    def _on_names(self, sender: PeerId, message: ReleaseNames) -> list[Effect]:
        self._answers += 1
        if self._answers > MOST_ANSWERS:
            return [Refused(sender, f"names of releases beyond {MOST_ANSWERS} between two exchanges")]
        theirs = set(split_names(message.names))
        mine = {self._named[slot]: release for slot, release in sorted(self.held.items())}
        effects: list[Effect] = []
        n_bytes = 0
        for name, release in mine.items():
            if name not in theirs and n_bytes < MOST_SENT:
                n_bytes += len(release.body)
                effects.append(Send(sender, release))
        if not message.is_answer and theirs - mine.keys():
            effects.append(Send(sender, ReleaseNames(self._names(), is_answer=True)))
        return effects

    def _on_release(self, sender: PeerId, release: Release) -> list[Effect]:
        slot = self._slot(release)
        known = self.held.get(slot)
        if known is not None and known.body == release.body:
            return []
        if not self._seal.verify(release.owner, _content(release.body), release.signature):
            raise ImplausibleError("a release with a false signature")
        if release.owner == self.me:
            if known is None:
                return self._take_back(release)
            return [Warned("another release of this peer is known: an old folder was restored, and both were sent")]
        if known is not None:
            return [Refused(sender, f"a second release of {release.owner.hex()[:10]}, the first one is kept")]
        if release.body in self._bodies:
            return [Refused(sender, f"a copy of another release, signed by {release.owner.hex()[:10]}")]
        if not self._is_wanted(release):
            return [Refused(sender, "a part of a sum that is not known yet")]
        if len(self.held) >= MOST_RELEASES or self._n_bytes + len(release.body) > MOST_KEPT:
            return [Refused(sender, f"a release beyond {MOST_RELEASES} or {MOST_KEPT >> 20} MB")]
        self._hold(slot, release)
        return [Persist(RELEASE_KEY + slot, msgspec.msgpack.encode(release))]

    def _take_back(self, release: Release) -> list[Effect]:
        """Others hold a release of this peer that its folder does not have."""
        self.returned = release.body
        return []

    def _is_wanted(self, release: Release) -> bool:
        """Whether a release of another peer can be used; others may send it again."""
        return True

    def _hold(self, slot: bytes, release: Release) -> None:
        if slot not in self.held:
            self._bodies.add(release.body)
            self._n_bytes += len(release.body)
        self.held[slot], self._model = release, None
        self._named[slot] = hashlib.blake2b(release.owner + release.body, digest_size=RELEASE_NAME_SIZE).digest()

    def _names(self) -> bytes:
        return b"".join(sorted(self._named.values()))

    def _check(self) -> bytes:
        return hashlib.blake2b(self._names(), digest_size=RELEASE_NAME_SIZE).digest()


class Releases(SignedReleases):
    """Releases of single peers, one of each: the slot is the owner."""

    def __init__(self, me: PeerId, terms: ReleaseTerms, rows: ExactRows, seal: Seal, expected: int = 0) -> None:
        super().__init__(me, terms, rows, seal, expected)
        self._statistics: dict[PeerId, Statistics] = {}

    @property
    def own(self) -> Release | None:
        """See `SignedReleases`."""
        return self.held.get(self.me)

    @property
    def n_pooled(self) -> int:
        """See `SignedReleases`."""
        return len(self.held) - (self.own is not None)

    @property
    def progress(self) -> str:
        """See `SignedReleases`."""
        return "The release is sent."

    def draw(self, source: Bits) -> bytes:
        """See `SignedReleases`."""
        return self.terms.mechanism.release(self.rows.h, self.rows.y, source, self.terms.spec)

    def estimate(self, n_known: int) -> Estimate:
        """See `SignedReleases`; peers known count if they are more than expected."""
        n_users = max(self.expected, n_known + 1, self.n_pooled + 1)
        if n_users == 1:
            return Estimate(False, "Nothing is sent: no other peer is known yet.")
        of_others = sum(self._read(release).n_rows for owner, release in self.held.items() if owner != self.me)
        return worth_sending(self.terms.mechanism, n_users, of_others + (n_users - self.n_pooled) * len(self.rows.h))

    def _slot(self, release: Release) -> bytes:
        known = self.held.get(release.owner)
        if known is None or known.body != release.body:
            self.terms.checked(release.body)
        return release.owner

    def _read(self, release: Release) -> Statistics:
        if release.owner not in self._statistics:
            self._statistics[release.owner] = self.terms.checked(release.body)
        return self._statistics[release.owner]

    def _centres(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Centres of the groups of users; none if no release of another is held, or if liars made them meaningless."""
        owners, mechanism = sorted(self.held), self.terms.mechanism
        alone = np.zeros((0, mechanism.n_predictors, mechanism.n_outputs))
        if not owners or owners == [self.me]:
            return alone
        pool = Pool.of([self._read(self.held[owner]) for owner in owners], self.terms.coupling)
        try:
            groups = find_groups(pool, rng)
            # The own rows take part at home already.
            is_in = self.me in self.held
            found = own_excluded(pool, groups, owners.index(self.me)) if is_in else groups.centres
        except (ValueError, np.linalg.LinAlgError):
            return alone
        return found if np.isfinite(found).all() else alone


def _content(body: bytes) -> bytes:
    """What the owner of a release signs."""
    return b"dada release" + body


def split_names(names: bytes) -> list[bytes]:
    """Names of releases that follow each other."""
    return [names[start : start + RELEASE_NAME_SIZE] for start in range(0, len(names), RELEASE_NAME_SIZE)]


# Holders of a committee, and the fewest peers of a call.
LEAST_HOLDERS, MOST_HOLDERS, LEAST_CALLED = 2, 20, 3
# Bytes of the name of a public group.
LONGEST_GROUP = 64

Name = Annotated[bytes, Meta(min_length=RELEASE_NAME_SIZE, max_length=RELEASE_NAME_SIZE)]
Key = Annotated[bytes, Meta(min_length=KEY_SIZE, max_length=KEY_SIZE)]


class _Part(msgspec.Struct, frozen=True, array_like=True):
    pass


class Keys(_Part, frozen=True, tag=1):
    """Public keys of a peer, a digest of the terms of the sum, and the public group of the peer, if it has one."""

    terms: Name
    lock: Key
    pair: Key
    group: Annotated[bytes, Meta(max_length=LONGEST_GROUP)] = b""


class Shares(_Part, frozen=True, tag=2):
    """The names of the keys of a committee, what is sealed for each holder, and checks of all shares."""

    holders: Annotated[bytes, Meta(max_length=MOST_HOLDERS * RELEASE_NAME_SIZE)]
    sealed: Annotated[bytes, Meta(max_length=MOST_HOLDERS * SEALED_SIZE)]
    checks: Annotated[bytes, Meta(max_length=MOST_HOLDERS * 2 * CHECK_SIZE)]


class Call(_Part, frozen=True, tag=3):
    """The names of the shares of all peers of a sum, in ascending order, and of the one who calls them."""

    caller: Name
    called: Annotated[bytes, Meta(max_length=MOST_RELEASES * RELEASE_NAME_SIZE)]


class Masked(_Part, frozen=True, tag=4):
    """Masked noisy statistics for a call, as little-endian integers of 64 bits, and the number of rows."""

    call: Name
    n_rows: SampleCount
    values: bytes


class Opening(_Part, frozen=True, tag=5):
    """For each peer of a call in the owner's charge, in the order of the call: the kind of a share, and the share."""

    call: Name
    kinds: Annotated[bytes, Meta(max_length=MOST_RELEASES)]
    shares: Annotated[bytes, Meta(max_length=MOST_RELEASES * SHARE_SIZE)]


Part = Keys | Shares | Call | Masked | Opening
PARTS: tuple[type[Part], ...] = (Keys, Shares, Call, Masked, Opening)
_decoder = msgspec.msgpack.Decoder(Part)


def read_part(body: bytes, terms: bytes, size: int) -> Part:
    """The part in some bytes, for sums of `size` numbers with these terms; raises `ImplausibleError`."""
    try:
        part: Part = _decoder.decode(body)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise ImplausibleError(f"no part of a secure sum: {error}") from error
    if isinstance(part, Keys) and part.terms != terms:
        raise ImplausibleError("keys for a sum of another learning problem or with another budget")
    if isinstance(part, Shares):
        n_holders = len(_checked_names(part.holders, LEAST_HOLDERS))
        if (len(part.sealed), len(part.checks)) != (n_holders * SEALED_SIZE, n_holders * 2 * CHECK_SIZE):
            raise ImplausibleError(f"{len(part.sealed)} bytes of shares for {n_holders} holders")
    if isinstance(part, Call):
        names = _checked_names(part.called, LEAST_CALLED)
        if names != sorted(names) or part.caller not in names:
            raise ImplausibleError("a call whose names are not in ascending order, or lack the caller's")
    if isinstance(part, Masked) and len(part.values) != 8 * size:
        raise ImplausibleError(f"a vector of {len(part.values)} bytes, it has {8 * size}")
    if isinstance(part, Opening) and (
        len(part.shares) != len(part.kinds) * SHARE_SIZE or not set(part.kinds) <= {OWN, PAIR}
    ):
        raise ImplausibleError(f"an opening of {len(part.kinds)} shares with {len(part.shares)} bytes")
    return part


def slot_of(kind: type[Part], owner: PeerId, call: bytes = b"") -> bytes:
    """The slot of a part, of an opening for a call; they are sent in the order of their slots."""
    return bytes([PARTS.index(kind)]) + call + owner


def _checked_names(names: bytes, least: int) -> list[bytes]:
    found = split_names(names)
    if len(names) % RELEASE_NAME_SIZE or len(set(found)) != len(found) or len(found) < least:
        raise ImplausibleError(f"{len(names)} bytes that are not {least} or more different names")
    return found
