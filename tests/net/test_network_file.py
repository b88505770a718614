import contextlib
import json
import resource
import stat
from dataclasses import replace

import numpy as np
import pytest

from dada.core.block_steps import BlockStep
from dada.core.graph_steps import DegreeTarget, LogDegree
from dada.data import Constant, Stumps, Union, predictors_from_arrays
from dada.net.home import Home, HomeError
from dada.net.network_file import NetworkFile, NetworkFileError, Target, read_network
from dada.net.store import Store
from dada.peer.inputs import Persist
from dada.peer.member import Rhythm


def make_network(**changes):
    predictors = Union(Stumps(per_feature=3), Constant(coupling=0.1)).fit(np.linspace([0.0, 1.0], [1.0, 4.0], 5))
    spec, arrays = predictors.to_arrays()
    network = NetworkFile(
        settings={"beta": 5.0, "mu1": 0.5},
        features=("age", "height"),
        target=Target(("no", "yes")),
        coupling=predictors.coupling,
        predictors=spec,
        arrays=arrays,
        rhythm=Rhythm(wakeups_per_s=2.0),
        regularizer=LogDegree(lam=0.2),
    )
    return replace(network, **changes)


def test_a_network_file_comes_back_as_it_was(tmp_path):
    network = make_network()
    network.write(tmp_path / "net.json")
    again = read_network(tmp_path / "net.json")
    assert again.config.digest == network.config.digest
    assert (again.features, again.target, again.rhythm) == (network.features, network.target, network.rhythm)
    X = np.array([[0.3, 2.0], [0.9, 3.9]])
    np.testing.assert_array_equal(
        predictors_from_arrays(again.predictors, again.arrays).predict(X),
        predictors_from_arrays(network.predictors, network.arrays).predict(X),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"beta": 6.0, "mu1": 0.5}},
        {"settings": {"beta": 5.0, "mu1": 0.5, "step": "block", "block": BlockStep(momentum=0.0)}},
        {"settings": {"beta": 5.0, "mu1": 0.5, "graph": "everyone"}},
        {"target": Target(("yes", "no"))},
        {"target": Target(("no", "yes"), class_weights=(1.0, 3.0))},
        {"target": Target(("no", "yes", "maybe"))},
        {"target": Target(mean=2.0), "settings": {"beta": 5.0, "mu1": 0.5, "loss": "huber"}},
        {"features": ("height", "age")},
        {"regularizer": DegreeTarget(target=2.0)},
    ],
)
def test_networks_that_differ_in_what_matters_are_strangers(tmp_path, changes):
    other = make_network(**changes)
    assert other.config.digest != make_network().config.digest
    other.write(tmp_path / "net.json")
    assert read_network(tmp_path / "net.json").config.digest == other.config.digest


def test_a_rhythm_and_a_secret_of_its_own_do_not_make_another_problem():
    other = make_network(rhythm=Rhythm(wakeups_per_s=9.0), secret=bytes(32))
    assert other.config.digest == make_network().config.digest


def test_a_private_network_file_is_for_its_owner_alone(tmp_path):
    make_network(secret=b"s" * 32).write(tmp_path / "net.json")
    assert stat.S_IMODE((tmp_path / "net.json").stat().st_mode) == 0o600
    assert read_network(tmp_path / "net.json").secret == b"s" * 32


def test_an_existing_file_is_not_overwritten(tmp_path):
    make_network().write(tmp_path / "net.json")
    with pytest.raises(NetworkFileError, match="exists already"):
        make_network().write(tmp_path / "net.json")


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (["format"], "other", "format 'other'"),
        (["version"], 99, "version 99"),
        (["settings", "sparsity"], 1.0, "does not know: sparsity"),
        (["settings", "beta"], -1.0, "beta must be > 0"),
        (["settings", "beta"], "large", "not a network file"),
        (["secret"], "abcd", "at least 16"),
        (["predictors", "target", "classes"], ["yes", "yes"], "two or more different classes"),
        (["predictors", "target", "classes"], [], "numbers one of"),
        (["predictors", "target", "scale"], 0.0, "a scale > 0"),
        (["predictors", "target", "class_weights"], [1.0], "as many weights"),
        (["predictors", "coupling"], [], "coupling"),
        (["regularizer", "kind"], "own", "it lacks 'own'"),
    ],
)
def test_a_network_file_that_makes_no_sense_is_refused(tmp_path, path, value, complaint):
    file = tmp_path / "net.json"
    make_network().write(file)
    content = json.loads(file.read_text())
    place = content
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    file.write_text(json.dumps(content))
    with pytest.raises(NetworkFileError, match=complaint):
        read_network(file)


