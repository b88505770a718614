"""Secure aggregation: the sum of integer vectors, of which nobody sees a single one.

The protocol is that of Bonawitz et al. (2017) on a sparse graph (Bell et al. 2020), modulo 2^64:

1. Each pair of neighbours shares a seed; each user also draws a seed of its own. A user splits all its seeds among its
   neighbours by Shamir's scheme: `threshold` of them can restore a seed, fewer learn nothing.
2. User i sends x_i + mask(own seed) + sum over neighbours j of ±mask(seed of the pair): plus if i < j, minus otherwise.
3. Masks of pairs that both sent cancel bit for bit. Given the list of those who sent, neighbours reveal their shares of
   the own seeds of these, and of the pair seeds of the others. A user reveals for one list only: both kinds together
   would unmask a single vector.

The guarantee is against those who follow the protocol and pool what they see, as long as fewer than `threshold`
neighbours of each honest user are among them and the honest users stay connected by pairs; numbers are given to users
at random. Seeds travel over links that are encrypted and authenticated.

*Without a coordinator.* `MaskedRound` is the arithmetic of `dada.peer.secure_sums`, without a network. A user has three
secrets, for one sum:

- *lock*, an X25519 key. Shares for this user are encrypted with it. It is never revealed.
- *pair*, an X25519 key. The mask that two users share comes from the key that they agree on; one adds it, the other
  subtracts it. It is revealed if the user's vector is missing, so that the masks of its partners can be removed.
- *own*, the seed of a further mask. It is revealed if the vector is there. Never both: together they unmask the vector.

Shares of `pair` and `own` are Shamir's, one each for every holder of the user's committee.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dada.privacy.release import Statistics, StatisticsMechanism, read_statistics

SEED_SIZE = 32
# A prime larger than every seed.
PRIME = (1 << 521) - 1
RandomBytes = Callable[[int], bytes]
# Noise is made for this part of the users of a sum: others may drop out or pool what they see.
HONEST = 0.9
# In a sum of two, each would see the other's part.
LEAST_USERS = 3
# A user's own seed has this place among its secrets; a pair's seed has the number of the other user.
OWN_SEED = -1


def split_secret(secret: bytes, holders: Sequence[int], threshold: int, random_bytes: RandomBytes) -> dict[int, int]:
    """Shamir shares of a secret, one per holder; any `threshold` of them restore it."""
    if not 1 <= threshold <= len(holders):
        raise ValueError(f"threshold must be in 1..{len(holders)} (the number of holders), got {threshold}")
    # 72 bytes modulo the prime are uniform up to 2^-55.
    rest = [int.from_bytes(random_bytes(72), "little") % PRIME for _ in range(threshold - 1)]
    coefficients = [*rest, int.from_bytes(secret, "little")]
    return {
        holder: reduce(lambda value, each: (value * (holder + 1) + each) % PRIME, coefficients) for holder in holders
    }


def join_secret(shares: Mapping[int, int]) -> bytes:
    """The secret behind shares; they must be at least as many as its threshold.

    >>> shares = split_secret(bytes(range(32)), [2, 5, 7], 2, os.urandom)
    >>> join_secret({2: shares[2], 7: shares[7]}) == bytes(range(32))
    True
    """
    secret = 0
    for i, share in shares.items():
        others = [j for j in shares if j != i]
        above, below = math.prod(j + 1 for j in others), math.prod(j - i for j in others)
        secret += share * above * pow(below, -1, PRIME)
    try:
        return (secret % PRIME).to_bytes(SEED_SIZE, "little")
    except OverflowError as error:
        raise ValueError(f"{len(shares)} shares do not restore a seed: more are needed, or one is wrong") from error


def mask(seed: bytes, size: int) -> NDArray[np.uint64]:
    """Uniform integers modulo 2^64, the same for the same seed."""
    return np.frombuffer(hashlib.shake_256(seed).digest(8 * size), "<u8").astype(np.uint64)


class Participant:
    """One user of a secure sum.

    Parameters
    ----------
    me : int
        Number of the user.
    neighbours : sequence of int
        Users with whom it shares seeds.
    threshold : int
        Neighbours that can restore a seed together; more than half, so that two different lists of senders can not
        both be served.
    random_bytes : callable
        The operating system's by default; a generator's for tests.
    """

    def __init__(
        self, me: int, neighbours: Sequence[int], threshold: int, random_bytes: RandomBytes = os.urandom
    ) -> None:
        if not len(neighbours) < 2 * threshold <= 2 * len(neighbours):
            raise ValueError(
                f"threshold must be above {len(neighbours) / 2:g} (half of the neighbours) and at most "
                f"{len(neighbours)}, got {threshold}"
            )
        self.me, self.neighbours, self.threshold = me, tuple(neighbours), threshold
        self._random_bytes = random_bytes
        # The smaller number of a pair draws its seed.
        self.seeds = {
            other: random_bytes(SEED_SIZE) for other in (OWN_SEED, *neighbours) if other == OWN_SEED or other > me
        }
        self._held: dict[tuple[int, int], int] = {}
        self._senders: frozenset[int] | None = None

    def shares(self) -> dict[int, dict[int, int]]:
        """For each neighbour its shares of all seeds of this user, which must be complete."""
        split = {
            place: split_secret(seed, self.neighbours, self.threshold, self._random_bytes)
            for place, seed in sorted(self.seeds.items())
        }
        return {holder: {place: shares[holder] for place, shares in split.items()} for holder in self.neighbours}

    def hold(self, owner: int, shares: Mapping[int, int]) -> None:
        """Keep the shares of a neighbour's seeds."""
        self._held |= {(owner, place): share for place, share in shares.items()}

    def masked(self, values: NDArray[np.int64]) -> NDArray[np.uint64]:
        """What this user sends in place of its values."""
        found = values.astype(np.uint64) + mask(self.seeds[OWN_SEED], values.size)
        for other in self.neighbours:
            found += _pair_mask(self.me, other, self.seeds[other], values.size)
        return found

    def reveal(self, senders: frozenset[int]) -> dict[tuple[int, int], int]:
        """Shares that unmask the sum of these senders; refused for any second list."""
        if self._senders not in (None, senders):
            raise ValueError(
                f"user {self.me} revealed shares for another list of senders: a second one could unmask a single user"
            )
        self._senders = senders
        return {
            (owner, place): share
            for (owner, place), share in self._held.items()
            if (owner in senders) == (place == OWN_SEED) and (place == OWN_SEED or place in senders)
        }


