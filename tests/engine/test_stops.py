from dataclasses import replace

import numpy as np
import pytest

from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.plan import Status
from dada.core.problem import Problem
from dada.engine import Plan, Samples, run
from tests.helpers.problems import random_graph, random_problem
from tests.helpers.runs import bits_of

PROBLEM = random_problem(
    np.random.default_rng(0), 9, 8, beta=5.0, mu1=0.5, regularizer=LogDegree(0.3, 0.1), dtype=np.float32
)
GRAPH = random_graph(np.random.default_rng(1), 9)
ALONE = Plan(n_updates=400, learn_graph=False)
LEARNED = Plan(n_updates=400, graph_every=90, kappa=3)


def go(plan, problem=PROBLEM, **options):
    return run(problem, plan, np.random.default_rng(3), **options)


@pytest.mark.parametrize("step", ["pairwise", "paper"])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.999])
def test_model_updates_never_exceed_the_budget_and_use_it_up(step, share):
    whole = go(replace(ALONE, step=step), graph=GRAPH)
    budget = share * whole.ledger.bits
    short = go(replace(ALONE, step=step, max_bits=budget), graph=GRAPH)
    assert short.status is Status.OUT_OF_BITS
    # One more wake-up would be at most a message to each of eight others.
    assert budget - 8 * (32 + 2 * 3) < short.ledger.bits <= budget


def test_a_budget_that_suffices_to_the_bit_is_enough():
    whole = go(LEARNED)
    exact = go(replace(LEARNED, max_bits=whole.ledger.bits))
    assert exact.status is Status.FINISHED
    assert bits_of(exact) == bits_of(whole)
    less = go(replace(LEARNED, max_bits=np.nextafter(whole.ledger.bits, 0)))
    assert less.status is Status.OUT_OF_BITS
    assert less.updates < 400


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"max_neighbours": 2},
        {"graph_rule": "evidence"},
        {"sampler": "gossip"},
        {"sampler": "gossip", "kappa": 1, "max_neighbours": 2},
    ],
    ids=repr,
)
@pytest.mark.parametrize("share", [0.001, 0.02, 0.2, 0.5, 0.9])
def test_graph_wakeups_never_exceed_the_budget(others, share):
    plan = replace(LEARNED, **others)
    budget = share * go(plan).ledger.bits
    short = go(replace(plan, max_bits=budget))
    assert short.status is Status.OUT_OF_BITS
    most = 5 * (6 * 32 + 8 * (32 + 3))
    assert budget - most < short.ledger.bits <= budget
    assert bits_of(go(replace(plan, max_bits=budget), chunk=16)) == bits_of(short)


def test_learning_alone_costs_no_bits():
    result = go(replace(ALONE, max_bits=1e-9))
    assert result.status is Status.FINISHED
    assert result.ledger.bits == 0


@pytest.mark.parametrize("graph", [GRAPH, None], ids=["neighbours", "alone"])
def test_a_run_stops_at_the_first_trace_point_whose_gap_is_small_enough(graph):
    plan = Plan(n_updates=20_000, learn_graph=False, gap_tolerance=1e-2, trace_every=100)
    result = go(plan, graph=graph)
    assert result.status is Status.CONVERGED
    assert result.updates < 20_000
    assert result.updates % 100 == 0
    zero = PROBLEM.model_gap(np.zeros_like(result.models), result.graph)
    gaps = np.array([point.gap for point in result.trace]) / zero
    assert gaps[-1] <= 1e-2 < gaps[:-1].min()


def test_a_gap_reached_with_the_last_update_is_told():
    plan = Plan(n_updates=20_000, learn_graph=False, gap_tolerance=1e-2, trace_every=100)
    enough = go(plan, graph=GRAPH).updates
    assert go(replace(plan, n_updates=enough), graph=GRAPH).status is Status.CONVERGED
    assert go(replace(plan, n_updates=enough - 100), graph=GRAPH).status is Status.FINISHED


def test_a_converged_run_stays_so_when_resumed_unless_more_is_asked(tmp_path):
    plan = Plan(n_updates=20_000, learn_graph=False, gap_tolerance=1e-2, trace_every=100)
    first = go(plan, graph=GRAPH, checkpoint=tmp_path / "run")
    again = go(plan, graph=GRAPH, checkpoint=tmp_path / "run", resume=True)
    assert again.status is Status.CONVERGED
    assert bits_of(again) == bits_of(first)
    finer = replace(plan, gap_tolerance=1e-3)
    resumed = go(finer, graph=GRAPH, checkpoint=tmp_path / "run", resume=True)
    assert resumed.updates > first.updates
    assert bits_of(resumed) == bits_of(go(finer, graph=GRAPH))


def test_no_time_at_all_ends_a_run_after_its_first_chunk():
    result = go(replace(ALONE, max_time_s=1e-9), graph=GRAPH, chunk=16)
    assert result.status is Status.OUT_OF_TIME
    assert result.updates == 8
    assert result.trace[-1].updates == 8


def test_a_run_that_ends_in_its_last_chunk_is_finished_whatever_the_time():
    assert go(Plan(n_updates=5, learn_graph=False, max_time_s=1e-9, trace_every=5)).status is Status.FINISHED


def test_a_run_of_no_updates_gives_zero_models():
    result = go(replace(ALONE, n_updates=0), graph=GRAPH)
    assert result.status is Status.FINISHED
    assert not result.models.any()
    assert len(result.trace) == 1


