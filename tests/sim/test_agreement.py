"""On a perfect network with the same schedule, peers compute what the compiled engine computes, bit for bit."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dada.core.block_steps import BlockStep
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import DegreeTarget, LogDegree
from dada.core.problem import Problem
from dada.data import Constant, Linear, Population, Stumps, Union
from dada.engine import Plan, run
from dada.task import problem as problem_of
from tests.helpers.lockstep import Lockstep
from tests.helpers.problems import random_graph

STEPS = ("pairwise", "paper", "local", "line-search")


def users(seed, K=7, n=12):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, K)
    A = rng.choice(np.array([-1, 1], np.int8), size=(sizes.sum(), n))
    return A, np.concatenate([[0], np.cumsum(sizes)])


def assert_same(problem, plan, seed, graph=None, dtype="float32", n_classes=2):
    engine = run(problem, plan, np.random.default_rng(seed), graph=graph, dtype=np.dtype(dtype).type)
    peers = Lockstep(problem, plan, graph, dtype, n_classes)
    peers.run(np.random.default_rng(seed))
    assert_array_equal(peers.models, engine.models)
    if plan.step == "block":
        assert_array_equal(peers.shared, engine.shared.model)
        assert_array_equal(peers.ledger.coded, engine.ledger.coded)
    assert_array_equal(peers.graph.indices, engine.graph.indices)
    assert_array_equal(peers.graph.weights, engine.graph.weights)
    assert_array_equal(peers.counts, engine.ledger.models + engine.ledger.graph)
    assert engine.graph.n_edges > 0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("graph_step", ["exact", "lipschitz"])
def test_peers_and_engine_give_the_same_bits(step, graph_step, seed):
    A, row_start = users(seed)
    problem = Problem(A, row_start, beta=3.0, mu1=0.7, regularizer=LogDegree(lam=0.2, delta=0.5))
    assert_same(problem, Plan(n_updates=400, step=step, graph_step=graph_step, kappa=3, graph_every=90), seed)


@pytest.mark.parametrize("restart", ["zero", "local"])
@pytest.mark.parametrize("graph_loss", ["mean", "paper", "logistic"])
def test_peers_and_engine_agree_whatever_the_settings(restart, graph_loss):
    A, row_start = users(5, K=6)
    coupling = np.linspace(0.1, 1.0, A.shape[1])
    problem = Problem(
        A * np.float32(0.7), row_start, beta=2.0, mu1=0.5, mu2=0.3, loss="logistic",
        regularizer=DegreeTarget(target=2.0, lam=0.3), graph_loss=graph_loss, coupling=coupling,
    )  # fmt: skip
    assert_same(problem, Plan(n_updates=1200, restart=restart, kappa=2, graph_every=300), 11)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("step", STEPS)
def test_peers_and_engine_follow_the_same_models(step, seed):
    A, row_start = users(seed, K=9)
    problem = Problem(A, row_start, beta=3.0, mu1=0.7)
    plan = Plan(n_updates=600, step=step, kappa=3, graph_every=90, graph_rule="evidence", n_neighbours=3, tau=0.5)
    assert_same(problem, plan, seed)


@pytest.mark.parametrize("restart", ["zero", "local"])
def test_peers_and_engine_judge_real_margins_alike(restart):
    A, row_start = users(7, K=8)
    problem = Problem(A * np.float32(0.7), row_start, beta=2.0, mu1=0.5, loss="logistic")
    plan = Plan(n_updates=1200, restart=restart, kappa=2, graph_every=250, graph_rule="evidence", n_neighbours=2)
    assert_same(problem, plan, 3)


def test_peers_and_engine_agree_where_base_predictors_are_larger_than_one():
    A, row_start = users(8, K=6)
    problem = Problem(A * np.float32(5.0), row_start, beta=3.0, mu1=0.7, regularizer=LogDegree(lam=0.2, delta=0.5))
    assert_same(problem, Plan(n_updates=400, kappa=3, graph_every=90), 4)


SPARSE = LogDegree(lam=0.2, delta=0.5)
RULES = ({"graph_rule": "evidence", "n_neighbours": 3}, {"graph_rule": "distance"})
BLOCK_STEPS = (
    BlockStep(),
    BlockStep(theta=0.5),
    BlockStep(inner_moves=10, momentum=0.0, quantise_bits=6, silence=0.02),
    BlockStep(quantise_bits=3, keep=0.0, silence=0.0),
)


@pytest.mark.parametrize("block", BLOCK_STEPS)
@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1), ("float64", 0.7)])
def test_block_steps_on_a_given_graph_give_the_same_bits(block, dtype, scale):
    A, row_start = users(3, K=8)
    margins = A if scale == 1 else A * np.dtype(dtype).type(scale)
    problem = Problem(margins, row_start, beta=3.0, mu1=0.7, loss="logistic")
    graph = random_graph(np.random.default_rng(5), 8)
    assert_same(problem, Plan(n_updates=1000, learn_graph=False, step="block", block=block), 2, graph, dtype)


@pytest.mark.parametrize("block", BLOCK_STEPS)
@pytest.mark.parametrize(("rule", "dtype", "restart"), [(RULES[0], "float64", "local"), (RULES[1], "float32", "zero")])
def test_block_steps_on_a_learned_graph_give_the_same_bits(block, rule, dtype, restart):
    A, row_start = users(4, K=9)
    problem = Problem(A * np.dtype(dtype).type(0.7), row_start, beta=3.0, mu1=0.7, loss="logistic", regularizer=SPARSE)
    plan = Plan(n_updates=600, step="block", block=block, restart=restart, kappa=3, graph_every=90, **rule)
    assert_same(problem, plan, 6, dtype=dtype)


def targets(kind, seed=9):
    """Rows of several users with weights, and with targets of a kind."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 5))
    y = np.round(X[:, 0] + rng.normal(size=60)).clip(-1, 1) if kind == "classes" else X[:, 0] + rng.normal(size=60)
    y = np.where(X[:, 0] > 0, 1, -1) if kind == "signs" else y
    numbers = {"task": "numbers"} if kind == "numbers" else {}
    weights = rng.uniform(0.2, 3.0, 60)
    return Population.from_arrays(X, y, rng.integers(7, size=60), sample_weight=weights, **numbers)


