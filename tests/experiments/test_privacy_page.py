"""The page of privacy: rivals keep the guarantee, and sentences follow from numbers."""

from itertools import pairwise

import numpy as np
import pytest

from dada.baselines.classical import PrivateTask, mr_mtl, output_perturbation
from dada.experiments.privacy_page import (
    Aim,
    aims_table,
    audit_sentences,
    chosen,
    comparison,
    decision,
    labels_table,
    rows_table,
    run_sentences,
    run_table,
)
from dada.experiments.privacy_study import CASES, RIVALS


@pytest.fixture(params=[True, False], ids=["classes", "numbers"])
def task(request):
    rng = np.random.default_rng(0)
    h = rng.uniform(-1, 1, (600, 3)) / np.sqrt(3)
    y = h @ np.array([1.0, -1.0, 0.5]) + 0.1 * rng.normal(size=600)
    y = np.where(y > 0, 1.0, -1.0) if request.param else np.clip(y, -1, 1)
    return PrivateTask(h, y, np.arange(0, 601, 60), 1.0, request.param)


def right(task, models):
    owner = np.repeat(np.arange(len(models)), task.sizes)
    return float(np.mean(((task.h * models[owner]).sum(axis=1) > 0) == (task.y > 0)))


def test_rivals_learn_without_noise_and_lose_everything_with_too_much(task):
    for learn, settings in ((mr_mtl, {"rounds": 200, "pull": 0.1, "clip": 2.0}), (output_perturbation, {"ridge": 0.1})):
        exact, noisy = (learn(task, mu, np.random.default_rng(1), **settings) for mu in (1e9, 1e-4))
        assert right(task, exact.models) > 0.85
        assert 0.3 < right(task, noisy.models) < 0.7
        others = np.delete(exact.models, 0, axis=0).mean(axis=0)
        np.testing.assert_allclose(exact.centres[0], others, rtol=1e-6)


def test_a_replaced_row_moves_a_local_model_no_further_than_the_noise_assumes(task):
    """The noise of output perturbation is 1/mu times the distance by which one row can move a model."""
    ridge, mu = 0.1, 1e9
    before = output_perturbation(task, mu, np.random.default_rng(0), ridge=ridge).models
    slope = 1.0 if task.is_class else 1.0 + 1.0 / np.sqrt(ridge)
    most = 2 * slope / (60 * ridge) / (2 if task.is_class else 1)
    moved = []
    for sign in (1.0, -1.0):
        h, y = task.h.copy(), task.y.copy()
        h[0], y[0] = sign * np.eye(3)[0], -1.0
        after = output_perturbation(task._replace(h=h, y=y), mu, np.random.default_rng(0), ridge=ridge).models
        moved.append(float(np.linalg.norm(after[0] - before[0])))
        np.testing.assert_allclose(after[1:], before[1:], atol=1e-6)
    assert 0.05 * most < max(moved) <= most


def test_clipped_gradients_bound_what_a_row_can_do(task):
    """One round: replacing a row moves the sum of gradients by at most twice the clip."""
    clip, rate = 0.2, 1.0 / (1.0 + 1.0)
    settings = {"rounds": 1, "pull": 1.0, "clip": clip}
    before = mr_mtl(task, np.inf, np.random.default_rng(0), **settings).models
    h, y = task.h.copy(), task.y.copy()
    h[0], y[0] = -h[0], 1.0
    after = mr_mtl(task._replace(h=h, y=y), np.inf, np.random.default_rng(0), **settings).models
    assert np.linalg.norm(after[0] - before[0]) <= 2 * clip * rate / 60 + 1e-12


