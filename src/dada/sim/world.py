"""The virtual network: many members in one process, each on its own machine, on virtual time, with faults.

All events are in one heap, ordered by time and then by number, and all randomness comes from the seed: the same call
repeats a run exactly. Members are those of the real node, and their messages pass the codec. A host is the machine of a
member; its disk keeps the stored records while the member crashes and restarts. A crash loses all that was not stored,
and interrupts the member between any two effects of its last event.

The disk is a `dada.net.store.Store` on a database in memory, with the same commands as on a file. It watches these
commands: a power cut loses some of the last records, but none that the store had synced, and never the epoch. It may
also change a byte of a record, which the store must detect, and it may be full.
"""

from __future__ import annotations

import heapq
import math
import sqlite3
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dada.core.model_steps import UserRows
from dada.net.store import START_OF_EPOCHS, CorruptStoreError, Store, StoreError, last_epoch
from dada.peer.inputs import Effect, Failed, Persist, Refused, Send, Warned
from dada.peer.member import Member
from dada.peer.messages import Descriptor, Message, PeerId, decode, encode
from dada.peer.model import EPOCH_KEY
from dada.sim.liars import Deed, Liar
from dada.sim.virtual import Cut, LinkModel

# The last stored records that a power cut may lose.
MOST_LOST_RECORDS = 20
# Epochs of the clock follow each other at this distance.
EPOCH_S = 10.0


class _Unsynced:
    """How to undo the last changes that were not synced; the commands of the store show when it syncs."""

    def __init__(self) -> None:
        self.changes: deque[Persist] = deque(maxlen=MOST_LOST_RECORDS)
        self._is_syncing = False

    def on_command(self, command: str) -> None:
        """The store gave a command."""
        if command.startswith("PRAGMA synchronous"):
            self._is_syncing = command.endswith("FULL")
        elif command == "COMMIT" and self._is_syncing:
            self.changes.clear()


class VirtualDisk(Store):
    """The disk of one machine. `kept` is what it should contain; `records` reads what it does.

    >>> disk = VirtualDisk({b"epoch": b"1"})
    >>> disk.write([Persist(b"model", b"...")])
    >>> disk.cut_power(n_lost=5)
    >>> disk.records()
    {b'epoch': b'1'}
    """

    def __init__(self, records: Mapping[bytes, bytes] | None = None) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.is_full = False
        self.power_cuts = 0
        # The collector may close it in any thread.
        self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        super().__init__(Path("virtual disk"), self._database)
        self._unsynced = _Unsynced()
        self._database.set_trace_callback(self._unsynced.on_command)
        weakref.finalize(self, self._database.close)
        if records:
            self._put([Persist(key, value) for key, value in records.items()])

    def write(self, changes: Iterable[Persist]) -> None:
        """See `Store`."""
        if self.is_full:
            raise StoreError("no room on the virtual disk")
        changes = list(changes)
        self._unsynced.changes += [Persist(change.key, self.kept.get(change.key, b"")) for change in changes]
        self._put(changes)

    def cut_power(self, n_lost: int) -> None:
        """Undo the last changes, but none that was synced."""
        self.power_cuts += 1
        changes = self._unsynced.changes
        self._put([changes.pop() for _ in range(min(n_lost, len(changes)))])
        changes.clear()

    def may_lose(self, key: bytes) -> bool:
        """Whether a power cut could undo the last change of a record."""
        return any(record.key == key for record in self._unsynced.changes)

    def damage(self, rng: np.random.Generator) -> None:
        """Change a byte of a record, without the knowledge of the store."""
        key = sorted(self.kept)[int(rng.integers(len(self.kept)))]
        value = bytearray(self.kept[key])
        value[int(rng.integers(len(value)))] ^= 1 << int(rng.integers(8))
        self._database.execute("UPDATE records SET value = ? WHERE key = ?", (bytes(value), key))

    def _put(self, records: Sequence[Persist]) -> None:
        super().write(records)
        for key, value in records:
            if value:
                self.kept[key] = value
            else:
                self.kept.pop(key, None)


