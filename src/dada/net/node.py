"""What a node tells those who watch it. Watching changes nothing."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from dada.core.compiled import Array
from dada.events import heaviest_predictors
from dada.net.handshake import HandshakeError, Introduction, Terms
from dada.net.home import TRUST_KEY, write_ticket
from dada.net.links import LinkOptions, Links
from dada.net.store import Store, StoreError, damaged
from dada.net.transport import Transport
from dada.peer.inputs import Effect, Persist, Refused, Send
from dada.peer.journal import PeerJournal
from dada.peer.member import Member
from dada.peer.messages import Descriptor, Hello, Message, ModelDelta, PeerId, encode


@dataclass(frozen=True)
class Listening:
    """The node is up; `ticket` lets others join."""

    me: PeerId
    ticket: str


@dataclass(frozen=True)
class LinkOpened:
    """A link to a peer is open."""

    me: PeerId
    peer: PeerId


@dataclass(frozen=True)
class LinkClosed:
    """The link to a peer has ended, and why."""

    me: PeerId
    peer: PeerId
    reason: str


@dataclass(frozen=True)
class LinkRefused:
    """A link was refused by this end or the other, and why."""

    me: PeerId
    peer: PeerId
    reason: str


@dataclass(frozen=True)
class MessageRefused:
    """A message was not acted upon, and why."""

    me: PeerId
    peer: PeerId
    reason: str


@dataclass(frozen=True)
class PeerGone:
    """A neighbour could not be reached for long, and its edge is dropped."""

    me: PeerId
    peer: PeerId


@dataclass(frozen=True, eq=False)
class NodeStatus:
    """How the node does, once per `status_every_s` seconds; see `Node.status`."""

    me: PeerId
    status: Mapping[str, Any]


NodeEvent = Listening | LinkOpened | LinkClosed | LinkRefused | MessageRefused | PeerGone | NodeStatus


def unwatched(event: NodeEvent) -> None:
    """The observer that does nothing."""


BEAT_EVERY_S = 1.0
# Time that a leaving node gives its last words.
FAREWELL_S = 0.5
ADDRESSES_KEY = b"addresses"
# Judging whether to trust others learns some models again, for the tenth part of a second.
TRUST_EVERY_S = 60.0
# The first of January 2020.
START_OF_EPOCHS = 1_577_836_800

_address_book = msgspec.msgpack.Decoder(dict[bytes, tuple[str, ...]])


def first_epoch(now: float) -> int:
    """The epoch before the first life of a peer without stored state, given the time since 1970.

    A peer whose state was lost must not come back with an epoch of an earlier life, so it is taken from the clock: one
    every ten seconds is more than any peer restarts, and few enough to leave room for versions in 64 bits.

    >>> first_epoch(1_800_000_000.0)
    22216320
    """
    return int(now - START_OF_EPOCHS) // 10


def _heaviest(model: Array) -> list[tuple[int, float]]:
    """The base predictors that weigh most in a model, and their weights."""
    numbers, weights = heaviest_predictors(model[None, :])
    return [(int(j), float(weight)) for j, weight in zip(numbers[0], weights[0], strict=True) if j >= 0]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


class Node:
    """A running member of a network.

    Parameters
    ----------
    member : Member
        The state machine, fresh; it takes up what the store holds.
    transport : Transport
        Its access to the network.
    store : Store
        Its durable state.
    terms : Terms
        Whom it talks to.
    rng : numpy.random.Generator
        Its chance.
    observer : function of one event
        Told what happens; see `dada.net.node`.
    options : LinkOptions
        How links are treated.
    journal : PeerJournal, optional
        The member's journal, closed when the node stops.
    """

    def __init__(
        self,
        member: Member,
        transport: Transport,
        store: Store,
        terms: Terms,
        rng: np.random.Generator,
        observer: Callable[[NodeEvent], None] = unwatched,
        options: LinkOptions | None = None,
        journal: PeerJournal | None = None,
    ) -> None:
        self.member, self.transport, self.store = member, transport, store
        self.observer = observer
        self.messages_refused = 0
        self.is_up = False
        self._clock = asyncio.get_running_loop().time
        self.links = Links(transport, terms, self, rng, self._clock, options)
        self._journal = journal
        self._failure: StoreError | None = None
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._sleeping_until = math.inf
        self._encoded: tuple[Message, bytes] | None = None
        self._stored_addresses: dict[bytes, tuple[str, ...]] = {}
        self._judge_at = self._clock() + TRUST_EVERY_S

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self, known: Iterable[Descriptor] = (), leave: bool = False) -> None:
        """Live until `stop` is called.

        Parameters
        ----------
        known : iterable of Descriptor
            Peers to begin with, from tickets.
        leave : bool
            Say goodbye for good at the end: neighbours then drop this peer at once instead of awaiting its return.
        """
        known = list(known)
        try:
            records = self.store.records()
            records.setdefault(b"epoch", first_epoch(time.time()).to_bytes(8, "big"))
            self._restore(records)
            self._recall_addresses(records, known)
            self._perform(self.member.start(self._clock(), known))
            accepting = asyncio.create_task(self.links.accept_all())
            self.is_up = True
            self.observer(Listening(self.member.me, self.ticket))
            try:
                await self._live()
                self._judge_others()
                if leave and self._failure is None:
                    self._perform(self.member.leave(self._clock()))
                    await asyncio.sleep(FAREWELL_S)
            finally:
                accepting.cancel()
        finally:
            await self.links.close()
            if self._journal is not None:
                self._journal.close()
        if self._failure is not None:
            raise self._failure

    def _restore(self, records: dict[bytes, bytes]) -> None:
        try:
            self.member.restore(records)
        except ValueError as error:
            raise damaged(self.store.path, str(error)) from error

    def stop(self) -> None:
        """Let `run` come to its end."""
        self._is_stopping = True
        self._changed.set()

    async def _live(self) -> None:
        next_beat = self._clock()
        while not self._is_stopping:
            now = self._clock()
            if self.member.deadline <= now:
                self._perform(self.member.on_timer(now))
            if next_beat <= now:
                next_beat = now + BEAT_EVERY_S
                self._beat()
            self._sleeping_until = min(next_beat, self.member.deadline)
            self._changed.clear()
            if self._is_stopping:
                return
            try:
                async with asyncio.timeout_at(self._sleeping_until):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _beat(self) -> None:
        peer = self.member.peer
        self.links.neighbours = dict.fromkeys((*peer.edges.neighbours, *peer.neighbourhood.followers))
        self.links.beat()
        self._remember_addresses()
        if self._judge_at <= self._clock():
            self._judge_others()
        # A status asks every link; in a process of many nodes nobody may want it each second.
        if self.observer is not unwatched:
            self.observer(NodeStatus(self.member.me, self.status()))

    # -- effects ---------------------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        """Store first, then speak; a node that cannot store falls silent."""
        if self._failure is not None:
            return
        changes = [effect for effect in effects if isinstance(effect, Persist)]
        if changes:
            try:
                self.store.write(changes)
            except StoreError as error:
                self._failure = error
                self.stop()
                return
        for effect in effects:
            if isinstance(effect, Send):
                self.links.send(effect.to, self._bytes_of(effect.message), isinstance(effect.message, ModelDelta))
            elif isinstance(effect, Refused):
                self.messages_refused += 1
                self.observer(MessageRefused(self.member.me, effect.sender, effect.reason))
        if self.member.deadline < self._sleeping_until:
            self._changed.set()

    def _bytes_of(self, message: Message) -> bytes:
        """A move goes to all neighbours, and is encoded once."""
        if self._encoded is None or self._encoded[0] is not message:
            self._encoded = (message, encode(message))
        return self._encoded[1]

    # -- what links ask and tell -----------------------------------------------------------------------------------

    def hello(self) -> Hello:
        """See `LinkUser`."""
        return self.member.peer.hello()

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """See `LinkUser`."""
        return self.member.search.addresses_of(peer)

    def on_bytes(self, peer: PeerId, content: bytes) -> None:
        """See `LinkUser`."""
        self._perform(self.member.receive_bytes(peer, content, self._clock()))

    def on_open(self, peer: PeerId, introduction: Introduction) -> None:
        """See `LinkUser`."""
        self.observer(LinkOpened(self.member.me, peer))
        self.member.introduce(peer, introduction.addresses)
        self._perform(self.member.receive(peer, introduction.hello, self._clock()))

    def on_closed(self, peer: PeerId, reason: str) -> None:
        """See `LinkUser`."""
        self.observer(LinkClosed(self.member.me, peer, reason))

    def on_refused(self, peer: PeerId, error: HandshakeError) -> None:
        """See `LinkUser`."""
        self.observer(LinkRefused(self.member.me, peer, str(error)))

    def on_gone(self, peer: PeerId) -> None:
        """See `LinkUser`."""
        self.observer(PeerGone(self.member.me, peer))
        self._perform(self.member.on_unreachable(peer, self._clock()))

    # -- addresses -------------------------------------------------------------------------------------------------

    def _recall_addresses(self, records: dict[bytes, bytes], known: list[Descriptor]) -> None:
        if ADDRESSES_KEY in records:
            self._stored_addresses = _address_book.decode(records[ADDRESSES_KEY])
        for peer, addresses in self._stored_addresses.items():
            self.links.learn(peer, addresses)
            self.member.search.note_addresses(peer, addresses)
        for descriptor in known:
            self.links.learn(descriptor.peer, descriptor.addresses)

    def _remember_addresses(self) -> None:
        """Store where neighbours listen, so that a restarted peer finds them by itself."""
        found = {peer: self.links.addresses_of(peer) for peer in self.links.neighbours}
        found = {peer: addresses for peer, addresses in found.items() if addresses}
        if found != self._stored_addresses:
            self._stored_addresses = found
            self._perform([Persist(ADDRESSES_KEY, msgspec.msgpack.encode(found))])

    def _judge_others(self) -> None:
        """Decide whether predictions should rely on others; stored, because copies of neighbours' models are not."""
        self._judge_at = self._clock() + TRUST_EVERY_S
        self._perform([Persist(TRUST_KEY, b"yes" if self.member.trusts_others else b"no")])

    # -- what can be read ------------------------------------------------------------------------------------------

    @property
    def ticket(self) -> str:
        """Text that lets another peer join by this one."""
        return write_ticket(Descriptor(self.member.me, 0, self.transport.addresses))

    def status(self) -> dict[str, Any]:
        """How this node does, as JSON takes it."""
        peer, own, traffic = self.member.peer, self.member.peer.own, self.links.traffic
        messages, floats, indices = (int(count) for count in peer.neighbourhood.bits_counted)
        return {
            "id": peer.me.hex(),
            "ticket": self.ticket,
            "epoch": own.model.epoch,
            "samples": own.size,
            "wakeups": self.member.planner.wakeups,
            "model_updates": own.updates,
            "model_size": int(own.model.n_support),
            "loss": own.loss,
            "accuracy": float(np.mean(own.user.margins > 0)),
            "heaviest": _heaviest(own.model.alpha),
            "neighbours": {other.hex(): peer.edges[other].weight for other in peer.edges.neighbours},
            "known_peers": len(self.member.sampling.peers),
            "links": len(self.links.sessions),
            "round_trips_ms": {other.hex(): _ms(link.round_trip_s) for other, link in self.links.sessions.items()},
            "messages_sent": traffic.messages_sent,
            "messages_received": traffic.messages_received,
            "payload_bytes": traffic.bytes_sent,
            "wire_bytes": self.links.wire_bytes,
            "messages_dropped": traffic.dropped + self.links.lost_messages,
            "messages_refused": self.messages_refused,
            "links_refused": dict(self.links.refused),
            "dials": self.links.dials,
            "dials_failed": self.links.failed_dials,
            "paper_messages": messages,
            "paper_floats": floats,
            "paper_indices": indices,
        }
