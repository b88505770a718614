"""`dada bench` reports what it promises, and the NumPy version that it times computes what the kernels compute."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.numpy_reference import NumpyPopulation
from dada.cli import app
from dada.cli.bench import measure
from dada.core.graph import CollaborationGraph
from dada.core.plan import GRAPH_STREAM, MODEL_STREAM, Plan, Schedule
from dada.core.problem import Problem
from dada.core.regularizers import LogDegree
from dada.data import moons
from dada.engine import run


@pytest.fixture(scope="module")
def users():
    return moons(2, n_users=20, n_test=1)


@pytest.fixture(scope="module")
def problem(users):
    """Margins of random size: between equal ones, rounding would decide which is chosen."""
    margins = np.random.default_rng(0).uniform(-1, 1, (users.train.n_rows, 30))
    return Problem(margins, users.train.row_start, beta=4.0, mu1=0.8, regularizer=LogDegree(lam=0.2, delta=0.1))


def schedule_of(seed, kappa):
    return Schedule.draw(np.random.default_rng(seed), 20, kappa)


def test_numpy_model_updates_are_those_of_the_engine(users, problem):
    graph = CollaborationGraph.from_scipy(users.oracle_weights())
    plan = Plan(300, learn_graph=False, step="paper")
    engine = run(problem, plan, np.random.default_rng(5), graph=graph, dtype=np.float64)
    population = NumpyPopulation(problem, graph.to_scipy().toarray())
    for t, k in enumerate(schedule_of(5, 1).users(MODEL_STREAM, 0, 300)):
        population.update_model(k, t)
    np.testing.assert_allclose(population.alpha, engine.models, atol=1e-9)


def test_numpy_graph_steps_are_those_of_the_engine(problem):
    plan = Plan(0, local_updates=200, first_graph_wakeups=150, kappa=4, step="paper")
    engine = run(problem, plan, np.random.default_rng(5), dtype=np.float64)
    population = NumpyPopulation(problem, np.zeros((20, 20)))
    population.alpha = engine.models
    schedule = schedule_of(5, 4)
    users, batches = schedule.users(GRAPH_STREAM, 0, 150), schedule.batches(0, 150)
    for k, batch in zip(users, batches, strict=True):
        population.update_weights(k, batch)
    np.testing.assert_allclose(population.weights, engine.graph.to_scipy().toarray(), atol=1e-7)


def test_the_repository_s_numpy_version_is_found():
    assert measure.numpy_reference().__name__ == "NumpyPopulation"


def test_without_the_repository_there_is_no_numpy_version(monkeypatch, tmp_path):
    monkeypatch.setattr(measure.dada, "__file__", str(tmp_path / "site-packages" / "dada" / "__init__.py"))
    assert measure.numpy_reference() is None


def test_memory_per_user_counts_data_model_and_neighbours(users, problem):
    graph = CollaborationGraph.from_scipy(users.oracle_weights())
    at_least = problem.A.nbytes / 2 + 20 * 30 * (4 + 4 + 2) + graph.indices.size * (4 + 8)
    assert at_least < 20 * measure.bytes_per_user(problem, graph) < 3 * at_least


@pytest.fixture
def small(monkeypatch):
    """A benchmark of almost no work."""
    settings = measure.demo_settings
    monkeypatch.setattr(measure, "demo_settings", lambda method, n_users=20: settings(method, 20))
    problem = measure.moons_problem
    monkeypatch.setattr(measure, "moons_problem", lambda method, n_users, **bounded: problem(method, 20))
    monkeypatch.setattr(measure, "GRAPH_WAKEUPS", 500)


def test_json_has_exactly_the_promised_keys(small):
    result = CliRunner().invoke(app, ["bench", "--quick", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report) == {"moons", "scale"}
    assert set(report["moons"]) == {"model_update_us", "graph_step_us"}
    assert set(report["moons"]["model_update_us"]) == {"paper", "pairwise", "numpy"}
    assert set(report["moons"]["graph_step_us"]) == {"exact", "numpy"}
    assert [entry["users"] for entry in report["scale"]] == [1000, 10000]
    assert all(set(entry) == {"users", "model_update_us", "bytes_per_user"} for entry in report["scale"])
    assert report["moons"]["model_update_us"]["paper"] < report["moons"]["model_update_us"]["numpy"]


def test_without_json_it_prints_tables(small):
    result = CliRunner().invoke(app, ["bench", "--quick"])
    assert result.exit_code == 0
    assert "pairwise" in result.stdout
    assert "10,000" in result.stdout


def test_an_installation_without_the_repository_says_so(small, monkeypatch):
    monkeypatch.setattr(measure, "numpy_reference", lambda: None)
    result = CliRunner().invoke(app, ["bench", "--quick", "--json"])
    assert json.loads(result.stdout)["moons"]["model_update_us"]["numpy"] is None
    assert "benchmarks/ of the repository" in result.stderr
