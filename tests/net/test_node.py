"""Nodes with honest and hostile peers, on real sockets and in memory."""

import asyncio
import re

import msgspec
import numpy as np
import pytest

from dada.net.links import LinkClosed, LinkFailed, LinkRefused
from dada.net.node import MessageRefused, unwatched
from dada.net.session import LinkOptions, Outbox, Party, Refusal, Terms, shake_hands
from dada.net.store import CorruptStoreError, StoreError
from dada.net.transport import HEADER, FrameStream, Kind, frame
from dada.peer.edges import EDGE_KEY
from dada.peer.inputs import Persist
from dada.peer.member import RateLimit
from dada.peer.messages import LARGEST_MESSAGE, PROTOCOL_VERSION, Hello, StateReply, StateRequest, decode, encode
from dada.peer.model import EPOCH_KEY
from dada.peer.peer import REVOKED_KEY
from dada.peer.signatures import Membership
from dada.sim.virtual import VirtualSeal
from tests.helpers.net import (
    BUSY,
    CONFIG,
    QUIET,
    Running,
    Transports,
    asynchronous,
    descriptor,
    make_node,
    network,
    until,
)

KINDS = ("memory", "iroh")

pytestmark = pytest.mark.usefixtures("compiled_kernels")


class Stranger:
    """A peer that may send any bytes to a node."""

    def __init__(self, transport, node):
        self.transport, self.node = transport, node

    async def connect(self):
        link = await self.transport.dial(self.node.member.me, self.node.transport.addresses)
        self.stream = FrameStream(link)

    async def join(self):
        await self.connect()
        party = Party(self.transport.me, True, Terms(), Hello(CONFIG.digest, 1), self.transport.addresses, bytes(32))
        await shake_hands(self.stream, party)
        self.stream.largest = LARGEST_MESSAGE

    async def send(self, data):
        await self.stream.link.send(data)

    async def ask(self):
        """Send a request that every working node answers, and return the answer."""
        await self.send(frame(Kind.MESSAGE, encode(StateRequest(5))))
        while (received := await self.stream.receive()) is not None:
            if received[0] == Kind.MESSAGE and b"\x06" in received[1][:3]:
                return received
        return None


async def still_answers(node, transports):
    friend = Stranger(await transports.make(), node)
    await friend.join()
    return await friend.ask() is not None


@pytest.mark.parametrize("kind", KINDS)
@asynchronous
async def test_one_ticket_is_enough_to_find_everybody_and_learn_together(kind, tmp_path):
    async with network(kind, tmp_path, 5) as (nodes, _):
        await until(lambda: all(len(node.member.sampling.view) == 4 for node in nodes))
        await until(lambda: any(node.member.peer.edges.neighbours for node in nodes))
        await until(lambda: all(node.member.peer.own.updates > 20 for node in nodes))
        status = nodes[0].status()
        assert status["messages_sent"] > 0
        assert status["wire_bytes"] >= status["payload_bytes"] > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(HEADER.pack(2**31, Kind.MESSAGE), id="oversized"),
        pytest.param(np.random.default_rng(0).bytes(5000), id="garbage"),
        pytest.param(frame(Kind.PROOF, bytes(40)), id="out of turn"),
    ],
)
@asynchronous
async def test_what_is_no_frame_ends_the_link_and_nothing_else(kind, data, tmp_path):
    async with network(kind, tmp_path, 1, rhythm=QUIET) as (nodes, transports):
        (node,) = nodes
        stranger = Stranger(await transports.make(), node)
        await stranger.join()
        # Garbage begins with what would be a huge length, or else runs into an unknown kind sooner or later.
        await stranger.send(b"\xff" + data)
        event = await node.observer.until_kind(LinkRefused)
        assert Refusal.FRAME in event.reason
        assert node.links.refused["frame"] == 1
        assert await still_answers(node, transports)


@pytest.mark.parametrize("kind", KINDS)
@asynchronous
async def test_a_frame_cut_short_is_counted(kind, tmp_path):
    async with network(kind, tmp_path, 1, rhythm=QUIET) as (nodes, transports):
        (node,) = nodes
        stranger = Stranger(await transports.make(), node)
        await stranger.join()
        # Sent at once: a node that answers the ping has received the rest, and the link may end.
        await stranger.send(frame(Kind.PING) + frame(Kind.MESSAGE, encode(StateRequest(5)))[:-1])
        while (await stranger.stream.receive())[0] != Kind.PONG:
            pass
        stranger.stream.link.close()
        event = await node.observer.until_kind(LinkRefused)
        assert "ended inside a frame" in event.reason
        assert await still_answers(node, transports)


