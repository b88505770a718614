"""Secure sums among peers: all agree on the exact sum, whoever is absent, and no peer opens two secrets of another."""

import contextlib

import msgspec
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dada.peer.inputs import SUMS_KEY, PeerConfig, Persist, Send
from dada.peer.messages import ImplausibleError, Release, decode, encode
from dada.peer.releases import Call, ExactRows, Keys, Masked, Opening, Part, ReleaseTerms, Shares, outputs
from dada.peer.secure_sums import SecureSums, Waits
from dada.privacy.noise import Bits
from dada.privacy.pooling import Pool, home_model
from dada.privacy.release import UNIT, Statistics, sums
from dada.privacy.secure_sum import noise_share
from dada.sim.virtual import VirtualSeal

CONFIG = PeerConfig(n_predictors=3, beta=1.0, mu1=1.0, graph="evidence")
TERMS = ReleaseTerms.of(CONFIG, 8.0, 1e-5)
WAITS = Waits(first=1, settled=4, turn=2, answer=3, closed=12)


def some_rows(seed, m=60):
    rng = np.random.default_rng(seed)
    h = rng.uniform(-1, 1, (m, 3))
    return ExactRows(h, outputs(np.sign(h[:, 0] + 0.3 * rng.normal(size=m)), 2))


class Network:
    """Peers that exchange what they hold with random partners; a share of all messages is lost."""

    def __init__(self, n_peers, seed=0, loss=0.0, expected=0, terms=TERMS, groups=("",)):
        self.rng, self.loss, self.expected, self.terms = np.random.default_rng(seed), loss, expected, terms
        self.groups = groups
        self.names = [b"peer %02d" % k for k in range(n_peers)]
        self.ledgers, self.records, self.absent = {}, {name: {} for name in self.names}, set()
        self.sent = {name: set() for name in self.names}
        self.peers = {name: self.born(name) for name in self.names}

    def born(self, name):
        number = self.names.index(name)
        made = SecureSums(name, self.terms, some_rows(number), VirtualSeal(name), self.rng.bytes, self.expected, WAITS,
                          self.groups[number % len(self.groups)])  # fmt: skip
        if name in self.ledgers:
            made.publish(self.ledgers[name])
        made.restore(dict(self.records[name]))
        return made

    def restart(self, name):
        self.peers[name] = self.born(name)

    def book(self, name):
        """What a node does: the vector is in the ledger before it is sent."""
        peer = self.peers[name]
        if peer.own is None and (peer.returned or peer.estimate(0).send):
            body = self.ledgers.setdefault(name, peer.returned or peer.draw(noise_of(name)))
            peer.publish(body)

    def exchange(self):
        """One exchange of each peer."""
        for name in self.rng.permutation(self.names).tolist():
            present = [other for other in self.names if other not in self.absent]
            if name not in present:
                continue
            partner = present[int(self.rng.integers(len(present)))]
            self.book(name)
            queue = [(name, effect) for effect in self.peers[name].ask(partner)] if partner != name else []
            for source, effect in queue:
                if isinstance(effect, Persist):
                    self.records[source][effect.key] = effect.value
                elif isinstance(effect, Send):
                    if isinstance(effect.message, Release):
                        self.sent[source].add(effect.message)
                    if self.rng.random() >= self.loss:
                        message = decode(encode(effect.message))
                        answers = self.peers[effect.to].receive(source, message)
                        queue.extend((effect.to, answer) for answer in answers)

    def run(self, until, most=150):
        for _ in range(most):
            self.exchange()
            if until():
                return True
        return False

    def present(self):
        return [self.peers[name] for name in self.names if name not in self.absent]

    def parts(self, kind):
        """Parts of a kind that were sent, by owner, in every version."""
        found = {}
        for release in sorted(set().union(*self.sent.values()), key=lambda one: (one.owner, one.body)):
            part = msgspec.msgpack.decode(release.body, type=Part)
            if isinstance(part, kind):
                found.setdefault(release.owner, []).append(part)
        return found


def noise_of(name):
    """The source of a peer's noise."""
    return Bits(np.random.default_rng(list(name)).bytes)


