"""The bytes that a run sends: every frame is recorded, decoded and examined."""

import struct

import msgspec
import numpy as np
import pytest

from dada import task
from dada.core.model_steps import UserRows
from dada.data import Stumps, moons
from dada.net.node import Node
from dada.net.session import Terms
from dada.net.store import Store
from dada.net.transport import FrameReader, Kind
from dada.peer import messages
from dada.peer.inputs import PeerConfig
from dada.peer.member import Member, Planner
from dada.peer.messages import LARGEST_MESSAGE, decode
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from tests.helpers.memory_transport import MemoryNetwork
from tests.helpers.net import BUSY, Running, run, until

pytestmark = pytest.mark.usefixtures("compiled_kernels")

# All fields of all messages: numbers about models, edges and trees, and addresses of peers.
ALLOWED = {
    "Hello": {"problem", "epoch", "life"},
    "Goodbye": set(),
    "ModelDelta": {"epoch", "sequence", "j", "positive", "away", "gamma", "takes_all"},
    "BlockChange": {"epoch", "sequence", "code"},
    "SnapshotRequest": set(),
    "SnapshotReply": {"snapshot", "signature"},
    "StateRequest": {"round"},
    "StateReply": {"round", "snapshot", "loss", "degree", "size"},
    "EdgeState": {"version", "author", "weight", "snapshot"},
    "EdgeAck": {"version", "author", "epoch", "sequence", "size"},
    "ViewRequest": {"view", "revocations"},
    "ViewReply": {"view", "revocations"},
    "Follow": {"version", "follows", "wants_statement"},
    "FollowAck": {"version", "follows", "epoch", "sequence", "digest", "signature", "size"},
    "ModelOffer": {"round", "snapshot", "size"},
    "FriendsRequest": set(),
    "FriendsReply": {"friends"},
    "EpochSeen": {"epoch", "life"},
    "WitnessRequest": {"entries"},
    "Witness": {"owner", "snapshot", "signature", "is_answer"},
    "Equivocation": {"owner", "first", "second"},
    "ReleaseCheck": {"check"},
    "ReleaseNames": {"names", "is_answer"},
    "Release": {"owner", "body", "signature"},
    "CensusSummary": {"digest", "checks"},
    "CensusReply": {"records", "checks"},
    "CensusRecord": {"peer", "version", "size", "signature", "gains"},
    "AtomRequest": {"digest", "checks"},
    "AtomReply": {"records", "checks"},
    "AtomRecord": {"peer", "version", "atoms", "signature"},
    "GrowthRequest": {"round", "stage", "output", "tree", "features"},
    "GrowthReply": {"round", "body"},
    "BoostedRequest": {"digest", "checks"},
    "BoostedReply": {"records", "checks"},
    "BoostedRecord": {"peer", "trees"},
    "SignedTree": {"tree", "signature"},
    "Statement": {"epoch", "sequence", "digest", "signature"},
    "ModelSnapshot": {"epoch", "sequence", "coordinates", "values"},
    "Descriptor": {"peer", "age", "addresses", "withheld", "version", "signature"},
    "Certificate": {"network", "peer", "expires", "signature"},
    "Revocation": {"counter", "revoked", "signature"},
}


CHANGES = ("ModelDelta", "BlockChange")


class Tapped:
    """A transport whose links keep a copy of all that is sent."""

    def __init__(self, inner, tape):
        self.inner, self.tape = inner, tape

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def accept(self):
        return self._tap(await self.inner.accept())

    async def dial(self, peer, addresses):
        return self._tap(await self.inner.dial(peer, addresses))

    def _tap(self, link):
        sent = bytearray()
        self.tape.append(sent)
        send = link.send

        async def noted(data):
            sent.extend(data)
            await send(data)

        link.send = noted
        return link