def _pair_mask(me: int, other: int, seed: bytes, size: int) -> NDArray[np.uint64]:
    """The mask that `me` adds for a pair; that of `other` is its negative."""
    found = mask(seed, size)
    return found if me < other else np.uint64(0) - found


def unmasked_sum(
    sent: Mapping[int, NDArray[np.uint64]],
    revealed: Mapping[int, Mapping[tuple[int, int], int]],
    neighbours: Sequence[Sequence[int]],
    threshold: int,
) -> NDArray[np.int64]:
    """The exact sum of the senders' values, from what they sent and the shares that each holder revealed."""
    total = np.sum([values for _, values in sorted(sent.items())], axis=0, dtype=np.uint64)
    absent = [k for k in range(len(neighbours)) if k not in sent]
    wanted = [(k, OWN_SEED) for k in sorted(sent)] + [(k, j) for k in absent for j in neighbours[k] if j in sent]
    for owner, place in wanted:
        shares = {j: revealed[j][owner, place] for j in neighbours[owner] if (owner, place) in revealed.get(j, {})}
        if len(shares) < threshold:
            raise ValueError(
                f"{len(shares)} neighbours of user {owner} revealed shares, {threshold} are needed: the sum is lost"
            )
        seed = join_secret(dict(list(shares.items())[:threshold]))
        total -= mask(seed, total.size) if place == OWN_SEED else _pair_mask(place, owner, seed, total.size)
    return np.asarray(total, np.uint64).astype(np.int64)


