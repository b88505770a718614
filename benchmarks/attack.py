"""Attack real peers on this machine, and compare what each attack reaches with its bound.

    python -m benchmarks.attack
    python -m benchmarks.attack --only storm --json
    python -m benchmarks.attack --only eclipse --seconds 30

Everything stays on loopback and takes a few minutes. The attackers are in this process, each peer in its own. The exit
code is 1 if an attack exceeds its bound.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from dada.cli.network_runs import make_homes, make_network
from dada.cli.simulated_runs import synthetic_peers
from dada.net.forkserver import ForkServer, SwarmPeer
from dada.net.home import Home
from dada.net.iroh_transport import IrohSeal, IrohTransport, new_secret_key, public_key
from dada.net.network_file import read_ticket
from dada.net.node import Node
from dada.net.process import RunOptions
from dada.net.session import HandshakeError, LinkOptions, Party, Terms, shake_hands
from dada.net.store import read_records
from dada.net.transport import FrameStream, Kind, TransportError, frame
from dada.peer.inputs import Send
from dada.peer.member import Member, Planner
from dada.peer.messages import (
    LARGEST_MESSAGE,
    VERSIONS_PER_LIFE,
    Descriptor,
    Follow,
    Hello,
    StateRequest,
    ViewRequest,
    encode,
)
from dada.peer.peer import Peer
from dada.peer.sampling import RECORD_KEY, PeerSampling, signed_card
from dada.sim.liars import Eclipser
from dada.sim.nodes import LyingLinks
from dada.sim.world import VirtualDisk
from tests.helpers.peer_fuzz import PeerFuzz

SECRET = b"a secret of this network"
VICTIM_HOST = "127.0.0.2"
START_WITHIN_S, JOIN_WITHIN_S = 120.0, 6.0
# Time in which the peers of a network meet before one of them is eclipsed, and between two looks at it.
WARM_UP_S, LOOK_EVERY_S = 60.0, 5.0


class Network:
    """Peers of a private network, each in its own process."""

    def __init__(self, folder, n_peers=3, exchange_every_s=2.0, seed=0):
        self.people = people = synthetic_peers("moons", n_peers, seed)
        self.file = replace(make_network(people, wakeups_per_s=2.0), secret=SECRET)
        self.options = RunOptions(exchange_every_s=exchange_every_s)
        self.peers = [SwarmPeer(home) for home in make_homes(folder, people, self.file)]

    def __enter__(self):
        self.server = ForkServer(self.peers[0].home)
        self.launch(self.peers[0])
        self.options = replace(self.options, join=(self.peers[0].status()["ticket"],))
        for peer in self.peers[1:]:
            self.launch(peer)
        return self

    def __exit__(self, *_):
        self.server.close()

    def launch(self, peer):
        peer.launch(self.server, self.options)
        peer.wait_for_status(START_WITHIN_S)

    def end(self, peer, number=signal.SIGTERM):
        """Send a signal; returns the exit code, None if the process does not end."""
        peer.send_signal(number)
        return peer.wait(time.monotonic() + 20.0)

    def address(self, peer):
        return read_ticket(peer.status()["ticket"])


class Guest:
    """A peer that does what an attacker wants."""

    def __init__(self, transport, link):
        self.transport, self.stream = transport, FrameStream(link)

    @classmethod
    async def connect(cls, target, transport=None):
        transport = transport or await IrohTransport.bind(new_secret_key())
        async with asyncio.timeout(JOIN_WITHIN_S):
            return cls(transport, await transport.dial(target.peer, target.addresses))

    @classmethod
    async def join(cls, target, network, claims=None, transport=None):
        guest = await cls.connect(target, transport)
        hello = Hello(network.file.config.digest, 1)
        party = Party(
            guest.transport.me, True, Terms(SECRET), hello, claims or guest.transport.addresses, os.urandom(32)
        )
        await shake_hands(guest.stream, party, JOIN_WITHIN_S)
        guest.stream.largest = LARGEST_MESSAGE
        return guest

    async def send(self, *messages):
        await self.stream.link.send(b"".join(frame(Kind.MESSAGE, data) for data in messages))

    async def serve(self):
        """Answer pings until the link ends."""
        with contextlib.suppress(TransportError):
            while (received := await self.stream.receive()) is not None:
                if received[0] == Kind.PING:
                    await self.stream.link.send(frame(Kind.PONG))

    async def close(self):
        self.stream.link.close()
        await self.transport.close()


async def joins(target, network):
    """Whether a member can join now."""
    transport = await IrohTransport.bind(new_secret_key())
    try:
        await Guest.join(target, network, transport=transport)
    except (TransportError, HandshakeError, TimeoutError):
        return False
    finally:
        await transport.close()
    return True


async def answers(target, network):
    """Whether a peer answers a request."""
    try:
        guest = await Guest.join(target, network)
        await guest.send(encode(StateRequest(1)))
        async with asyncio.timeout(10.0):
            while (received := await guest.stream.receive()) is not None and received[0] != Kind.MESSAGE:
                pass
        await guest.close()
    except (TransportError, HandshakeError, TimeoutError):
        return False
    return received is not None


def victims(n):
    """Sockets that record what is sent to them and never answer."""
    made = []
    for _ in range(n):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        one.bind((VICTIM_HOST, 0))
        one.setblocking(False)
        made.append(one)
    return made


def drain(sockets):
    """Datagrams that have arrived."""
    found = []
    for one in sockets:
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(one.recv(1 << 16))
    return found


def addresses_of(sockets):
    return tuple("{}:{}".format(*one.getsockname()) for one in sockets)


def resident_mb(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


# -- attacks ---------------------------------------------------------------------------------------------------------


async def storm(network, n_idle=70, n_joins=25):
    """Connections without the secret that send nothing, and are opened again when they are closed."""
    peer, target = network.peers[0], network.address(network.peers[0])
    before = resident_mb(peer.pid)

    async def idle(transport):
        while True:
            with contextlib.suppress(TransportError, TimeoutError):
                guest = await Guest.connect(target, transport)
                await guest.stream.link.recv()
            await asyncio.sleep(0.05)

    transports = [await IrohTransport.bind(new_secret_key()) for _ in range(n_idle)]
    tasks = [asyncio.create_task(idle(transport)) for transport in transports]
    await asyncio.sleep(3.0)
    joined = [await joins(target, network) for _ in range(n_joins)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(transport.close() for transport in transports))
    deadline = time.monotonic() + 75.0
    while (grown := resident_mb(peer.pid) - before) > 32.0 and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
    yield f"{n_idle} idle connections without the secret", "joins that succeed", np.mean(joined), ">=", 0.95
    yield "the same, memory afterwards", "MB more than before", grown, "<=", 32.0


async def amplification(network, seconds=40.0, n_identities=4):
    """Members that name a victim's addresses as their own, and as those of peers that do not exist."""
    sockets = victims(64)
    named, received, sent = addresses_of(sockets), 0, 0
    rng = np.random.default_rng(0)
    guests = []
    for peer in network.peers:
        for _ in range(n_identities):
            guest = await Guest.join(network.address(peer), network, claims=named[:8])
            guests.append((guest, asyncio.create_task(guest.serve())))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for guest, _ in guests:
            keys = [rng.bytes(32) for _ in range(15)]
            lists = [tuple(rng.permutation(named)[:8].tolist()) for _ in keys]
            false = [signed_card(public_key(key), 1, at, IrohSeal(key)) for key, at in zip(keys, lists, strict=True)]
            with contextlib.suppress(TransportError):
                await guest.send(encode(ViewRequest(tuple(false))))
        await asyncio.sleep(2.0)
        received += sum(map(len, drain(sockets)))
    for guest, task in guests:
        sent += guest.stream.link.wire_bytes
        task.cancel()
        await guest.close()
    await asyncio.sleep(7.0)
    received += sum(map(len, drain(sockets)))
    for one in sockets:
        one.close()
    yield "false addresses, named by members", "bytes to the victim per byte sent", received / sent, "<=", 3.0