def test_a_home_belongs_to_one_network_and_keeps_its_key(tmp_path):
    make_network().write(tmp_path / "one.json")
    make_network(target=Target(("a", "b"))).write(tmp_path / "two.json")
    home = Home(tmp_path / "ann")
    home.create(tmp_path / "one.json", bytes(32))
    home.create(tmp_path / "one.json", b"x" * 32)
    assert home.read()[0] == bytes(32)
    with pytest.raises(HomeError, match="another network"):
        home.create(tmp_path / "two.json", bytes(32))


def test_one_process_at_a_time_runs_a_peer(tmp_path):
    make_network().write(tmp_path / "net.json")
    home = Home(tmp_path / "ann")
    home.create(tmp_path / "net.json", bytes(32))
    assert not home.is_running()
    with home.lock():
        assert home.is_running()
        with pytest.raises(HomeError, match="another process"), home.lock():
            pass
    assert not home.is_running()


def test_a_folder_without_a_peer_or_samples_says_so(tmp_path):
    with pytest.raises(HomeError, match="dada peer init"):
        Home(tmp_path / "nobody").read()
    make_network().write(tmp_path / "net.json")
    home = Home(tmp_path / "ann")
    home.create(tmp_path / "net.json", bytes(32))
    with pytest.raises(HomeError, match="dada peer run --data"):
        home.read_samples()


@contextlib.contextmanager
def full_disk():
    """No file of this process may grow beyond a few bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_half_a_peer(tmp_path):
    network = make_network()
    network.write(tmp_path / "net.json")
    home = Home(tmp_path / "ann")
    with pytest.raises(OSError, match=r"no room to write .*other\.json.*free some space"), full_disk():
        network.write(tmp_path / "other.json")
    with pytest.raises(OSError, match=r"no room to write .*ann"), full_disk():
        home.create(tmp_path / "net.json", bytes(32))
    assert not (tmp_path / "other.json").exists()
    assert list(home.folder.iterdir()) == []
    home.create(tmp_path / "net.json", bytes(32))


def test_the_files_of_a_peer_are_for_its_owner_alone_in_an_open_folder(tmp_path):
    make_network().write(tmp_path / "net.json")
    tmp_path.chmod(0o755)
    home = Home(tmp_path)
    (tmp_path / "net.json").rename(tmp_path / "given.json")
    home.create(tmp_path / "given.json", bytes(32))
    store = Store(home.state)
    store.write([Persist(b"model", b"m")])
    home.write_status({})
    home.give_name(bytes(32), "Bob")
    files = [path for path in tmp_path.iterdir() if path.name != "given.json"]
    assert {path.name for path in files} >= {"key", "network.json", "state.sqlite", "state.sqlite-wal", "names.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    store.close()


def test_damaged_files_are_named_in_one_line(tmp_path):
    make_network().write(tmp_path / "net.json")
    home = Home(tmp_path / "ann")
    home.create(tmp_path / "net.json", bytes(32))
    for content in (b"", b"PK\x03\x04 half a file", b"text"):
        home.samples.write_bytes(content)
        with pytest.raises(HomeError, match=r"samples\.npz is damaged .*--data"):
            home.read_samples()
        home.status.write_bytes(content)
        assert home.read_status() == {"running": False}


def test_nicknames_are_kept_and_unique(tmp_path):
    home = Home(tmp_path)
    home.give_name(b"bob", "Bob")
    home.give_name(b"eve", "Eve")
    with pytest.raises(ValueError, match="another peer is called 'Bob'"):
        home.give_name(b"eve", "Bob")
    with pytest.raises(ValueError, match="printable"):
        home.give_name(b"eve", "a\nb")
    home.give_name(b"eve", "")
    assert home.read_names() == {b"bob".hex(): "Bob"}
