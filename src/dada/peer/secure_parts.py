"""The parts of a secure sum (`dada.peer.secure_sums`), as they are signed and sent in the body of a `Release`.

As in `dada.peer.messages`, every number, list and byte string is bounded, and `read_part` refuses whatever is beyond.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dada.peer.messages import MOST_RELEASES, RELEASE_NAME_SIZE, ImplausibleError, PeerId, SampleCount
from dada.peer.releases import split_names
from dada.privacy.masking import CHECK_SIZE, KEY_SIZE, OWN, PAIR, SEALED_SIZE, SHARE_SIZE

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