async def spoofing(network):
    """The first packet of a connection, repeated from the address of a victim."""
    target = network.address(network.peers[0])
    recorder, victim = victims(2)
    transport = await IrohTransport.bind(new_secret_key())
    with contextlib.suppress(TransportError, TimeoutError):
        async with asyncio.timeout(0.5):
            await transport.dial(target.peer, addresses_of([recorder]))
    first = drain([recorder])[0]
    host, port = next(address for address in target.addresses if address.startswith("127.")).split(":")
    victim.sendto(first, (host, int(port)))
    await asyncio.sleep(5.0)
    received = sum(map(len, drain([victim])))
    await transport.close()
    yield "a first packet from a false source", "bytes to the victim per byte sent", received / len(first), "<=", 3.0


async def fuzz(network, n_identities=40, n_messages=250):
    """Random messages with extreme values to a running process, which then stops and starts again."""
    peer = network.peers[1]
    target = network.address(peer)
    failures = []
    for k in range(n_identities):
        source = PeerFuzz(k, "evidence, block steps")
        guest = await Guest.join(target, network)
        with contextlib.suppress(TransportError):
            await guest.send(*(source.message() for _ in range(n_messages)))
            await asyncio.sleep(0.2)
        await guest.close()
    if not peer.is_up or not await answers(target, network):
        failures.append("does not answer")
    if network.end(peer) != 0:
        failures.append("does not stop")
    network.launch(peer)
    if not await answers(network.address(peer), network):
        failures.append("does not start again")
    if "Traceback" in peer.home.log.read_text():
        failures.append("logs a traceback")
    yield f"{n_identities * n_messages:,} random messages", "failures", len(failures), "<=", 0


