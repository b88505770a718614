"""Links over QUIC by iroh: every peer is an Ed25519 key, every link is TLS 1.3, and both ends prove their keys.

One link is one connection with one two-way stream, because every awaited call into iroh takes about 200 microseconds.
A connection with a second stream is closed: iroh would buffer more than a megabyte of each. By default a transport
listens on the loopback interface only and contacts no other machine.

*Storms.* One address can open ten connections at once and then one per second; others are ignored before they cost any
cryptography. An address must first show that it receives our packets (a QUIC retry); before that it is sent less than
it sent itself. Connections whose keys are not yet proven are bounded in number.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dada.net.transport import CHUNK, Pending, TransportError, is_relay
from dada.peer.member import RateLimit
from dada.peer.messages import MOST_ADDRESSES, PeerId

try:
    import iroh
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError('real networks need iroh: pip install "dada-learn[net]"') from error

ALPN = b"dada"
LOOPBACK = "127.0.0.1:0"
# Longest duration of an incoming connection's setup, and most setups at the same time.
ACCEPT_TIMEOUT_S, MOST_INCOMING = 5.0, 128
# First packets of connections from one address: per second, and at once.
INCOMING_PER_S, INCOMING_BURST = 2.0, 20.0


class _Preset(iroh.Preset):
    """Binds exactly the given sockets; uses the public relays, which connect peers behind routers, only if asked."""

    def __init__(self, sockets: Sequence[str], relay: bool) -> None:
        self._sockets, self._relay = sockets, relay

    def apply(self, builder: iroh.EndpointBuilder) -> None:
        """Called by iroh."""
        if self._relay:
            builder.apply_n0()
        else:
            builder.apply_minimal()
        for socket in self._sockets:
            builder.bind_addr(socket)


def public_key(secret_key: bytes) -> PeerId:
    """The id of the peer that holds a secret key."""
    return bytes(iroh.SecretKey.from_bytes(secret_key).public().to_bytes())


def new_secret_key() -> bytes:
    """A new Ed25519 key."""
    return bytes(iroh.SecretKey.generate().to_bytes())


class IrohSeal:
    """Ed25519 signatures by the key that is a peer's identity; see `dada.peer.signatures.Seal`.

    >>> seal = IrohSeal(bytes(32))
    >>> signature = seal.sign(b"content")
    >>> [seal.verify(public_key(bytes(32)), content, signature) for content in (b"content", b"other")]
    [True, False]
    """

    def __init__(self, secret_key: bytes) -> None:
        self._key = iroh.SecretKey.from_bytes(secret_key)

    def sign(self, content: bytes) -> bytes:
        """See `Seal`."""
        return bytes(self._key.sign(content).to_bytes())

    def verify(self, peer: PeerId, content: bytes, signature: bytes) -> bool:
        """See `Seal`."""
        try:
            iroh.EndpointId.from_bytes(peer).verify(content, iroh.Signature.from_bytes(signature))
        except iroh.IrohError:
            return False
        return True


class IrohTransport:
    """A peer's access to a real network; make one with `bind`."""

    def __init__(self, endpoint: iroh.Endpoint) -> None:
        self._endpoint = endpoint
        self.me: PeerId = bytes(endpoint.id().to_bytes())
        self._incoming: asyncio.Queue[IrohLink] = asyncio.Queue(MOST_INCOMING)
        self._setups = Pending(MOST_INCOMING, MOST_INCOMING, np.random.default_rng())
        self._limit = RateLimit(INCOMING_PER_S, INCOMING_BURST)
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def bind(cls, secret_key: bytes, listen: str = LOOPBACK, relay: bool = False) -> IrohTransport:
        """Open the sockets of a peer.

        Parameters
        ----------
        secret_key : bytes
            32 bytes, the peer's identity.
        listen : str
            Address to listen at, as "address:port"; port 0 is any free one. Other machines reach this peer only beyond
            loopback, for example at "0.0.0.0:4040".
        relay : bool
            Use the public relays of iroh, which see who communicates with whom but not the content.
        """
        _check(listen)
        preset = _Preset((listen,) if relay else _with_twin(listen), relay)
        options = iroh.EndpointOptions(preset=preset, secret_key=secret_key, alpns=[ALPN])
        try:
            return cls(await iroh.Endpoint.bind(options))
        except iroh.IrohError as error:
            raise TransportError(f"cannot listen at {listen}: {_text(error)}. Is the port in use?") from error

    @property
    def addresses(self) -> tuple[str, ...]:
        """See `Transport`: sockets, and the relay if one is used."""
        address = self._endpoint.addr()
        relay = address.relay_url()
        return (*([relay] if relay else []), *sorted(address.direct_addresses()))[:MOST_ADDRESSES]

    @property
    def sockets(self) -> tuple[str, ...]:
        """Sockets on which this peer listens."""
        return tuple(self._endpoint.bound_sockets())

    async def accept(self) -> IrohLink:
        """See `Transport`."""
        return await self._incoming.get()

    async def dial(self, peer: PeerId, addresses: Sequence[str]) -> IrohLink:
        """See `Transport`."""
        relays = [address for address in addresses if is_relay(address)]
        sockets = [address for address in addresses if not is_relay(address)]
        try:
            address = iroh.EndpointAddr(iroh.EndpointId.from_bytes(peer), relays[0] if relays else None, sockets)
            connection = await self._endpoint.connect(address, ALPN)
            return IrohLink(connection, connection.open_bi())
        except iroh.IrohError as error:
            raise TransportError(f"cannot reach {peer.hex()[:10]}: {_text(error)}") from error

    async def close(self) -> None:
        """See `Transport`."""
        self._listening.cancel()
        await self._setups.close()
        await self._endpoint.close()

    async def _listen(self) -> None:
        while True:
            incoming = await self._endpoint.accept_next()
            if incoming is None:
                return
            address = str(await incoming.remote_addr()).encode()
            # A connection counts twice: before and after its address is proven.
            if not self._limit.admits(address, 0, time.monotonic()):
                await incoming.ignore()
            elif not await incoming.remote_addr_validated():
                await incoming.retry()
            else:
                self._setups.start(None, self._answer(incoming))

    async def _answer(self, incoming: iroh.Incoming) -> None:
        """Complete an incoming connection; a failure affects no other link."""
        try:
            async with asyncio.timeout(ACCEPT_TIMEOUT_S):
                connection = await (await incoming.accept()).connect()
                await self._incoming.put(IrohLink(connection, connection.accept_bi()))
        except (iroh.IrohError, TimeoutError):
            return