PREDICTORS = (Union(Linear(clip=2.0), Constant(coupling=0.1)), Union(Stumps(n=6), Linear()))


@pytest.mark.parametrize("predictors", PREDICTORS, ids=["linear", "stumps"])
@pytest.mark.parametrize(
    ("kind", "loss"),
    [("signs", "adaboost"), ("signs", "squared-hinge"), ("classes", "logistic"), ("numbers", "squared"),
     ("numbers", "huber")],
)  # fmt: skip
def test_all_targets_weights_and_losses_give_the_same_bits(kind, loss, predictors):
    people = targets(kind)
    rows = problem_of(people, predictors.fit(people.X), beta=5.0, mu1=0.3, mu2=5.0, loss=loss, regularizer=SPARSE)
    background = CollaborationGraph.background(people.n_users, np.random.default_rng(1), 4)
    fixed = Plan(n_updates=200, learn_graph=False, step="block", block=BlockStep(theta=0.5))
    assert_same(rows, fixed, 1, background, n_classes=people.n_classes)
    # Each kind of predictors meets each rule and each step; both kinds together meet each pair of them.
    steps = ("block", "pairwise") if predictors is PREDICTORS[0] else ("pairwise", "block")
    for rule, step in zip(RULES, steps, strict=True):
        plan = Plan(n_updates=200, step=step, kappa=3, graph_every=50, **rule)
        assert_same(rows, plan, 2, n_classes=people.n_classes)


@pytest.mark.parametrize(("setting", "value"), [("max_neighbours", 2), ("sampler", "gossip"), ("latency", 0.1)])
def test_what_only_the_engine_has_is_refused_by_name(setting, value):
    A, row_start = users(0)
    with pytest.raises(ValueError, match=f"peers in lockstep have no {setting}"):
        Lockstep(Problem(A, row_start, beta=3.0, mu1=0.7), Plan(n_updates=10, kappa=2, **{setting: value}))


def test_offsets_of_rows_of_classes_are_refused_by_name():
    A, row_start = users(0)
    problem = Problem(A, row_start, beta=3.0, mu1=0.7, offset=np.ones(len(A), np.float32))
    with pytest.raises(ValueError, match="rows have offsets for numbers only"):
        Lockstep(problem, Plan(n_updates=10, kappa=2))