async def kills(network, n_kills=10):
    """SIGKILL at any moment."""
    peer, rng, failures = network.peers[1], np.random.default_rng(0), 0
    for _ in range(n_kills):
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        network.end(peer, signal.SIGKILL)
        epoch = int.from_bytes(read_records(peer.home.state)[b"epoch"], "big")
        network.launch(peer)
        failures += peer.status()["epoch"] != epoch + 1
    yield f"{n_kills} kills without warning", "starts that lose an epoch", failures, "<=", 0


async def rollback(network, n_lives=3):
    """A folder that is restored from an old copy."""
    peer = network.peers[2]
    network.end(peer)
    old = peer.home.state.with_name("old")
    shutil.copyfile(peer.home.state, old)
    for _ in range(n_lives):
        network.launch(peer)
        await until(lambda: peer.status()["links"] > 0, 30.0)
        network.end(peer)
    newest = peer.home.read_status()["epoch"]
    shutil.copyfile(old, peer.home.state)
    network.launch(peer)
    is_noticed = await until(lambda: peer.status()["epoch"] > newest, 30.0)
    yield f"a state that is {n_lives} lives old", "epochs above the newest one", int(is_noticed), ">=", 1


async def twins(network):
    """Two processes with one identity."""
    first = network.peers[2]
    folder = first.home.folder.with_name("twin")
    shutil.copytree(first.home.folder, folder, ignore=shutil.ignore_patterns("lock", "log", "status.json"))
    second = SwarmPeer(Home(folder))
    network.launch(second)

    def warned():
        logs = (peer.home.log.read_text() for peer in (first, second))
        return sum("another process uses its identity" in text for text in logs)

    await until(lambda: warned() == 2, 60.0)
    yield "two processes with one identity", "of them that report it", warned(), ">=", 2
    network.end(second)


async def full_disk(network):
    """No more room for the state of a running peer."""
    peer, failures = network.peers[1], []
    size = peer.home.state.with_name("state.sqlite-wal").stat().st_size
    resource.prlimit(peer.pid, resource.RLIMIT_FSIZE, (size, size))
    await until(lambda: not peer.is_up, 60.0)
    lines = peer.home.log.read_text().splitlines()
    if peer.exit_code != 2 or not lines[-1].startswith("Error: "):
        failures.append("does not end with an error")
    if any(line.startswith("Traceback") for line in lines):
        failures.append("logs a traceback")
    if not read_records(peer.home.state):
        failures.append("has no state")
    network.launch(peer)
    yield "a full disk", "failures", len(failures), "<=", 0


class Surrounder(Eclipser):
    """An eclipser of a real victim: it also follows it, and its gang has real cards."""

    def __init__(self, member, rng, cards, victim):
        super().__init__(member, rng)
        self.cards, self.victim, self.follows = cards, victim, 0

    def card(self, peer):
        return self.cards[peer]

    def attack(self):
        self.gang = tuple(self.cards)
        self.follows += 1
        version = VERSIONS_PER_LIFE * (self.member.peer.own.shared.epoch + 1) + self.follows
        return [Send(self.victim, self.lie(ViewRequest(()))), Send(self.victim, Follow(version, follows=True))]


class Gang:
    """Identities of one attacker, all around one victim: real nodes with real cards, whose messages liars change."""

    def __init__(self, network, victim):
        self.network, self.victim = network, victim
        self.nodes, self.cards = [], {}
        self._links = LinkOptions(most_links=8, dialling=asyncio.Semaphore(8))

    async def add(self, rng):
        """One more identity. The first one learns; the others send poison that is made of its model."""
        key, file = new_secret_key(), self.network.file
        transport, seal, terms = await IrohTransport.bind(key), IrohSeal(key), Terms(SECRET)
        self.cards[transport.me] = signed_card(transport.me, VERSIONS_PER_LIFE, transport.addresses, seal)
        member = Member(
            Peer(transport.me, self.network.people.problem.rows_of(1), file.config),
            PeerSampling(transport.me, rng, transport.addresses, seal=seal),
            Planner(replace(file.rhythm, wakeups_per_s=0.1) if self.nodes else file.rhythm, rng),
        )
        node = Node(member, transport, VirtualDisk(), terms, rng, options=self._links)
        node.links = LyingLinks(transport, terms, node, rng, asyncio.get_running_loop().time, self._links)
        node.links.liar = Surrounder(member, rng, self.cards, self.victim.peer)
        self.nodes.append(node)
        node.links.liar.source = self.nodes[0].member

    @property
    def n_links(self):
        """Identities with a link to the victim."""
        return sum(self.victim.peer in node.links.sessions for node in self.nodes)


