"""Networks for every kind of table and target, and networks that learn as a fitted model did."""

import re

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typer.testing import CliRunner

from dada import BoostedTrees, Constant, DadaClassifier, DadaRegressor, Linear, Union, save_model
from dada.cli.app import app
from dada.cli.new_networks import network_of_model
from dada.cli.peer_tables import predict_table, read_rows, store_samples
from dada.core.model_steps import UserRows, rows_per_sample
from dada.data import Population, predictors_from_arrays
from dada.net.home import Home, HomeError
from dada.net.iroh_transport import IrohSeal, public_key
from dada.net.network_file import read_network, read_revocation
from dada.net.store import Store
from dada.peer.boosted_trees import draw_tested
from dada.peer.inputs import ModelStep, Persist, Send, Started
from dada.peer.member import Member, Planner
from dada.peer.messages import AtomReply
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from dada.peer.signatures import Unsealed
from dada.task import problem


def run(*arguments):
    return CliRunner().invoke(app, ["peer", *map(str, arguments)])


def new_network(folder, *options):
    done = run("new-network", folder / "net.json", *options)
    assert done.exit_code == 0, done.stderr
    return read_network(folder / "net.json")


def write_table(path, n_rows=60):
    """A table with numbers, text, a gap and a constant; level has three values, score many."""
    rng = np.random.default_rng(1)
    age, town = rng.normal(40, 10, n_rows), rng.choice(["Oslo", "Rome"], n_rows)
    score = age + 8 * (town == "Rome")
    level = np.array(["low", "middle", "top"])[np.digitize(score, [38, 50])]
    gaps = [None if i == 3 else value for i, value in enumerate(age.tolist())]
    columns = {"age": gaps, "town": town, "year": [2024] * n_rows, "score": score, "level": level}
    pl.DataFrame(columns).with_columns(importance=pl.lit(rng.uniform(0.5, 2.0, n_rows))).write_csv(path)
    return score, level


def learned_alone(folder, network, rows):
    """The folder of a peer that has made some steps alone."""
    home = Home(folder / "peer")
    home.create(folder / "net.json", bytes(32))
    home.write_samples(rows)
    peer = Peer(b"me", home.read_samples(), network.config)
    effects = peer.handle(Started(0.0))
    for _ in range(20):
        effects += peer.handle(ModelStep(0.0))
    store = Store(home.state)
    store.write([effect for effect in effects if isinstance(effect, Persist)])
    store.close()
    return home


def test_text_gaps_and_constants_become_features_of_several_classes(tmp_path):
    table = tmp_path / "mine.csv"
    _, level = write_table(table)
    pl.read_csv(table).drop("score", "importance").write_csv(table)
    network = new_network(tmp_path, "--like", table, "--label", "level", "--class-weights", "1,2,1")
    assert network.target.classes == ("low", "middle", "top")
    assert 'town = "Rome"' in network.features
    assert "year" not in network.features
    assert network.config.n_predictors == 3 * network.coupling.size
    rows = read_rows(table, "level", network)
    assert rows.A.shape == (2 * len(level), network.config.n_predictors)
    assert_array_equal(rows.weights[::2], np.where(level == "middle", 2.0, 1.0))
    predicted = predict_table(learned_alone(tmp_path, network, rows), table)
    assert np.mean(np.array(predicted["label"]) == level) > 0.8
    assert min(predicted["value"]) >= 0


def test_a_peer_predicts_with_the_trees_of_others(tmp_path):
    table = tmp_path / "mine.csv"
    _, level = write_table(table)
    pl.read_csv(table).drop("score", "importance").write_csv(table)
    network = new_network(tmp_path, "--like", table, "--label", "level", "--predictors", "trees")
    groves = {}
    for name in ("ann", "bob"):
        home = Home(tmp_path / name)
        home.create(tmp_path / "net.json", bytes(32))
        store_samples(home, table, "level")
        groves[name] = home.open_grove(name.encode(), Unsealed())
    home, grove, rng = Home(tmp_path / "ann"), groves["ann"], np.random.default_rng(0)
    peer = Peer(b"ann", grove.plot.fixed, network.config)
    member = Member(peer, PeerSampling(b"ann", rng), Planner(network.rhythm, rng), grove=grove)
    member.restore({})
    groves["bob"].plant()
    effects = [*member.start(0.0), *member.receive(b"bob", AtomReply(tuple(groves["bob"].records)), 0.0)]
    effects += [*member.on_timer(grove.due), *(effect for _ in range(20) for effect in peer.handle(ModelStep(9.0)))]
    store = Store(home.state)
    store.write([effect for effect in effects if isinstance(effect, Persist)])
    store.close()
    model, atoms = home.read_model_and_trees()
    assert set(atoms) == {*grove.plot.grown, *groves["bob"].plot.grown}
    assert_array_equal(model, peer.own.model.alpha)
    assert model.reshape(3, -1)[:, -len(atoms) :].any()
    right = np.mean(np.array(predict_table(home, table)["label"]) == level)
    assert right == pytest.approx(peer.own.accuracy)
    with pytest.raises(HomeError, match="trees are grown on all rows"):
        home.add_rows(home.read_samples())
    with pytest.raises(HomeError, match="send trees"):
        home.protect(1.0, "labels")