@dataclass(eq=False)
class Host:
    """A machine: `make(life)` gives a new member for that life, and the liar that changes its messages, if any.

    `rate` is how fast its clock runs, and `handling_s` the time it takes to handle a message. `names_lives` if its
    greetings name the life of the member. `may_repeat` if numbers of its models may repeat: two processes have its
    identity, or its clock was set back together with its records. `is_loaded` if the store returned at the beginning of
    the life what it had stored.
    """

    number: int
    me: PeerId
    make: Callable[[int], tuple[Member, Liar | None]]
    is_honest: bool = True
    rate: float = 1.0
    handling_s: float = 0.0
    names_lives: bool = False
    may_repeat: bool = False
    disk: VirtualDisk = field(default_factory=VirtualDisk)
    is_up: bool = False
    life: int = 0
    timer_at: float = math.inf
    busy_until: float = 0.0
    is_doomed: bool = False
    has_left: bool = False
    sent: int = 0
    sent_bytes: int = 0
    refused: int = 0
    is_loaded: bool = True
    earlier_bits: float = 0.0
    liar: Liar | None = None
    _began: float = 0.0
    _member: Member | None = None

    @property
    def member(self) -> Member:
        """The member of the present life, or of the last one."""
        assert self._member is not None
        return self._member

    @property
    def records(self) -> dict[bytes, bytes]:
        """The stored records."""
        return self.disk.kept

    @property
    def bits(self) -> float:
        """Bits about models in all lives, as its members counted them."""
        return self.earlier_bits + (self.member.peer.neighbourhood.ledger.bits if self.life else 0.0)

    def make_member(self) -> None:
        """Make the member of the next life."""
        self.earlier_bits = self.bits
        self.life += 1
        self.is_up, self.is_doomed = True, False
        self._member, self.liar = self.make(self.life)

    def begin_life(self, now: float, known: Sequence[Descriptor], has_clock: bool = True) -> Sequence[Deed]:
        """Make a member, give it the stored records, and start it; without a clock, they alone give its epoch."""
        self.make_member()
        self._began = now if self.rate != 1.0 else 0.0
        unix_time = START_OF_EPOCHS + now if has_clock else 0.0
        try:
            records = self.disk.records()
        except CorruptStoreError:
            # As by `dada peer init --recover`.
            self.replace_disk({}, now)
            records = {}
        self.is_loaded = records == self.records
        records[EPOCH_KEY] = last_epoch(records.get(EPOCH_KEY), unix_time)
        self.member.restore(records)
        life = self.number.to_bytes(4, "big") + self.life.to_bytes(4, "big") if self.names_lives else b""
        return self.deeds(self.member.start(self.clock(now), known, life))

    def replace_disk(self, records: Mapping[bytes, bytes], now: float, has_clock: bool = True) -> None:
        """Continue from other records than the last ones; then only a clock prevents that numbers repeat."""
        newest = int.from_bytes(self.records.get(EPOCH_KEY, b""), "big")
        self.may_repeat |= not has_clock or int(now / EPOCH_S) < newest
        self.disk = VirtualDisk(records)

    def clock(self, now: float) -> float:
        """What the clock of the member shows. One that is wrong begins at zero in each life."""
        return self.rate * (now - self._began)

    def time_of(self, reading: float) -> float:
        """When the clock of the member will show a time."""
        return self._began + reading / self.rate

    def deeds(self, effects: list[Effect], is_timer: bool = False) -> Sequence[Deed]:
        """What the host does about its member's effects; a liar changes them."""
        if self.liar is None:
            return effects
        return [*self.liar.falsify(effects), *(self.liar.attack() if is_timer else ())]

    def overhear(self, sender: PeerId, data: bytes) -> None:
        """Let a liar see a message to its member."""
        if self.liar is not None:
            with suppress(ValueError):
                self.liar.overhear(sender, decode(data))


# How long a transport tries to reach a host.
GIVE_UP_S = 20.0
# Messages that a slow host would handle later than this are lost.
MOST_BACKLOG_S = 5.0