def ring(n_users: int, n_neighbours: int) -> list[list[int]]:
    """Neighbours of each of some users on a ring: the nearest on both sides, or all if there are few users.

    >>> ring(6, 2)[0]
    [1, 5]
    """
    near = sorted({step % n_users for half in range(1, n_neighbours // 2 + 1) for step in (half, -half)} - {0})
    return [sorted((k + step) % n_users for step in near) for k in range(n_users)]


def introduced(
    n_users: int, n_neighbours: int, threshold: int, random_bytes: RandomBytes = os.urandom
) -> list[Participant]:
    """Participants that have exchanged seeds and shares, ready to send."""
    users = [Participant(k, near, threshold, random_bytes) for k, near in enumerate(ring(n_users, n_neighbours))]
    for user in users:
        for other in user.neighbours:
            if other > user.me:
                users[other].seeds[user.me] = user.seeds[other]
    for user in users:
        for holder, shares in user.shares().items():
            users[holder].hold(user.me, shares)
    return users


def noise_share(mechanism: StatisticsMechanism, n_least: int) -> StatisticsMechanism:
    """The noise that one of at least `n_least` honest senders adds, so that their sum has the noise of `mechanism`.

    A sum of discrete Gaussians of s steps each differs from a discrete Gaussian by a factor below
    1 + 10 n exp(-pi^2 s^2) (Kairouz, Liu and Steinke 2021): nothing at the thousands of steps used here.
    """
    if n_least < 1:
        raise ValueError(f"n_least must be at least 1, got {n_least}")
    steps = {
        name: math.isqrt((getattr(mechanism, name) ** 2 - 1) // n_least) + 1 for name in ("gram_steps", "moment_steps")
    }
    return replace(mechanism, **steps)


def summed_statistics(
    bodies: Sequence[bytes], n_least: int, random_bytes: RandomBytes = os.urandom, n_neighbours: int = 12
) -> Statistics:
    """The sum of releases whose noise is that of `noise_share`, computed by the protocol among all users.

    `n_least` is the number of senders that the noise was made for; the result reports the noise that is in the sum.
    """
    if len(bodies) < max(n_least, LEAST_USERS):
        raise ValueError(f"a secure sum needs at least {max(n_least, LEAST_USERS)} users, got {len(bodies)}")
    read = [read_statistics(body)[0] for body in bodies]
    n, outputs = read[0].moment.shape
    size = 8 * (n * (n + 1) // 2 + n * outputs)
    near = min(n_neighbours, 2 * ((len(bodies) - 1) // 2))
    threshold = 2 * near // 3 + 1
    users = introduced(len(bodies), near, threshold, random_bytes)
    sent = {user.me: user.masked(np.frombuffer(bodies[user.me][-size:], "<i8")) for user in users}
    revealed = {user.me: user.reveal(frozenset(sent)) for user in users}
    total = unmasked_sum(sent, revealed, [user.neighbours for user in users], threshold)
    found, _ = read_statistics(bodies[0][:-size] + total.astype("<i8").tobytes())
    root = math.sqrt(len(bodies))
    rows = sum(each.n_rows for each in read)
    return Statistics(found.gram, found.moment, rows, root * found.gram_sigma, root * found.moment_sigma)


def added(sums: Sequence[Statistics]) -> Statistics:
    """The sum of independent statistics, with the noise of all."""
    gram, moment = (np.sum([getattr(one, name) for one in sums], axis=0) for name in ("gram", "moment"))
    noise = (math.hypot(*(getattr(one, name) for one in sums)) for name in ("gram_sigma", "moment_sigma"))
    return Statistics(gram, moment, sum(one.n_rows for one in sums), *noise)


def without(total: Statistics, own: Statistics) -> Statistics:
    """A sum without one user's part, which that user knows."""
    return total._replace(
        gram=total.gram - own.gram, moment=total.moment - own.moment, n_rows=total.n_rows - own.n_rows
    )


KEY_SIZE = SEED_SIZE
# Bytes of one share, of the shares of both secrets, and of the check of one share.
SHARE_SIZE, CHECK_SIZE = (PRIME.bit_length() + 7) // 8, 8
SEALED_SIZE = 2 * SHARE_SIZE
# The kinds of shares, in the order in which they are sealed.
OWN, PAIR = 0, 1
# The field and the base point of Curve25519.
FIELD = 2**255 - 19
BASE_POINT = (9).to_bytes(KEY_SIZE, "little")


def x25519(secret: bytes, point: bytes = BASE_POINT) -> bytes:
    """The function X25519 of RFC 7748: a public key, or with the public key of another user the key agreed on.

    Its running time depends on the secret, so secrets serve for one sum only.

    >>> ann, bob = bytes(range(32)), bytes(range(32, 64))
    >>> x25519(ann, x25519(bob)) == x25519(bob, x25519(ann))
    True
    """
    k = int.from_bytes(secret, "little") & ((1 << 254) - 8) | 1 << 254
    u = int.from_bytes(point, "little") & ((1 << 255) - 1)
    x2, z2, x3, z3 = 1, 0, u, 1
    for place in range(254, -1, -1):
        bit = k >> place & 1
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        total, difference = x2 + z2, x2 - z2
        squared, other = total * total % FIELD, difference * difference % FIELD
        crossed, across = (x3 - z3) * total % FIELD, (x3 + z3) * difference % FIELD
        x3, z3 = (crossed + across) ** 2 % FIELD, u * (crossed - across) ** 2 % FIELD
        x2, z2 = squared * other % FIELD, (squared - other) * (squared + 121665 * (squared - other)) % FIELD
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, FIELD - 2, FIELD) % FIELD).to_bytes(KEY_SIZE, "little")


class Secrets(NamedTuple):
    """The secrets of one user for one sum."""

    lock: bytes
    pair: bytes
    own: bytes

    @classmethod
    def drawn(cls, random_bytes: RandomBytes) -> Secrets:
        """New secrets."""
        return cls(*(random_bytes(KEY_SIZE) for _ in range(3)))

    def sealed(self, locks: Sequence[bytes], threshold: int, random_bytes: RandomBytes) -> tuple[bytes, bytes]:
        """Shares of `own` and `pair`, encrypted for each holder by its public lock, and a check of each share.

        Whoever signs the result authenticates it.
        """
        places = range(len(locks))
        split = [split_secret(secret, places, threshold, random_bytes) for secret in (self.own, self.pair)]
        sealed, checks = [], []
        for place, lock in enumerate(locks):
            shares = [shares[place].to_bytes(SHARE_SIZE, "little") for shares in split]
            checks.append(b"".join(check(share) for share in shares))
            sealed.append(_crossed(b"".join(shares), x25519(self.lock, lock), checks[-1]))
        return b"".join(sealed), b"".join(checks)

    def unsealed(self, sealed: bytes, checks: bytes, lock: bytes) -> tuple[bytes, bytes]:
        """The two shares that the owner of a public lock sealed for this user, given their checks."""
        shares = _crossed(sealed, x25519(self.lock, lock), checks)
        return shares[:SHARE_SIZE], shares[SHARE_SIZE:]


def check(share: bytes) -> bytes:
    """The check by which everybody recognises a share."""
    return hashlib.blake2b(share, digest_size=CHECK_SIZE).digest()


def joined(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret behind shares, by the places of their holders."""
    return join_secret({place: int.from_bytes(shares[place], "little") for place in sorted(shares)[:threshold]})


def threshold_of(n_holders: int) -> int:
    """Holders that restore a secret together: three fifths, so that those who decide differently never do both.

    >>> [threshold_of(n) for n in (2, 3, 4, 10, 20)]
    [2, 2, 3, 6, 12]
    """
    return -(-3 * n_holders // 5)


def _crossed(content: bytes, agreed: bytes, checks: bytes) -> bytes:
    """Encrypt or decrypt with a pad that is used once: other shares have other checks."""
    pad = hashlib.shake_256(b"dada share" + agreed + checks).digest(len(content))
    return bytes(a ^ b for a, b in zip(content, pad, strict=True))


@dataclass(frozen=True, eq=False)
class MaskedRound:
    """Who takes part in one sum: public pair keys by place, and the places with which each shares a mask."""

    name: bytes
    keys: Sequence[bytes]
    partners: Sequence[Sequence[int]]

    def masks(self, place: int, secrets: Secrets, size: int) -> NDArray[np.uint64]:
        """What a user adds to its vector before it sends it."""
        found = mask(secrets.own, size)
        for other in self.partners[place]:
            found += self._pair_mask(place, other, secrets.pair, size)
        return found

    def total(
        self, sent: Mapping[int, NDArray[np.uint64]], own: Mapping[int, bytes], pair: Mapping[int, bytes]
    ) -> NDArray[np.int64]:
        """The exact sum of the vectors sent, given their `own` seeds and the `pair` keys of all others."""
        found = np.sum([sent[place] for place in sorted(sent)], axis=0, dtype=np.uint64)
        for place in sorted(sent):
            found -= mask(own[place], found.size)
        for absent, secret in sorted(pair.items()):
            if x25519(secret) != self.keys[absent]:
                raise ValueError(f"the restored key of place {absent} does not fit its public key: the sum is lost")
            for place in self.partners[absent]:
                if place in sent:
                    # The partner added the negative of the mask that the absent user would have added.
                    found += self._pair_mask(absent, place, secret, found.size)
        return np.asarray(found, np.uint64).astype(np.int64)

    def _pair_mask(self, place: int, other: int, pair: bytes, size: int) -> NDArray[np.uint64]:
        """The mask that the user at a place adds for a pair, given its secret."""
        seed = hashlib.sha256(b"dada pair" + self.name + x25519(pair, self.keys[other])).digest()
        found = mask(seed, size)
        return found if place < other else np.uint64(0) - found