class IrohLink:
    """One QUIC connection with one two-way stream, which the dialler opens."""

    def __init__(self, connection: iroh.Connection, stream: Awaitable[iroh.BiStream]) -> None:
        self.peer: PeerId = bytes(connection.remote_id().to_bytes())
        self._connection = connection
        self._stream = asyncio.ensure_future(stream)
        # A connection may end before anybody waits for its stream.
        self._stream.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._guards = [asyncio.create_task(self._close_after(more)) for more in (connection.accept_uni, self._second)]

    async def send(self, data: bytes) -> None:
        """See `Link`."""
        try:
            await (await self._stream).send().write_all(data)
        except iroh.IrohError as error:
            raise TransportError(f"the link is broken: {_text(error)}") from error

    async def recv(self) -> bytes:
        """See `Link`."""
        try:
            return bytes(await (await self._stream).recv().read(CHUNK))
        except iroh.IrohError:
            # A closed connection ends the stream; the frame parser detects a truncated frame.
            return b""

    def close(self) -> None:
        """See `Link`."""
        self._connection.close(0, b"")
        for task in (self._stream, *self._guards):
            task.cancel()

    async def _second(self) -> iroh.BiStream:
        await asyncio.wait([self._stream])
        return await self._connection.accept_bi()

    async def _close_after(self, opened: Callable[[], Awaitable[object]]) -> None:
        with suppress(iroh.IrohError):
            await opened()
            self._connection.close(0, b"")

    @property
    def addresses(self) -> tuple[str, ...]:
        """See `Link`: QUIC has validated the path to each."""
        return tuple(path.remote_addr for path in self._connection.paths() if path.is_ip)

    @property
    def wire_bytes(self) -> int:
        """See `Link`: UDP payloads sent, handshake and acknowledgements included."""
        return int(self._connection.stats().udp_tx_bytes)

    @property
    def received_bytes(self) -> int:
        """See `Link`."""
        return int(self._connection.stats().udp_rx_bytes)


def _check(listen: str) -> None:
    host, _, port = listen.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
        is_sound = 0 <= int(port) < 1 << 16
    except ValueError:
        is_sound = False
    if not is_sound:
        raise TransportError(
            f"cannot listen at {listen!r}: an address and a port are needed, as 127.0.0.1:4040 for this machine only "
            "or 0.0.0.0:4040 for all"
        )


def _with_twin(listen: str) -> tuple[str, ...]:
    """Sockets of both address families; iroh would open a missing one on all interfaces."""
    return listen, "127.0.0.1:0" if listen.startswith("[") else "[::1]:0"


def _text(error: Any) -> str:
    """Last line of an iroh error, which is the cause; the lines before it are a trace."""
    return str(error.message()).strip().splitlines()[-1].strip()
