"""Whom does a graph step ask? Some peers at random, and neighbours of neighbours.

Friends of friends are likely friends. In a network that is larger than a view, most of a batch comes from the
neighbours' neighbours, in the same proportions as in the compiled engine (`dada.core.gossip`): at least one peer is
always drawn from everybody, and a few present neighbours are asked again. At each graph step some neighbours are asked
for their neighbours, and what they answer serves the next one. Until there are answers, peers of the view take their
place. A network that fits a view is known in full, and batches are drawn from all of it.

*Privacy.* Whom one learns from is told to those who learn from oneself, and to nobody else.

*Liars.* What an answer can do is bounded: a few well-formed descriptors, from a neighbour that was asked, each good for
one question.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from dada.core.gossip import gossip_mix
from dada.peer.effects import Effect, Refused, Send
from dada.peer.messages import Descriptor, FriendsReply, FriendsRequest, PeerId
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling, flaw_of

# Neighbours that an answer names, candidates kept for the next graph steps, neighbours whose answers are awaited,
# and answers of each.
FRIENDS_TOLD, MOST_CANDIDATES, MOST_ASKED, MOST_ANSWERS = 4, 32, 8, 4
# Peers whose addresses are remembered beside those of the view.
MOST_ADDRESSES = 1024


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
            _put(self.addresses, peer, addresses, MOST_ADDRESSES)

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
