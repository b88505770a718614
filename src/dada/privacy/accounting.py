"""The budget, exact accounting of Gaussian and pure mechanisms, and the record of what was released.

Gaussian releases with sensitivities D_i and standard deviations s_i are together as private as one Gaussian release
with mu = sqrt(sum (D_i / s_i)^2), whose trade-off is exact:

    delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)                                                  (P1)

Noise is drawn on a grid. A discrete Gaussian of s steps per standard deviation differs from a rounded continuous one
by at most 1/(8 s^2) in total variation for each coordinate; `grid_delta` charges that difference to delta.
"""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

from scipy.optimize import brentq
from scipy.special import log_ndtr

PROTECTS = ("rows", "labels")
NOISE = ("secure", "seeded")
MOST_MU = 1e4


@dataclass(frozen=True)
class Privacy:
    """What one user's releases may reveal about its rows to all other users together.

    Parameters
    ----------
    epsilon, delta : float
        The budget of each user: replacing one of its rows changes the probability of any set of releases by at most
        the factor e^epsilon, plus delta. Labels are protected with delta = 0.
    protects : {"rows", "labels"}
        "rows": features and label of a row. "labels": the label only; features are not protected.
    ranges : (low, high), optional
        Public range of the features: two numbers, or two sequences with a number per feature. Needed to protect rows;
        must not be read off the rows. Values outside are clipped.
    targets : (low, high), optional
        Public range of a regression's targets, likewise.
    norm : float, optional
        Public bound on the Euclidean norm of the base predictions of a row. Longer rows are shortened before their
        release. By default the square root of their number, which holds always. One-hot features have smaller norms. A
        given norm is also what the typical row is expected to have, when a fit judges whether releases are worth
        sending; by default rows are expected to be uniform in `ranges`.
    ledger : path, optional
        File that records what was released; a second fit to the same rows sends the same bytes. By default a fit keeps
        no record, and every further fit to the same rows spends the budget once more.
    secure_sum : bool
        To protect rows: only sums of users' releases are seen, and one release's noise is divided among the users of a
        sum (`dada.privacy.secure_sum`).
    groups : mapping of users to names, optional
        Public groups, such as cities: with `secure_sum`, one sum for each group of at least three users. By default one
        sum of all users.
    noise : {"secure", "seeded"}
        "seeded" takes the noise from `random_state`, so that an experiment can be repeated. It gives no
        protection: whoever knows the seed can remove the noise.

    Examples
    --------
    >>> Privacy(epsilon=4.0, ranges=(0, 1)).protects
    'rows'
    >>> Privacy(epsilon=-1.0)
    Traceback (most recent call last):
    ValueError: epsilon must be a finite number > 0, got -1.0
    """

    epsilon: float
    delta: float = 1e-5
    protects: str = "rows"
    ranges: Any = None
    targets: tuple[float, float] | None = None
    norm: float | None = None
    ledger: str | os.PathLike[str] | None = None
    noise: str = "secure"
    secure_sum: bool = False
    groups: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.epsilon, Real) or not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be a finite number > 0, got {self.epsilon!r}")
        if not isinstance(self.delta, Real) or not 0 < self.delta < 1:
            raise ValueError(f"delta must be between 0 and 1, both excluded, got {self.delta!r}")
        if self.protects not in PROTECTS:
            raise ValueError(f"protects must be one of {list(PROTECTS)}, got {self.protects!r}")
        if self.noise not in NOISE:
            raise ValueError(f"noise must be one of {list(NOISE)}, got {self.noise!r}")
        if self.norm is not None and not 0 < self.norm < math.inf:
            raise ValueError(f"norm must be a finite number > 0, got {self.norm!r}")
        if self.secure_sum and self.protects != "rows":
            raise ValueError("secure_sum is for rows: leave it out, or protect rows")
        if self.groups is not None:
            if not self.secure_sum:
                raise ValueError("groups are those of secure sums: add secure_sum=True, or leave them out")
            pairs = self.groups.items() if isinstance(self.groups, Mapping) else self.groups
            # Pairs, because a model file holds no mapping of numbers.
            object.__setattr__(self, "groups", tuple((user, str(name)) for user, name in pairs))
        if self.protects == "rows" and self.ranges is None:
            raise ValueError(
                "ranges must be given to protect rows: (low, high), public bounds of the features that do not come "
                "from the rows; or protect labels only with protects='labels'"
            )


@dataclass(frozen=True)
class PrivacyCost:
    """What releases cost: `mu` of Gaussian noise, `epsilon` of pure mechanisms, and `delta` of drawing on a grid."""

    mu: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    def __add__(self, other: PrivacyCost) -> PrivacyCost:
        return PrivacyCost(math.hypot(self.mu, other.mu), self.epsilon + other.epsilon, self.delta + other.delta)

    def delta_at(self, epsilon: float) -> float:
        """The delta that these releases guarantee at this epsilon; 1 if pure mechanisms alone cost more."""
        if self.epsilon > epsilon * (1 + 1e-12):
            return 1.0
        return min(1.0, gaussian_delta(self.mu, max(0.0, epsilon - self.epsilon)) + self.delta)


def total(costs: Iterable[PrivacyCost]) -> PrivacyCost:
    """The cost of all releases together."""
    return sum(costs, PrivacyCost())


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Exact delta of Gaussian releases, Eq. (P1)."""
    if mu == 0.0:
        return 0.0
    upper, lower = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    # The difference of two nearly equal terms, taken relative to the first.
    log_first = float(log_ndtr(upper))
    return max(0.0, -math.exp(log_first) * math.expm1(epsilon + float(log_ndtr(lower)) - log_first))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose Gaussian releases are (epsilon, delta)-private, rounded down.

    >>> [round(gaussian_mu(epsilon, 1e-5), 3) for epsilon in (1, 4, 8)]
    [0.268, 0.925, 1.666]
    """
    if not epsilon > 0 or not 0 < delta < 1:
        raise ValueError(f"epsilon must be > 0 and delta between 0 and 1, got epsilon={epsilon}, delta={delta}")
    found = float(brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-9, MOST_MU, xtol=1e-15, rtol=1e-14))
    while gaussian_delta(found, epsilon) > delta:
        found *= 1 - 1e-12
    return found


def grid_delta(epsilon: float, steps: Iterable[int], counts: Iterable[int]) -> float:
    """Delta that drawing on a grid costs; `counts` coordinates have `steps` grid steps per standard deviation."""
    apart = sum(count / (8 * step * step) for step, count in zip(steps, counts, strict=True))
    return (1 + math.exp(epsilon)) * apart


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


_COLUMNS = "owner, name, mu, epsilon, delta, digest, body"


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


def content_hash(body: bytes) -> str:
    """The SHA-256 digest that names a release."""
    return hashlib.sha256(body).hexdigest()


class PrivacyLedger:
    """Releases of one or more owners, each with the same budget.

    A release is on disk (`fsync`) before `release` returns it. After a crash at any moment, the same name returns the
    same bytes: noise is never drawn twice for one name. Several processes may share a file.

    The record is an SQLite file, created if it does not exist, or in memory without a path. The budget of each owner is
    fixed when the file is created.
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
        """The stored release of this name, or a new one; `BudgetError` if all of the owner's would exceed the budget.

        The name stands for the rows and the mechanism: other rows or another mechanism need another name. `make` draws
        the noise and encodes a new release. It is called at most once, inside the transaction.
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
                    connection.execute(f"INSERT INTO releases ({_COLUMNS}) VALUES (?,?,?,?,?,?,?)", row)
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
