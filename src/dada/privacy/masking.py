"""Masks of a secure sum: key agreement, shares of secrets for a committee, and the removal of masks.

The arithmetic of `dada.peer.secure_sums`, without a network. A user has three secrets, for one sum:

- *lock*, an X25519 key. Shares for this user are encrypted with it. It is never revealed.
- *pair*, an X25519 key. The mask that two users share comes from the key that they agree on; one adds it, the other
  subtracts it. It is revealed if the user's vector is missing, so that the masks of its partners can be removed.
- *own*, the seed of a further mask. It is revealed if the vector is there. Never both: together they unmask the vector.

Shares of `pair` and `own` are Shamir's (`dada.privacy.secure_sum`), one each for every holder of the user's committee.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dada.privacy.secure_sum import PRIME, SEED_SIZE, RandomBytes, join_secret, mask, split_secret

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
