"""Users who join later, and rows that grow old."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dada import DadaClassifier, DadaRegressor, load_model, save_model
from dada.core.graph import CollaborationGraph
from dada.core.problem import Problem
from dada.data import moons
from dada.fitting.newcomers import MOST_ASKED, Candidates, best
from dada.task import problem
from tests.helpers.people import Rows, moons_rows, opposites


@pytest.fixture(scope="module")
def population():
    train, _ = moons_rows(101)
    return DadaClassifier(random_state=0, graph="evidence").fit(*train)


def with_five_rows(seed, n_users):
    """Users of another draw, of all groups, with their first five training rows and their test rows."""
    users = moons(seed, n_users=n_users)
    for k in np.flatnonzero(users.train.sizes >= 5):
        few = slice(users.train.row_start[k], users.train.row_start[k] + 5)
        tested = users.test.user_rows(k)
        yield k, users.train.X[few], users.train.y[few], users.test.X[tested], users.test.y[tested]


def test_newcomers_with_five_rows_do_nearly_as_well_as_the_others(population):
    before, n_users = population.models_.copy(), population.n_users_
    newcomers = list(with_five_rows(10_101, n_users=60))
    for k, X, y, _, _ in newcomers:
        population.add_user(X, y, 1000 + k)
    assert_array_equal(population.models_[:n_users], before)
    assert population.users_[n_users:].tolist() == [1000 + k for k, *_ in newcomers]
    scores = [population.score(X, y, users=1000 + k) for k, _, _, X, y in newcomers]
    assert np.mean(scores) > 0.882
    assert len(population.neighbours_of(1000 + newcomers[0][0])) == 8
    assert population.graph_.directed


def test_a_newcomer_does_not_depend_on_what_others_bring_later(population):
    _, X, y, rows, _ = next(with_five_rows(10_102, n_users=10))
    once = population.add_user(X, y, 5000).decision_function(rows, users=5000)
    population.add_user(-X, y, 5001)
    assert_array_equal(population.decision_function(rows, users=5000), once)


def test_in_a_large_population_few_are_asked_and_the_best_are_found_by_gossip():
    # Users on a line who follow the next ones; only the last have a model that does well.
    n_users = 2000
    models = np.linspace(-1, 1, n_users)[:, None]
    k = np.repeat(np.arange(n_users), 10)
    l = np.minimum(k + np.tile(np.arange(1, 11) * 19, n_users), n_users - 1)
    pairs = np.unique(np.column_stack([k, l])[k != l], axis=0)
    graph = CollaborationGraph.from_edges(n_users, *pairs.T, np.ones(len(pairs)))
    asked = []

    class Watched(np.ndarray):
        def __getitem__(self, index):
            asked.append(np.size(index))
            return super().__getitem__(index)

    problem = Problem(np.ones((5, 1), np.int8), np.array([0, 5]), beta=1.0, mu1=1.0)
    candidates = Candidates(models.view(Watched), np.ones(n_users), graph)
    found = best(candidates, problem, 10, 1.0, np.random.default_rng(0))
    assert sum(asked) <= MOST_ASKED
    drawn = np.sort(np.random.default_rng(0).choice(n_users, MOST_ASKED, replace=False))
    assert models[found.users].mean() > models[drawn[-10:]].mean()


@pytest.mark.parametrize("graph", ["everyone", "none", "learned", "evidence-symmetric"])
def test_a_newcomer_learns_as_the_others_did(graph):
    rows = opposites()
    model = DadaClassifier(random_state=0, graph=graph, n_updates=60).fit(*rows)
    model.add_user(rows.X[:8], rows.y[:8], "eve")
    assert len(model.neighbours_of("eve")) == (0 if graph == "none" else 4)
    assert model.score(rows.X[:8], rows.y[:8], users="eve") > 0.9


def test_the_models_and_weights_of_others_stay_with_several_classes_and_with_numbers():
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(90, 2)), np.repeat(["ann", "bob", "cid"], 30)
    kinds = np.digitize(X[:, 0], [-0.5, 0.5])
    for model, y in (
        (DadaClassifier(n_updates=100, random_state=0), kinds),
        (DadaRegressor(n_updates=100, random_state=0), 3 * X[:, 0] + 1),
    ):
        model.set_params(random_state=0).fit(X, y, users=users)
        before = model.neighbours_of("bob")
        model.add_user(X[:20], y[:20], "eve")
        assert model.neighbours_of("bob") == before
        assert model.score(X[:30], y[:30], users="eve") > 0.85


def test_a_known_user_cannot_join_again():
    rows = opposites()
    model = DadaClassifier(random_state=0, n_updates=20).fit(*rows)
    with pytest.raises(ValueError, match="got 'ann', who has a model: use partial_fit"):
        model.add_user(rows.X[:2], rows.y[:2], "ann")


def test_an_id_of_another_kind_is_refused():
    rows = opposites()
    model = DadaClassifier(random_state=0, n_updates=20).fit(*rows)
    with pytest.raises(TypeError, match=r"known are ids such as 'ann', 'bob', 'cid' and 1 more, got 7"):
        model.add_user(rows.X[:2], rows.y[:2], 7)


def test_users_join_a_model_from_a_file(tmp_path):
    rows = opposites()
    model = DadaClassifier(random_state=0, n_updates=20).fit(*rows)
    save_model(model, tmp_path / "people")
    loaded = load_model(tmp_path / "people")
    for one in (model, loaded):
        one.add_user(rows.X[:4], rows.y[:4], "eve")
    assert_array_equal(loaded.models_, model.models_)
    save_model(loaded, tmp_path / "people")
    assert load_model(tmp_path / "people").neighbours_of("eve") == model.neighbours_of("eve")


def turned(step, turn):
    """New training rows, and test rows, of users whose tasks turn by some angle from one step to the next."""
    train, test = moons_rows(700 + step, n_users=40, n_test=20)
    turn = step * turn
    R = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    for part in (train, test):
        part.X[:, :2] = part.X[:, :2] @ R
    return train, test


def test_ageing_follows_tasks_that_turn():
    ageing = DadaClassifier(random_state=0, half_life=1.0)
    lasting = DadaClassifier(random_state=0)
    for step in range(4):
        train, test = turned(step, np.deg2rad(20))
        for model in (ageing, lasting):
            model.partial_fit(*train)
        if step == 0:
            still = DadaClassifier(random_state=0).fit(*train)
    scores = [model.score(test.X, test.y, users=test.users) for model in (ageing, lasting, still)]
    assert scores[0] > scores[1] > scores[2]
    assert scores[0] > 0.85


def test_half_of_the_older_rows_are_left_after_a_half_life():
    rows = opposites(rows_per_user=400)
    model = DadaClassifier(random_state=0, half_life=2.0, n_updates=5).partial_fit(*rows)
    for _ in range(2):
        model.partial_fit(rows.X[:1], rows.y[:1], users=["ann"])
    held = model.held_[0]
    assert held.sizes[1:].tolist() == [400, 400, 400]
    assert 160 < held.sizes[0] < 240
    assert model.confidence_[0] == held.sizes[0] / 400


def test_only_users_with_new_rows_change_and_new_ones_join():
    rows = opposites()
    model = DadaClassifier(random_state=0, half_life=2.0, n_updates=60).partial_fit(*rows)
    before = model.models_.copy()
    model.partial_fit(rows.X[:8], 1 - rows.y[:8], users=["eve"] * 8)
    assert model.users_.tolist() == ["ann", "bob", "cid", "dan", "eve"]
    assert_array_equal(model.models_[:4], before)
    model.partial_fit(rows.X[:8], 1 - rows.y[:8], users=["bob"] * 8)
    assert_array_equal(np.flatnonzero((model.models_[:4] != before).any(axis=1)), [1])
    assert model.held_[0].user_ids.tolist() == model.users_.tolist()


def test_the_same_calls_give_the_same_models():
    def one():
        model = DadaClassifier(random_state=3, half_life=1.0, n_updates=20)
        for seed in (1, 2, 3):
            model.partial_fit(*moons_rows(seed, n_users=12, n_test=1)[0])
        return model.models_

    assert_array_equal(one(), one())


def test_a_fit_can_be_gone_on_with_and_newcomers_rows_count_too():
    rows = opposites()
    model = DadaClassifier(random_state=0, n_updates=20).fit(*rows)
    model.add_user(rows.X[:8], rows.y[:8], "eve").partial_fit(rows.X[:2], rows.y[:2], users=["eve", "ann"])
    held = model.held_[0]
    assert dict(zip(held.user_ids.tolist(), held.sizes.tolist(), strict=True)) == {
        "ann": 9, "bob": 8, "cid": 8, "dan": 8, "eve": 9,
    }  # fmt: skip


def test_weights_of_a_fit_are_kept_and_later_rows_weigh_one():
    rows = opposites()
    model = DadaClassifier(random_state=0, n_updates=20).fit(*rows, sample_weight=np.full(len(rows.y), 3.0))
    model.partial_fit(rows.X[:2], rows.y[:2], users=["ann", "bob"])
    held = model.held_[0]
    assert held.weights.tolist() == [3.0] * 8 + [1.0] + [3.0] * 8 + [1.0] + [3.0] * 16
    joint = problem(held, model.predictors_, beta=1.0, mu1=0.0)
    assert (joint.sample_weight[:9] == [27 / 25] * 8 + [9 / 25]).all()


def test_pickles_hold_no_rows_and_say_so_when_they_are_missed():
    rows = opposites()
    model = pickle.loads(pickle.dumps(DadaClassifier(random_state=0, n_updates=20).fit(*rows)))
    assert not hasattr(model, "held_")
    with pytest.raises(ValueError, match=r"has none of 2 of them: 'ann', 'bob'.* fit again"):
        model.partial_fit(rows.X[:16], rows.y[:16], users=rows.users[:16])
    model.partial_fit(rows.X[:8], rows.y[:8], users=["eve"] * 8)
    assert model.held_[0].user_ids.tolist() == ["eve"]


def test_all_labels_can_be_named_at_the_first_call():
    rows = Rows(np.array([[0.0], [1.0], [2.0]]), np.array([0, 1, 0]), np.array([1, 1, 2]))
    model = DadaClassifier(random_state=0, n_updates=10).partial_fit(*rows, classes=[0, 1, 2])
    assert model.partial_fit([[3.0]], [2], users=[1]).classes_.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"labels that are not in classes .*: 3"):
        model.partial_fit([[3.0]], [3], users=[1])


def test_a_half_life_must_be_positive():
    with pytest.raises(ValueError, match="half_life must be a finite number > 0, got 0"):
        DadaClassifier(half_life=0).fit(*opposites())
