"""Boosted trees of peers: those of a fit by messages, what is refused, who is left out, and restarts."""

import copy
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dada.core.boosting import pool_values
from dada.data import BoostedTrees, Population
from dada.fitting import boosting as engine
from dada.fitting.boosted_peers import boosted_users
from dada.peer import boosting as peers
from dada.peer.boosted_trees import (
    HISTOGRAMS,
    LARGEST_SUM,
    MOST_ROUNDS,
    NO_VOTE,
    SUMS,
    VOTES,
    BoostedRows,
    BoostedTerms,
    OwnLeaves,
    draw_tested,
    read_histograms,
    read_sums,
    read_votes,
    varying_in,
    write_nodes,
)
from dada.peer.boosting import MOST_REQUESTS, SharedBoosting, bounded
from dada.peer.inputs import Persist, Refused, Send
from dada.peer.messages import (
    BoostedRecord,
    BoostedReply,
    GrowthReply,
    GrowthRequest,
    ImplausibleError,
    SignedTree,
    decode,
    encode,
)
from dada.peer.signed_trees import SignedTrees
from dada.sim.virtual import VirtualSeal

TERMS = BoostedTerms(n_features=2, n_cuts=3, n_classes=2, rounds=10, depth=2)
SOUND = TERMS.write(1, np.array([0, 1, 0]), np.array([2, 0, -1]), np.array([[64], [-64], [5], [0]]))


def people_of(kind, n_features, n_users=9, n_rows=20, weighs=False):
    rng = np.random.default_rng(n_features)
    X, users = rng.uniform(-1, 1, (n_users * n_rows, n_features)), np.repeat(np.arange(n_users), n_rows)
    score = abs(X[:, 0]) + abs(X[:, 1]) - 1 + 0.1 * (users - n_users / 2) / n_users
    y = {"classes": score > 0, "three": np.digitize(score, [-0.2, 0.2]), "numbers": score}[kind]
    task, weights = "numbers" if kind == "numbers" else "classes", rng.uniform(0.5, 2, len(y)) if weighs else None
    return Population.from_arrays(X, y, users, task=task, sample_weight=weights)


def id_of(k):
    return b"%04d" % k


class Network:
    """Peers whose messages arrive at once; `lost` says which do not."""

    def __init__(self, users, lost=lambda sender, to, message: False):
        self.lost, self.sent = lost, []
        varying = varying_in(users.cuts)
        ids = [id_of(k) for k in range(len(users.rows))]
        self.peers = {
            me: SharedBoosting(me, users.terms, rows, varying, b"network", VirtualSeal(me))
            for me, rows in zip(ids, users.rows, strict=True)
        }
        self.records = {me: {} for me in ids}
        for me, peer in self.peers.items():
            self.carry_out(me, peer.start())

    def others(self, me):
        return lambda n: [peer for peer in self.peers if peer != me]

    def carry_out(self, me, effects):
        queue = [(me, effect) for effect in effects]
        while queue:
            sender, effect = queue.pop(0)
            if isinstance(effect, Persist):
                self.records[sender][effect.key] = effect.value
            elif isinstance(effect, Send) and not self.lost(sender, effect.to, effect.message):
                message = decode(encode(effect.message))
                self.sent.append(message)
                answers = self.peers[effect.to].receive(sender, message, 0.0, self.others(effect.to))
                queue += [(effect.to, answer) for answer in answers]

    def grow(self, pool, tested, now=0.0):
        self.carry_out(pool[0], self.peers[pool[0]].begin(pool[1:], tested, now))

    def let_time_pass(self, me):
        peer = self.peers[me]
        self.carry_out(me, peer.on_timer(peer.deadline, self.others(me)))


class Engine(engine.Grower):
    """A fit that remembers its last pool, and the features that its last tree tested."""

    def grow(self):
        self.chance = copy.deepcopy(self.rng)
        return super().grow()

    def _pool(self):
        self.pool = super()._pool()
        return self.pool


