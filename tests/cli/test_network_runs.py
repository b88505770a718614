"""What a swarm is compared with."""

import numpy as np

from dada import DadaClassifier
from dada.cli.network_runs import learn_centrally, make_network
from dada.cli.simulated_runs import NetworkUsers
from dada.data import xor
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
