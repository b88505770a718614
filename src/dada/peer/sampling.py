"""Whom can I ask? A small, ever-changing view of the network, kept fresh by gossip.

Theory of operation
-------------------
Nobody knows all peers. Each keeps a view: at most `VIEW_SIZE` descriptors (id, age, addresses). Now and then a peer
exchanges half of its view with the peer of its view it has heard of longest ago, and both keep the better of what they
then have: the youngest descriptor of each peer; of too many, the oldest are dropped first (they may be dead), then
those just given away (somebody else keeps them now), then any. This is peer sampling by gossip (Jelasity et al., 2007)
with push and pull, healer 3 and swapper c/2 - 3: views behave like fresh uniform samples, and the dead fade away.
A network that fits a view is known in full.

A partner that does not answer until the next exchange is moved to a small reserve, from which it returns with news
clearly younger than the loss. Every tenth exchange calls somebody of the reserve, so that two halves of a network
which lost sight of each other meet again.

*Liars.* What a message can do is bounded: half a view of well-formed descriptors, one offer of a sender between two
exchanges and four in all (others are answered, but taken up only while there is room), no reply that was not asked
for. Who was asked something else and kept silent is doubted: it is told to nobody, called next, and lost if it keeps
silent again. So peers that exist only in a liar's words do not last, and do not spread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from dada.core.neighbours import gossip_mix
from dada.peer.inputs import Effect, Persist, Refused, Send
from dada.peer.messages import Descriptor, FriendsReply, FriendsRequest, PeerId, ViewReply, ViewRequest
from dada.peer.peer import Peer

VIEW_SIZE = 30
HEALER = 3
# Exchanges between two calls to a peer of the reserve.
RESERVE_EVERY = 10
# Exchanges between two writings of the view; a restarted peer finds somebody in a slightly old one too.
STORED_EVERY = 10
RECORD_KEY = b"view"
# Offers that are taken up between two exchanges of one's own: one is expected, many are an attack on the view.
MOST_OFFERS = 4
OLDEST, LONGEST_ID, MOST_ADDRESSES, LONGEST_ADDRESS = 10_000, 64, 8, 256


class PeerSampling:
    """The view of one peer: what it knows of who else is about.

    Parameters
    ----------
    me : bytes
        The id of this peer.
    rng : numpy.random.Generator
        Its chance.
    addresses : tuple of str
        Where others can dial this peer.
    view_size : int
        Most descriptors kept; an even number of at least twice the binary logarithm of the size of the network.

    Examples
    --------
    >>> view = PeerSampling(b"me", np.random.default_rng(0))
    >>> view.introduce([Descriptor(b"you", 0, ("127.0.0.1:4000",))])
    >>> view.exchange()[-1]
    Send(to=b'you', message=ViewRequest(view=(Descriptor(peer=b'me', age=0, addresses=()),)))
    >>> view.sample(3)
    (b'you',)
    """

    def __init__(
        self, me: PeerId, rng: np.random.Generator, addresses: tuple[str, ...] = (), view_size: int = VIEW_SIZE
    ) -> None:
        if view_size < 2 * HEALER + 2 or view_size % 2:
            raise ValueError(f"view_size must be even and at least {2 * HEALER + 2}, got {view_size}")
        self.me, self.addresses, self.view_size = me, addresses, view_size
        self.view: dict[PeerId, Descriptor] = {}
        self.reserve: dict[PeerId, Descriptor] = {}
        self.exchanges = 0
        self._rng = rng
        self._partner: PeerId | None = None
        self._given: frozenset[PeerId] = frozenset()
        self._offered: set[PeerId] = set()
        self._doubted: set[PeerId] = set()
        self._sampled: set[PeerId] = set()

    # -- what can be read ------------------------------------------------------------------------------------------

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """Everybody in the view."""
        return tuple(self.view)

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """Where to dial a peer, as far as is known."""
        known = self.view.get(peer) or self.reserve.get(peer)
        return known.addresses if known is not None else ()

    def sample(self, kappa: int) -> tuple[PeerId, ...]:
        """At most `kappa` distinct peers of the view, drawn uniformly from those longest not drawn."""
        fresh = [peer for peer in self.view if peer not in self._sampled]
        drawn = self._draw(fresh, kappa)
        if len(drawn) < kappa:
            drawn += self._draw([peer for peer in self.view if peer not in drawn], kappa - len(drawn))
            self._sampled.clear()
        self._sampled.update(drawn)
        return tuple(drawn)

    # -- facts -----------------------------------------------------------------------------------------------------

    def introduce(self, descriptors: Iterable[Descriptor]) -> None:
        """Take up peers known from elsewhere: a ticket, stored neighbours, a connection that came in."""
        self._merge([known for known in descriptors if _flaw(known) is None], frozenset())

    def forget(self, peer: PeerId) -> None:
        """A peer has left for good."""
        self.lose(peer)
        self.reserve.pop(peer, None)

    def lose(self, peer: PeerId) -> None:
        """A peer cannot be reached at present."""
        if peer == self._partner:
            self._partner = None
        known = self.view.get(peer)
        if known is not None:
            self._drop(peer)
            self.reserve[peer] = known
            if len(self.reserve) > self.view_size:
                del self.reserve[self._draw(list(self.reserve), 1)[0]]

    def doubt(self, peer: PeerId) -> None:
        """A peer of the view has not answered a question; twice in a row, and it is lost."""
        if peer in self._doubted:
            self.lose(peer)
        elif peer in self.view:
            self._doubted.add(peer)

    def heard(self, peer: PeerId) -> None:
        """A peer has said something, whatever it was."""
        self._doubted.discard(peer)

    def exchange(self) -> list[Effect]:
        """Offer half of the view to the peer heard of longest ago; whoever left the last offer unanswered is lost."""
        if self._partner is not None:
            self.lose(self._partner)
        self.exchanges += 1
        self._offered.clear()
        self._age()
        self._partner = self._choose_partner()
        if self._partner is None:
            return []
        offer = self._offer(self._partner)
        self._given = frozenset(given.peer for given in offer)
        stored = [self.record()] if self.exchanges % STORED_EVERY == 1 else []
        return [*stored, Send(self._partner, ViewRequest(offer))]

    def receive(self, sender: PeerId, message: ViewRequest | ViewReply) -> list[Effect]:
        """Answer an offer, or take up an answer."""
        if sender == self.me:
            return [Refused(sender, "a view from oneself")]
        flaw = flaw_of(message.view, self.view_size // 2)
        if flaw is not None:
            return [Refused(sender, flaw)]
        if isinstance(message, ViewReply):
            if sender != self._partner:
                return [Refused(sender, "a view that was not asked for, or came too late")]
            self._partner = None
            self._merge(message.view, self._given)
            return []
        offer = self._offer(sender)
        is_room = len(self.view) + len(message.view) <= self.view_size
        if sender not in self._offered and (is_room or len(self._offered) < MOST_OFFERS):
            self._offered.add(sender)
            self._merge(message.view, frozenset(given.peer for given in offer))
        return [Send(sender, ViewReply(offer))]

    def record(self) -> Persist:
        """The view, to be stored."""
        return Persist(RECORD_KEY, msgspec.msgpack.encode(tuple(self.view.values())))

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take up a stored view, where there is one."""
        if RECORD_KEY in records:
            self.introduce(msgspec.msgpack.decode(records[RECORD_KEY], type=tuple[Descriptor, ...]))

    # -- views -----------------------------------------------------------------------------------------------------

    def _choose_partner(self) -> PeerId | None:
        is_reserves_turn = self.exchanges % RESERVE_EVERY == 0 or not self.view
        if self.reserve and is_reserves_turn:
            return self._draw(list(self.reserve), 1)[0]
        if not self.view:
            return None
        candidates = [peer for peer in self.view if peer in self._doubted] or list(self.view)
        oldest = max(self.view[peer].age for peer in candidates)
        return self._draw([peer for peer in candidates if self.view[peer].age == oldest], 1)[0]

    def _offer(self, partner: PeerId) -> tuple[Descriptor, ...]:
        """Half a view: oneself, and others, the oldest few only where there are not enough."""
        others = [known for peer, known in self.view.items() if peer != partner and peer not in self._doubted]
        others = [others[p] for p in self._rng.permutation(len(others))]
        old = sorted(others, key=lambda known: -known.age)[:HEALER]
        others = [known for known in others if known not in old] + old
        return (Descriptor(self.me, 0, self.addresses), *others[: self.view_size // 2 - 1])

    def _merge(self, news: Iterable[Descriptor], given: frozenset[PeerId]) -> None:
        for known in news:
            if known.peer == self.me:
                continue
            lost = self.reserve.get(known.peer)
            # Clocks differ: what is only a little younger than the loss may well be as old.
            if lost is not None and 2 * known.age >= lost.age:
                continue
            self.reserve.pop(known.peer, None)
            held = self.view.get(known.peer)
            if held is None or known.age < held.age:
                self.view[known.peer] = known
                self._doubted.discard(known.peer)
                given -= {known.peer}
        if len(self.view) > self.view_size:
            self._drop_excess(sorted(self.view, key=lambda peer: -self.view[peer].age)[:HEALER])
            swapper = self.view_size // 2 - HEALER
            self._drop_excess(self._draw([peer for peer in self.view if peer in given], swapper))
            self._drop_excess(self._draw(list(self.view), len(self.view)))

    def _drop_excess(self, peers: list[PeerId]) -> None:
        """Drop the first of these peers, no more than must go."""
        excess = max(0, len(self.view) - self.view_size)
        for peer in peers[:excess]:
            self._drop(peer)

    def _drop(self, peer: PeerId) -> None:
        del self.view[peer]
        self._sampled.discard(peer)
        self._doubted.discard(peer)

    def _age(self) -> None:
        for known in (self.view, self.reserve):
            for peer, held in known.items():
                known[peer] = Descriptor(peer, min(held.age + 1, OLDEST), held.addresses)

    def _draw(self, peers: list[PeerId], n: int) -> list[PeerId]:
        return [peers[p] for p in self._rng.permutation(len(peers))[:n]]


def flaw_of(view: tuple[Descriptor, ...], most: int) -> str | None:
    """What is wrong with a list of peers from outside, of which there may be so many; None if nothing is."""
    if len(view) > most:
        return f"a view of {len(view)} peers, at most {most} are exchanged"
    if len({known.peer for known in view}) != len(view):
        return "a view that names a peer twice"
    return next((flaw for known in view if (flaw := _flaw(known)) is not None), None)


def _flaw(known: Descriptor) -> str | None:
    if not 1 <= len(known.peer) <= LONGEST_ID:
        return f"an id of {len(known.peer)} bytes, it has 1 to {LONGEST_ID}"
    if not 0 <= known.age <= OLDEST:
        return f"a descriptor of age {known.age}, at most {OLDEST}"
    if len(known.addresses) > MOST_ADDRESSES or any(len(address) > LONGEST_ADDRESS for address in known.addresses):
        return f"more than {MOST_ADDRESSES} addresses, or one of more than {LONGEST_ADDRESS} characters"
    return None


# Neighbours that an answer names, candidates kept for the next graph steps, neighbours whose answers are awaited,
# and answers of each.
FRIENDS_TOLD, MOST_CANDIDATES, MOST_ASKED, MOST_ANSWERS = 4, 32, 8, 4
# Peers whose addresses are remembered beside those of the view.
MOST_KNOWN_ADDRESSES = 1024


class Search:
    """Draws the batches of one peer.

    Parameters
    ----------
    peer : Peer
        Whose neighbours are asked.
    sampling : PeerSampling
        The view.
    rng : numpy.random.Generator
        Its chance.

    Examples
    --------
    >>> from dada.peer.config import PeerConfig
    >>> peer = Peer(b"me", np.ones((1, 2), np.int8), PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> rng = np.random.default_rng(0)
    >>> view = PeerSampling(b"me", rng)
    >>> view.introduce([Descriptor(b"you", 0)])
    >>> Search(peer, view, rng).sample(5)
    (b'you',)
    """

    def __init__(self, peer: Peer, sampling: PeerSampling, rng: np.random.Generator) -> None:
        self._peer, self._sampling, self._rng = peer, sampling, rng
        self.candidates: OrderedDict[PeerId, None] = OrderedDict()
        self.addresses: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        self._asked: OrderedDict[PeerId, int] = OrderedDict()

    @property
    def is_beyond_view(self) -> bool:
        """Whether the network is larger than what this peer can know of it."""
        return len(self._sampling.view) >= self._sampling.view_size

    def sample(self, kappa: int) -> tuple[PeerId, ...]:
        """The peers of the next graph step: `kappa` to meet, and a few present neighbours."""
        if not self.is_beyond_view:
            return self._sampling.sample(kappa)
        mix = gossip_mix(kappa)
        friends = self._draw(list(self.candidates), mix.n_gossip)
        for friend in friends:
            del self.candidates[friend]
        others = self._sampling.sample(kappa - len(friends))
        refreshed = self._draw(self._peer.neighbours, mix.n_refresh)
        return tuple(dict.fromkeys((*others, *friends, *refreshed)))

    def ask(self) -> list[Effect]:
        """Ask some neighbours for theirs."""
        if not self.is_beyond_view:
            return []
        asked = self._draw(self._peer.neighbours, gossip_mix(1).n_refresh)
        for peer in asked:
            _put(self._asked, peer, min(self._asked.get(peer, 0) + 1, MOST_ANSWERS), MOST_ASKED)
        return [Send(peer, FriendsRequest()) for peer in asked]

    def receive(self, sender: PeerId, message: FriendsRequest | FriendsReply) -> list[Effect]:
        """Answer one who learns from this peer, or take up an answer."""
        if isinstance(message, FriendsRequest):
            if sender not in self._peer.listeners:
                return []
            friends = self._draw([peer for peer in self._peer.neighbours if peer != sender], FRIENDS_TOLD)
            return [Send(sender, FriendsReply(tuple(Descriptor(one, 0, self.addresses_of(one)) for one in friends)))]
        if self._asked.get(sender, 0) == 0:
            return [Refused(sender, "friends that were not asked for")]
        self._asked[sender] -= 1
        flaw = flaw_of(message.friends, FRIENDS_TOLD)
        if flaw is not None:
            return [Refused(sender, flaw)]
        for known in message.friends:
            if known.peer != self._peer.me:
                self.learn(known.peer, known.addresses)
                _put(self.candidates, known.peer, None, MOST_CANDIDATES)
        return []

    def learn(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Remember where a peer listens."""
        if addresses:
            _put(self.addresses, peer, addresses, MOST_KNOWN_ADDRESSES)

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """Where to dial a peer, as far as is known."""
        return self._sampling.addresses_of(peer) or self.addresses.get(peer, ())

    def _draw(self, peers: list[PeerId], n: int) -> list[PeerId]:
        return [peers[p] for p in self._rng.permutation(len(peers))[:n]]


def _put(held: OrderedDict[PeerId, Any], peer: PeerId, value: Any, most: int) -> None:
    """Hold a value for a peer, and let go of the oldest where there are too many."""
    held[peer] = value
    held.move_to_end(peer)
    if len(held) > most:
        held.popitem(last=False)
