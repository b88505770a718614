"""Links to authenticated peers: the interface of a transport, frames on a link, and a bound on tasks that wait.

A transport knows nothing of frames or messages; `dada.net.iroh_transport` is the one for real networks. A frame is four
bytes of length, one byte of kind, then the content. The announced length is checked before any content is buffered: an
unknown peer can make this one hold at most 1 KB before the handshake, and one message after it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine, Hashable, Sequence
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from dada.peer.messages import LARGEST_MESSAGE, PeerId

# Most bytes returned by one `recv`.
CHUNK = 1 << 16


class TransportError(OSError):
    """A link broke or could not be opened."""


class Link(Protocol):
    """A two-way stream of bytes to one peer, whose identity the transport has verified."""

    peer: PeerId

    async def send(self, data: bytes) -> None:
        """Send bytes; waits if the other end is slow."""

    async def recv(self) -> bytes:
        """Receive some bytes; none at the end of the stream."""

    def close(self) -> None:
        """Close the link; a pending `recv` ends at both ends."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses at which the other end has answered, without relays."""

    @property
    def wire_bytes(self) -> int:
        """Bytes sent on the wire, with all overhead."""

    @property
    def received_bytes(self) -> int:
        """Bytes received on the wire, with all overhead."""


class Transport(Protocol):
    """One peer's access to the network."""

    me: PeerId

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses at which others can dial this peer."""

    async def accept(self) -> Link:
        """Wait for the next link that another peer opens."""

    async def dial(self, peer: PeerId, addresses: Sequence[str]) -> Link:
        """Open a link to a peer, or raise `TransportError`; fails if another peer answers."""

    async def close(self) -> None:
        """Close all links and stop listening."""


HEADER = struct.Struct(">IB")

# Enough for every frame of a handshake.
LARGEST_GREETING = 1024


class Kind(IntEnum):
    """Type of a frame."""

    GREETING = 0
    PROOF = 1
    MESSAGE = 2
    PING = 3
    PONG = 4
    REFUSAL = 5


class FrameError(ValueError):
    """Malformed, oversized or truncated frame."""


def frame(kind: Kind, content: bytes = b"") -> bytes:
    r"""The bytes of one frame.

    >>> frame(Kind.PING)
    b'\x00\x00\x00\x00\x03'
    """
    if len(content) > LARGEST_MESSAGE:
        raise FrameError(f"a frame holds at most {LARGEST_MESSAGE} bytes, got {len(content)}")
    return HEADER.pack(len(content), kind) + content


class FrameReader:
    """Incremental parser of frames with at most `largest` bytes of content, which may change between two frames.

    Examples
    --------
    >>> reader = FrameReader(largest=100)
    >>> reader.feed(frame(Kind.MESSAGE, b"abc")[:6])
    >>> reader.next() is None
    True
    >>> reader.feed(b"bc")
    >>> reader.next()
    (<Kind.MESSAGE: 2>, b'abc')
    """

    def __init__(self, largest: int = LARGEST_GREETING) -> None:
        self.largest = largest
        self._bytes = bytearray()
        self._start = 0

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        if self._start:
            del self._bytes[: self._start]
            self._start = 0
        self._bytes += data

    def next(self) -> tuple[Kind, bytes] | None:
        """The next complete frame, or None if more bytes are needed."""
        if len(self._bytes) - self._start < HEADER.size:
            return None
        length, kind = HEADER.unpack_from(self._bytes, self._start)
        if length > self.largest:
            raise FrameError(f"a frame announces {length} bytes, at most {self.largest} are allowed here")
        if kind >= len(Kind):
            raise FrameError(f"a frame of kind {kind}, known are 0..{len(Kind) - 1}")
        begin = self._start + HEADER.size
        if len(self._bytes) < begin + length:
            return None
        self._start = begin + length
        return Kind(kind), bytes(self._bytes[begin : self._start])

    def end(self) -> None:
        """Raise `FrameError` if the stream ended inside a frame."""
        left = len(self._bytes) - self._start
        if left:
            raise FrameError(f"the stream ended inside a frame, {left} bytes after its start")


class FrameStream(FrameReader):
    """The frames that arrive on a link; `largest` bounds what the other end may send."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link

    async def receive(self) -> tuple[Kind, bytes] | None:
        """The next frame, or None at the end of the stream."""
        while (received := self.next()) is None:
            data = await self.link.recv()
            if not data:
                self.end()
                return None
            self.feed(data)
        return received

    async def drain(self) -> None:
        """Discard input until the other end closes the link, so that everything sent before reaches it."""
        try:
            while await self.link.recv():
                pass
        except TransportError:
            return


class Pending:
    """Tasks that wait for strangers.

    Beyond the limit of one key its oldest task is cancelled; beyond the limit in all a random one, so that no order of
    arrival excludes the others.

    Parameters
    ----------
    most, most_per_key : int
        Tasks in all, and with one key.
    rng : numpy Generator
        Chooses the task to cancel.

    Examples
    --------
    >>> async def storm():
    ...     pending = Pending(3, 2, np.random.default_rng(0))
    ...     dropped = [pending.start(key, asyncio.sleep(60)) for key in (b"a", b"b", b"b", b"b", b"c")]
    ...     await pending.close()
    ...     return dropped
    >>> asyncio.run(storm())
    [False, False, False, True, True]
    """

    def __init__(self, most: int, most_per_key: int, rng: np.random.Generator) -> None:
        self._most, self._most_per_key, self._rng = most, most_per_key, rng
        self._keys: dict[asyncio.Task[None], Hashable] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def start(self, key: Hashable, work: Coroutine[Any, Any, None]) -> bool:
        """Start a task; returns whether another one was cancelled."""
        same = [task for task, its_key in self._keys.items() if its_key == key]
        dropped = None
        if len(same) >= self._most_per_key:
            dropped = same[0]
        elif len(self._keys) >= self._most:
            dropped = list(self._keys)[self._rng.integers(len(self._keys))]
        if dropped is not None:
            del self._keys[dropped]
            dropped.cancel()
        task = asyncio.create_task(work)
        self._keys[task] = key
        task.add_done_callback(lambda done: self._keys.pop(done, None))
        return dropped is not None

    async def close(self) -> None:
        """Cancel all tasks."""
        tasks = list(self._keys)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
