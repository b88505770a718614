"""Peers that protect their rows: the release is all that leaves, and the home model is that of the estimator."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dada import Constant, DadaClassifier, Linear, Privacy, Union
from dada.peer.inputs import PeerConfig, Persist, Refused, Send, Warned
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.messages import Descriptor, ImplausibleError, Release, ReleaseNames, decode, encode
from dada.peer.peer import Peer
from dada.peer.releases import ExactRows, Releases, ReleaseTerms, outputs, public_row
from dada.peer.sampling import PeerSampling
from dada.privacy.noise import Bits
from dada.privacy.release import StatisticsMechanism, read_statistics

CONFIG = PeerConfig(n_predictors=3, beta=1.0, mu1=1.0, graph="evidence")
TERMS = ReleaseTerms.of(CONFIG, 4.0, 1e-5)
BUDGET = {"epsilon": 4.0, "delta": 1e-5}


class NamedSeal:
    """Signs with a peer's name."""

    def __init__(self, me):
        self.me = me

    def sign(self, content):
        return self.me[:8]

    def verify(self, peer, content, signature):
        return signature == peer[:8]


def some_rows(seed, m=60, n=3):
    rng = np.random.default_rng(seed)
    h = rng.uniform(-1, 1, (m, n))
    return ExactRows(h, outputs(np.sign(h[:, 0] + 0.3 * rng.normal(size=m)), 2))


def holder(name, seed=0, terms=TERMS, expected=0):
    return Releases(name, terms, some_rows(seed), NamedSeal(name), expected)


def body_of(rows, seed=0, terms=TERMS):
    return terms.mechanism.release(rows.h, rows.y, Bits(np.random.default_rng(seed).bytes), terms.spec)


def publisher(name, seed=0):
    made = holder(name, seed)
    made.publish(body_of(made.rows, seed))
    return made


def exchange(one, other):
    """Exchange releases until no message is left; returns all effects that were not sent."""
    others, left = {one.me: one, other.me: other}, []
    queue = [(one, effect) for effect in one.ask(other.me)]
    for source, effect in queue:
        if isinstance(effect, Send):
            target = others[effect.to]
            message = decode(encode(effect.message))
            queue.extend((target, answer) for answer in target.receive(source.me, message))
        else:
            left.append(effect)
    return left


@pytest.mark.parametrize("n_classes", [2, 3])
def test_home_models_are_those_of_the_estimator_with_the_same_releases(n_classes):
    rng = np.random.default_rng(0)
    X, users = rng.uniform(-1, 1, (12 * 40, 2)), np.repeat(np.arange(12), 40)
    y = np.digitize(X[:, 0] + 0.5 * rng.normal(size=len(X)), [0.0, 0.5][: n_classes - 1])
    model = DadaClassifier(
        predictors=Union(Linear(), Constant(coupling=0.1)),
        privacy=Privacy(**BUDGET, ranges=(-1, 1), noise="seeded"),
        random_state=0,
    ).fit(X, y, users=users)
    bodies = model.privacy_.releases
    predictors = model.predictors_
    terms = ReleaseTerms(
        StatisticsMechanism.calibrated(4.0, 1e-5, n_predictors=3, n_outputs=n_classes if n_classes > 2 else 1),
        read_statistics(bodies[0])[1],
        np.asarray(predictors.coupling, np.float64),
    )
    peers = []
    for k, body in enumerate(bodies):
        mine = users == k
        rows = ExactRows(
            predictors.predict(X[mine]).astype(np.float64),
            outputs(2 * y[mine] - 1 if n_classes == 2 else y[mine], n_classes),
        )
        peers.append(Releases(bytes([k]), terms, rows, NamedSeal(bytes([k]))))
        peers[-1].publish(body)
    for other in (*peers[1:], *peers[1:]):
        exchange(peers[0], other)
    for k, peer in enumerate(peers):
        assert len(peer.held) == 12
        assert_array_equal(peer.home_model(rng).astype(np.float32), model.models_[k])


def test_gossip_brings_every_release_as_it_was_made():
    peers = [publisher(b"peer %d" % k, k) for k in range(4)]
    first = {peer.me: peer.own for peer in peers}
    for one in peers:
        for other in peers:
            if one is not other:
                exchange(one, other)
    assert all(peer.held == first for peer in peers)
    assert exchange(peers[0], peers[1]) == []


def test_a_release_is_stored_before_it_is_used_and_restored():
    ann, bob = holder(b"ann"), publisher(b"bob")
    (stored,) = exchange(ann, bob)
    assert isinstance(stored, Persist)
    again = holder(b"ann")
    again.restore({stored.key: stored.value, b"other": b"record"})
    assert again.held == {b"bob": bob.own}


