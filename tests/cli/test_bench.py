"""`dada bench` reports times and memory."""

import json

import pytest

from dada.cli import demo


@pytest.fixture(scope="module")
def result():
    return demo.measure(n_users=20, sizes=(20, 40), repetitions=1, graph_wakeups=500)


def test_memory_per_user_counts_data_model_and_neighbours():
    problem, graph = demo.moons_problem("dada-oracle", 20)
    at_least = problem.A.nbytes / 2 + 20 * problem.n_predictors * (4 + 4 + 2) + graph.indices.size * (4 + 8)
    assert at_least < 20 * demo.bytes_per_user(problem, graph) < 3 * at_least


def test_json_has_exactly_the_promised_keys(result, capsys):
    demo.print_report(result, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"moons", "scale"}
    assert set(report["moons"]) == {"model_update_us", "graph_step_us"}
    assert set(report["moons"]["model_update_us"]) == {"paper", "pairwise"}
    assert set(report["moons"]["graph_step_us"]) == {"exact"}
    assert [entry["users"] for entry in report["scale"]] == [20, 40]
    assert all(set(entry) == {"users", "model_update_us", "bytes_per_user"} for entry in report["scale"])


def test_without_json_it_prints_tables(result, capsys):
    demo.print_report(result, as_json=False)
    shown = capsys.readouterr().out
    assert "pairwise" in shown
    assert "bytes per user" in shown
