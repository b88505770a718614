"""Attack real peers on this machine, and compare what each attack reaches with its bound.

    python -m benchmarks.attack
    python -m benchmarks.attack --only storm --json

Everything stays on loopback and takes a few minutes. Only the eclipse is simulated, with the classes of real peers. The
exit code is 1 if an attack exceeds its bound.
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
from pathlib import Path

import numpy as np

from dada.cli.network_runs import make_homes, make_network
from dada.cli.network_users import synthetic_peers
from dada.net.credentials import read_ticket
from dada.net.forkserver import ForkServer, SwarmPeer
from dada.net.handshake import HandshakeError, Party, Terms, shake_hands
from dada.net.home import Home
from dada.net.iroh_transport import IrohSeal, IrohTransport, new_secret_key, public_key
from dada.net.process import RunOptions
from dada.net.store import read_records
from dada.net.transport import FrameStream, Kind, TransportError, frame
from dada.peer.messages import LARGEST_MESSAGE, Hello, StateRequest, ViewRequest, encode
from dada.peer.sampling import signed_card
from tests.helpers.eclipse import eclipse
from tests.helpers.peer_fuzz import PeerFuzz

SECRET = b"a secret of this network"
VICTIM_HOST = "127.0.0.2"
START_WITHIN_S, JOIN_WITHIN_S = 120.0, 6.0


class Network:
    """Peers of a private network, each in its own process."""

    def __init__(self, folder, n_peers=3, seed=0):
        people = synthetic_peers("moons", n_peers, seed)
        self.file = replace(make_network(people, wakeups_per_s=2.0), secret=SECRET)
        self.options = RunOptions(exchange_every_s=2.0)
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


async def surround(_, attackers=60, seconds=120):
    """Identities that fill the view of one peer with each other, and send it poison."""
    in_view, in_weight = eclipse(attackers, seconds)
    name = f"{attackers} identities around one peer for {seconds} s (simulated)"
    yield name, "honest share of its view", in_view, ">=", 1 / 3
    yield name, "honest share of its weight", in_weight, ">=", 1 / 2


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


async def run(attack):
    """Attack a new network; returns the measures with their bounds."""
    results = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        network = None if attack is surround else stack.enter_context(Network(folder))
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
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on stdout")
    options = parser.parse_args()
    results = []
    if not options.json:
        print("| attack | measure | value | bound | held |", "| --- | --- | --- | --- | --- |", sep="\n", flush=True)
    for name in options.only:
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
