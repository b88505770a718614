"""A transport that connects nodes of one process through memory. One test suite covers it and that of real networks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dada.net.transport import CHUNK, TransportError
from dada.peer.messages import PeerId


class MemoryNetwork:
    """The listeners that memory transports of one process share."""

    def __init__(self) -> None:
        self.listeners: dict[str, MemoryTransport] = {}
        self._made = 0

    def transport(self, me: PeerId) -> MemoryTransport:
        """A new listener at a new address."""
        self._made += 1
        made = MemoryTransport(me, f"memory:{self._made}", self)
        self.listeners[made.address] = made
        return made


class MemoryTransport:
    """A transport between nodes of one process."""

    def __init__(self, me: PeerId, address: str, network: MemoryNetwork) -> None:
        self.me, self.address, self.addresses, self._network = me, address, (address,), network
        self._incoming: asyncio.Queue[MemoryLink] = asyncio.Queue()
        self._links: list[MemoryLink] = []

    async def accept(self) -> MemoryLink:
        return await self._incoming.get()

    async def dial(self, peer: PeerId, addresses: Sequence[str]) -> MemoryLink:
        found = [self._network.listeners[address] for address in addresses if address in self._network.listeners]
        if not found:
            raise TransportError(f"nobody listens at {', '.join(addresses) or 'no address'}")
        if found[0].me != peer:
            raise TransportError(f"the peer at {found[0].address} is not {peer.hex()[:10]}")
        there, back = _Pipe(), _Pipe()
        here = MemoryLink(peer, there, back, found[0].addresses)
        other = MemoryLink(self.me, back, there, self.addresses)
        self._links.append(here)
        found[0]._links.append(other)
        found[0]._incoming.put_nowait(other)
        return here

    async def close(self) -> None:
        self._network.listeners.pop(self.address, None)
        for link in self._links:
            link.close()


@dataclass(eq=False)
class _Pipe:
    """One direction of a memory link."""

    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()


class MemoryLink:
    """A link through memory."""

    def __init__(self, peer: PeerId, out: _Pipe, back: _Pipe, addresses: tuple[str, ...]) -> None:
        self.peer, self._out, self._back, self.addresses = peer, out, back, addresses
        self.wire_bytes = 0
        # A real connection takes this much before its first message.
        self.received_bytes = 15_000

    async def send(self, data: bytes) -> None:
        await self._out.until(lambda: self._out.ended or len(self._out.data) < CHUNK)
        if self._out.ended:
            raise TransportError("the link is closed")
        self._out.data += data
        self._out.changed.set()
        self.wire_bytes += len(data)

    async def recv(self) -> bytes:
        await self._back.until(lambda: self._back.ended or bool(self._back.data))
        data = bytes(self._back.data[:CHUNK])
        self.received_bytes += len(data)
        del self._back.data[:CHUNK]
        self._back.changed.set()
        return data

    def close(self) -> None:
        for pipe in (self._out, self._back):
            pipe.ended = True
            pipe.changed.set()
