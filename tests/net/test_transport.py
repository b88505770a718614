"""One suite for every transport."""

import asyncio

import iroh
import pytest

from dada.net.iroh_transport import ALPN, IrohTransport, new_secret_key, public_key
from dada.net.transport import TransportError
from tests.helpers.net import Transports, run

KINDS = ("memory", "iroh")


async def connected(transports):
    ann, bob = await transports.make(), await transports.make()
    there = await ann.dial(bob.me, bob.addresses)
    # A stream exists for the other end only once something was sent on it.
    await there.send(b"first")
    here = await bob.accept()
    assert await here.recv() == b"first"
    return ann, bob, there, here


def on_every_transport(test):
    @pytest.mark.parametrize("kind", KINDS)
    def wrapped(kind):
        async def inside():
            async with Transports(kind) as transports:
                await test(transports)

        run(inside())

    wrapped.__name__ = test.__name__
    return wrapped


@on_every_transport
async def test_both_ends_know_the_id_of_the_other(transports):
    ann, bob, there, here = await connected(transports)
    assert (there.peer, here.peer) == (bob.me, ann.me)


@on_every_transport
async def test_bytes_arrive_in_order_both_ways(transports):
    _, _, there, here = await connected(transports)
    sent = bytes(range(256)) * 2000

    async def receive(link):
        received = b""
        while len(received) < len(sent):
            received += await link.recv()
        return received

    answers = await asyncio.gather(receive(here), receive(there), there.send(sent), here.send(sent))
    assert answers[:2] == [sent, sent]


@on_every_transport
async def test_a_closed_link_ends_the_stream_at_both_ends(transports):
    _, _, there, here = await connected(transports)
    waiting = asyncio.create_task(there.recv())
    here.close()
    assert await waiting == b""
    assert await here.recv() == b""
    with pytest.raises(TransportError):
        await there.send(b"too late")


@on_every_transport
async def test_a_dial_reaches_only_the_peer_it_names(transports):
    ann, bob, eve = await transports.make(), await transports.make(), await transports.make()
    with pytest.raises(TransportError):
        await ann.dial(bob.me, eve.addresses)


@on_every_transport
async def test_an_address_that_makes_no_sense_is_an_error_of_the_dial(transports):
    ann, bob = await transports.make(), await transports.make()
    with pytest.raises(TransportError):
        await ann.dial(bob.me, ("nonsense",))
    with pytest.raises(TransportError):
        await ann.dial(b"short id", bob.addresses)


@on_every_transport
async def test_links_count_what_they_send(transports):
    _, _, there, _ = await connected(transports)
    before = there.wire_bytes
    await there.send(bytes(5000))
    assert before >= 5
    while there.wire_bytes < before + 5000:
        await asyncio.sleep(0.01)


def test_a_transport_listens_on_loopback_alone_by_default():
    async def sockets():
        transport = await IrohTransport.bind(new_secret_key())
        found = transport.sockets
        await transport.close()
        return found

    assert sorted(socket.rpartition(":")[0] for socket in run(sockets())) == ["127.0.0.1", "[::1]"]


def test_a_port_in_use_is_named():
    async def twice():
        first = await IrohTransport.bind(new_secret_key())
        try:
            await IrohTransport.bind(new_secret_key(), first.addresses[0])
        finally:
            await first.close()

    with pytest.raises(TransportError, match=r"cannot listen at 127\.0\.0\.1"):
        run(twice())


def test_the_id_of_a_peer_is_its_public_key():
    async def ids():
        key = new_secret_key()
        transport = await IrohTransport.bind(key)
        await transport.close()
        return transport.me, public_key(key)

    first, second = run(ids())
    assert first == second


def test_a_second_stream_closes_the_connection():
    async def opened():
        async with Transports("iroh") as transports:
            bob = await transports.make()
            address = iroh.EndpointAddr(iroh.EndpointId.from_bytes(bob.me), None, list(bob.addresses))
            stranger = await iroh.Endpoint.bind(
                iroh.EndpointOptions(preset=iroh.preset_minimal(), bind_addr="127.0.0.1:0")
            )
            connection = await stranger.connect(address, ALPN)
            link = await bob.accept()
            await (await connection.open_uni()).write_all(b"buffered")
            await connection.closed()
            assert await link.recv() == b""
            await stranger.close()

    run(opened())
