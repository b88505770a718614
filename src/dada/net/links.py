"""All links of one node: dialling, choosing between links, and closing them.

A message goes out on the open link to its receiver. Without one the receiver is dialled, and messages wait meanwhile;
`dada.net.transport` decides which addresses are dialled. After a failed dial the next attempt waits, twice as long
after every failure. Links to neighbours stay open and are redialled when they break. Of the other links, the least
recently used ones are closed when there are too many. If two peers dial each other at the same time, both keep the link
opened by the smaller id.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from dada.net.session import NONCE_SIZE, HandshakeError, LinkOptions, Party, Refusal, Session, Terms, shake_hands
from dada.net.transport import (
    MOST_ADDRESSES_KNOWN,
    AddressBook,
    FrameError,
    FrameStream,
    Hearsay,
    Link,
    Pending,
    Transport,
    TransportError,
)
from dada.peer.edges import put_last
from dada.peer.messages import Hello, PeerId

MOST_WAITING, MOST_DIALS = 64, 32


class PeerEvent(NamedTuple):
    """Something happened between this node and a peer; `reason` may be empty."""

    me: PeerId
    peer: PeerId
    reason: str = ""


class LinkOpened(PeerEvent):
    """A link to a peer was opened; the reason is its address."""


class LinkClosed(PeerEvent):
    """The only link to a peer has ended."""


class LinkFailed(PeerEvent):
    """A peer did not answer; the reason names its addresses and the number of tries."""


class LinkRefused(PeerEvent):
    """One of the two ends refused a link, or its bytes were not frames."""


class LinkUser(Protocol):
    """The owner of links: answers their questions and receives messages and events."""

    observer: Callable[[Any], None]

    @property
    def revoked(self) -> Collection[PeerId]:
        """Revoked members of the network."""

    def hello(self) -> Hello:
        """First message on a new link."""

    def hearsay_of(self, peer: PeerId) -> Hearsay:
        """Addresses of a peer as another one passed them on."""

    def on_bytes(self, peer: PeerId, content: bytes) -> None:
        """A message arrived."""

    def admits(self, peer: PeerId) -> bool:
        """Charge an empty frame to a peer's rate limit; returns whether it is within the limit."""

    def is_over_rate(self, peer: PeerId) -> bool:
        """Whether a peer sends too much."""

    def on_open(self, peer: PeerId, hello: Hello, addresses: tuple[str, ...]) -> None:
        """A link is open to a peer, which has answered at these addresses."""

    def on_gone(self, peer: PeerId) -> None:
        """A neighbour was unreachable for `give_up_after_s` seconds."""


@dataclass(eq=False)
class _Absence:
    """State of redialling an unreachable peer."""

    since: float
    failures: int = 0
    retry_at: float = -math.inf
    reason: str = ""


@dataclass(eq=False)
class _Dial:
    task: asyncio.Task[None]
    waiting: list[tuple[bytes, bool]] = field(default_factory=list)


