"""A peer's durable state: records in one SQLite file, written before the messages that depend on them are sent.

The file is in WAL mode with `synchronous=NORMAL`: a killed process loses nothing, and a power cut may lose the last
records, which neighbours restore. Only the epoch is written with `FULL`, because an epoch must never be reused. Each
record has a checksum, so that damage is detected when the file is opened.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dada.peer.inputs import SUMS_KEY, Persist
from dada.peer.model import EPOCH_KEY

VERSION = 1
_APPLICATION = 0x64616461  # "dada", in the header of the file
_DURABLE_KEYS = (EPOCH_KEY, SUMS_KEY)
# 1 January 2020, UTC.
START_OF_EPOCHS = 1_577_836_800


class StoreError(OSError):
    """A peer's state could not be read or written."""


class CorruptStoreError(StoreError):
    """The file of a peer's state is damaged."""


@contextmanager
def needing_room(path: Path) -> Iterator[None]:
    """Explain the error of a full disk while a file is written."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise StoreError(f"no room to write {path} ({error.strerror}): free some space, then try again") from error


class Store:
    """The records of one peer, in a file that is created if it does not exist, or in an open database.

    Examples
    --------
    >>> import tempfile
    >>> store = Store(Path(tempfile.mkdtemp()) / "state.sqlite")
    >>> store.write([Persist(b"model", b"..."), Persist(b"epoch", b"1")])
    >>> store.records()[b"model"]
    b'...'
    >>> store.close()
    """

    def __init__(self, path: Path, database: sqlite3.Connection | None = None) -> None:
        self.path = path
        try:
            self._connection = _prepared(path, _open(path) if database is None else database)
        except sqlite3.DatabaseError as error:
            raise _explained(path, error) from error

    def records(self) -> dict[bytes, bytes]:
        """All records, each checked."""
        return _records(self.path, self._connection)

    def write(self, changes: Iterable[Persist]) -> None:
        """Store all changes or none; an empty value deletes its key."""
        changes = list(changes)
        is_durable = any(change.key in _DURABLE_KEYS for change in changes)
        cursor = self._connection
        try:
            if is_durable:
                cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("BEGIN IMMEDIATE")
            for change in changes:
                if change.value:
                    row = (change.key, change.value, zlib.crc32(change.key + change.value))
                    cursor.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", row)
                else:
                    cursor.execute("DELETE FROM records WHERE key = ?", (change.key,))
            cursor.execute("COMMIT")
            if is_durable:
                cursor.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.DatabaseError as error:
            if cursor.in_transaction:
                cursor.execute("ROLLBACK")
            raise _explained(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def first_epoch(now: float) -> int:
    """Smallest epoch before a start; `now` is the Unix time.

    A peer that lost its state, or runs from an old copy of it, must not reuse an epoch: it would sign two models with
    one number. So the epoch comes from the clock. Steps of ten seconds are shorter than most restarts, and leave room
    for versions in 64 bits. If the clock was set back, neighbours report the epoch they have seen.

    >>> first_epoch(1_800_000_000.0), first_epoch(0.0)
    (22216320, 0)
    """
    return max(0, int(now - START_OF_EPOCHS) // 10)


def last_epoch(stored: bytes | None, now: float) -> bytes:
    """The epoch before a start, as a record: the stored one or that of the clock, whichever is larger."""
    newest = first_epoch(now).to_bytes(8, "big")
    if stored is None:
        return newest
    # A record of another length is damaged, which the restoring member reports.
    return max(stored, newest) if len(stored) == len(newest) else stored


def read_records(path: Path) -> dict[bytes, bytes]:
    """The records of a peer that may be running; the file is not changed."""
    if not path.is_file():
        raise StoreError(f"no state at {path}: this peer has never run")
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
        return _records(path, connection)


def set_aside(path: Path) -> Path | None:
    """Rename a damaged file and return its new path; None if there is no file."""
    if not path.exists():
        return None
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for ending in ("", "-wal", "-shm"):
        part = path.with_name(path.name + ending)
        if part.exists():
            part.rename(kept.with_name(kept.name + ending))
    return kept


def _open(path: Path) -> sqlite3.Connection:
    # SQLite gives its other files the mode of this one.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    path.chmod(0o600)
    return sqlite3.connect(path, isolation_level=None, timeout=5.0, check_same_thread=False)


def _prepared(path: Path, connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise StoreError(f"{path} is of version {version}, this dada reads up to {VERSION}: update dada")
        if version == 0:
            connection.execute(f"PRAGMA application_id={_APPLICATION}")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, value BLOB, checksum INTEGER) WITHOUT ROWID"
            )
            connection.execute(f"PRAGMA user_version={VERSION}")
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(str(found))
    except BaseException:
        connection.close()
        raise
    return connection


def _records(path: Path, connection: sqlite3.Connection) -> dict[bytes, bytes]:
    try:
        rows = connection.execute("SELECT key, value, checksum FROM records").fetchall()
    except sqlite3.DatabaseError as error:
        raise _explained(path, error) from error
    for key, value, checksum in rows:
        if zlib.crc32(key + value) != checksum:
            raise damaged(path, f"the checksum of record {key[:20]!r} does not fit")
    return {key: value for key, value, _ in rows}


def _explained(path: Path, error: sqlite3.DatabaseError) -> StoreError:
    """The error of SQLite with its remedy."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, str(error))
    what = "no room to store" if code == sqlite3.SQLITE_FULL else "cannot store"
    return StoreError(f"{what} the state of this peer in {path} ({error}); the last good state is intact")


def damaged(path: Path, what: str) -> CorruptStoreError:
    """The error for a file with invalid records."""
    return CorruptStoreError(
        f"{path} is damaged ({what}). The peer's identity is intact. "
        "`dada peer init --recover` keeps the damaged file aside and lets the peer start anew under the same identity"
    )
