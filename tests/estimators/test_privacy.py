"""Private fits: what leaves a user depends on releases only, and home models are no worse than learning alone."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal

from dada import DadaClassifier, DadaClassifierCV, DadaRegressor, Linear, Population, Privacy, load_model, save_model
from dada.data import ParquetUsers
from dada.data.predictors.thresholds import FittedLeaves
from dada.estimators.stream import fit_parquet
from dada.fitting.boosting import Grower
from dada.fitting.settings import families
from dada.fitting.trees import Grove
from dada.privacy.accounting import BudgetError, content_hash
from dada.privacy.pooling import Pool, find_groups
from dada.privacy.release import read_labels, read_statistics

ROWS = {"ranges": (-1, 1), "noise": "seeded"}
LABELS = {"protects": "labels", "noise": "seeded"}


def people(seed=0, n_users=60, n_rows=60, n_features=4, n_groups=1, classes=2):
    """Users of a few groups; a group shares a linear rule."""
    rng = np.random.default_rng(seed)
    rules = rng.normal(size=(n_groups, n_features, 1 if classes == 2 else classes))
    owner = np.repeat(np.arange(n_users), n_rows)
    X = rng.uniform(-1, 1, (owner.size, n_features))
    scores = np.einsum("id,idc->ic", X, rules[owner % n_groups]) + 0.5 * rng.normal(size=(owner.size, 1))
    y = (scores[:, 0] > 0).astype(int) if classes == 2 else scores.argmax(axis=1)
    return Population.from_arrays(X, y, owner)


def split(population, n_train):
    """The first rows of each user, and the others."""
    place = np.arange(population.n_rows) - population.row_start[population.owners]
    return population.take(place < n_train), population.take(place >= n_train)


def rows(population):
    return {"X": population.X, "y": population.targets, "users": population.users}


def right(model, test):
    return float((model.predict(test.X, users=test.users) == test.targets).mean())


def test_few_rows_gain_from_releases_of_others():
    train, test = split(people(n_users=150), 20)
    model = DadaClassifier(privacy=Privacy(4.0, **ROWS), random_state=0).fit(**rows(train))
    alone = DadaClassifier(privacy=Privacy(0.01, **ROWS), random_state=0).fit(**rows(train))
    assert model.privacy_.sent
    assert not alone.privacy_.sent
    assert right(model, test) > right(alone, test) + 0.01


def test_nothing_sent_costs_nothing_and_leaves_no_graph():
    train = people(n_users=5, n_rows=6)
    model = DadaClassifier(privacy=Privacy(1.0, **ROWS), random_state=0).fit(**rows(train))
    assert model.privacy_.reason.startswith("Nothing is sent")
    assert model.privacy_.spent.delta_at(0.0) == 0.0
    assert (model.privacy_.releases, model.bits_) == ((), 0.0)
    assert model.graph_.mean_neighbours == 0
    assert not model.released_models_.any()


def test_groups_are_found_in_releases():
    train, test = split(people(3, n_users=80, n_rows=150, n_groups=2), 100)
    model = DadaClassifier(privacy=Privacy(8.0, **ROWS), random_state=0).fit(**rows(train))
    assert model.settings_["graph"] == "2 groups"
    k, l, _ = model.graph_.edges()
    assert (k % 2 == l % 2).mean() > 0.95
    model.models_ = model.released_models_
    assert right(model, test) > 0.7


def test_secure_sums_of_public_groups_need_less_epsilon_than_single_releases():
    train, test = split(people(5, n_users=90, n_groups=3, n_rows=60), 20)
    groups = {user: f"group {user % 3}" for user in range(90)}

    def fitted(**privacy):
        found = DadaClassifier(privacy=Privacy(0.5, **ROWS, **privacy), random_state=0).fit(**rows(train))
        return found, right(found, test)

    single, alone = fitted()
    one_sum, together = fitted(secure_sum=True)
    by_group, in_groups = fitted(secure_sum=True, groups=groups)
    assert not single.privacy_.sent
    assert one_sum.privacy_.sent
    assert (one_sum.privacy_.releases, by_group.settings_["graph"]) == ((), "3 public groups")
    assert in_groups > max(alone, together) + 0.01
    k, l, _ = by_group.graph_.edges()
    assert (k % 3 == l % 3).all()


def test_a_secure_sum_is_drawn_once(tmp_path):
    train = people(n_users=12, n_rows=60)
    privacy = Privacy(4.0, ranges=(-1, 1), ledger=tmp_path / "l", secure_sum=True, groups={k: k % 2 for k in range(12)})
    first, again = (DadaClassifier(privacy=privacy, random_state=0).fit(**rows(train)) for _ in range(2))
    assert_array_equal(first.models_, again.models_)
    save_model(first, tmp_path / "model.dada")
    assert load_model(tmp_path / "model.dada").privacy.groups == privacy.groups


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": {}}, "groups are those of secure sums"),
        ({"secure_sum": True, "protects": "labels"}, "secure_sum is for rows"),
    ],
)
def test_groups_without_sums_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Privacy(1.0, ranges=(-1, 1), **settings)


@pytest.mark.parametrize(("names", "message"), [({0: "a"}, "none for 1"), ({0: "b", 1: "b"}, "'b' has 2")])
def test_small_groups_and_users_without_one_are_refused(names, message):
    train = people(n_users=5, n_rows=400)
    given = names if len(names) == 1 else dict.fromkeys(range(5), "a") | names
    privacy = Privacy(8.0, **ROWS, secure_sum=True, groups=given)
    with pytest.raises(ValueError, match=message):
        DadaClassifier(privacy=privacy, random_state=0).fit(**rows(train))


def test_released_models_follow_from_the_released_bytes():
    train = people(n_users=30, n_rows=40)
    model = DadaClassifier(privacy=Privacy(4.0, **ROWS), random_state=0).fit(**rows(train))
    pool = Pool.of([read_statistics(body)[0] for body in model.privacy_.releases], model.predictors_.coupling, 4)
    released = find_groups(pool, np.random.default_rng(0), most=1).released_models()[:, :, 0]
    assert_array_equal(model.released_models_, released.astype(np.float32))


def test_a_second_fit_to_the_same_rows_sends_the_same_bytes(tmp_path):
    train = people(n_users=30, n_rows=40)
    privacy = Privacy(4.0, ranges=(-1, 1), ledger=tmp_path / "ledger")
    first, again = (DadaClassifier(privacy=privacy, random_state=0).fit(**rows(train)) for _ in range(2))
    assert list(map(content_hash, first.privacy_.releases)) == list(map(content_hash, again.privacy_.releases))
    assert_array_equal(first.models_, again.models_)


def test_changed_rows_are_refused_beyond_the_budget(tmp_path):
    train = people(n_users=30, n_rows=60)
    privacy = Privacy(4.0, **ROWS, ledger=tmp_path / "ledger")
    DadaClassifier(privacy=privacy, random_state=0).fit(**rows(train))
    changed = replace(train, X=train.X + 0.01)
    with pytest.raises(BudgetError, match="above the budget"):
        DadaClassifier(privacy=privacy, random_state=0).fit(**rows(changed))


def test_secure_noise_ignores_the_seed():
    train = people(n_users=30)
    bodies = [
        DadaClassifier(privacy=Privacy(4.0, ranges=(-1, 1)), random_state=0).fit(**rows(train)).privacy_.releases[0]
        for _ in range(2)
    ]
    assert bodies[0] != bodies[1]


def test_base_predictors_come_from_public_ranges():
    """Rows outside of the ranges are clipped; no predictor depends on the rows."""
    train = people(n_users=30)
    wider = replace(train, X=train.X * 3)
    found = [DadaClassifier(privacy=Privacy(4.0, **ROWS), random_state=0).fit(**rows(each)) for each in (train, wider)]
    probe = np.linspace(-2, 2, 12).reshape(3, 4)
    assert_array_equal(found[0].predictors_.predict(probe), found[1].predictors_.predict(probe))
    given = DadaClassifier(Linear(clip=2.0), privacy=Privacy(4.0, **ROWS), random_state=0).fit(**rows(train))
    assert_array_equal(given.predictors_.predict(np.full((1, 4), 1.0)), np.full((1, 4), 0.5, np.float32))


def test_several_classes_and_numbers():
    three = people(n_users=100, classes=3)
    model = DadaClassifier(privacy=Privacy(8.0, **ROWS), random_state=0).fit(**rows(three))
    assert model.privacy_.sent
    assert read_statistics(model.privacy_.releases[0])[0].moment.shape == (5, 3)
    assert right(model, three) > 0.6
    X = np.tile(np.linspace(-1, 1, 50), 40)[:, None]
    users = np.repeat(np.arange(40), 50)
    numbers = DadaRegressor(privacy=Privacy(4.0, **ROWS, targets=(-4, 4)), random_state=0)
    assert numbers.fit(X, 3 * X[:, 0] + 1, users=users).score(X, 3 * X[:, 0] + 1, users=users) > 0.9
    assert (numbers.target_mean_, numbers.target_scale_) == (0.0, 4.0)


def test_labels_are_flipped_once_and_home_uses_the_true_ones(tmp_path):
    train = people(n_users=12, n_rows=20)
    privacy = Privacy(1.0, **LABELS, ledger=tmp_path / "ledger")
    model = DadaClassifier(privacy=privacy, n_updates=50, random_state=0).fit(**rows(train))
    given = np.concatenate([read_labels(body) for body in model.privacy_.releases])
    assert 0.15 < (given != (train.y > 0)).mean() < 0.4
    again = DadaClassifier(privacy=privacy, n_updates=50, random_state=0).fit(**rows(train))
    assert again.privacy_.releases == model.privacy_.releases
    assert right(model, train) > float((given == (train.y > 0)).mean())


def test_useless_labels_do_not_pull_users_below_learning_alone():
    """At epsilon 0.05 labels are noise; held-out rows at home show it."""
    train, test = split(people(7, n_users=30, n_rows=90, n_groups=3), 45)
    settings = {"n_updates": 100, "random_state": 0}
    home = DadaClassifier(privacy=Privacy(0.05, **LABELS), **settings).fit(**rows(train))
    alone = DadaClassifier(graph="none", **settings).fit(**rows(train))
    error = np.sqrt(0.25 / test.n_rows)
    assert right(home, test) > right(alone, test) - 2 * error


def test_base_predictors_are_those_that_were_right_most_often_on_flipped_labels():
    """Few flipped labels show no significant difference; the best bet counts."""
    rng = np.random.default_rng(2)
    X, users = rng.uniform(-1, 1, (240, 1)), np.repeat(np.arange(30), 8)
    model = DadaClassifier(privacy=Privacy(1.0, **LABELS), n_updates=50, random_state=0)
    model.fit(X, abs(X[:, 0]) < 0.5, users=users)
    recipes, right = families(Population.from_arrays(X, users % 2, users)), model.settings_["held_out"]
    best = max(recipes, key=lambda family: right[f"{family}, everyone, whole"])
    assert model.predictors_.n == recipes[best].fit(X).n


def test_a_model_file_keeps_the_budget(tmp_path):
    train = people(n_users=30)
    model = DadaClassifier(privacy=Privacy(4.0, **ROWS, ledger=tmp_path / "l"), random_state=0).fit(**rows(train))
    save_model(model, tmp_path / "model.dada")
    loaded = load_model(tmp_path / "model.dada")
    assert loaded.privacy.epsilon == 4.0
    assert_array_equal(loaded.models_, model.models_)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (DadaClassifier(privacy=Privacy(1.0, **ROWS), class_weight="balanced"), "does not support weights"),
        (DadaClassifier(privacy=Privacy(1.0, ranges=(1, 0))), "ranges must be finite with low <= high"),
        (DadaClassifier(privacy=Privacy(1.0, ranges=((0, 0), (1, 1)))), "two sequences of 4 numbers"),
        (DadaClassifierCV(DadaClassifier(privacy=Privacy(1.0, **ROWS))), "a search compares settings on exact rows"),
        (DadaRegressor(privacy=Privacy(1.0, **ROWS)), "needs the public range of the targets"),
        (DadaRegressor(privacy=Privacy(1.0, **LABELS, targets=(0, 1))), "protects='labels' needs classes"),
    ],
)
def test_what_would_reveal_rows_is_refused(estimator, message):
    train = people(n_users=10, n_rows=8)
    with pytest.raises(ValueError, match=message):
        estimator.fit(train.X, train.targets, users=train.users)


class GrownError(Exception):
    """A user has begun to grow trees."""


@pytest.fixture
def no_trees(monkeypatch):
    """Whoever grows trees, on own rows or with others, raises."""

    def grow(*_):
        raise GrownError

    monkeypatch.setattr(Grower, "__init__", grow)
    monkeypatch.setattr(Grove, "__init__", grow)


def quarters(n_users=20, n_rows=60):
    """Users whose labels follow from the signs of two features together, which trees find at once."""
    rng = np.random.default_rng(4)
    X, owner = rng.uniform(-1, 1, (n_users * n_rows, 2)), np.repeat(np.arange(n_users), n_rows)
    return Population.from_arrays(X, (X[:, 0] > 0) == (X[:, 1] > 0), owner)


@pytest.mark.parametrize(
    "settings",
    [
        {"privacy": Privacy(8.0, **LABELS)},
        {"privacy": Privacy(8.0, **LABELS), "graph": "everyone"},
        {"privacy": Privacy(8.0, **LABELS), "graph": "evidence"},
        {"privacy": Privacy(8.0, **LABELS), "step": "block"},
        {"privacy": Privacy(8.0, **ROWS)},
        {"privacy": Privacy(8.0, **ROWS), "step": "block"},
        {"privacy": Privacy(8.0, **ROWS, secure_sum=True)},
    ],
)
def test_no_trees_are_grown_with_privacy(no_trees, settings):
    """Histograms of rows would reveal them; a fit without privacy begins with trees here."""
    train = quarters()
    with pytest.raises(GrownError):
        DadaClassifier(random_state=0, graph=settings.get("graph", "auto")).fit(**rows(train))
    model = DadaClassifier(random_state=0, **settings).fit(**rows(train))
    assert not isinstance(model.predictors_.parts[-1], FittedLeaves)
    # The choices of another model, which this one does not even have, are not used.
    again = DadaClassifier(random_state=0, **settings).fit_population(train, like=model)
    assert again.predictors_.n == model.predictors_.n


@pytest.mark.parametrize("budget", [Privacy(8.0, **LABELS), Privacy(8.0, **ROWS)], ids=["labels", "rows"])
def test_no_trees_are_grown_by_ways_that_privacy_refuses(no_trees, budget, tmp_path):
    train = quarters(n_users=6)
    model = DadaClassifier(privacy=budget, random_state=0)
    with pytest.raises(ValueError, match="a search compares settings on exact rows"):
        DadaClassifierCV(model).fit(**rows(train))
    with pytest.raises(ValueError, match="a private fit cannot grow"):
        model.partial_fit(**rows(train))
    table = pl.DataFrame(train.X, schema=["a", "b"]).with_columns(who=train.users, came=train.y)
    table.write_parquet(tmp_path / "rows.parquet")
    users = ParquetUsers.open(tmp_path, user="who", label="came")
    with pytest.raises(ValueError, match="privacy needs all rows in one process"):
        fit_parquet(model, users)


def test_privacy_of_another_kind_is_refused():
    train = people(n_users=10, n_rows=8)
    with pytest.raises(TypeError, match=r"privacy must be a dada\.Privacy or None, got 1\.0"):
        DadaClassifier(privacy=1.0).fit(**rows(train))


def test_a_private_fit_cannot_grow():
    train = people(n_users=10, n_rows=8)
    model = DadaClassifier(privacy=Privacy(1.0, **ROWS), random_state=0).fit(**rows(train))
    with pytest.raises(ValueError, match="a private fit cannot grow"):
        model.add_user(train.X[:3], [0, 1, 0], 99)