@pytest.mark.parametrize("kind", KINDS)
@asynchronous
async def test_frames_that_are_no_messages_are_refused_one_by_one(kind, tmp_path):
    version = bytes([PROTOCOL_VERSION])
    bad = [
        b"",
        b"\x63" + encode(StateRequest(1))[1:],
        version + np.random.default_rng(1).bytes(50),
        version,
        encode(StateRequest(1)) + b"!",
    ]
    async with network(kind, tmp_path, 1, rhythm=QUIET) as (nodes, transports):
        (node,) = nodes
        stranger = Stranger(await transports.make(), node)
        await stranger.join()
        for content in bad:
            await stranger.send(frame(Kind.MESSAGE, content))
        assert await stranger.ask() is not None
        assert node.messages_refused == len(bad)


@asynchronous
async def test_lies_and_floods_are_refused_and_counted(tmp_path):
    async with network("memory", tmp_path, 1, rhythm=QUIET) as (nodes, transports):
        (node,) = nodes
        liar = Stranger(await transports.make(), node)
        await liar.join()
        await liar.send(frame(Kind.MESSAGE, encode(Hello(b"another problem", 1))))
        await node.observer.until_kind(MessageRefused)
        await liar.send(frame(Kind.MESSAGE, encode(StateRequest(1))) * 2000 + frame(Kind.PING) * 2000)
        await until(lambda: node.is_over_rate(liar.transport.me))
        received = node.links.traffic["messages_received"]
        # What exceeds the rate waits in the link, and nobody else waits for it.
        assert await still_answers(node, transports)
        assert node.links.traffic["messages_received"] - received < 50


@asynchronous
async def test_pings_count_within_the_rate_limit(tmp_path):
    async with network("memory", tmp_path, 1, rhythm=QUIET) as (nodes, transports):
        (node,) = nodes
        node.member.limit = RateLimit(messages_per_s=1e-3, burst=3.0)
        guest = Stranger(await transports.make(), node)
        await guest.join()
        # The bucket refills a little between two pings, and the last one admitted leaves a debt.
        await guest.send(frame(Kind.PING) * 6)
        await until(lambda: node.links.refused["rate"] == 2)
        await guest.send(frame(Kind.PONG))
        await until(lambda: node.links.refused["rate"] == 3)


@asynchronous
async def test_idle_links_do_not_keep_members_out(tmp_path):
    options = LinkOptions(most_greeting=8, most_greeting_each=2)
    async with network("memory", tmp_path, 1, rhythm=QUIET, options=options) as (nodes, transports):
        (node,) = nodes
        idle = [Stranger(await transports.make(), node) for _ in range(20)]
        for stranger in idle:
            await stranger.connect()
        again = [Stranger(idle[-1].transport, node) for _ in range(3)]
        for stranger in again:
            await stranger.connect()
        await until(lambda: node.links.refused["crowded"] == len(idle) + len(again) - options.most_greeting)
        for _ in range(5):
            assert await still_answers(node, transports)


@pytest.mark.parametrize("kind", KINDS)
@asynchronous
async def test_strangers_are_kept_out_of_a_private_network(kind, tmp_path):
    async with network(kind, tmp_path, 1, rhythm=QUIET, terms=Terms(b"the real secret of it")) as (nodes, transports):
        (node,) = nodes
        outsider = make_node(await transports.make(), tmp_path, 9, QUIET, terms=Terms(b"guessed secret .."))
        async with Running(outsider):
            outsider.links.learn(node.member.me, node.transport.addresses)
            outsider.links.send(node.member.me, encode(StateRequest(1)))
            refused = await node.observer.until_kind(LinkRefused)
            reported = await outsider.observer.until_kind(LinkRefused)
        assert Refusal.SECRET in refused.reason
        assert "wrong network secret" in reported.reason
        assert node.links.refused == {"secret": 1}
        assert outsider.links.refused == {"by_other": 1}
        assert not node.links.sessions