@pytest.mark.parametrize(
    ("kind", "n_features", "depth", "weighs"),
    [
        ("classes", 2, 2, False),
        ("classes", 3, 1, True),
        ("classes", 40, 3, False),
        ("three", 12, 2, False),
        ("numbers", 5, 2, True),
    ],
)
def test_peers_grow_the_trees_of_a_fit_bit_for_bit(kind, n_features, depth, weighs, monkeypatch):
    """The same pools and tested features give the same trees, leaf values and decision values.

    Without a bound for the sums of the members of a pool, which a fit has no need of.
    """
    monkeypatch.setattr(peers, "MOST_WEIGHT", np.inf)
    shared = []
    monkeypatch.setattr(engine, "pool_values", lambda G, W: shared.append(pool_values(G, W)) or shared[-1])
    recipe = BoostedTrees(rounds=100, depth=depth, rate=0.3, own=1.5)
    people = people_of(kind, n_features, weighs=weighs)
    users = boosted_users(recipe, people)
    grower, network = Engine(recipe, people, np.random.default_rng(1)), Network(users)
    expected = []
    for number in range(1, 13):
        values = grower.grow()
        tested = draw_tested(users.terms, grower.varying, grower.chance)
        network.grow([id_of(k) for k in grower.pool.tolist()], tested)
        expected.append(users.terms.write(number, grower.features[-1], grower.tests[-1], shared[-1]))
        for k, peer in enumerate(network.peers.values()):
            assert peer.trees == expected
            assert_array_equal(peer.leaves().values[-1], values[k])
            assert_array_equal(peer.leaves().margins, grower.values[people.user_rows(k)])
    assert any((cut >= 0).any() for cut in grower.tests)


def test_the_shape_of_trees_is_that_of_a_fit_whatever_is_believed_of_sums():
    recipe, people = BoostedTrees(rounds=4, depth=2), people_of("classes", 12)
    users = boosted_users(recipe, people)
    grower, network = Engine(recipe, people, np.random.default_rng(1)), Network(users)
    grower.grow()
    network.grow([id_of(k) for k in grower.pool.tolist()], draw_tested(users.terms, grower.varying, grower.chance))
    found = users.terms.read(network.peers[id_of(0)].trees[0])
    assert_array_equal(found.feature, grower.features[0])
    assert_array_equal(found.cut, grower.tests[0])


@given(st.permutations(range(6)), st.integers(0, 100))
@settings(deadline=None)
def test_values_of_leaves_depend_on_the_trees_and_not_on_how_they_came(order, seed):
    rng = np.random.default_rng(seed)
    rows = BoostedRows(rng.integers(0, 4, (30, 2)).astype(np.uint8), np.where(rng.random(30) < 0.5, 1.0, -1.0))
    trees = TERMS.in_order([some_tree(rng) for _ in range(6)])
    anew, late = OwnLeaves(TERMS, rows), OwnLeaves(TERMS, rows)
    anew.take(trees)
    for n in range(1, 7):
        late.take(TERMS.in_order([trees[t] for t in order[:n]]))
    assert late.trees == anew.trees
    assert_array_equal(np.array(late.values), np.array(anew.values))
    assert_array_equal(late.margins, anew.margins)


def test_a_tree_before_all_that_are_remembered_is_applied_too(monkeypatch):
    monkeypatch.setattr("dada.peer.boosted_trees.RECENT", 2)
    rng = np.random.default_rng(0)
    rows = BoostedRows(rng.integers(0, 4, (30, 2)).astype(np.uint8), np.where(rng.random(30) < 0.5, 1.0, -1.0))
    trees = [some_tree(rng, number) for number in range(1, 8)]
    anew, late = OwnLeaves(TERMS, rows), OwnLeaves(TERMS, rows)
    anew.take(trees)
    late.take(trees[1:])
    late.take(trees)
    assert_array_equal(late.margins, anew.margins)


def some_tree(rng, number=None):
    cut = rng.integers(-1, TERMS.n_cuts, 3)
    feature = np.where(cut < 0, 0, rng.integers(0, TERMS.n_features, 3))
    return TERMS.write(number or int(rng.integers(1, 9)), feature, cut, rng.integers(-128, 128, (4, 1)))


# -- what is refused ---------------------------------------------------------------------------------------------------

FALSE_TREES = {
    "too deep": SOUND + SOUND,
    "cut short": SOUND[:-1],
    "unknown feature": SOUND[:2] + b"\x02\x00" + SOUND[4:],
    "threshold beyond the last": SOUND[:8] + b"\x03" + SOUND[9:],
    "feature without a split": SOUND[:6] + b"\x01" + SOUND[7:],
    "round zero": b"\x00\x00" + SOUND[2:],
    "round far ahead": (4 * TERMS.rounds + 1).to_bytes(2, "little") + SOUND[2:],
}


def signed(terms, me, *trees):
    """The record of a peer that signs whatever it likes."""
    one = SignedTrees(me, terms, b"network", VirtualSeal(me))
    return BoostedRecord(me, tuple(SignedTree(tree, VirtualSeal(me).sign(one._content(me, tree))) for tree in trees))


