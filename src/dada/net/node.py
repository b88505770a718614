"""A node: runs a peer's state machine on a real network, clock and disk, and reports events to an observer.

Effects of the state machine are stored before they are sent. Observing changes nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from dada.core.compiled import Array
from dada.core.model_steps import UserRows
from dada.events import heaviest_predictors
from dada.net.home import HOME_KEY, TRUST_KEY
from dada.net.links import Links, PeerEvent
from dada.net.network_file import write_ticket
from dada.net.session import LinkOptions, Terms
from dada.net.store import Store, StoreError, damaged, last_epoch
from dada.net.transport import Hearsay, Transport
from dada.peer.inputs import Effect, Persist, Refused, Send, Warned
from dada.peer.member import Member
from dada.peer.messages import (
    AtomReply,
    Descriptor,
    Hello,
    Message,
    ModelChange,
    ModelOffer,
    PeerId,
    Release,
    Revocation,
    StateReply,
    encode,
)
from dada.peer.model import EPOCH_KEY


class Listening(NamedTuple):
    """The node accepts links; `ticket` lets others join."""

    me: PeerId
    ticket: str


class MessageRefused(PeerEvent):
    """A message was refused."""


class PeerGone(PeerEvent):
    """A neighbour was unreachable for too long, and its edge was dropped."""


class NodeWarning(NamedTuple):
    """The operator must act; see `dada.peer.inputs.Warned`."""

    me: PeerId
    text: str


class NodeStatus(NamedTuple):
    """Periodic status of the node; see `Node.status`."""

    me: PeerId
    status: Mapping[str, Any]


NodeEvent = Listening | PeerEvent | NodeWarning | NodeStatus


def unwatched(event: NodeEvent) -> None:
    """The observer that does nothing."""


# Messages that carry models or their changes; the ledger counts these.
PRICED = ModelChange | StateReply | ModelOffer | Release | AtomReply
# Unreachable peers in a status.
MOST_SHOWN = 8
# Time in which the last messages of a leaving node are sent.
FAREWELL_S = 0.5
ADDRESSES_KEY = b"addresses"
Given = TypeVar("Given")
# Random bytes that distinguish two processes with one identity.
LIFE_SIZE = 8
# Choosing between the shared and the local model takes about 0.1 s.
TRUST_EVERY_S = 60.0

_address_book = msgspec.msgpack.Decoder(dict[bytes, tuple[str, ...]])


def _heaviest(model: Array) -> list[tuple[int, float]]:
    """Base predictors with the largest weights in a model."""
    numbers, weights = heaviest_predictors(model[None, :])
    return [(int(j), float(weight)) for j, weight in zip(numbers[0], weights[0], strict=True) if j >= 0]


class Node:
    """A running member of a network.

    The member is new: its state is restored from the store. Its journal is closed when the node stops. The observer is
    called with each `NodeEvent`. Once a second, `new_rows` returns all samples of the user if there are new ones, and
    `orders` the list of revoked members that the operator hands to this node, if any.
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
        new_rows: Callable[[], UserRows | None] = lambda: None,
        orders: Callable[[], Revocation | None] = lambda: None,
    ) -> None:
        self.member, self.transport, self.store = member, transport, store
        self._new_rows, self._orders = new_rows, orders
        self.observer = observer
        self.messages_refused = self.model_bytes = 0
        self.is_up = False
        self._clock = asyncio.get_running_loop().time
        self._unix_time = terms.unix_time
        self.links = Links(transport, terms, self, rng, self._clock, options)
        self._failure: StoreError | None = None
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._sleeping_until = math.inf
        self._encoded: tuple[Message, bytes] | None = None
        self._stored_addresses: dict[bytes, tuple[str, ...]] = {}
        self._choose_at = self._clock() + TRUST_EVERY_S
        self.make_release: Callable[[], bytes] | None = None

    async def run(self, known: Iterable[Descriptor] = (), leave: bool = False) -> None:
        """Run until `stop` is called. The first contacts are `known`, from tickets.

        At the end the node may leave the network: neighbours then drop this peer at once instead of waiting for it.
        """
        known = list(known)
        try:
            records = self.store.records()
            # Nothing that a peer is given, or a journal records, depends on exact rows.
            records.pop(HOME_KEY, None)
            records[EPOCH_KEY] = last_epoch(records.get(EPOCH_KEY), self._unix_time())
            try:
                self.member.restore(records)
                self._recall_addresses(records, known)
            except ValueError as error:
                raise damaged(self.store.path, str(error)) from error
            life = self.links.options.token_bytes(LIFE_SIZE)
            self._perform(self.member.start(self._clock(), known, life))
            accepting = asyncio.create_task(self.links.accept_all())
            self.is_up = True
            self.observer(Listening(self.member.me, self.ticket))
            try:
                await self._loop()
                self._choose_model()
                if leave and self._failure is None:
                    self._perform(self.member.leave(self._clock()))
                    await asyncio.sleep(FAREWELL_S)
            finally:
                accepting.cancel()
        finally:
            await self.links.close()
            if self.member.journal is not None:
                self.member.journal.close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Make `run` return."""
        self._is_stopping = True
        self._changed.set()

    async def _loop(self) -> None:
        next_beat = self._clock()
        while not self._is_stopping:
            now = self._clock()
            if self.member.deadline <= now:
                self._perform(self.member.on_timer(now))
            if next_beat <= now:
                next_beat = now + self.links.options.beat_every_s
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
        self._follow_orders()
        self.links.beat()
        self.member.sampling.addresses = self.transport.addresses
        self._remember_addresses()
        self._take_new_rows()
        self._release_once()
        if self._choose_at <= self._clock():
            self._choose_model()
        # A status reads every link, which is wasted work in a process of many unobserved nodes.
        if self.observer is not unwatched:
            self.observer(NodeStatus(self.member.me, self.status()))

    def _take_new_rows(self) -> None:
        rows = self._read(self._new_rows)
        if rows is not None:
            self._perform(self.member.change_rows(rows, self._clock()))
            self._choose_at = self._clock()

    def _follow_orders(self) -> None:
        """Exclude members as the founder has decided; other peers receive the list by exchanges of views."""
        membership = self.member.membership
        revocation = None if membership is None else self._read(self._orders)
        if membership is not None and revocation is not None:
            self._perform(self.member.receive(membership.founder, revocation, self._clock()))

    def _read(self, source: Callable[[], Given | None]) -> Given | None:
        """What lies in the folder of this peer; a file that cannot be read is reported and left there."""
        try:
            return source()
        except (OSError, ValueError) as error:
            self.observer(NodeWarning(self.member.me, str(error)))
            return None

    def _perform(self, effects: list[Effect]) -> None:
        """Store changes, then send messages; a node that cannot store sends nothing."""
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
                data = self._bytes_of(effect.message)
                self.model_bytes += len(data) if isinstance(effect.message, PRICED) else 0
                self.links.send(effect.to, data, isinstance(effect.message, ModelChange))
            elif isinstance(effect, Refused):
                self.messages_refused += 1
                self.observer(MessageRefused(self.member.me, effect.sender, effect.reason))
            elif isinstance(effect, Warned):
                self.observer(NodeWarning(self.member.me, effect.text))
        if self.member.deadline < self._sleeping_until:
            self._changed.set()

    def _bytes_of(self, message: Message) -> bytes:
        """Encode a message; one that goes to several neighbours is encoded once."""
        if self._encoded is None or self._encoded[0] is not message:
            self._encoded = (message, encode(message))
        return self._encoded[1]

    @property
    def revoked(self) -> Collection[PeerId]:
        """See `LinkUser`."""
        return self.member.peer.revoked

    def hello(self) -> Hello:
        """See `LinkUser`."""
        return self.member.peer.hello()

    def hearsay_of(self, peer: PeerId) -> Hearsay:
        """See `LinkUser`."""
        return Hearsay(self.member.sampling.addresses_of(peer), self.member.sampling.sources.get(peer))

    def on_bytes(self, peer: PeerId, content: bytes) -> None:
        """See `LinkUser`."""
        self._perform(self.member.receive_bytes(peer, content, self._clock()))

    def admits(self, peer: PeerId) -> bool:
        """See `LinkUser`."""
        return self.member.limit.admits(peer, 0, self._clock())

    def is_over_rate(self, peer: PeerId) -> bool:
        """See `LinkUser`."""
        return self.member.limit.is_exhausted(peer)

    def on_open(self, peer: PeerId, hello: Hello, addresses: tuple[str, ...]) -> None:
        """See `LinkUser`."""
        self.member.sampling.prove(peer, addresses)
        self._perform(self.member.receive(peer, hello, self._clock()))

    def on_gone(self, peer: PeerId) -> None:
        """See `LinkUser`."""
        self.observer(PeerGone(self.member.me, peer))
        self._perform(self.member.on_unreachable(peer, self._clock()))

    def _recall_addresses(self, records: dict[bytes, bytes], known: list[Descriptor]) -> None:
        if ADDRESSES_KEY in records:
            self._stored_addresses = _address_book.decode(records[ADDRESSES_KEY])
        for peer, addresses in self._stored_addresses.items():
            self.links.learn(peer, addresses)
            self.member.sampling.keep(Descriptor(peer, 0, addresses))
        for descriptor in known:
            self.links.learn(descriptor.peer, descriptor.addresses)

    def _remember_addresses(self) -> None:
        """Store the addresses of neighbours, so that a restarted peer finds them without a ticket."""
        found = {peer: self.links.addresses_of(peer) for peer in self.links.neighbours}
        found = {peer: addresses for peer, addresses in found.items() if addresses}
        if found != self._stored_addresses:
            self._stored_addresses = found
            self._perform([Persist(ADDRESSES_KEY, msgspec.msgpack.encode(found))])

    def _choose_model(self) -> None:
        """Choose the model for predictions and store the choice: neighbours' models, which it needs, are not stored."""
        self._choose_at = self._clock() + TRUST_EVERY_S
        if self.member.is_private:
            self._perform([Persist(HOME_KEY, self.member.model.tobytes())])
        else:
            self._perform([Persist(TRUST_KEY, b"yes" if self.member.trusts_others else b"no")])

    def _release_once(self) -> None:
        """Make the release of a peer that protects its rows, if it is worth sending or was sent by an earlier life."""
        releases = self.member.releases
        if releases is None or releases.own is not None or self.make_release is None:
            return
        if releases.returned is not None or self.member.release_estimate.send:
            releases.publish(self.make_release())

    @property
    def ticket(self) -> str:
        """Text with which another peer joins through this one."""
        return write_ticket(Descriptor(self.member.me, 0, self.transport.addresses))

    def status(self) -> dict[str, Any]:
        """State and counters of this node, ready for JSON."""
        peer, own, traffic = self.member.peer, self.member.peer.own, self.links.traffic
        ledger = peer.neighbourhood.ledger
        messages, floats, indices = (int(count) for count in ledger.models + ledger.graph)
        return {
            "id": peer.me.hex(),
            "ticket": self.ticket,
            "epoch": own.shared.epoch,
            "samples": own.n_samples,
            "wakeups": self.member.planner.wakeups,
            "model_updates": own.updates,
            "model_size": int(own.model.n_support),
            **self._scores(),
            "heaviest": _heaviest(own.model.alpha),
            "neighbours": {other.hex(): peer.edges[other].weight for other in peer.edges.neighbours},
            "known_peers": len(self.member.sampling.view),
            "links": len(self.links.sessions),
            "round_trips_ms": {other.hex(): link.round_trip_ms for other, link in self.links.sessions.items()},
            "messages_sent": traffic["messages_sent"],
            "messages_received": traffic["messages_received"],
            "payload_bytes": traffic["bytes_sent"],
            "wire_bytes": self.links.wire_bytes,
            "messages_dropped": traffic["dropped"] + self.links.lost_messages,
            "messages_refused": self.messages_refused,
            "links_refused": dict(self.links.refused),
            "dials": self.links.dials,
            "dials_failed": self.links.failed_dials,
            "unreachable": {other.hex(): reason for other, reason in list(self.links.unreachable.items())[:MOST_SHOWN]},
            "paper_messages": messages,
            "paper_floats": floats,
            "paper_indices": indices,
            "coded_bits": int(ledger.coded.sum()),
            "model_bytes": self.model_bytes,
            **self._release_status(),
            **self._tree_status(),
            **self._boosting_status(),
        }

    def _scores(self) -> dict[str, float]:
        """Loss and accuracy on the user's samples; unknown if the state machine has none of them."""
        own = self.member.peer.own
        if self.member.releases is not None:
            return {}
        return {"loss": own.loss, **({} if own.accuracy is None else {"accuracy": own.accuracy})}

    def _tree_status(self) -> dict[str, Any]:
        """Trees of a network that has any: alive, in use here, grown here, and bytes of those that were sent."""
        grove = self.member.grove
        if grove is None:
            return {}
        used = len(self.member.trees_in_use)
        counts = {"alive": len(grove.names), "used": used, "grown": len(grove.plot.grown)}
        return {"trees": counts | {"growers": len(grove.records), "sent_bytes": grove.sent_bits // 8}}

    def _boosting_status(self) -> dict[str, Any]:
        """Boosted trees of a network that has any: in use, led by this peer, their growers, and bytes sent for them."""
        boosting = self.member.boosting
        if boosting is None:
            return {}
        counts = boosting.records.counts
        found = {"trees": len(boosting.trees), "led": counts.get(self.member.me, 0)}
        found |= {"growers": sum(map(bool, counts.values())), "sent_bytes": boosting.sent_bits // 8}
        return {"boosting": found}

    def _release_status(self) -> dict[str, Any]:
        releases = self.member.releases
        if releases is None:
            return {}
        is_sent = releases.own is not None
        reason = releases.progress if is_sent else self.member.release_estimate.reason
        found = {"held": releases.n_pooled, "is_sent": is_sent, "reason": reason}
        found |= {"is_summed": True} if releases.is_summed else {}
        return {"samples": len(releases.rows.h), "releases": found}
