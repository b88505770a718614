from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import DegreeTarget, LogDegree
from dada.core.problem import Problem
from tests.helpers.problems import (
    INVERSE_DEGREE,
    LOSSES,
    check_model_gradient,
    loss_in_numpy,
    margins_in_numpy,
    random_graph,
    random_models,
    random_problem,
)
from tests.helpers.theory import curvature_bound, expected_new_peers, graph_gradient, graph_rate, primal_bound

each_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: getattr(loss, "name", loss))
REGULARIZERS = {"log": LogDegree(0.3, 0.2), "target": DegreeTarget(2.0, 0.4, 0.1), "own": INVERSE_DEGREE}
each_regularizer = pytest.mark.parametrize("regularizer", REGULARIZERS.values(), ids=REGULARIZERS)


def regularizer_in_numpy(regularizer, graph):
    _, _, w = graph.edges()
    if isinstance(regularizer, LogDegree):
        return regularizer.lam * w @ w - np.log(graph.degree + regularizer.delta).sum()
    if isinstance(regularizer, DegreeTarget):
        wanted = ((graph.degree - regularizer.target) ** 2).sum() / 2
        return regularizer.lam * w @ w + regularizer.l1 * w.sum() + wanted
    return regularizer.lam * w @ w + sum(regularizer.value(d) for d in graph.degree)


def drawn(seed, **settings):
    rng = np.random.default_rng(seed)
    coupling = rng.uniform(0, 2, 6)
    problem = random_problem(rng, coupling=coupling, mu2=0.4, shifted=seed % 2, **settings)
    return problem, random_graph(rng, problem.n_users), random_models(rng, problem)


@each_loss
@each_regularizer
def test_the_objective_is_equation_1(loss, regularizer):
    problem, graph, alpha = drawn(3, loss=loss, regularizer=regularizer, graph_loss="paper")
    own = [problem.confidence[k] * loss_in_numpy(loss, margins_in_numpy(problem, k, alpha[k])) for k in range(5)]
    pulls = [w * (problem.coupling @ (alpha[k] - alpha[l]) ** 2) for k, l, w in zip(*graph.edges(), strict=True)]
    models = graph.degree @ own + 0.7 / 2 * sum(pulls)
    assert_allclose(problem.model_objective(alpha, graph), models, rtol=1e-12)
    expected = models + 0.4 * regularizer_in_numpy(regularizer, graph)
    assert_allclose(problem.objective(alpha, graph), expected, rtol=1e-12)
    assert_allclose(problem.graph_objective(alpha, graph), expected, rtol=1e-12)


@each_loss
@pytest.mark.parametrize("graph_loss", ["mean", "paper", "logistic"])
def test_model_gradients_are_those_of_the_model_objective(loss, graph_loss):
    # A loss of residuals has no margins for a logistic graph loss: the problem is refused.
    graph_loss = "mean" if loss in ("squared", "huber") else graph_loss
    problem, graph, alpha = drawn(5, loss=loss, graph_loss=graph_loss)
    check_model_gradient(problem, graph, alpha)


