"""Networks of fifty peers with every fault: a short version of `make soak`."""

import json
import shlex

from typer.testing import CliRunner

from benchmarks.soak import soak, soak_all
from dada.cli.app import app
from dada.peer.model import OwnModel


def test_no_invariant_is_violated_whatever_the_seed():
    events = 0
    for seed in (1001, 1002):
        row = soak(seed, users=20, steps=12)
        assert row["violation"] is None, row["violation"]
        events += row["events"]
    assert events > 5_000


def test_finished_networks_are_not_run_again(tmp_path):
    file = tmp_path / "soak.jsonl"
    file.write_text(json.dumps({"seed": 3, "code": "another", "events": 5}) + "\n")
    first = soak_all(range(2), users=8, steps=2, file=file)
    reports = []
    again = soak_all(range(2), users=8, steps=2, file=file, report=reports.append)
    assert len(file.read_text().splitlines()) == 3
    assert not reports
    assert (again["events"], again["hash"]) == (first["events"], first["hash"])


def test_a_violation_prints_the_one_command_that_repeats_it(monkeypatch):
    step = OwnModel.step

    def grows(own, gamma, confidence):
        delta = step(own, gamma, confidence)
        if own.updates > 15:
            own.model.alpha[0] += 30.0
        return delta

    monkeypatch.setattr(OwnModel, "step", grows)
    for seed in (6, 7):
        what, line = soak(seed, users=12, steps=10)["violation"].split("\nreplay: ")
        assert "model of l1 norm" in what
        assert f"--seed {seed} " in line
        program, *arguments = shlex.split(line)
        assert program == "dada"
        again = CliRunner().invoke(app, arguments)
        assert again.exit_code == 1
        assert " ".join(what.split()) in " ".join(again.stderr.split())
    monkeypatch.undo()
    assert CliRunner().invoke(app, arguments).exit_code == 0