def test_a_run_of_no_updates_may_learn_a_graph_and_its_trace_shows_it():
    result = go(Plan(n_updates=0, local_updates=50, kappa=3))
    assert result.graph.n_edges > 0
    end = result.trace[-1]
    assert (end.updates, end.graph_wakeups, end.edges) == (0, 270, result.graph.n_edges)
    assert end.bits == result.ledger.bits > 0


def test_a_single_user_learns_alone_whatever_the_plan():
    problem = random_problem(np.random.default_rng(1), 1, 8, dtype=np.float32)
    result = go(LEARNED, problem=problem)
    assert result.status is Status.FINISHED
    assert result.graph.n_edges == 0
    assert result.ledger.bits == 0
    assert problem.model_gap(result.models, result.graph) < 1e-2


def test_two_users_can_learn_a_graph():
    problem = random_problem(np.random.default_rng(2), 2, 8, dtype=np.float32)
    result = go(replace(LEARNED, kappa=1), problem=problem)
    assert result.graph.n_edges == 1


def test_points_of_the_trace_stand_at_their_places():
    result = go(replace(ALONE, trace_every=150), graph=GRAPH)
    assert [point.updates for point in result.trace] == [0, 150, 300, 400]
    assert [point.updates for point in go(ALONE).trace][:3] == [0, 8, 16]
    last = result.trace[-1]
    assert last.objective == PROBLEM.objective(result.models, GRAPH)
    assert last.gap == PROBLEM.model_gap(result.models, GRAPH)


NONE_OF_THEM = Samples(np.zeros((1, 8), np.int8), np.ones(1), np.array([0, 1]))


@pytest.mark.parametrize(
    ("plan", "changes", "message"),
    [
        (LEARNED, {"graph": GRAPH}, "the plan learns the graph, but one was given"),
        (ALONE, {"graph": CollaborationGraph.complete(8)}, "the graph has 8 users, the problem 9"),
        (ALONE, {"graph": CollaborationGraph.complete(9, 1e-20)}, "weights must be in 1e-12..*got 1e-20"),
        (ALONE, {"graph": CollaborationGraph.complete(9, 1e30)}, "divide them by the largest"),
        (replace(LEARNED, kappa=9), {}, r"kappa must be in 1..8 \(n_users - 1\), got 9"),
        (replace(LEARNED, kappa=0), {}, "kappa must be in 1..8"),
        (LEARNED, {"problem": replace(PROBLEM, mu1=0.0)}, r"needs mu2 > 0, got mu1=0.0, mu2=None"),
        (ALONE, {"train": NONE_OF_THEM}, "train has 1 users and 8 base predictors, the problem 9 and 8"),
        (ALONE, {"test": NONE_OF_THEM}, "test has 1 users"),
        (ALONE, {"dtype": np.int32}, "dtype must be float32 or float64, got int32"),
    ],
)
def test_what_does_not_fit_together_is_refused(plan, changes, message):
    with pytest.raises(ValueError, match=message):
        go(plan, **changes)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"step": "newton"}, r"step must be one of .*'pairwise', 'paper'.*, got 'newton'"),
        ({"graph_step": "newton"}, r"graph_step must be one of \['exact', 'lipschitz'\], got 'newton'"),
        ({"restart": "best"}, r"restart must be one of \['local', 'zero'\], got 'best'"),
        ({"graph_rule": "fate"}, r"graph_rule must be one of \['distance', 'evidence'\], got 'fate'"),
        ({"n_updates": -1}, "n_updates must be >= 0, got -1"),
        ({"graph_every": 0}, r"graph_every must be > 0 \(or None\), got 0"),
        ({"max_bits": -1.0}, r"max_bits must be > 0 \(or None\), got -1.0"),
        ({"max_time_s": float("nan")}, "max_time_s must be > 0"),
        ({"local_updates": -5}, r"local_updates must be >= 0 \(or None\), got -5"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        Plan(**({"n_updates": 10} | setting))


def test_the_paper_rule_does_not_wipe_out_the_local_models_it_starts_from():
    plan = Plan(n_updates=9, kappa=3, step="paper", restart="local", local_updates=900, first_graph_wakeups=0)
    started = go(replace(plan, n_updates=0)).models
    moved = go(plan).models
    assert np.abs(started).sum() > 0
    assert np.abs(moved - started).sum(axis=1).max() < 0.2 * np.abs(started).sum(axis=1).max()
    assert np.abs(moved - go(replace(plan, restart="zero")).models).max() > 1.0


def test_a_problem_without_any_information_has_converged():
    problem = Problem(np.zeros((3, 2), np.int8), np.array([0, 1, 3]), beta=1.0, mu1=1.0)
    result = go(Plan(n_updates=50, learn_graph=False, gap_tolerance=0.1), problem=problem)
    assert result.status is Status.CONVERGED
    assert not result.models.any()


def test_a_short_run_reports_that_its_models_are_far_from_settled():
    short = go(replace(ALONE, n_updates=5), graph=GRAPH)
    long = go(replace(ALONE, n_updates=3000), graph=GRAPH)
    at_zero = PROBLEM.model_gap(np.zeros_like(long.models), GRAPH)
    for result in (short, long):
        assert result.relative_gap == result.trace[-1].gap / at_zero
    assert not short.is_settled
    assert long.is_settled
