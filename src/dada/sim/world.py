"""The virtual network: many members in one process, on virtual time, with faults.

All events are in one heap, ordered by time and then by number, and all randomness comes from the seed: the same call
repeats a run exactly. Members are those of the real node, and their messages pass the codec. A host is the machine of a
member; it keeps the stored records while the member crashes and restarts. A crash loses all that was not stored, and
interrupts the member between any two effects of its last event. A power cut also loses the last few stored records, but
never the epoch.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dada.core.model_steps import UserRows
from dada.peer.inputs import Effect, Failed, Persist, Refused, Send, Warned
from dada.peer.member import Member
from dada.peer.messages import Descriptor, Message, PeerId, decode, encode
from dada.sim.faults import VirtualLink
from dada.sim.liars import Deed, Liar

# How long a transport tries to reach a host.
GIVE_UP_S = 20.0
# The last stored records that a power cut may lose.
MOST_LOST_RECORDS = 20


@dataclass(eq=False)
class Host:
    """A machine: `make(life)` gives a new member for that life, and the liar that changes its messages, if any."""

    number: int
    me: PeerId
    make: Callable[[int], tuple[Member, Liar | None]]
    is_honest: bool = True
    records: dict[bytes, bytes] = field(default_factory=dict)
    is_up: bool = False
    life: int = 0
    timer_at: float = math.inf
    is_doomed: bool = False
    has_left: bool = False
    sent: int = 0
    sent_bytes: int = 0
    refused: int = 0
    earlier_bits: float = 0.0
    overwritten: deque[tuple[bytes, bytes | None]] = field(default_factory=lambda: deque(maxlen=MOST_LOST_RECORDS))
    _member: Member | None = None
    _liar: Liar | None = None

    @property
    def member(self) -> Member:
        """The member of the present life, or of the last one."""
        assert self._member is not None
        return self._member

    @property
    def bits(self) -> float:
        """Bits about models in all lives, as its members counted them."""
        return self.earlier_bits + (self.member.peer.neighbourhood.ledger.bits if self.life else 0.0)

    def begin_life(self) -> None:
        """Make a member, and give it the stored records."""
        self.earlier_bits = self.bits
        self.life += 1
        self.is_up, self.is_doomed = True, False
        self._member, self._liar = self.make(self.life)
        self.member.restore(dict(self.records))

    def deeds(self, effects: list[Effect], is_timer: bool = False) -> Sequence[Deed]:
        """What the host does about its member's effects; a liar changes them."""
        if self._liar is None:
            return effects
        return [*self._liar.falsify(effects), *(self._liar.attack() if is_timer else ())]

    def overhear(self, sender: PeerId, data: bytes) -> None:
        """Let a liar see a message to its member."""
        if self._liar is not None:
            with suppress(ValueError):
                self._liar.overhear(sender, decode(data))

    def store(self, record: Persist) -> None:
        """Keep a record; an empty value deletes its key."""
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


