"""Nodes with trees: all come to the same dictionary, copies equal originals, and a restart finds the trees again."""

from dataclasses import replace

from numpy.random import default_rng
from numpy.testing import assert_array_equal

from dada.data import Linear, Trees, Union, moons
from dada.net.node import Node
from dada.net.session import Terms
from dada.net.store import Store
from dada.peer.grove import SharedGrove
from dada.peer.member import Member, Planner
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from dada.peer.signatures import Unsealed
from dada.sim import network_of, network_problem
from dada.sim.virtual import Faults
from tests.helpers.memory_transport import MemoryNetwork
from tests.helpers.net import BUSY, Running, run, until


def test_nodes_agree_on_the_trees_of_all_and_find_them_again(tmp_path):
    recipe = Union(Linear(), Trees(per_user=2, depth=2))
    _, problem, orchard = network_problem(moons(1, n_users=3).train, recipe, mu=0.1, loss="logistic")
    usual = network_of(problem, Faults(), graph="everyone", step="block", steps=1, seed=0, orchard=orchard)
    config = replace(usual.config, vet=False)

    def node(network, k):
        rng, transport, plot = default_rng(k), network.transport(bytes([k + 1]) * 32), orchard.plots[k]
        member = Member(
            Peer(transport.me, plot.fixed, config),
            PeerSampling(transport.me, rng, transport.addresses),
            Planner(BUSY, rng),
            exchange_every_s=0.2,
            grove=SharedGrove(transport.me, orchard.terms, plot, config.digest, Unsealed()),
        )
        return Node(member, transport, Store(tmp_path / f"{k}.sqlite"), Terms(b"the secret of the net"), rng)

    async def inside():
        network = MemoryNetwork()
        nodes = [node(network, k) for k in range(3)]
        members = [one.member for one in nodes]

        def agree():
            return all(one.grove.names == orchard.names and one.peer.edges.models() for one in members)

        async with Running(*nodes):
            await until(agree)
        return nodes

    for _ in range(2):
        nodes = run(inside())
        by_id = {one.member.me: one.member.peer.own.shared for one in nodes}
        for one in nodes:
            assert one.status()["trees"]["alive"] == len(orchard.names)
            edges = one.member.peer.edges
            same = [
                peer for peer in edges.neighbours if edges[peer].copy and edges[peer].copy.number == by_id[peer].number
            ]
            for peer in same:
                assert_array_equal(edges[peer].copy.alpha, by_id[peer].alpha)
