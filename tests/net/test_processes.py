"""Peers as real processes on real sockets: started by commands, killed, restarted, stopped."""

import contextlib
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from typer.testing import CliRunner

from dada.cli.app import app
from dada.cli.peer_tables import read_rows
from dada.data import moons
from dada.net.forkserver import Swarm, SwarmError, rehearse
from dada.net.home import Home
from dada.net.process import RunOptions, arguments, parse
from dada.net.store import read_records
from dada.peer.peer import replay

COMMAND = [sys.executable, "-c", "from dada.cli.app import main; main()"]
PATIENCE_S = 60.0


def dada(*line, check=True):
    """Run a command in this process, which `peer run` must not replace."""
    with patch.object(os, "execve", side_effect=AssertionError("the command became a running peer")):
        done = CliRunner().invoke(app, [*map(str, line)])
    assert not check or done.exit_code == 0, done.stderr
    return done


def refused(*line):
    """What a command prints that refuses to run, in a process of its own."""
    done = subprocess.run([*COMMAND, *map(str, line)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr


def wait_for(holds, patience_s=PATIENCE_S):
    """Look at files that other processes write, until something holds."""
    deadline = time.monotonic() + patience_s
    while not (found := holds()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def status_of(home):
    with contextlib.suppress(FileNotFoundError):
        return Home(home).read_status()
    return {}


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A network file, and three homes with samples of their own."""
    folder = tmp_path_factory.mktemp("people")
    users = moons(1, n_users=4, dimensions=2)
    for k, name in enumerate(("ann", "bob", "eve")):
        rows = slice(users.train.row_start[k], users.train.row_start[k + 1])
        lines = [f"{x},{y},{l}" for (x, y), l in zip(users.train.X[rows], users.train.y[rows], strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["x,y,label", *lines]) + "\n")
    dada(
        "peer", "new-network", folder / "net.json", "--feature", "x:-3:3", "--feature", "y:-3:3",
        "--classes=-1,1", "--private", "--rate", "20",
    )  # fmt: skip
    for name in ("ann", "bob", "eve"):
        dada("peer", "init", "--home", folder / name, "--network", folder / "net.json")
        home = Home(folder / name)
        network = home.read()[1]
        home.write_samples(read_rows(folder / f"{name}.csv", "label", network))
    # Tests with a time limit find the kernels in Numba's cache.
    rehearse(home.read_samples(), network.config)
    return folder


@contextlib.contextmanager
def running(*lines):
    """Processes of `dada peer run`; each is stopped at the end."""
    processes = [subprocess.Popen([*COMMAND, *map(str, line)], stderr=subprocess.PIPE, text=True) for line in lines]
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=PATIENCE_S)


def test_three_terminals(people):
    """The example of the documentation: one peer starts, two join by its ticket, all learn and predict."""
    first = ("peer", "run", "--home", people / "ann", "--data", people / "ann.csv", "--label", "label")
    with running(first) as (ann,):
        ticket = wait_for(lambda: status_of(people / "ann").get("ticket"))
        others = [
            ("peer", "run", "--home", people / n, "--data", people / f"{n}.csv", "--label", "label", "--join", ticket)
            for n in ("bob", "eve")
        ]
        with running((*others[0], "--journal"), others[1]) as (bob, eve):
            wait_for(lambda: all(status_of(people / n).get("known_peers") == 2 for n in ("ann", "bob", "eve")))
            wait_for(lambda: all(status_of(people / n).get("model_updates", 0) > 5 for n in ("ann", "bob", "eve")))
            shown = dada("peer", "status", "--home", people / "bob").stdout
            assert f"{bob.pid}, running" in shown
            assert "2 known" in shown
            labels = dada("peer", "predict", "--home", people / "bob", "--data", people / "bob.csv", "--json").stdout
            assert set(json.loads(labels)["labels"]) <= {"-1", "1"}
            again = dada("peer", "run", "--home", people / "bob", check=False)
            assert again.exit_code == 2
            assert "another process" in again.stderr
            assert eve.poll() is None
        assert (bob.returncode, eve.returncode) == (0, 0)
        # A peer's process replaces that of the command, without what only tables, terminals and private peers need.
        assert status_of(people / "ann")["pid"] == ann.pid
        mapped = Path(f"/proc/{ann.pid}/maps").read_text()
        assert "polars" not in mapped
        assert "scipy/optimize" not in mapped
    assert ann.returncode == 0
    stopped = json.loads(dada("peer", "status", "--home", people / "ann", "--json").stdout)
    assert stopped["running"] is False
    assert stopped["messages_sent"] > 0
    # Bob's life can be replayed from its journal.
    (journal,) = (people / "bob" / "journals").iterdir()
    assert stat.S_IMODE(journal.stat().st_mode) == 0o600
    with journal.open("rb") as file:
        found = replay(file)
    assert found.is_whole
    assert found.facts >= 2


def test_killed_at_any_moment_a_peer_comes_back_with_all_it_said(people):
    home = Home(people / "ann")
    line = arguments(home, RunOptions(wakeups_per_s=200.0))
    epochs, updates = [], []
    for delay_s in (0.0, 0.05, 0.12):
        home.status.unlink(missing_ok=True)
        process = subprocess.Popen(line, stderr=subprocess.DEVNULL)
        wait_for(lambda: home.status.exists())
        # No wait for anything in particular: the moment of the kill is meant to be any.
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        records = read_records(home.state)
        with contextlib.closing(sqlite3.connect(home.state)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        epochs.append(int.from_bytes(records[b"epoch"], "big"))
        updates.append(home.read_model())
    assert epochs == sorted(set(epochs))
    assert all(np.abs(model).sum() > 0 for model in updates)


def test_a_damaged_state_stops_a_peer_with_a_clear_message_and_can_be_recovered(people):
    home = Home(people / "eve")
    home.state.write_bytes(b"not a database" * 1000)
    key = home.key.read_bytes()
    failed = refused("peer", "run", "--home", people / "eve", "--data", people / "eve.csv", "--label", "label")
    assert "is damaged" in failed
    assert "dada peer init --recover" in failed
    output = dada("peer", "init", "--home", people / "eve", "--recover").stdout
    assert "state.sqlite.damaged-1" in output
    assert home.key.read_bytes() == key
    with running(("peer", "run", "--home", people / "eve")):
        wait_for(lambda: status_of(people / "eve").get("model_updates", 0) > 0)


def test_a_swarm_survives_kills_and_ends_cleanly(people, tmp_path):
    homes = []
    for k in range(4):
        home = Home(tmp_path / f"peer-{k}")
        home.create(people / "net.json", os.urandom(32))
        home.write_samples(Home(people / "bob").read_samples())
        homes.append(home)
    swarm = Swarm(homes, RunOptions(exchange_every_s=0.5), np.random.default_rng(0))
    try:
        swarm.start()
        wait_for(lambda: all(status.get("links", 0) >= 1 for status in swarm.statuses()))
        sent = sum(status["messages_sent"] for status in swarm.statuses())
        victim = swarm.kill_one()
        assert not victim.is_up
        assert sum(status.get("messages_sent", 0) for status in swarm.statuses()) >= sent
        assert swarm.revive() == [victim]
        wait_for(lambda: all(status.get("links", 0) >= 1 for status in swarm.statuses()))
        assert all(peer.is_up for peer in swarm.peers)
    finally:
        swarm.stop()
    assert (swarm.restarts, swarm.errors) == (1, 0)
    assert not any(peer.is_up for peer in swarm.peers)


def test_the_processes_of_a_swarm_share_the_memory_of_the_compiler(people, tmp_path):
    home = Home(tmp_path / "peer")
    home.create(people / "net.json", os.urandom(32))
    home.write_samples(Home(people / "bob").read_samples())
    swarm = Swarm([home], RunOptions(), np.random.default_rng(0))
    try:
        swarm.start()
        wait_for(lambda: swarm.statuses()[0].get("wakeups", 0) > 2)
        lines = Path(f"/proc/{swarm.peers[0].pid}/smaps_rollup").read_text().splitlines()[1:]
    finally:
        swarm.stop()
    kilobytes = {name: int(size.split()[0]) for name, size in (line.split(":") for line in lines)}
    assert kilobytes["Private_Dirty"] < 40_000 < kilobytes["Rss"]


def test_a_swarm_whose_peers_cannot_start_says_why(people, tmp_path):
    home = Home(tmp_path / "lost")
    home.create(people / "net.json", bytes(32))
    swarm = Swarm([home], RunOptions(), np.random.default_rng(0))
    with pytest.raises(SwarmError, match="no samples in"):
        swarm.start()


def test_a_command_line_says_what_its_options_say(tmp_path):
    options = RunOptions("0.0.0.0:1", True, ("dada1a", "dada1b"), frozenset({bytes(32)}), 2.5, 3.0, True, True)
    home, parsed = parse(arguments(Home(tmp_path), options)[3:])
    assert (home, parsed) == (Home(tmp_path), options)
    assert parse(arguments(Home(tmp_path), RunOptions())[3:])[1] == RunOptions()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (("run", "--home", "nowhere"), "dada peer init"),
        (("init", "--home", "new"), "--network is needed"),
        (("run", "--home", "{ann}", "--data", "{ann}.csv"), "--label is needed"),
        (("run", "--home", "{ann}", "--data", "{ann}.csv", "--label", "none"), "no column 'none'"),
        (("run", "--home", "{ann}", "--join", "nonsense"), "a ticket begins with"),
        (("run", "--home", "{ann}", "--allow", "xyz"), "64 hexadecimal digits"),
        (("name", "--home", "{ann}", "xyz", "Bob"), "64 hexadecimal digits"),
        (("new-network", "other.json", "--feature", "x"), "--feature name:low:high"),
        (("new-network", "other.json", "--feature", "x:1", "--classes", "a,b"), "name:low:high with two numbers"),
        (("new-network", "other.json", "--feature", "x:2:1", "--classes", "a,b"), "low < high"),
        (("new-network", "other.json", "--feature", "x:0:1", "--classes", "a"), "two or more different classes"),
        (("predict", "--home", "{ann}", "--data", "missing.csv"), "no such file"),
    ],
)
def test_mistakes_are_named_in_one_line(people, tmp_path, monkeypatch, line, complaint):
    monkeypatch.chdir(tmp_path)
    done = dada("peer", *(str(part).format(ann=people / "ann") for part in line), check=False)
    assert done.exit_code == 2
    assert complaint in done.stderr


def test_a_wrong_address_is_named_in_one_line(people):
    failed = refused("peer", "run", "--home", people / "ann", "--listen", "4040")
    assert "cannot listen at '4040': an address and a port" in failed


def test_a_network_like_a_table_takes_names_and_ranges_but_no_rows(people, tmp_path):
    (tmp_path / "t.csv").write_text("age,height,came\n31,170.125,yes\n64,155.5,no\n47,181.0,yes\n")
    dada("peer", "new-network", tmp_path / "net.json", "--like", tmp_path / "t.csv", "--label", "came", "--stumps", "4")
    content = json.loads((tmp_path / "net.json").read_text())
    assert content["predictors"]["features"] == ["age", "height"]
    assert content["predictors"]["target"]["classes"] == ["no", "yes"]
    assert content["secret"] is None
    assert "170.125" not in (tmp_path / "net.json").read_text()
