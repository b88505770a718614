"""How settings are chosen and accuracies summed up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dada.data import Population
from dada.experiments.data import N_FOLDS, SPECS, fold_task, people, rows_of
from dada.experiments.jobs import ALL_DATA, Job, execute
from dada.experiments.lab import Lab
from dada.experiments.methods import METHODS, effort, fit
from dada.experiments.protocol import _best, _score, choose, final_jobs, finals, summarise


def test_every_grid_holds_the_published_values():
    betas, powers = [1, 10, 100, 1000], [10.0**e for e in range(-3, 4)]
    grid = METHODS["dada-learned"].grid
    assert list(grid["beta"]) == betas
    assert list(grid["mu"]) == powers
    assert list(grid["lam"]) == powers
    assert len(METHODS["dada-learned"].points(quick=False)) == 4 * 7 * 7
    assert len(METHODS["perso-lin-learned"].points(quick=False)) == 7 * 7


def test_folds_of_a_repeat_share_out_all_rows_and_differ_between_repeats():
    spec = SPECS["moons"]
    train = people("moons", 0, 0).train
    held_out = {}
    for repeat in range(2):
        parts = [fold_task("moons", 0, repeat, fold, spec.stumps, spec.rule) for fold in range(N_FOLDS)]
        assert sum(part.n_rows for _, part in parts) == train.n_rows
        assert all(task.train.n_rows + part.n_rows == train.n_rows for task, part in parts)
        assert all(task.train.sizes.min() >= 1 for task, _ in parts)
        held_out[repeat] = {tuple(row) for row in parts[0][1].X}
        others = [{tuple(row) for row in part.X} for _, part in parts[1:]]
        assert not any(held_out[repeat] & other for other in others)
    assert held_out[0] != held_out[1]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_chosen_rows_stay_with_their_users(sizes, data):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    users = Population(np.arange(owner.size)[:, None] * 1.0, np.ones(owner.size), np.cumsum([0, *sizes]),
                       np.arange(len(sizes)), np.array([-1, 1]), ("x",))  # fmt: skip
    rows = sorted(data.draw(st.sets(st.integers(0, owner.size - 1))))
    part = rows_of(users, np.array(rows, dtype=int))
    assert_array_equal(part.X[:, 0], rows)
    assert_array_equal(part.sizes, np.bincount(owner[rows], minlength=len(sizes)))


def test_a_score_weighs_users_alike_and_skips_those_never_tested():
    rows = [{"right": [1, 0, 0], "rows": [1, 2, 0]}, {"right": [1, 2, 0], "rows": [1, 2, 0]}]
    assert _score(rows) == pytest.approx(100 * (1.0 + 0.5) / 2)


def test_the_first_of_equals_wins_unless_bits_count():
    scores, bits = np.array([70.0, 71.0, 71.0, 70.8]), np.array([1.0, 9.0, 5.0, 2.0])
    assert _best(scores, bits, slack=0.0) == 1
    assert _best(scores, bits, slack=0.5) == 3
    assert _best(scores, bits, slack=2.0) == 0


def test_only_the_best_quarter_is_tried_again(tmp_path, monkeypatch):
    seen = []

    def pretended(job):
        seen.append(job)
        good = '"mu": 1.0' in job.settings
        return {"right": [3 if good else 1], "rows": [4], "bits": 1.0}

    monkeypatch.setattr("dada.experiments.lab.execute", pretended)
    with Lab(tmp_path, n_jobs=1) as lab:
        choice = choose(lab, [("moons", "dada-uniform")], "test")["moons", "dada-uniform"]
    assert len([job for job in seen if job.run == 0]) == 28 * 3
    again = [job for job in seen if job.run > 0]
    assert len(again) == 7 * 2 * 3
    assert {job.settings for job in again} >= {job.settings for job in seen if '"mu": 1.0' in job.settings}
    assert (choice.tuned, choice.score, choice.tried) == ({"beta": 1.0, "mu": 1.0}, 75.0, 28)


def test_a_summary_says_who_is_worse_off():
    runs = [{"test": [0.5, 0.7, 0.9], "test_pooled": 0.8, "neighbours": None, "bits": 0.0}] * 2
    alone = [{"test": [0.6, 0.7, 0.8]}] * 2
    summary = summarise(runs, alone)
    assert summary.mean == pytest.approx(70)
    assert (summary.std, summary.worst, summary.neighbours) == (0, 50, None)
    assert summary.worse_off == pytest.approx(100 / 3)


def test_methods_without_chance_run_once(tmp_path):
    with Lab(tmp_path, n_jobs=1, quick=True) as lab:
        assert len({job.run for job in final_jobs(lab, ("school", "global-lin"), {"C": 1.0})}) == 1
        assert len({job.run for job in final_jobs(lab, ("moons", "global-lin"), {"C": 1.0})}) == 3
        assert len({job.run for job in final_jobs(lab, ("school", "dada-learned"), {})}) == 3


def test_cross_validation_never_sees_test_data(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("dada.experiments.lab.execute", lambda job: seen.append(job) or execute(job))
    with Lab(tmp_path, n_jobs=1, quick=True) as lab:
        chosen = choose(lab, [("moons", "local-boost"), ("moons", "constant")], "test")
        assert {job.fold for job in seen} == {0, 1, 2}
        assert chosen["moons", "constant"].score is None
        choice = chosen["moons", "local-boost"]
        assert choice.tried == 3
        assert choice.settings["beta"] == choice.tuned["beta"]
        runs = finals(lab, {("moons", "local-boost"): choice.settings}, "test")
    assert {job.fold for job in seen[9:]} == {ALL_DATA}
    assert len(runs["moons", "local-boost"]) == 3


def test_a_graph_can_only_be_given_to_synthetic_users():
    users = people("moons", 0, 0)
    task, _ = fold_task("moons", 0, 0, 0, 40, "feature-range")
    with pytest.raises(ValueError, match="only synthetic users have one"):
        fit("dada-oracle", task, users.test, {"beta": 1.0, "updates": 1}, np.random.default_rng(0))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_from_plain_settings(method):
    settings = METHODS[method].points(quick=True)[0] | effort(method, SPECS["moons"], quick=True)
    settings |= {"neighbours": 5.0} if method == "dada-random" else {}
    if "updates" in settings:
        settings["updates"] = 5
    result = execute(Job.of("moons", method, settings | {"stumps": 40}, seed=0, run=0))
    assert len(result["test"]) == 100
    assert 0.3 < np.mean(result["test"]) <= 1