def honest_shares(peer, honest):
    """Honest shares of the stored view of a peer, and of the weight of its neighbours."""
    view = msgspec.msgpack.decode(read_records(peer.home.state)[RECORD_KEY], type=tuple[Descriptor, ...])
    weights = peer.home.read_status()["neighbours"]
    of_honest = sum(weight for other, weight in weights.items() if bytes.fromhex(other) in honest)
    return sum(known.peer in honest for known in view) / len(view), of_honest / (sum(weights.values()) or 1.0)


async def surround(network, attackers=60, seconds=120.0):
    """Identities that fill the view of one peer with each other, follow it, and send it poison."""
    peer = network.peers[1]
    target, honest = network.address(peer), {network.address(one).peer for one in network.peers}
    await asyncio.sleep(WARM_UP_S)
    gang = Gang(network, target)
    for rng in np.random.default_rng(0).spawn(attackers):
        await gang.add(rng)
    tasks = [asyncio.create_task(node.run([target])) for node in gang.nodes]
    began, shares = time.monotonic(), []
    while (passed := time.monotonic() - began) < seconds:
        shares.append(honest_shares(peer, honest))
        in_view, in_weight = shares[-1]
        progress = f"{passed:4.0f} s: honest shares {in_view:.2f} of the view, {in_weight:.2f} of the weight"
        print(f"{progress}, {gang.n_links} links of attackers", file=sys.stderr, flush=True)
        await asyncio.sleep(min(LOOK_EVERY_S, seconds - passed))
    shares.append(honest_shares(peer, honest))
    for node in gang.nodes:
        node.stop()
    await asyncio.gather(*tasks)
    in_view, in_weight = np.min(shares, axis=0)
    name = f"{attackers} identities around one of {len(network.peers)} peers for {seconds:g} s"
    yield name, "least honest share of its view", in_view, ">=", 1 / 3
    yield name, "least honest share of its weight", in_weight, ">=", 1 / 2


ATTACKS = {
    "storm": storm,
    "amplification": amplification,
    "spoofing": spoofing,
    "fuzz": fuzz,
    "kills": kills,
    "rollback": rollback,
    "twins": twins,
    "disk": full_disk,
    "eclipse": surround,
}


async def until(holds, seconds):
    """Look at the files of other processes until something holds; returns whether it does."""
    deadline = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    return found


async def run(attack, **network_options):
    """Attack a new network; returns the measures with their bounds."""
    results = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        network = stack.enter_context(Network(folder, **network_options))
        async for name, measure, value, sign, bound in attack(network):
            held = value >= bound if sign == ">=" else value <= bound
            results.append(
                {"attack": name, "measure": measure, "value": round(float(value), 3), "bound": f"{sign} {bound:.3g}",
                 "held": bool(held)}
            )  # fmt: skip
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ATTACKS, nargs="+", default=list(ATTACKS), help="attacks to run")
    parser.add_argument("--seconds", type=float, default=120.0, help="length of the eclipse")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on stdout")
    options = parser.parse_args()
    results = []
    if not options.json:
        print("| attack | measure | value | bound | held |", "| --- | --- | --- | --- | --- |", sep="\n", flush=True)
    for name in options.only:
        if name == "eclipse":
            # A peer stores its view at every tenth exchange: fast ones show it often, and let it be attacked often.
            found = asyncio.run(run(partial(surround, seconds=options.seconds), n_peers=20, exchange_every_s=1.0))
        else:
            found = asyncio.run(run(ATTACKS[name]))
        results += found
        for one in found if not options.json else ():
            held = "yes" if one["held"] else "**no**"
            row = (one["attack"], one["measure"], f"{one['value']:g}", one["bound"], held)
            print(f"| {' | '.join(row)} |", flush=True)
    if options.json:
        print(json.dumps(results, indent=2))
    sys.exit(not all(one["held"] for one in results))


if __name__ == "__main__":
    main()
