"""Private peers that are killed between any two effects: all that they send follows from their first release."""

import io
import shutil

import numpy as np
import pytest

from benchmarks.private_soak import Audit, compare
from dada.core.model_steps import UserRows
from dada.net.home import Home
from dada.net.network_file import NetworkFile, Target
from dada.peer.inputs import Persist, Send, usual_settings
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.messages import Descriptor
from dada.peer.peer import Peer, PeerJournal
from dada.peer.releases import ExactRows, public_row
from dada.peer.sampling import PeerSampling
from dada.peer.signatures import Unsealed
from dada.privacy.noise import Bits
from dada.privacy.release import read_labels

N_ROWS, N_PREDICTORS = 20, 6
NETWORK = NetworkFile(
    settings={"beta": 10.0, "mu1": 1.0, **usual_settings("evidence", "block")},
    features=("x",),
    target=Target(("no", "yes")),
    coupling=np.ones(N_PREDICTORS),
    predictors={},
    arrays={},
    rhythm=Rhythm(local_steps=2, first_graph_steps=2, graph_every=2),
)


class KilledPeer:
    """A peer that starts from its folder and its records again and again."""

    def __init__(self, name, folder, rng, protects, forgets):
        self.me, self.rng, self.protects, self.forgets = name, rng, protects, forgets
        self.home = Home(folder / name.decode())
        self.home.create(folder / "net.json", bytes(32))
        self.home.protect(1.0, protects, n_peers=1000)
        self.backup = shutil.copytree(self.home.folder, folder / f"backup {name.decode()}")
        self.h = rng.choice([-1, 1], (N_ROWS, N_PREDICTORS)).astype(np.int8)
        self.codes = (self.h[:, 0] > 0).astype(int)
        self.records, self.journals = {}, []
        self.audit = Audit(name, self.peer_of)

    def rows_of(self, codes):
        return UserRows(self.h * (2 * codes - 1)[:, None].astype(np.int8))

    def peer_of(self, release):
        is_public = self.protects == "rows"
        rows = public_row(NETWORK.config) if is_public else self.rows_of(read_labels(release))
        return Peer(self.me, rows, NETWORK.config)

    def keep(self, effects):
        self.records |= {effect.key: effect.value for effect in effects if isinstance(effect, Persist)}
        self.records = {key: value for key, value in self.records.items() if value}

    def look(self):
        """Audit what a killed process left."""
        self.audit.check_ledger(self.home)
        self.audit.note_releases(self.records)

    def start(self, now, others):
        if self.forgets:
            shutil.copytree(self.backup, self.home.folder, dirs_exist_ok=True)
        releases = None
        if self.protects == "rows":
            exact = ExactRows(self.h.astype(np.float64), 2.0 * self.codes[:, None] - 1.0)
            self.home.write_exact(exact, self.rows_of(self.codes))
            releases = self.home.open_releases(self.me, Unsealed())
            peer = Peer(self.me, self.home.read_released(), NETWORK.config)
        else:
            codes = self.home.release_labels(self.codes, 2, self.h.tobytes(), Bits(self.rng.bytes))
            peer = Peer(self.me, self.rows_of(codes), NETWORK.config)
        self.look()
        self.journals.append(io.BytesIO())
        self.member = Member(
            peer,
            PeerSampling(self.me, self.rng),
            Planner(NETWORK.rhythm, self.rng),
            journal=PeerJournal(self.journals[-1], peer),
            releases=releases,
        )
        self.member.restore(dict(self.records))
        return self.member.start(now, [Descriptor(other, 0) for other in others], self.rng.bytes(8))

    def release_once(self):
        """Make the release of protected rows when it is due; a kill may come before it is sent."""
        releases = self.member.releases
        if releases is not None and releases.own is None and self.member.release_estimate.send:
            body = self.home.release_statistics(releases, Bits(self.rng.bytes))
            if self.rng.random() < 0.5:
                releases.publish(body)


def soaked(folder, protects="labels", forgets=False, n_wakeups=150):
    """Audits of peers that were killed, replayed from their journals."""
    NETWORK.write(folder / "net.json")
    rng = np.random.default_rng(0)
    peers = {name: KilledPeer(name, folder, rng, protects, forgets) for name in (b"ann", b"bob", b"eve")}
    # No peer is linked to another yet: what a first life sends at its start is lost.
    for peer in peers.values():
        peer.keep(peer.start(0.0, peers))
    members = {me: peer.member for me, peer in peers.items()}
    for _ in range(n_wakeups):
        me = min(members, key=lambda name: members[name].deadline)
        now = members[me].deadline
        peers[me].release_once()
        queue = [(members[me], effect) for effect in members[me].on_timer(now)]
        for member, effect in queue:
            if members[member.me] is not member:
                continue
            peers[member.me].keep([effect])
            if isinstance(effect, Send):
                other = members[effect.to]
                queue.extend((other, answer) for answer in other.receive(member.me, effect.message, now))
            if rng.random() < 0.01:
                effects = peers[member.me].start(now, peers)
                members[member.me] = peers[member.me].member
                queue.extend((members[member.me], answer) for answer in effects)
    for peer in peers.values():
        peer.look()
        for journal in peer.journals:
            journal.seek(0)
            peer.audit.replay(journal)
    return [peer.audit for peer in peers.values()]


@pytest.mark.parametrize(("protects", "n_messages"), [("labels", 100), ("rows", 6)])
def test_all_that_is_sent_follows_from_the_first_release(tmp_path, protects, n_messages):
    audits = soaked(tmp_path, protects)
    assert compare(audits) >= n_messages
    assert sum(audit.lives for audit in audits) > 5
    assert [audit.violations for audit in audits] == [[], [], []]
    # Each of two others has stored the release of protected rows.
    assert sum(len(audit.held) for audit in audits) == (6 if protects == "rows" else 0)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory):
    audits = soaked(tmp_path_factory.mktemp("forgetful"), forgets=True)
    compare(audits)
    return [violation for audit in audits for violation in audit.violations]


@pytest.mark.parametrize(
    "violation",
    [
        "has another release than its first one",
        "learned from other rows than those of its first release",
        "sent what its release does not give",
    ],
)
def test_a_second_release_is_noticed(forgetful, violation):
    assert any(violation in found for found in forgetful)
