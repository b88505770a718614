"""`dada sim` prints what a simulated network came to, and `dada replay` repeats a peer's life."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from dada.cli.app import app
from dada.data import moons
from dada.data.tables import write_users
from dada.sim.invariants import InvariantError
from dada.sim.simulation import SimulatedNetwork

runner = CliRunner()
SMALL = ("sim", "--users", "8", "--steps", "8", "--seed", "3")


def test_the_result_as_json():
    result = runner.invoke(app, [*SMALL, "--faults", "loss,churn", "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["users"], found["steps"], found["seed"], found["faults"]) == (8, 8, 3, "loss,churn")
    assert (found["honest"], found["violations"]) == (8, 0)
    for name in ("test", "together", "local", "engine"):
        assert 0.4 < found[f"{name}_accuracy"] <= 1.0
    for name in ("messages", "bytes", "lost", "events", "invariants_checked"):
        assert found[name] > 0


def test_both_ways_to_choose_neighbours():
    found = {}
    for graph in ("evidence", "distance"):
        result = runner.invoke(app, [*SMALL, "--faults", "none", "--graph", graph, "--json"])
        found[graph] = json.loads(result.stdout)
        assert found[graph]["graph"] == graph
        assert found[graph]["edges"] > 0
    assert found["evidence"]["bytes"] != found["distance"]["bytes"]


def test_peers_with_trees():
    result = runner.invoke(app, ["sim", "--users", "4", "--steps", "3", "--predictors", "trees", "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["trees"]["alive"] > 30
    assert found["trees"]["sent_bytes"] > 0


@pytest.mark.parametrize(
    ("protects", "graph"),
    [(("--protects", "labels"), None), (("--protects", "rows", "--ranges", "0", "1"), "evidence")],
)
def test_private_peers(tmp_path, protects, graph):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (600, 2)).round(3)
    table = pl.DataFrame(X, schema=["a", "b"]).with_columns(who=np.repeat(np.arange(15), 40), came=X[:, 0] > 0.5)
    table.write_csv(tmp_path / "t.csv")
    options = ["--user", "who", "--label", "came", "--epsilon", "8", "--faults", "churn", "--steps", "30", "--json"]
    journal = str(tmp_path / "journal")
    result = runner.invoke(app, ["sim", str(tmp_path / "t.csv"), *options, *protects, "--journal", journal])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["privacy"] == {"epsilon": 8.0, "released": 15}
    assert found["graph"] == graph or graph is None
    assert found["test_accuracy"] > 0.8
    assert runner.invoke(app, ["replay", journal]).stdout.startswith("The same state, bit for bit")


def test_private_peers_grow_no_trees():
    result = runner.invoke(app, ["--debug", *SMALL, "--predictors", "trees", "--epsilon", "1"])
    assert "trees reveal rows of their owners" in str(result.exception)
    shown = runner.invoke(app, [*SMALL, "--faults", "none", "--epsilon", "4"]).stdout
    assert "8 peers have made their release, with epsilon 4" in shown


def test_peers_that_boost_trees():
    options = ["--users", "6", "--data", "xor", "--steps", "20", "--faults", "none", "--predictors", "boosted"]
    result = runner.invoke(app, ["sim", *options, "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["boosted"]["trees"] > 5
    assert found["boosted"]["growers"] > 1
    assert found["boosted"]["sent_bytes"] > 1000
    assert "boosted trees of" in runner.invoke(app, ["sim", *options]).stdout


def test_the_result_as_a_table():
    result = runner.invoke(app, [*SMALL, "--faults", "none"])
    assert result.exit_code == 0
    assert "8 honest users of 8" in result.stdout
    assert "none violated" in result.stdout


def test_a_journal_is_written_and_replayed(tmp_path):
    path = tmp_path / "first.journal"
    assert runner.invoke(app, [*SMALL, "--journal", str(path)]).exit_code == 0
    result = runner.invoke(app, ["replay", str(path)])
    assert result.exit_code == 0
    assert "The same state, bit for bit" in result.stdout


def test_a_file_that_is_no_journal_is_refused(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(b"something else")
    result = runner.invoke(app, ["replay", str(path)])
    assert result.exit_code == 2
    assert "this is not a journal" in result.stderr


def test_a_violation_names_the_command_that_repeats_it(monkeypatch):
    def broken(self, *_):
        raise InvariantError(f"something is wrong\nreplay: {self.invariants.replay}")

    monkeypatch.setattr(SimulatedNetwork, "run", broken)
    result = runner.invoke(app, [*SMALL, "--faults", "all"])
    assert result.exit_code == 1
    assert "dada sim --users 8 --data moons --steps 8 --seed 3 --faults all --graph evidence" in " ".join(
        result.stderr.split()
    )


@pytest.mark.parametrize(("option", "value"), [("--faults", "rain"), ("--data", "stars"), ("--graph", "paper")])
def test_what_is_not_known_is_refused(option, value):
    result = runner.invoke(app, [*SMALL, option, value])
    assert result.exit_code == 2
    assert value in result.stderr


@pytest.mark.parametrize(("label", "measure"), [("level", "accuracy"), ("score", "R2")])
def test_a_network_of_several_classes_or_numbers(tmp_path, label, measure):
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(90, 2)), np.repeat(["ann", "bob", "eve"], 30)
    score = 2 * X[:, 0] + 0.1 * rng.normal(size=90)
    level = np.array(["low", "middle", "top"])[np.digitize(score, [-1, 1])]
    table = pl.DataFrame({"x": X[:, 0], "y": X[:, 1], "user": users, "level": level, "score": score})
    table.drop("level" if label == "score" else "score").write_csv(tmp_path / "people.csv")
    options = ("--user", "user", "--label", label, "--steps", "20", "--faults", "loss", "--json")
    found = runner.invoke(app, ["sim", str(tmp_path / "people.csv"), *options])
    assert found.exit_code == 0, found.stderr
    result = json.loads(found.stdout)
    assert result["measure"] == measure
    assert result["together_accuracy"] > result["engine_accuracy"] - 0.15
    assert result["engine_accuracy"] > 0.7


def test_a_network_of_the_users_of_a_table(tmp_path):
    people = moons(0, n_users=6, n_test=30, dimensions=3).test
    path = tmp_path / "my points.parquet"
    write_users(people, path)
    found = runner.invoke(app, ["sim", str(path), "--user", "user", "--label", "label", "--steps", "6", "--json"])
    assert found.exit_code == 0, found.stderr
    result = json.loads(found.stdout)
    assert (result["users"], result["data"], result["violations"]) == (6, "my points.parquet", 0)
    assert result["engine_accuracy"] > 0.7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--user", "user"), "give FILE too"),
        (("FILE", "--user", "user"), "--user and --label are needed"),
        (("FILE", "--user", "user", "--label", "label", "--users", "5"), "leave them out"),
        (("--data", "school", "--users", "5"), "leave it out"),
        (("missing.csv", "--user", "user", "--label", "x0"), "missing.csv"),
    ],
)
@pytest.mark.parametrize("command", ["sim", "swarm"])
def test_users_that_make_no_network_are_refused_in_one_line(tmp_path, command, arguments, message):
    path = tmp_path / "points.parquet"
    write_users(moons(0, n_users=3, n_test=30, dimensions=3).test, path)
    found = runner.invoke(app, [command, *(str(path) if word == "FILE" else word for word in arguments)])
    assert found.exit_code == 2
    assert message in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_simulation_needs_no_transport():
    code = "import sys; sys.modules['iroh'] = None; import dada.cli.simulated_runs"
    subprocess.run([sys.executable, "-c", code], check=True)
