"""Secure sums: peers pool the sum of their noisy statistics, and no single release is seen.

Theory of operation
-------------------
Everything is a signed part that gossip passes on byte for byte (`dada.peer.releases`); no peer needs a link to any
other. There are five kinds of parts. A peer makes one opening for each call, and one of each other kind:

1. `Keys`: two public keys (`dada.privacy.secure_sum`).
2. `Shares`: once no new keys arrive, a peer draws its *committee* at random from the peers whose keys it holds, and
   publishes shares of its secrets, encrypted for each holder of the committee.
3. `Call`: once no new shares arrive, the peer with the lowest name lists all shares that it holds; if it is silent, the
   next one does. Of several calls the longest counts. Two peers of the call share a mask if one of them is in the
   committee of the other. Up to here nothing depends on rows, and a failure costs nothing.
4. `Masked`: a peer of the call adds its share of the noise and all its masks to its statistics, modulo 2^64, and
   publishes the result. It is in the ledger before it is sent. No vector is made after an opening was received.
5. `Opening`: a holder that has all vectors of a call, or has waited long enough, opens one share of each peer in its
   charge: of the own seed if the vector is there, of the pair key if not. It does so once for each peer, and follows
   the majority of the openings that it holds. It opens nothing if too many vectors are missing.

With `threshold_of` valid shares of every peer of a call, everybody can compute the sum of all vectors that are there,
and nothing else. A failed sum is never repeated: its budget is spent.

*Groups.* Peers may have public groups, which their keys name. Committees, calls and sums are then those of one group;
all peers pass all parts on, so each knows the sums of all groups. At home a peer learns around the centre of its own
group and that of all groups, weighted by the evidence of its rows.

*Noise.* The noise of `NOISE_SHARE` of the called peers together is that of one release. So the guarantee holds if no
more than the rest of them are absent or collude, and holders open only if at most `MOST_ABSENT` of them are absent.

*Threats.* Peers follow the protocol and pool what they see. A vector stays hidden as long as fewer holders of its
owner's committee than the threshold collude, and the honest peers of a call are connected by masks. A peer that lies
can spoil a sum, or move it, but not open another's vector. Implausible parts are refused, as an offence of the sender.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dada.peer.inputs import SUMS_KEY, Effect, Persist
from dada.peer.messages import RELEASE_NAME_SIZE, PeerId, Release
from dada.peer.releases import (
    LEAST_CALLED,
    MOST_HOLDERS,
    MOST_SIGMAS,
    RELEASE_KEY,
    Call,
    ExactRows,
    Key,
    Keys,
    Masked,
    Opening,
    Part,
    ReleaseTerms,
    Shares,
    SignedReleases,
    read_part,
    slot_of,
    split_names,
)
from dada.peer.signatures import Seal
from dada.privacy.noise import Bits
from dada.privacy.pooling import Pool
from dada.privacy.release import UNIT, Estimate, Statistics, StatisticsMechanism, worth_sending
from dada.privacy.secure_sum import (
    CHECK_SIZE,
    OWN,
    PAIR,
    SEALED_SIZE,
    SHARE_SIZE,
    MaskedRound,
    RandomBytes,
    Secrets,
    check,
    joined,
    noise_share,
    threshold_of,
    x25519,
)

# Parts of the called peers: those whose noise suffices, and those that may be absent.
NOISE_SHARE, MOST_ABSENT = 3 / 4, 1 / 8


@dataclass(frozen=True)
class Waits:
    """Exchanges of views for which a peer waits.

    `first` before its first part; `settled` without new keys or shares before the next step, and `turn` more for each
    peer with a lower name before a call; `answer` after a call, in which another one may arrive; `closed` after a call
    until missing vectors are given up.
    """

    first: int = 5
    settled: int = 8
    turn: int = 4
    answer: int = 8
    closed: int = 40


class _Own(msgspec.Struct, frozen=True, array_like=True):
    """What a peer stores of its own: its secrets, and the parts that it published."""

    secrets: tuple[Key, Key, Key]
    bodies: tuple[bytes, ...] = ()


@dataclass(frozen=True, eq=False)
class _Round(MaskedRound):
    """A call of which all shares and keys are held.

    Owners and the thresholds of their committees are listed by place. The charge of a holder are the places of the
    owners whose shares it has, with its seat in the committee of each.
    """

    owners: Sequence[PeerId]
    thresholds: Sequence[int]
    charges: Mapping[PeerId, Sequence[tuple[int, int]]]


class SecureSum(NamedTuple):
    """The sum of a round in units of 2^-32, and the variances of its noise."""

    owners: tuple[PeerId, ...]
    values: NDArray[np.int64]
    n_rows: int
    gram_variance: float
    moment_variance: float


class SecureSums(SignedReleases):
    """The parts of secure sums that one peer holds, its own, and the sums that follow.

    Parameters
    ----------
    me, terms, rows, seal
        As in `SignedReleases`.
    random_bytes : callable
        Source of secrets: the operating system's, or a generator's in tests.
    expected : int
        The fewest peers of a sum.
    waits : Waits
        How long a peer waits for others.
    group : str
        The public group of this peer, whose sum it takes part in.
    """

    is_summed = True

    def __init__(
        self,
        me: PeerId,
        terms: ReleaseTerms,
        rows: ExactRows,
        seal: Seal,
        random_bytes: RandomBytes,
        expected: int = 0,
        waits: Waits | None = None,
        group: str = "",
    ) -> None:
        super().__init__(me, terms, rows, seal, expected)
        self._group = group.encode()
        self.waits = Waits() if waits is None else waits
        self._random_bytes = random_bytes
        n, outputs = terms.mechanism.n_predictors, terms.mechanism.n_outputs
        self._size = n * (n + 1) // 2 + n * outputs
        self._terms = _hash(repr((terms.spec, terms.noise)).encode())
        self._own: _Own | None = None
        # Parts by their owners, openings by call; owners of keys and of shares by the names of these.
        self._keys: dict[PeerId, Keys] = {}
        self._shares: dict[PeerId, Shares] = {}
        self._calls: dict[PeerId, Call] = {}
        self._vectors: dict[PeerId, Masked] = {}
        self._openings: dict[bytes, dict[PeerId, Opening]] = {}
        self._key_owners: dict[bytes, PeerId] = {}
        self._share_owners: dict[bytes, PeerId] = {}
        # Exchanges in this life; how many there were when the last keys and shares arrived; lists of called peers by
        # their names, and how many there were when each arrived. Callers who hold the same shares send the same list.
        self._exchanges = self._keys_at = self._shares_at = 0
        self._called: dict[bytes, tuple[int, bytes]] = {}
        self._rounds: dict[bytes, _Round] = {}
        self._sums: dict[bytes, SecureSum] = {}
        self._n_summed = 0

    @property
    def own(self) -> Release | None:
        """See `SignedReleases`."""
        return self.held.get(slot_of(Masked, self.me))

    @property
    def n_pooled(self) -> int:
        """See `SignedReleases`."""
        return sum(len(found.owners) - (self.me in found.owners) for found in self.complete())

    @property
    def progress(self) -> str:
        """See `SignedReleases`."""
        found = [one for one in self.complete() if self._is_own_group(one.owners)]
        if found:
            return f"The sum of {sum(len(one.owners) for one in found)} peers is known."
        name = self._vectors[self.me].call
        n_vectors = sum(part.call == name for part in self._vectors.values())
        n_openings = len(self._openings.get(name, {}))
        return f"The masked statistics are sent; those of {n_vectors} peers and {n_openings} openings are held."

    def estimate(self, n_known: int) -> Estimate:
        """See `SignedReleases`; peers count if they have published their keys."""
        if self._own is None and self.me in self._keys:
            return Estimate(False, "Nothing is sent: others hold keys of this peer, so its folder is an old backup.")
        if self._joined() is not None:
            return Estimate(True, "The masked statistics are due.")
        rounds = [found for name in sorted(self._called) if (found := self._round(name)) and self.me in found.owners]
        if any(found.name in self._openings for found in rounds):
            return Estimate(False, "Nothing is sent: the sum was opened before this peer answered the call.")
        if rounds:
            return Estimate(False, f"Nothing is sent yet: {len(rounds[0].owners)} peers were called just now.")
        n_peers = len(self._uncalled())
        worth = self._worth(n_peers)
        if self.me in self._keys and n_peers >= self._least and not worth.send:
            return worth
        return Estimate(False, f"Nothing is sent yet: a sum is being prepared, {n_peers} peers have published keys.")

    def draw(self, source: Bits) -> bytes:
        """See `SignedReleases`."""
        found = self._joined()
        assert found is not None
        assert self._own is not None
        rows = np.arange(len(self.rows.h))
        if self.terms.rows_per_user:
            # Others do not learn how many rows this user has.
            rows = np.array(sorted(rows.tolist(), key=lambda row: source.bits(64))[: self.terms.rows_per_user])
        body = self._share(len(found.owners)).release(self.rows.h[rows], self.rows.y[rows], source)
        values = np.frombuffer(body[-8 * self._size :], "<i8").astype(np.uint64)
        masked = values + found.masks(found.owners.index(self.me), Secrets(*self._own.secrets), self._size)
        return msgspec.msgpack.encode(Masked(found.name, self._n_rows, masked.astype("<u8").tobytes()))

    # -- own parts -------------------------------------------------------------------------------------------------

    def ask(self, partner: PeerId) -> list[Effect]:
        """See `SignedReleases`; publishes the part that is due."""
        self._exchanges += 1
        return [*self._advance(), *super().ask(partner)]

    def _advance(self) -> list[Effect]:
        if self._exchanges <= self.waits.first or (self._own is None and self.me in self._keys):
            return []
        if self._own is None:
            secrets = Secrets.drawn(self._random_bytes)
            self._own = _Own((secrets.lock, secrets.pair, secrets.own))
            return self._publish(Keys(self._terms, x25519(secrets.lock), x25519(secrets.pair), self._group))
        part = self._due_shares() or self._due_call() or self._due_opening()
        return [] if part is None else self._publish(part)

    def _publish(self, part: Part) -> list[Effect]:
        """Publish an own part, and store it before it is sent."""
        assert self._own is not None
        body = msgspec.msgpack.encode(part)
        self._own = _Own(self._own.secrets, (*self._own.bodies, body))
        self.publish(body)
        return [Persist(SUMS_KEY, msgspec.msgpack.encode(self._own))]

    def restore(self, records: dict[bytes, bytes]) -> None:
        """See `SignedReleases`; takes over the own parts too."""
        super().restore(records)
        if SUMS_KEY in records:
            self._own = msgspec.msgpack.decode(records[SUMS_KEY], type=_Own)
            for body in self._own.bodies:
                self.publish(body)

    def _due_shares(self) -> Shares | None:
        n_peers = len(self._uncalled())
        if self.me in self._shares or self._exchanges < self._keys_at + self.waits.settled:
            return None
        if n_peers < self._least or not self._worth(n_peers).send:
            return None
        # A random committee: nobody else decides who holds the shares.
        salt = self._random_bytes(16)
        alike = {owner for owner in self._keys if self._is_own_group([owner])}
        others = sorted(alike - {self.me}, key=lambda owner: _hash(salt + owner))
        committee = others[:MOST_HOLDERS]
        assert self._own is not None
        locks = [self._keys[holder].lock for holder in committee]
        sealed, checks = Secrets(*self._own.secrets).sealed(locks, threshold_of(len(locks)), self._random_bytes)
        return Shares(b"".join(self._name(Keys, holder) for holder in committee), sealed, checks)

    def _due_call(self) -> Call | None:
        """A call for all peers whose shares are in no call yet; those with lower names have the right to call first."""
        if self.me in self._calls:
            return None
        names = sorted(self._name(Shares, owner) for owner in self._uncalled() if owner in self._shares)
        mine = self._name(Shares, self.me) if self.me in self._shares else b""
        if mine not in names or len(names) < max(LEAST_CALLED, (1 - MOST_ABSENT) * self.expected):
            return None
        quiet = self._exchanges - self._shares_at
        if quiet < self.waits.settled + self.waits.turn * names.index(mine) or not self._worth(len(names)).send:
            return None
        return Call(mine, b"".join(names))

    def _joined(self) -> _Round | None:
        """The round for which this peer makes its vector now, if any."""
        rounds = (self._round(name) for name in sorted(self._called))
        mine = [found for found in rounds if found is not None and self.me in found.owners]
        mine = [found for found in mine if self._is_own_group(found.owners)]
        if self._own is None or not mine or self.me in self._vectors:
            return None
        # Of several calls the longest one counts, then the one with the lowest name.
        best = max(mine, key=lambda found: len(found.owners))
        newest = max(self._called[found.name][0] for found in mine)
        is_early = self._exchanges < newest + self.waits.answer or self._exchanges <= self.waits.first
        if is_early or best.name in self._openings:
            return None
        # A call that leaves out most peers that could be called might single one out.
        n_free = len(set(self._uncalled(best.name)) & self._shares.keys())
        return best if 2 * len(best.owners) >= n_free and self._worth(len(best.owners)).send else None

    def _due_opening(self) -> Opening | None:
        # A peer of two calls has shares opened for one of them only.
        opened = [self._round(name) for name in sorted(self._openings) if self.me in self._openings[name]]
        if None in opened:
            return None
        done = {owner for one in opened if one is not None for owner in one.owners}
        for name, (called_at, _) in sorted(self._called.items()):
            found = self._round(name)
            if found is None or self.me in self._openings.get(name, {}) or done & set(found.owners):
                continue
            n_absent = sum(not self._has_sent(owner, name) for owner in found.owners)
            is_closed = self._exchanges >= called_at + self.waits.closed
            is_due = n_absent == 0 or (is_closed and n_absent <= MOST_ABSENT * len(found.owners))
            if is_due and self.me in found.charges:
                return self._opening(found)
        return None

    def _opening(self, found: _Round) -> Opening:
        assert self._own is not None
        secrets, opened = Secrets(*self._own.secrets), self._opened(found)
        kinds, shares = [], []
        for place, seat in found.charges[self.me]:
            owner = found.owners[place]
            votes = [len(opened[place][kind]) for kind in (OWN, PAIR)]
            is_sent = votes[OWN] > votes[PAIR] or (votes[OWN] == votes[PAIR] and self._has_sent(owner, found.name))
            kinds.append(OWN if is_sent else PAIR)
            sealed = self._shares[owner].sealed[seat * SEALED_SIZE :][:SEALED_SIZE]
            checks = self._shares[owner].checks[2 * seat * CHECK_SIZE :][: 2 * CHECK_SIZE]
            shares.append(secrets.unsealed(sealed, checks, self._keys[owner].lock)[kinds[-1]])
        return Opening(found.name, bytes(kinds), b"".join(shares))

    def _uncalled(self, but: bytes = b"") -> list[PeerId]:
        """Peers of the own group with keys that are in no round, or only in this one."""
        rounds = [self._round(name) for name in sorted(self._called) if name != but]
        called = {owner for one in rounds if one is not None for owner in one.owners}
        return sorted(owner for owner in self._keys.keys() - called if self._is_own_group([owner]))

    def _is_own_group(self, owners: Sequence[PeerId]) -> bool:
        return all(self._keys[owner].group == self._group for owner in owners)

    @property
    def _least(self) -> int:
        return max(LEAST_CALLED, self.expected)

    def _worth(self, n_called: int) -> Estimate:
        """Whether a sum is worth its noise, judged by as many rows of each peer as this one has."""
        return worth_sending(self._share(n_called), n_called, n_called * self._n_rows)

    @property
    def _n_rows(self) -> int:
        """Rows of this peer, as others know them."""
        return self.terms.rows_per_user or len(self.rows.h)

    def _share(self, n_called: int) -> StatisticsMechanism:
        """The noise that each of some called peers adds."""
        return noise_share(self.terms.noise, max(1, int(NOISE_SHARE * n_called)))

    # -- parts of all peers ----------------------------------------------------------------------------------------

    def _slot(self, release: Release) -> bytes:
        part = read_part(release.body, self._terms, self._size)
        return slot_of(type(part), release.owner, part.call if isinstance(part, Opening) else b"")

    def _hold(self, slot: bytes, release: Release) -> None:
        super()._hold(slot, release)
        part, owner, name = read_part(release.body, self._terms, self._size), release.owner, self._named[slot]
        if isinstance(part, Keys):
            self._keys[owner], self._key_owners[name], self._keys_at = part, owner, self._exchanges
        elif isinstance(part, Shares):
            self._shares[owner], self._share_owners[name], self._shares_at = part, owner, self._exchanges
        elif isinstance(part, Call):
            self._calls[owner] = part
            self._called.setdefault(_hash(part.called), (self._exchanges, part.called))
        elif isinstance(part, Masked):
            self._vectors[owner] = part
        else:
            self._openings.setdefault(part.call, {})[owner] = part

    def _is_wanted(self, release: Release) -> bool:
        """Openings are for calls that are held, so there is a bound on those of one peer."""
        part = read_part(release.body, self._terms, self._size)
        return not isinstance(part, Opening) or part.call in self._called

    def _take_back(self, release: Release) -> list[Effect]:
        if isinstance(read_part(release.body, self._terms, self._size), Masked):
            return super()._take_back(release)
        slot = self._slot(release)
        self._hold(slot, release)
        return [Persist(RELEASE_KEY + slot, msgspec.msgpack.encode(release))]

    def _name(self, kind: type[Part], owner: PeerId) -> bytes:
        return self._named[slot_of(kind, owner)]

    def _has_sent(self, owner: PeerId, call: bytes) -> bool:
        return owner in self._vectors and self._vectors[owner].call == call

    # -- sums ------------------------------------------------------------------------------------------------------

    def _round(self, name: bytes) -> _Round | None:
        """The round of a call; None until all shares in it, and the keys of their committees, are held."""
        if name in self._rounds or name not in self._called:
            return self._rounds.get(name)
        names = split_names(self._called[name][1])
        owners = tuple(self._share_owners[one] for one in names if one in self._share_owners)
        seats = [split_names(self._shares[owner].holders) for owner in owners]
        keys = [self._keys[owner].pair for owner in owners if owner in self._keys]
        if not len(names) == len(owners) == len(keys) or not self._key_owners.keys() >= set().union(*seats):
            return None
        places = {owner: place for place, owner in enumerate(owners)}
        partners: list[set[int]] = [set() for _ in owners]
        charges: dict[PeerId, list[tuple[int, int]]] = {}
        for place, committee in enumerate(seats):
            for seat, one in enumerate(committee):
                holder = self._key_owners[one]
                charges.setdefault(holder, []).append((place, seat))
                if places.get(holder, place) != place:
                    partners[place].add(places[holder])
                    partners[places[holder]].add(place)
        thresholds = [threshold_of(len(committee)) for committee in seats]
        self._rounds[name] = _Round(name, keys, [sorted(some) for some in partners], owners, thresholds, charges)
        return self._rounds[name]

    def _opened(self, found: _Round) -> list[tuple[dict[int, bytes], dict[int, bytes]]]:
        """Valid shares that holders have opened of each peer of a round: by kind, and by seat in its committee."""
        opened: list[tuple[dict[int, bytes], dict[int, bytes]]] = [({}, {}) for _ in found.owners]
        for holder, opening in sorted(self._openings.get(found.name, {}).items()):
            charge = found.charges.get(holder, ())
            if len(charge) != len(opening.kinds):
                continue
            for number, (place, seat) in enumerate(charge):
                kind, share = opening.kinds[number], opening.shares[number * SHARE_SIZE :][:SHARE_SIZE]
                start = (2 * seat + kind) * CHECK_SIZE
                if check(share) == self._shares[found.owners[place]].checks[start : start + CHECK_SIZE]:
                    opened[place][kind][seat] = share
        return opened

    def complete(self) -> list[SecureSum]:
        """All sums that can be computed from the parts held."""
        if self._n_summed != len(self.held):
            self._n_summed = len(self.held)
            for name in sorted(self._called.keys() - self._sums.keys()):
                found = self._round(name)
                total = None if found is None else self._sum(found)
                if total is not None:
                    self._sums[name] = total
        return [total for _, total in sorted(self._sums.items())]

    def _sum(self, found: _Round) -> SecureSum | None:
        """The sum of a round; None until enough shares of every peer are opened, or if the numbers are implausible."""
        opened, kinds = self._opened(found), []
        for shares, least in zip(opened, found.thresholds, strict=True):
            kinds.append(next((kind for kind in (OWN, PAIR) if len(shares[kind]) >= least), None))
        present = [place for place, kind in enumerate(kinds) if kind == OWN]
        owners = tuple(found.owners[place] for place in present)
        if None in kinds or not owners or not all(self._has_sent(owner, found.name) for owner in owners):
            return None
        secrets: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
        vectors = {place: _vector(self._vectors[found.owners[place]]) for place in present}
        try:
            for place, kind in enumerate(kinds):
                assert kind is not None
                secrets[kind][place] = joined(opened[place][kind], found.thresholds[place])
            values = found.total(vectors, *secrets)
        except ValueError:
            return None
        mechanism = self.terms.mechanism
        n_rows = sum(self._vectors[owner].n_rows for owner in owners)
        share = self._share(len(found.owners))
        variances = [len(owners) * sigma**2 for sigma in (share.gram_sigma, share.moment_sigma)]
        largest = n_rows * mechanism.norm**2 + MOST_SIGMAS * max(variances) ** 0.5
        return SecureSum(owners, values, n_rows, *variances) if abs(values / UNIT).max() <= largest else None

    def _centres(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Centres of all other peers in sums, and of those in sums of the own group if there are others, too."""
        sums = [found for found in self.complete() if found.owners != (self.me,)]
        alike = [found for found in sums if self._is_own_group(found.owners)]
        ways = [alike, sums] if 0 < len(alike) < len(sums) else [sums]
        found = [centre for some in ways if (centre := self._centre(some)) is not None]
        mechanism = self.terms.mechanism
        return np.stack(found) if found else np.zeros((0, mechanism.n_predictors, mechanism.n_outputs))

    def _centre(self, sums: list[SecureSum]) -> NDArray[np.float64] | None:
        """The centre of all other peers in some sums; None without any, or if liars made it meaningless."""
        if not sums:
            return None
        n = self.terms.mechanism.n_predictors
        values = np.sum([found.values for found in sums], axis=0) - self._own_values(sums)
        n_rows = sum(found.n_rows for found in sums) - self._n_rows * any(self.me in one.owners for one in sums)
        cells = values / UNIT
        gram = np.zeros((n, n))
        gram[np.triu_indices(n, 1)] = cells[n : n * (n + 1) // 2]
        gram += gram.T + np.diag(cells[:n])
        moment = cells[n * (n + 1) // 2 :].reshape(n, -1)
        sigmas = np.sqrt(np.sum([(found.gram_variance, found.moment_variance) for found in sums], axis=0)).tolist()
        try:
            centre = Pool.of([Statistics(gram, moment, n_rows, *sigmas)], self.terms.coupling).centre(np.ones(1))
        except (ValueError, np.linalg.LinAlgError):
            return None
        return centre if np.isfinite(centre).all() else None

    def _own_values(self, sums: list[SecureSum]) -> NDArray[np.int64]:
        """The noisy statistics of this peer in these sums: its rows take part at home already."""
        if self._own is None or not any(self.me in found.owners for found in sums):
            return np.zeros(self._size, np.int64)
        found = self._rounds[self._vectors[self.me].call]
        masks = found.masks(found.owners.index(self.me), Secrets(*self._own.secrets), self._size)
        return (_vector(self._vectors[self.me]) - masks).astype(np.int64)


def _vector(part: Masked) -> NDArray[np.uint64]:
    return np.frombuffer(part.values, "<u8").astype(np.uint64)


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=RELEASE_NAME_SIZE).digest()
