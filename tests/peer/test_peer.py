"""Two peers, wired by hand: what is lost, repeated, forgotten or forged does no lasting harm."""

import numpy as np
import pytest

from dada.core.graph_steps import exact_step
from dada.core.regularizers import LogDegree
from dada.peer.config import PeerConfig
from dada.peer.edges import MOST_ENDED_EDGES
from dada.peer.inputs import GraphStep, ModelStep, Persist, ResetModel, Send
from dada.peer.messages import EdgeAck, EdgeState, Goodbye, ModelDelta, Snapshot, SnapshotReply, StateRequest
from dada.peer.peer import Peer

A = np.array([[1, -1, 1], [1, 1, -1], [1, -1, -1]], np.int8)


def make(me, records=None, **settings):
    config = PeerConfig(n_predictors=3, beta=2.0, mu1=0.5, regularizer=LogDegree(lam=0.3, delta=0.1), **settings)
    peer = Peer(me, A, config)
    if records is not None:
        peer.restore(records)
    return peer


class Pair:
    """Two peers and their stored records; `talk` carries messages until there are none, losing those it is told to."""

    def __init__(self, **settings):
        self.peers = {name: make(name, **settings) for name in (b"ann", b"bob")}
        self.records = {name: {} for name in self.peers}
        self.talk({name: peer.start(0.0) for name, peer in self.peers.items()})

    def talk(self, effects, now=0.0, loses=lambda message: False):
        queue = [(name, effect) for name, given in effects.items() for effect in given]
        for name, effect in queue:
            if isinstance(effect, Persist):
                self.records[name][effect.key] = effect.value
            elif isinstance(effect, Send) and not loses(effect.message):
                answers = self.peers[effect.to].receive(name, effect.message, now)
                queue.extend((effect.to, answer) for answer in answers)
        assert len(queue) < 1000

    def act(self, name, action, now=0.0, loses=lambda message: False):
        self.talk({name: self.peers[name].act(action, now)}, now, loses)

    def learn_and_link(self):
        for _ in range(3):
            self.act(b"ann", ModelStep())
            self.act(b"bob", ModelStep())
        self.act(b"ann", GraphStep((b"bob",)))
        assert self.weights()[0] > 0.0
        return self

    def weights(self):
        return tuple(self.peers[here].edges[there].weight for here, there in ((b"ann", b"bob"), (b"bob", b"ann")))


@pytest.fixture
def pair():
    return Pair().learn_and_link()


def test_a_lost_weight_is_repeated_until_acknowledged(pair):
    pair.act(b"ann", ResetModel())
    pair.act(b"ann", GraphStep((b"bob",)), loses=lambda message: isinstance(message, EdgeState))
    ann = pair.peers[b"ann"]
    assert pair.weights()[0] != pair.weights()[1]
    assert not ann.edges[b"bob"].acknowledged
    pair.talk({b"ann": ann.on_timer(ann.deadline)}, ann.deadline)
    assert pair.weights()[0] == pair.weights()[1]
    assert ann.deadline == float("inf")


def test_a_lost_move_comes_to_light_at_the_next_graph_step(pair):
    ann, bob = pair.peers[b"ann"], pair.peers[b"bob"]
    pair.act(b"ann", ResetModel(), loses=lambda message: isinstance(message, SnapshotReply))
    pair.act(b"ann", ModelStep(), loses=lambda message: isinstance(message, ModelDelta))
    assert bob.edges[b"ann"].copy.number < ann.model.number
    pair.act(b"ann", GraphStep(()))
    assert bob.edges[b"ann"].copy.number == ann.model.number
    np.testing.assert_array_equal(bob.edges[b"ann"].copy.alpha, ann.model.alpha)


def test_an_edge_that_one_end_gave_up_unheard_ends_at_the_other_too(pair):
    pair.peers[b"ann"].on_unreachable(b"bob", 1.0)
    assert pair.weights() == (0.0, pair.weights()[1])
    pair.act(b"bob", GraphStep(()), now=2.0)
    assert pair.weights() == (0.0, 0.0)


def test_no_version_comes_back_after_a_power_cut(pair):
    before = dict(pair.records[b"ann"])
    pair.act(b"ann", ResetModel())
    pair.act(b"ann", GraphStep((b"bob",)))
    lost = pair.peers[b"ann"].edges[b"bob"].rank
    # The disk has an older state of the edge, and nothing is heard of bob before ann changes the edge again.
    pair.peers[b"ann"] = make(b"ann", {**before, b"epoch": pair.records[b"ann"][b"epoch"]})
    pair.peers[b"ann"].start(5.0)
    pair.act(b"bob", ResetModel(), 6.0, loses=lambda message: True)
    pair.act(b"ann", GraphStep((b"bob",)), 6.0, loses=lambda message: isinstance(message, EdgeAck))
    assert pair.peers[b"ann"].edges[b"bob"].rank > lost
    assert pair.weights()[0] == pair.weights()[1]


def test_a_neighbour_whose_model_is_unknown_does_not_pull(pair):
    records = dict(pair.records[b"ann"])
    with_edge, alone = make(b"ann", records), make(b"ann", {k: v for k, v in records.items() if b"edge" not in k})
    for peer in (with_edge, alone):
        peer.start(0.0)
        peer.act(ModelStep(), 0.0)
    assert with_edge.neighbours == [b"bob"]
    np.testing.assert_array_equal(with_edge.model.alpha, alone.model.alpha)


