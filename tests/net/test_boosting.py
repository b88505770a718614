"""Nodes that boost trees: all come to the same trees, and killed ones find them again in their folders."""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_array_equal

from dada.core.model_steps import UserRows
from dada.data import BoostedTrees, Constant, Linear, Union, moons
from dada.fitting.boosted_peers import boosted_users
from dada.net.home import Home, HomeError
from dada.net.iroh_transport import new_secret_key
from dada.net.network_file import NetworkBoosting, NetworkFile, NetworkFileError, Target, read_network
from dada.net.node import Node
from dada.net.session import Terms
from dada.net.store import Store
from dada.peer.boosted_trees import BoostedRows, varying_in
from dada.peer.boosting import SharedBoosting
from dada.peer.member import Member, Planner
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from dada.peer.signatures import Unsealed
from dada.sim import network_of, network_problem
from dada.sim.virtual import Faults
from tests.helpers.memory_transport import MemoryNetwork
from tests.helpers.net import BUSY, Running, run, until

TREES = BoostedTrees(rounds=15, rate=0.3, depth=1)


def test_nodes_agree_on_the_trees_of_all_and_find_them_again(tmp_path):
    people = moons(1, n_users=3).train
    _, problem, _ = network_problem(people, Union(Linear(), Constant()), mu=0.1, loss="logistic")
    usual = network_of(problem, Faults(), graph="everyone", step="block", steps=1, seed=0)
    config, users = replace(usual.config, vet=False, reply_timeout_s=0.5), boosted_users(TREES, people)

    def node(network, k):
        rng, transport = default_rng(k), network.transport(bytes([k + 1]) * 32)
        varying = varying_in(users.cuts)
        member = Member(
            Peer(transport.me, problem.rows_of(k), config),
            PeerSampling(transport.me, rng, transport.addresses),
            Planner(BUSY, rng),
            exchange_every_s=0.1,
            boosting=SharedBoosting(
                transport.me, users.terms, users.rows[k], varying, config.digest, Unsealed(), config.reply_timeout_s
            ),
        )
        return Node(member, transport, Store(tmp_path / f"{k}.sqlite"), Terms(b"the secret of the net"), rng)

    def live(is_enough):
        async def inside():
            network = MemoryNetwork()
            nodes = [node(network, k) for k in range(3)]
            async with Running(*nodes):
                await until(lambda: is_enough([one.member.boosting for one in nodes]))
            return nodes

        return run(inside())

    def agree(found):
        return len(found[0].trees) >= TREES.rounds // 5 and all(one.trees == found[0].trees for one in found)

    before = {one.member.me: one.member.boosting for one in live(agree)}
    for one in live(lambda found: True):
        boosting, earlier = one.member.boosting, before[one.member.me]
        assert set(boosting.trees) >= set(earlier.trees) != set()
        assert one.status()["boosting"]["trees"] == len(boosting.trees)
        places = [boosting.trees.index(tree) for tree in earlier.trees]
        if places == list(range(len(places))):
            for place, values in enumerate(earlier.leaves().values):
                assert_array_equal(boosting.leaves().values[place], values)


def network_file(**changed):
    predictors = Linear().fit(np.array([[0.0, 0.0], [1.0, 1.0]]))
    spec, arrays = predictors.to_arrays()
    network = NetworkFile(
        settings={"beta": 5.0, "mu1": 1.0, "loss": "logistic", "graph": "everyone", "step": "block"},
        features=("a", "b"),
        target=Target(("no", "yes")),
        coupling=np.asarray(predictors.coupling),
        predictors=spec,
        arrays=arrays,
        boosting=NetworkBoosting(np.array([[0.25, 0.5, 0.75], [0.2, 0.4, 0.6]]), rounds=30, rate=0.3),
    )
    return replace(network, **changed)


def test_a_network_file_has_the_boosted_trees_and_other_trees_are_another_problem(tmp_path):
    network = network_file()
    network.write(tmp_path / "net.json")
    again = read_network(tmp_path / "net.json")
    assert again.config.digest == network.config.digest
    assert again.boosting.terms(2) == network.boosting.terms(2)
    assert_array_equal(again.boosting.cuts, network.boosting.cuts)
    others = (replace(network.boosting, rounds=31), replace(network.boosting, cuts=network.boosting.cuts / 2), None)
    assert all(network_file(boosting=other).config.digest != network.config.digest for other in others)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("rounds", 0, "rounds must be in"), ("own", 0.0, "own must be"), ("depth", 9, "at most 1024 bytes")],
)
def test_a_damaged_network_file_is_refused(tmp_path, name, value, message):
    network_file().write(tmp_path / "net.json")
    content = json.loads((tmp_path / "net.json").read_text())
    content["predictors"]["boosting"][name] = value
    (tmp_path / "other.json").write_text(json.dumps(content))
    with pytest.raises(NetworkFileError, match=message):
        read_network(tmp_path / "other.json")


def test_a_folder_keeps_rows_and_trees_and_refuses_what_trees_do_not_allow(tmp_path):
    network_file().write(tmp_path / "net.json")
    home = Home(tmp_path / "peer")
    home.create(tmp_path / "net.json", new_secret_key())
    rows = UserRows(np.ones((4, 2), np.float32), None, np.array([1.0, 2.0, 1.0, 2.0]))
    bins, y = np.array([[0, 1], [3, 2], [1, 1], [2, 3]], np.uint8), np.array([1.0, -1.0, 1.0, -1.0])
    home.write_samples(rows)
    with pytest.raises(HomeError, match="has no rows for boosted trees"):
        home.open_boosting(b"me", Unsealed())
    home.write_boosted(rows, BoostedRows(bins, y, np.array([1.0, 2.0, 1.0, 2.0])))
    boosting = home.open_boosting(b"me", Unsealed())
    boosting.rehearse()
    effects = boosting.start()
    tree = boosting.terms.write(1, np.array([0, 0, 0]), np.array([1, -1, -1]), np.array([[32], [32], [-32], [-32]]))
    boosting.records.add(tree)
    effects = [*effects, *boosting.records.stored([b"me"])]
    Store(home.state).write(effects)
    assert_array_equal(home.read_samples().weights, rows.weights)
    found = home.read_leaves()
    assert found.trees == (tree,)
    assert_array_equal(np.array(found.values), np.array(boosting.leaves().values))
    assert found.values[0].any()
    with pytest.raises(HomeError, match="trees are grown on all rows"):
        home.add_rows(rows)
