"""How much of one's attention another peer may take."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from dada.core.compiled import Array
from dada.peer.inputs import Action, Effect, GraphStep, Leave, ModelStep, Persist, Refused, ResetModel
from dada.peer.journal import Fact, GivenUp, Journal, Received, Restored, Started, TimerFired, acted, tell
from dada.peer.messages import (
    CodecError,
    Descriptor,
    FriendsReply,
    FriendsRequest,
    Goodbye,
    Message,
    PeerId,
    ViewReply,
    ViewRequest,
    decode,
)
from dada.peer.model import Fallback
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling, Search

# A message of this many bytes counts as one more.
BYTES_PER_MESSAGE = 1024


class RateLimit:
    """A bucket of messages for every sender: it fills at a steady rate, and each message takes from it.

    A long message counts as several and may leave a debt, so that every message up to the largest allowed can pass.

    Parameters
    ----------
    messages_per_s : float
        How fast a bucket fills.
    burst : float
        How much it holds.
    most_senders : int
        Buckets kept; those not used for longest are forgotten first.

    Examples
    --------
    >>> limit = RateLimit(messages_per_s=1.0, burst=2.0)
    >>> [limit.admits(b"ann", n_bytes=0, now=0.0) for _ in range(3)]
    [True, True, False]
    >>> limit.admits(b"ann", n_bytes=0, now=1.5)
    True
    """

    def __init__(self, messages_per_s: float = 50.0, burst: float = 500.0, most_senders: int = 4096) -> None:
        if not (messages_per_s > 0 and burst >= 1 and most_senders >= 1):
            raise ValueError(
                f"a rate must be > 0, a burst and the number of senders at least 1, "
                f"got {messages_per_s}, {burst}, {most_senders}"
            )
        self.messages_per_s, self.burst, self.most_senders = messages_per_s, burst, most_senders
        self._buckets: OrderedDict[PeerId, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def admits(self, sender: PeerId, n_bytes: int, now: float) -> bool:
        """Whether a message may be listened to; it then has been paid for."""
        left, seen = self._buckets.get(sender, (self.burst, now))
        left = min(self.burst, left + max(0.0, now - seen) * self.messages_per_s)
        is_admitted = left > 0.0
        if is_admitted:
            left -= 1.0 + n_bytes / BYTES_PER_MESSAGE
        self._buckets[sender] = (left, now)
        self._buckets.move_to_end(sender)
        if len(self._buckets) > self.most_senders:
            self._buckets.popitem(last=False)
        return is_admitted


RECORD_KEY = b"planner"


@dataclass(frozen=True)
class Rhythm:
    """How a peer divides its wake-ups.

    Parameters
    ----------
    local_steps : int
        Model steps before the first graph step.
    first_graph_steps : int
        Graph steps before the next model step.
    graph_every : int
        Model steps between two later graph steps.
    kappa : int
        Peers asked at a graph step.
    wakeups_per_s : float
        Mean rate of the peer's clock.
    restart : bool
        Start the model again from zero after the first graph steps, as in the paper.

    Examples
    --------
    >>> Rhythm(local_steps=10).kappa
    5
    """

    local_steps: int = 100
    first_graph_steps: int = 30
    graph_every: int = 5
    kappa: int = 5
    wakeups_per_s: float = 1.0
    restart: bool = False

    def __post_init__(self) -> None:
        for name, least in (("local_steps", 0), ("first_graph_steps", 0), ("graph_every", 1), ("kappa", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.wakeups_per_s < float("inf"):
            raise ValueError(f"wakeups_per_s must be > 0 and finite, got {self.wakeups_per_s}")


class Source(Protocol):
    """Knows whom to ask."""

    def sample(self, kappa: int) -> tuple[PeerId, ...]:
        """About so many distinct peers."""


class _Counters(msgspec.Struct, array_like=True):
    wakeups: int = 0
    model_steps: int = 0
    graph_steps: int = 0
    is_restarted: bool = False
    is_graph_next: bool = False


class Planner:
    """Decides what each wake-up of one peer is.

    Examples
    --------
    >>> from dada.peer.sampling import PeerSampling
    >>> rng = np.random.default_rng(0)
    >>> planner = Planner(Rhythm(local_steps=1, first_graph_steps=0, graph_every=2), rng)
    >>> nobody = PeerSampling(b"me", rng)
    >>> [type(planner.next_action(nobody)).__name__ for _ in range(5)]
    ['ModelStep', 'ModelStep', 'ModelStep', 'GraphStep', 'ModelStep']
    """

    def __init__(self, rhythm: Rhythm, rng: np.random.Generator) -> None:
        self.rhythm = rhythm
        self.rng = rng
        self._done = _Counters()

    @property
    def wakeups(self) -> int:
        """Wake-ups so far, in all lives of the peer."""
        return self._done.wakeups

    @property
    def is_alone(self) -> bool:
        """Whether the next step is one of the first, which have nothing to do with others."""
        return self._done.model_steps < self.rhythm.local_steps

    def wait_s(self) -> float:
        """The time until the next wake-up, drawn anew at each call."""
        return float(self.rng.exponential(1.0 / self.rhythm.wakeups_per_s))

    def jitter(self) -> float:
        """A factor around 1 that keeps what many peers do at steady times from happening all at once."""
        return float(self.rng.uniform(0.5, 1.5))

    def next_action(self, source: Source) -> Action:
        """What this wake-up is; graph steps ask the peers that the source names."""
        done, rhythm = self._done, self.rhythm
        done.wakeups += 1
        if not self.is_alone:
            if done.graph_steps < rhythm.first_graph_steps:
                done.graph_steps += 1
                return GraphStep(source.sample(rhythm.kappa))
            if rhythm.restart and not done.is_restarted:
                done.is_restarted = True
                return ResetModel()
            if done.is_graph_next:
                done.is_graph_next = False
                done.graph_steps += 1
                return GraphStep(source.sample(rhythm.kappa))
        done.model_steps += 1
        since_first = done.model_steps - rhythm.local_steps
        done.is_graph_next = since_first > 0 and since_first % rhythm.graph_every == 0
        return ModelStep()

    def record(self) -> Persist:
        """The counters, to be stored together with what the last action changed."""
        return Persist(RECORD_KEY, msgspec.msgpack.encode(self._done))

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Go on from stored counters, where there are any."""
        if RECORD_KEY in records:
            self._done = msgspec.msgpack.decode(records[RECORD_KEY], type=_Counters)


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
        degree, pull = self.peer.neighbour_sum()
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
            for peer in waiting.batch:
                if peer not in waiting.replies:
                    self.sampling.doubt(peer)
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