@pytest.fixture
def found():
    """Results of a case that is sent at some values of epsilon only."""
    case = CASES["school"]
    rival = {"home": [71.0, 0.1], "released": [70.0, 0.1]}
    own = {
        str(epsilon): {"home": [70.0 + i, 0.1], "released": [70.1, 0.1], "sent": i > 0, "reason": "Too much noise."}
        for i, epsilon in enumerate(case.epsilons)
    }
    others = {who: {str(epsilon): rival for epsilon in case.epsilons} for who in (*RIVALS, "secure")}
    return {"draws": 8, "alone": [70.0, 0.1], "no noise": [73.0, 0.1], "released": own, **others}


def test_sentences_follow_from_the_numbers(found):
    case = CASES["school"]
    assert decision(case, found) == (
        "School: the program sends nothing at epsilon 0.25. Its reason at epsilon 0.25: Too much noise."
    )
    home, released = comparison(case, found)
    assert home.endswith("ahead of the better rival at epsilon 2, 4, 16; close to the better rival at epsilon 1.")
    assert released.endswith("are close to the better rival at epsilon 1, 2, 4, 16.")
    cells = {row[0]: row[1:] for row in rows_table(case, found).rows}
    assert cells["released statistics, home"][:2] == ["nothing sent", "71.00 ± 0.10"]
    assert len({len(row) for row in rows_table(case, found).rows}) == 1


def test_aims_are_printed_whether_they_are_met_or_not():
    table = aims_table([Aim("more", 72.2, 72.19), Aim("less", 0.0225, 0.0219, more_is_better=False)])
    assert table.caption == "Aims set before: 1 of 2 reached"
    assert [row[-1] for row in table.rows] == ["missed", "reached"]
    assert table.rows[0][1:3] == ["72.2", "72.19"]


def test_settings_are_chosen_by_their_mean_over_draws():
    assert chosen([[1.0, 3.0, 2.0], [4.0, 0.0, 2.5]], more_is_better=True) == 0
    assert chosen([[1.0, 3.0, 2.0], [4.0, 0.0, 2.5]], more_is_better=False) == 1


def test_the_audit_names_the_division_that_it_finds():
    attacks = [
        {"what": what, "epsilon": 1.0, "factor": factor, "shown": shown, "counted": shown}
        for what, factor, shown in (("rows", 1, 0.2), ("rows", 2, 0.9), ("rows", 4, 1.3), ("labels", 1, 1.1))
    ]
    ((first, *rest),) = audit_sentences(attacks)
    assert "in 1 of 2 cases" in first
    assert [sentence.split("claim for ")[1][0] for sentence in rest] == ["0", "1"]


def test_one_run_is_printed_with_its_guesses_and_verdict():
    runs = [
        {"what": what, "epsilon": 1.0, "factor": factor, "n_slots": 50, "guesses": 40, "right": 30, "shown": shown}
        for what, factor, shown in (("rows", 1, 0.2), ("rows", 2, 0.9), ("rows", 3, 1.3), ("labels", 1, 1.1))
    ]
    table = run_table(runs)
    assert table.caption == "Attack on one run, 50 slots"
    assert table.rows[2] == ["rows", "1", "divided by 3", "40", "75.0", "1.30", "yes"]
    ((first, *rest),) = run_sentences(runs)
    assert "in 1 of 2 cases" in first
    assert [sentence.split(" for ")[2][0] for sentence in rest] == ["0", "1"]


def test_cases_rise_and_are_not_tested_on_their_tuning_draws():
    for case in CASES.values():
        assert all(low < high for low, high in pairwise(case.epsilons))
        assert not set(case.draws) & set(case.tuning)


def test_a_row_of_protected_labels_says_of_how_many_results_it_is_the_mean():
    own = {"alone": [66.0, 0.1], "no privacy": [77.2, 0.1], "4.0": {"home": [77.0, 0.1], "released": [76.0, 0.2]}}
    table = labels_table({"computer": {"runs": 10, **own}, "school": {"runs": 1, **own}})
    assert [row[0] for row in table.rows] == ["Computer, published split, mean over 10", "School, published split"]
    assert table.rows[0][1:] == ["66.0", "77.0 (76.0)", "77.2"]