def plain_sum(network, names, n_called):
    """Sum of the noisy statistics of some peers, without any masks."""
    share = noise_share(TERMS.mechanism, int(0.75 * n_called))
    bodies = []
    for name in names:
        rows = some_rows(network.names.index(name))
        bodies.append(share.release(rows.h, rows.y, noise_of(name)))
    return np.sum([np.frombuffer(body[-8 * 9 :], "<i8") for body in bodies], axis=0)


def agreed(network, n_called):
    """The one sum that all present peers know; it is that of the plain statistics."""
    found = [peer.complete() for peer in network.present()]
    assert all(len(one) == 1 for one in found)
    owners, values = found[0][0].owners, found[0][0].values
    for ((other_owners, other_values, *_),) in found:
        assert other_owners == owners
        assert_array_equal(other_values, values)
    assert_array_equal(values, plain_sum(network, owners, n_called))
    return sorted(owners)


def versions(network):
    """How many versions of a part of one owner were sent at most; openings count by calls."""
    openings = [len(found) / len({one.call for one in found}) for found in network.parts(Opening).values()]
    others = [len(found) for kind in (Keys, Shares, Call, Masked) for found in network.parts(kind).values()]
    return max(*openings, *others)


def test_all_peers_agree_on_the_exact_sum_of_all():
    network = Network(7)
    assert network.run(lambda: all(peer.n_pooled == 6 for peer in network.present()))
    assert agreed(network, 7) == network.names
    peer = network.peers[b"peer 00"]
    assert peer.progress == "The sum of 7 peers is known."
    # The own statistics are taken out of the sum: the own rows take part at home already.
    cells = plain_sum(network, network.names[1:], 7) / UNIT
    gram = np.diag(cells[:3])
    gram[np.triu_indices(3, 1)] = cells[3:6]
    gram = np.triu(gram) + np.triu(gram, 1).T
    sigmas = [sigma * np.sqrt(7) for sigma in (noise_share(TERMS.mechanism, 5).gram_sigma, 1.0)]
    centre = Pool.of([Statistics(gram, cells[6:, None], 360, *sigmas)], TERMS.coupling).centre(np.ones(1))
    expected = home_model(peer.rows.h, peer.rows.y, centre[None], TERMS.coupling)
    assert_allclose(peer.home_model(network.rng), expected[:, 0], rtol=1e-9)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_lossy_network_with_restarts_agrees_and_sends_every_part_in_one_version(seed):
    """A peer may be killed at any moment, and between booking its vector and sending it."""
    network = Network(9, seed, loss=0.2)

    def is_known():
        if network.rng.random() < 0.5:
            name = network.names[int(network.rng.integers(9))]
            peer = network.peers[name]
            if name not in network.ledgers and peer.own is None and peer.estimate(0).send:
                network.ledgers[name] = peer.draw(noise_of(name))
            network.restart(name)
        known = [{owner for one in peer.complete() for owner in one.owners} for peer in network.present()]
        return len(network.ledgers) > 5 and all(some == set(network.ledgers) for some in known)

    assert network.run(is_known)
    found = [[(one.owners, one.values.tolist()) for one in peer.complete()] for peer in network.present()]
    assert all(one == found[0] for one in found)
    assert versions(network) == 1


@pytest.mark.parametrize("gone_after", [Call, Masked], ids=["before its vector", "before its opening"])
def test_a_peer_that_drops_out_does_not_stop_the_sum(gone_after):
    network = Network(8, seed=1)
    lost = network.names[3]

    def is_gone():
        held = [network.parts(gone_after)]
        return lost in held[0] if gone_after is Masked else bool(held[0])

    assert network.run(is_gone)
    network.absent.add(lost)
    assert network.run(lambda: all(peer.complete() for peer in network.present()))
    owners = agreed(network, 8)
    assert (lost in owners) == (gone_after is Masked)
    assert len(owners) == (8 if gone_after is Masked else 7)
    # A newcomer computes the sum from the same parts.
    late = SecureSums(b"late", TERMS, some_rows(20), VirtualSeal(b"late"), network.rng.bytes)
    for release in network.peers[network.names[0]].held.values():
        late.receive(b"any", release)
    assert_array_equal(late.complete()[0].values, network.peers[network.names[0]].complete()[0].values)
    assert late.n_pooled == len(owners)