@pytest.mark.parametrize("label", ["level", "score"])
def test_a_peer_predicts_with_boosted_trees_and_leaves_of_its_own(tmp_path, label):
    table = tmp_path / "mine.csv"
    score, level = write_table(table)
    pl.read_csv(table).drop("importance", "score" if label == "level" else "level").write_csv(table)
    network = new_network(tmp_path, "--like", table, "--label", label, "--predictors", "boosted")
    assert network.settings["loss"] == ("logistic" if label == "level" else "squared")
    home = learned_alone(tmp_path, network, read_rows(table, label, network))
    before = predict_table_without_leaves(home, table, label)
    store_samples(home, table, label)
    boosting, other = (home.open_boosting(me, Unsealed()) for me in (b"me", b"you"))
    effects = [*boosting.start(), *other.start()]
    rng = np.random.default_rng(0)
    for _ in range(20):
        waiting = boosting.begin([b"you"], draw_tested(boosting.terms, boosting.varying, rng), 0.0)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, Send):
                there, sender = (other, b"me") if effect.to == b"you" else (boosting, b"you")
                waiting += there.receive(sender, effect.message, 0.0, lambda n: [])
            else:
                effects.append(effect)
    store = Store(home.state)
    store.write([effect for effect in effects if isinstance(effect, Persist)])
    store.close()
    after = predict_table(home, table)
    assert len(home.read_leaves().trees) == 20
    if label == "level":
        assert np.mean(np.array(after["label"]) == level) > 0.9
        # Half of the lead is that of the leaves.
        leads = np.sort(boosting.leaves().margins, axis=1)
        same = np.array(after["label"]) == np.array(before["label"])
        mixed = 0.5 * np.array(before["value"]) + 0.5 * (leads[:, -1] - leads[:, -2])
        assert np.mean(np.isclose(np.array(after["value"]), mixed, rtol=1e-4)[same]) > 0.5
    else:
        values = np.array(boosting.leaves().margins[:, 0])
        mixed = 0.5 * np.array(before["value"]) + 0.5 * (network.target.mean + network.target.scale * values)
        assert_allclose(after["value"], mixed, rtol=1e-5)
        assert np.var(after["value"] - score) < np.var(score)
    with pytest.raises(HomeError, match="send trees"):
        home.protect(1.0, "labels")
    with pytest.raises(ValueError, match="trees are grown on all rows"):
        store_samples(home, table, label, append=True)


def predict_table_without_leaves(home, table, label):
    """Predictions by the coupled model alone: no tree is stored yet."""
    store_samples(home, table, label)
    assert home.read_leaves().trees == ()
    return predict_table(home, table)


def test_boosted_trees_learn_the_losses_that_their_residuals_are_of(tmp_path):
    table = tmp_path / "mine.csv"
    write_table(table)
    options = ("new-network", tmp_path / "net.json", "--like", table, "--label", "level", "--predictors", "boosted")
    assert "learn the logistic loss" in run(*options, "--loss", "hinge").output
    assert "needs --step block" in run(*options, "--step", "pairwise").output


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_numbers_are_predicted_in_their_own_unit(tmp_path, loss):
    table = tmp_path / "mine.csv"
    score, _ = write_table(table)
    pl.read_csv(table).drop("level", "importance").write_csv(table)
    network = new_network(tmp_path, "--like", table, "--label", "score", "--loss", loss)
    assert_allclose((network.target.mean, network.target.scale), (score.mean(), score.std()))
    home = learned_alone(tmp_path, network, read_rows(table, "score", network))
    predicted = np.array(predict_table(home, table)["value"])
    assert np.var(predicted - score) < 0.2 * np.var(score)
    done = run("predict", "--home", home.folder, "--data", table)
    assert done.stdout.splitlines()[0] == "value"


