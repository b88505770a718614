"""The record of what was released: written before anything is sent, never changed, and never beyond the budget."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from dada.privacy.accounting import PrivacyCost, total
from dada.privacy.release import content_hash

_SCHEMA = """
CREATE TABLE IF NOT EXISTS budget (one INTEGER PRIMARY KEY CHECK (one = 1), epsilon REAL, delta REAL);
CREATE TABLE IF NOT EXISTS releases (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    mu REAL NOT NULL,
    epsilon REAL NOT NULL,
    delta REAL NOT NULL,
    digest TEXT NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (owner, name)
);
CREATE TRIGGER IF NOT EXISTS kept BEFORE DELETE ON releases BEGIN SELECT RAISE(ABORT, 'releases are kept'); END;
CREATE TRIGGER IF NOT EXISTS fixed BEFORE UPDATE ON releases BEGIN SELECT RAISE(ABORT, 'releases are fixed'); END;
CREATE TRIGGER IF NOT EXISTS fixed_budget BEFORE UPDATE ON budget BEGIN SELECT RAISE(ABORT, 'the budget is fixed'); END;
"""


class BudgetError(RuntimeError):
    """A release would exceed the budget."""


class LedgerError(OSError):
    """The ledger is damaged, or was made for another budget."""


class LedgerEntry(NamedTuple):
    """One release: its number, owner, name, cost and digest."""

    number: int
    owner: str
    name: str
    cost: PrivacyCost
    digest: str


class PrivacyLedger:
    """Releases of one or more owners, each with the same budget.

    A release is on disk (`fsync`) before `release` returns it. After a crash at any moment, the same name returns the
    same bytes: noise is never drawn twice for one name. Several processes may share a file.

    Parameters
    ----------
    path : path or None
        SQLite file, created if it does not exist; None keeps the record in memory.
    epsilon, delta : float
        The budget of each owner; fixed when the file is created.

    Examples
    --------
    >>> ledger = PrivacyLedger(None, epsilon=1.0, delta=1e-5)
    >>> ledger.release("ann", "labels", PrivacyCost(epsilon=1.0), lambda: b"noisy")
    b'noisy'
    >>> ledger.release("ann", "labels", PrivacyCost(epsilon=1.0), lambda: b"drawn again")
    b'noisy'
    >>> ledger.release("ann", "more labels", PrivacyCost(epsilon=0.5), lambda: b"noisy")
    Traceback (most recent call last):
    dada.privacy.ledger.BudgetError: release 'more labels' of ann would cost epsilon 1.5 ...
    >>> ledger.close()
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, epsilon: float, delta: float) -> None:
        self.path = ":memory:" if path is None else os.fspath(path)
        self.epsilon, self.delta = float(epsilon), float(delta)
        try:
            # Releases are made by one call each; SQLite's lock orders those of several processes.
            self._connection = sqlite3.connect(self.path, timeout=60.0, isolation_level=None)
            self._connection.execute("PRAGMA synchronous=EXTRA")
            self._connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
            self._connection.execute("INSERT OR IGNORE INTO budget VALUES (1, ?, ?)", (self.epsilon, self.delta))
            budget = self._connection.execute("SELECT epsilon, delta FROM budget").fetchone()
        except sqlite3.DatabaseError as error:
            raise self._explained(error) from error
        if budget != (self.epsilon, self.delta):
            self.close()
            raise LedgerError(
                f"{self.path}: this ledger has the budget epsilon={budget[0]:g}, delta={budget[1]:g}, got "
                f"epsilon={self.epsilon:g}, delta={self.delta:g}: what was released cannot be withdrawn, so the budget "
                "stays"
            )

    def release(self, owner: str, name: str, cost: PrivacyCost, make: Callable[[], bytes]) -> bytes:
        """The stored release of this name, or a new one if the budget allows it.

        Parameters
        ----------
        owner : str
            Whose rows are released.
        name : str
            Names the rows and the mechanism: other rows or another mechanism need another name.
        cost : PrivacyCost
            Of the new release.
        make : callable
            Draws the noise and encodes the release. Called at most once, inside the transaction.

        Raises
        ------
        BudgetError
            If all releases of the owner together would exceed the budget; nothing is drawn.
        """
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                body = self._stored(owner, name)
                if body is None:
                    self._check(owner, name, cost)
                    body = make()
                    row = (owner, name, cost.mu, cost.epsilon, cost.delta, content_hash(body), body)
                    connection.execute(
                        "INSERT INTO releases (owner, name, mu, epsilon, delta, digest, body) VALUES (?,?,?,?,?,?,?)",
                        row,
                    )
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise self._explained(error) from error
        return body

    def entries(self, owner: str | None = None) -> list[LedgerEntry]:
        """All releases, or those of one owner, in the order they were made."""
        with closing(self._connection.execute("SELECT * FROM releases ORDER BY number")) as rows:
            found = [LedgerEntry(row[0], row[1], row[2], PrivacyCost(*row[3:6]), row[6]) for row in rows]
        return [entry for entry in found if owner in (None, entry.owner)]

    def spent(self, owner: str) -> PrivacyCost:
        """The cost of an owner's releases together."""
        return total(entry.cost for entry in self.entries(owner))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _stored(self, owner: str, name: str) -> bytes | None:
        row = self._connection.execute(
            "SELECT digest, body FROM releases WHERE owner = ? AND name = ?", (owner, name)
        ).fetchone()
        if row is None:
            return None
        if content_hash(row[1]) != row[0]:
            raise LedgerError(f"{self.path}: release {name!r} of {owner} is damaged: restore the file from a backup")
        return bytes(row[1])

    def _check(self, owner: str, name: str, cost: PrivacyCost) -> None:
        together = self.spent(owner) + cost
        needed = together.delta_at(self.epsilon)
        if needed > self.delta:
            raise BudgetError(
                f"release {name!r} of {owner} would cost epsilon {together.epsilon:g} and mu {together.mu:.4g} in all: "
                f"delta {needed:.3g} at epsilon {self.epsilon:g}, above the budget of {self.delta:.3g}. Use the stored "
                "releases; a further release needs more noise or a larger budget"
            )

    def _explained(self, error: sqlite3.DatabaseError) -> LedgerError:
        return LedgerError(f"{self.path}: the privacy ledger cannot be read or written ({error})")