@pytest.fixture(scope="module", params=[("distance", "pairwise"), ("evidence", "pairwise"), ("evidence", "block")])
def run_on_tape(request, tmp_path_factory, compiled_kernels):
    """Users of Moons learn together; returns their data and every stream of bytes that was sent."""
    folder = tmp_path_factory.mktemp("tape")
    people = moons(3, n_users=6, n_test=1, dimensions=2)
    problem = task.problem(people.train, Stumps(n=24).fit(people.train.X), beta=10.0, mu1=1.0)
    graph, step = request.param
    config = PeerConfig(problem.n_predictors, beta=10.0, mu1=1.0, reply_timeout_s=0.5, graph=graph, step=step)
    tape = []

    async def inside():
        network = MemoryNetwork()
        nodes = []
        for k in range(problem.n_users):
            rng = np.random.default_rng(k)
            transport = Tapped(network.transport(bytes([k + 1]) * 32), tape)
            rows = slice(problem.row_start[k], problem.row_start[k + 1])
            member = Member(
                Peer(transport.me, UserRows(problem.A[rows]), config),
                PeerSampling(transport.me, rng, transport.addresses),
                Planner(BUSY, rng),
                exchange_every_s=0.2,
            )
            store = Store(folder / f"{k}.sqlite")
            nodes.append(Node(member, transport, store, Terms(b"the secret of the net"), rng))
        async with Running(*nodes):
            await until(lambda: all(node.member.peer.own.updates > 60 for node in nodes))
            await until(lambda: all(node.member.peer.edges.neighbours for node in nodes))
        return nodes

    nodes = run(inside())
    return people, nodes, [bytes(sent) for sent in tape]


def frames(stream):
    reader = FrameReader(LARGEST_MESSAGE)
    reader.feed(stream)
    found = []
    while (one := reader.next()) is not None:
        found.append(one)
    return found


def structs(value):
    if isinstance(value, msgspec.Struct):
        yield value
        for name in value.__struct_fields__:
            yield from structs(getattr(value, name))
    elif isinstance(value, tuple):
        for part in value:
            yield from structs(part)


def test_only_the_listed_fields_cross(run_on_tape):
    _, nodes, streams = run_on_tape
    seen = set()
    for stream in streams:
        for kind, content in frames(stream):
            assert kind in (Kind.GREETING, Kind.PROOF, Kind.MESSAGE, Kind.PING, Kind.PONG)
            if kind == Kind.MESSAGE:
                for part in structs(decode(content)):
                    name = type(part).__name__
                    assert set(part.__struct_fields__) == ALLOWED[name]
                    seen.add(name)
    sent, other = CHANGES[::-1] if nodes[0].member.peer.config.sends_codes else CHANGES
    assert seen >= {"Hello", sent, "ViewRequest", "ModelSnapshot"}
    assert other not in seen
    distance, evidence = {"StateReply", "EdgeState", "EdgeAck"}, {"ModelOffer", "Follow", "FollowAck"}
    if nodes[0].member.peer.config.graph == "distance":
        assert seen >= distance
        assert seen.isdisjoint(evidence)
    else:
        # No peer sends a loss or a degree.
        assert seen >= evidence
        assert seen.isdisjoint(distance)


def test_every_message_type_is_listed():
    declared = {name: value for name, value in vars(messages).items() if isinstance(value, type) and name[0] != "_"}
    kinds = {name for name, value in declared.items() if issubclass(value, msgspec.Struct)}
    assert kinds == set(ALLOWED)
    for name in kinds:
        assert set(getattr(messages, name).__struct_fields__) == ALLOWED[name]


def test_no_value_of_the_data_is_on_the_wire(run_on_tape):
    people, _, streams = run_on_tape
    sent = b"\x00".join(streams)
    rows = people.train.X.tolist()
    assert len(rows) > 50
    for row in rows:
        # Single precision: a long stream holds the four bytes of a value by chance, but not the eight of a row.
        for form in ("<2f", ">2f"):
            assert struct.pack(form, *row) not in sent
        for value in row:
            assert struct.pack("<d", value) not in sent
            assert struct.pack(">d", value) not in sent
            assert repr(value)[:10].encode() not in sent


def test_margins_labels_and_secrets_are_not_on_the_wire(run_on_tape):
    _, nodes, streams = run_on_tape
    sent = b"\x00".join(streams)
    assert b"the secret of the net" not in sent
    for node in nodes:
        margins = node.member.peer.own.user.A
        for row in margins:
            assert row.tobytes() not in sent
        if margins.shape[0] >= 8:
            assert margins[:, 0].tobytes() not in sent


def test_a_tape_is_what_arrives(run_on_tape):
    """The taps see all traffic: as many messages as the nodes counted."""
    _, nodes, streams = run_on_tape
    n_messages = sum(kind == Kind.MESSAGE for stream in streams for kind, _ in frames(stream))
    counted = sum(node.links.traffic["messages_sent"] for node in nodes)
    assert n_messages >= 0.9 * counted > 100