def test_others_releases_help_a_peer_that_sends_nothing():
    ann = holder(b"ann", 5)
    alone = ann.home_model(np.random.default_rng(0))
    exchange(ann, publisher(b"bob"))
    assert ann.own is None
    assert abs(ann.home_model(np.random.default_rng(0)) - alone).max() > 1e-3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "no release"),
        (body_of(some_rows(0))[:-8], "cannot hold"),
        (body_of(some_rows(0), terms=ReleaseTerms(TERMS.mechanism, "other", TERMS.coupling)), "another learning"),
        (body_of(some_rows(0), terms=ReleaseTerms.of(CONFIG, 2.0, 1e-5)), "another budget"),
        (body_of(some_rows(0))[:-8] + (1 << 62).to_bytes(8, "little"), "numbers above"),
        (body_of(some_rows(0)).replace(b'"rows":60', b'"rows":1e999'.ljust(9)), "no release|damaged"),
    ],
)
def test_implausible_releases_are_refused(body, reason):
    with pytest.raises(ImplausibleError, match=reason):
        holder(b"ann").receive(b"eve", Release(b"eve", body, b"eve"))


def test_a_peer_answers_few_requests_between_two_exchanges():
    ann = publisher(b"ann")
    answers = [effect for _ in range(20) for effect in ann.receive(b"eve", ReleaseNames(b"odd"))]
    assert sum(isinstance(effect, Send) and isinstance(effect.message, Release) for effect in answers) == 8
    assert isinstance(answers[-1], Refused)
    ann.ask(b"bob")
    assert isinstance(ann.receive(b"eve", ReleaseNames(b""))[0], Send)


def test_a_release_must_be_signed_by_its_owner():
    with pytest.raises(ImplausibleError, match="false signature"):
        holder(b"ann").receive(b"eve", Release(b"bob", body_of(some_rows(0)), b"eve"))


def test_the_first_release_of_a_peer_counts():
    ann, first = holder(b"ann"), publisher(b"bob", 1)
    exchange(ann, first)
    (effect,) = ann.receive(b"bob", publisher(b"bob", 2).own)
    assert isinstance(effect, Refused)
    assert ann.held[b"bob"] == first.own


def test_a_copy_of_another_release_is_refused():
    """Two draws of noise are never equal; copies would give their owner's rows more weight."""
    ann = publisher(b"ann")
    (effect,) = ann.receive(b"eve", Release(b"eve", ann.own.body, b"eve"))
    assert isinstance(effect, Refused)
    assert list(ann.held) == [b"ann"]


def test_a_peer_takes_an_earlier_release_back():
    """Its folder is older than its release: another draw would reveal its rows twice."""
    bob, earlier = holder(b"bob"), publisher(b"ann", 1)
    exchange(bob, earlier)
    ann = holder(b"ann", 1)
    exchange(ann, bob)
    assert ann.returned == earlier.own.body
    late = publisher(b"ann", 2)
    assert any(isinstance(effect, Warned) for effect in exchange(late, bob))
    assert late.returned is None


def test_nothing_is_sent_where_noise_exceeds_the_signal():
    few = Releases(b"ann", TERMS, some_rows(0, m=3), NamedSeal(b"ann"))
    assert few.estimate(0) == (False, "Nothing is sent: no other peer is known yet.")
    assert not few.estimate(3).send
    assert "below the pooled noise" in few.estimate(3).reason
    assert few.estimate(5000).send
    assert Releases(b"ann", TERMS, some_rows(0, m=3), NamedSeal(b"ann"), expected=5000).estimate(3).send


def test_a_release_that_fits_no_message_is_refused():
    with pytest.raises(ValueError, match=r"600 base predictors has 1,44\d,\d{3} bytes, a message 1,048,576 at most"):
        ReleaseTerms.of(PeerConfig(n_predictors=600, beta=1.0, mu1=1.0), 1.0, 1e-5)


def member(rows, config=CONFIG):
    rng = np.random.default_rng(0)
    return Member(
        Peer(b"me", public_row(config), config),
        PeerSampling(b"me", rng),
        Planner(Rhythm(local_steps=3), rng),
        releases=Releases(b"me", ReleaseTerms.of(config, 4.0, 1e-5), rows, NamedSeal(b"me")),
    )


def test_nothing_but_the_release_depends_on_rows():
    """Two users with different rows and the same release send and store the same; their home models differ."""
    lives, effects = [member(some_rows(seed)) for seed in (1, 2)], []
    for life in lives:
        found = life.start(0.0, [Descriptor(b"you", 0)])
        life.releases.publish(body_of(some_rows(1)))
        for _ in range(20):
            found += life.on_timer(life.deadline)
        found += life.receive(b"you", publisher(b"you", 3).own, 100.0)
        found += life.receive(b"you", publisher(b"you", 3).ask(b"me")[0].message, 100.0)
        effects.append(found)
    assert effects[0] == effects[1]
    assert sum(isinstance(effect, Send) for effect in effects[0]) >= 40
    assert (lives[0].model != lives[1].model).any()


def test_the_release_waits_until_others_can_return_an_earlier_one():
    life = member(some_rows(1))
    life.start(0.0, [Descriptor(b"you", 0)])
    assert life.release_estimate.reason == "Nothing is sent yet: the first peers are being met."
    for _ in range(8):
        life.sampling.trust(b"you")
        life.on_timer(life.deadline)
    assert life.release_estimate.send == bool(life.sampling.view)
