"""Which addresses of a peer may be dialled, and who pays for a dial that nobody answers.

An address is proven if the peer was reached there by a link of this node, or if the operator gave it with a ticket. Any
other address may be that of a victim: a peer claims it for itself, or passes it on for another. A dial sends about 7 KB
to an address that never answers, so that many dials would be an attack. Therefore:

- an unproven address is dialled alone, and once in ten minutes;
- the peer that named it pays: unanswered dials cost at most three times the bytes received from that peer;
- at most thirty dials per minute stay unanswered, whoever named the addresses.

An answered dial costs nothing. Peers pass on proven addresses only (`dada.peer.sampling`), so that a false one goes no
further than to those that its author pays for. Relays are no victims: a TCP connection proves itself.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from dada.peer.edges import put_last
from dada.peer.messages import PeerId

# Bytes to an address that does not answer: six packets within the six seconds of a dial, as measured.
DIAL_BYTES = 6 * 1200
LARGEST_RATIO = 3
AGAIN_AFTER_S, MINUTE_S = 600.0, 60.0
MOST_ADDRESSES_KNOWN = 4096


@dataclass(frozen=True)
class Hearsay:
    """Addresses of a peer as another one named them; its source is None if it was read from disk."""

    addresses: tuple[str, ...]
    source: PeerId | None


@dataclass(eq=False)
class Guess:
    """A dial to an unproven address, and who pays for it."""

    address: str
    source: PeerId | None
    at: float


@dataclass(frozen=True)
class Choice:
    """Addresses for one dial, none if nothing may be dialled now; `guess` is set if the address is unproven."""

    addresses: tuple[str, ...]
    guess: Guess | None = None


class AddressBook:
    """Addresses of other peers.

    Parameters
    ----------
    hearsay_of : callable
        Addresses of a peer that another one passed on.
    received_from : callable
        Number of bytes received from a peer.
    clock : callable
    most_unanswered : int
        Most unanswered dials to unproven addresses per minute.

    Examples
    --------
    >>> times = iter((0.0, 1.0, 2.0, 700.0, 700.0))
    >>> told = Hearsay(("10.0.0.1:4", "10.0.0.2:4"), source=b"bob")
    >>> book = AddressBook(lambda peer: told, lambda peer: 5000, lambda: next(times), most_unanswered=30)
    >>> [book.choose(b"ann").addresses for _ in range(4)]
    [('10.0.0.1:4',), ('10.0.0.2:4',), (), ()]
    >>> book.prove(b"ann", ("10.0.0.3:4",))
    >>> book.choose(b"ann").addresses
    ('10.0.0.3:4',)
    """

    def __init__(
        self,
        hearsay_of: Callable[[PeerId], Hearsay],
        received_from: Callable[[PeerId], int],
        clock: Callable[[], float],
        most_unanswered: int,
    ) -> None:
        self._hearsay_of, self._received_from, self._clock = hearsay_of, received_from, clock
        self._most_unanswered = most_unanswered
        self._proven: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        self._claims: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        self._tried: OrderedDict[tuple[PeerId, str], float] = OrderedDict()
        self._spent: OrderedDict[PeerId, int] = OrderedDict()
        self._unanswered: list[Guess] = []
        self._under_way = 0
        self._settled = asyncio.Event()

    def prove(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """A peer was reached at these addresses, or the operator gave them."""
        if addresses:
            put_last(self._proven, peer, addresses, MOST_ADDRESSES_KNOWN)

    def claim(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """A peer claims addresses as its own."""
        if addresses:
            put_last(self._claims, peer, addresses, MOST_ADDRESSES_KNOWN)

    def proven(self, peer: PeerId) -> tuple[str, ...]:
        """Proven addresses of a peer."""
        return self._proven.get(peer, ())

    def choose(self, peer: PeerId, prefer_new: bool = False) -> Choice:
        """Addresses for the next dial: the safe ones, or a single one that is unproven and is paid for at once.

        A peer that does not answer at its proven addresses may have a new one: `prefer_new`.
        """
        now = self._clock()
        told = (Hearsay(self._claims.get(peer, ()), peer), self._hearsay_of(peer))
        relays = (address for one in told for address in one.addresses if is_relay(address))
        safe = tuple(dict.fromkeys((*self.proven(peer), *relays)))
        if not safe or prefer_new:
            for one in told:
                for address in one.addresses:
                    is_fresh = now - self._tried.get((peer, address), -math.inf) >= AGAIN_AFTER_S
                    if address not in safe and is_fresh and self._can_pay(one.source, now):
                        return Choice((address,), self._pay(peer, address, one.source, now))
        return Choice(safe)

    def knows(self, peer: PeerId) -> bool:
        """Whether any address of a peer is known."""
        return bool(self.proven(peer) or self._claims.get(peer) or self._hearsay_of(peer).addresses)

    async def wait(self, peer: PeerId, prefer_new: bool = False) -> Choice:
        """As `choose`, but waits while other guesses are under way: an answer to one of them pays for the next."""
        while not (choice := self.choose(peer, prefer_new)).addresses and self._under_way:
            self._settled.clear()
            await self._settled.wait()
        return choice

    def settle(self, guess: Guess | None, answered_at: tuple[str, ...] = ()) -> None:
        """A dial has ended; a guess costs nothing if the peer answered there."""
        if guess is None:
            return
        self._under_way -= 1
        if guess.address in answered_at:
            self._unanswered = [one for one in self._unanswered if one is not guess]
            self._charge(guess.source, -DIAL_BYTES)
        self._settled.set()

    def _can_pay(self, source: PeerId | None, now: float) -> bool:
        self._unanswered = [one for one in self._unanswered if now - one.at < MINUTE_S]
        if len(self._unanswered) >= self._most_unanswered:
            return False
        return source is None or self._spent.get(source, 0) + DIAL_BYTES <= LARGEST_RATIO * self._received_from(source)

    def _pay(self, peer: PeerId, address: str, source: PeerId | None, now: float) -> Guess:
        guess = Guess(address, source, now)
        self._unanswered.append(guess)
        self._under_way += 1
        put_last(self._tried, (peer, address), now, MOST_ADDRESSES_KNOWN)
        self._charge(source, DIAL_BYTES)
        return guess

    def _charge(self, source: PeerId | None, n_bytes: int) -> None:
        if source is not None:
            put_last(self._spent, source, max(0, self._spent.get(source, 0) + n_bytes), MOST_ADDRESSES_KNOWN)


def is_relay(address: str) -> bool:
    """Whether an address is that of a relay."""
    return "://" in address
