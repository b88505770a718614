"""Frames over a link: what a handshake and a session read and write."""

from __future__ import annotations

from dada.net.framing import FrameReader, Kind
from dada.net.transport import Link, TransportError


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
