"""Few bits: the background graph, the switch to evidence, and what both send."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dada import task
from dada.core.accuracy import accuracy_per_user
from dada.core.block_steps import BlockStep
from dada.core.graph import CollaborationGraph
from dada.core.problem import Problem
from dada.data import Constant, Linear, Stumps, Union, moons
from dada.engine import Plan, run
from dada.events import TracePoint
from dada.fitting.collaboration import Collaboration, ask_peers, collaborate, deal_folds

SHORT = Collaboration(wakeups=30, before_switch=10)


def alike(rng, n_users=24, m=8, n=6, n_kinds=1):
    """Users whose rows follow one of some linear rules; a single rule is noisy, so that models differ by chance."""
    rules = np.eye(n)[:n_kinds] * 4
    A = rng.choice(np.array([-1.0, 1.0]), size=(n_users * m, n))
    kind = np.repeat(np.arange(n_users) % n_kinds, m)
    wrong = rng.random(len(A)) < (0.25 if n_kinds == 1 else 0.0)
    A = A * np.where(wrong, -1, np.sign((A * rules[kind]).sum(axis=1)))[:, None]
    return Problem(A.astype(np.int8), np.arange(0, n_users * m + 1, m), beta=10.0, mu1=0.3, loss="logistic")


def test_users_of_one_kind_stay_on_the_background():
    result = collaborate(alike(np.random.default_rng(0)), np.random.default_rng(1), SHORT)
    assert not result.by_evidence
    assert not result.graph.directed
    assert result.graph.neighbour_counts.max() <= 10
    assert result.gains.shape == (24,)


def test_users_of_several_kinds_go_over_to_evidence_among_their_own_kind():
    result = collaborate(alike(np.random.default_rng(0), n_kinds=3), np.random.default_rng(1), SHORT)
    assert result.by_evidence
    assert result.graph.directed
    assert result.graph.neighbour_counts.max() <= 8
    k, l, w = result.graph.edges()
    assert w[(k - l) % 3 == 0].sum() > 0.9 * w.sum()


def test_moons_users_are_as_right_as_on_their_oracle_graph_nearly():
    users = moons(1)
    recipe = Union(Stumps(per_feature=10, drop_duplicates=True), Linear(), Constant(coupling=0.1))
    predictors, _ = task.shared_predictors(recipe, users.train)
    problem = task.problem(users.train, predictors, beta=30.0, mu1=0.2, loss="logistic")
    test = task.samples(users.test, predictors)
    oracle = CollaborationGraph.from_scipy(users.oracle_weights())
    best = run(problem, Plan(400 * 100, learn_graph=False), np.random.default_rng(0), graph=oracle)
    result = collaborate(problem, np.random.default_rng(0))
    assert result.by_evidence
    reached, wanted = (accuracy_per_user(test, each.models).mean() for each in (result, best))
    assert reached > wanted - 0.05


@pytest.mark.parametrize("n_kinds", [1, 3])
def test_the_trace_and_the_ledger_are_of_all_runs(n_kinds):
    events = []
    problem = alike(np.random.default_rng(0), n_kinds=n_kinds)
    result = collaborate(problem, np.random.default_rng(1), SHORT, observer=events.append)
    points = [event for event in events if isinstance(event, TracePoint)]
    assert result.trace[-1].updates == 30 * 24
    assert result.trace[-1].bits == result.ledger.bits
    assert points[-1].bits == result.ledger.bits
    bits = [point.bits for point in result.trace]
    assert bits == sorted(bits)
    # Every user asked for at least ten models that it did not hold.
    assert result.ledger.graph_bits > 24 * 10 * 9


def test_the_same_seed_gives_the_same_bits_with_or_without_an_observer():
    problem = alike(np.random.default_rng(0), n_kinds=3)
    one = collaborate(problem, np.random.default_rng(5), SHORT)
    two = collaborate(problem, np.random.default_rng(5), SHORT, observer=lambda event: None)
    assert_array_equal(one.models, two.models)
    assert_array_equal(one.gains, two.gains)
    assert one.ledger.bits == two.ledger.bits


@pytest.mark.parametrize("n_users", [1, 2, 3, 12])
def test_few_users_and_regression_work_too(n_users):
    rng = np.random.default_rng(n_users)
    A = rng.normal(size=(6 * n_users, 3)).astype(np.float32)
    problem = Problem(
        A, np.arange(0, 6 * n_users + 1, 6), beta=5.0, mu1=0.1, loss="squared", offset=-(A @ [1.0, -2.0, 0.5]),
        weights=rng.uniform(0.5, 2, 6 * n_users),
    )  # fmt: skip
    result = collaborate(problem, rng, replace(SHORT, wakeups=60))
    assert np.abs(result.models - [1.0, -2.0, 0.5]).max() < 0.5
    assert (result.gains.size > 0) == (n_users > 2)


def test_comparing_needs_a_pull():
    problem = replace(alike(np.random.default_rng(0)), mu1=0.0)
    assert collaborate(problem, np.random.default_rng(1), SHORT).gains.size == 0


def test_rows_of_one_sample_are_in_one_fold():
    folds = deal_folds(np.array([6, 2, 12]), 2, np.random.default_rng(0))
    assert_array_equal(folds[0::2], folds[1::2])
    assert sorted(folds[:6:2].tolist()) == [0, 1, 2]
    assert folds[6:8].tolist() == [-1, -1]


@pytest.mark.parametrize("n_users", [3, 11, 12, 60])
def test_peers_asked_are_new_and_distinct(n_users):
    graph = CollaborationGraph.background(n_users, np.random.default_rng(0))
    for k, peers in enumerate(ask_peers(graph, 20, np.random.default_rng(1))):
        neighbours = graph.neighbours(k)[0]
        assert not np.isin(peers, np.append(neighbours, k)).any()
        assert len(set(peers.tolist())) == len(peers) == min(20, n_users - 1 - neighbours.size)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"before_switch": 90}, "before_switch must be in 0..wakeups = 80, got 90"), ({"ask": 0}, "ask must be >= 1")],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Collaboration(**settings)


def test_a_smaller_message_is_a_setting():
    problem = alike(np.random.default_rng(0))
    cheap = replace(SHORT, on_background=BlockStep(theta=0.5, quantise_bits=4, keep=0.5))
    bits = [collaborate(problem, np.random.default_rng(1), settings).ledger.bits for settings in (cheap, SHORT)]
    assert bits[0] < bits[1]