def test_a_range_by_hand_gives_the_scale_of_numbers(tmp_path):
    network = new_network(tmp_path, "--feature", "age:0:100", "--numbers", "10:20")
    assert (network.target.mean, network.target.scale, network.config.loss) == (15.0, 5.0, "squared")


def test_summaries_of_users_give_the_scale_of_all_their_numbers(tmp_path):
    rng = np.random.default_rng(0)
    every = []
    for name, size in (("ann", 30), ("bob", 50)):
        columns = {"age": rng.normal(size=size), "year": [2024.0] * size, "score": rng.normal(len(name), 2.0, size)}
        every.append(pl.DataFrame(columns))
        every[-1].write_csv(tmp_path / f"{name}.csv")
        label = ("--label", "score", "--task", "numbers")
        assert run("summarise", tmp_path / f"{name}.csv", *label, "-o", tmp_path / f"{name}.json").exit_code == 0
    network = new_network(tmp_path, "--summary", tmp_path / "ann.json", "--summary", tmp_path / "bob.json")
    score = pl.concat(every)["score"].to_numpy()
    assert_allclose((network.target.mean, network.target.scale), (score.mean(), score.std()))
    predictors = predictors_from_arrays(network.predictors, network.arrays)
    described = [predictors.describe(j, network.features) for j in range(predictors.n)]
    assert not any("year" in text for text in described)


def users(n_users=4, n_rows=20):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n_users * n_rows, 2))
    return X, np.repeat([f"u{k}" for k in range(n_users)], n_rows)


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_network_like_a_model_has_its_predictors_target_and_settings(tmp_path, kind):
    X, owners = users()
    y = np.digitize(X[:, 0], [-0.5, 0.5]) if kind == "classes" else 3 * X[:, 0] + X[:, 1]
    if kind == "classes":
        model = DadaClassifier("linear", graph="evidence", tau=2.0, class_weight={1: 2.0}, random_state=0)
    else:
        model = DadaRegressor(loss="huber", mu=0.3, graph="everyone", random_state=0)
    frame = pl.DataFrame(X, schema=["east", "north"])
    save_model(model.fit(frame, y, users=owners), tmp_path / "people.dada")
    network = new_network(tmp_path, "--model", tmp_path / "people.dada")
    config, used = network.config, model.settings_
    assert (config.loss, config.beta, config.mu1) == (used["loss"], used["beta"], used["mu"])
    assert config.graph == used["graph"]
    mine = owners == "u2"
    frame.filter(mine).with_columns(label=pl.Series(y[mine])).write_csv(tmp_path / "mine.csv")
    task = {} if kind == "classes" else {"task": "numbers"}
    targets = y if kind == "classes" else (y - model.target_mean_) / model.target_scale_
    people = Population.from_arrays(X, targets, owners, **task)
    whole = problem(people, model.predictors_, beta=1.0, mu1=1.0, loss=used["loss"])
    assert config.known_largest == whole.sizes.max()
    most = len(X)
    (tmp_path / "net.json").unlink()
    bounded = new_network(tmp_path, "--model", tmp_path / "people.dada", "--most-rows", most).config
    assert bounded.most_samples == most * rows_per_sample(config.n_classes)
    assert bounded.digest == config.digest
    rows = read_rows(tmp_path / "mine.csv", "label", network)
    assert_array_equal(rows.A, whole.rows_of(2).A)
    if kind == "numbers":
        assert_allclose(rows.offset, whole.rows_of(2).offset)
    else:
        assert network.target.class_weights == (1.0, 2.0, 1.0)
        assert (config.n_neighbours, config.tau) == (used["n_neighbours"], 2.0)


def test_a_column_holds_the_weights_of_samples(tmp_path):
    table = tmp_path / "mine.csv"
    write_table(table)
    frame = pl.read_csv(table)
    network = new_network(tmp_path, "--feature", "score:0:100", "--classes", "low,middle,top")
    rows = read_rows(table, "level", network, weight="importance")
    assert_array_equal(rows.weights, np.repeat(frame["importance"].to_numpy(), 2))


