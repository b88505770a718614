"""Frames on a stream of bytes: four bytes of length, one byte of kind, then the content.

The announced length is checked before any of the content is waited for, so a stranger cannot make a peer hold more than
the limit that its present standing allows: a few hundred bytes before the handshake, one message after it.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from dada.net.transport import Link, TransportError
from dada.peer.messages import LARGEST_MESSAGE

HEADER = struct.Struct(">IB")

# Enough for what a handshake says; a stranger gets no more.
LARGEST_GREETING = 1024


class Kind(IntEnum):
    """What the content of a frame is."""

    GREETING = 0
    PROOF = 1
    MESSAGE = 2
    PING = 3
    PONG = 4
    REFUSAL = 5


class FrameError(ValueError):
    """Bytes that are not frames, or a frame that is too large or cut short."""


def frame(kind: Kind, content: bytes = b"") -> bytes:
    r"""The bytes of one frame.

    >>> frame(Kind.PING)
    b'\x00\x00\x00\x00\x03'
    """
    if len(content) > LARGEST_MESSAGE:
        raise FrameError(f"a frame holds at most {LARGEST_MESSAGE} bytes, got {len(content)}")
    return HEADER.pack(len(content), kind) + content


class FrameReader:
    """Cuts a stream of bytes into frames.

    Parameters
    ----------
    largest : int
        Most bytes of content; may be changed between two frames.

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
        """Take bytes as they came from the stream."""
        if self._start:
            del self._bytes[: self._start]
            self._start = 0
        self._bytes += data

    def next(self) -> tuple[Kind, bytes] | None:
        """The next whole frame, or None if more bytes are needed."""
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
        """The stream is over: complain if it ended inside a frame."""
        left = len(self._bytes) - self._start
        if left:
            raise FrameError(f"the stream ended inside a frame, {left} bytes after its start")


class FrameStream:
    """A link, seen as frames; `limit` bounds what the other end may send."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._reader = FrameReader()

    def limit(self, largest: int) -> None:
        """Allow frames of that many bytes from now on."""
        self._reader.largest = largest

    async def send(self, frames: bytes) -> None:
        """Send whole frames."""
        await self.link.send(frames)

    async def next(self) -> tuple[Kind, bytes] | None:
        """The next frame, or None at the end; `FrameError` for what is none."""
        while (received := self._reader.next()) is None:
            data = await self.link.recv()
            if not data:
                self._reader.end()
                return None
            self._reader.feed(data)
        return received

    async def finish(self) -> None:
        """Wait until the other end has hung up, so that the last words reach it before the link is closed."""
        try:
            while await self.link.recv():
                pass
        except TransportError:
            return