def lonely(me=b"ann", terms=TERMS, n_rows=20):
    rng = np.random.default_rng(0)
    bins = rng.integers(0, terms.n_cuts + 1, (n_rows, terms.n_features)).astype(np.uint8)
    y = np.where(bins[:, 0] > 1, 1.0, -1.0)
    peer = SharedBoosting(me, terms, BoostedRows(bins, y), np.arange(terms.n_features), b"network", VirtualSeal(me))
    peer.start()
    return peer


def receive(peer, sender, message):
    return peer.receive(sender, decode(encode(message)), 0.0, lambda n: [])


@pytest.mark.parametrize("name", FALSE_TREES)
def test_false_trees_are_refused_though_they_are_signed(name):
    peer = lonely()
    with pytest.raises(ImplausibleError, match="a boosted tree"):
        receive(peer, b"liar", BoostedReply((signed(TERMS, b"liar", FALSE_TREES[name]),)))
    assert peer.trees == []
    receive(peer, b"bob", BoostedReply((signed(TERMS, b"bob", SOUND),)))
    assert peer.trees == [SOUND]


def test_trees_that_nobody_signed_are_refused():
    peer, record = lonely(), signed(TERMS, b"bob", SOUND)
    for false in (BoostedRecord(b"carl", record.trees), BoostedRecord(b"bob", (SignedTree(SOUND, b"x" * 64),))):
        with pytest.raises(ImplausibleError, match="false signature"):
            receive(peer, b"liar", BoostedReply((false,)))
    assert peer.trees == []


def test_a_liar_cannot_flood_and_all_keep_the_same_of_its_trees():
    rng = np.random.default_rng(0)
    flood = [some_tree(rng, number) for number in range(1, 31)]
    halves = [signed(TERMS, b"liar", *flood[first::2]) for first in (0, 1)]
    ann, bob = lonely(b"ann"), lonely(b"bob")
    for peer, order in ((ann, halves), (bob, halves[::-1])):
        for record in order:
            receive(peer, b"liar", BoostedReply((record,)))
    receive(ann, b"bob", BoostedReply((bob.records.record_of(b"bob"),)))
    receive(bob, b"ann", BoostedReply((ann.records.record_of(b"ann"),)))
    assert ann.records.counts[b"liar"] == TERMS.per_grower == 2
    assert ann.records.digest == bob.records.digest
    assert ann.trees == bob.trees


def test_no_more_than_twice_a_fair_share_of_a_grower_is_used():
    terms = BoostedTerms(n_features=2, n_cuts=3, n_classes=2, rounds=50, depth=2)
    peer, rng = lonely(terms=terms), np.random.default_rng(0)
    receive(peer, b"liar", BoostedReply((signed(terms, b"liar", *(some_tree(rng, t) for t in range(1, 11))),)))
    assert len(peer.trees) == 10
    for k in range(23):
        receive(peer, b"peer", BoostedReply((signed(terms, id_of(k), b""),)))
    assert len(peer.trees) == 2 * 50 / 25
    assert max(terms.round_of(tree) for tree in peer.trees) == 4


def test_false_requests_are_refused():
    peer, features = lonely(), np.array([0, 1], "<u2").tobytes()
    nodes = write_nodes(np.array([0]), np.array([1]))
    assert receive(peer, b"bob", GrowthRequest(1, VOTES, 0, b"", features))
    for false in (
        GrowthRequest(1, VOTES, 1, b"", features),
        GrowthRequest(1, VOTES, 0, nodes[:-1], features),
        GrowthRequest(1, VOTES, 0, b"", features[:-1]),
        GrowthRequest(1, VOTES, 0, b"", b""),
        GrowthRequest(1, VOTES, 0, b"", b"\x02\x00" * 2),
        GrowthRequest(1, HISTOGRAMS, 0, b"", b"\x00\x00" * 3),
        GrowthRequest(1, HISTOGRAMS, 0, nodes, features[:2]),
        GrowthRequest(1, VOTES, 0, SOUND[2:11], b"\x00\x00" * 4),
        GrowthRequest(1, SUMS, 0, nodes, b""),
        GrowthRequest(1, SUMS, 0, SOUND[2:11], features),
        GrowthRequest(1, SUMS, 0, b"\xff\xff" + SOUND[4:11], b""),
    ):
        with pytest.raises(ImplausibleError):
            receive(peer, b"liar", false)


