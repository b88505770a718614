"""What a swarm is compared with."""

import numpy as np
from numpy.testing import assert_array_equal

from dada import DadaClassifier
from dada.cli.network_runs import learn_centrally, leaves_of, make_homes, make_network
from dada.cli.simulated_runs import NetworkUsers, engine_leaves, synthetic_peers, with_boosting
from dada.data import xor
from dada.peer.signatures import Unsealed
from dada.task import problem


def test_users_alone_are_scored_with_the_trees_that_they_grow_alone():
    people = xor(0, n_users=6)
    settings = {"predictors": "trees", "loss": "logistic", "mu": 1.0, "beta": 10.0, "graph": "evidence"}
    model = DadaClassifier(random_state=0, **settings).fit_population(people.train)
    joint = problem(people.train, model.predictors_, beta=10.0, mu1=1.0, loss="logistic")
    groups = np.zeros(6, int)
    users = NetworkUsers("xor", "--data xor", people.train, people.test, model.predictors_, joint, groups, model=model)
    found = learn_centrally(users, make_network(users, wakeups_per_s=1.0), seed=0)
    assert found.alone.shape == (6,)
    assert 0.5 < found.local < 1.0
    assert 0.5 < found.engine < 1.0


def test_folders_of_peers_that_boost_trees_have_rows_for_them_and_scores_have_leaves(tmp_path):
    people = with_boosting(synthetic_peers("xor", 4, 0))
    network = make_network(people, wakeups_per_s=1.0)
    homes = make_homes(tmp_path, people, network)
    assert leaves_of(homes, people) == {}
    boosting = [home.open_boosting(b"%d" % k, Unsealed()) for k, home in enumerate(homes)]
    assert network.boosting.terms(2) == people.boosted.terms == boosting[0].terms
    for one, rows in zip(boosting, people.boosted.rows, strict=True):
        assert_array_equal(one.rows.bins, rows.bins)
        assert_array_equal(one.rows.y, rows.y)
    models = np.zeros((4, people.problem.n_predictors), np.float32)
    leaves = engine_leaves(people, 0)
    assert people.score(models, leaves) > people.score(models, {}) + 0.1
