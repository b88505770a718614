"""An open link between two peers that have shaken hands: messages both ways, a heartbeat, and a bounded queue.

One task writes: it sends all that was queued since its last write at once, because a write costs far more than the
bytes in it. One task reads. When the other end is slow the queue stays short: the oldest moves of the model are dropped
first, since a neighbour that misses one asks for the whole model. A link on which nothing was heard for `PING_AFTER_S`
is asked for a sign of life; after `DEAD_AFTER_S` it counts as dead. Every link is asked now and then, to know how long
an answer takes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dada.net.framing import FrameError, FrameStream, Kind, frame
from dada.net.handshake import Introduction
from dada.net.transport import TransportError
from dada.peer.messages import LARGEST_MESSAGE, PeerId

PING_AFTER_S, DEAD_AFTER_S = 5.0, 10.0
# When the time of a round trip is first measured, and how old it may grow.
MEASURE_AFTER_S, MEASURE_EVERY_S = 1.0, 10.0
MOST_QUEUED_FRAMES, MOST_QUEUED_BYTES = 1024, 4 * LARGEST_MESSAGE

_PING, _PONG = frame(Kind.PING), frame(Kind.PONG)


@dataclass(eq=False)
class Traffic:
    """Counts of one or many sessions; bytes are those of frames, before encryption."""

    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    dropped: int = 0


class Outbox:
    """Frames that wait to be written: bounded, first in first out, moves of models give way first.

    Examples
    --------
    >>> box = Outbox(most_frames=2)
    >>> for number in range(3):
    ...     box.put(b"%d" % number, expendable=number == 1)
    >>> box.take()
    b'02'
    """

    def __init__(self, most_frames: int = MOST_QUEUED_FRAMES, most_bytes: int = MOST_QUEUED_BYTES) -> None:
        self._frames: deque[tuple[bytes, bool]] = deque()
        self._most_frames, self._most_bytes = most_frames, most_bytes
        self._size = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, data: bytes, expendable: bool = False) -> None:
        """Queue a frame; if there is no room, an older one is dropped."""
        self._frames.append((data, expendable))
        self._size += len(data)
        while len(self._frames) > self._most_frames or self._size > self._most_bytes:
            index = next((i for i, (_, may_go) in enumerate(self._frames) if may_go), 0)
            self._size -= len(self._frames[index][0])
            del self._frames[index]
            self.dropped += 1

    def take(self) -> bytes:
        """All that waits, as one piece."""
        data = b"".join(piece for piece, _ in self._frames)
        self._frames.clear()
        self._size = 0
        return data


class Session:
    """One open link.

    Parameters
    ----------
    stream : FrameStream
        A link after its handshake.
    introduction : Introduction
        What the handshake taught.
    is_dialler : bool
        Whether this end opened the link.
    on_message : function of (session, content)
        Called with the bytes of every message; a `FrameError` it raises ends the session.
    clock : function
        The time in seconds.
    """

    def __init__(
        self,
        stream: FrameStream,
        introduction: Introduction,
        is_dialler: bool,
        on_message: Callable[[Session, bytes], None],
        clock: Callable[[], float],
    ) -> None:
        self.peer: PeerId = stream.link.peer
        self.introduction, self.is_dialler = introduction, is_dialler
        self.traffic = Traffic()
        self.used = self.heard = clock()
        self._stream, self._on_message, self._clock = stream, on_message, clock
        self._outbox = Outbox()
        self._waiting = asyncio.Event()
        self._pinged_at: float | None = None
        self._measure_at = self.heard + MEASURE_AFTER_S
        self.round_trip_s: float | None = None
        self.is_closed = False
        stream.limit(LARGEST_MESSAGE)

    @property
    def dialler(self) -> PeerId | None:
        """The id of the end that opened the link, None for this one."""
        return None if self.is_dialler else self.peer

    @property
    def wire_bytes(self) -> int:
        """Bytes that this end has put on the wire."""
        return self._stream.link.wire_bytes

    def send(self, message: bytes, expendable: bool = False) -> None:
        """Queue a message; it is written soon, or lost with the link."""
        self.traffic.messages_sent += 1
        self.used = self._clock()
        self._queue(frame(Kind.MESSAGE, message), expendable)

    def beat(self, now: float) -> bool:
        """Ask for a sign of life if none came for a while; False if none came for too long."""
        silence = now - self.heard
        if silence >= DEAD_AFTER_S:
            return False
        if self._pinged_at is None and (silence >= PING_AFTER_S or now >= self._measure_at):
            self._pinged_at = now
            self._queue(_PING)
        return True

    async def run(self) -> str:
        """Read and write until the link ends; returns why it did."""
        writer = asyncio.create_task(self._write())
        reader = asyncio.create_task(self._read())
        try:
            done, _ = await asyncio.wait((writer, reader), return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            self.close()
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)

    def close(self) -> None:
        """Break the link."""
        if not self.is_closed:
            self.is_closed = True
            self._stream.link.close()

    def _queue(self, data: bytes, expendable: bool = False) -> None:
        self._outbox.put(data, expendable)
        self.traffic.dropped = self._outbox.dropped
        self._waiting.set()

    async def _write(self) -> str:
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            data = self._outbox.take()
            try:
                await self._stream.send(data)
            except TransportError:
                return "the link broke"
            self.traffic.bytes_sent += len(data)

    async def _read(self) -> str:
        while True:
            received = await self._stream.next()
            if received is None:
                return "the other end hung up"
            kind, content = received
            self.heard = self._clock()
            self.traffic.bytes_received += len(content) + 5
            if kind == Kind.MESSAGE:
                self.traffic.messages_received += 1
                self._on_message(self, content)
            elif kind == Kind.PING:
                self._queue(_PONG)
            elif kind == Kind.PONG:
                self._note_answer()
            else:
                raise FrameError(f"a {kind.name} after the handshake")

    def _note_answer(self) -> None:
        if self._pinged_at is not None:
            self.round_trip_s = self.heard - self._pinged_at
            self._measure_at, self._pinged_at = self.heard + MEASURE_EVERY_S, None
