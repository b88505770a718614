"""`dada bench scale` reports cost and memory for each size, with the setting."""

import json

import pytest
from typer.testing import CliRunner

from dada.cli.app import app
from dada.cli.bench import many
from dada.core import memory


@pytest.mark.parametrize("threads", [1, 2])
def test_cost_and_memory_are_reported_for_each_size(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(many, "TIMED", 300)
    monkeypatch.setattr(many, "REPETITIONS", 1)
    sizes = ["--users", "50", "--users", "100", "--threads", str(threads)]
    result = CliRunner().invoke(app, ["bench", "scale", "--json", *sizes])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    small, large = report["scale"]
    assert (small["users"], large["users"]) == (50, 100)
    assert small["cost_ratio"] == 1.0
    assert 0 < large["update_us"] == pytest.approx(1e6 / large["updates_per_s"])
    assert large["near_update_us"] > 0
    # alpha, pull and support alone: 200 predictors at 10 bytes; margins, lists of 20 and candidates come on top.
    assert 2000 < large["state_bytes"] < 3000
    assert report["setting"]["neighbours"] == 20
    assert ("thread_speedup" in large) == (threads > 1)


def test_a_population_that_does_not_fit_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 2_000_000_000)
    monkeypatch.setattr(many.Many, "of", lambda n_users: pytest.fail("made a population"))
    result = CliRunner().invoke(app, ["bench", "scale", "--users", "1000", "--users", "1000000"])
    assert result.exit_code == 2
    assert "a benchmark of 1,000,000 users needs about 6" in result.stderr
    assert "2.0 GB are free" in result.stderr
