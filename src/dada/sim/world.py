"""The virtual network: many members in one process, on virtual time, with everything that can go wrong.

All that happens stands in one heap of events, ordered by time and then by number, and all chance comes from the seed:
the same call repeats a run exactly. Members are those of the real node, and their messages pass the codec. A host is
the machine on which a member lives; it keeps the stored records while the member crashes and comes back. A crash
loses all that was not stored, and interrupts the member between any two effects of what it does last. A power cut
loses the last few stored records too, though never the epoch.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dada.peer.inputs import Effect, Persist, Refused, Send
from dada.peer.member import Member
from dada.peer.messages import Descriptor, PeerId, encode
from dada.sim.links import Link

# How long a transport tries to reach a host before it gives it up.
GIVE_UP_S = 20.0
# The last stored records that a power cut may lose.
MOST_LOST_RECORDS = 20


@dataclass(frozen=True)
class SendBytes:
    """What only a liar does: put bytes on the wire that no codec made."""

    to: PeerId
    data: bytes


Deed = Effect | SendBytes


class Inhabitant(Protocol):
    """Whoever lives on a host: a `Member`, or a liar around one."""

    @property
    def deadline(self) -> float:
        """See `Member`."""

    def restore(self, records: dict[bytes, bytes]) -> None:
        """See `Member`."""

    def start(self, now: float, known: Iterable[Descriptor] = ()) -> Sequence[Deed]:
        """See `Member`."""

    def on_timer(self, now: float) -> Sequence[Deed]:
        """See `Member`."""

    def receive_bytes(self, sender: PeerId, data: bytes, now: float) -> Sequence[Deed]:
        """See `Member`."""

    def on_unreachable(self, peer: PeerId, now: float) -> Sequence[Deed]:
        """See `Member`."""

    def leave(self, now: float) -> Sequence[Deed]:
        """See `Member`."""


@dataclass(eq=False)
class Host:
    """A machine: `make(life)` gives a member that knows nothing yet, for its life of that number."""

    number: int
    me: PeerId
    make: Callable[[int], Inhabitant]
    is_honest: bool = True
    records: dict[bytes, bytes] = field(default_factory=dict)
    inhabitant: Inhabitant | None = None
    life: int = 0
    timer_at: float = math.inf
    is_doomed: bool = False
    has_left: bool = False
    sent: int = 0
    sent_bytes: int = 0
    refused: int = 0
    last: Inhabitant | None = None
    overwritten: deque[tuple[bytes, bytes | None]] = field(default_factory=lambda: deque(maxlen=MOST_LOST_RECORDS))

    @property
    def is_up(self) -> bool:
        """Whether somebody lives here now."""
        return self.inhabitant is not None

    @property
    def member(self) -> Member:
        """The honest member that lives here, or did last."""
        living = self.inhabitant if self.inhabitant is not None else self.last
        assert isinstance(living, Member)
        return living

    def store(self, record: Persist) -> None:
        """Keep a record; an empty one forgets its key."""
        if record.key != b"epoch":
            self.overwritten.append((record.key, self.records.get(record.key)))
        _put(self.records, record.key, record.value)

    def lose_records(self, n: int) -> None:
        """Undo the last n changes of the records."""
        for _ in range(min(n, len(self.overwritten))):
            key, value = self.overwritten.pop()
            _put(self.records, key, value)


def _put(records: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value:
        records[key] = value
    else:
        records.pop(key, None)


class Watcher(Protocol):
    """Looks at the world after every event."""

    def after(self, world: World, host: Host, other: Host | None) -> None:
        """An event of `host` is over, which had to do with `other`."""


class World:
    """Hosts, what is under way between them, and time.

    Parameters
    ----------
    hosts : list of Host
    link : Link
        What happens to messages.
    rng : numpy.random.Generator
        Chance of the network and of crashes; members have their own.
    watcher : Watcher, optional
        Called after every event.
    """

    def __init__(self, hosts: list[Host], link: Link, rng: np.random.Generator, watcher: Watcher | None = None) -> None:
        self.hosts, self.link, self.watcher = hosts, link, watcher
        self.now = 0.0
        self.events = 0
        self.counts = Counter(messages=0, bytes=0, sent=0, lost=0, refused=0, restarts=0)
        self.under_way: Counter[tuple[int, int]] = Counter()
        self.numbers = {host.me: host.number for host in hosts}
        self._rng = rng
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0
        self._connected: dict[tuple[int, int], tuple[int, int]] = {}
        self._giving_up: set[tuple[int, int]] = set()

    def at(self, time: float, happen: Callable[..., None], *details: Any) -> None:
        """Let something happen at a time."""
        self._scheduled += 1
        heapq.heappush(self._heap, (time, self._scheduled, happen, details))

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, happen, details = heapq.heappop(self._heap)
            happen(*details)
        self.now = max(self.now, until)

    # -- lives -----------------------------------------------------------------------------------------------------

    def start(self, number: int, known: tuple[int, ...] = ()) -> None:
        """Start the member of a host, from its records where it has lived before."""
        host = self.hosts[number]
        if host.is_up or host.has_left:
            return
        host.life += 1
        host.is_doomed = False
        host.inhabitant = host.make(host.life)
        host.inhabitant.restore(dict(host.records))
        self.counts["restarts"] += host.life > 1
        descriptors = [Descriptor(self.hosts[other].me, 0) for other in known]
        self._did(host, host.inhabitant.start(self.now, descriptors))

    def crash(self, number: int) -> None:
        """Doom a member: it dies in the middle of what it does next."""
        self.hosts[number].is_doomed = self.hosts[number].is_up

    def leave(self, number: int, says_goodbye: bool) -> None:
        """Let a member leave for good."""
        host = self.hosts[number]
        host.has_left = True
        if host.inhabitant is not None:
            if says_goodbye:
                self._carry_out(host, host.inhabitant.leave(self.now))
            self._die(host)

    def revive(self, number: int) -> None:
        """Take a doom from a member, or start it again."""
        self.hosts[number].is_doomed = False
        self.start(number)

    def rest(self) -> None:
        """Let no member wake any more of its own accord, and all who are up greet each other as at a first contact."""
        up = [host for host in self.hosts if isinstance(host.inhabitant, Member)]
        for host in up:
            host.member.rest()
        self._connected.clear()
        for host in up:
            for other in up:
                if host.number < other.number:
                    self._connect(host, other)

    def _die(self, host: Host) -> None:
        host.last, host.inhabitant, host.timer_at = host.inhabitant, None, math.inf

    # -- events ----------------------------------------------------------------------------------------------------

    def _on_timer(self, host: Host, time: float) -> None:
        if host.inhabitant is not None and host.timer_at == time:
            host.timer_at = math.inf
            self._did(host, host.inhabitant.on_timer(self.now))

    def _on_delivery(self, sender: Host, host: Host, data: bytes) -> None:
        self.under_way[_pair(sender, host)] -= 1
        if host.inhabitant is None:
            self._will_give_up(sender, host)
            return
        self.counts["messages"] += 1
        self.counts["bytes"] += len(data)
        self._did(host, host.inhabitant.receive_bytes(sender.me, data, self.now), sender)

    def _on_giving_up(self, host: Host, other: Host, life: int) -> None:
        self._giving_up.discard((host.number, other.number))
        if host.inhabitant is not None and not other.is_up and other.life == life:
            self._did(host, host.inhabitant.on_unreachable(other.me, self.now), other)

    def _did(self, host: Host, deeds: Sequence[Deed], other: Host | None = None) -> None:
        """Carry out what a member decided, note when it wants to be woken, and let the watcher look."""
        self.events += 1
        if host.is_doomed:
            self._carry_out(host, deeds[: int(self._rng.integers(len(deeds) + 1))])
            self._die(host)
            if self._rng.random() < 0.3:
                host.lose_records(int(self._rng.integers(1, MOST_LOST_RECORDS)))
        else:
            self._carry_out(host, deeds)
            assert host.inhabitant is not None
            deadline = max(host.inhabitant.deadline, self.now)
            if deadline < host.timer_at:
                host.timer_at = deadline
                self.at(deadline, self._on_timer, host, deadline)
        if self.watcher is not None:
            self.watcher.after(self, host, other)

    def _carry_out(self, host: Host, deeds: Sequence[Deed]) -> None:
        for deed in deeds:
            if isinstance(deed, Send):
                self._transmit(host, deed.to, encode(deed.message))
            elif isinstance(deed, Persist):
                host.store(deed)
            elif isinstance(deed, Refused):
                host.refused += 1
                self.counts["refused"] += 1
            else:
                self._transmit(host, deed.to, deed.data)

    # -- network ---------------------------------------------------------------------------------------------------

    def _transmit(self, host: Host, to: PeerId, data: bytes) -> None:
        number = self.numbers.get(to)
        if number is None or number == host.number:
            return
        other = self.hosts[number]
        self._connect(host, other)
        self._put_on_link(host, other, data)

    def _connect(self, host: Host, other: Host) -> None:
        """Two hosts that have not spoken in their present lives greet each other first."""
        pair = _pair(host, other)
        lives = self.hosts[pair[0]].life, self.hosts[pair[1]].life
        if self._connected.get(pair) != lives:
            self._connected[pair] = lives
            for one, two in ((host, other), (other, host)):
                if isinstance(one.inhabitant, Member):
                    self._put_on_link(one, two, encode(one.inhabitant.peer.hello()))

    def _put_on_link(self, host: Host, other: Host, data: bytes) -> None:
        delays = self.link.delays(host.number, other.number, self.now, self._rng)
        host.sent += 1
        host.sent_bytes += len(data)
        self.counts["sent"] += 1
        self.counts["lost"] += not delays
        for delay in delays:
            self.under_way[_pair(host, other)] += 1
            self.at(self.now + delay, self._on_delivery, host, other, data)

    def _will_give_up(self, host: Host, other: Host) -> None:
        if (host.number, other.number) not in self._giving_up:
            self._giving_up.add((host.number, other.number))
            self.at(self.now + GIVE_UP_S, self._on_giving_up, host, other, other.life)


def _pair(host: Host, other: Host) -> tuple[int, int]:
    return (host.number, other.number) if host.number < other.number else (other.number, host.number)
