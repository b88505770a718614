"""Base predictors of a network from summaries of its users, without a sample."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dada.cli.app import app
from dada.cli.new_networks import LEAST_ROWS, read_all, read_summary
from dada.cli.peer_tables import read_rows
from dada.data import FeatureSummary, predictors_from_arrays
from dada.net.network_file import read_network
from dada.peer.model import OwnModel


def run(*arguments):
    return CliRunner().invoke(app, ["peer", *map(str, arguments)])


@pytest.fixture
def tables(tmp_path):
    """Three users' tables: 40, 30 and 25 rows of two features."""
    rng = np.random.default_rng(0)
    for name, size in (("ann", 40), ("bob", 30), ("eve", 25)):
        X = rng.normal(size=(size, 2)) * [1.0, 10.0]
        lines = [f"{a},{b},{'yes' if a > 0 else 'no'}" for a, b in X]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,income,came", *lines]) + "\n")
    return tmp_path


def summaries(folder, *names):
    paths = [folder / f"{name}.json" for name in names]
    for name, path in zip(names, paths, strict=True):
        assert run("summarise", folder / f"{name}.csv", "--label", "came", "-o", path).exit_code == 0
    return paths


def test_files_merge_to_the_same_in_any_order(tables):
    ann, bob, eve = summaries(tables, "ann", "bob", "eve")
    first, last = read_all([ann, bob, eve]), read_all([eve, ann, bob])
    assert first.users == 3
    assert first.summary.count == 95
    np.testing.assert_allclose(first.summary.mean, last.summary.mean)
    np.testing.assert_allclose(first.summary.std, last.summary.std)
    one, other = (merged.predictors(4).parts[0].threshold for merged in (first, last))
    np.testing.assert_array_equal(one, other)


def test_a_file_passed_from_user_to_user_equals_collected_ones(tables):
    ann, bob = summaries(tables, "ann", "bob")
    done = run("summarise", tables / "bob.csv", "--label", "came", "--onto", ann, "-o", tables / "next.json")
    assert "70 rows of 2 users" in done.stdout
    passed, collected = read_summary(tables / "next.json"), read_all([ann, bob])
    np.testing.assert_array_equal(passed.summary.mean, collected.summary.mean)
    np.testing.assert_array_equal(passed.summary.points[0][0], collected.summary.points[0][0])


def test_every_value_represents_at_least_five_rows(tables):
    rows = np.loadtxt(tables / "ann.csv", delimiter=",", skiprows=1, usecols=(0, 1))
    (path,) = summaries(tables, "ann")
    summary = read_summary(path).summary
    for d, (values, weights) in enumerate(summary.points):
        assert len(values) <= len(rows) // LEAST_ROWS
        assert (weights >= LEAST_ROWS).all()
        assert rows[:, d].min() < summary.low[d] < summary.high[d] < rows[:, d].max()


def test_predictors_of_the_network_fit_the_data(tables):
    paths = summaries(tables, "ann", "bob", "eve")
    options = [part for path in paths for part in ("--summary", path)]
    assert run("new-network", tables / "net.json", *options, "--stumps", "4").exit_code == 0
    network = read_network(tables / "net.json")
    assert (network.features, network.target.classes) == (("age", "income"), ("no", "yes"))
    predictors = predictors_from_arrays(network.predictors, network.arrays)
    described = [predictors.describe(j, network.features) for j in range(predictors.n)]
    assert (len(described), described[-1]) == (4 * 2 + 2 + 1, "always +1")
    whole = FeatureSummary.of_all(
        FeatureSummary.of(np.loadtxt(tables / f"{name}.csv", delimiter=",", skiprows=1, usecols=(0, 1)))
        for name in ("ann", "bob", "eve")
    )
    linear = predictors.parts[1]
    np.testing.assert_allclose(linear.mean, whole.mean)
    np.testing.assert_allclose(linear.scale, whole.std)
    own = OwnModel(read_rows(tables / "ann.csv", "came", network), network.config)
    before = own.loss
    for _ in range(30):
        own.step(gamma=-1.0, confidence=1.0)
    assert own.loss < before - 0.5
    assert np.abs(own.model.alpha).sum() <= network.config.beta * (1 + 1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "else"}, "its format is not"),
        ({"version": 9}, "update the older"),
        ({"mean": [0.0]}, "one entry for each of the 2 features"),
        ({"rows": 3}, "add up to the number of rows"),
        ({"users": 30}, "at least 5"),
        ({"squares": [-1.0, 1.0]}, "squares >= 0"),
        ({"points": [[[1.0, 0.0], [20.0, 20.0]]] * 2}, "must ascend"),
        ({"low": [float("nan"), 0.0]}, "must be finite"),
        ({"features": None}, "not a summary file"),
    ],
)
def test_a_damaged_file_is_refused(tables, change, message):
    (path,) = summaries(tables, "ann")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    done = run("new-network", tables / "net.json", "--summary", path)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert not (tables / "net.json").exists()


def test_too_few_rows_other_features_and_one_label_are_refused(tables):
    few = tables / "few.csv"
    few.write_text("age,income,came\n1,2,no\n2,3,yes\n")
    done = run("summarise", few, "--label", "came", "-o", tables / "few.json")
    assert (done.exit_code, "at least 5 rows" in " ".join(done.stderr.split())) == (2, True)
    (ann,) = summaries(tables, "ann")
    other = tables / "other.csv"
    other.write_text("age,weight,came\n" + "1,2,no\n" * 6)
    done = run("summarise", other, "--label", "came", "--onto", ann, "-o", tables / "both.json")
    assert "['income', 'weight']" in done.stderr
    assert run("summarise", other, "--label", "came", "-o", tables / "o.json").exit_code == 0
    assert (
        "two or more different classes" in run("new-network", tables / "n.json", "--summary", tables / "o.json").stderr
    )
