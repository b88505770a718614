"""How settings are chosen and accuracies summed up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dada.data import Population
from dada.experiments.data import N_FOLDS, SPECS, People, people, rows_of, validation_draw, validation_task
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


@pytest.fixture
def real_users(monkeypatch):
    """Users of a real dataset, some with fewer rows than there are folds."""
    sizes = np.array([1, 2, 3, 7, 12])
    owner = np.repeat(np.arange(5), sizes)
    rng = np.random.default_rng(0)
    train = Population.from_arrays(rng.normal(size=(owner.size, 3)), rng.choice([-1, 1], owner.size), owner)
    monkeypatch.setattr("dada.experiments.data.people", lambda *_: People(train, train))
    validation_task.cache_clear()
    yield train
    validation_task.cache_clear()


def test_folds_share_out_all_rows_but_a_users_only_one(real_users):
    held_out = {}
    for repeat in range(2):
        parts = [validation_task("school", 0, repeat, fold, 6, "quantile") for fold in range(N_FOLDS)]
        assert sum(part.n_rows for _, part in parts) == real_users.n_rows - 1
        assert all(task.train.n_rows + part.n_rows == real_users.n_rows for task, part in parts)
        assert all(task.train.sizes.min() >= 1 for task, _ in parts)
        held_out[repeat] = [{tuple(row) for row in part.X} for _, part in parts]
        assert not held_out[repeat][0] & held_out[repeat][1]
    assert held_out[0][0] != held_out[1][0]


def test_synthetic_users_are_validated_on_draws_no_run_is_on():
    task, scored = validation_task("moons", 0, 0, 0, 40, "feature-range")
    runs = [people("moons", 0, draw) for draw in range(3)]
    assert all(task.train.n_rows != users.train.n_rows or (task.train.X != users.train.X).any() for users in runs)
    assert scored.n_rows == 100 * 100
    assert len({validation_draw(repeat, fold) for repeat in range(3) for fold in range(N_FOLDS)}) == 9


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_chosen_rows_stay_with_their_users(sizes, data):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    users = Population(np.arange(owner.size)[:, None] * 1.0, np.ones(owner.size), np.cumsum([0, *sizes]),
                       np.arange(len(sizes)), np.array([-1, 1]), ("x",))  # fmt: skip
    rows = sorted(data.draw(st.sets(st.integers(0, owner.size - 1))))
    part = rows_of(users, np.array(rows, dtype=int))
    assert_array_equal(part.X[:, 0], rows)
    assert_array_equal(part.sizes, np.bincount(owner[rows], minlength=len(sizes)))


def test_a_score_is_half_way_between_users_and_rows_and_skips_users_never_tested():
    rows = [{"right": [1, 0, 0], "rows": [1, 2, 0]}, {"right": [1, 2, 0], "rows": [1, 2, 0]}]
    over_users, over_rows = (1.0 + 0.5) / 2, 4 / 6
    assert _score(rows) == pytest.approx(100 * (over_users + over_rows) / 2)


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
    task, _ = validation_task("moons", 0, 0, 0, 40, "feature-range")
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
