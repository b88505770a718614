"""Inputs and outputs of a peer: facts go in, effects come out.

A fact is something that happened, with its time. An action is a fact that the peer's own planner decides on. Facts are
also the records of a journal, so a peer can be replayed from what it was given.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from dada.core.compiled import Array
from dada.core.model_steps import UserRows
from dada.peer.messages import Message, PeerId

# The record of a secure sum: the peer's secrets, and the parts that it published.
SUMS_KEY = b"secure sums"


class StoredRows(msgspec.Struct, frozen=True, array_like=True):
    """The samples of a user, as bytes."""

    A: bytes
    dtype: str
    n_rows: int
    offset: bytes = b""
    weights: bytes = b""

    @classmethod
    def of(cls, rows: UserRows) -> StoredRows:
        """Rows to be stored."""
        return cls(rows.A.tobytes(), rows.A.dtype.str, len(rows.A), as_bytes(rows.offset), as_bytes(rows.weights))

    @property
    def rows(self) -> UserRows:
        """The stored rows."""
        # A copy, since kernels are compiled anew for arrays that cannot be written.
        A: Array = np.frombuffer(self.A, np.dtype(self.dtype)).reshape(self.n_rows, -1).copy()
        return UserRows(A, as_numbers(self.offset), as_numbers(self.weights))


def as_bytes(numbers: Array | None) -> bytes:
    """Numbers in double precision as bytes; empty for None."""
    return b"" if numbers is None else np.asarray(numbers, np.float64).tobytes()


def as_numbers(content: bytes) -> Array | None:
    """The inverse of `as_bytes`."""
    return np.frombuffer(content, np.float64) if content else None


class Restored(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The records that an earlier life stored were read; comes before `Started`."""

    records: dict[bytes, bytes]


class _Timed(msgspec.Struct, frozen=True, array_like=True):
    now: float


class Started(_Timed, frozen=True, tag=1):
    """A life begins; its random id distinguishes two processes with one identity."""

    life: bytes = b""


class ModelStep(_Timed, frozen=True, tag=2):
    """Action: make one model update; only the rule "paper" needs `gamma`."""

    gamma: float = -1.0


class GraphStep(_Timed, frozen=True, tag=3):
    """Action: update the weights to a batch of peers."""

    batch: tuple[PeerId, ...]


class ResetModel(_Timed, frozen=True, tag=4):
    """Action: restart the model from zero."""


class Leave(_Timed, frozen=True, tag=5):
    """Action: send a goodbye to all neighbours."""


class Received(_Timed, frozen=True, tag=6):
    """A message arrived."""

    sender: PeerId
    message: Message


class TimerFired(_Timed, frozen=True, tag=7):
    """The peer's deadline has passed."""


class Unreachable(_Timed, frozen=True, tag=8):
    """The transport has stopped trying to reach a peer."""

    peer: PeerId


class RowsChanged(_Timed, frozen=True, tag=9):
    """The user has new samples; these are all that the peer learns from now on."""

    stored: StoredRows


class SettingsAgreed(_Timed, frozen=True, tag=10):
    """The census gives another strength of the coupling, or another largest number of samples."""

    mu: float
    largest: int


class DictionaryChanged(_Timed, frozen=True, tag=11):
    """The trees among the base predictors have changed (see `dada.peer.grove`).

    `origin` are little-endian int32: the former coordinate of each present one, -1 for a new tree.
    """

    dictionary: bytes
    origin: bytes
    stored: StoredRows


Action = ModelStep | GraphStep | ResetModel | Leave
Fact = (
    Restored | Started | Action | Received | TimerFired | Unreachable | RowsChanged | SettingsAgreed | DictionaryChanged
)


class Persist(NamedTuple):
    """Store a record durably before any later effect is carried out; an empty value deletes the key."""

    key: bytes
    value: bytes


class Send(NamedTuple):
    """Send a message to a peer; it may be lost."""

    to: PeerId
    message: Message


class Refused(NamedTuple):
    """A message was ignored, and why; drivers count these."""

    sender: PeerId
    reason: str


class Failed(Refused):
    """A message was ignored because handling it raised an error: a flaw of this program, not of the sender."""


class Warned(NamedTuple):
    """Something that the operator of this peer must know."""

    text: str


Effect = Persist | Send | Refused | Warned
