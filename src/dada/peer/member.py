"""A peer with all it needs to live in a network: view, plan and limits around the core. Facts in, effects out.

Simulation and real node drive the same `Member`: they bring bytes and time, store what is to be stored, and carry
messages. Bytes from outside pass a rate limit and the codec; views go to the sampling service, words about friends to
the search for neighbours, all else to the peer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from dada.core.compiled import Array
from dada.peer.actions import GraphStep, Leave
from dada.peer.codec import CodecError, decode
from dada.peer.effects import Effect, Refused
from dada.peer.fallback import Fallback
from dada.peer.journal import Fact, GivenUp, Journal, Received, Restored, Started, TimerFired, acted, tell
from dada.peer.messages import (
    Descriptor,
    FriendsReply,
    FriendsRequest,
    Goodbye,
    Message,
    PeerId,
    ViewReply,
    ViewRequest,
)
from dada.peer.peer import Peer
from dada.peer.planner import Planner
from dada.peer.rate import RateLimit
from dada.peer.sampling import PeerSampling
from dada.peer.search import Search

# Exchanges of a newcomer's views that follow each other five times as fast as later ones.
HURRIED_EXCHANGES = 5


class Member:
    """One member of a network.

    Parameters
    ----------
    peer : Peer
        The learning core.
    sampling : PeerSampling
        Whom it knows.
    planner : Planner
        When it wakes, and for what.
    exchange_every_s : float
        Mean time between two exchanges of views.
    limit : RateLimit, optional
        How much others may say.
    journal : Journal, optional
        Where every fact that the peer is told is noted first.
    """

    def __init__(
        self,
        peer: Peer,
        sampling: PeerSampling,
        planner: Planner,
        exchange_every_s: float = 5.0,
        limit: RateLimit | None = None,
        journal: Journal | None = None,
    ) -> None:
        if not 0 < exchange_every_s < math.inf:
            raise ValueError(f"exchange_every_s must be > 0 and finite, got {exchange_every_s}")
        self.peer, self.sampling, self.planner = peer, sampling, planner
        self.exchange_every_s = exchange_every_s
        self.limit = RateLimit() if limit is None else limit
        self.search = Search(peer, sampling, planner.rng)
        self.fallback = Fallback(peer.user.A, peer.config)
        self.next_wakeup = self.next_exchange = math.inf
        self._journal = journal

    @property
    def me(self) -> PeerId:
        """The id of this member."""
        return self.peer.me

    @property
    def deadline(self) -> float:
        """When `on_timer` should next be called."""
        return min(self.next_wakeup, self.next_exchange, self.peer.deadline)

    @property
    def trusts_others(self) -> bool:
        """Whether the model learned together promises more than the one learned alone."""
        degree, pull = self.peer.neighbours_pull()
        return not self.fallback.is_better(self.peer.confidence, degree, pull)

    @property
    def model(self) -> Array:
        """The model to predict with: the one learned together, or the local one where that promises more."""
        return self.peer.model.alpha if self.trusts_others else self.fallback.alpha

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take up the records of an earlier life; call before `start`."""
        self._tell(Restored(records))
        self.planner.restore(records)
        self.sampling.restore(records)

    def start(self, now: float, known: Iterable[Descriptor] = ()) -> list[Effect]:
        """Begin, knowing some peers. A new member first learns alone, at once, so that others meet a model."""
        self.sampling.introduce(known)
        self.next_exchange = now
        self.next_wakeup = now + self.planner.wait_s()
        effects = self._tell(Started(now))
        while self.planner.is_alone:
            effects += self._tell(acted(self.planner.next_action(self.search), now))
        return [*effects, self.planner.record()]

    def on_timer(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        waiting = self.peer.round
        if self.peer.deadline <= now:
            effects += self._tell(TimerFired(now))
        if self.next_exchange <= now:
            # Exchanges come at nearly steady times, because views grow stale; a newcomer is in a hurry.
            hurry = 0.2 if self.sampling.exchanges < HURRIED_EXCHANGES else 1.0
            self.next_exchange = now + hurry * self.exchange_every_s * self.planner.jitter()
            effects += self.sampling.exchange()
        if self.next_wakeup <= now:
            self.next_wakeup = now + self.planner.wait_s()
            action = self.planner.next_action(self.search)
            effects += [self.planner.record(), *self._tell(acted(action, now))]
            effects += self.search.ask() if isinstance(action, GraphStep) else []
        if waiting is not None and self.peer.round is not waiting:
            for silent in set(waiting.batch) - waiting.replies.keys():
                self.sampling.doubt(silent)
        return effects

    def receive_bytes(self, sender: PeerId, data: bytes, now: float) -> list[Effect]:
        """Answer a message as it came from the wire."""
        if not self.limit.admits(sender, len(data), now):
            return [Refused(sender, "too many messages")]
        try:
            message = decode(data)
        except CodecError as error:
            return [Refused(sender, str(error))]
        return self.receive(sender, message, now)

    def receive(self, sender: PeerId, message: Message, now: float) -> list[Effect]:
        """Answer a message."""
        self.sampling.heard(sender)
        if isinstance(message, ViewRequest | ViewReply):
            return self.sampling.receive(sender, message)
        if isinstance(message, FriendsRequest | FriendsReply):
            return self.search.receive(sender, message)
        if isinstance(message, Goodbye):
            self.sampling.forget(sender)
        return self._tell(Received(now, sender, message))

    def introduce(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """A peer is known from elsewhere, and where it listens."""
        self.sampling.introduce([Descriptor(peer, 0, addresses)])
        self.search.learn(peer, addresses)

    def on_unreachable(self, peer: PeerId, now: float) -> list[Effect]:
        """The transport has given a peer up."""
        self.sampling.lose(peer)
        return self._tell(GivenUp(now, peer))

    def rest(self) -> None:
        """Make no more steps and exchanges; answer and repeat only."""
        self.next_wakeup = self.next_exchange = math.inf

    def leave(self, now: float) -> list[Effect]:
        """Say goodbye; nothing more is due afterwards."""
        self.rest()
        return self._tell(acted(Leave(), now))

    def _tell(self, fact: Fact) -> list[Effect]:
        if self._journal is not None:
            self._journal.note(fact)
        return tell(self.peer, fact)