class World:
    """Hosts, the messages between them, and time.

    The generator decides on delays, losses and crashes; members have their own. `watch` is called after every event of
    a host, with the other host that it involved, and `before_sending` before each message of an honest host.
    """

    def __init__(
        self,
        hosts: list[Host],
        link: VirtualLink,
        rng: np.random.Generator,
        watch: Callable[[World, Host, Host | None], None],
        before_sending: Callable[[World, Host, Send], None],
    ) -> None:
        self.hosts, self.link, self.watch, self.before_sending = hosts, link, watch, before_sending
        self.now = 0.0
        self.events = 0
        self.counts = Counter(messages=0, bytes=0, sent=0, lost=0, refused=0, restarts=0)
        self.failures: list[str] = []
        self.warnings: list[tuple[int, str]] = []
        self._under_way: Counter[tuple[int, int]] = Counter()
        self.numbers = {host.me: host.number for host in hosts}
        self._rng = rng
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0
        self._connected: dict[tuple[int, int], tuple[int, int]] = {}
        self._giving_up: set[tuple[int, int]] = set()

    def at(self, time: float, happen: Callable[..., None], *details: Any) -> None:
        """Schedule a call."""
        self._scheduled += 1
        heapq.heappush(self._heap, (time, self._scheduled, happen, details))

    def run(self, until: float) -> None:
        """Process all events until a time."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, happen, details = heapq.heappop(self._heap)
            happen(*details)
        self.now = max(self.now, until)

    def is_message_under_way(self, host: Host, other: Host) -> bool:
        """Whether a message between two hosts has not arrived yet."""
        return self._under_way[_pair(host, other)] > 0

    # -- lives -----------------------------------------------------------------------------------------------------

    def start(self, number: int, known: tuple[int, ...] = ()) -> None:
        """Start the member of a host, from its records after an earlier life."""
        host = self.hosts[number]
        if host.is_up or host.has_left:
            return
        host.begin_life()
        self.counts["restarts"] += host.life > 1
        descriptors = [Descriptor(self.hosts[other].me, 0) for other in known]
        self._did(host, host.deeds(host.member.start(self.now, descriptors)))

    def crash(self, number: int) -> None:
        """Doom a member: it dies during its next event."""
        self.hosts[number].is_doomed = self.hosts[number].is_up

    def change_rows(self, number: int, rows: UserRows) -> None:
        """Give a running member other samples."""
        host = self.hosts[number]
        if host.is_up:
            self._did(host, host.deeds(host.member.change_rows(rows, self.now)))

    def leave(self, number: int, with_goodbye: bool) -> None:
        """Let a member leave for good."""
        host = self.hosts[number]
        host.has_left = True
        if host.is_up:
            if with_goodbye:
                self._carry_out(host, host.deeds(host.member.leave(self.now)))
            self._die(host)

    def revive(self, number: int) -> None:
        """Spare a doomed member, or restart a dead one."""
        self.hosts[number].is_doomed = False
        self.start(number)

    def hand(self, number: int, sender: PeerId, message: Message) -> None:
        """Give a member a message of a sender that runs no host, such as the founder of the network."""
        host = self.hosts[number]
        if host.is_up:
            self._did(host, host.deeds(host.member.receive(sender, message, self.now)))

    def rest(self) -> None:
        """Stop all wake-ups of honest members, and let each two of them exchange greetings."""
        up = [host for host in self.hosts if host.is_up and host.is_honest]
        for host in up:
            host.member.rest()
        self._connected.clear()
        for host in up:
            for other in up:
                if host.number < other.number:
                    self._connect(host, other)

    def _die(self, host: Host) -> None:
        host.is_up, host.timer_at = False, math.inf

    # -- events ----------------------------------------------------------------------------------------------------

    def _on_timer(self, host: Host, time: float) -> None:
        if host.is_up and host.timer_at == time:
            host.timer_at = math.inf
            self._did(host, host.deeds(host.member.on_timer(self.now), is_timer=True))

    def _on_delivery(self, sender: Host, host: Host, data: bytes) -> None:
        self._under_way[_pair(sender, host)] -= 1
        if not host.is_up:
            self._will_give_up(sender, host)
            return
        self.counts["messages"] += 1
        self.counts["bytes"] += len(data)
        host.overhear(sender.me, data)
        self._did(host, host.deeds(host.member.receive_bytes(sender.me, data, self.now)), sender)

    def _on_giving_up(self, host: Host, other: Host, life: int) -> None:
        self._giving_up.discard((host.number, other.number))
        if host.is_up and not other.is_up and other.life == life:
            self._did(host, host.deeds(host.member.on_unreachable(other.me, self.now)), other)

    def _did(self, host: Host, deeds: Sequence[Deed], other: Host | None = None) -> None:
        """Carry out the deeds of a host, set its timer, and report the event."""
        self.events += 1
        if host.is_doomed:
            self._carry_out(host, deeds[: int(self._rng.integers(len(deeds) + 1))])
            self._die(host)
            if self._rng.random() < 0.3:
                host.lose_records(int(self._rng.integers(1, MOST_LOST_RECORDS)))
        else:
            self._carry_out(host, deeds)
            deadline = max(host.member.deadline, self.now)
            if deadline < host.timer_at:
                host.timer_at = deadline
                self.at(deadline, self._on_timer, host, deadline)
        self.watch(self, host, other)

    def _carry_out(self, host: Host, deeds: Sequence[Deed]) -> None:
        for deed in deeds:
            if isinstance(deed, Send):
                if host.is_honest:
                    self.before_sending(self, host, deed)
                self._transmit(host, deed.to, encode(deed.message))
            elif isinstance(deed, Persist):
                host.store(deed)
            elif isinstance(deed, Refused):
                if isinstance(deed, Failed):
                    self.failures.append(f"host {host.number}: {deed.reason}")
                host.refused += 1
                self.counts["refused"] += 1
            elif isinstance(deed, Warned):
                self.warnings.append((host.number, deed.text))
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
        """Exchange greetings, unless these two hosts have done so in their present lives."""
        pair = _pair(host, other)
        lives = self.hosts[pair[0]].life, self.hosts[pair[1]].life
        if self._connected.get(pair) != lives:
            self._connected[pair] = lives
            for one, two in ((host, other), (other, host)):
                if one.is_up and one.is_honest:
                    self._put_on_link(one, two, encode(one.member.peer.hello()))

    def _put_on_link(self, host: Host, other: Host, data: bytes) -> None:
        delays = self.link(host.number, other.number, self.now, self._rng)
        host.sent += 1
        host.sent_bytes += len(data)
        self.counts["sent"] += 1
        self.counts["lost"] += not delays
        for delay in delays:
            self._under_way[_pair(host, other)] += 1
            self.at(self.now + delay, self._on_delivery, host, other, data)

    def _will_give_up(self, host: Host, other: Host) -> None:
        if (host.number, other.number) not in self._giving_up:
            self._giving_up.add((host.number, other.number))
            self.at(self.now + GIVE_UP_S, self._on_giving_up, host, other, other.life)


def _pair(host: Host, other: Host) -> tuple[int, int]:
    return (host.number, other.number) if host.number < other.number else (other.number, host.number)
