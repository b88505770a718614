"""Kill private peers again and again, and check that none of them makes a second release.

    python -m benchmarks.private_soak --seconds 120
    python -m benchmarks.private_soak --seconds 120 --protects rows
    python -m benchmarks.private_soak --seconds 300 --protects rows --secure-sum

Each peer is a process that does what `dada peer run --data --journal` does, with epsilon 1. Processes are forked, so
that starts are cheap. Every five seconds a random one is killed (SIGKILL), whatever it does, and starts again; half of
these starts are killed too. Some starts have other rows, which must be refused. What is checked are the files that
processes left behind when they were killed:

*Ledger.* After every kill, a copy of the ledger costs no more than the budget and holds one release at most. Its bytes
are those of the first copy that held one.

*Rows.* The journal of every life begins with the rows that the first release gives; of protected rows, with one public
row.

*Messages.* A new peer, made from the first release and the network file, is given the facts of each journal. Every
message about models and neighbours that another peer recorded as received is one that this peer sends. Records that a
life restored are records that an earlier life stored. So all that was sent follows from the first release, from times
and from what others sent. Greetings, views, the census of numbers of samples, and requests for witnesses and friends
are not in journals; they contain no model.

*Releases.* Of protected rows, the release is a message. After every kill, the releases that a peer had received and
stored are those of the owners' ledgers, byte for byte.

*Secure sums.* What peers had stored of an owner's keys, shares, calls, masked statistics and openings for one call is
the same bytes everywhere: no mask is used twice, and no secret is drawn twice.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from dada.cli.peer_tables import read_samples, store_samples
from dada.core.model_steps import UserRows
from dada.net.forkserver import rehearse
from dada.net.home import HOME_KEY, ME, TRUST_KEY, Home, HomeError
from dada.net.iroh_transport import public_key
from dada.net.node import ADDRESSES_KEY
from dada.net.process import RunOptions, run_peer
from dada.net.store import Store
from dada.peer import member, sampling
from dada.peer.census import CENSUS_KEY
from dada.peer.inputs import Persist, Received, Restored, RowsChanged, Send, StoredRows
from dada.peer.messages import FollowAck, Hello, Release, SnapshotReply, WitnessRequest, encode
from dada.peer.model import EPOCH_KEY
from dada.peer.peer import Birth, Digest, Peer, read
from dada.peer.releases import RELEASE_KEY, Masked, Opening, Part, public_row
from dada.privacy.release import read_labels

COMMAND = [sys.executable, "-c", "from dada.cli.app import main; main()"]
# Records that the state machine does not write.
OTHER_RECORDS = (EPOCH_KEY, member.RECORD_KEY, sampling.RECORD_KEY, ADDRESSES_KEY, TRUST_KEY, HOME_KEY, CENSUS_KEY)
START_WITHIN_S = 300.0
# A secure sum takes dozens of exchanges of views, within the life of a peer.
EXCHANGE_EVERY_S = 0.5
# Enough that six peers find their statistics worth the noise.
N_ROWS = 300


def _absent():
    raise AssertionError("the ledger lists a release that it does not hold")


class Audit:
    """What one peer released, sent and received.

    `peer_of(release)` makes the peer whose messages follow from the bytes of a release.
    """

    def __init__(self, me, peer_of):
        self.me, self._peer_of = me, peer_of
        self.release = None
        self.sent, self.received, self.held = set(), [], set()
        self._stored = set()
        self.lives = 0
        self.violations = []

    def check_ledger(self, home):
        """Compare the releases in a ledger with the budget and with the first release."""
        with home.open_ledger() as ledger:
            cost = ledger.spent(ME).delta_at(ledger.epsilon)
            releases = [ledger.release(ME, one.name, one.cost, _absent) for one in ledger.entries(ME)]
            self._require(cost <= ledger.delta, f"spent delta {cost:g} at epsilon {ledger.epsilon:g}")
        self._require(len(releases) <= 1, f"has {len(releases)} releases")
        for release in releases:
            self.release = self.release or release
            self._require(release == self.release, "has another release than its first one")

    def note_releases(self, records):
        """Remember the releases of others among a peer's records."""
        for key, value in records.items():
            if key.startswith(RELEASE_KEY):
                found = msgspec.msgpack.decode(value, type=Release)
                self.held.add((found.owner, found.body))

    def replay(self, journal):
        """Give a peer that is made from the first release the facts of one life, in the order of lives."""
        peer = None
        for record in read(journal):
            if isinstance(record, Birth):
                self._require(self.release is not None, "ran before its release was stored")
                peer = self._peer_of(self.release)
                is_same = record.stored == StoredRows.of(peer.own.rows)
                self._require(is_same, "learned from other rows than those of its first release")
                self.lives += 1
            elif not isinstance(record, Digest):
                self._note(record)
                for effect in peer.handle(record):
                    if isinstance(effect, Send):
                        self.sent.add((effect.to, _unsigned(effect.message)))
                    elif isinstance(effect, Persist):
                        self._stored.add(effect)

    def _note(self, fact):
        self._require(not isinstance(fact, RowsChanged), "took in new rows after its release")
        if isinstance(fact, Received) and not isinstance(fact.message, Hello | WitnessRequest):
            self.received.append((fact.sender, _unsigned(fact.message)))
        elif isinstance(fact, Restored):
            unknown = [key for key, value in fact.records.items() if (key, value) not in self._stored]
            unknown = [key for key in unknown if key not in OTHER_RECORDS and not key.startswith(RELEASE_KEY)]
            self._require(not unknown, f"restored records that it did not store: {unknown[:3]}")

    def _require(self, holds, violation):
        if not holds:
            self.violations.append(f"peer {self.me.hex()[:10]} {violation}")