def test_nothing_is_opened_if_too_many_vectors_are_missing():
    """Their noise is missing too."""
    network = Network(8, seed=1)
    assert network.run(lambda: bool(network.parts(Call)))
    network.absent |= set(network.names[:2]) - set(network.ledgers)
    assert len(network.absent) == 2
    assert not network.run(lambda: bool(network.parts(Opening)), most=60)
    peer = network.present()[0]
    assert peer.own is not None
    assert (peer.n_pooled, "those of 6 peers and 0 openings are held" in peer.progress) == (0, True)


def test_to_protect_users_few_rows_of_each_count_and_noise_hides_all_of_them():
    terms = ReleaseTerms.of(CONFIG, 16.0, 1e-5, rows_per_user=10)
    network = Network(6, terms=terms)
    assert network.run(lambda: all(peer.complete() for peer in network.present()))
    (found,) = network.peers[b"peer 00"].complete()
    # Nobody learns that each peer has 60 rows.
    assert found.n_rows == 60
    assert {part.n_rows for parts in network.parts(Masked).values() for part in parts} == {10}
    sigma = terms.mechanism.gram_sigma
    assert found.gram_variance >= (10 * sigma) ** 2
    # The sum of 60 rows, not of 360.
    assert found.values[:3].sum() / UNIT < 60 * terms.mechanism.norm**2 + 6 * np.sqrt(3 * found.gram_variance)


def test_a_user_moves_the_statistics_by_its_rows_times_the_sensitivity_of_one():
    rng, mechanism = np.random.default_rng(0), TERMS.mechanism
    for _ in range(200):
        (gram, moment), (other_gram, other_moment) = (
            sums(rng.choice([-1.0, 1.0], (1, 3)) * np.ones((5, 1)), rng.choice([-1.0, 1.0], (5, 1)), mechanism.norm)
            for _ in range(2)
        )
        assert np.linalg.norm((gram - other_gram) / UNIT) <= 5 * np.sqrt(2) * mechanism.norm**2 * (1 + 1e-12)
        assert np.linalg.norm((moment - other_moment) / UNIT) <= 5 * 2 * mechanism.norm * (1 + 1e-12)


def test_a_vector_is_not_sent_after_an_opening():
    network = Network(8, seed=1)
    assert network.run(lambda: bool(network.parts(Call)))
    late = network.names[3]
    network.absent.add(late)
    assert network.run(lambda: all(peer.complete() for peer in network.present()))
    network.absent.clear()
    assert network.run(lambda: bool(network.peers[late].complete()))
    assert late not in network.ledgers
    assert network.peers[late].n_pooled == 7
    assert network.peers[late].estimate(0).reason.endswith("the sum was opened before this peer answered the call.")


def test_a_folder_without_its_secrets_takes_its_vector_back_and_no_part():
    network = Network(5)
    assert network.run(lambda: all(peer.complete() for peer in network.present()))
    name = network.names[0]
    before = network.ledgers.pop(name)
    network.records[name].clear()
    network.restart(name)
    assert network.run(lambda: bool(network.peers[name].complete()))
    assert network.ledgers[name] == before
    for _ in range(20):
        network.exchange()
    assert versions(network) == 1


def test_peers_wait_for_as_many_as_they_expect():
    network = Network(4, expected=5)
    assert not network.run(lambda: bool(network.parts(Shares)), most=20)
    assert network.peers[b"peer 00"].estimate(0) == (
        False,
        "Nothing is sent yet: a sum is being prepared, 4 peers have published keys.",
    )


