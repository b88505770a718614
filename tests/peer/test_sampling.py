"""Peer sampling behaves like uniform sampling of those who are alive, and bounds what liars can do to a view."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy import stats

from dada.peer.inputs import Refused, Send
from dada.peer.messages import (
    LONGEST_ADDRESS,
    OLDEST,
    CodecError,
    Descriptor,
    ImplausibleError,
    ViewReply,
    ViewRequest,
    decode,
    encode,
)
from dada.peer.sampling import (
    LONG_KNOWN_AFTER,
    LONG_KNOWN_SHARE,
    MOST_OFFERS,
    PATIENCE,
    VIEW_SIZE,
    PeerSampling,
    signed_card,
    signed_content,
)
from dada.sim.virtual import VirtualSeal


def card(peer, age=0, addresses=(), version=1):
    """A descriptor as its subject made it; nobody signs here."""
    return Descriptor(peer, age, addresses, b"", version)


def number(peer):
    return int.from_bytes(peer, "big")


class Network:
    """Peers that gossip in rounds without loss; all first know peer 0 only, and the dead do not answer."""

    def __init__(self, n_peers, seed):
        chance = np.random.SeedSequence(seed).spawn(n_peers + 1)
        self.rng = np.random.default_rng(chance[n_peers])
        self.ids = [k.to_bytes(4, "big") for k in range(n_peers)]
        self.nodes = {
            me: PeerSampling(me, np.random.default_rng(own)) for me, own in zip(self.ids, chance, strict=False)
        }
        self.alive = set(self.ids)
        for me in self.ids[1:]:
            self.nodes[me].introduce([Descriptor(self.ids[0], 0, ("here",))])

    def gossip(self, rounds):
        for _ in range(rounds):
            for p in self.rng.permutation(len(self.ids)):
                if self.ids[p] in self.alive:
                    self._exchange(self.ids[p])

    def _exchange(self, me):
        for offer in self.nodes[me].exchange():
            if isinstance(offer, Send) and offer.to in self.alive:
                for answer in self.nodes[offer.to].receive(me, offer.message):
                    self.nodes[me].receive(offer.to, answer.message)

    def views(self):
        matrix = np.zeros((len(self.ids), len(self.ids)), bool)
        for me, node in self.nodes.items():
            matrix[number(me), [number(peer) for peer in node.view]] = True
        return matrix


@pytest.fixture(scope="module")
def settled():
    network = Network(200, seed=3)
    network.gossip(40)
    return network


def test_a_network_that_fits_a_view_is_known_in_full():
    network = Network(VIEW_SIZE + 1, seed=1)
    network.gossip(25)
    assert network.views().sum() == (VIEW_SIZE + 1) * VIEW_SIZE


def test_in_degrees_are_near_those_of_random_views(settled):
    K = len(settled.ids)
    in_degree = settled.views().sum(axis=0)
    assert in_degree.mean() == VIEW_SIZE
    assert in_degree.var() < 4 * VIEW_SIZE * (1 - VIEW_SIZE / (K - 1))
    assert in_degree.min() > 0


def test_clustering_is_that_of_a_random_graph(settled):
    links = settled.views() | settled.views().T
    degree = links.sum(axis=1)
    triangles = np.diag(links.astype(int) @ links @ links)
    expected = degree.mean() / (len(settled.ids) - 1)
    assert abs((triangles / (degree * (degree - 1))).mean() - expected) < 0.1 * expected


def test_samples_of_no_peer_differ_from_uniform_ones():
    K, rounds, every = 60, 180, 3
    network = Network(K, seed=2)
    network.gossip(40)
    counts = np.zeros((K, K))
    for _ in range(rounds // every):
        network.gossip(every)
        for me, node in network.nodes.items():
            counts[number(me), [number(peer) for peer in node.sample(1)]] += 1
    others = ~np.eye(K, dtype=bool)
    p_values = [stats.chisquare(counts[k][others[k]]).pvalue for k in range(K)]
    assert min(p_values) > 0.05 / K


def test_everybody_is_soon_met():
    K, kappa = 60, 5
    network = Network(K, seed=4)
    network.gossip(20)
    met = {me: set() for me in network.ids}
    rounds = 0
    while min(len(peers) for peers in met.values()) < K - 1:
        network.gossip(1)
        rounds += 1
        for me, node in network.nodes.items():
            met[me].update(node.sample(kappa))
    # Uniform draws with replacement take (K / kappa) (log K + log K) rounds until the last of K collectors is done.
    assert rounds < 2 * K / kappa * np.log(K)


def test_successive_samples_do_not_repeat_before_the_view_is_used_up():
    node = PeerSampling(b"me", np.random.default_rng(0))
    node.introduce(Descriptor(bytes([k]), 0) for k in range(12))
    drawn = [peer for _ in range(3) for peer in node.sample(4)]
    assert len(set(drawn)) == 12
    assert len(set(node.sample(4))) == 4
    assert set(node.sample(40)) == set(node.view)


def test_the_dead_fade_from_the_survivors_views():
    network = Network(100, seed=5)
    network.gossip(30)
    network.alive = set(network.ids[::2])
    assert network.views()[::2, 1::2].mean() > 0.1
    network.gossip(30)
    seen = [peer in network.alive for me in network.alive for peer in network.nodes[me].view]
    assert np.mean(seen) > 0.95
    assert len(seen) > 0.9 * VIEW_SIZE * len(network.alive)


def test_the_dead_fade_from_a_small_network_too():
    network = Network(12, seed=6)
    network.gossip(10)
    network.alive = set(network.ids[:6])
    network.gossip(30)
    for me in network.alive:
        assert set(network.nodes[me].view) == network.alive - {me}


def test_two_halves_that_lost_sight_of_each_other_meet_again():
    network = Network(40, seed=7)
    network.gossip(20)
    halves = set(network.ids[:20]), set(network.ids[20:])
    for half in halves:
        network.alive = half
        network.gossip(40)
        assert all(set(network.nodes[me].view) <= half for me in half)
    network.alive = set(network.ids)
    network.gossip(40)
    across = network.views()[:20, 20:].mean()
    assert across > 0.5 * network.views().mean()


def offer(node):
    """Descriptors that a node offers to a stranger, by peer."""
    (reply,) = node.receive(b"stranger", ViewRequest(()))
    return {known.peer: known for known in reply.message.view}


def test_only_proven_addresses_travel_along_and_the_signature_still_fits():
    you = VirtualSeal(b"you")
    node = PeerSampling(b"me", np.random.default_rng(0), seal=VirtualSeal(b"me"))
    whole = signed_card(b"you", 1, ("victim", "true"), you)
    node.receive(b"liar", ViewRequest((whole, signed_card(b"he", 1, (), VirtualSeal(b"he")))))
    assert node.sources == {b"you": b"liar"}
    assert b"you" not in offer(node)
    assert b"he" in offer(node)
    node.prove(b"you", ("true",))
    part = offer(node)[b"you"]
    assert part.addresses == ("true",)
    assert you.verify(b"you", signed_content(part), whole.signature)
    assert not you.verify(b"you", signed_content(replace(part, addresses=("other",))), whole.signature)


@pytest.mark.parametrize(
    "forged",
    [
        Descriptor(b"you", 0, ("false",)),
        card(b"you", 0, ("false",)),
        signed_card(b"you", 9, ("false",), VirtualSeal(b"liar")),
        replace(signed_card(b"you", 9, ("own",), VirtualSeal(b"you")), addresses=("false",)),
        replace(signed_card(b"you", 9, ("own",), VirtualSeal(b"you")), version=10),
        replace(signed_card(b"you", 9, ("own",), VirtualSeal(b"you")), withheld=b"short"),
    ],
    ids=["unsigned", "without signature", "other key", "other address", "other version", "digest cut short"],
)
def test_addresses_that_their_subject_did_not_sign_are_refused(forged):
    node = PeerSampling(b"me", np.random.default_rng(0), seal=VirtualSeal(b"me"))
    with pytest.raises(ImplausibleError):
        node.receive(b"liar", ViewRequest((forged,)))
    assert not node.view


class CountingSeal(VirtualSeal):
    verified = 0

    def verify(self, peer, content, signature):
        self.verified += 1
        return super().verify(peer, content, signature)


def test_the_newest_card_counts_and_each_is_verified_once():
    seal = CountingSeal(b"me")
    node = PeerSampling(b"me", np.random.default_rng(0), seal=seal)
    old, new = (signed_card(b"you", version, (f"at {version}",), VirtualSeal(b"you")) for version in (1, 2))
    for turn, known in enumerate((new, old, new, replace(old, signature=b"false"))):
        node.receive(b"friend%d" % turn, ViewRequest((known,)))
    assert node.addresses_of(b"you") == ("at 2",)
    assert seal.verified == 1


def test_a_new_life_and_a_new_address_raise_the_version():
    node = PeerSampling(b"me", np.random.default_rng(0), ("here",))
    versions = []
    for epoch, addresses in ((1, ("here",)), (1, ("here",)), (1, ("there",)), (2, ("there",))):
        node.epoch, node.addresses = epoch, addresses
        (reply,) = node.receive(b"you", ViewRequest(()))
        versions.append(reply.message.view[0].version)
    assert versions[0] == versions[1] < versions[2] < versions[3]


def test_excluded_peers_are_neither_kept_nor_taken_up_again():
    node = full_node()
    node.exclude([bytes([7]), b"liar"])
    node.meet(b"liar")
    node.receive(b"you", ViewRequest((card(bytes([7])), card(b"liar"))))
    assert not {bytes([7]), b"liar"} & {*node.view, *node.reserve, *node.cards}


def test_a_peer_that_left_for_good_is_not_called_again():
    node = PeerSampling(b"me", np.random.default_rng(0))
    node.introduce([card(b"you", 0)])
    node.forget(b"you")
    assert [node.exchange() for _ in range(30)] == [[]] * 30


def test_a_stored_view_is_taken_up_again():
    first = PeerSampling(b"me", np.random.default_rng(0))
    first.introduce([card(b"you", 3, ("there",)), card(b"her", 0)])
    second = PeerSampling(b"me", np.random.default_rng(1))
    second.restore({first.record().key: first.record().value})
    assert second.view == first.view


def test_an_unanswered_peer_is_called_again_from_the_reserve():
    node = PeerSampling(b"me", np.random.default_rng(0))
    node.introduce([card(b"you", 0)])
    node.exchange()
    (again,) = node.exchange()
    assert again.to == b"you"
    assert not node.view


# -- liars ---------------------------------------------------------------------------------------------------------

SOME = tuple(card(bytes([k]), 0) for k in range(VIEW_SIZE // 2))


@pytest.mark.parametrize(
    "known",
    [
        card(b"x", -1),
        card(b"x", OLDEST + 1),
        card(b"", 0),
        card(b"x" * 65, 0),
        card(b"x", 0, ("a" * (LONGEST_ADDRESS + 1),)),
        card(b"x", 0, ("a",) * 9),
    ],
)
def test_malformed_descriptors_are_not_decoded(known):
    with pytest.raises(CodecError):
        decode(encode(ViewRequest((known,))))


@pytest.mark.parametrize("view", [(*SOME, card(b"more", 0)), (card(b"x", 0), card(b"x", 1))])
def test_malformed_views_change_nothing(view):
    node = PeerSampling(b"me", np.random.default_rng(0))
    (refused,) = node.receive(b"liar", ViewRequest(view))
    assert isinstance(refused, Refused)
    assert not node.view


def test_a_reply_counts_once_and_only_from_the_partner():
    node = PeerSampling(b"me", np.random.default_rng(0))
    node.introduce([card(b"you", 0)])
    node.exchange()
    assert isinstance(node.receive(b"liar", ViewReply(SOME))[0], Refused)
    assert node.receive(b"you", ViewReply(SOME)) == []
    assert isinstance(node.receive(b"you", ViewReply(SOME))[0], Refused)


def full_node():
    node = PeerSampling(b"me", np.random.default_rng(0))
    node.introduce(card(bytes([k]), 1) for k in range(VIEW_SIZE))
    return node


def test_a_full_view_takes_up_a_few_offers_and_answers_the_rest():
    node = full_node()
    for k in range(3 * MOST_OFFERS):
        (answer,) = node.receive(b"liar" + bytes([k]), ViewRequest((card(b"ghost" + bytes([k]), 0),)))
        assert isinstance(answer, Send)
    assert sum(peer.startswith(b"ghost") for peer in node.view) <= MOST_OFFERS


def test_one_sender_is_taken_at_its_word_once_between_two_exchanges():
    node = full_node()
    for k in range(5):
        node.receive(b"liar", ViewRequest((card(b"ghost" + bytes([k]), 0),)))
    assert sum(peer.startswith(b"ghost") for peer in node.view) == 1


def test_a_silent_peer_is_told_to_nobody_and_called_next_and_then_lost():
    node = full_node()
    node.doubt(bytes([7]))
    (reply,) = node.receive(b"you", ViewRequest(()))
    assert bytes([7]) not in {known.peer for known in reply.message.view}
    assert node.exchange()[-1].to == bytes([7])
    node.doubt(bytes([7]))
    assert bytes([7]) not in node.view


def test_any_message_ends_doubt():
    node = full_node()
    node.doubt(bytes([7]))
    node.trust(bytes([7]))
    node.doubt(bytes([7]))
    assert bytes([7]) in node.view


def flooded_node():
    """A node whose view a flood has filled, and its long-known peers."""
    node = full_node()
    for _ in range(LONG_KNOWN_AFTER):
        node.receive(node.exchange()[-1].to, ViewReply(()))
    node.receive(b"you", ViewRequest(tuple(card(b"new" + bytes([k]), 0) for k in range(15))))
    return node, [peer for peer in node.view if len(peer) == 1]


def test_a_long_known_peer_is_doubted_at_once_and_lost_after_several_exchanges():
    node, known = flooded_node()
    silent = node.exchange()[-1].to
    while silent not in known:
        silent = node.exchange()[-1].to
    for _ in range(PATIENCE):
        assert node.exchange()[-1].to != silent
        assert silent in node.view
        assert silent not in offer(node)
    node.exchange()
    assert silent not in node.view
    assert silent in node.reserve


def test_questions_of_the_graph_do_not_cost_a_long_known_peer_its_place():
    node, known = flooded_node()
    for _ in range(5):
        node.doubt(known[0])
    assert known[0] in node.view


def test_late_answers_do_not_cost_long_known_peers_their_places():
    node, known = flooded_node()
    called = []
    for t in range(60):
        called.append(node.exchange()[-1].to)
        node.trust(called[max(0, t - 3)])
        node.receive(b"liar", ViewRequest(tuple(card(b"new" + bytes([t, k]), 0) for k in range(15))))
    assert sum(peer in node.view for peer in known) >= int(VIEW_SIZE * LONG_KNOWN_SHARE)


def test_a_flood_takes_no_more_than_its_share_of_the_ranked_and_none_of_the_long_known():
    rng = np.random.default_rng(0)
    node = PeerSampling(b"me", rng)
    honest = [b"honest" + bytes([k]) for k in range(40)]
    attackers = [b"attack" + bytes([k]) for k in range(60)]
    node.introduce(card(peer, 0) for peer in honest[:VIEW_SIZE])
    for _ in range(20):
        partner = node.exchange()[-1].to
        node.receive(partner, ViewReply(tuple(card(honest[p], 0) for p in rng.permutation(40)[:15])))
    for t in range(500):
        if t % 10 == 0:
            partner = node.exchange()[-1].to
            names = honest if partner in honest else attackers
            chosen = rng.permutation(len(names))[:15]
            node.receive(partner, ViewReply(tuple(card(names[p], int(names is honest)) for p in chosen)))
        chosen = rng.permutation(60)[:15]
        node.receive(attackers[t % 60], ViewRequest(tuple(card(attackers[p], 0) for p in chosen)))
    assert sum(peer in honest for peer in node.view) > VIEW_SIZE / 3


def test_a_caller_enters_a_full_view_no_more():
    node = full_node()
    node.meet(b"caller")
    assert b"caller" not in node.view
    node.lose(bytes([3]))
    node.meet(b"caller")
    assert b"caller" in node.view


def test_a_proven_address_is_preferred():
    node = PeerSampling(b"me", np.random.default_rng(0))
    node.receive(b"you", ViewRequest((card(b"you", 5, ("own",)),)))
    assert node.addresses_of(b"you") == ("own",)
    node.prove(b"you", ("proven",))
    node.receive(b"you", ViewRequest((card(b"you", 0, ("other",), version=2),)))
    assert node.addresses_of(b"you") == ("proven",)


descriptors = st.builds(card, st.integers(0, 60).map(lambda k: k.to_bytes(1, "big")), st.integers(0, 20), st.just(()))
views = st.lists(descriptors, max_size=20).map(tuple)
facts = st.lists(
    st.one_of(
        st.just(("exchange",)),
        st.tuples(st.sampled_from(["request", "reply"]), st.integers(0, 60), views),
        st.tuples(st.sampled_from(["lose", "forget", "doubt", "trust"]), st.integers(0, 60)),
    ),
    max_size=60,
)


@given(facts, st.integers(0, 2**32))
def test_a_view_stays_bounded_and_never_contains_its_owner(facts, seed):
    me = b"\x00"
    node = PeerSampling(me, np.random.default_rng(seed), view_size=8)
    for kind, *rest in facts:
        if kind == "exchange":
            node.exchange()
        elif kind in ("lose", "forget", "doubt", "trust"):
            getattr(node, kind)(bytes([rest[0]]))
        else:
            message = ViewRequest(rest[1]) if kind == "request" else ViewReply(rest[1])
            for effect in node.receive(bytes([rest[0]]), message):
                assert isinstance(effect, Refused) or len(effect.message.view) <= 4
        assert len(node.view) <= 8
        assert len(node.reserve) <= 8
        assert me not in node.view
        assert not node.view.keys() & node.reserve.keys()
        assert len(set(node.sample(3))) == min(3, len(node.view))
