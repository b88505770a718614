"""A member of a network: a peer, the plan of its wake-ups, its view, and a rate limit for others."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace

from dada.core.bits import OF_MODELS
from dada.core.compiled import Array
from dada.core.model_steps import UserRows
from dada.peer import inputs, messages
from dada.peer.census import FRACTIONS, Census
from dada.peer.edges import put_last
from dada.peer.grove import SharedGrove
from dada.peer.inputs import SUMS_KEY, Action, Effect, Fact, GraphStep, Persist, Refused, Send
from dada.peer.messages import (
    AtomMessage,
    BoostedMessage,
    CensusMessage,
    CodecError,
    Descriptor,
    FriendsMessage,
    ImplausibleError,
    Message,
    PeerId,
    ReleaseMessage,
    Statement,
    ViewMessage,
    decode,
)
from dada.peer.model import Fallback
from dada.peer.neighbourhoods import EvidenceGraph
from dada.peer.peer import Peer, PeerJournal
from dada.peer.sampling import PeerSampling, Search, draw
from dada.peer.signatures import Membership, Seal, content_of, statement_of, statements_in

# Most peers make no releases and no boosted trees, and these load scipy, a third of the memory of an idle peer.
if TYPE_CHECKING:
    from dada.peer.boosting import SharedBoosting
    from dada.peer.releases import SignedReleases
    from dada.privacy.release import Estimate

# This many bytes count as one more message.
BYTES_PER_MESSAGE = 1024


class RateLimit:
    """Per-sender rate limit: a bucket for each sender fills at a steady rate, and each message takes from it.

    A long message counts as several and may leave a debt, so that even the largest message can pass. A bucket holds
    `burst` messages. Of more than `most_senders` buckets the least recently used are forgotten.

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
        """Whether a message may pass; if so, it is charged to its sender."""
        left, seen = self._buckets.get(sender, (self.burst, now))
        left = min(self.burst, left + max(0.0, now - seen) * self.messages_per_s)
        is_admitted = left > 0.0
        if is_admitted:
            left -= 1.0 + n_bytes / BYTES_PER_MESSAGE
        put_last(self._buckets, sender, (left, now), self.most_senders)
        return is_admitted

    def is_exhausted(self, sender: PeerId) -> bool:
        """Whether a sender had nothing left after its last message."""
        return sender in self._buckets and self._buckets[sender][0] <= 0.0


RECORD_KEY = b"planner"


@dataclass(frozen=True)
class Rhythm:
    """The order of a peer's model steps and graph steps.

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


class _Counters(msgspec.Struct, array_like=True):
    wakeups: int = 0
    model_steps: int = 0
    graph_steps: int = 0
    is_restarted: bool = False
    is_graph_next: bool = False


class Planner:
    """Decides on the action of each wake-up of one peer.

    Examples
    --------
    >>> planner = Planner(Rhythm(local_steps=1, first_graph_steps=0, graph_every=2), np.random.default_rng(0))
    >>> [type(planner.next_action(lambda kappa: (), now=0.0)).__name__ for _ in range(5)]
    ['ModelStep', 'ModelStep', 'ModelStep', 'GraphStep', 'ModelStep']
    """

    def __init__(self, rhythm: Rhythm, rng: np.random.Generator) -> None:
        self.rhythm = rhythm
        self.rng = rng
        self._done = _Counters()

    @property
    def wakeups(self) -> int:
        """Wake-ups in all lives of the peer."""
        return self._done.wakeups

    @property
    def is_alone(self) -> bool:
        """Whether the next step is one of the first, which are made without others."""
        return self.joint_steps < 0

    @property
    def joint_steps(self) -> int:
        """Model steps after the first, which are made without others; below zero before."""
        return self._done.model_steps - self.rhythm.local_steps

    def wait_s(self) -> float:
        """Draw the time until the next wake-up."""
        return float(self.rng.exponential(1.0 / self.rhythm.wakeups_per_s))

    def jitter(self) -> float:
        """Draw a factor around 1, so that periodic work of many peers does not coincide."""
        return float(self.rng.uniform(0.5, 1.5))

    def next_action(self, sample: Callable[[int], tuple[PeerId, ...]], now: float) -> Action:
        """The action of this wake-up; `sample(kappa)` draws the batch of a graph step."""
        done, rhythm = self._done, self.rhythm
        done.wakeups += 1
        if not self.is_alone:
            is_first = done.graph_steps < rhythm.first_graph_steps
            if rhythm.restart and not (is_first or done.is_restarted):
                done.is_restarted = True
                return inputs.ResetModel(now)
            if is_first or done.is_graph_next:
                done.is_graph_next = False
                done.graph_steps += 1
                return GraphStep(now, sample(rhythm.kappa))
        done.model_steps += 1
        since_first = done.model_steps - rhythm.local_steps
        done.is_graph_next = since_first > 0 and since_first % rhythm.graph_every == 0
        return inputs.ModelStep(now)

    def record(self) -> Persist:
        """The counters, to be stored."""
        return Persist(RECORD_KEY, msgspec.msgpack.encode(self._done))

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Continue from stored counters."""
        if RECORD_KEY in records:
            self._done = msgspec.msgpack.decode(records[RECORD_KEY], type=_Counters)