@asynchronous
async def test_a_revoked_member_loses_all_links_and_stays_out(tmp_path):
    founder = Membership(b"network", b"founder", VirtualSeal(b"founder"))
    handed = []
    options = LinkOptions(beat_every_s=0.05)
    async with Transports("memory") as transports:
        nodes = []
        for seed in range(3):
            transport = await transports.make()
            terms = Terms(membership=founder, certificate=founder.admit(transport.me))
            orders = lambda seed=seed: handed.pop() if seed == 0 and handed else None  # noqa: E731
            nodes.append(make_node(transport, tmp_path, seed, terms=terms, options=options, orders=orders))
        ann, bob, eve = nodes
        async with Running(*nodes):
            await until(lambda: {ann.member.me, bob.member.me} <= set(eve.links.sessions))
            handed.append(founder.revoke([eve.member.me], counter=1))
            await until(lambda: list(bob.member.peer.revoked) == [eve.member.me])
            await until(lambda: not eve.links.sessions)
            refused = await bob.observer.until_kind(LinkRefused)
            assert "membership revoked" in refused.reason
            for node in (ann, bob):
                assert eve.member.me not in node.member.peer.edges.neighbours
                assert eve.member.me not in node.member.sampling.view
            assert bob.member.me in ann.links.sessions
        assert make_node(ann.transport, tmp_path, 9).store.records()[REVOKED_KEY]


@pytest.mark.parametrize("kind", KINDS)
@asynchronous
async def test_a_restarted_peer_gets_messages_again(kind, tmp_path):
    async with Transports(kind) as transports:
        ann = make_node(await transports.make(), tmp_path, 1)
        bob_transport = await transports.make()
        bob = make_node(bob_transport, tmp_path, 2)
        async with Running(ann):
            task = asyncio.create_task(bob.run([descriptor(ann)]))
            await until(lambda: ann.member.peer.edges.neighbours == [bob.member.me])
            epoch = bob.member.peer.own.model.epoch
            bob.stop()
            await task
            updates, edges = bob.member.peer.own.updates, set(bob.member.peer.edges)
            bob.store.close()
            await ann.observer.until_kind(LinkClosed)
            # The same key at a new address, with the stored state and no ticket.
            again = make_node(await transports.make_again(bob_transport), tmp_path, 2)
            task = asyncio.create_task(again.run())
            await until(lambda: ann.member.me in again.links.sessions)
            assert again.member.peer.own.model.epoch > epoch
            assert again.member.peer.own.updates >= updates
            assert set(again.member.peer.edges) >= edges
            await until(lambda: again.links.traffic["messages_received"] > 5)
            assert ann.links.sessions[again.member.me].introduction.hello.epoch > epoch
            again.stop()
            await task
            again.store.close()


@asynchronous
async def test_a_silent_link_is_given_up_within_seconds(tmp_path):
    options = LinkOptions(beat_every_s=0.1, ping_after_s=0.3, dead_after_s=0.6)
    async with network("memory", tmp_path, 1, rhythm=QUIET, options=options) as (nodes, transports):
        (node,) = nodes
        silent, alive = [Stranger(await transports.make(), node) for _ in range(2)]
        await silent.join()
        await alive.join()
        pinged = await alive.stream.receive()
        while pinged[0] == Kind.MESSAGE:
            pinged = await alive.stream.receive()
        assert pinged[0] == Kind.PING
        await alive.send(frame(Kind.PONG))
        closed = await node.observer.until_kind(LinkClosed)
        assert closed.peer == silent.transport.me
        assert list(node.links.sessions) == [alive.transport.me]


@asynchronous
async def test_round_trips_are_measured(tmp_path):
    options = LinkOptions(beat_every_s=0.05, measure_after_s=0.0)
    async with network("memory", tmp_path, 1, rhythm=QUIET, options=options) as (nodes, transports):
        (node,) = nodes
        quick, mute = [Stranger(await transports.make(), node) for _ in range(2)]
        await quick.join()
        await mute.join()
        while (await quick.stream.receive())[0] != Kind.PING:
            pass
        await quick.send(frame(Kind.PONG))
        await until(lambda: node.status()["round_trips_ms"][quick.transport.me.hex()] is not None)
        assert 0 <= node.status()["round_trips_ms"][quick.transport.me.hex()] < 10_000
        assert node.status()["round_trips_ms"][mute.transport.me.hex()] is None