def test_what_a_peer_stores_of_its_own_is_one_record():
    network = Network(5)
    assert network.run(lambda: all(peer.complete() for peer in network.present()))
    assert SUMS_KEY in network.records[b"peer 00"]
    again = network.born(b"peer 00")
    assert again.held == network.peers[b"peer 00"].held
    # A power cut may lose what others sent, never the own parts; the rest comes back by gossip.
    network.records[b"peer 00"] = {SUMS_KEY: network.records[b"peer 00"][SUMS_KEY]}
    network.restart(b"peer 00")
    assert network.run(lambda: bool(network.peers[b"peer 00"].complete()), most=10)
    assert versions(network) == 1


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (b"", "no part of a secure sum"),
        (Keys(bytes(8), bytes(32), bytes(32)), "another learning problem or with another budget"),
        (Shares(bytes(8), bytes(132), bytes(16)), "2 or more different names"),
        (Shares(bytes(range(16)), bytes(132), bytes(32)), "132 bytes of shares for 2 holders"),
        (Shares(bytes(range(168)), b"", b""), "no part of a secure sum"),
        (Call(b"12345678", b"12345678" * 3), "3 or more different names"),
        (Call(b"99999999", bytes(range(24))), "lack the caller's"),
        (Masked(bytes(8), 0, bytes(72)), "no part of a secure sum"),
        (Masked(bytes(8), 1, bytes(71)), "a vector of 71 bytes, it has 72"),
        (Opening(bytes(8), b"\x02", bytes(66)), "an opening of 1 shares"),
        (Opening(bytes(8), b"\x00", bytes(67)), "an opening of 1 shares with 67 bytes"),
    ],
    ids=str,
)
def test_implausible_parts_are_refused(part, reason):
    ann = SecureSums(b"ann", TERMS, some_rows(0), VirtualSeal(b"ann"), np.random.default_rng(0).bytes)
    body = part if isinstance(part, bytes) else msgspec.msgpack.encode(part)
    with pytest.raises(ImplausibleError, match=reason):
        ann.receive(b"eve", Release(b"eve", body, b"eve"))


def test_false_shares_are_not_counted():
    network = Network(5)
    assert network.run(lambda: all(peer.complete() for peer in network.present()))
    eve = network.names[0]
    victim = SecureSums(b"late", TERMS, some_rows(9), VirtualSeal(b"late"), network.rng.bytes)
    for release in network.peers[eve].held.values():
        part = msgspec.msgpack.decode(release.body, type=Part)
        if isinstance(part, Opening) and release.owner == eve:
            body = msgspec.msgpack.encode(Opening(part.call, part.kinds, bytes(len(part.shares))))
            release = Release(eve, body, VirtualSeal(eve).sign(b"dada release" + body))
        assert all(isinstance(effect, Persist) for effect in victim.receive(b"any", release))
    # Three of four holders are enough, and the false shares are recognised.
    assert victim.n_pooled == 5


def test_a_liar_may_spoil_a_sum_but_stops_no_peer():
    """It signs damaged copies of all kinds of parts, as its own; honest peers refuse them or compute with them."""
    network, liar, rng = Network(6), VirtualSeal(b"liar"), np.random.default_rng(0)

    def lie():
        victim = network.peers[network.names[int(rng.integers(6))]]
        for release in list(victim.held.values()):
            body = bytearray(release.body)
            for _ in range(int(rng.integers(1, 4))):
                body[int(rng.integers(len(body)))] = int(rng.integers(256))
            signature = liar.sign(b"dada release" + bytes(body))
            with contextlib.suppress(ImplausibleError):
                victim.receive(b"liar", Release(b"liar", bytes(body), signature))
        for peer in network.present():
            assert np.isfinite(peer.home_model(rng)).all()
        return False

    network.run(lie, most=30)
    kinds = {one[0] for peer in network.present() for one in peer.held if one.endswith(b"liar")}
    assert len(kinds) >= 3
    found = {tuple(one.values.tolist()) for peer in network.present() for one in peer.complete()}
    assert len(found) <= 1


def test_each_group_has_its_own_sum_and_all_peers_know_all_sums():
    network = Network(12, seed=4, loss=0.1, groups=("north", "south"))
    assert network.run(lambda: all(len(peer.complete()) == 2 for peer in network.present()), most=400)
    groups = {tuple(network.names[k::2]) for k in range(2)}
    for peer in network.present():
        assert {tuple(sorted(found.owners)) for found in peer.complete()} == groups
        centres = peer._centres(network.rng)
        assert centres.shape == (2, 3, 1)
        assert abs(centres[0] - centres[1]).max() > 0
    bodies = [found.values.tolist() for found in sorted(network.present()[0].complete())]
    assert all([one.values.tolist() for one in sorted(peer.complete())] == bodies for peer in network.present())


def test_keys_of_older_peers_have_no_group():
    keys = Keys(bytes(8), bytes(32), bytes(32))
    old = msgspec.msgpack.encode(msgspec.msgpack.decode(msgspec.msgpack.encode(keys))[:4])
    assert msgspec.msgpack.decode(old, type=Part) == keys
    assert keys.group == b""
