"""Masks of a secure sum: the sum is exact for every set of absent users, and a vector alone says nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dada.privacy import secure_sum as masking
from dada.privacy.secure_sum import OWN, PAIR, MaskedRound, Secrets, x25519

N_USERS, SIZE = 6, 4
RNG = np.random.default_rng(0)
USERS = [Secrets.drawn(RNG.bytes) for _ in range(N_USERS)]
PARTNERS = [[(k + step) % N_USERS for step in (1, 2, 4, 5)] for k in range(N_USERS)]
ROUND = MaskedRound(b"round", [x25519(user.pair) for user in USERS], PARTNERS)
VALUES = RNG.integers(-(1 << 60), 1 << 60, (N_USERS, SIZE))
MASKED = [VALUES[k].astype(np.uint64) + ROUND.masks(k, USERS[k], SIZE) for k in range(N_USERS)]


def test_key_agreement_is_that_of_rfc_7748():
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    agreed = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert x25519(scalar, point).hex() == agreed
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    assert x25519(bob).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"


@settings(max_examples=10, deadline=None)
@given(absent=st.sets(st.integers(0, N_USERS - 1), max_size=N_USERS - 1))
def test_the_sum_of_those_who_sent_is_exact_whoever_is_absent(absent):
    present = [k for k in range(N_USERS) if k not in absent]
    found = ROUND.total(
        {k: MASKED[k] for k in present}, {k: USERS[k].own for k in present}, {k: USERS[k].pair for k in absent}
    )
    assert_array_equal(found, VALUES[present].sum(axis=0))


def test_a_false_key_loses_the_sum_instead_of_changing_it():
    with pytest.raises(ValueError, match="does not fit its public key"):
        ROUND.total({k: MASKED[k] for k in (1, 2)}, {k: USERS[k].own for k in (1, 2)}, {0: USERS[3].pair})


@pytest.mark.parametrize("revealed", [OWN, PAIR], ids=["own seed", "pair key"])
def test_either_secret_alone_leaves_a_vector_uniform(revealed):
    """Two different inputs: what is left after one secret was removed has the same distribution of bits."""
    size, left = 4000, []
    for value in (0, (1 << 60) - 1):
        user = Secrets.drawn(RNG.bytes)
        found = np.full(size, value, np.uint64) + ROUND.masks(0, user, size)
        known = user._replace(pair=USERS[1].pair) if revealed == OWN else user._replace(own=USERS[1].own)
        left.append(found - ROUND.masks(0, known, size))
    for found in left:
        ones = np.unpackbits(found.view(np.uint8)).reshape(size, 64).mean(axis=0)
        # Six standard deviations of the share of ones in each of 64 places.
        assert abs(ones - 0.5).max() < 6 * 0.5 / np.sqrt(size)


def test_holders_open_their_shares_and_nobody_else_does():
    owner, holders = USERS[0], USERS[1:]
    locks = [x25519(holder.lock) for holder in holders]
    sealed, checks = owner.sealed(locks, 3, RNG.bytes)
    opened = [
        holder.unsealed(
            sealed[place * masking.SEALED_SIZE :][: masking.SEALED_SIZE],
            checks[place * 2 * masking.CHECK_SIZE :][: 2 * masking.CHECK_SIZE],
            x25519(owner.lock),
        )
        for place, holder in enumerate(holders)
    ]
    assert b"".join(masking.check(share) for shares in opened for share in shares) == checks
    for kind, secret in ((OWN, owner.own), (PAIR, owner.pair)):
        assert masking.joined({place: opened[place][kind] for place in (0, 2, 4)}, 3) == secret
    wrong = holders[1].unsealed(sealed[: masking.SEALED_SIZE], checks[: 2 * masking.CHECK_SIZE], x25519(owner.lock))
    assert masking.check(wrong[OWN]) not in checks


@pytest.mark.parametrize("n", range(2, 41))
def test_holders_who_decide_differently_never_restore_both_secrets(n):
    assert n < 2 * masking.threshold_of(n) <= 2 * n