class World:
    """Hosts, the messages between them, and time.

    The generator decides on delays, losses and crashes; members have their own. `watch` is called after every event of
    a host, with the other host that it involved, and `before_sending` before each message of an honest host. `cuts` end
    the transmission between hosts for a time. Links break with the share `dropping` of all messages. `twins` are second
    machines with the identities of some hosts, by the numbers of these.
    """

    def __init__(
        self,
        hosts: list[Host],
        link: LinkModel,
        rng: np.random.Generator,
        watch: Callable[[World, Host, Host | None], None],
        before_sending: Callable[[World, Host, Send], None],
        cuts: Sequence[Cut] = (),
        dropping: float = 0.0,
        twins: Mapping[int, Host] | None = None,
    ) -> None:
        self.cuts, self.dropping, self.twins = cuts, dropping, {} if twins is None else twins
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
        self._breaks: Counter[tuple[int, int]] = Counter()
        self._encoded: tuple[Message | None, bytes] = None, b""
        self._last_process: dict[tuple[int, PeerId], Host] = {}

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

    def start(self, number: int, known: tuple[int, ...] = (), has_clock: bool = True) -> None:
        """Start the member of a host, from its records after an earlier life."""
        self._begin_life(self.hosts[number], known, has_clock)

    def _begin_life(self, host: Host, known: tuple[int, ...] = (), has_clock: bool = True) -> None:
        if host.is_up or host.has_left:
            return
        deeds = host.begin_life(self.now, [Descriptor(self.hosts[other].me, 0) for other in known], has_clock)
        self.counts["restarts"] += host.life > 1
        self._did(host, deeds)

    def crash(self, number: int) -> None:
        """Doom a member: it dies during its next event."""
        self.hosts[number].is_doomed = self.hosts[number].is_up

    def change_rows(self, number: int, rows: UserRows) -> None:
        """Give a running member other samples."""
        host = self.hosts[number]
        if host.is_up:
            self._did(host, host.deeds(host.member.change_rows(rows, host.clock(self.now))))

    def leave(self, number: int, with_goodbye: bool) -> None:
        """Let a member leave for good."""
        host = self.hosts[number]
        host.has_left = True
        if host.is_up:
            if with_goodbye:
                self._carry_out(host, host.deeds(host.member.leave(host.clock(self.now))))
            self._die(host)

    def restart(self, number: int) -> None:
        """Kill the member of a host, and start the next one."""
        self._die(self.hosts[number])
        self.start(number)

    def restore_copy(self, number: int, records: Mapping[bytes, bytes], has_clock: bool) -> None:
        """Restart a host from an old copy of its records; if its clock was set back too, numbers may repeat."""
        host = self.hosts[number]
        self._die(host)
        host.replace_disk(records, self.now, has_clock)
        self.start(number, (0,), has_clock)

    def damage_disk(self, number: int) -> None:
        """Change a byte of a record of a host, and restart it."""
        host = self.hosts[number]
        self._die(host)
        host.disk.damage(self._rng)
        self.start(number, (0,))

    def double(self, number: int) -> None:
        """Start a second process with the identity and the records of a host."""
        host, twin = self.hosts[number], self.twins[number]
        host.may_repeat = True
        twin.disk = VirtualDisk(host.records)
        self._begin_life(twin)

    def end_twin(self, number: int) -> None:
        """Stop the second process for good, and restart the first, as the warning of both demands."""
        twin = self.twins[number]
        twin.has_left = True
        self._die(twin)
        self.restart(number)

    def revive(self, number: int) -> None:
        """Spare a doomed member, or restart a dead one."""
        self.hosts[number].is_doomed = False
        self.start(number)

    def hand(self, number: int, sender: PeerId, message: Message) -> None:
        """Give a member a message of a sender that runs no host, such as the founder of the network."""
        host = self.hosts[number]
        if host.is_up:
            self._did(host, host.deeds(host.member.receive(sender, message, host.clock(self.now))))

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
        host.is_up, host.timer_at, host.is_doomed = False, math.inf, False

    # -- events ----------------------------------------------------------------------------------------------------

    def _on_timer(self, host: Host, time: float, due: float) -> None:
        if host.is_up and host.timer_at == time:
            host.timer_at = math.inf
            # Rounded up: the clock has reached the time for which the timer was set.
            now = max(host.clock(self.now), due)
            self._did(host, host.deeds(host.member.on_timer(now), is_timer=True))

    def _on_arrival(self, sender: Host, host: Host, data: bytes, breaks: int) -> None:
        """Handle a message, or let it wait until a slow host has handled those before."""
        if host.handling_s > 0.0 and host.is_up:
            if host.busy_until > self.now + MOST_BACKLOG_S:
                self._under_way[_pair(sender, host)] -= 1
                self.counts["lost"] += 1
                return
            host.busy_until = max(host.busy_until, self.now) + host.handling_s
            self.at(host.busy_until, self._on_delivery, sender, host, data, breaks)
        else:
            self._on_delivery(sender, host, data, breaks)

    def _on_delivery(self, sender: Host, host: Host, data: bytes, breaks: int) -> None:
        pair = _pair(sender, host)
        self._under_way[pair] -= 1
        if breaks != self._breaks[pair]:
            self.counts["lost"] += 1
            return
        if not host.is_up:
            self._will_give_up(sender, host)
            return
        self.counts["messages"] += 1
        self.counts["bytes"] += len(data)
        if self.twins:
            self._last_process[host.number, sender.me] = sender
        host.overhear(sender.me, data)
        self._did(host, host.deeds(host.member.receive_bytes(sender.me, data, host.clock(self.now))), sender)

    def _on_giving_up(self, host: Host, other: Host, life: int) -> None:
        self._giving_up.discard((host.number, other.number))
        present = self._process_of(host, other.me)
        is_gone = self._is_cut(host, present) if present.is_up else present is not other or other.life == life
        if host.is_up and is_gone:
            self._did(host, host.deeds(host.member.on_unreachable(other.me, host.clock(self.now))), other)

    def _did(self, host: Host, deeds: Sequence[Deed], other: Host | None = None) -> None:
        """Carry out the deeds of a host, set its timer, and report the event."""
        self.events += 1
        if host.is_doomed:
            self._carry_out(host, deeds[: int(self._rng.integers(len(deeds) + 1))])
            self._die(host)
            if self._rng.random() < 0.3:
                host.disk.cut_power(int(self._rng.integers(1, MOST_LOST_RECORDS)))
        else:
            self._carry_out(host, deeds)
            due = host.member.deadline
            time = max(host.time_of(due), self.now)
            if time < host.timer_at:
                host.timer_at = time
                self.at(time, self._on_timer, host, time, due)
        self.watch(self, host, other)

    def _carry_out(self, host: Host, deeds: Sequence[Deed]) -> None:
        for deed in deeds:
            if isinstance(deed, Send):
                if host.is_honest:
                    self.before_sending(self, host, deed)
                if self._encoded[0] is not deed.message:
                    self._encoded = deed.message, encode(deed.message)
                self._transmit(host, deed.to, self._encoded[1])
            elif isinstance(deed, Persist):
                host.disk.write([deed])
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
        if to in self.numbers and to != host.me:
            other = self._process_of(host, to)
            self._connect(host, other)
            self._put_on_link(host, other, data)

    def _process_of(self, host: Host, peer: PeerId) -> Host:
        """The machine of a peer; if there are two, the one from which the last message came."""
        first = self.hosts[self.numbers[peer]]
        twin = self.twins.get(first.number)
        if twin is None or not twin.is_up:
            return first
        return self._last_process.get((host.number, peer), first) if first.is_up else twin

    def _connect(self, host: Host, other: Host) -> None:
        """Exchange greetings, unless these two hosts have done so in their present lives and on the present link."""
        one, two = (host, other) if host.number < other.number else (other, host)
        pair, lives = (one.number, two.number), (one.life, two.life)
        if self._connected.get(pair) != lives:
            self._connected[pair] = lives
            for one, two in ((host, other), (other, host)):
                if one.is_up and one.is_honest:
                    self._put_on_link(one, two, encode(one.member.peer.hello()))

    def _put_on_link(self, host: Host, other: Host, data: bytes) -> None:
        pair = _pair(host, other)
        if self.dropping and self._rng.random() < self.dropping:
            self._breaks[pair] += 1
            self._connected.pop(pair, None)
        is_cut = self._is_cut(host, other)
        delays = () if is_cut else self.link(host.number, other.number, self.now, self._rng)
        host.sent += 1
        host.sent_bytes += len(data)
        self.counts["sent"] += 1
        self.counts["lost"] += not delays
        if is_cut:
            self._will_give_up(host, other)
        for delay in delays:
            self._under_way[pair] += 1
            self.at(self.now + delay, self._on_arrival, host, other, data, self._breaks[pair])

    def _is_cut(self, host: Host, other: Host) -> bool:
        return any(cut.stops(host.number, other.number, self.now) for cut in self.cuts)

    def _will_give_up(self, host: Host, other: Host) -> None:
        if (host.number, other.number) not in self._giving_up:
            self._giving_up.add((host.number, other.number))
            self.at(self.now + GIVE_UP_S, self._on_giving_up, host, other, other.life)


def _pair(host: Host, other: Host) -> tuple[int, int]:
    return (host.number, other.number) if host.number < other.number else (other.number, host.number)