class Links:
    """The open links of one node, by peer. The generator spreads retries in time."""

    def __init__(
        self,
        transport: Transport,
        terms: Terms,
        user: LinkUser,
        rng: np.random.Generator,
        clock: Callable[[], float],
        options: LinkOptions | None = None,
    ) -> None:
        self.options = LinkOptions() if options is None else options
        self._dialling = self.options.dialling or asyncio.Semaphore(MOST_DIALS)
        self.sessions: dict[PeerId, Session] = {}
        self.neighbours: Collection[PeerId] = ()
        self.refused: Counter[str] = Counter()
        self.dials = self.failed_dials = self.lost_messages = 0
        self._transport, self._terms, self._user, self._rng, self._clock = transport, terms, user, rng, clock
        self._book = AddressBook(user.hearsay_of, self._received_from, clock, self.options.most_unanswered)
        self._past_received: OrderedDict[PeerId, int] = OrderedDict()
        self._dials: dict[PeerId, _Dial] = {}
        self._absent: dict[PeerId, _Absence] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._greeting = Pending(self.options.most_greeting, self.options.most_greeting_each, rng)
        self._past: Counter[str] = Counter()
        self._past_wire_bytes = 0

    @property
    def traffic(self) -> Counter[str]:
        """Counters of all links, closed ones included."""
        return sum((session.traffic for session in self.sessions.values()), self._past)

    @property
    def wire_bytes(self) -> int:
        """Bytes sent on the wire, with all overhead."""
        return self._past_wire_bytes + sum(session.wire_bytes for session in self.sessions.values())

    @property
    def unreachable(self) -> dict[PeerId, str]:
        """Peers that did not answer, each with its addresses and the number of tries."""
        return {peer: absence.reason for peer, absence in self._absent.items() if absence.reason}

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """Proven addresses of a peer."""
        return self._book.proven(peer)

    async def accept_all(self) -> None:
        """Accept links until cancelled."""
        while True:
            link = await self._transport.accept()
            if self._greeting.start(link.peer, self._welcome(link)):
                self.refused["crowded"] += 1
            # A task that is cancelled before its first step would not close its link.
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Close all links and the transport."""
        tasks = [*self._tasks, *(dial.task for dial in self._dials.values())]
        for session in list(self.sessions.values()):
            session.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._greeting.close()
        await self._transport.close()

    def learn(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Trust addresses of a peer: those of a ticket, or proven ones of an earlier life."""
        self._book.prove(peer, addresses)

    def send(self, peer: PeerId, message: bytes, expendable: bool = False) -> None:
        """Send a message; it is lost if the peer cannot be reached."""
        session = self.sessions.get(peer)
        if session is not None:
            session.send(message, expendable)
            return
        dial = self._dials.get(peer) or self._dial(peer)
        if dial is None or len(dial.waiting) >= MOST_WAITING:
            self.lost_messages += 1
        else:
            dial.waiting.append((message, expendable))

    def beat(self) -> None:
        """Close dead links, redial neighbours and close excess links; called every `beat_every_s` seconds."""
        now = self._clock()
        for session in list(self.sessions.values()):
            self._check_membership(session)
            if not session.beat(now):
                session.close()
        for peer in self.neighbours:
            if peer not in self.sessions and peer not in self._dials:
                absence = self._absent.get(peer)
                if absence is not None and now - absence.since > self.options.give_up_after_s:
                    del self._absent[peer]
                    self._user.on_gone(peer)
                elif self._dial(peer) is None and absence is None:
                    # Its address is not known, as after a restart from old records; it may call or be named yet.
                    self._absent[peer] = _Absence(now, reason="no address is known")
        self._close_excess()
        for peer, absence in list(self._absent.items()):
            if peer not in self.neighbours and now > absence.retry_at + self.options.retry_at_most_s:
                del self._absent[peer]

    def _dial(self, peer: PeerId) -> _Dial | None:
        absence = self._absent.get(peer)
        if absence is not None and self._clock() < absence.retry_at:
            return None
        if not self._book.knows(peer) or self._terms.refusal_of(peer, self._user.revoked) is not None:
            return None
        dial = self._dials[peer] = _Dial(asyncio.create_task(self._call(peer)))
        return dial

    async def _reach(self, peer: PeerId) -> Session:
        """Open a link to a peer and perform the handshake."""
        absence = self._absent.get(peer)
        async with asyncio.timeout(self.options.dial_timeout_s):
            choice = await self._book.wait(peer, prefer_new=absence is not None and absence.failures % 2 == 1)
        if not choice.addresses:
            raise TransportError("no address may be dialled now")
        answered_at: tuple[str, ...] = ()
        try:
            async with self._dialling:
                self.dials += 1
                try:
                    async with asyncio.timeout(self.options.dial_timeout_s):
                        link = await self._transport.dial(peer, choice.addresses)
                except (TransportError, TimeoutError) as error:
                    raise TransportError(f"no answer at {', '.join(choice.addresses)}") from error
                answered_at = link.addresses
                return await self._introduce(link, is_dialler=True)
        finally:
            self._book.settle(choice.guess, answered_at)

    async def _call(self, peer: PeerId) -> None:
        try:
            session = await self._reach(peer)
        except (TransportError, TimeoutError, HandshakeError) as error:
            dial = self._dials.pop(peer)
            # The other end may have dialled meanwhile.
            if peer in self.sessions:
                self._flush(dial, self.sessions[peer])
                return
            self.failed_dials += 1
            self.lost_messages += len(dial.waiting)
            if isinstance(error, HandshakeError):
                self._count(peer, error)
            self._note_failure(peer, str(error) or "no answer in time")
            return
        dial = self._dials.pop(peer)
        self._adopt(session)
        self._flush(dial, self.sessions.get(peer, session))

    async def _welcome(self, link: Link) -> None:
        try:
            self._adopt(await self._introduce(link, is_dialler=False))
        except HandshakeError as error:
            self._count(link.peer, error)
        except TransportError:
            return

    async def _introduce(self, link: Link, is_dialler: bool) -> Session:
        """Perform the handshake on a new link; the link is closed if that fails."""
        stream = FrameStream(link)
        nonce = self.options.token_bytes(NONCE_SIZE)
        me, addresses = self._transport.me, self._transport.addresses
        party = Party(me, is_dialler, self._terms, self._user.hello(), addresses, nonce, self._user.revoked)
        try:
            introduction = await shake_hands(stream, party)
        except BaseException:
            link.close()
            raise
        return Session(stream, introduction, is_dialler, self, self._clock, self.options)

    def _adopt(self, session: Session) -> None:
        """Use a new link, unless the existing one is preferred."""
        peer, old = session.peer, self.sessions.get(session.peer)
        if old is not None:
            if not self._replaces(session, old):
                session.close()
                return
            self._retire(old)
        self._absent.pop(peer, None)
        addresses = session.addresses
        self._book.prove(peer, addresses)
        self._book.claim(peer, session.introduction.addresses)
        self.sessions[peer] = session
        self._start(self._serve(session))
        self._user.observer(LinkOpened(self._transport.me, peer, ", ".join(addresses)))
        self._user.on_open(peer, session.introduction.hello, addresses)
        self._close_excess()

    def _replaces(self, new: Session, old: Session) -> bool:
        is_same_life = new.introduction.hello.epoch == old.introduction.hello.epoch
        if old.is_closed or not is_same_life or new.is_dialler == old.is_dialler:
            return True
        # One of the two was opened by this end.
        return (self._transport.me < new.peer) == new.is_dialler

    async def _serve(self, session: Session) -> None:
        try:
            reason = await session.run()
        except FrameError as error:
            reason = str(error)
            self._count(session.peer, HandshakeError(Refusal.FRAME, reason))
        if self.sessions.get(session.peer) is session:
            self._retire(session)
            self._absent.setdefault(session.peer, _Absence(self._clock()))
            self._user.observer(LinkClosed(self._transport.me, session.peer, reason))

    def _check_membership(self, session: Session) -> None:
        """Close the link to a member that was excluded, or whose certificate has expired."""
        peer, certificate = session.peer, session.introduction.certificate
        refusal, detail = self._terms.refusal_of(peer, self._user.revoked), ""
        if refusal is None and certificate is not None and 0 < certificate.expires < self._terms.unix_time():
            refusal, detail = Refusal.CERTIFICATE, "it has expired"
        if refusal is not None and not session.is_closed:
            self._count(peer, HandshakeError(refusal, detail))
            session.close()

    def _retire(self, session: Session) -> None:
        session.close()
        self._past += session.traffic
        self._past_wire_bytes += session.wire_bytes
        del self.sessions[session.peer]
        received = self._received_from(session.peer) + session.received_bytes
        put_last(self._past_received, session.peer, received, MOST_ADDRESSES_KNOWN)

    def _received_from(self, peer: PeerId) -> int:
        """Bytes received from a peer on all links."""
        session = self.sessions.get(peer)
        return self._past_received.get(peer, 0) + (0 if session is None else session.received_bytes)

    def _flush(self, dial: _Dial, session: Session) -> None:
        for message, expendable in dial.waiting:
            session.send(message, expendable)

    def _note_failure(self, peer: PeerId, reason: str) -> None:
        now = self._clock()
        absence = self._absent.setdefault(peer, _Absence(now))
        wait_s = min(self.options.retry_after_s * 2.0**absence.failures, self.options.retry_at_most_s)
        absence.failures += 1
        absence.retry_at = now + wait_s * self._rng.uniform(0.5, 1.5)
        absence.reason = f"{reason} (try {absence.failures})"
        self._user.observer(LinkFailed(self._transport.me, peer, absence.reason))

    def _close_excess(self) -> None:
        spare = [peer for peer in self.sessions if peer not in self.neighbours]
        excess = len(spare) - self.options.most_links
        if excess > 0:
            for peer in sorted(spare, key=lambda peer: self.sessions[peer].last_used)[:excess]:
                self.sessions[peer].close()

    def on_message(self, session: Session, content: bytes) -> None:
        """See `SessionUser`."""
        session.last_used = session.last_received
        self._user.on_bytes(session.peer, content)

    def admits(self, session: Session) -> bool:
        """See `SessionUser`."""
        is_admitted = self._user.admits(session.peer)
        self.refused["rate"] += not is_admitted
        return is_admitted

    def is_over_rate(self, session: Session) -> bool:
        """See `SessionUser`."""
        return self._user.is_over_rate(session.peer)

    def _count(self, peer: PeerId, error: HandshakeError) -> None:
        self.refused[error.refusal.name.lower()] += 1
        self._user.observer(LinkRefused(self._transport.me, peer, str(error)))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
