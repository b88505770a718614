"""All links of one node: whom to dial, which link to use, which to give up.

Messages go out on the open link to their receiver; where there is none it is dialled, and what is said meanwhile waits.
A dial that failed is not repeated at once, but after a while that doubles with every failure. Links to neighbours stay
open and are made again when they break; of the other links the least recently used ones are closed where there are too
many. If two peers dial each other at the same time, both keep the link opened by the smaller id.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dada.net.framing import FrameError, FrameStream
from dada.net.handshake import NONCE_SIZE, HandshakeError, Introduction, Party, Refusal, Terms, shake_hands
from dada.net.session import Session, Traffic
from dada.net.transport import Link, Transport, TransportError
from dada.peer.messages import Hello, PeerId

MOST_WAITING, MOST_DIALS = 64, 32
MOST_ADDRESSES_KNOWN = 4096


@dataclass(frozen=True)
class LinkOptions:
    """How a node treats its links.

    Parameters
    ----------
    most_links : int
        Links kept open beside those to neighbours.
    dial_timeout_s : float
        How long a dial may take.
    retry_after_s, retry_at_most_s : float
        The wait after a first failed dial, and the longest wait.
    give_up_after_s : float
        How long a neighbour may be away before it counts as gone.
    dialling : asyncio.Semaphore, optional
        How many dials may be under way at once. Nodes of one process share it: where hundreds dial each other at the
        same time, each dial would be so slow that all fail.
    """

    most_links: int = 48
    dial_timeout_s: float = 6.0
    retry_after_s: float = 0.5
    retry_at_most_s: float = 30.0
    give_up_after_s: float = 60.0
    dialling: asyncio.Semaphore | None = None


class LinkUser(Protocol):
    """What a node does with its links."""

    def hello(self) -> Hello:
        """What to say first on a link."""

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """Where a peer listens, by hearsay."""

    def on_bytes(self, peer: PeerId, content: bytes) -> None:
        """A message came."""

    def on_open(self, peer: PeerId, introduction: Introduction) -> None:
        """A link is open."""

    def on_closed(self, peer: PeerId, reason: str) -> None:
        """The link to a peer has ended, and there is no other."""

    def on_refused(self, peer: PeerId, error: HandshakeError) -> None:
        """A link was not accepted, by either end, or its bytes were not frames."""

    def on_gone(self, peer: PeerId) -> None:
        """A neighbour could not be reached for long."""


@dataclass(eq=False)
class _Absence:
    """A peer that could not be reached: since when, how often, and when to try again."""

    since: float
    failures: int = 0
    retry_at: float = -math.inf


@dataclass(eq=False)
class _Dial:
    task: asyncio.Task[None]
    waiting: list[tuple[bytes, bool]] = field(default_factory=list)


class Links:
    """The open links of one node, by peer.

    Parameters
    ----------
    transport : Transport
        Where links come from.
    terms : Terms
        Whom to talk to.
    user : LinkUser
        Whom to tell.
    rng : numpy.random.Generator
        For the scatter of retries.
    clock : function
        The time in seconds.
    options : LinkOptions
    """

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
        self._addresses: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        self._dials: dict[PeerId, _Dial] = {}
        self._absent: dict[PeerId, _Absence] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._past, self._past_wire_bytes = Traffic(), 0

    # -- what can be read ------------------------------------------------------------------------------------------

    @property
    def traffic(self) -> Traffic:
        """What all links together have carried."""
        total = Traffic(**vars(self._past))
        for session in self.sessions.values():
            _add(total, session.traffic)
        return total

    @property
    def wire_bytes(self) -> int:
        """Bytes put on the wire, with all overhead."""
        return self._past_wire_bytes + sum(session.wire_bytes for session in self.sessions.values())

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """Where a peer was last said to listen."""
        return self._addresses.get(peer, ())

    # -- life ------------------------------------------------------------------------------------------------------

    async def accept_all(self) -> None:
        """Answer those who dial, until cancelled."""
        while True:
            link = await self._transport.accept()
            self._start(self._welcome(link))

    async def close(self) -> None:
        """Hang up everywhere."""
        tasks = [*self._tasks, *(dial.task for dial in self._dials.values())]
        for session in list(self.sessions.values()):
            session.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transport.close()

    def learn(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Remember where a peer listens."""
        if addresses:
            self._addresses[peer] = addresses
            self._addresses.move_to_end(peer)
            if len(self._addresses) > MOST_ADDRESSES_KNOWN:
                self._addresses.popitem(last=False)

    def send(self, peer: PeerId, message: bytes, expendable: bool = False) -> None:
        """Bring a message on its way; it is lost if the peer cannot be reached."""
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
        """Once a second or so: look for signs of life, dial neighbours again, close what is not needed."""
        now = self._clock()
        for session in list(self.sessions.values()):
            if not session.beat(now):
                session.close()
        for peer in self.neighbours:
            if peer not in self.sessions and peer not in self._dials:
                absence = self._absent.get(peer)
                if absence is not None and now - absence.since > self.options.give_up_after_s:
                    del self._absent[peer]
                    self._user.on_gone(peer)
                else:
                    self._dial(peer)
        self._close_excess()
        for peer, absence in list(self._absent.items()):
            if peer not in self.neighbours and now > absence.retry_at + self.options.retry_at_most_s:
                del self._absent[peer]

    # -- links -----------------------------------------------------------------------------------------------------

    def _dial(self, peer: PeerId) -> _Dial | None:
        absence = self._absent.get(peer)
        # What a peer said itself comes first, but it may have moved since, and others have heard of it.
        addresses = tuple(dict.fromkeys((*self.addresses_of(peer), *self._user.addresses_of(peer))))
        if absence is not None and self._clock() < absence.retry_at:
            return None
        if not addresses or not self._terms.admits(peer):
            return None
        dial = self._dials[peer] = _Dial(asyncio.create_task(self._call(peer, addresses)))
        return dial

    async def _call(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        try:
            async with self._dialling:
                self.dials += 1
                async with asyncio.timeout(self.options.dial_timeout_s):
                    link = await self._transport.dial(peer, addresses)
                session = await self._introduce(link, is_dialler=True)
        except (TransportError, TimeoutError, HandshakeError) as error:
            dial = self._dials.pop(peer)
            # Somebody may have come from the other side meanwhile.
            if peer in self.sessions:
                self._flush(dial, self.sessions[peer])
                return
            self.failed_dials += 1
            self.lost_messages += len(dial.waiting)
            if isinstance(error, HandshakeError):
                self._count(peer, error)
            self._note_failure(peer)
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
        """Shake hands on a fresh link; it is closed again if that fails."""
        stream = FrameStream(link)
        # Nonces must be beyond guessing, which a seeded generator's numbers are not.
        nonce = secrets.token_bytes(NONCE_SIZE)
        party = Party(self._transport.me, is_dialler, self._terms, self._user.hello(), self._transport.addresses, nonce)
        try:
            introduction = await shake_hands(stream, party)
        except BaseException:
            link.close()
            raise
        return Session(stream, introduction, is_dialler, self._on_message, self._clock)

    def _adopt(self, session: Session) -> None:
        """Use a new link, or the one there is."""
        peer, old = session.peer, self.sessions.get(session.peer)
        if old is not None:
            if not self._replaces(session, old):
                session.close()
                return
            self._retire(old)
        self._absent.pop(peer, None)
        self.learn(peer, session.introduction.addresses)
        self.sessions[peer] = session
        self._start(self._serve(session))
        self._user.on_open(peer, session.introduction)
        self._close_excess()

    def _replaces(self, new: Session, old: Session) -> bool:
        is_same_life = new.introduction.hello.epoch == old.introduction.hello.epoch
        if old.is_closed or not is_same_life or new.is_dialler == old.is_dialler:
            return True
        return (new.dialler or self._transport.me) < (old.dialler or self._transport.me)

    async def _serve(self, session: Session) -> None:
        try:
            reason = await session.run()
        except FrameError as error:
            reason = str(error)
            self._count(session.peer, HandshakeError(Refusal.FRAME, reason))
        if self.sessions.get(session.peer) is session:
            self._retire(session)
            self._absent.setdefault(session.peer, _Absence(self._clock()))
            self._user.on_closed(session.peer, reason)

    def _retire(self, session: Session) -> None:
        session.close()
        _add(self._past, session.traffic)
        self._past_wire_bytes += session.wire_bytes
        del self.sessions[session.peer]

    def _flush(self, dial: _Dial, session: Session) -> None:
        for message, expendable in dial.waiting:
            session.send(message, expendable)

    def _note_failure(self, peer: PeerId) -> None:
        now = self._clock()
        absence = self._absent.setdefault(peer, _Absence(now))
        wait_s = min(self.options.retry_after_s * 2.0**absence.failures, self.options.retry_at_most_s)
        absence.failures += 1
        absence.retry_at = now + wait_s * self._rng.uniform(0.5, 1.5)

    def _close_excess(self) -> None:
        spare = [peer for peer in self.sessions if peer not in self.neighbours]
        excess = len(spare) - self.options.most_links
        if excess > 0:
            for peer in sorted(spare, key=lambda peer: self.sessions[peer].used)[:excess]:
                self.sessions[peer].close()

    # -- small things ----------------------------------------------------------------------------------------------

    def _on_message(self, session: Session, content: bytes) -> None:
        session.used = session.heard
        self._user.on_bytes(session.peer, content)

    def _count(self, peer: PeerId, error: HandshakeError) -> None:
        self.refused[error.refusal.name.lower()] += 1
        self._user.on_refused(peer, error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _add(total: Traffic, more: Traffic) -> None:
    for name, value in vars(more).items():
        setattr(total, name, getattr(total, name) + value)
