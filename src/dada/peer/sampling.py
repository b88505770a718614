"""Peer sampling: a small view of the network, kept fresh by gossip, and the batches drawn from it.

Theory of operation
-------------------
No peer knows all others. Each keeps a view: at most `VIEW_SIZE` descriptors (id, age, addresses). Periodically it
exchanges half of its view with the peer of its view that has been silent longest. Both keep the youngest descriptor of
each peer. If there are too many, they drop the oldest first (those peers may be dead), then those just given away (the
partner keeps them now), then any. This is peer sampling by gossip (Jelasity et al., 2007) with push and pull, healer 3
and swapper c/2 - 3: views behave like fresh uniform samples, and dead peers disappear. A network that fits a view is
known in full.

A partner that does not answer before the next exchange moves to a small reserve. It returns when a descriptor arrives
that is clearly younger than the loss. Every tenth exchange calls a peer of the reserve, so that the halves of a divided
network find each other again.

*Floods.* Many identities can call often, but they cannot take the whole view. Two parts of a full view do not change
when other peers call (see `_kept`):

- three tenths are chosen by rank: each slot keeps the peer whose id has the lowest value of a private hash function,
  among all peers that answer. What counts is how many identities there are, not how often they are named (min-wise
  sampling, as in Brahms, Bortnikov et al., 2009, and Basalt, Auvolat et al., 2023). One function in turn is replaced
  every ten exchanges, so that the choice stays fresh.
- four tenths are peers that had been in the view for a long time when their place became free. They keep it as long as
  they answer, and have more time for an answer than others: whoever floods a peer also delays the honest.

*Addresses.* A peer signs its addresses, with a version that rises: its *card*. Cards are verified before they are used
or passed on, and the newest one counts, so nobody else can name or change a peer's addresses, or return to old ones. A
signature is verified once: a card that is held already needs no check.

A peer may still sign the address of a victim. So others pass on only those addresses at which the link to it was open,
and remember who sent them an address that is not proven: a false one goes one step and no further. Of a withheld
address they send the digest, because the signature covers the digests of all.

*Liars.* The effect of a message is bounded: half a view of well-formed descriptors; between two exchanges one offer per
sender and four in all (others are answered, but merged only while there is room); no reply that was not asked for. A
peer that leaves another question unanswered is doubted: it is not passed on, is called next, and is lost if it stays
silent again. So invented peers neither last nor spread.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

import msgspec
import numpy as np
from msgspec.structs import replace

from dada.core.graph import gossip_mix
from dada.peer import messages
from dada.peer.edges import put_last
from dada.peer.inputs import Effect, Persist, Refused, Send
from dada.peer.messages import (
    DIGEST_SIZE,
    OLDEST,
    VERSIONS_PER_LIFE,
    Descriptor,
    FriendsMessage,
    ImplausibleError,
    PeerId,
    ViewMessage,
)
from dada.peer.peer import Peer
from dada.peer.signatures import Seal, Unsealed

VIEW_SIZE = 30
HEALER = 3
# Exchanges between two calls to a peer of the reserve.
RESERVE_EVERY = 10
# Exchanges between two writes of the view; a slightly old one is good enough for a restart.
STORED_EVERY = 10
RECORD_KEY = b"view"
# Parts of a view that are chosen by rank and by acquaintance, and exchanges between two changes of a hash function.
RANKED_SHARE, LONG_KNOWN_SHARE, RANK_CHANGED_EVERY = 0.3, 0.4, 10
# Exchanges after which a peer counts as long known, and within which a long-known partner must answer.
LONG_KNOWN_AFTER, PATIENCE = 10, 6
# Peers whose proven addresses are remembered, and peers outside the view whose cards are.
MOST_KNOWN_ADDRESSES = 1024
# Offers that are merged between two exchanges: one is expected, many are an attack on the view.
MOST_OFFERS = 4


class PeerSampling:
    """The view of one peer, which others can dial at `addresses`; its seal signs them.

    It keeps at most `view_size` descriptors: an even number, at least twice the binary logarithm of the network's size.

    >>> view = PeerSampling(b"me", np.random.default_rng(0))
    >>> view.introduce([Descriptor(b"you", 0, ("127.0.0.1:4000",))])
    >>> request = view.exchange()[-1]
    >>> request.to, [known.peer for known in request.message.view]
    (b'you', [b'me'])
    >>> view.sample(3)
    (b'you',)
    """

    def __init__(
        self,
        me: PeerId,
        rng: np.random.Generator,
        addresses: tuple[str, ...] = (),
        view_size: int = VIEW_SIZE,
        seal: Seal | None = None,
    ) -> None:
        if view_size < 2 * HEALER + 2 or view_size % 2:
            raise ValueError(f"view_size must be even and at least {2 * HEALER + 2}, got {view_size}")
        self.me, self.addresses, self.view_size = me, addresses, view_size
        self.seal = Unsealed() if seal is None else seal
        self.epoch = self.revocations = 0
        self.excluded: frozenset[PeerId] = frozenset()
        self.view: dict[PeerId, Descriptor] = {}
        self.reserve: dict[PeerId, Descriptor] = {}
        self.cards: OrderedDict[PeerId, Descriptor] = OrderedDict()
        self.exchanges = 0
        self.proven: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        self.sources: OrderedDict[PeerId, PeerId] = OrderedDict()
        self._own_card: Descriptor | None = None
        self._rng = rng
        self._private = rng.spawn(1)[0]
        self._hash_key = self._private.bytes(16)
        n_ranks = int(view_size * RANKED_SHARE) + int(view_size * LONG_KNOWN_SHARE)
        self._ranks = [self._new_rank() for _ in range(n_ranks)]
        self._known_since: dict[PeerId, int] = {}
        self._hashes: dict[PeerId, int] = {}
        self._long_known: list[PeerId] = []
        self._partner: PeerId | None = None
        self._given: frozenset[PeerId] = frozenset()
        self._offered: set[PeerId] = set()
        self._doubted: set[PeerId] = set()
        # Long-known peers that have not answered an offer yet, and the number of that exchange.
        self._late: dict[PeerId, int] = {}
        self._sampled: set[PeerId] = set()

    # -- reading ---------------------------------------------------------------------------------------------------

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """The proven addresses of a peer, or those that others passed on."""
        known = self.card_of(peer)
        return self.proven.get(peer) or (known.addresses if known is not None else ())

    def card_of(self, peer: PeerId) -> Descriptor | None:
        """The newest known descriptor of a peer."""
        return self.view.get(peer) or self.reserve.get(peer) or self.cards.get(peer)

    def sample(self, kappa: int) -> tuple[PeerId, ...]:
        """At most `kappa` distinct peers of the view, drawn uniformly; none twice before all were drawn."""
        fresh = [peer for peer in self.view if peer not in self._sampled]
        drawn = draw(self._rng, fresh, kappa)
        if len(drawn) < kappa:
            drawn += draw(self._rng, [peer for peer in self.view if peer not in drawn], kappa - len(drawn))
            self._sampled.clear()
        self._sampled.update(drawn)
        return tuple(drawn)

    # -- facts -----------------------------------------------------------------------------------------------------

    def introduce(self, descriptors: Iterable[Descriptor]) -> None:
        """Add peers known from elsewhere: a ticket, a stored view."""
        self._merge(descriptors, frozenset())

    def meet(self, peer: PeerId) -> None:
        """A peer has opened a link. It enters the view only while there is room."""
        if len(self.view) < self.view_size and peer not in self.view and peer != self.me:
            self._merge([Descriptor(peer, 0)], frozenset())

    def prove(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """A peer has sent its own addresses over an authenticated link."""
        if addresses:
            put_last(self.proven, peer, addresses, MOST_KNOWN_ADDRESSES)

    def to_pass_on(self, peer: PeerId) -> Descriptor | None:
        """The card of a peer without unproven addresses; None if it has signed no card, or proven no address."""
        card = self.card_of(peer)
        if card is None or not card.version:
            return None
        proven = self.proven.get(peer, ())
        named = tuple(address for address in card.addresses if address in proven)
        if named == card.addresses:
            return None if card.withheld and not named else card
        digests = b"".join(_digest(address) for address in card.addresses if address not in proven)
        return replace(card, addresses=named, withheld=card.withheld + digests) if named else None

    def check(self, view: Iterable[Descriptor]) -> None:
        """Raise `ImplausibleError` unless all descriptors are signed; those that are known, or older, need no check."""
        for known in view:
            held = self.card_of(known.peer)
            if known.peer == self.me or (held is not None and known.version and _is_covered(known, held)):
                continue
            if not known.version or not self.seal.verify(known.peer, signed_content(known), known.signature):
                raise ImplausibleError(f"addresses that {known.peer.hex()[:10]} did not sign")

    def keep(self, known: Descriptor, sender: PeerId | None = None) -> None:
        """Remember the card of a peer, if it is newer than the one that is held, and who sent it."""
        held = self.card_of(known.peer)
        if known.peer != self.me and (held is None or _is_newer(known, held)):
            part = next((part for part in (self.view, self.reserve) if known.peer in part), None)
            if part is not None:
                part[known.peer] = replace(known, age=part[known.peer].age)
            else:
                put_last(self.cards, known.peer, known, MOST_KNOWN_ADDRESSES)
            self._note_source(known, sender)

    def exclude(self, peers: Iterable[PeerId]) -> None:
        """Remove these peers, and accept no descriptor of them from now on."""
        self.excluded = frozenset(peers)
        for peer in sorted(self.excluded):
            self.forget(peer)

    def forget(self, peer: PeerId) -> None:
        """Remove a peer that has left for good."""
        self.lose(peer)
        self.reserve.pop(peer, None)
        self.cards.pop(peer, None)

    def lose(self, peer: PeerId) -> None:
        """Move an unreachable peer to the reserve."""
        if peer == self._partner:
            self._partner = None
        known = self.view.get(peer)
        if known is not None:
            self._drop(peer)
            self.reserve[peer] = known
            if len(self.reserve) > self.view_size:
                del self.reserve[draw(self._rng, list(self.reserve), 1)[0]]

    def doubt(self, peer: PeerId) -> None:
        """A peer has not answered a question; after the second time in a row it is lost, if it is not long known."""
        if peer in self._doubted and peer not in self._long_known:
            self.lose(peer)
        elif peer in self.view:
            self._doubted.add(peer)

    def trust(self, peer: PeerId) -> None:
        """A peer has sent a message, or a peer that heard from it lately has named it: it is alive."""
        self._doubted.discard(peer)
        self._late.pop(peer, None)

    def exchange(self) -> list[Effect]:
        """Offer half of the view to the peer silent longest; a partner that did not answer the last offer is lost.

        A long-known partner is doubted first, and lost later.
        """
        if self._partner in self._long_known:
            self._doubted.add(self._partner)
            self._late[self._partner] = self.exchanges
        elif self._partner is not None:
            self.lose(self._partner)
        for peer in [peer for peer, asked in self._late.items() if asked + PATIENCE <= self.exchanges]:
            self.lose(peer)
        self.exchanges += 1
        self._offered.clear()
        self._age()
        if self.exchanges % RANK_CHANGED_EVERY == 0:
            self._ranks[self.exchanges // RANK_CHANGED_EVERY % len(self._ranks)] = self._new_rank()
        self._partner = self._choose_partner()
        if self._partner is None:
            return []
        offer = self._offer(self._partner)
        self._given = frozenset(given.peer for given in offer)
        stored = [self.record()] if self.exchanges % STORED_EVERY == 1 else []
        return [*stored, Send(self._partner, messages.ViewRequest(offer, self.revocations))]

    def receive(self, sender: PeerId, message: ViewMessage) -> list[Effect]:
        """Answer an offer, or merge an answer."""
        if sender == self.me:
            return [Refused(sender, "a view from this peer itself")]
        flaw = flaw_of(message.view, self.view_size // 2)
        if flaw is not None:
            return [Refused(sender, flaw)]
        if isinstance(message, messages.ViewReply):
            if sender != self._partner:
                return [Refused(sender, "a view that was not asked for, or came too late")]
            self._partner = None
            self.check(message.view)
            self._merge(message.view, self._given, sender)
            return []
        offer = self._offer(sender)
        is_room = len(self.view) + len(message.view) <= self.view_size
        if sender not in self._offered and (is_room or len(self._offered) < MOST_OFFERS):
            self._offered.add(sender)
            self.check(message.view)
            self._merge(message.view, frozenset(given.peer for given in offer), sender)
        return [Send(sender, messages.ViewReply(offer, self.revocations))]

    def record(self) -> Persist:
        """The view, to be stored."""
        return Persist(RECORD_KEY, msgspec.msgpack.encode(tuple(self.view.values())))

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Add the peers of a stored view."""
        if RECORD_KEY in records:
            self.introduce(msgspec.msgpack.decode(records[RECORD_KEY], type=tuple[Descriptor, ...]))
            self._known_since = dict.fromkeys(self.view, -LONG_KNOWN_AFTER)

    # -- views -----------------------------------------------------------------------------------------------------

    def _choose_partner(self) -> PeerId | None:
        is_reserves_turn = self.exchanges % RESERVE_EVERY == 0 or not self.view
        if self.reserve and is_reserves_turn:
            return draw(self._rng, list(self.reserve), 1)[0]
        # Whoever is late has been asked already.
        candidates = [peer for peer in self.view if peer in self._doubted and peer not in self._late]
        candidates = candidates or [peer for peer in self.view if peer not in self._late]
        if not candidates:
            return None
        oldest = max(self.view[peer].age for peer in candidates)
        return draw(self._rng, [peer for peer in candidates if self.view[peer].age == oldest], 1)[0]

    def _offer(self, partner: PeerId) -> tuple[Descriptor, ...]:
        """Half a view: this peer and others; the oldest few only if there are not enough."""
        chosen = [peer for peer in self.view if peer != partner and peer not in self._doubted]
        others = [known for known in map(self.to_pass_on, chosen) if known is not None]
        others = [others[p] for p in self._rng.permutation(len(others))]
        old = {known.peer: known for known in sorted(others, key=lambda known: -known.age)[:HEALER]}
        others = [*(known for known in others if known.peer not in old), *old.values()]
        return (self._sign(), *others[: self.view_size // 2 - 1])

    def _sign(self) -> Descriptor:
        """The own card; it is signed again in a new life, and when an address has changed."""
        card, first = self._own_card, self.epoch * VERSIONS_PER_LIFE
        if card is None or card.version <= first or card.addresses != self.addresses:
            version = 1 + (first if card is None else max(first, card.version))
            self._own_card = card = signed_card(self.me, version, self.addresses, self.seal)
        return card

    def _merge(self, news: Iterable[Descriptor], given: frozenset[PeerId], sender: PeerId | None = None) -> None:
        for known in news:
            if known.peer == self.me or known.peer in self.excluded:
                continue
            card, lost = self.card_of(known.peer), self.reserve.get(known.peer)
            # Clocks differ: a descriptor only a little younger than the loss may be as old.
            if lost is not None and 2 * known.age >= lost.age:
                continue
            self.reserve.pop(known.peer, None)
            held = self.view.get(known.peer)
            if card is None or _is_newer(known, card):
                card = known
                self._note_source(known, sender)
            self.view[known.peer] = replace(card, age=known.age if held is None else min(known.age, held.age))
            if held is None or known.age < held.age:
                if held is None:
                    self._known_since[known.peer], self._hashes[known.peer] = self.exchanges, self._hash(known.peer)
                self.trust(known.peer)
                given -= {known.peer}
        if len(self.view) > self.view_size:
            kept = self._kept()
            free = [peer for peer in self.view if peer not in kept]
            self._drop_excess(sorted(free, key=lambda peer: -self.view[peer].age)[:HEALER])
            swapper = self.view_size // 2 - HEALER
            self._drop_excess(draw(self._rng, [peer for peer in free if peer in self.view and peer in given], swapper))
            self._drop_excess(draw(self._rng, [peer for peer in free if peer in self.view], len(free)))

    def _kept(self) -> frozenset[PeerId]:
        """Peers that a flood does not displace: the lowest of each rank, and some that were known for long."""
        peers = [peer for peer in self.view if peer not in self._doubted]
        n_all = int(self.view_size * RANKED_SHARE)
        ranks = self._ranks[n_all:]
        ranked = self._lowest(peers, self._ranks[:n_all])
        waiting = [peer for peer in peers if self.exchanges - self._known_since[peer] >= LONG_KNOWN_AFTER]
        for rank in ranks[len(self._long_known) :]:
            waiting = [peer for peer in waiting if peer not in self._long_known]
            self._long_known += self._lowest(waiting, [rank])
        return frozenset((*ranked, *self._long_known))

    def _lowest(self, peers: list[PeerId], ranks: list[tuple[int, int]]) -> list[PeerId]:
        """The peer with the lowest value of each private hash function."""
        if not peers or not ranks:
            return []
        values = np.array([self._hashes[peer] for peer in peers], np.uint64)
        a, b = np.array(ranks, np.uint64).T
        return [peers[p] for p in (a[:, None] * values + b[:, None]).argmin(axis=1)]

    def _hash(self, peer: PeerId) -> int:
        return int.from_bytes(hashlib.blake2b(peer, digest_size=8, key=self._hash_key).digest(), "big")

    def _new_rank(self) -> tuple[int, int]:
        """A random hash function of 64-bit numbers: multiply by an odd number and add."""
        a, b = self._private.integers(2**64, size=2, dtype=np.uint64)
        return int(a) | 1, int(b)

    def _drop_excess(self, peers: list[PeerId]) -> None:
        """Drop the first of these peers, no more than must go."""
        excess = max(0, len(self.view) - self.view_size)
        for peer in peers[:excess]:
            self._drop(peer)

    def _note_source(self, known: Descriptor, sender: PeerId | None) -> None:
        if sender is not None and known.addresses:
            put_last(self.sources, known.peer, sender, MOST_KNOWN_ADDRESSES)

    def _drop(self, peer: PeerId) -> None:
        put_last(self.cards, peer, self.view.pop(peer), MOST_KNOWN_ADDRESSES)
        del self._known_since[peer], self._hashes[peer]
        if peer in self._long_known:
            self._long_known.remove(peer)
        self._sampled.discard(peer)
        self._doubted.discard(peer)
        self._late.pop(peer, None)

    def _age(self) -> None:
        for known in (self.view, self.reserve):
            for peer, held in known.items():
                known[peer] = replace(held, age=min(held.age + 1, OLDEST))


def draw(rng: np.random.Generator, peers: list[PeerId], n: int) -> list[PeerId]:
    """At most n of the peers, drawn without replacement."""
    return [peers[p] for p in rng.permutation(len(peers))[:n]]


def signed_content(known: Descriptor) -> bytes:
    """What a peer signs about its addresses: a version and the digests of all of them.

    >>> whole = Descriptor(b"ann", 0, ("10.0.0.1:4", "10.0.0.2:4"), version=3)
    >>> part = Descriptor(b"ann", 5, ("10.0.0.2:4",), _digest("10.0.0.1:4"), version=3)
    >>> signed_content(whole) == signed_content(part)
    True
    """
    if len(known.withheld) % DIGEST_SIZE:
        raise ImplausibleError(f"{len(known.withheld)} bytes of digests, each has {DIGEST_SIZE}")
    digests = [_digest(address) for address in known.addresses]
    digests += [known.withheld[start : start + DIGEST_SIZE] for start in range(0, len(known.withheld), DIGEST_SIZE)]
    return b"dada addresses" + known.version.to_bytes(8, "big") + b"".join(sorted(digests))


def signed_card(peer: PeerId, version: int, addresses: tuple[str, ...], seal: Seal) -> Descriptor:
    """The card of a peer, signed by its seal.

    >>> signed_card(b"ann", 3, ("10.0.0.1:4",), Unsealed()).version
    3
    """
    card = Descriptor(peer, 0, addresses, b"", version)
    return replace(card, signature=seal.sign(signed_content(card)))


def _digest(address: str) -> bytes:
    return hashlib.blake2b(address.encode(), digest_size=DIGEST_SIZE).digest()


def _is_newer(known: Descriptor, held: Descriptor) -> bool:
    """Whether a card has a higher version than the one that is held, or fewer addresses were withheld."""
    return (known.version, len(known.addresses)) > (held.version, len(held.addresses))


def _is_covered(known: Descriptor, held: Descriptor) -> bool:
    """Whether a card is older than the one that is held, or has the same signature of the same addresses."""
    if known.version != held.version or known.signature != held.signature:
        return known.version < held.version
    same = (known.addresses, known.withheld) == (held.addresses, held.withheld)
    return same or signed_content(known) == signed_content(held)


def flaw_of(view: tuple[Descriptor, ...], most: int) -> str | None:
    """The first flaw of a received list of at most `most` peers; None if it is sound."""
    if len(view) > most:
        return f"a view of {len(view)} peers, at most {most} are exchanged"
    if len({known.peer for known in view}) != len(view):
        return "a view that names a peer twice"
    return None


# Neighbours named in a reply, candidates kept for the next graph steps, neighbours whose replies are awaited, and
# replies of each.
FRIENDS_PER_REPLY, MOST_CANDIDATES, MOST_ASKED, MOST_ANSWERS = 4, 32, 8, 4


class Search:
    """Draws the batches of one peer, from its view and from neighbours of its neighbours.

    >>> from dada.core.model_steps import UserRows
    >>> from dada.peer.inputs import PeerConfig
    >>> peer = Peer(b"me", UserRows(np.ones((1, 2), np.int8)), PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> rng = np.random.default_rng(0)
    >>> view = PeerSampling(b"me", rng)
    >>> view.introduce([Descriptor(b"you", 0)])
    >>> Search(peer, view, rng).sample(5)
    (b'you',)
    """

    def __init__(self, peer: Peer, sampling: PeerSampling, rng: np.random.Generator) -> None:
        self._peer, self._sampling, self._rng = peer, sampling, rng
        self.candidates: OrderedDict[PeerId, None] = OrderedDict()
        self._asked: OrderedDict[PeerId, int] = OrderedDict()

    @property
    def is_beyond_view(self) -> bool:
        """Whether the network is larger than the view."""
        return len(self._sampling.view) >= self._sampling.view_size

    def sample(self, kappa: int) -> tuple[PeerId, ...]:
        """The batch of the next graph step: `kappa` other peers, and a few present neighbours."""
        if not self.is_beyond_view:
            return self._sampling.sample(kappa)
        mix = gossip_mix(kappa)
        friends = draw(self._rng, list(self.candidates), mix.n_gossip)
        for friend in friends:
            del self.candidates[friend]
        others = self._sampling.sample(kappa - len(friends))
        refreshed = draw(self._rng, self._peer.edges.neighbours, mix.n_refresh)
        return tuple(dict.fromkeys((*others, *friends, *refreshed)))

    def ask(self) -> list[Effect]:
        """Ask some neighbours for their neighbours."""
        if not self.is_beyond_view:
            return []
        asked = draw(self._rng, self._peer.edges.neighbours, gossip_mix(1).n_refresh)
        for peer in asked:
            put_last(self._asked, peer, min(self._asked.get(peer, 0) + 1, MOST_ANSWERS), MOST_ASKED)
        return [Send(peer, messages.FriendsRequest()) for peer in asked]

    def receive(self, sender: PeerId, message: FriendsMessage) -> list[Effect]:
        """Answer a follower, or keep the candidates of a reply."""
        if isinstance(message, messages.FriendsRequest):
            if sender not in self._peer.neighbourhood.followers:
                return []
            others = [peer for peer in self._peer.edges.neighbours if peer != sender]
            cards = {peer: card for peer in others if (card := self._sampling.to_pass_on(peer)) is not None}
            friends = draw(self._rng, list(cards), FRIENDS_PER_REPLY)
            return [Send(sender, messages.FriendsReply(tuple(replace(cards[friend], age=0) for friend in friends)))]
        if self._asked.get(sender, 0) == 0:
            return [Refused(sender, "friends that were not asked for")]
        self._asked[sender] -= 1
        flaw = flaw_of(message.friends, FRIENDS_PER_REPLY)
        if flaw is not None:
            return [Refused(sender, flaw)]
        self._sampling.check(message.friends)
        for known in message.friends:
            if known.peer != self._peer.me and known.peer not in self._sampling.excluded:
                self._sampling.keep(known, sender)
                put_last(self.candidates, known.peer, None, MOST_CANDIDATES)
        return []
