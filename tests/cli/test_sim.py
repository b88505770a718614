"""`dada sim` prints what a simulated network came to, and `dada replay` repeats a peer's life."""

import json

import pytest
from typer.testing import CliRunner

from dada.cli import app
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
    assert "dada sim --users 8 --steps 8 --seed 3 --faults all --data moons --graph evidence" in " ".join(
        result.stderr.split()
    )


@pytest.mark.parametrize(("option", "value"), [("--faults", "rain"), ("--data", "stars"), ("--graph", "paper")])
def test_what_is_not_known_is_refused(option, value):
    result = runner.invoke(app, [*SMALL, option, value])
    assert result.exit_code == 2
    assert value in result.stderr