# First exchanges of views, which follow each other five times as fast as later ones.
HURRIED_EXCHANGES = 5
# Time between a change of the records of trees and that of the dictionary, in times between two exchanges.
ADOPTED_AFTER = 0.4
# Peers asked for witnesses at each wake-up of a peer that has doubted a neighbour.
ASKED_IN_DOUBT = 2
# Model steps with others, block steps or single moves, after which a peer judges the strength of the coupling.
JUDGED_AFTER, JUDGED_AFTER_MOVES = 12, 100
# Messages with statements of peers about models, or of the founder about members.
SIGNED = messages.FollowAck | messages.SnapshotReply | messages.Witness | messages.Equivocation | messages.Revocation


class Member:
    """One member of a network.

    The planner decides when it wakes, and for which action. It exchanges views every `exchange_every_s` seconds on
    average. The journal records every fact before the peer handles it. The seal of its view also signs what the peer
    states about its model, and verifies what others state. In a network with a founder, `membership` verifies lists of
    revoked members.

    If the peer learns from released rows, `exact` are the user's exact ones. Only the home model depends on them, which
    predicts and is never sent. With `releases`, the member protects its rows: it makes no steps, and exchanges releases
    along with views, from which its home model is learned.

    With a `grove`, trees of all members are base predictors next to those of the network (see `dada.peer.grove`).
    With `boosting`, it grows boosted trees with others, whose decision values stand beside those of its model (see
    `dada.peer.boosting`).
    """

    def __init__(
        self,
        peer: Peer,
        sampling: PeerSampling,
        planner: Planner,
        exchange_every_s: float = 5.0,
        limit: RateLimit | None = None,
        journal: PeerJournal | None = None,
        exact: UserRows | None = None,
        kept: float = 1.0,
        releases: SignedReleases | None = None,
        membership: Membership | None = None,
        grove: SharedGrove | None = None,
        boosting: SharedBoosting | None = None,
    ) -> None:
        if not 0 < exchange_every_s < math.inf:
            raise ValueError(f"exchange_every_s must be > 0 and finite, got {exchange_every_s}")
        self.peer, self.sampling, self.planner = peer, sampling, planner
        self.exchange_every_s = exchange_every_s
        self.limit = RateLimit() if limit is None else limit
        self.search = Search(peer, sampling, planner.rng)
        self.is_private = exact is not None
        self.fallback = Fallback(peer.own.rows if exact is None else exact, peer.config, kept)
        self.next_wakeup = self.next_exchange = math.inf
        self.journal = journal
        self.releases = releases
        self.membership = membership
        protects = exact is not None or releases is not None
        if grove is not None and (protects or not peer.config.sends_codes):
            raise ValueError('trees need the step "block", and a peer that protects nothing')
        self.grove = grove
        if boosting is not None and protects:
            raise ValueError("boosted trees need a peer that protects nothing: histograms reveal labels")
        self.boosting = boosting
        self._informed: set[PeerId] = set()
        self._signature: tuple[Statement, bytes] | None = None
        # A peer that protects its rows does not publish their number.
        has_census = peer.config.mu_per_confidence is not None and releases is None
        self.census = Census(peer.me, peer.config, self.seal) if has_census else None
        self._agreed = (peer.config.mu1, peer.config.known_largest)

    @property
    def me(self) -> PeerId:
        """The id of this member."""
        return self.peer.me

    @property
    def seal(self) -> Seal:
        """Signs for this member."""
        return self.sampling.seal

    @property
    def deadline(self) -> float:
        """When `on_timer` is due."""
        due = math.inf if self.grove is None else self.grove.due
        grown = math.inf if self.boosting is None else self.boosting.deadline
        return min(self.next_wakeup, self.next_exchange, self.peer.deadline, due, grown)

    @property
    def trusts_others(self) -> bool:
        """Whether the model learned with others is preferred to the fallback model."""
        degree, neighbour_sum = self.peer.edges.neighbour_sum()
        return not self.fallback.is_better(self.peer.neighbourhood.sizes.confidence, degree, neighbour_sum)

    @property
    def model(self) -> Array:
        """The model to predict with: the one learned with others, or the fallback model."""
        if self.releases is not None:
            return self.releases.home_model(self.planner.rng).astype(self.peer.config.dtype)
        if not self.trusts_others:
            return self.fallback.alpha
        return self._home_model() if self.is_private else self.peer.own.model.alpha

    def _home_model(self) -> Array:
        """A model learned from exact rows next to the neighbours' models."""
        degree, neighbour_sum = self.peer.edges.neighbour_sum()
        return self.fallback.together(self.peer.neighbourhood.sizes.confidence, degree, neighbour_sum)

    def restore(self, records: dict[bytes, bytes]) -> None:
        """Take over the records of an earlier life; call before `start`."""
        if self.grove is not None:
            self.grove.restore(records, self.peer.own.stored_dictionary(records))
            self._rebase(self.grove, [], 0.0)
        # A journal does not contain the secrets of a sum.
        self._handle(inputs.Restored({key: value for key, value in records.items() if key != SUMS_KEY}))
        self._exclude()
        self.planner.restore(records)
        self.sampling.restore(records)
        if self.releases is not None:
            self.releases.restore(records)
        if self.census is not None:
            self.census.restore(records)
        if self.boosting is not None:
            self.boosting.restore(records)

    def start(self, now: float, known: Iterable[Descriptor] = (), life: bytes = b"") -> list[Effect]:
        """Begin a life, with some known peers and a random id. A new member first makes its local steps."""
        self.sampling.introduce(known)
        self.next_exchange = now
        effects = self._handle(inputs.Started(now, life))
        if self.releases is not None:
            return effects
        if self.grove is not None:
            effects += [*self.grove.plant(), *self._change_dictionary(self.grove, now), *self.grove.forget()]
        if self.boosting is not None:
            effects += self.boosting.start()
        effects += self._publish(now)
        self.next_wakeup = now + self.planner.wait_s()
        while self.planner.is_alone:
            effects += self._handle(self.planner.next_action(self.search.sample, now))
        return [*effects, self.planner.record()]

    def on_timer(self, now: float) -> list[Effect]:
        """Do all that is due."""
        effects: list[Effect] = []
        if self.grove is not None and self.grove.due <= now:
            effects += self._change_dictionary(self.grove, now)
        if self.boosting is not None and self.boosting.deadline <= now:
            effects += self._boost(self.boosting, lambda boosting: boosting.on_timer(now, self._draw_linked))
        waiting = self.peer.neighbourhood.rounds.current
        if self.peer.deadline <= now:
            effects += self._handle(inputs.TimerFired(now))
        if self.next_exchange <= now:
            # Views become stale, so exchanges are nearly periodic; those of a newcomer are faster.
            hurry = 0.2 if self.sampling.exchanges < HURRIED_EXCHANGES else 1.0
            self.next_exchange = now + hurry * self.exchange_every_s * self.planner.jitter()
            self._informed.clear()
            exchange = self.sampling.exchange()
            effects += exchange
            for partner in (effect.to for effect in exchange if isinstance(effect, Send)):
                if isinstance(self.peer.neighbourhood, EvidenceGraph):
                    effects += self.peer.neighbourhood.ask_for_witness(partner)
                if self.releases is not None:
                    effects += self.releases.ask(partner)
                if self.census is not None:
                    effects.append(Send(partner, self.census.summary()))
                if self.grove is not None:
                    effects += self.grove.ask(partner)
                if self.boosting is not None:
                    effects += self.boosting.ask(partner)
        if self.next_wakeup <= now:
            self.next_wakeup = now + self.planner.wait_s()
            action = self.planner.next_action(self.search.sample, now)
            effects += [self.planner.record(), *self._handle(action)]
            effects += self.search.ask() if isinstance(action, GraphStep) else []
            effects += [*self._judge(now), *self._ask_in_doubt()]
            if self.boosting is not None and self.sampling.exchanges >= HURRIED_EXCHANGES:
                view, rng = list(self.sampling.view), self.planner.rng
                effects += self._boost(self.boosting, lambda boosting: boosting.wake(view, now, rng))
        if waiting is not None and self.peer.neighbourhood.rounds.current is not waiting:
            for peer in waiting.batch:
                if peer not in waiting.replies:
                    self.sampling.doubt(peer)
        return effects

    def _ask_in_doubt(self) -> list[Effect]:
        """Ask for witnesses at every wake-up once some neighbour was doubted: liars are seldom alone."""
        graph = self.peer.neighbourhood
        if not isinstance(graph, EvidenceGraph) or not graph.doubts:
            return []
        partners = draw(self.planner.rng, list(self.sampling.view), ASKED_IN_DOUBT)
        return [effect for partner in partners for effect in graph.ask_for_witness(partner)]

    def receive_bytes(self, sender: PeerId, data: bytes, now: float) -> list[Effect]:
        """Answer an encoded message."""
        if not self.limit.admits(sender, len(data), now):
            return [Refused(sender, "too many messages")]
        try:
            message = decode(data)
        except CodecError as error:
            return [Refused(sender, str(error)), *self.peer.offend(sender)]
        return self.receive(sender, message, now)

    def receive(self, sender: PeerId, message: Message, now: float) -> list[Effect]:
        """Answer a message."""
        self.sampling.trust(sender)
        if isinstance(message, ViewMessage):
            return self.peer.guarded(sender, message, lambda: self._exchange_views(sender, message))
        if isinstance(message, FriendsMessage):
            return self.peer.guarded(sender, message, lambda: self.search.receive(sender, message))
        if isinstance(message, ReleaseMessage):
            releases = self.releases
            answer = (lambda: None) if releases is None else (lambda: releases.receive(sender, message))
            return self.peer.guarded(sender, message, answer)
        if isinstance(message, CensusMessage):
            return self.peer.guarded(sender, message, lambda: self._on_census(sender, message, now))
        if isinstance(message, AtomMessage):
            return self.peer.guarded(sender, message, lambda: self._on_atoms(sender, message, now))
        if isinstance(message, BoostedMessage):
            return self.peer.guarded(sender, message, lambda: self._on_boosted(sender, message, now))
        if isinstance(message, SIGNED) and not self._is_genuine(sender, message):
            return [Refused(sender, "a statement with a false signature"), *self.peer.offend(sender)]
        if isinstance(message, messages.Goodbye):
            self.sampling.forget(sender)
        elif isinstance(message, messages.Hello):
            self.sampling.meet(sender)
        effects = self._handle(inputs.Received(now, sender, message))
        if isinstance(message, messages.Revocation):
            self._exclude()
        if self.boosting is not None and isinstance(message, messages.Hello):
            effects += [] if self.peer.ignores(sender) or self.me > sender else [Send(sender, self.boosting.request())]
        return effects if self.grove is None else [*effects, *self._compare_trees(self.grove, sender, message)]

    def on_unreachable(self, peer: PeerId, now: float) -> list[Effect]:
        """The transport has stopped trying to reach a peer."""
        self.sampling.lose(peer)
        return self._handle(inputs.Unreachable(now, peer))

    def change_rows(self, rows: UserRows, now: float) -> list[Effect]:
        """Learn from these samples from now on; a private member cannot, because its labels are released once."""
        assert not self.is_private
        assert self.grove is None
        assert self.boosting is None
        self.fallback = Fallback(rows, self.peer.config)
        self.fallback.couple(self.peer.own.mu)
        return [*self._handle(inputs.RowsChanged(now, inputs.StoredRows.of(rows))), *self._publish(now)]

    # -- trees -----------------------------------------------------------------------------------------------------

    def _compare_trees(self, grove: SharedGrove, sender: PeerId, message: Message) -> list[Effect]:
        """Compare records of trees at each greeting, and with the sender of a model over an unknown dictionary."""
        if self.peer.ignores(sender):
            return []
        if isinstance(message, messages.Hello):
            # Both ends greet, one asks.
            return [Send(sender, grove.request())] if self.me < sender else []
        snapshot = getattr(message, "snapshot", None)
        return [] if snapshot is None else grove.ask_about(sender, snapshot.coordinates)

    def _on_atoms(self, sender: PeerId, message: AtomMessage, now: float) -> list[Effect] | None:
        if self.grove is None:
            return None
        before, bits = self.grove.records.digest, self.grove.sent_bits
        effects = self.grove.receive(sender, message)
        self.peer.neighbourhood.ledger.coded[OF_MODELS] += self.grove.sent_bits - bits
        if self.grove.records.digest != before:
            self.grove.due = min(self.grove.due, now + ADOPTED_AFTER * self.exchange_every_s)
        return effects

    def _change_dictionary(self, grove: SharedGrove, now: float) -> list[Effect]:
        """Adopt the trees of all records, and keep those in use; earlier dictionaries are forgotten at the end."""
        names = grove.names
        effects = [*grove.keep(self.trees_in_use), *grove.adopt()]
        if grove.names == names:
            return effects
        return [*effects, *self._rebase(grove, names, now), *grove.forget()]

    def _rebase(self, grove: SharedGrove, before: list[bytes], now: float) -> list[Effect]:
        rows, origin = grove.rows(), grove.origin(before)
        fact = inputs.DictionaryChanged(now, grove.name, origin.astype("<i4").tobytes(), inputs.StoredRows.of(rows))
        effects = self._handle(fact)
        self.fallback = Fallback(rows, self.peer.config)
        self.fallback.couple(self.peer.own.mu)
        return effects

    @property
    def trees_in_use(self) -> set[bytes]:
        """Names of the trees that the model of this peer or a copy of a neighbour's has a weight for."""
        if self.grove is None:
            return set()
        own = self.peer.own
        held = (own.model, own.shared, *(copy for _, copy in self.peer.edges.models()))
        return self.grove.used_by([copy.alpha for copy in held])

    # -- boosted trees ---------------------------------------------------------------------------------------------

    def _on_boosted(self, sender: PeerId, message: BoostedMessage, now: float) -> list[Effect] | None:
        if self.boosting is None:
            return None
        return self._boost(self.boosting, lambda boosting: boosting.receive(sender, message, now, self._draw_linked))

    def _boost(self, boosting: SharedBoosting, happen: Callable[[SharedBoosting], list[Effect]]) -> list[Effect]:
        """Let something happen to the boosted trees, and count its bits."""
        bits = boosting.sent_bits
        effects = happen(boosting)
        self.peer.neighbourhood.ledger.coded[OF_MODELS] += boosting.sent_bits - bits
        return effects

    def _draw_linked(self, n: int) -> list[PeerId]:
        """Draw linked peers; of the view, if there are none."""
        linked = sorted({*self.peer.edges.neighbours, *self.peer.neighbourhood.followers})
        return draw(self.planner.rng, linked or list(self.sampling.view), n)

    # -- settings --------------------------------------------------------------------------------------------------

    def _publish(self, now: float) -> list[Effect]:
        """Publish the number of samples in the census, if the network has one."""
        if self.census is None:
            return []
        return [*self.census.publish(self.peer.own.size), *self._agree(self.census, now)]

    def _judge(self, now: float) -> list[Effect]:
        """Publish once what a weaker coupling gains; a private member does not, because its exact rows would decide."""
        census, own = self.census, self.peer.own
        due = JUDGED_AFTER if self.peer.config.sends_codes else JUDGED_AFTER_MOVES
        if census is None or census.is_judged or self.is_private or own.n_samples < 2 or self.planner.joint_steps < due:
            return []
        degree, neighbour_sum = self.peer.edges.neighbour_sum()
        if degree <= 0.0:
            return []
        confidence = self.peer.neighbourhood.sizes.confidence
        gains = self.fallback.gains(census.whole_mu, FRACTIONS, confidence, degree, neighbour_sum)
        return [*census.publish_gains(gains), *self._agree(census, now)]

    def _on_census(self, sender: PeerId, message: CensusMessage, now: float) -> list[Effect] | None:
        if self.census is None:
            return None
        return [*self.census.receive(sender, message), *self._agree(self.census, now)]

    def _agree(self, census: Census, now: float) -> list[Effect]:
        """Take over the settings that follow from the census, if they have changed."""
        agreed = census.mu, census.largest
        if agreed == self._agreed:
            return []
        self._agreed = agreed
        self.fallback.couple(census.mu)
        return self._handle(inputs.SettingsAgreed(now, *agreed))

    @property
    def release_estimate(self) -> Estimate:
        """Whether to make a release now; not before others had time to return an earlier one.

        A release that was made is always sent: its budget is spent.
        """
        assert self.releases is not None
        found = self.releases.estimate(len(self.sampling.view))
        if found.send and (self.sampling.exchanges <= HURRIED_EXCHANGES or not self.sampling.view):
            return found._replace(send=False, reason="Nothing is sent yet: the first peers are being met.")
        return found

    def rest(self) -> None:
        """Make no more steps and exchanges; only answer and repeat messages."""
        self.next_wakeup = self.next_exchange = math.inf
        if self.boosting is not None:
            self.boosting.rest()
        if self.grove is not None:
            self.grove.rest()

    def leave(self, now: float) -> list[Effect]:
        """Send goodbyes; nothing is due afterwards."""
        self.rest()
        return self._handle(inputs.Leave(now))

    def _exchange_views(self, sender: PeerId, message: ViewMessage) -> list[Effect]:
        """Answer with the view, and once between two exchanges with the list of revoked members, if it is newer."""
        effects = self.sampling.receive(sender, message)
        if message.revocations < self.peer.revocation.counter and sender not in self._informed:
            self._informed.add(sender)
            effects.append(Send(sender, self.peer.revocation))
        return effects

    def _exclude(self) -> None:
        """Drop revoked members from the view."""
        if self.sampling.revocations != self.peer.revocation.counter:
            self.sampling.revocations = self.peer.revocation.counter
            self.sampling.exclude(self.peer.revoked)

    def _handle(self, fact: Fact) -> list[Effect]:
        if self.journal is not None:
            self.journal.write(fact)
        effects = [self._signed(effect) for effect in self.peer.handle(fact)]
        self.sampling.epoch = self.peer.own.shared.epoch
        return effects

    def _signed(self, effect: Effect) -> Effect:
        """The effect, with this peer's signature of the statement about its model, if any."""
        if not isinstance(effect, Send) or not isinstance(self.peer.neighbourhood, EvidenceGraph):
            return effect
        message = effect.message
        is_statement = isinstance(message, messages.FollowAck) and message.digest
        if not (is_statement or isinstance(message, messages.SnapshotReply)):
            return effect
        statement = statement_of(self.peer.own.shared)
        if self._signature is None or self._signature[0] != statement:
            self._signature = statement, self.seal.sign(content_of(statement))
        return Send(effect.to, replace(message, signature=self._signature[1]))

    def _is_genuine(self, sender: PeerId, message: Message) -> bool:
        """Whether all statements in a message are signed by the peers that they are about, or by the founder."""
        if isinstance(message, messages.Revocation):
            is_old = message.counter <= self.peer.revocation.counter
            return is_old or (self.membership is not None and self.membership.is_genuine(message))
        edges = self.peer.edges
        if isinstance(message, messages.Witness) and not edges.has_neighbour(message.owner):
            return True
        is_evidence = isinstance(self.peer.neighbourhood, EvidenceGraph)
        if isinstance(message, messages.SnapshotReply) and not (is_evidence and edges.has_neighbour(sender)):
            # Nobody signs in other graphs, and models of other peers are ignored.
            return True
        try:
            statements = statements_in(sender, message, self.peer.own)
        except ImplausibleError:
            # The peer refuses the model.
            return True
        return all(self.seal.verify(owner, content_of(one), one.signature) for owner, one in statements)