def test_a_grower_is_answered_for_as_many_trees_as_it_may_need():
    peer, request = lonely(), GrowthRequest(1, VOTES, 0, b"", b"\x00\x00")
    most = MOST_REQUESTS * TERMS.per_grower * (2 * TERMS.depth + 1)
    for _ in range(most):
        assert isinstance(receive(peer, b"liar", request)[0], Send)
    assert isinstance(receive(peer, b"liar", request)[0], Refused)
    assert isinstance(receive(peer, b"bob", request)[0], Send)


def sums_of(G, W, exponent=0):
    """The answer of a member with these sums in the leaves, of one output."""
    return bytes([exponent, 0]) + np.array([*G, *W]).astype(np.int8).tobytes()


def test_false_answers_are_refused():
    sound = sums_of(np.arange(8), np.ones(8))
    negative, lowest, huge = sums_of(np.ones(8), -np.ones(8)), sums_of(np.full(8, -128), np.ones(8)), b"\x22"
    for false in (negative, lowest, huge + sound[1:-16] + b"\x7f" * 16, sound[:-1], sound + b"\x00"):
        with pytest.raises(ImplausibleError, match="sums"):
            read_sums(false, BoostedTerms(2, 3, 2, depth=3))
    assert read_sums(sound, BoostedTerms(2, 3, 2, depth=3))[0, :, 0].tolist() == [*range(8)]
    for votes in (np.array([3], "<u2"), np.array([0, 1], "<u2")):
        with pytest.raises(ImplausibleError, match="vote"):
            read_votes(votes.tobytes(), n_nodes=1, n_tested=3)
    assert read_votes(np.array([NO_VOTE], "<u2").tobytes(), 1, 3).tolist() == [-1]
    sound = bytes([4, 0, 0, 1, 2, 3, 2])
    assert read_histograms(sound, 1, 1, 2).numbers.tolist() == [[[[1, 2], [3, 2]]]]
    for false in (
        b"\x05" + sound[1:],
        sound[:-1] + b"\x04",
        sound[:-1],
        sound[:-1] + b"\xff",
        sound[:3] + b"\x80" + sound[4:],
    ):
        with pytest.raises(ImplausibleError, match="histograms"):
            read_histograms(false, 1, 1, 2)


def test_the_largest_histograms_leave_all_numbers_finite():
    terms = BoostedTerms(n_features=1, n_cuts=1, n_classes=2, depth=1)
    growth = peers.Growth(terms, 1, np.zeros((1, 1), np.int64), (b"ann", b"liar"))
    growth.offer(b"ann", bytes([4, 0, 0, 1, 255, 1, 1]))
    growth.offer(b"liar", bytes([4, 127, 127, 3, 253, 3, 3]))
    assert growth.advance() is None
    assert growth.cut[0] == 0
    growth.offer(b"ann", sums_of([1, -1], [1, 1]))
    growth.offer(b"liar", sums_of([127, 127], [0, 0], exponent=33))
    tree = growth.advance()
    assert np.isfinite(terms.read(tree).leaf).all()


def test_sums_of_a_liar_count_as_those_of_a_few_honest_members():
    rng = np.random.default_rng(0)
    honest = [np.stack([rng.normal(size=(4, 1)), rng.uniform(1, 2, (4, 1))]) for _ in range(9)]
    lie = np.stack([np.full((4, 1), LARGEST_SUM), np.zeros((4, 1))])
    sizes = [np.abs(one[0]).sum() for one in honest]
    *_, least = bounded([*honest, lie])
    assert np.abs(least[0]).sum() == pytest.approx(peers.MOST_WEIGHT * np.median([*sizes, np.inf]))
    assert_array_equal(bounded(honest[:1] * 3)[2], honest[0])


# -- who is left out, and restarts -------------------------------------------------------------------------------------


def small(n_users=5, lost=lambda sender, to, message: False):
    users = boosted_users(BoostedTrees(rounds=10, depth=2), people_of("classes", 3, n_users=n_users))
    return users, Network(users, lost), draw_tested(users.terms, varying_in(users.cuts), np.random.default_rng(0))


def test_who_does_not_answer_is_asked_once_more_and_then_left_out():
    silent = id_of(3)
    _users, network, tested = small(lost=lambda sender, to, message: sender == silent)
    network.grow([id_of(k) for k in range(4)], tested)
    leader = network.peers[id_of(0)]
    assert leader.growth is not None
    network.let_time_pass(id_of(0))
    assert leader.growth.pool == [id_of(k) for k in range(4)]
    network.let_time_pass(id_of(0))
    # The tree is that of a pool without it.
    _, other, _ = small()
    other.grow([id_of(k) for k in range(3)], tested)
    assert leader.trees == other.peers[id_of(0)].trees != []