def _unsigned(message):
    """A message as bytes, without the signature that a member adds."""
    return encode(replace(message, signature=b"") if isinstance(message, FollowAck | SnapshotReply) else message)


def compare(audits):
    """Check that all that was received was sent by a replayed peer, or released; returns the number of messages."""
    by_id = {audit.me: audit for audit in audits}
    checked, parts = 0, {}
    for audit in audits:
        for sender, message in audit.received:
            checked += 1
            by_id[sender]._require((audit.me, message) in by_id[sender].sent, "sent what its release does not give")
        for owner, body in sorted(audit.held):
            checked += 1
            expected = parts.setdefault((owner, *slot), body) if (slot := slot_of(body)) else by_id[owner].release
            by_id[owner]._require(body == expected, "sent another release or part than its first one")
    return checked


def slot_of(body):
    """What a part of a secure sum is; empty for a release, and for masked statistics, which are one."""
    try:
        part = msgspec.msgpack.decode(body, type=Part)
    except msgspec.DecodeError:
        return ()
    return () if isinstance(part, Masked) else (type(part), part.call if isinstance(part, Opening) else b"")


class SoakedPeer:
    """A folder, the process that runs its peer, and the audit of both."""

    def __init__(self, folder, name, network, protects, table):
        self.home, self.table, self.protects = Home(folder / name), folder / f"{name}.csv", protects[0]
        self.table.write_text(table)
        dada("peer", "init", "--home", self.home.folder, "--network", network, "--epsilon", 1, "--protects", *protects)
        key, self.file = self.home.read()
        self.audit = Audit(public_key(key), self._peer_of)
        self.pid = None

    def _peer_of(self, release):
        if self.protects == "rows":
            return Peer(self.audit.me, public_row(self.file.config), self.file.config)
        samples, target = read_samples(self.table, "label", self.file), self.file.target
        given = [target.classes[code] for code in read_labels(release)]
        return Peer(self.audit.me, samples._replace(values=given).rows(target), self.file.config)

    def launch(self, tickets=(), table=None):
        """Start a process that stores the samples of a table, then runs the peer."""
        self.home.status.unlink(missing_ok=True)
        self.pid = os.fork()
        if self.pid:
            return
        exit_code = 1
        try:
            log = os.open(self.home.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            with self.home.lock():
                store_samples(self.home, table or self.table, "label")
            options = RunOptions(join=tuple(tickets), journal=True, exchange_every_s=EXCHANGE_EVERY_S)
            exit_code = run_peer(self.home, options)
        except HomeError as error:
            print(error, file=sys.stderr)
            exit_code = 2
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(exit_code)

    def wait(self):
        """Wait for the end of the process; returns its exit code."""
        pid, self.pid = self.pid, None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def kill(self, scratch):
        """Kill the process, and look at a copy of the ledger: opening the ledger itself would repair it."""
        os.kill(self.pid, signal.SIGKILL)
        self.audit._require(self.wait() == -signal.SIGKILL, "ended by itself")
        copy = Home(Path(tempfile.mkdtemp(dir=scratch)))
        for name in ("privacy.json", "ledger.sqlite", "ledger.sqlite-journal", "state.sqlite", "state.sqlite-wal"):
            if (self.home.folder / name).exists():
                shutil.copyfile(self.home.folder / name, copy.folder / name)
        self.audit.check_ledger(copy)
        if copy.state.exists():
            store = Store(copy.state)
            self.audit.note_releases(store.records())
            store.close()

    def wait_until_up(self):
        deadline = time.monotonic() + START_WITHIN_S
        while not self.home.status.exists():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.home.folder} did not start:\n{self.home.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def journals(self):
        """Journals in the order of lives: the folder's lock lets one life write at a time."""
        return sorted((self.home.folder / "journals").glob("*"), key=lambda path: path.stat().st_mtime_ns)


def dada(*line):
    subprocess.run([*COMMAND, *map(str, line)], capture_output=True, check=True)


def soak(folder, n_peers, seconds, kill_every, seed, protects):
    """Run, kill, then check; returns counts and violations."""
    rng, network = np.random.default_rng(seed), folder / "net.json"
    columns = ["--feature", "x:-1:1", "--feature", "y:-1:1", "--classes", "no,yes", "--rate", "4"]
    dada("peer", "new-network", network, *columns, "--stumps", 0 if protects[0] == "rows" else 10)
    peers = []
    for k in range(n_peers):
        points = rng.uniform(-1, 1, (N_ROWS, 2))
        lines = [f"{x},{y},{'yes' if x + rng.normal() > 0 else 'no'}" for x, y in points]
        peers.append(SoakedPeer(folder, f"peer{k}", network, protects, "\n".join(["x,y,label", *lines, ""])))
    counts = {"kills": 0, "refused_rows": 0}
    scratch = folder / "copies"
    scratch.mkdir()
    config = peers[0].file.config
    rehearse(UserRows(np.ones((3, config.n_predictors), np.int8)), config)
    started = time.monotonic()
    peers[0].launch()
    peers[0].wait_until_up()
    start_s = time.monotonic() - started

    def tickets(peer):
        return [found for other in peers if other is not peer and (found := other.home.read_status().get("ticket"))]

    def kill(peer):
        peer.kill(scratch)
        counts["kills"] += 1

    try:
        for peer in peers[1:]:
            # The first life of a peer, which makes the release, ends at any moment of its start.
            peer.launch(tickets(peer))
            time.sleep(rng.uniform(0.0, start_s))
            kill(peer)
            peer.launch(tickets(peer))
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(kill_every, left))
            peer = peers[rng.integers(n_peers)]
            kill(peer)
            if counts["kills"] % 8 == 0 and peer.audit.release is not None:
                peer.launch(table=peers[peers.index(peer) - 1].table)
                peer.audit._require(peer.wait() == 2, "accepted other rows")
                counts["refused_rows"] += 1
            peer.launch(tickets(peer))
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0.0, start_s))
                kill(peer)
                peer.launch(tickets(peer))
    finally:
        for peer in peers:
            if peer.pid is not None:
                peer.kill(scratch)
    for peer in peers:
        for path in peer.journals():
            with path.open("rb") as journal:
                peer.audit.replay(journal)
    audits = [peer.audit for peer in peers]
    counts["lives"], counts["messages"] = sum(audit.lives for audit in audits), compare(audits)
    counts["releases"] = sum(audit.release is not None for audit in audits)
    return counts | {"violations": [violation for audit in audits for violation in audit.violations]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--protects", choices=("labels", "rows"), default="labels")
    parser.add_argument("--secure-sum", action="store_true", help="with rows: others see sums only")
    options = parser.parse_args()
    protects = [options.protects, *(["--secure-sum"] if options.secure_sum else [])]
    with tempfile.TemporaryDirectory() as folder:
        result = soak(Path(folder), options.peers, options.seconds, options.kill_every, options.seed, protects)
    print(json.dumps(result, indent=2))
    sys.exit(bool(result["violations"]))


if __name__ == "__main__":
    main()
