"""A simulated machine: a member in its lives, its clock, and the disk under the store of a real peer.

The disk is a `dada.net.store.Store` on a database in memory, with the same commands as on a file. It watches these
commands: a power cut loses some of the last records, but none that the store had synced. It may also change a byte of a
record, which the store must detect, and it may be full.
"""

from __future__ import annotations

import math
import sqlite3
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dada.net.store import START_OF_EPOCHS, CorruptStoreError, Store, StoreError, last_epoch
from dada.peer.inputs import Effect, Persist
from dada.peer.member import Member
from dada.peer.messages import Descriptor, PeerId, decode
from dada.peer.model import EPOCH_KEY
from dada.sim.liars import Deed, Liar

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