def test_ended_edges_are_forgotten_in_memory_and_on_disk():
    peer = make(b"me")
    stored = set()
    peer.start(0.0)
    for k in range(MOST_ENDED_EDGES + 50):
        other = b"p" + k.to_bytes(2, "big")
        for effect in [
            *peer.receive(other, EdgeState(1, other, 1.0), 0.0),
            *peer.receive(other, Goodbye(), 0.0),
        ]:
            if isinstance(effect, Persist) and effect.key.startswith(b"edge:"):
                stored.add(effect.key) if effect.value else stored.discard(effect.key)
    assert len(peer.edges) == len(stored) == MOST_ENDED_EDGES
    assert peer.deadline == float("inf")


def test_a_refused_edge_has_no_weight_and_no_timer():
    peer = make(b"me", max_neighbours=1)
    peer.start(0.0)
    peer.receive(b"first", EdgeState(1, b"first", 2.0), 0.0)
    _, answer = peer.receive(b"second", EdgeState(1, b"second", 1.0), 0.0)
    assert answer.message.weight == 0.0
    assert answer.message.version > 1
    assert peer.neighbours == [b"first"]
    assert peer.deadline == float("inf")


def test_stale_states_are_answered_without_setting_timers(pair):
    ann = pair.peers[b"ann"]
    (answer,) = ann.receive(b"bob", EdgeState(0, b"", 0.0), 1.0)
    assert answer.message.weight == ann.edges[b"bob"].weight
    assert ann.deadline == float("inf")


def test_an_acknowledgement_of_an_old_version_is_answered_with_the_new_one(pair):
    ann = pair.peers[b"ann"]
    (answer,) = ann.receive(b"bob", EdgeAck(1, b"bob", 1, 1), 1.0)
    assert isinstance(answer.message, EdgeState)
    assert answer.message.version == ann.edges[b"bob"].version


def test_repeated_messages_change_nothing(pair):
    bob = pair.peers[b"bob"]
    moves = [e.message for e in pair.peers[b"ann"].act(ResetModel(), 0.0) if isinstance(e, Send)]
    moves += [e.message for e in pair.peers[b"ann"].act(ModelStep(), 0.0) if isinstance(e, Send)]
    for _ in range(3):
        for move in moves:
            bob.receive(b"ann", move, 0.0)
    np.testing.assert_array_equal(bob.edges[b"ann"].copy.alpha, pair.peers[b"ann"].model.alpha)


def test_a_peer_that_keeps_saying_what_cannot_be_is_ignored_and_loses_its_edge(pair):
    ann = pair.peers[b"ann"]
    for _ in range(20):
        ann.receive(b"bob", EdgeState(2, b"bob", float("nan")), 0.0)
    assert ann.neighbours == []
    (refused,) = ann.receive(b"bob", StateRequest(1), 0.0)
    assert "ignored" in refused.reason


# -- vetting -------------------------------------------------------------------------------------------------------


def model(*values, number=(1, 1)):
    used = np.flatnonzero(values)
    return Snapshot(*number, used.astype("<u4").tobytes(), np.array(values)[used].astype("<f4").tobytes())


GOOD, BAD = model(2.0, 0.0, 0.0), model(-2.0, 0.0, 0.0)


def vetting(**settings):
    peer = make(b"me", vet=True, **settings)
    peer.start(0.0)
    return peer


def test_a_model_that_does_harm_on_ones_own_samples_gets_no_edge():
    peer = vetting()
    _, answer = peer.receive(b"liar", EdgeState(1, b"liar", 1.0, BAD), 0.0)
    assert answer.message.weight == 0.0
    assert peer.neighbours == []
    peer.receive(b"friend", EdgeState(1, b"friend", 1.0, GOOD), 0.0)
    assert peer.neighbours == [b"friend"]


def test_an_edge_to_an_unknown_model_waits_for_the_model():
    peer = vetting()
    assert peer.receive(b"you", EdgeState(1, b"you", 1.0), 0.0) == []
    peer.receive(b"you", EdgeState(1, b"you", 1.0, GOOD), 0.0)
    assert peer.neighbours == [b"you"]


def test_a_model_that_turns_bad_loses_its_edge_at_the_next_graph_step():
    peer = vetting()
    peer.receive(b"you", EdgeState(1, b"you", 1.0, GOOD), 0.0)
    peer.receive(b"you", SnapshotReply(model(-2.0, 0.0, 0.0, number=(1, 2))), 0.0)
    effects = peer.act(GraphStep(()), 0.0)
    assert peer.neighbours == []
    assert [e.message.weight for e in effects if isinstance(e, Send)] == [0.0]


def test_nobody_claims_far_more_weight_than_all_others_have():
    peer = vetting()
    for name in (b"ann", b"bob"):
        peer.receive(name, EdgeState(1, name, 1.0, GOOD), 0.0)
    for version in (5, 10**6, 10**9):
        effects = peer.receive(b"bob", EdgeState(version, b"bob", 40.0), 0.0)
        (answer,) = (e.message for e in effects if isinstance(e, Send))
        assert answer.weight == peer.edges[b"bob"].weight == 2.0
        assert answer.version > version


def test_weights_that_no_sound_step_gives_are_refused():
    peer = vetting()
    (refused,) = peer.receive(b"bob", EdgeState(1, b"bob", 1e6, GOOD), 0.0)
    assert "an edge of weight 1000000.0" in refused.reason


def test_sound_steps_stay_below_the_heaviest_weight_allowed():
    for lam in (0.01, 0.3, 10.0):
        config = PeerConfig(n_predictors=1, beta=2.0, mu1=0.5, regularizer=LogDegree(lam=lam, delta=0.1))
        new = np.empty(1)
        exact_step(config.regularizer.compiled, 0.5, np.array([-2 * config.beta]), np.zeros(1), np.zeros(1), 0.0, new)
        assert 0 < new[0] <= config.heaviest_weight
