"""Secure sums of real nodes in virtual time: links break, nodes are killed, power cuts lose records."""

import asyncio

import msgspec
import numpy as np

from dada.net.node import Node
from dada.net.session import LinkOptions, Terms
from dada.net.store import START_OF_EPOCHS
from dada.peer.inputs import PeerConfig
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.messages import Descriptor
from dada.peer.peer import Peer
from dada.peer.releases import ExactRows, Masked, Part, ReleaseTerms, public_row
from dada.peer.sampling import PeerSampling
from dada.peer.secure_sums import SecureSums, Waits
from dada.privacy.noise import Bits
from dada.sim.virtual import LinkFaults, VirtualInternet, VirtualLoop, VirtualSeal, VirtualTransport
from dada.sim.world import VirtualDisk

CONFIG = PeerConfig(n_predictors=2, beta=1.0, mu1=1.0, graph="evidence")
TERMS = ReleaseTerms.of(CONFIG, 8.0, 1e-5)
N_NODES = 5


class Hosts:
    """Machines whose nodes are killed without warning; ledgers are synced, the last records of a disk are not."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.internet = VirtualInternet(self.rng, LinkFaults())
        self.disks, self.ledgers = [VirtualDisk() for _ in range(N_NODES)], {}
        self.nodes, self.tasks, self.transports = {}, {}, {}
        self.n_kills = 0

    def start(self, k):
        me, address = b"node %d" % k, f"10.0.0.{k}:4040"
        rows = np.random.default_rng(k).uniform(-1, 1, (100, 2))
        transport = self.transports[k] = VirtualTransport(self.internet, me, k, address)
        waits = Waits(settled=5, turn=2, answer=4)
        releases = SecureSums(
            me, TERMS, ExactRows(rows, np.sign(rows[:, :1])), VirtualSeal(me), self.rng.bytes, N_NODES, waits
        )
        if k in self.ledgers:
            releases.publish(self.ledgers[k])
        member = Member(
            Peer(me, public_row(CONFIG), CONFIG),
            PeerSampling(me, self.rng, transport.addresses, seal=VirtualSeal(me)),
            Planner(Rhythm(), self.rng),
            exchange_every_s=1.0,
            releases=releases,
        )
        terms = Terms(unix_time=lambda: START_OF_EPOCHS + asyncio.get_running_loop().time())
        options = LinkOptions(give_up_after_s=20.0, token_bytes=self.rng.bytes)
        node = self.nodes[k] = Node(member, transport, self.disks[k], terms, self.rng, options=options)

        def book():
            return self.ledgers.setdefault(k, releases.returned or releases.draw(Bits(self.rng.bytes)))

        node.make_release = book
        known = [Descriptor(b"node 0", 0, ("10.0.0.0:4040",))] if k else []
        self.tasks[k] = asyncio.create_task(node.run(known))

    async def kill(self, k):
        self.n_kills += 1
        self.transports[k].vanish()
        self.tasks[k].cancel()
        await asyncio.wait([self.tasks[k]])
        self.disks[k].cut_power(n_lost=10)
        await asyncio.sleep(2.0)
        self.start(k)

    def sums(self):
        return [self.nodes[k].member.releases.complete() for k in range(N_NODES)]

    async def run(self):
        for k in range(N_NODES):
            self.start(k)
        for turn in range(60):
            await asyncio.sleep(10.0)
            if all(self.sums()):
                break
            if turn % 2:
                await self.kill(int(self.rng.integers(N_NODES)))
        for node in self.nodes.values():
            node.stop()
        await asyncio.gather(*self.tasks.values())


def test_killed_nodes_on_faulty_links_agree_on_one_sum_of_what_their_ledgers_hold():
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        hosts = Hosts(0)
        runner.run(hosts.run())
    found = hosts.sums()
    assert hosts.n_kills > 0
    assert [len(one) for one in found] == [1] * N_NODES
    assert len({one.values.tobytes() for (one,) in found}) == 1
    assert sorted(found[0][0].owners) == [b"node %d" % k for k in range(N_NODES)]
    held = {release for node in hosts.nodes.values() for release in node.member.releases.held.values()}
    vectors = {one.body for one in held if isinstance(msgspec.msgpack.decode(one.body, type=Part), Masked)}
    assert vectors == set(hosts.ledgers.values())