@each_loss
def test_a_user_without_neighbours_has_the_gradient_of_its_local_loss(loss):
    problem, _, alpha = drawn(5, loss=loss)
    gradient = problem.model_gradient(alpha, CollaborationGraph.empty(5))
    for k in range(5):
        for j in range(6):
            step = np.zeros(6)
            step[j] = 1e-5
            ahead, behind = (loss_in_numpy(loss, margins_in_numpy(problem, k, alpha[k] + s * step)) for s in (1, -1))
            assert_allclose(gradient[k, j], problem.confidence[k] * (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-7)


@each_regularizer
@pytest.mark.parametrize("graph_loss", ["mean", "paper", "logistic"])
def test_graph_gradients_are_those_of_the_graph_objective(regularizer, graph_loss):
    problem, graph, alpha = drawn(6, regularizer=regularizer, graph_loss=graph_loss)
    pairs = np.triu_indices(5, 1)
    gradient = graph_gradient(problem, alpha, graph, *pairs)
    dense = graph.to_scipy().toarray()
    for p, (k, l) in enumerate(zip(*pairs, strict=True)):
        values = []
        # Where there is no edge the weight cannot fall: the one-sided difference of second order is taken.
        at = (1e-5, -1e-5) if dense[k, l] > 1e-5 else (0.0, 1e-5, 2e-5)
        for step in at:
            moved = dense.copy()
            moved[k, l] += step
            moved[l, k] += step
            values.append(problem.graph_objective(alpha, CollaborationGraph.from_scipy(moved)))
        slope = (values[0] - values[1]) / 2e-5 if len(at) == 2 else (4 * values[1] - values[2] - 3 * values[0]) / 2e-5
        assert_allclose(gradient[p], slope, rtol=1e-5, atol=1e-6)


@each_loss
def test_the_gap_is_never_negative_and_grows_from_a_minimum(loss):
    problem, graph, alpha = drawn(7, loss=loss)
    assert (problem.model_gaps(alpha, graph) >= 0).all()
    weights = np.where(graph.degree > 0, graph.degree, 1)
    assert_allclose(problem.model_gap(alpha, graph), weights @ problem.model_gaps(alpha, graph))


def test_learning_alone_has_a_certificate_too():
    problem, _, alpha = drawn(8)
    nobody = CollaborationGraph.empty(5)
    assert problem.model_objective(alpha, nobody) == 0.0
    assert_allclose(problem.model_gap(alpha, nobody), problem.model_gaps(alpha, nobody).sum())
    assert problem.model_gap(alpha, nobody) > 0.1


def test_graph_losses_by_name():
    problem, _, alpha = drawn(9)
    margins = [margins_in_numpy(problem, k, alpha[k]) for k in range(5)]
    paper = [np.log(np.exp(-z).sum()) for z in margins]
    mean = [np.log(np.exp(-z).mean()) for z in margins]
    logistic = [np.log(1 + np.exp(-z)).mean() for z in margins]
    for name, expected in (("paper", paper), ("mean", mean), ("logistic", logistic)):
        named = replace(problem, graph_loss=name)
        assert_allclose(named.graph_losses(alpha), problem.confidence * expected, rtol=1e-12)


def test_models_in_single_precision_are_judged_in_double():
    problem, graph, alpha = drawn(10)
    single = alpha.astype(np.float32)
    as_double = problem.objective(single.astype(np.float64), graph)
    assert problem.objective(single, graph) == as_double
    assert problem.model_gap(single, graph) == problem.model_gap(single.astype(np.float64), graph)


def test_constants_of_the_theorems():
    problem = Problem(np.array([[1], [-1], [1]], np.int8), np.array([0, 1, 3]), beta=2.0, mu1=0.5)
    pair = CollaborationGraph.from_edges(2, [0], [1], [3.0])
    assert curvature_bound(problem, pair) == 4 * 2.0**2 * 3.0 * ((0.5 + 0.5) + (1.0 + 0.5))
    assert primal_bound(curvature=6.0, initial_gap=2.0, n_users=5, t=0) == 8.0
    assert primal_bound(curvature=6.0, initial_gap=2.0, n_users=5, t=30) == 2.0
    # As printed in the supplement: rho = 1 - 4 / (K (K-1)) kappa lam delta^2 / (kappa + 1 + 2 lam delta^2).
    rho = 1 - 4 / (10 * 9) * 3 * 0.7 * 0.2**2 / (3 + 1 + 2 * 0.7 * 0.2**2)
    assert_allclose(graph_rate(LogDegree(0.7, 0.2), 1.3, n_users=10, kappa=3), rho, rtol=1e-14)
    assert expected_new_peers(n_users=10, kappa=3, step=1) == 3.0
    assert_allclose(expected_new_peers(n_users=10, kappa=3, step=3), 3 * (29 / 30) ** 2)


A, ROWS = np.ones((3, 2), np.int8), np.array([0, 1, 3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": 0.0}, r"beta must be > 0 and at most 1e\+12 .*, got 0.0"),
        ({"beta": 1e300}, r"overflow single precision\), got 1e\+300"),
        ({"beta": np.inf}, "got inf"),
        ({"mu1": -0.1}, "mu must be >= 0 and finite, got -0.1"),
        ({"mu1": np.nan}, "got nan"),
        ({"mu2": 0.0}, "mu2 must be > 0 and finite, got 0.0"),
        ({"graph_loss": "sum"}, r"graph_loss must be one of \['logistic', 'mean', 'paper'\], got 'sum'"),
        ({"loss": "hinge"}, r"loss must be one of \['adaboost', .*\] or .*, got 'hinge'"),
        ({"row_start": np.array([0, 3, 3])}, "every user at least one sample"),
        ({"row_start": np.array([0, 1, 2])}, "one row per sample"),
        ({"row_start": np.array([1, 2, 3])}, "one row per sample"),
        ({"row_start": np.array([0])}, "one row per sample"),
        ({"A": np.ones(3)}, "one row per sample"),
        ({"A": np.ones((3, 0))}, "at least one"),
        ({"A": np.full((3, 2), np.nan)}, "A must be finite"),
        ({"coupling": np.ones(3)}, r"coupling must be 2 finite numbers >= 0, got shape \(3,\)"),
        ({"coupling": np.array([1.0, -1.0])}, "coupling must be 2 finite numbers >= 0"),
        ({"offset": np.ones(2)}, r"offset must be one finite number per row of A \(3\), got shape \(2,\)"),
        ({"loss": "squared", "graph_loss": "logistic"}, "'logistic' is for classification"),
    ],
)
def test_what_makes_no_problem_is_refused(changes, message):
    settings = {"A": A, "row_start": ROWS, "beta": 1.0, "mu1": 1.0} | changes
    with pytest.raises(ValueError, match=message):
        Problem(**settings)


def test_models_and_graphs_that_do_not_fit_are_refused():
    problem = Problem(A, ROWS, beta=1.0, mu1=1.0)
    pair = CollaborationGraph.complete(2)
    with pytest.raises(ValueError, match=r"models must have shape \(2, 2\), got \(2, 3\)"):
        problem.objective(np.zeros((2, 3)), pair)
    with pytest.raises(ValueError, match=r"models must have shape \(2, 2\), got \(1, 2\)"):
        problem.model_gap(np.zeros((1, 2)), pair)
    with pytest.raises(ValueError, match="the graph has 3 users, the problem 2"):
        problem.model_gap(np.zeros((2, 2)), CollaborationGraph.complete(3))
    with pytest.raises(ValueError, match="mismatch"):
        problem.objective(np.zeros((2, 2)), CollaborationGraph.complete(3))