@asynchronous
async def test_links_that_are_not_needed_are_closed_the_least_used_first(tmp_path):
    async with network("memory", tmp_path, 1, rhythm=QUIET, options=LinkOptions(most_links=2)) as (nodes, transports):
        (node,) = nodes
        guests = [Stranger(await transports.make(), node) for _ in range(4)]
        for guest in guests:
            await guest.join()
            await guest.ask()
        await until(lambda: len(node.links.sessions) == 2)
        assert set(node.links.sessions) == {guest.transport.me for guest in guests[2:]}


@asynchronous
async def test_two_that_dial_each_other_at_once_keep_one_link(tmp_path):
    async with network("memory", tmp_path, 2, rhythm=QUIET) as (nodes, _):
        ann, bob = nodes
        for here, there in ((ann, bob), (bob, ann)):
            here.links.learn(there.member.me, there.transport.addresses)
            here.links.send(there.member.me, encode(StateRequest(1)))
        await until(lambda: bob.member.me in ann.links.sessions and ann.member.me in bob.links.sessions)
        await until(lambda: ann.links.sessions[bob.member.me].is_dialler)
        await until(lambda: not bob.links.sessions[ann.member.me].is_dialler)


@asynchronous
async def test_a_semaphore_limits_concurrent_dials(tmp_path):
    async with Transports("memory") as transports:
        made = await transports.make()
        under_way, most, allowed = 0, 0, asyncio.Event()
        dial = made.dial

        async def slow(peer, addresses):
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await allowed.wait()
            under_way -= 1
            return await dial(peer, addresses)

        made.dial = slow
        ann = make_node(made, tmp_path, 1, QUIET, options=LinkOptions(dialling=asyncio.Semaphore(2)))
        others = [make_node(await transports.make(), tmp_path, k, QUIET) for k in range(2, 8)]
        async with Running(ann), Running(*others):
            for other in others:
                ann.links.learn(other.member.me, other.transport.addresses)
                ann.links.send(other.member.me, encode(StateRequest(1)))
            await until(lambda: under_way == 2)
            assert ann.links.dials == 2
            allowed.set()
            await until(lambda: len(ann.links.sessions) == len(others))
            assert most == 2


@asynchronous
async def test_a_node_without_an_observer_runs(tmp_path):
    async with Transports("memory") as transports:
        node = make_node(await transports.make(), tmp_path, 1, QUIET)
        assert not node.is_up
        node.observer = unwatched
        async with Running(node):
            await until(lambda: node.is_up)
            assert node.status()["links"] == 0


@asynchronous
async def test_a_dead_peer_is_redialled_and_finally_dropped(tmp_path):
    async with Transports("memory") as transports:
        options = LinkOptions(retry_after_s=0.01, retry_at_most_s=0.05, give_up_after_s=0.3)
        ann = make_node(await transports.make(), tmp_path, 1, options=options)
        bob = make_node(await transports.make(), tmp_path, 2)
        async with Running(ann):
            task = asyncio.create_task(bob.run([descriptor(ann)]))
            await until(lambda: ann.member.peer.edges.neighbours == [bob.member.me])
            bob.stop()
            await task
            bob.store.close()
            await until(lambda: ann.member.peer.edges.neighbours == [])
            assert ann.links.failed_dials > 2
            failed = [event.reason for event in ann.observer.events if isinstance(event, LinkFailed)]
            assert re.fullmatch(r"no answer at memory:\d+ \(try 1\)", failed[0])


@asynchronous
async def test_a_neighbour_whose_address_is_lost_is_finally_dropped(tmp_path):
    async with Transports("memory") as transports:
        options = LinkOptions(give_up_after_s=0.3)
        ann = make_node(await transports.make(), tmp_path, 1, options=options)
        bob = bytes(range(32))
        ann.store.write([Persist(EDGE_KEY + bob, msgspec.msgpack.encode((1, bob, 1.0)))])
        async with Running(ann):
            await until(lambda: ann.member.peer.edges.neighbours == [bob])
            await until(lambda: ann.member.peer.edges.neighbours == [])
            assert ann.links.dials == 0


