"""How settings are chosen and accuracies summarised."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dada.core.graph import CollaborationGraph
from dada.data import Population, moons
from dada.experiments.ladders import LADDERS, climb
from dada.experiments.methods import ALL_DATA, METHODS, RunInput, method_of, train
from dada.experiments.ours import METHODS as OURS
from dada.experiments.protocol import best_setting, choose, final_jobs, finals, summarise, validation_score
from dada.experiments.tasks import N_FOLDS, SPECS, people, predictors, split_off, validation_draw, validation_task
from tests.helpers.datasets import load_or_skip


def test_every_grid_holds_the_published_values():
    betas, powers = [1, 10, 100, 1000], [10.0**e for e in range(-3, 4)]
    grid = METHODS["dada-learned"].grid
    assert list(grid["beta"]) == betas
    assert list(grid["mu"]) == powers
    assert list(grid["lam"]) == powers
    assert len(METHODS["dada-learned"].points(coarse=False)) == 4 * 7 * 7
    assert len(METHODS["perso-lin-learned"].points(coarse=False)) == 7 * 7


def test_folds_hold_out_every_row_except_the_only_one_of_a_user():
    owner = np.repeat(np.arange(5), [1, 2, 3, 7, 12])
    rng = np.random.default_rng(0)
    users = Population.from_arrays(rng.normal(size=(owner.size, 3)), rng.choice([-1, 1], owner.size), owner)
    held_out = {}
    for repeat in range(2):
        parts = [split_off(users, 0, repeat, fold) for fold in range(N_FOLDS)]
        assert sum(part.n_rows for _, part in parts) == users.n_rows - 1
        assert all(kept.n_rows + part.n_rows == users.n_rows for kept, part in parts)
        assert all(kept.sizes.min() >= 1 for kept, _ in parts)
        held_out[repeat] = [{tuple(row) for row in part.X} for _, part in parts]
        assert not held_out[repeat][0] & held_out[repeat][1]
    assert held_out[0][0] != held_out[1][0]


def test_synthetic_users_are_validated_on_draws_no_run_is_on():
    train, _, scored = validation_task("moons", 0, 0, 0, 40, "feature-range")
    runs = [people("moons", 0, draw) for draw in range(3)]
    assert all(train.n_rows != users.train.n_rows or (train.X != users.train.X).any() for users in runs)
    assert scored.n_rows == 100 * 100
    assert len({validation_draw(repeat, fold) for repeat in range(3) for fold in range(N_FOLDS)}) == 9


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_chosen_rows_stay_with_their_users(sizes, data):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    users = Population(np.arange(owner.size)[:, None] * 1.0, np.ones(owner.size), np.cumsum([0, *sizes]),
                       np.arange(len(sizes)), np.array([-1, 1]), ("x",))  # fmt: skip
    rows = sorted(data.draw(st.sets(st.integers(0, owner.size - 1))))
    part = users.take(np.array(rows, dtype=int))
    assert_array_equal(part.X[:, 0], rows)
    assert_array_equal(part.sizes, np.bincount(owner[rows], minlength=len(sizes)))


def test_a_score_averages_users_and_rows_and_skips_users_without_held_out_rows():
    rows = [{"right": [1, 0, 0], "rows": [1, 2, 0]}, {"right": [1, 2, 0], "rows": [1, 2, 0]}]
    over_users, over_rows = (1.0 + 0.5) / 2, 4 / 6
    assert validation_score(rows) == pytest.approx(100 * (over_users + over_rows) / 2)


def test_the_first_of_equals_wins_unless_bits_count():
    scores, bits = np.array([70.0, 71.0, 71.0, 70.8]), np.array([1.0, 9.0, 5.0, 2.0])
    assert best_setting(scores, bits, slack=0.0) == 1
    assert best_setting(scores, bits, slack=0.5) == 3
    assert best_setting(scores, bits, slack=2.0) == 0


class SeenLab:
    """A lab that calls a function for every job and records their arguments."""

    seed = 0

    def __init__(self, work, quick=False):
        self.work, self.quick, self.seen = work, quick, []

    def run(self, jobs, label):
        self.seen += [job.arguments for job in jobs]
        return [self.work(**job.arguments) for job in jobs]


def test_only_the_best_quarter_is_tried_again():
    def pretended(settings, **_):
        return {"right": [3 if settings["mu"] == 1.0 else 1], "rows": [4], "bits": 1.0}

    lab = SeenLab(pretended)
    choice = choose(lab, [("moons", "dada-uniform")], "test")["moons", "dada-uniform"]
    grid = {(beta, mu) for beta in METHODS["dada-uniform"].grid["beta"] for mu in METHODS["dada-uniform"].grid["mu"]}
    again = {(job["settings"]["beta"], job["settings"]["mu"]) for job in lab.seen if job["run"] > 0}
    # Seven of the grid, and the settings one step from the best one, of which beta = 0.1 is outside of the grid.
    assert {beta for beta, mu in again if mu == 1.0} == {0.1, 1.0, 10.0, 100.0, 1000.0}
    assert len(again & grid) == 7 + 1
    assert (choice.tuned, choice.score, choice.tried) == ({"beta": 1.0, "mu": 1.0}, 75.0, 28 + 1)


@pytest.mark.parametrize("best", [10.0, 10_000.0])
def test_a_search_goes_on_beyond_the_grid(best):
    def pretended(settings, **_):
        far = abs(np.log10(settings["mu"] / 1e-4)) + abs(np.log10(settings["beta"] / best))
        return {"right": [100 - round(10 * far)], "rows": [100], "bits": 1.0}

    lab = SeenLab(pretended)
    choice = choose(lab, [("moons", "dada-uniform")], "test")["moons", "dada-uniform"]
    assert choice.tuned == {"beta": best, "mu": 1e-4}
    assert choice.at_the_end == (("beta",) if best == LADDERS["beta"][-1] else ())


@pytest.mark.parametrize(("slack", "trees"), [(0.0, 16_000), (0.005, 1000), (0.05, 100)])
def test_a_search_ends_where_a_step_hardly_gains(slack, trees):
    def score(settings):
        return -1.0 - 10.0 / settings["trees"]

    search = climb([{"trees": 100}], ["trees"], slack)
    wanted, found = next(search), None
    while found is None:
        try:
            wanted = search.send([score(settings) for settings in wanted])
        except StopIteration as end:
            found = end.value
    assert found == {"trees": trees}


def test_a_random_split_starts_at_the_given_settings():
    def pretended(settings, **_):
        return {"right": [3 if settings["mu"] == 1.0 else 1], "rows": [4], "bits": 1.0}

    lab, pair = SeenLab(pretended), ("school", "dada-uniform")
    load_or_skip("school")
    choice = choose(lab, [pair], "test", split=2, start={pair: {"beta": 10.0, "mu": 0.1}})[pair]
    assert choice.tuned == {"beta": 10.0, "mu": 1.0}
    assert {(job["run"], job["split"]) for job in lab.seen} == {(0, 2)}
    # The start, its four neighbours, and the three others of the best.
    assert choice.tried == 8


def test_a_summary_counts_users_below_their_accuracy_alone():
    runs = [{"test": [0.5, 0.7, 0.9], "test_pooled": 0.8, "neighbours": None, "bits": 0.0}] * 2
    alone = [{"test": [0.6, 0.7, 0.8]}] * 2
    summary = summarise(runs, alone)
    assert summary.mean == pytest.approx(70)
    assert (summary.std, summary.worst, summary.neighbours) == (0, 50, None)
    assert summary.below_alone == pytest.approx(100 / 3)


@pytest.mark.parametrize(
    ("pair", "runs"), [(("moons", "global-lin"), 3), (("moons", "dada-learned"), 3), (("school", "global-lin"), 1)]
)
def test_deterministic_methods_on_real_data_run_once(pair, runs):
    if not SPECS[pair[0]].synthetic:
        load_or_skip(pair[0])
    jobs = final_jobs(SeenLab(train), pair, {"C": 1.0})
    assert len({job.key for job in jobs}) == runs


def test_cross_validation_never_sees_test_data():
    lab = SeenLab(train, quick=True)
    chosen = choose(lab, [("moons", "local-boost"), ("moons", "constant")], "test")
    assert {job["fold"] for job in lab.seen} == {0, 1, 2}
    assert chosen["moons", "constant"].score is None
    choice = chosen["moons", "local-boost"]
    assert choice.tried == 3
    assert choice.settings["beta"] == choice.tuned["beta"]
    lab.seen.clear()
    runs = finals(lab, {("moons", "local-boost"): choice.settings}, "test")
    assert all(job.get("fold", ALL_DATA) == ALL_DATA for job in lab.seen)
    assert len(runs["moons", "local-boost"]) == 3


def test_a_graph_can_only_be_given_to_synthetic_users():
    users = people("moons", 0, 0)
    *data, _ = validation_task("moons", 0, 0, 0, 40, "feature-range")
    with pytest.raises(ValueError, match="only synthetic users have one"):
        METHODS["dada-oracle"].run(RunInput(*data, users.test, {"beta": 1.0, "updates": 1}, np.random.default_rng(0)))


@pytest.mark.parametrize("method", [*METHODS, *OURS])
def test_every_method_runs_from_plain_settings(method):
    users = moons(0, n_users=8, n_test=10)
    settings = method_of(method).points(coarse=True)[0] | method_of(method).effort(SPECS["moons"], True)
    settings |= {"neighbours": 5.0} if method == "dada-random" else {}
    settings |= {"updates": 5} if "updates" in settings else {}
    fitted = predictors(40, settings.pop("rule", "feature-range")).fit(users.train.X)
    oracle = CollaborationGraph.from_scipy(users.oracle_weights())
    task = RunInput(users.train, fitted, users.test, settings, np.random.default_rng(0), oracle)
    accuracy = method_of(method).run(task).test_accuracy
    assert accuracy.shape == (8,)
    assert 0.3 < accuracy.mean() <= 1


def test_a_run_returns_what_json_can_hold():
    settings = {"beta": 1.0, "mu": 1.0, "updates": 5, "stumps": 40}
    result = train("moons", "dada-oracle", settings, seed=0, run=0, detail="graph")
    assert json.loads(json.dumps(result)) == result
    assert len(result["test"]) == len(result["losses"]) == 100
    assert result["trace"]["updates"][-1] == 500
