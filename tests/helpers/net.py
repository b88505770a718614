"""Nodes and transports for tests of real networks: everything on loopback or in memory, nothing waits by sleeping."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dada.core.model_steps import UserRows
from dada.net.iroh_transport import IrohTransport, new_secret_key
from dada.net.node import Node, NodeEvent
from dada.net.session import LinkOptions, Terms
from dada.net.store import Store
from dada.net.transport import Transport
from dada.peer.inputs import PeerConfig
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.messages import Descriptor, Revocation
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from tests.helpers.memory_transport import MemoryNetwork

TIMEOUT_S = 20.0
N_PREDICTORS = 24
CONFIG = PeerConfig(N_PREDICTORS, beta=5.0, mu1=1.0, reply_timeout_s=0.5)
BUSY = Rhythm(local_steps=3, first_graph_steps=3, graph_every=2, kappa=3, wakeups_per_s=50.0)
QUIET = Rhythm(wakeups_per_s=1e-6)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a test's coroutine with a time limit."""

    async def bounded() -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            return await work

    return asyncio.run(bounded())


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make an asynchronous test one that pytest runs."""

    @functools.wraps(test)
    def synchronous(*arguments: Any, **fixtures: Any) -> None:
        run(test(*arguments, **fixtures))

    return synchronous


class Transports:
    """Makes transports of one kind that can reach each other."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._network = MemoryNetwork()
        self._made: list[Transport] = []
        self._keys: dict[bytes, bytes] = {}

    async def make(self) -> Transport:
        if self.kind == "iroh":
            key = new_secret_key()
            made: Transport = await IrohTransport.bind(key)
            self._keys[made.me] = key
        else:
            made = self._network.transport(bytes([len(self._made) + 1]) * 32)
        self._made.append(made)
        return made

    async def make_again(self, old: Transport) -> Transport:
        """The same peer at a new address."""
        made: Transport = self._network.transport(old.me)
        if self.kind == "iroh":
            made = await IrohTransport.bind(self._keys[old.me])
        self._made.append(made)
        return made

    async def __aenter__(self) -> Transports:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(made.close() for made in self._made))


class Watch:
    """An observer that lets a test wait until something has happened."""

    def __init__(self) -> None:
        self.events: list[NodeEvent] = []
        self._came = asyncio.Event()

    def __call__(self, event: NodeEvent) -> None:
        self.events.append(event)
        self._came.set()

    async def until(self, holds: Callable[[NodeEvent], bool]) -> NodeEvent:
        seen = 0
        while True:
            for event in self.events[seen:]:
                seen += 1
                if holds(event):
                    return event
            self._came.clear()
            await self._came.wait()

    async def until_kind(self, kind: type) -> Any:
        return await self.until(lambda event: isinstance(event, kind))


def make_node(
    transport: Transport,
    folder: Path,
    seed: int = 0,
    rhythm: Rhythm = BUSY,
    config: PeerConfig = CONFIG,
    terms: Terms | None = None,
    options: LinkOptions | None = None,
    orders: Callable[[], Revocation | None] = lambda: None,
) -> Node:
    rng = np.random.default_rng(seed)
    margins = (2 * rng.integers(0, 2, (8, config.n_predictors)) - 1).astype(np.int8)
    member = Member(
        Peer(transport.me, UserRows(margins), config),
        PeerSampling(transport.me, rng, transport.addresses),
        Planner(rhythm, rng),
        exchange_every_s=0.2,
        membership=None if terms is None else terms.membership,
    )
    store = Store(folder / f"{transport.me.hex()[:16]}.sqlite")
    return Node(member, transport, store, Terms() if terms is None else terms, rng, Watch(), options, orders=orders)


def descriptor(node: Node) -> Descriptor:
    return Descriptor(node.member.me, 0, node.transport.addresses)


class Running:
    """Nodes that live while a `with` block lasts; each knows the first."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = nodes
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Running:
        for node in self.nodes:
            await self.start(node)
        return self

    async def start(self, node: Node) -> asyncio.Task[None]:
        known = [descriptor(self.nodes[0])] if node is not self.nodes[0] else []
        task = asyncio.create_task(node.run(known))
        self._tasks.append(task)
        return task

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            node.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in self.nodes:
            node.store.close()


@asynccontextmanager
async def network(
    kind: str, folder: Path, n: int, **settings: Any
) -> AsyncIterator[tuple[tuple[Node, ...], Transports]]:
    """Running nodes that know the first one, and the transports with which others can reach them."""
    async with Transports(kind) as transports:
        nodes = [make_node(await transports.make(), folder, seed, **settings) for seed in range(n)]
        async with Running(*nodes) as running:
            yield running.nodes, transports


async def until(holds: Callable[[], bool], poll: Callable[[], Awaitable[object]] | None = None) -> None:
    """Give way to others until something holds; the test's time limit ends a vain wait."""
    while not holds():
        await (poll() if poll is not None else asyncio.sleep(0.01))