@asynchronous
async def test_changes_are_stored_before_messages_are_sent(tmp_path):
    """Every record is in the store before the message that follows from it is sent."""
    async with network("memory", tmp_path, 2) as (nodes, _):
        node, order = nodes[0], []

        def note(owner, method, mark):
            call = getattr(owner, method)
            setattr(owner, method, lambda *arguments: (order.append(mark), call(*arguments))[1])

        # Every batch of effects follows a call of the state machine or a beat.
        for method in ("start", "on_timer", "receive", "receive_bytes"):
            note(node.member, method, "|")
        note(node.links, "beat", "|")
        note(node.store, "write", "w")
        note(node.links, "send", "s")
        await until(lambda: node.member.peer.own.updates > 30)
        assert re.fullmatch(r"(\|w?s*)*", "".join(order))
        assert {"w", "s"} <= set(order)


@asynchronous
async def test_a_full_disk_silences_the_node_and_keeps_its_last_good_model(tmp_path):
    async with Transports("memory") as transports:
        node = make_node(await transports.make(), tmp_path, 0)
        friend = make_node(await transports.make(), tmp_path, 1)
        async with Running(friend):
            task = asyncio.create_task(node.run([descriptor(friend)]))
            await until(lambda: node.member.peer.own.updates > 5)
            sent, send = [], node.links.send
            before = node.store.records()

            def full(changes):
                sent.clear()
                raise StoreError("no space left")

            node.links.send = lambda *arguments: (sent.append(arguments), send(*arguments))
            node.store.write = full
            with pytest.raises(StoreError, match="no space left"):
                await task
            assert sent == []
            assert node.store.records() == before
            node.store.close()


@asynchronous
async def test_a_damaged_state_names_the_way_out_and_leaves_the_identity(tmp_path):
    async with Transports("memory") as transports:
        node = make_node(await transports.make(), tmp_path, 0)
        node.store.write([Persist(b"model", b"nonsense")])
        with pytest.raises(CorruptStoreError, match=r"identity is intact.*--recover"):
            await node.run()
        node.store.close()


@asynchronous
async def test_a_peer_whose_state_was_lost_comes_back_with_a_higher_epoch(tmp_path):
    epochs = []
    async with Transports("memory") as transports:
        for _ in range(2):
            node = make_node(await transports.make(), tmp_path, 0, QUIET)
            async with Running(node):
                await until(lambda node=node: node.is_up)
            epochs.append(node.member.peer.own.model.epoch)
    # Two starts within ten seconds without any state may share an epoch; a real loss takes longer than that.
    assert epochs[1] >= epochs[0] > 10_000_000


@asynchronous
async def test_a_peer_started_from_an_old_copy_of_its_state_does_not_reuse_an_epoch(tmp_path):
    async with Transports("memory") as transports:
        node = make_node(await transports.make(), tmp_path, 0, QUIET)
        node.store.write([Persist(EPOCH_KEY, (7).to_bytes(8, "big"))])
        async with Running(node):
            await until(lambda: node.is_up)
        assert node.member.peer.own.model.epoch > 10_000_000


def test_model_changes_are_dropped_first_when_a_reader_is_slow():
    box = Outbox(most_frames=3)
    for number, expendable in enumerate((True, False, True, False, True, False)):
        box.put(b"%d" % number, expendable)
    assert box.take() == b"135"
    assert box.dropped == 3
    box = Outbox(most_bytes=10)
    for _ in range(5):
        box.put(bytes(4))
    assert len(box) == 2


@asynchronous
async def test_replies_carry_a_model_that_follows_from_the_samples(tmp_path):
    """The snapshot in a reply is the node's own model, and stays within the ball."""
    async with network("memory", tmp_path, 1, rhythm=BUSY) as (nodes, transports):
        (node,) = nodes
        await until(lambda: node.member.peer.own.updates > 10)
        guest = Stranger(await transports.make(), node)
        await guest.join()
        _, content = await guest.ask()
        reply = decode(content)
        assert isinstance(reply, StateReply)
        values = np.frombuffer(reply.snapshot.values, "<f4")
        assert np.abs(values).sum() <= CONFIG.beta * 1.001
