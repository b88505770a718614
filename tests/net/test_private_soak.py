"""Private peers that are killed between any two effects: all that they send follows from their first release."""

import io
import shutil

import numpy as np
import pytest

from benchmarks.private_soak import Audit, compare
from dada.core.model_steps import UserRows
from dada.net.home import Home
from dada.net.network_file import NetworkFile, Target
from dada.peer.config import usual_settings
from dada.peer.inputs import Persist, Send
from dada.peer.journal import PeerJournal
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.messages import Descriptor
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
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

    def __init__(self, name, folder, rng, forgets):
        self.me, self.rng, self.forgets = name, rng, forgets
        self.home = Home(folder / name.decode())
        self.home.create(folder / "net.json", bytes(32))
        self.home.protect(1.0)
        self.backup = shutil.copytree(self.home.folder, folder / f"backup {name.decode()}")
        self.h = rng.choice([-1, 1], (N_ROWS, N_PREDICTORS)).astype(np.int8)
        self.codes = (self.h[:, 0] > 0).astype(int)
        self.records, self.journals = {}, []
        self.audit = Audit(name, lambda release: self.peer_of(read_labels(release)))

    def peer_of(self, codes):
        return Peer(self.me, UserRows(self.h * (2 * codes - 1)[:, None].astype(np.int8)), NETWORK.config)

    def keep(self, effects):
        self.records |= {effect.key: effect.value for effect in effects if isinstance(effect, Persist)}
        self.records = {key: value for key, value in self.records.items() if value}

    def start(self, now, others):
        if self.forgets:
            shutil.copytree(self.backup, self.home.folder, dirs_exist_ok=True)
        peer = self.peer_of(self.home.release_labels(self.codes, 2, self.h.tobytes(), Bits(self.rng.bytes)))
        self.audit.check_ledger(self.home)
        self.journals.append(io.BytesIO())
        self.member = Member(
            peer,
            PeerSampling(self.me, self.rng),
            Planner(NETWORK.rhythm, self.rng),
            journal=PeerJournal(self.journals[-1], peer),
        )
        self.member.restore(dict(self.records))
        return self.member.start(now, [Descriptor(other, 0) for other in others], self.rng.bytes(8))


def soaked(folder, forgets=False, n_wakeups=150):
    """Audits of peers that were killed, replayed from their journals."""
    NETWORK.write(folder / "net.json")
    rng = np.random.default_rng(0)
    peers = {name: KilledPeer(name, folder, rng, forgets) for name in (b"ann", b"bob", b"eve")}
    # No peer is linked to another yet: what a first life sends at its start is lost.
    for peer in peers.values():
        peer.keep(peer.start(0.0, peers))
    members = {me: peer.member for me, peer in peers.items()}
    for _ in range(n_wakeups):
        me = min(members, key=lambda name: members[name].deadline)
        now = members[me].deadline
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
        for journal in peer.journals:
            journal.seek(0)
            peer.audit.replay(journal)
    return [peer.audit for peer in peers.values()]


def test_all_that_is_sent_follows_from_the_first_release(tmp_path):
    audits = soaked(tmp_path)
    assert compare(audits) > 100
    assert sum(audit.lives for audit in audits) > 10
    assert [audit.violations for audit in audits] == [[], [], []]


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
