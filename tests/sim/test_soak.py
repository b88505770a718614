"""Networks of fifty peers with every fault: a short version of `make soak`."""

import shlex

from typer.testing import CliRunner

from benchmarks.soak import soak
from dada.cli.app import app
from dada.peer.model import OwnModel


def test_no_invariant_is_violated_whatever_the_seed():
    events = 0
    for seed in range(1000, 1003):
        delivered, _, _, violation = soak(seed, steps=15)
        assert violation is None, violation
        events += delivered
    assert events > 10_000


def test_a_violation_prints_the_one_command_that_repeats_it(monkeypatch):
    step = OwnModel.step

    def grows(own, gamma, confidence):
        delta = step(own, gamma, confidence)
        if own.updates > 15:
            own.model.alpha[0] += 30.0
        return delta

    monkeypatch.setattr(OwnModel, "step", grows)
    for seed in (6, 7):
        _, _, _, violation = soak(seed, users=12, steps=10)
        what, line = violation.split("\nreplay: ")
        assert "model of l1 norm" in what
        assert f"--seed {seed} " in line
        program, *arguments = shlex.split(line)
        assert program == "dada"
        again = CliRunner().invoke(app, arguments)
        assert again.exit_code == 1
        assert " ".join(what.split()) in " ".join(again.stderr.split())
    monkeypatch.undo()
    assert CliRunner().invoke(app, arguments).exit_code == 0