def test_a_lost_request_is_repeated():
    dropped = []

    def lost(sender, to, message):
        is_first = isinstance(message, GrowthRequest) and not dropped
        dropped.extend([message] if is_first else [])
        return is_first

    _users, network, tested = small(lost=lost)
    network.grow([id_of(k) for k in range(4)], tested)
    assert network.peers[id_of(0)].trees == []
    network.let_time_pass(id_of(0))
    _, sound, _ = small()
    sound.grow([id_of(k) for k in range(4)], tested)
    assert network.peers[id_of(0)].trees == sound.peers[id_of(0)].trees != []


def test_nobody_grows_a_tree_alone():
    _users, network, tested = small(lost=lambda sender, to, message: isinstance(message, GrowthReply))
    network.grow([id_of(k) for k in range(3)], tested)
    for _ in range(2):
        network.let_time_pass(id_of(0))
    assert network.peers[id_of(0)].growth is None
    assert network.peers[id_of(0)].deadline == np.inf
    assert network.peers[id_of(0)].trees == []


def test_a_late_or_unasked_answer_changes_nothing():
    _users, network, tested = small(lost=lambda sender, to, message: isinstance(message, GrowthReply))
    network.grow([id_of(0), id_of(1)], tested)
    leader = network.peers[id_of(0)]
    request = leader.growth.request(leader.growth_round)
    answers = dict(leader.growth.answers)
    body = receive(network.peers[id_of(2)], id_of(0), request)[0].message.body
    assert receive(leader, id_of(2), GrowthReply(request.round, body)) == []
    assert receive(leader, id_of(1), GrowthReply(request.round + 1, body)) == []
    assert leader.growth.answers.keys() == answers.keys()


def test_a_restart_finds_the_trees_again_and_computes_the_values_anew():
    users, network, tested = small()
    for first in range(3):
        network.grow([id_of(first), id_of(first + 1), id_of(4)], tested)
    me = id_of(2)
    before = network.peers[me]
    again = SharedBoosting(me, users.terms, users.rows[2], varying_in(users.cuts), b"network", VirtualSeal(me))
    again.restore({key: value for key, value in network.records[me].items() if value})
    assert again.start() == []
    assert len(again.trees) == 3
    assert again.trees == before.trees
    assert again.records.digest == before.records.digest
    assert_array_equal(np.array(again.leaves().values), np.array(before.leaves().values))
    assert_array_equal(again.leaves().margins, before.leaves().margins)


def test_a_peer_that_lost_its_disk_receives_its_own_trees_from_others():
    users, network, tested = small()
    network.grow([id_of(0), id_of(1), id_of(2)], tested)
    grown = network.peers[id_of(0)].trees
    network.peers[id_of(0)] = anew = SharedBoosting(
        id_of(0), users.terms, users.rows[0], varying_in(users.cuts), b"network", VirtualSeal(id_of(0))
    )
    network.carry_out(id_of(0), anew.start())
    network.carry_out(id_of(0), anew.ask(id_of(1)))
    assert anew.trees == grown != []
    assert anew.records.counts[id_of(0)] == 1


def test_a_network_ends_growing_when_it_has_its_trees():
    users, network, _ = small()
    rng = np.random.default_rng(0)
    for now, (me, peer) in enumerate(itertools.islice(itertools.cycle(network.peers.items()), 400)):
        network.carry_out(me, peer.wake([other for other in network.peers if other != me], float(now), rng))
    sizes = {len(peer.trees) for peer in network.peers.values()}
    assert sizes == {users.terms.rounds}
    assert max(network.peers[id_of(0)].records.counts.values()) <= users.terms.per_grower


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_features": 0}, "need 1 to 65536 features"),
        ({"n_cuts": 256}, "1 to 255 thresholds"),
        ({"rounds": 0}, "rounds must be in 1..1280, got 0"),
        ({"rounds": MOST_ROUNDS}, "rounds must be in 1..1280"),
        ({"own": np.inf}, "own must be > 0 and finite"),
        ({"share": 1.0}, r"share in \(0, 1\)"),
        ({"n_classes": 600}, "at most 1024 bytes"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        BoostedTerms(**({"n_features": 2, "n_cuts": 3, "n_classes": 2} | wrong))