def test_later_samples_join_earlier_ones():
    numbers = UserRows(np.ones((2, 3)), offset=np.array([1.0, 2.0]))
    more = UserRows(np.zeros((1, 3)), offset=np.array([3.0]), weights=np.array([0.5]))
    both = numbers.joined(more)
    assert both.A.shape == (3, 3)
    assert both.offset.tolist() == [1.0, 2.0, 3.0]
    assert both.weights.tolist() == [1.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [({"class_weight": "balanced"}, "fit with a weight for each class"), ({"graph": "none"}, "name one of theirs")],
)
def test_what_peers_cannot_do_is_refused_by_name(tmp_path, settings, complaint):
    X, owners = users()
    model = DadaClassifier(n_updates=5, random_state=0, **{"graph": "everyone"} | settings)
    save_model(model.fit(X, X[:, 0] > 0, users=owners), tmp_path / "people.dada")
    done = run("new-network", tmp_path / "net.json", "--model", tmp_path / "people.dada")
    assert done.exit_code == 2
    assert complaint in " ".join(done.stderr.split())


def members_only(folder):
    """A network of members with one peer, and the id of that peer."""
    new_network(folder, "--feature", "x:-3:3", "--classes", "no,yes", "--members")
    done = run("init", "--home", folder / "bob", "--network", folder / "net.json")
    return re.search(r"[0-9a-f]{64}", done.stdout)[0]


def test_a_peer_of_a_network_of_members_needs_a_certificate_of_the_founder(tmp_path):
    bob = members_only(tmp_path)
    assert (tmp_path / "net.founder").stat().st_mode & 0o777 == 0o600
    home = Home(tmp_path / "bob")
    key, network = home.read()
    membership = network.membership(IrohSeal(key))
    with pytest.raises(HomeError, match=f"admits members only.*dada peer admit NETWORK {bob}"):
        home.read_certificate(membership, public_key(key))
    foreign = run("admit", tmp_path / "net.json", "ab" * 32).stdout.strip()
    wrong = run("init", "--home", tmp_path / "bob", "--certificate", foreign)
    assert (wrong.exit_code, "it admits abababab" in wrong.stderr) == (2, True)
    certificate = run("admit", tmp_path / "net.json", bob, "--days", 90).stdout.strip()
    assert run("init", "--home", tmp_path / "bob", "--certificate", certificate).exit_code == 0
    assert home.read_certificate(membership, public_key(key)).peer.hex() == bob


def test_each_list_of_revoked_members_is_newer_and_names_all(tmp_path):
    bob = members_only(tmp_path)
    eve = "ab" * 32
    assert "Copy it into the folder of any peer" in run("revoke", tmp_path / "net.json", eve).stdout
    first = read_revocation(tmp_path / "net.revoked")
    assert run("revoke", tmp_path / "net.json", bob, "--home", tmp_path / "bob").exit_code == 0
    home = Home(tmp_path / "bob")
    second = home.new_revocation()
    assert second.counter > first.counter
    assert {peer.hex() for peer in second.revoked} == {bob, eve}
    assert home.new_revocation() is None
    key, network = home.read()
    assert network.membership(IrohSeal(key)).is_genuine(second)


def test_only_the_founder_admits_and_excludes(tmp_path):
    bob = members_only(tmp_path)
    key = tmp_path / "net.founder"
    key.write_text("00" * 32)
    assert "is not the key of the founder" in run("admit", tmp_path / "net.json", bob).stderr
    key.unlink()
    assert "where `dada peer new-network --members` wrote it" in run("revoke", tmp_path / "net.json", bob).stderr


def test_a_network_of_a_model_leaves_out_boosted_trees(tmp_path):
    rng = np.random.default_rng(0)
    X, users = rng.uniform(-1, 1, (300, 2)), np.repeat(np.arange(6), 50)
    recipe = Union(Linear(clip=2.0), Constant(coupling=0.1), BoostedTrees(rounds=25))
    model = DadaClassifier(recipe, graph="everyone", n_updates=10, random_state=0).fit(
        X, X[:, 0] * X[:, 1] > 0, users=users
    )
    network = network_of_model(model, rate=1.0)
    assert len(network.coupling) == 3 < model.predictors_.n
    assert network.settings["beta"] == 30.0 < model.settings_["beta"]
