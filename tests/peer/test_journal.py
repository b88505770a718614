"""A journal replayed into a fresh peer gives the same state, bit for bit, and any difference is found."""

import io

import numpy as np
import pytest

from dada.core.graph_steps import DegreeFunction, DegreeTarget, LogDegree
from dada.core.model_steps import UserRows
from dada.peer.inputs import ModelStep, PeerConfig, Persist, Send, Started
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.peer import DIGEST_EVERY, LENGTH, JournalError, Peer, PeerJournal, Replay, digest_of, read, replay
from dada.peer.sampling import Descriptor, PeerSampling


def peer_of(me, **settings):
    A = np.random.default_rng(me[0]).choice(np.array([-1, 1], np.int8), size=(5, 12))
    return Peer(me, UserRows(A), PeerConfig(n_predictors=12, beta=3.0, mu1=0.7, vet=True, **settings))


def lives(seconds, file, crash_at=None, watch=lambda member: None, **settings):
    """Three members on a network that loses a fifth of the messages; the first has a journal."""
    rng, net = np.random.default_rng(0), {}
    records, now, journal = {}, 0.0, None

    def enter(me):
        nonlocal journal
        peer = peer_of(me, **settings)
        journal = PeerJournal(file, peer) if me == b"a" else journal
        own = np.random.default_rng([me[0], len(records)])
        rhythm = Rhythm(local_steps=5, first_graph_steps=2, graph_every=2)
        net[me] = Member(peer, PeerSampling(me, own), Planner(rhythm, own), journal=journal if me == b"a" else None)
        if me == b"a":
            net[me].restore(dict(records))
        queue.extend((me, effect) for effect in net[me].start(now, [Descriptor(b"a", 0), Descriptor(b"b", 0)]))

    queue = []
    for me in (b"a", b"b", b"c"):
        enter(me)
    while now < seconds:
        if crash_at is not None and now >= crash_at:
            journal.close()
            crash_at = None
            enter(b"a")
        while queue:
            me, effect = queue.pop(0)
            if isinstance(effect, Persist) and me == b"a":
                records[effect.key] = effect.value
            elif isinstance(effect, Send) and rng.random() > 0.2:
                queue.extend((effect.to, answer) for answer in net[effect.to].receive(me, effect.message, now))
        me = min(net, key=lambda me: net[me].deadline)
        now = net[me].deadline
        watch(net[me])
        queue.extend((me, effect) for effect in net[me].on_timer(now))
    queue.extend((b"a", effect) for effect in net[b"a"].on_unreachable(b"c", now))
    net[b"a"].leave(now)
    journal.close()
    return net[b"a"].peer


@pytest.mark.parametrize("regularizer", [LogDegree(lam=0.2, delta=0.3), DegreeTarget(target=2.0)])
def test_a_replayed_life_ends_in_the_same_state(regularizer):
    file = io.BytesIO()
    peer = lives(200.0, file, regularizer=regularizer, coupling=np.linspace(0.5, 1.0, 12))
    result = replay(io.BytesIO(file.getvalue()))
    assert result.facts > 300
    assert result == Replay(1, result.facts, 1 + (result.facts - 1) // DIGEST_EVERY, True)
    *_, last = read(io.BytesIO(file.getvalue()))
    assert last.digest == digest_of(peer)


@pytest.mark.parametrize(("graph", "step"), [("distance", "pairwise"), ("evidence", "pairwise"), ("evidence", "block")])
def test_a_journal_goes_on_after_a_restart(graph, step):
    file = io.BytesIO()
    peer = lives(60.0, file, crash_at=30.0, graph=graph, n_neighbours=1, step=step)
    assert replay(io.BytesIO(file.getvalue())).births == 2
    *_, last = read(io.BytesIO(file.getvalue()))
    assert last.digest == digest_of(peer)


def test_reading_the_model_of_a_member_changes_nothing():
    first, second = io.BytesIO(), io.BytesIO()
    peer = lives(60.0, first)
    again = lives(60.0, second, watch=lambda member: member.model)
    assert digest_of(again) == digest_of(peer)


def test_a_changed_fact_is_found():
    file = io.BytesIO()
    lives(40.0, file)
    data, at = file.getvalue(), 0
    facts = list(read(io.BytesIO(data)))
    steps = [p for p, fact in enumerate(facts) if isinstance(fact, ModelStep)]
    for _ in range(steps[3]):
        at += LENGTH.size + LENGTH.unpack_from(data, at)[0]
    end = at + LENGTH.size + LENGTH.unpack_from(data, at)[0]
    with pytest.raises(JournalError, match="the state differs from the recorded one"):
        replay(io.BytesIO(data[:at] + data[end:]))


def test_a_truncated_journal_is_replayed_to_its_end():
    file = io.BytesIO()
    lives(40.0, file)
    whole = replay(io.BytesIO(file.getvalue()))
    cut = replay(io.BytesIO(file.getvalue()[:-40]))
    assert cut.facts == whole.facts
    assert not cut.is_whole


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (LENGTH.pack(5) + b"xxxxx", "this is not a journal"),
        (LENGTH.pack(2**31) + b"xxxxx", "a frame of 2147483648 bytes"),
        (LENGTH.pack(10) + b"\x92\x02\xcb" + bytes(8), "this is not a journal"),
    ],
)
def test_files_that_are_no_journals_are_refused(data, reason):
    with pytest.raises(JournalError, match=reason):
        replay(io.BytesIO(data))


def test_a_journal_begins_with_a_birth():
    file = io.BytesIO()
    PeerJournal(file, peer_of(b"a")).write(Started(0.0))
    frames = file.getvalue()
    first = LENGTH.size + LENGTH.unpack_from(frames)[0]
    with pytest.raises(JournalError, match="does not begin with a birth"):
        replay(io.BytesIO(frames[first:]))


def test_custom_regularizers_are_refused():
    own = DegreeFunction(lambda d: -d, lambda d: -1.0, lambda d: 0.0)
    with pytest.raises(JournalError, match="not a custom one"):
        PeerJournal(io.BytesIO(), peer_of(b"a", regularizer=own))
