"""A private peer: its release is made once and stored first, and nothing else that it sends depends on its data."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from typer.testing import CliRunner

from dada.cli.app import app
from dada.cli.peer_tables import read_samples, released_rows
from dada.cli.watching import privacy_note
from dada.core.model_steps import UserRows
from dada.dashboard.records import LogReader, Recorder, decode
from dada.net.home import Home, HomeError, privacy_text
from dada.net.network_file import write_ticket
from dada.net.process import RunOptions, open_node
from dada.net.store import read_records
from dada.peer.grove import AtomTerms, Plot, SharedGrove
from dada.peer.inputs import PeerConfig, Send
from dada.peer.member import JUDGED_AFTER, Member, Planner, Rhythm
from dada.peer.messages import Descriptor, EdgeState, ModelSnapshot, encode
from dada.peer.model import Fallback
from dada.peer.peer import Peer
from dada.peer.releases import ExactRows, Releases, ReleaseTerms
from dada.peer.sampling import PeerSampling
from dada.peer.secure_sums import Waits
from dada.peer.signatures import Unsealed
from dada.privacy.noise import Bits
from tests.helpers.net import Running, asynchronous, until

CODES = np.array([0, 1] * 20)


def dada(*line):
    done = CliRunner().invoke(app, [str(part) for part in line])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def network(tmp_path):
    path = tmp_path / "net.json"
    dada("peer", "new-network", path, "--feature", "x:-1:1", "--classes", "no,yes", "--class-weights", "1,3")
    return path


@pytest.fixture
def home(tmp_path, network):
    dada("peer", "init", "--home", tmp_path / "ann", "--network", network, "--epsilon", 1)
    return Home(tmp_path / "ann")


def spent(home):
    return home.privacy_status()["privacy"]["spent"]


def test_labels_are_the_same_after_a_kill_between_the_writes(home):
    """The release is on disk, the samples are not; the next life finds the release."""
    first = home.release_labels(CODES, 2, b"rows", Bits())
    assert not home.released.exists()
    assert 0 < (first != CODES).sum() < 30
    again = Home(home.folder)
    assert_array_equal(again.release_labels(CODES, 2, b"rows", Bits()), first)
    assert spent(again) == 1.0
    assert len(again.privacy_status()["privacy"]["released"]) == 1


def test_a_kill_while_noise_is_drawn_spends_nothing(home):
    class KilledError(BaseException):
        pass

    def killed(size):
        raise KilledError

    with pytest.raises(KilledError):
        home.release_labels(CODES, 2, b"rows", Bits(killed))
    assert spent(home) == 0.0
    home.release_labels(CODES, 2, b"rows", Bits())
    assert spent(home) == 1.0


def test_other_rows_are_refused_beyond_the_budget(home):
    home.release_labels(CODES, 2, b"rows", Bits())
    with pytest.raises(HomeError, match="run without --data to go on"):
        home.release_labels(CODES, 2, b"other rows", Bits())
    with pytest.raises(HomeError, match="its budget is spent"):
        home.release_labels(1 - CODES, 2, b"rows", Bits())
    assert spent(home) == 1.0


def test_the_budget_is_fixed_before_the_first_samples(home, network, tmp_path):
    home.protect(1.0)
    with pytest.raises(HomeError, match="has the budget epsilon 1 for labels, got 2 for labels"):
        home.protect(2.0)
    open_home = Home(tmp_path / "bob")
    dada("peer", "init", "--home", open_home.folder, "--network", network)
    open_home.write_samples(UserRows(np.ones((1, 11), np.int8)))
    with pytest.raises(HomeError, match="what was sent cannot be withdrawn"):
        open_home.protect(1.0)
    with pytest.raises(HomeError, match="a private peer, and no other"):
        home.write_samples(UserRows(np.ones((1, 11), np.int8)))


def test_labels_that_are_numbers_cannot_be_protected(tmp_path):
    dada("peer", "new-network", tmp_path / "numbers.json", "--feature", "x:-1:1", "--numbers", "0:1")
    line = ["peer", "init", "--home", tmp_path / "ann", "--network", tmp_path / "numbers.json", "--epsilon", 1]
    done = CliRunner().invoke(app, list(map(str, line)))
    assert "randomised response cannot protect" in done.output + str(done.exception)


def test_released_rows_have_released_labels_and_their_weights(home, tmp_path):
    _, network = home.read()
    table = tmp_path / "ann.csv"
    table.write_text("x,came\n" + "".join(f"{x},{'yes' if x > 0 else 'no'}\n" for x in np.linspace(-1, 1, 40)))
    samples = read_samples(table, "came", network)
    exact = samples.rows(network.target)
    home.write_samples(exact, released_rows(home, samples, network.target, Bits()))
    released = home.read_released()
    # The constant predictor is the label itself.
    flipped = (released.A[:, -1] != exact.A[:, -1]).tolist()
    assert 0 < sum(flipped) < 30
    assert_array_equal(released.weights != exact.weights, flipped)
    assert_array_equal(home.read_samples().A, exact.A)


@asynchronous
async def test_a_node_learns_from_released_rows_and_stores_its_home_model(home):
    rng = np.random.default_rng(0)
    exact, released = (UserRows(rng.choice([-1, 1], (20, 11)).astype(np.int8)) for _ in range(2))
    home.write_samples(exact, released)
    node = await open_node(home, RunOptions())
    node.stop()
    await node.run()
    node.store.close()
    assert_array_equal(node.member.peer.own.rows.A, released.A)
    _, network = home.read()
    assert_array_equal(home.read_model(), Fallback(exact, network.config).alpha)


def test_status_shows_what_was_spent(home):
    home.release_labels(CODES, 2, b"rows", Bits())
    shown = json.loads(dada("peer", "status", "--home", home.folder, "--json"))["privacy"]
    assert (shown["protects"], shown["epsilon"], shown["spent"]) == ("labels", 1.0, 1.0)
    assert (shown["left"], shown["delta"]) == (0.0, 0.0)
    assert set(shown["released"][0]) == {"sha256", "time"}
    status = {"id": "ab", "time": 0.0, "pid": 1, "samples": 40, "model_size": 1, "model_updates": 2, "known_peers": 3,
              "links": 1, "neighbours": {}, "messages_sent": 4, "messages_received": 5, "wire_bytes": 6,
              "messages_refused": 0, "links_refused": {}, "round_trips_ms": {},
              "ticket": write_ticket(Descriptor(bytes(32), 0, ("127.0.0.1:4040",)))}  # fmt: skip
    home.write_status(status)
    assert "epsilon 1 of 1 spent on 1 releases, 0 left" in dada("peer", "status", "--home", home.folder)


def test_the_live_page_shows_what_was_spent_and_released(home, tmp_path):
    assert privacy_note([home], [{}]) == "ann: epsilon 0 of 1 spent on 0 releases, 1 left"
    home.release_labels(CODES, 2, b"rows", Bits())
    text = privacy_note([home, Home(tmp_path)], [{"id": "ab"}, {}])
    assert text.startswith("ann: epsilon 1 of 1 spent on 1 releases, 0 left; labels released 20")
    with Recorder(tmp_path / "run.dadalog") as recorder:
        recorder.note(text)
    assert [decode(content).text for content in LogReader(tmp_path / "run.dadalog")] == [text]


def rows_home(tmp_path, name, m=300, *options):
    """A peer that protects rows of two features."""
    path = tmp_path / "rows.json"
    if not path.exists():
        features = ("--feature", "x:-1:1", "--feature", "y:-1:1")
        dada("peer", "new-network", path, *features, "--classes", "no,yes", "--stumps", 0)
    dada("peer", "init", "--home", tmp_path / name, "--network", path, "--epsilon", 4, "--protects", "rows", *options)
    made, rng = Home(tmp_path / name), np.random.default_rng(m)
    h = np.column_stack([rng.uniform(-1, 1, (m, 2)), np.ones(m)])
    y = np.where(h[:, :1] > 0, 1.0, -1.0)
    made.write_exact(ExactRows(h, y), UserRows(np.sign(h * y).astype(np.int8)))
    return made


def test_statistics_are_released_once(tmp_path):
    here = rows_home(tmp_path, "ann")
    releases = here.open_releases(b"ann", Unsealed())
    assert (releases.own, spent(here)) == (None, 0.0)
    body = here.release_statistics(releases, Bits())
    assert here.release_statistics(releases, Bits()) == body
    assert Home(here.folder).open_releases(b"ann", Unsealed()).own.body == body
    assert spent(here) == 4.0
    when = here.privacy_status()["privacy"]["released"][0]["time"]
    assert here.privacy_status()["privacy"]["released"][0]["time"] == when
    with pytest.raises(HomeError, match="released other rows before, and its budget is spent"):
        here.write_exact(ExactRows(-releases.rows.h, releases.rows.y), UserRows(np.ones((1, 3), np.int8)))
    # A backup without the release takes it back from others.
    old = rows_home(tmp_path, "old")
    restored = old.open_releases(b"ann", Unsealed())
    restored.returned = body
    assert old.release_statistics(restored, Bits()) == body


@asynchronous
async def test_nodes_exchange_their_releases_and_nothing_else(tmp_path):
    homes = [rows_home(tmp_path, name, m) for name, m in (("ann", 300), ("bob", 310))]
    nodes = [await open_node(home, RunOptions(exchange_every_s=0.05)) for home in homes]
    first, second = nodes
    assert first.status()["releases"]["reason"] == "Nothing is sent: no other peer is known yet."
    async with Running(*nodes):
        await until(lambda: all(len(node.member.releases.held) == 2 for node in nodes))
        assert first.status()["releases"] == {"held": 1, "is_sent": True, "reason": "The release is sent."}
        assert first.member.releases.held == second.member.releases.held
        assert all(not node.member.peer.own.model.alpha.any() for node in nodes)
    assert homes[0].read_model()[0] > 0.1
    assert spent(homes[0]) == 4.0


@asynchronous
async def test_nodes_agree_on_a_secure_sum_and_send_what_their_ledgers_hold(tmp_path):
    homes = [rows_home(tmp_path, f"peer {m}", m, "--secure-sum") for m in (300, 310, 320)]
    nodes = [await open_node(home, RunOptions(exchange_every_s=0.02)) for home in homes]
    for node in nodes:
        node.member.releases.waits = Waits(settled=3, turn=2, answer=2)
    first = nodes[0].member.releases
    async with Running(*nodes):
        await until(lambda: all(node.member.releases.complete() for node in nodes))
        (found,) = first.complete()
        assert sorted(found.owners) == sorted(node.member.me for node in nodes)
        assert found.n_rows == 930
        for node in nodes:
            assert_array_equal(node.member.releases.complete()[0].values, found.values)
        status = nodes[0].status()
        assert privacy_text(status) == ["2 peers are in the sums held. The sum of 3 peers is known."]
    for home, node in zip(homes, nodes, strict=True):
        again = home.open_releases(node.member.me, Unsealed())
        assert again.own.body == node.member.releases.own.body
        assert again.own.body in [release.body for release in first.held.values()]
        assert (spent(home), home.read_model()[0] > 0.1) == (4.0, True)
        again.restore(read_records(home.state))
        assert_array_equal(again.complete()[0].values, found.values)
    with pytest.raises(HomeError, match="was created with another --secure-sum"):
        homes[0].protect(4.0, "rows")


def test_secure_sums_are_for_rows_and_users(home, tmp_path):
    with pytest.raises(HomeError, match="add --protects rows"):
        home.protect(1.0, "labels", is_summed=True)
    with pytest.raises(HomeError, match="needs --secure-sum and --rows-per-user"):
        home.protect(1.0, "users", is_summed=True)
    options = ("--protects", "users", "--secure-sum", "--rows-per-user", 20)
    releases = rows_home(tmp_path, "user", 300, *options).open_releases(b"user", Unsealed())
    assert releases.terms.rows_per_user == 20
    assert releases.terms.noise.gram_steps == 20 * releases.terms.mechanism.gram_steps


def member(released, exact):
    config, rng = PeerConfig(n_predictors=2, beta=2.0, mu1=1.0), np.random.default_rng(0)
    peer = Peer(b"me", UserRows(released), config)
    return Member(peer, PeerSampling(b"me", rng), Planner(Rhythm(local_steps=3), rng), exact=UserRows(exact))


def test_nothing_that_is_stored_or_sent_depends_on_exact_rows():
    """Two users with the same released rows and opposite true labels have the same effects and different models."""
    rng = np.random.default_rng(1)
    released = rng.choice([-1, 1], (12, 2)).astype(np.int8)
    exact = np.array([[1, -1], [1, 1], [1, 1]] * 4, np.int8)
    lives = [member(released, rows) for rows in (exact, -exact)]
    effects = []
    for life in lives:
        found = life.start(0.0, [Descriptor(b"you", 0)])
        for _ in range(30):
            found += life.on_timer(life.deadline)
        effects.append(found)
    assert effects[0] == effects[1]
    assert_array_equal(lives[0].model, -lives[1].model)
    assert lives[0].model.any()


@pytest.mark.parametrize("protects", ["labels", "rows"])
def test_a_private_peer_has_no_trees(protects):
    """Their tests and leaves follow from exact rows."""
    config, rng, seal = (
        PeerConfig(n_predictors=2, beta=2.0, mu1=1.0, step="block"),
        np.random.default_rng(0),
        Unsealed(),
    )
    rows = UserRows(rng.choice([-1, 1], (6, 2)).astype(np.int8))
    exact = ExactRows(rows.A.astype(float), np.ones((6, 1)))
    private = {"exact": rows}
    if protects == "rows":
        private = {"releases": Releases(b"me", ReleaseTerms.of(config, 4.0, 1e-5), exact, seal)}
    terms = AtomTerms(n_features=2, n_cuts=3, depth=2, per_user=4)
    plot = Plot(rows, np.ones((6, 1)), np.zeros((6, 2), np.uint8), ())
    grove = SharedGrove(b"me", terms, plot, config.digest, seal)
    parts = Peer(b"me", rows, config), PeerSampling(b"me", rng), Planner(Rhythm(), rng)
    assert Member(*parts, grove=grove).grove is grove
    with pytest.raises(ValueError, match="a peer that protects nothing"):
        Member(*parts, grove=grove, **private)


def census_of_life(is_private, sign=1):
    """The census record of a peer, and all that it sends, after a life next to another whose model moves."""
    rng = np.random.default_rng(2)
    config = PeerConfig(n_predictors=3, beta=3.0, mu1=0.7, graph="everyone", step="block", mu_per_confidence=2.0)
    released, exact = (rng.choice([-1, 1], (20, 3)).astype(np.int8) for _ in range(2))
    lives = {}
    for name in (b"me", b"you"):
        own = np.random.default_rng(3)
        kept = UserRows(sign * exact) if is_private and name == b"me" else None
        peer = Peer(name, UserRows(released), config)
        lives[name] = Member(peer, PeerSampling(name, own), Planner(Rhythm(local_steps=2), own), exact=kept)
    queue = [(b"me", effect) for effect in lives[b"me"].start(0.0, [Descriptor(b"you", 0)])]
    queue += [(b"you", effect) for effect in lives[b"you"].start(0.0, [Descriptor(b"me", 0)])]
    sent, now = [], 0.0
    for _ in range(150):
        while queue:
            name, effect = queue.pop(0)
            if isinstance(effect, Send):
                sent += [encode(effect.message)] if name == b"me" else []
                queue += [(effect.to, answer) for answer in lives[effect.to].receive(name, effect.message, now)]
        name = min(lives, key=lambda one: lives[one].deadline)
        now = lives[name].deadline
        queue += [(name, effect) for effect in lives[name].on_timer(now)]
    assert lives[b"me"].planner.joint_steps > JUDGED_AFTER
    return lives[b"me"].census, sent


def test_a_private_peer_publishes_no_gains_of_a_weaker_coupling():
    """Gains follow from held-out exact samples; those of another peer are in the census."""
    usual, _ = census_of_life(is_private=False)
    private, sent = census_of_life(is_private=True)
    assert (usual.is_judged, private.is_judged) == (True, False)
    assert sent == census_of_life(is_private=True, sign=-1)[1]
    assert len(sent) > 20


def test_the_home_model_is_learned_from_exact_rows_next_to_neighbours():
    exact = np.array([[1, -1], [1, 1], [1, -1], [1, 1]], np.int8)
    here = member(exact[:, ::-1].copy(), exact)
    here.start(0.0)
    snapshot = ModelSnapshot(1, 1, np.array([0], "<u4").tobytes(), np.array([2.0], "<f4").tobytes())
    here.receive(b"friend", EdgeState(1, b"friend", 10.0, snapshot), 0.0)
    assert here.trusts_others
    assert here.peer.own.model.alpha[1] > 0.1
    assert here.model[0] > 0.1
    assert abs(here.model[1]) < 0.1


@pytest.fixture
def summed(tmp_path):
    """A peer that protects its rows, in a secure sum of its group."""
    path = tmp_path / "sums.json"
    dada("peer", "new-network", path, "--feature", "x:-1:1", "--classes", "no,yes", "--stumps", 0)
    line = ["--network", path, "--epsilon", 4, "--protects", "rows", "--secure-sum"]
    dada("peer", "init", "--home", tmp_path / "eve", *line, "--group", "north")
    found = Home(tmp_path / "eve")
    found.write_exact(ExactRows(np.ones((3, 2)), np.ones((3, 1))), UserRows(np.ones((3, 2), np.int8)))
    return found


def test_the_group_of_a_peer_is_fixed_with_its_budget(summed):
    assert summed.open_releases(b"eve", Unsealed())._group == b"north"
    with pytest.raises(HomeError, match="another --group"):
        summed.protect(4.0, "rows", is_summed=True, group="south")
    with pytest.raises(HomeError, match="the public group of a --secure-sum"):
        summed.protect(4.0, "rows", group="north")


def test_folders_of_older_peers_keep_their_noise(summed):
    """Their releases, and those of others in their networks, have the noise of separate sensitivities."""
    new = summed.open_releases(b"eve", Unsealed()).terms.mechanism
    older = {name: value for name, value in json.loads(summed.budget.read_bytes()).items() if name != "joint"}
    summed.budget.write_text(json.dumps(older))
    old = summed.open_releases(b"eve", Unsealed()).terms.mechanism
    assert old.moment_sigma == pytest.approx(new.moment_sigma / 0.75, rel=1e-6)


def test_home_models_next_to_flipped_labels_are_lengthened(home):
    """Models of others are shorter by the correlation of flipped labels, and so are differences between users."""
    assert home.kept_correlation(2) == pytest.approx(1 - 2 / (1 + np.e))
    rows = UserRows(np.array([[1, -1], [1, 1], [1, -1]], np.int8))
    config = PeerConfig(n_predictors=2, beta=4.0, mu1=1.0)
    theirs = np.array([-1.0, 0.5], np.float32)
    plain, flipped = Fallback(rows, config), Fallback(rows, config, kept=0.5)
    assert_array_equal(plain._lengthened(1.0, theirs), theirs)
    assert_array_equal(flipped._lengthened(1.0, theirs), 2 * theirs)
    assert_array_equal(flipped._lengthened(1.0, 2 * theirs), np.float32(4 / 3) * 2 * theirs)
    assert flipped._settings.mu == 0.25 * plain._settings.mu
